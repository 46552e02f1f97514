"""The rows of a survey: one a layer (traced: one an attention call), all with the same columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from eigenlens.circuit.plans import Skipped
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.surveys.members import Member
from eigenlens.surveys.rates import rates_of
from eigenlens.tracing.result import LayerTrace

COLUMNS: dict[str, str] = {
    "source": "text",
    "series": "text",
    "train_step": "integer",
    "model_type": "text",
    "d_model": "integer",
    "n_layers": "integer",
    "n_heads": "integer",
    "n_kv_heads": "integer",
    "head_dim": "integer",
    "norm": "text",
    "placement": "text",
    "stack": "text",
    "layer": "integer",
    "kind": "text",
    "skipped": "text",
    "steps": "integer",
    "rank": "integer",
    "order": "text",
    "operator": "text",
    "dtype": "text",
    "solver": "text",
    "eigenvalues_re": "numbers",
    "eigenvalues_im": "numbers",
    "error_bars": "numbers",
    "regime": "text",
    "target": "text",
    "gap": "number",
    "angle": "number",
    "angle_unit": "text",
    "steps_to_separate": "number",
    "spectral_norm": "number",
    "frobenius_norm": "number",
    "henrici": "number",
    "negative_fraction": "number",
    "disagreement_rate": "number",
    "alignment_rate": "number",
    "exponent": "number",
    "step": "integer",
    "gamma": "number",
    "gain": "number",
    "signed_gain": "number",
    "rho": "number",
    "rho_low": "number",
    "rho_high": "number",
    "p_value": "number",
    "p_holm": "number",
    "beyond_random": "flag",
    "n_tokens": "integer",
    "n_prompts": "integer",
    "eigenlens_version": "text",
    "key": "text",
    "part": "integer",
    "parts": "integer",
}
"""Columns of the data set in their order, and what they hold.

``skipped`` says why a layer has no spectrum; its other columns are then null. From ``step`` to
``n_prompts`` the columns are null unless the survey traces. ``key`` is the identity of the
checkpoint's files, the options and the version; ``part`` of ``parts`` is the task that made a row.
"""

_MODEL = (
    *("model_type", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim"),
    *("norm", "placement"),
)
_LAYER = (
    *("stack", "layer", "kind", "steps", "rank", "order", "operator", "dtype", "solver"),
    *("regime", "target", "gap", "angle", "angle_unit", "steps_to_separate"),
    *("spectral_norm", "frobenius_norm", "henrici", "negative_fraction"),
)
_TRACE = (
    *("step", "gamma", "gain", "signed_gain", "rho", "p_value", "p_holm"),
    *("n_tokens", "n_prompts"),
)

Row = dict[str, Any]


def head(member: Member, model: Mapping[str, Any]) -> Row:
    """What every row of a checkpoint begins with."""
    row: Row = dict.fromkeys(COLUMNS)
    row |= {"source": member.name, "series": member.series, "train_step": member.train_step}
    return row | {name: model[name] for name in _MODEL}


def layer_row(start: Row, layer: LayerSpectrum) -> Row:
    """The row of a layer's spectrum."""
    return {
        **start,
        **{name: getattr(layer, name) for name in _LAYER},
        "eigenvalues_re": layer.eigenvalues.real.tolist(),
        "eigenvalues_im": layer.eigenvalues.imag.tolist(),
        "error_bars": layer.error_bars.tolist(),
        **asdict(rates_of(layer)),
    }


def skipped_row(start: Row, skipped: Skipped) -> Row:
    """The row of a layer that has no spectrum."""
    return {
        **start,
        "stack": skipped.stack,
        "layer": skipped.layer,
        "kind": skipped.kind,
        "skipped": skipped.reason,
    }


def traced_row(row: Row, trace: LayerTrace) -> Row:
    """A layer's row with what one attention call of a trace measured."""
    low, high = trace.rho_ci or (None, None)
    found = {name: getattr(trace, name) for name in _TRACE}
    found = {name: None if _is_nan(value) else value for name, value in found.items()}
    return {**row, **found, "rho_low": low, "rho_high": high, "beyond_random": trace.beyond}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
