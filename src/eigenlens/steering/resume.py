"""Forward passes that begin at the edited layer: blocks before it give back what they gave before.

The model's own forward runs as it is; only the `forward` of earlier blocks is replaced, for as long
as a pass lasts and for the thread that asks, by what they returned when the pass was recorded. So
masks, positions, norms and the head stay the model's, and a pass costs the blocks from the edited
one on, and the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any

from eigenlens.errors import ArchitectureError
from eigenlens.live.hooks import hooked, on_leave
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

    handles = [on_leave(block, keep(stack)) for block, stack in blocks.values()]
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
    """Earlier blocks give back the past to this thread; blocks are as they were afterwards."""
    torch = session.torch
    blocks = {id(p.block): p.block for p in session.places}
    with ExitStack() as stack:
        for key, count in past.counts.items():
            stack.enter_context(_replaced(torch, blocks[key], count, past.outputs[key]))
        yield


_lock = Lock()


class _ByThread:
    """A block's `forward` while some threads run it otherwise: each its own, all others as ever."""

    def __init__(self, block: Any) -> None:
        self.instead = block.__dict__.get("forward")  # of the object, where the class's is covered
        self.own = block.forward
        self.threads: dict[int, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.threads.get(get_ident(), self.own)(*args, **kwargs)


@contextmanager
def _replaced(torch: Any, block: Any, count: int, output: Any) -> Iterator[None]:
    """The first calls of a block by this thread give back `output`."""
    here = get_ident()
    with _lock:
        shared = block.__dict__.get("forward")
        if not isinstance(shared, _ByThread):
            shared = block.forward = _ByThread(block)
        before = shared.threads.get(here)
        shared.threads[here] = _skipping(torch, before or shared.own, count, output)
    try:
        yield
    finally:
        with _lock:
            if before is not None:
                shared.threads[here] = before
            else:
                del shared.threads[here]
            if not shared.threads:
                del block.forward
                if shared.instead is not None:
                    block.forward = shared.instead


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
