"""Means over prompts of the collapse measures of `eigenlens.measure.collapse`, batch by batch."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from eigenlens.measure.collapse import TOKEN_METRICS
from eigenlens.tracing.depths import CollapsePart, Masks, read_depths


class CollapseMeans:
    """Mean over prompts of every token measure, and anisotropy; a few numbers and O(d) are kept.

    A measure that a prompt does not define (one token has no pairwise cosine) is left out of that
    measure's mean.
    """

    def __init__(self) -> None:
        self.n_prompts = 0
        self._sums = np.zeros(len(TOKEN_METRICS))
        self._counts = np.zeros(len(TOKEN_METRICS), dtype=np.int64)
        self._total: np.ndarray | None = None
        self._within = 0.0
        self._tokens = 0
        self._pairs_within = 0

    def add(self, X: Float[np.ndarray, "t d"], owners: Int[np.ndarray, "t"]) -> None:
        """Add the tokens of whole prompts, which stand one after the other.

        Raises
        ------
        NumericsError
            A token holds a NaN or an infinity.
        """
        if not owners.size:
            return
        starts = np.concatenate([[0], np.flatnonzero(np.diff(owners)) + 1])
        lengths = np.diff(np.append(starts, owners.size))
        real = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros((*real.shape, X.shape[1]), dtype=X.dtype)
        padded[real] = X
        for depth in read_depths([padded], [np.zeros((X.shape[1], 0))], Masks(real, real)):
            self.add_part(depth.part)

    def add_part(self, part: CollapsePart) -> None:
        """Add what was read of one state of a batch."""
        self._sums += part.sums
        self._counts += part.counts
        self._total = part.total if self._total is None else self._total + part.total
        self._within += part.within
        self._tokens += part.tokens
        self._pairs_within += part.pairs_within
        self.n_prompts += part.n_prompts

    def means(self) -> dict[str, float | None]:
        """Mean of every measure, and anisotropy; None where no prompt defines it."""
        out: dict[str, float | None] = {
            name: float(total) / int(n) if n else None
            for name, total, n in zip(TOKEN_METRICS, self._sums, self._counts, strict=True)
        }
        pairs = self._tokens**2 - self._pairs_within
        total = self._total
        out["anisotropy"] = None
        if pairs and total is not None:
            out["anisotropy"] = (float(total @ total) - self._within) / pairs
        return out
