"""Forward passes that begin at the edited layer: blocks before it give back what they gave before.

The model's own forward runs as it is; only the `forward` of earlier blocks is replaced, for as long
as a pass lasts, by what they returned when the pass was recorded. So masks, positions, norms and
the head stay the model's, and a pass costs the blocks from the edited one on, and the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from eigenlens.errors import ArchitectureError
from eigenlens.live.hooks import hooked
from eigenlens.live.load import line
from eigenlens.live.places import Place
from eigenlens.live.session import Session


@dataclass
class Past:
    """What the blocks before the edited call returned, in one pass.

    Attributes
    ----------
    counts
        How many calls of each block (by id) come before it.
    outputs
        The last thing that each stack returned before it, by block.
    """

    counts: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)


def forward(session: Session, inputs: Mapping[str, Any], advice: str = "") -> Any:
    """One pass through the whole model, head included, without a cache.

    Raises
    ------
    OptionError
        Memory ran out.
    ArchitectureError
        The model cannot run on these inputs.
    """
    options = {"use_cache": False} if session.accepts("use_cache") else {}
    try:
        with session.running(advice):
            return session.model(**{**options, **inputs})
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, RuntimeError) as error:
        raise ArchitectureError(
            f"{session.label}: a forward pass on {', '.join(inputs)} failed: {line(error)}"
        ) from error


def record(
    session: Session, place: Place, inputs: Mapping[str, Any], *, last: bool, advice: str = ""
) -> tuple[Past, Any]:
    """One full pass, and what `resumed` needs to leave out its beginning.

    Parameters
    ----------
    session
        The model.
    place
        The edited layer.
    inputs
        Keyword arguments of the pass.
    last
        Of a layer that runs several times, begin at its last call; else at its first.
    advice
        For the message where memory runs out.

    Returns
    -------
    The past, and what the model returned.
    """
    calls: list[tuple[Any, str, Any]] = []
    blocks = {id(p.block): (p.block, p.plan.stack) for p in session.places}

    def keep(stack: str) -> Any:
        def hook(module: Any, args: Any, result: Any) -> None:
            calls.append((module, stack, result))

        return hook

    handles = [block.register_forward_hook(keep(stack)) for block, stack in blocks.values()]
    with hooked(handles):
        result = forward(session, inputs, advice)
    edited = [i for i, (module, _, _) in enumerate(calls) if module is place.block]
    if not edited:
        raise ArchitectureError(f"{place.label}: did not run in a forward pass")
    past = Past()
    latest: dict[str, Any] = {}
    before = calls[: edited[-1] if last else edited[0]]
    for module, stack, value in before:
        past.counts[id(module)] = past.counts.get(id(module), 0) + 1
        latest[stack] = _copied(session.torch, value)
    # Within a stack states flow from block to block, so that the last ones decide.
    past.outputs = {id(module): latest[stack] for module, stack, _ in before}
    return past, result


@contextmanager
def resumed(session: Session, past: Past) -> Iterator[None]:
    """Earlier blocks give back the past; blocks are as they were afterwards."""
    torch = session.torch
    undo: list[tuple[Any, Any]] = []
    blocks = {id(p.block): p.block for p in session.places}
    try:
        for key, count in past.counts.items():
            block = blocks[key]
            undo.append((block, block.__dict__.get("forward")))
            block.forward = _skipping(torch, block.forward, count, past.outputs[key])
        yield
    finally:
        for block, own in undo:
            if own is None:
                del block.forward
            else:
                block.forward = own


def _skipping(torch: Any, own: Any, count: int, output: Any) -> Any:
    left = [count]

    def forward(*args: Any, **kwargs: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            # What comes next may add to it in place.
            return _copied(torch, output)
        return own(*args, **kwargs)

    return forward


def _copied(torch: Any, value: Any) -> Any:
    if torch.is_tensor(value):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_copied(torch, x) for x in value)
    return value
