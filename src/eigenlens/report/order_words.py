"""What leads the layers of a model: under one order, or under one a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from eigenlens.inert import inert
from eigenlens.shown.names import OneLayer, by_group
from eigenlens.spectra.orders import ORDERS, resolve_order


class Ordered(OneLayer, Protocol):
    """A layer and the order under which one of its eigenvalues leads."""

    @property
    def order(self) -> str:
        """A name of `ORDERS`."""


def orders_of(layers: Iterable[Ordered]) -> dict[str, list[str]]:
    """The orders that occur, each with the names of the stacks and kinds that it holds for.

    A model of several stacks can have several: of a norm before and of one behind the sublayers.
    """
    found: dict[str, list[str]] = {}
    for name, group in by_group(layers).items():
        for order in dict.fromkeys(x.order for x in group if x.order in ORDERS):
            found.setdefault(order, []).append(name)
    return found


def leading_text(layers: Sequence[Ordered], *, meaning: bool = False) -> str:
    """``leading by real``, or ``leading by real (vision), by residual (text)``."""
    found = orders_of(layers)
    several = len(found) > 1
    told = []
    for order, where in found.items():
        notes = [", ".join(where)] * several + [ORDERS[order].meaning] * meaning
        told.append(f"by {order}{_bracket(notes)}")
    return f"leading {', '.join(told)}" if told else ""


def _bracket(notes: Sequence[str]) -> str:
    return f" ({': '.join(notes)})" if notes else ""


def unusual_text(layers: Sequence[Ordered], asked: str, placement: str | None) -> str:
    """A remark where the order that was asked for does not suit the model, else nothing.

    `placement` is that of the first stack; where there are others, only that one is spoken of.
    """
    if asked == "auto" or placement is None or resolve_order("auto", placement).name == asked:
        return ""
    stacks = list(dict.fromkeys(x.stack for x in layers))
    whose = "this model" if len(stacks) == 1 else inert(stacks[0])
    return f"(asked for: {whose} is {placement}-norm, where order auto takes another)"
