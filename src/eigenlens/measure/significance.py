"""How sure a mean over prompts is: sign test, ranks, Holm, Wilson, Spearman, and all in one.

Tokens of one prompt depend on each other, so prompts are what is resampled and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError, ShapeError
from eigenlens.measure.bootstrap import (
    MIN_PROMPTS,
    Interval,
    check_level,
    cluster_intervals,
    too_few,
)
from eigenlens.measure.sums import AlignmentSums

Alternative = Literal["two-sided", "greater", "less"]
ALTERNATIVES = ("two-sided", "greater", "less")


@dataclass(frozen=True)
class PValue:
    """A p-value with its alternative, or None and the reason."""

    value: float | None
    alternative: Alternative = "two-sided"
    warning: str | None = None


@dataclass(frozen=True)
class SignTest:
    """Result of a sign test: how many differences are above, below and at zero.

    Attributes
    ----------
    positive, negative, ties
        Counts; ties are dropped from the test.
    p_value
        Exact binomial p, or None with a warning.
    """

    positive: int
    negative: int
    ties: int
    p_value: float | None
    alternative: Alternative = "two-sided"
    warning: str | None = None


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation with its interval.

    Attributes
    ----------
    r
        In [-1, 1]; None where a variable is constant or pairs are too few.
    interval
        Confidence interval of r.
    n, dropped
        Pairs used, and pairs left out because a value was missing.
    """

    r: float | None
    interval: Interval
    n: int
    dropped: int


@dataclass(frozen=True)
class Summary:
    """What `AlignmentSums` say about one target, with intervals over prompts.

    `p_half` is the two-sided sign test of each prompt's rho against 1/2.
    """

    n_tokens: int
    n_prompts: int
    gamma: float
    gain: float
    signed_gain: float | None
    rho: float
    gamma_ci: Interval
    gain_ci: Interval
    signed_gain_ci: Interval | None
    rho_ci: Interval
    p_half: SignTest


def _check_alternative(alternative: str) -> None:
    if alternative not in ALTERNATIVES:
        raise OptionError(f"alternative {alternative!r}: use one of {', '.join(ALTERNATIVES)}")


def binomial_p(successes: int, trials: int, alternative: Alternative = "two-sided") -> float:
    """Exact p of `successes` in `trials` fair coin throws; two-sided: twice the smaller tail.

    Raises
    ------
    OptionError
        An unknown alternative, or counts that are no counts.
    """
    from scipy.special import bdtr

    _check_alternative(alternative)
    if not 0 <= successes <= trials:
        raise OptionError(f"{successes} of {trials}: successes must be between 0 and the trials")
    if not trials:
        return 1.0
    at_most = float(bdtr(successes, trials, 0.5))
    at_least = float(bdtr(trials - successes, trials, 0.5))  # the coin is fair: the mirrored tail
    if alternative == "greater":
        return min(1.0, at_least)
    if alternative == "less":
        return min(1.0, at_most)
    return min(1.0, 2 * min(at_most, at_least))


def sign_test(
    differences: Float[np.ndarray, "p"],
    *,
    alternative: Alternative = "two-sided",
    minimum: int = MIN_PROMPTS,
) -> SignTest:
    """Exact sign test over prompts: the median difference is zero under its hypothesis.

    Ties (exactly zero) are dropped, as is usual, and counted in the result. NaN, a prompt without
    tokens, is no prompt.

    Parameters
    ----------
    differences
        One number a prompt: its rho minus 1/2, or its mean gain.
    alternative
        ``greater``: more often above zero than below; ``less``; or either.
    minimum
        Fewer prompts than this give no p.

    Raises
    ------
    OptionError
        An unknown alternative.
    """
    _check_alternative(alternative)
    known = differences[~np.isnan(differences)]
    positive, negative = int((known > 0).sum()), int((known < 0).sum())
    ties = int(known.size) - positive - negative
    warning = too_few(int(known.size), minimum)
    if warning:
        return SignTest(positive, negative, ties, None, alternative, warning)
    if ties:
        warning = f"{ties} of {known.size} prompts are ties and were dropped from the sign test"
    p = binomial_p(positive, positive + negative, alternative)
    return SignTest(positive, negative, ties, p, alternative, warning)


def rank_p_value(
    observed: float,
    null: Float[np.ndarray, "m"],
    *,
    alternative: Alternative = "two-sided",
    n_prompts: int | None = None,
    minimum: int = MIN_PROMPTS,
) -> PValue:
    """Rank of `observed` among m draws of a null: ``(r + 1) / (m + 1)``.

    r counts draws at least as extreme, equal ones included, so p is never 0 (Davison and Hinkley
    1997, 4.2). ``greater``: draws >= observed; ``less``: draws <= observed; ``two-sided``: twice
    the smaller of the two, at most 1.

    Parameters
    ----------
    observed, null
        The measure, and the same measure of each random subspace.
    alternative
        Which side counts as extreme.
    n_prompts, minimum
        How many prompts the observed value rests on; fewer than `minimum` give None.

    Raises
    ------
    OptionError
        An unknown alternative.
    ShapeError
        The null is empty or not finite.
    """
    _check_alternative(alternative)
    if not null.size or not np.isfinite(null).all():
        raise ShapeError("a null distribution must have at least one draw, all finite")
    warning = None if n_prompts is None else too_few(n_prompts, minimum)
    if warning is None and not math.isfinite(observed):
        warning = "the observed value is not a number, so it has no rank among the null"
    if warning:
        return PValue(None, alternative, warning)
    above = (int((null >= observed).sum()) + 1) / (null.size + 1)
    below = (int((null <= observed).sum()) + 1) / (null.size + 1)
    value = {"greater": above, "less": below, "two-sided": min(1.0, 2 * min(above, below))}
    return PValue(value[alternative], alternative)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p-values, in the given order (Holm 1979).

    A None, a layer without a p-value, stays None and is no test.

    Raises
    ------
    OptionError
        A p-value outside [0, 1].

    Examples
    --------
    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    tested = [(p, i) for i, p in enumerate(p_values) if p is not None]
    bad = [p for p, _ in tested if not 0 <= p <= 1]
    if bad:
        raise OptionError(f"p-value {bad[0]}: p-values lie between 0 and 1")
    out: list[float | None] = [None] * len(p_values)
    running = 0.0
    for place, (p, i) in enumerate(sorted(tested)):
        running = max(running, min(1.0, (len(tested) - place) * p))
        out[i] = running
    return out


def _normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + check_level(level)) / 2))


def wilson(successes: float, trials: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927); halves, from ties, are allowed.

    For independent trials only, such as starts of a simulation: tokens of one prompt are not.

    Raises
    ------
    OptionError
        Successes outside [0, trials], or a level outside (0, 1).

    Examples
    --------
    >>> i = wilson(9.0, 10)
    >>> round(i.low, 3), round(i.high, 3)
    (0.596, 0.982)
    """
    z = _normal_quantile(level)
    if not 0 <= successes <= trials:
        raise OptionError(f"{successes} of {trials}: successes must be between 0 and the trials")
    if not trials:
        return Interval(None, None, level, "no trials, so no interval of their share")
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return Interval(max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale), level)


def ranks(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Ranks from 1, tied values sharing the mean of their ranks."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[where.ravel()])


def spearman(
    x: Sequence[float | None], y: Sequence[float | None], level: float = 0.95
) -> Correlation:
    """Spearman's rank correlation, as between the gain and the gap of layers.

    The interval is Fisher's, ``tanh(atanh(r) +/- z sqrt((1 + r^2/2) / (n - 3)))``, with the
    variance of Bonett and Wright (2000, Psychometrika 65, 23-28). It takes pairs as independent,
    which layers of one model are only roughly, and is rough below 10 pairs, which is said.

    Parameters
    ----------
    x, y
        Paired values; a pair with a None or NaN (a layer whose gap is null) is left out.
    level
        Confidence level.

    Raises
    ------
    ShapeError
        Different lengths.
    OptionError
        A level outside (0, 1).
    """
    z = _normal_quantile(level)
    if len(x) != len(y):
        raise ShapeError(f"{len(x)} and {len(y)} values cannot be paired; give as many of both")
    a, b = (np.array([np.nan if v is None else v for v in w], dtype=np.float64) for w in (x, y))
    known = ~(np.isnan(a) | np.isnan(b))
    n = int(np.count_nonzero(known))
    dropped = len(x) - n

    def none(r: float | None, why: str) -> Correlation:
        return Correlation(r, Interval(None, None, level, why), n, dropped)

    if n < 2:
        verb = "pair is" if n == 1 else "pairs are"
        return none(None, f"{n} {verb} too few for a rank correlation")
    ra, rb = (ranks(v[known]) - (n + 1) / 2 for v in (a, b))
    spread = math.sqrt(float(ra @ ra) * float(rb @ rb))
    if not spread:
        return none(None, "one of the two quantities is constant, so there is no correlation")
    r = max(-1.0, min(1.0, float(ra @ rb) / spread))
    if n < 4:
        return none(r, f"{n} pairs are too few for an interval of a rank correlation (at least 4)")
    if abs(r) > 1 - 1e-12:
        return none(math.copysign(1.0, r), "the ranks agree fully, which leaves no interval")
    half = z * math.sqrt((1 + r * r / 2) / (n - 3))
    warning = f"the interval of a rank correlation is rough for {n} pairs" if n < 10 else None
    low, high = math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
    return Correlation(r, Interval(low, high, level, warning), n, dropped)


def summarise(
    sums: AlignmentSums,
    target: int = 0,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    minimum: int = MIN_PROMPTS,
) -> Summary:
    """Means, intervals and sign test of one target of `sums`; all share the drawn prompts.

    Raises
    ------
    OptionError
        As `cluster_intervals`.
    """
    signed = sums.signed_gains
    columns = [sums.after, sums.gains, sums.wins, *([] if signed is None else [signed])]
    table = np.stack([c[:, target] for c in columns], axis=1)
    found = cluster_intervals(
        table, sums.counts, level=level, resamples=resamples, seed=seed, minimum=minimum
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        share = sums.wins[:, target] / sums.counts
    signed_mean = sums.signed_gain()
    return Summary(
        n_tokens=sums.n_tokens,
        n_prompts=sums.n_prompts,
        gamma=float(sums.gamma()[target]),
        gain=float(sums.gain()[target]),
        signed_gain=None if signed_mean is None else float(signed_mean[target]),
        rho=float(sums.rho()[target]),
        gamma_ci=found[0],
        gain_ci=found[1],
        signed_gain_ci=found[3] if signed is not None else None,
        rho_ci=found[2],
        p_half=sign_test(share - 0.5, minimum=minimum),
    )
