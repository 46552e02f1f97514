"""Certification: no eigenpair leaves this room without its residual, condition and error bar.

What a solver found on its own small problem is sorted, lifted to R^d, given unit length and a fixed
phase, and measured against the factors of the map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Complex, Float, Num

from eigenlens.errors import NumericsError
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
        real and positive.
    residuals, left_residuals
        ``|A v - lambda v| / |A|_2`` and the same of the left vector.
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
    eps = float(np.finfo(a.dtype).eps)
    if lift and isinstance(a, LowRank):
        right, left = times(a.left, right), times(a.right.T, left)
        # A core vector that a factor annihilates stands for the kernel, not for a pair of A: its
        # image is rounding, and a zero vector would have residual 0.
        floor = 100 * eps * np.linalg.norm(a.left), 100 * eps * np.linalg.norm(a.right)
        real = (np.linalg.norm(right, axis=0) > floor[0]) & (
            np.linalg.norm(left, axis=0) > floor[1]
        )
        if np.any(np.abs(values[~real]) > 1e3 * eps * max(norm, rounding)):
            return None
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
        error_bars=np.maximum(conditions, 1.0)
        * np.maximum(residuals * norm, eps * max(norm, rounding)),
        norm=norm,
        complete=raw.complete,
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


def of_zero(a: LinearMap, k: int | None) -> Eigenpairs:
    """The zero map: every vector is an eigenvector, every residual exactly 0."""
    count = a.rank_bound if k is None else k
    wide = np.result_type(a.dtype, np.complex64)
    vectors = np.eye(a.d, count, dtype=wide)
    zero = np.zeros(count)
    return Eigenpairs(
        zero.astype(wide), vectors, vectors, zero, zero, zero + 1, zero, 0.0, True, "exact"
    )
