"""A data set as one entry a checkpoint; read in pieces, so that memory stays small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from eigenlens.errors import SourceError
from eigenlens.inert import inert
from eigenlens.shown.words import count_text
from eigenlens.spectra.principal import REGIMES
from eigenlens.surveys.dataset import Dataset
from eigenlens.surveys.members import training
from eigenlens.surveys.result import ModelSummary, Run, Survey

_FACTS = ("series", "train_step", "model_type", "d_model", "n_layers", "placement")
_MEDIANS = ("gap", "disagreement_rate", "alignment_rate", "exponent")
_MEANS = ("gamma", "gain", "rho", "beyond_random")
_COLUMNS = (
    *("source", "stack", "layer", "kind", "skipped", "regime", "step", "key", "part", "parts"),
    *_FACTS,
    *_MEDIANS,
    *_MEANS,
)


@dataclass
class _Gathered:
    """What has been read of one checkpoint."""

    facts: dict[str, Any] = field(default_factory=dict)
    parts: set[tuple[str, int]] = field(default_factory=set)
    of: int = 0
    seen: set[tuple[str, int, str]] = field(default_factory=set)
    skipped: int = 0
    regimes: Counter[str] = field(default_factory=Counter)
    values: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in (*_MEDIANS, *_MEANS)}
    )

    def add(self, row: dict[str, Any]) -> None:
        """One row; a layer that several attention calls share counts once."""
        self.facts = self.facts or {name: row[name] for name in _FACTS}
        self.parts.add((row["key"], row["part"]))
        self.of = row["parts"]
        if row["skipped"] is not None:
            self.skipped += 1
            return
        layer = (row["stack"], row["layer"], row["kind"])
        if layer not in self.seen:
            self.seen.add(layer)
            self.regimes[row["regime"]] += 1
            self._keep(row, _MEDIANS)
        self._keep(row, _MEANS)

    def _keep(self, row: dict[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if row[name] is not None:
                self.values[name].append(float(row[name]))

    def summary(self, name: str, reason: str | None) -> ModelSummary:
        """The entry of the checkpoint."""
        one = len({key for key, _ in self.parts}) == 1
        whole = one and len(self.parts) == self.of
        status = "complete" if whole else "partial" if self.parts else "missing"
        layers = sum(self.regimes.values())
        series, step = training(name)
        facts = self.facts or {**dict.fromkeys(_FACTS), "series": series, "train_step": step}
        found: dict[str, Any] = {}
        found |= {n: median(v) if (v := self.values[n]) else None for n in _MEDIANS}
        found |= {n: fmean(v) if (v := self.values[n]) else None for n in _MEANS}
        return ModelSummary(
            model=name,
            status="failed" if reason is not None else status,
            reason=reason,
            layers=layers,
            skipped=self.skipped,
            regimes={r: self.regimes[r] / layers for r in REGIMES} if layers else {},
            **facts,
            **found,
        )


def _other(n: int) -> str:
    return "a parquet file" if n == 1 else f"one of {n} parquet files"


def summary(folder: str | Path) -> Survey:
    """The survey in a folder, one entry a checkpoint, those that failed among them.

    Parameters
    ----------
    folder
        What `eigenlens.survey` wrote to; it may still be running.

    Raises
    ------
    SourceError
        There is no survey.
    FormatError
        A file of it is damaged.
    MissingDependencyError
        pyarrow is not installed.
    """
    return summarise(Dataset(Path(folder)))


def summarise(
    data: Dataset,
    run: Run | None = None,
    warnings: Iterable[str] = (),
    asked: Iterable[str] = (),
) -> Survey:
    """`summary` of an open data set, with what the run did that has just ended.

    Raises
    ------
    SourceError, FormatError, MissingDependencyError
        As `summary`.
    """
    found: dict[str, _Gathered] = {}
    for batch in data.batches(_COLUMNS):
        for row in batch:
            found.setdefault(row["source"], _Gathered()).add(row)
    warnings = list(warnings)
    foreign = data.foreign()
    if foreign:
        they, them = ("it is", "it") if len(foreign) == 1 else ("they are", "them")
        warnings.append(
            f"{inert(foreign[0])}: {_other(len(foreign))} that no survey wrote; {they} passed over "
            f"here, but readers of the whole folder take {them} in: delete {them}"
        )
    record = data.record()
    others = [name for name in record.get("other_options", []) if name in found]
    if others:
        warnings.append(
            f"the rows of {count_text(len(others), 'checkpoint')} are of an earlier run with "
            f"other options ({inert(others[0])}): "
            f"survey {'it' if len(others) == 1 else 'them'} again with these, or keep surveys with "
            "different options in folders of their own"
        )
    members: dict[str, str | None] = record.get("members", {})
    if not found and not record:
        raise SourceError(
            f"{inert(str(data.folder))}: holds no survey; give the --out of eigenlens survey"
        )
    names = [*members, *sorted(set(found) - set(members))]
    return Survey(
        folder=inert(str(data.folder)),
        options=dict(record.get("options", {})),
        models=tuple(found.get(n, _Gathered()).summary(n, members.get(n)) for n in names),
        run=run,
        warnings=tuple(warnings),
        asked=frozenset(asked),
    )
