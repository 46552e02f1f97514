"""The shortest assignment of eigenvalues under which no conjugate pair is torn.

A pair of a real matrix stays a pair, or meets itself on the real axis and goes on as two real
values; it never gives its members to two pairs. The assignment of single points (see `matching`)
knows nothing of that, and this one, a small integer programme, is for where it matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Complex, Float

Links = Sequence[tuple[int, int]]
"""Indices of points of the two sides that became one another."""


def torn_part(
    a: Sequence[int], b: Sequence[int], partners: Links
) -> tuple[list[int], list[int]] | None:
    """Points of either side that pairs which are torn have to do with; None if no pair is.

    A pair is torn if it shares its members out between a pair and anything else. With it belong
    the points that its members' partners hang together with, whatever number of links away.

    Parameters
    ----------
    a, b
        Of every point the first one of its pair, of a real one itself.
    partners
        An assignment of single points.
    """
    units = {(0, unit) for unit in a} | {(1, unit) for unit in b}
    met: dict[tuple[int, int], set[tuple[int, int]]] = {unit: set() for unit in units}
    for i, j in partners:
        met[0, a[i]].add((1, b[j]))
        met[1, b[j]].add((0, a[i]))
    sizes = {(0, u): n for u, n in _units(a).items()} | {(1, u): n for u, n in _units(b).items()}
    waiting = [u for u, with_ in met.items() if len(with_) > 1 and any(sizes[w] > 1 for w in with_)]
    if not waiting:
        return None
    part: set[tuple[int, int]] = set()
    while waiting:
        unit = waiting.pop()
        if unit not in part:
            part.add(unit)
            waiting += met[unit]
    return (
        [i for i, unit in enumerate(a) if (0, unit) in part],
        [j for j, unit in enumerate(b) if (1, unit) in part],
    )


def whole_assignment(
    a: tuple[Complex[np.ndarray, "n"], Sequence[int], int],
    b: tuple[Complex[np.ndarray, "m"], Sequence[int], int],
) -> list[tuple[int, int]]:
    """Partners of all leaders, of least total distance, with every pair whole.

    A side is its points in the upper half-plane, of each the first one of its pair, and how many
    of the first ones lead. Both members of a pair are given to one pair, or each to a real value.
    A pair that does not lead may lend one member. Leaders stay alone only where nobody is left.

    Parameters
    ----------
    a, b
        The two sides.

    Returns
    -------
    Indices of points, two entries for a pair.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    z, w = a[0], b[0]
    ours, theirs = _units(a[1]), _units(b[1])
    edges = _edges(z, w, ours, theirs, a[2], b[2])
    longest = max((abs(z[i] - w[j]) for i, j in edges), default=0.0) or 1.0
    cost: list[float] = []
    limits: list[float] = []
    rows: list[tuple[list[tuple[int, float]], float, float]] = []
    at: dict[tuple[int, int], list[tuple[int, bool]]] = {}  # edges at a unit, whole ones marked

    def variable(price: float, most: float) -> int:
        cost.append(price)
        limits.append(most)
        return len(cost) - 1

    for i, j in edges:
        whole = ours[i] == theirs[j] == 2
        number = variable(abs(z[i] - w[j]) / longest * (2 if whole else 1), 1)
        at.setdefault((0, i), []).append((number, whole))
        at.setdefault((1, j), []).append((number, whole))
    never = 1.0 + 2 * (a[2] + b[2])
    for side, units, leaders in ((0, ours, a[2]), (1, theirs, b[2])):
        for unit, size in units.items():
            here = at.get((side, unit), [])
            if size == 2:
                split = variable(0.0, 1)
                whole_ones = [(v, 1.0) for v, whole in here if whole]
                parts = [(v, 1.0) for v, whole in here if not whole]
                rows.append(([*whole_ones, (split, 1.0)], -np.inf, 1))
                rows.append(([*parts, (split, -2.0)], -np.inf, 0))
            used = [(v, 2.0 if whole else 1.0) for v, whole in here]
            alone = [(variable(never, size), 1.0)] if unit < leaders else []
            rows.append(([*used, *alone], size if alone else 0, size))
    entries = [(r, v, x) for r, (terms, _, _) in enumerate(rows) for v, x in terms]
    index, column, value = (np.array(part) for part in zip(*entries, strict=True))
    matrix = coo_array((value, (index, column)), shape=(len(rows), len(cost))).tocsr()
    low, high = (np.array([row[k] for row in rows], dtype=float) for k in (1, 2))
    found = milp(
        np.array(cost),
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, np.array(limits)),
        constraints=LinearConstraint(matrix, low, high),
        options={"mip_rel_gap": 0.0},
    )
    chosen = [edge for edge, x in zip(edges, found.x, strict=False) if x > 0.5]
    return _members(_exactly(chosen, z, w, ours, theirs), ours, theirs)


def _exactly(
    chosen: Links,
    z: Complex[np.ndarray, "n"],
    w: Complex[np.ndarray, "m"],
    ours: dict[int, int],
    theirs: dict[int, int],
) -> list[tuple[int, int]]:
    """The same pairs and values, those that stay whole and the others each assigned anew.

    The programme counts distances below 1e-7 of the longest one as equal.
    """
    from scipy.optimize import linear_sum_assignment

    out: list[tuple[int, int]] = []
    for whole in (True, False):
        kind = [(i, j) for i, j in chosen if (ours[i] == theirs[j] == 2) is whole]
        if not kind:
            continue
        one, other = (np.array(side) for side in zip(*kind, strict=True))
        cost = np.abs(z[one][:, None] - w[other][None, :])
        if not whole:  # members of two pairs do not meet
            pairs = [
                [sizes[u] == 2 for u in side] for sizes, side in ((ours, one), (theirs, other))
            ]
            cost[np.ix_(*pairs)] = 1.0 + cost.max() * (len(kind) + 1)
        rows, columns = linear_sum_assignment(cost)
        out += zip(one[rows].tolist(), other[columns].tolist(), strict=True)
    return out


def _units(first: Sequence[int]) -> dict[int, int]:
    """Pairs and real values by their first point, with how many points they are."""
    found: dict[int, int] = {}
    for unit in first:
        found[unit] = found.get(unit, 0) + 1
    return found


def _edges(
    z: Complex[np.ndarray, "n"],
    w: Complex[np.ndarray, "m"],
    ours: dict[int, int],
    theirs: dict[int, int],
    leaders_a: int,
    leaders_b: int,
) -> list[tuple[int, int]]:
    """Who can become whom: of every leader the nearest pairs and the nearest real values.

    More than twice the number of leaders are never needed, since the others then leave one free.
    """
    most = 2 * (leaders_a + leaders_b) + 2
    found: set[tuple[int, int]] = set()

    def near(x: complex, values: Float[np.ndarray, "k"], units: dict[int, int]) -> list[int]:
        out: list[int] = []
        for size in (1, 2):
            kind = [u for u, n in units.items() if n == size]
            out += sorted(kind, key=lambda u: abs(values[u] - x))[:most]
        return out

    found |= {(i, j) for i in ours if i < leaders_a for j in near(z[i], w, theirs)}
    found |= {(i, j) for j in theirs if j < leaders_b for i in near(w[j], z, ours)}
    return sorted(found)


def _members(
    chosen: Sequence[tuple[int, int]], ours: dict[int, int], theirs: dict[int, int]
) -> list[tuple[int, int]]:
    """Points in place of pairs: of one that became two real values each has a member."""
    out: list[tuple[int, int]] = []
    taken: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for i, j in chosen:
        if ours[i] == theirs[j] == 2:
            out += [(i, j), (i + 1, j + 1)]
            continue
        here = [unit + counted.get(unit, 0) for unit, counted in zip((i, j), taken, strict=True)]
        for unit, counted in zip((i, j), taken, strict=True):
            counted[unit] = counted.get(unit, 0) + 1
        out.append((here[0], here[1]))
    return sorted(out)
