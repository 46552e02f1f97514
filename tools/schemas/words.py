"""The little language that the JSON schemas are written in: closed objects with described keys."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    return re.sub(r"\bNone\b", "null", text).replace(". null", ". Null")


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
