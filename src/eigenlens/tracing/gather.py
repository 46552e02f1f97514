"""Sums over prompts of everything that a trace reports, a few numbers a prompt and layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from eigenlens.live.session import Session
from eigenlens.live.states import Captured
from eigenlens.measure.alignment import TIE_ULPS
from eigenlens.measure.pairs import dirichlet_energy
from eigenlens.measure.sinks import MeanDirection
from eigenlens.measure.sums import AlignmentSums, sum_prompts
from eigenlens.tracing.collapse import CollapseMeans
from eigenlens.tracing.depths import Masks, Pile, as_numpy
from eigenlens.tracing.moves import MOVES, Move
from eigenlens.tracing.nulls import NullSums
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.targets import LayerTarget
from eigenlens.tracing.tokens import Chosen, choose

_ENTRIES = 1 << 23  # numbers in the states of one group, 32 MB in float32

RowKey = tuple[str, int, str, int]
"""Stack, layer, kind, step."""


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
        A = move.weights.mean(dim=1).double().cpu().numpy()
        X = move.before.double().cpu().numpy()
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

    def follow(self, batches: Iterable[Captured]) -> Iterator[Captured]:
        """Add batches, and hand each on.

        Raises
        ------
        NumericsError
            States stop being finite.
        """
        for captured in batches:
            self._read(captured)
            yield captured
            del captured  # or its states would stay while the next batch runs

    def _read(self, captured: Captured) -> None:
        chosen = choose(captured, self.options)
        moves = MOVES[self.options.mode](self.session, captured, self.options)
        started: set[str] = set()
        for stack, group in _groups(m for m in moves if m.call.place.key in self.targets):
            first = None if stack in started else captured.stack(stack)[0].before
            started.add(stack)
            self._add(captured.batch.prompts, group, chosen[stack], first)

    def _add(
        self, prompts: Int[np.ndarray, "p"], moves: list[Move], chosen: Chosen, first: Any
    ) -> None:
        rows = [self._row(move) for move in moves]
        self._measure(prompts, rows, moves, chosen, first)
        for row, move in zip(rows, moves, strict=True):
            row.add_dirichlet(move, chosen)
            if row.nulls is not None:
                row.nulls.add(self.session, move, chosen, self.options)

    def _measure(
        self,
        prompts: Int[np.ndarray, "p"],
        rows: list[RowSums],
        moves: list[Move],
        chosen: Chosen,
        first: Any,
    ) -> None:
        """Everything but nulls, of several steps of one stack at once.

        `first` is the state before all of them, where these are the first of a batch.
        """
        sinks = chosen.grid
        others = chosen.keep & ~sinks
        masks = Masks(chosen.keep, others if self.options.drop_sinks else chosen.keep)
        there = np.asarray(masks.counted.any(axis=1))
        pile = Pile()
        if first is not None:
            pile.add(first)
        for row, move in zip(rows, moves, strict=True):
            for states in (move.before, move.after):
                pile.add(states, row.target.targets)
            pile.add(move.attention)
            if move.block is not None:
                pile.add(move.block)
        pile.read(masks)
        if first is not None:
            stack = moves[0].call.place.plan.stack
            self.start.setdefault(stack, CollapseMeans()).add_depth(pile[first], there)
        self._align(rows, moves, pile, prompts, masks.keep, others)
        for row, move in zip(rows, moves, strict=True):
            before = pile[move.before]
            row.mean.add_sum(before.direction, before.used)
            if chosen.sinks.any():
                row.n_sinks += int(np.count_nonzero(sinks))
                row.sinks.add(as_numpy(move.before)[sinks])
            row.attention.add_depth(pile[move.attention], there)
            if move.block is not None:
                row.block.add_depth(pile[move.block], there)

    def _align(
        self,
        rows: list[RowSums],
        moves: list[Move],
        pile: Pile,
        prompts: Int[np.ndarray, "p"],
        keep: Bool[np.ndarray, "p n"],
        others: Bool[np.ndarray, "p n"],
    ) -> None:
        both = [
            [pile.cosines(x, row.target.targets) for x in (move.before, move.after)]
            for row, move in zip(rows, moves, strict=True)
        ]
        before, after = (
            np.stack(
                [
                    row.target.targets.of_cosines(c[i].reshape(keep.size, -1)).reshape(keep.shape)
                    for row, c in zip(rows, both, strict=True)
                ]
            )
            for i in (0, 1)
        )
        signed = np.zeros(before.shape)
        for i, (row, (a, b)) in enumerate(zip(rows, both, strict=True)):
            if row.target.signed:
                signed[i] = (b - a)[..., 0]
        tie = rows[0].every.tie or 0.0
        every = sum_prompts(before, after, signed, keep, tie)
        fewer = every
        if (others != keep).any():
            fewer = sum_prompts(before, after, signed, others, tie)
        for row, part, other in zip(rows, every, fewer, strict=True):
            row.every.add_prompts(part, prompts, signed=row.target.signed)
            row.fewer.add_prompts(other, prompts, signed=row.target.signed)

    def _row(self, move: Move) -> RowSums:
        place = move.call.place
        key = (*place.key, move.step)
        if key not in self.rows:
            tie = TIE_ULPS * tie_unit(move.before)
            make = None if self.nulls is None else self.nulls[place.key]
            nulls = None if make is None else make(tie)
            self.rows[key] = RowSums(self.targets[place.key], nulls, tie)
        return self.rows[key]


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
