"""The ladder: from the paper's model to the real block, one thing at a time, on the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from eigenlens.live.replay import LADDER, Variant, free_run, step
from eigenlens.live.session import Session
from eigenlens.live.states import AttentionCall, Captured
from eigenlens.measure.alignment import TIE_ULPS
from eigenlens.measure.sums import AlignmentSums
from eigenlens.tracing.gather import RowKey, tie_unit
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.targets import LayerTarget
from eigenlens.tracing.tokens import choose

RUNGS: dict[str, str] = {
    "l2": "the paper's model: L2 norm, no biases",
    "norm": "the model's own norms",
    "bias": "and biases",
    "ffn": "and the feed-forward part: the real block",
}
"""What each rung of `eigenlens.live.replay.LADDER` adds."""


class LadderSums:
    """Alignments of every rung, layer by layer."""

    def __init__(
        self, session: Session, options: TraceOptions, targets: Mapping[Any, LayerTarget]
    ) -> None:
        self.session = session
        self.options = options
        self.targets = targets
        self.sums: dict[RowKey, dict[str, AlignmentSums]] = {}

    def add(self, captured: Captured) -> None:
        """Add one batch: each rung from the same states, or a free run of each.

        Raises
        ------
        NumericsError
            A free run stops being finite.
        """
        chosen = choose(captured, self.options)
        for name, variant in LADDER.items():
            rung = replace(variant, radius=self.options.length)
            for call, number, before, after in self._moves(captured, rung):
                place = call.place
                if place.key not in self.targets:
                    continue
                own = chosen[place.plan.stack]
                counted = ~own.sinks if self.options.drop_sinks else np.ones(own.sinks.size, bool)
                targets = self.targets[place.key].targets
                sums = self.sums.setdefault((*place.key, number), {})
                if name not in sums:
                    sums[name] = AlignmentSums(tie=TIE_ULPS * tie_unit(before))
                sums[name].add(
                    targets.alignment(own.flat(before)[counted]),
                    targets.alignment(own.flat(after)[counted]),
                )

    def _moves(
        self, captured: Captured, variant: Variant
    ) -> Iterator[tuple[AttentionCall, int, Any, Any]]:
        session = self.session
        if self.options.mode == "free":
            for stack in dict.fromkeys(call.place.plan.stack for call in captured.calls):
                calls = captured.stack(stack)
                for s in free_run(session, calls, variant, steps=self.options.steps):
                    yield s.call, s.number, s.before, s.after
            return
        for call in captured.calls:
            before = variant.start(call.before)
            after, _ = step(session, call, before, variant)
            yield call, call.step, before, after

    def result(self, key: RowKey) -> dict[str, dict[str, float]]:
        """Gamma, gain and rho of every rung of a row."""
        return {
            name: {
                "gamma": float(sums.gamma()[0]),
                "gain": float(sums.gain()[0]),
                "rho": float(sums.rho()[0]),
            }
            for name, sums in self.sums.get(key, {}).items()
        }
