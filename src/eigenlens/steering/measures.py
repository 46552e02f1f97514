"""What one strength of an edit does, in numbers: cosines at three places, and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

PLACES: tuple[str, ...] = ("after_sublayer", "after_block", "after_final_norm")
"""Where directions are judged."""


@dataclass(frozen=True)
class Cosines:
    """Signed cosines of tokens with the direction at one place.

    Attributes
    ----------
    mean_cosine, min_cosine
        Over tokens.
    positive_fraction
        Share of tokens with a positive cosine.
    n_tokens
        How many.
    """

    mean_cosine: float
    min_cosine: float
    positive_fraction: float
    n_tokens: int

    @classmethod
    def of(cls, cosines: Float[np.ndarray, "n"]) -> Cosines | None:
        """Summary of some tokens; None for none."""
        if not len(cosines):
            return None
        positive = float(np.mean(cosines > 0))
        return cls(float(cosines.mean()), float(cosines.min()), positive, len(cosines))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "mean_cosine": self.mean_cosine,
            "min_cosine": self.min_cosine,
            "positive_fraction": self.positive_fraction,
            "n_tokens": self.n_tokens,
        }


@dataclass(frozen=True)
class Measure:
    """One strength on the evaluation text.

    Attributes
    ----------
    strength
        Of the edit, or of the vector added.
    kl
        Mean over tokens of ``KL(unedited || edited)``, in nats; None without a head.
    perplexity
        exp of the mean negative log-probability of the next token; None for models that do not
        predict it.
    target_probability
        Mean over tokens of the probability of the wanted tokens (their sum); None without any.
    target_rank
        Median over tokens of the best rank of a wanted token, from 1.
    tokens
        Per place of `PLACES` the cosines of tokens other than the first of each prompt, and of the
        first ones; None where there is no such place.
    probabilities
        Of the wanted tokens at every token, in the order of `Study.where`.
    """

    strength: float
    kl: float | None
    perplexity: float | None
    target_probability: float | None
    target_rank: float | None
    tokens: Mapping[str, tuple[Cosines | None, Cosines | None] | None]
    probabilities: Float[np.ndarray, "t"] | None = field(default=None, repr=False, compare=False)

    def effect(self) -> dict[str, Any]:
        """Strength and effect on predictions."""
        return {
            "strength": self.strength,
            "kl": self.kl,
            "perplexity": self.perplexity,
            "target_probability": self.target_probability,
            "target_rank": self.target_rank,
        }


@dataclass
class Sums:
    """What a pass over the texts adds up for one `Measure`, batch by batch."""

    kl: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    probability: list[Any] = field(default_factory=list)
    rank: list[Any] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)
    cosines: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in PLACES})

    def measure(self, strength: float) -> Measure:
        """The means."""
        first = np.concatenate(self.first)
        tokens: dict[str, tuple[Cosines | None, Cosines | None] | None] = {}
        for name, parts in self.cosines.items():
            if not parts:
                tokens[name] = None
                continue
            all_ = np.concatenate(parts)
            tokens[name] = Cosines.of(all_[~first]), Cosines.of(all_[first])
        loss = _mean(self.losses)
        return Measure(
            strength=strength,
            kl=_not_negative(_mean(self.kl)),
            perplexity=None if loss is None else float(np.exp(min(loss, 700.0))),
            target_probability=_mean(self.probability),
            target_rank=float(np.median(np.concatenate(self.rank))) if self.rank else None,
            tokens=tokens,
            probabilities=np.concatenate(self.probability) if self.probability else None,
        )


def _mean(parts: Sequence[Any]) -> float | None:
    return float(np.concatenate(parts).mean()) if parts else None


def _not_negative(kl: float | None) -> float | None:
    """A divergence: what is below 0 of it is rounding."""
    return 0.0 if kl is not None and kl < 0 else kl
