"""Which prompts share a batch: like lengths together, so that little of it is pads."""

from __future__ import annotations

from collections.abc import Sequence

PER_CALL = 48
"""What one more call of the model costs, in tokens: measured on a CPU with models of 64 to 384
dimensions, where anything from 32 to 64 does as well."""
DEAR = 1 << 48
"""A call that costs so much that there are as few as possible."""


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
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    n = len(order)
    least, ends = [0] * (n + 1), [n] * (n + 1)
    for start in range(n - 1, -1, -1):
        longest = lengths[order[start]]
        # the fewest batches among the best: the largest first one
        cost, minus_end = min(
            (per_call + (end - start) * longest + least[end], -end)
            for end in range(start + 1, min(n, start + most) + 1)
        )
        least[start], ends[start] = cost, -minus_end
    groups, start = [], 0
    while start < n:
        groups.append(order[start : ends[start]])
        start = ends[start]
    return groups
