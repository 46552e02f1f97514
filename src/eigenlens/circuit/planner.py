"""The plan of each layer of one stack: every tensor that it needs is there and has its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from eigenlens.circuit.circuit import NormKind, Placement
from eigenlens.circuit.facts import decide
from eigenlens.circuit.layouts import LAYOUTS, Geometry, expect_shape, output_shape
from eigenlens.circuit.left_over import beside, check_left_over, uncounted
from eigenlens.circuit.naming import bias_name, find_naming, weight_name
from eigenlens.circuit.plans import LayerPlan, NormPlan, Skipped, StackPlan
from eigenlens.circuit.rows import Factor, Naming, Stack
from eigenlens.circuit.slots import Slot
from eigenlens.errors import FormatError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.store import TensorStore

# Checkpoints older than 2020 call a norm's weight and bias gamma and beta.
GAIN_NAMES, BIAS_NAMES = ("weight", "gamma"), ("bias", "beta")
LARGEST_SCALE = 1e6


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
    FormatError
        If the config claims more layers than the files can hold.
    ShapeError
        If a tensor's shape contradicts the config.
    """
    names = store.names()
    naming, prefix = find_naming(model_type, stack, names)
    # Shared weights may be called more often than there are tensors, but not by far.
    if geometry.n_layers > max(len(names), 4096):
        key = dict(geometry.keys).get("n_layers", "n_layers")
        raise FormatError(
            f"{model_type}: the config's {key}={geometry.n_layers} is more than these files can "
            f"hold ({len(names)} tensors): the config does not belong to these weights"
        )
    try:
        slots = stack.slots(geometry, config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError) as error:
        raise FormatError(
            f"{model_type}: the config's layer groups make no sense: {inert(str(error))[:200]}"
        ) from error
    planner = _Planner(stack, naming, prefix, geometry, config, store, names)
    layers: list[LayerPlan] = []
    skipped: list[Skipped] = []
    for slot in slots:
        reason = planner.why_skip(slot)
        if reason is None:
            layers.append(planner.plan(slot))
        else:
            skipped.append(Skipped(stack.name, slot.layer, reason, stack.kind))
    counted = dict(geometry.keys).get("n_layers", "n_layers")
    skipped += uncounted(stack, naming, prefix, geometry.n_layers, counted, names)
    return StackPlan(stack, naming, prefix, geometry, config, tuple(layers), tuple(skipped))


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

    def why_skip(self, slot: Slot) -> str | None:
        """Why a layer has no circuit, or None."""
        if self.stack.skip is not None:
            reason = self.stack.skip.says(self.config, slot.layer)
            if reason is not None:
                return reason
        for template, reason in self._others.items():
            if self._module(template, slot) in self._modules:
                return reason
        return None

    @cached_property
    def _others(self) -> Mapping[str, str]:
        return {template.removesuffix("."): why for template, why in self.stack.others.items()}

    @cached_property
    def _beside(self) -> Mapping[str, tuple[str, bool]]:
        return beside(self.names)

    @cached_property
    def _modules(self) -> frozenset[str]:
        """Every module path in the files; only made where a row needs it."""
        found: set[str] = set()
        for name in self.names:
            parts = name.split(".")
            found.update(".".join(parts[:i]) for i in range(1, len(parts) + 1))
        return frozenset(found)

    def plan(self, slot: Slot) -> LayerPlan:
        stack, naming = self.stack, self.naming
        g = self.geometry.at(slot.calls[0]) if self.geometry.per_layer else self.geometry
        if slot.sizes:
            g = g.with_sizes(slot.sizes)
        placement: Placement = decide(stack.placement, self.config)
        normed = decide(stack.normed, self.config)
        layout = LAYOUTS[decide(naming.layout or stack.layout, self.config)]
        value, output = self._module(naming.value, slot), self._module(naming.output, slot)
        alone = naming.value_bias is not None and decide(stack.value_bias, self.config)
        notes = [decide(note, self.config) for note in stack.notes]
        if stack.layer_notes is not None:
            notes.append(stack.layer_notes.says(self.config, slot.layer))
        scaled = naming.scale is not None and decide(stack.layer_scale, self.config)
        plan = LayerPlan(
            stack=stack.name,
            layer=slot.layer,
            kind=stack.kind,
            calls=slot.calls,
            value=self._need(weight_name(value)),
            output=self._need(weight_name(output)),
            value_bias=(
                self._need(self._module(naming.value_bias or "", slot))
                if alone
                else self._bias(value, decide(stack.value_bias, self.config))
            ),
            output_bias=self._bias(output, decide(stack.output_bias, self.config)),
            norm_in=(
                self._norm(decide(naming.norm_before, self.config), slot)
                if placement != "post" and normed and slot.layer not in stack.bare
                else None
            ),
            norm_out=(
                self._norm(naming.norm_after, slot)
                if normed and placement in ("post", "sandwich")
                else None
            ),
            placement=placement,
            layout=layout,
            orientation=stack.output_orientation,
            geometry=g,
            causal=decide(stack.causal, self.config),
            output_scale=self._scale(stack.output_scale),
            scale=self._need(self._module(naming.scale or "", slot)) if scaled else None,
            value_scale=self._scale(stack.value_scale),
            bias_alone=alone,
            notes=tuple(note for note in notes if note is not None),
        )
        self._check(plan)
        check_left_over(plan, stack, self.store, self.names, self._beside)
        return plan

    def _check(self, plan: LayerPlan) -> None:
        g, layout, d = plan.geometry, plan.layout, plan.geometry.d_model
        expected = output_shape(plan.orientation, g)
        expect_shape(plan.output, self._flat(plan.output), expected, plan.orientation, g)
        stored = self._flat(plan.value)
        # Before an index of the values is made, whose size the config alone would decide.
        if max(g.query_width, g.key_width, g.value_width) > 8 * max(*stored, d):
            expect_shape(plan.value, stored, (g.value_width, g.width_in), layout.name, g)
        layout.check(g, g.width_in, plan.value, stored)
        if plan.value_bias and plan.bias_alone:
            shape, width = self._shape(plan.value_bias), (g.value_width,)
            expect_shape(plan.value_bias, shape, width, "the values' alone", g)
        elif plan.value_bias:
            layout.check(g, g.width_in, plan.value_bias, self._shape(plan.value_bias), bias=True)
        widths = {name: g.width_in for p in (plan.norm_in,) if p for name in (p.gain, p.bias)}
        for name in plan.tensors:
            if name not in (plan.value, plan.output, plan.value_bias):
                found, size = self._shape(name), widths.get(name, d)
                flat = found if len(found) == 1 else tuple(n for n in found if n != 1)
                expect_shape(name, flat or (1,), (size,), "one a coordinate", g)

    def _flat(self, name: str) -> tuple[int, ...]:
        """The shape of a weight as a matrix: a convolution of width 1, or heads apart, is one."""
        shape = self._shape(name)
        return shape if len(shape) < 2 else (shape[0], prod(shape[1:]))

    def _module(self, template: str, slot: Slot) -> str:
        whole = "=" if template.startswith("=") else ""
        return whole + self.prefix + template.removeprefix("=").format(**slot.fields)

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
        name = bias_name(module)
        if self.naming.bias_if_present:
            return name if name in self.names else None
        return self._need(name) if expected else None

    def _norm(self, template: str | None, slot: Slot) -> NormPlan | None:
        if template is None:
            return None
        module = self._module(template, slot)
        kind: NormKind = decide(self.stack.norm_kind, self.config)
        offset = effective_offset(self.stack, self.naming)
        if not decide(self.stack.norm_affine, self.config):
            return NormPlan(kind, module, None, None, offset)
        gain = self._either(module, GAIN_NAMES)
        biased = kind == "layernorm" and decide(self.stack.norm_bias, self.config)
        bias = self._either(module, BIAS_NAMES) if biased else None
        return NormPlan(kind, module, gain, bias, offset)

    def _either(self, module: str, suffixes: tuple[str, ...]) -> str:
        names = [f"{module}.{suffix}" for suffix in suffixes]
        present = [name for name in names if name in self.names]
        return self._need((present or names)[0])

    def _scale(self, rule: str | tuple[Factor, ...] | None) -> float:
        factors = (Factor(rule),) if isinstance(rule, str) else rule or ()
        scale = 1.0
        for factor in factors:
            number = self._number(factor.key, factor.default)
            if factor.power != 1.0 and number <= 0:
                raise FormatError(
                    f"config key {factor.key!r} is {number:g}: expected a positive number"
                )
            scale *= number**factor.power
        return scale

    def _number(self, key: str, default: float | None) -> float:
        number = self.config.get(key)
        if number is None:
            if default is not None:
                return default
            raise FormatError(
                f"the config does not state '{inert(key)}', which the rules name as a scale"
                f"{inert(nearest(key, self.config))}: correct the key, or leave the scale out"
            )
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise FormatError(
                f"config key {key!r} is {inert(repr(number))[:80]}: expected a number"
            )
        if not abs(number) <= LARGEST_SCALE:
            raise FormatError(
                f"config key {key!r} is {inert(repr(number))[:80]}: expected a number of at most "
                f"{LARGEST_SCALE:g}"
            )
        return float(number)
