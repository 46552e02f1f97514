"""One checkpoint of a survey, open in a worker: its identity, its cost, its rows."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eigenlens.cache import Cache
from eigenlens.circuit.checkpoint import Checkpoint, Circuits, open_checkpoint
from eigenlens.circuit.describe import describe
from eigenlens.circuit.plans import Skipped
from eigenlens.errors import ArchitectureError
from eigenlens.spectra.analyse import analyse, not_square
from eigenlens.spectra.estimate import LayerCost, Rates, layer_costs
from eigenlens.spectra.remembered import Remembered
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.surveys.members import Member
from eigenlens.surveys.options import Question
from eigenlens.surveys.rows import Row, head, layer_row, skipped_row

FORMAT = 1
"""Raised when rows are made in another way, so that older ones are made anew."""

# Of an ordinary core: fixed, not measured, so that a checkpoint is cut alike wherever it is opened.
NOMINAL = Rates(product=2e10, eig=3e9, stream=5e9)
_LIVE_COPIES = 3  # the weights while they are loaded, and the newly initialised model beside them


@dataclass(frozen=True)
class Opened:
    """An open checkpoint and the question that is put to it.

    Attributes
    ----------
    member, question
        Which, and what.
    checkpoint, circuits
        Its plans, and the layers that are asked for, unread.
    """

    member: Member
    question: Question
    checkpoint: Checkpoint
    circuits: Circuits

    @cached_property
    def skipped(self) -> list[Skipped]:
        """Layers that are asked for and have no spectrum, with the reason."""
        q = self.question
        layers = None if q.layers is None else list(q.layers)
        found = [
            s
            for s in self.checkpoint.skipped
            if q.stack in (None, s.stack) and (layers is None or s.layer in (-1, *layers))
        ]
        return [*found, *not_square(self.checkpoint, q.stack, layers)]

    @cached_property
    def costs(self) -> dict[int, LayerCost]:
        """Cost of every layer that has a spectrum, by its position among the circuits."""
        q = self.question
        layers = None if q.layers is None else list(q.layers)
        costs = layer_costs(self.checkpoint, q.spectrum, stack=q.stack, layers=layers)
        by_name = {cost.name: cost for cost in costs}
        names = enumerate(self.circuits.names)
        return {i: by_name[name] for i, name in names if name in by_name}

    @cached_property
    def memory(self) -> Remembered:
        """Keys of layers, and results of them that are kept in the worker's cache."""
        return Remembered(Cache(), self.checkpoint, self.question.spectrum)

    @property
    def seconds(self) -> float:
        """About how long its spectra take one ordinary core."""
        return sum(
            c.product_flops / NOMINAL.product
            + c.eig_flops / NOMINAL.eig
            + c.moved_bytes / NOMINAL.stream
            for c in self.costs.values()
        )

    @property
    def live_bytes(self) -> int:
        """About the memory of a traced model: float32 weights, its layers' spectra beside them."""
        source = self.checkpoint.source
        names = () if source is None else source.store.names()
        count = sum(math.prod(source.store.info(n).shape) for n in names) if source else 0
        largest = max((c.memory_bytes for c in self.costs.values()), default=0)
        return _LIVE_COPIES * 4 * count + largest

    def layer_key(self, position: int) -> str | None:
        """Hash of what one layer's rows depend on; None where the files have no identity."""
        key = self.memory.key(self.circuits.items[position])
        return None if key is None else _hash(key)

    @property
    def has_identity(self) -> bool:
        """Whether the files can be told from others, so that results may be taken up again."""
        return all(self.layer_key(i) is not None for i in range(len(self.circuits)))

    def key(self) -> str:
        """Hash of what the checkpoint's rows depend on: files, plans, options, versions.

        Where the files have no identity it is a new one each time: they are computed anew.
        """
        if not self.has_identity:
            return uuid.uuid4().hex
        layers = [self.layer_key(i) for i in range(len(self.circuits))]
        found: dict[str, Any] = {
            "format": FORMAT,
            "what": self.question.what,
            "name": self.member.name,
            "layers": layers,
            "skipped": [[s.stack, s.layer, s.kind, s.reason] for s in self.skipped],
        }
        source = self.checkpoint.source
        if self.question.trace is not None and source is not None:
            names = source.store.names()
            found["files"] = sorted({str(source.store.info(n).identity) for n in names})
            found["config"] = dict(self.checkpoint.config)
            found["trace"] = vars(self.question.trace)
        return _hash(found)

    def start(self) -> Row:
        """What every row begins with."""
        return head(self.member, describe(self.checkpoint))

    def rows(self, positions: Sequence[int]) -> list[Row]:
        """Rows of some layers, one of them in memory at a time."""
        start = self.start()
        return [layer_row(start, self.spectrum(i)) for i in positions]

    def skipped_rows(self) -> list[Row]:
        """Rows of the layers without a spectrum."""
        start = self.start()
        return [skipped_row(start, s) for s in self.skipped]

    def spectrum(self, position: int) -> LayerSpectrum:
        """The spectrum of one layer; from the worker's cache if that may be asked and has it."""
        item = self.circuits.items[position]
        if self.question.lookup:
            kept = self.memory.find(item, lambda: self.circuits[position])
            if kept is not None:
                return kept
        spectrum = self.question.spectrum
        if self.costs[position].by_blocks(waits=False):
            return analyse(self.circuits.grouped(position, spectrum.dtype), spectrum)
        return analyse(self.circuits[position], spectrum)


def open_member(member: Member, question: Question) -> Opened:
    """Open a checkpoint; names and shapes are checked, no weight is read.

    Raises
    ------
    EigenlensError
        It cannot be opened, or has no such layer or no attention at all.
    """
    checkpoint = open_checkpoint(member.model, question.architecture)
    layers = None if question.layers is None else list(question.layers)
    opened = Opened(member, question, checkpoint, checkpoint.circuits(question.stack, layers))
    if not len(opened.circuits) and not opened.skipped:
        raise ArchitectureError(f"{member.name}: has no attention layer")
    return opened


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """A config may hold what JSON does not."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)
