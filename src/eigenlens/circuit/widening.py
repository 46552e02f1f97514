"""Stored factors in a compute dtype, a block of rows at a time, with groups of heads added up.

The rows come from an array or straight from a file: then neither the stored form of a large weight
nor the wide form of all its heads ever exists as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import upcast
from eigenlens.blas import in_parts

BLOCK = 1 << 18  # weights that are widened at a time, within a core's cache

Take = Callable[[slice], Float[np.ndarray, "b m"]]
"""Gives the stored form of some rows."""
Look = Callable[[Float[np.ndarray, "..."]], None]
"""Is shown some rows in their wide form, while they are in the cache."""


def _unseen(rows: Float[np.ndarray, "..."]) -> None:
    """A look at nothing."""


def widened(
    take: Take,
    shape: tuple[int, int],
    dtype: Any,
    look: Look = _unseen,
    *,
    in_order: bool = False,
) -> Float[np.ndarray, "n m"]:
    """All rows in `dtype`, those of a large matrix by two threads.

    Parameters
    ----------
    take
        Gives the stored form of some rows.
    shape
        Of the whole.
    dtype
        `float32` or `float64`.
    look
        Is shown every block.
    in_order
        Take the blocks one after the other, from the first to the last.
    """
    wide = np.empty(shape, dtype=dtype)

    def widen(rows: slice) -> None:
        wide[rows] = upcast(take(rows), dtype)
        look(wide[rows])

    _each_block(widen, *shape, in_order)
    return wide


def summed(
    take: Take,
    shape: tuple[int, int],
    n_kv_heads: int,
    head_dim: int,
    dtype: Any,
    look: Look = _unseen,
    *,
    in_order: bool = False,
) -> Float[np.ndarray, "d r"]:
    """`widened`, with the columns of the heads that share a value head added up.

    The sum is taken in `dtype`, after the upcast. `shape` is (d, n_heads * head_dim); head i
    belongs to group ``i // (n_heads // n_kv_heads)``.
    """
    d, columns = shape
    group = columns // (n_kv_heads * head_dim)
    if group == 1:
        return widened(take, shape, dtype, look, in_order=in_order)
    total = np.empty((d, n_kv_heads, head_dim), dtype=dtype)
    ones = np.ones(group, dtype=dtype)  # products add up three times as fast as np.sum

    def fold(rows: slice) -> None:
        split = upcast(take(rows), dtype).reshape(-1, n_kv_heads, group, head_dim)
        with np.errstate(all="ignore"):  # what is not finite shows in the sum
            np.matmul(ones, split, out=total[rows])
        look(total[rows])

    _each_block(fold, d, columns, in_order)
    return total.reshape(d, n_kv_heads * head_dim)


def _each_block(work: Callable[[slice], None], rows: int, columns: int, in_order: bool) -> None:
    step = max(1, BLOCK // max(1, columns))

    def block(start: int) -> None:
        work(slice(start, min(start + step, rows)))

    in_parts(block, range(0, rows, step), 0 if in_order else rows * columns)
