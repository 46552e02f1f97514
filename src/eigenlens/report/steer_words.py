"""What a steering means, in plain words, and its numbers in the form people read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eigenlens.inert import inert
from eigenlens.report.words import complex_text, count_text, percent
from eigenlens.steering.continuations import Continuation
from eigenlens.steering.eigenpair import Change, Leader
from eigenlens.steering.leading import pair_leads
from eigenlens.steering.measures import Cosines, Measure
from eigenlens.steering.result import Steering
from eigenlens.steering.strength import kl_of

SITES = {"attention": "attention", "ffn": "the feed-forward part"}
LEADERS = {"v1": "eigenvector", "plane": "plane", "span": "tied span", "kernel": "kernel"}
"""What leads a spectrum, by the target."""
DASH = "-"


def leader_text(leader: Leader) -> str:
    """The leading eigenvalue, or the kernel's 0."""
    return "0 (kernel)" if leader.target == "kernel" else complex_text(leader.eigenvalue)


def led_by_vectors(change: Change) -> bool:
    """Whether one eigenvector leads, before and after."""
    return {change.before.target, change.after.target} == {"v1"}


def _before(leader: Leader, after: Leader) -> str:
    """The cosine before the edit, and with what it was where that was of another kind."""
    found = f"before {cosine4(leader.cos_direction)}"
    if leader.target == after.target:
        return found
    return f"{found} with the leading {LEADERS[leader.target]}"


def _as_formula(result: Steering, change: Change) -> str:
    """That the leading eigenvalue is the root of the secular equation, where it is."""
    formula = change.formula
    if formula is None or formula.error is None or formula.error >= 1e-6:
        return ""
    if not pair_leads(change):  # the formula's pair is another one
        return ""
    text = ", which is what the exact formula gives for F plus the edit's rank-one term"
    if result.alpha_qu is None or result.edit.probe == "placement":  # that writes more than u
        return text
    return f"{text} (strength x q.u, {number(result.alpha_qu)}, is that of the term alone)"


def on_top(result: Steering, change: Change) -> str:
    """Whether the direction leads the spectrum now."""
    after = change.after
    where = result.where
    formula = change.formula
    exact = _as_formula(result, change)
    led, before = f"leading {LEADERS[after.target]}", _before(change.before, after)
    if result.edit.strength < 0:
        value = "" if formula is None else f" to {complex_text(formula.eigenvalue)}"
        return (
            f"The term pushes the direction's eigenvalue in {where} down{value}; the {led} "
            f"has a cosine of {cosine4(after.cos_direction)} with the direction."
        )
    if after.cos_direction >= 0.95:
        # In a plane that leads no direction leads, so that one of it does not lead as before.
        same = change.before.cos_direction >= 0.95 and change.before.target == after.target
        if after.target != "v1":
            return (
                f"The direction {'lies, as it did before,' if same else 'now lies'} in the {led} "
                f"of {where} (cosine {cosine4(after.cos_direction)}, {before}), with the "
                f"eigenvalue {leader_text(after)}{exact}."
            )
        return (
            f"The direction {'leads, as it did before,' if same else 'now leads'} the spectrum of "
            f"{where}: its {led} has a cosine of {cosine4(after.cos_direction)} with it "
            f"({before}), and the eigenvalue {leader_text(after)}{exact}."
        )
    if after.cos_direction >= 0.5:
        return (
            f"The {led} of {where} now leans towards the direction (cosine "
            f"{cosine4(after.cos_direction)}, {before}), "
            f"with the eigenvalue {leader_text(after)}{exact}; a larger strength brings it nearer."
        )
    return (
        f"The direction does not lead the spectrum of {where}: the {led} has a "
        f"cosine of {cosine4(after.cos_direction)} with it."
    )


def where_tokens_go(result: Steering, after: Measure) -> str:
    """How many held-out tokens point to the direction."""
    pair = after.tokens.get("after_sublayer")
    rest = None if pair is None else pair[0]
    if rest is None:
        return "Every text has one token, so that only first tokens can be judged."
    toward = "away from" if result.edit.strength < 0 else "towards"
    share = 1 - rest.positive_fraction if result.edit.strength < 0 else rest.positive_fraction
    text = (
        f"Right after {SITES[result.edit.site]}, {percent(share)} of {rest.n_tokens} held-out "
        f"tokens point {toward} it, with a mean cosine of {rest.mean_cosine:+.3f}"
    )
    if 0.1 < share < 0.9 and abs(result.edit.strength) > 0:
        text += ": the tokens are split in two groups"
    return f"{text}."


def what_it_says(result: Steering, before: Measure, after: Measure) -> str:
    """How much likelier the wanted tokens are, and the price."""
    a, b = before.target_probability, after.target_probability
    harm = f"a KL of {kl_text(after)} nats per token"
    if before.perplexity is not None and after.perplexity is not None:
        harm += (
            f" (perplexity {perplexity(before.perplexity)} before, "
            f"{perplexity(after.perplexity)} after)"
        )
    if a is None or b is None or a <= 0 or b <= 0:
        return f"Predictions changed by {harm}."
    name = inert(result.edit.label).removeprefix("tokens ").removeprefix("token ")
    change = f"{_times(b / a)} as probable as" if b >= a else f"{_times(a / b)} rarer than"
    if max(a, b) < 1.05 * min(a, b):
        change = "about as probable as"
    verb = "are" if len(result.direction.targets) > 1 else "is"
    return f"{name} {verb} {change} before at {harm}."


def beside_addition(after: Measure, other: Measure) -> str:
    """The edit beside plain activation addition of the same KL."""
    a, b = after.target_probability or 0.0, other.target_probability or 0.0
    if b <= 0:
        verdict = "leaves the wanted tokens without any probability"
    elif a <= 0:
        verdict = "gives the wanted tokens a probability, which the edit does not"
    elif max(a, b) < 1.15 * min(a, b):
        verdict = "makes the wanted tokens about as probable"
    elif b > a:
        verdict = f"makes them {_times(b / a)} as probable as the edit does"
    else:
        verdict = f"leaves them {_times(a / b)} rarer than the edit does"
    return (
        f"Plain activation addition of the same KL {verdict} ({chance_text(b)}); it needs a hook "
        "in the running model, the edit is in the weights."
    )


def window_text(result: Steering, points: Sequence[Measure]) -> str:
    """Which strengths are useful, and where alignment sets in."""
    limit = f"{result.options['max_kl']:g}"
    w = result.window
    if w is None and not result.direction.targets:
        text = f"No strength is useful: each that was tried has a KL of more than {limit}."
    elif w is None:
        text = (
            f"No strength is useful: none gives the wanted tokens {useful_text(result)} at a KL of "
            f"{limit} or less."
        )
    elif number(w.low) == number(w.high):
        text = f"One of these strengths is useful: {number(w.low)} (KL at most {limit})."
    else:
        text = f"Useful strengths are {number(w.low)} to {number(w.high)} (KL at most {limit})."
    aligned = [_aligned(m) for m in points]
    if any(aligned):
        since = aligned.index(True)
        first = points[since]
        on = " on" * all(aligned[since:])  # later ones may lose it again
        text += (
            f" Tokens are nearly aligned with the direction (mean cosine "
            f"{mean_text(_rest(first))}) {'from' if on else 'at'} strength "
            f"{number(first.strength)}{on}, where the KL is {kl_text(first)}"
        )
        broken = kl_of(first) > result.options["max_kl"]
        text += (
            ": alignment is not influence, and that much of it breaks the model." if broken else "."
        )
    return text + _falls(result, points)


_REPEATS = 0.5
"""Share of distinct tokens below which a text is said to repeat itself."""


def repetition_text(found: Sequence[Continuation]) -> str:
    """Whether the edited model repeats itself in the texts, which no KL tells; or nothing."""
    told = [c for c in found if "after" in c.distinct]
    if not told:
        return ""
    after = [c.distinct["after"] for c in told]
    caught = [c for c in told if c.distinct["after"] < _REPEATS]
    one = len(told) == 1
    count = count_text(len(told), "text")
    if not caught:
        least = f"{_whole(min(after))} {'of the' if one else 'or more of the'} tokens"
        return (
            f"In the {'text' if one else count} of the edited model {least} "
            f"{'' if one else 'of each '}are distinct."
        )
    worst = min(caught, key=lambda c: c.distinct["after"])
    unedited = worst.distinct.get("before")
    beside = "" if unedited is None else f", {_whole(unedited)} in the unedited one"
    where = "the text" if one else f"{len(caught)} of {count}"
    text = (
        f"In {where} the edited model repeats itself: behind '{inert(worst.prompt)}' "
        f"{_whole(worst.distinct['after'])} of the tokens are "
        f"distinct{beside}."
    )
    usual = sum(c.distinct.get("before", 1.0) < _REPEATS for c in caught)
    if usual == len(caught):
        return f"{text} The unedited model does so there as well."
    if usual:
        return f"{text} The unedited model does so in {usual} of these {len(caught)} as well."
    return f"{text} The KL, taken on texts that are given, does not tell of that."


def _whole(share: float) -> str:
    """A share without decimals, never rounded up."""
    return f"{math.floor(100 * share + 1e-9)} %"


def useful_text(result: Steering) -> str:
    """What a strength must do to be useful, besides a small KL."""
    if not result.direction.targets:
        return "any strength"
    if result.edit.strength < 0:
        return "at most half the probability"
    return "at least twice the probability"


def _falls(result: Steering, points: Sequence[Measure]) -> str:
    """Why the wanted tokens become rare again where the edit is very strong."""
    best = max(points, key=lambda m: m.target_probability or 0.0)
    last = points[-1].target_probability
    if not best.target_probability or last is None or last > best.target_probability / 2:
        return ""
    if result.edit.strength < 0:
        return ""
    wanted = result.direction.label  # which names them, in quotes
    others = [name for name in (f"'{inert(t)}'" for t in result.says) if name not in wanted][:3]
    why = f", since logits of others ({', '.join(others)}) grow faster along it" if others else ""
    return f" Beyond {number(best.strength)} the wanted tokens become rarer again{why}."


def _aligned(m: Measure) -> bool:
    rest = _rest(m)
    return rest is not None and abs(rest.mean_cosine) >= 0.9


def _rest(m: Measure) -> Cosines | None:
    pair = m.tokens.get("after_sublayer")
    return None if pair is None else pair[0]


def number(x: float) -> str:
    """``101``, ``4.05``, ``0.255``, ``1.2e+06``: three digits."""
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 1e5:
        rounded = float(f"{x:.3g}")
        return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
    return f"{x:.1e}"


def kl_text(m: Measure) -> str:
    """A KL in nats."""
    if m.kl is None:
        return DASH
    kl = kl_of(m)
    if math.isinf(kl):
        return "broken"
    if kl == 0:
        return "0"
    return f"{kl:.3f}" if 1e-3 <= kl < 10 else f"{kl:.1f}" if 10 <= kl < 1e4 else f"{kl:.0e}"


def perplexity(x: float | None) -> str:
    """A perplexity, or a dash."""
    if x is None:
        return DASH
    if math.isinf(x):
        return "inf"
    return f"{x:.1f}" if x < 1e4 else f"{x:.0e}"


def chance_text(p: float | None) -> str:
    """``0.0312``, ``1.2e-05``, or a dash."""
    if p is None:
        return DASH
    return f"{p:.4f}" if p >= 1e-3 or p == 0 else f"{p:.1e}"


def rank_text(rank: float | None) -> str:
    """A rank, or a dash."""
    return DASH if rank is None else f"{rank:.0f}"


def mean_text(found: Cosines | None) -> str:
    """A mean cosine, or a dash."""
    return DASH if found is None else f"{found.mean_cosine:+.3f}"


def share_text(found: Cosines | None) -> str:
    """Share of tokens that point to the direction, or a dash."""
    return DASH if found is None else percent(found.positive_fraction)


def cosine4(x: float) -> str:
    """A cosine to four decimals."""
    return f"{x:.4f}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
