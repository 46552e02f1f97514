"""Figures of a spectrum: the complex plane, depth, gap and regime, heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eigenlens.report.figures.style import (
    REGIME_MARKS,
    depth_colours,
    head,
    layer_ticks,
    legend_above,
    new_figure,
    plain,
    signed_colours,
)
from eigenlens.report.panels.figure import COLOURS, GUIDE, REGIME_COLOURS, Columns, take, where
from eigenlens.report.panels.spectra import (
    HEAD_MEASURES,
    NEUTRAL,
    PLANE_GUIDES,
    key_title,
    order_runs,
    orders_in,
    rank_of,
)
from eigenlens.report.words import regime_text

_WIDEST = 5.3  # inches of the complex plane
_NEUTRAL_WORDS = "neither grows nor shrinks"


def eigenvalues(data: Columns, source: str) -> Any:
    """The complex plane; colour is depth, diamonds lead, dashed where a step neither grows."""
    places = sorted(set(data["position"]))
    many = len(places) > 1
    orders = list(orders_in(data))
    figure, axes = plane(data["re"], data["im"], many, orders=orders)
    drawn = None
    for leading in (False, True):
        rows = where(data, leading=leading)
        colour: dict[str, Any] = (
            {
                "c": take(data["position"], rows),
                "cmap": depth_colours(),
                "vmin": 0,
                "vmax": max(places),
            }
            if many
            else {"color": COLOURS["blue"]}
        )
        found = axes.scatter(
            take(data["re"], rows),
            take(data["im"], rows),
            s=34 if leading else 13,
            marker="D" if leading else "o",
            alpha=1.0 if leading else 0.7,
            edgecolors="black" if leading else "none",
            linewidths=0.7 if leading else 0,
            zorder=3 + leading,
            **colour,
        )
        drawn = found if rows else drawn
    if many and drawn is not None:
        depth_bar(figure, axes, drawn, data, places)
    from matplotlib.lines import Line2D

    grey = "0.35"
    marks = [
        Line2D([], [], marker="D", ls="", ms=5, mfc="0.75", mec="black", mew=0.7, label="leading"),
        Line2D([], [], marker="o", ls="", ms=3.5, mfc=grey, mec=grey, label="other"),
        Line2D([], [], color=GUIDE, ls=(0, (4, 2)), lw=1.1, label=_guide_names(orders)),
    ][: 2 + (orders != ["modulus"])]
    legend_above(axes, 3, handles=marks)
    head(axes, source)
    axes.set_title(axes.get_title(loc="left"), pad=20)
    return figure


def _guide_names(orders: Sequence[str]) -> str:
    return " or ".join(PLANE_GUIDES[order] for order in orders)


def depth_bar(figure: Any, axes: Any, drawn: Any, data: Columns, places: list[int]) -> None:
    """A bar that says which colour is which layer."""
    names = dict(zip(data["position"], data["label"], strict=True))
    step = max(1, -(-len(places) // 8))
    shown = places[::step]
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, aspect=26, pad=0.02, ticks=shown)
    bar.ax.set_yticklabels([str(names[p]) for p in shown])
    bar.set_label("layer")
    bar.solids.set_alpha(1)
    bar.outline.set_visible(False)


def plane(
    re: list[float],
    im: list[float],
    with_bar: bool,
    whole: bool = True,
    orders: Sequence[str] = ("residual",),
) -> tuple[Any, Any]:
    """A figure as wide as the points need, with equal axes around them and 0.

    The circle ``|1 + z| = 1`` is drawn as far as it is in sight, under the order ``real`` the line
    ``Re z = 0`` in its place, under both orders both. Not `whole`: only the upper half.
    """
    from matplotlib.patches import Circle

    low, high = min([0.0, *re]), max([0.0, *re])
    top = max([0.0, *(abs(v) for v in im)])
    pad = 0.07 * max(high - low, 2 * top, 1e-12)
    across = max(high - low, 0.8 * top) + 2 * pad
    up = max(top, 0.2 * (high - low)) + pad
    down = up if whole else 1.5 * pad
    tall = 3.1 if whole else 2.6
    wide = tall * across / (up + down)
    if wide > _WIDEST:
        wide, tall = _WIDEST, max(1.5, tall * _WIDEST / wide)
    figure = new_figure(tall + 1.15, max(wide, 1.9 + 0.6 * (not with_bar)) + 0.75 + 0.75 * with_bar)
    axes = figure.add_subplot()
    middle = (low + high) / 2
    axes.set_xlim(middle - across / 2, middle + across / 2)
    axes.set_ylim(-down, up)
    axes.set_aspect("equal", adjustable="box")
    axes.axhline(0, color="0.8", lw=0.7, zorder=1)
    axes.axvline(0, color="0.8", lw=0.7, zorder=1)
    if "residual" in orders:
        axes.add_patch(Circle((-1, 0), 1, fill=False, ec=GUIDE, ls=(0, (4, 2)), lw=1.1, zorder=2))
    if "real" in orders:
        axes.axvline(0, color=GUIDE, ls=(0, (4, 2)), lw=1.1, zorder=2)
    axes.set_xlabel("Re λ")
    axes.set_ylabel("Im λ")
    return figure, axes


def depth(data: Columns, source: str) -> Any:
    """The key of every eigenvalue over layers, or by rank where there is one layer."""
    figure = new_figure(3.0)
    axes = figure.add_subplot()
    runs = order_runs(data)
    n = len(data["key"])
    one = len(set(data["position"])) == 1
    x = [rank_of(data, i) for i in range(n)] if one else data["position"]
    first: dict[int, int] = {}
    for i in where(data, leading=True):
        first.setdefault(data["position"][i], i)
    top = where(data, leading=True) if one else [first[p] for p in sorted(first)]
    word = "zero" if {order for order, _, _ in runs}.isdisjoint({"residual"}) else _NEUTRAL_WORDS
    dashed: dict[str, Any] = {"color": GUIDE, "ls": (0, (4, 2)), "lw": 1.1, "label": word}
    if len(runs) == 1:
        axes.axhline(NEUTRAL[runs[0][0]], **dashed)
    for order, low, high in runs * (len(runs) > 1):  # each along the layers of its order
        axes.plot([low - 0.5, high + 0.5], [NEUTRAL[order]] * 2, **dashed)
        dashed["label"] = "_again"
    axes.scatter(
        x, data["key"], s=11, color=COLOURS["blue"], alpha=0.45, lw=0, label="eigenvalues", zorder=3
    )
    axes.plot(
        take(x, top),
        take(data["key"], top),
        ls="" if one else "-",
        marker="D",
        ms=4.6,
        color=COLOURS["vermilion"],
        lw=1.2,
        label="leading",
        zorder=4,
    )
    if one:
        axes.set_xlabel("rank of the eigenvalue")
    else:
        layer_ticks(axes, data["position"], data["label"], "layer")
    axes.set_ylabel(plain(key_title(data)))
    axes.margins(y=0.08)
    legend_above(axes, 3)
    head(axes, source)
    axes.set_title(axes.get_title(loc="left"), pad=20)
    return figure


def regimes(data: Columns, source: str) -> Any:
    """Bars of the gap, coloured and hatched by regime, over a strip that names it always."""
    from matplotlib.patches import Patch

    figure = new_figure(3.1)
    grid = figure.add_gridspec(2, 1, height_ratios=[8, 1], hspace=0.03)
    axes = figure.add_subplot(grid[0])
    strip = figure.add_subplot(grid[1], sharex=axes)
    handles = []
    for regime, colour in REGIME_COLOURS.items():
        rows = where(data, regime=regime)
        if not rows:
            continue
        look: dict[str, Any] = {
            "facecolor": colour,
            "edgecolor": "white",
            "hatch": REGIME_MARKS[regime][1],
            "lw": 0,
        }
        places = take(data["position"], rows)
        axes.bar(places, [100 * (data["gap"][i] or 0) for i in rows], width=0.74, **look)
        strip.bar(places, [1] * len(rows), width=0.94, **look)
        handles.append(Patch(label=regime_text(regime), **look))
    gaps = [g for g in data["gap"] if g is not None]
    axes.set_ylim(0, 108 * max([0.02, *gaps]))
    axes.set_ylabel("gap to the second (%)")
    axes.tick_params(labelbottom=False, bottom=False)
    strip.set_ylim(0, 1)
    strip.set_yticks([])
    strip.set_ylabel("regime", rotation=0, ha="right", va="center")
    strip.spines["left"].set_visible(False)
    strip.spines["bottom"].set_visible(False)
    strip.grid(visible=False)
    layer_ticks(strip, data["position"], data["label"], "layer")
    axes.grid(visible=False, axis="x")
    legend_above(axes, len(handles), handles=handles)
    head(axes, source)
    axes.set_title(axes.get_title(loc="left"), pad=20)
    return figure


def heads(data: Columns, source: str) -> Any:
    """Layers by heads, a map a measure; bars where there is one layer."""
    measures = [m for m in HEAD_MEASURES if any(v is not None for v in data[m])]
    places = sorted(set(data["position"]))
    n_heads = max(data["head"]) + 1
    if len(places) == 1:
        return _head_bars(data, measures, source)
    rows = len(measures) if len(places) > 12 else 1
    columns = -(-len(measures) // rows)
    tall = min(4.2, max(1.5, 0.16 * n_heads + 0.7))
    figure = new_figure(0.35 + tall * rows)
    names = dict(zip(data["position"], data["label"], strict=True))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    drawn = None
    for number, measure in enumerate(measures):
        axes = grid[number // columns][number % columns]
        z = [[float("nan")] * len(places) for _ in range(n_heads)]
        for i, h in enumerate(data["head"]):
            value = data[measure][i]
            if value is not None:
                z[h][places.index(data["position"][i])] = value
        drawn = axes.imshow(
            z, cmap=signed_colours(), vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
        )
        axes.set_facecolor("0.9")
        axes.set_title(HEAD_MEASURES[measure])
        layer_ticks(axes, range(len(places)), [names[p] for p in places], "")
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.grid(visible=False)
        step = max(1, -(-n_heads // 12))
        axes.set_yticks(range(0, n_heads, step))
        if number % columns == 0:
            axes.set_ylabel("head")
        if number // columns == rows - 1:
            axes.set_xlabel("layer")
    bar = figure.colorbar(drawn, ax=grid, shrink=0.9, aspect=24 * rows, pad=0.015)
    bar.set_ticks([-1, 0, 1])
    bar.outline.set_visible(False)
    figure.suptitle(plain(source), x=0.01, ha="left", fontsize=9)
    return figure


def _head_bars(data: Columns, measures: list[str], source: str) -> Any:
    figure = new_figure(2.6)
    axes = figure.add_subplot()
    wide = 0.8 / len(measures)
    colours = [COLOURS["blue"], COLOURS["orange"], COLOURS["green"]]
    for number, measure in enumerate(measures):
        rows = [i for i, v in enumerate(data[measure]) if v is not None]
        x = [data["head"][i] + (number - (len(measures) - 1) / 2) * wide for i in rows]
        axes.bar(
            x,
            take(data[measure], rows),
            width=0.92 * wide,
            color=colours[number],
            label=HEAD_MEASURES[measure],
        )
    axes.axhline(0, color="0.4", lw=0.7)
    axes.set_xticks(sorted(set(data["head"])))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("head")
    legend_above(axes, 3)
    head(axes, source)
    axes.set_title(axes.get_title(loc="left"), pad=20)
    return figure
