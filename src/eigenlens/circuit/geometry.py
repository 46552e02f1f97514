"""The sizes of a stack, out of a config: stated keys, the config class's defaults, usual rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eigenlens.circuit.config import ABSENT, Config
from eigenlens.circuit.facts import decide
from eigenlens.circuit.layouts import Geometry
from eigenlens.circuit.rows import KEYS, Architecture, Stack
from eigenlens.circuit.slots import LARGEST
from eigenlens.circuit.stages import Stages
from eigenlens.errors import ArchitectureError, FormatError, ShapeError
from eigenlens.inert import inert


def find_geometry(architecture: Architecture, stack: Stack, config: Mapping[str, Any]) -> Geometry:
    """The sizes of a stack: config keys, then the config class's defaults, then the usual rules.

    The rules: n_kv_heads = n_heads and head_dim = d_model / n_heads where the model states neither.

    Raises
    ------
    FormatError
        If a size is not a positive whole number, or two keys for one size disagree.
    ArchitectureError
        If a size is stated nowhere.
    ShapeError
        If heads do not divide what they must divide.
    """
    view = config if isinstance(config, Config) else Config(config)
    if isinstance(stack.slots, Stages):
        return stack.slots.geometry(view)
    own = {**architecture.keys, **stack.keys}
    sizes: dict[str, int] = {}
    named: dict[str, str] = {}
    listed: dict[str, tuple[int, ...]] = {}
    for size, usual in KEYS.items():
        keys = decide(own[size], view) if size in own else _known_keys(view, usual)
        found = _stated(view, size, keys)
        if found is None:
            found = _assumed(view, stack, size, keys)
        if found is None:
            continue
        named[size], value = found
        if isinstance(value, list) and size in stack.per_layer:
            listed[size] = tuple(_checked(named[size], n) for n in value)
            value = value[0] if value else 0
        sizes[size] = _checked(named[size], value)
    for size in ("d_model", "n_layers"):
        if size not in sizes:
            raise ArchitectureError(
                f"the config does not state {size}: add one of {', '.join(KEYS[size])}"
            )
    if "n_heads" not in sizes:
        if "head_dim" not in sizes:
            raise ArchitectureError(
                f"the config does not state n_heads: add one of {', '.join(KEYS['n_heads'])}"
            )
        sizes["n_heads"] = max(1, sizes["d_model"] // sizes["head_dim"])
        named["n_heads"] = "n_heads (= d_model / head_dim)"
    d, n = sizes["d_model"], sizes["n_heads"]
    if "n_kv_heads" not in sizes:
        sizes["n_kv_heads"], named["n_kv_heads"] = n, "n_kv_heads (= n_heads)"
        if "n_heads" in listed:
            listed["n_kv_heads"] = listed["n_heads"]
    if "head_dim" not in sizes:
        if d % n:
            raise ShapeError(
                f"{named['n_heads']}={n} does not divide {named['d_model']}={d}, and the config "
                "states no head_dim: heads must be of equal width"
            )
        sizes["head_dim"], named["head_dim"] = d // n, "head_dim (= d_model / n_heads)"
    short = [size for size, numbers in listed.items() if len(numbers) < sizes["n_layers"]]
    if short:
        raise FormatError(
            f"config key {named[short[0]]!r} lists {len(listed[short[0]])} layers, but "
            f"{named['n_layers']}={sizes['n_layers']}"
        )
    if n % sizes["n_kv_heads"]:
        raise ShapeError(
            f"{named['n_heads']}={n} is not a multiple of "
            f"{named['n_kv_heads']}={sizes['n_kv_heads']}: heads share values in equal groups"
        )
    groups = sizes.get("groups", 1)
    if sizes.get("d_in", d) % groups or sizes["n_kv_heads"] * sizes["head_dim"] % groups:
        raise ShapeError(
            f"{named['groups']}={groups} does not divide {named['d_model']}={d}: the groups of the "
            "value convolution must be of equal width"
        )
    per_layer = tuple(sorted(listed.items()))
    return Geometry(**sizes, keys=tuple(sorted(named.items())), per_layer=per_layer)


def _known_keys(view: Config, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the usual keys the config's class reads; all where the class is not known."""
    canonical = usual[0] if usual else ""
    if canonical in view.defaults:
        return (canonical,)
    renamed = view.defaults.get("@map", {}).get(canonical)
    return usual if renamed is None else (renamed, canonical)


def _stated(view: Config, size: str, keys: tuple[str, ...]) -> tuple[str, Any] | None:
    stated = {k: v for k in keys for v in (view.look_up(k),) if v is not ABSENT and v is not None}
    for key, value in stated.items():
        if not isinstance(value, list):
            _checked(key, value)
    numbers = list(stated.values())
    # A mapped key looks up its twin as well, so both are compared as they stand in the file.
    twins = {k: view.stated[k] for k in keys if view.stated.get(k) is not None}
    if any(value != numbers[0] for value in [*numbers, *twins.values()]):
        raise FormatError(
            f"the config states {size} twice with different numbers: "
            f"{', '.join(f'{k}={inert(repr(v))}' for k, v in (stated | twins).items())}; keep the "
            "right one"
        )
    return next(iter(stated.items())) if stated else None


def _assumed(
    view: Config, stack: Stack, size: str, keys: tuple[str, ...]
) -> tuple[str, Any] | None:
    if any(view.look_up(key) is not ABSENT for key in keys):
        return None  # stated as null: the usual rule
    if size in stack.defaults:
        return f"{size} (default)", stack.defaults[size]
    for key in keys:
        value = view.default(key)
        if value is not ABSENT and value is not None:
            return f"{key} (not stated; default of {view.model_type})", value
    return None


def _checked(key: str, number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise FormatError(
            f"config key {key!r} is {inert(repr(number))[:80]}: expected a positive whole number"
        )
    if number > LARGEST:
        raise FormatError(f"config key {key!r} is {number:.3g}: no model is that large")
    return number
