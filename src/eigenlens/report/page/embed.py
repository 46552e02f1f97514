"""Text into HTML, and data into a script element, so that neither can leave its place."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eigenlens.inert import inert
from eigenlens.report.serialise import strict

# What ends a script element or begins a comment in it, and the line breaks of JavaScript.
_UNSAFE = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def text(value: object) -> str:
    """A text as HTML: control characters visible, markup inert."""
    return html.escape(inert(str(value)))


_UNIT = re.compile(r"(\d) (?=%|(?:degrees?|rad|times|steps?|layers?|tokens?|prompts?)\b)")

_NOUN = re.compile(r"\b(layers?|steps?) (?=\d)")


def prose(value: object) -> str:
    """`text` of a sentence, in which a number and its unit are never on two lines."""
    return _NOUN.sub("\\1\u00a0", _UNIT.sub("\\1\u00a0", text(value)))


def script_json(value: Any) -> str:
    """Strict JSON that may stand in a script element: no ``<``, ``>``, ``&`` or line separator.

    Raises
    ------
    ValueError
        A number is not finite (see `eigenlens.report.serialise.strict`).
    """
    encoded = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character, escape in _UNSAFE.items():
        encoded = encoded.replace(character, escape)
    return encoded


def rounded(value: Any, digits: int = 6) -> Any:
    """A copy of nested data with numbers to some significant digits; what is not finite is None.

    Whole numbers lose their ``.0``: the page is a third smaller.
    """
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, Mapping):
        return {k: rounded(v, digits) for k, v in value.items()}
    return [rounded(v, digits) for v in value]


def plain(value: Any) -> Any:
    """`strict` without the list of what was lost."""
    return strict(value)[0]


def cell(value: Any) -> str:
    """A value of a table as HTML."""
    if value is None:
        return "&ndash;"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "&minus;") if math.isfinite(value) else "&ndash;"
    return text(value)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], caption: str, *, kind: str = "data"
) -> str:
    """An HTML table with its caption, numbers to the right."""
    body = []
    for row in rows:
        cells = "".join(
            f'<td class="n">{cell(v)}</td>'
            if isinstance(v, (int, float))
            else f"<td>{cell(v)}</td>"
            for v in row
        )
        body.append(f"<tr>{cells}</tr>")
    head = "".join(f'<th scope="col">{text(h)}</th>' for h in headings)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table class="{kind}"><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
