"""Figures by matplotlib, one function a figure; lines differ by colour and by dash."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.dynamics.result import Simulation
from eigenlens.errors import MissingDependencyError
from eigenlens.inert import inert

SUFFIXES = (".png", ".pdf", ".svg")
"""File formats of a figure."""

# Okabe and Ito's colours, told apart by colour-blind readers and in grey.
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"
_FLOOR = 1e-12


def need_matplotlib() -> None:
    """Say what is missing before the work is done.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "a figure needs matplotlib: pip install 'eigenlens[report]'"
        ) from None


def simulation_figure(result: Simulation, path: Path) -> bytes:
    """Three curves of a simulation over its steps, on a logarithmic scale, in the suffix's format.

    ``1 - cosine`` (mean over pairs), the disagreement, and the sine of the angle to the target;
    dashed, the slopes that were predicted, through the middle of the stretch where rates are
    fitted. A stream's steps are logarithmic too: its alignment is a power of the step.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stream = result.options["form"] == "stream"
    steps = np.array([row["step"] for row in result.trajectory], dtype=float)
    curves = {name: _column(result, name) for name in ("cosine", "disagreement", "misalignment")}
    fig = Figure(figsize=(7.5, 4.6), layout="constrained")
    FigureCanvasAgg(fig)
    ax = fig.add_subplot()
    shown = steps > 0 if stream else steps >= 0
    low = 1.0
    for values, name, colour, width in (
        (1.0 - curves["cosine"], "1 - mean cosine", _GREEN, 1.2),
        (curves["disagreement"], "disagreement", _BLUE, 1.8),
        (curves["misalignment"], f"sine of angle to {_target(result)}", _ORANGE, 1.8),
    ):
        clean = shown & (values > _FLOOR)
        low = min(low, float(values[clean].min(initial=1.0)))
        ax.plot(steps[clean], values[clean], color=colour, lw=width, label=name)
    drawn = [
        _slope(ax, steps, curves[name], slope, colour, stream, _noise(result))
        for name, slope, colour in _predicted(result)
    ]
    ax.set_yscale("log")
    if stream:
        ax.set_xscale("log")
        ax.set_xlim(1, max(steps[-1], 2))
    ax.set_ylim(max(low / 3, _FLOOR), 3.0)
    ax.set_xlabel("step")
    ax.grid(visible=True, which="major", color="0.9", lw=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    if any(drawn):
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color="0.35", ls=(0, (4, 2)), lw=1.4))
        labels.append("predicted slope")
    ax.legend(handles, labels, frameon=False, loc="best", fontsize=9)
    # A model's name may hold $, which starts a formula.
    title = f"{inert(str(result.model['source']))}: {result.outcome.label}".replace("$", r"\$")
    ax.set_title(title, loc="left", fontsize=11)
    sink = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    fig.savefig(sink, format=kind, dpi=160, metadata=metadata)
    return sink.getvalue()


def _predicted(result: Simulation) -> list[tuple[str, float, str]]:
    """Curve, slope (of the logarithm, in steps or in their logarithm) and colour."""
    p = result.outcome.predicted
    if p is None:
        return []
    slopes = [
        ("disagreement", _log(p.disagreement_rate), _BLUE),
        ("misalignment", _log(p.alignment_rate) if p.exponent is None else p.exponent, _ORANGE),
    ]
    return [(name, slope, colour) for name, slope, colour in slopes if slope is not None]


def _target(result: Simulation) -> str:
    return {"v1": "v1", "plane": "the plane", "span": "the span", "kernel": "the kernel"}[
        result.outcome.target
    ]


def _column(result: Simulation, name: str) -> Float[np.ndarray, "t"]:
    return np.array([row[name] for row in result.trajectory], dtype=float)


def _log(rate: float | None) -> float | None:
    return math.log(rate) if rate else None


def _noise(result: Simulation) -> float:
    return {"float32": 4e-6}.get(str(result.options.get("dtype")), 1e-11)


def _slope(
    ax: Any,
    steps: Float[np.ndarray, "t"],
    values: Float[np.ndarray, "t"],
    slope: float,
    colour: str,
    stream: bool,
    floor: float,
) -> bool:
    """Draw the predicted slope, dashed, beside the part of a curve that is in its linear regime.

    A little above the curve, so that both are seen where they agree. False where there is no such
    part.
    """
    top = 0.95 if stream else 0.1
    clean = np.flatnonzero((values > floor) & (values < top) & (steps > 0))
    if clean.size < 4:
        return False
    time = np.log(steps[clean]) if stream else steps[clean]
    late = time >= time[0] + (time[-1] - time[0]) / 3
    clean, time = clean[late], time[late]
    middle = float(np.median(np.log(values[clean]) - slope * time))
    line = np.exp(middle + slope * time) * 1.6
    ax.plot(steps[clean], line, color=colour, ls=(0, (4, 2)), lw=1.4)
    return True
