"""What alignment to compare with: random directions and planes, other bases, rotated weights.

Each null is a set of subspaces, measured with the same tokens by `Targets`. The replay of rotated
or re-initialised weights needs a live model; their pure parts are here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError
from eigenlens.measure.alignment import Targets
from eigenlens.measure.sums import AlignmentSums
from eigenlens.spectra.maps import LinearMap

MIN_DIRECTIONS = 200
QUANTILES = (0.025, 0.5, 0.975)

_LIMIT = 1 << 28  # numbers in all random bases together, 2 GB in float64
_SVD_LIMIT = 256  # below this a dense SVD is cheaper than starting a Lanczos process


def _positive_qr(G: Float[np.ndarray, "*m d k"]) -> Float[np.ndarray, "*m d k"]:
    """Q of a QR factorisation whose R has a positive diagonal.

    LAPACK leaves the signs of that diagonal to its Householder vectors; without the fix Q is not
    Haar distributed (Mezzadri 2007, Notices of the AMS 54).
    """
    Q, R = np.linalg.qr(G)
    signs = np.sign(np.diagonal(R, axis1=-2, axis2=-1))
    return np.asarray(Q * np.where(signs == 0, 1.0, signs)[..., None, :])


def haar_orthogonal(d: int, seed: int = 0) -> Float[np.ndarray, "d d"]:
    """A random orthogonal matrix, uniform over O(d); O(d^3)."""
    return _positive_qr(np.random.default_rng(seed).standard_normal((d, d)))


def random_bases(
    d: int, k: int = 1, m: int = MIN_DIRECTIONS, seed: int = 0
) -> Float[np.ndarray, "m d k"]:
    """Orthonormal bases of m isotropic random k-planes of R^d (directions for k = 1).

    Raises
    ------
    OptionError
        Fewer than 200 planes (quantiles at 2.5 % need them), k not in 1..d, or more numbers than
        2 GB hold (the kernel of a wide layer is such a subspace).
    """
    if m < MIN_DIRECTIONS:
        raise OptionError(f"{m} random directions: quantiles need at least {MIN_DIRECTIONS}")
    if not 1 <= k <= d:
        raise OptionError(f"random planes of dimension {k} in R^{d}: allowed are 1 to {d}")
    if m * d * k > _LIMIT:
        raise OptionError(
            f"{m} random subspaces of dimension {k} in R^{d} need {8 * m * d * k / 2**30:.1f} GB: "
            "at most 2 are allowed; take the smaller of a subspace and its complement, or fewer"
        )
    G = np.random.default_rng(seed).standard_normal((m, d, k))
    if k == 1:
        return np.asarray(G / np.linalg.norm(G, axis=1, keepdims=True))
    return _positive_qr(G)


@dataclass(frozen=True)
class Spread:
    """Mean and 2.5, 50 and 97.5 % quantiles of a measure over the subspaces of a null."""

    mean: float
    low: float
    median: float
    high: float


def spread(values: Float[np.ndarray, "m"]) -> Spread:
    """`Spread` of a null's values; NaN throughout when there were no tokens."""
    low, median, high = (float(q) for q in np.quantile(values, QUANTILES))
    return Spread(float(np.mean(values)), low, median, high)


class Null:
    """A set of subspaces whose gamma, gain and rho are gathered with the same tokens.

    For ``random_direction`` the bases come from `random_bases`; for ``second_pair``,
    ``other_layer`` and ``top_singular`` they are those of the other pair, the other layers, the
    left singular vector. Memory is a few numbers a subspace.

    Parameters
    ----------
    targets
        The subspaces. float32 products are ample for random directions.
    tie
        As in `AlignmentSums`.
    """

    def __init__(self, targets: Targets, tie: float | None = None) -> None:
        self.targets = targets
        self.sums = AlignmentSums(len(targets), tie)

    def add(self, before: Float[np.ndarray, "n d"], after: Float[np.ndarray, "n d"]) -> None:
        """Add the states of n tokens before and after the step, two matrix products.

        Raises
        ------
        NumericsError
            A token holds a NaN or an infinity.
        """
        self.sums.add(
            self.targets.alignment(before),
            self.targets.alignment(after),
            dtype="float32" if before.dtype != np.float64 else "float64",
        )

    def gamma(self) -> Float[np.ndarray, "m"]:
        """Mean alignment after the step, one a subspace."""
        return self.sums.gamma()

    def gain(self) -> Float[np.ndarray, "m"]:
        """Mean gain, one a subspace."""
        return self.sums.gain()

    def rho(self) -> Float[np.ndarray, "m"]:
        """Fraction of tokens that moved closer, one a subspace."""
        return self.sums.rho()

    def spreads(self) -> dict[str, Spread]:
        """`Spread` of gamma, gain and rho over the subspaces."""
        return {
            "gamma": spread(self.gamma()),
            "gain": spread(self.gain()),
            "rho": spread(self.rho()),
        }


def top_left_singular(a: LinearMap, seed: int = 0) -> Float[np.ndarray, "d 1"]:
    """Unit left singular vector of the largest singular value: where F writes most at once.

    An SVD for small d, else a Lanczos process on ``A A^T`` with a seeded start and the SVD as its
    fallback. Its largest entry is positive. Null ``top_singular``.
    """
    v = _lanczos_left(a, seed) if a.d > _SVD_LIMIT else None
    if v is None:
        v = np.linalg.svd(a.dense())[0][:, 0]
    v = np.asarray(v, dtype=np.float64)
    v = v / np.linalg.norm(v)
    return np.asarray(v * (np.sign(v[np.argmax(np.abs(v))]) or 1.0))[:, None]


def _lanczos_left(a: LinearMap, seed: int) -> np.ndarray | None:
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    gram = LinearOperator(
        (a.d, a.d), matvec=lambda x: a.matvec(a.rmatvec(np.ravel(x))), dtype=a.dtype
    )
    start = np.random.default_rng(seed).standard_normal(a.d).astype(a.dtype)
    try:
        _, vectors = eigsh(gram, k=1, v0=start, tol=100 * float(np.finfo(a.dtype).eps))
    except ArpackError:
        return None
    return np.asarray(vectors[:, 0])
