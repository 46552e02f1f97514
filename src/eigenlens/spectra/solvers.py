"""The solvers, the choice among them, and certified eigenpairs of a layer's map.

A solver is a small frozen object with its options as fields. It returns eigenvalues with right and
left vectors of the small problem it likes best; lifting them to R^d and certifying them is one room
(`eigenlens.spectra.certify`), and falling back when the tolerance is missed happens here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from eigenlens.blas import two_at_once
from eigenlens.errors import NumericsError, OptionError
from eigenlens.spectra import in_core
from eigenlens.spectra.certify import (
    TOLERANCES,
    Eigenpairs,
    RawPairs,
    certify,
    of_zero,
    rescaled,
    without_kernel,
    worst_residual,
)
from eigenlens.spectra.dense import Dense
from eigenlens.spectra.krylov import Krylov
from eigenlens.spectra.lifted import fix_phase
from eigenlens.spectra.maps import (
    Full,
    LinearMap,
    LowRank,
    normalised,
    restored,
)
from eigenlens.spectra.norms import product_rounding, spectral_norm
from eigenlens.spectra.orders import Order, scaled

__all__ = [
    "SOLVERS",
    "TOLERANCES",
    "Dense",
    "Eigenpairs",
    "Krylov",
    "RawPairs",
    "Solver",
    "choose_solvers",
    "eigenpairs",
    "eigenpairs_of_matrix",
    "fix_phase",
]


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


SOLVERS: dict[str, Solver] = {s.name: s for s in (Dense(), Krylov())}
"""The solvers by name; `auto` chooses among them by size and k."""

_DENSE_BELOW = 416  # measured: up to here one geev on the core beats two Krylov runs for k = 8


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
        Even the dense solver missed the tolerance, LAPACK did not converge, or F is not finite or
        beyond the range of its dtype.
    """
    size = a.rank_bound
    if k is not None:
        k = min(k, size)
    methods = choose_solvers(solver, size, k, seed)
    low_rank = isinstance(a, LowRank) and size < a.d
    a, exponent = normalised(a)
    rounding: float | None = None
    if isinstance(a, LowRank) and not low_rank:
        rounding = product_rounding(a)
        a = Full(a.dense())  # nothing is gained by factors as large as the matrix
        a, more = normalised(a)
        exponent, rounding = exponent + more, math.ldexp(rounding, -more)
    found = _certified(a, k, scaled(order, exponent), methods, seed, rounding)
    frobenius = a.frobenius_norm(exact=k is None)
    return replace(rescaled(found, exponent), frobenius=restored(frobenius, exponent))


def _certified(
    a: LinearMap,
    k: int | None,
    order: Order,
    methods: Sequence[Solver],
    seed: int,
    rounding: float | None,
) -> Eigenpairs:
    """Pairs that meet the tolerance, of a map that is normalised.

    `rounding` is that of the product where the map is one; None where it is in factors still.
    """
    size, low_rank, tolerance = a.rank_bound, isinstance(a, LowRank), TOLERANCES[a.dtype.name]
    core = a.core()
    full: RawPairs | None = None
    if isinstance(a, LowRank) and k is None and a.d * size**2 >= in_core.FROM:
        full, norm = _with_norm(a, core, order, seed)
        methods = [_Known(full)]
    else:
        norm = spectral_norm(a, seed)
    if norm == 0.0:
        return of_zero(a, k)
    if rounding is None:  # after the norm, whose Gram matrices serve it
        rounding = product_rounding(a)
    worst = np.inf
    if isinstance(a, LowRank) and full is not None:
        found = in_core.certify_in_core(a, core, norm, full, order, "dense-core", rounding)
        if found is not None and worst_residual(found) <= tolerance:
            return found
    for method in methods:
        name = f"{method.name}-core" if low_rank else method.name
        found = _solved(a, norm, method, core, k, order, name, rounding)
        if found is None:
            continue
        worst = worst_residual(found)
        if worst <= tolerance:
            return found
    # Of the matrix itself; then without balancing, which harms where a few entries are huge.
    whole = a.dense()
    for method in ([Dense()] if low_rank else []) + [Dense(balanced=False)]:
        raw = _guarded(method, whole, None, order)
        if raw is None:
            continue
        found = certify(a, norm, raw, order, "dense", lift=False, rounding=rounding)
        if found is not None:
            if low_rank:
                found = without_kernel(found, size)
            found = found.leading(k)
            worst = worst_residual(found)
            if worst <= tolerance:
                return found
    remedy = "use --dtype float64" if a.dtype.itemsize == 4 else "its entries are too uneven"
    raise NumericsError(
        f"no solver reached the tolerance {tolerance:g} of {a.dtype.name}: the worst residual is "
        f"{worst:.2g} of |F|; {remedy}"
    )


@dataclass(frozen=True)
class _Known:
    """What the dense solver has found already."""

    pairs: RawPairs | None
    name: str = "dense"

    def solve(self, core: Float[np.ndarray, "n n"], k: int | None, order: Order) -> RawPairs | None:
        """The pairs that are known."""
        return self.pairs


def _with_norm(
    a: LowRank, core: Float[np.ndarray, "r r"], order: Order, seed: int
) -> tuple[RawPairs | None, float]:
    """All pairs of the core, which keep one core busy, and beside them the norm of the map."""

    def norm() -> float:
        _ = a.grams  # the norm and the certificates come from them
        return spectral_norm(a, seed)

    return two_at_once(lambda: _guarded(Dense(), core, None, order), norm)


def _solved(
    a: LinearMap,
    norm: float,
    method: Solver,
    core: Float[np.ndarray, "n n"],
    k: int | None,
    order: Order,
    name: str,
    rounding: float,
) -> Eigenpairs | None:
    """What one solver gives, certified; None when it gives up or lifting loses a pair.

    Pairs of the kernel drop out on lifting; where too few are left, all are asked for.
    """
    lift = core.shape[0] < a.d
    for count in dict.fromkeys((k, None)):
        raw = _guarded(method, core, count, order)
        if raw is None:
            return None
        found = certify(a, norm, raw, order, name, lift=lift, rounding=rounding)
        if found is None:
            return None
        if k is None or raw.complete or found.values.size >= k:
            return found.leading(k)
    return None


def _guarded(method: Solver, core: np.ndarray, k: int | None, order: Order) -> RawPairs | None:
    """Run a solver; LAPACK's failure to converge counts as giving up."""
    try:
        return method.solve(core, k, order)
    except np.linalg.LinAlgError:
        return None


def eigenpairs_of_matrix(
    matrix: Float[np.ndarray, "d d"], k: int | None = None, order: Order | None = None
) -> Eigenpairs:
    """`eigenpairs` of a plain square matrix, for heads and for matrices of one's own."""
    from eigenlens.spectra.orders import ORDERS

    return eigenpairs(Full(np.asarray(matrix)), k, order or ORDERS["modulus"], solver="dense")
