"""Figures of a trace: alignment against its nulls, and collapse by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eigenlens.inert import inert
from eigenlens.report.names import Names
from eigenlens.report.panels.figure import Columns, columns, where
from eigenlens.tracing.nulls import NULLS
from eigenlens.tracing.result import LayerTrace, Trace

MEASURES = {
    "rho": "share of tokens that moved closer",
    "gamma": "mean alignment after the step",
    "gain": "mean change of alignment",
}
"""What alignment is measured by."""

COLLAPSE = {
    "cosine": "mean cosine, one prompt",
    "anisotropy": "mean cosine, across prompts",
    "rank_residual": "rank residual",
    "frobenius_residual": "Frobenius residual",
    "high_low_ratio": "high/low ratio",
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "participation_ratio": "participation ratio",
}
"""Collapse measures in the order in which they are shown."""

GROUPS = {
    "cosine": ("cosine", "anisotropy"),
    "residual": ("rank_residual", "frobenius_residual", "high_low_ratio"),
    "rank": ("effective_rank", "participation_ratio", "stable_rank"),
}
"""Collapse measures that share a scale, and what it is called."""

NULL_NAMES = {
    "matched_spectrum": "F rotated at random",
    "random_init": "untrained model",
    "second_pair": "second pair",
    "other_layer": "other layers",
    "top_singular": "top singular vector",
}
"""Nulls that are a point a layer, in the words of a legend."""

_POINTS = tuple(name for name in NULLS if name != "random_direction")
_ALIGNMENT = (
    *("position", "stack", "kind", "layer", "step", "label", "measure", "value", "low", "high"),
    *("random_low", "random_median", "random_high", *_POINTS, "p_holm", "beyond", "regime"),
)
_COLLAPSE = ("depth", "stack", "kind", "layer", "step", "label", "where", "measure", "value")


def alignment(result: Trace) -> Columns:
    """One row a layer's call and measure, with its interval and every null (None without).

    `beyond` says whether rho is more than random directions give, by the corrected p-value
    `p_holm`. Rho alone is tested: both are None for the others, and where there is no p-value.
    """
    rows = []
    labels = call_labels(result.layers)
    for position, x in enumerate(result.layers):
        for measure in MEASURES:
            low, high = getattr(x, f"{measure}_ci") or (None, None)
            nulls: Mapping[str, Any] = x.nulls or {}
            random = nulls.get("random_direction")
            quantiles = (None, None, None) if random is None else random["quantiles"][measure]
            others = [nulls.get(name) for name in _POINTS]
            value = getattr(x, measure)
            beyond = None if x.p_holm is None else x.beyond
            rows.append(
                (
                    *(position, x.stack, x.kind, x.layer, x.step, labels[position], measure),
                    *(value, low, high, *quantiles),
                    *(None if null is None else null[measure] for null in others),
                    *((x.p_holm, beyond) if measure == "rho" else (None, None)),
                    x.regime,
                )
            )
    return columns(_ALIGNMENT, rows)


def collapse(result: Trace) -> Columns:
    """One row a state and measure: before the first layer, after each attention, each block."""
    rows: list[tuple[Any, ...]] = []
    labels = call_labels(result.layers)
    depth = -1
    for stack in result.stacks:
        own = [
            (i, x)
            for i, x in enumerate(result.layers)
            if x.stack == stack.stack and x.kind == stack.kind
        ]
        depth += 1
        name = (depth, stack.stack, stack.kind, None, None, "start", "start")
        rows += [(*name, m, stack.start.get(m)) for m in COLLAPSE]
        for i, x in own:
            depth += 1
            place = (depth, x.stack, x.kind, x.layer, x.step, labels[i])
            rows += [(*place, "after attention", m, x.collapse.get(m)) for m in COLLAPSE]
            block = x.collapse_block
            if block is not None:
                rows += [(*place, "after block", m, block.get(m)) for m in COLLAPSE]
    return columns(_COLLAPSE, rows)


def by_step(data: Columns) -> bool:
    """Whether one layer is called several times, so that the axis is one of steps."""
    layers = set(zip(data["stack"], data["kind"], data["layer"], strict=True))
    return len(layers) < len(set(data["position"]))


def collapse_rows(data: Columns, measure: str, place: str) -> list[int]:
    """Rows of a measure at the start and behind one `place`; none where nothing was seen there."""
    rows = [
        i
        for i in where(data, measure=measure)
        if data["where"][i] in ("start", place) and data["value"][i] is not None
    ]
    return rows if any(data["where"][i] == place for i in rows) else []


def call_labels(layers: Sequence[LayerTrace]) -> list[str]:
    """A label a call: the layer's, or the step where a layer is called more than once."""
    names = Names.of(layers)
    shared = len({(x.stack, x.kind, x.layer) for x in layers}) < len(layers)
    if not shared:
        return [names(x) for x in layers]
    return [str(x.step) if names.one else inert(x.name) for x in layers]
