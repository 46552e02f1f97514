"""The figure of a steering: what it does to text as its strength grows."""

from __future__ import annotations

from typing import Any

from eigenlens.report.figures.style import head, legend_above, new_figure
from eigenlens.report.panels.figure import GUIDE, Columns, take, where
from eigenlens.report.steer_panels import MEASURES, METHODS, is_wide

_MARKS = {"edit": "o", "activation addition": "s"}


def strengths(data: Columns, source: str) -> Any:
    """A panel a measure, over the strength; the large mark is the edit itself."""
    shown = [m for m in MEASURES if any(v is not None for v in data[m])]
    figure = new_figure(0.9 + 1.35 * len(shown), 5.6)
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    wide = is_wide(data["strength"])
    for axes, measure in zip(grid, shown, strict=True):
        start = [data[measure][i] for i in where(data, strength=0.0)]
        if start and start[0] is not None:
            axes.axhline(start[0], color=GUIDE, ls=(0, (4, 2)), lw=1.0, label="unedited")
        for method, (name, colour, _) in METHODS.items():
            rows = [
                i
                for i in where(data, method=method)
                if data[measure][i] is not None and not (wide and data["strength"][i] == 0)
            ]
            if not rows:
                continue
            x, y = take(data["strength"], rows), take(data[measure], rows)
            axes.plot(x, y, color=colour, marker=_MARKS[method], ms=3.6, label=name)
            chosen = [(a, b) for a, b, i in zip(x, y, rows, strict=True) if data["chosen"][i]]
            axes.plot(
                [a for a, _ in chosen],
                [b for _, b in chosen],
                ls="",
                marker=_MARKS[method],
                ms=7.5,
                color=colour,
            )
        axes.set_ylabel(
            MEASURES[measure]
            .replace(" (", "\n(")
            .replace(" of the", "\nof the")
            .replace(" after", "\nafter")
        )
        axes.margins(y=0.1)
        if wide:
            axes.set_xscale("log")
        if is_wide(data[measure], 100):
            axes.set_yscale("log")
    grid[-1].set_xlabel("strength")
    legend_above(grid[0], 3)
    head(grid[0], source)
    grid[0].set_title(grid[0].get_title(loc="left"), pad=20)
    figure.align_ylabels(grid)
    return figure
