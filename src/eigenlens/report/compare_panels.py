"""Figures of a comparison: tidy columns of what moved, for the page and for papers."""

from __future__ import annotations

import math

from eigenlens.comparing.result import Comparison, LayerComparison
from eigenlens.report.panels.figure import Columns, Figure, columns, labels_of

_CHANGES = (
    *("position", "stack", "kind", "layer", "label", "relative_change", "effective_rank", "rank"),
    *("largest_angle", "leader_shift", "regime_a", "regime_b", "regime_changed", "new_leader"),
)
_MOVES = (
    *("position", "stack", "kind", "layer", "label", "re_a", "im_a", "re_b", "im_b"),
    *("index_a", "index_b", "distance", "bar", "changed", "match"),
)


def changes(result: Comparison) -> Columns:
    """One row a layer: how far it moved; a change of what was zero before is None."""
    rows = []
    for position, (x, label) in enumerate(_labelled(result)):
        rows.append(
            (
                *(position, x.stack, x.kind, x.layer, label),
                x.relative if math.isfinite(x.relative) else None,
                *(x.difference.effective_rank, x.difference.rank),
                x.principal_angles[0] if x.principal_angles else None,
                None if x.leader is None else x.leader.distance,
                None if x.a is None else x.a.regime,
                None if x.b is None else x.b.regime,
                *(x.regime_changed, x.new_leader),
            )
        )
    return columns(_CHANGES, rows)


def moves(result: Comparison) -> Columns:
    """One row a matched eigenvalue, of a pair the one with positive imaginary part."""
    rows = []
    for position, (x, label) in enumerate(_labelled(result)):
        for m in x.matches:
            bar = m.bar if math.isfinite(m.bar) else None
            rows.append(
                (
                    *(position, x.stack, x.kind, x.layer, label),
                    *(m.before.real, m.before.imag, m.after.real, m.after.imag),
                    *(m.index_before, m.index_after, m.distance, bar, m.changed, m.kind),
                )
            )
    return columns(_MOVES, rows)


def _labelled(result: Comparison) -> list[tuple[LayerComparison, str]]:
    labels = labels_of([(x.stack, x.kind, x.layer) for x in result.layers])
    return [(x, labels[x.stack, x.kind, x.layer]) for x in result.layers]


_ROWS = (
    Figure(
        "changes",
        "How far each layer moved",
        "compare",
        changes,
        "Frobenius norm of F_A - F_B over that of F_A, and the effective rank of the difference: "
        "near 1 for a rank-one edit, near the rank of F for noise such as rounding.",
        "Bars of the relative change of every layer, and of the effective rank of the difference.",
    ),
    Figure(
        "moves",
        "Where the leading eigenvalues went",
        "compare",
        moves,
        "Each line leads from an eigenvalue of A to its partner in B. Partners are assigned so "
        "that the total distance is least.",
        "Complex plane with a line from every leading eigenvalue of A to the one of B that it "
        "became.",
    ),
)

COMPARISONS: dict[str, Figure] = {figure.name: figure for figure in _ROWS}
"""Figures of a comparison by name."""
