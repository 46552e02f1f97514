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
may be a rule: a table of `key`, `default`, `yes`, `no`. What is not known is an error. The output
projection is stored as the values are unless `output_orientation` says otherwise.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from eigenlens.circuit.circuit import KINDS, NORM_KINDS, PLACEMENTS, Placement
from eigenlens.circuit.config import literal
from eigenlens.circuit.facts import Switch
from eigenlens.circuit.layouts import LAYOUTS, Orientation
from eigenlens.circuit.rows import KEYS, Architecture, Factor, Naming, Readout, Stack
from eigenlens.errors import FormatError, SourceError, nearest
from eigenlens.inert import inert

LARGEST_FILE = 1 << 20
DEEPEST_RULE = 8
PER_LAYER = tuple(size for size in KEYS if size not in ("d_model", "n_layers"))
_NAME = r"[\w-]+(?:\.[\w-]+)*"
_KEY = re.compile(rf"[#+]?/?{_NAME}|/?{_NAME}///?{_NAME}")
Check = Callable[[str, Any], Any]


def _fail(where: str, value: Any, allowed: str) -> FormatError:
    return FormatError(f"{where} is {inert(repr(value))[:80]}: expected {allowed}")


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _fail(where, value, "a text without control characters")
    return value


def _config_key(where: str, value: Any) -> str:
    key = _text(where, value)
    if key.startswith("="):
        try:
            number = literal(key)
        except FormatError as error:
            raise FormatError(f"{where}: {error}") from error
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise _fail(where, value, "a number after '='")
        _number(where, number)
    elif not _KEY.fullmatch(key):
        raise _fail(where, value, "a config key: name, section.name, /name, =4, #list, +list, a//b")
    return key


def _config_keys(where: str, value: Any) -> tuple[str, ...]:
    return tuple(_config_key(where, key) for key in _texts(where, value))


def _scale(where: str, value: Any) -> tuple[Factor, ...]:
    """A row may rely on a model type's defaults; a key that a file names must be stated."""
    return (Factor(_config_key(where, value), default=None),)


def _template(where: str, value: Any) -> str:
    text = _text(where, value)
    if "{layer}" not in text or re.search(r"[{}]", text.replace("{layer}", "")):
        raise _fail(where, value, "a tensor name with {layer} in it, and no other braces")
    return text


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(where, value, "true or false")
    return value


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e6:
        raise _fail(where, value, "a number of at most 1e6")
    return float(value)


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(text, str) and text.isprintable() for text in value
    ):
        raise _fail(where, value, "a list of texts without control characters")
    return tuple(value)


def _named(where: str, value: Any) -> tuple[str, ...]:
    """At least one text, none of them empty."""
    texts = _texts(where, value)
    if not texts or not all(texts):
        raise _fail(where, value, "a list of at least one name")
    return texts


def _sizes(where: str, value: Any) -> tuple[str, ...]:
    return tuple(_among(PER_LAYER)(where, size) for size in _texts(where, value))


def _among(known: tuple[str, ...]) -> Check:
    def check(where: str, value: Any) -> str:
        if value not in known:
            hint = nearest(value, known) if isinstance(value, str) else ""
            raise _fail(where, value, f"one of {', '.join(known)}{hint}")
        return str(value)

    return check


def _rule(check: Check) -> Check:
    def decide(where: str, value: Any, depth: int = 0) -> Any:
        if not isinstance(value, dict):
            return check(where, value)
        if depth == DEEPEST_RULE:
            raise FormatError(f"{where[:200]}: rules stand in each other {depth} deep: simplify")
        _known(where, value, ("key", "default", "yes", "no"))
        missing = [k for k in ("key", "default", "yes", "no") if k not in value]
        if missing:
            raise FormatError(f"{where}: a rule needs key, default, yes and no; {missing[0]} lacks")
        yes, no = (decide(f"{where}.{k}", value[k], depth + 1) for k in ("yes", "no"))
        key, default = (
            _config_key(f"{where}.key", value["key"]),
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
    "output_scale": _scale,
    "value_scale": _scale,
    "config_path": _texts,
    "exists": _rule(_flag),
    "per_layer": _sizes,
    "notes": _texts,
    "within": _texts,
    "outside": _texts,
}
READOUT: Mapping[str, Check] = {
    "embedding": _named,
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
    return {size: _config_keys(f"{where}: {size}", names) for size, names in table.items()}


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
    if "placement" not in fields:
        fields["placement"] = _usual_placement(where, naming)
    if naming.norm_after is None:
        for placement in _outcomes(fields["placement"]):
            if placement in ("post", "sandwich"):
                raise FormatError(
                    f"{where}: placement is '{placement}' without norm_after: name the norm on the "
                    "attention's output"
                )
    if "keys" in table:
        fields["keys"] = _keys(f"{where}: keys", table["keys"])
    if "output_orientation" not in fields:
        fields["output_orientation"] = _usual_orientation(where, fields.get("layout", "separate"))
    return Stack(namings=(naming,), **fields)


def _usual_placement(where: str, naming: Naming) -> Placement:
    """Where the norms sit that are named."""
    if naming.norm_before is None and naming.norm_after is None:
        raise FormatError(
            f"{where}: neither norm_before nor norm_after is named: name the norms, or state the "
            f"placement (one of {', '.join(PLACEMENTS)})"
        )
    if naming.norm_after is None:
        return "pre"
    return "post" if naming.norm_before is None else "sandwich"


def _usual_orientation(where: str, layout: Any) -> str:
    """The output projection's: that of the values, if there is one whatever the config says."""
    found = {LAYOUTS[name].orientation for name in _outcomes(layout)}
    if len(found) > 1:
        raise FormatError(
            f"{where}: some of its layouts store (in, out), some (out, in): state the "
            f"output_orientation (one of {', '.join(get_args(Orientation))})"
        )
    return found.pop()


def _outcomes(rule: Any) -> list[Any]:
    """All that a rule may say."""
    if isinstance(rule, Switch):
        return [*_outcomes(rule.yes), *_outcomes(rule.no)]
    return [rule]


def without_lead(architecture: Architecture, lead: str) -> Architecture:
    """The same with names that start with the module `lead` given from behind it.

    A model without its head lacks the module that held it (`transformer.h.0` is `h.0` there).
    """

    def shorter(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(shorter, value))
        return value.removeprefix(f"{lead}.") if isinstance(value, str) else value

    def named(row: Any, fields: Iterable[str]) -> Any:
        return replace(row, **{name: shorter(getattr(row, name)) for name in fields})

    names = [name for name, check in NAMING.items() if check is _template]
    stacks = tuple(
        replace(stack, namings=tuple(named(naming, names) for naming in stack.namings))
        for stack in architecture.stacks
    )
    inside = ("embedding", "embedding_map", "final_norm")
    readout = architecture.readout and named(architecture.readout, inside)
    return replace(architecture, stacks=stacks, readout=readout)


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
