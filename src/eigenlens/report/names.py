"""What layers are called everywhere: ``1`` where all are of one kind, else ``decoder.1``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from eigenlens.inert import inert
from eigenlens.report.words import layer_list

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
        full = f"{stack}.{'cross.' if kind == 'cross' else ''}{layer}"
        return str(layer) if self.one else inert(full)

    def __call__(self, x: OneLayer) -> str:
        """The name in a table."""
        return self.name(x.stack, x.kind, x.layer)

    def phrase(self, x: OneLayer) -> str:
        """The name in a sentence: ``layer 1``, or ``decoder.1``."""
        return f"layer {self(x)}" if self.one else self(x)

    def phrases(self, layers: Sequence[OneLayer]) -> str:
        """Several in a sentence: ``layers 0, 2-4``, or full names, a long list cut."""
        if self.one:
            noun = "layers" if len(layers) > 1 else "layer"
            return f"{noun} {layer_list([x.layer for x in layers])}"
        more = " and more" * (len(layers) > MOST_NAMES)
        return ", ".join(self(x) for x in layers[:MOST_NAMES]) + more


def left_out_texts(
    groups: Iterable[tuple[str, str]], skipped: Iterable[tuple[str, str, int, str]]
) -> list[str]:
    """``layer 3 left out: it has no attention``, a line a layer.

    `groups` are (stack, kind) of the layers that are shown; `skipped` (stack, kind, layer, reason)
    of the others, with layer -1 for a whole stack.
    """
    skipped = list(skipped)
    names = Names({*groups, *((stack, kind) for stack, kind, _, _ in skipped)})
    out = []
    for stack, kind, layer, reason in skipped:
        name = names.name(stack, kind, layer)
        name = f"layer {name}" if names.one else name
        out.append(inert(f"{stack if layer < 0 else name} left out: {reason}"))
    return out


def bare_names(full: Sequence[str]) -> list[str]:
    """Full names, of which the number is kept where all are of one stack and kind."""
    one = len({name.rpartition(".")[0] for name in full}) <= 1
    return [inert(name.rpartition(".")[2] if one else name) for name in full]
