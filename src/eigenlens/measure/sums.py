"""Sums over tokens, prompt by prompt, of what gamma, gain and rho are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.errors import OptionError, ShapeError
from eigenlens.measure.alignment import TIE_ULPS, wins


@dataclass(frozen=True)
class PromptSums:
    """Sums over the tokens of some prompts; see `sum_prompts`."""

    sums: Float[np.ndarray, "b 4"]
    counts: Float[np.ndarray, "b"]
    undefined: int


def sum_prompts(
    before: Float[np.ndarray, "g b n"],
    after: Float[np.ndarray, "g b n"],
    signed: Float[np.ndarray, "g b n"],
    counted: Bool[np.ndarray, "b n"],
    tie: float,
) -> list[PromptSums]:
    """What `AlignmentSums` keep, of g steps at once on the same prompts side by side.

    Parameters
    ----------
    before, after
        Alignments; NaN for a zero token.
    signed
        Signed gains, or zeros.
    counted
        Tokens that count.
    tie
        Half-width of a tie.
    """
    step = after - before
    known = np.isfinite(step) & counted
    closer = np.where(np.abs(step) <= tie, 0.5, step > 0)
    parts = (after, step, closer, signed)
    sums = np.stack([np.where(known, x, 0.0).sum(axis=2) for x in parts], axis=2)
    counts = np.count_nonzero(known, axis=2)
    total = int(np.count_nonzero(counted))
    return [
        PromptSums(s, c.astype(np.float64), total - int(c.sum()))
        for s, c in zip(sums, counts, strict=True)
    ]


class AlignmentSums:
    """Sums and counts per prompt of what gamma, gain and rho are made of; tokens are not kept.

    Memory is one row of a few numbers a prompt and target: all that a bootstrap over prompts needs.
    A prompt may arrive in pieces, prompts in any order.

    Parameters
    ----------
    n_targets
        Number m of subspaces measured side by side (1, or that of the null directions).
    tie
        Half-width of a tie; None takes `TIE_ULPS` eps of the states' dtype as given to `add`.

    Attributes
    ----------
    undefined
        Tokens left out because a state was exactly zero.
    """

    def __init__(self, n_targets: int = 1, tie: float | None = None) -> None:
        self.n_targets = n_targets
        self.tie = tie
        self.undefined = 0
        self._size = 0
        self._counts = np.zeros(0)
        self._sums = np.zeros((0, 4, n_targets))
        self._signed = 0

    def add(
        self,
        before: Float[np.ndarray, "*m n"],
        after: Float[np.ndarray, "*m n"],
        prompts: Int[np.ndarray, "n"] | int | None = None,
        *,
        signed: tuple[Float[np.ndarray, "*m n"], Float[np.ndarray, "*m n"]] | None = None,
        dtype: str = "float32",
    ) -> None:
        """Add tokens.

        Parameters
        ----------
        before, after
            Alignments (n,), or (m, n) for m targets.
        prompts
            Which prompt each token belongs to, counted from 0, or one number for all; None pools
            everything in one row, for nulls of which no interval is asked.
        signed
            Signed alignments before and after, for a real leading vector.
        dtype
            Name of the states' dtype, which says how large rounding is.

        Raises
        ------
        ShapeError
            Shapes do not fit each other or the number of targets.
        OptionError
            A prompt number is negative, or signed alignments are given on some calls only.
        """
        parts = [before, after, *(signed or ())]
        rows = [np.atleast_2d(np.asarray(p, dtype=np.float64)) for p in parts]
        n = rows[0].shape[1]
        if any(r.shape != (self.n_targets, n) for r in rows):
            raise ShapeError(
                f"alignments have the shapes {[p.shape for p in parts]}; they must all be "
                f"({self.n_targets}, n)"
            )
        if self._size and bool(self._signed) != (signed is not None):
            raise OptionError("signed alignments must be given on every call or on none")
        owner = np.broadcast_to(np.asarray(0 if prompts is None else prompts), (n,))
        if n and owner.min() < 0:
            raise OptionError(f"prompt number {int(owner.min())}: prompts are counted from 0")
        known = np.isfinite(rows[0]).all(axis=0) & np.isfinite(rows[1]).all(axis=0)
        self.undefined += int(n - np.count_nonzero(known))
        if signed is not None:
            self._signed += 1
        self._grow(int(owner.max()) + 1 if n else 0)
        a, b, p = rows[0][:, known], rows[1][:, known], owner[known]
        values = np.zeros((p.size, 4, self.n_targets))
        values[:, 0] = b.T
        values[:, 1] = (b - a).T
        values[:, 2] = wins(a, b, self._tie(dtype)).T
        if signed is not None:
            values[:, 3] = (rows[3] - rows[2])[:, known].T
        self._counts[: self._size] += np.bincount(p, minlength=self._size)
        if p.size and (p == p[0]).all():
            self._sums[p[0]] += values.sum(axis=0)
        else:
            np.add.at(self._sums, p, values)

    def add_prompts(self, part: PromptSums, prompts: Int[np.ndarray, "b"], *, signed: bool) -> None:
        """Add whole prompts whose sums are formed already (one target).

        Parameters
        ----------
        part
            See `sum_prompts`.
        prompts
            Their numbers, each once.
        signed
            Whether signed alignments were among them: on every call or on none.
        """
        self._grow(int(prompts.max()) + 1 if prompts.size else 0)
        self._counts[prompts] += part.counts
        self._sums[prompts, :, 0] += part.sums
        self.undefined += part.undefined
        self._signed += signed

    def _tie(self, dtype: str) -> float:
        return TIE_ULPS * float(np.finfo(dtype).eps) if self.tie is None else self.tie

    def _grow(self, size: int) -> None:
        if size > self._counts.size:
            room = max(size, 2 * self._counts.size)
            more = room - self._counts.size
            self._counts = np.concatenate([self._counts, np.zeros(more)])
            self._sums = np.concatenate([self._sums, np.zeros((more, 4, self.n_targets))])
        self._size = max(self._size, size)

    @property
    def counts(self) -> Float[np.ndarray, "p"]:
        """Tokens a prompt."""
        return self._counts[: self._size]

    @property
    def after(self) -> Float[np.ndarray, "p m"]:
        """Sum over a prompt's tokens of the alignment after the step."""
        return self._sums[: self._size, 0]

    @property
    def gains(self) -> Float[np.ndarray, "p m"]:
        """Sum over a prompt's tokens of after - before."""
        return self._sums[: self._size, 1]

    @property
    def wins(self) -> Float[np.ndarray, "p m"]:
        """Number of a prompt's tokens that moved closer, ties counted half."""
        return self._sums[: self._size, 2]

    @property
    def signed_gains(self) -> Float[np.ndarray, "p m"] | None:
        """Sum over a prompt's tokens of the signed gain; None when none was given."""
        return self._sums[: self._size, 3] if self._signed else None

    @property
    def n_tokens(self) -> int:
        """Tokens that count."""
        return int(self.counts.sum())

    @property
    def n_prompts(self) -> int:
        """Prompts with at least one token that counts."""
        return int(np.count_nonzero(self.counts))

    def _mean(self, sums: Float[np.ndarray, "p m"]) -> Float[np.ndarray, "m"]:
        total = self.counts.sum()
        if not total:
            return np.full(self.n_targets, np.nan)
        return np.asarray(sums.sum(axis=0) / total)

    def gamma(self) -> Float[np.ndarray, "m"]:
        """Mean over tokens of the alignment after the step, per target; NaN without tokens."""
        return self._mean(self.after)

    def gain(self) -> Float[np.ndarray, "m"]:
        """Mean over tokens of after - before, per target; NaN without tokens."""
        return self._mean(self.gains)

    def rho(self) -> Float[np.ndarray, "m"]:
        """Fraction of tokens that moved closer, per target; NaN without tokens."""
        return self._mean(self.wins)

    def signed_gain(self) -> Float[np.ndarray, "m"] | None:
        """Mean signed gain per target, or None."""
        signed = self.signed_gains
        return None if signed is None else self._mean(signed)
