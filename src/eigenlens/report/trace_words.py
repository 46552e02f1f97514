"""What a trace means, in plain words: whether tokens tilt, and more than chance."""

from __future__ import annotations

from collections.abc import Sequence

from eigenlens.inert import inert
from eigenlens.measure.borders import draws_to_turn
from eigenlens.report.names import Names
from eigenlens.report.words import count_text, layer_list
from eigenlens.shown.names import by_group, group_name
from eigenlens.tracing.options import ALLOWED_DIRECTIONS
from eigenlens.tracing.result import LEVEL, LayerTrace, Trace


def stack_groups(result: Trace) -> dict[str, list[LayerTrace]]:
    """The layers by stack and kind, each under its name."""
    return by_group(result.layers)


def told_by_step(layers: Sequence[LayerTrace]) -> bool:
    """Whether rows are told apart by their step: a layer that is used more than once."""
    return len({(x.stack, x.kind, x.layer) for x in layers}) < len(layers)


def call_phrase(x: LayerTrace, among: Sequence[LayerTrace]) -> str:
    """One attention call in a sentence: ``layer 3``; ``step 3`` where layers are used again.

    `among` are all that are told of; where they are of several stacks, its own is named.
    """
    names = Names.of(among)
    if not told_by_step([y for y in among if (y.stack, y.kind) == (x.stack, x.kind)]):
        return names.phrase(x)
    return (
        f"step {x.step}" if names.one else f"step {x.step} of {inert(group_name(x.stack, x.kind))}"
    )


def calls_phrase(chosen: Sequence[LayerTrace], among: Sequence[LayerTrace]) -> str:
    """Several in a sentence: ``layers 0, 2-4``, ``steps 3-5``, or full names."""
    names = Names.of(among)
    if not names.one or not told_by_step(among):
        return names.phrases(chosen)
    return f"step{'s' * (len(chosen) > 1)} {layer_list([x.step for x in chosen])}"


def row_name(x: LayerTrace, by_step: bool, names: Names) -> str:
    """What a row is called: its step or its layer."""
    return str(x.step) if by_step else names(x)


def three(value: float) -> str:
    """``0.712``: three decimals, so that columns align."""
    return f"{value:.3f}"


def trace_sentences(result: Trace) -> list[str]:
    """What the tables mean; the last one answers whether tokens tilt."""
    layers = result.layers
    verdict = result.verdict
    word = "step" if told_by_step(layers) else "layer"
    above, positive = verdict["rho_above_half"], verdict["gain_positive"]
    if len(layers) == 1:
        told = (
            f"Rho is {_not(above)}above 1/2 in the one {word} here, and the mean gain is "
            f"{_not(positive)}positive."
        )
    else:
        told = (
            f"Rho is above 1/2 in {above} of {len(layers)} {word}s, and the mean gain is positive "
            f"in {positive}."
        )
    out = [told]
    if verdict["beyond_random"] is None:
        return [*out, _untested(result, word)]
    answer = f"{_answer(result, word)}{_border(result, word)}"
    return [*out, _caution(result, word), answer]


def _not(count: int) -> str:
    """Of one layer a count is a yes or a no."""
    return "" if count else "not "


def _of(count: int, layers: Sequence[object], word: str) -> str:
    """`` in 2 of 12 layers``; nothing where there is one, of which a yes or a no is told."""
    return f" in {count} of {len(layers)} {word}s" if len(layers) > 1 else ""


def _smaller(count: int, layers: Sequence[object], word: str) -> str:
    """In how many of the layers a null has a smaller rho."""
    return f"has {'no' if len(layers) == 1 and not count else 'a'} smaller rho" + _of(
        count, layers, word
    )


def _untested(result: Trace, word: str) -> str:
    """Without nulls: where rho is on which side of 1/2, as far as its interval carries."""
    layers = result.layers
    more, away = _clear(layers)
    unclear = [x for x in layers if x not in more and x not in away]
    if len(layers) == 1:
        told = "More often than not" if more else "Most tokens move away" if away else _UNCLEAR
        text = f"{_QUESTION} {told}"
    else:
        text = (
            f"{_QUESTION} More often than not{_of(len(more), layers, word)}{_where(result, more)}"
        )
        sure = all(x.rho_ci is not None for x in layers)
        text += ", by their whole interval" if sure and more else ""
        if unclear:
            text += f"; not to be told in {len(unclear)}{_where(result, unclear)}"
        if away:
            text += f"; most tokens move away in {len(away)}{_where(result, away)}"
    return f"{text}; whether that is more than chance only the nulls say (--nulls)."


_UNCLEAR = "Not to be told, as the interval of rho holds 1/2"


def _clear(layers: Sequence[LayerTrace]) -> tuple[list[LayerTrace], list[LayerTrace]]:
    """Layers with rho above and below 1/2, by the whole interval where there is one."""
    low = [x.rho if x.rho_ci is None else x.rho_ci[0] for x in layers]
    high = [x.rho if x.rho_ci is None else x.rho_ci[1] for x in layers]
    return (
        [x for x, rho in zip(layers, low, strict=True) if rho > 0.5],
        [x for x, rho in zip(layers, high, strict=True) if rho < 0.5],
    )


_QUESTION = "Do tokens tilt towards the principal eigenvector?"


def _caution(result: Trace, word: str) -> str:
    layers = result.layers
    highs = [x.nulls["random_direction"]["quantiles"]["rho"][2] for x in layers if x.nulls]
    texts = [f"{h:.2f}" for h in (min(highs), max(highs))]
    reach = " to ".join(dict.fromkeys(texts))
    text = f"That alone is no evidence: one random direction in 40 reaches a rho of {reach}"
    rotated = [x.nulls["matched_spectrum"] for x in layers if x.nulls]
    if None not in rotated:
        above = sum(x.rho > null["rho"] for x, null in zip(layers, rotated, strict=True))
        text += (
            ", and F rotated at random, which has the same spectrum, "
            f"{_smaller(above, layers, word)}"
        )
    return f"{text}.{_untrained(result, word)}"


def _untrained(result: Trace, word: str) -> str:
    """How often the model tilts more than before its training, if that was measured."""
    fresh = [(x.nulls or {}).get("random_init") for x in result.layers]
    if None in fresh or not fresh:
        return ""
    more = sum(x.rho > f["rho"] for x, f in zip(result.layers, fresh, strict=True) if f)
    return f" The untrained model {_smaller(more, fresh, word)}."


def _answer(result: Trace, word: str) -> str:
    if result.options["mode"] == "free":
        return f"{_QUESTION} {'; '.join(_end(result))}."
    layers = result.layers
    yes = [x for x in layers if x.beyond]
    no = [x for x in layers if not x.beyond]
    _, away = _clear(no)
    how = (
        f"corrected p < {LEVEL:g}"
        if result.verdict["by"] == "p"
        else "above their 97.5 % quantile; too few prompts for a p-value"
    )
    if yes:
        text = (
            f"{_QUESTION} Yes{_of(len(yes), layers, word)}{_where(result, yes)}, beyond random "
            f"directions ({how})"
        )
        other = "the other one" if len(no) == 1 else f"the other {len(no)}"
        text += f"; not in {other}{_where(result, no)}" if no else ""
    elif len(layers) == 1:
        text = f"{_QUESTION} No more than towards random directions ({how})"
    else:
        text = f"{_QUESTION} In none of {len(layers)} {word}s more than random directions ({how})"
    if away and len(away) == len(no):
        text += ", where most tokens move away"
    elif away:
        text += f"; most tokens move away in {len(away)} of them{_where(result, away)}"
    return f"{text}.{_beyond_rotated(result, yes)}{_beyond_untrained(result, yes)}"


def _border(result: Trace, word: str) -> str:
    """Which verdicts hang on one or two of the random directions, and what to do about it."""
    if result.options["mode"] == "free" or result.verdict["by"] != "p":
        return ""  # a free run is judged by its end
    layers = result.layers
    drawn = [(x.nulls or {})["random_direction"].get("n") for x in layers]
    turned = draws_to_turn([x.p_value for x in layers], drawn, LEVEL)
    out, most = "", 0
    for beyond, said, more in ((True, "yes", "more"), (False, "no", "fewer")):
        own = [
            (x, m, few)
            for x, m, few in zip(layers, drawn, turned, strict=True)
            if few and bool(x.beyond) is beyond
        ]
        if not own:
            continue
        most = max(most, *(m for _, m, _ in own))
        few = " or ".join(_FEW[n] for n in sorted({n for _, _, n in own}))
        counts = sorted({m for _, m, _ in own})
        of = f"the {counts[0]} random" if len(counts) == 1 else "the random"
        chosen = [x for x, _, _ in own]
        out += (
            f" The {said} in {count_text(len(own), word)}{_where(result, chosen)} hangs on {few} "
            f"of {of} directions: had {few} {more} such a rho, it would be a "
            f"{'no' if beyond else 'yes'}."
        )
    if not out:
        return ""
    ask = min(4 * most, ALLOWED_DIRECTIONS)
    if ask > most:
        return f"{out} More of them tell better (--directions {ask})."
    return f"{out} Another draw tells better (--seed)."


_FEW = {1: "one", 2: "two"}


def _beyond_rotated(result: Trace, yes: Sequence[LayerTrace]) -> str:
    """Of the layers beyond random directions those that are beyond F rotated at random, too.

    By their whole interval, as in the claims of `eigenlens reproduce`; without one by rho itself.
    """
    rotated = [(x.nulls or {}).get("matched_spectrum") for x in yes]
    if not yes or None in rotated:
        return ""
    pairs = [(x, null["rho"]) for x, null in zip(yes, rotated, strict=True) if null]
    both = [x for x, rho in pairs if (x.rho if x.rho_ci is None else x.rho_ci[0]) > rho]
    whole = any(x.rho_ci is not None for x in yes)
    their = "its" if len(yes) == 1 else "their"
    text = f"bove F rotated at random{f' with {their} whole interval' if whole else ''}"
    if len(yes) == 1:
        return f" A{text}, too." if both else f" It is not a{text}."
    text = f" A{text}, too: {len(both)} of these {len(yes)}"
    if len(both) == len(yes):
        return f"{text}."
    close = sum(x.rho > rho for x, rho in pairs) > len(both)
    less = "may do" if close else "does"
    return f"{text}{_where(result, both)}; in the others F rotated at random {less} as much."


def _beyond_untrained(result: Trace, yes: Sequence[LayerTrace]) -> str:
    """In how many layers beyond random directions an untrained model tilts as much.

    Two estimates are compared, without their intervals: what training did is said of none alone.
    """
    fresh = [(x.nulls or {}).get("random_init") for x in yes]
    if not yes or None in fresh:
        return ""
    less = [x for x, f in zip(yes, fresh, strict=True) if f and x.rho <= f["rho"]]
    if not less:
        return ""
    if len(less) == len(yes):
        own = "it" if len(yes) == 1 else f"all {len(yes)}"
    else:
        own = f"{len(less)} of these {len(yes)}{_where(result, less)}"
    return f" In {own} a model without any training tilts as much or more."


def _end(result: Trace) -> list[str]:
    """Where a free run ends, which is judged by its alignment.

    Tokens that have become one move all alike: rho is then 0 or 1 for any direction.
    """
    groups = stack_groups(result)
    out = []
    for name, layers in groups.items():
        last = layers[-1]
        _, _, high = (last.nulls or {})["random_direction"]["quantiles"]["gamma"]
        tilted = last.gamma > high
        stack = f" ({name})" if len(groups) > 1 else ""
        cosine = last.collapse.get("cosine")
        steps = count_text(last.step + 1, "step")
        alike = "" if cosine is None else f" and the mean cosine of two tokens {cosine:.3f}"
        out.append(
            f"{'Yes' if tilted else 'No'}{stack}: after {steps} their alignment is "
            f"{last.gamma:.3f}{alike}, where one random direction in 40 has an alignment above "
            f"{high:.3f}"
        )
    return out


def _where(result: Trace, chosen: Sequence[LayerTrace]) -> str:
    """`` (0, 2-4)``, with the stack's name where there are several; nothing for all of them."""
    if not chosen or len(chosen) == len(result.layers):
        return ""
    groups = stack_groups(result)
    parts = []
    for name, layers in groups.items():
        by_step = told_by_step(layers)
        own = [x.step if by_step else x.layer for x in layers if x in chosen]
        if own:
            parts.append(f"{name} {layer_list(own)}" if len(groups) > 1 else layer_list(own))
    return f" ({'; '.join(parts)})"
