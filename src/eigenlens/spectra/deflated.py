"""What is left of a matrix without eigenpairs that are known, and whether more lead among it.

A Krylov space that grows from one vector holds one eigenvector of each eigenvalue: of a repeated
one it sees a single copy. The others are still there once the pairs found are taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.spectra.certify import RawPairs
from eigenlens.spectra.orders import Order, leading_first

Vector = Float[np.ndarray, "n"]


@dataclass(frozen=True)
class Deflated:
    """``(I - P) A`` as products: P is the spectral projector ``right dual^T`` of known eigenpairs.

    P commutes with A, so what is left has A's other eigenpairs, and 0 in place of those known.
    """

    matrix: Float[np.ndarray, "n n"]
    right: Float[np.ndarray, "n m"]
    dual: Float[np.ndarray, "n m"]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of A."""
        return self.matrix.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of A."""
        return self.matrix.dtype

    @property
    def T(self) -> Deflated:
        """``A^T (I - P^T)``, which is ``(I - P^T) A^T``."""
        return Deflated(self.matrix.T, self.dual, self.right)

    def rest(self, x: Vector) -> Vector:
        """`x` without its part in the known subspace."""
        return np.asarray(x - self.right @ (self.dual.T @ x))

    def __matmul__(self, x: Vector) -> Vector:
        return self.rest(self.matrix @ x)


def deflated(matrix: Float[np.ndarray, "n n"], pairs: RawPairs) -> Deflated:
    """`matrix` without `pairs`, whose conjugates are whole.

    Where an eigenvalue is defective the projector is poor, and what is found behind it is no pair
    of A; its certificate will tell.
    """
    right, left = (_real_basis(pairs.values, side) for side in (pairs.right, pairs.left))
    # dual^T right = I
    dual = np.linalg.lstsq(left.T @ right, left.T, rcond=None)[0].T
    return Deflated(matrix, right.astype(matrix.dtype), dual.astype(matrix.dtype))


def _real_basis(
    values: Complex[np.ndarray, "m"], vectors: Complex[np.ndarray, "n m"]
) -> Float[np.ndarray, "n m"]:
    """Real columns that span the same: real and imaginary part for a conjugate pair."""
    upper, lower = values.imag >= 0, values.imag > 0
    parts = vectors.real[:, upper], vectors.imag[:, lower]
    return np.concatenate(parts, axis=1).astype(np.float64)


def joined(one: RawPairs, other: RawPairs, order: Order) -> RawPairs:
    """The pairs of both, what leads first."""
    values = np.concatenate([one.values, other.values])
    index = leading_first(values, order)
    right, left = (
        np.concatenate(sides, axis=1)[:, index]
        for sides in ((one.right, other.right), (one.left, other.left))
    )
    return RawPairs(values[index], right, left, complete=False)


def independent(vectors: Complex[np.ndarray, "n m"], tolerance: float) -> bool:
    """Whether unit columns span as many dimensions as they are, by more than `tolerance`.

    Pairs that are found in turn are all pairs of A, but one may be a known one again where the
    projector was poor.
    """
    sizes = np.linalg.svd(vectors / np.linalg.norm(vectors, axis=0), compute_uv=False)
    return bool(sizes[-1] > tolerance)
