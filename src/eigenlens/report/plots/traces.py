"""Plots of a trace."""

from __future__ import annotations

from typing import Any

from eigenlens.report.panels.figure import COLOURS, GUIDE, Columns, take, where
from eigenlens.report.panels.traces import COLLAPSE, GROUPS, NULL_NAMES, by_step, collapse_rows
from eigenlens.report.plots.parts import Plot, broken, layer_axis, layout, safe
from eigenlens.report.words import p_text
from eigenlens.tracing.result import LEVEL

_ROWS = {"rho": "rho", "gamma": "gamma", "gain": "gain"}


_NULLS = {
    "matched_spectrum": ("x-thin-open", True),
    "random_init": ("circle-open", True),
    "second_pair": ("triangle-up-open", False),
    "other_layer": ("square-open", False),
    "top_singular": ("triangle-down-open", False),
}
_COLOURS = {
    "cosine": COLOURS["blue"],
    "anisotropy": COLOURS["sky"],
    "rank_residual": COLOURS["vermilion"],
    "frobenius_residual": COLOURS["orange"],
    "high_low_ratio": COLOURS["purple"],
    "effective_rank": COLOURS["green"],
    "participation_ratio": COLOURS["grey"],
    "stable_rank": COLOURS["blue"],
}


def alignment(data: Columns) -> Plot:
    """Rho, gamma and gain over layers, each beside the band of random directions."""
    traces: list[dict[str, Any]] = []
    for number, measure in enumerate(_ROWS):
        rows = where(data, measure=measure)
        side = "y" if number == 0 else f"y{number + 1}"
        traces += _alignment_row(data, rows, side, number == 0, measure)
    title = "step" if by_step(data) else "layer"
    axis = layer_axis(data["position"], data["label"], title)
    lines = [_level(0.5, "y"), _level(0.0, "y3")]
    return {
        "data": traces,
        "layout": layout(
            640,
            barmode="overlay",
            shapes=lines,
            xaxis={**axis, "anchor": "y3"},
            yaxis={"title": {"text": "rho"}, "domain": [0.7, 1.0], "zeroline": False},
            yaxis2={"title": {"text": "gamma"}, "domain": [0.35, 0.65], "rangemode": "tozero"},
            yaxis3={"title": {"text": "gain"}, "domain": [0.0, 0.3], "zeroline": False},
        ),
    }


def _level(y: float, axis: str) -> dict[str, Any]:
    line = {"color": GUIDE, "dash": "dash", "width": 1}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": axis,
        "y0": y,
        "y1": y,
        "line": line,
    }


def _alignment_row(
    data: Columns, rows: list[int], axis: str, legend: bool, measure: str
) -> list[dict[str, Any]]:
    x = take(data["position"], rows)
    common = {"x": x, "yaxis": axis}
    names = [safe(v) for v in take(data["label"], rows)]
    out: list[dict[str, Any]] = []
    low, high = take(data["random_low"], rows), take(data["random_high"], rows)
    if any(v is not None for v in low):
        spread = [None if a is None or b is None else b - a for a, b in zip(low, high, strict=True)]
        out.append(
            {
                **common,
                "type": "bar",
                "base": low,
                "y": spread,
                "width": 0.72,
                "name": "random directions, middle 95 %",
                "legendgroup": "random",
                "showlegend": legend,
                "marker": {"color": "rgba(138,143,152,0.32)"},
                "customdata": [list(pair) for pair in zip(low, high, strict=True)],
                "hovertemplate": "random directions: %{customdata[0]:.4f} to "
                "%{customdata[1]:.4f}<extra></extra>",
            }
        )
    for null, (symbol, shown) in _NULLS.items():
        name, values = NULL_NAMES[null], take(data[null], rows)
        if all(v is None for v in values):
            continue
        out.append(
            {
                **common,
                "type": "scatter",
                "mode": "markers",
                "y": values,
                "name": name,
                "legendgroup": null,
                "showlegend": legend,
                "visible": True if shown else "legendonly",
                "marker": {
                    "symbol": symbol,
                    "size": 8,
                    "color": COLOURS["orange"] if null == "matched_spectrum" else GUIDE,
                    "line": {"width": 1.6},
                },
                "hovertemplate": f"{name}: %{{y:.4f}}<extra></extra>",
            }
        )
    values = take(data["value"], rows)
    bounds = list(zip(take(data["low"], rows), take(data["high"], rows), strict=True))
    known = all(a is not None for a, _ in bounds)
    beyond = take(data["beyond"], rows)
    error = {
        "type": "data",
        "symmetric": False,
        "array": [b - v for (_, b), v in zip(bounds, values, strict=True)] if known else [],
        "arrayminus": [v - a for (a, _), v in zip(bounds, values, strict=True)] if known else [],
        "thickness": 1.4,
        "width": 0,
        "color": COLOURS["blue"],
    }
    tested = "<br>corrected p %{customdata[1]}" if measure == "rho" else ""
    out.append(
        {
            **common,
            "type": "scatter",
            "mode": "markers",
            "y": values,
            "name": "measured",
            "legendgroup": "measured",
            "showlegend": legend,
            "error_y": {**error, "visible": known},
            "customdata": [
                [name, p_text(data["p_holm"][i], LEVEL)]
                for name, i in zip(names, rows, strict=True)
            ],
            "hovertemplate": f"%{{customdata[0]}}: {measure} %{{y:.4f}}{tested}<extra></extra>",
            "marker": {
                "color": COLOURS["blue"],
                "size": 9,
                "symbol": ["circle" if b else "circle-open" for b in beyond],
                "line": {"width": 1.8, "color": COLOURS["blue"]},
            },
        }
    )
    return out


def collapse(data: Columns) -> Plot:
    """Cosines, residuals and ranks over depth."""
    traces: list[dict[str, Any]] = []
    for number, group in enumerate(GROUPS.values()):
        side = "y" if number == 0 else f"y{number + 1}"
        for measure in group:
            name = COLLAPSE[measure]
            for place in ("after attention", "after block"):
                rows = collapse_rows(data, measure, place)
                if not rows:
                    continue
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines+markers",
                        "x": broken(data, rows, data["depth"]),
                        "y": broken(data, rows, data["value"]),
                        "yaxis": side,
                        "name": name,
                        "legend": "legend" if number == 0 else f"legend{number + 1}",
                        "legendgroup": measure,
                        "showlegend": place == "after attention",
                        "line": {
                            "color": _COLOURS[measure],
                            "width": 1.8 if place == "after attention" else 1.4,
                            "dash": "solid" if place == "after attention" else "dot",
                        },
                        "marker": {"size": 5 if place == "after attention" else 3},
                        "customdata": [
                            None if v is None else safe(v)
                            for v in broken(data, rows, data["label"])
                        ],
                        "hovertemplate": f"{name}, {place}<br>%{{customdata}}: %{{y:.4g}}"
                        "<extra></extra>",
                    }
                )
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "font": {"size": 12}}
    calls = {d: x for d, x in zip(data["depth"], data["layer"], strict=True) if x is not None}
    places = {(data["stack"][i], data["kind"][i], x) for i, x in enumerate(data["layer"])}
    by_step = len(calls) > sum(x is not None for _, _, x in places)
    axis = layer_axis(data["depth"], data["label"], f"after {'step' if by_step else 'layer'}")
    return {
        "data": traces,
        "layout": layout(
            680,
            legend={**legend, "y": 1.01},
            legend2={**legend, "y": 0.64},
            legend3={**legend, "y": 0.27},
            xaxis={**axis, "anchor": "y3"},
            yaxis={"title": {"text": "cosine"}, "domain": [0.75, 1.0]},
            yaxis2={"title": {"text": "residual"}, "domain": [0.38, 0.63], "rangemode": "tozero"},
            yaxis3={"title": {"text": "rank"}, "domain": [0.0, 0.26], "rangemode": "tozero"},
        ),
    }
