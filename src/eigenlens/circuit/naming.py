"""Under which naming scheme and prefix a stack's tensors are in the files."""

from __future__ import annotations

import re

from eigenlens.circuit.rows import Naming, Stack
from eigenlens.errors import ArchitectureError, nearest
from eigenlens.inert import inert


class StackAbsentError(ArchitectureError):
    """No value projection of a stack is in the files."""


def weight_name(module: str) -> str:
    """The full name of a weight, for a module or for a parameter that a row names in full."""
    if module.startswith("="):
        return module[1:]
    return module if module.endswith("_weight") else f"{module}.weight"


def bias_name(module: str) -> str:
    """The full name of the bias beside `weight_name`."""
    if module.endswith("_weight"):
        return f"{module.removesuffix('_weight')}_bias"
    return f"{module}.bias"


def find_naming(model_type: str, stack: Stack, names: frozenset[str]) -> tuple[Naming, str]:
    """The naming scheme and prefix under which a stack's value projections are in the files.

    Raises
    ------
    ArchitectureError
        If none is, or more than one is and none of them is the model's usual one.
    """
    found: dict[tuple[str, str], Naming] = {}
    for naming in stack.namings:
        pattern = _pattern(weight_name(naming.value))
        if not _told_apart(stack, naming, names):
            continue
        for name in names:
            match = pattern.match(name)
            if match and _stands(stack, match["prefix"]):
                found[naming.value, match["prefix"]] = naming
    usual = {key: naming for key, naming in found.items() if key[1] in naming.prefixes}
    chosen = usual or found
    if not chosen:
        templates = [f"{n.prefixes[-1]}{weight_name(n.value)}" for n in stack.namings]
        raise StackAbsentError(
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


def _told_apart(stack: Stack, naming: Naming, names: frozenset[str]) -> bool:
    """Whether the files have a naming's other names, where several call the values the same."""
    if not any(n.value == naming.value for n in stack.namings if n is not naming):
        return True
    needed = [weight_name(naming.output), *([naming.value_bias] if naming.value_bias else [])]
    return all(any(_pattern(t).match(name) for name in names) for t in needed)


def _pattern(template: str) -> re.Pattern[str]:
    """What matches a name of any prefix with any numbers in the fields of a template."""
    fields = re.sub(r"\\{\w+\\}", r"\\d+", re.escape(template))
    return re.compile(r"(?P<prefix>(?:[^.]+\.)*?)" + fields + "$")


def _stands(stack: Stack, prefix: str) -> bool:
    """Whether a prefix is one that the stack's tensors may have in a composite's files."""
    parts = f".{prefix}"
    inside = not stack.within or any(f".{w}" in parts for w in stack.within)
    return inside and not any(f".{w}" in parts for w in stack.outside)
