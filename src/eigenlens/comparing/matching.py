"""Which eigenvalue of one matrix became which of another: by assignment on the complex plane.

Sorted lists do not answer this: two eigenvalues that pass each other swap their places without
having moved. The assignment minimises the total distance. Real matrices have eigenvalues in
conjugate pairs, so what is assigned are points of the closed upper half-plane, one a pair's member:
a pair stays one pair, and where it became two real eigenvalues each takes one member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.comparing.whole import torn_part, whole_assignment
from eigenlens.spectra.orders import ORDERS, whole_pairs
from eigenlens.spectra.result import LayerSpectrum

_FEW = 40  # leaders of both sides up to which all of them are assigned anew where a pair is torn

KINDS: dict[str, str] = {
    "real": "a real eigenvalue in both",
    "pair": "a conjugate pair in both",
    "pair_to_real": "one of a conjugate pair that became real",
    "real_to_pair": "a real eigenvalue that became one of a pair",
}
"""What was matched with what."""


@dataclass(frozen=True)
class Match:
    """One eigenvalue in both matrices; of a pair the one with positive imaginary part.

    Attributes
    ----------
    before, after
        Its values.
    index_before, index_after
        Its places in the two sorted lists, from 0, of a pair the place of its first member; None
        for the kernel that the shape prescribes.
    distance
        ``|after - before|``.
    bar
        Sum of both error bars.
    kind
        A key of `KINDS`.
    certain
        Whether no eigenvalue that was not computed can be nearer.
    """

    before: complex
    after: complex
    index_before: int | None
    index_after: int | None
    distance: float
    bar: float
    kind: str
    certain: bool

    @property
    def changed(self) -> bool:
        """Whether it moved by more than both error bars together."""
        return self.distance > self.bar


@dataclass(frozen=True)
class Points:
    """Eigenvalues as points of the upper half-plane.

    Attributes
    ----------
    values
        Points, the kernel's zeros last.
    bars
        Error bars.
    places
        Places in the sorted list, of a pair's members that of the first; None for the kernel.
    leaders
        So many of the first ones have to find a partner; the others lend themselves.
    floor
        No eigenvalue that is not here has a larger key; -inf for a complete list.
    """

    values: Complex[np.ndarray, "n"]
    bars: Float[np.ndarray, "n"]
    places: tuple[int | None, ...]
    leaders: int
    floor: float

    @property
    def first(self) -> list[int]:
        """Of every point the index of its pair's first member; of a real one its own."""
        return [i if place is None else place for i, place in enumerate(self.places)]


def points(layer: LayerSpectrum, k: int) -> Points:
    """The listed eigenvalues of a layer and its kernel, the first `k` of them leaders."""
    values = layer.eigenvalues.astype(complex)
    bars = layer.error_bars.astype(np.float64)
    complete = layer.negative_fraction is not None
    n = values.size
    kernel = min(max(layer.d - (n if complete else layer.rank), 0), max(n, k + 2))
    floor = -np.inf
    if not complete and n:
        floor = float(ORDERS[layer.order].key(values[-1:])[0])
    return Points(
        np.concatenate([values.real + 1j * np.abs(values.imag), np.zeros(kernel)]),
        np.concatenate([bars, np.zeros(kernel)]),
        (*(i - int(v.imag < 0) for i, v in enumerate(values)), *[None] * kernel),
        whole_pairs(values, k),
        floor,
    )


def match(a: Points, b: Points, order: str) -> list[Match]:
    """Partners of all leaders of either side, in the sequence of `a`'s list.

    The assignment of least total distance in which every leader of both sides has a partner and no
    pair is torn: it stays a pair, or becomes two real values. Points that do not lead stay free at
    no cost. O((n_a + n_b)^3) at worst.
    """
    partners = _mended(a, b, _assign(a, b))
    key = ORDERS[order].key
    found = []
    for i, j in partners:
        z, w = complex(a.values[i]), complex(b.values[j])
        distance = abs(z - w)
        # Keys are 1-Lipschitz: what was not computed is at least a difference of keys away.
        sure = [
            float(key(np.array([z]))[0]) - b.floor >= distance or i >= a.leaders,
            float(key(np.array([w]))[0]) - a.floor >= distance or j >= b.leaders,
        ]
        found.append(
            Match(
                before=z,
                after=w,
                index_before=a.places[i],
                index_after=b.places[j],
                distance=distance,
                bar=float(a.bars[i] + b.bars[j]),
                kind=_kind(z, w),
                certain=all(sure),
            )
        )
    return _once_a_pair(found)


def _mended(a: Points, b: Points, partners: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The assignment with torn pairs made whole.

    Of many leaders only what the torn ones hang together with is assigned anew.
    """
    part = torn_part(a.first, b.first, partners)
    if part is None:
        return partners
    if a.leaders + b.leaders <= _FEW:
        part = list(range(a.values.size)), list(range(b.values.size))
    free = set(range(a.values.size)), set(range(b.values.size))
    for i, j in partners:  # of a pair that has a partner neither member is free
        free[0].difference_update(k for k, unit in enumerate(a.first) if unit == a.first[i])
        free[1].difference_update(k for k, unit in enumerate(b.first) if unit == b.first[j])
    ours, theirs = (sorted({*own, *rest}) for own, rest in zip(part, free, strict=True))
    found = whole_assignment(_some(a, ours), _some(b, theirs))
    kept = [(i, j) for i, j in partners if i not in part[0]]
    return sorted([*kept, *((ours[i], theirs[j]) for i, j in found)])


def _some(side: Points, chosen: list[int]) -> tuple[Complex[np.ndarray, "n"], list[int], int]:
    """Some points, the first ones of their pairs, and how many of them lead."""
    at = {point: place for place, point in enumerate(chosen)}
    first = [at[side.first[point]] for point in chosen]
    return side.values[chosen], first, sum(point < side.leaders for point in chosen)


def _assign(a: Points, b: Points) -> list[tuple[int, int]]:
    """Pairs of indices of which at least one leads."""
    from scipy.optimize import linear_sum_assignment

    n, m = a.values.size, b.values.size
    distance = np.abs(a.values[:, None] - b.values[None, :])
    # More than any sum of distances: a leader stays alone only where there is nobody left.
    never = 1.0 + float(distance.max(initial=0.0)) * (n + m + 1)
    cost = np.zeros((n + m, m + n))
    cost[:n, :m] = distance
    cost[: a.leaders, m:] = never
    cost[n:, : b.leaders] = never
    rows, columns = linear_sum_assignment(cost)
    return [
        (int(i), int(j))
        for i, j in zip(rows, columns, strict=True)
        if i < n and j < m and (i < a.leaders or j < b.leaders)
    ]


def _kind(z: complex, w: complex) -> str:
    if z.imag and w.imag:
        return "pair"
    if z.imag:
        return "pair_to_real"
    return "real_to_pair" if w.imag else "real"


def _once_a_pair(found: Sequence[Match]) -> list[Match]:
    """A pair that is matched with a pair is told once."""
    told: dict[tuple[str, int | None, int | None], Match] = {}
    out = []
    for new in found:
        key = new.kind, new.index_before, new.index_after
        if new.kind != "pair" or key not in told:
            told[key] = new
            out.append(new)
    return out
