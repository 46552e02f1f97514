"""Rank-one edits: the eigenpair, the placed pair, the probes and the strengths, against LAPACK."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import NumericsError, OptionError, ShapeError
from eigenlens.steering.probes import (
    PROBES,
    RIDGE,
    TAU,
    Moments,
    placed,
    reader,
    repeated_values,
    scaled,
)
from eigenlens.steering.rank_one import (
    cosines_after,
    first_crossing,
    secular,
    strength_for_cosine,
    top_pair,
)


def circuit(
    seed: int = 0, d: int = 12, heads: int = 4, kv: int = 2, head_dim: int = 3
) -> OVCircuit:
    draw = np.random.default_rng(seed)
    return OVCircuit(
        draw.normal(0, 0.3, (kv * head_dim, d)),
        draw.normal(0, 0.3, (d, heads * head_dim)),
        heads,
        kv,
        head_dim,
    )


def unit(seed: int, d: int = 12) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(d)
    return np.asarray(x / np.linalg.norm(x))


def tokens(seed: int, n: int = 200, m: int = 12) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.asarray(draw.normal(0.4, 1.0, (n, m)) @ draw.normal(0, 0.5, (m, m)))


def moments(Z: np.ndarray) -> Moments:
    return Moments(Z.mean(axis=0), Z.T @ Z / len(Z), len(Z))


def test_repeated_values_give_the_layer_matrix() -> None:
    c = circuit()
    np.testing.assert_allclose(c.W_O @ repeated_values(c), c.dense(), atol=1e-14)
    tiled = np.tile(c.W_V, (2, 1))
    assert np.abs(c.W_O @ tiled - c.dense()).max() > 0.1  # a tile would be seen


@pytest.mark.parametrize("alpha", [8.0, 100.0, -50.0, 1e4])
def test_the_new_pair_is_an_eigenpair_of_the_edited_layer(alpha: float) -> None:
    c, u = circuit(1), unit(2)
    w = PROBES["eigen"](reader(c), u, None).w
    q = repeated_values(c).T @ w
    found = top_pair(c.dense(), u, q, alpha)
    edited = c.dense() + alpha * np.outer(u, q)
    values = np.linalg.eigvals(edited)
    assert np.abs(values - found.value).min() < 1e-9 * abs(alpha)
    assert abs(found.value) == pytest.approx(np.abs(values).max())
    np.testing.assert_allclose(
        edited @ found.vector, found.value * found.vector, atol=1e-8 * abs(alpha)
    )
    assert abs(secular(c.dense(), u, q, alpha, found.value)) < 1e-10
    assert np.vdot(u, found.vector).real > 0


def test_for_large_strength_the_pair_tends_to_the_direction() -> None:
    c, u = circuit(1), unit(2)
    q = repeated_values(c).T @ PROBES["eigen"](reader(c), u, None).w
    cosines, ratios = [], []
    for alpha in (1e2, 1e3, 1e4):
        found = top_pair(c.dense(), u, q, alpha)
        cosines.append(1 - abs(np.vdot(u, found.vector)))
        ratios.append(abs(found.value / (alpha * (q @ u)) - 1))
    assert cosines[0] > 50 * cosines[1] > 2500 * cosines[2]
    assert ratios[0] > 5 * ratios[1] > 25 * ratios[2]


def test_placement_puts_the_pair_exactly_and_leaves_the_known_rest() -> None:
    c, u = circuit(3), unit(4)
    layer = reader(c)
    probe = PROBES["placement"](layer, u, None)
    q = layer.values.T @ probe.w
    assert q @ u == pytest.approx(1.0)
    rest = np.linalg.eigvals(c.dense() @ (np.eye(12) - np.outer(u, q)))
    for value in (3.0, -7.5):
        there = placed(layer, u, probe, value)
        edited = c.dense() + np.outer(there.written, q)
        np.testing.assert_allclose(edited @ u, value * u, atol=1e-12)
        values = np.linalg.eigvals(edited)
        assert np.abs(values - value).min() < 1e-10
        for v in rest[np.abs(rest) > 1e-6]:
            assert np.abs(values - v).min() < 1e-8


def test_the_calibrated_probe_is_the_constrained_minimum() -> None:
    c, u, Z = circuit(5), unit(6), tokens(7)
    layer = reader(c)
    w = PROBES["calibrated"](layer, u, moments(Z)).w
    g = layer.values @ u
    assert g @ w == pytest.approx(TAU)
    rho = RIDGE * np.trace(Z.T @ Z / len(Z)) / 12

    def loss(x: np.ndarray) -> float:
        return float(np.mean((Z @ x - 1) ** 2) + rho * x @ x)

    draw = np.random.default_rng(0)
    for _ in range(20):
        step = draw.normal(0, 0.01, 12)
        step -= (g @ step) / (g @ g) * g  # stays on the constraint
        assert loss(w + step) > loss(w)
    free = np.linalg.solve(Z.T @ Z / len(Z) + rho * np.eye(12), Z.mean(axis=0))
    assert loss(free) < loss(w)  # without the constraint it would lie elsewhere


def test_the_eigen_probe_splits_tokens_and_the_calibrated_one_does_not() -> None:
    c, u, Z = circuit(5), unit(6), tokens(7)
    layer = reader(c)
    split = np.mean(Z @ PROBES["eigen"](layer, u, None).w > 0)
    together = np.mean(Z @ PROBES["calibrated"](layer, u, moments(Z)).w > 0)
    assert 0.05 < split < 0.95
    assert together > max(split, 1 - split)


def test_units() -> None:
    c, u, Z = circuit(5), unit(6), tokens(7)
    probe = PROBES["eigen"](reader(c), u, None)
    assert np.mean(np.abs(Z @ scaled(probe, Z).w)) == pytest.approx(1.0)
    assert np.linalg.norm(scaled(probe, None).w) == pytest.approx(1.0)
    with pytest.raises(NumericsError, match="reads 0 from every token"):
        scaled(probe, np.zeros((3, 12)))


def test_what_cannot_be_steered_is_told() -> None:
    c, u = circuit(0, d=12, heads=2, kv=2, head_dim=3), unit(0)
    with pytest.raises(ShapeError, match="u u\\^T does not fit"):
        PROBES["direction"](reader(c), u, None)
    with pytest.raises(OptionError, match="needs text"):
        PROBES["calibrated"](reader(c), u, None)
    blind = np.linalg.svd(c.W_V)[2][-1]  # in the kernel of W_V
    for name in ("eigen", "placement"):
        with pytest.raises(NumericsError, match="do not see the direction"):
            PROBES[name](reader(c), blind, None)
    with pytest.raises(OptionError, match=r"alpha q\.u is 0"):
        top_pair(c.dense(), u, np.zeros(12), 3.0)


@pytest.mark.parametrize("cosine", [0.5, 0.9, 0.999])
def test_strength_for_a_cosine_is_exact_token_by_token(cosine: float) -> None:
    draw = np.random.default_rng(0)
    u, Y, a = unit(1), draw.standard_normal((50, 12)), draw.normal(0.5, 1, 50)
    need = strength_for_cosine(a, Y, u, cosine)
    for i, alpha in enumerate(need):
        if alpha == 0:
            assert cosines_after(0, a, Y, u)[i] >= cosine
        elif math.isinf(alpha):
            assert a[i] <= 0
        else:
            assert cosines_after(alpha, a, Y, u)[i] == pytest.approx(cosine, abs=1e-9)
            assert cosines_after(0.99 * alpha, a, Y, u)[i] < cosine
    assert np.isinf(need).any()
    assert np.isfinite(need).any()


def test_the_first_strength_of_a_mean_cosine() -> None:
    draw = np.random.default_rng(0)
    u, Y, a = unit(1), draw.standard_normal((50, 12)), np.abs(draw.normal(1, 0.3, 50))

    def mean(strength: float) -> float:
        return float(cosines_after(strength, a, Y, u).mean())

    alpha = first_crossing(mean, 3.0, 0.95)
    assert alpha is not None
    assert mean(alpha) == pytest.approx(0.95, abs=1e-9)
    assert mean(0.99 * alpha) < 0.95
    a[::2] *= -1  # half the tokens go the other way: no strength will do
    assert first_crossing(mean, 3.0, 0.95) is None
    assert first_crossing(mean, 3.0, -0.9) == 0.0
    with pytest.raises(OptionError, match="target cosine"):
        first_crossing(mean, 3.0, 1.0)
    with pytest.raises(OptionError, match="target cosine"):
        strength_for_cosine(a, Y, u, 1.0)
