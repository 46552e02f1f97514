"""Certification: no eigenpair leaves this room without its residual, condition and error bar.

What a solver found on its own small problem is sorted, lifted to R^d, given unit length and a fixed
phase, and measured against the factors of the map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Complex, Float, Int

from eigenlens.errors import NumericsError
from eigenlens.spectra.lifted import Lifted, Vectors, columns, fix_phase
from eigenlens.spectra.maps import LinearMap, LowRank, times
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
        real and positive. Of a full spectrum they may be `Lifted`: indexing makes arrays of them.
    residuals, left_residuals
        ``|A v - lambda v| / |A|_2`` and the same of the left vector, or bounds above them
        (`eigenlens.spectra.in_core`).
    conditions
        ``1 / |w^H v|``, how many times a perturbation of A is magnified in lambda.
    error_bars
        ``condition * max(residual, eps) * |A|_2``, absolute, first order in the perturbation;
        where the product of the factors cancels, with the rounding of the product for ``|A|_2``.
    norm
        ``|A|_2``.
    complete
        True when these are all eigenvalues but the kernel's that the shape prescribes.
    solver
        What produced them: ``dense-core``, ``dense`` or ``krylov``.
    frobenius
        ``|A|_F``; for some leading pairs of a large map to six digits only.
    """

    values: Complex[np.ndarray, "k"]
    right: Complex[np.ndarray, "d k"] | Lifted
    left: Complex[np.ndarray, "d k"] | Lifted
    residuals: Float[np.ndarray, "k"]
    left_residuals: Float[np.ndarray, "k"]
    conditions: Float[np.ndarray, "k"]
    error_bars: Float[np.ndarray, "k"]
    norm: float
    complete: bool
    solver: str
    frobenius: float = math.nan

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
            right=columns(self.right, index),
            left=columns(self.left, index),
            residuals=self.residuals[index],
            left_residuals=self.left_residuals[index],
            conditions=self.conditions[index],
            error_bars=self.error_bars[index],
        )


def worst_residual(pairs: Eigenpairs) -> float:
    """Largest residual on either side, relative to ``|A|_2``; 0 for an empty list."""
    if pairs.values.size == 0:
        return 0.0
    return float(max(pairs.residuals.max(), pairs.left_residuals.max()))


def certify(
    a: LinearMap,
    norm: float,
    raw: RawPairs,
    order: Order,
    name: str,
    *,
    lift: bool,
    rounding: float = 0.0,
) -> Eigenpairs | None:
    """Sort, lift, normalise and measure: the residuals are evaluated against the factors.

    Parameters
    ----------
    a, norm
        The map, and its spectral norm.
    raw
        What a solver found on the core (`lift`) or on A itself.
    order
        What leads.
    name
        The solver's, for the record.
    lift
        Whether the vectors are those of the core: ``v = L y`` and ``w = R^T z``.
    rounding
        What eps is relative to where that exceeds `norm`: `product_rounding` of the factors.

    Returns
    -------
    The pairs, or None where lifting annihilates a vector whose eigenvalue is not rounding.
    """
    index = leading_first(raw.values, order)
    values, right, left = raw.values[index], raw.right[:, index], raw.left[:, index]
    half, back = one_of_each_pair(values, right, left)
    mirrored = half[back] != np.arange(values.size)
    right, left = right[:, half], left[:, half]
    if lift and isinstance(a, LowRank):
        right, left = times(a.left, right), times(a.right.T, left)
        real = not_annihilated(a, right, left)
        if not kernel_only(values[half[~real]], a, norm, rounding):
            return None
        kept = real[back]
        values, mirrored, back = values[kept], mirrored[kept], (np.cumsum(real) - 1)[back[kept]]
        half, right, left = np.flatnonzero(~mirrored), right[:, real], left[:, real]
    right, left = fix_phase(right), fix_phase(left)
    found = measured(a, norm, values[half], right, left).at(back)
    right, left = right[:, back], left[:, back]
    for side in (right, left):
        side.imag[:, mirrored] *= -1
    return assembled(found, values, right, left, a, norm, rounding, raw.complete, name)


def one_of_each_pair(
    values: Complex[np.ndarray, "k"],
    right: Complex[np.ndarray, "n k"],
    left: Complex[np.ndarray, "n k"],
) -> tuple[Int[np.ndarray, "h"], Int[np.ndarray, "k"]]:
    """Positions to measure, and for all positions the place of their measure among them.

    The second of a conjugate pair has the measures of the first, if its vectors are the conjugates.
    """
    second = 1 + np.flatnonzero((values.imag[1:] < 0) & (values[1:] == values[:-1].conj()))
    for side in (right, left):
        one, other = side[:, second - 1], side[:, second]
        second = second[np.all(other == one.conj(), axis=0)]
    own = np.ones(values.size, dtype=bool)
    own[second] = False
    return np.flatnonzero(own), np.cumsum(own) - 1


@dataclass(frozen=True)
class Measures:
    """Of each pair: residuals on both sides relative to ``|A|_2``, and ``|w^H v|``."""

    residuals: Float[np.ndarray, "k"]
    left_residuals: Float[np.ndarray, "k"]
    overlaps: Float[np.ndarray, "k"]

    def at(self, index: np.ndarray) -> Measures:
        """Those of the pairs at `index`, in that sequence."""
        return Measures(self.residuals[index], self.left_residuals[index], self.overlaps[index])


def measured(
    a: LinearMap,
    norm: float,
    values: Complex[np.ndarray, "k"],
    right: Complex[np.ndarray, "d k"],
    left: Complex[np.ndarray, "d k"],
) -> Measures:
    """Residuals and overlaps of unit vectors, evaluated against the factors."""
    residuals = np.linalg.norm(a.matvec(right) - right * values, axis=0) / norm
    left_residuals = np.linalg.norm(a.rmatvec(left) - left * values.conj(), axis=0) / norm
    overlaps = np.abs(np.einsum("dk,dk->k", left.conj(), right))
    return Measures(*(x.astype(np.float64) for x in (residuals, left_residuals, overlaps)))


def not_annihilated(
    a: LowRank, right: Complex[np.ndarray, "d k"], left: Complex[np.ndarray, "d k"]
) -> Bool[np.ndarray, "k"]:
    """Which of the core's unit vectors have a lifted form that is more than rounding.

    One that a factor annihilates stands for the kernel, not for a pair of A: its image is rounding,
    and a zero vector would have residual 0.
    """
    eps = float(np.finfo(a.dtype).eps)
    floor = [100 * eps * math.sqrt(squares.sum()) for squares in a.inner_squares()]
    return np.asarray(
        (np.linalg.norm(right, axis=0) > floor[0]) & (np.linalg.norm(left, axis=0) > floor[1])
    )


def kernel_only(
    values: Complex[np.ndarray, "k"], a: LinearMap, norm: float, rounding: float
) -> bool:
    """Whether all of these eigenvalues are 0 up to rounding."""
    eps = float(np.finfo(a.dtype).eps)
    return not np.any(np.abs(values) > 1e3 * eps * max(norm, rounding))


def assembled(
    found: Measures,
    values: Complex[np.ndarray, "k"],
    right: Vectors,
    left: Vectors,
    a: LinearMap,
    norm: float,
    rounding: float,
    complete: bool,
    name: str,
) -> Eigenpairs:
    """The pairs with conditions and error bars from their measures."""
    eps = float(np.finfo(a.dtype).eps)
    conditions = np.full(found.overlaps.shape, np.inf)
    np.divide(1.0, found.overlaps, out=conditions, where=found.overlaps > 0)
    conditions = np.maximum(conditions, 1.0)
    return Eigenpairs(
        values=values,
        right=right,
        left=left,
        residuals=found.residuals,
        left_residuals=found.left_residuals,
        conditions=conditions,
        error_bars=conditions * np.maximum(found.residuals * norm, eps * max(norm, rounding)),
        norm=norm,
        complete=complete,
        solver=name,
    )


def rescaled(pairs: Eigenpairs, exponent: int) -> Eigenpairs:
    """The pairs of ``2^exponent A`` from those of A: vectors and relative measures stay.

    Raises
    ------
    NumericsError
        The norm leaves the range of the compute dtype.
    """
    if exponent == 0 or pairs.norm == 0:
        return pairs
    real = pairs.values.real.dtype
    power = math.log2(pairs.norm) + exponent
    if not math.log2(np.finfo(real).tiny) <= power <= math.log2(np.finfo(real).max) - 2:
        remedy = "use --dtype float64" if real.itemsize == 4 else "scale the weights"
        raise NumericsError(
            f"F has norm 1e{power * math.log10(2):.0f}, beyond the range of {real.name}; {remedy}"
        )
    values = np.empty_like(pairs.values)
    values.real = np.ldexp(pairs.values.real, exponent)
    values.imag = np.ldexp(pairs.values.imag, exponent)
    with np.errstate(over="ignore"):  # a bar may well be unbounded
        bars = np.ldexp(pairs.error_bars, exponent)
    return replace(pairs, values=values, error_bars=bars, norm=math.ldexp(pairs.norm, exponent))


def without_kernel(pairs: Eigenpairs, size: int) -> Eigenpairs:
    """Drop the d - r eigenvalues of smallest modulus: the kernel that the shape prescribes."""
    by_modulus = np.argsort(-np.abs(pairs.values), kind="stable")
    return pairs.take(np.sort(by_modulus[:size]))


def of_zero(a: LinearMap, k: int | None) -> Eigenpairs:
    """The zero map: every vector is an eigenvector, every residual exactly 0."""
    count = a.rank_bound if k is None else k
    wide = np.result_type(a.dtype, np.complex64)
    vectors = np.eye(a.d, count, dtype=wide)
    zero = np.zeros(count)
    return Eigenpairs(
        zero.astype(wide), vectors, vectors, zero, zero, zero + 1, zero, 0.0, True, "exact"
    )
