"""Which eigenvalue leads: the three orders, and which one suits a placement of the norm.

The layer iterates ``I + F``, not ``F``. They share their eigenvectors, but which of them tokens are
pulled to depends on how the state is normalised on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Complex, Float, Int

from eigenlens.errors import OptionError


@dataclass(frozen=True)
class Order:
    """One rule of what leads.

    Attributes
    ----------
    name
        The word that users type.
    key
        Eigenvalues to keys; the largest key leads. All keys are 1-Lipschitz, so an error bar on
        an eigenvalue is one on its key.
    meaning
        One line for tables and help.
    one
        What the key adds to an eigenvalue, 1 or nothing: keys round off relative to it as well.
    """

    name: str
    key: Callable[[np.ndarray], np.ndarray]
    meaning: str
    one: float = 0.0


def _residual(values: np.ndarray) -> np.ndarray:
    return np.abs(1.0 + values)


def _real(values: np.ndarray) -> np.ndarray:
    return np.real(values)


ORDERS: dict[str, Order] = {
    o.name: o
    for o in (
        Order("residual", _residual, "|1 + lambda|: state normalised after each step", 1.0),
        Order("real", _real, "Re lambda: pre-norm residual stream, in the long run"),
        Order("modulus", np.abs, "|lambda|: F alone, without the residual"),
    )
}

_BY_PLACEMENT = {"post": "residual", "pre": "real", "parallel": "real", "sandwich": "real"}


def resolve_order(order: str, placement: str | None) -> Order:
    """The order itself, or for ``auto`` the one that suits the norm's placement.

    Post-norm layers (and plain matrices, whose placement is None: the model of arXiv 2605.25619)
    get ``residual``; pre-norm, parallel and sandwich layers get ``real``.

    Raises
    ------
    OptionError
        The name is unknown.
    """
    if order == "auto":
        return ORDERS[_BY_PLACEMENT[placement] if placement is not None else "residual"]
    if order not in ORDERS:
        raise OptionError(f"order {order!r} is unknown; use one of auto, {', '.join(ORDERS)}")
    return ORDERS[order]


_LARGEST_ONE = 100  # a power of two beyond which adding a number of order 1 is lost in any dtype


def scaled(order: Order, exponent: int) -> Order:
    """The order of the eigenvalues of A for those of ``2^-exponent A``: the 1 shrinks likewise."""
    if order.one == 0 or exponent == 0:
        return order
    one = 2.0 ** float(np.clip(-exponent, -1000, _LARGEST_ONE))
    return replace(order, key=lambda values: np.abs(one + values), one=one)


def leading_first(values: Complex[np.ndarray, "n"], order: Order) -> Int[np.ndarray, "n"]:
    """Indices that sort eigenvalues by descending key, ties by real, then imaginary part.

    Keys that differ by rounding only count as ties, so that the sequence does not depend on the
    machine: a chain of keys, each within ``64 eps`` of the next (relative to the largest modulus,
    and to the 1 where the key adds one), is one tie. Conjugates stand together (a tie in the real
    part goes by ``|Im|`` first), the one with positive imaginary part ahead.
    """
    if values.size == 0:
        return np.zeros(0, dtype=np.int64)
    keys = order.key(values)
    eps, largest = float(np.finfo(values.dtype).eps), float(np.abs(values).max())
    slack = 64 * eps * max(order.one, largest)
    by_key = np.argsort(-keys, kind="stable")
    level = np.zeros(values.size, dtype=np.int64)
    level[1:] = np.cumsum(-np.diff(keys[by_key]) > slack)
    real = _snap(values.real[by_key], 64 * eps * largest)
    imag = values.imag[by_key]
    rank = np.lexsort((-imag, -np.abs(imag), -real, level))
    return np.asarray(by_key[rank], dtype=np.int64)


def _snap(x: Float[np.ndarray, "n"], slack: float) -> Float[np.ndarray, "n"]:
    """Give numbers that form a chain of steps below `slack` one common value."""
    by_value = np.argsort(x, kind="stable")
    run = np.zeros(x.size, dtype=np.int64)
    run[1:] = np.cumsum(np.diff(x[by_value]) > slack)
    first = np.concatenate([[0], np.flatnonzero(np.diff(run)) + 1])
    out = np.empty_like(x)
    out[by_value] = x[by_value][first][run]
    return out


def whole_pairs(values: Complex[np.ndarray, "n"], k: int) -> int:
    """Smallest count >= k (or n) whose cut does not separate a conjugate pair of a sorted list."""
    k = min(k, values.size)
    if 0 < k < values.size and values[k - 1].imag > 0 and values[k] == np.conj(values[k - 1]):
        return k + 1
    return k
