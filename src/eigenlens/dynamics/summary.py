"""From a recorded run to what happened: outcome, rates, basins, beside what was foretold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.dynamics.effective import Target
from eigenlens.dynamics.maps import Form
from eigenlens.dynamics.outcome import (
    REACHED,
    TOGETHER,
    UNSETTLED,
    Foretold,
    Outcome,
    Tolerance,
    classify,
    yet_to_turn,
)
from eigenlens.dynamics.predict import Prediction
from eigenlens.dynamics.result import Observed, Share, Summary
from eigenlens.dynamics.run import Run, decay, first_for_good, floor_of, unit
from eigenlens.measure.significance import wilson

_FEWEST = 16  # passes from which it can be told whether tokens that are not one have stopped
_LARGEST = 1e15  # steps above which none are named


def outcomes(
    run: Run,
    form: Form,
    tolerance: Tolerance,
    target: Target | None = None,
    predicted: Prediction | None = None,
) -> list[Outcome]:
    """The outcome of every start.

    Motion is judged on the later three quarters of the passes in which tokens were equal. What is
    far from its end and still on its way is not settled.
    """
    found = []
    rest = max(1e-12, 32 * run.noise)
    for start in range(run.final.shape[0]):
        together = first_for_good(run.disagreement[:, start] <= tolerance.angle)
        since = run.at >= max(1, together if together is not None else run.at[-1])
        path, at = run.passes[since, start], run.at[since]
        path, at = path[len(path) // 4 :], at[len(at) // 4 :]
        time = np.log(at) if form == "stream" else at
        foretold = _foretold(run, start, target, predicted)
        outcome = classify(unit(run.final[start]), path, time, tolerance, foretold, rest)
        if outcome.label not in TOGETHER:
            ahead = _tokens_yet_to_move(run, start, form, rest)
            still = ahead <= tolerance.angle and _keeps_its_groups(
                run, start, outcome, ahead, tolerance
            )
            outcome = replace(outcome, settled=still)
        if _under_way(run, start, outcome, tolerance):
            outcome = replace(outcome, settled=False)
        found.append(outcome)
    return found


def _foretold(
    run: Run, start: int, target: Target | None, predicted: Prediction | None
) -> Foretold | None:
    """The end that the spectrum foretells for one start, with the slowest rate that leads there."""
    rate = _rate(predicted)
    if predicted is None or rate is None or target is None or target.name not in ("v1", "plane"):
        return None
    return Foretold(predicted.label, rate, float(run.misalignment[run.last_pass, start]))


def _rate(predicted: Prediction | None) -> float | None:
    """By what the angle to the target falls per step, or per unit of log step, in logarithms."""
    if predicted is None or not predicted.stable:
        return None
    if predicted.exponent is not None:
        return -predicted.exponent
    factor = predicted.alignment_rate
    return None if factor is None else -math.log(factor) if factor else math.inf


def _keeps_its_groups(
    run: Run, start: int, outcome: Outcome, ahead: float, tolerance: Tolerance
) -> bool:
    """Whether tokens that may move by `ahead` each, foreseen roughly, would still look the same."""
    wider = replace(tolerance, angle=tolerance.angle + 4.0 * ahead)
    last = run.passes[-1:, start]
    return classify(unit(run.final[start]), last, run.at[-1:], wider).label == outcome.label


def _tokens_yet_to_move(run: Run, start: int, form: Form, rest: float) -> float:
    """The largest angle that a token has yet to move, up to its sign; infinite if that is open."""
    moved = run.movement[:, start]
    if len(moved) >= 4 and moved[-4:].max() <= rest:
        return 0.0
    if len(moved) < _FEWEST:
        return math.inf
    late = np.arange(len(moved) // 2, len(moved))
    ends = (late + 1.0) * run.depth
    passed = (
        np.log(ends / (ends - run.depth)) if form == "stream" else np.full(len(late), run.depth)
    )
    return yet_to_turn(2 * np.arcsin(np.clip(moved[late] / 2, 0, 1)), passed, rest)


def _under_way(run: Run, start: int, outcome: Outcome, tolerance: Tolerance) -> bool:
    """Whether tokens still come together, or to the target, by a tenth in the later half."""
    together = outcome.label in TOGETHER
    kind = run.misalignment if together else run.disagreement
    last, middle = run.last_pass, run.last_pass // 2 // run.depth * run.depth
    now, before = float(kind[last, start]), float(kind[middle, start])
    far = now > (5 if together else 1) * tolerance.angle
    return far and abs(now - before) > 0.1 * before


def basins(found: list[Outcome]) -> tuple[Share, ...]:
    """How often each outcome was met, the most frequent first, those not settled last.

    Shares are of all starts, with Wilson intervals (95 %). A start that has not settled may still
    end in any outcome: the upper end of an interval is that for all of these ending there.
    """
    counts = Counter(outcome.named for outcome in found)
    total, open_ = len(found), counts.pop(UNSETTLED, 0)
    shares = []
    for label, count in [*counts.most_common(), *([(UNSETTLED, open_)] if open_ else [])]:
        together = sum(o.named == label and o.label in TOGETHER for o in found)
        low = wilson(float(count), total).low
        high = wilson(float(count + open_ * (label != UNSETTLED)), total).high
        shares.append(Share(label, count, count / total, (low, high), together))
    return tuple(shares)


def summarise(
    run: Run,
    found: list[Outcome],
    target: Target,
    predicted: Prediction | None,
    form: Form,
    tolerance: Tolerance,
) -> Summary:
    """The outcome over all starts, its rates beside the predicted ones."""
    label = _most_frequent(found)
    mine = [i for i, outcome in enumerate(found) if outcome.named == label]
    first = found[mine[0]]
    reached = [_step_reached(run, i, found[i].label, tolerance) for i in mine]
    steps = [step for step in reached if step is not None]
    return Summary(
        label=label,
        groups=first.groups,
        step_reached=int(np.median(steps)) if 2 * len(steps) > len(mine) else None,
        settled=label != UNSETTLED,
        steps_to_settle=_steps_to_settle(run, found, predicted, tolerance),
        target=target.name,
        reached=target.nearest(run.closing[mine[0]], REACHED * tolerance.angle),
        distance=float(np.median(np.arcsin(np.clip(run.misalignment[run.last_pass, mine], 0, 1)))),
        period=first.period if first.settled else None,
        balanced=first.balanced,
        observed=_observed(run, _fitted(mine, found, form), found, form),
        predicted=predicted,
    )


def _most_frequent(found: list[Outcome]) -> str:
    """The label that most starts have; an outcome goes before those that have not settled."""
    counts = Counter(outcome.named for outcome in found)
    return max(counts, key=lambda label: (counts[label], label != UNSETTLED))


def _fitted(mine: list[int], found: list[Outcome], form: Form) -> list[int]:
    """Starts whose rates are fitted; a stream aligns whether its tokens are together yet or not."""
    return [i for i in mine if found[i].label in TOGETHER or form == "stream"]


def _steps_to_settle(
    run: Run,
    found: list[Outcome],
    predicted: Prediction | None,
    tolerance: Tolerance,
) -> float | None:
    """Steps after which all starts should have settled, by the predicted rates from here on.

    Tokens have to be one and in the target; a turn has to show half a circle from there on, in the
    later three quarters of what is judged.
    """
    rate = _rate(predicted)
    unsettled = [i for i, outcome in enumerate(found) if not outcome.settled]
    if not unsettled or predicted is None or rate is None or run.last_pass < 1:
        return None
    near = (REACHED if predicted.label == "rotation" else 1.0) * tolerance.angle
    closer = predicted.disagreement_rate
    together = -math.log(closer) if closer and predicted.exponent is None else math.inf
    half = 4.0 / 3.0 * math.pi / predicted.angle_per_step if predicted.angle_per_step else 0.0
    log_time = predicted.exponent is not None
    last = 0.0
    for i in unsettled:
        here = _within(run.misalignment[:, i], run.last_pass, near, rate, log_time)
        one = _within(run.disagreement[:, i], run.last_pass, tolerance.angle, together, log_time)
        begin = max(here, one, 1.0)
        # The time of a stream's turn is the logarithm of the step.
        last = max(last, begin * math.exp(min(half, 100.0)) if log_time else begin + half)
    whole = math.ceil(min(last, 2 * _LARGEST) / run.depth) * run.depth
    return float(max(whole, run.last_pass + run.depth)) if last <= _LARGEST else None


def _within(
    sines: Float[np.ndarray, "t"], now: int, near: float, rate: float, log_time: bool
) -> float:
    """The step from which an angle is below `near` for good: seen, or ahead at a rate.

    The tangent of the angle is what falls by the rate.
    """
    seen = first_for_good(sines[: now + 1] <= math.sin(near))
    if seen is not None:
        return float(seen)
    sine = min(float(sines[now]), 1.0 - 1e-9)
    ahead = max(0.0, math.log(sine / math.sqrt(1.0 - sine**2) / math.tan(near)) / rate)
    return now * math.exp(min(ahead, 100.0)) if log_time else now + ahead


def _step_reached(run: Run, start: int, label: str, tolerance: Tolerance) -> int | None:
    """The first step from which the outcome's own condition held for good.

    Equal tokens for consensus, rotation and flip; tokens that do not move for the others.
    """
    if label in TOGETHER:
        return first_for_good(run.disagreement[:, start] <= tolerance.angle)
    if label == "none":
        return None
    # The others stand still.
    still = first_for_good(run.movement[:, start] <= tolerance.angle)
    return None if still is None else (still + 1) * run.depth


def _observed(run: Run, starts: list[int], found: list[Outcome], form: Form) -> Observed:
    every = np.arange(len(run.disagreement))
    # Between the layers of a pass the angle to the target of the whole pass comes and goes.
    steps = every[:: run.depth]
    angles = [found[i].angle_per_step for i in starts if found[i].settled]
    angle, floor = _median(angles), floor_of(run.noise)
    if form == "stream":
        with np.errstate(divide="ignore"):
            time = np.log(steps)
        slopes = [decay(run.misalignment[steps, i], time, floor, top=0.3) for i in starts]
        return Observed(exponent=_median(slopes), angle_per_step=angle)
    apart = _median([decay(run.disagreement[:, i], every, floor) for i in starts])
    aligned = _median([decay(run.misalignment[steps, i], steps, floor) for i in starts])
    return Observed(
        disagreement_rate=None if apart is None else math.exp(apart),
        alignment_rate=None if aligned is None else math.exp(aligned),
        angle_per_step=angle,
    )


def _median(values: list[Any]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else None


def trajectory(run: Run, layers: Sequence[int]) -> tuple[dict[str, Any], ...]:
    """One record a step, means over the starts; `layers` are the numbers of those of a pass."""

    def mean(row: Float[np.ndarray, "s"]) -> float:
        return float(row.mean())

    start = {"step": 0, "layer": None, "gamma": None, "gain": None, "rho": None}
    records: list[dict[str, Any]] = [
        start
        | {
            "cosine": mean(run.cosine[0]),
            "disagreement": mean(run.disagreement[0]),
            "misalignment": mean(run.misalignment[0]),
        }
    ]
    for t in range(run.steps):
        records.append(
            {
                "step": t + 1,
                "layer": layers[t % len(layers)],
                "gamma": mean(run.after[t]),
                "gain": mean(run.after[t] - run.before[t]),
                "rho": mean(run.rising[t]),
                "cosine": mean(run.cosine[t + 1]),
                "disagreement": mean(run.disagreement[t + 1]),
                "misalignment": mean(run.misalignment[t + 1]),
            }
        )
    return tuple(records)
