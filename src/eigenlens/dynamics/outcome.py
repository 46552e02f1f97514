"""What became of the tokens: consensus, rotation, flip, bipartite, clusters, or none of these.

Judged from directions alone, with stated tolerances. "Equal" means within `Tolerance.angle` of each
other; the time in which motion is judged is the step, or the logarithm of the step for a pre-norm
stream, whose states turn ever slower as they grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

LABELS: dict[str, str] = {
    "consensus": "all tokens become one direction, which stands still",
    "rotation": "all tokens become one direction, which turns in a plane",
    "flip": "all tokens become one direction, which changes sign every step",
    "bipartite": "tokens split in two groups that point in opposite directions",
    "clusters": "tokens gather in a few groups",
    "none": "tokens do not gather",
    "unsettled": "still on the way when the steps ran out: where it ends is not known",
}

UNSETTLED = "unsettled"
"""What a start counts as that has not come to rest, nor to a lasting turn."""

TOGETHER = ("consensus", "rotation", "flip")
"""Outcomes in which all tokens are one."""

REACHED = 5.0
"""Tolerances within which directions lie in a subspace, which they come to more slowly."""

_FEWEST = 8  # records from which a turn can be told from anything


@dataclass(frozen=True)
class Tolerance:
    """When things count as equal or still.

    Attributes
    ----------
    angle
        Radians within which two directions are one.
    turn
        Radians that a direction has yet to turn, its slowing-down continued, to be called a
        rotation; below it is still settling.
    period
        Longest period, in steps, that is looked for when a rotation may close.
    """

    angle: float = 0.01
    turn: float = math.pi
    period: int = 64


@dataclass(frozen=True)
class Foretold:
    """What the spectrum says of tokens that are nearly one, and how far they still are from it.

    Attributes
    ----------
    label
        ``consensus``, ``rotation`` or ``flip``: an end that attracts.
    rate
        The angle to it falls as ``exp(-rate t)``, t being the time in which motion is judged.
    away
        Sine of that angle in the last state.
    """

    label: str
    rate: float
    away: float


@dataclass(frozen=True)
class Outcome:
    """What one start looks like in its last states, and whether it stays so.

    Attributes
    ----------
    label
        What it looks like so far, a key of `LABELS`; `named` is what it counts as.
    groups
        Sizes of the groups of equal tokens, the largest first; for `bipartite` the two of them.
    angle_per_step
        Mean turn of the common direction (rad per step; per unit of log step for a stream) in its
        own plane; None unless the label is `rotation`.
    period
        Steps after which a rotation closes within the tolerance; None where it does not.
    settled
        Whether what is still to move is within the tolerance, or the turning lasts (rotation).
    balanced
        The tokens' directions sum to nearly 0.
    """

    label: str
    groups: tuple[int, ...]
    angle_per_step: float | None = None
    period: int | None = None
    settled: bool = True
    balanced: bool = False

    @property
    def named(self) -> str:
        """The label where the start has settled, else ``unsettled``."""
        return self.label if self.settled else UNSETTLED


def group_sizes(U: Float[np.ndarray, "n d"], angle: float) -> Int[np.ndarray, "g"]:
    """Sizes of the groups of unit tokens that are within `angle` of the group's first; O(n g d)."""
    chord = 2.0 * math.sin(angle / 2.0)
    left = np.arange(len(U))
    sizes = []
    while left.size:
        near = np.linalg.norm(U[left] - U[left[0]], axis=1) <= chord
        sizes.append(int(near.sum()))
        left = left[~near]
    return np.sort(np.array(sizes, dtype=int))[::-1]


def _apart(U: Float[np.ndarray, "n d"], angle: float) -> bool:
    """Whether no two unit tokens are between 1 and 4 angles from each other.

    Tokens that are still on their way to one another fill that range; groups leave it empty.
    """
    chords = np.linalg.norm(U[:, None] - U[None], axis=-1)
    near, far = (2.0 * math.sin(k * angle / 2.0) for k in (1, 4))
    return not bool(((chords > near) & (chords < far)).any())


def classify(
    U: Float[np.ndarray, "n d"],
    path: Float[np.ndarray, "t d"],
    time: Float[np.ndarray, "t"],
    tolerance: Tolerance = Tolerance(),
    foretold: Foretold | None = None,
    rest: float = 1e-12,
) -> Outcome:
    """What one start looks like; whether tokens that are not one have settled is not seen here.

    Parameters
    ----------
    U
        Unit tokens of the last state.
    path
        Unit mean directions of the last states, the final one included, while tokens were equal
        (older ones first); one row is enough if tokens are not equal.
    time
        When they were: the step, or the logarithm of the step for a stream.
    tolerance
        What counts as equal and as still.
    foretold
        The end that the spectrum foretells; None where it foretells none.
    rest
        Radians between two states below which a motion is rounding.
    """
    sizes = group_sizes(U, tolerance.angle)
    balanced = bool(np.linalg.norm(U.mean(axis=0)) <= tolerance.angle)
    if len(sizes) == 1:
        return _motion(path, time, sizes, tolerance, foretold, rest)
    signs = np.where(U @ U[0] < 0, -1.0, 1.0)
    folded = group_sizes(U * signs[:, None], tolerance.angle)
    if len(folded) == 1:
        larger = int(max((signs > 0).sum(), (signs < 0).sum()))
        return Outcome("bipartite", (larger, len(U) - larger), balanced=balanced)
    if 2 * len(sizes) <= len(U) and _apart(U, tolerance.angle):
        return Outcome("clusters", tuple(int(n) for n in sizes), balanced=balanced)
    return Outcome("none", tuple(int(n) for n in sizes), settled=False, balanced=balanced)


def _motion(
    path: Float[np.ndarray, "t d"],
    time: Float[np.ndarray, "t"],
    sizes: Int[np.ndarray, "g"],
    tolerance: Tolerance,
    foretold: Foretold | None,
    rest: float,
) -> Outcome:
    """How the common direction moves: it stands, flips, or turns."""
    groups = tuple(int(n) for n in sizes)
    if len(path) < 3:
        return Outcome("consensus", groups, settled=False)
    steps, passed = _angles(path), np.diff(time)
    label = "consensus"
    if np.median(steps[-8:]) > math.pi / 2:
        flipped = _angles(path * (-1.0) ** np.arange(len(path))[:, None])
        if yet_to_turn(flipped, passed, rest) > tolerance.turn:
            return _rotation(path, time, groups, tolerance, foretold)
        label, steps = "flip", flipped
    ahead = yet_to_turn(steps, passed, rest)
    if _at_rest(label, ahead, steps, passed, tolerance, foretold, rest):
        return Outcome(label, groups)
    turns = ahead > tolerance.turn and _keeps_turning(steps, passed)
    if label == "consensus" and (turns or _lasts(path, time, tolerance, foretold)):
        return _rotation(path, time, groups, tolerance, foretold)
    return Outcome(label, groups, settled=False)


def _at_rest(
    label: str,
    ahead: float,
    steps: Float[np.ndarray, "u"],
    passed: Float[np.ndarray, "u"],
    tolerance: Tolerance,
    foretold: Foretold | None,
    rest: float,
) -> bool:
    """Whether a direction that slows down has no more than the tolerance ahead of it.

    A slow approach hides behind a fast one, so that speeds alone foresee too early an end. Where
    the slowest rate is foretold, what is ahead is at most the speed over that rate.
    """
    if foretold is None:
        return ahead <= tolerance.angle
    if foretold.label == label and foretold.away <= math.sin(tolerance.angle):
        return True
    last = slice(-max(len(steps) // 16, 1), None)
    turn = float(steps[last].mean())
    slowly = 0.0 if turn <= rest else turn / float(passed[last].mean()) / foretold.rate
    return max(ahead, slowly) <= tolerance.angle


def _keeps_turning(steps: Float[np.ndarray, "u"], passed: Float[np.ndarray, "u"]) -> bool:
    """Whether the turn so far cannot be that of a direction which goes from one axis to another.

    Such a turn, ``atan(e^(kt))``, is less than half a circle in all, and its speed changes by a
    factor of 1.8 over any radian of it.
    """
    total = float(steps.sum())
    if total > math.pi:
        return True
    parts = zip(np.array_split(steps, 4), np.array_split(passed, 4), strict=True)
    speeds = [s.sum() / p.sum() for s, p in parts if s.size]
    return total > 1.0 and max(speeds) < 1.5 * min(speeds)


def _lasts(
    path: Float[np.ndarray, "t d"],
    time: Float[np.ndarray, "t"],
    tolerance: Tolerance,
    foretold: Foretold | None,
) -> bool:
    """Whether a turn is that of a complex pair, and nothing else is left of the way there.

    Three things are measured: it goes on for more than half a circle, which no way from one axis
    to another does; at an even speed in the later half; and it lies in the foretold plane. Another
    plane through the origin has to be known from the turn itself: it takes a circle to see that
    the turn does not grow out of it, and where another end is foretold, what sticks out will grow
    in time, so that much less may.
    """
    if len(path) < _FEWEST:
        return False
    phase = turned(path)
    total = float(abs(phase[-1] - phase[0]))
    if total <= math.pi:
        return False
    third, last = (np.array_split(np.arange(len(path)), 4)[k] for k in (2, 3))
    speeds = [
        float((phase[part[-1]] - phase[part[0] - 1]) / (time[part[-1]] - time[part[0] - 1]))
        for part in (third, last)
    ]
    if not 0.5 < speeds[1] / (speeds[0] or math.inf) < 2.0:
        return False
    near = REACHED * tolerance.angle
    if foretold is not None:
        if foretold.label == "rotation" and foretold.away <= math.sin(near):
            return True
        near = 0.1 * tolerance.angle
    return total > 2 * math.pi and _in_a_plane(path, near, tolerance)


def _in_a_plane(path: Float[np.ndarray, "t d"], near: float, tolerance: Tolerance) -> bool:
    """Whether a path ends in its plane through the origin, and does not grow out of it."""
    _, _, plane = np.linalg.svd(path, full_matrices=False)
    out = np.linalg.norm(path - path @ plane[:2].T @ plane[:2], axis=1)
    before, now = (float(np.sqrt(np.mean(part**2))) for part in np.array_split(out, 4)[2:])
    grows = now > 1.2 * before and now > 0.1 * tolerance.angle
    return now <= math.sin(near) and not grows


def _angles(path: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "u"]:
    """Angles between successive directions; atan2 keeps digits for small ones."""
    a, b = path[:-1], path[1:]
    apart, along = np.linalg.norm(b - a, axis=1), np.linalg.norm(b + a, axis=1)
    return np.asarray(2.0 * np.arctan2(apart, along))


def yet_to_turn(
    steps: Float[np.ndarray, "u"], passed: Float[np.ndarray, "u"], rest: float = 1e-12
) -> float:
    """The angle still ahead if the speed goes on changing as it did; infinite if it does not fall.

    The speed of the last quarter is set against that of the quarter before: a speed that decays
    by q from one to the next leaves ``speed * length / -ln q`` in all. The same for eighths, which
    know less of what has died away since; the larger of the two.

    Parameters
    ----------
    steps
        Angles between successive states.
    passed
        Time between them.
    rest
        Mean angle between two states below which it is rounding, and nothing is ahead.
    """
    quarter = max(len(steps) // 4, 1)
    if steps[-quarter:].mean() <= rest:
        return 0.0
    found = _ahead(steps, passed, quarter)
    shorter = _ahead(steps, passed, quarter // 2) if quarter >= 4 else 0.0
    return max(found, shorter if math.isfinite(shorter) else 0.0)


def _ahead(steps: Float[np.ndarray, "u"], passed: Float[np.ndarray, "u"], length: int) -> float:
    """`yet_to_turn` from the last `length` steps and those before."""
    late, early = slice(-length, None), slice(-2 * length, -length)
    speed = float(steps[late].sum() / passed[late].sum())
    before = float(steps[early].sum() / passed[early].sum()) if len(steps) > length else speed
    if speed >= before:
        return math.inf
    centres = (passed[late].sum() + passed[early].sum()) / 2
    return float(speed * centres / math.log(before / speed)) if speed > 0 else 0.0


def _rotation(
    path: Float[np.ndarray, "t d"],
    time: Float[np.ndarray, "t"],
    groups: tuple[int, ...],
    tolerance: Tolerance,
    foretold: Foretold | None,
) -> Outcome:
    phase = turned(path)
    angle = float((phase[-1] - phase[0]) / (time[-1] - time[0]))
    return Outcome(
        "rotation",
        groups,
        angle_per_step=abs(angle),
        period=_period(path, tolerance) if np.allclose(np.diff(time), 1.0) else None,
        settled=_lasts(path, time, tolerance, foretold),
    )


def turned(path: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t"]:
    """Unwrapped phase of directions that turn in a plane.

    In the plane of their two leading singular directions the orbit is an ellipse (a linear image
    of a rotation); scaled to a circle by its second moments over whole half turns, the phase grows
    evenly.
    """
    _, _, plane = np.linalg.svd(path, full_matrices=False)
    flat = path @ plane[:2].T
    phase = np.asarray(np.unwrap(np.arctan2(flat[:, 1], flat[:, 0])))
    halves = math.floor(abs(phase[-1] - phase[0]) / math.pi)
    if halves == 0:
        return phase
    part = flat[np.abs(phase - phase[0]) <= halves * math.pi]
    values, axes = np.linalg.eigh(part.T @ part)
    if values[0] <= 1e-18 * values[1]:
        return phase
    round_ = flat @ axes / np.sqrt(values)
    return np.asarray(np.unwrap(np.arctan2(round_[:, 1], round_[:, 0])))


def _period(path: Float[np.ndarray, "t d"], tolerance: Tolerance) -> int | None:
    longest = min(tolerance.period, len(path) // 2)
    for period in range(2, longest + 1):
        gaps = np.linalg.norm(path[period:] - path[:-period], axis=1)
        if gaps.max() <= tolerance.angle:
            return period
    return None
