"""Every solver against LAPACK and against spectra known in advance; certificates that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg

from eigenlens import blas
from eigenlens.errors import NumericsError, OptionError
from eigenlens.spectra import dense, krylov, solvers
from eigenlens.spectra.maps import Full, LowRank
from eigenlens.spectra.norms import spectral_norm
from eigenlens.spectra.orders import ORDERS
from eigenlens.spectra.solvers import (
    SOLVERS,
    TOLERANCES,
    Dense,
    Krylov,
    RawPairs,
    choose_solvers,
    eigenpairs,
    fix_phase,
)
from matrices import KINDS, Known, distance

DTYPES = ["float64", "float32"]


def low_rank(d: int, r: int, seed: int, dtype: str = "float64", scale: float = 0.3) -> LowRank:
    rng = np.random.default_rng(seed)
    left = scale * rng.standard_normal((d, r))
    right = scale * rng.standard_normal((r, d))
    return LowRank(left.astype(dtype), right.astype(dtype))


def assert_certified(a: Full | LowRank, found: solvers.Eigenpairs) -> None:
    """Recompute the certificates in float64 from the matrix itself, in plain numpy."""
    matrix = a.dense().astype(np.float64)
    norm = np.linalg.norm(matrix, 2)
    tolerance = TOLERANCES[a.dtype.name]
    assert found.norm == pytest.approx(norm, rel=1e-6 if a.dtype == np.float32 else 1e-10)
    for i, value in enumerate(found.values):
        v, w = found.right[:, i].astype(complex), found.left[:, i].astype(complex)
        assert np.linalg.norm(v) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(w) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(matrix @ v - value * v) <= tolerance * norm
        assert np.linalg.norm(w.conj() @ matrix - value * w.conj()) <= tolerance * norm
        overlap = abs(w.conj() @ v)
        if overlap > 1e-6:
            assert found.conditions[i] == pytest.approx(max(1, 1 / overlap), rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_known_spectrum(kind: str, order: str, dtype: str) -> None:
    known = KINDS[kind]
    a = Full(known.matrix.astype(dtype))
    found = eigenpairs(a, None, ORDERS[order])
    assert found.complete
    assert found.values.size == known.values.size
    assert_certified(a, found)
    keys = ORDERS[order].key(found.values)
    assert np.all(np.diff(keys) <= 1e-4 * max(1, found.norm))
    if np.isfinite(known.condition):
        eps = np.finfo(dtype).eps
        assert distance(found.values, known.values) <= known.condition * eps * max(1, found.norm)
        # the truth lies within the error bars that are claimed (with the constant of rounding)
        bars = found.error_bars
        cost = np.abs(found.values[:, None] - known.values[None, :]).min(axis=1)
        assert np.all(cost <= 30 * bars + 1e-300)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(("d", "r"), [(120, 120), (200, 60), (90, 140)])
def test_solver_against_lapack(name: str, order: str, dtype: str, d: int, r: int) -> None:
    a = low_rank(d, r, seed=d, dtype=dtype)
    found = eigenpairs(a, 6, ORDERS[order], solver=name)
    assert found.solver.startswith(name)
    assert found.values.size in (6, 7)
    assert_certified(a, found)
    exact = np.linalg.eigvals(a.dense().astype(np.float64)).astype(complex)
    if r < d:
        exact = exact[np.argsort(-np.abs(exact))][:r]
    keys = np.sort(ORDERS[order].key(exact))[::-1]
    slack = (2e-3 if dtype == "float32" else 1e-9) * found.norm
    assert np.allclose(ORDERS[order].key(found.values), keys[: found.values.size], atol=slack)


def test_core_gives_the_spectrum_of_the_product() -> None:
    a = low_rank(50, 12, seed=1)
    found = eigenpairs(a, None, ORDERS["modulus"])
    exact = np.linalg.eigvals(a.dense())
    exact = exact[np.argsort(-np.abs(exact))]
    assert found.solver == "dense-core"
    assert distance(found.values, exact[:12]) < 1e-12 * found.norm
    assert np.abs(exact[12:]).max() < 1e-12


def test_pairs_are_never_split() -> None:
    a = Full(KINDS["pairs"].matrix)
    for k in range(1, 9):
        values = eigenpairs(a, k, ORDERS["residual"]).values
        assert values.size in (k, k + 1)
        assert sorted(values.imag) == pytest.approx(sorted(-values.imag))


@pytest.mark.parametrize("seed", range(6))
def test_krylov_keeps_pairs_whole_and_repeats_itself(seed: int) -> None:
    a = low_rank(160, 160, seed=seed)
    for k in (3, 4):
        first = eigenpairs(a, k, ORDERS["modulus"], solver="krylov", seed=seed)
        again = eigenpairs(a, k, ORDERS["modulus"], solver="krylov", seed=seed)
        assert np.array_equal(first.values, again.values)
        complex_ones = first.values[first.values.imag != 0]
        assert np.array_equal(np.sort_complex(complex_ones), np.sort_complex(complex_ones.conj()))


def test_krylov_on_the_rightmost_is_not_fooled_by_a_large_negative() -> None:
    """'LR' can settle on what is not rightmost; the far end of the spectrum is the lure."""
    rng = np.random.default_rng(3)
    d = 150
    diagonal = np.concatenate([[0.9, 0.8, 0.7], -np.linspace(1, 60, d - 3)])
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    matrix = q @ (np.diag(diagonal) + np.triu(0.05 * rng.standard_normal((d, d)), 1)) @ q.T
    found = eigenpairs(Full(matrix), 3, ORDERS["real"], solver="krylov")
    assert np.allclose(found.values[:3].real, [0.9, 0.8, 0.7], atol=1e-8)


def test_two_runs_that_disagree_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that misses a leading pair has perfect residuals; only the second run gives it away."""
    a = low_rank(120, 120, seed=5)
    solver = Krylov()
    assert solver.solve(a.dense(), 4, ORDERS["modulus"]) is not None
    honest, calls = Krylov._run, []

    def forgetful(self: Krylov, *args: object):  # type: ignore[no-untyped-def]
        found = yield from honest(self, *args)  # type: ignore[arg-type]
        calls.append(1)
        if found is None or len(calls) != 1:
            return found
        first = 2 if found[0][0].imag else 1
        return found[0][first:], found[1][:, first:]

    monkeypatch.setattr(Krylov, "_run", forgetful)
    assert solver.solve(a.dense(), 4, ORDERS["modulus"]) is None
    calls.clear()
    found = eigenpairs(a, 4, ORDERS["modulus"], solver="krylov")
    assert found.solver == "dense"


class _Sloppy(Dense):
    """Dense, with its vectors spoilt: what a certificate must catch."""

    def solve(self, core, k, order):  # type: ignore[no-untyped-def]
        raw = super().solve(core, k, order)
        assert raw is not None
        return replace(raw, right=raw.right + 1e-6 * np.roll(raw.right, 1, axis=0))


def test_a_pair_that_misses_the_tolerance_is_never_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solvers, "choose_solvers", lambda *_: [_Sloppy()])
    monkeypatch.setattr(solvers, "Dense", lambda **_: _Sloppy())
    with pytest.raises(NumericsError, match=r"tolerance 1e-10 of float64: the worst residual is"):
        eigenpairs(Full(KINDS["real"].matrix), None, ORDERS["real"])


def test_core_vectors_that_miss_are_recomputed_on_the_full_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solvers, "choose_solvers", lambda *_: [_Sloppy()])
    a = low_rank(40, 9, seed=2)
    found = eigenpairs(a, None, ORDERS["modulus"])
    assert found.solver == "dense"
    assert found.values.size == 9
    assert_certified(a, found)


def test_annihilated_core_vectors_are_no_pairs() -> None:
    """A value row of zeros gives the core an eigenvalue 0 whose lifted vector is nothing."""
    a = low_rank(30, 6, seed=4)
    left = a.left.copy()
    left[:, 0] = 0
    dead = LowRank(left, a.right)
    found = eigenpairs(dead, None, ORDERS["modulus"])
    assert found.values.size == 5
    assert_certified(dead, found)


def test_zero_map_is_exact() -> None:
    found = eigenpairs(LowRank(np.zeros((8, 3)), np.zeros((3, 8))), 2, ORDERS["residual"])
    assert found.norm == 0
    assert np.array_equal(found.values, [0, 0])


def test_phase_convention() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((7, 4)) + 1j * rng.standard_normal((7, 4))
    turned = vectors * np.exp(1j * np.array([0.3, 2.0, -1.0, 3.1])) * [1, 5, 0.1, 2]
    fixed, again = fix_phase(vectors), fix_phase(turned)
    assert np.allclose(fixed, again, atol=1e-14)
    pivot = fixed[np.abs(fixed).argmax(axis=0), np.arange(4)]
    assert np.all(pivot.real > 0)
    assert np.allclose(pivot.imag, 0, atol=1e-16)
    tied = fix_phase(np.array([[-1.0], [1.0], [0.5]]))
    assert tied[0, 0].real > 0, "of equal entries the first decides"


@pytest.mark.parametrize("shape", [(30, 5), (80, 80), (150, 90)])
def test_norms_without_forming_the_matrix(shape: tuple[int, int]) -> None:
    a = low_rank(*shape, seed=9)
    assert spectral_norm(a) == pytest.approx(np.linalg.norm(a.dense(), 2), rel=1e-10)
    assert a.frobenius_norm() == pytest.approx(np.linalg.norm(a.dense()), rel=1e-12)


def test_choice_of_solver() -> None:
    names = [s.name for s in choose_solvers("auto", 1000, 8)]
    assert names == ["krylov", "dense"]
    assert [s.name for s in choose_solvers("auto", 100, 8)] == ["dense"]
    assert [s.name for s in choose_solvers("auto", 1000, None)] == ["dense"]
    with pytest.raises(OptionError, match="solver 'qr' is unknown; use one of auto, dense, krylov"):
        choose_solvers("qr", 10, 1)
    with pytest.raises(OptionError, match="krylov solver cannot give all eigenvalues"):
        choose_solvers("krylov", 10, None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", ["alone", "threads"])
def test_both_krylov_runs_however_they_are_driven(
    way: str, order: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, or in two threads."""
    monkeypatch.setattr(blas, "cores", lambda: 2)
    monkeypatch.setattr(krylov, "_THREADS_FROM", 10 if way == "threads" else 10**6)
    a = Full(low_rank(250, 250, seed=8, dtype=dtype).dense())
    raw = Krylov().solve(a.matrix, 7, ORDERS[order])
    assert raw is not None
    found = eigenpairs(a, 7, ORDERS[order], solver="krylov")
    assert found.solver == "krylov"
    assert_certified(a, found)
    exact = np.linalg.eigvals(a.matrix.astype(np.float64))
    keys = np.sort(ORDERS[order].key(exact))[::-1][: found.values.size]
    slack = (2e-3 if dtype == "float32" else 1e-10) * found.norm
    assert np.allclose(ORDERS[order].key(found.values), keys, atol=slack)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_two_krylov_runs_do_not_disturb_each_other(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "cores", lambda: 2)
    a = low_rank(250, 250, seed=8, dtype=dtype).dense()
    found = []
    for start in (10, 10**6):
        monkeypatch.setattr(krylov, "_THREADS_FROM", start)
        found.append(Krylov().solve(a, 7, ORDERS["real"]))
    for one, other in zip(*(vars(f).values() for f in found), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("k", [3, None])
@pytest.mark.parametrize("scale", [1.0, 2.0**-300, 2.0**400])
@pytest.mark.parametrize(("d", "r"), [(90, 20), (90, 90), (40, 60)])
def test_the_frobenius_norm_comes_with_the_pairs(
    d: int, r: int, scale: float, k: int | None
) -> None:
    a = low_rank(d, r, seed=9)
    truth = np.linalg.norm(a.dense())
    scaled = LowRank(a.left * scale, a.right)
    found = eigenpairs(scaled, k, ORDERS["modulus"])
    assert found.frobenius / scale == pytest.approx(truth, rel=1e-12)
    dense = eigenpairs(Full(a.dense() * scale), k, ORDERS["modulus"])
    assert dense.frobenius / scale == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_krylov_goes_on_where_its_space_is_invariant(order: str) -> None:
    """Rank 6 of 150, and the identity beside it: spaces close long before the basis is full."""
    rng = np.random.default_rng(11)
    left, right = rng.standard_normal((150, 6)), rng.standard_normal((6, 150))
    for matrix in (left @ right / 50, left @ right / 50 + 2 * np.eye(150)):
        a = Full(matrix)
        found = eigenpairs(a, 3, ORDERS[order], solver="krylov")
        assert_certified(a, found)
        keys = np.sort(ORDERS[order].key(np.linalg.eigvals(matrix)))[::-1]
        assert np.allclose(ORDERS[order].key(found.values), keys[: found.values.size], atol=1e-9)


@pytest.mark.parametrize("name", ["dense", "krylov"])
def test_a_tie_at_the_end_of_the_request(name: str) -> None:
    """The k-th and (k+1)-th have one key: both runs must settle on them, or dense takes over."""
    rng = np.random.default_rng(12)
    q = np.linalg.qr(rng.standard_normal((160, 160)))[0]
    values = np.concatenate([[3, 2.5, 2, -2], np.linspace(-1, 1, 156)])
    a = Full(q @ np.diag(values) @ q.T)
    found = eigenpairs(a, 3, ORDERS["modulus"], solver=name)
    assert_certified(a, found)
    assert found.values.real == pytest.approx([3, 2.5, 2], abs=1e-9)
    assert found.solver == name


@pytest.mark.parametrize("dtype", DTYPES)
def test_left_vectors_from_rows_are_those_of_geev(dtype: str) -> None:
    a = low_rank(90, 90, seed=13, dtype=dtype).dense()
    order = ORDERS["modulus"]
    raw, both = Dense().solve(a, None, order), dense._both_sides(a)
    assert raw is not None
    index = np.abs(raw.values[:, None] - both.values[None, :]).argmin(axis=1)
    for found, geev in ((raw.right, both.right), (raw.left, both.left)):
        angle = np.abs(np.einsum("dk,dk->k", found.conj(), geev[:, index]))
        assert angle == pytest.approx(
            np.linalg.norm(found, axis=0), rel=1e-8 if a.itemsize == 8 else 1e-3
        )
    few = Dense().solve(a, 4, order)
    assert few is not None
    assert not few.complete
    assert few.values.size in (12, 13)
    assert np.array_equal(few.values, raw.values[: few.values.size])


def test_rows_that_are_inaccurate_are_not_used() -> None:
    """A Jordan block's right vectors are all but parallel; geev gives both sides then."""
    for kind in ("jordan2", "jordan3"):
        matrix = KINDS[kind].matrix
        values, right = (x.astype(complex) for x in np.linalg.eig(matrix))
        spoilt = right.copy()
        spoilt[:, 0] += 1e-3 * right[:, -1]
        everything = np.arange(values.size)
        assert dense._left_rows(matrix, values, spoilt, everything) is None
        spoilt[:, 0] = spoilt[:, 1]
        assert dense._left_rows(matrix, values, spoilt.real + 0j, everything) is None


def test_the_oracle_sees_a_transposed_eigenvector() -> None:
    """Planted bug: left vectors handed out as right ones."""
    a = low_rank(40, 40, seed=6)
    found = eigenpairs(a, 3, ORDERS["modulus"])
    swapped = replace(found, right=found.left, left=found.right)
    with pytest.raises(AssertionError):
        assert_certified(a, swapped)


def test_raw_pairs_of_dense_are_lapacks() -> None:
    known: Known = KINDS["non_normal"]
    raw = Dense().solve(known.matrix, None, ORDERS["real"])
    assert isinstance(raw, RawPairs)
    assert distance(raw.values, scipy.linalg.eigvals(known.matrix)) < 1e-8
