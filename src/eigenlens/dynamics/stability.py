"""Local stability of a state from the Jacobian of the map itself, matrix-free."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Complex, Float

States = Float[np.ndarray, "s n d"]

DENSE_LIMIT = 600
"""Tangent dimensions n d up to which the whole Jacobian is formed."""


def jacobian(
    step: Callable[[States], States], X: Float[np.ndarray, "n d"], sign: float = 1.0
) -> Float[np.ndarray, "m m"]:
    """The Jacobian of `step` at X on the product of the tokens' tangent spaces, (n d, n d).

    By central differences, all directions in one batch: an error of about 1e-10 in float64 for a
    smooth map. Tokens keep their length under the map, so motion along a token is projected out
    (it appears as n zero eigenvalues).

    Parameters
    ----------
    step
        The map of states (s, n, d).
    X
        A state with ``step(X) = sign X``.
    sign
        -1 for a state that flips.
    """
    n, d = X.shape
    directions = np.eye(n * d).reshape(n * d, n, d)
    return np.asarray(_products(step, X, directions, sign).reshape(n * d, n * d).T)


def _products(
    step: Callable[[States], States],
    X: Float[np.ndarray, "n d"],
    directions: Float[np.ndarray, "m n d"],
    sign: float,
) -> Float[np.ndarray, "m n d"]:
    U = X / np.linalg.norm(X, axis=-1, keepdims=True)

    def tangent(V: Float[np.ndarray, "m n d"]) -> Float[np.ndarray, "m n d"]:
        return np.asarray(V - np.sum(V * U, axis=-1, keepdims=True) * U)

    inward = tangent(directions)
    h = np.finfo(float).eps ** 0.2 * np.linalg.norm(X, axis=-1).mean()
    # Fourth order: the truncation error then stays below the rounding error of the difference.
    ahead = 8 * (step(X + h * inward) - step(X - h * inward))
    ahead -= step(X + 2 * h * inward) - step(X - 2 * h * inward)
    return sign * tangent(ahead / (12 * h))


def leading_multipliers(
    step: Callable[[States], States], X: Float[np.ndarray, "n d"], k: int = 4, sign: float = 1.0
) -> Complex[np.ndarray, "k"]:
    """The k multipliers of largest modulus of the Jacobian at X: below 1 all, X is stable.

    The whole Jacobian up to `DENSE_LIMIT` dimensions, else Arnoldi on products with it.
    """
    size = X.size
    if size <= DENSE_LIMIT:
        values = np.linalg.eigvals(jacobian(step, X, sign)).astype(complex)
    else:
        from scipy.sparse.linalg import LinearOperator, eigs

        def product(v: Float[np.ndarray, "m"]) -> Float[np.ndarray, "m"]:
            return _products(step, X, v.reshape(1, *X.shape), sign).ravel()

        start = np.random.default_rng(0).standard_normal(size)
        operator = LinearOperator((size, size), matvec=product, dtype=float)
        values = eigs(operator, k=k, which="LM", v0=start, return_eigenvectors=False, tol=1e-6)
    return np.asarray(values[np.argsort(-np.abs(values), kind="stable")][:k])
