"""What `eigenlens compare` prints: the layers ranked by how far they moved, in words besides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.comparing.layers import Key
from eigenlens.comparing.matching import KINDS, Match
from eigenlens.comparing.result import Comparison, LayerComparison, Side
from eigenlens.inert import inert
from eigenlens.report.model_words import model_line
from eigenlens.report.names import Names
from eigenlens.report.order_words import leading_text
from eigenlens.report.tables import plain_table
from eigenlens.report.words import (
    MOST,
    complex_text,
    count_text,
    leader_decimals,
    regime_text,
)

_LEGEND = (
    "|dF|/|F|: Frobenius norm of F_A - F_B over that of F_A; rank of dF: effective rank of the "
    "difference; leading A, B: the eigenvalue that leads in either; shift: how far A's moved, "
    "'=' within its error bars, '*' where another one leads B; angle: between what the two draw "
    "tokens to, the largest one"
)
_RELATIVE = "; in brackets: shift over the size of A's, where A and B look alike"
_NOWHERE = "; no angle: A or B draws tokens nowhere"
_FOLLOWED = (
    "A, B: an eigenvalue and what became of it, a pair as one; partners are those of least total "
    "distance on the complex plane, not of equal place; place: where it stands in either list, of "
    "a pair the first, '-' for the kernel; shift: its distance, '=' within both error bars"
)
_BOTH = {
    "pair_to_real": "a conjugate pair that became two real ones",
    "real_to_pair": "two real eigenvalues that became a pair",
}
"""What is said where both members of a pair are told of."""
WIDE = math.radians(5)
"""Angle from which what tokens are drawn to has turned."""
_APART = 0.2  # the cosine between two F below which they are called unrelated


def compare_view(result: Comparison) -> RenderableType:
    """Everything that `eigenlens compare` prints as a table."""
    parts: list[RenderableType] = [_heading(result)]
    moved = [x for x in result.ranking if x.difference.is_real]
    names = Names.of(result.layers)
    if moved:
        parts.append(_ranked(moved, names))
    parts += [Text(sentence) for sentence in compare_sentences(result)]
    parts += [Text(text) for text in only_texts(result)]
    if moved:
        places = leader_places(moved)
        note = relative_note(leader_shift(x, places) for x in moved)
        parts.append(Text(_LEGEND + note + nowhere_note(moved), style="dim"))
        if moved[0].matches:
            parts += [Text(), *_followed(moved[0], names, len(result.layers))]
    return Group(*parts)


def _heading(result: Comparison) -> Text:
    text = Text()
    for name, model in (("A", result.model), ("B", result.other)):
        text.append(f"{name} ").append(model_line(model, *SIZES)).append("\n")
    leading = leading_text(result.layers)
    if result.layers:
        text.append(f"operator {result.layers[0].operator}{', ' * bool(leading)}{leading}")
    return text


SIZES = ("d", "layers", "heads")
"""What is told of either model."""


def _ranked(layers: Sequence[LayerComparison], names: Names) -> Table:
    table = plain_table(
        [
            ("layer", "right"),
            ("|dF|/|F|", "right"),
            ("rank of dF", "right"),
            ("leading A", "right"),
            ("leading B", "right"),
            ("shift", "right"),
            ("angle", "right"),
            ("regime", "left"),
        ]
    )
    places = leader_places(layers)
    for x in layers:
        table.add_row(
            names(x),
            change_text(x.relative),
            rank_text(x),
            leader_text(x.a, places),
            leader_text(x.b, places),
            leader_shift(x, places),
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


def leader_text(side: Side | None, places: int) -> str:
    """The leading eigenvalue of one side."""
    if side is None or side.eigenvalue is None:
        return "-"
    return "0 (kernel)" if side.target == "kernel" else complex_text(side.eigenvalue, places)


def leader_places(layers: Sequence[LayerComparison]) -> int:
    """Decimals of the leading eigenvalues: they keep their digits, and show how they moved."""
    sides = [side for x in layers for side in (x.a, x.b) if side is not None]
    values = [x.eigenvalue for x in sides if x.eigenvalue is not None and x.target != "kernel"]
    return _telling([x.leader for x in layers if x.leader is not None], leader_decimals(values))


def _telling(matches: Sequence[Match], places: int) -> int:
    """The least decimals, `MOST` at most, that tell what moved from what it was."""
    for m in matches:
        here = range(places, MOST + 1)
        places = next((p for p in here if m.changed and _differ(m, p)), places)
    return places


def _differ(m: Match, places: int) -> bool:
    return complex_text(m.before, places) != complex_text(m.after, places)


def leader_shift(x: LayerComparison, places: int) -> str:
    """How far A's leader moved, ``*`` where another one leads B."""
    if x.leader is None:
        return "-"
    return shift_text(x.leader, places) + "*" * x.new_leader


def shift_text(m: Match, places: int) -> str:
    """How far an eigenvalue moved; ``=`` for no further than its error bars.

    Where `places` decimals do not show that it moved, the relative shift follows in brackets.
    """
    if not m.changed:
        return "="
    text = change_text(m.distance)
    hidden = m.before != 0 and not _differ(m, places)
    return f"{text} ({m.distance / abs(m.before):.1e})" if hidden else text


def relative_note(shifts: Iterable[str]) -> str:
    """What brackets stand for, where there are any."""
    return _RELATIVE if any("(" in text for text in shifts) else ""


def drawn_angle(x: LayerComparison) -> float | None:
    """The largest principal angle in radians; None where A or B draws tokens nowhere.

    Between a kernel that leads and a direction within it, say, there is none, yet tokens go
    elsewhere.
    """
    nowhere = any(side is None or side.regime == "no_consensus" for side in (x.a, x.b))
    return None if nowhere or not x.principal_angles else x.principal_angles[0]


def angle_text(x: LayerComparison) -> str:
    """`drawn_angle` in degrees, or a dash."""
    angle = drawn_angle(x)
    return "-" if angle is None else f"{math.degrees(angle):.1f}°"


def nowhere_note(layers: Iterable[LayerComparison]) -> str:
    """What a dash for an angle stands for, where there is one."""
    dash = any(x.principal_angles and drawn_angle(x) is None for x in layers)
    return _NOWHERE if dash else ""


def turns_of(layers: Iterable[LayerComparison]) -> dict[LayerComparison, float]:
    """The layers that have a `drawn_angle`, with it, widest first."""
    found = [(x, angle) for x in layers if (angle := drawn_angle(x)) is not None]
    return dict(sorted(found, key=lambda pair: -pair[1]))


def regime_change(x: LayerComparison) -> str:
    """The regime, or both where it changed."""
    if x.a is None or x.b is None:
        return "not square"
    if x.a.regime != x.b.regime:
        return f"{regime_text(x.a.regime)} -> {regime_text(x.b.regime)}"
    if x.a.target != x.b.target:
        return f"{regime_text(x.a.regime)}, {x.a.target} -> {x.b.target}"
    return regime_text(x.a.regime)


def _followed(x: LayerComparison, names: Names, among: int) -> Iterator[RenderableType]:
    """The eigenvalues of a layer and what became of them; of `among` layers it is the first."""
    why = ", the layer with the largest |dF|/|F|" if among > 1 else ""
    table = plain_table(
        [
            ("A", "right"),
            ("B", "right"),
            ("shift", "right"),
            ("place in A", "right"),
            ("in B", "right"),
            ("what", "left"),
        ],
        title=f"where the leading eigenvalues of {names.phrase(x)} went{why}",
    )
    leaders = [m.before for m in x.matches if 0 in (m.index_before, m.index_after)]
    places = _telling(x.matches, leader_decimals(leaders))
    rows = _rows(x.matches)
    for group in rows:
        # What became two has two lines, of which the column of the other side fills one.
        cells = [
            [complex_text(m.before, places) for m in group],
            [complex_text(m.after, places) for m in group],
            [shift_text(m, places) for m in group],
            [_place(m.index_before) for m in group],
            [_place(m.index_after) for m in group],
        ]
        for one, at in ((0, 3), (1, 4)) if len(group) > 1 else ():
            if len(set(cells[at])) == 1 and "-" not in cells[at]:
                cells[one], cells[at] = cells[one][:1], cells[at][:1]
        what = KINDS[group[0].kind] if len(group) == 1 else _BOTH[group[0].kind]
        table.add_row(*("\n".join(lines) for lines in cells), what)
    shifts = [shift_text(m, places) for m in x.matches]
    yield table
    blank = "; blank: as above" if any(len(group) > 1 for group in rows) else ""
    yield Text(_FOLLOWED + blank + relative_note(shifts), style="dim")


def _rows(matches: Sequence[Match]) -> list[list[Match]]:
    """One group a row: a pair that became two real values, or was made of them, stands once."""
    out: dict[tuple[str, int | None] | int, list[Match]] = {}
    for number, m in enumerate(matches):
        pair = {"pair_to_real": m.index_before, "real_to_pair": m.index_after}.get(m.kind)
        out.setdefault(number if pair is None else (m.kind, pair), []).append(m)
    return list(out.values())


def _not_in_F(result: Comparison) -> str:
    """What a comparison of F leaves open."""
    edited = result.model.get("edits") != result.other.get("edits")
    what = "the edit that one of them holds is elsewhere, as in" if edited else "they may differ in"
    others = "layers that were not asked for, " if _part(result) else ""
    return f" F alone is compared: {what} {others}feed-forward layers, norms or embeddings."


def _part(result: Comparison) -> bool:
    """Whether layers or a stack were chosen."""
    return any(result.options[name] is not None for name in ("stack", "layers"))


def _place(index: int | None) -> str:
    return "-" if index is None else str(index + 1)


def compare_sentences(result: Comparison) -> list[str]:
    """What moved, in plain words."""
    layers = result.layers
    count, names = count_text(len(layers), "layer"), Names.of(layers)
    same = [x for x in layers if x.difference.identical]
    if len(same) == len(layers):
        return [f"Nothing moved: F is the same, bit by bit, in {_all(result)}.{_not_in_F(result)}"]
    moved = [x for x in layers if x.difference.is_real]
    if not moved:
        told = f"Nothing moved beyond rounding in {_all(result)}: the two have the same F."
        return [told + _not_in_F(result)]
    out = []
    top = result.ranking[0]
    where = f"{len(moved)} of {count}"
    if len(layers) == 1:
        text = f"F differs in {names.phrase(top)} by "
    elif len(moved) == 1:
        text = f"F differs in {where} ({names.phrase(top)}) by "
    else:
        text = f"F differs in {where}, most in {names.phrase(top)} by "
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
            f"In {names.phrases(apart)} the two have nothing in common (cosine between F_A and F_B "
            f"below {_APART}): they look like models that were trained apart."
        )
    turned = [x for x in layers if x.regime_changed]
    if turned:
        kinds = [f"{names.phrase(x)} ({regime_change(x)})" for x in turned[:4]]
        how_many = f"{count_text(len(turned), 'layer')}: " if len(turned) > 1 else ""
        out.append(
            f"What leads is of another kind in {how_many}{'; '.join(kinds)}"
            + (" and more." if len(turned) > 4 else ".")
        )
    elif any(x.a is not None for x in layers):
        out.append("No layer changed its regime.")
    usurped = [x for x in layers if x.new_leader]
    if usurped:
        out.append(f"Another eigenvalue than in A leads in {names.phrases(usurped)}.")
    turns = turns_of(moved)
    wide = [x for x in moved if turns.get(x, 0.0) > WIDE]
    if wide:
        widest = next(iter(turns))
        most = f", most in {names.phrase(widest)}" if len(wide) > 1 else ""
        out.append(
            f"The direction or space that tokens are drawn to turned by more than 5 degrees in "
            f"{names.phrases(wide)}{most} ({angle_text(widest)})."
        )
    elif turns:
        widest = next(iter(turns))
        angle = math.degrees(turns[widest])
        where = f" ({names.phrase(widest)})" if len(layers) > 1 else ""
        most = "less than 0.01 degrees" if angle < 0.01 else f"at most {angle:.2g} degrees{where}"
        out.append(f"What tokens are drawn to turned by {most}.")
    return out


def _all(result: Comparison) -> str:
    """``all 12 layers``, or those that both have where one has others besides, or were chosen."""
    count = len(result.layers)
    shared = " that both have" if any(result.only.values()) else ""
    if _part(result) and not shared:
        return f"the {count_text(count, 'layer')} asked for"
    return f"the one layer{shared}" if count == 1 else f"all {count} layers{shared}"


def _share(x: float) -> str:
    """A part of a norm as people say it."""
    return f"{100 * x:.2g} % of" if x < 0.995 else f"{x:.2f} times"


def only_texts(result: Comparison) -> list[str]:
    """Layers that only one of the two has, a sentence a reason."""
    alone = [(x["stack"], x["kind"]) for side in ("a", "b") for x in result.only[side]]
    names = Names([*((x.stack, x.kind) for x in result.layers), *alone])
    out = []
    for side, name in (("a", "A"), ("b", "B")):
        reasons: dict[str, list[Key]] = {}
        for x in result.only[side]:
            reasons.setdefault(str(x["reason"]), []).append(Key(x["stack"], x["kind"], x["layer"]))
        for reason, there in reasons.items():
            out.append(f"only {name} has {names.phrases(there)}: {inert(reason)}")
    return out
