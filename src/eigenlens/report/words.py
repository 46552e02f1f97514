"""Numbers, counts and lists in the form that tables and sentences have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from eigenlens.shown.words import (
    MOST,
    complex_text,
    count_text,
    decimals,
    layer_list,
    leader_decimals,
    size_of,
)

__all__ = [
    "MOST",
    "complex_text",
    "count_text",
    "decimals",
    "fraction_text",
    "layer_list",
    "leader_decimals",
    "most_frequent",
    "p_text",
    "percent",
    "regime_text",
    "separation_heading",
    "separation_meaning",
    "size_of",
    "steps_text",
]


def fraction_text(x: float | None) -> str:
    """A head's part of the whole: ``+0.431``, or a dash."""
    return "-" if x is None else f"{x:+.3f}"


def separation_heading(order: str) -> str:
    """What the steps to separate are called: under the order of a residual stream, depths."""
    return "10x depth" if order == "real" else "10x after"


def separation_meaning(order: str) -> str:
    """What stands under `separation_heading`."""
    if order == "real":
        return "factor by which depth must grow until the second is 10 times behind"
    return "steps of this layer until the second direction is 10 times behind"


def percent(x: float | None) -> str:
    """``14.0 %``, or a dash."""
    if x is None:
        return "-"
    return f"{100 * x:.1f} %" if x < 10 else f"{100 * x:.0f} %"


def steps_text(x: float | None) -> str:
    """Steps to separate, rounded up; a dash where they are not defined, ``> 1e6`` beyond use.

    Above 9999 the size alone is told, rounded up as well: digits of such a number mean nothing,
    and stand beside 3e5.
    """
    if x is None:
        return "-"
    if x > 1e6:
        return "> 1e6"
    if x <= 9999:
        return f"{math.ceil(x)}"
    power = math.floor(math.log10(x))
    return f"{math.ceil(x / 10**power) * 10**power:.0e}".replace("e+0", "e")


def p_text(p: float | None, level: float) -> str:
    """A p-value with three decimals, or as many as keep it on its side of `level`.

    Examples
    --------
    >>> p_text(0.4217, 0.05), p_text(0.049958, 0.05), p_text(1e-5, 0.05)
    ('0.422', '0.04996', '< .001')
    """
    if p is None:
        return "-"
    if p < 0.001:
        return "< .001"
    for places in range(3, 9):
        shown = f"{p:.{places}f}"
        if (float(shown) < level) == (p < level):
            return shown
    return f"< {level:g}"


def most_frequent(shares: Mapping[str, float]) -> tuple[list[str], bool]:
    """What has the largest share, with all that tie for it, and whether that is a majority.

    Counts are shares as well. At exactly half there is no majority.

    Examples
    --------
    >>> most_frequent({"a": 3, "b": 1}), most_frequent({"a": 0.4, "b": 0.4, "c": 0.2})
    ((['a'], True), (['a', 'b'], False))
    """
    top = max(shares.values())
    first = [name for name, share in shares.items() if math.isclose(share, top, rel_tol=1e-9)]
    return first, len(first) == 1 and top > (1 + 1e-9) * sum(shares.values()) / 2


def regime_text(regime: str) -> str:
    """``real_dominant`` as people read it."""
    return regime.replace("_", " ")
