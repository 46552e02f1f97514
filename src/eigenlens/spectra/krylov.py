"""Leading eigenpairs from matrix-vector products: Arnoldi's method with thick restarts.

Two runs, on the matrix and on its transpose, give right and left vectors and guard each other. What
bounds the time is how often the matrix is read. Blocks of vectors would need fewer passes over it,
but a product with a few columns takes OpenBLAS four times as long as one with a single vector. What
a block would see and a single vector cannot, a second eigenvector of the same eigenvalue, is looked
for afterwards, in what is left of the matrix without the pairs found (`deflated`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float, Inexact

from eigenlens.blas import two_at_once
from eigenlens.spectra.certify import TOLERANCES, RawPairs
from eigenlens.spectra.deflated import Deflated, deflated, independent, joined
from eigenlens.spectra.maps import times
from eigenlens.spectra.orders import Order, leading_first, whole_pairs

Vector = Float[np.ndarray, "n"]
Matrix = Float[np.ndarray, "n n"] | Deflated
Found = tuple[np.ndarray, np.ndarray]
"""Values (m,) and vectors (n, m) of a run."""
Run = Generator[Vector, Vector, Found | None]
"""Yields the vector it wants multiplied, is sent the product, returns what it found."""

_LOOK = 120  # steps that look for what a single vector cannot see
_SEEN = 0.01  # residual, relative to the largest value, up to which a value counts as seen
_AHEAD = 1e-3  # what it has to be ahead, relative to the largest value
_CACHED = 1024  # size up to which a product costs less than the orthogonalisation after it
_THREADS_FROM = 640  # from this size on each run has a thread of its own


@dataclass(frozen=True)
class Krylov:
    """Thick-restart Arnoldi on the matrix and, apart from it, on its transpose.

    The second run gives the left vectors, and guards against what residuals cannot see: both runs
    start from their own random vector, so a leading eigenvalue that one of them missed shows as a
    disagreement, and the solver gives up rather than answer. Copies of a leading eigenvalue, of
    which a run sees one, are found by a look at what is left without the pairs found, unless they
    stand in a crowd: there the dense solver alone is sure.

    A run is done when the residuals of the leading pairs are well below the tolerance of the
    dtype. Krylov spaces do not change when a multiple of I is added, so every order is served by
    the same process: only the choice of what a restart keeps differs.

    Attributes
    ----------
    seed
        Of the two start vectors.
    extra
        Pairs looked at beyond `k`: what ties with the last one asked for has to converge with it.
    basis
        Vectors held at most, of a matrix that stays in the caches and of a larger one; a restart
        keeps about half of them. More of them mean fewer products but more orthogonalisation;
        measured for k = 8 at n = 448 to 4096.
    max_restarts
        Bound on restarts.
    """

    name: str = "krylov"
    seed: int = 0
    extra: int = 2
    basis: tuple[int, int] = (64, 96)
    max_restarts: int = 100

    def solve(self, core: Float[np.ndarray, "n n"], k: int | None, order: Order) -> RawPairs | None:
        """At least `k` leading pairs; None if a run stalls or the two disagree."""
        n = core.shape[0]
        if k is None or k + self.extra + 1 >= n // 2:
            return None
        size = min(n - 1, max(self.basis[n > _CACHED], 3 * (k + self.extra)))
        rng = np.random.default_rng(self.seed)
        found, alike = self._pairs(core, k, order, size, rng), _agreement(core.dtype)
        for _ in range(k):
            if found is None:
                return None
            rest, place = deflated(core, found), whole_pairs(found.values, k) - 1
            last = found.values[place : place + 1]
            if not _may_lead(rest, last, order, rng):
                break
            more = self._pairs(rest, k, order, size, rng)
            if more is None:
                return None
            slack = alike * float(np.abs(found.values).max())
            if np.all(order.key(more.values) <= order.key(last) + slack):
                break
            found = joined(found, more, order)
            if not independent(found.right, alike):
                return None
        return found

    def _pairs(
        self,
        matrix: Matrix,
        k: int,
        order: Order,
        size: int,
        rng: np.random.Generator,
    ) -> RawPairs | None:
        """At least `k` pairs that single vectors see; None if a run stalls or the two disagree."""
        right, left = (
            self._run(matrix.dtype, k, order, size, _begin(side, own))
            for side, own in zip((matrix, matrix.T), rng.spawn(2), strict=True)
        )
        found = _both(matrix, right, left)
        if found is None:
            return None
        (values, columns), (others, rows) = found
        keep = whole_pairs(values, k)
        if keep < k or keep > others.size:
            return None
        tolerance = _agreement(matrix.dtype)
        partner = _match(values[:keep], others, tolerance)
        if partner is None or _match(others[:keep], values, tolerance) is None:
            return None
        # A^T z = lambda z gives conj(z)^H A = lambda conj(z)^H.
        return RawPairs(values[:keep], columns[:, :keep], rows[:, partner].conj(), complete=False)

    def _run(
        self,
        dtype: np.dtype[np.floating],
        k: int,
        order: Order,
        size: int,
        fresh: Callable[[], Vector],
    ) -> Run:
        """One run, as a coroutine; returns `k` and some more pairs, or None when it stalls.

        Krylov-Schur restarts (Stewart, 2001) with an orthonormal basis of the kept Ritz vectors in
        place of an ordered Schur form: the kept part of ``h`` is full then, and the row below it
        holds what the next vector has in common with it.
        """
        wide = np.result_type(dtype, np.complex64)
        eps = float(np.finfo(dtype).eps)
        alike, tiny = _agreement(dtype), float(np.finfo(dtype).tiny)
        wanted = max(0.02 * TOLERANCES[dtype.name], 30 * eps)
        start = fresh()
        vectors = np.empty((size + 1, start.size), dtype=dtype)
        h = np.zeros((size + 1, size), dtype=dtype)
        vectors[0] = start
        held, scale = 0, 0.0
        for _ in range(self.max_restarts):
            for j in range(held, size):
                y = yield vectors[j]
                scale = max(scale, float(np.linalg.norm(y)))
                y, h[: j + 1, j] = _orthogonal(y, vectors[: j + 1])
                rest = float(np.linalg.norm(y))
                if rest <= 10 * eps * scale:  # an invariant subspace is complete: begin another
                    y, _ = _orthogonal(fresh(), vectors[: j + 1])
                    vectors[j + 1], rest = y / np.linalg.norm(y), 0.0
                else:
                    vectors[j + 1] = y / rest
                h[j + 1, j] = rest
            # in float64 LAPACK is no slower on matrices of this size
            found = np.linalg.eig(h[:size].astype(np.float64, copy=False))
            values, ritz = (x.astype(wide, copy=False) for x in found)
            index = leading_first(values, order)
            values, ritz = values[index], ritz[:, index]
            shown = whole_pairs(values, k + self.extra)
            missed = np.abs(rest * ritz[-1, :shown]) / max(float(np.abs(values).max()), tiny)
            # Those that tie with the k-th may stand before it in the other run.
            keys = order.key(values[:shown])
            tied = keys >= keys[whole_pairs(values, k) - 1] - alike * float(np.abs(keys).max())
            if np.all(missed[tied] <= wanted) and np.all(missed <= alike):
                return values[:shown], times(vectors[:size].T, ritz[:, :shown])
            held = whole_pairs(values, (shown + size) // 2)
            upper = values[:held].imag
            span = [ritz.real[:, :held][:, upper >= 0], ritz.imag[:, :held][:, upper > 0]]
            kept, _ = np.linalg.qr(np.concatenate(span, axis=1))
            held = kept.shape[1]
            compressed, tie = kept.T @ h[:size] @ kept, rest * kept[-1]
            vectors[:held] = kept.T @ vectors[:size]
            vectors[held] = vectors[size]
            h[:] = 0
            h[:held, :held], h[held, :held] = compressed, tie
        return None


def _begin(matrix: Matrix, rng: np.random.Generator) -> Callable[[], Vector]:
    """Gives random unit vectors of the space that is left of the matrix."""

    def fresh() -> Vector:
        y = np.asarray(rng.standard_normal(matrix.shape[0]), dtype=matrix.dtype)
        if isinstance(matrix, Deflated):
            y = matrix.rest(y)
        return np.asarray(y / np.linalg.norm(y))

    return fresh


def _may_lead(
    rest: Deflated, last: Complex[np.ndarray, "1"], order: Order, rng: np.random.Generator
) -> bool:
    """Whether something in `rest` seems to lead `last`, the last pair asked for.

    A few steps of Arnoldi's method tell roughly where what leads is; a copy that stands in a crowd
    may stay unseen. Whatever is found is only a reason to look closer.
    """
    vectors = np.empty((_LOOK + 1, rest.shape[0]), dtype=rest.dtype)
    h = np.zeros((_LOOK + 1, _LOOK), dtype=rest.dtype)
    vectors[0] = _begin(rest, rng)()
    size, tiny = 0, float(np.finfo(rest.dtype).tiny)
    for size in range(1, _LOOK + 1):
        y, h[:size, size - 1] = _orthogonal(rest @ vectors[size - 1], vectors[:size])
        h[size, size - 1] = np.linalg.norm(y)
        if h[size, size - 1] <= _AHEAD * np.abs(h[:size, :size]).max():
            break
        vectors[size] = y / h[size, size - 1]

    def ahead(values: Inexact[np.ndarray, "m"]) -> Bool[np.ndarray, "m"]:
        slack = _AHEAD * max(float(np.abs(values).max()), float(np.abs(last).max()), tiny)
        return np.asarray(order.key(values) > order.key(last) + slack)

    small = h[:size, :size].astype(np.float64)  # in which LAPACK is quicker, too
    if not ahead(np.linalg.eigvals(small)).any():
        return False
    values, ritz = np.linalg.eig(small)
    largest = max(float(np.abs(values).max()), float(np.abs(last).max()), tiny)
    seen = h[size, size - 1] * np.abs(ritz[-1]) <= _SEEN * largest
    return bool(np.any(seen & ahead(values)))


def _orthogonal(
    y: Vector, basis: Float[np.ndarray, "j n"]
) -> tuple[Vector, Float[np.ndarray, "j"]]:
    """`y` without its part in the basis, and that part; twice is enough (Kahan)."""
    first = basis @ y
    y = y - first @ basis
    second = basis @ y
    return y - second @ basis, first + second


def _both(core: Matrix, right: Run, left: Run) -> tuple[Found, Found] | None:
    """Drive both runs to their end, each on a core of its own; None if either stalls.

    Two threads that each read all of a large matrix use the memory better than two that share its
    rows and meet after every product: 2.4 ms against 5 for the two products at n = 4096 in float32.
    """

    def forward() -> Found | None:
        return _drive(right, core)

    def backward() -> Found | None:
        return _drive(left, core.T)

    small = core.shape[0] < _THREADS_FROM
    found = (forward(), backward()) if small else two_at_once(forward, backward)
    if found[0] is None or found[1] is None:
        return None
    return found[0], found[1]


def _drive(run: Run, matrix: Matrix) -> Found | None:
    """One run, given the products that it asks for."""
    try:
        x = next(run)
        while True:
            x = run.send(matrix @ x)
    except StopIteration as end:
        found: Found | None = end.value
        return found


def _agreement(dtype: np.dtype[np.floating]) -> float:
    """Relative distance up to which two runs count as one answer: half of the digits."""
    return float(np.sqrt(np.finfo(dtype).eps))


def _match(
    values: Complex[np.ndarray, "k"], others: Complex[np.ndarray, "m"], tolerance: float
) -> np.ndarray | None:
    """For each value its own partner among `others`; None where one has no partner close by.

    The nearest that is still free: inside a cluster that is tighter than the tolerance any
    assignment is as good, and elsewhere the nearest is the only one.
    """
    distance = np.abs(values[:, None] - others[None, :])
    limit = tolerance * float(np.abs(values).max())
    partner = np.empty(values.size, dtype=np.int64)
    for i in range(values.size):
        j = int(np.argmin(distance[i]))
        if not distance[i, j] <= limit:
            return None
        partner[i] = j
        distance[:, j] = np.inf
    return partner
