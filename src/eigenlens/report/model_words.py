"""One line of facts about a model, for headings of tables and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.words import count_text

Model = Mapping[str, Any]
"""The block `model` of a result."""


def sizes_text(model: Model, *what: str) -> str:
    """Some facts of `FACTS` in this sequence, those left out that are not known.

    Examples
    --------
    >>> model = {"d_model": 8, "n_heads": 1, "placement": None}
    >>> sizes_text(model, "d", "heads", "placement")
    'd 8, 1 head'
    """
    return ", ".join(filter(None, (FACTS[name](model) for name in what)))


def _known(name: str, told: Callable[[Model, Any], str]) -> Callable[[Model], str]:
    return lambda model: told(model, model[name]) if model.get(name) else ""


def _each_head(model: Model, n: int) -> str:
    kv = model.get("n_kv_heads")
    groups = f" ({kv} for values)" if kv not in (None, n) else ""
    size = f" of {model['head_dim']}" if model.get("head_dim") else ""
    return f"{count_text(n, 'head')}{groups}{size}"


FACTS: dict[str, Callable[[Model], str]] = {
    "layers": _known("n_layers", lambda _, n: count_text(n, "layer")),
    "d": _known("d_model", lambda _, d: f"d {d}"),
    "heads": _known("n_heads", lambda _, n: count_text(n, "head")),
    "each head": _known("n_heads", _each_head),
    "placement": _known("placement", lambda _, placement: f"{placement}-norm"),
    "norm": _known(
        "placement", lambda m, x: f"{x}-norm" + (f" ({m['norm']})" if m.get("norm") else "")
    ),
}
"""``3 layers``; ``d 576``; ``9 heads``; ``9 heads (3 for values) of 64``; ``pre-norm``;
``pre-norm (rmsnorm)``."""

SHORT = ("d", "heads", "placement")
FULL = ("d", "each head", "placement")


def facts_text(model: Model, *what: str) -> str:
    """``bert, d 128, 4 heads, edited by eigenlens (2 edits)``: type, some `FACTS`, edits."""
    kind = inert(str(model["model_type"])) if model.get("model_type") else ""
    return ", ".join(filter(None, (kind, sizes_text(model, *what), edited_text(model))))


def edited_text(model: Model) -> str:
    """``edited by eigenlens (2 edits)`` where the model's folder says so, else nothing."""
    edits = int(model.get("edits") or 0)
    return f"edited by eigenlens ({count_text(edits, 'edit')})" if edits else ""


def model_line(model: Model, *what: str) -> Text:
    """``sample:bert-tiny  bert, d 128, 4 heads``: the name, bold, then `facts_text`."""
    text = Text()
    text.append(inert(str(model["source"])), style="bold")
    return text.append(f"  {facts_text(model, *what)}")
