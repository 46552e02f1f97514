"""What a rank-one term does to a spectrum and to tokens, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.errors import OptionError

Vector = Float[np.ndarray, "d"]
Matrix = Float[np.ndarray, "d d"]


@dataclass(frozen=True)
class TopPair:
    """The eigenpair of ``F + alpha u q^T`` that the edit brings to the top."""

    value: complex
    vector: Complex[np.ndarray, "d"]


def secular(F: Matrix, u: Vector, q: Vector, alpha: float, value: complex) -> complex:
    """``1 - alpha q^T (value I - F)^-1 u``: 0 at the new eigenvalues of ``F + alpha u q^T``."""
    return complex(1.0 - alpha * (q @ np.linalg.solve(value * np.eye(len(F)) - F, u)))


def top_pair(F: Matrix, u: Vector, q: Vector, alpha: float) -> TopPair:
    """The new leading pair by Newton's method on the secular equation, from ``alpha q.u``.

    The vector is ``(lambda I - F)^-1 u``, unit, its component on u positive. For large
    ``alpha q.u`` the value tends to ``alpha q.u`` and the vector to u.

    Raises
    ------
    OptionError
        ``alpha q.u`` is 0, or so small that no pair of its own grows out of the term.
    """
    d = len(F)
    value = complex(alpha * (q @ u))
    if value == 0:
        raise OptionError("alpha q.u is 0: the term makes no eigenvector of its own")
    for _ in range(100):
        solved = np.linalg.solve(
            (value * np.eye(d) - F).astype(complex), np.asarray(u, dtype=complex)
        )
        # 1 - alpha q^T R u and its derivative alpha q^T R^2 u, R the resolvent
        residual = 1.0 - alpha * (q @ solved)
        slope = alpha * (q @ np.linalg.solve(value * np.eye(d) - F, solved))
        step = residual / slope
        value = complex(value - step)
        if abs(step) <= 1e-13 * abs(value):
            vector = np.linalg.solve(value * np.eye(d) - F, np.asarray(u, dtype=complex))
            phase = np.vdot(u, vector)
            vector = vector * (abs(phase) / phase) / np.linalg.norm(vector)
            return TopPair(value, vector)
    raise OptionError(
        "the term is too weak to make an eigenvector of its own (alpha q.u = "
        f"{alpha * (q @ u):.2g}, |F| = {np.linalg.norm(F, 2):.2g}): use a larger strength"
    )


def strength_for_cosine(
    readings: Float[np.ndarray, "n"],
    outputs: Float[np.ndarray, "n d"],
    u: Vector,
    cosine: float,
) -> Float[np.ndarray, "n"]:
    """Strength at which each token alone reaches a signed cosine with u right after the sub-layer.

    Token i becomes ``y_i + alpha (w.z_i) u``, so with ``s = alpha w.z_i`` and y split along u and
    across it, ``cos >= c`` iff ``s >= c / sqrt(1 - c^2) |y_across| - u.y``. Infinite where w.z_i is
    not positive (and not reached already at 0).

    Parameters
    ----------
    readings
        w.z_i.
    outputs
        ``y_i = x_i + attention output``, unedited.
    u
        Unit direction.
    cosine
        Wanted, in (0, 1).

    Raises
    ------
    OptionError
        The cosine is not in (0, 1).
    """
    if not 0 < cosine < 1:
        raise OptionError(f"target cosine is {cosine}; it lies between 0 and 1, both excluded")
    along = outputs @ u
    across = np.linalg.norm(outputs - np.outer(along, u), axis=1)
    needed = np.maximum(cosine / np.sqrt(1 - cosine**2) * across - along, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        strength = np.where(readings > 0, needed / readings, np.inf)
    return np.asarray(np.where(needed == 0, 0.0, strength))


def cosines_after(
    strength: float,
    readings: Float[np.ndarray, "n"],
    outputs: Float[np.ndarray, "n d"],
    u: Vector,
) -> Float[np.ndarray, "n"]:
    """Signed cosine of every token with u right after the edited sub-layer."""
    after = outputs + strength * readings[:, None] * u
    return np.asarray((after @ u) / np.linalg.norm(after, axis=1))


def strength_for_mean_cosine(
    readings: Float[np.ndarray, "n"],
    outputs: Float[np.ndarray, "n d"],
    u: Vector,
    cosine: float,
) -> float | None:
    """The smallest strength at which the mean signed cosine over tokens is `cosine`; bisection.

    None where no strength reaches it: the mean tends to the mean sign of w.z_i.
    """
    if not -1 < cosine < 1:
        raise OptionError(f"target cosine is {cosine}; it lies between -1 and 1, both excluded")

    def mean(alpha: float) -> float:
        return float(cosines_after(alpha, readings, outputs, u).mean())

    if mean(0.0) >= cosine:
        return 0.0
    scale = float(np.abs(readings).mean())
    high = float(np.linalg.norm(outputs, axis=1).mean()) / scale if scale > 0 else 0.0
    while high > 0 and mean(high) < cosine:
        high *= 2
        if not np.isfinite(high) or high * scale > 1e12 * np.linalg.norm(outputs, axis=1).max():
            return None
    if high == 0:
        return None
    # The mean may fall before it rises where readings differ in sign, so the first crossing of a
    # fine grid is refined, not just any.
    grid = np.r_[0.0, np.geomspace(high * 1e-6, high, 200)]
    at = next(i for i, alpha in enumerate(grid) if mean(alpha) >= cosine)
    low, high = float(grid[at - 1]), float(grid[at])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if mean(middle) >= cosine else (middle, high)
    return high
