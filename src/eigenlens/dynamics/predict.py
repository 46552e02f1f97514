"""What the spectrum of F foretells about iterating a layer with shared weights.

Formulas: local analysis of ``x_i <- N(x_i + sum_j A_ij F x_j)`` around equal tokens (logits from
content alone), and of the pre-norm stream ``h <- h + F N(h)``; multipliers ``m_k = 1 + lambda_k``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.dynamics.maps import Form
from eigenlens.dynamics.masks import Mask
from eigenlens.spectra.orders import ORDERS, leading_first

Values = Complex[np.ndarray, "d"]


@dataclass(frozen=True)
class Prediction:
    """What should be seen once tokens are nearly equal, for a leader without a tie.

    Attributes
    ----------
    label
        `consensus`, `rotation`, `flip`, or `none` where consensus is not stable.
    disagreement_rate
        Factor per step by which tokens come together; under full attention ``1/|m_1|``, causal
        ``max_{i >= 2, k >= 2} |1 + mu_i lambda_k| / |m_1|``. None for a stream.
    alignment_rate
        Factor per step by which the angle to the target shrinks, ``|m_2|/|m_1|``. None for a
        stream.
    exponent
        Stream only: the angle to the target shrinks as ``t^exponent``,
        ``-(1 - Re lambda_2 / Re lambda_1)``.
    angle_per_step
        ``arg m_1`` (rad per step), or ``Im/Re`` of lambda_1 (rad per unit of log step) for a
        stream; None for a real leader.
    stable
        Whether nearly equal tokens stay together and reach the target.
    """

    label: str
    disagreement_rate: float | None
    alignment_rate: float | None
    exponent: float | None
    angle_per_step: float | None
    stable: bool

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def predict(values: Values, form: Form, mask: Mask, n: int) -> Prediction:
    """The prediction from all d eigenvalues of F (the kernel's zeros included)."""
    if form == "stream":
        return _stream(values[leading_first(values, ORDERS["real"])])
    values = values[leading_first(values, ORDERS["residual"])]
    m = 1.0 + values
    rest = _others(values)
    top = abs(m[0])
    if top == 0:
        return Prediction("none", None, None, None, None, stable=False)
    mu = mask.self_weights(n)[1:]
    spread = np.abs(1.0 + np.outer(mu, values[rest])) if n > 1 else np.zeros((1, 1))
    disagreement = float(spread.max() / top) if spread.size else 0.0
    alignment = float(np.abs(m[rest]).max() / top) if rest.size else 0.0
    stable = bool(disagreement < 1 and alignment < 1)
    angle = abs(math.atan2(m[0].imag, m[0].real)) if values[0].imag else None
    label = "rotation" if angle is not None else "flip" if m[0].real < 0 else "consensus"
    return Prediction(label if stable else "none", disagreement, alignment, None, angle, stable)


def _others(values: Values) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of all eigenvalues but the leader, and its conjugate."""
    keep = np.arange(1, len(values))
    if values[0].imag:
        conjugate = int(np.argmin(np.abs(values[1:] - values[0].conj())))
        keep = np.delete(keep, conjugate)
    return keep


def _stream(values: Values) -> Prediction:
    lead = values[0]
    if lead.real <= 0:
        return Prediction("none", None, None, None, None, stable=False)
    rest = _others(values)
    exponent = float(values[rest].real.max() / lead.real - 1.0) if rest.size else -1.0
    angle = float(abs(lead.imag / lead.real)) if lead.imag else None
    label = "consensus" if angle is None else "rotation"
    return Prediction(label, None, None, exponent, angle, stable=exponent < 0)


def consensus_multipliers(values: Values, mask: Mask, n: int) -> Complex[np.ndarray, "m"]:
    """Jacobian spectrum at consensus on v_1: ``(1 + mu_j lambda_k) / (1 + lambda_1)``, k >= 2.

    `values` are the d eigenvalues of F with the real one whose consensus it is in front; (n (d-1),)
    numbers, logits from content alone.
    """
    mu = mask.self_weights(n)
    return np.asarray((1.0 + np.outer(mu, values[1:])) / (1.0 + values[0])).ravel()


def bipartite_multipliers(
    values: Values, k: int, plus: int, minus: int, logit: float
) -> Complex[np.ndarray, "m"] | None:
    """Jacobian spectrum at ``x_i = s_i v_k`` for one head and full attention.

    With b the QK logit of v_k with itself (temperature and radius included), the groups of sizes
    n+ and n- give ``alpha = n+ e^b / (n+ e^b + n- e^-b)``, beta likewise, and
    ``D = diag(1 + lambda_k (2 alpha - 1), 1 + lambda_k (2 beta - 1))``. Between the groups the
    spectrum is that of ``D^-1 (I + lambda_l [[alpha, 1-alpha], [1-beta, beta]])``, l != k; within
    a group ``1/D``.

    Returns
    -------
    The n (d - 1) multipliers, or None where it is no equilibrium (an entry of D is not positive).
    """
    here, there = plus * math.exp(logit), minus * math.exp(-logit)
    alpha = here / (here + there)
    here, there = minus * math.exp(logit), plus * math.exp(-logit)
    beta = here / (here + there)
    lead = values[k].real
    D = np.array([1 + lead * (2 * alpha - 1), 1 + lead * (2 * beta - 1)])
    if (D <= 0).any():
        return None
    others = np.delete(values, k)
    between = [
        np.linalg.eigvals(
            (np.eye(2) + v * np.array([[alpha, 1 - alpha], [1 - beta, beta]])) / D[:, None]
        )
        for v in others
    ]
    within = [
        np.full((size - 1) * len(others), 1 / x) for size, x in zip((plus, minus), D, strict=True)
    ]
    return np.concatenate([*between, *within]).astype(complex)


def causal_position_multipliers(
    F_heads: Float[np.ndarray, "h d d"],
    weights: Float[np.ndarray, "h n n"],
    v: Float[np.ndarray, "d"],
    value: float,
) -> Complex[np.ndarray, "m"]:
    """Jacobian spectrum at causal consensus on v when the logits have a position term.

    Diagonal blocks ``(I + sum_h a^h_ii F_h) / m_1`` on the complement of v, for `weights` the
    attention matrices at consensus.
    """
    d = len(v)
    q, _ = np.linalg.qr(np.c_[v, np.eye(d)[:, : d - 1]])
    if np.linalg.matrix_rank(np.c_[v, np.eye(d)[:, : d - 1]]) < d:
        q, _ = np.linalg.qr(np.c_[v, np.eye(d)[:, 1:]])
    basis = q[:, 1:]
    blocks = []
    for i in range(weights.shape[1]):
        mixed = np.einsum("h,hde->de", weights[:, i, i], F_heads)
        blocks.append(np.linalg.eigvals(basis.T @ (np.eye(d) + mixed) @ basis) / (1 + value))
    return np.concatenate(blocks).astype(complex)
