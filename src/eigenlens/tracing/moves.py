"""What a token is before and after a step, in each mode, from one captured batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from eigenlens.live.replay import attention_output, block_output, free_run
from eigenlens.live.session import Session
from eigenlens.live.states import AttentionCall, Captured, scaled
from eigenlens.tracing.options import TraceOptions


@dataclass(frozen=True)
class Move:
    """One layer's step on one batch; states are (b, n, d) tensors.

    Attributes
    ----------
    call
        The captured call whose layer ran.
    step
        Which step of its stack.
    before, after
        What is compared.
    attention
        The state after attention alone (`after` itself but for mode ``block``).
    block
        The state after the block; None in a free run, which has none.
    values, weights
        What entered the value projection, and A (b, n_heads, n, m) where it was asked for.
    linear
        Whether `after` is `before` plus the attention output, so that rotated weights can be
        put in the place of the real ones.
    """

    call: AttentionCall
    step: int
    before: Any = field(repr=False)
    after: Any = field(repr=False)
    attention: Any = field(repr=False)
    block: Any = field(repr=False)
    values: Any = field(repr=False)
    weights: Any = field(repr=False)
    linear: bool = True


def without_bias(session: Session, call: AttentionCall) -> Any:
    """The state after attention, b taken off; A is the model's own."""
    place, constants = call.place, session.constants(call.place)
    if not bool(constants.bias.any()):
        return call.after
    if place.norm_out is not None and not place.post:  # b is inside what that norm sees
        y, _ = attention_output(session, call, call.before, bias=False)
        return call.before + y
    return call.after - scaled(constants.bias, constants.scale).to(call.after.device)


def _step(session: Session, captured: Captured, options: TraceOptions) -> Iterator[Move]:
    for call in captured.calls:
        after = call.after if options.keeps_bias else without_bias(session, call)
        yield Move(
            call, call.step, call.before, after, after, call.block, call.values, call.weights
        )


def _block(session: Session, captured: Captured, options: TraceOptions) -> Iterator[Move]:
    for call in captured.calls:
        after = call.block
        if not options.keeps_bias:
            after, _ = block_output(session, call, call.before, bias=False)
        yield Move(call, call.step, call.before, after, call.after, after, None, None, linear=False)


def _free(session: Session, captured: Captured, options: TraceOptions) -> Iterator[Move]:
    weights = any(call.weights is not None for call in captured.calls)
    for stack in dict.fromkeys(call.place.plan.stack for call in captured.calls):
        calls = captured.stack(stack)
        run = free_run(session, calls, options.variant(), steps=options.steps, weights=weights)
        for s in run:
            cross = s.call.place.plan.kind == "cross"  # its values are the other stack's states
            values = s.call.values if cross else s.before
            yield Move(s.call, s.number, s.before, s.after, s.after, None, values, s.weights)


MOVES: dict[str, Callable[[Session, Captured, TraceOptions], Iterator[Move]]] = {
    "step": _step,
    "free": _free,
    "block": _block,
}
"""One generator of moves a mode."""
