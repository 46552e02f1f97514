"""What a rank-one term does to a spectrum and to tokens, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Complex, Float, Inexact

from eigenlens.errors import OptionError

Vector = Float[np.ndarray, "d"]
Matrix = Float[np.ndarray, "d d"]


@dataclass(frozen=True)
class TopPair:
    """The eigenpair of ``F + alpha u q^T`` that the edit brings to the top."""

    value: complex
    vector: Complex[np.ndarray, "d"]


@dataclass(frozen=True)
class Factors:
    """A matrix ``F = left @ right`` that is not formed; its core is, once.

    Attributes
    ----------
    left
        (d, r); of a layer its grouped output projection.
    right
        (r, d); of a layer W_V.
    """

    left: Float[np.ndarray, "d r"]
    right: Float[np.ndarray, "r d"]

    @cached_property
    def core(self) -> Float[np.ndarray, "r r"]:
        """``right @ left``."""
        return np.asarray(self.right @ self.left)


def _resolvent(
    F: Matrix | Factors, value: complex
) -> Callable[[Inexact[np.ndarray, "d"]], Inexact[np.ndarray, "d"]]:
    """``x -> (value I - F)^-1 x``, by one LU factorisation; real where all is real.

    Of factors by Woodbury's identity, ``(x + left (value I - right left)^-1 right x) / value``: the
    LU is one of the (r, r) core.
    """
    from scipy.linalg import lu_factor, lu_solve

    shift = value.real if value.imag == 0 else value
    if isinstance(F, Factors):
        left, right, core = F.left, F.right, F.core
        factored = lu_factor(shift * np.eye(len(core)) - core, check_finite=False)
        return lambda x: (x + left @ lu_solve(factored, right @ x, check_finite=False)) / shift
    factored = lu_factor(shift * np.eye(len(F)) - F, check_finite=False)
    return lambda x: np.asarray(lu_solve(factored, x, check_finite=False))


def secular(F: Matrix | Factors, u: Vector, q: Vector, alpha: float, value: complex) -> complex:
    """``1 - alpha q^T (value I - F)^-1 u``: 0 at the new eigenvalues of ``F + alpha u q^T``."""
    return complex(1.0 - alpha * (q @ _resolvent(F, complex(value))(u)))


def at_value(F: Matrix | Factors, u: Vector, q: Vector, value: float) -> tuple[float, Vector]:
    """The strength at which ``F + alpha u q^T`` has a given eigenvalue, and its vector.

    ``alpha = 1 / q^T (value I - F)^-1 u`` and ``(value I - F)^-1 u``, not normed; inf where no
    strength gives the value. One LU factorisation.
    """
    vector = np.asarray(_resolvent(F, complex(value))(u))
    reach = float(q @ vector)
    return (1 / reach if reach else float("inf")), vector


def top_pair(
    F: Matrix | Factors, u: Vector, q: Vector, alpha: float, near: float | None = None
) -> TopPair:
    """The pair that the term brings, by Newton's method on the secular equation.

    From ``alpha q.u``, or from `near`. The vector is ``(lambda I - F)^-1 u``, unit, its component
    on u positive. For large ``alpha q.u`` the value tends to ``alpha q.u`` and the vector to u; it
    then leads. Of a weak term it is an eigenpair of the sum all the same, one of those that move.
    The equation is taken as ``1 / q^T (lambda I - F)^-1 u = alpha``, whose left side is nearly
    linear in lambda far out. One LU factorisation a step, of the (r, r) core for factors; a few
    steps.

    Raises
    ------
    OptionError
        ``alpha q.u`` is 0, or so small that no pair of its own grows out of the term.
    """
    start = complex(alpha * (q @ u) if near is None else near)
    if start == 0:
        raise OptionError("alpha q.u is 0: the term makes no eigenvector of its own")
    # From a real start all stays real; a complex pair is found from beside the axis.
    for value in (start, start * (1 + 0.3j)):
        found = _newton(F, u, q, alpha, value)
        if found is not None:
            return found
    raise OptionError(
        "the term is too weak to make an eigenvector of its own (alpha q.u = "
        f"{alpha * (q @ u):.2g}): use a larger strength"
    )


def _newton(
    F: Matrix | Factors, u: Vector, q: Vector, alpha: float, value: complex
) -> TopPair | None:
    with np.errstate(all="ignore"):  # a run that leaves the finite numbers has failed
        for _ in range(40):
            solve = _resolvent(F, value)
            solved = solve(u)
            reach = q @ solved
            step = (reach - alpha * reach**2) / (q @ solve(solved))
            value = complex(value - step)
            if not np.isfinite(value):
                return None
            if abs(step) <= 1e-13 * abs(value):
                phase = complex(u @ solved)
                vector = solved * (abs(phase) / phase) / np.linalg.norm(solved)
                return TopPair(value, np.asarray(vector, dtype=complex))
    return None


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


def first_crossing(
    mean: Callable[[float], float], start: float, cosine: float, most: float = 1e12
) -> float | None:
    """The smallest strength from 0 at which a mean cosine is `cosine`, by a grid and bisection.

    Parameters
    ----------
    mean
        Mean signed cosine at a strength.
    start
        A strength that matters: as large as the states.
    cosine
        Wanted, in (-1, 1).
    most
        Strengths beyond this many times `start` are not tried.

    Raises
    ------
    OptionError
        The cosine is not in (-1, 1).
    """
    if not -1 < cosine < 1:
        raise OptionError(f"target cosine is {cosine}; it lies between -1 and 1, both excluded")
    if mean(0.0) >= cosine:
        return 0.0
    high = start
    while high > 0 and mean(high) < cosine:
        high *= 2
        if not np.isfinite(high) or high > most * start:
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
