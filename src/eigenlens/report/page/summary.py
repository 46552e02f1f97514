"""The summary: one question, one short verdict and the sentences behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eigenlens.dynamics.result import Simulation
from eigenlens.inert import inert
from eigenlens.report.collapse_words import contradiction, rank_sentence
from eigenlens.report.names import Names
from eigenlens.report.page.gather import Material
from eigenlens.report.sentences import behind_text, spectrum_sentences
from eigenlens.report.simulate_tables import as_foretold, outcome_sentence, too_short_sentence
from eigenlens.report.trace_words import call_phrase, trace_sentences
from eigenlens.report.words import (
    complex_text,
    count_text,
    decimals,
    layer_list,
    most_frequent,
    percent,
    regime_text,
    size_of,
)
from eigenlens.shown.names import by_group, group_name
from eigenlens.spectra.result import LayerSpectrum, Spectrum
from eigenlens.tracing.result import StackTrace, Trace

ALIKE = 0.95
"""Mean cosine from which tokens count as one direction."""
_RISE = 0.05
_MUCH = 0.4
_ASKED = "Do tokens tilt towards the principal eigenvector? "


@dataclass(frozen=True)
class Answer:
    """A question of the reader, the verdict in a few words, and what it rests on."""

    question: str
    verdict: str
    detail: str
    known: bool = True


QUESTIONS = {
    "regime": "Which regime is each layer in?",
    "strength": "How strong is the pull?",
    "tilt": "Do real tokens tilt?",
    "collapse": "Do tokens become alike?",
    "end": "Where would the deep stack end?",
}


def answers(material: Material, needs: Sequence[str]) -> list[Answer]:
    """The verdict on every question whose results were asked for, or why there is none."""
    out = []
    if material.spectrum is not None:
        out += [_regime(material.spectrum), _strength(material.spectrum)]
    if "trace" in needs:
        out += (
            [_missing(QUESTIONS[q], material, "trace") for q in ("tilt", "collapse")]
            if material.trace is None
            else [_tilt(material.trace), _collapse(material.trace)]
        )
    if "simulate" in needs:
        out.append(
            _missing(QUESTIONS["end"], material, "simulate")
            if material.simulate is None
            else _end(material.simulate)
        )
    return out


def _missing(question: str, material: Material, need: str) -> Answer:
    reason = material.missing.get(need, "it was not computed")
    return Answer(question, "Not known", f"Left out: {reason}.", known=False)


def _regime(result: Spectrum) -> Answer:
    layers = result.layers
    detail = " ".join(spectrum_sentences(result))
    if not layers:
        return Answer(QUESTIONS["regime"], "None has a spectrum", detail, known=False)
    counts = Counter(x.regime for x in layers)
    first, _ = most_frequent(counts)
    verdict = regime_text(first[0]).capitalize()
    if len(counts) == 1 and len(layers) > 1:
        verdict += f" in all {len(layers)} layers"
    elif len(first) > 1:
        verdict = ", ".join(f"{n} {regime_text(r)}" for r, n in counts.most_common())
    elif len(counts) > 1:
        verdict += f" in {counts[first[0]]} of {count_text(len(layers), 'layer')}"
    return Answer(QUESTIONS["regime"], verdict, detail)


def _strength(result: Spectrum) -> Answer:
    led = [x for x in result.layers if x.gap is not None and x.regime != "no_consensus"]
    if not result.layers:
        text = "Without eigenvalues nothing can be said of a pull."
        return Answer(QUESTIONS["strength"], "Not known", text, known=False)
    if not led:
        text = "No layer has a leading direction that grows."
        return Answer(QUESTIONS["strength"], "No pull", text)
    one, names = len(result.layers) == 1, Names.of(result.layers)
    # Gaps under two orders are no measure of one thing: the largest of each is told.
    strong = [
        max((x for x in led if x.order == order), key=lambda x: x.gap or 0.0)
        for order in dict.fromkeys(x.order for x in led)
    ]
    ahead = [f"{percent(x.gap)} ahead{'' if one else f' ({names.phrase(x)})'}" for x in strong]
    verdict = f"{'' if one else 'At most '}{', '.join(ahead)}"
    parts = [_lead(x, "" if one else f" of {names.phrase(x)}") for x in strong]
    norms = [x.spectral_norm for x in result.layers]
    places = decimals(norms, 2)
    low, high = size_of(min(norms), places), size_of(max(norms), places)
    span = low if low == high else f"{low} to {high}"
    parts.append(
        f"|F|, the largest factor by which F stretches a state (the most that the layer can write "
        f"for a token of length 1 where all tokens are alike): {span}."
    )
    return Answer(QUESTIONS["strength"], verdict, " ".join(parts))


def _lead(x: LayerSpectrum, whose: str) -> str:
    value = complex(x.eigenvalues[0]) if x.eigenvalues.size else 0j
    text = f"The leading eigenvalue{whose} is {complex_text(value)}"
    if x.order == "residual":
        text += f": with the residual a step multiplies its direction by {_factor(abs(1 + value))}"
    behind = behind_text(x)
    return f"{text}{f'; the second direction is 10 times behind {behind}' * bool(behind)}."


def _factor(x: float) -> str:
    """A factor with two decimals, or as many as tell it from 1."""
    return f"{x:.{decimals([abs(x - 1)], 2)}f}"


def _tilt(result: Trace) -> Answer:
    v, n = result.verdict, len(result.layers)
    steps = len({(x.stack, x.kind, x.layer) for x in result.layers}) < n
    noun = "step" if steps else "layer"
    count = count_text(n, noun)
    if v["beyond_random"] is None:
        verdict = f"Rho > 1/2 in {v['rho_above_half']} of {count}, untested"
    elif v["beyond_random"] == 0:
        verdict = "No more than towards random directions"
    else:
        many = f"{v['beyond_random']} of {count}"
        many = many if v["beyond_random"] < n else f"all {count}" if n > 1 else f"its one {noun}"
        verdict = f"In {many}, beyond random directions"
    detail = " ".join(trace_sentences(result)).replace(_ASKED, "")
    return Answer(QUESTIONS["tilt"], verdict, detail)


def _collapse(result: Trace) -> Answer:
    # Cross attention sits between the layers of its own stack, which tell of the same states.
    whole = {stack.stack for stack in result.stacks if stack.kind == "self"}
    found: dict[str, tuple[str, str]] = {}
    for stack in result.stacks:
        told = _alike(result, stack) if stack.kind == "self" or stack.stack not in whole else None
        if told is not None:
            found[inert(group_name(stack.stack, stack.kind))] = told
    if not found:
        text = "A mean cosine needs prompts of at least two tokens."
        return Answer(QUESTIONS["collapse"], "Not known", text, known=False)
    verdict, detail = next(iter(found.values()))
    if len({(x.stack, x.kind) for x in result.stacks}) > 1:
        words = [
            f"{name}: {v[:1].lower()}{v[1:].replace(': ', ', ')}" for name, (v, _) in found.items()
        ]
        verdict = "; ".join(words)
        detail = " ".join(f"In {name}, {d[:1].lower()}{d[1:]}" for name, (_, d) in found.items())
    return Answer(QUESTIONS["collapse"], verdict, f"{detail} {contradiction(result)}".strip())


def _alike(result: Trace, stack: StackTrace) -> tuple[str, str] | None:
    """The verdict on one stack and the sentence behind it; None where no cosine is known."""
    own = [x for x in result.layers if x.stack == stack.stack and x.kind == stack.kind]
    last = own[-1]
    end = last.collapse_block or last.collapse
    before, after = stack.start.get("cosine"), end.get("cosine")
    if before is None or after is None:
        return None
    values = [(x.collapse_block or x.collapse).get("cosine") or 0.0 for x in own]
    peak = max(range(len(values)), key=values.__getitem__)
    if after >= ALIKE:
        verdict = "Yes: nearly one direction"
    elif values[peak] >= ALIKE:
        verdict = f"On the way: peak {values[peak]:.2f}, end {after:.2f}"
    elif after > before + _RISE:
        much = "Partly" if after >= _MUCH else "A little"
        verdict = f"{much}: cosine {before:.2f} to {after:.2f}"
    else:
        verdict = f"No: cosine {before:.2f} to {after:.2f}"
    word = "the last block" if last.collapse_block else "the last attention"
    text = (
        f"The mean cosine of two tokens of a prompt is {before:.3f} before the first layer and "
        f"{after:.3f} after {word}"
    )
    if values[peak] > max(before, after) + _RISE:
        where = call_phrase(own[peak], result.layers)
        state = "the block of " * (own[peak].collapse_block is not None)
        text += f", with a peak of {values[peak]:.3f} after {state}{where}"
    ranks = [(x.collapse_block or x.collapse).get("effective_rank") for x in own]
    start = stack.start.get("effective_rank")
    parts = [text, rank_sentence(start, ranks, own, result.layers)]
    return verdict, f"{'; '.join(filter(None, parts))}."


_ENDS = {
    "consensus": "One direction",
    "rotation": "One direction, which turns",
    "flip": "One direction, which flips",
    "bipartite": "Two opposite groups",
    "clusters": "A few groups",
    "none": "No consensus",
    "unsettled": "Not settled",
}


def _end(result: Simulation) -> Answer:
    out, p = result.outcome, result.outcome.predicted
    verdict = _ENDS[out.label]
    if p is not None and out.settled:
        verdict += ", as foretold" if as_foretold(result) else ", not as foretold"
    elif not out.settled:
        verdict += f" after {count_text(result.trajectory[-1]['step'], 'step')}"
    told = outcome_sentence(result), too_short_sentence(result)
    return Answer(QUESTIONS["end"], verdict, " ".join(filter(None, told)))


def regime_runs(result: Spectrum) -> list[tuple[str, str]]:
    """Regimes that occur and their layers in words, with the stack where there are several."""
    groups = by_group(result.layers)
    out = []
    for regime in dict.fromkeys(x.regime for x in result.layers):
        found = {
            f"{name} " * (len(groups) > 1): [x.layer for x in layers if x.regime == regime]
            for name, layers in groups.items()
        }
        out.append(
            (regime, "; ".join(name + layer_list(own) for name, own in found.items() if own))
        )
    return out
