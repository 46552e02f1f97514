"""Plots of a survey: bars by scale, points by scale, areas by training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eigenlens.report.panels.figure import COLOURS, REGIME_COLOURS, Columns, take, where
from eigenlens.report.plots.parts import Plot, control, layout, safe, with_frames
from eigenlens.report.words import regime_text
from eigenlens.spectra.principal import REGIMES

_LONGEST = 44  # signs of a name on an axis


def scale(data: Columns) -> Plot:
    """A stacked bar a checkpoint."""
    names = list(dict.fromkeys(data["model"]))
    height = max(240, 110 + 22 * len(names))
    traces = []
    for regime in _there(data):
        rows = where(data, regime=regime)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": regime_text(regime),
                "y": list(range(len(names))),
                "x": [100 * v for v in take(data["share"], rows)],
                "customdata": [
                    [safe(data["model"][i]), data["d_model"][i], data["layers"][i]] for i in rows
                ],
                "hovertemplate": "%{customdata[0]}<br>d %{customdata[1]}, %{customdata[2]} layers"
                f"<br>%{{x:.0f}} % {regime_text(regime)}<extra></extra>",
                "marker": {"color": REGIME_COLOURS[regime]},
            }
        )
    return {
        "data": traces,
        "layout": layout(
            height,
            barmode="stack",
            bargap=0.3,
            xaxis={"title": {"text": "share of layers, %"}, "range": [0, 100]},
            yaxis={
                "tickmode": "array",
                "tickvals": list(range(len(names))),
                "ticktext": [safe(_short(name)) for name in names],
                "automargin": True,
                "showgrid": False,
            },
        ),
    }


def gap(data: Columns) -> Plot:
    """The median gap of each checkpoint over its scale."""
    first = {data["model"][i]: i for i in reversed(range(len(data["model"])))}
    rows = [i for i in sorted(first.values()) if None not in (data["gap"][i], data["scale"][i])]
    traces = []
    for regime in REGIMES:
        own = [i for i in rows if data["main"][i] == regime]
        if own:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": regime_text(regime),
                    "x": take(data["scale"], own),
                    "y": [100 * v for v in take(data["gap"], own)],
                    "customdata": [
                        [safe(data["model"][i]), data["d_model"][i], data["layers"][i]] for i in own
                    ],
                    "hovertemplate": "%{customdata[0]}<br>d %{customdata[1]}, %{customdata[2]} "
                    "layers<br>median gap %{y:.1f} %<extra></extra>",
                    "marker": {"color": REGIME_COLOURS[regime], "size": 10},
                }
            )
    return {
        "data": traces,
        "layout": layout(
            320,
            showlegend=True,
            xaxis={"title": {"text": "weights in the blocks"}, "type": "log"},
            yaxis={"title": {"text": "median gap, %"}, "rangemode": "tozero"},
        ),
    }


def steps(data: Columns) -> Plot:
    """Stacked areas over the training steps of a run, the median gap as a line."""
    runs = list(dict.fromkeys(data["series"]))
    frames = [
        {
            "name": f"r{i}",
            "data": _areas(data, run),
            "traces": list(range(len(REGIMES) + 1)),
        }
        for i, run in enumerate(runs)
    ]
    plot: Plot = {
        "data": frames[0]["data"],
        "layout": layout(
            340,
            xaxis={"title": {"text": "training step"}, "zeroline": False},
            yaxis={"title": {"text": "share of layers, %"}, "range": [0, 100]},
        ),
    }
    if len(runs) == 1:
        return plot
    return with_frames(plot, frames, control("choice", "run", [safe(run) for run in runs]))


def _areas(data: Columns, run: str) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for regime in REGIMES:
        rows = where(data, series=run, regime=regime)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "shares",
                "name": regime_text(regime),
                "x": take(data["train_step"], rows),
                "y": [100 * v for v in take(data["share"], rows)],
                "line": {"width": 0.5, "color": REGIME_COLOURS[regime]},
                "fillcolor": REGIME_COLOURS[regime],
                "hovertemplate": f"step %{{x}}: %{{y:.0f}} % {regime_text(regime)}<extra></extra>",
            }
        )
    once = where(data, series=run, regime=next(iter(REGIMES)))
    rows = [i for i in once if data["gap"][i] is not None]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "median gap",
            "x": take(data["train_step"], rows),
            "y": [100 * data["gap"][i] for i in rows],
            "line": {"color": COLOURS["black"], "width": 2},
            "marker": {"size": 6, "color": COLOURS["yellow"], "line": {"width": 1}},
            "hovertemplate": "step %{x}: median gap %{y:.1f} %<extra></extra>",
        }
    )
    return traces


def _there(data: Columns) -> list[str]:
    """Regimes that occur."""
    shares = zip(data["regime"], data["share"], strict=True)
    found = {regime for regime, share in shares if share > 0}
    return [regime for regime in REGIMES if regime in found]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else "…" + name[-_LONGEST + 1 :]


SURVEY_PLOTS: dict[str, Callable[[Columns], Plot]] = {
    "survey_scale": scale,
    "survey_gap": gap,
    "survey_steps": steps,
}
"""The plot of every figure of a survey."""
