"""Write src/eigenlens/circuit/defaults.json: what transformers' config classes assume.

A config.json leaves out what equals the default of its class, always so in the nested sections of
composite models. Run this with a new transformers; `--check` says whether the file is current.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "src" / "eigenlens" / "circuit" / "defaults.json"
# What says nothing of an attention layer's shape, place or kind.
UNUSED = ("token_id", "dropout", "_loss", "initializer", "output_", "use_cache", "transformers_")
WORDS = ("type", "norm", "scale", "multiplier", "pattern", "position", "hidden_act", "activation")
INHERITED = {"architectures", "return_dict", "id2label", "label2id", "problem_type", "dtype"}


def defaults_of(config_class: Any) -> dict[str, Any]:
    """The fields of one config class with their defaults, and the names that it maps."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        if field.name in INHERITED or any(word in field.name for word in UNUSED):
            continue
        value = field.default
        if value is dataclasses.MISSING:
            if field.default_factory is dataclasses.MISSING:
                continue
            value = field.default_factory()
        if isinstance(value, tuple):
            value = list(value)
        if isinstance(value, list):
            if len(value) > 128 or not all(isinstance(x, (int, str, list, tuple)) for x in value):
                continue
        elif isinstance(value, (str, float)):
            if not any(word in field.name for word in WORDS):
                continue
        elif not (value is None or isinstance(value, (bool, int))):
            continue
        found[field.name] = value
    renamed = {k: v for k, v in config_class.attribute_map.items() if isinstance(v, str)}
    if renamed:
        found["@map"] = renamed
    sections = {
        name: part.model_type
        for name, part in config_class.sub_configs.items()
        if getattr(part, "model_type", "")
    }
    if sections:
        found["@sections"] = sections
    return found


def text() -> str:
    """The file's text: one model type a line, sorted."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    lines = [
        f"{json.dumps(name)}: {json.dumps(defaults_of(CONFIG_MAPPING[name]), sort_keys=True)}"
        for name in sorted(CONFIG_MAPPING)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write the file, or with `--check` compare it."""
    new = text()
    if "--check" in sys.argv[1:]:
        current = TARGET.exists() and TARGET.read_text(encoding="utf-8") == new
        if not current:
            print(f"{TARGET.name} is stale: run python {Path(__file__).name}", file=sys.stderr)
        return int(not current)
    TARGET.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
