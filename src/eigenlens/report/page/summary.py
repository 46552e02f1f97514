"""The summary: one question, one short verdict and the sentences behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eigenlens.dynamics.result import Simulation
from eigenlens.report.names import Names
from eigenlens.report.page.gather import Material
from eigenlens.report.sentences import spectrum_sentences
from eigenlens.report.simulate_tables import outcome_sentence, too_short_sentence
from eigenlens.report.trace_words import trace_sentences
from eigenlens.report.words import (
    complex_text,
    count_text,
    decimals,
    layer_list,
    percent,
    regime_text,
    size_of,
    steps_text,
)
from eigenlens.spectra.result import LayerSpectrum, Spectrum
from eigenlens.tracing.result import Trace

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
    counts = Counter(x.regime for x in layers).most_common()
    regime, most = counts[0]
    verdict = regime_text(regime).capitalize()
    if len(counts) == 1 and len(layers) > 1:
        verdict += f" in all {most} layers"
    elif len(counts) > 1 and counts[1][1] == most:
        verdict = ", ".join(f"{n} {regime_text(r)}" for r, n in counts)
    elif len(counts) > 1:
        verdict += f" in {most} of {count_text(len(layers), 'layer')}"
    return Answer(QUESTIONS["regime"], verdict, detail)


def _strength(result: Spectrum) -> Answer:
    led = [x for x in result.layers if x.gap is not None and x.regime != "no_consensus"]
    if not result.layers:
        text = "Without eigenvalues nothing can be said of a pull."
        return Answer(QUESTIONS["strength"], "Not known", text, known=False)
    if not led:
        text = "No layer has a leading direction that grows."
        return Answer(QUESTIONS["strength"], "No pull", text)
    strong = max(led, key=lambda x: x.gap or 0.0)
    one = len(result.layers) == 1
    ahead = f"{percent(strong.gap)} ahead"
    name = Names.of(result.layers).phrase(strong)
    verdict = ahead if one else f"At most {ahead} ({name})"
    parts = [_lead(strong, "" if one else f" of {name}")]
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
    steps = steps_text(x.steps_to_separate)
    if steps != "-":
        unit = "step" if steps == "1" else "steps"
        unit = f"{steps} {unit}" if x.order != "real" else f"{steps} times the depth"
        text += f"; the second direction is 10 times behind after {unit}"
    return text + "."


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
    return Answer(QUESTIONS["tilt"], verdict, detail + _untrained(result, noun))


def _untrained(result: Trace, noun: str) -> str:
    """How often the model tilts more than before its training, if that was measured."""
    fresh = [(x.nulls or {}).get("random_init") for x in result.layers]
    if None in fresh or not fresh:
        return ""
    more = sum(x.rho > f["rho"] for x, f in zip(result.layers, fresh, strict=True) if f)
    return f" The untrained model has a smaller rho in {more} of {count_text(len(fresh), noun)}."


def _collapse(result: Trace) -> Answer:
    stack = result.stacks[0]
    own = [x for x in result.layers if x.stack == stack.stack and x.kind == stack.kind]
    last = own[-1]
    end = last.collapse_block or last.collapse
    before, after = stack.start.get("cosine"), end.get("cosine")
    if before is None or after is None:
        text = "A mean cosine needs prompts of at least two tokens."
        return Answer(QUESTIONS["collapse"], "Not known", text, known=False)
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
        where = Names.of(result.layers).phrase(own[peak])
        text += f", with a peak of {values[peak]:.3f} after {where}"
    ranks = stack.start.get("effective_rank"), end.get("effective_rank")
    if ranks[0] is not None and ranks[1] is not None:
        text += f"; the effective rank goes from {ranks[0]:.1f} to {ranks[1]:.1f}"
    return Answer(QUESTIONS["collapse"], verdict, text + ".")


_ENDS = {
    "consensus": "One direction",
    "rotation": "One direction, which turns",
    "flip": "One direction, which flips",
    "bipartite": "Two opposite groups",
    "clusters": "A few groups",
    "none": "No consensus",
}


def _end(result: Simulation) -> Answer:
    out, p = result.outcome, result.outcome.predicted
    verdict = _ENDS[out.label]
    if p is not None and out.settled:
        agrees = p.label == out.label or (
            p.label == "none" and out.label not in ("consensus", "rotation", "flip")
        )
        verdict += ", as foretold" if agrees else ", not as foretold"
    elif not out.settled:
        verdict += f" so far (step {result.trajectory[-1]['step']})"
    told = outcome_sentence(result), too_short_sentence(result)
    return Answer(QUESTIONS["end"], verdict, " ".join(filter(None, told)))


def regime_runs(result: Spectrum) -> list[tuple[str, str]]:
    """Regimes that occur and their layers in words, with the stack where there are several."""
    groups = {f"{x.stack}{' cross' * (x.kind == 'cross')} " for x in result.layers}
    out = []
    for regime in dict.fromkeys(x.regime for x in result.layers):
        found: dict[str, list[int]] = {}
        for x in result.layers:
            if x.regime == regime:
                name = f"{x.stack}{' cross' * (x.kind == 'cross')} " if len(groups) > 1 else ""
                found.setdefault(name, []).append(x.layer)
        out.append((regime, "; ".join(name + layer_list(own) for name, own in found.items())))
    return out
