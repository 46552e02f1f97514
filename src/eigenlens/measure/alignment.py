"""How far tokens lean towards a subspace, before and after a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from eigenlens.errors import NumericsError, OptionError, ShapeError

_BLOCK = 1 << 22  # entries of the largest temporary, 32 MB in float64

TIE_ULPS = 8
"""Alignments closer than this many eps of the states' dtype are a tie: rounding, not movement."""


def token_norms(X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n"]:
    """2-norms of the rows of `X`, in float64.

    Raises
    ------
    NumericsError
        A token holds a NaN or an infinity.
    """
    wide = np.asarray(X, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms: np.ndarray = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    finite = np.isfinite(norms)
    if not finite.all():
        raise NumericsError(
            f"{int(np.count_nonzero(~finite))} of {norms.size} token states hold NaN or infinite "
            f"values (the first is token {int(np.argmin(finite))}): states must be finite; run the "
            "model in float32 or wider"
        )
    return norms


def unit_sum(X: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "d"], int]:
    """Sum of the unit tokens, and how many there are; zero tokens are left out. O(nd), one pass.

    Raises
    ------
    NumericsError
        A token holds a NaN or an infinity.
    """
    wide = np.asarray(X, dtype=np.float64)
    norms = token_norms(wide)
    weights = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return np.asarray(weights @ wide), int(np.count_nonzero(norms))


class Targets:
    """Subspaces that tokens are compared with, all at once: one matrix product a block of tokens.

    Parameters
    ----------
    bases
        Orthonormal bases (d, k), one a subspace; k may differ. A stack (m, d, k) will do.
    complement
        The bases span the orthogonal complements of the subspaces that are meant (a kernel is
        given by its row space).
    dtype
        Dtype of the product: float64, or float32 for many null directions at once.

    Raises
    ------
    ShapeError
        No basis, an empty one, or bases of different d.
    NumericsError
        A basis is not orthonormal to 1e-5 (complex eigenvectors must become a plane first).
    """

    def __init__(
        self,
        bases: Sequence[Float[np.ndarray, "d _k"]] | Float[np.ndarray, "m d k"],
        *,
        complement: bool = False,
        dtype: str = "float64",
    ) -> None:
        found = [np.asarray(B, dtype=np.float64) for B in bases]
        if not found:
            raise ShapeError("no target subspace was given; give at least one basis (d, k)")
        shapes = [B.shape for B in found]
        if any(len(s) != 2 or s[0] != shapes[0][0] or not 1 <= s[1] <= s[0] for s in shapes):
            raise ShapeError(
                f"target bases have the shapes {shapes[:4]}; they must be (d, k) with one d and "
                "1 <= k <= d"
            )
        for i, B in enumerate(found):
            off = float(np.abs(B.T @ B - np.eye(B.shape[1])).max())
            if not off <= 1e-5:
                raise NumericsError(
                    f"target basis {i} is not orthonormal (B^T B is off by {off:.2g}); "
                    "orthonormalise it, a complex vector by its real and imaginary part"
                )
        self.dims = np.array([s[1] for s in shapes])
        self.complement = complement
        self._columns = np.concatenate(found, axis=1).astype(dtype)
        self._starts = np.concatenate([[0], np.cumsum(self.dims)[:-1]])

    def __len__(self) -> int:
        return int(self.dims.size)

    @property
    def d(self) -> int:
        """Dimension of the space."""
        return int(self._columns.shape[0])

    @property
    def columns(self) -> Float[np.ndarray, "d c"]:
        """The basis vectors of all subspaces, one after the other."""
        return self._columns

    def _cosines(
        self, X: Float[np.ndarray, "n d"], norms: Float[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n c"]:
        """Cosines of tokens (rows) with all basis vectors (columns); NaN for a zero token."""
        dtype = self._columns.dtype
        safe = np.where(norms > 0, norms, np.nan)
        if dtype == np.float64 or not ((norms < 1e-25) | (norms > 1e25)).any():
            # Dividing the few cosines instead of the tokens saves a copy of the states.
            return np.asarray((X.astype(dtype, copy=False) @ self._columns) / safe[:, None])
        return np.asarray((X / safe[:, None]).astype(dtype) @ self._columns)

    def alignment(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """``|B^T x| / |x|`` for every subspace and token, in [0, 1]; NaN for a zero token.

        O(n d sum k); temporaries are bounded whatever the number of subspaces.

        Raises
        ------
        NumericsError
            A token holds a NaN or an infinity.
        """
        norms = token_norms(X)
        out = np.empty((len(self), X.shape[0]))
        step = max(1, _BLOCK // self._columns.shape[1])
        for start in range(0, X.shape[0], step):
            block = slice(start, start + step)
            out[:, block] = self.of_cosines(self._cosines(X[block], norms[block]))
        return out

    def of_cosines(self, cosines: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "m n"]:
        """Alignments of tokens whose cosines with the columns of all bases are known."""
        share = np.square(cosines)
        if share.shape[1] > len(self):
            share = np.add.reduceat(share, self._starts, axis=1)
        if self.complement:
            share = 1.0 - share
        # Rounding may leave [0, 1] by some eps; NaN passes through.
        return np.asarray(np.sqrt(np.clip(share.T, 0.0, 1.0)))

    def signed(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """``v.x / |x|`` for targets that are one real vector each, in [-1, 1].

        Raises
        ------
        OptionError
            A target is a plane or a complement: it has no sign.
        """
        if self.complement or (self.dims > 1).any():
            raise OptionError("a signed alignment needs single real vectors; planes have no sign")
        return np.asarray(np.clip(self._cosines(X, token_norms(X)).T, -1.0, 1.0))


def alignment(X: Float[np.ndarray, "n d"], B: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "n"]:
    """``|B^T x_i| / |x_i|``: cosine between each token and the subspace, in [0, 1].

    `B` is orthonormal; a zero token has no direction and gives NaN. Li and Altafini (2026), here
    for a subspace of any dimension.

    Raises
    ------
    ShapeError, NumericsError
        As `Targets`.

    Examples
    --------
    >>> import numpy as np
    >>> alignment(np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[1.0], [0.0]]))
    array([0.6, 0. ])
    """
    return np.asarray(Targets([B]).alignment(X)[0])


def gamma(after: Float[np.ndarray, "n"]) -> float:
    """Mean alignment after the step. Never negative: judge it by `expected_alignment`."""
    return float(np.mean(after))


def gain(before: Float[np.ndarray, "n"], after: Float[np.ndarray, "n"]) -> float:
    """Mean of after - before. With signed alignments, the signed gain (positive: towards +v1)."""
    return float(np.mean(after - before))


def wins(
    before: Float[np.ndarray, "*m n"], after: Float[np.ndarray, "*m n"], tie: float = 0.0
) -> Float[np.ndarray, "*m n"]:
    """1 where a token moved closer, 0 where it moved away, 1/2 for ``|after - before| <= tie``."""
    step = after - before
    return np.where(np.abs(step) <= tie, 0.5, np.where(step > 0, 1.0, 0.0))


def rho(before: Float[np.ndarray, "n"], after: Float[np.ndarray, "n"], tie: float = 0.0) -> float:
    """Fraction of tokens that moved closer, ties counted half. 1/2 by itself proves nothing.

    Examples
    --------
    >>> import numpy as np
    >>> rho(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.2, 0.3, 0.3, 0.1]))
    0.625
    """
    return float(np.mean(wins(before, after, tie)))


def expected_alignment(d: int, k: int = 1) -> float:
    """Mean alignment of an isotropic random direction of R^d with a fixed k-plane, exact.

    ``Gamma((k+1)/2) Gamma(d/2) / (Gamma(k/2) Gamma((d+1)/2))``: the ratio of the mean norms of a
    k- and a d-dimensional Gaussian vector, which is independent of the direction. For k = 1 about
    ``sqrt(2 / (pi d))``.

    Raises
    ------
    OptionError
        Not 1 <= k <= d.
    """
    if not 1 <= k <= d:
        raise OptionError(f"a subspace of dimension {k} of R^{d}: allowed are 1 to {d}")
    half = (math.lgamma((k + 1) / 2), math.lgamma(k / 2), math.lgamma(d / 2))
    return math.exp(half[0] - half[1] + half[2] - math.lgamma((d + 1) / 2))


def principal_cosines(
    A: Float[np.ndarray, "d j"], B: Float[np.ndarray, "d k"]
) -> Float[np.ndarray, "m"]:
    """Cosines of the principal angles between two subspaces, descending; orthonormal bases."""
    return np.clip(np.linalg.svd(A.T @ B, compute_uv=False), 0.0, 1.0)


def overlap(A: Float[np.ndarray, "d j"], B: Float[np.ndarray, "d k"]) -> float:
    """Root mean square of the principal cosines, in [0, 1]; ``|cos|`` for two vectors.

    1 when the smaller subspace lies in the larger one.
    """
    return float(np.sqrt(np.mean(np.square(principal_cosines(A, B)))))
