"""How strong an edit should be: under a bound on the KL divergence, or for a wanted cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from eigenlens.errors import NumericsError, OptionError, UnreachableError
from eigenlens.steering.evaluate import Study
from eigenlens.steering.measures import Measure
from eigenlens.steering.rank_one import first_crossing

Try = Callable[[float], Measure]

REACH = 1e6
"""How far from the start a search goes, as a factor."""
CLOSE = 0.93
"""A KL above this share of the bound, and not above the bound, is near enough."""


@dataclass(frozen=True)
class Search:
    """A search over strengths.

    Attributes
    ----------
    chosen
        What was found.
    tried
        Everything that was measured, by rising strength.
    bounded
        Whether a strength was met that breaks the bound: else the effect levels off below it.
    """

    chosen: Measure
    tried: tuple[Measure, ...]
    bounded: bool


def kl_of(measure: Measure) -> float:
    """The KL of a measure; infinite where the model broke."""
    return measure.kl if measure.kl is not None and math.isfinite(measure.kl) else math.inf


def search(measure: Try, start: float, max_kl: float, *, target: bool, most: int = 14) -> Search:
    """The strength with the largest target probability among those with KL <= max_kl.

    From `start` the strength is doubled (or quartered) until the bound lies between two strengths;
    then it is narrowed down, since the KL grows about as a power of the strength and the target
    probability with it. Without a target the largest strength under the bound is taken.

    Parameters
    ----------
    measure
        Measures one strength.
    start
        A small positive strength.
    max_kl
        Bound, in nats per token.
    target
        Whether there are wanted tokens.
    most
        Measures at most.

    Raises
    ------
    NumericsError
        Every strength breaks the model.
    """
    tried: dict[float, Measure] = {}

    def kl(alpha: float) -> float:
        if alpha not in tried:
            tried[alpha] = attempt(measure, alpha)
        return kl_of(tried[alpha])

    low, high = 0.0, math.inf
    alpha = start
    while len(tried) < most:
        if kl(alpha) <= max_kl:
            low = alpha
            if not math.isinf(high) or alpha > start * REACH:
                break
            # The first steps are large where the KL is far below the bound (it grows as a square).
            gap = max_kl / max(kl(alpha), 1e-12)
            alpha *= min(max(math.sqrt(gap) * 1.1, 1.5), 8.0)
        else:
            high = alpha
            if low > 0 or alpha < start / REACH:
                break
            gap = kl(alpha) / max_kl
            alpha /= min(max(math.sqrt(gap) * 1.1, 1.5), 8.0) if math.isfinite(gap) else 8.0
    while low > 0 and math.isfinite(high) and len(tried) < most and kl(low) < CLOSE * max_kl:
        alpha = _between(low, kl(low), high, kl(high), max_kl)
        if kl(alpha) <= max_kl:
            low = alpha
        else:
            high = alpha
    below = [m for m in tried.values() if kl_of(m) <= max_kl]
    if not below:
        raise NumericsError(
            f"no strength has a KL below {max_kl}: the smallest tried, {min(tried):.3g}, has "
            f"{kl_of(tried[min(tried)]):.3g}"
        )
    best = max(
        below, key=lambda m: (m.target_probability or 0.0, m.strength) if target else m.strength
    )
    return Search(best, tuple(tried[a] for a in sorted(tried)), math.isfinite(high))


def _between(low: float, kl_low: float, high: float, kl_high: float, bound: float) -> float:
    """Where a power law through two points meets the bound, kept inside them."""
    a, b = math.log(low), math.log(high)
    share = 0.5
    if 0 < kl_low < kl_high < math.inf:
        # Aim a little below the bound, so that one try usually ends the search.
        aim = math.log(bound * (1 + CLOSE) / 2)
        share = (aim - math.log(kl_low)) / (math.log(kl_high) - math.log(kl_low))
    return math.exp(a + min(max(share, 0.1), 0.9) * (b - a))


def attempt(measure: Try, alpha: float) -> Measure:
    """A measure, or one without numbers where the strength breaks the model's arithmetic."""
    try:
        return measure(alpha)
    except NumericsError:
        return Measure(alpha, math.inf, math.inf, None, None, {})


def match_kl(measure: Try, start: float, kl: float, most: int = 8) -> Measure:
    """The strength of another push with (nearly) the same KL: by a power law through two points."""
    sign = math.copysign(1.0, start)
    tried = [attempt(measure, start)]
    while len(tried) < most:
        best = min(tried, key=lambda m: abs(math.log(max(kl_of(m), 1e-12) / kl)))
        if abs(math.log(max(kl_of(best), 1e-12) / kl)) < 0.03:
            return best
        below = [m for m in tried if kl_of(m) < kl]
        above = [m for m in tried if kl_of(m) >= kl]
        if below and above:
            a = max(below, key=lambda m: abs(m.strength))
            b = min(above, key=lambda m: abs(m.strength))
            share = _between(
                abs(a.strength), kl_of(a), abs(b.strength), kl_of(b), kl * 2 / (1 + CLOSE)
            )
            new = sign * share
        else:
            ratio = kl / max(kl_of(best), 1e-12)
            new = best.strength * min(max(math.sqrt(ratio), 0.1), 10.0)
        tried.append(attempt(measure, new))
    return min(tried, key=lambda m: abs(math.log(max(kl_of(m), 1e-12) / kl)))


def for_cosine(
    study: Study,
    w: Float[np.ndarray, "m"],
    written: Callable[[float], Float[np.ndarray, "d"]],
    cosine: float,
) -> float:
    """The smallest strength at which tokens other than the first have this mean signed cosine.

    Right after the sub-layer, from the unedited states alone: token i becomes
    ``y_i + (w.z_i) p``, p what is written times the layer's output scale; in post-norm models that
    goes through the norm first.

    Parameters
    ----------
    study
        Evaluation text that was read.
    w
        The probe.
    written
        What is written for a reading of 1, by the strength; at 0 its limit, which need not be 0.
    cosine
        Wanted, in (-1, 1).

    Raises
    ------
    OptionError
        A norm behind the output projection makes it level off, the edit reaches several calls of
        a shared layer, or none is needed, or the weakest does it.
    UnreachableError
        No strength reaches it.
    """
    stage = study.stage
    if stage.saturates:
        raise OptionError(
            "this model has a norm on the attention output, behind which strength levels off: a "
            "target cosine cannot be had; give --strength"
        )
    if stage.calls > 1 and not stage.last:
        raise OptionError(
            "an edit of all steps of a shared layer changes what later steps read: a target cosine "
            "has no closed form there; use --steps-edited last, or give --strength"
        )
    later = ~study.first
    readings = study.readings(w)[later]
    outputs, image = study.sums[later], study.image
    if not len(readings):
        raise OptionError("every evaluation prompt has one token: give longer ones")
    norm = stage.block_norm if stage.site == "ffn" else stage.place.norm_out

    def mean(alpha: float | None) -> float:
        after = outputs
        if alpha is not None:
            after = outputs + np.outer(readings, stage.scale * written(alpha))
        if stage.post and norm is not None:
            after = stage.through(norm, after)
        cosines = (after @ image) / np.linalg.norm(after, axis=1)
        return float(cosines.mean())

    scale = float(np.abs(readings).mean())
    start = float(np.linalg.norm(outputs, axis=1).mean()) / scale if scale > 0 else 0.0
    unedited, weakest = mean(None), mean(0.0)
    if unedited >= cosine:
        raise OptionError(
            f"the tokens have a mean cosine of {unedited:.3f} without any edit: give a larger "
            "target cosine, or --strength"
        )
    if weakest >= cosine:  # the probe placement, which takes F u away whatever the strength
        raise OptionError(
            f"the weakest edit gives a mean cosine of {weakest:.3f} already, for it takes away "
            "what the layer made of the direction: give a larger target cosine, or --strength"
        )
    found = first_crossing(mean, start, cosine, 1e6)
    if found is None:
        same = float(np.mean(readings > 0))
        if same == 1.0:
            most = max(mean(start * 10.0**power) for power in range(-2, 7))
            raise UnreachableError(
                f"no strength gives a mean cosine of {cosine}: all tokens go the wanted way and "
                f"it levels off at {most:.3f}; use a smaller --target-cosine"
            )
        raise UnreachableError(
            f"no strength gives a mean cosine of {cosine}: the probe reads {same:.2%} of the "
            "tokens with a positive sign, so that they split whatever the strength; use --probe "
            "calibrated, more --calibrate text of the same kind, or a smaller --target-cosine"
        )
    return found


def starting_strength(study: Study, w: Float[np.ndarray, "m"]) -> float:
    """A strength that moves tokens by a thirtieth of their length."""
    later = ~study.first if not study.first.all() else study.first
    moved = float(np.abs(study.readings(w)[later]).mean())
    size = float(np.median(np.linalg.norm(study.sums[later], axis=1)))
    if not moved > 0:
        raise NumericsError("the probe reads 0 from every token of the evaluation text")
    return size / moved / 30


def curve(
    measure: Try, chosen: float, tried: Sequence[Measure] = (), *, below: int = 3, above: int = 6
) -> tuple[Measure, ...]:
    """Measures at thirds of decades around a strength, from far too weak to far too strong.

    A strength that was measured already is not measured again.
    """
    known = {m.strength: m for m in tried}
    found = []
    for k in range(-below, above + 1):
        alpha = chosen * 10.0 ** (k / 3) if k else chosen
        found.append(known[alpha] if alpha in known else attempt(measure, alpha))
    return tuple(found)


@dataclass(frozen=True)
class Window:
    """Strengths that do something and do no harm.

    Attributes
    ----------
    low
        The smallest at which the wanted tokens are at least `FACTOR` times as probable.
    high
        The largest with a KL under the bound.
    """

    low: float
    high: float


FACTOR = 2.0
"""From this factor on the target probability counts as raised (or, suppressed, as lowered)."""


def useful_window(
    measures: Sequence[Measure], before: Measure, max_kl: float, *, down: bool
) -> Window | None:
    """The useful window of a curve; None where no strength is useful.

    Parameters
    ----------
    measures
        By strength, of one sign.
    before
        The unedited model.
    max_kl
        The bound.
    down
        Whether the wanted tokens are suppressed.
    """
    usual = before.target_probability
    ok = [m for m in measures if kl_of(m) <= max_kl]
    useful = [m for m in ok if usual is None or _changed(m.target_probability, usual, down)]
    if not useful:
        return None
    sizes = sorted(abs(m.strength) for m in useful)
    sign = -1.0 if useful[0].strength < 0 else 1.0
    return Window(sign * sizes[0], sign * sizes[-1])


def _changed(found: float | None, usual: float, down: bool) -> bool:
    if found is None:
        return False
    return found * FACTOR <= usual if down else found >= FACTOR * usual
