"""Which tokens a token sees: full, causal, or a causal window."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from eigenlens.errors import OptionError


@dataclass(frozen=True)
class Mask:
    """What token i attends to: everything, tokens up to i, or the last `window` of these.

    Attributes
    ----------
    causal
        Only j <= i.
    window
        Only j > i - window; None for no bound.
    """

    causal: bool = False
    window: int | None = None

    def allowed(self, n: int) -> Bool[np.ndarray, "n n"]:
        """Entry (i, j) is true where token i sees token j."""
        i, j = np.ogrid[:n, :n]
        seen = np.ones((n, n), bool)
        if self.causal:
            seen &= j <= i
        if self.window is not None:
            seen &= j > i - self.window
        return np.asarray(seen)

    def self_weights(self, n: int) -> Float[np.ndarray, "m"]:
        """Eigenvalues mu of a uniform attention matrix under the mask, descending.

        Logits from content alone are equal at consensus, so A is uniform over what is seen: full,
        {1, 0, ..., 0}; causal, {1/i}; a causal window w, {1/min(i, w)} (theory of the local
        stability of consensus).
        """
        if not self.causal:
            return np.asarray(np.eye(1, n)[0])
        seen = np.minimum(np.arange(1, n + 1), self.window or n)
        return np.asarray(np.sort(1.0 / seen)[::-1])

    def __str__(self) -> str:
        if self.window is not None:
            return f"window:{self.window}"
        return "causal" if self.causal else "full"


def parse_mask(text: str, *others: str) -> Mask:
    """``full``, ``causal`` or ``window:W`` (causal, the last W tokens).

    `others` are words that the caller takes besides, for the message alone.

    Raises
    ------
    OptionError
        Another text, or a window below 1.
    """
    if text in ("full", "causal"):
        return Mask(causal=text == "causal")
    match = re.fullmatch(r"window:(\d{1,9})", text)
    if not match or int(match[1]) < 1:
        words = ", ".join((*others, "full", "causal"))
        raise OptionError(f"mask {text!r} is unknown; use {words} or window:W with W >= 1")
    return Mask(causal=True, window=int(match[1]))
