"""What layers are called where several are told of: ``1``, or ``decoder.1`` of several kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from eigenlens.inert import inert
from eigenlens.shown.words import layer_list

MOST_NAMES = 6  # in a list of full names


class OneLayer(Protocol):
    """Anything that is about one layer."""

    @property
    def stack(self) -> str:
        """Which stack."""

    @property
    def kind(self) -> str:
        """``self`` or ``cross``."""

    @property
    def layer(self) -> int:
        """Its number."""


Layer = TypeVar("Layer", bound=OneLayer)


def group_name(stack: str, kind: str) -> str:
    """What the layers of one stack and kind are called: ``decoder``, or ``decoder.cross``.

    As the file has it: it goes through `inert` before it is shown.
    """
    return f"{stack}.cross" if kind == "cross" else stack


def full_name(stack: str, kind: str, layer: int) -> str:
    """``decoder.3``, or ``decoder.cross.3`` for cross attention; as `group_name`."""
    return f"{group_name(stack, kind)}.{layer}"


def by_group(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    """Layers by stack and kind, each group under its name, fit for a terminal."""
    found: dict[str, list[Layer]] = {}
    for x in layers:
        found.setdefault(inert(group_name(x.stack, x.kind)), []).append(x)
    return found


class Names:
    """The names of the layers that are shown together, fit for a terminal.

    Parameters
    ----------
    groups
        (stack, kind) of everything that is shown.

    Attributes
    ----------
    one
        There is one stack and one kind, so a number is enough.
    """

    def __init__(self, groups: Iterable[tuple[str, str]]) -> None:
        self.one = len(set(groups)) <= 1

    @classmethod
    def of(cls, layers: Iterable[OneLayer]) -> Names:
        """The names of these layers."""
        return cls((x.stack, x.kind) for x in layers)

    def name(self, stack: str, kind: str, layer: int) -> str:
        """``1``, or ``decoder.1`` and ``decoder.cross.1`` where there are several groups."""
        return str(layer) if self.one else inert(full_name(stack, kind, layer))

    def __call__(self, x: OneLayer) -> str:
        """The name in a table."""
        return self.name(x.stack, x.kind, x.layer)

    def phrase(self, x: OneLayer) -> str:
        """The name in a sentence: ``layer 1``, or ``decoder.1``."""
        return self.named(x.stack, x.kind, x.layer)

    def named(self, stack: str, kind: str, layer: int) -> str:
        """`phrase` of what is no object."""
        name = self.name(stack, kind, layer)
        return f"layer {name}" if self.one else name

    def phrases(self, layers: Sequence[OneLayer]) -> str:
        """Several in a sentence: ``layers 0, 2-4``, or full names, a long list cut."""
        if self.one:
            noun = "layers" if len(layers) > 1 else "layer"
            return f"{noun} {layer_list([x.layer for x in layers])}"
        rest = len(layers) - MOST_NAMES
        more = f" and {rest} more" if rest > 0 else ""
        return ", ".join(self(x) for x in layers[:MOST_NAMES]) + more
