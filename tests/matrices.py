"""Matrices with a known spectrum, the oracles' material."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize


@dataclass(frozen=True)
class Known:
    """A matrix, its exact eigenvalues, and how far rounding may move them (times eps |A|)."""

    matrix: np.ndarray
    values: np.ndarray
    condition: float = 1e2


def blocks(values: list[complex]) -> np.ndarray:
    """Real block-diagonal matrix with these eigenvalues; a complex one stands for its pair."""
    parts = []
    for v in values:
        z = complex(v)
        parts.append(np.array([[z.real, z.imag], [-z.imag, z.real]]) if z.imag else [[z.real]])
    return scipy.linalg.block_diag(*parts)


def with_pairs(values: list[complex]) -> np.ndarray:
    """The eigenvalues that `blocks` gives, pairs written out."""
    out: list[complex] = []
    for v in values:
        z = complex(v)
        out += [z, z.conjugate()] if z.imag else [z]
    return np.array(out)


def similar(matrix: np.ndarray, seed: int, spread: float = 3.0) -> np.ndarray:
    """``S M S^-1`` with a random S of condition `spread`."""
    rng = np.random.default_rng(seed)
    d = matrix.shape[0]
    left = np.linalg.qr(rng.standard_normal((d, d)))[0]
    right = np.linalg.qr(rng.standard_normal((d, d)))[0]
    s = (left * np.geomspace(1, spread, d)) @ right
    return s @ matrix @ np.linalg.inv(s)


def prescribed(values: list[complex], seed: int = 0) -> Known:
    """A non-normal matrix with exactly these eigenvalues."""
    return Known(similar(blocks(values), seed), with_pairs(values))


def jordan(value: float, size: int, rest: list[complex], seed: int = 0) -> Known:
    """A Jordan block of `size` at `value` beside `rest`; rounding splits it by eps^(1/size)."""
    block = np.eye(size) * value + np.eye(size, k=1)
    matrix = scipy.linalg.block_diag(block, blocks(rest))
    values = np.concatenate([np.full(size, value, dtype=complex), with_pairs(rest)])
    return Known(similar(matrix, seed), values, condition=np.inf)


def non_normal(d: int, seed: int = 0) -> Known:
    """Upper triangular with a large strict part: eigenvalues on the diagonal, ill-conditioned."""
    rng = np.random.default_rng(seed)
    diagonal = np.linspace(-2, 2, d)
    matrix = np.diag(diagonal) + np.triu(rng.standard_normal((d, d)), 1)
    return Known(matrix, diagonal.astype(complex), condition=1e9)


KINDS: dict[str, Known] = {
    "real": prescribed([1.5, 1.0, 0.4, -0.2, -0.7, 0.05, -1.1, 0.3]),
    "pairs": prescribed([0.9 + 0.5j, -0.4 + 1.7j, 0.3, -0.6 + 0.1j, 1.1]),
    "repeated": prescribed([2.0, 2.0, 1.0, -0.5, 0.25]),
    "plus_minus_tie": prescribed([1.5, -1.5, 0.5, 0.2]),
    "rank_deficient": prescribed([-0.3, -0.6, -0.9, 0, 0, 0, 0, 0]),
    "jordan2": jordan(1.0, 2, [0.3, -0.2 + 0.4j]),
    "jordan3": jordan(-2.5, 3, [0.3]),
    "non_normal": non_normal(24),
    "one": Known(np.array([[0.7]]), np.array([0.7 + 0j])),
}


def distance(found: np.ndarray, truth: np.ndarray) -> float:
    """Largest distance after the best one-to-one matching of two lists of eigenvalues."""
    cost = np.abs(found[:, None] - truth[None, :])
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    return float(cost[rows, columns].max())
