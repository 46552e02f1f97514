"""The plot of tokens on the sphere."""

from __future__ import annotations

import math
from typing import Any

from eigenlens.report.panels.figure import COLOURS, GUIDE, Columns, take, where
from eigenlens.report.plots.parts import Plot, control, layout, safe, with_frames

PROMPT_COLOURS = tuple(
    COLOURS[name]
    for name in ("blue", "vermilion", "green", "purple", "orange", "sky", "grey", "yellow")
)
"""One colour a prompt; beyond eight they begin again."""

_TOKEN = (
    "<b>%{text}</b><br>prompt %{customdata[0]}, token %{customdata[1]}<br>"
    "in these axes %{customdata[2]:.0%}<br>alignment %{customdata[3]:.3f}<extra></extra>"
)


def sphere(data: Columns) -> Plot:
    """Tokens of some prompts at one depth, and a frame for every depth."""
    prompts = sorted(set(data["prompt"]))
    depths = sorted(set(data["depth"]))
    fixed = [_wires(), _ring()]
    last = depths[-1]
    moving = [_tokens(data, last, prompt, number) for number, prompt in enumerate(prompts)]
    bare = {"visible": False, "range": [-1.12, 1.12]}
    axis = {**bare, "showbackground": False}
    plot: Plot = {
        "data": [*fixed, *moving],
        "layout": layout(
            520,
            margin={"l": 0, "r": 0, "t": 0, "b": 0},
            showlegend=False,
            scene={
                "xaxis": axis,
                "yaxis": axis,
                "zaxis": axis,
                "aspectmode": "cube",
                "camera": {"eye": {"x": 0.88, "y": 0.88, "z": 0.62}},
                "annotations": [
                    _name("e₁", 1.1, 0, 0),
                    _name("e₂", 0, 1.1, 0),
                    _name("e₃", 0, 0, 1.1),
                ],
            },
        ),
    }
    traces = [len(fixed) + i for i in range(len(prompts))]
    frames = [
        {
            "name": f"d{depth}",
            "traces": traces,
            "data": [_places(data, depth, prompt) for prompt in prompts],
        }
        for depth in depths
    ]
    names = [safe(data["label"][where(data, depth=depth)[0]]) for depth in depths]
    plot = with_frames(
        plot, frames, control("slider", f"after {data['unit'][0]}", names, len(depths) - 1)
    )
    meta = plot["layout"]["meta"]
    meta["groups"] = {
        "label": "prompt",
        "first": len(fixed),
        "names": [safe(data["text"][where(data, prompt=p)[0]]) for p in prompts],
        "colours": [PROMPT_COLOURS[i % len(PROMPT_COLOURS)] for i in range(len(prompts))],
    }
    return plot


def _name(text: str, x: float, y: float, z: float) -> dict[str, Any]:
    return {"text": text, "x": x, "y": y, "z": z, "showarrow": False, "font": {"size": 14}}


def _tokens(data: Columns, depth: int, prompt: int, number: int) -> dict[str, Any]:
    rows = where(data, depth=depth, prompt=prompt)
    return {
        "mode": "markers",
        "name": f"prompt {prompt + 1}",
        "text": [safe(data["token"][i]) for i in rows],
        "textposition": "top center",
        "textfont": {"size": 11},
        "hovertemplate": _TOKEN,
        **_places(data, depth, prompt),
        "marker": {
            "color": PROMPT_COLOURS[number % len(PROMPT_COLOURS)],
            "symbol": ["diamond" if data["special"][i] else "circle" for i in rows],
            "opacity": 0.92,
            "line": {"width": 0},
            **_places(data, depth, prompt)["marker"],
        },
    }


def _places(data: Columns, depth: int, prompt: int) -> dict[str, Any]:
    rows = where(data, depth=depth, prompt=prompt)
    return {
        "type": "scatter3d",
        "x": take(data["x"], rows),
        "y": take(data["y"], rows),
        "z": take(data["z"], rows),
        "customdata": [
            [prompt + 1, data["position"][i] + 1, data["share"][i], data["alignment"][i]]
            for i in rows
        ],
        "marker": {"size": [5 + 10 * math.sqrt(max(data["share"][i], 0.0)) for i in rows]},
    }


def _wires() -> dict[str, Any]:
    """Meridians and parallels as one broken line."""
    x: list[float | None] = []
    y: list[float | None] = []
    z: list[float | None] = []
    turn = [2 * math.pi * i / 48 for i in range(49)]
    for k in range(6):
        a = math.pi * k / 6
        x += [*(math.cos(t) * math.cos(a) for t in turn), None]
        y += [*(math.cos(t) * math.sin(a) for t in turn), None]
        z += [*(math.sin(t) for t in turn), None]
    for k in (-2, -1, 1, 2):
        h = math.pi * k / 6
        x += [*(math.cos(h) * math.cos(t) for t in turn), None]
        y += [*(math.cos(h) * math.sin(t) for t in turn), None]
        z += [*(math.sin(h) for _ in turn), None]
    return _guide(x, y, z, 1, 0.35)


def _ring() -> dict[str, Any]:
    """The great circle of e1 and e2."""
    turn = [2 * math.pi * i / 96 for i in range(97)]
    return _guide([math.cos(t) for t in turn], [math.sin(t) for t in turn], [0.0] * 97, 4, 0.9)


def _guide(
    x: list[Any], y: list[Any], z: list[Any], width: float, opacity: float
) -> dict[str, Any]:
    return {
        "type": "scatter3d",
        "mode": "lines",
        "x": x,
        "y": y,
        "z": z,
        "line": {"color": GUIDE, "width": width},
        "opacity": opacity,
        "hoverinfo": "skip",
        "showlegend": False,
    }
