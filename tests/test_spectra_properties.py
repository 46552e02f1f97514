"""Laws that every spectrum obeys, on random factors (hypothesis)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import eigenlens
from eigenlens.spectra.orders import ORDERS
from matrices import distance

sizes = st.tuples(st.integers(2, 12), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
seeds = st.integers(0, 10_000)


def circuit(size: tuple[int, int, int, int], seed: int, scale: float = 1.0) -> eigenlens.OVCircuit:
    """Random factors of std .2 with grouped values: (d, n_kv_heads, group, head_dim)."""
    d, n_kv, group, h = size
    rng = np.random.default_rng(seed)
    W_V = 0.2 * rng.standard_normal((n_kv * h, d))
    W_O = 0.2 * scale * rng.standard_normal((d, n_kv * group * h))
    return eigenlens.OVCircuit(
        W_V, W_O, n_heads=n_kv * group, n_kv_heads=n_kv, head_dim=h, placement="post"
    )


def values(c: eigenlens.OVCircuit, order: str = "modulus") -> np.ndarray:
    return eigenlens.spectrum(c, order=order, all=True).layers[0].eigenvalues


@given(sizes, seeds, st.floats(0.1, 10))
def test_scaling_f_scales_its_eigenvalues(size: tuple[int, int, int, int], seed: int, c: float):
    one, scaled = values(circuit(size, seed)), values(circuit(size, seed, c))
    assert one.size == scaled.size
    # an eigenvalue of condition kappa moves by kappa eps; these are small and mild
    assert distance(scaled, c * one) < 1e-7 * max(1.0, c)


@given(sizes, seeds)
def test_spectrum_is_that_of_lapack_on_the_dense_product(
    size: tuple[int, int, int, int], seed: int
) -> None:
    c = circuit(size, seed)
    exact = np.linalg.eigvals(c.dense())
    exact = exact[np.argsort(-np.abs(exact))]
    found = values(c)
    assert found.size <= min(c.W_V.shape[0], c.d_model)
    assert distance(found, exact[: found.size]) < 1e-7


@given(sizes, seeds)
def test_order_of_heads_does_not_matter(size: tuple[int, int, int, int], seed: int) -> None:
    c = circuit(size, seed)
    h, group = c.head_dim, c.n_heads // c.n_kv_heads
    W_V = c.W_V.reshape(c.n_kv_heads, h, -1)[::-1].reshape(c.W_V.shape)
    W_O = c.W_O.reshape(c.d_model, c.n_kv_heads, group, h)[:, ::-1].reshape(c.W_O.shape)
    turned = eigenlens.OVCircuit(
        W_V, W_O, n_heads=c.n_heads, n_kv_heads=c.n_kv_heads, head_dim=h, placement="post"
    )
    a, b = values(c), values(turned)
    assert a.size == b.size
    assert distance(a, b) < 1e-7


@given(sizes, seeds, st.sampled_from(sorted(ORDERS)))
def test_keys_descend_and_ranges_hold(
    size: tuple[int, int, int, int], seed: int, order: str
) -> None:
    layer = eigenlens.spectrum(circuit(size, seed), order=order, all=True).layers[0]
    keys = ORDERS[order].key(layer.eigenvalues)
    assert np.all(np.diff(keys) <= 1e-12)
    assert np.all(layer.conditions >= 1)
    assert layer.residuals.max(initial=0) <= 1e-10
    assert np.abs(layer.eigenvalues).max(initial=0) <= layer.spectral_norm * (1 + 1e-10)
    assert layer.spectral_norm <= layer.frobenius_norm * (1 + 1e-10)
    assert layer.henrici is None or 0 <= layer.henrici <= 1
    assert layer.gap is None or layer.gap >= 0
