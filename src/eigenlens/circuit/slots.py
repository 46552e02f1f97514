"""Which stored weights serve which attention call, where that is not one each.

A slot function takes the stack's geometry and its config; numbers that make no sense raise
ValueError, KeyError or TypeError, which the planner words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eigenlens.circuit.layouts import Geometry

# No size of a model comes near; what is larger is refused before anything is made of it.
LARGEST = 2**31
MOST_CALLS = 2**20


@dataclass(frozen=True)
class Slot:
    """One stored layer: the fields of its names, and which attention calls of a pass use it.

    `sizes` overrides sizes of the stack's geometry for this layer.
    """

    layer: int
    fields: Mapping[str, int]
    calls: tuple[int, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)


Slots = Callable[[Geometry, Mapping[str, Any]], list[Slot]]


def one_each(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """Every layer has weights of its own and is called once."""
    return [Slot(i, {"layer": i}, (i,)) for i in range(g.n_layers)]


def albert_groups(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """ALBERT: call i runs all inner layers of group int(i / (n_layers / n_groups)).

    The division is in floats, as the model does it, so that uneven groups agree with it.
    """
    groups = int(config.get("num_hidden_groups", 1))
    inner = int(config.get("inner_group_num", 1))
    calls: dict[tuple[int, int], list[int]] = {}
    for i in range(g.n_layers):
        group = int(i / (g.n_layers / groups))
        for k in range(inner):
            calls.setdefault((group, k), []).append(i * inner + k)
    return [
        Slot(group * inner + k, {"group": group, "inner": k}, tuple(at))
        for (group, k), at in sorted(calls.items())
    ]


def _whole(config: Mapping[str, Any], key: str) -> int:
    number = config[key]
    if type(number) is not int or not 0 < number < LARGEST:
        raise ValueError(f"{key} is {number!r}: expected a positive whole number")
    return number


def cycles(*keys: str) -> Slots:
    """All layers run one after the other, as often as the product of some config keys says."""

    def slots(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
        passes = 1
        for key in keys:
            passes *= _whole(config, key)
        if passes * g.n_layers > MOST_CALLS:
            raise ValueError(f"{' * '.join(keys)} is {passes}: no model runs its layers so often")
        return [
            Slot(i, {"layer": i}, tuple(range(i, passes * g.n_layers, g.n_layers)))
            for i in range(g.n_layers)
        ]

    return slots


def shared_blocks(key: str, kinds: str = "layers_block_type", word: str = "hybrid") -> Slots:
    """A few attention blocks, `key` of them, which the layers of one kind use in turn (Zamba).

    The weights stand in the files under the first layer that uses a block; only these are slots.
    `layer` is that layer, `calls` count the layers of the kind.
    """

    def slots(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
        blocks = _whole(config, key)
        listed = config[kinds]
        if not isinstance(listed, (list, tuple)):
            raise TypeError(f"{kinds} is {listed!r}: expected a list, one word a layer")
        layers = [i for i, kind in enumerate(listed) if kind == word]
        if not layers:
            raise ValueError(f"{kinds} names no layer {word!r}")
        calls = range(len(layers))
        return [
            Slot(layer, {"layer": layer}, tuple(calls[block::blocks]))
            for block, layer in enumerate(layers[:blocks])
        ]

    return slots


def twice_in_windows(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """Layers with a window have twice the value heads (MiMo-V2)."""
    kinds = config["layer_types"]
    twice = {"n_kv_heads": 2 * g.n_kv_heads}
    return [
        Slot(i, {"layer": i}, (i,), twice if kinds[i] == "sliding_attention" else {})
        for i in range(g.n_layers)
    ]


def funnel_blocks(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """Funnel: `block_sizes[b]` layers in block b, each called `block_repeats[b]` times on end."""
    sizes = list(config["block_sizes"])
    repeats = list(config.get("block_repeats") or [1] * len(sizes))
    numbers = [*sizes, *repeats]
    if len(sizes) != len(repeats) or not all(type(n) is int and n > 0 for n in numbers):
        raise ValueError(f"block_sizes is {sizes!r}, block_repeats {repeats!r}: one number a block")
    if sum(n * times for n, times in zip(sizes, repeats, strict=True)) > MOST_CALLS:
        raise ValueError(f"block_repeats is {repeats!r}: no model runs its layers so often")
    slots: list[Slot] = []
    at = 0
    for block, (size, times) in enumerate(zip(sizes, repeats, strict=True)):
        for inner in range(size):
            calls = tuple(range(at, at + times))
            slots.append(Slot(len(slots), {"block": block, "inner": inner}, calls))
            at += times
    return slots


def two_ways(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """Each layer is called twice, once for each of two streams (LXMERT)."""
    return [Slot(i, {"layer": i}, (2 * i, 2 * i + 1)) for i in range(g.n_layers)]
