"""What a survey says of every checkpoint: plain frozen objects, and their JSON and table forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from eigenlens.frames import Result

STATUSES = {
    "complete": "every layer that was asked for is there",
    "partial": "some layers are there; run the survey again to go on",
    "failed": "it could not be surveyed; the reason is given",
    "missing": "nothing of it is there yet",
}
"""How far a checkpoint is, and what that means."""


@dataclass(frozen=True)
class ModelSummary:
    """One checkpoint of a survey.

    Attributes
    ----------
    model, series, train_step
        See `eigenlens.surveys.members.Member`.
    status, reason
        A key of `STATUSES`; why it failed.
    model_type, d_model, n_layers, placement
        What it is; None while nothing is there.
    layers, skipped
        Layers with a spectrum, and layers without one.
    regimes
        Share of the layers in each regime, in [0, 1]; empty without layers.
    gap
        Median relative gap.
    disagreement_rate, alignment_rate, exponent
        Medians of what `eigenlens.surveys.rates.rates_of` predicts a layer.
    gamma, gain, rho
        Means over the traced attention calls; None unless the survey traces.
    beyond_random
        Share of the traced calls that are beyond random directions.
    """

    model: str
    series: str
    train_step: int | None
    status: str
    reason: str | None
    model_type: str | None
    d_model: int | None
    n_layers: int | None
    placement: str | None
    layers: int
    skipped: int
    regimes: Mapping[str, float]
    gap: float | None
    disagreement_rate: float | None
    alignment_rate: float | None
    exponent: float | None
    gamma: float | None
    gain: float | None
    rho: float | None
    beyond_random: float | None

    @property
    def why(self) -> str:
        """The reason without the name in front."""
        return (self.reason or "").removeprefix(f"{self.model}: ")

    def flat(self) -> dict[str, Any]:
        """The flat record of CSV and data frames."""
        from eigenlens.spectra.principal import REGIMES

        out = asdict(self)
        shares = out.pop("regimes")
        return out | {f"share_{name}": shares.get(name) for name in REGIMES}


@dataclass(frozen=True)
class Run:
    """What one run of a survey did.

    Attributes
    ----------
    computed, kept, failed
        Checkpoints of which something was computed, that were there already, that failed.
    seconds
        Wall time.
    """

    computed: int
    kept: int
    failed: int
    seconds: float


@dataclass(frozen=True)
class Survey(Result):
    """The checkpoints of a survey, one entry each.

    Attributes
    ----------
    folder
        Where the data set is.
    options
        What was asked.
    models
        The checkpoints in the order of the list.
    run
        What the run did; None where a survey is only summarised.
    warnings
        Sentences a reader should see.
    asked
        Names of the checkpoints that the run was asked for; the folder may hold more.
    """

    SCHEMA = "eigenlens.survey/1"

    folder: str
    options: dict[str, Any]
    models: tuple[ModelSummary, ...]
    run: Run | None = None
    warnings: tuple[str, ...] = field(default=())
    asked: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def failed(self) -> tuple[ModelSummary, ...]:
        """The checkpoints that failed."""
        return tuple(m for m in self.models if m.status == "failed")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.survey/1``."""
        return {
            **self._head(model=None),
            "folder": self.folder,
            "run": None if self.run is None else asdict(self.run),
            "models": [asdict(m) for m in self.models],
            "failed": [{"model": m.model, "reason": m.reason} for m in self.failed],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a checkpoint.

        The layers themselves are in the data set: ``pandas.read_parquet(folder)``.
        """
        return [m.flat() for m in self.models]
