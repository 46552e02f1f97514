"""The figure of a simulation: what was seen over the steps, and the slopes that were foretold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenlens.report.figures.style import head, new_figure, saved
from eigenlens.report.panels.figure import COLOURS, Columns
from eigenlens.report.panels.simulations import CURVES
from eigenlens.report.panels.simulations import trajectory as columns_of

if TYPE_CHECKING:
    from eigenlens.dynamics.result import Simulation

_FLOOR = 1e-12
_LOOKS: dict[str, tuple[str, float]] = {
    "apart": (COLOURS["green"], 1.2),
    "disagreement": (COLOURS["blue"], 1.8),
    "misalignment": (COLOURS["vermilion"], 1.8),
}
_ABOVE = 1.6  # a predicted line stands so many times above its curve: both are seen


def trajectory(data: Columns, source: str) -> Any:
    """Curves on a logarithmic scale over the steps; dashed, the slopes that were predicted.

    A stream's steps are logarithmic too: its alignment is a power of the step.
    """
    figure = new_figure(3.7, 5.8)
    axes = figure.add_subplot()
    stream = data["form"][0] == "stream"
    low = 1.0
    for name, (colour, width) in _LOOKS.items():
        points = [
            (step, value)
            for step, value in zip(data["step"], data[name], strict=True)
            if value is not None and value > _FLOOR and (step > 0 or not stream)
        ]
        low = min([low, *(value for _, value in points)])
        x, y = [p[0] for p in points], [p[1] for p in points]
        axes.plot(x, y, color=colour, lw=width, label=CURVES[name])
    predicted = False
    for name in ("disagreement", "misalignment"):
        line = [
            (step, _ABOVE * value)
            for step, value in zip(data["step"], data[f"predicted_{name}"], strict=True)
            if value is not None
        ]
        if line:
            x, y = [p[0] for p in line], [p[1] for p in line]
            axes.plot(x, y, color=_LOOKS[name][0], ls=(0, (4, 2)), lw=1.4)
            predicted = True
    axes.set_yscale("log")
    if stream:
        axes.set_xscale("log")
        axes.set_xlim(1, max(data["step"][-1], 2))
    axes.set_ylim(max(low / 3, _FLOOR), 3.0)
    axes.set_xlabel("step")
    handles, labels = axes.get_legend_handles_labels()
    if predicted:
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color="0.35", ls=(0, (4, 2)), lw=1.4))
        labels.append("predicted slope")
    axes.legend(handles, labels, loc="best")
    head(axes, source)
    return figure


def simulation_figure(result: Simulation, path: Path) -> bytes:
    """`trajectory` of a simulation, in the format of the path's suffix.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    ended = result.outcome.label if result.outcome.settled else "not settled"
    source = f"{result.model['source']}: {ended}"
    kind = path.suffix.lower().removeprefix(".")
    return saved(lambda: trajectory(columns_of(result), source), kind)
