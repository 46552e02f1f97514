"""Tiny, huge and unevenly scaled factors, Jordan blocks and products that cancel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import NumericsError
from eigenlens.spectra.maps import Full, LowRank, normalised
from eigenlens.spectra.norms import product_rounding, spectral_norm
from eigenlens.spectra.orders import ORDERS, leading_first, scaled
from eigenlens.spectra.principal import find_principal, sure_bars, target_basis
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.spectra.solvers import eigenpairs
from matrices import distance

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}


def factors(d: int, r: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Left (d, r) and right (r, d), of float32 values, so that both dtypes have the same F."""
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((d, r)), rng.standard_normal((r, d))
    return left.astype(np.float32).astype(float), right.astype(np.float32).astype(float)


def layer(left: np.ndarray, right: np.ndarray, **options: object) -> LayerSpectrum:
    return eigenlens.spectrum((right, left), **options).layers[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["real", "modulus"])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_sorting_is_relative_where_the_key_is(name: str, dtype: type) -> None:
    values = np.array([1, 3, 2 + 1j, 2 - 1j, -0.5], dtype=dtype)
    for size in (1.0, 1e-9, 1e-20, 1e20):
        index = leading_first(values * dtype(size), ORDERS[name])
        assert index.tolist() == leading_first(values, ORDERS[name]).tolist() == [1, 2, 3, 0, 4]


@pytest.mark.parametrize("power", [-30, -3, 0, 3, 30])
def test_the_residual_order_of_a_scaled_map(power: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(9) + 1j * rng.standard_normal(9)
    order = ORDERS["residual"]
    index = leading_first(values * 2.0**power, order)
    assert np.array_equal(leading_first(values, scaled(order, power)), index)
    if power == -3:  # the check tells a 1 that was left alone apart
        assert not np.array_equal(leading_first(values, order), index)


SHAPES = [(24, 24), (24, 10), (90, 90), (150, 80)]


@pytest.mark.parametrize("order", ["real", "modulus"])
@pytest.mark.parametrize(
    ("dtype", "powers"),
    [
        ("float64", [(-500, -500), (500, 500), (-900, 850), (-40, -40), (0, -600)]),
        ("float32", [(-60, -60), (55, 55), (-100, 110), (-30, -30), (0, 100)]),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_power_of_two_changes_nothing_but_the_scale(
    shape: tuple[int, int], dtype: str, powers: list[tuple[int, int]], order: str
) -> None:
    left, right = factors(*shape)
    plain = layer(left, right, order=order, dtype=dtype, k=3)
    assert plain.regime != "no_consensus"
    for p, q in powers:
        found = layer(np.ldexp(left, p), np.ldexp(right, q), order=order, dtype=dtype, k=3)
        size = 2.0 ** (p + q)
        loose = 1e4 * EPS[dtype]
        assert (found.regime, found.target) == (plain.regime, plain.target)
        assert found.gap == pytest.approx(plain.gap, rel=loose)
        assert found.gap >= 0
        near = np.abs(found.eigenvalues.astype(complex) / size - plain.eigenvalues)
        assert near.max() <= loose * plain.spectral_norm
        assert found.spectral_norm / size == pytest.approx(plain.spectral_norm, rel=1e-5)
        assert found.frobenius_norm / size == pytest.approx(plain.frobenius_norm, rel=1e-5)
        ratio = found.error_bars / size / plain.error_bars
        assert np.all((ratio > 0.05) & (ratio < 20))
        assert found.target_vectors.shape == plain.target_vectors.shape


def test_measures_of_a_huge_spectrum() -> None:
    left, right = factors(24, 24)
    plain = layer(left, right, all=True)
    huge = layer(np.ldexp(left, 450), np.ldexp(right, 450), all=True)
    assert huge.henrici == pytest.approx(plain.henrici, rel=1e-9)
    assert huge.negative_fraction == plain.negative_fraction


@pytest.mark.parametrize(
    ("dtype", "size", "words"),
    [
        ("float64", 1e160, "beyond the range of float64; scale the weights"),
        ("float64", 1e-160, "beyond the range of float64; scale the weights"),
        ("float32", 1e30, "beyond the range of float32; use --dtype float64"),
        ("float32", 1e-30, "beyond the range of float32; use --dtype float64"),
        ("float32", 1e60, "not finite in float32"),
        ("float32", 1e-60, "underflows to 0 in float32; use --dtype float64"),
    ],
)
@pytest.mark.parametrize("shape", [(16, 16), (16, 5), (100, 80)])
def test_what_leaves_the_range_is_refused_in_one_line(
    shape: tuple[int, int], dtype: str, size: float, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    left, right = factors(*shape)
    with pytest.raises(NumericsError, match=words) as error:
        layer(left * size, right * size, dtype=dtype)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""


UNEVEN = {"float64": 8.0, "float32": 4.0}


@pytest.mark.parametrize("dtype", UNEVEN)
def test_unevenly_scaled_factors_lose_no_eigenvalue(dtype: str) -> None:
    left, right = factors(32, 16)
    powers = np.round(np.linspace(-UNEVEN[dtype], UNEVEN[dtype], 16) * np.log2(10))
    sizes = 2.0**powers
    found = layer(left * sizes, right / sizes[:, None], all=True, dtype=dtype)
    exact = np.linalg.eigvals(right @ left)
    assert found.eigenvalues.size == 16
    assert found.solver == "dense-core"
    assert distance(found.eigenvalues, exact) < 1e4 * EPS[dtype] * found.spectral_norm


def test_a_pair_that_lifting_loses_is_found_on_the_whole_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from eigenlens.spectra import solvers

    monkeypatch.setattr(solvers, "normalised", lambda a: (a, 0))
    a = LowRank(np.diag([1e16, 1.0, 0, 0])[:, :2], np.diag([1e-16, 2.0, 0, 0])[:2])
    found = eigenpairs(a, None, ORDERS["modulus"])
    assert found.solver == "dense"
    assert found.values.real == pytest.approx([2, 1])


@pytest.mark.parametrize("huge", [1e8, 1e15, 1e26])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("k", [4, None])
@pytest.mark.parametrize("width", [32, 96])
def test_one_huge_weight_is_no_reason_to_refuse(
    width: int, k: int | None, dtype: str, huge: float
) -> None:
    """LAPACK's balancing leaves residuals of 1e-9 and, from 1e26 on, of 1e-3 of |F| here."""
    left, right = (0.02 * x for x in factors(width, 32, seed=2))
    right[5, 17] = huge
    found = eigenpairs(LowRank(left.astype(dtype), right.astype(dtype)), k, ORDERS["modulus"])
    F = left @ right
    norm = np.linalg.norm(F, 2)
    allowed = {"float64": 1e-10, "float32": 1e-5}[dtype] * norm
    v, w = (np.asarray(x[:, : found.values.size], complex) for x in (found.right, found.left))
    assert np.linalg.norm(F @ v - found.values * v, axis=0).max() <= allowed
    assert np.linalg.norm(F.T @ w - found.values.conj() * w, axis=0).max() <= allowed
    # Of huge (l e^T), the outer product that is left of F, the one eigenvalue is e^T l.
    assert found.values[0] == pytest.approx(huge * left[17, 5], rel=1e-5)


def test_balancing_keeps_the_product_and_leaves_even_factors_alone() -> None:
    left, right = factors(12, 5)
    even = LowRank(left, right)
    assert normalised(even) == (even, 0)
    assert normalised(even)[0] is even
    sizes = 2.0 ** np.array([30, -20, 0, 7, 90])
    fit, exponent = normalised(LowRank(left * sizes, right / sizes[:, None]))
    assert isinstance(fit, LowRank)
    ratio = np.linalg.norm(fit.left, axis=0) / np.linalg.norm(fit.right, axis=1)
    assert np.all((ratio > 1 / 8) & (ratio < 8))
    assert np.allclose(np.ldexp(fit.dense(), exponent), even.dense(), rtol=0, atol=1e-14)
    assert normalised(fit) == (fit, 0)


def test_an_idle_inner_index_has_no_say() -> None:
    left, right = factors(20, 6)
    left[:, 0] = 0
    right[0] *= 1e200
    found = eigenpairs(LowRank(left, right), None, ORDERS["modulus"])
    exact = np.linalg.eigvals(right[1:] @ left[:, 1:])
    assert distance(found.values, exact) < 1e-12 * found.norm
    disjoint = LowRank(left[:, :1] + np.eye(20, 2), np.eye(2, 20) * 0)
    assert eigenpairs(disjoint, None, ORDERS["modulus"]).norm == 0


BLOCKS = {
    "ones above": np.triu(np.ones((3, 3))),
    "2 I + N": 2 * np.eye(6) + np.diag(np.ones(5), 1),
    "ones above, large": np.triu(np.ones((20, 20))),
    "2 I + N, four": 2 * np.eye(4) + np.diag(np.ones(3), 1),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", BLOCKS)
def test_an_unbounded_bar_makes_no_kernel(name: str, order: str) -> None:
    a = Full(BLOCKS[name])
    pairs = eigenpairs(a, None, ORDERS[order])
    found = find_principal(pairs, a.d, a.rank_bound, ORDERS[order])
    assert found is not None
    assert (found.regime, found.target, found.defective) == ("near_degenerate", "span", True)
    basis = target_basis(a, pairs, found)
    assert basis.shape == (a.d, a.d)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [5, 12])
@pytest.mark.parametrize("turned", [False, True])
def test_nilpotent_matrices_still_lead_nowhere(order: str, size: int, turned: bool) -> None:
    matrix = np.diag(np.ones(size - 1), 1)
    if turned:  # rounding scatters the zeros then
        q = np.linalg.qr(np.random.default_rng(2).standard_normal((size, size)))[0]
        matrix = q @ matrix @ q.T
    a = Full(matrix)
    pairs = eigenpairs(a, None, ORDERS[order])
    found = find_principal(pairs, a.d, a.rank_bound, ORDERS[order])
    assert found is not None
    assert found.regime == "no_consensus"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", EPS)
def test_a_clean_leader_does_not_tie_with_an_ill_conditioned_kernel(order: str, dtype: str) -> None:
    ones = np.ones((4, 4))
    found = layer(ones, ones, order=order, dtype=dtype)
    assert (found.regime, found.target) == ("real_dominant", "v1")
    assert found.eigenvalues[0] == pytest.approx(16)


def test_sure_bars_are_those_of_the_cluster() -> None:
    a = Full(BLOCKS["2 I + N"])
    pairs = eigenpairs(a, None, ORDERS["modulus"])
    bars = sure_bars(pairs)
    assert np.allclose(bars, EPS["float64"] ** (1 / 2) * pairs.norm)
    part = replace(pairs, complete=False)
    assert np.allclose(sure_bars(part), EPS["float64"] ** (1 / 6) * pairs.norm)
    # Far apart on the scale of 1, yet one cluster for perturbations of eps |A|.
    steep = Full(np.diag([1.0, 100, -300]) + np.diag([1e9, 1e9], 1))
    pairs = eigenpairs(steep, None, ORDERS["modulus"])
    part = replace(pairs, complete=False)
    assert np.allclose(sure_bars(part), EPS["float64"] ** (1 / 3) * pairs.norm)
    clean = eigenpairs(Full(np.diag([3.0, 2, 1])), None, ORDERS["modulus"])
    assert np.array_equal(sure_bars(clean), clean.error_bars)


@pytest.mark.parametrize("shape", [(20, 40), (20, 20), (60, 20)])
def test_bars_hold_where_the_product_cancels(shape: tuple[int, int]) -> None:
    """[X, X] [[Y], [Z - Y]]: the large part X Y cancels, and its rounding is what is left."""
    rng = np.random.default_rng(3)
    d, r = shape
    half = r // 2
    x, y = 1e5 * rng.standard_normal((d, half)), rng.standard_normal((half, d))
    z = 1e-5 * rng.standard_normal((half, d))
    a = LowRank(np.hstack([x, x]), np.vstack([y, z - y]))
    exact = LowRank(x, z - y + y)  # z as the factors have it: z - y rounds, adding y does not
    assert product_rounding(a) > 1e4 * spectral_norm(exact)
    pairs = eigenpairs(a, None, ORDERS["modulus"])
    truth = np.linalg.eigvals(exact.right @ exact.left)
    truth = np.concatenate([truth, np.zeros(d)])
    missed = np.abs(pairs.values[:, None] - truth[None, :]).min(axis=1)
    assert np.all(missed <= 30 * pairs.error_bars)
    narrow = pairs.conditions * np.maximum(pairs.residuals, EPS["float64"]) * pairs.norm
    if r >= d:
        assert not np.all(missed <= 30 * narrow), "the rounding of the product is what is missed"


def test_a_circuit_of_its_own_is_treated_alike() -> None:
    left, right = factors(16, 8)
    circuit = OVCircuit(right * 1e-150, left * 1e-100, n_heads=2, n_kv_heads=2, head_dim=4)
    found = eigenlens.spectrum(circuit, order="real").layers[0]
    plain = layer(left, right, order="real")
    assert found.regime == plain.regime
    assert found.gap == pytest.approx(plain.gap, rel=1e-9)
