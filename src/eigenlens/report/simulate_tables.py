"""What `eigenlens simulate` prints: foretold beside seen, and one sentence of what happened."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.dynamics.outcome import LABELS, UNSETTLED
from eigenlens.dynamics.predict import Prediction
from eigenlens.dynamics.result import Share, Simulation
from eigenlens.report.model_words import SHORT, model_line
from eigenlens.report.tables import plain_table
from eigenlens.report.words import complex_text, count_text

_NOT = "not predicted"
_UNSEEN = "-"


def simulate_view(result: Simulation) -> RenderableType:
    """Everything that `eigenlens simulate` prints as a table."""
    parts: list[RenderableType] = [_heading(result), _rates(result), Text(outcome_sentence(result))]
    stability = _stability_sentence(result)
    if stability:
        parts.append(Text(stability))
    too_short = too_short_sentence(result)
    if too_short:
        parts.append(Text(too_short))
    if len(result.final) > 1:
        parts += [Text(), _basins(result)]
    parts.append(Text(_legend(result), style="dim"))
    return Group(*parts)


def _heading(result: Simulation) -> Text:
    m, o = result.model, result.options
    text = model_line(m, *SHORT)
    layers = o.get("layers") or range(m["n_layers"])
    shared = "one layer, again and again" if len(layers) == 1 else f"{len(layers)} layers in turn"
    starts = f"{o['starts']} starts of " if o["starts"] > 1 else ""
    tokens = f"{starts}{count_text(o['n_tokens'], 'token')}"
    origin = f" ({o['start']})" if o.get("start") else ""
    text.append(f"\n{_map_text(result)}, {o['mask']} mask; {shared}; {tokens}{origin}")
    return text


def _map_text(result: Simulation) -> str:
    """The map as a formula, with what N is."""
    o = result.options
    real = o.get("norm") == "real"
    stream = o["form"] == "stream"
    if o.get("ffn"):
        formula = "block(x)" if real else "h + block(N(h)) - N(h)" if stream else "N(block(x))"
    else:
        formula = "h + attn(N(h))" if stream else "N(x + attn(x))"
    norm = "the model's norms" if real else f"|N| = {o['radius']:.4g}"
    return f"{formula}, {norm}{', biases' if o.get('bias') else ''}"


def _rates(result: Simulation) -> Table:
    out = result.outcome
    seen = out.observed
    p = out.predicted or Prediction(_NOT, None, None, None, None, stable=False)
    table = plain_table([("", "left"), ("predicted", "right"), ("observed", "right")])
    table.add_row("outcome", p.label, out.label)
    table.add_row(f"ends in {_target_text(result)}", _yes(result), _distance(result))

    def row(name: str, foretold: float | None, found: float | None, digits: str) -> None:
        if foretold is None and found is None:
            return
        left = _NOT if foretold is None else format(foretold, digits)
        table.add_row(name, left, _UNSEEN if found is None else format(found, digits))

    if result.options["form"] == "stream":
        row("alignment exponent", p.exponent, seen.exponent, "+.3f")
        unit = "rad per log step"
    else:
        row("disagreement per step", p.disagreement_rate, seen.disagreement_rate, ".3f")
        row("alignment per step", p.alignment_rate, seen.alignment_rate, ".3f")
        unit = "rad per step"
    row(f"angle ({unit})", p.angle_per_step, seen.angle_per_step, ".3f")
    return table


def _target_text(result: Simulation) -> str:
    """``v1 of +0.341``, ``the plane of -0.133±2.169i``."""
    target = result.outcome.target
    lead = complex_text(result.eigenvalues[0])
    names = {
        "v1": f"v1 ({lead})",
        "plane": f"the plane of {lead}",
        "span": "the span of the tied leaders",
        "kernel": "the kernel",
    }
    return names[target]


def _yes(result: Simulation) -> str:
    p = result.outcome.predicted
    # Beside a distance that is still shrinking, a bare "yes" would read as a failed prediction.
    yes = "yes" if result.outcome.settled else "in the end"
    if result.outcome.target in ("span", "kernel"):
        return yes
    return _NOT if p is None else yes if p.stable else "no"


def _distance(result: Simulation) -> str:
    degrees = math.degrees(result.outcome.distance)
    shown = f"{degrees:.1f}" if degrees >= 0.1 else f"{degrees:.1g}"
    return f"{shown} degrees off{'' if result.outcome.settled else ' so far'}"


def outcome_sentence(result: Simulation) -> str:
    """What happened, and whether it was foretold, in one sentence."""
    out = result.outcome
    since = "" if out.step_reached is None else f" from step {out.step_reached} on"
    text = _HAPPENED[out.label](result, since)
    starts = len(result.final)
    if starts > 1:
        share = next(b for b in result.basins if b.label == out.label)
        text = f"In {share.count} of {starts} starts {text[:1].lower()}{text[1:]}"
    return f"{text}; {_expected(result)}."


def unsettled_sentence(result: Simulation) -> str:
    """How many starts have no outcome yet, and how many steps would settle them where foretold."""
    open_ = _open(result)
    if not open_:
        return ""
    steps, starts = result.trajectory[-1]["step"], len(result.final)
    needed = result.outcome.steps_to_settle
    p = result.outcome.predicted
    expected = "how many steps would settle {} is not foretold"
    if p is not None and p.stable:
        size = "more than 1e15" if needed is None else f"about {_rounded(SPARE * needed)}"
        expected = f"{_rates_text(p)}, {size} steps would settle {{}}"
    if starts == 1:
        return f"Not settled, so no outcome is named: {expected.format('it')}."
    verb = "has" if open_ == 1 else "have"
    return (
        f"{open_} of {starts} starts {verb} not settled after {count_text(steps, 'step')}, so "
        f"that no outcome is named: {expected.format('it' if open_ == 1 else 'them')}."
    )


SPARE = 1.1
"""Times the steps foretold that are told: rates seen from far away promise a little too much."""


def _open(result: Simulation) -> int:
    return sum(b.count for b in result.basins if b.label == UNSETTLED)


def _rates_text(p: Prediction) -> str:
    """``at the predicted 0.984 a step``: what an expected number of steps follows from."""
    if p.exponent is not None:
        return f"at the predicted exponent of {p.exponent:+.3f}"
    if p.label == "rotation" and p.angle_per_step:
        angle = math.degrees(p.angle_per_step)
        return f"at the predicted {p.alignment_rate:.3f} and {angle:.2g} degrees a step"
    return f"at the predicted {p.alignment_rate:.3f} a step"


def _rounded(steps: float) -> str:
    """Up to two digits, so that what is told is not less than what was computed."""
    unit = 10 ** max(math.floor(math.log10(max(steps, 1.0))) - 1, 0)
    size = math.ceil(steps / unit) * unit
    return f"{size:,}" if size < 1e6 else f"{size:.1e}".replace("e+0", "e").replace("e+", "e")


_ARRIVED = math.radians(1.0)
_TOO_SHORT = 10  # times the steps taken, beyond which a run says nothing of its end


def log_steps_needed(result: Simulation) -> float | None:
    """Decimal logarithm of the steps after which a stream would be 1 degree from its target.

    The angle falls as ``t^exponent``, so from where it is now that takes
    ``t (angle / 1 degree)^(1/|exponent|)`` steps, by the predicted exponent. None where the run
    settled, no exponent was predicted, or the target is not attracting.
    """
    out = result.outcome
    exponent = None if out.predicted is None else out.predicted.exponent
    if out.settled or not exponent or exponent > 0 or out.distance <= _ARRIVED:
        return None
    ahead = math.log10(out.distance / _ARRIVED) / abs(exponent)
    return math.log10(max(result.trajectory[-1]["step"], 1)) + ahead


def too_short_sentence(result: Simulation) -> str:
    """How many steps the prediction would need: to test it at all, or to settle every start."""
    needed = log_steps_needed(result)
    steps = result.trajectory[-1]["step"]
    if needed is None or needed <= math.log10(_TOO_SHORT * max(steps, 1)):
        return unsettled_sentence(result)
    size = f"{10**needed:.0e}".replace("e+0", "e").replace("e+", "e") if needed < 300 else "1e300"
    return (
        f"By the predicted exponent {'about' if needed < 300 else 'more than'} {size} steps would "
        f"be needed to come within 1 degree of {_target_text(result)}; this run of "
        f"{count_text(steps, 'step')} cannot test the prediction."
    )


def _consensus(result: Simulation, since: str) -> str:
    return f"All tokens became one direction{since}, which stands still{_where(result)}"


def _flip(result: Simulation, since: str) -> str:
    return f"All tokens became one direction{since}, which changes sign every step{_where(result)}"


def _rotation(result: Simulation, since: str) -> str:
    out, turn = result.outcome, ""
    if out.observed.angle_per_step is not None:
        degrees = math.degrees(out.observed.angle_per_step)
        size = f"{degrees:.1f}" if degrees >= 1 else f"{degrees:.2g}"
        per = "per unit of log step" if result.options["form"] == "stream" else "a step"
        turn = f" by {size} degrees {per}"
    closes = f", back after {out.period} steps" if out.period else ""
    return f"All tokens became one direction{since}, which turns{turn}{_where(result)}{closes}"


def _bipartite(result: Simulation, since: str) -> str:
    a, b = result.outcome.groups
    return f"Tokens split in two groups{since} that point in opposite directions ({a} and {b})"


def _clusters(result: Simulation, since: str) -> str:
    groups = result.outcome.groups
    sizes = ", ".join(map(str, groups[:8])) + (", ..." if len(groups) > 8 else "")
    return f"Tokens gathered in {len(groups)} groups{since} (of {sizes})"


def _unsettled(result: Simulation, since: str) -> str:
    """What it looks like so far, without a name for it."""
    share = next(b for b in result.basins if b.label == UNSETTLED)
    if 2 * share.together > share.count:
        steps = count_text(result.trajectory[-1]["step"], "step")
        whose = "" if share.together == share.count else f" (in {share.together} of them)"
        return f"All tokens became one direction{since}{whose}, and still moved after {steps}"
    told = _none(result, since)
    steps = count_text(result.trajectory[-1]["step"], "step")
    return f"{told}, and still moved" + (f" after {steps}" if steps not in told else "")


def _none(result: Simulation, since: str) -> str:
    """Nothing has happened, so that `since`, which all of `_HAPPENED` are told, is of no use."""
    if result.outcome.balanced:
        return "Tokens spread out until their directions sum to nearly 0"
    cosine = result.trajectory[-1]["cosine"]
    angle = result.options["angle_tolerance"]
    steps = count_text(result.trajectory[-1]["step"], "step")
    return (
        f"Tokens had not become one direction after {steps} (mean cosine "
        f"{_cosine(1 - cosine)}; they count as one within {angle:g} rad, a cosine of "
        f"{_cosine(2 * math.sin(angle / 2) ** 2)})"
    )


def _cosine(below: float) -> str:
    """A cosine that is `below` one; of equal tokens it is 1 up to rounding, on either side."""
    if below > 0.0005:
        return f"{1 - below:.3f}"
    return f"1 - {max(below, sys.float_info.epsilon):.1g}"


_HAPPENED: dict[str, Callable[[Simulation, str], str]] = {
    "consensus": _consensus,
    "rotation": _rotation,
    "flip": _flip,
    "bipartite": _bipartite,
    "clusters": _clusters,
    "none": _none,
    UNSETTLED: _unsettled,
}


def _where(result: Simulation) -> str:
    out = result.outcome
    if out.reached is None:
        return ""
    if out.reached == out.target:
        return f" {'along' if out.target == 'v1' else 'in'} {_target_text(result)}"
    return f" in {out.reached}, not in the leading one"


def as_foretold(result: Simulation) -> bool:
    """Whether what happened is what was predicted, with the target that was predicted."""
    out, p = result.outcome, result.outcome.predicted
    if p is None:
        return False
    if p.label == "none":
        return out.label not in ("consensus", "rotation", "flip")
    return p.label == out.label and out.reached == out.target


def _expected(result: Simulation) -> str:
    out, p = result.outcome, result.outcome.predicted
    if p is None:
        if out.target in ("span", "kernel") and out.reached == out.target:
            return "that they end there was foretold, the rates were not"
        return "nothing was foretold here"
    if p.label == "none":
        return "no consensus was foretold" + ("" if as_foretold(result) else ", so this was not")
    if as_foretold(result):
        return "this was foretold"
    end = "is, in the end," if not out.settled else "was"
    return (
        f"foretold {end} {p.label} {'along' if out.target == 'v1' else 'in'} {_target_text(result)}"
    )


def _stability_sentence(result: Simulation) -> str:
    if not result.stability:
        return ""
    top = result.stability[0]
    verdict = "stable" if top < 1 else "not stable"
    return f"A small disturbance of this state changes by {top:.4f} a pass: it is {verdict}."


def _basins(result: Simulation) -> Table:
    table = plain_table(
        [
            ("outcome", "left"),
            ("starts", "right"),
            ("share", "right"),
            ("95 % interval", "right"),
            ("meaning", "left"),
        ]
    )
    for b in result.basins:
        low, high = b.interval
        interval = "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        table.add_row(b.label, str(b.count), f"{b.share:.3f}", interval, _meaning(result, b))
    return table


def _meaning(result: Simulation, basin: Share) -> str:
    if basin.label != UNSETTLED:
        return LABELS[basin.label]
    one = "all" if basin.together == basin.count else str(basin.together)
    steps = count_text(result.trajectory[-1]["step"], "step")
    return f"still moved after {steps}; tokens are one in {one}"


def _legend(result: Simulation) -> str:
    stream = result.options["form"] == "stream"
    rate = (
        "alignment exponent: the angle to the target shrinks as step ^ exponent"
        if stream
        else "disagreement, alignment: factor a step on the tokens' differences and on their "
        "angle to the target"
    )
    angle = ", angle: turn of the common direction" if "rotation" in _labels(result) else ""
    several = len(result.options.get("layers") or range(result.model["n_layers"])) > 1
    passed = "; the eigenvalue: of the matrix that a pass through all layers stands for"
    unseen = "; -: not seen (too short, or another outcome)"
    return f"{rate}{angle}{passed * several}{unseen}{_shares(result)}"


def _shares(result: Simulation) -> str:
    """What a share is of, where there are shares."""
    starts = len(result.final)
    if starts < 2:
        return ""
    if not _open(result):
        return f"; share, interval: of all {starts} starts"
    return (
        f"; share: of all {starts} starts, settled or not; interval: its upper end is for all "
        "unsettled starts ending so"
    )


def _labels(result: Simulation) -> set[str]:
    p = result.outcome.predicted
    return {result.outcome.label} | ({p.label} if p is not None else set())
