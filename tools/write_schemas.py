"""Write src/eigenlens/data/schemas/*.json and docs/reference/schemas.md; ``--check`` compares.

The documents are in tools/schema_documents.py. What a key means is taken from the docstring of the
class that it comes from, so that it is said in one place; a key without a description is an error.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "eigenlens" / "data" / "schemas"
PAGE = ROOT / "docs" / "reference" / "schemas.md"
LINK = "../../src/eigenlens/data/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

BOOL: Schema = {"type": "boolean"}
INT: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUM: Schema = {"type": "number"}
FLOAT: Schema = {"type": ["number", "null"]}
"""A number, or null where it is not defined or not finite."""
STR: Schema = {"type": "string"}
SHARE: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
COMPLEX: Schema = {"type": "array", "items": FLOAT, "minItems": 2, "maxItems": 2}
"""Real and imaginary part."""


def maybe(schema: Schema) -> Schema:
    """The same, or null."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        return {**schema, "type": [schema["type"], "null"], "enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]}


def either(*schemas: Schema) -> Schema:
    """One of several."""
    return {"anyOf": list(schemas)}


def many(items: Schema, least: int | None = None, most: int | None = None) -> Schema:
    """A list."""
    out: Schema = {"type": "array", "items": items}
    if least is not None:
        out["minItems"] = least
    if most is not None:
        out["maxItems"] = most
    return out


def one_of(names: Any) -> Schema:
    """One of some texts: the keys of a table of the code, or a list."""
    return {"type": "string", "enum": list(names)}


def keyed(values: Schema, names: Any = None) -> Schema:
    """An object whose keys are names of anything; or some of `names`."""
    out: Schema = {"type": "object", "additionalProperties": values}
    if names is not None:
        out["propertyNames"] = {"enum": list(names)}
    return out


def ref(name: str) -> Schema:
    """A part that stands in ``$defs``."""
    return {"$ref": f"#/$defs/{name}"}


def closed(
    keys: Mapping[str, Schema],
    *sources: Any,
    words: Mapping[str, str] | None = None,
    optional: Sequence[str] = (),
) -> Schema:
    """An object with these keys and no others, all but `optional` required.

    Parameters
    ----------
    keys
        What each key holds.
    sources
        Classes or functions whose docstrings say what the keys mean, the first first.
    words
        What the keys mean that no docstring explains, or explains under another name.
    optional
        Keys that may be absent.
    """
    found: dict[str, str] = {}
    for source in reversed(sources):
        found |= said(source)
    found |= words or {}
    properties = {}
    for key, schema in keys.items():
        text = found.get(key) or COMMON.get(key)
        properties[key] = {"description": text, **schema} if text else dict(schema)
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in keys if key not in optional],
        "additionalProperties": False,
    }


def said(source: Any) -> dict[str, str]:
    """What the sections Attributes and Parameters of a docstring say of each name."""
    text = inspect.getdoc(source) or ""
    out: dict[str, str] = {}
    for body in re.findall(
        r"^(?:Attributes|Parameters)\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", text, re.M | re.S
    ):
        for block in re.split(r"^(?=\S)", body, flags=re.M):
            names, _, rest = block.partition("\n")
            meaning = plain(" ".join(textwrap.dedent(rest).split()))
            if not meaning or meaning.startswith("See "):
                continue
            out |= {name.strip(): meaning for name in names.split(",")}
    return out


def plain(text: str) -> str:
    """Docstring markup out of a sentence; None is null in JSON."""
    text = re.sub(r"`{1,2}([^`]+)`{1,2}", r"\1", text)
    return re.sub(r"\bNone\b", "null", text)


COMMON = {
    "schema": "Name and version of this schema.",
    "eigenlens_version": "The version that wrote it.",
    "model": "The model; sizes are those of its first stack.",
    "options": "What was asked, and what was taken where nothing was.",
    "warnings": "Sentences a reader should see.",
    "skipped": "Layers left out, with the reason.",
    "source": "What the user named: a path, a hub id, sample:NAME or a GGUF file.",
    "model_type": "The config's model_type; null for plain arrays.",
    "d_model": "Width of the residual stream.",
    "n_layers": "Layers of the first stack; of a shared layer, its steps.",
    "n_heads": "Query heads.",
    "n_kv_heads": "Heads of the values.",
    "head_dim": "Width of a head's values.",
    "norm": "Kind of norm.",
    "placement": "Where the norms are: post, pre, parallel or sandwich.",
    "stack": "Name of the stack: decoder, encoder, vision, ...",
    "layer": "Index of the layer, from 0.",
    "layers": "Only these layers; null for all.",
    "kind": "self or cross attention.",
    "steps": "How many times a forward pass applies the layer.",
    "reason": "Why.",
    "dtype": "Data type.",
    "seed": "Seed of everything random.",
    "device": "Where the model ran.",
    "architecture": "File of rules for a model type that is not in the table.",
    "regime": "As if this layer were iterated; see the page on principal directions.",
    "target": "What tokens are drawn to: v1, a plane, a tied span or the kernel.",
    "gap": "Lead of the first over the second, (key 1 - key 2)/|key 1|; null where undefined.",
    "order": "What leads: residual (|1 + lambda|), real (Re lambda) or modulus (|lambda|).",
    "operator": "raw: F; folded: with the linear part of the norm.",
    "spectral_norm": "Largest singular value.",
    "n_tokens": "Tokens that count.",
    "gamma": "Mean alignment |cos| after the step.",
    "gain": "Mean of the alignment after less before.",
    "rho": "Share of tokens that moved closer.",
}


def meant(schema: Any, path: str = "") -> Iterator[str]:
    """Paths of keys without a description."""
    if isinstance(schema, Mapping):
        for key, value in schema.get("properties", {}).items():
            where = f"{path}.{key}" if path else key
            if "description" not in value and "$ref" not in value:
                yield where
            yield from meant(value, where)
        for name in ("items", "additionalProperties"):
            yield from meant(schema.get(name), f"{path}[]")
        for part in schema.get("anyOf", []):
            yield from meant(part, path)
        for name, part in schema.get("$defs", {}).items():
            yield from meant(part, f"{path}${name}")


def document(name: str, title: str, body: Schema, parts: Mapping[str, Schema]) -> Schema:
    """A whole schema file: head, body, and the parts that it refers to."""
    used: dict[str, Schema] = {}
    todo = [body]
    while todo:
        for found in re.findall(r'"#/\$defs/([\w-]+)"', json.dumps(todo.pop())):
            if found not in used:
                used[found] = copy.deepcopy(parts[found])
                todo.append(used[found])
    out = {
        "$schema": DIALECT,
        "$id": f"urn:eigenlens:schema:{name}:1",
        "title": f"eigenlens.{name}/1",
        "description": title,
        **copy.deepcopy(body),
    }
    if used:
        out["$defs"] = used
    return out


def documents() -> dict[str, Schema]:
    """All schemas by name.

    Raises
    ------
    SystemExit
        A key has no description.
    """
    from schema_documents import DOCUMENTS, PARTS

    out = {name: document(name, *found[1:], PARTS) for name, found in DOCUMENTS.items()}
    bare = [f"{name}: {path}" for name, found in out.items() for path in meant(found)]
    if bare:
        raise SystemExit("keys without a description:\n" + "\n".join(bare))
    return out


def text(schema: Schema) -> str:
    """The file's text."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


HEAD = f"""# JSON schemas

Written by tools/write_schemas.py; do not edit.

Everything that eigenlens writes as JSON names its schema and its version in the field `schema`,
such as `eigenlens.spectrum/1`. The number grows when a key is renamed, removed or changes its
meaning. The schemas are [JSON Schema]({DIALECT.rpartition("/")[0]}) of the draft 2020-12. Objects
are closed: a key that is not in the schema is an error, and so is one that is missing. A number
that is not defined or not finite is `null`.

They are in the package as well:

```python
import json
from importlib.resources import files

schema = json.loads((files("eigenlens") / "data/schemas/spectrum.json").read_text())
jsonschema.validate(json.load(open("out.json")), schema)   # pip install jsonschema
```

| schema | comes from | holds |
|---|---|---|
"""


def page() -> str:
    """The page that lists the schemas."""
    from schema_documents import DOCUMENTS

    rows = [
        f"| [eigenlens.{name}/1]({LINK}/{name}.json) | {source} | {title} |\n"
        for name, (source, title, _) in DOCUMENTS.items()
    ]
    return HEAD + "".join(rows)


def main() -> int:
    """Write the files, or with ``--check`` say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = {FOLDER / f"{name}.json": text(schema) for name, schema in documents().items()}
    wanted[PAGE] = page()
    gone = sorted(set(FOLDER.glob("*.json")) - set(wanted))
    stale = [p for p, new in wanted.items() if not p.is_file() or p.read_text("utf-8") != new]
    if check:
        for path in [*stale, *gone]:
            print(f"{path.name} is stale: run python tools/write_schemas.py")
        return int(bool(stale or gone))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in gone:
        path.unlink()
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    # The documents import this file by its name; they must get the very same objects.
    sys.modules["write_schemas"] = sys.modules["__main__"]
    sys.exit(main())
