"""From a config, a row of `ARCHITECTURES` and the names in the files to a plan per layer.

Only names and shapes are looked at here; nothing is read. Everything the plan needs is checked:
the sizes that the config states, that every layer is there, that each tensor has its shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.circuit import Kind, NormKind, Placement
from eigenlens.circuit.layouts import (
    LAYOUTS,
    Geometry,
    Layout,
    Orientation,
    expect_shape,
    output_shape,
)
from eigenlens.circuit.rows import KEYS, Architecture, Naming, Slot, Stack, decide
from eigenlens.errors import ArchitectureError, FormatError, ShapeError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.store import TensorStore

# Checkpoints older than 2020 call a norm's weight and bias gamma and beta.
GAIN_NAMES, BIAS_NAMES = ("weight", "gamma"), ("bias", "beta")


@dataclass(frozen=True)
class NormPlan:
    """Where a norm's gain and bias are; `gain` None means that it has no elementwise gain."""

    kind: NormKind
    module: str
    gain: str | None
    bias: str | None
    offset: float


@dataclass(frozen=True)
class LayerPlan:
    """Which tensors make one layer's circuit, and how they are laid out.

    Attributes
    ----------
    stack, layer, kind
        Where the layer sits; `layer` is its real 0-based index (ALBERT: of the stored layer).
    calls
        Which attention calls of a forward pass use it; `steps` is their number.
    value, output
        Names of the (possibly fused) value projection's and the output projection's weights.
    value_bias, output_bias
        Names of their biases, or None.
    norm_in, norm_out, placement
        The norms around the layer.
    layout, orientation, geometry
        How the value projection is fused, how the output projection is stored, the sizes.
    causal
        Whether a token sees only what stands before it.
    output_scale
        Factor on the attention output before the residual sum.
    """

    stack: str
    layer: int
    kind: Kind
    calls: tuple[int, ...]
    value: str
    output: str
    value_bias: str | None
    output_bias: str | None
    norm_in: NormPlan | None
    norm_out: NormPlan | None
    placement: Placement
    layout: Layout
    orientation: Orientation
    geometry: Geometry
    causal: bool
    output_scale: float = 1.0

    @property
    def steps(self) -> int:
        """How often a forward pass calls this layer's weights."""
        return len(self.calls)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of every tensor that the circuit is made of, norms included."""
        norms = [n for p in (self.norm_in, self.norm_out) if p for n in (p.gain, p.bias)]
        names = [self.value, self.output, self.value_bias, self.output_bias, *norms]
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True)
class StackPlan:
    """The layers of one stack, and the prefix that its names have in these files."""

    stack: Stack
    naming: Naming
    prefix: str
    geometry: Geometry
    config: Mapping[str, Any]
    layers: tuple[LayerPlan, ...]


def find_architecture(config: Mapping[str, Any]) -> tuple[str, Architecture]:
    """The row for a config's model_type.

    Raises
    ------
    ArchitectureError
        With the nearest known types and the list of all.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return model_type, ARCHITECTURES[model_type]
    known = sorted(ARCHITECTURES)
    if not isinstance(model_type, str):
        raise ArchitectureError(
            f"the config has no model_type (found {inert(str(model_type))}): it must name one of "
            f"{', '.join(known)}"
        )
    raise ArchitectureError(
        f"model_type '{inert(model_type)}' is unknown{nearest(model_type, known)}: known are "
        f"{', '.join(known)}"
    )


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
    aliases = {**KEYS, **architecture.keys, **stack.keys}
    defaults = {**architecture.defaults, **stack.defaults}
    sizes: dict[str, int] = {}
    named: dict[str, str] = {}
    for size, keys in aliases.items():
        stated = {key: config[key] for key in keys if config.get(key) is not None}
        for key, number in stated.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise FormatError(
                    f"config key {key!r} is {inert(repr(number))}: expected a positive whole number"
                )
        if len(set(stated.values())) > 1:
            raise FormatError(
                f"the config states {size} twice with different numbers: "
                f"{', '.join(f'{k}={v}' for k, v in stated.items())}; keep the right one"
            )
        if stated:
            named[size], sizes[size] = next(iter(stated.items()))
        elif size in defaults and not any(key in config for key in keys):
            named[size], sizes[size] = f"{size} (default)", defaults[size]
    for size in ("d_model", "n_layers", "n_heads"):
        if size not in sizes:
            raise ArchitectureError(
                f"the config does not state {size}: add one of {', '.join(aliases[size])}"
            )
    d, n = sizes["d_model"], sizes["n_heads"]
    if "n_kv_heads" not in sizes:
        sizes["n_kv_heads"], named["n_kv_heads"] = n, "n_kv_heads (= n_heads)"
    if "head_dim" not in sizes:
        if d % n:
            raise ShapeError(
                f"{named['n_heads']}={n} does not divide {named['d_model']}={d}, and the config "
                "states no head_dim: heads must be of equal width"
            )
        sizes["head_dim"], named["head_dim"] = d // n, "head_dim (= d_model / n_heads)"
    if n % sizes["n_kv_heads"]:
        raise ShapeError(
            f"{named['n_heads']}={n} is not a multiple of "
            f"{named['n_kv_heads']}={sizes['n_kv_heads']}: heads share values in equal groups"
        )
    return Geometry(**sizes, keys=tuple(sorted(named.items())))


def sub_config(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The part of a composite config that describes one stack."""
    for key in path:
        found = config.get(key)
        if not isinstance(found, Mapping):
            raise ArchitectureError(f"the config has no section {key!r}, which describes a stack")
        config = found
    return config


def plan_model(config: Mapping[str, Any], store: TensorStore) -> list[StackPlan]:
    """Plan every layer of every stack.

    Raises
    ------
    ArchitectureError, FormatError, ShapeError
        See `find_architecture`, `find_geometry`, `plan_stack`.
    """
    model_type, architecture = find_architecture(config)
    plans = []
    for stack in architecture.stacks:
        part = sub_config(config, stack.config_path)
        geometry = find_geometry(architecture, stack, part)
        plans.append(plan_stack(model_type, stack, geometry, part, store))
    return plans


def find_naming(model_type: str, stack: Stack, names: frozenset[str]) -> tuple[Naming, str]:
    """The naming scheme and prefix under which a stack's value projections are in the files.

    Raises
    ------
    ArchitectureError
        If none is, or more than one is and none of them is the model's usual one.
    """
    found: dict[tuple[str, str], Naming] = {}
    for naming in stack.namings:
        template = re.escape(f"{naming.value}.weight")
        pattern = re.compile(
            r"(?P<prefix>(?:[^.]+\.)*?)" + re.sub(r"\\{\w+\\}", r"\\d+", template) + "$"
        )
        for name in names:
            match = pattern.match(name)
            if match:
                found[naming.value, match["prefix"]] = naming
    usual = {key: naming for key, naming in found.items() if key[1] in naming.prefixes}
    chosen = usual or found
    if not chosen:
        templates = [f"{n.prefixes[-1]}{n.value}.weight" for n in stack.namings]
        raise ArchitectureError(
            f"{model_type}: no value projection of the {stack.name} is in these files: expected "
            f"{' or '.join(repr(t) for t in templates)}{inert(nearest(templates[0], names))}; "
            "the config does not belong to these weights"
        )
    if len(chosen) > 1:
        places = sorted(f"{prefix}{value}" for value, prefix in chosen)
        raise ArchitectureError(
            f"{model_type}: the {stack.name} is in these files more than once: "
            f"{', '.join(inert(p) for p in places)}; keep one of them"
        )
    (_, prefix), naming = next(iter(chosen.items()))
    return naming, prefix


def plan_stack(
    model_type: str,
    stack: Stack,
    geometry: Geometry,
    config: Mapping[str, Any],
    store: TensorStore,
) -> StackPlan:
    """Plan the layers of one stack and check every tensor's presence and shape.

    Raises
    ------
    ArchitectureError
        If a tensor is missing: with its name, the nearest names and the file.
    ShapeError
        If a tensor's shape contradicts the config.
    """
    names = store.names()
    naming, prefix = find_naming(model_type, stack, names)
    try:
        slots = stack.slots(geometry, config)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise FormatError(
            f"{model_type}: the config's layer groups make no sense: {error}"
        ) from error
    planner = _Planner(stack, naming, prefix, geometry, config, store, names)
    layers = tuple(planner.plan(slot) for slot in slots)
    return StackPlan(stack, naming, prefix, geometry, config, layers)


def effective_offset(stack: Stack, naming: Naming) -> float:
    """What is added to a stored norm gain: the naming scheme's word, else the stack's."""
    return stack.gain_offset if naming.gain_offset is None else naming.gain_offset


@dataclass(frozen=True)
class _Planner:
    stack: Stack
    naming: Naming
    prefix: str
    geometry: Geometry
    config: Mapping[str, Any]
    store: TensorStore
    names: frozenset[str]

    def plan(self, slot: Slot) -> LayerPlan:
        stack, naming, g = self.stack, self.naming, self.geometry
        placement: Placement = decide(stack.placement, self.config)
        layout = LAYOUTS[stack.layout]
        value, output = self._module(naming.value, slot), self._module(naming.output, slot)
        plan = LayerPlan(
            stack=stack.name,
            layer=slot.layer,
            kind=stack.kind,
            calls=slot.calls,
            value=self._need(f"{value}.weight"),
            output=self._need(f"{output}.weight"),
            value_bias=self._bias(value, decide(stack.value_bias, self.config)),
            output_bias=self._bias(output, decide(stack.output_bias, self.config)),
            norm_in=self._norm(naming.norm_before, slot) if placement != "post" else None,
            norm_out=(
                self._norm(naming.norm_after, slot) if placement in ("post", "sandwich") else None
            ),
            placement=placement,
            layout=layout,
            orientation=stack.output_orientation,
            geometry=g,
            causal=decide(stack.causal, self.config),
            output_scale=self._scale(),
        )
        d = g.d_model
        layout.check(g, d, plan.value, self._shape(plan.value))
        if plan.value_bias:
            layout.check(g, d, plan.value_bias, self._shape(plan.value_bias), bias=True)
        expected = output_shape(plan.orientation, g)
        expect_shape(plan.output, self._shape(plan.output), expected, plan.orientation, g)
        for name in plan.tensors:
            if name not in (plan.value, plan.output, plan.value_bias):
                expect_shape(name, self._shape(name), (d,), "one a coordinate", g)
        return plan

    def _module(self, template: str, slot: Slot) -> str:
        return self.prefix + template.format(**slot.fields)

    def _need(self, name: str) -> str:
        self._shape(name)
        return name

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self.store.info(name)  # raises with the nearest names
        quantised = any(f"{name}{end}" in self.names for end in ("_scale", "_scale_inv"))
        if info.dtype.startswith(("I", "U", "BOOL")) and not info.dtype.startswith("IQ"):
            quantised = True
        if quantised:
            raise FormatError(
                f"{inert(info.where)}: tensor '{inert(name)}' is quantised (stored as "
                f"{info.dtype}): use the unquantised checkpoint, or a GGUF of it"
            )
        return info.shape

    def _bias(self, module: str, expected: bool) -> str | None:
        name = f"{module}.bias"
        if self.naming.bias_if_present:
            return name if name in self.names else None
        return self._need(name) if expected else None

    def _norm(self, template: str | None, slot: Slot) -> NormPlan | None:
        if template is None:
            return None
        module, kind = self._module(template, slot), self.stack.norm_kind
        offset = effective_offset(self.stack, self.naming)
        if not decide(self.stack.norm_affine, self.config):
            return NormPlan(kind, module, None, None, offset)
        gain = self._either(module, GAIN_NAMES)
        bias = self._either(module, BIAS_NAMES) if kind == "layernorm" else None
        return NormPlan(kind, module, gain, bias, offset)

    def _either(self, module: str, suffixes: tuple[str, ...]) -> str:
        names = [f"{module}.{suffix}" for suffix in suffixes]
        present = [name for name in names if name in self.names]
        return self._need((present or names)[0])

    def _scale(self) -> float:
        key = self.stack.output_scale
        scale = 1.0 if key is None else self.config.get(key, 1.0)
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise FormatError(f"config key {key!r} is {inert(repr(scale))}: expected a number")
        return float(scale)
