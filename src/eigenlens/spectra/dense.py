"""LAPACK's dense eigensolver, with left vectors only for the pairs that lead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.blas import one_thread
from eigenlens.spectra.certify import TOLERANCES, RawPairs
from eigenlens.spectra.lapack import both_sides
from eigenlens.spectra.maps import times
from eigenlens.spectra.orders import Order, leading_first, whole_pairs

_BY_ROWS = 768
"""Up to this size left vectors come from the inverse of the right ones; beyond, for all pairs,
LAPACK's own blocked back-substitution is the cheaper way."""


@dataclass(frozen=True)
class Dense:
    """LAPACK geev: all eigenvalues, backward stable, O(n^3) with a large constant.

    The rows of the inverse of the right vectors are the left ones. Of these only the leading ones
    are solved for, O(n^3) without a large constant; where the right vectors are so nearly parallel
    that the rows miss a small part of the tolerance, geev is asked for both sides. Without
    balancing (`balanced`) it always is.
    """

    balanced: bool = True
    name: str = "dense"

    def solve(self, core: Float[np.ndarray, "n n"], k: int | None, order: Order) -> RawPairs | None:
        """At least the `k` leading pairs, and some more; all for None."""
        wide = np.result_type(core.dtype, np.complex64)
        n = core.shape[0]
        with one_thread():  # geev's threads cost more than they give, at any size
            if not self.balanced or (k is None and n > _BY_ROWS):
                return _both_sides(core, self.balanced)
            values, right = np.linalg.eig(core)
            values, right = values.astype(wide, copy=False), right.astype(wide, copy=False)
            index = leading_first(values, order)
            # Pairs of the kernel drop out on lifting, so a few more than asked for.
            count = n if k is None else whole_pairs(values[index], k + _SPARE)
            left = _left_rows(core, values, right, index[:count])
            if left is None:
                return _both_sides(core)
        index = index[:count]
        return RawPairs(values[index], right[:, index], left, complete=count == n)


_SPARE = 8


def _both_sides(core: Float[np.ndarray, "n n"], balanced: bool = True) -> RawPairs:
    import scipy.linalg  # noqa: F401 - brings a BLAS of its own, which is limited once it is there

    with one_thread():
        values, left, right = both_sides(core, balance=balanced)
    return RawPairs(values, right, left, complete=True)


def _left_rows(
    core: Float[np.ndarray, "n n"],
    values: Complex[np.ndarray, "n"],
    right: Complex[np.ndarray, "n n"],
    index: np.ndarray,
) -> Complex[np.ndarray, "n m"] | None:
    """Left vectors of the pairs at `index` as rows of the inverse of `right`; None if inaccurate.

    The system is solved in real arithmetic, a pair's columns being ``Re v`` and ``Im v``: with
    rows p and q of the real inverse there, ``w = (p + i q) / 2``.
    """
    n = core.shape[0]
    upper = np.flatnonzero(values.imag > 0)  # geev puts the conjugate right behind
    basis = right.real.copy()
    basis[:, upper + 1] = right.imag[:, upper]
    # The pair of each wanted value: its first column, its second one, and the sign of its part.
    first = np.where(values.imag[index] < 0, index - 1, index)
    second = np.where(values.imag[index] != 0, first + 1, first)
    sign = np.sign(values.imag[index])
    columns, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    wanted = np.zeros((n, columns.size), dtype=core.dtype)
    wanted[columns, np.arange(columns.size)] = 1
    try:
        rows = np.linalg.solve(basis.T, wanted)
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(rows).all():
        return None
    p, q = rows[:, place[: index.size]], rows[:, place[index.size :]]
    left = np.empty(p.shape, dtype=values.dtype)
    left.real, left.imag = p, sign * q
    with np.errstate(all="ignore"):  # nearly singular: what overflows misses below
        left /= np.linalg.norm(left, axis=0)
        missed = np.linalg.norm(times(core.T, left) - left * values[index].conj(), axis=0)
    # |A|_F / sqrt(n) is a floor of |A|_2.
    floor = float(np.linalg.norm(core)) / np.sqrt(n)
    allowed = max(0.01 * TOLERANCES[core.dtype.name], 30 * float(np.finfo(core.dtype).eps))
    if not np.all(missed <= allowed * floor):
        return None
    return np.asarray(left)
