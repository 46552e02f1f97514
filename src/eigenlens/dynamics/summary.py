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
from eigenlens.dynamics.outcome import Outcome, Tolerance, classify
from eigenlens.dynamics.predict import Prediction
from eigenlens.dynamics.result import Observed, Share, Summary
from eigenlens.dynamics.run import Run, decay, first_for_good, floor_of, unit
from eigenlens.measure.significance import wilson

TOGETHER = ("consensus", "rotation", "flip")
"""Outcomes in which all tokens are one."""


def outcomes(run: Run, form: Form, tolerance: Tolerance) -> list[Outcome]:
    """The outcome of every start.

    Motion is judged on the later three quarters of the passes in which tokens were equal. What is
    far from its end and still on its way is not settled.
    """
    found = []
    for start in range(run.final.shape[0]):
        together = first_for_good(run.disagreement[:, start] <= tolerance.angle)
        since = run.at >= max(1, together if together is not None else run.at[-1])
        path, at = run.passes[since, start], run.at[since]
        path, at = path[len(path) // 4 :], at[len(at) // 4 :]
        time = np.log(at) if form == "stream" else at
        outcome = classify(unit(run.final[start]), path, time, tolerance)
        if outcome.label == "none" and run.movement.size:
            outcome = replace(
                outcome, settled=bool(run.movement[-1, start] <= 0.1 * tolerance.angle)
            )
        if _under_way(run, start, outcome, tolerance):
            outcome = replace(outcome, settled=False)
        found.append(outcome)
    return found


def _under_way(run: Run, start: int, outcome: Outcome, tolerance: Tolerance) -> bool:
    """Whether tokens still come together, or to the target, by a tenth in the later half."""
    together = outcome.label in TOGETHER
    kind = run.misalignment if together else run.disagreement
    last, middle = run.last_pass, run.last_pass // 2 // run.depth * run.depth
    now, before = float(kind[last, start]), float(kind[middle, start])
    far = now > (5 if together else 1) * tolerance.angle
    return far and abs(now - before) > 0.1 * before


def basins(found: list[Outcome]) -> tuple[Share, ...]:
    """How often each outcome was met, the most frequent first, with Wilson intervals (95 %)."""
    counts = Counter(outcome.label for outcome in found)
    total = len(found)
    shares = []
    for label, count in counts.most_common():
        interval = wilson(float(count), total)
        shares.append(Share(label, count, count / total, (interval.low, interval.high)))
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
    label = Counter(outcome.label for outcome in found).most_common(1)[0][0]
    mine = [i for i, outcome in enumerate(found) if outcome.label == label]
    first = found[mine[0]]
    reached = [_step_reached(run, i, label, tolerance) for i in mine]
    steps = [step for step in reached if step is not None]
    return Summary(
        label=label,
        groups=first.groups,
        step_reached=int(np.median(steps)) if 2 * len(steps) > len(mine) else None,
        settled=all(found[i].settled for i in mine),
        target=target.name,
        reached=target.nearest(run.closing[mine[0]], 5 * tolerance.angle),
        distance=float(np.median(np.arcsin(np.clip(run.misalignment[run.last_pass, mine], 0, 1)))),
        period=first.period,
        balanced=first.balanced,
        observed=_observed(run, _fitted(mine, label, form), found, form),
        predicted=predicted,
    )


def _fitted(mine: list[int], label: str, form: Form) -> list[int]:
    """Starts whose rates are fitted; a stream aligns whether its tokens are together yet or not."""
    return mine if label in TOGETHER or form == "stream" else []


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
    angles = [found[i].angle_per_step for i in starts if found[i].angle_per_step is not None]
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
