"""Results in a notebook: the tables of the command line as HTML, and a figure that is no script.

The figure is a picture, so that it shows without a network, in notebooks that are not trusted and
in exported pages; `.plot()` gives the one that can be turned and zoomed.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from eigenlens.errors import MissingDependencyError, OptionError, nearest
from eigenlens.report.compare_plots import COMPARISON_PLOTS
from eigenlens.report.figures.style import DPI, saved
from eigenlens.report.figures.table import DRAWN, PANELS, title_of
from eigenlens.report.panels.figure import n_rows
from eigenlens.report.plots.library import as_figure
from eigenlens.report.plots.table import PLOTS
from eigenlens.report.steer_panels import STEERING_PLOTS
from eigenlens.report.tables import WIDTH

MOST_ROWS = 48
"""Rows of a table in a notebook; `to_frame` has all."""

_ALL = {**PLOTS, **COMPARISON_PLOTS, **STEERING_PLOTS}
_CELL = "padding:.15em .7em;"


@dataclass(frozen=True)
class View:
    """How one kind of result is shown: the room and name of its table, and its figures.

    Attributes
    ----------
    room, name
        The function of `eigenlens.report` that makes the table.
    figures
        Names of its figures, the one that is shown first.
    """

    room: str
    name: str
    figures: tuple[str, ...]


VIEWS: dict[str, View] = {
    "spectrum": View("tables", "spectrum_view", ("eigenvalues", "depth", "regimes", "heads")),
    "trace": View("trace_tables", "trace_view", ("alignment", "collapse")),
    "simulate": View("simulate_tables", "simulate_view", ("trajectory",)),
    "compare": View("compare_tables", "compare_view", ("changes", "moves")),
    "reproduce": View("claims_tables", "claims_view", ()),
    "steer": View("steer_tables", "steer_view", ("strengths",)),
}
"""Kinds of results, by what their class says in `shown_as`."""


def text_of(result: Any) -> str:
    """The tables of the command line as plain text, 100 columns wide."""
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(_view(result))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines())


def html_of(result: Any) -> str:
    """Tables, sentences and the first figure as one piece of HTML without a script.

    Everything of the model is escaped. Without matplotlib there is no figure.
    """
    parts = list(_html(_view(result)))
    picture = _picture(result)
    return f'<div style="overflow-x:auto">{"".join(parts)}{picture}</div>'


def plot_of(result: Any, name: str | None = None) -> Any:
    """The plotly figure of a result.

    Raises
    ------
    OptionError
        There is no such figure, or nothing to show in it.
    MissingDependencyError
        plotly is not installed.
    """
    figures = VIEWS[result.shown_as].figures
    full = [f for f in figures if n_rows(PANELS[f].data(result))]
    if name is None:
        if not full:
            raise OptionError(
                f"a {type(result).__name__} has no figure to plot; print it, or use to_frame()"
            )
        name = full[0]
    if name not in figures:
        raise OptionError(
            f"there is no figure {name!r} of a {type(result).__name__}: it has "
            f"{', '.join(figures) or 'none'}{nearest(name, figures)}"
        )
    if name not in full:
        raise OptionError(
            f"the figure {name!r} has nothing to show here; ask for what it needs (heads: "
            "per_head=True)"
        )
    return as_figure(_ALL[name](PANELS[name].data(result)), PANELS[name].title)


def _view(result: Any) -> Any:
    view = VIEWS[result.shown_as]
    return getattr(import_module(f"eigenlens.report.{view.room}"), view.name)(result)


def _picture(result: Any) -> str:
    for name in VIEWS[result.shown_as].figures:
        data = PANELS[name].data(result)
        if not n_rows(data):
            continue
        title = title_of({"": result})
        try:
            png = saved(partial(DRAWN[name], data, title), "png")
        except MissingDependencyError:
            return ""
        # A PNG says its width in its first chunk; 96 dots an inch is what a browser takes for one.
        wide = round(int.from_bytes(png[16:20], "big") * 96 / DPI)
        code = base64.b64encode(png).decode("ascii")
        return (
            f'<img alt="{html.escape(PANELS[name].alt)}" style="max-width:100%;width:{wide}px;'
            f'background:#fff" src="data:image/png;base64,{code}">'
        )
    return ""


def _html(part: Any, tables: list[int] | None = None) -> Iterator[str]:
    """Rich's texts and tables as HTML; tables after the first are folded."""
    tables = [] if tables is None else tables
    if isinstance(part, Group):
        for inner in part.renderables:
            yield from _html(inner, tables)
    elif isinstance(part, Table):
        tables.append(1)
        made = _table(part)
        if len(tables) > 1:
            title = html.escape(str(part.title or "more"))
            made = f"<details><summary>{title}</summary>{made}</details>"
        yield made
    elif isinstance(part, (Text, str)) and str(part).strip():
        dim = isinstance(part, Text) and part.style == "dim"
        look = "font-size:85%;opacity:.7;" if dim else ""
        text = html.escape(str(part)).replace("\n", "<br>")
        yield f'<p style="margin:.4em 0;max-width:60em;{look}">{text}</p>'


def _table(table: Table) -> str:
    heads = "".join(
        f'<th style="{_CELL}text-align:{c.justify}">{html.escape(str(c.header))}</th>'
        for c in table.columns
    )
    columns = [list(c.cells) for c in table.columns]
    rows = []
    for i in range(min(table.row_count, MOST_ROWS)):
        cells = "".join(
            f'<td style="{_CELL}text-align:{c.justify}">{html.escape(str(cells[i]))}</td>'
            for c, cells in zip(table.columns, columns, strict=True)
        )
        rows.append(f"<tr>{cells}</tr>")
    more = table.row_count - MOST_ROWS
    if more > 0:
        note = f"... and {more} more rows: to_frame() has them"
        rows.append(f'<tr><td colspan="{len(columns)}">{note}</td></tr>')
    return (
        f'<table style="border-collapse:collapse;font-variant-numeric:tabular-nums"><thead><tr>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
