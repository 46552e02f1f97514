"""Sums over prompts of everything that a trace reports, a few numbers a prompt and layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from eigenlens.live.session import Session
from eigenlens.live.states import Captured
from eigenlens.measure.alignment import TIE_ULPS, AlignmentSums
from eigenlens.measure.collapse import dirichlet_energy
from eigenlens.measure.sinks import MeanDirection
from eigenlens.tracing.collapse import CollapseMeans
from eigenlens.tracing.moves import MOVES, Move
from eigenlens.tracing.nulls import NullSums
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.targets import LayerTarget
from eigenlens.tracing.tokens import Chosen, choose

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

    def add(self, move: Move, chosen: Chosen, drop_sinks: bool) -> None:
        """Add the tokens of one batch.

        Raises
        ------
        NumericsError
            A state holds a NaN or an infinity.
        """
        before, after = chosen.flat(move.before), chosen.flat(move.after)
        keep = ~chosen.sinks
        self.n_sinks += int(np.count_nonzero(chosen.sinks))
        _add(self.every, self.target, before, after, chosen.owners)
        some = slice(None) if keep.all() else keep
        _add(self.fewer, self.target, before[some], after[some], chosen.owners[some])
        self.mean.add(before)
        if not keep.all():
            self.sinks.add(before[~keep])
        counted = some if drop_sinks else slice(None)
        same = move.attention is move.after
        self._collapse(
            after[counted] if same else chosen.flat(move.attention)[counted],
            None if move.block is None else chosen.flat(move.block)[counted],
            chosen.owners[counted],
        )
        if move.weights is not None and move.weights.shape[-1] == move.weights.shape[-2]:
            self._add_dirichlet(move, chosen)

    def _collapse(
        self,
        attention: Float[np.ndarray, "t d"],
        block: Float[np.ndarray, "t d"] | None,
        owners: Int[np.ndarray, "t"],
    ) -> None:
        self.attention.add(attention, owners)
        if block is not None:
            self.block.add(block, owners)

    def _add_dirichlet(self, move: Move, chosen: Chosen) -> None:
        """Dirichlet energy of the state before, under the mean of the heads' attention."""
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

    def add(self, captured: Captured) -> None:
        """Add one batch.

        Raises
        ------
        NumericsError
            States stop being finite.
        """
        chosen = choose(captured, self.options)
        for stack, own in chosen.items():
            first = chosen[stack].flat(captured.stack(stack)[0].before)
            self.start.setdefault(stack, CollapseMeans()).add(first, own.owners)
        for move in MOVES[self.options.mode](self.session, captured, self.options):
            place = move.call.place
            if place.key not in self.targets:
                continue
            row = self._row(move)
            own = chosen[place.plan.stack]
            row.add(move, own, self.options.drop_sinks)
            if row.nulls is not None:
                row.nulls.add(self.session, move, own, self.options)

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


def _add(
    sums: AlignmentSums,
    target: LayerTarget,
    before: Float[np.ndarray, "t d"],
    after: Float[np.ndarray, "t d"],
    owners: Int[np.ndarray, "t"],
) -> None:
    if target.signed:
        a, b = target.targets.signed(before), target.targets.signed(after)
        sums.add(np.abs(a), np.abs(b), owners, signed=(a, b))
    else:
        sums.add(target.targets.alignment(before), target.targets.alignment(after), owners)
