"""Iterate layer maps over a batch of starts and record what happens, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from eigenlens.dynamics.maps import StateMap
from eigenlens.errors import NumericsError

States = Float[np.ndarray, "s n d"]
Basis = Float[np.ndarray, "d k"]

PATH_LIMIT = 1024
"""Passes of which the mean directions are kept; motion is judged from these."""
DOUBLE = float(np.finfo(np.float64).eps)
_SPACING = 64  # passes of a stream are kept 1/64 apart in the logarithm of the step
_PATIENCE = 8
_SETTLED_PASSES, _SETTLED_TURN = 128, 6 * np.pi


@dataclass(frozen=True)
class Run:
    """Everything recorded, for s starts; T steps were done.

    Attributes
    ----------
    cosine, disagreement
        Mean pairwise cosine, and ``|U - ubar|_F / |U|_F`` of the unit tokens U; (T + 1, s), the
        first row of the starts themselves.
    misalignment
        Root mean square over tokens of the sine of the angle to the target of the whole pass;
        (T + 1, s).
    movement
        Largest chord between a token's direction before and after a pass, up to the sign;
        (passes, s). A pass of one layer is a step.
    before, after
        Alignment of every token with the target of the layer of that step, means over tokens;
        (T, s).
    rising
        Share of tokens whose alignment grew, ties counted half; (T, s).
    passes
        Mean unit directions after the last passes of the stack, (p, s, d). A stream's motion is
        judged in the logarithm of the step, so passes that come too close in it are left out.
    at
        Numbers of the steps after which these were, (p,).
    final
        The last states, (s, n, d).
    closing
        Directions of the tokens after the last whole pass, (s, n, d).
    depth
        Layers of a pass.
    noise
        Relative rounding error of a step.
    """

    cosine: Float[np.ndarray, "t1 s"]
    disagreement: Float[np.ndarray, "t1 s"]
    misalignment: Float[np.ndarray, "t1 s"]
    movement: Float[np.ndarray, "q s"]
    before: Float[np.ndarray, "t s"]
    after: Float[np.ndarray, "t s"]
    rising: Float[np.ndarray, "t s"]
    passes: Float[np.ndarray, "p s d"]
    at: Float[np.ndarray, "p"]
    final: Float[np.ndarray, "s n d"]
    closing: Float[np.ndarray, "s n d"]
    depth: int = 1
    noise: float = DOUBLE

    @property
    def steps(self) -> int:
        """Steps done."""
        return len(self.after)

    @property
    def last_pass(self) -> int:
        """The row of `disagreement` and its like that stands after the last whole pass."""
        return self.steps - self.steps % self.depth


def iterate(
    maps: Sequence[StateMap],
    X: States,
    steps: int,
    target: Basis,
    layer_targets: Sequence[Basis],
    progress: Callable[[int, int], None] | None = None,
    noise: float = DOUBLE,
) -> Run:
    """Run `steps` steps of the maps in order, then again from the first.

    Stops early when nothing moves any more, up to a sign; and when for many passes, and some whole
    turns, all tokens have been one and in the target, as closely as rounding allows: how they move
    there is then known.
    Memory: the states of one step and the mean directions of the last `PATH_LIMIT` passes.

    Parameters
    ----------
    maps
        The layers of one pass.
    X
        The starts.
    steps
        Layer steps to do at most.
    target
        Orthonormal basis of what a whole pass should lead to.
    layer_targets
        The same for each layer.
    progress
        Called with (steps done, steps in all).
    noise
        Relative rounding error of a step: that of the type in which the maps compute.

    Raises
    ------
    NumericsError
        The states overflow or become NaN; the step is named.
    """
    depth = len(maps)
    U = unit(X)
    rows = [_state_row(U, target)]
    moves: list[tuple[Float[np.ndarray, "s"], ...]] = []
    moved: list[Float[np.ndarray, "s"]] = []
    path: deque[Float[np.ndarray, "s d"]] = deque([unit(U.mean(axis=1))], PATH_LIMIT)
    at: deque[int] = deque([0], PATH_LIMIT)
    floor, at_rest = floor_of(noise), max(1e-13, 32 * noise)
    still = settled = 0
    turned = np.zeros(len(X))
    start_of_pass = U
    for t in range(steps):
        X = maps[t % depth](X)
        if not np.isfinite(X).all():
            raise NumericsError(
                f"states are not finite after step {t + 1}; use --norm l2, a wider dtype or fewer "
                "steps"
            )
        new = unit(X)
        moves.append(_move_row(U, new, layer_targets[t % depth]))
        U = new
        rows.append(_state_row(U, target))
        if progress is not None:
            progress(t + 1, steps)
        if (t + 1) % depth:
            continue
        mean, ended = unit(U.mean(axis=1)), path[-1]
        if maps[0].form == "stream" and len(at) > 1 and _SPACING * (at[-1] - at[-2]) < at[-2]:
            path[-1], at[-1] = mean, t + 1  # the last pass is always there
        else:
            path.append(mean)
            at.append(t + 1)
        moved.append(_chord(start_of_pass, U))
        start_of_pass = U
        still = still + 1 if moved[-1].max() <= at_rest else 0
        arrived = rows[-1][1].max() <= floor and rows[-1][2].max() <= floor
        settled = settled + 1 if arrived else 0
        turned = turned + _angle(ended, mean) if arrived else np.zeros(len(X))
        enough = settled >= _SETTLED_PASSES and turned.min() >= _SETTLED_TURN
        if still >= _PATIENCE or enough:
            break
    cosine, disagreement, misalignment = (np.array(c) for c in zip(*rows, strict=True))
    s = X.shape[0]
    before, after, rising = (
        (np.array(c) for c in zip(*moves, strict=True)) if moves else [np.zeros((0, s))] * 3
    )
    return Run(
        cosine,
        disagreement,
        misalignment,
        np.array(moved).reshape(-1, s),
        before,
        after,
        rising,
        np.array(path),
        np.array(at, dtype=float),
        X,
        start_of_pass,
        depth,
        noise,
    )


def unit(X: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch d"]:
    """Directions; a zero stays zero."""
    norm = np.linalg.norm(X, axis=-1, keepdims=True)
    return np.asarray(X / np.where(norm == 0, 1.0, norm))


def _state_row(U: States, target: Basis) -> tuple[Float[np.ndarray, "s"], ...]:
    n = U.shape[1]
    mean = U.mean(axis=1)
    squares = n * np.sum(mean**2, axis=-1)
    # Differences from the mean, not 1 - cosine: digits are kept when tokens are nearly equal.
    apart = np.sum((U - mean[:, None]) ** 2, axis=(1, 2))
    cosine = 1.0 - apart / (n - 1) if n > 1 else np.ones(len(U))
    outside = U - (U @ target) @ target.T
    misalignment = np.sqrt(np.mean(np.sum(outside**2, axis=-1), axis=-1))
    return cosine, np.sqrt(apart / np.maximum(squares + apart, 1e-300)), misalignment


def _chord(U: States, new: States) -> Float[np.ndarray, "s"]:
    """The largest chord between two directions of one token, up to the sign."""
    apart = np.linalg.norm(new - U, axis=-1)
    return np.asarray(np.minimum(apart, np.linalg.norm(new + U, axis=-1)).max(axis=-1))


def _angle(a: Float[np.ndarray, "s d"], b: Float[np.ndarray, "s d"]) -> Float[np.ndarray, "s"]:
    cosine = np.sum(a * b, axis=-1)
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _move_row(U: States, new: States, basis: Basis) -> tuple[Float[np.ndarray, "s"], ...]:
    before = np.linalg.norm(U @ basis, axis=-1)
    after = np.linalg.norm(new @ basis, axis=-1)
    rising = (after > before) + 0.5 * (after == before)
    return before.mean(axis=-1), after.mean(axis=-1), rising.mean(axis=-1)


def floor_of(noise: float) -> float:
    """Below this, disagreement and misalignment are rounding; `noise` is that of one step."""
    return max(1e-11, 32 * noise)


def decay(
    values: Float[np.ndarray, "t"],
    time: Float[np.ndarray, "t"],
    floor: float = 1e-11,
    top: float = 0.05,
) -> float | None:
    """Slope of ``log values`` over `time`, least squares over the later half of the clean part.

    The clean part is where values are above `floor` (rounding) and below `top` (linear regime);
    None with fewer than 4 points.
    """
    clean = np.flatnonzero((values > floor) & (values < top) & np.isfinite(time))
    if clean.size:  # the last unbroken stretch
        breaks = np.flatnonzero(np.diff(clean) > 1)
        clean = clean[breaks[-1] + 1 :] if breaks.size else clean
    clean = clean[clean.size // 2 :]
    if clean.size < 4:
        return None
    return float(np.polyfit(time[clean], np.log(values[clean]), 1)[0])


def first_for_good(below: np.ndarray) -> int | None:
    """The first index from which a row of truth values stays true; None if the last is false."""
    if not below.size or not below[-1]:
        return None
    wrong = np.flatnonzero(~below)
    return int(wrong[-1] + 1) if wrong.size else 0
