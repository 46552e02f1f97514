"""Collapse measures: plain loops and singular values, ranges, invariance, equal tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.errors import EigenlensError, NumericsError, OptionError, ShapeError
from eigenlens.measure.collapse import (
    METRICS,
    TOKEN_METRICS,
    collapse,
    singular_values,
)
from eigenlens.measure.pairs import Anisotropy, anisotropy, dirichlet_energy

SEEDS = st.integers(0, 2**32 - 1)
Measure = Callable[..., float]


def slow_cosine(X: np.ndarray) -> float:
    n, total = len(X), 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += X[i] @ X[j] / (np.linalg.norm(X[i]) * np.linalg.norm(X[j]))
    return total / (n * (n - 1))


def centred(X: np.ndarray) -> np.ndarray:
    n = len(X)
    return (np.eye(n) - np.ones((n, n)) / n) @ X


def slow_rank_residual(X: np.ndarray) -> float:
    def norm(M: np.ndarray) -> float:
        return math.sqrt(np.linalg.norm(M, 1) * np.linalg.norm(M, np.inf))

    return norm(centred(X)) / norm(X)


def slow_effective_rank(X: np.ndarray) -> float:
    sigma = np.linalg.svd(X)[1]
    return float(np.prod([(s / sigma.sum()) ** (-s / sigma.sum()) for s in sigma if s > 0]))


def slow_participation(X: np.ndarray) -> float:
    S = X.T @ X
    return float(np.trace(S) ** 2 / np.trace(S @ S))


def slow_energy(X: np.ndarray, A: np.ndarray) -> float:
    n = len(X)
    return sum(0.5 * A[i, j] * np.linalg.norm(X[i] - X[j]) ** 2 for i in range(n) for j in range(n))


def slow_anisotropy(prompts: list[np.ndarray]) -> float:
    found = [
        x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
        for a, P in enumerate(prompts)
        for b, Q in enumerate(prompts)
        if a != b
        for x in P
        for y in Q
    ]
    return float(np.mean(found))


SLOW: dict[str, Measure] = {
    "cosine": slow_cosine,
    "rank_residual": slow_rank_residual,
    "frobenius_residual": lambda X: np.sqrt((centred(X) ** 2).sum() / (X**2).sum()),
    "high_low_ratio": lambda X: np.linalg.norm(centred(X)) / np.linalg.norm(X - centred(X)),
    "effective_rank": slow_effective_rank,
    "stable_rank": lambda X: np.linalg.norm(X) ** 2 / np.linalg.norm(X, 2) ** 2,
    "participation_ratio": slow_participation,
}


def oracle(name: str, measure: Measure) -> float:
    """Largest relative difference from the slow formula, over shapes and a common offset."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for n, d in ((2, 3), (9, 4), (5, 20)):
        X = rng.standard_normal((n, d)) * rng.uniform(0.5, 4, (n, 1)) + 0.5 * rng.standard_normal(d)
        slow = SLOW[name](X)
        worst = max(worst, abs(measure(X) - slow) / abs(slow))
    return worst


def test_every_token_measure_has_an_oracle() -> None:
    assert set(SLOW) == set(TOKEN_METRICS)
    assert set(METRICS) == {*SLOW, "dirichlet_energy", "anisotropy"}


@pytest.mark.parametrize("name", TOKEN_METRICS)
def test_measure_is_the_slow_formula(name: str) -> None:
    assert oracle(name, METRICS[name].function) < 1e-12
    assert oracle(name, lambda X: collapse(X)[name]) < 1e-12


PLANTED: dict[str, Measure] = {
    # pairs i = j counted; means of unscaled tokens; singular values in place of their squares ...
    "cosine": lambda X: float(np.mean([[a @ b for b in unit(X)] for a in unit(X)])),
    "rank_residual": lambda X: np.linalg.norm(centred(X)) / np.linalg.norm(X),
    "frobenius_residual": lambda X: np.linalg.norm(centred(X)) ** 2 / np.linalg.norm(X) ** 2,
    "high_low_ratio": lambda X: np.linalg.norm(centred(X)) / np.linalg.norm(X.mean(axis=0)),
    "effective_rank": lambda X: slow_effective_rank(X @ X.T),
    "stable_rank": lambda X: np.linalg.norm(X) / np.linalg.norm(X, 2),
    "participation_ratio": lambda X: slow_participation(centred(X)),
}


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("name", TOKEN_METRICS)
def test_a_planted_measure_is_caught(name: str) -> None:
    assert oracle(name, PLANTED[name]) > 1e-2


@given(SEEDS, st.integers(2, 9), st.integers(1, 9))
def test_ranges(seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-3, 3, (n, 1))
    for name, value in collapse(X).items():
        low, high = METRICS[name].bounds(n, d)
        assert low - 1e-9 <= value <= high + 1e-9


@given(SEEDS, st.integers(2, 6), st.integers(2, 6), st.floats(1e-3, 1e3))
def test_invariance_to_scale_order_and_rotation(seed: int, n: int, d: int, c: float) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.3
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    plain, moved = collapse(X), collapse(-c * rng.permutation(X))
    turned = collapse(X @ Q)
    for name in TOKEN_METRICS:
        assert moved[name] == pytest.approx(plain[name], rel=1e-9, abs=1e-12)
        if name != "rank_residual":  # its norms are of rows and columns, not of the space
            assert turned[name] == pytest.approx(plain[name], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("n", [2, 7])
def test_equal_tokens_are_collapsed(n: int) -> None:
    x = np.random.default_rng(1).standard_normal(12)
    X = np.tile(x, (n, 1))
    for name, value in collapse(X).items():
        assert value == pytest.approx(METRICS[name].collapsed, abs=1e-12)
    A = np.full((n, n), 1 / n)
    assert dirichlet_energy(X, A) == pytest.approx(0.0, abs=1e-25)
    assert anisotropy([X, 2 * X]) == pytest.approx(1.0)


def test_known_values() -> None:
    eye = collapse(np.eye(5))
    assert eye["cosine"] == 0.0
    for name in ("effective_rank", "stable_rank", "participation_ratio"):
        assert eye[name] == pytest.approx(5.0)
    simplex = collapse(centred(np.eye(4)))  # tokens that balance to 0
    assert simplex["cosine"] == pytest.approx(-1 / 3)
    assert simplex["frobenius_residual"] == pytest.approx(1.0)
    two = collapse(np.array([[3.0, 0.0], [0.0, 1.0]]))
    assert two["stable_rank"] == pytest.approx(10 / 9)
    assert two["participation_ratio"] == pytest.approx(100 / 82)
    assert two["effective_rank"] == pytest.approx(0.75**-0.75 * 0.25**-0.25)
    opposite = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert collapse(opposite)["high_low_ratio"] == math.inf
    assert collapse(opposite)["cosine"] == pytest.approx(-1.0)


def test_high_low_ratio_and_residual_are_one_angle() -> None:
    X = np.random.default_rng(2).standard_normal((6, 5)) + 0.4
    found = collapse(X)
    tangent = math.tan(math.asin(found["frobenius_residual"]))
    assert found["high_low_ratio"] == pytest.approx(tangent)


def test_undefined_measures_are_nan() -> None:
    one = collapse(np.ones((1, 3)))
    assert math.isnan(one["cosine"])
    assert one["frobenius_residual"] == 0.0
    assert all(math.isnan(v) for v in collapse(np.zeros((3, 2))).values())
    assert math.isnan(collapse(np.array([[1.0, 0.0], [0.0, 0.0]]))["cosine"])


def test_float32_states_through_the_gram_matrix() -> None:
    rng = np.random.default_rng(3)
    for n, d in ((6, 40), (40, 6)):
        X = (rng.standard_normal((n, d)) + 3 * rng.standard_normal(d)).astype(np.float32)
        exact = np.linalg.svd(X.astype(np.float64), compute_uv=False)
        np.testing.assert_allclose(singular_values(X), exact, atol=2e-8 * exact[0])
        wide = collapse(X.astype(np.float64))
        assert collapse(X) == pytest.approx(wide, rel=1e-6)
    # Equal tokens: what the Gram matrix loses must not read as rank.
    X = np.tile(rng.standard_normal(40).astype(np.float32), (20, 1))
    assert collapse(X)["effective_rank"] == pytest.approx(1.0, abs=1e-4)


def test_dirichlet_energy_is_the_double_sum() -> None:
    rng = np.random.default_rng(4)
    X, A = rng.standard_normal((7, 3)) + 5, rng.dirichlet(np.ones(7), size=7)
    assert dirichlet_energy(X, A) == pytest.approx(slow_energy(X, A), rel=1e-12)
    # Planted: rows of A alone as degrees, right only for a doubly stochastic A.
    laplacian = np.diag(A.sum(axis=1)) - A
    assert np.trace(X.T @ laplacian @ X) != pytest.approx(slow_energy(X, A), rel=1e-2)
    causal = np.tril(A)
    assert dirichlet_energy(X, causal) == pytest.approx(slow_energy(X, causal), rel=1e-12)


def test_dirichlet_energy_keeps_digits_near_consensus() -> None:
    rng = np.random.default_rng(5)
    base = 1e3 * rng.standard_normal(16)
    D, A = 1e-6 * rng.standard_normal((8, 16)), rng.dirichlet(np.ones(8), size=8)
    # base + D rounds at 1e-13, which is 1e-7 of D.
    assert dirichlet_energy(base + D, A) == pytest.approx(slow_energy(D, A), rel=1e-5)


def test_anisotropy_is_the_loop_over_pairs() -> None:
    rng = np.random.default_rng(6)
    shared = rng.standard_normal(6)
    prompts = [rng.standard_normal((n, 6)) + rng.standard_normal(6) + shared for n in (1, 4, 7)]
    exact = slow_anisotropy(prompts)
    assert anisotropy(prompts) == pytest.approx(exact, rel=1e-12)
    # Planted: pairs within a prompt counted too.
    assert slow_cosine(np.concatenate(prompts)) != pytest.approx(exact, rel=1e-2)
    assert math.isnan(anisotropy(prompts[:1]))
    assert math.isnan(Anisotropy().value())
    zero = [np.concatenate([np.zeros((1, 6)), prompts[0]]), *prompts[1:]]
    assert anisotropy(zero) == pytest.approx(exact, rel=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: collapse(np.ones((2, 2)), ["dirichlet_energy"]), OptionError, "needs more"),
        (lambda: collapse(np.array([[np.nan, 1.0]])), NumericsError, "NaN"),
        (lambda: dirichlet_energy(np.ones((3, 2)), np.ones((2, 2))), ShapeError, r"\(3, 3\)"),
        (lambda: dirichlet_energy(np.ones((2, 2)), -np.eye(2)), OptionError, "not negative"),
    ],
)
def test_bad_input_says_why(
    call: Callable[[], object], kind: type[EigenlensError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_table_describes_itself() -> None:
    for name, row in METRICS.items():
        assert row.name == name
        assert row.formula
        assert row.source
        low, high = row.bounds(5, 7)
        assert low <= row.collapsed <= high
