"""Plots of a spectrum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from eigenlens.report.panels.figure import COLOURS, GUIDE, REGIME_COLOURS, Columns, take, where
from eigenlens.report.panels.spectra import (
    HEAD_MEASURES,
    KEY_TITLES,
    NEUTRAL,
    PLANE_GUIDES,
    key_title,
    order_runs,
    orders_in,
    rank_of,
)
from eigenlens.report.plots.parts import (
    DEPTH_SCALE,
    SIGNED_SCALE,
    Plot,
    broken,
    control,
    layer_axis,
    layer_ticks,
    layout,
    safe,
    with_frames,
)
from eigenlens.report.words import complex_text, regime_text

_POINT = (
    "layer %{customdata[0]}, no. %{customdata[1]}<br>λ = %{x:.4g} %{y:+.4g}i<br>"
    "|1 + λ| = %{customdata[2]:.5g}<extra></extra>"
)


def eigenvalues(data: Columns) -> Plot:
    """The complex plane: all layers coloured by depth, or one of them by its regime."""
    n = len(data["position"])
    positions = sorted(set(data["position"]))
    orders = list(orders_in(data))
    across, up = _window(data, list(range(n)))
    shape = (up[1] - up[0]) / (across[1] - across[0])
    round_ = {"scaleanchor": "x"} if shape > _FLAT and orders != ["real"] else {}
    if orders == ["real"]:  # nothing round is in sight: both axes fill the frame
        shape = _ROOM
    elif _FLAT < shape < _ROOM:  # the circle stays round, with room above and below
        up = [y * _ROOM / shape for y in up]
        shape = _ROOM
    plot: Plot = {
        "data": [_guides(data, range(n)), *_marks(data, list(range(n)), len(positions) > 1)],
        "layout": layout(
            round(min(560.0, max(360.0, 110 + 370 * shape))),
            xaxis={"title": {"text": "Re λ"}, "range": across, "constrain": "domain"},
            yaxis={"title": {"text": "Im λ"}, "range": up, "constrain": "domain", **round_},
        ),
    }
    if len(positions) < 2:
        return plot
    names = ["all"]
    frames = [_frame("all", data, list(range(n)), True)]
    for position in positions:
        rows = where(data, position=position)
        names.append(data["label"][rows[0]])
        frames.append(_frame(f"l{position}", data, rows, False))
    shown = [safe(name) for name in names]
    return with_frames(plot, frames, control("slider", "layer", shown))


def _guides(data: Columns, rows: Sequence[int]) -> dict[str, Any]:
    """Where a direction neither grows nor shrinks: a circle, the line ``Re = 0``, or both.

    Both where these rows have both orders; a gap keeps them apart. By the modulus it is 0 itself.
    """
    orders = dict.fromkeys(data["order"][i] for i in rows)
    x: list[float | None] = []
    y: list[float | None] = []
    for order in orders:
        if order == "real":
            _, (low, high) = _window(data, list(range(len(data["re"]))))
            x, y = [*x, 0.0, 0.0, None], [*y, low, high, None]
        elif order == "residual":
            turn = [2 * math.pi * i / 120 for i in range(121)]
            x = [*x, *(math.cos(a) - 1 for a in turn), None]
            y = [*y, *(math.sin(a) for a in turn), None]
    if not x:
        x, y = [0.0, None], [0.0, None]
    x, y = x[:-1], y[:-1]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": GUIDE, "dash": "dash", "width": 1.2},
        "hoverinfo": "skip",
        "name": " or ".join(PLANE_GUIDES[order] for order in orders),
        "showlegend": len(x) > 1,
    }


_FLAT = 0.2
"""Height over width of the plane below which its axes have scales of their own."""
_ROOM = 0.6
"""Height over width that a plane with a round circle has at least."""


def _frame(name: str, data: Columns, rows: list[int], by_depth: bool) -> dict[str, Any]:
    """A view of some layers, with the window that fits them."""
    across, up = _window(data, rows)
    window = {"xaxis": {"range": across}, "yaxis": {"range": up}}
    marks = _marks(data, rows, by_depth)
    if len(orders_in(data)) > 1:  # each layer with its own guide
        guides = _guides(data, rows)
        return {"name": name, "data": [guides, *marks], "traces": [0, 1, 2], "layout": window}
    return {"name": name, "data": marks, "traces": [1, 2], "layout": window}


def _window(data: Columns, rows: list[int]) -> tuple[list[float], list[float]]:
    """Ranges of both axes: all eigenvalues of these rows, and the circle or the line."""
    round_ = any(data["order"][i] == "residual" for i in rows)
    heights = [abs(data["im"][i]) for i in rows]
    size = max([1.0, *heights]) if round_ else max(heights, default=0.0) or 1.0
    reals = [*(data["re"][i] for i in rows), *([-2.0] if round_ else []), 0.0]
    return _padded(min(reals), max(reals)), _padded(-size, size)


def _padded(low: float, high: float) -> list[float]:
    pad = 0.06 * (high - low) or 1.0
    return [low - pad, high + pad]


def _marks(data: Columns, rows: list[int], by_depth: bool) -> list[dict[str, Any]]:
    """Two traces: the cloud, and the leaders as diamonds."""
    out = []
    for leading in (False, True):
        own = [i for i in rows if data["leading"][i] is leading]
        colour: dict[str, Any] = (
            {
                "color": take(data["position"], own),
                "colorscale": DEPTH_SCALE,
                "cmin": 0,
                "cmax": max(data["position"]),
            }
            if by_depth
            else {"color": REGIME_COLOURS[data["regime"][rows[0]]]}
        )
        if by_depth and not leading:
            colour["colorbar"] = {
                "title": {"text": "layer", "side": "right"},
                "thickness": 10,
                "len": 0.7,
                "outlinewidth": 0,
                **layer_ticks(data),
            }
        colour["showscale"] = by_depth and not leading
        out.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "leading" if leading else "eigenvalues",
                "x": take(data["re"], own),
                "y": take(data["im"], own),
                "customdata": [
                    [safe(data["label"][i]), _number(data["index"][i]), data["multiplier"][i]]
                    for i in own
                ],
                "hovertemplate": _POINT,
                "marker": {
                    **colour,
                    "size": 10 if leading else 5,
                    "symbol": "diamond" if leading else "circle",
                    "opacity": 1.0 if leading else 0.55,
                    "line": {"width": 1 if leading else 0, "color": "rgba(255,255,255,0.8)"},
                },
            }
        )
    return out


def _number(index: int) -> str:
    return "kernel" if index < 0 else str(index + 1)


def depth(data: Columns) -> Plot:
    """Keys over layers; for a single layer, by rank."""
    one = len(set(data["position"])) == 1
    rows = range(len(data["key"]))
    x = [rank_of(data, i) for i in rows] if one else data["position"]
    lead = [i for i in rows if data["leading"][i]]
    axis = (
        {
            "title": {"text": "place of the eigenvalue"},
            "zeroline": False,
            "range": [1 - 0.03 * len(x), 1.03 * len(x)],
        }
        if one
        else layer_axis(data["position"], data["label"], "layer")
    )
    cloud = {
        "type": "scatter",
        "mode": "markers",
        "name": "eigenvalues",
        "x": x,
        "y": data["key"],
        "customdata": [[safe(data["label"][i]), KEY_TITLES[data["order"][i]]] for i in rows],
        "hovertemplate": "layer %{customdata[0]}<br>%{customdata[1]} = %{y:.5g}<extra></extra>",
        "marker": {"color": COLOURS["blue"], "size": 5, "opacity": 0.3},
    }
    first: dict[int, int] = {}
    for i in lead:
        first.setdefault(data["position"][i], i)
    top = list(first.values()) if not one else lead
    line = {
        "type": "scatter",
        "mode": "markers" if one else "lines+markers",
        "name": "leading",
        "x": broken(data, top, x),
        "y": broken(data, top, data["key"]),
        "hoverinfo": "skip",
        "line": {"color": COLOURS["vermilion"], "width": 1.5},
        "marker": {"color": COLOURS["vermilion"], "size": 8, "symbol": "diamond"},
    }
    return {
        "data": [cloud, line],
        "layout": layout(
            380,
            xaxis=axis,
            yaxis={"title": {"text": safe(key_title(data))}, "zeroline": False},
            shapes=_neutral(data),
        ),
    }


def _neutral(data: Columns) -> list[dict[str, Any]]:
    """Dashed lines where a direction neither grows nor shrinks, each along the layers of its order.

    One across the whole frame where all layers have one order.
    """
    runs = order_runs(data)
    across = [{"xref": "paper", "x0": 0, "x1": 1}]
    if len(runs) > 1:
        across = [{"x0": first - 0.5, "x1": last + 0.5} for _, first, last in runs]
    return [
        {
            "type": "line",
            **where,
            "y0": NEUTRAL[order],
            "y1": NEUTRAL[order],
            "line": {"color": GUIDE, "dash": "dash", "width": 1.2},
        }
        for where, (order, _, _) in zip(across, runs, strict=True)
    ]


def regimes(data: Columns) -> Plot:
    """Bars of the gap, and a strip of the regime."""
    traces: list[dict[str, Any]] = []
    for regime, colour in REGIME_COLOURS.items():
        rows = where(data, regime=regime)
        if not rows:
            continue
        text = regime_text(regime)
        custom = [[safe(data["label"][i]), text, *_lead(data, i)] for i in rows]
        template = "layer %{customdata[0]}: %{customdata[1]}<br>λ₁ = %{customdata[2]}"
        traces += [
            {
                "type": "bar",
                "name": text,
                "legendgroup": regime,
                "x": take(data["position"], rows),
                "y": [data["gap"][i] for i in rows],
                "customdata": custom,
                "hovertemplate": template + "<br>gap %{y:.1%}<extra></extra>",
                "marker": {"color": colour},
                "width": 0.72,
            },
            {
                "type": "bar",
                "legendgroup": regime,
                "showlegend": False,
                "x": take(data["position"], rows),
                "y": [1] * len(rows),
                "yaxis": "y2",
                "customdata": custom,
                "hovertemplate": template + "<extra></extra>",
                "marker": {"color": colour},
                "width": 0.96,
            },
        ]
    gaps = [g for g in data["gap"] if g is not None]
    return {
        "data": traces,
        "layout": layout(
            340,
            barmode="overlay",
            xaxis={**layer_axis(data["position"], data["label"], "layer"), "anchor": "y2"},
            yaxis={
                "title": {"text": "gap"},
                "tickformat": ".0%",
                "domain": [0.16, 1],
                "range": [0, 1.08 * max([0.02, *gaps])],
            },
            yaxis2={
                "domain": [0, 0.07],
                "range": [0, 1],
                "visible": False,
                "fixedrange": True,
            },
        ),
    }


def _lead(data: Columns, i: int) -> list[str]:
    return [complex_text(complex(data["re"][i], data["im"][i])).replace("±", " ± ")]


def heads(data: Columns) -> Plot:
    """Layers by heads for each measure; bars where there is one layer."""
    measures = [m for m in HEAD_MEASURES if any(v is not None for v in data[m])]
    one = len(set(data["position"])) == 1
    make = _head_bars if one else _head_map
    frames = [{"name": m, "data": [make(data, m)], "traces": [0]} for m in measures]
    head_axis = {
        "title": {"text": "head"},
        "dtick": 1 if max(data["head"]) < 20 else 4,
        "zeroline": False,
        "showgrid": False,
    }
    if one:
        axes = {"xaxis": head_axis, "yaxis": {"range": [-1.05, 1.05]}}
        height = 300
    else:
        axes = {
            "xaxis": layer_axis(data["position"], data["label"], "layer"),
            "yaxis": {**head_axis, "autorange": "reversed"},
        }
        height = min(680, 130 + 26 * (max(data["head"]) + 1))
    margin = {"l": 56, "r": 16, "t": 32, "b": 48}
    shown = make(data, measures[0]) | ({} if one else _MAP)
    plot: Plot = {"data": [shown], "layout": layout(height, margin=margin, **axes)}
    return with_frames(
        plot, frames, control("choice", "shown", [HEAD_MEASURES[m] for m in measures])
    )


def _head_map(data: Columns, measure: str) -> dict[str, Any]:
    n_heads, positions = max(data["head"]) + 1, sorted(set(data["position"]))
    z: list[list[float | None]] = [[None] * len(positions) for _ in range(n_heads)]
    for i, head in enumerate(data["head"]):
        z[head][positions.index(data["position"][i])] = data[measure][i]
    few = len(positions) <= 12
    return {
        "type": "heatmap",
        "meta": "signed",
        "x": positions,
        "y": list(range(n_heads)),
        "z": z,
        "hovertemplate": f"layer %{{x}}, head %{{y}}<br>{HEAD_MEASURES[measure]} %{{z:+.3f}}"
        "<extra></extra>",
        **({"texttemplate": "%{z:+.2f}", "textfont": {"size": 10}} if few else {}),
    }


_MAP: dict[str, Any] = {
    "zmin": -1,
    "zmax": 1,
    "colorscale": SIGNED_SCALE,
    "xgap": 2,
    "ygap": 2,
    "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 0.9, "tickvals": [-1, 0, 1]},
}
# What frames leave alone, so that the page may fit the scale to a light or a dark background.


def _head_bars(data: Columns, measure: str) -> dict[str, Any]:
    values = data[measure]
    return {
        "type": "bar",
        "x": data["head"],
        "y": values,
        "hovertemplate": f"head %{{x}}<br>{HEAD_MEASURES[measure]} %{{y:+.3f}}<extra></extra>",
        "marker": {
            "color": [
                COLOURS["vermilion"] if v is not None and v < 0 else COLOURS["blue"] for v in values
            ]
        },
    }
