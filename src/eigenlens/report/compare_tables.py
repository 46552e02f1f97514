"""What `eigenlens compare` prints: the layers ranked by how far they moved, in words besides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.comparing.matching import KINDS, Match
from eigenlens.comparing.result import Comparison, LayerComparison, Side
from eigenlens.inert import inert
from eigenlens.report.tables import model_line, plain_table
from eigenlens.report.words import complex_text, layer_list, regime_text

_LEGEND = (
    "|dF|/|F|: Frobenius norm of F_A - F_B over that of F_A; rank of dF: effective rank of the "
    "difference; leading A, B: the eigenvalue that leads in either; shift: how far A's moved, "
    "'=' within its error bars, '*' where another one leads B; angle: between what the two draw "
    "tokens to, the largest one"
)
_FOLLOWED = (
    "A, B: an eigenvalue in both, of a pair one; place: where it stands in either list, '-' for "
    "the kernel; shift: its distance, '=' within both error bars"
)
_APART = 0.2  # the cosine between two F below which they are called unrelated


def compare_view(result: Comparison) -> RenderableType:
    """Everything that `eigenlens compare` prints as a table."""
    parts: list[RenderableType] = [_heading(result)]
    moved = [x for x in result.ranking if x.difference.is_real]
    if moved:
        parts.append(_ranked(moved))
    parts += [Text(sentence) for sentence in compare_sentences(result)]
    parts += [Text(text) for text in only_texts(result)]
    if moved:
        parts.append(Text(_LEGEND, style="dim"))
        if moved[0].matches:
            parts += [Text(), _followed(moved[0]), Text(_FOLLOWED, style="dim")]
    return Group(*parts)


def _heading(result: Comparison) -> Text:
    text = Text()
    for name, model in (("A", result.model), ("B", result.other)):
        sizes = f"d {model['d_model']}, {counted(model, 'layer')}, {counted(model, 'head')}"
        text.append(f"{name} ").append(model_line(model, f"{sizes}\n"))
    first = result.layers[0] if result.layers else None
    if first is not None:
        text.append(f"operator {first.operator}, leading by {first.order}")
    return text


def counted(model: Mapping[str, Any], what: str) -> str:
    """``1 layer``, ``12 heads``."""
    n = model[f"n_{what}s"]
    return f"{n} {what}{'s' * (n != 1)}"


def _ranked(layers: Sequence[LayerComparison]) -> Table:
    table = plain_table(
        [
            ("layer", "left"),
            ("|dF|/|F|", "right"),
            ("rank of dF", "right"),
            ("leading A", "right"),
            ("leading B", "right"),
            ("shift", "right"),
            ("angle", "right"),
            ("regime", "left"),
        ]
    )
    for x in layers:
        table.add_row(
            inert(x.name),
            change_text(x.relative),
            rank_text(x),
            leader_text(x.a),
            leader_text(x.b),
            _shift(x),
            angle_text(x),
            Text(regime_change(x), style="bold" if x.regime_changed else ""),
        )
    return table


def change_text(x: float) -> str:
    """A relative change: ``0.0123``, or ``1.2e-05`` where that shows no digit."""
    if x == 0:
        return "0"
    return f"{x:.4f}" if 1e-3 <= x < 1e3 else f"{x:.1e}"


def rank_text(x: LayerComparison) -> str:
    """The effective rank of a difference, ``1.0`` for a rank-one edit."""
    return f"{x.difference.effective_rank:.1f}"


def leader_text(side: Side | None) -> str:
    """The leading eigenvalue of one side."""
    if side is None or side.eigenvalue is None:
        return "-"
    return "0 (kernel)" if side.target == "kernel" else complex_text(side.eigenvalue)


def _shift(x: LayerComparison) -> str:
    if x.leader is None:
        return "-"
    return shift_text(x.leader) + "*" * x.new_leader


def shift_text(m: Match) -> str:
    """How far an eigenvalue moved; ``=`` for no further than its error bars."""
    return change_text(m.distance) if m.changed else "="


def angle_text(x: LayerComparison) -> str:
    """The largest principal angle in degrees."""
    if not x.principal_angles:
        return "-"
    degrees = math.degrees(x.principal_angles[0])
    return f"{degrees:.1f}°"


def regime_change(x: LayerComparison) -> str:
    """The regime, or both where it changed."""
    if x.a is None or x.b is None:
        return "not square"
    if x.a.regime != x.b.regime:
        return f"{regime_text(x.a.regime)} -> {regime_text(x.b.regime)}"
    if x.a.target != x.b.target:
        return f"{regime_text(x.a.regime)}, {x.a.target} -> {x.b.target}"
    return regime_text(x.a.regime)


def _followed(x: LayerComparison) -> Table:
    table = plain_table(
        [
            ("A", "right"),
            ("B", "right"),
            ("shift", "right"),
            ("place in A", "right"),
            ("in B", "right"),
            ("what", "left"),
        ],
        title=f"leading eigenvalues of {inert(x.name)}, which moved most",
    )
    for m in x.matches:
        places = ("-" if i is None else str(i + 1) for i in (m.index_before, m.index_after))
        table.add_row(
            complex_text(m.before), complex_text(m.after), shift_text(m), *places, KINDS[m.kind]
        )
    return table


def compare_sentences(result: Comparison) -> list[str]:
    """What moved, in plain words."""
    layers = result.layers
    count = f"{len(layers)} layer{'s' * (len(layers) != 1)}"
    same = [x for x in layers if x.difference.identical]
    if len(same) == len(layers):
        return [f"Nothing moved: F is the same, bit by bit, in {_all(count)}."]
    moved = [x for x in layers if x.difference.is_real]
    if not moved:
        return [f"Nothing moved beyond rounding in {_all(count)}: the two have the same F."]
    out = []
    top = result.ranking[0]
    text = f"F differs in {len(moved)} of {count}, most in {inert(top.name)} by "
    if math.isinf(top.relative):
        text = text.removesuffix(" by ") + ", where it was 0"
    else:
        text += f"{_share(top.relative)} its norm"
    if len(moved) > 1 and not math.isinf(top.relative):
        middle = sorted(x.relative for x in moved)[len(moved) // 2]
        text += f" (half of them by {_share(middle)} it, or more)"
    if 0 < top.difference.effective_rank < 1.5:
        text += "; there the difference is all but of rank one"
    out.append(text + ".")
    cosines = [(x, x.difference.cosine) for x in layers]
    apart = [x for x, cosine in cosines if cosine is not None and abs(cosine) < _APART]
    if apart:
        out.append(
            f"In {_names(apart)} the two have nothing in common (cosine between F_A and F_B below "
            f"{_APART}): they look like models that were trained apart."
        )
    turned = [x for x in layers if x.regime_changed]
    if turned:
        out.append(
            f"What leads is of another kind in {len(turned)}: "
            + "; ".join(f"{inert(x.name)} ({regime_change(x)})" for x in turned[:4])
            + (" and more." if len(turned) > 4 else ".")
        )
    elif any(x.a is not None for x in layers):
        out.append("No layer changed its regime.")
    usurped = [x for x in layers if x.new_leader]
    if usurped:
        out.append(f"Another eigenvalue than in A leads in {_names(usurped)}.")
    wide = [x for x in moved if x.principal_angles and x.principal_angles[0] > math.radians(5)]
    if wide:
        widest = max(wide, key=lambda x: x.principal_angles[0])
        out.append(
            f"The direction or space that tokens are drawn to turned by more than 5 degrees in "
            f"{_names(wide)}, most in {inert(widest.name)} ({angle_text(widest)})."
        )
    elif any(x.principal_angles for x in moved):
        out.append("What tokens are drawn to turned by at most 5 degrees.")
    return out


def _all(count: str) -> str:
    return f"the {count}" if count.startswith("1 ") else f"all {count}"


def _names(layers: Sequence[LayerComparison]) -> str:
    if len({(x.stack, x.kind) for x in layers}) == 1:
        noun = "layers" if len(layers) > 1 else "layer"
        return f"{noun} {layer_list([x.layer for x in layers])}"
    return ", ".join(inert(x.name) for x in layers[:6]) + " and more" * (len(layers) > 6)


def _share(x: float) -> str:
    """A part of a norm as people say it."""
    return f"{100 * x:.2g} % of" if x < 0.995 else f"{x:.2f} times"


def only_texts(result: Comparison) -> list[str]:
    """Layers that only one of the two has, a sentence each."""
    out = []
    for side, name in (("a", "A"), ("b", "B")):
        for x in result.only[side]:
            cross = "cross " if x["kind"] == "cross" else ""
            out.append(
                f"only {name} has {inert(x['stack'])} {cross}layer {x['layer']}: "
                f"{inert(str(x['reason']))}"
            )
    return out
