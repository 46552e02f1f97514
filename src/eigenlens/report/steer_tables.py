"""What `eigenlens steer` prints: the edit, what it did, and what that means in plain words."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.model_words import SHORT, model_line
from eigenlens.report.steer_words import (
    DASH,
    LEADERS,
    SITES,
    beside_addition,
    chance_text,
    cosine4,
    kl_text,
    leader_text,
    led_by_vectors,
    mean_text,
    number,
    on_top,
    perplexity,
    rank_text,
    repetition_text,
    share_text,
    useful_text,
    what_it_says,
    where_tokens_go,
    window_text,
)
from eigenlens.report.tables import plain_table
from eigenlens.report.words import percent
from eigenlens.steering.continuations import Continuation
from eigenlens.steering.measures import Measure
from eigenlens.steering.result import Steering
from eigenlens.steering.strength import kl_of

_PLACES = {
    "after_sublayer": "right after {site}",
    "after_block": "after the block",
    "after_final_norm": "after the final norm",
}
_VERSIONS = {"before": "before", "after": "edited", "activation": "added"}
_STEPS = {"last": "the last", "all": "all"}
_BAR = 12
_LONGEST = 78


def steer_view(result: Steering) -> RenderableType:
    """Everything that `eigenlens steer` prints as a table."""
    parts: list[RenderableType] = [_heading(result)]
    for table, legend, sentences in _sections(result):
        parts += [table, *(Text(sentence) for sentence in sentences)]
        parts += [Text(legend, style="dim")] if legend else []
    if result.written is not None:
        parts.append(Text(_written(result)))
    return Group(*parts)


def _sections(result: Steering) -> list[tuple[RenderableType, str, list[str]]]:
    """Each table with its legend and what it means."""
    before, after, found = result.before, result.after, result.continuations
    out: list[tuple[RenderableType, str, list[str]]] = []
    if result.spectrum is not None:
        out.append((_spectrum(result), "", [on_top(result, result.spectrum)]))
    if after is None or before is None:
        return out
    out.append((_tokens(result, before, after), _TOKENS_LEGEND, [where_tokens_go(result, after)]))
    if after.kl is not None:
        meaning = [what_it_says(result, before, after)]
        if result.activation is not None and result.direction.targets:
            meaning.append(beside_addition(after, result.activation))
        table, rows = _effect(result, before, after)
        out.append((table, _effect_legend(result, rows), meaning))
    if result.curve is not None:
        points = result.curve
        out.append(
            (_curve(result, before, points), _curve_legend(result), [window_text(result, points)])
        )
    if found:
        said = repetition_text(found)
        out.append((_continuations(found), _continuations_legend(result), [said] if said else []))
    return out


# -- tables --------------------------------------------------------------------------------------


def _heading(result: Steering) -> Text:
    m, e = result.model, result.edit
    text = model_line(m, *SHORT)
    says = ", ".join(f"'{inert(t)}'" for t in result.says[:4])
    text.append(f"\ntowards {inert(e.label)}")
    if says and not result.direction.targets:
        text.append(f"; along it logits grow most for {says}")
    shared = {1: ""}.get(result.calls, f" ({_STEPS[e.steps]} of its {result.calls} steps)")
    where = f"{result.where}{shared}"
    text.append(f"\nedit of {_matrix(result)} in {where}: probe {e.probe}, {_strength(result)}")
    size = "" if result.relative_norm is None else f" ({percent(result.relative_norm)} of |W|)"
    alpha = "" if result.alpha_qu is None else f", strength x q.u = {number(result.alpha_qu)}"
    text.append(f"\n|dW| = {number(e.dW_norm)}{size}{alpha}")
    return text


def _matrix(result: Steering) -> str:
    return "W_O" if result.edit.site == "attention" else "the feed-forward output matrix"


def _strength(result: Steering) -> str:
    o = result.options
    how = ""
    if o["target_cosine"] is not None:
        how = f" (for a mean cosine of {o['target_cosine']:g})"
    elif o["strength"] == "auto":
        how = f" (auto: KL at most {o['max_kl']:g})"
    return f"strength {number(result.edit.strength)}{how}"


def _spectrum(result: Steering) -> Table:
    table = plain_table([("spectrum", "left"), ("before", "right"), ("after", "right")])
    if result.spectrum is None:
        return table
    a, b = result.spectrum.before, result.spectrum.after
    table.add_row("leading eigenvalue", leader_text(a), leader_text(b))
    table.add_row("lead over the second (gap)", percent(a.gap), percent(b.gap))
    name, kinds = "cosine of its eigenvector with the direction", ("", "")
    if not led_by_vectors(result.spectrum):
        name = "cosine of what leads with the direction"
        kinds = (f" ({LEADERS[a.target]})", f" ({LEADERS[b.target]})")
    cells = (cosine4(x.cos_direction) + kind for x, kind in zip((a, b), kinds, strict=True))
    table.add_row(name, *cells)
    return table


def _tokens(result: Steering, before: Measure, after: Measure) -> Table:
    table = plain_table(
        [
            ("tokens", "left"),
            ("before", "right"),
            ("cosine", "right"),
            ("least", "right"),
            ("towards it", "right"),
            ("first tokens", "right"),
            ("towards it", "right"),
        ]
    )
    for place, name in _PLACES.items():
        pair, usual = after.tokens.get(place), before.tokens.get(place)
        if pair is None:
            continue
        rest, first = pair
        table.add_row(
            name.format(site=SITES[result.edit.site]),
            mean_text(None if usual is None else usual[0]),
            mean_text(rest),
            DASH if rest is None else f"{rest.min_cosine:+.3f}",
            share_text(rest),
            mean_text(first),
            share_text(first),
        )
    return table


_TOKENS_LEGEND = (
    "cosine: mean signed cosine of held-out tokens with the direction (behind a norm: with what it "
    "makes of the direction); towards it: share with a positive one; first tokens of a text are "
    "apart, since many models park attention there"
)


def _effect(result: Steering, before: Measure, after: Measure) -> tuple[Table, tuple[str, ...]]:
    """The table, and the names of its rows."""
    columns = [("predictions", "left"), ("before", "right"), ("edited", "right")]
    other = result.activation
    columns += [("activation addition", "right")] if other is not None else []
    table = plain_table(columns)
    shown = [before, after] + ([other] if other is not None else [])
    rows = {
        "strength": [DASH, *(number(m.strength) for m in shown[1:])],
        "KL per token": [DASH, *(kl_text(m) for m in shown[1:])],
        "perplexity": [perplexity(m.perplexity) for m in shown],
        "probability of the wanted": [chance_text(m.target_probability) for m in shown],
        "rank of the wanted": [rank_text(m.target_rank) for m in shown],
    }
    shown_rows = {name: cells for name, cells in rows.items() if set(cells) != {DASH}}
    for name, cells in shown_rows.items():
        table.add_row(name, *cells)
    return table, tuple(shown_rows)


_EFFECT_MEANINGS = {
    "KL per token": "KL per token: mean divergence from the unedited model, in nats",
    "probability of the wanted": "probability: mean over all places",
    "rank of the wanted": "rank: median",
}


def _effect_legend(result: Steering, rows: Collection[str]) -> str:
    """What the rows that are shown mean."""
    known = [text for name, text in _EFFECT_MEANINGS.items() if name in rows]
    text = "; ".join(["on held-out text", *known])
    if result.activation is not None:
        text += (
            "; activation addition: the same direction added to every token after the block, as is "
            "usual today, as strongly as gives the same KL"
        )
    return text


def _curve(result: Steering, before: Measure, points: Sequence[Measure]) -> Table:
    targets = before.target_probability is not None
    columns = [("strength", "right"), ("KL", "right"), ("perplexity", "right")]
    columns += [("probability", "right"), ("", "left")] if targets else []
    columns += [("cosine", "right"), ("towards it", "right"), ("", "left")]
    table = plain_table(columns)
    most = max((m.target_probability or 0.0) for m in points)
    table.add_row(*_row(before, targets, most, "unedited"))
    for m in points:
        table.add_row(*_row(m, targets, most, _mark(result, m)))
    return table


def _row(m: Measure, targets: bool, most: float, mark: str) -> list[str | Text]:
    pair = m.tokens.get("after_sublayer")
    rest = None if pair is None else pair[0]
    row: list[str | Text] = [number(m.strength), kl_text(m), perplexity(m.perplexity)]
    if targets:
        row += [chance_text(m.target_probability), Text(_bar(m.target_probability, most))]
    return [*row, mean_text(rest), share_text(rest), mark]


def _mark(result: Steering, m: Measure) -> str:
    if m.strength == result.edit.strength:
        return "<- this edit"
    w = result.window
    if w is not None and min(abs(w.low), abs(w.high)) <= abs(m.strength) <= max(
        abs(w.low), abs(w.high)
    ):
        return "useful"
    return "too strong" if kl_of(m) > result.options["max_kl"] else ""


def _bar(value: float | None, most: float) -> str:
    """A bar on a linear scale; a part of a sign still shows."""
    if not value or not most:
        return ""
    return "#" * math.ceil(_BAR * value / most) if value > most / 200 else ""


def _curve_legend(result: Steering) -> str:
    text = "cosine, towards it: right after the edited sub-layer"
    if result.window is None:  # no row is marked useful
        return text
    limit = f"{result.options['max_kl']:g}"
    return (
        f"{text}; useful: {useful_text(result)} at a KL of at most {limit}, however texts then go "
        "on"
    )


def _continuations(found: Sequence[Continuation]) -> Table:
    table = plain_table([("", "left"), ("how a text goes on", "left")])
    for i, c in enumerate(found):
        if i:
            table.add_row("", "")
        table.add_row("", Text(f"{inert(c.prompt)} ...", style="bold"))
        for name, text in c.texts.items():
            table.add_row(_VERSIONS[name], Text(_cut(inert(text))))
    return table


def _continuations_legend(result: Steering) -> str:
    text = "the likeliest next tokens, one after the other"
    if result.activation is not None:
        text += "; added: with activation addition"
    if result.direction.targets:
        which = "unedited" if result.edit.strength < 0 else "edited"
        text += f"; the last text is the one where the {which} model finds the wanted likeliest"
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _written(result: Steering) -> str:
    w = result.written
    if w is None:
        return ""
    noted = f" A note in {inert(', '.join(w.noted))} says that it was edited." if w.noted else ""
    stored = ""
    if w.form == "checkpoint" and result.spectrum is not None:
        stored = (
            " The spectrum above is of the edit in float64; the file holds it rounded to its own "
            "type, so that last digits read from there may differ."
        )
    return f"Written as {w.form}: {inert(str(w.folder))}.{noted}{stored}"
