"""Which prompts share a batch: like lengths together, so that little of it is pads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PER_CALL = 48
"""What one more call of the model costs, in tokens: measured on a CPU with models of 64 to 384
dimensions, where anything from 32 to 64 does as well."""
DEAR = 1 << 40
"""A call that costs so much that there are as few as possible."""


def by_length(lengths: Sequence[int]) -> list[int]:
    """Positions, longest first; equal lengths keep their order."""
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def packed(lengths: Sequence[int], most: int, per_call: int = PER_CALL) -> list[list[int]]:
    """Groups of at most `most` prompts with the least padded tokens and calls, longest first.

    Among prompts sorted by length, neighbours share a batch in some best choice; which ones is
    found for the tails of the list, from the last prompt on, in O(n * most).

    Parameters
    ----------
    lengths
        Tokens of each prompt.
    most
        Prompts that a batch may have.
    per_call
        Tokens that one more batch may save before it is worth it.

    Returns
    -------
    Positions in `lengths`. Equal lengths keep their order.
    """
    order = by_length(lengths)
    n = len(order)
    least, ends = np.zeros(n + 1, dtype=np.int64), [n] * (n + 1)
    sizes = np.arange(1, min(most, n) + 1)
    for start in range(n - 1, -1, -1):
        size = min(most, n - start)
        costs = sizes[:size] * lengths[order[start]] + least[start + 1 : start + 1 + size]
        # of several best ones the largest first group: the fewest batches
        best = size - 1 - int(np.argmin(costs[::-1]))
        least[start], ends[start] = per_call + costs[best], start + best + 1
    groups, start = [], 0
    while start < n:
        groups.append(order[start : ends[start]])
        start = ends[start]
    return groups
