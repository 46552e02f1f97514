"""Figures of a survey: tidy columns of regimes and gaps over scale and training step."""

from __future__ import annotations

from collections import defaultdict

from eigenlens.report.panels.figure import Columns, Figure, columns
from eigenlens.spectra.principal import REGIMES
from eigenlens.surveys.result import ModelSummary, Survey

_COLUMNS = (
    *("model", "series", "train_step", "d_model", "n_layers", "scale", "layers", "regime"),
    *("share", "gap", "main"),
)


def scale_of(model: ModelSummary) -> float | None:
    """Weights in the blocks of an ordinary transformer of these sizes: ``12 n_layers d_model^2``.

    Attention takes 4 d^2 and a feed-forward part of width 4 d takes 8 d^2; embeddings are left
    out. None where sizes are not known.
    """
    if not model.d_model or not model.n_layers:
        return None
    return 12.0 * model.n_layers * model.d_model**2


def _rows(models: list[ModelSummary]) -> Columns:
    rows = []
    for m in models:
        main = max(m.regimes, key=lambda name: m.regimes[name])
        for regime in REGIMES:
            rows.append(
                (
                    *(m.model, m.series, m.train_step, m.d_model, m.n_layers, scale_of(m)),
                    *(m.layers, regime, m.regimes.get(regime, 0.0), m.gap, main),
                )
            )
    return columns(_COLUMNS, rows)


def scale(result: Survey) -> Columns:
    """One row a checkpoint and regime, small models first; of a series its last step alone."""
    last: dict[str, ModelSummary] = {}
    for m in result.models:
        if not m.layers:
            continue
        name = m.model if m.train_step is None else f"series {m.series}"
        held = last.get(name)
        if held is None or (m.train_step or 0) >= (held.train_step or 0):
            last[name] = m
    return _rows(sorted(last.values(), key=lambda m: (scale_of(m) or 0.0, m.model)))


def steps(result: Survey) -> Columns:
    """One row a checkpoint and regime, of the series with two training steps or more."""
    series: dict[str, list[ModelSummary]] = defaultdict(list)
    for m in result.models:
        if m.layers and m.train_step is not None:
            series[m.series].append(m)
    kept: list[ModelSummary] = []
    for name in sorted(series):
        found = sorted(series[name], key=lambda m: m.train_step or 0)
        kept += found if len({m.train_step for m in found}) > 1 else []
    return _rows(kept)


_ROWS = (
    Figure(
        "survey_scale",
        "Regimes by scale",
        "survey",
        scale,
        "One bar a checkpoint, small models at the bottom: which part of its layers is in which "
        "regime. Of a training run its last checkpoint is shown.",
        "Stacked horizontal bars, one a checkpoint, of the share of layers in each regime.",
    ),
    Figure(
        "survey_gap",
        "Lead by scale",
        "survey",
        scale,
        "How far the first direction is ahead of the second, the median over layers, against the "
        "weights in the blocks (12 n_layers d^2). The colour is the regime of most layers.",
        "Scatter of the median gap of every checkpoint over the number of weights, on a "
        "logarithmic scale.",
    ),
    Figure(
        "survey_steps",
        "Regimes by training step",
        "survey",
        steps,
        "Which part of the layers is in which regime as training goes on; the line is the median "
        "gap. Where there are several runs, choose one.",
        "Stacked areas of the share of layers in each regime over training steps, with a line of "
        "the median gap.",
    ),
)

SURVEYS: dict[str, Figure] = {figure.name: figure for figure in _ROWS}
"""Figures of a survey by name."""
