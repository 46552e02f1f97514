"""Figures of a trace: alignment against its nulls, and collapse by depth."""

from __future__ import annotations

from typing import Any

from eigenlens.report.figures.style import head, layer_ticks, legend_above, new_figure
from eigenlens.report.panels.figure import COLOURS, GUIDE, Columns, take, where
from eigenlens.report.panels.traces import GROUPS, NULL_NAMES, by_step, collapse_rows

_ROWS = {
    "rho": "rho\n(moved closer)",
    "gamma": "gamma\n(alignment)",
    "gain": "gain\n(change)",
}
_LEVELS = {"rho": 0.5, "gain": 0.0}
_NULLS = {
    "matched_spectrum": ("_", COLOURS["vermilion"]),
    "random_init": ("o", COLOURS["orange"]),
    "second_pair": ("^", COLOURS["green"]),
    "other_layer": ("s", COLOURS["purple"]),
    "top_singular": ("v", COLOURS["black"]),
}
_SHORT = {
    "cosine": "one prompt",
    "anisotropy": "across prompts",
    "rank_residual": "rank",
    "frobenius_residual": "Frobenius",
    "high_low_ratio": "high/low ratio",
    "effective_rank": "effective",
    "participation_ratio": "participation",
    "stable_rank": "stable",
}
_COLOURS = (COLOURS["blue"], COLOURS["vermilion"], COLOURS["green"])
_DASHES = ["-", (0, (5, 1.5)), (0, (1.5, 1.2))]


def alignment(data: Columns, source: str) -> Any:
    """Rho, gamma and gain over layers, with intervals, the random band and the other nulls."""
    figure = new_figure(5.2)
    grid = figure.subplots(len(_ROWS), 1, sharex=True)
    title = "step" if by_step(data) else "layer"
    for axes, (measure, name) in zip(grid, _ROWS.items(), strict=True):
        rows = where(data, measure=measure)
        if measure in _LEVELS:
            axes.axhline(_LEVELS[measure], color=GUIDE, ls=(0, (4, 2)), lw=1.0)
        _band(axes, data, rows)
        for null, (mark, colour) in _NULLS.items():
            known = [i for i in rows if data[null][i] is not None]
            if known:
                axes.plot(
                    take(data["position"], known),
                    take(data[null], known),
                    ls="",
                    marker=mark,
                    ms=7 if mark == "_" else 3.6,
                    mfc="none",
                    mec=colour,
                    mew=1.6 if mark == "_" else 0.9,
                    label=NULL_NAMES[null],
                    zorder=3,
                )
        _measured(axes, data, rows)
        axes.set_ylabel(name)
        axes.use_sticky_edges = False
        axes.margins(y=0.08)
        layer_ticks(axes, data["position"], data["label"], "")
    grid[-1].set_xlabel(title)
    legend_above(grid[0], 3)
    head(grid[0], source)
    handles, _ = grid[0].get_legend_handles_labels()
    grid[0].set_title(grid[0].get_title(loc="left"), pad=7 + 13 * -(-len(handles) // 3))
    figure.align_ylabels(grid)
    return figure


def _band(axes: Any, data: Columns, rows: list[int]) -> None:
    known = [i for i in rows if data["random_low"][i] is not None]
    if known:
        low, high = take(data["random_low"], known), take(data["random_high"], known)
        axes.bar(
            take(data["position"], known),
            [b - a for a, b in zip(low, high, strict=True)],
            bottom=low,
            width=0.74,
            color="0.82",
            label="random directions, middle 95 %",
            zorder=2,
        )


def _measured(axes: Any, data: Columns, rows: list[int]) -> None:
    """Points with their intervals, filled where a test finds rho beyond random directions."""
    for beyond, face, label in (
        (True, COLOURS["blue"], "measured, corrected p < .05"),
        (False, "white", "measured"),
    ):
        own = [i for i in rows if (data["beyond"][i] is True) == beyond]
        if not own:
            continue
        bounds = None
        if all(data["low"][i] is not None for i in own):
            bounds = [
                [data["value"][i] - data["low"][i] for i in own],
                [data["high"][i] - data["value"][i] for i in own],
            ]
        axes.errorbar(
            take(data["position"], own),
            take(data["value"], own),
            yerr=bounds,
            fmt="o",
            ms=4.6,
            mfc=face,
            mec=COLOURS["blue"],
            ecolor=COLOURS["blue"],
            mew=1.1,
            elinewidth=1.1,
            label=label,
            zorder=4,
        )


def collapse(data: Columns, source: str) -> Any:
    """Cosines, residuals and ranks of the states over depth."""
    figure = new_figure(5.4)
    grid = figure.subplots(len(GROUPS), 1, sharex=True)
    both = any(w == "after block" for w in data["where"])
    for axes, (title, group) in zip(grid, GROUPS.items(), strict=True):
        for measure, colour, dash in zip(group, _COLOURS, _DASHES, strict=False):
            for place in ("after attention", "after block"):
                rows = collapse_rows(data, measure, place)
                if not rows:
                    continue
                solid = place == "after attention"
                axes.plot(
                    take(data["depth"], rows),
                    take(data["value"], rows),
                    color=colour,
                    ls=dash,
                    marker="o",
                    ms=3.4,
                    mfc=colour if solid else "white",
                    lw=1.4 if solid else 0.8,
                    label=_SHORT[measure] if solid else None,
                    zorder=4 if solid else 3,
                )
        axes.set_ylabel(title)
        axes.margins(y=0.08)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0) if low < 0.3 * high else low, high)
        layer_ticks(axes, data["depth"], data["label"], "")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), borderaxespad=0.3)
    grid[-1].set_xlabel("after layer")
    note = "filled: after attention, open: after the block" if both else "after attention"
    head(grid[0], source, note)
    figure.align_ylabels(grid)
    return figure
