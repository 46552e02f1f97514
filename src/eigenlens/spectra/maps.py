"""The matrix whose spectrum is asked for, kept as factors as long as possible.

A layer's operator is ``A = L R`` with ``L`` (d, r) and ``R`` (r, d): r is at most
``n_kv_heads * head_dim``, much smaller than d under grouped-query attention. Its non-zero spectrum
is that of the r x r core ``R L``. Only the folded operator of a post-norm layer has no such form
and is kept dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Inexact

from eigenlens.circuit.circuit import Norm, OVCircuit
from eigenlens.errors import OptionError

OPERATORS = ("raw", "folded")
"""`raw`: F alone, output scale included. `folded`: with the gains of the norms around it."""

_DENSE_NORM_LIMIT = 64  # below this size an SVD is cheaper than starting a Lanczos process


@dataclass(frozen=True)
class LowRank:
    """``A = left @ right``; nothing larger than a factor or the core is formed unless asked for."""

    left: Float[np.ndarray, "d r"]
    right: Float[np.ndarray, "r d"]

    @property
    def d(self) -> int:
        """Dimension of the space A acts on."""
        return int(self.left.shape[0])

    @property
    def rank_bound(self) -> int:
        """Largest rank that the shapes allow, min(r, d)."""
        return min(int(self.left.shape[1]), self.d)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Compute dtype."""
        return self.left.dtype

    def matvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A x`` for one vector or a block of columns, O(d r) each."""
        return np.asarray(self.left @ (self.right @ x))

    def rmatvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A^T x`` for one vector or a block of columns, O(d r) each."""
        return np.asarray(self.right.T @ (self.left.T @ x))

    def dense(self) -> Float[np.ndarray, "d d"]:
        """A itself, O(d^2 r)."""
        return np.asarray(self.left @ self.right)

    def core(self) -> Float[np.ndarray, "r r"]:
        """``R L``, whose spectrum is the non-zero spectrum of A, O(d r^2)."""
        return np.asarray(self.right @ self.left)

    def frobenius_norm(self) -> float:
        """``|A|_F`` from the two Gram matrices, O(d r^2), A is not formed."""
        gram = np.vdot(self.left.T @ self.left, self.right @ self.right.T)
        return float(np.sqrt(max(float(gram), 0.0)))

    def row_space(self) -> Float[np.ndarray, "d r"]:
        """Orthonormal basis of a space that contains the row space; its complement is in ker A."""
        q, _ = np.linalg.qr(self.right.T)
        return np.asarray(q)


@dataclass(frozen=True)
class Full:
    """A dense operator: the folded post-norm layer, or a matrix of the user's own."""

    matrix: Float[np.ndarray, "d d"]

    @property
    def d(self) -> int:
        """Dimension of the space A acts on."""
        return int(self.matrix.shape[0])

    @property
    def rank_bound(self) -> int:
        """d: the shape says nothing about a kernel."""
        return self.d

    @property
    def dtype(self) -> np.dtype[Any]:
        """Compute dtype."""
        return self.matrix.dtype

    def matvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A x`` for one vector or a block of columns."""
        return np.asarray(self.matrix @ x)

    def rmatvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A^T x`` for one vector or a block of columns."""
        return np.asarray(self.matrix.T @ x)

    def dense(self) -> Float[np.ndarray, "d d"]:
        """A itself."""
        return self.matrix

    def core(self) -> Float[np.ndarray, "d d"]:
        """A itself: there is no smaller core."""
        return self.matrix

    def frobenius_norm(self) -> float:
        """``|A|_F``."""
        return float(np.linalg.norm(self.matrix))

    def row_space(self) -> Float[np.ndarray, "d d"]:
        """The whole space."""
        return np.eye(self.d, dtype=self.dtype)


LinearMap = LowRank | Full


def spectral_norm(a: LinearMap, seed: int = 0) -> float:
    """``|A|_2``, the largest singular value.

    An SVD for small matrices, else a Lanczos process on ``A^T A`` with a seeded start; the value
    converges long before the vector, so a flat top of the spectrum does no harm.
    """
    if a.rank_bound <= _DENSE_NORM_LIMIT or a.d <= _DENSE_NORM_LIMIT:
        if isinstance(a, LowRank):  # the small factors of two QRs carry all singular values
            left: np.ndarray = np.asarray(np.linalg.qr(a.left, mode="r"))
            right: np.ndarray = np.asarray(np.linalg.qr(a.right.T, mode="r"))
            return float(np.linalg.norm(left @ right.T, 2))
        return float(np.linalg.norm(a.matrix, 2))
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    gram = LinearOperator(
        (a.d, a.d), matvec=lambda x: a.rmatvec(a.matvec(np.ravel(x))), dtype=a.dtype
    )
    start = np.random.default_rng(seed).standard_normal(a.d).astype(a.dtype)
    tolerance = 100 * float(np.finfo(a.dtype).eps)
    try:
        top = eigsh(gram, k=1, v0=start, tol=tolerance, return_eigenvectors=False)
    except ArpackError:
        return float(np.linalg.norm(a.dense(), 2))
    return float(np.sqrt(max(float(top[0]), 0.0)))


def build_factors(circuit: OVCircuit, operator: str = "raw", dtype: str = "float64") -> LowRank:
    """What attention adds to a token, as factors: output scale and norm gains included.

    Linear in the heads, so `build_factors(circuit.head(i))` summed over i is the layer's own.

    Parameters
    ----------
    circuit
        The layer, or one head of it.
    operator
        ``raw``: ``diag(s) F``, s the output scale. ``folded``: ``diag(s) diag(g_out) F diag(g) P``
        for a layer whose norm precedes the values, ``diag(g) P diag(s) F`` for a post-norm layer
        (P removes the mean under LayerNorm and is the identity under RMSNorm). The division by the
        token's own norm is no part of it: it depends on the token.
    dtype
        Compute dtype, ``float64`` or ``float32``; 16-bit weights are widened first.

    Raises
    ------
    OptionError
        `operator` is unknown, or ``folded`` is asked for a layer whose norm is not known.
    """
    if operator not in OPERATORS:
        raise OptionError(f"operator {operator!r} is unknown; use one of {', '.join(OPERATORS)}")
    left = circuit.grouped_output(dtype)
    right = circuit.value(dtype)
    where = f"{circuit.stack} layer {circuit.layer}"
    folded = operator == "folded"
    post = circuit.placement == "post"
    if folded and not post:
        norm = _required(circuit.norm_in, f"{where}: the norm before the values")
        right = _apply_norm_right(norm, right)
        if circuit.placement == "sandwich":
            out = _required(circuit.norm_out, f"{where}: the norm after the output projection")
            left = np.asarray(out.linear(left), dtype=left.dtype)
    scale = np.asarray(circuit.output_scale, dtype=left.dtype)
    if scale.ndim or float(scale) != 1.0:
        left = left * (scale[:, None] if scale.ndim else scale)
    if folded and post:
        norm = _required(circuit.norm_out, f"{where}: the norm after the residual sum")
        left = np.asarray(norm.linear(left), dtype=left.dtype)
    return LowRank(left, right)


def build_map(circuit: OVCircuit, operator: str = "raw", dtype: str = "float64") -> LinearMap:
    """The layer's map A: ``1 + lambda`` is a multiplier of the layer under every operator.

    That is `build_factors`, except for the folded post-norm layer, whose norm acts on the residual
    as well: ``A = diag(g) P (I + diag(s) F) - I``.

    Raises
    ------
    OptionError
        As `build_factors`.
    """
    factors = build_factors(circuit, operator, dtype)
    if operator == "raw" or circuit.placement != "post" or circuit.norm_out is None:
        return factors
    eye = np.eye(factors.d, dtype=factors.dtype)
    return Full(np.asarray(circuit.norm_out.linear(eye), dtype=eye.dtype) + factors.dense() - eye)


def _required(norm: Norm | None, what: str) -> Norm:
    if norm is None:
        raise OptionError(f"{what} is not known, so nothing can be folded; use --operator raw")
    return norm


def _apply_norm_right(norm: Norm, rows: Float[np.ndarray, "r d"]) -> Float[np.ndarray, "r d"]:
    """``X diag(g) P``: the linear part of a norm that precedes X."""
    rows = rows * np.asarray(norm.gain, dtype=rows.dtype)[None, :]
    if norm.kind == "layernorm":
        rows = rows - rows.mean(axis=1, keepdims=True)
    return rows
