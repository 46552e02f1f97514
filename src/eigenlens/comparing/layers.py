"""Which layers of two checkpoints stand beside each other, and what keeps others from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eigenlens.circuit.checkpoint import Checkpoint, Circuits
from eigenlens.circuit.plans import layer_numbers
from eigenlens.errors import ArchitectureError
from eigenlens.inert import inert


class Key(NamedTuple):
    """Stack, kind and real index of a layer."""

    stack: str
    kind: str
    layer: int


@dataclass(frozen=True)
class Paired:
    """Layers that both checkpoints have, by position, and those that only one has.

    Attributes
    ----------
    a, b
        The circuits, read when indexed.
    both
        Key and position in `a` and in `b`.
    only_a, only_b
        What only one of them has, with the reason where it is known.
    """

    a: Circuits
    b: Circuits
    both: tuple[tuple[Key, int, int], ...]
    only_a: tuple[dict[str, Any], ...]
    only_b: tuple[dict[str, Any], ...]


def pair_layers(
    a: Checkpoint, b: Checkpoint, stack: str | None = None, layers: Sequence[int] | None = None
) -> Paired:
    """The layers of both, by stack, kind and real index; nothing is read.

    A whole stack or single layers may be missing in one (no circuit there, a tower that was cut
    off). Stacks of one name but of other lengths are another matter: their layers of equal index
    are not each other's counterparts, unless `layers` says that they are.

    Raises
    ------
    ArchitectureError
        Stacks have other widths or lengths, or there is no layer that both have.
    OptionError
        Neither has the stack or the layers that were asked for.
    """
    _same_sizes(a, b, stack, with_depths=layers is None)
    chosen = _narrowed(a, b, stack, layers), _narrowed(b, a, stack, layers)
    places = [{_key(item): i for i, item in enumerate(c.items)} for c in chosen]
    both = tuple((key, i, places[1][key]) for key, i in places[0].items() if key in places[1])
    if not both:
        raise ArchitectureError(
            f"{_who(a)} and {_who(b)} have no layer in common: the first has "
            f"{_stacks(chosen[0])}, the second {_stacks(chosen[1])}; compare two checkpoints of "
            "one architecture"
        )
    lonely = [
        tuple(_lonely(key, other) for key in here if key not in there)
        for here, there, other in ((places[0], places[1], b), (places[1], places[0], a))
    ]
    return Paired(chosen[0], chosen[1], both, lonely[0], lonely[1])


def _key(item: Any) -> Key:
    return Key(item.stack, item.kind, item.layer)


def _narrowed(
    one: Checkpoint, other: Checkpoint, stack: str | None, layers: Sequence[int] | None
) -> Circuits:
    """The circuits asked for; a stack or layer that only the other one has is no error here."""
    whole = one.circuits()
    if stack is not None and not any(x.stack == stack for x in whole.items):
        other.circuits(stack=stack)  # raises where neither has it
        return Circuits([], None)
    there = {x.layer for x in whole.items if stack in (None, x.stack)}
    wanted = None
    if layers is not None:
        known = there | {x.layer for x in other.circuits().items if stack in (None, x.stack)}
        both = f"{_who(one)}, like {_who(other)},"
        wanted = [i for i in layer_numbers(layers, known, both) if i in there]
    return one.circuits(stack=stack, layers=wanted)


def _same_sizes(a: Checkpoint, b: Checkpoint, stack: str | None, with_depths: bool) -> None:
    """Refuse stacks of one name that have other widths or lengths; all differences are named."""
    sizes = [_sizes(a), _sizes(b)]
    found, lengths = [], []
    for name in sizes[0]:
        if stack in (None, name) and name in sizes[1]:
            (d, n), (e, m) = sizes[0][name], sizes[1][name]
            found += [f"d {d} and {e} in stack {inert(name)!r}"] * (d != e)
            lengths += [f"{n} and {m} layers in stack {inert(name)!r}"] * (n != m and with_depths)
    if not found and not lengths:
        return
    remedy = "compare two checkpoints of one architecture"
    if not found:
        remedy += ", or name the layers that correspond with --layers"
    raise ArchitectureError(
        f"{_who(a)} and {_who(b)} differ: {'; '.join(found + lengths)}; {remedy}"
    )


def _sizes(x: Checkpoint) -> dict[str, tuple[int, int]]:
    """Width and number of layers of every stack."""
    if x.stacks:
        return {
            plan.stack: (plan.geometry.d_model, plan.geometry.n_layers)
            for stack in x.stacks
            for plan in stack.layers
        }
    out: dict[str, tuple[int, int]] = {}
    for c in x.arrays:
        out[c.stack] = c.d_model, max(out.get(c.stack, (0, 0))[1], c.layer + 1)
    return out


def _lonely(key: Key, other: Checkpoint) -> dict[str, Any]:
    reason = next(
        (
            s.reason
            for s in other.skipped
            if s.stack == key.stack and s.kind in (None, key.kind) and s.layer in (-1, key.layer)
        ),
        "the other one has no such layer",
    )
    return {"stack": key.stack, "layer": key.layer, "kind": key.kind, "reason": reason}


def _stacks(circuits: Circuits) -> str:
    names = list(dict.fromkeys(f"{x.stack} ({x.kind})" for x in circuits.items))
    return inert(", ".join(names)) or "none"


def _who(x: Checkpoint) -> str:
    return inert(x.source_label)
