"""Sums over prompts of everything that a trace reports, a few numbers a prompt and layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.live.session import Session
from eigenlens.live.states import Captured
from eigenlens.measure.alignment import TIE_ULPS
from eigenlens.measure.pairs import dirichlet_energy
from eigenlens.measure.sinks import MeanDirection
from eigenlens.measure.sums import AlignmentSums, PromptSums, sum_prompts
from eigenlens.tracing.collapse import CollapseMeans
from eigenlens.tracing.depths import CollapsePart, Masks, Pile, as_numpy
from eigenlens.tracing.moves import MOVES, Move
from eigenlens.tracing.nulls import NullSums
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.targets import LayerTarget
from eigenlens.tracing.tokens import Chosen, choose

_ENTRIES = 1 << 23  # numbers in the states of one group, 32 MB in float32

RowKey = tuple[str, int, str, int]
"""Stack, layer, kind, step."""


@dataclass(frozen=True)
class RowReading:
    """What one batch adds to a layer and step: the parts of `RowSums`."""

    key: RowKey
    tie: float
    every: PromptSums
    fewer: PromptSums
    mean: tuple[Float[np.ndarray, "d"], int]
    sinks: Float[np.ndarray, "t d"] | None
    n_sinks: int
    attention: CollapsePart
    block: CollapsePart | None


@dataclass(frozen=True)
class Reading:
    """What one batch shows: a few numbers a prompt and row.

    Attributes
    ----------
    prompts
        Their numbers.
    unchecked
        See `Captured`.
    rows
        In the order in which layers ran.
    start
        Collapse measures of the state before the first layer of each stack.
    """

    prompts: Int[np.ndarray, "b"]
    unchecked: tuple[str, ...]
    rows: list[RowReading] = field(default_factory=list)
    start: dict[str, CollapsePart] = field(default_factory=dict)


class RowSums:
    """What is gathered for one layer and step.

    Attributes
    ----------
    target
        What the tokens are compared with.
    every, fewer
        Alignments of all tokens that count, and of those that are no sinks.
    attention, block
        Collapse measures of the state after attention and after the block.
    mean, sinks
        Mean direction of all tokens before the step, and of the sinks.
    nulls
        The nulls; None when they are not asked for.
    """

    def __init__(self, target: LayerTarget, nulls: NullSums | None, tie: float) -> None:
        self.target = target
        self.every = AlignmentSums(tie=tie)
        self.fewer = AlignmentSums(tie=tie)
        self.attention = CollapseMeans()
        self.block = CollapseMeans()
        self.mean = MeanDirection()
        self.sinks = MeanDirection()
        self.nulls = nulls
        self.n_sinks = 0
        self._dirichlet: list[float] = [0.0, 0]

    def add_dirichlet(self, move: Move, chosen: Chosen) -> None:
        """Dirichlet energy of the state before, under the mean of the heads' attention."""
        if move.weights is None or move.weights.shape[-1] != move.weights.shape[-2]:
            return
        A = move.weights.mean(dim=1).cpu().double().numpy()
        X = move.before.cpu().double().numpy()
        for b in np.flatnonzero(chosen.keep.any(axis=1)):
            own = chosen.keep[b]
            self._dirichlet[0] += dirichlet_energy(X[b][own], A[b][np.ix_(own, own)])
            self._dirichlet[1] += 1

    def dirichlet(self) -> float | None:
        """Mean Dirichlet energy over prompts, None where attention weights were not read."""
        total, n = self._dirichlet
        return total / n if n else None


class Gatherer:
    """Rows of one model over all batches, in the order in which layers run."""

    def __init__(
        self,
        session: Session,
        options: TraceOptions,
        targets: Mapping[tuple[str, int, str], LayerTarget],
        nulls: Mapping[tuple[str, int, str], Any] | None = None,
    ) -> None:
        self.session = session
        self.options = options
        self.targets = targets
        self.nulls = nulls
        self.rows: dict[RowKey, RowSums] = {}
        self.start: dict[str, CollapseMeans] = {}

    def read(self, captured: Captured) -> Reading:
        """What one batch shows. Without nulls and weights nothing is changed: any thread may.

        Raises
        ------
        NumericsError
            States stop being finite.
        """
        chosen = choose(captured, self.options)
        moves = MOVES[self.options.mode](self.session, captured, self.options)
        reading = Reading(captured.batch.prompts, captured.unchecked)
        for stack, group in _groups(m for m in moves if m.call.place.key in self.targets):
            first = None if stack in reading.start else captured.stack(stack)[0].before
            self._measure(reading, stack, group, chosen[stack], first)
            for move in group:
                self._read_weights(move, chosen[stack])
        return reading

    def add(self, reading: Reading) -> None:
        """Add what was read of a batch."""
        for stack, part in reading.start.items():
            self.start.setdefault(stack, CollapseMeans()).add_part(part)
        for found in reading.rows:
            row = self._row(found.key, found.tie)
            signed = row.target.signed
            row.every.add_prompts(found.every, reading.prompts, signed=signed)
            row.fewer.add_prompts(found.fewer, reading.prompts, signed=signed)
            row.mean.add_sum(*found.mean)
            if found.sinks is not None:
                row.n_sinks += found.n_sinks
                row.sinks.add(found.sinks)
            row.attention.add_part(found.attention)
            if found.block is not None:
                row.block.add_part(found.block)

    def _read_weights(self, move: Move, chosen: Chosen) -> None:
        """What the attention weights say, and the nulls: added at once."""
        if move.weights is None and self.nulls is None:
            return
        row = self._row(_key(move), _tie(move))
        row.add_dirichlet(move, chosen)
        if row.nulls is not None:
            row.nulls.add(self.session, move, chosen, self.options)

    def _measure(
        self, reading: Reading, stack: str, moves: list[Move], chosen: Chosen, first: Any
    ) -> None:
        """Read several steps of one stack at once.

        `first` is the state before all of them, where these are the first of a batch.
        """
        sinks = chosen.grid
        others = chosen.keep & ~sinks
        masks = Masks(chosen.keep, others if self.options.drop_sinks else chosen.keep)
        targets = [self.targets[move.call.place.key] for move in moves]
        pile = Pile()
        if first is not None:
            pile.add(first)
        for target, move in zip(targets, moves, strict=True):
            for states in (move.before, move.after):
                pile.add(states, target.targets)
            pile.add(move.attention)
            if move.block is not None:
                pile.add(move.block)
        pile.read(masks)
        if first is not None:
            reading.start[stack] = pile[first].part
        tie = _tie(moves[0])
        every, fewer = self._align(targets, moves, pile, masks.keep, others, tie)
        marked = chosen.sinks.any()
        for move, part, other in zip(moves, every, fewer, strict=True):
            before = pile[move.before]
            reading.rows.append(
                RowReading(
                    _key(move),
                    tie,
                    part,
                    other,
                    (before.direction, before.used),
                    as_numpy(move.before)[sinks] if marked else None,
                    int(np.count_nonzero(sinks)),
                    pile[move.attention].part,
                    None if move.block is None else pile[move.block].part,
                )
            )

    def _align(
        self,
        targets: list[LayerTarget],
        moves: list[Move],
        pile: Pile,
        keep: Bool[np.ndarray, "p n"],
        others: Bool[np.ndarray, "p n"],
        tie: float,
    ) -> tuple[list[PromptSums], list[PromptSums]]:
        """Sums over all tokens, and over those that are no sinks."""
        both = [
            [pile.cosines(x, target.targets) for x in (move.before, move.after)]
            for target, move in zip(targets, moves, strict=True)
        ]
        before, after = (
            np.stack(
                [
                    target.targets.of_cosines(c[i].reshape(keep.size, -1)).reshape(keep.shape)
                    for target, c in zip(targets, both, strict=True)
                ]
            )
            for i in (0, 1)
        )
        signed = np.zeros(before.shape)
        for i, (target, (a, b)) in enumerate(zip(targets, both, strict=True)):
            if target.signed:
                signed[i] = (b - a)[..., 0]
        every = sum_prompts(before, after, signed, keep, tie)
        if (others == keep).all():
            return every, every
        return every, sum_prompts(before, after, signed, others, tie)

    def _row(self, key: RowKey, tie: float) -> RowSums:
        if key not in self.rows:
            place = key[:3]
            make = None if self.nulls is None else self.nulls[place]
            nulls = None if make is None else make(tie)
            self.rows[key] = RowSums(self.targets[place], nulls, tie)
        return self.rows[key]


def _key(move: Move) -> RowKey:
    return (*move.call.place.key, move.step)


def _tie(move: Move) -> float:
    return TIE_ULPS * tie_unit(move.before)


def tie_unit(states: Any) -> float:
    """Rounding of an alignment: eps of the dtype that it is computed from, float32 or wider."""
    return float(np.finfo("float64" if states.dtype.itemsize == 8 else "float32").eps)


def _groups(moves: Iterable[Move]) -> Iterator[tuple[str, list[Move]]]:
    """Steps of one stack that are measured together, as many as a bound on their size lets in."""
    group: list[Move] = []
    stack, entries = "", 0
    for move in moves:
        if group and (stack != move.call.place.plan.stack or entries > _ENTRIES):
            yield stack, group
            group, entries = [], 0
        stack = move.call.place.plan.stack
        group.append(move)
        entries += 2 * move.before.numel()
    if group:
        yield stack, group
