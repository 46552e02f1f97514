"""Numbers, counts and lists in the form people read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_LEAST = 3
"""Decimals of an eigenvalue whose size is about 1."""
MOST = 6
"""Decimals beyond which a number takes an exponent."""


def decimals(sizes: Iterable[float], least: int = _LEAST) -> int:
    """How many decimals a column has: the smallest of `sizes` keeps three significant digits.

    `least` where the smallest is 0.1 or more. Zeros are not counted, nor what would take more than
    `MOST` decimals, or has more than four digits before them: these are shown with an exponent.
    """
    needed = [
        least if x >= 0.1 else max(least, 2 - math.floor(math.log10(x)))
        for x in sizes
        if math.isfinite(x) and 0 < x < _LARGE
    ]
    return max([least, *(n for n in needed if n <= MOST)])


_LARGE = 1e4


def leader_decimals(values: Iterable[complex]) -> int:
    """`decimals` of eigenvalues that lead."""
    return decimals(abs(complex(v)) for v in values)


def complex_text(value: complex, places: int | None = None) -> str:
    """``+1.238`` or ``-0.133±2.169i`` (a pair is shown once); very small or large: ``+1.24e-05``.

    `places` are the decimals of the column that it stands in; alone it has its own.
    """
    digits = _digits(abs(value), leader_decimals([value]) if places is None else places)
    real = _signed(value.real, digits)
    return real if value.imag == 0 else f"{real}±{abs(value.imag):{digits}}i"


def _digits(size: float, places: int) -> str:
    """So many decimals for numbers that they fit, else three digits and an exponent."""
    return f".{places}f" if size == 0 or 10.0**-places <= size < _LARGE else ".2e"


def _signed(x: float, digits: str) -> str:
    """`x` with its sign, which is not a minus before nothing but zeros."""
    text = f"{x:+{digits}}"
    return text if float(text) else text.replace("-", "+", 1)


def size_of(x: float, places: int | None = None) -> str:
    """A norm: ``5.06``, ``0.0301``, or ``1.20e-05`` where decimals do not fit it."""
    return f"{x:{_digits(x, decimals([x], 2) if places is None else places)}}"


def fraction_text(x: float | None) -> str:
    """A head's part of the whole: ``+0.431``, or a dash."""
    return "-" if x is None else f"{x:+.3f}"


def count_text(n: int, noun: str, nouns: str = "") -> str:
    """``1 layer``, ``12 layers``; `nouns` where the plural is not made with an s."""
    return f"{n} {noun if n == 1 else nouns or noun + 's'}"


def separation_heading(order: str) -> str:
    """What the steps to separate are called: under the order of a residual stream, depths."""
    return "10x depth" if order == "real" else "10x after"


def percent(x: float | None) -> str:
    """``14.0 %``, or a dash."""
    if x is None:
        return "-"
    return f"{100 * x:.1f} %" if x < 10 else f"{100 * x:.0f} %"


def steps_text(x: float | None) -> str:
    """Steps to separate, rounded up; a dash where they are not defined, ``> 1e6`` beyond use."""
    if x is None:
        return "-"
    if x > 1e6:
        return "> 1e6"
    return f"{math.ceil(x)}" if x <= 1e5 else f"{x:.0e}".replace("e+0", "e")


def regime_text(regime: str) -> str:
    """``real_dominant`` as people read it."""
    return regime.replace("_", " ")


def layer_list(names: Sequence[int], limit: int = 6) -> str:
    """``0, 2-5, 7``: runs are joined, long lists are cut."""
    runs: list[list[int]] = []
    for n in names:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    parts = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    rest = sum(map(len, runs[limit:]))
    more = f" and {rest} more" if rest else ""
    return ", ".join(parts[:limit]) + more
