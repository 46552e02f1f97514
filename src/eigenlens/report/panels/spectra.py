"""Figures of a spectrum: the complex plane, depth, gap and regime, heads, decoded tokens."""

from __future__ import annotations

import numpy as np

from eigenlens.inert import inert
from eigenlens.report.heads import head_fraction
from eigenlens.report.panels.figure import Columns, columns, labels_of
from eigenlens.shown.names import group_name
from eigenlens.spectra.orders import ORDERS
from eigenlens.spectra.result import LayerSpectrum, Spectrum

_EIGENVALUES = (
    *("position", "stack", "kind", "layer", "label", "index", "re", "im"),
    *("key", "multiplier", "error_bar", "leading", "regime", "order"),
)
_REGIMES = (
    *("position", "stack", "kind", "layer", "label", "regime", "target", "gap", "angle"),
    *("angle_unit", "steps_to_separate", "re", "im", "spectral_norm", "henrici"),
    *("negative_fraction", "order"),
)
_HEADS = (
    *("position", "stack", "kind", "layer", "label", "head"),
    *("ov_trace_ratio", "copying_score", "share"),
)
_TOKENS = ("position", "stack", "kind", "layer", "label", "side", "end", "rank", "token", "score")

KEY_TITLES = {"residual": "|1 + λ|", "real": "Re λ", "modulus": "|λ|"}
"""What the key of an order is called on an axis."""

NEUTRAL = {"residual": 1.0, "real": 0.0, "modulus": 0.0}
"""The key at which a direction neither grows nor shrinks, by order."""

PLANE_GUIDES = {"residual": "|1 + λ| = 1", "real": "Re λ = 0", "modulus": "|λ| = 0"}
"""Where in the complex plane a direction neither grows nor shrinks, by order."""

HEAD_MEASURES = {
    "ov_trace_ratio": "trace ratio",
    "copying_score": "copying score",
    "share": "share of leading",
}
"""Columns of the figure `heads`, and what they are called."""

SIDES = {
    "right": "writes",
    "right_imag": "writes, turned",
    "left": "reads",
    "left_imag": "reads, turned",
}
"""Sides of a decoded leader, and what they are called."""


def eigenvalues(result: Spectrum) -> Columns:
    """One row an eigenvalue, conjugates included; index -1 is the kernel's 0 where rank < d.

    `key` is that of the layer's order; `multiplier` is ``|1 + lambda|``; `leading` marks what spans
    the principal target.
    """
    rows = []
    for position, (layer, label) in enumerate(_labelled(result)):
        name = (position, layer.stack, layer.kind, layer.layer, label)
        key = ORDERS[layer.order].key
        leaders = _leaders(layer)
        for i, value in enumerate(layer.eigenvalues):
            v = complex(value)
            rows.append(
                (
                    *name,
                    *(i, v.real, v.imag, float(key(np.array([v]))[0]), abs(1 + v)),
                    *(float(layer.error_bars[i]), i in leaders, layer.regime, layer.order),
                )
            )
        if layer.rank < layer.d:
            zero = float(key(np.zeros(1, dtype=complex))[0])
            lead = layer.target == "kernel"
            rows.append((*name, -1, 0.0, 0.0, zero, 1.0, 0.0, lead, layer.regime, layer.order))
    return columns(_EIGENVALUES, rows)


def orders_in(data: Columns) -> dict[str, list[str]]:
    """As `eigenlens.report.order_words.orders_of`, of columns."""
    found: dict[str, list[str]] = {}
    for order, stack, kind in dict.fromkeys(
        zip(data["order"], data["stack"], data["kind"], strict=True)
    ):
        found.setdefault(order, []).append(inert(group_name(stack, kind)))
    return found


def order_runs(data: Columns) -> list[tuple[str, int, int]]:
    """Runs of layers of one order: order, first and last position."""
    runs: list[tuple[str, int, int]] = []
    for position, order in sorted(dict(zip(data["position"], data["order"], strict=True)).items()):
        if runs and runs[-1][0] == order:
            runs[-1] = order, runs[-1][1], position
        else:
            runs.append((order, position, position))
    return runs


def key_title(data: Columns) -> str:
    """What the keys are, with their stacks where these have several orders."""
    found = orders_in(data)
    if len(found) == 1:
        return KEY_TITLES[next(iter(found))]
    return ", ".join(f"{KEY_TITLES[order]} ({', '.join(names)})" for order, names in found.items())


def what_grows(data: Columns) -> str:
    """What a caption says of the dashed line of the complex plane, by the orders of the layers."""
    found = orders_in(data)
    if len(found) == 1:
        return _GROWS[next(iter(found))]
    return " ".join(f"Of {', '.join(names)}: {_GROWS[order]}" for order, names in found.items())


_GROWS = {
    "residual": "With the residual connection a step multiplies a direction by 1 + lambda: outside "
    "the dashed circle around -1 it grows, inside it shrinks.",
    "real": "In a residual stream without a norm on it (pre-norm) things grow as powers of depth, "
    "by the real part: right of the dashed line a direction grows, left of it it shrinks, and the "
    "one furthest to the right leads.",
    "modulus": "By the modulus, the eigenvalue that is furthest from 0 leads.",
}


def regimes(result: Spectrum) -> Columns:
    """One row a layer: what leads it, by how much."""
    rows = []
    for position, (layer, label) in enumerate(_labelled(result)):
        value = complex(layer.eigenvalues[0]) if layer.eigenvalues.size else 0j
        if layer.target == "kernel":
            value = 0j
        rows.append(
            (
                *(position, layer.stack, layer.kind, layer.layer, label),
                *(layer.regime, layer.target, layer.gap, layer.angle, layer.angle_unit),
                *(layer.steps_to_separate, value.real, value.imag, layer.spectral_norm),
                *(layer.henrici, layer.negative_fraction, layer.order),
            )
        )
    return columns(_REGIMES, rows)


def heads(result: Spectrum) -> Columns:
    """One row a head; `share` is its fraction of lambda_1, see `head_fraction`."""
    rows = []
    for position, (layer, label) in enumerate(_labelled(result)):
        for head in layer.heads or ():
            share = head_fraction(head, layer)
            measures = (head.ov_trace_ratio, head.copying_score, share)
            if measures != (None, None, None):  # a head whose matrix is 0 has none
                place = (position, layer.stack, layer.kind, layer.layer, label, head.head)
                rows.append((*place, *measures))
    return columns(_HEADS, rows)


def tokens(result: Spectrum) -> Columns:
    """One row a token of a decoded leader; `end` is ``towards`` or ``away from``."""
    rows = []
    for position, (layer, label) in enumerate(_labelled(result)):
        name = (position, layer.stack, layer.kind, layer.layer, label)
        for side, found in (layer.tokens or {}).items():
            for end, listed in (("towards", found.positive), ("away from", found.negative)):
                rows += [
                    (*name, SIDES[side], end, rank, token, score)
                    for rank, (token, score) in enumerate(listed)
                ]
    return columns(_TOKENS, rows)


def rank_of(data: Columns, i: int) -> int:
    """Rank of an eigenvalue of `eigenvalues`; the kernel stands behind those that lead it."""
    index = int(data["index"][i])
    if index >= 0:
        return index + 1
    return 1 + sum(bool(key > data["key"][i]) for key in data["key"])


def _labelled(result: Spectrum) -> list[tuple[LayerSpectrum, str]]:
    labels = labels_of([(x.stack, x.kind, x.layer) for x in result.layers])
    return [(x, labels[x.stack, x.kind, x.layer]) for x in result.layers]


def _leaders(layer: LayerSpectrum) -> set[int]:
    """Positions of the eigenvalues that span the target."""
    if layer.target == "kernel":
        return set()
    wide = layer.target_vectors.shape[1]
    return set(range(min(wide, layer.eigenvalues.size)))
