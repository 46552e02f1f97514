"""Eigenpairs of a layer's map, certified: no pair leaves this room without its residual.

A solver is a small frozen object with its options as fields. It returns eigenvalues with right and
left vectors of the small problem it likes best; lifting them to R^d, fixing their phase, measuring
residuals and conditions, and falling back when the tolerance is missed happen here, once for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Complex, Float, Num

from eigenlens.errors import NumericsError, OptionError
from eigenlens.spectra.maps import Full, LinearMap, LowRank, spectral_norm
from eigenlens.spectra.orders import Order, leading_first, whole_pairs

TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
"""Compute dtype and the residual, relative to ``|A|_2``, that every returned pair stays below."""


@dataclass(frozen=True)
class RawPairs:
    """What a solver found on its own small problem: values with right and left vectors (columns).

    ``complete`` says that these are all eigenvalues of that problem.
    """

    values: Complex[np.ndarray, "k"]
    right: Complex[np.ndarray, "n k"]
    left: Complex[np.ndarray, "n k"]
    complete: bool


@dataclass(frozen=True)
class Eigenpairs:
    """Certified eigenpairs of ``A``, sorted by the order that was asked for.

    Attributes
    ----------
    values
        Eigenvalues; a conjugate pair is whole, positive imaginary part first.
    right, left
        Unit columns, ``A v = lambda v`` and ``w^H A = lambda w^H``; the largest-magnitude entry is
        real and positive.
    residuals, left_residuals
        ``|A v - lambda v| / |A|_2`` and the same of the left vector.
    conditions
        ``1 / |w^H v|``, how many times a perturbation of A is magnified in lambda.
    error_bars
        ``condition * max(residual, eps) * |A|_2``, absolute, first order in the perturbation.
    norm
        ``|A|_2``.
    complete
        True when these are all eigenvalues but the kernel's that the shape prescribes.
    solver
        What produced them: ``dense-core``, ``dense`` or ``krylov``.
    """

    values: Complex[np.ndarray, "k"]
    right: Complex[np.ndarray, "d k"]
    left: Complex[np.ndarray, "d k"]
    residuals: Float[np.ndarray, "k"]
    left_residuals: Float[np.ndarray, "k"]
    conditions: Float[np.ndarray, "k"]
    error_bars: Float[np.ndarray, "k"]
    norm: float
    complete: bool
    solver: str

    def leading(self, k: int | None) -> Eigenpairs:
        """The first `k` pairs, a conjugate pair whole; no longer complete if any is cut off."""
        if k is None or k >= self.values.size:
            return self
        count = whole_pairs(self.values, k)
        return replace(
            self.take(slice(0, count)), complete=self.complete and count == self.values.size
        )

    def take(self, index: np.ndarray | slice) -> Eigenpairs:
        """The pairs at `index`, in that sequence."""
        return replace(
            self,
            values=self.values[index],
            right=self.right[:, index],
            left=self.left[:, index],
            residuals=self.residuals[index],
            left_residuals=self.left_residuals[index],
            conditions=self.conditions[index],
            error_bars=self.error_bars[index],
        )


@runtime_checkable
class Solver(Protocol):
    """What a row of `SOLVERS` does: all, or at least `k` leading, eigenpairs of a square matrix."""

    @property
    def name(self) -> str:
        """The word that users type and results carry."""
        ...

    def solve(self, core: Float[np.ndarray, "n n"], k: int | None, order: Order) -> RawPairs | None:
        """Eigenpairs of `core`; None when the method gives up (a denser one then takes over)."""
        ...


@dataclass(frozen=True)
class Dense:
    """LAPACK geev: all eigenpairs, backward stable, O(n^3) with a large constant."""

    name: str = "dense"

    def solve(self, core: Float[np.ndarray, "n n"], k: int | None, order: Order) -> RawPairs | None:
        """All eigenpairs, whatever `k`."""
        import scipy.linalg

        found = scipy.linalg.eig(core, left=True, right=True, check_finite=False)
        wide = np.result_type(core.dtype, np.complex64)
        values, left, right = (np.asarray(x, dtype=wide) for x in found)
        return RawPairs(values, right, left, complete=True)


@dataclass(frozen=True)
class Krylov:
    """ARPACK's restarted Arnoldi method on the matrix and, apart from it, on its transpose.

    The second run gives the left vectors, and guards against what residuals cannot see: both runs
    start from their own random vector, so a leading eigenvalue that one of them missed shows as a
    disagreement, and the solver gives up rather than answer.

    Attributes
    ----------
    seed
        Of the two start vectors.
    extra
        Pairs computed beyond `k`, so that the tail of the request may be a torn conjugate pair.
    max_restarts
        ARPACK's bound on restarts.
    """

    name: str = "krylov"
    seed: int = 0
    extra: int = 3
    max_restarts: int = 300

    def solve(self, core: Float[np.ndarray, "n n"], k: int | None, order: Order) -> RawPairs | None:
        """At least `k` leading pairs; None if ARPACK stalls or its two runs disagree."""
        n = core.shape[0]
        if k is None or k + self.extra + 1 >= n // 2:
            return None
        rng = np.random.default_rng(self.seed)
        right = self._run(core, k + self.extra, order, rng)
        left = self._run(np.ascontiguousarray(core.T), k + self.extra, order, rng)
        if right is None or left is None:
            return None
        values, columns = right
        keep = whole_pairs(values, k)
        if keep < k or keep > len(left[0]):
            return None
        tolerance = _agreement(core.dtype)
        rows = _match(values[:keep], left[0], tolerance)
        if rows is None or _match(left[0][:keep], values, tolerance) is None:
            return None
        # A^T z = lambda z gives conj(z)^H A = lambda conj(z)^H.
        return RawPairs(values[:keep], columns[:, :keep], left[1][:, rows].conj(), complete=False)

    def _run(
        self, a: Float[np.ndarray, "n n"], count: int, order: Order, rng: np.random.Generator
    ) -> tuple[Complex[np.ndarray, "m"], Complex[np.ndarray, "n m"]] | None:
        from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

        which, shift = order.arpack
        n = a.shape[0]
        shifted = LinearOperator(
            (n, n), matvec=lambda x: a @ np.ravel(x) + shift * np.ravel(x), dtype=a.dtype
        )
        start = np.asarray(rng.standard_normal(n), dtype=a.dtype)
        try:
            values, vectors = eigs(
                shifted,
                k=count,
                which=which,
                v0=start,
                ncv=min(n - 1, max(3 * count, 24)),
                maxiter=self.max_restarts,
                tol=float(np.finfo(a.dtype).eps) * 10,
            )
        except ArpackError:  # no convergence, or a breakdown: the caller falls back
            return None
        values = values - np.asarray(shift, dtype=values.dtype)
        index = leading_first(values, order)
        values, vectors = values[index], vectors[:, index]
        torn = np.array([v.imag != 0 and not np.any(values == np.conj(v)) for v in values])
        return values[~torn], vectors[:, ~torn]


def _agreement(dtype: np.dtype[np.floating]) -> float:
    """Relative distance up to which two runs count as one answer: half of the digits."""
    return float(np.sqrt(np.finfo(dtype).eps))


def _match(
    values: Complex[np.ndarray, "k"], others: Complex[np.ndarray, "m"], tolerance: float
) -> np.ndarray | None:
    """For each value its own partner among `others`; None where one has no partner close by."""
    from scipy.optimize import linear_sum_assignment

    distance = np.abs(values[:, None] - others[None, :])
    rows, columns = linear_sum_assignment(distance)
    if float(distance[rows, columns].max()) > tolerance * float(np.abs(values).max()):
        return None
    return np.asarray(columns)


SOLVERS: dict[str, Solver] = {s.name: s for s in (Dense(), Krylov())}
"""The solvers by name; `auto` chooses among them by size and k."""

_DENSE_BELOW = 224  # measured: up to here geev on the core beats two Arnoldi runs for k = 8


def choose_solvers(name: str, size: int, k: int | None, seed: int = 0) -> list[Solver]:
    """The solvers to try, in sequence; the last is always dense.

    Parameters
    ----------
    name
        ``auto``, ``dense`` or ``krylov``.
    size
        Size of the problem, min(r, d).
    k
        How many leading pairs are asked for; None for all.
    seed
        Of the Krylov start vectors.

    Raises
    ------
    OptionError
        The name is unknown, or ``krylov`` is asked for a full spectrum.
    """
    krylov = Krylov(seed=seed)
    if name == "auto":
        small = size <= _DENSE_BELOW or k is None or 8 * k > size
        return [Dense()] if small else [krylov, Dense()]
    if name not in SOLVERS:
        raise OptionError(f"solver {name!r} is unknown; use one of auto, {', '.join(SOLVERS)}")
    if name == "krylov":
        if k is None:
            raise OptionError("the krylov solver cannot give all eigenvalues; use --solver dense")
        return [krylov, Dense()]
    return [Dense()]


def eigenpairs(
    a: LinearMap, k: int | None, order: Order, solver: str = "auto", seed: int = 0
) -> Eigenpairs:
    """Certified eigenpairs of `a`: at least `k` leading ones, or all.

    Under grouped-query attention the r x r core is solved and its vectors lifted, ``v = L y`` and
    ``w = R^T z``; if a lifted pair misses the tolerance of the compute dtype, A itself is solved.

    Parameters
    ----------
    a
        The map.
    k
        Number of leading pairs (a conjugate pair is kept whole, so there may be one more);
        None for all non-kernel eigenvalues.
    order
        What leads.
    solver, seed
        See `choose_solvers`.

    Raises
    ------
    NumericsError
        Even the dense solver missed the tolerance, or LAPACK did not converge.
    """
    norm = spectral_norm(a, seed)
    size = a.rank_bound
    tolerance = TOLERANCES[a.dtype.name]
    if k is not None:
        k = min(k, size)
    if norm == 0.0:
        return _of_zero(a, k)
    low_rank = isinstance(a, LowRank) and size < a.d
    core = a.core() if low_rank else a.dense()
    worst = np.inf
    for method in choose_solvers(solver, size, k, seed):
        raw = _guarded(method, core, k, order)
        if raw is None:
            continue
        name = f"{method.name}-core" if low_rank else method.name
        found = _certify(a, norm, _cut(raw, k, order), order, name, lift=low_rank)
        if k is not None and found.values.size < k:
            found = _certify(a, norm, raw, order, name, lift=low_rank)
        found = found.leading(k)
        worst = _worst(found)
        if worst <= tolerance:
            return found
    if low_rank:
        raw = _guarded(Dense(), a.dense(), k, order)
        if raw is not None:
            found = _certify(a, norm, raw, order, "dense", lift=False)
            found = _without_kernel(found, size).leading(k)
            worst = _worst(found)
            if worst <= tolerance:
                return found
    raise NumericsError(
        f"no solver reached the tolerance {tolerance:g} of {a.dtype.name}: the worst residual is "
        f"{worst:.2g} of |F|; try --dtype float64 or --solver dense"
    )


def _cut(raw: RawPairs, k: int | None, order: Order) -> RawPairs:
    """Only the leading pairs of a dense solution, so that the others need not be lifted.

    Twice as many as asked for and some, since pairs of the kernel drop out on lifting.
    """
    index = leading_first(raw.values, order)
    if k is None or 2 * k + 16 >= index.size:
        return raw
    index = index[: whole_pairs(raw.values[index], 2 * k + 16)]
    return RawPairs(raw.values[index], raw.right[:, index], raw.left[:, index], complete=False)


def _guarded(method: Solver, core: np.ndarray, k: int | None, order: Order) -> RawPairs | None:
    """Run a solver; LAPACK's failure to converge counts as giving up."""
    try:
        return method.solve(core, k, order)
    except np.linalg.LinAlgError:
        return None


def _worst(pairs: Eigenpairs) -> float:
    if pairs.values.size == 0:
        return 0.0
    return float(max(pairs.residuals.max(), pairs.left_residuals.max()))


def _certify(
    a: LinearMap, norm: float, raw: RawPairs, order: Order, name: str, *, lift: bool
) -> Eigenpairs:
    """Sort, lift, normalise and measure: the residuals are evaluated against the factors."""
    index = leading_first(raw.values, order)
    values, right, left = raw.values[index], raw.right[:, index], raw.left[:, index]
    eps = float(np.finfo(a.dtype).eps)
    if lift and isinstance(a, LowRank):
        right, left = a.left @ right, a.right.T @ left
        # A core vector that a factor annihilates stands for the kernel, not for a pair of A: its
        # image is rounding, and a zero vector would have residual 0.
        floor = 100 * eps * np.linalg.norm(a.left), 100 * eps * np.linalg.norm(a.right)
        real = (np.linalg.norm(right, axis=0) > floor[0]) & (
            np.linalg.norm(left, axis=0) > floor[1]
        )
        values, right, left = values[real], right[:, real], left[:, real]
    right, left = fix_phase(right), fix_phase(left)
    residuals = np.linalg.norm(a.matvec(right) - right * values, axis=0) / norm
    left_residuals = np.linalg.norm(a.rmatvec(left) - left * values.conj(), axis=0) / norm
    overlap = np.abs(np.einsum("dk,dk->k", left.conj(), right)).astype(np.float64)
    conditions = np.full(overlap.shape, np.inf)
    np.divide(1.0, overlap, out=conditions, where=overlap > 0)
    residuals = residuals.astype(np.float64)
    return Eigenpairs(
        values=values,
        right=right,
        left=left,
        residuals=residuals,
        left_residuals=left_residuals.astype(np.float64),
        conditions=np.maximum(conditions, 1.0),
        error_bars=np.maximum(conditions, 1.0) * np.maximum(residuals, eps) * norm,
        norm=norm,
        complete=raw.complete,
        solver=name,
    )


def _without_kernel(pairs: Eigenpairs, size: int) -> Eigenpairs:
    """Drop the d - r eigenvalues of smallest modulus: the kernel that the shape prescribes."""
    by_modulus = np.argsort(-np.abs(pairs.values), kind="stable")
    return pairs.take(np.sort(by_modulus[:size]))


def fix_phase(vectors: Num[np.ndarray, "d k"]) -> Complex[np.ndarray, "d k"]:
    """Unit columns whose largest-magnitude entry (the lowest index on ties) is real, positive."""
    norms = np.linalg.norm(vectors, axis=0)
    safe = np.where(norms > 0, norms, 1)
    vectors = vectors / safe
    magnitude = np.abs(vectors)
    # Entries equal up to rounding are ties: take the first of them, not the luckiest.
    tied = magnitude >= magnitude.max(axis=0, keepdims=True) * (
        1 - 64 * np.finfo(magnitude.dtype).eps
    )
    pivot = vectors[np.argmax(tied, axis=0), np.arange(vectors.shape[1])]
    size = np.abs(pivot)
    phase = np.where(size > 0, pivot / np.where(size > 0, size, 1), 1)
    return np.asarray(vectors / phase, dtype=np.result_type(vectors.dtype, np.complex64))


def _of_zero(a: LinearMap, k: int | None) -> Eigenpairs:
    """The zero map: every vector is an eigenvector, every residual exactly 0."""
    count = a.rank_bound if k is None else k
    wide = np.result_type(a.dtype, np.complex64)
    vectors = np.eye(a.d, count, dtype=wide)
    zero = np.zeros(count)
    return Eigenpairs(
        zero.astype(wide), vectors, vectors, zero, zero, zero + 1, zero, 0.0, True, "exact"
    )


def eigenpairs_of_matrix(
    matrix: Float[np.ndarray, "d d"], k: int | None = None, order: Order | None = None
) -> Eigenpairs:
    """`eigenpairs` of a plain square matrix, for heads and for matrices of one's own."""
    from eigenlens.spectra.orders import ORDERS

    return eigenpairs(Full(np.asarray(matrix)), k, order or ORDERS["modulus"], solver="dense")
