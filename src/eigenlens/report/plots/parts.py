"""What the plots share: escaped texts, axes over layers, colours, controls."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from eigenlens.inert import inert
from eigenlens.report.panels.figure import COLOURS, Columns

Plot = dict[str, Any]
"""A plotly figure as plain data: ``data``, ``layout``, and ``frames`` where something moves."""

DEPTH_SCALE = [[0.0, COLOURS["blue"]], [0.5, COLOURS["purple"]], [1.0, COLOURS["orange"]]]
"""From the first layer to the last: colours of rising lightness."""

SIGNED_SCALE = [[0.0, COLOURS["vermilion"]], [0.5, "#eef0f2"], [1.0, COLOURS["blue"]]]
"""From -1 (inverts) over 0 to +1 (copies)."""


def safe(text: object) -> str:
    """A text for plotly, which reads a few HTML tags and entities: none of the model's may act."""
    return html.escape(inert(str(text)), quote=False)


def layout(height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures begin with; colours of text and grid come from the theme."""
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
        },
        "hoverlabel": {"align": "left"},
        "hovermode": "closest",
        **more,
    }


def layer_axis(positions: Sequence[int], labels: Sequence[str], title: str) -> dict[str, Any]:
    """An axis over layers with one tick each, or fewer where there are many."""
    found = dict(zip(positions, labels, strict=True))
    step = max(1, -(-len(found) // 16))
    shown = sorted(found)[::step]
    return {
        "title": {"text": title},
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [safe(found[p]) for p in shown],
        "range": [min(found, default=0) - 0.6, max(found, default=0) + 0.6],
        "zeroline": False,
        "showgrid": False,
    }


def layer_ticks(data: Columns) -> dict[str, Any]:
    """Ticks of a colour bar over layers: the names of some of them, never a half."""
    found = dict(zip(data["position"], data["label"], strict=True))
    shown = sorted(found)[:: max(1, -(-len(found) // 7))]
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [safe(found[p]) for p in shown],
    }


def broken(data: Columns, rows: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """Values of rows, and a None between two stacks or kinds: no line joins them."""
    out: list[Any] = []
    for k, i in enumerate(rows):
        before = rows[k - 1] if k else i
        if (data["stack"][i], data["kind"][i]) != (data["stack"][before], data["kind"][before]):
            out.append(None)
        out.append(values[i])
    return out


def control(kind: str, label: str, names: Sequence[str], start: int = 0) -> dict[str, Any]:
    """What moves between the frames: a ``slider``, or a ``choice`` of named views."""
    return {"kind": kind, "label": label, "names": list(names), "start": start}


def with_frames(plot: Plot, frames: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Plot:
    """A plot with its frames, plotly's own slider (for notebooks) and the page's control."""
    names = [f["name"] for f in frames]
    steps = [
        {
            "label": shown,
            "method": "animate",
            "args": [
                [name],
                {"mode": "immediate", "frame": {"duration": 0, "redraw": True}},
            ],
        }
        for name, shown in zip(names, meta["names"], strict=True)
    ]
    slider = {
        "active": meta["start"],
        "currentvalue": {"prefix": f"{meta['label']}: "},
        "pad": {"t": 36},
        "steps": steps,
    }
    extra = {"sliders": [slider], "meta": {"control": dict(meta)}}
    return {**plot, "layout": {**plot["layout"], **extra}, "frames": list(frames)}
