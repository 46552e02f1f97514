"""How a count becomes a verdict: one rule for layers and one for starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eigenlens.measure.significance import wilson
from eigenlens.shown.words import count_text

VERDICTS = {
    "holds": "the interval lies on the claim's side",
    "fails": "the interval lies on the other side",
    "undecided": "the interval lies on both sides",
    "not run": "the model, or what the claim needs, cannot be had; the reason is given",
}


@dataclass(frozen=True)
class Finding:
    """What was measured for a claim on a model.

    Attributes
    ----------
    verdict
        A key of `VERDICTS`.
    measured
        In words and numbers.
    value
        The number that the interval is of; None where the claim has none.
    interval
        The range that the verdict follows from; None where the measurement has no sampling error,
        and where nothing was run.
    details
        Further numbers, for scripts.
    """

    verdict: str
    measured: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    details: dict[str, Any] = field(default_factory=dict)


def side(low: float, high: float, limit: float) -> str:
    """``holds`` where the interval is above the limit, ``fails`` where it is not above anywhere."""
    return "holds" if low > limit else "fails" if high <= limit else "undecided"


def most_layers(
    intervals: Sequence[tuple[float | None, float | None] | None],
    limits: Sequence[float],
    words: str,
    values: Sequence[float | None],
) -> Finding:
    """Whether most layers lie above their limit, each judged by its own interval.

    The interval of the share reaches from the layers that are surely above to those that are not
    surely below, so a layer whose interval holds the limit counts for neither side.
    """
    n = len(intervals)
    known = [
        None if i is None or None in i else (float(i[0] or 0), float(i[1] or 0)) for i in intervals
    ]
    pairs = list(zip(known, limits, strict=True))
    above = sum(i is not None and i[0] > limit for i, limit in pairs)
    below = sum(i is not None and i[1] < limit for i, limit in pairs)
    low, high = above / n, (n - below) / n
    told = f"{words} in {above} of {count_text(n, 'layer')}, below in {below}"
    shown = [v for v in values if v is not None]
    details = {"layers": n, "above": above, "below": below, "values": list(values)}
    if len(shown) == n:
        told += f"; {min(shown):+.3g} to {max(shown):+.3g}"
    return Finding(side(low, high, 0.5), told, above / n, (low, high), details)


def starts_between(count: int, most: int, n: int) -> tuple[float, float]:
    """Wilson's interval of a share of starts that lies between two counts."""
    low, high = wilson(float(count), n).low, wilson(float(most), n).high
    return float(low or 0.0), float(1.0 if high is None else high)


def most_starts(count: int, n: int, words: str, limit: float = 0.5, unsettled: int = 0) -> Finding:
    """Whether more than `limit` of the starts end as claimed; Wilson's interval.

    Of `unsettled` further starts it is not known, so the interval reaches to all of them doing so.
    """
    low, high = starts_between(count, count + unsettled, n)
    told = f", {unsettled} not settled" if unsettled else ""
    return Finding(
        side(low, high, limit),
        f"{words} from {count} of {n} starts{told}",
        count / n,
        (low, high),
        {"starts": n, "count": count},
    )
