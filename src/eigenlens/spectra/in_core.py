"""Certification of a full spectrum in the core's coordinates: no vector of R^d is formed.

With ``A = L R``, core ``C = R L`` and Gram matrices ``G = L^T L``, ``H = R R^T``, a core vector x
stands for ``v = L x`` and y for ``w = R^T y``:

    |v|^2 = x^H G x,    A v - lambda v = L s  with  s = C x - lambda x,    w^H v = y^H C x,

and likewise on the left. So everything that certifies a pair costs O(r^2) instead of O(d r).

What this leaves out is the rounding of C itself: where ``R (L x)`` is ``(C + E) x``, the residual
is ``L (s + E x)``. ``|E|_2`` is measured with random probes, which see a wrong core as well, and
goes into every bound. What comes out are bounds: residuals are no smaller, overlaps no larger than
those of the lifted vectors, up to the rounding of either evaluation. Vectors whose length is lost
in the rounding of a Gram matrix (the kernel's, or of factors that are all but singular) are lifted
after all, and so are pairs whose bound misses the tolerance.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Complex, Float

from eigenlens.spectra.certify import (
    TOLERANCES,
    Eigenpairs,
    Measures,
    RawPairs,
    assembled,
    kernel_only,
    measured,
    not_annihilated,
    one_of_each_pair,
)
from eigenlens.spectra.lifted import Lifted, fix_phase
from eigenlens.spectra.maps import LowRank, times
from eigenlens.spectra.norms import top_eigenvalue
from eigenlens.spectra.orders import Order, leading_first

FROM = 1 << 26
"""Multiplications, d r^2, from which on a full spectrum is certified this way."""

_PROBES = 8
_SAFETY = 3.0  # times what the probes see of |E|_2
_GRAM = 32.0  # eps |G|_2 |x|^2 that x^H G x may be wrong by: random signs, r up to some thousand
_TRUSTED = 100.0  # times that error, from which on a squared length counts
_MOST = 0.25  # of all pairs that may have to be lifted; beyond, all are


def certify_in_core(
    a: LowRank,
    core: Float[np.ndarray, "r r"],
    norm: float,
    raw: RawPairs,
    order: Order,
    name: str,
    rounding: float = 0.0,
) -> Eigenpairs | None:
    """Sort and measure the pairs of the core, O(r^3) and a few passes over the factors.

    Parameters
    ----------
    a, core, norm
        The map, ``R L`` as it was solved, and ``|A|_2``.
    raw
        Pairs of the core.
    order, name, rounding
        As for `eigenlens.spectra.certify.certify`.

    Returns
    -------
    The pairs with `Lifted` vectors; None where too many of them have to be lifted to be measured.
    """
    index = leading_first(raw.values, order)
    values, right, left = raw.values[index], raw.right[:, index], raw.left[:, index]
    found, sure = _bounds(a, core, norm, values, right, left)
    worst = np.maximum(found.residuals, found.left_residuals)
    rest = np.flatnonzero(~sure | ~(worst <= TOLERANCES[a.dtype.name]))
    if rest.size > _MOST * values.size:
        return None
    keep = np.ones(values.size, dtype=bool)
    if rest.size:
        v, w = times(a.left, right[:, rest]), times(a.right.T, left[:, rest])
        real = not_annihilated(a, v, w)
        if not kernel_only(values[rest[~real]], a, norm, rounding):
            return None
        exact = measured(a, norm, values[rest], fix_phase(v), fix_phase(w))
        for bound, measure in zip(vars(found).values(), vars(exact).values(), strict=True):
            bound[rest] = measure
        keep[rest[~real]] = False
    found = found.at(keep)
    vectors = Lifted(a.left, right[:, keep]), Lifted(a.right.T, left[:, keep])
    return assembled(found, values[keep], *vectors, a, norm, rounding, raw.complete, name)


def _bounds(
    a: LowRank,
    core: Float[np.ndarray, "r r"],
    norm: float,
    values: Complex[np.ndarray, "k"],
    right: Complex[np.ndarray, "r k"],
    left: Complex[np.ndarray, "r k"],
) -> tuple[Measures, Bool[np.ndarray, "k"]]:
    """Bounds of every pair's measures, and which of them may be relied on."""
    half, back = one_of_each_pair(values, right, left)
    values, right, left = values[half], right[:, half], left[:, half]
    wrong = core_error(a, core)
    outer, inner = a.grams
    eps = float(np.finfo(a.dtype).eps)
    x, y = _Side(right, outer, eps), _Side(left, inner, eps)
    cx, cy = _times(core, right), _times(core.T, left)
    residuals = x.residual(cx - right * values, wrong) / norm
    left_residuals = y.residual(cy - left * values.conj(), wrong) / norm
    with np.errstate(divide="ignore", invalid="ignore"):
        overlaps = np.abs(_dots(left, cx))
        slack = (wrong + 8 * eps * np.linalg.norm(cx, axis=0) / x.small) * x.small * y.small
        overlaps = np.maximum(overlaps - slack, 0.0) / (x.longest * y.longest)
    sure = x.sure & y.sure
    found = Measures(*(x.astype(np.float64) for x in (residuals, left_residuals, overlaps)))
    return found.at(back), sure[back]


class _Side:
    """One side's vectors in the inner product of its Gram matrix.

    Parameters
    ----------
    vectors
        Of the core, as columns.
    gram
        ``L^T L`` on the right side, ``R R^T`` on the left one.
    eps
        Of the compute dtype.
    """

    def __init__(
        self, vectors: Complex[np.ndarray, "r k"], gram: Float[np.ndarray, "r r"], eps: float
    ) -> None:
        self._gram = gram
        self._top = 1.05 * top_eigenvalue(gram)
        self._error = _GRAM * eps * self._top
        self.small = np.linalg.norm(vectors, axis=0).astype(np.float64)
        squares = _dots(vectors, _times(gram, vectors)).real
        self.sure = squares >= _TRUSTED * self._error * self.small**2
        self.shortest = np.sqrt(np.maximum(squares - self._error * self.small**2, 0.0))
        self.longest = np.sqrt(np.maximum(squares, 0.0) + self._error * self.small**2)

    def residual(self, s: Complex[np.ndarray, "r k"], wrong: float) -> Float[np.ndarray, "k"]:
        """``|L (s + E x)| / |L x|`` at most, where ``|E|_2 <= wrong``."""
        size = np.linalg.norm(s, axis=0).astype(np.float64)
        squares = np.maximum(_dots(s, _times(self._gram, s)).real, 0.0) + self._error * size**2
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = (np.sqrt(squares) + np.sqrt(self._top) * wrong * self.small) / self.shortest
        return np.asarray(np.nan_to_num(bound, nan=np.inf, posinf=np.inf))


def core_error(a: LowRank, core: Float[np.ndarray, "r r"], seed: int = 0) -> float:
    """``|R L - core|_2``, measured: the rounding of the core, or whatever else is wrong with it.

    One step of a block power method with random vectors: close for an error that is spread out as
    rounding is, and closer for one that is not.
    """
    rng = np.random.default_rng(seed)
    probes = np.asarray(rng.standard_normal((core.shape[0], _PROBES)), dtype=core.dtype)
    q, _ = np.linalg.qr(probes)
    seen = a.right @ (a.left @ q) - core @ q
    sizes = np.linalg.norm(seen, axis=0).astype(np.float64)
    if not sizes.any():
        return 0.0
    q, _ = np.linalg.qr(seen / sizes.max())
    back = a.left.T @ (a.right.T @ q) - core.T @ q
    return _SAFETY * float(max(sizes.max(), np.linalg.norm(back.astype(np.float64), 2)))


def _times(
    matrix: Float[np.ndarray, "r r"], vectors: Complex[np.ndarray, "r k"]
) -> Complex[np.ndarray, "r k"]:
    """``matrix @ vectors``; a real eigenvector costs one real column, a complex one two."""
    turning = np.flatnonzero(vectors.imag.any(axis=0))
    both = np.concatenate([vectors.real, vectors.imag[:, turning]], axis=1)
    product = matrix @ both
    found = np.zeros(vectors.shape, dtype=vectors.dtype)
    found.real = product[:, : vectors.shape[1]]
    found.imag[:, turning] = product[:, vectors.shape[1] :]
    return found


def _dots(x: Complex[np.ndarray, "r k"], y: Complex[np.ndarray, "r k"]) -> Complex[np.ndarray, "k"]:
    """``x^H y`` of each column, in complex128."""
    return np.asarray(np.einsum("rk,rk->k", x.conj(), y, dtype=np.complex128))
