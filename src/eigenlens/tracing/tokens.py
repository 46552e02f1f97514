"""Which tokens of a batch count: never pads, special tokens by option, sinks marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.live.batches import Batch
from eigenlens.live.states import AttentionCall, Captured
from eigenlens.measure.sinks import sink_mask, token_mask
from eigenlens.tracing.options import TraceOptions


@dataclass(frozen=True)
class Chosen:
    """The tokens of one batch that count, in one stack.

    Attributes
    ----------
    keep
        (b, n): real tokens, special ones by option.
    owners
        Prompt of each kept token.
    sinks
        Which kept tokens are attention sinks at any depth of the stack.
    """

    keep: Bool[np.ndarray, "b n"]
    owners: Int[np.ndarray, "t"]
    sinks: Bool[np.ndarray, "t"]

    @property
    def grid(self) -> Bool[np.ndarray, "b n"]:
        """`sinks` in the shape of `keep`."""
        out = np.zeros(self.keep.shape, dtype=bool)
        out[self.keep] = self.sinks
        return out

    def flat(self, states: Any) -> Float[np.ndarray, "t d"]:
        """States (b, n, d) of the kept tokens as numpy, in float32 or wider."""
        array = states.detach()
        array = array if array.dtype.itemsize >= 4 else array.float()
        return np.asarray(array.cpu().numpy()[self.keep])


def choose(captured: Captured, options: TraceOptions) -> dict[str, Chosen]:
    """The tokens that count in every stack; sinks are told by the model's own states."""
    found = {}
    for stack in dict.fromkeys(call.place.plan.stack for call in captured.calls):
        calls = captured.stack(stack)
        batch = captured.batch
        real, keep = _masks(batch, calls[0], options)
        rows = np.repeat(batch.prompts, real.sum(axis=1))
        sinks = sink_mask(_norms(calls, real), rows, threshold=options.sink_threshold)[0]
        inside = keep[real]
        found[stack] = Chosen(keep, rows[inside], sinks[inside])
    return found


def _masks(
    batch: Batch, call: AttentionCall, options: TraceOptions
) -> tuple[Bool[np.ndarray, "b n"], Bool[np.ndarray, "b n"]]:
    """Real tokens, and those of them that count; states of another length are all real."""
    shape = tuple(call.before.shape[:2])
    if batch.mask.shape != shape:
        every = np.ones(shape, dtype=bool)
        return every, every
    keep = token_mask(batch.mask, batch.special, special=options.special_tokens)
    return batch.mask, keep


def _norms(
    calls: Sequence[AttentionCall], real: Bool[np.ndarray, "b n"]
) -> Float[np.ndarray, "depths t"]:
    """Norms of the real tokens before every attention call and after the last block."""
    states = [call.before for call in calls] + [calls[-1].block]
    rows = [s.float().norm(dim=-1) if s.dtype.itemsize < 4 else s.norm(dim=-1) for s in states]
    return np.stack([r.cpu().numpy() for r in rows])[:, real].astype(np.float64)
