"""Tokens on the sphere at a few depths, side by side."""

from __future__ import annotations

import math
from typing import Any

from eigenlens.report.figures.style import new_figure, plain
from eigenlens.report.panels.figure import COLOURS, GUIDE, Columns, take, where

_COLOURS = [COLOURS[c] for c in ("blue", "vermilion", "green", "purple", "orange", "black")]
_MARKS = ("o", "s", "^", "D", "v", "P")
_SHOWN = 4

# The direction from which the sphere is seen, and the two axes of the paper, orthonormal.
_EYE = (0.62, 0.62, 0.48)
_SIZE = math.sqrt(sum(v * v for v in _EYE))
_OUT = tuple(v / _SIZE for v in _EYE)
_FLAT = math.hypot(_OUT[0], _OUT[1])
_RIGHT = (-_OUT[1] / _FLAT, _OUT[0] / _FLAT, 0.0)
_UP = (-_OUT[2] * _OUT[0] / _FLAT, -_OUT[2] * _OUT[1] / _FLAT, _FLAT)


def sphere(data: Columns, source: str) -> Any:
    """The first depth, the last, and two between; small and pale is what lies behind."""
    depths = sorted(set(data["depth"]))
    count = min(_SHOWN, len(depths))
    shown = [depths[round(i * (len(depths) - 1) / max(count - 1, 1))] for i in range(count)]
    prompts = sorted(set(data["prompt"]))
    figure = new_figure(2.5)
    grid = figure.subplots(1, count, squeeze=False)[0]
    for axes, depth in zip(grid, shown, strict=True):
        _globe(axes)
        for number, prompt in enumerate(prompts):
            rows = where(data, depth=depth, prompt=prompt)
            places = [_seen(data["x"][i], data["y"][i], data["z"][i]) for i in rows]
            for front in (False, True):
                own = [(p, i) for p, i in zip(places, rows, strict=True) if (p[2] >= 0) == front]
                axes.scatter(
                    [p[0] for p, _ in own],
                    [p[1] for p, _ in own],
                    s=[5 + 26 * max(data["share"][i], 0.0) for _, i in own],
                    color=_COLOURS[number % len(_COLOURS)],
                    marker=_MARKS[number % len(_MARKS)],
                    alpha=0.9 if front else 0.3,
                    lw=0,
                    zorder=4 if front else 2,
                    label=f"prompt {prompt + 1}" if front and depth == shown[0] else None,
                )
        rows = where(data, depth=depth)
        name = plain(take(data["label"], rows[:1])[0])
        axes.set_title(name if name == "start" else f"after layer {name}", loc="center", pad=2)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(prompts) or 1, markerscale=1.4
    )
    figure.suptitle(plain(source), x=0.01, ha="left", fontsize=9)
    return figure


def _seen(x: float, y: float, z: float) -> tuple[float, float, float]:
    """Across, up and towards the eye."""
    across, up, out = (
        sum(a * b for a, b in zip(axis, (x, y, z), strict=True)) for axis in (_RIGHT, _UP, _OUT)
    )
    return across, up, out


def _globe(axes: Any) -> None:
    turn = [2 * math.pi * i / 120 for i in range(121)]
    axes.plot([math.cos(t) for t in turn], [math.sin(t) for t in turn], color="0.7", lw=0.8)
    circles = [
        [(math.cos(t) * math.cos(a), math.cos(t) * math.sin(a), math.sin(t)) for t in turn]
        for a in (0.0, math.pi / 3, 2 * math.pi / 3)
    ]
    ring = [(math.cos(t), math.sin(t), 0.0) for t in turn]
    for circle, colour, width in (*((c, "0.88", 0.6) for c in circles), (ring, GUIDE, 1.0)):
        for front in (False, True):
            points = [_seen(*p) for p in circle]
            across = [p[0] if (p[2] >= 0) == front else math.nan for p in points]
            up = [p[1] if (p[2] >= 0) == front else math.nan for p in points]
            axes.plot(across, up, color=colour, lw=width, alpha=1.0 if front else 0.4, zorder=1)
    for name, axis in (("e₁", (1.0, 0, 0)), ("e₂", (0, 1.0, 0)), ("e₃", (0, 0, 1.0))):
        x, y, _ = _seen(*axis)
        axes.annotate(
            name,
            (x, y),
            xytext=(1.16 * x, 1.16 * y),
            ha="center",
            va="center",
            fontsize=7,
            color="0.4",
        )
    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    axes.set_aspect("equal")
    axes.set_axis_off()
