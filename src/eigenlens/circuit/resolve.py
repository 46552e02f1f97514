"""From a config, a row of `ARCHITECTURES` and the names in the files to a plan per layer.

Only names and shapes are looked at here; nothing is read. Everything the plan needs is checked:
the sizes that the config states, that every layer is there, that each tensor has its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.architectures.gguf import gguf_row
from eigenlens.circuit.architectures.refused import REFUSED
from eigenlens.circuit.config import Config
from eigenlens.circuit.facts import decide
from eigenlens.circuit.geometry import find_geometry
from eigenlens.circuit.naming import StackAbsentError, find_naming
from eigenlens.circuit.planner import plan_stack
from eigenlens.circuit.plans import Skipped, StackPlan
from eigenlens.circuit.rows import Architecture, Readout, Stack, Tower
from eigenlens.errors import ArchitectureError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.store import TensorStore


def find_architecture(config: Mapping[str, Any]) -> tuple[str, Architecture]:
    """The row for a config's model_type.

    Raises
    ------
    ArchitectureError
        With the nearest known types, or the reason why a type has no row.
    """
    model_type = config.get("model_type")
    if config.get("gguf") is True:
        return str(model_type), gguf_row(config)
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return model_type, ARCHITECTURES[model_type]
    if isinstance(model_type, str) and model_type in REFUSED:
        raise ArchitectureError(f"model_type '{model_type}' has no F: {REFUSED[model_type]}")
    known = sorted(ARCHITECTURES)
    hint = f"{len(known)} types are known, docs/architectures.md lists them"
    if not isinstance(model_type, str):
        raise ArchitectureError(
            f"the config has no model_type (found {inert(str(model_type))[:80]}): add it; {hint}"
        )
    raise ArchitectureError(
        f"model_type '{inert(model_type)}' is unknown{nearest(model_type, known)}: {hint}; "
        "describe another with --architecture rules.toml"
    )


@dataclass(frozen=True)
class _Part:
    """A stack to be planned: whose row it is from, with which part of the config."""

    model_type: str
    architecture: Architecture
    stack: Stack
    config: Config
    readout: Readout | None


def plan_model(
    config: Mapping[str, Any], store: TensorStore, architecture: Architecture | None = None
) -> tuple[list[StackPlan], list[Skipped]]:
    """Plan every layer of every stack, and say which layers and stacks have no circuit.

    `architecture` overrides the row that the config's model_type names.

    Raises
    ------
    ArchitectureError, FormatError, ShapeError
        See `find_architecture`, `find_geometry`, `plan_stack`; also if no layer has a circuit.
    """
    if architecture is None:
        model_type, architecture = find_architecture(config)
    else:
        model_type = str(config.get("model_type", "the rule file's model"))
    parts, skipped = _parts(model_type, architecture, Config(config), readout=True)
    if not parts:
        raise ArchitectureError(f"{inert(model_type)}: {_first(skipped)}")
    plans: list[StackPlan] = []
    absent: list[ArchitectureError] = []
    names = store.names()
    for part in parts:
        name = part.stack.name
        reason = decide(part.stack.refused, part.config)
        if reason is not None:
            skipped.append(Skipped(name, -1, reason, part.stack.kind))
            continue
        try:
            find_naming(part.model_type, part.stack, names)
        except StackAbsentError as error:
            absent.append(error)
            reason = "none of its tensors is in these files"
            skipped.append(Skipped(name, -1, reason, part.stack.kind))
            continue
        geometry = find_geometry(part.architecture, part.stack, part.config)
        plan = plan_stack(part.model_type, part.stack, geometry, part.config, store)
        plans.append(replace(plan, readout=part.readout))
        skipped += plan.skipped
    if not any(plan.layers for plan in plans):
        if absent:
            raise absent[0]
        raise ArchitectureError(f"{inert(model_type)} has no F: {_first(skipped)}")
    return plans, skipped


def _first(skipped: list[Skipped]) -> str:
    """Why there is no circuit."""
    if skipped:
        return skipped[0].reason
    return "of its stacks none is there under this config: give one for which 'exists' holds"


def _parts(
    model_type: str, architecture: Architecture, config: Config, *, readout: bool
) -> tuple[list[_Part], list[Skipped]]:
    parts: list[_Part] = []
    skipped: list[Skipped] = []
    for i, stack in enumerate(architecture.stacks):
        section = config.section(stack.config_path)
        if decide(stack.exists, section):
            head = architecture.readout if readout and i == 0 else None
            parts.append(_Part(model_type, architecture, stack, section, head))
    for tower in architecture.towers:
        found, left = _tower(tower, _section(tower, config))
        others = tuple(w for t in architecture.towers if t is not tower for w in t.within)
        for part in found:
            outside = tuple(w for w in others if w not in tower.within)
            stack = replace(
                part.stack,
                within=part.stack.within or tower.within,
                outside=part.stack.outside + (() if tower.within else outside),
            )
            head = part.readout if tower.readout else None
            parts.append(replace(part, stack=stack, readout=head))
        skipped += left
    return parts, skipped


def _section(tower: Tower, config: Config) -> Config:
    """A tower's part of the config."""
    stated = config.stated.get(tower.path[0])
    if not tower.flat or stated is not None:
        return config.section(tower.path)
    model_type = tower.model_type or config.section(tower.path).model_type
    return Config(config.stated, model_type, config.root)


def _tower(tower: Tower, section: Config) -> tuple[list[_Part], list[Skipped]]:
    stated = section.model_type
    name = stated if stated in ARCHITECTURES or stated in REFUSED else tower.model_type or stated
    try:
        model_type, row = find_architecture({"model_type": name})
    except ArchitectureError as error:
        return [], [Skipped(tower.name, -1, str(error), None)]
    parts, skipped = _parts(model_type, row, section, readout=True)
    single = len({part.stack.name for part in parts}) == 1
    renamed = [
        replace(
            part,
            stack=replace(
                part.stack, name=tower.name if single else f"{tower.name}.{part.stack.name}"
            ),
        )
        for part in parts
    ]
    return renamed, [replace(s, stack=f"{tower.name}.{s.stack}") for s in skipped]
