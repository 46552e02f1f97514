"""Collapse measures of many prompts at once: those of `eigenlens.measure.collapse`, batch by batch.

Prompts of one batch are one stack of matrices, filled up with zero rows: a call a prompt would cost
more than the model's own forward pass.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.measure.alignment import token_norms
from eigenlens.measure.collapse import TOKEN_METRICS, collapse

_SMALL = 1e-300  # keeps 0/0 quiet where the result is set to NaN anyway


class CollapseMeans:
    """Mean over prompts of every token measure, and anisotropy; a few numbers and O(d) are kept.

    A measure that a prompt does not define (one token has no pairwise cosine) is left out of that
    measure's mean.
    """

    def __init__(self) -> None:
        self.n_prompts = 0
        self._sums = dict.fromkeys(TOKEN_METRICS, 0.0)
        self._counts = dict.fromkeys(TOKEN_METRICS, 0)
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
        norms = np.zeros(real.shape)
        norms[real] = token_norms(X)
        wide = np.zeros((*real.shape, X.shape[1]))
        wide[real] = X
        inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
        sums = (inverse[:, None] @ wide)[:, 0]
        used = np.count_nonzero(norms, axis=1)
        self._total = sums.sum(axis=0) + (0.0 if self._total is None else self._total)
        squares = np.einsum("pd,pd->p", sums, sums)
        self._within += float(squares.sum())
        self._tokens += int(used.sum())
        self._pairs_within += int((used**2).sum())
        self.n_prompts += lengths.size
        if X.dtype == np.float64 or lengths.max() > X.shape[1]:
            # an SVD, or the other Gram matrix: prompt by prompt
            each = [collapse(part) for part in np.split(X, starts[1:])]
            found = {name: np.array([e[name] for e in each]) for name in TOKEN_METRICS}
        else:
            found = measures(wide, real, norms, squares)
        for name, values in found.items():
            known = np.isfinite(values)
            self._sums[name] += float(values[known].sum())
            self._counts[name] += int(np.count_nonzero(known))

    def means(self) -> dict[str, float | None]:
        """Mean of every measure, and anisotropy; None where no prompt defines it."""
        out: dict[str, float | None] = {
            name: self._sums[name] / n if n else None for name, n in self._counts.items()
        }
        pairs = self._tokens**2 - self._pairs_within
        total = self._total
        out["anisotropy"] = None
        if pairs and total is not None:
            out["anisotropy"] = (float(total @ total) - self._within) / pairs
        return out


def measures(
    wide: Float[np.ndarray, "p n d"],
    real: Bool[np.ndarray, "p n"],
    norms: Float[np.ndarray, "p n"],
    unit_squares: Float[np.ndarray, "p"],
) -> dict[str, Float[np.ndarray, "p"]]:
    """The token measures of p prompts, from the Gram matrices of their tokens; O(p n^2 d).

    Parameters
    ----------
    wide
        The states in float64, rows of zeros behind each prompt's own.
    real
        True for a prompt's own rows.
    norms
        Of the tokens.
    unit_squares
        Squared length of each prompt's sum of unit tokens.
    """
    n = real.sum(axis=1)
    mean = wide.sum(axis=1) / n[:, None]
    centred = (wide - mean[:, None]) * real[:, :, None]
    deviation = np.sqrt(np.einsum("pnd,pnd->p", centred, centred))
    length = np.sqrt(np.einsum("pn,pn->p", norms, norms))
    squares = np.maximum(np.linalg.eigvalsh(wide @ wide.transpose(0, 2, 1)), 0.0)[:, ::-1]
    squares = np.where(real, squares, 0.0)  # a prompt of n tokens has n of them, the largest
    sigma = np.sqrt(squares)
    share = sigma / np.maximum(sigma.sum(axis=1, keepdims=True), _SMALL)
    entropy = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=1)
    defined = (n > 1) & ((norms > 0) | ~real).all(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.minimum((unit_squares - n) / (n * (n - 1)), 1.0)
        total = squares.sum(axis=1)
        return {
            "cosine": np.where(defined, cosine, np.nan),
            "rank_residual": _norm_1_inf(centred) / _norm_1_inf(wide),
            "frobenius_residual": deviation / length,
            "high_low_ratio": deviation / (np.sqrt(n) * np.linalg.norm(mean, axis=1)),
            "effective_rank": np.where(total > 0, np.exp(entropy), np.nan),
            "stable_rank": total / squares[:, 0],
            "participation_ratio": total**2 / np.sum(squares**2, axis=1),
        }


def _norm_1_inf(X: Float[np.ndarray, "p n d"]) -> Float[np.ndarray, "p"]:
    """``sqrt(|X|_1 |X|_inf)`` of every matrix."""
    absolute = np.abs(X)
    return np.asarray(np.sqrt(absolute.sum(axis=1).max(axis=1) * absolute.sum(axis=2).max(axis=1)))
