"""Collapse measured on pairs of tokens: Dirichlet energy in a prompt, anisotropy across prompts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError, ShapeError
from eigenlens.measure.alignment import token_norms, unit_sum


def dirichlet_energy(X: Float[np.ndarray, "n d"], A: Float[np.ndarray, "n n"]) -> float:
    """``1/2 sum_ij A_ij |x_i - x_j|^2``, never negative; O(n^2 d).

    Evaluated about the mean token, which changes no difference and keeps digits when tokens are
    nearly equal. Cai and Wang (2020), A the attention weights (mean over heads, or one head).

    Raises
    ------
    ShapeError
        A is not (n, n).
    OptionError
        A has a negative or non-finite entry.
    """
    n = int(X.shape[0])
    if A.shape != (n, n):
        raise ShapeError(f"attention weights have shape {A.shape}; {n} tokens need ({n}, {n})")
    weights = np.asarray(A, dtype=np.float64)
    if not (weights >= 0).all() or not np.isfinite(weights).all():
        raise OptionError("attention weights must be finite and not negative")
    wide = np.asarray(X, dtype=np.float64)
    token_norms(wide)  # refuses NaN and inf
    wide = wide - wide.mean(axis=0)
    squares = np.einsum("nd,nd->n", wide, wide)
    degree = weights.sum(axis=0) + weights.sum(axis=1)
    return max(0.0, 0.5 * float(degree @ squares) - float(np.vdot(wide, weights @ wide)))


class Anisotropy:
    """Mean cosine between tokens of different prompts, in O(d) memory (Ethayarajh 2019).

    All pairs of tokens minus the pairs within a prompt, from sums of unit tokens:
    ``(|sum u|^2 - sum_p |sum_{i in p} u_i|^2) / (N^2 - sum_p n_p^2)``. A zero token is left out.
    """

    def __init__(self) -> None:
        self._total: np.ndarray | None = None
        self._within = 0.0
        self._tokens = 0
        self._pairs_within = 0

    def add(self, X: Float[np.ndarray, "n d"]) -> None:
        """Add all tokens of one prompt.

        Raises
        ------
        NumericsError
            A token holds a NaN or an infinity.
        """
        own, n = unit_sum(X)
        self._total = own if self._total is None else self._total + own
        self._within += float(own @ own)
        self._tokens += n
        self._pairs_within += n * n

    def value(self) -> float:
        """The mean so far, in [-1, 1]; NaN before a second prompt."""
        pairs = self._tokens**2 - self._pairs_within
        if self._total is None or not pairs:
            return float("nan")
        return (float(self._total @ self._total) - self._within) / pairs


def anisotropy(prompts: Iterable[Float[np.ndarray, "_n d"]]) -> float:
    """`Anisotropy` of prompts that are all at hand."""
    gathered = Anisotropy()
    for X in prompts:
        gathered.add(X)
    return gathered.value()
