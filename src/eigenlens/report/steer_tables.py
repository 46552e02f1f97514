"""What `eigenlens steer` prints: the edit, what it did, and what that means in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.tables import plain_table
from eigenlens.report.words import complex_text, percent
from eigenlens.steering.continuations import Continuation
from eigenlens.steering.eigenpair import Change, Leader
from eigenlens.steering.evaluate import Cosines, Measure
from eigenlens.steering.result import Steering
from eigenlens.steering.strength import kl_of

_PLACES = {
    "after_sublayer": "right after {site}",
    "after_block": "after the block",
    "after_final_norm": "after the final norm",
}
_SITES = {"attention": "attention", "ffn": "the feed-forward part"}
_VERSIONS = {"before": "before", "after": "edited", "activation": "added"}
_STEPS = {"last": "the last", "all": "all"}
_BAR = 12
_LONGEST = 78
_DASH = "-"


def steer_view(result: Steering) -> RenderableType:
    """Everything that `eigenlens steer` prints as a table."""
    parts: list[RenderableType] = [_heading(result)]
    for table, legend, sentences in _sections(result):
        parts += [table, *(Text(sentence) for sentence in sentences)]
        parts += [Text(legend, style="dim")] if legend else []
    if result.written is not None:
        parts.append(Text(_written(result)))
    return Group(*parts)


def steer_sentences(result: Steering) -> list[str]:
    """What the tables mean, in plain words."""
    return [sentence for _, _, sentences in _sections(result) for sentence in sentences]


def _sections(result: Steering) -> list[tuple[RenderableType, str, list[str]]]:
    """Each table with its legend and what it means."""
    before, after, found = result.before, result.after, result.continuations
    out: list[tuple[RenderableType, str, list[str]]] = []
    if result.spectrum is not None:
        out.append((_spectrum(result), "", [_on_top(result, result.spectrum)]))
    if after is None or before is None:
        return out
    out.append((_tokens(result, before, after), _TOKENS_LEGEND, [_where_tokens_go(result, after)]))
    if after.kl is not None:
        meaning = [_what_it_says(result, before, after)]
        if result.activation is not None and result.direction.targets:
            meaning.append(_beside_addition(after, result.activation))
        out.append((_effect(result, before, after), _effect_legend(result), meaning))
    if result.curve is not None:
        points = result.curve
        out.append(
            (_curve(result, before, points), _curve_legend(result), [_window(result, points)])
        )
    if found:
        out.append((_continuations(found), _continuations_legend(result), []))
    return out


# -- tables --------------------------------------------------------------------------------------


def _heading(result: Steering) -> Text:
    m, e = result.model, result.edit
    text = Text()
    text.append(inert(str(m["source"])), style="bold")
    kind = f"{inert(str(m['model_type']))}, " if m.get("model_type") else ""
    placement = f", {m['placement']}-norm" if m.get("placement") else ""
    text.append(f"  {kind}d {m['d_model']}, {m['n_heads']} heads{placement}")
    says = ", ".join(f"'{inert(t)}'" for t in result.says[:4])
    text.append(f"\ntowards {inert(e.label)}")
    if says and not result.direction.targets:
        text.append(f"; along it logits grow most for {says}")
    shared = {1: ""}.get(result.calls, f" ({_STEPS[e.steps]} of its {result.calls} steps)")
    where = f"{inert(e.stack)} layer {e.layer}{shared}"
    text.append(f"\nedit of {_matrix(result)} in {where}: probe {e.probe}, {_strength(result)}")
    size = "" if result.relative_norm is None else f" ({percent(result.relative_norm)} of |W|)"
    alpha = "" if result.alpha_qu is None else f", strength x q.u = {_number(result.alpha_qu)}"
    text.append(f"\n|dW| = {_number(e.dW_norm)}{size}{alpha}")
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
    return f"strength {_number(result.edit.strength)}{how}"


def _spectrum(result: Steering) -> Table:
    table = plain_table([("spectrum", "left"), ("before", "right"), ("after", "right")])
    if result.spectrum is None:
        return table
    a, b = result.spectrum.before, result.spectrum.after
    table.add_row("leading eigenvalue", _leading(a), _leading(b))
    table.add_row("lead over the second (gap)", percent(a.gap), percent(b.gap))
    table.add_row(
        "cosine of its eigenvector with the direction",
        _cosine4(a.cos_direction),
        _cosine4(b.cos_direction),
    )
    return table


def _leading(leader: Leader) -> str:
    return "0 (kernel)" if leader.target == "kernel" else complex_text(leader.eigenvalue)


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
            name.format(site=_SITES[result.edit.site]),
            _mean(None if usual is None else usual[0]),
            _mean(rest),
            _DASH if rest is None else f"{rest.min_cosine:+.3f}",
            _share(rest),
            _mean(first),
            _share(first),
        )
    return table


_TOKENS_LEGEND = (
    "cosine: mean signed cosine of held-out tokens with the direction (behind a norm: with what it "
    "makes of the direction); towards it: share with a positive one; first tokens of a text are "
    "apart, since many models park attention there"
)


def _effect(result: Steering, before: Measure, after: Measure) -> Table:
    columns = [("predictions", "left"), ("before", "right"), ("edited", "right")]
    other = result.activation
    columns += [("activation addition", "right")] if other is not None else []
    table = plain_table(columns)
    shown = [before, after] + ([other] if other is not None else [])
    rows = {
        "strength": [_DASH, *(_number(m.strength) for m in shown[1:])],
        "KL per token": [_DASH, *(_kl(m) for m in shown[1:])],
        "perplexity": [_perplexity(m.perplexity) for m in shown],
        "probability of the wanted": [_probability(m.target_probability) for m in shown],
        "rank of the wanted": [_rank(m.target_rank) for m in shown],
    }
    for name, cells in rows.items():
        if any(cell != _DASH for cell in cells):
            table.add_row(name, *cells)
    return table


def _effect_legend(result: Steering) -> str:
    text = (
        "on held-out text; KL per token: mean divergence from the unedited model, in nats; "
        "probability: mean over all places; rank: median"
    )
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
    row: list[str | Text] = [_number(m.strength), _kl(m), _perplexity(m.perplexity)]
    if targets:
        row += [_probability(m.target_probability), Text(_bar(m.target_probability, most))]
    return [*row, _mean(rest), _share(rest), mark]


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
    return (
        f"cosine, towards it: right after the edited sub-layer; useful: {_useful(result)} at a KL "
        f"of at most {result.options['max_kl']:g}"
    )


def _useful(result: Steering) -> str:
    if not result.direction.targets:
        return "any strength"
    down = result.edit.strength < 0
    return "at most half the probability" if down else "at least twice the probability"


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


# -- sentences -----------------------------------------------------------------------------------


def _on_top(result: Steering, change: Change) -> str:
    after = change.after
    where = f"{inert(result.edit.stack)} layer {result.edit.layer}"
    formula = change.formula
    exact = ""
    if formula is not None and formula.error is not None and formula.error < 1e-6:
        exact = ", which is what the exact formula gives"
    if result.edit.strength < 0:
        value = "" if formula is None else f" to {complex_text(formula.eigenvalue)}"
        return (
            f"The term pushes the direction's eigenvalue in {where} down{value}; the leading "
            f"eigenvector has a cosine of {_cosine4(after.cos_direction)} with the direction."
        )
    if after.cos_direction >= 0.95:
        again = "now leads" if change.before.cos_direction < 0.95 else "leads, as it did before,"
        return (
            f"The direction {again} the spectrum of {where}: its leading eigenvector has a "
            f"cosine of {_cosine4(after.cos_direction)} with it (before "
            f"{_cosine4(change.before.cos_direction)}), and the eigenvalue "
            f"{_leading(after)}{exact}."
        )
    if after.cos_direction >= 0.5:
        return (
            f"The leading eigenvector of {where} now leans towards the direction (cosine "
            f"{_cosine4(after.cos_direction)}, before {_cosine4(change.before.cos_direction)}), "
            f"with the eigenvalue {_leading(after)}{exact}; a larger strength brings it nearer."
        )
    return (
        f"The direction does not lead the spectrum of {where}: the leading eigenvector has a "
        f"cosine of {_cosine4(after.cos_direction)} with it."
    )


def _where_tokens_go(result: Steering, after: Measure) -> str:
    pair = after.tokens.get("after_sublayer")
    rest = None if pair is None else pair[0]
    if rest is None:
        return "Every text has one token, so that only first tokens can be judged."
    toward = "away from" if result.edit.strength < 0 else "towards"
    share = 1 - rest.positive_fraction if result.edit.strength < 0 else rest.positive_fraction
    text = (
        f"Right after {_SITES[result.edit.site]}, {percent(share)} of {rest.n_tokens} held-out "
        f"tokens point {toward} it, with a mean cosine of {rest.mean_cosine:+.3f}"
    )
    if 0.1 < share < 0.9 and abs(result.edit.strength) > 0:
        text += ": the tokens are split in two groups"
    return f"{text}."


def _what_it_says(result: Steering, before: Measure, after: Measure) -> str:
    a, b = before.target_probability, after.target_probability
    harm = f"a KL of {_kl(after)} nats per token"
    if before.perplexity is not None and after.perplexity is not None:
        harm += (
            f" (perplexity {_perplexity(before.perplexity)} before, "
            f"{_perplexity(after.perplexity)} after)"
        )
    if a is None or b is None or a <= 0 or b <= 0:
        return f"Predictions changed by {harm}."
    name = inert(result.edit.label).removeprefix("tokens ").removeprefix("token ")
    change = f"{_times(b / a)} as probable as" if b >= a else f"{_times(a / b)} rarer than"
    return f"{name} is {change} before at {harm}."


def _beside_addition(after: Measure, other: Measure) -> str:
    a, b = after.target_probability or 0.0, other.target_probability or 0.0
    if min(a, b) <= 0:
        verdict = "leaves the wanted tokens without any probability"
    elif max(a, b) < 1.15 * min(a, b):
        verdict = "makes the wanted tokens about as probable"
    elif b > a:
        verdict = f"makes them {_times(b / a)} as probable as the edit does"
    else:
        verdict = f"leaves them {_times(a / b)} rarer than the edit does"
    return (
        f"Plain activation addition of the same KL {verdict} ({_probability(b)}); it needs a hook "
        "in the running model, the edit is in the weights."
    )


def _window(result: Steering, points: Sequence[Measure]) -> str:
    limit = f"{result.options['max_kl']:g}"
    w = result.window
    if w is None:
        text = (
            f"No strength is useful: none changes the wanted probability twofold at a KL of {limit}"
            " or less."
        )
    else:
        text = f"Useful strengths are {_number(w.low)} to {_number(w.high)} (KL at most {limit})."
    aligned = [m for m in points if _aligned(m)]
    if aligned:
        first = aligned[0]
        text += (
            f" Tokens are nearly aligned with the direction (mean cosine "
            f"{_mean(_rest(first))}) from strength {_number(first.strength)} on, where the KL is "
            f"{_kl(first)}: alignment is not influence, and that much of it breaks the model."
        )
    return text + _falls(result, points)


def _falls(result: Steering, points: Sequence[Measure]) -> str:
    """Why the wanted tokens become rare again where the edit is very strong."""
    best = max(points, key=lambda m: m.target_probability or 0.0)
    last = points[-1].target_probability
    if not best.target_probability or last is None or last > best.target_probability / 2:
        return ""
    if result.edit.strength < 0:
        return ""
    wanted = {result.direction.label}
    others = [f"'{inert(t)}'" for t in result.says if f"token '{inert(t)}'" not in wanted][:3]
    why = f", since logits of others ({', '.join(others)}) grow faster along it" if others else ""
    return f" Beyond {_number(best.strength)} the wanted tokens become rarer again{why}."


def _aligned(m: Measure) -> bool:
    rest = _rest(m)
    return rest is not None and abs(rest.mean_cosine) >= 0.9


def _rest(m: Measure) -> Cosines | None:
    pair = m.tokens.get("after_sublayer")
    return None if pair is None else pair[0]


def _written(result: Steering) -> str:
    w = result.written
    return "" if w is None else f"Written as {w.form}: {inert(str(w.folder))}."


# -- numbers -------------------------------------------------------------------------------------


def _number(x: float) -> str:
    """``101``, ``4.05``, ``0.255``, ``1.2e+06``: three digits."""
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 1e5:
        rounded = float(f"{x:.3g}")
        return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
    return f"{x:.1e}"


def _kl(m: Measure) -> str:
    if m.kl is None:
        return _DASH
    kl = kl_of(m)
    if math.isinf(kl):
        return "broken"
    if kl == 0:
        return "0"
    return f"{kl:.3f}" if 1e-3 <= kl < 10 else f"{kl:.1f}" if 10 <= kl < 1e4 else f"{kl:.0e}"


def _perplexity(x: float | None) -> str:
    if x is None:
        return _DASH
    if math.isinf(x):
        return "inf"
    return f"{x:.1f}" if x < 1e4 else f"{x:.0e}"


def _probability(p: float | None) -> str:
    if p is None:
        return _DASH
    return f"{p:.4f}" if p >= 1e-3 or p == 0 else f"{p:.1e}"


def _rank(rank: float | None) -> str:
    return _DASH if rank is None else f"{rank:.0f}"


def _mean(found: Cosines | None) -> str:
    return _DASH if found is None else f"{found.mean_cosine:+.3f}"


def _share(found: Cosines | None) -> str:
    return _DASH if found is None else percent(found.positive_fraction)


def _cosine4(x: float) -> str:
    return f"{x:.4f}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
