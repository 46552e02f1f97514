"""The plot of a simulation."""

from __future__ import annotations

import math
from typing import Any

from eigenlens.report.panels.figure import COLOURS, Columns
from eigenlens.report.panels.simulations import CURVES
from eigenlens.report.plots.parts import Plot, layout

_STYLES = {
    "apart": COLOURS["green"],
    "disagreement": COLOURS["blue"],
    "misalignment": COLOURS["vermilion"],
}
_FLOOR = 1e-12


def _decades(traces: list[dict[str, Any]]) -> int:
    """Powers of ten between two ticks."""
    lowest = min((v for t in traces for v in t["y"] if v is not None), default=1.0)
    return max(1, round(-math.log10(min(lowest, 1.0)) / 6))


def trajectory(data: Columns) -> Plot:
    """Three curves on a logarithmic scale, and the slopes that were foretold."""
    stream = data["form"][0] == "stream"
    traces: list[dict[str, Any]] = []
    for name, colour in _STYLES.items():
        rows = [i for i, whole in enumerate(data["whole"]) if whole or name != "misalignment"]
        values = [data[name][i] for i in rows]
        values = [v if v is not None and v > _FLOOR else None for v in values]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(rows) == len(data["whole"]) else "lines+markers",
                "marker": {"size": 5},
                "name": CURVES[name],
                "x": [data["step"][i] for i in rows],
                "y": values,
                "line": {"color": colour, "width": 2.2 if name != "apart" else 1.5},
                "hovertemplate": f"step %{{x}}<br>{CURVES[name]} %{{y:.3g}}<extra></extra>",
            }
        )
    legend = True
    for name in ("disagreement", "misalignment"):
        # Lifted a little, so that the line and the curve are both seen where they agree.
        found = data[f"predicted_{name}"]
        rows = [i for i, v in enumerate(found) if v is not None]
        if not rows:
            continue
        line = [1.6 * found[i] for i in rows]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "predicted slope",
                "legendgroup": "predicted",
                "showlegend": legend,
                "x": [data["step"][i] for i in rows],
                "y": line,
                "line": {"color": _STYLES[name], "width": 1.8, "dash": "dash"},
                "hovertemplate": f"predicted slope, {CURVES[name]}<extra></extra>",
            }
        )
        legend = False
    return {
        "data": traces,
        "layout": layout(
            420,
            xaxis={
                "title": {"text": "step"},
                "type": "log" if stream else "linear",
                "zeroline": False,
            },
            yaxis={
                "type": "log",
                "exponentformat": "power",
                "dtick": _decades(traces),
                "tickfont": {"size": 10},
            },
        ),
    }
