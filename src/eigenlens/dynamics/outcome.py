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
}


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
class Outcome:
    """What one start ended in.

    Attributes
    ----------
    label
        A key of `LABELS`.
    groups
        Sizes of the groups of equal tokens, the largest first; for `bipartite` the two of them.
    angle_per_step
        Mean turn of the common direction (rad per step; per unit of log step for a stream) in its
        own plane; None unless the label is `rotation`.
    period
        Steps after which a rotation closes within the tolerance; None where it does not.
    settled
        Whether the common direction stands still within the tolerance (consensus and flip), or the
        turning is steady (rotation). False means: so far.
    balanced
        The tokens' directions sum to nearly 0.
    """

    label: str
    groups: tuple[int, ...]
    angle_per_step: float | None = None
    period: int | None = None
    settled: bool = True
    balanced: bool = False


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
) -> Outcome:
    """Name the outcome of one start.

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
    """
    sizes = group_sizes(U, tolerance.angle)
    balanced = bool(np.linalg.norm(U.mean(axis=0)) <= tolerance.angle)
    if len(sizes) == 1:
        return _motion(path, time, sizes, tolerance)
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
) -> Outcome:
    """How the common direction moves: it stands, flips, or turns."""
    groups = tuple(int(n) for n in sizes)
    if len(path) < 3:
        return Outcome("consensus", groups, settled=False)
    steps = _angles(path)
    if np.median(steps[-8:]) > math.pi / 2:
        still = bool(math.pi - steps[-1] <= tolerance.angle)
        flipped = path * (-1.0) ** np.arange(len(path))[:, None]
        if _yet_to_turn(_angles(flipped), np.diff(time)) <= tolerance.turn:
            return Outcome("flip", groups, settled=still)
        return _rotation(path, time, groups, tolerance)
    ahead = _yet_to_turn(steps, np.diff(time))
    if ahead > tolerance.turn and _keeps_turning(steps, np.diff(time)):
        return _rotation(path, time, groups, tolerance)
    return Outcome("consensus", groups, settled=ahead <= tolerance.angle)


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


def _angles(path: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "u"]:
    """Angles between successive directions; atan2 keeps digits for small ones."""
    a, b = path[:-1], path[1:]
    apart, along = np.linalg.norm(b - a, axis=1), np.linalg.norm(b + a, axis=1)
    return np.asarray(2.0 * np.arctan2(apart, along))


def _yet_to_turn(steps: Float[np.ndarray, "u"], passed: Float[np.ndarray, "u"]) -> float:
    """The angle still ahead if the speed goes on changing as it did; infinite if it does not fall.

    The speed of the last quarter is set against that of the quarter before: a speed that decays
    by q from one to the next leaves ``speed * length / -ln q`` in all.
    """
    quarter = max(len(steps) // 4, 1)
    late, early = slice(-quarter, None), slice(-2 * quarter, -quarter)
    speed = steps[late].sum() / passed[late].sum()
    before = steps[early].sum() / passed[early].sum() if len(steps) > quarter else speed
    if speed <= 1e-12:
        return 0.0
    if speed >= before:
        return math.inf
    centres = (passed[late].sum() + passed[early].sum()) / 2
    return float(speed * centres / math.log(before / speed))


def _rotation(
    path: Float[np.ndarray, "t d"],
    time: Float[np.ndarray, "t"],
    groups: tuple[int, ...],
    tolerance: Tolerance,
) -> Outcome:
    phase = turned(path)
    angle = float((phase[-1] - phase[0]) / (time[-1] - time[0]))
    return Outcome(
        "rotation",
        groups,
        angle_per_step=abs(angle),
        period=_period(path, tolerance) if np.allclose(np.diff(time), 1.0) else None,
        settled=bool(abs(phase[-1] - phase[0]) > 2 * math.pi),
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
