"""Figures of a comparison: how far each layer moved, and where its eigenvalues went."""

from __future__ import annotations

from typing import Any

from eigenlens.report.figures.spectra import depth_bar, plane
from eigenlens.report.figures.style import depth_colours, head, layer_ticks, new_figure
from eigenlens.report.panels.figure import COLOURS, Columns, take


def changes(data: Columns, source: str) -> Any:
    """Bars of ``|dF| / |F|`` over the effective rank of the difference, layer by layer."""
    figure = new_figure(3.4)
    grid = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    places = data["position"]
    known = [i for i, v in enumerate(data["relative_change"]) if v is not None]
    grid[0].bar(
        take(places, known),
        take(data["relative_change"], known),
        width=0.74,
        color=[COLOURS["vermilion" if data["regime_changed"][i] else "blue"] for i in known],
        hatch=["///" if data["regime_changed"][i] else "" for i in known],
        edgecolor="white",
        lw=0,
    )
    grid[0].set_ylabel("|dF| / |F|")
    grid[1].bar(places, data["effective_rank"], width=0.74, color=COLOURS["green"])
    grid[1].set_ylabel("effective\nrank of dF")
    for axes in grid:
        layer_ticks(axes, places, data["label"], "")
    grid[1].set_xlabel("layer")
    turned = any(data["regime_changed"])
    head(grid[0], source, "hatched: the regime changed" if turned else "")
    return figure


def moves(data: Columns, source: str) -> Any:
    """Leading eigenvalues of A with an arrow to where they are in B."""
    places = sorted(set(data["position"]))
    both = [*data["re_a"], *data["re_b"]], [*data["im_a"], *data["im_b"]]
    figure, axes = plane(*both, with_bar=len(places) > 1, whole=False, orders=())
    colours = depth_colours()
    shade = [colours(p / max(max(places), 1)) for p in data["position"]]
    for i, colour in enumerate(shade):
        axes.annotate(
            "",
            xy=(data["re_b"][i], data["im_b"][i]),
            xytext=(data["re_a"][i], data["im_a"][i]),
            arrowprops={
                "arrowstyle": "-|>",
                "color": colour,
                "lw": 1.0,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 7,
            },
        )
    drawn = axes.scatter(
        data["re_a"],
        data["im_a"],
        c=data["position"],
        cmap=colours,
        vmin=0,
        vmax=max([1, *places]),
        s=16,
        lw=0,
        zorder=3,
    )
    if len(places) > 1:
        depth_bar(figure, axes, drawn, data, places)
    head(axes, source, "from A (dot) to B (arrow head)")
    return figure
