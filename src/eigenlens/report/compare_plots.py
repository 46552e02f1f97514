"""Plots of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eigenlens.report.panels.figure import COLOURS, GUIDE, Columns, take, where
from eigenlens.report.plots.parts import DEPTH_SCALE, Plot, layer_axis, layer_ticks, layout, safe


def changes(data: Columns) -> Plot:
    """Bars of the relative change, and of the effective rank of the difference."""
    traces: list[dict[str, Any]] = []
    for changed, colour, name in (
        (False, COLOURS["blue"], "|dF| / |F|"),
        (True, COLOURS["vermilion"], "|dF| / |F|, regime changed"),
    ):
        rows = where(data, regime_changed=changed)
        if rows:
            traces.append(
                {
                    "type": "bar",
                    "name": name,
                    "x": take(data["position"], rows),
                    "y": take(data["relative_change"], rows),
                    "width": 0.72,
                    "customdata": [[safe(data["label"][i]), _regimes(data, i)] for i in rows],
                    "hovertemplate": "layer %{customdata[0]}<br>|dF|/|F| %{y:.4g}<br>"
                    "%{customdata[1]}<extra></extra>",
                    "marker": {"color": colour},
                }
            )
    traces.append(
        {
            "type": "bar",
            "name": "effective rank of dF",
            "x": data["position"],
            "y": data["effective_rank"],
            "yaxis": "y2",
            "width": 0.72,
            "hovertemplate": "effective rank %{y:.1f}<extra></extra>",
            "marker": {"color": COLOURS["green"]},
        }
    )
    return {
        "data": traces,
        "layout": layout(
            400,
            barmode="overlay",
            xaxis={**layer_axis(data["position"], data["label"], "layer"), "anchor": "y2"},
            yaxis={"title": {"text": "|dF| / |F|"}, "domain": [0.42, 1], "rangemode": "tozero"},
            yaxis2={"title": {"text": "rank"}, "domain": [0, 0.34], "rangemode": "tozero"},
        ),
    }


def _regimes(data: Columns, i: int) -> str:
    a, b = data["regime_a"][i], data["regime_b"][i]
    if a is None or b is None:
        return "not square"
    return safe(a if a == b else f"{a} to {b}").replace("_", " ")


def moves(data: Columns) -> Plot:
    """Segments from A to B in the upper half-plane, with a mark at either end."""
    n = len(data["position"])
    x: list[float | None] = []
    y: list[float | None] = []
    for i in range(n):
        x += [data["re_a"][i], data["re_b"][i], None]
        y += [data["im_a"][i], data["im_b"][i], None]
    top = max([*data["position"], 1])
    scale = {"colorscale": DEPTH_SCALE, "cmin": 0, "cmax": top, "color": data["position"]}
    custom = [
        [safe(data["label"][i]), data["distance"][i], safe(data["match"][i]).replace("_", " ")]
        for i in range(n)
    ]
    hover = "layer %{customdata[0]}, %{customdata[2]}<br>moved by %{customdata[1]:.4g}"
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": y,
            "line": {"color": GUIDE, "width": 1.2},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    for side, symbol, name in (("a", "circle-open", "A"), ("b", "diamond", "B")):
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": data[f"re_{side}"],
                "y": data[f"im_{side}"],
                "customdata": custom,
                "hovertemplate": f"{name}: %{{x:.5g}} + %{{y:.5g}}i<br>{hover}<extra></extra>",
                "marker": {**scale, "symbol": symbol, "size": 8, "showscale": False},
            }
        )
    if len(set(data["position"])) > 1:
        traces[-1]["marker"] |= {
            "showscale": True,
            "colorbar": {
                "title": {"text": "layer", "side": "right"},
                "thickness": 10,
                "len": 0.7,
                "outlinewidth": 0,
                **layer_ticks(data),
            },
        }
    return {
        "data": traces,
        "layout": layout(
            420,
            xaxis={"title": {"text": "Re λ"}},
            yaxis={"title": {"text": "Im λ"}, "scaleanchor": "x", "constrain": "domain"},
        ),
    }


COMPARISON_PLOTS: dict[str, Callable[[Columns], Plot]] = {"changes": changes, "moves": moves}
"""Plots of a comparison by name."""
