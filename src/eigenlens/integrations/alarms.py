"""When to say that collapse is coming: two statistics of the readings, and what is not finite.

Growth. Under a constant learning rate the weights move at most in proportion to the steps, so W_O
and W_V each grow at most like s, and F = W_O W_V at most like s^2: over a doubling of the step
count log |F|_2 rises by at most 2 ln 2, and in trainings that settle by far less. Growth that goes
on faster than s^3 for a whole doubling is exponential or driven by a learning rate that still
rises; it ends in a state that attention has taken over. The statistic needs no unit of its own:
neither the size of the model nor that of the weights enters.

Tokens. The states of the probe's tokens are compared with those of the same training before,
between a quarter and three quarters of its steps so far, by robust z-scores: distance from the
median, in units of the noise of single readings (median absolute second difference). A least
effect stands beside them, since a quiet training has tiny deviations.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from eigenlens.errors import OptionError

Kind = Literal["growth", "tokens", "not_finite"]
KINDS: tuple[Kind, ...] = ("growth", "tokens", "not_finite")

TOKEN_MEASURES: dict[str, int] = {"rank_residual": -1, "cosine": 1, "effective_rank": -1}
"""The collapse measures that are judged, and which way they go when tokens become one."""


@dataclass(frozen=True)
class Alarm:
    """One warning of a watch.

    Attributes
    ----------
    step
        At which step it was given.
    kind
        ``growth`` (F grows without settling: collapse or divergence is coming), ``tokens`` (tokens
        have moved towards one another far beyond this training's own past) or ``not_finite``.
    where
        The layer, ``layer_3``; the tensor or the loss for ``not_finite``.
    value, threshold
        The statistic and its limit; None for ``not_finite``.
    message
        One sentence.
    """

    step: int
    kind: Kind
    where: str
    value: float | None
    threshold: float | None
    message: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """Where the alarms lie; the defaults were chosen on trainings that no test uses.

    Attributes
    ----------
    growth
        Alarm where log |F|_2 of a layer rises by more than this over a doubling of the steps
        (2.08 = ln 8, growth like s^3).
    growth_readings
        Readings that the doubling has to span, at least.
    growth_confirm
        Readings in a row that have to say so.
    z
        Robust z-score from which a token measure counts as outside of its own past.
    effect
        And the least change: of log rank residual and log effective rank, 0.3 is a quarter less.
    cosine_effect
        The same of the mean cosine.
    token_readings
        Past readings that are needed for a comparison.
    quiet
        Readings without cause after which an alarm of the same kind can be given again.
    """

    growth: float = math.log(8)
    growth_readings: int = 3
    growth_confirm: int = 1
    z: float = 6.0
    effect: float = 0.3
    cosine_effect: float = 0.12
    token_readings: int = 5
    quiet: int = 5

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not value > 0:
                raise OptionError(f"limit {name} is {value}: it must be above 0")


def growth(steps: Sequence[int], sizes: Sequence[float], least: int = 3) -> float | None:
    """How far log size rose over the last doubling of the step count; None where that is unknown.

    Parameters
    ----------
    steps
        Steps of the readings since the watch began, ascending.
    sizes
        |F|_2 at each.
    least
        Readings behind the first one that the doubling has to hold.
    """
    now = steps[-1]
    start = bisect_right(steps, now / 2) - 1
    if now <= 0 or start < 0 or len(steps) - 1 - start < least or not sizes[start] > 0:
        return None
    # Where no reading lies at the half, the span is longer than a doubling: scaled to one.
    octaves = math.log2(now / steps[start]) if steps[start] > 0 else math.inf
    rise = math.log(sizes[-1] / sizes[start]) if sizes[-1] > 0 else -math.inf
    return rise / octaves if math.isfinite(octaves) else None


def departure(
    steps: Sequence[int], rows: Sequence[Mapping[str, float]], limits: Limits
) -> float | None:
    """How far the tokens have come together, beside their own past; from 1 on it is an alarm.

    For each measure the smaller of (z-score / limit) and (change / least effect); of the three
    measures the second largest, so that two have to agree. None with too short a past, or where
    a measure is not defined.
    """
    now = steps[-1]
    past = [row for s, row in zip(steps[:-1], rows, strict=False) if now / 4 <= s <= 0.75 * now]
    if len(past) < limits.token_readings:
        return None
    scores = []
    for name, sign in TOKEN_MEASURES.items():
        scale = float if name == "cosine" else _log
        effect = limits.cosine_effect if name == "cosine" else limits.effect
        values = np.array([scale(row.get(name, math.nan)) for row in past])
        value = scale(rows[-1].get(name, math.nan))
        if not (np.isfinite(values).all() and math.isfinite(value)):
            return None
        middle = float(np.median(values))
        # From second differences, so that a slow way to collapse is no noise of its own.
        bends = float(np.median(np.abs(np.diff(values, 2))))
        spread = 1.4826 * bends / math.sqrt(6) + 0.01
        change = sign * (value - middle)
        scores.append(min(change / spread / limits.z, change / effect))
    return sorted(scores)[-2]


def _log(x: float) -> float:
    return math.log(x) if x > 0 else (-50.0 if x == 0 else math.nan)


class Detector:
    """Readings in, alarms out; plain numbers only."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._silent: dict[Kind, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._first: int | None = None
        self._steps: list[int] = []
        self._sizes: dict[str, list[float]] = {}
        self._tokens: dict[str, tuple[list[int], list[Mapping[str, float]]]] = {}
        self._run = 0
        self._last = -1

    def add(
        self,
        step: int,
        sizes: Mapping[str, float],
        tokens: Mapping[str, Mapping[str, float]] | None = None,
    ) -> list[Alarm]:
        """One reading: |F|_2 by layer, and the token measures by depth.

        Steps that go back begin another training: what was read before is forgotten.
        """
        if step <= self._last:
            self._begin()
        self._last = step
        if self._first is None:
            self._first = step
        since = step - self._first
        found: list[Alarm | None] = []
        if sizes:
            self._steps.append(since)
            for name in {**self._sizes, **sizes}:  # one that is missing this time keeps its place
                series = self._sizes.setdefault(name, [math.nan] * (len(self._steps) - 1))
                series.append(sizes.get(name, math.nan))
            found.append(self._growth(step))
        if tokens:
            for name, row in tokens.items():
                steps, rows = self._tokens.setdefault(name, ([], []))
                steps.append(since)
                rows.append(row)
            found.append(self._departure(step))
        return [alarm for alarm in found if alarm is not None]

    def not_finite(self, step: int, where: str, what: str) -> list[Alarm]:
        """An alarm for weights, states or a loss that are NaN or infinite."""
        alarm = Alarm(step, "not_finite", where, None, None, what)
        return [alarm] if self._may("not_finite", cause=True) else []

    def _may(self, kind: Kind, *, cause: bool) -> bool:
        """Whether an alarm of this kind is news: the last one is over, or there was none."""
        before = self._silent.get(kind, self.limits.quiet)
        self._silent[kind] = 0 if cause else before + 1
        return cause and before >= self.limits.quiet

    def _growth(self, step: int) -> Alarm | None:
        limits = self.limits
        rates = {
            name: growth(self._steps, sizes, limits.growth_readings)
            for name, sizes in self._sizes.items()
        }
        known = {name: r for name, r in rates.items() if r is not None and math.isfinite(r)}
        if not known:
            return None
        where = max(known, key=lambda name: known[name])
        over = known[where] > limits.growth
        self._run = self._run + 1 if over else 0
        if not self._may("growth", cause=self._run >= limits.growth_confirm):
            return None
        return Alarm(
            step,
            "growth",
            where,
            known[where],
            limits.growth,
            f"{where}: |F| of W_O W_V grew by a factor {math.exp(known[where]):.3g} over the last "
            f"doubling of the steps (limit {math.exp(limits.growth):.3g}) and does not settle: "
            "collapse is coming; lower the learning rate or find what drives this layer",
        )

    def _departure(self, step: int) -> Alarm | None:
        found = {name: departure(*past, self.limits) for name, past in self._tokens.items()}
        known = {name: value for name, value in found.items() if value is not None}
        if not known:
            return None
        where = max(known, key=lambda name: known[name])
        if not self._may("tokens", cause=known[where] >= 1):
            return None
        row = self._tokens[where][1][-1]
        return Alarm(
            step,
            "tokens",
            where,
            known[where],
            1.0,
            f"{where}: the probe's tokens are becoming one, far outside of this training's own "
            f"past (mean cosine {row['cosine']:.3g}, rank residual {row['rank_residual']:.3g}, "
            f"effective rank {row['effective_rank']:.3g})",
        )
