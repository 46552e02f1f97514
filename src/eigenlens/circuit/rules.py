"""An architecture that the table does not know, described in a TOML file of rules.

    [[stack]]
    name = "decoder"
    value = "layers.{layer}.attn.v"      # `.weight` and `.bias` follow
    output = "layers.{layer}.attn.o"
    norm_before = "layers.{layer}.norm1"
    norm_kind = "rmsnorm"
    value_bias = false
    output_bias = { key = "use_bias", default = false, yes = true, no = false }

    [keys]
    n_heads = ["num_q_heads"]

Every key is a field of `rows.Naming`, `rows.Stack` or `rows.Readout` (table `[readout]`); a value
may be a rule: a table of `key`, `default`, `yes`, `no`. What is not known is an error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from eigenlens.circuit.circuit import KINDS, NORM_KINDS, PLACEMENTS
from eigenlens.circuit.layouts import LAYOUTS, Orientation
from eigenlens.circuit.rows import KEYS, Architecture, Naming, Readout, Stack, Switch
from eigenlens.errors import FormatError, SourceError, nearest
from eigenlens.inert import inert

LARGEST_FILE = 1 << 20
Check = Callable[[str, Any], Any]


def _fail(where: str, value: Any, allowed: str) -> FormatError:
    return FormatError(f"{where} is {inert(repr(value))[:80]}: expected {allowed}")


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _fail(where, value, "a text")
    return value


def _template(where: str, value: Any) -> str:
    text = _text(where, value)
    if set(re.findall(r"\{([^{}]*)\}", text)) != {"layer"} or text.count("{") != text.count("}"):
        raise _fail(where, value, "a tensor name with {layer} in it, and no other braces")
    return text


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(where, value, "true or false")
    return value


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e6:
        raise _fail(where, value, "a number")
    return float(value)


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise _fail(where, value, "a list of texts")
    return tuple(value)


def _among(known: tuple[str, ...]) -> Check:
    def check(where: str, value: Any) -> str:
        if value not in known:
            hint = nearest(value, known) if isinstance(value, str) else ""
            raise _fail(where, value, f"one of {', '.join(known)}{hint}")
        return str(value)

    return check


def _rule(check: Check) -> Check:
    def decide(where: str, value: Any) -> Any:
        if not isinstance(value, dict):
            return check(where, value)
        _known(where, value, ("key", "default", "yes", "no"))
        missing = [k for k in ("key", "default", "yes", "no") if k not in value]
        if missing:
            raise FormatError(f"{where}: a rule needs key, default, yes and no; {missing[0]} lacks")
        yes, no = (decide(f"{where}.{k}", value[k]) for k in ("yes", "no"))
        key, default = (
            _text(f"{where}.key", value["key"]),
            _flag(f"{where}.default", value["default"]),
        )
        return Switch(key, default, yes, no)

    return decide


NAMING: Mapping[str, Check] = {
    "value": _template,
    "output": _template,
    "norm_before": _template,
    "norm_after": _template,
    "scale": _template,
    "prefixes": _texts,
    "bias_if_present": _flag,
}
STACK: Mapping[str, Check] = {
    "name": _text,
    "kind": _among(KINDS),
    "layout": _rule(_among(tuple(LAYOUTS))),
    "output_orientation": _among(get_args(Orientation)),
    "placement": _rule(_among(PLACEMENTS)),
    "norm_kind": _rule(_among(NORM_KINDS)),
    "gain_offset": _number,
    "norm_affine": _rule(_flag),
    "norm_bias": _rule(_flag),
    "value_bias": _rule(_flag),
    "output_bias": _rule(_flag),
    "causal": _rule(_flag),
    "output_scale": _text,
    "value_scale": _text,
    "config_path": _texts,
    "exists": _rule(_flag),
    "per_layer": _texts,
    "notes": _texts,
    "within": _texts,
    "outside": _texts,
}
READOUT: Mapping[str, Check] = {
    "embedding": _texts,
    "embedding_map": _texts,
    "unembedding": _texts,
    "unembedding_map": _texts,
    "tied": _rule(_flag),
    "final_norm": _texts,
    "head_dense": _text,
    "head_norm": _text,
    "activation": _text,
}


def _known(where: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in table:
        if key not in allowed:
            raise FormatError(
                f"{where}: unknown key '{inert(key)}'{nearest(key, allowed)}: allowed are "
                f"{', '.join(allowed)}"
            )


def _fields(where: str, table: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise _fail(where, table, "a table")
    return {k: checks[k](f"{where}: {k}", v) for k, v in table.items() if k in checks}


def _keys(where: str, table: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise _fail(where, table, "a table of sizes and their config keys")
    _known(where, table, tuple(KEYS))
    return {size: _texts(f"{where}: {size}", names) for size, names in table.items()}


def _stack(where: str, table: Any) -> Stack:
    if not isinstance(table, dict):
        raise _fail(where, table, "a table")
    _known(where, table, (*NAMING, *STACK, "keys"))
    for needed in ("value", "output"):
        if needed not in table:
            raise FormatError(f"{where}: '{needed}' is missing: it names the {needed} projection")
    naming = Naming(**_fields(where, table, NAMING))
    fields = _fields(where, table, STACK)
    fields.setdefault("name", "decoder")
    fields.setdefault("placement", "pre" if naming.norm_after is None else "post")
    if naming.norm_before is not None and naming.norm_after is not None:
        fields["placement"] = (table.get("placement") and fields["placement"]) or "sandwich"
    if "keys" in table:
        fields["keys"] = _keys(f"{where}: keys", table["keys"])
    return Stack(namings=(naming,), **fields)


def parse_rules(text: str, where: str = "rules") -> Architecture:
    """An architecture from the text of a rule file.

    Raises
    ------
    FormatError
        If it is not TOML, or a key or value is not known; the nearest known one is named.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: not TOML: {inert(str(error))[:200]}") from error
    _known(where, table, ("stack", "keys", "readout"))
    stacks = table.get("stack")
    if not isinstance(stacks, list) or not stacks:
        raise FormatError(f"{where}: no [[stack]]: write one for each stack of attention layers")
    made = tuple(_stack(f"{where}: stack {i}", stack) for i, stack in enumerate(stacks))
    names = [(s.name, s.kind) for s in made]
    if len(set(names)) < len(names):
        raise FormatError(f"{where}: two stacks have the same name and kind: rename one")
    readout = None
    if "readout" in table:
        place = f"{where}: readout"
        if not isinstance(table["readout"], dict) or "embedding" not in table["readout"]:
            raise FormatError(f"{place}: 'embedding' is missing: a list of module names")
        _known(place, table["readout"], tuple(READOUT))
        readout = Readout(**_fields(place, table["readout"], READOUT))
    return Architecture(made, _keys(f"{where}: keys", table.get("keys", {})), readout)


def read_rules(path: str | Path) -> Architecture:
    """An architecture from a rule file.

    Raises
    ------
    SourceError
        If it cannot be read.
    FormatError
        See `parse_rules`.
    """
    path = Path(path)
    shown = inert(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise SourceError(f"{shown}: cannot read the rules: {reason}") from error
    if len(data) > LARGEST_FILE:
        raise FormatError(f"{shown}: more than {LARGEST_FILE} bytes: that is no file of rules")
    return parse_rules(text, shown)
