"""What a trace is asked for, checked before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eigenlens.errors import OptionError
from eigenlens.live.batches import TRUNCATIONS, Truncation
from eigenlens.live.replay import Variant
from eigenlens.measure.nulls import MIN_DIRECTIONS
from eigenlens.measure.sinks import SINK_THRESHOLD, SPECIAL
from eigenlens.spectra.options import SpectrumOptions

MODES: dict[str, str] = {
    "step": "one attention sub-layer from the real state of that depth",
    "free": "the attention-only model, run on its own output from the embeddings",
    "block": "the real block with its feed-forward part",
}
"""Ways to measure, and what each compares."""

LEAST_K = 8
USUAL_DIRECTIONS = 1000
MOST_DIRECTIONS = 4000
ALLOWED_DIRECTIONS = 5 * MOST_DIRECTIONS
MOST_STEPS = 1000  # each is measured in full, which takes megabytes even of a tiny model


@dataclass(frozen=True)
class TraceOptions:
    """How to measure, checked once.

    Attributes
    ----------
    mode
        A key of `MODES`.
    order, operator, tie_tolerance
        What leads; see `eigenlens.spectra.options.SpectrumOptions`.
    bias
        Whether ``b = W_O b_V + b_O`` stays on the attention output. None: off, as in the paper's
        model, but on in mode ``block``, which is the real block.
    radius
        Length of the states in mode ``free`` and under the ladder's L2 norm: a number or
        ``sqrt_d``. None: 1, the paper's, in mode ``free``; else ``sqrt_d``, near the scale of the
        real states.
    steps
        Steps of a free run, at most 1000; None runs each layer once, more begin again with the
        first layer.
    ladder
        Also the ladder from the paper's model to the real block.
    nulls
        Also what the measures are without an effect (section 6 of the theory).
    directions
        Random directions; None takes 1000, or more where a correction over many layers needs them
        (planes of many dimensions: fewer, at least 200, so that they fit into memory).
    bootstrap
        Resamples of the prompts.
    drop_sinks
        Leave attention sinks out of all measures (they are given with and without them anyway).
    sink_threshold
        Times the median norm of its prompt from which a token is a sink.
    special_tokens
        ``keep`` or ``drop``.
    batch_size, too_long
        Prompts a batch; whether prompts beyond the model's positions are cut or refused.
    seed
        Of random directions, rotations, weights and resamples.
    """

    mode: str = "step"
    order: str = "auto"
    operator: str = "raw"
    tie_tolerance: float = 0.01
    bias: bool | None = None
    radius: float | Literal["sqrt_d"] | None = None
    steps: int | None = None
    ladder: bool = False
    nulls: bool = True
    directions: int | None = None
    bootstrap: int = 1000
    drop_sinks: bool = False
    sink_threshold: float = SINK_THRESHOLD
    special_tokens: str = "keep"
    batch_size: int = 8
    too_long: Truncation = "warn"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"mode {self.mode!r} is unknown: allowed are {', '.join(MODES)}")
        if self.special_tokens not in SPECIAL:
            raise OptionError(
                f"special tokens {self.special_tokens!r}: allowed are {' and '.join(SPECIAL)}"
            )
        if self.too_long not in TRUNCATIONS:
            raise OptionError(
                f"too long {self.too_long!r}: allowed are {' and '.join(TRUNCATIONS)}"
            )
        if self.steps is not None and (self.mode != "free" or self.steps < 1):
            raise OptionError(
                f"{self.steps} steps in mode {self.mode}: steps are at least 1 and belong to mode "
                "free"
            )
        if self.steps is not None and self.steps > MOST_STEPS:
            raise OptionError(
                f"{self.steps} steps: at most {MOST_STEPS} are traced, since each is measured in "
                "full on every prompt; eigenlens simulate runs as many as you like"
            )
        if self.directions is not None and not (
            MIN_DIRECTIONS <= self.directions <= ALLOWED_DIRECTIONS
        ):
            raise OptionError(
                f"{self.directions} random directions: allowed are {MIN_DIRECTIONS} to "
                f"{ALLOWED_DIRECTIONS}"
            )
        if self.bootstrap < 1:
            raise OptionError(f"{self.bootstrap} bootstrap resamples: give at least 1, as 1000")
        if self.batch_size < 1:
            raise OptionError(f"batch size {self.batch_size}: it must be at least 1")
        if not self.sink_threshold > 1:
            raise OptionError(
                f"sink threshold {self.sink_threshold}: it is a ratio to the median norm, above 1"
            )
        self.spectrum()
        self.variant()

    @property
    def keeps_bias(self) -> bool:
        """Whether b stays on the attention output."""
        return self.mode == "block" if self.bias is None else self.bias

    @property
    def length(self) -> float | Literal["sqrt_d"]:
        """The radius that is used."""
        if self.radius is not None:
            return self.radius
        return 1.0 if self.mode == "free" else "sqrt_d"

    def spectrum(self, k: int = LEAST_K) -> SpectrumOptions:
        """The same choices for the spectra that give the targets."""
        return SpectrumOptions(
            k=k,
            order=self.order,
            operator=self.operator,
            tie_tolerance=self.tie_tolerance,
            seed=self.seed,
        )

    def variant(self) -> Variant:
        """The map of a free run."""
        return Variant(norm="l2", radius=self.length, bias=self.keeps_bias)

    def random_directions(self, n_rows: int) -> int:
        """How many random directions: the smallest Holm-adjusted p, rows/(m + 1), is below .025."""
        if self.directions is not None:
            return self.directions
        return min(MOST_DIRECTIONS, max(USUAL_DIRECTIONS, 40 * n_rows))
