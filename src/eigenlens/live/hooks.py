"""Hooks on modules: for as long as a block lasts, and for the thread that set them alone.

A module has one list of hooks, whichever thread runs it. Those set here see the passes of the
thread that set them and let all others through, so that several may read one model at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any


def on_enter(module: Any, hook: Callable[[Any, Any, Any], Any]) -> Any:
    """``hook(module, args, kwargs)`` before the module runs, which may change them; the handle."""
    return module.register_forward_pre_hook(_own(hook), with_kwargs=True)


def on_leave(module: Any, hook: Callable[[Any, Any, Any], Any]) -> Any:
    """``hook(module, args, result)`` after the module ran, which may change it; the handle."""
    return module.register_forward_hook(_own(hook))


def on_call(module: Any, hook: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """``hook(module, args, kwargs, result)`` after the module ran; the handle."""
    return module.register_forward_hook(_own(hook), with_kwargs=True)


def hooks_on(model: Any) -> tuple[tuple[int, int, bool], ...]:
    """The hooks that this thread's passes meet: number of the module, of the hook, if harmless.

    transformers' own, by which a model that was once asked for its hidden states gives them, keep
    nothing of a pass that did not ask. Hooks for all modules there are have the number -1. Those
    that another thread set here let this one's passes through and are left out.
    """
    here = get_ident()
    return tuple(
        (number, key, str(getattr(hook, "__module__", "")).startswith("transformers."))
        for number, hooks in _dicts(model)
        for key, hook in list(hooks.items())  # at once: other threads' hooks come and go
        if getattr(hook, "thread", here) == here
    )


def _dicts(model: Any) -> Iterator[tuple[int, Any]]:
    """Every dict of hooks that a pass looks into, with the number of its module."""
    from torch.nn.modules import module as everywhere

    yield -1, everywhere._global_forward_pre_hooks
    yield -1, everywhere._global_forward_hooks
    for number, module in enumerate(model.modules()):
        yield number, module._forward_pre_hooks
        yield number, module._forward_hooks


def _own(hook: Callable[..., Any]) -> Callable[..., Any]:
    thread = get_ident()

    def seen(*args: Any) -> Any:
        return hook(*args) if get_ident() == thread else None

    seen.thread = thread  # type: ignore[attr-defined]  # read by `hooks_on`
    return seen


@contextmanager
def hooked(handles: Sequence[Any]) -> Iterator[None]:
    """Hooks for as long as the context lasts."""
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield
