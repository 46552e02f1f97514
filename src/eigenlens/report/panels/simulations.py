"""The figure of a simulation: what was seen over the steps, and the slopes that were foretold."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float

from eigenlens.dynamics.result import Simulation
from eigenlens.report.panels.figure import Columns

CURVES = {
    "apart": "1 - mean cosine",
    "disagreement": "disagreement",
    "misalignment": "sine of the angle to the target",
}
"""Curves of a trajectory."""

PREDICTED = ("disagreement", "misalignment")
"""Those that have a predicted slope, where a rate can be read."""


def trajectory(result: Simulation) -> Columns:
    """One row a step; `whole` marks the ends of passes.

    ``predicted_*`` hold the foretold line where a rate can be read, else None. It has the predicted
    slope and goes through the middle of the curve's linear stretch, so it says nothing of the
    level. Between the layers of a pass the angle to the target of the whole pass comes and goes:
    only its values at the ends of passes are on one line.
    """
    steps = np.array([row["step"] for row in result.trajectory], dtype=float)
    stream = result.options["form"] == "stream"
    data: Columns = {
        "form": [str(result.options["form"])] * steps.size,
        "step": [int(s) for s in steps],
        "layer": [row["layer"] for row in result.trajectory],
        "apart": [1.0 - row["cosine"] for row in result.trajectory],
    }
    for name in ("cosine", "disagreement", "misalignment", "gamma", "gain", "rho"):
        data[name] = [row[name] for row in result.trajectory]
    depth = max(1, len(result.options.get("layers") or [0]))
    data["whole"] = [int(s) % depth == 0 for s in steps]
    every = {"disagreement": np.ones(steps.size, bool), "misalignment": np.array(data["whole"])}
    slopes = _slopes(result)
    for name in PREDICTED:
        values = np.array(data[name], dtype=float)
        slope = slopes.get(name)
        data[f"predicted_{name}"] = (
            [None] * len(steps)
            if slope is None
            else _line(steps, values, slope, stream, _noise(result), every[name])
        )
    return data


def what_is_drawn(data: Columns) -> str:
    """What a caption says of the points of the angle and of foretold lines, where they are drawn.

    Where one layer is iterated, every step ends a pass, and no point is left out.
    """
    told = []
    if not all(data["whole"]):
        told.append(
            "Points, joined by a line: the angle where the last layer was applied; between them "
            "each layer draws tokens its own way."
        )
    if any(v is not None for name in PREDICTED for v in data[f"predicted_{name}"]):
        told.append("Dashed: the slopes that the eigenvalues foretell.")
    return " ".join(told)


def _slopes(result: Simulation) -> dict[str, float]:
    """Predicted slopes of the logarithms, per step or per log step."""
    p = result.outcome.predicted
    if p is None:
        return {}
    aligned = _log(p.alignment_rate) if p.exponent is None else p.exponent
    found = {"disagreement": _log(p.disagreement_rate), "misalignment": aligned}
    return {name: slope for name, slope in found.items() if slope is not None}


def _log(rate: float | None) -> float | None:
    return math.log(rate) if rate else None


def _noise(result: Simulation) -> float:
    """Where rounding hides the curve."""
    return {"float32": 4e-6}.get(str(result.options.get("dtype")), 1e-11)


def _line(
    steps: Float[np.ndarray, "t"],
    values: Float[np.ndarray, "t"],
    slope: float,
    stream: bool,
    floor: float,
    counted: Bool[np.ndarray, "t"],
) -> list[float | None]:
    """The line of a slope through the later two thirds of the clean, linear stretch of a curve."""
    out: list[float | None] = [None] * steps.size
    top = 0.95 if stream else 0.1
    clean = np.flatnonzero((values > floor) & (values < top) & (steps > 0) & counted)
    if clean.size < 4:
        return out
    time = np.log(steps[clean]) if stream else steps[clean]
    late = time >= time[0] + (time[-1] - time[0]) / 3
    clean, time = clean[late], time[late]
    middle = float(np.median(np.log(values[clean]) - slope * time))
    for i, t in zip(clean, time, strict=True):
        out[int(i)] = float(math.exp(middle + slope * t))
    return out
