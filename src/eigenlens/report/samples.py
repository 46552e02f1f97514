"""The table of `eigenlens samples`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.report.tables import plain_table

if TYPE_CHECKING:
    from eigenlens.samples import Sample


def samples_view(rows: Sequence[tuple[Sample, bool]]) -> RenderableType:
    """Samples and whether each is here; what each is; how to install those that are not."""
    table = plain_table(
        [
            ("sample", "left"),
            ("family", "left"),
            ("size", "right"),
            ("licence", "left"),
            ("installed", "left"),
        ]
    )
    for sample, here in rows:
        table.add_row(
            Text(f"sample:{sample.name}", style="bold"),
            sample.family,
            size_text(sample.size),
            sample.licence,
            _presence(sample, here),
        )
    parts: list[RenderableType] = [table, _pairs([(s.name, s.what) for s, _ in rows])]
    missing = [(s.name, s.install_command) for s, here in rows if not here and s.install_command]
    if missing:
        parts += [Text("\nTo install:", style="bold"), _pairs(missing)]
    return Group(*parts)


def _presence(sample: Sample, here: bool) -> Text:
    if not here:
        return Text("no, see below" if sample.install_command else "no", style="red")
    return Text("with eigenlens" if sample.kind == "bundled" else "yes", style="green")


def _pairs(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and a text each, aligned."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(f" {name}", text)
    return grid


def size_text(n: int) -> str:
    """Bytes as ``3.0 MB``."""
    return f"{n / 1e6:.1f} MB" if n >= 1e5 else f"{n / 1e3:.1f} kB"
