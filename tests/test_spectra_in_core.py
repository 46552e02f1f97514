"""Full spectra certified in the core's coordinates: bounds that hold, wrong cores that are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import eigenlens
from eigenlens.spectra import in_core, lifted, solvers
from eigenlens.spectra.certify import (
    TOLERANCES,
    Eigenpairs,
    RawPairs,
    certify,
    one_of_each_pair,
    worst_residual,
)
from eigenlens.spectra.dense import Dense
from eigenlens.spectra.in_core import certify_in_core, core_error
from eigenlens.spectra.lifted import Lifted
from eigenlens.spectra.maps import LowRank
from eigenlens.spectra.norms import product_rounding, spectral_norm
from eigenlens.spectra.orders import ORDERS
from eigenlens.spectra.solvers import eigenpairs
from matrices import KINDS, distance

DTYPES = ["float64", "float32"]
REAL = ORDERS["real"]


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_core, "FROM", 0)


def gaussian(d: int, r: int, seed: int = 0) -> LowRank:
    rng = np.random.default_rng(seed)
    return LowRank(0.3 * rng.standard_normal((d, r)), 0.3 * rng.standard_normal((r, d)))


def framed(matrix: np.ndarray, d: int, spread: float = 1.0) -> LowRank:
    """Rank r in R^d with the spectrum of `matrix`; the factors have this condition number."""
    rng = np.random.default_rng(7)
    r = matrix.shape[0]
    frame = np.linalg.qr(rng.standard_normal((d, r)))[0]
    turn = np.linalg.qr(rng.standard_normal((r, r)))[0]
    sizes = np.geomspace(1, spread, r)
    left, right = frame @ turn * sizes, (turn.T / sizes[:, None]) @ matrix @ frame.T
    return LowRank(left, right)


def deficient() -> LowRank:
    """Two inner indices of no use, and one that repeats another."""
    a = gaussian(50, 12, seed=3)
    left, right = a.left.copy(), a.right.copy()
    left[:, 0] = 0
    right[5] = 0
    left[:, 7] = left[:, 8]
    return LowRank(left, right)


CASES = {
    "random": gaussian(90, 40),
    "nearly square": gaussian(60, 59, seed=1),
    "uneven factors": framed(KINDS["real"].matrix, 30, 1e3),
    "all but singular": framed(KINDS["pairs"].matrix, 30, 1e7),
    "jordan block": framed(KINDS["jordan2"].matrix, 25),
    "jordan block, large": framed(KINDS["jordan3"].matrix, 25, 10),
    "non-normal": framed(KINDS["non_normal"].matrix, 60),
    "rank deficient": framed(KINDS["rank_deficient"].matrix, 20),
    "zero and double": deficient(),
}


def both_ways(a: LowRank) -> tuple[Eigenpairs | None, Eigenpairs | None]:
    """The same pairs of the core, certified in its coordinates and lifted."""
    core = a.core()
    raw = Dense().solve(core, None, REAL)
    assert raw is not None
    norm, rounding = spectral_norm(a), product_rounding(a)
    own = certify_in_core(a, core, norm, raw, REAL, "dense-core", rounding)
    return own, certify(a, norm, raw, REAL, "dense-core", lift=True, rounding=rounding)


def true_measures(a: LowRank, found: Eigenpairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals on both sides and overlaps of the vectors as they stand, in extended precision."""
    wide = np.longdouble
    left, right = a.left.astype(wide), a.right.astype(wide)
    x, y = (np.asarray(s.small).astype(np.clongdouble) for s in (found.right, found.left))
    v, w = left @ x, right.T @ y
    v, w = v / np.sqrt((abs(v) ** 2).sum(0)), w / np.sqrt((abs(w) ** 2).sum(0))
    values = found.values.astype(np.clongdouble)
    residuals = left @ (right @ v) - v * values
    left_residuals = right.T @ (left.T @ w) - w * values.conj()
    sizes = (np.sqrt((abs(s) ** 2).sum(0)).astype(float) for s in (residuals, left_residuals))
    return (*(s / found.norm for s in sizes), abs((w.conj() * v).sum(0)).astype(float))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_bounds_are_above_the_truth(name: str, dtype: str) -> None:
    a = CASES[name]
    a = LowRank(a.left.astype(dtype), a.right.astype(dtype))
    found, lifted_ones = both_ways(a)
    if found is None:  # more than a quarter of the pairs cannot be told here: all are lifted
        assert name not in ("random", "nearly square", "jordan block", "non-normal")
        return
    assert isinstance(found.right, Lifted)
    assert lifted_ones is not None
    assert np.array_equal(found.values, lifted_ones.values)
    residuals, left_residuals, overlaps = true_measures(a, found)
    # Pairs that are lifted after all are measured as ever, to the rounding of the residual itself.
    slack = 4 * float(np.finfo(dtype).eps)
    assert np.all(found.residuals >= residuals - slack)
    assert np.all(found.left_residuals >= left_residuals - slack)
    sizes = max(1.0, np.linalg.norm(a.left, 2) * np.linalg.norm(a.right, 2) / found.norm)
    assert np.all(1 / found.conditions <= overlaps + 100 * slack * sizes)
    floor = float(np.finfo(dtype).eps) * max(found.norm, product_rounding(a))
    bars = found.conditions * np.maximum(found.residuals * found.norm, floor)
    assert np.allclose(found.error_bars, bars, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(90, 40), (300, 120)])
def test_bounds_are_close_where_factors_are_even(shape: tuple[int, int], dtype: str) -> None:
    a = gaussian(*shape)
    found, exact = both_ways(LowRank(a.left.astype(dtype), a.right.astype(dtype)))
    assert found is not None
    assert exact is not None
    eps = float(np.finfo(dtype).eps)
    assert np.all(found.residuals <= 10 * exact.residuals + 40 * eps)
    assert np.all(found.left_residuals <= 10 * exact.left_residuals + 40 * eps)
    assert np.allclose(found.conditions, exact.conditions, rtol=1e-9 if eps < 1e-10 else 0.02)
    for side, other in ((found.right, exact.right), (found.left, exact.left)):
        assert np.allclose(np.asarray(side), np.asarray(other), atol=100 * eps)


@pytest.mark.parametrize("name", ["real", "pairs", "repeated", "rank_deficient", "non_normal"])
def test_error_bars_hold(name: str) -> None:
    known = KINDS[name]
    for spread in (1.0, 10.0, 1e4):
        found = eigenpairs(framed(known.matrix, 40, spread), None, REAL)
        missed = np.abs(found.values[:, None] - known.values[None, :]).min(axis=1)
        assert np.all(missed <= 30 * found.error_bars)


@pytest.mark.parametrize("size", [1e-2, 1e-6, 1e-9])
def test_a_wrong_core_is_seen(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of the core is off: its own pairs are perfect, those of the map are not."""
    a = gaussian(90, 40)
    exact = a.core()
    core = exact.copy()
    core[3, 5] += size * np.linalg.norm(exact, 2)
    assert size <= core_error(a, core) / np.linalg.norm(exact, 2) <= 4 * size
    raw = Dense().solve(core, None, REAL)
    assert raw is not None
    norm = spectral_norm(a)
    found = certify_in_core(a, core, norm, raw, REAL, "dense-core")
    assert found is None or worst_residual(found) > TOLERANCES["float64"]
    # The whole way round: the pairs are found on the matrix itself.
    monkeypatch.setattr(LowRank, "core", lambda self: core)
    honest = eigenpairs(a, None, REAL)
    assert honest.solver == "dense"
    assert distance(honest.values, np.linalg.eigvals(exact)) < 1e-12 * norm
    # Without the probes it would pass: the test sees what they see.
    monkeypatch.setattr(in_core, "core_error", lambda *_: 0.0)
    fooled = certify_in_core(a, core, norm, raw, REAL, "dense-core")
    assert fooled is not None
    assert worst_residual(fooled) < TOLERANCES["float64"]


@pytest.mark.parametrize("side", ["right", "left", "values"])
def test_spoilt_pairs_are_seen(side: str) -> None:
    a = gaussian(90, 40)
    core = a.core()
    raw = Dense().solve(core, None, REAL)
    assert raw is not None
    part = getattr(raw, side)
    bad = part + 1e-7 * (np.roll(part, 1, axis=0) if part.ndim > 1 else np.abs(part).max())
    spoilt: RawPairs = replace(raw, **{side: bad})
    found = certify_in_core(a, core, spectral_norm(a), spoilt, REAL, "dense-core")
    assert found is None or worst_residual(found) > TOLERANCES["float64"]


def test_a_core_that_rounds_has_a_small_error() -> None:
    for dtype in DTYPES:
        a = gaussian(400, 100)
        a = LowRank(a.left.astype(dtype), a.right.astype(dtype))
        exact = a.right.astype(np.longdouble) @ a.left.astype(np.longdouble)
        truth = np.linalg.norm((a.core() - exact).astype(float), 2)
        assert truth <= core_error(a, a.core()) <= 30 * truth


def test_kernel_vectors_of_the_core_are_no_pairs() -> None:
    a = gaussian(60, 20, seed=4)
    left = a.left.copy()
    left[:, 0] = 0
    found = eigenpairs(LowRank(left, a.right), None, REAL)
    assert isinstance(found.right, Lifted)
    assert found.values.size == 19
    assert found.complete
    assert found.right.shape == found.left.shape == (60, 19)


def test_lifted_columns_are_those_of_the_array() -> None:
    a = gaussian(40, 15)
    found = eigenpairs(a, None, REAL)
    assert isinstance(found.right, Lifted)
    whole = np.asarray(found.right)
    assert np.allclose(np.linalg.norm(whole, axis=0), 1)
    for index in (slice(0, 3), np.array([4, 1]), np.array([True, False] * 7 + [True])):
        assert np.array_equal(found.right[:, index], whole[:, index])
        assert np.array_equal(np.asarray(found.take(index).right), whole[:, index])
    assert np.array_equal(found.right[:, 2], whole[:, 2])
    assert np.array_equal(found.right[3:5, :2], whole[3:5, :2])
    assert np.array_equal(np.asarray(found.right, dtype=complex), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**-40, 2.0**60])
def test_the_report_is_the_same_either_way(
    dtype: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == "float32":
        scale = scale**0.5
    a = gaussian(90, 30, seed=5)
    arrays = (a.right * scale).astype(np.float32), a.left.astype(np.float32)
    lifts: list[int] = []
    times = lifted.times

    def counted(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        lifts.append(x.shape[1])
        return times(matrix, x)

    monkeypatch.setattr(lifted, "times", counted)
    own = eigenlens.spectrum(arrays, all=True, k=3, order="modulus", dtype=dtype).layers[0]
    assert 0 < max(lifts) <= 4, "no more vectors than are kept"
    monkeypatch.setattr(in_core, "FROM", 1 << 60)
    old = eigenlens.spectrum(arrays, all=True, k=3, order="modulus", dtype=dtype).layers[0]
    assert np.array_equal(own.eigenvalues, old.eigenvalues)
    assert (own.regime, own.target, own.solver) == (old.regime, old.target, "dense-core")
    for name in ("gap", "henrici", "negative_fraction", "spectral_norm", "frobenius_norm"):
        assert getattr(own, name) == pytest.approx(getattr(old, name), rel=1e-5), name
    for name in ("right_vectors", "left_vectors", "target_vectors"):
        assert np.allclose(getattr(own, name), getattr(old, name), atol=1e-4), name
    monkeypatch.setattr(in_core, "FROM", 0)
    kept = eigenlens.spectrum(arrays, all=True, keep_vectors=True, dtype=dtype).layers[0]
    assert kept.right_vectors.shape == kept.left_vectors.shape == (90, 30)


def test_what_the_core_cannot_tell_is_solved_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many pairs to lift one by one: all are lifted, of the same decomposition."""
    calls: list[int] = []
    honest = Dense.solve

    def counted(self: Dense, *args: object) -> RawPairs | None:
        calls.append(1)
        return honest(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Dense, "solve", counted)
    monkeypatch.setattr(solvers.in_core, "certify_in_core", lambda *_: None)
    a = gaussian(60, 20)
    found = eigenpairs(a, None, REAL)
    assert isinstance(found.right, np.ndarray)
    assert found.solver == "dense-core"
    assert len(calls) == 1


def test_only_true_conjugates_share_a_measure() -> None:
    values = np.array([3, 1 + 1j, 1 - 1j, 1 + 2j, 1 + 2j, 1 - 2j, 1 - 2j, 0.5 - 1j])
    rng = np.random.default_rng(0)
    right, left = (rng.standard_normal((5, 8)) + 1j * rng.standard_normal((5, 8)) for _ in "rl")
    for side in (right, left):
        side[:, 2] = side[:, 1].conj()
        side[:, 5] = side[:, 4].conj()
        side[:, 6] = side[:, 3].conj()  # a true conjugate, but not beside its partner
    half, back = one_of_each_pair(values, right, left)
    assert half.tolist() == [0, 1, 3, 4, 6, 7]
    assert back.tolist() == [0, 1, 1, 2, 3, 3, 4, 5]
    left[0, 2] += 1e-9
    half, _ = one_of_each_pair(values, right, left)
    assert half.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert [x.size for x in one_of_each_pair(values[:0], right[:, :0], left[:, :0])] == [0, 0]
