"""Layers that are left out, and names that files have, as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eigenlens.inert import inert
from eigenlens.shown.names import Names

__all__ = ["Names", "bare_names", "left_out_texts"]


def left_out_texts(
    groups: Iterable[tuple[str, str]], skipped: Iterable[tuple[str, str | None, int, str]]
) -> list[str]:
    """``layer 3 left out: it has no attention``, a line a layer.

    `groups` are (stack, kind) of the layers that are shown; `skipped` (stack, kind, layer, reason)
    of the others, with layer -1 for all of a stack and kind, kind None for all of a stack.
    """
    skipped = list(skipped)
    every = {*groups, *((stack, kind) for stack, kind, _, _ in skipped if kind is not None)}
    names = Names(every)
    out = []
    for stack, kind, layer, reason in skipped:
        if layer >= 0 and kind is not None:
            name = names.named(stack, kind, layer)
        elif kind == "cross" or (kind == "self" and (stack, "cross") in every):
            name = f"{kind} attention of {stack}"
        else:
            name = stack
        out.append(inert(f"{name} left out: {reason}"))
    return out


def bare_names(full: Sequence[str]) -> list[str]:
    """Full names, of which the number is kept where all are of one stack and kind."""
    one = len({name.rpartition(".")[0] for name in full}) <= 1
    return [inert(name.rpartition(".")[2] if one else name) for name in full]
