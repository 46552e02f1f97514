"""How much the tokens of a prompt have become one: the collapse measures, in one table.

X (n, d) holds the tokens of one prompt as rows; no function forms an (n, n) array of differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError
from eigenlens.measure.alignment import token_norms
from eigenlens.measure.pairs import anisotropy, dirichlet_energy


class _Tokens:
    """The states of one prompt in float64, and what several measures have in common."""

    def __init__(self, X: Float[np.ndarray, "n d"]) -> None:
        self.wide = np.asarray(X, dtype=np.float64)
        self.norms = token_norms(self.wide)  # refuses NaN and inf
        self.precise = X.dtype == np.float64
        self.n = int(X.shape[0])

    @cached_property
    def mean(self) -> Float[np.ndarray, "d"]:
        """The mean token."""
        return np.asarray(self.wide.mean(axis=0))

    @cached_property
    def centred(self) -> Float[np.ndarray, "n d"]:
        """Tokens minus their mean."""
        return np.asarray(self.wide - self.mean)

    @cached_property
    def deviation(self) -> float:
        """``|X - 1 xbar^T|_F``."""
        return _length(self.centred.ravel())

    @cached_property
    def sigma(self) -> Float[np.ndarray, "k"]:
        """Singular values, descending."""
        wide = self.wide
        if self.precise:
            return np.asarray(np.linalg.svd(wide, compute_uv=False))
        gram = wide @ wide.T if wide.shape[0] <= wide.shape[1] else wide.T @ wide
        return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)))


def _length(x: Float[np.ndarray, "n"]) -> float:
    return math.sqrt(float(x @ x))


def _ratio(numerator: float, denominator: float) -> float:
    """NaN for 0/0, inf for x/0."""
    if denominator:
        return numerator / denominator
    return float("inf") if numerator else float("nan")


def _norm_1_inf(X: Float[np.ndarray, "n d"]) -> float:
    absolute = np.abs(X)
    return math.sqrt(float(absolute.sum(axis=0).max()) * float(absolute.sum(axis=1).max()))


def _cosine(t: _Tokens) -> float:
    if t.n < 2 or not t.norms.all():
        return float("nan")
    total = (1.0 / t.norms) @ t.wide
    return min(1.0, (float(total @ total) - t.n) / (t.n * (t.n - 1)))  # above 1 by rounding only


def _rank_residual(t: _Tokens) -> float:
    return _ratio(_norm_1_inf(t.centred), _norm_1_inf(t.wide))


def _frobenius_residual(t: _Tokens) -> float:
    return _ratio(t.deviation, _length(t.norms))


def _high_low_ratio(t: _Tokens) -> float:
    return _ratio(t.deviation, math.sqrt(t.n) * _length(t.mean))


def _effective_rank(t: _Tokens) -> float:
    if not t.sigma.any():
        return float("nan")
    p = t.sigma / t.sigma.sum()
    p = p[p > 0]
    return math.exp(-float(p @ np.log(p)))


def _stable_rank(t: _Tokens) -> float:
    return _ratio(float(t.sigma @ t.sigma), float(t.sigma[0]) ** 2)


def _participation_ratio(t: _Tokens) -> float:
    squares = t.sigma**2
    return _ratio(float(squares.sum()) ** 2, float(squares @ squares))


def cosine(X: Float[np.ndarray, "n d"]) -> float:
    """Mean cosine of two different tokens, ``(|sum u|^2 - n) / (n (n - 1))``, u unit tokens; O(nd).

    In [-1/(n-1), 1]; NaN for one token, or where a token is zero.
    """
    return _cosine(_Tokens(X))


def rank_residual(X: Float[np.ndarray, "n d"]) -> float:
    """``|X - 1 xbar^T| / |X|``, ``|.| = sqrt(|.|_1 |.|_inf)`` (Dong et al. 2021); O(nd).

    0 when all tokens are equal, at most 2; NaN for zero states. xbar is the mean token.
    """
    return _rank_residual(_Tokens(X))


def frobenius_residual(X: Float[np.ndarray, "n d"]) -> float:
    """``|X - 1 xbar^T|_F / |X|_F``, in [0, 1] (Wu et al. 2024, made relative); O(nd)."""
    return _frobenius_residual(_Tokens(X))


def high_low_ratio(X: Float[np.ndarray, "n d"]) -> float:
    """``|X - DC|_F / |DC|_F``, DC the mean token in every row (Wang et al. 2022); O(nd).

    0 when all tokens are equal, infinite when they balance to 0.
    """
    return _high_low_ratio(_Tokens(X))


def singular_values(X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "k"]:
    """Singular values of the states, descending; O(n d min(n, d)).

    States of float32 or narrower carry rounding of 6e-8 sigma_1, more than what is lost by the
    eigenvalues of the smaller Gram matrix in float64 (1.5e-8 sigma_1), which cost a quarter of
    an SVD. float64 states get the SVD.
    """
    return _Tokens(X).sigma


def effective_rank(X: Float[np.ndarray, "n d"]) -> float:
    """``exp(-sum p log p)``, ``p = sigma / sum sigma`` (Roy and Vetterli 2007).

    In [1, min(n, d)]; NaN for zero states.
    """
    return _effective_rank(_Tokens(X))


def stable_rank(X: Float[np.ndarray, "n d"]) -> float:
    """``|X|_F^2 / |X|_2^2``, in [1, min(n, d)] (Rudelson and Vershynin 2007)."""
    return _stable_rank(_Tokens(X))


def participation_ratio(X: Float[np.ndarray, "n d"]) -> float:
    """``(sum s)^2 / sum s^2``, s the squared singular values of X, in [1, min(n, d)].

    The mean token is left in, as in the ranks above, so that equal tokens give 1. (Gao et al.
    2017 use it of a covariance: pass ``X - X.mean(axis=0)`` for theirs.)
    """
    return _participation_ratio(_Tokens(X))


@dataclass(frozen=True)
class Metric:
    """One row of the table of collapse measures.

    Attributes
    ----------
    name
        Key in the output.
    function
        The measure of X (``tokens``), of X and A (``attention``) or of several X (``prompts``).
    needs
        Which of the three.
    formula, source
        For the documentation.
    bounds
        Smallest and largest value for n tokens of dimension d.
    collapsed
        Value when all tokens are equal.
    """

    name: str
    function: Callable[..., float]
    needs: Literal["tokens", "attention", "prompts"]
    formula: str
    source: str
    bounds: Callable[[int, int], tuple[float, float]]
    collapsed: float


def _from(low: float, high: float) -> Callable[[int, int], tuple[float, float]]:
    return lambda n, d: (low, high)


def _rank_bounds(n: int, d: int) -> tuple[float, float]:
    return 1.0, float(min(n, d))


_INF = float("inf")
_ROWS = (
    Metric(
        "cosine",
        cosine,
        "tokens",
        "1/(n(n-1)) sum_{i != j} x_i.x_j / (|x_i| |x_j|)",
        "mean pairwise cosine",
        lambda n, d: (-1.0 / max(n - 1, 1), 1.0),
        1.0,
    ),
    Metric(
        "rank_residual",
        rank_residual,
        "tokens",
        "|X - 1 xbar^T| / |X|, |.| = sqrt(|.|_1 |.|_inf)",
        "Dong et al. 2021",
        _from(0.0, 2.0),
        0.0,
    ),
    Metric(
        "frobenius_residual",
        frobenius_residual,
        "tokens",
        "|X - 1 xbar^T|_F / |X|_F",
        "Wu et al. 2024",
        _from(0.0, 1.0),
        0.0,
    ),
    Metric(
        "high_low_ratio",
        high_low_ratio,
        "tokens",
        "|X - DC|_F / |DC|_F",
        "Wang et al. 2022",
        _from(0.0, _INF),
        0.0,
    ),
    Metric(
        "effective_rank",
        effective_rank,
        "tokens",
        "exp(-sum p log p), p = sigma / sum sigma",
        "Roy and Vetterli 2007",
        _rank_bounds,
        1.0,
    ),
    Metric(
        "stable_rank",
        stable_rank,
        "tokens",
        "|X|_F^2 / |X|_2^2",
        "Rudelson and Vershynin 2007",
        _rank_bounds,
        1.0,
    ),
    Metric(
        "participation_ratio",
        participation_ratio,
        "tokens",
        "(sum sigma^2)^2 / sum sigma^4",
        "Gao et al. 2017",
        _rank_bounds,
        1.0,
    ),
    Metric(
        "dirichlet_energy",
        dirichlet_energy,
        "attention",
        "1/2 sum_ij A_ij |x_i - x_j|^2",
        "Cai and Wang 2020",
        _from(0.0, _INF),
        0.0,
    ),
    Metric(
        "anisotropy",
        anisotropy,
        "prompts",
        "mean cosine of tokens of different prompts",
        "Ethayarajh 2019",
        _from(-1.0, 1.0),
        1.0,
    ),
)

METRICS: dict[str, Metric] = {row.name: row for row in _ROWS}
TOKEN_METRICS = tuple(row.name for row in _ROWS if row.needs == "tokens")

_ON_TOKENS: dict[str, Callable[[_Tokens], float]] = {
    "cosine": _cosine,
    "rank_residual": _rank_residual,
    "frobenius_residual": _frobenius_residual,
    "high_low_ratio": _high_low_ratio,
    "effective_rank": _effective_rank,
    "stable_rank": _stable_rank,
    "participation_ratio": _participation_ratio,
}


def collapse(X: Float[np.ndarray, "n d"], names: Sequence[str] = TOKEN_METRICS) -> dict[str, float]:
    """The measures of one prompt's tokens by name; what they share is computed once.

    Raises
    ------
    OptionError
        A name that is not a measure of tokens alone.
    NumericsError
        A token holds a NaN or an infinity.
    """
    unknown = [name for name in names if name not in TOKEN_METRICS]
    if unknown:
        raise OptionError(
            f"collapse measure {unknown[0]!r} is unknown or needs more than the tokens; use "
            f"{', '.join(TOKEN_METRICS)}"
        )
    tokens = _Tokens(X)
    return {name: _ON_TOKENS[name](tokens) for name in names}
