"""What the parts of one steering run share: model, options, texts, stage, progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.steering.opening import Subject
from eigenlens.steering.options import SteerOptions
from eigenlens.steering.probes import Reader, reader
from eigenlens.steering.stage import Stage
from eigenlens.steering.texts import Sets


@dataclass
class Ticker:
    """Progress over parts whose number is only guessed."""

    progress: Callable[[int, int, str], None] | None
    total: int
    done: int = 0

    def __call__(self, what: str) -> None:
        """Tell what comes next."""
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done + 1), what)
        self.done += 1

    def batches(self, what: str) -> Callable[[int, int, str], None]:
        """Progress of a loop over batches, told as `what`."""
        return lambda done, total, name: self(what)

    def end(self) -> None:
        """Tell that all is done."""
        if self.progress is not None:
            self.progress(self.total, self.total, "")


@dataclass
class Job:
    """What the parts of one run share."""

    subject: Subject
    options: SteerOptions
    sets: Sets
    stage: Stage
    circuit: OVCircuit
    tick: Ticker
    warnings: list[str] = field(default_factory=list)

    @property
    def layer(self) -> Reader | None:
        """Values and output projection, for probes that need F; None for the feed-forward site."""
        return reader(self.circuit) if self.options.site == "attention" else None
