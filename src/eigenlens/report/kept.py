"""The table of `eigenlens cache`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.samples import size_text
from eigenlens.report.tables import plain_table


def kept_view(rows: Sequence[Mapping[str, Any]], folders: Mapping[str, str]) -> RenderableType:
    """What is kept of what, how much, where, and how to be rid of it."""
    table = plain_table([("kept", "left"), ("of", "left"), ("files", "right"), ("size", "right")])
    for row in rows:
        table.add_row(
            row["kind"], inert(row["of"] or "layers"), str(row["files"]), size_text(row["bytes"])
        )
    lines = [f" {kind} lie in {inert(folder)}" for kind, folder in folders.items()]
    told = (
        "\n".join(lines) + "\n `eigenlens cache clear results|weights|all|ORG/NAME` removes them."
    )
    return Group(table, Text(told, overflow="fold"))
