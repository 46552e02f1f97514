"""How far apart two maps are: ``|A - B|_F`` and the rank of the difference, from the factors.

With ``A = L_A R_A`` and ``B = L_B R_B`` of equal inner size,

    A - B = (L_A - L_B) R_A + L_B (R_A - R_B) = [L_A - L_B, L_B] [R_A; R_A - R_B],

where what two checkpoints share cancels before any product is taken, so that a small change keeps
its digits. Otherwise ``A - B = [L_A, -L_B] [R_A; R_B]``. The singular values are those of the
product of the two triangular factors, O(d r^2); no (d, d) matrix is formed while 2 r < d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from eigenlens.errors import ShapeError
from eigenlens.spectra.maps import LinearMap, LowRank

Factors = tuple[Float[np.ndarray, "d r"], Float[np.ndarray, "r e"]]
"""``L`` and ``R`` of a map ``L R``."""

_ROUNDING = 8.0  # units of eps by which a product of the factors may be off


@dataclass(frozen=True)
class Difference:
    """``A - B`` in numbers.

    Attributes
    ----------
    norm, norm_a, norm_b
        ``|A - B|_F``, ``|A|_F`` and ``|B|_F``.
    largest
        ``|A - B|_2``, the largest singular value of the difference.
    rounding
        Up to here `norm` is rounding: ``8 eps |L|_F |R|_F`` of the stacked factors.
    rank
        Number of singular values of the difference beyond `rounding`. What rounding of the weights
        left when they were stored counts: a rank-one edit saved in float32 may have full rank.
    effective_rank
        ``exp(-sum p log p)``, ``p = sigma / sum sigma`` over these (Roy and Vetterli, 2007);
        0 where there is none.
    identical
        The factors agree bit by bit.
    cosine
        ``<A, B> / (|A|_F |B|_F)``: 1 for multiples, near 0 for unrelated maps; None for zero. From
        the inner product: the three norms lose it where one map is much larger.
    """

    norm: float
    norm_a: float
    norm_b: float
    largest: float
    rounding: float
    rank: int
    effective_rank: float
    identical: bool
    cosine: float | None

    @property
    def relative(self) -> float:
        """``|A - B|_F / |A|_F``: 0 for equal maps, infinite where only A is zero."""
        if self.norm == 0:
            return 0.0
        return self.norm / self.norm_a if self.norm_a else math.inf

    @property
    def is_real(self) -> bool:
        """Whether the difference is beyond rounding."""
        return self.norm > self.rounding


def difference(a: LinearMap, b: LinearMap) -> Difference:
    """Compare two maps of one shape.

    Raises
    ------
    ShapeError
        They do not act between the same spaces.

    Examples
    --------
    >>> import numpy as np
    >>> u, q = np.array([[3.0], [4.0]]), np.array([[0.0, 2.0]])
    >>> a = LowRank(np.eye(2), np.eye(2))
    >>> b = LowRank(np.eye(2) + u @ q, np.eye(2))
    >>> found = difference(a, b)
    >>> found.norm, found.rank, found.effective_rank
    (10.0, 1, 1.0)
    """
    if isinstance(a, LowRank) and isinstance(b, LowRank):
        return difference_of_factors((a.left, a.right), (b.left, b.right))
    x, y = a.dense(), b.dense()
    _same_shape(x.shape, y.shape)
    sizes = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    inner = float(np.sum((x / sizes[0]) * (y / sizes[1]))) if all(sizes) else None
    bar = _ROUNDING * float(np.finfo(x.dtype).eps) * max(sizes)
    sigma = np.linalg.svd(x - y, compute_uv=False)
    return _numbers(sigma, sizes, bar, bool(np.array_equal(x, y)), inner)


def difference_of_factors(a: Factors, b: Factors) -> Difference:
    """Compare ``L_A R_A`` with ``L_B R_B``, which need not be square; O(d r^2).

    Raises
    ------
    ShapeError
        They do not act between the same spaces.
    """
    _same_shape(*((x[0].shape[0], x[1].shape[1]) for x in (a, b)))
    # Powers of two, so that no square of a norm leaves the range: exact, and taken back at the end.
    # What is of one map alone is taken at its own size: beside a much larger one it would vanish.
    (one, shift), (two, other) = _sized(a), _sized(b)
    own = _frobenius(one), _frobenius(two)
    sizes = math.ldexp(own[0], shift), math.ldexp(own[1], other)
    cosine = _inner(one, two) / own[0] / own[1] if all(own) else None
    left, right = _top(a[0], b[0]), _top(a[1], b[1])
    a, b = ((np.ldexp(x[0], -left), np.ldexp(x[1], -right)) for x in (a, b))
    identical = np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
    if identical:
        sigma, bar = np.zeros(1), 0.0
    else:
        if a[0].shape == b[0].shape:
            outer = np.concatenate([a[0] - b[0], b[0]], axis=1)
            inner = np.concatenate([a[1], a[1] - b[1]], axis=0)
        else:
            outer = np.concatenate([a[0], -b[0]], axis=1)
            inner = np.concatenate([a[1], b[1]], axis=0)
        eps = float(np.finfo(outer.dtype).eps)
        bar = _ROUNDING * eps * float(np.linalg.norm(outer)) * float(np.linalg.norm(inner))
        sigma = _singular_values(outer, inner)
    scale = left + right
    return _numbers(
        np.ldexp(sigma.astype(np.float64), scale),
        sizes,
        math.ldexp(bar, scale),
        bool(identical),
        cosine,
    )


def _singular_values(
    outer: Float[np.ndarray, "d s"], inner: Float[np.ndarray, "s e"]
) -> Float[np.ndarray, "m"]:
    """Of ``outer @ inner``, through triangular factors where those are smaller than the product."""
    if outer.shape[1] < outer.shape[0]:
        outer = np.asarray(np.linalg.qr(outer, mode="r"))
    if inner.shape[0] < inner.shape[1]:
        inner = np.asarray(np.linalg.qr(inner.T, mode="r")).T
    return np.asarray(np.linalg.svd(outer @ inner, compute_uv=False))


def _sized(x: Factors) -> tuple[Factors, int]:
    """The factors with entries up to about 1, and the power of two that this took out."""
    left, right = _top(x[0], x[0]), _top(x[1], x[1])
    return (np.ldexp(x[0], -left), np.ldexp(x[1], -right)), left + right


def _inner(a: Factors, b: Factors) -> float:
    """``<A, B>`` of two maps, O(d r^2)."""
    return float(np.sum((a[0].T @ b[0]) * (a[1] @ b[1].T)))


def _frobenius(a: Factors) -> float:
    """``|L R|_F``; through a triangular factor, so that it is exact to rounding."""
    left, right = a
    if left.shape[1] < left.shape[0]:
        left = np.asarray(np.linalg.qr(left, mode="r"))
    return float(np.linalg.norm(left @ right))


def _top(x: Float[np.ndarray, "n m"], y: Float[np.ndarray, "n l"]) -> int:
    """The power of two above the largest entry of both."""
    size = max(float(np.abs(x).max(initial=0.0)), float(np.abs(y).max(initial=0.0)))
    return math.frexp(size)[1]


def _numbers(
    sigma: Float[np.ndarray, "m"],
    sizes: tuple[float, float],
    bar: float,
    identical: bool,
    cosine: float | None,
) -> Difference:
    top = float(sigma.max(initial=0.0))
    kept = sigma[sigma > bar] / top if top > bar else sigma[:0]
    p = kept / kept.sum() if kept.size else kept
    return Difference(
        norm=top * float(np.linalg.norm(sigma / top)) if top > 0 else 0.0,
        norm_a=sizes[0],
        norm_b=sizes[1],
        largest=top,
        rounding=bar,
        rank=int(kept.size),
        effective_rank=math.exp(-float(p @ np.log(p))) if kept.size else 0.0,
        identical=identical,
        cosine=None if cosine is None else min(max(cosine, -1.0), 1.0),
    )


def _same_shape(a: tuple[int, int], b: tuple[int, int]) -> None:
    if a != b:
        raise ShapeError(f"F is {a} in one and {b} in the other; compare layers of equal widths")
