"""Numbers, counts and lists in the form people read, for every floor."""

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


def count_text(n: int, noun: str) -> str:
    """``1 layer``, ``12 layers``."""
    return f"{n} {noun}{'s' * (n != 1)}"


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
