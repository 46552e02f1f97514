"""Tensors in the files that a plan passes over although a model with them computes another F."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from eigenlens.circuit.facts import Cases, Switch
from eigenlens.circuit.naming import bias_name, weight_name
from eigenlens.circuit.plans import LayerPlan, Skipped
from eigenlens.circuit.rows import Naming, Stack
from eigenlens.circuit.slots import one_each
from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.store import TensorStore

# What adapters and weight normalisation store under a module, beside its weight.
_BESIDE = re.compile(
    r"(?P<module>.+)\.(?:(?P<adapter>lora_|hada_|lokr_|ia3_|vera_|oft_|boft_)\w*(?:\..+)?"
    r"|weight_[gv]|parametrizations\.weight\..+)$"
)


def beside(names: Iterable[str]) -> Mapping[str, tuple[str, bool]]:
    """Modules whose weight is not all that acts: a tensor that says so, and if of an adapter."""
    found: dict[str, tuple[str, bool]] = {}
    for name in names:
        match = _BESIDE.match(name)
        if match:
            this = (name, match["adapter"] is not None)
            found[match["module"]] = min(this, found.get(match["module"], this))
    return found


def check_left_over(
    plan: LayerPlan,
    stack: Stack,
    store: TensorStore,
    names: frozenset[str],
    changed: Mapping[str, tuple[str, bool]],
) -> None:
    """Refuse a layer beside whose projections the files hold what its plan does not read.

    Parameters
    ----------
    plan, stack
        The layer; attention over other states than a layer's own is not checked.
    store, names, changed
        The files, their names, and what `beside` makes of these. Of a bias that is not planned the
        entries are read: zeros, which some quantisers write everywhere, change nothing.

    Raises
    ------
    FormatError
        If there is a bias although the plan has none, an adapter that is not merged, or a weight
        norm that is not folded in.
    """
    if plan.kind != "self":
        return
    for weight, bias, rule, field in (
        (plan.value, plan.value_bias, stack.value_bias, "value_bias"),
        (plan.output, plan.output_bias, stack.output_bias, "output_bias"),
    ):
        module = weight.removesuffix(".weight")
        name, is_adapter = changed.get(module, (None, False))
        if name is not None and is_adapter:
            raise FormatError(
                f"tensor '{inert(name)}' is an adapter's that is not merged into "
                f"'{inert(weight)}': merge it (merge_and_unload), or give the base model and the "
                "adapter's folder"
            )
        if name is not None:
            raise FormatError(
                f"tensor '{inert(name)}' belongs to a weight norm that is not folded into "
                f"'{inert(weight)}': save the model after removing it (remove_weight_norm)"
            )
        unread = bias_name(module)
        if bias is not None or plan.bias_alone or unread not in names:
            continue
        if np.any(store.read(unread)):
            key = f"the architecture's {field}"
            if isinstance(rule, (Switch, Cases)):
                key = f"config key '{inert(rule.key)}'"
            raise FormatError(
                f"the files hold '{inert(unread)}', but {key} says that there is no bias: correct "
                "it, or give the model that the config belongs to"
            )


def uncounted(
    stack: Stack, naming: Naming, prefix: str, n_layers: int, key: str, names: Iterable[str]
) -> Iterator[Skipped]:
    """Runs of layers that the files hold beyond those that the config counts."""
    template = weight_name(naming.value)
    if stack.slots is not one_each or template.count("{layer}") != 1 or template.count("{") != 1:
        return
    before, _, after = f"{prefix}{template}".partition("{layer}")
    held = {
        int(number)
        for name in names
        if name.startswith(before) and name.endswith(after)
        for number in (name[len(before) : len(name) - len(after)],)
        if number.isdecimal() and number.isascii() and len(number) < 10
    }
    left = sorted(layer for layer in held if layer >= n_layers)
    runs: list[list[int]] = []
    for layer in left:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    for run in runs:
        which = f"layer {run[0]}" if len(run) == 1 else f"layers {run[0]} to {run[-1]}"
        reason = f"the files hold {which}, which the config ({key}={n_layers}) does not count"
        yield Skipped(stack.name, run[0], reason, stack.kind)
