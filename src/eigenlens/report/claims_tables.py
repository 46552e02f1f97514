"""The table of `eigenlens reproduce`: the claims one by one, then what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.tables import plain_table
from eigenlens.report.words import count_text

if TYPE_CHECKING:
    from eigenlens.claims.result import Reproduction, Row

STYLES = {"holds": "green", "fails": "red", "undecided": "yellow", "not run": "dim"}


def claims_view(result: Reproduction) -> RenderableType:
    """A table a claim, what was chosen under it, and a summary."""
    parts: list[RenderableType] = []
    for _, group in groupby(result.rows_, key=lambda row: row.claim):
        rows = list(group)
        parts += [
            Text(f"\n{rows[0].claim}: {rows[0].statement}", style="bold", overflow="fold"),
            Text(f"{rows[0].choice}", style="dim", overflow="fold"),
            _table(rows),
        ]
    return Group(*parts, Text(claims_sentence(result), overflow="fold"))


def _table(rows: Sequence[Row]) -> Table:
    table = plain_table(
        [("model", "left"), ("verdict", "left"), ("share", "right"), ("measured", "left")]
    )
    table.columns[0].overflow = "fold"
    table.columns[3].overflow = "fold"
    table.columns[3].no_wrap = False
    for row in rows:
        f = row.finding
        table.add_row(
            inert(row.model.removeprefix("sample:")),
            Text(f.verdict, style=STYLES[f.verdict]),
            interval_text(f.interval),
            inert(f.measured),
        )
    return table


def interval_text(interval: tuple[float, float] | None) -> str:
    """The range that the verdict follows from."""
    if interval is None:
        return "-"
    low, high = interval
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def claims_sentence(result: Reproduction) -> str:
    """What the verdicts come to, in plain words, the negative ones like the others."""
    told = [f"{n} {_agree(verdict, n)}" for verdict, n in result.counts.items() if n]
    claims = count_text(len({r.claim for r in result.rows_}), "claim")
    lines = [f"{count_text(len(result.rows_), 'measurement')} of {claims}: {', '.join(told)}."]
    failed = [f"{r.claim} on {r.model}" for r in result.rows_ if r.finding.verdict == "fails"]
    if failed:
        lines.append(f"Not confirmed: {inert('; '.join(failed))}.")
    lines.append(
        "share: the range, of layers or of starts (for gap: of the correlation), that the verdict "
        "follows from; a claim holds where all of it lies on the claim's side, and is undecided "
        "where it lies on both."
    )
    return "\n" + "\n".join(lines)


def _agree(verdict: str, n: int) -> str:
    """``hold``, ``fail`` for several."""
    return verdict.removesuffix("s") if n != 1 and verdict in ("holds", "fails") else verdict
