"""The figure of a steering: what it does to text as its strength grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eigenlens.report.panels.figure import COLOURS, Columns, Figure, columns, take, where
from eigenlens.report.plots.parts import Plot, layout
from eigenlens.steering.result import Steering

MEASURES = {
    "target_probability": "probability of the wanted",
    "kl": "KL per token (nats)",
    "after_sublayer_mean_cosine": "mean cosine after attention",
}
"""What is drawn over the strength, one panel each."""

METHODS = {
    "edit": ("edit", COLOURS["blue"], "circle"),
    "activation addition": ("activation addition", COLOURS["vermilion"], "square"),
}
"""Name, colour and mark of a way to steer."""

_COLUMNS = ("method", "strength", *MEASURES, "perplexity", "target_rank", "chosen")


def strengths(result: Steering) -> Columns:
    """One row a strength; the unedited model is the edit of strength 0.

    Empty without a running model. `chosen` marks the edit itself.
    """
    if result.after is None or result.before is None:
        return columns(_COLUMNS, [])
    rows = []
    for row in result.rows():
        unedited = row["method"] == "unedited"
        strength = 0.0 if unedited else float(row["strength"])
        method = "edit" if unedited else row["method"]
        chosen = row["method"] == "edit" and strength == result.edit.strength
        values = [row[name] for name in (*MEASURES, "perplexity", "target_rank")]
        rows.append((method, strength, *values, chosen))
    return columns(_COLUMNS, sorted(rows, key=lambda r: (r[0] != "edit", r[1])))


def is_wide(values: Sequence[float | None], factor: float = 30.0) -> bool:
    """Whether numbers span so much that a logarithmic axis shows them better; none is negative."""
    known = [v for v in values if v is not None and v != 0]
    return len(known) > 2 and min(known) > 0 and max(known) > factor * min(known)


def strengths_plot(data: Columns) -> Plot:
    """Target probability, KL and cosine over the strength."""
    traces: list[dict[str, Any]] = []
    shown = [m for m in MEASURES if any(v is not None for v in data[m])]
    axes: dict[str, Any] = {}
    for number, measure in enumerate(shown):
        axis = "y" if number == 0 else f"y{number + 1}"
        for method, (name, colour, symbol) in METHODS.items():
            rows = [i for i in where(data, method=method) if data[measure][i] is not None]
            if rows:
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines+markers",
                        "name": name,
                        "legendgroup": method,
                        "showlegend": number == 0,
                        "x": take(data["strength"], rows),
                        "y": take(data[measure], rows),
                        "yaxis": axis,
                        "line": {"color": colour, "width": 1.6},
                        "marker": {
                            "symbol": symbol,
                            "size": [11 if data["chosen"][i] else 6 for i in rows],
                        },
                    }
                )
        n = len(shown)
        top = 1 - number / n
        axes["yaxis" if number == 0 else f"yaxis{number + 1}"] = {
            "title": {"text": MEASURES[measure]},
            "domain": [max(top - 0.86 / n, 0), top],
            "type": "log" if is_wide(data[measure], 100) else "linear",
        }
    last = "y" if len(shown) < 2 else f"y{len(shown)}"
    return {
        "data": traces,
        "layout": layout(
            180 * max(len(shown), 1) + 60,
            xaxis={
                "title": {"text": "strength"},
                "anchor": last,
                "type": "log" if is_wide(data["strength"]) else "linear",
            },
            **axes,
        ),
    }


STEERINGS: dict[str, Figure] = {
    "strengths": Figure(
        "strengths",
        "What the edit does as its strength grows",
        "steer",
        strengths,
        "Held-out text under the edit: how probable the wanted tokens become, how far predictions "
        "move from the unedited model, and how far tokens point along the direction. The large "
        "mark is the edit itself; --sweep measures more strengths.",
        "Three panels over the strength: target probability, KL divergence and mean cosine.",
    )
}
"""Figures of a steering by name."""

STEERING_PLOTS: dict[str, Callable[[Columns], Plot]] = {"strengths": strengths_plot}
"""Plots of a steering by name."""
