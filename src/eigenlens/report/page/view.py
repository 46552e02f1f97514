"""What `eigenlens report` prints: the summary of the page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.page.write import Report


def report_view(report: Report, path: Path) -> RenderableType:
    """Question and verdict of every card, the sentences below, and where the page is."""
    parts: list[RenderableType] = [
        Text(inert(str(report.record["model"].get("source"))), style="bold")
    ]
    for answer in report.answers:
        line = Text(f"{inert(answer.question)}  ")
        line.append(inert(answer.verdict), style="bold")
        parts += [Text(), line, Padding.indent(Text(inert(answer.detail), style="dim"), 2)]
    size = len(report.html.encode("utf-8")) / 1e6
    parts += [Text(), Text(f"{inert(str(path))}: {size:.1f} MB, open it in any browser")]
    return Group(*parts)
