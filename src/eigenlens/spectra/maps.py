"""The matrix whose spectrum is asked for, kept as factors as long as possible.

A layer's operator is ``A = L R`` with ``L`` (d, r) and ``R`` (r, d): r is at most
``n_kv_heads * head_dim``, much smaller than d under grouped-query attention. Its non-zero spectrum
is that of the r x r core ``R L``. Only the folded operator of a post-norm layer has no such form
and is kept dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float, Inexact, Int

from eigenlens.blas import of_row_blocks
from eigenlens.circuit.circuit import Norm, OVCircuit
from eigenlens.errors import NumericsError, OptionError

OPERATORS = ("raw", "folded")
"""`raw`: F alone, output scale included. `folded`: with the gains of the norms around it."""

_ROWS = 1024  # of a large factor that are narrowed at a time
_LARGE = 1 << 31  # multiplications, d r^2, from which on norms are good to six digits only


def times(
    matrix: Float[np.ndarray, "n m"], x: Inexact[np.ndarray, "m *k"]
) -> Inexact[np.ndarray, "n *k"]:
    """``matrix @ x`` without a complex copy of the real matrix: two real columns for a complex one.

    O(n m) a column; `matrix @ x` itself would widen all of the matrix first.
    """
    if not np.iscomplexobj(x) or np.iscomplexobj(matrix):
        return np.asarray(matrix @ x)
    columns = np.ascontiguousarray(x).reshape(x.shape[0], -1)
    real = np.zeros(0, dtype=columns.dtype).real.dtype
    product = np.ascontiguousarray(matrix @ columns.view(real))
    return np.asarray(product.view(columns.dtype).reshape(matrix.shape[0], *x.shape[1:]))


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
        return times(self.left, times(self.right, x))

    def rmatvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A^T x`` for one vector or a block of columns, O(d r) each."""
        return times(self.right.T, times(self.left.T, x))

    def dense(self) -> Float[np.ndarray, "d d"]:
        """A itself, O(d^2 r)."""
        return np.asarray(self.left @ self.right)

    def core(self) -> Float[np.ndarray, "r r"]:
        """``R L``, whose spectrum is the non-zero spectrum of A, O(d r^2)."""
        return np.asarray(self.right @ self.left)

    def frobenius_norm(self, exact: bool = True) -> float:
        """``|A|_F`` from the two Gram matrices, O(d r^2), A is not formed.

        Not `exact`: from the ones that the spectral norm came from, to six digits for a large map.
        """
        fit, exponent = normalised(self)
        if fit is not self:
            return restored(fit.frobenius_norm(exact), exponent)
        outer, inner = self.grams if exact else self.rough_grams
        return float(np.sqrt(max(float(np.vdot(outer, inner)), 0.0)))

    @cached_property
    def exponents(self) -> tuple[Int[np.ndarray, "r"], Int[np.ndarray, "r"]]:
        """Power of two above the largest entry of each column of L and of each row of R; kept."""
        return _exponents(self.left, 0), _exponents(self.right, 1)

    @property
    def is_zero(self) -> bool:
        """Whether a factor is zero."""
        return any(bool(_absent(side).all()) for side in self.exponents)

    @cached_property
    def grams(self) -> tuple[Float[np.ndarray, "r r"], Float[np.ndarray, "r r"]]:
        """``L^T L`` and ``R R^T``, O(d r^2); kept, since both norms come from them."""
        return np.asarray(self.left.T @ self.left), np.asarray(self.right @ self.right.T)

    @cached_property
    def rough_grams(self) -> tuple[Float[np.ndarray, "r r"], Float[np.ndarray, "r r"]]:
        """`grams` in float32 where a float64 map is so large that they would cost as the core does.

        Scaled to unit size first, so that no square leaves the range of float32.
        """
        if self.dtype.itemsize == 4 or not is_large(self) or "grams" in vars(self):
            return self.grams
        return _narrow_gram(self.left), _narrow_gram(self.right.T)

    def inner_squares(self) -> tuple[Float[np.ndarray, "r"], Float[np.ndarray, "r"]]:
        """``|L_j|^2`` and ``|R_j|^2`` of every inner index; of Gram matrices, if they are there."""
        for name in ("grams", "rough_grams"):
            if name in vars(self):
                outer, inner = getattr(self, name)
                return outer.diagonal(), inner.diagonal()

        def of_left(rows: slice) -> Float[np.ndarray, "r"]:
            return np.asarray(np.einsum("dr,dr->r", self.left[rows], self.left[rows]))

        def of_right(rows: slice) -> Float[np.ndarray, "_m"]:
            return np.asarray(np.einsum("rd,rd->r", self.right[rows], self.right[rows]))

        left = np.sum(of_row_blocks(of_left, *self.left.shape), axis=0)
        return left, np.concatenate(of_row_blocks(of_right, *self.right.shape))

    def row_space(self) -> Float[np.ndarray, "d m"]:
        """Orthonormal basis of the row space, whose complement is ker A; O(d r^2).

        Singular values that are rounding count as 0: a head that was pruned leaves a kernel.
        """
        fit = cast(LowRank, normalised(self)[0])  # a map in factors stays one
        q, upper = np.linalg.qr(fit.right.T)
        outer = np.asarray(np.linalg.qr(fit.left, mode="r"))
        return np.asarray(q @ _rows_of(outer @ upper.T, fit.d))


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

    @cached_property
    def exponents(self) -> Int[np.ndarray, ""]:
        """Power of two above the largest entry; kept."""
        return _exponents(self.matrix, None)

    @property
    def is_zero(self) -> bool:
        """Whether all entries are 0."""
        return bool(_absent(self.exponents))

    def matvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A x`` for one vector or a block of columns."""
        return times(self.matrix, x)

    def rmatvec(self, x: Inexact[np.ndarray, "d *m"]) -> Inexact[np.ndarray, "d *m"]:
        """``A^T x`` for one vector or a block of columns."""
        return times(self.matrix.T, x)

    def dense(self) -> Float[np.ndarray, "d d"]:
        """A itself."""
        return self.matrix

    def core(self) -> Float[np.ndarray, "d d"]:
        """A itself: there is no smaller core."""
        return self.matrix

    def frobenius_norm(self, exact: bool = True) -> float:
        """``|A|_F``."""
        fit, exponent = normalised(self)
        return restored(float(np.linalg.norm(fit.dense())), exponent)

    def row_space(self) -> Float[np.ndarray, "d m"]:
        """Orthonormal basis of the row space, as of a map in factors; O(d^3)."""
        fit, _ = normalised(self)
        return _rows_of(fit.dense(), fit.d)


LinearMap = LowRank | Full


def _narrow_gram(tall: Float[np.ndarray, "d r"]) -> Float[np.ndarray, "r r"]:
    """``X^T X`` in float32, summed over blocks of rows so that no narrow copy of X exists."""
    scale = max(float(tall.max()), -float(tall.min())) or 1.0
    total = np.zeros((tall.shape[1], tall.shape[1]), dtype=np.float32)
    for start in range(0, tall.shape[0], _ROWS):
        block = tall[start : start + _ROWS]
        narrow = np.empty_like(block, dtype=np.float32)
        np.multiply(block, 1 / scale, out=narrow, casting="same_kind")
        total += narrow.T @ narrow
    return np.asarray(total * np.float64(scale) ** 2)


def _rows_of(matrix: Float[np.ndarray, "n r"], d: int) -> Float[np.ndarray, "r m"]:
    """Orthonormal basis of the row space of what a (d, d) map has been made smaller to."""
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    floor = d * float(np.finfo(sizes.dtype).eps) * float(sizes.max(initial=0.0))
    return np.asarray(rows[sizes > floor].T)


_LARGEST_EXPONENT = {"float32": 4, "float64": 64}
"""Dtype and the power of two up to which entries are left alone: |A|^4 stays in its range."""
_UNEVEN = 8  # powers of two by which an inner index may differ from another in |L_j| / |R_j|


def is_large(a: LinearMap) -> bool:
    """Whether norms are good to six digits only, unless they are asked for exactly."""
    return a.d * a.rank_bound**2 >= _LARGE


def normalised(a: LinearMap) -> tuple[LinearMap, int]:
    """A map B and an integer e with ``A = 2^e B``, entries of B's factors of order 1.

    Powers of two are exact, so nothing but the range changes. Factors are also balanced: column j
    of L and row j of R get the same size, which leaves ``L R`` as it is but makes the core ``R L``,
    and what is small in a lifted vector, meaningful. A map that needs none of this is returned as
    it is, without a copy.

    Raises
    ------
    NumericsError
        An entry is not finite.
    """
    limit = _LARGEST_EXPONENT[a.dtype.name]
    if isinstance(a, Full):
        top = a.exponents
        exponent = int(top)
        if _absent(top) or abs(exponent) <= limit:
            return a, 0
        return Full(np.ldexp(a.matrix, -exponent)), exponent
    left, right = a.exponents
    live = ~(_absent(left) | _absent(right))
    if _absent(left).all() or _absent(right).all():
        return a, 0
    if not live.any():
        return LowRank(np.zeros_like(a.left), np.zeros_like(a.right)), 0
    ratio = (left - right)[live]
    # An inner index that only one factor uses takes no part in A, and should not set its scale.
    idle = np.where(_absent(left), right, left)[~live]
    idle_top = min(int(left[live].max()), int(right[live].max()))
    tops = abs(int(left[live].max())), abs(int(right[live].max()))
    if max(tops) <= limit and np.ptp(ratio) <= _UNEVEN and np.all(idle <= idle_top + _UNEVEN):
        return a, 0
    both = np.where(live, left + right, 0)
    exponent = int(both[live].max())
    half = np.where(live, (both - exponent) // 2, 0)
    other = np.where(live, both - exponent - half, 0)
    shift_left = np.where(_absent(left), 0, half - left)
    shift_right = np.where(_absent(right), 0, other - right)
    return LowRank(np.ldexp(a.left, shift_left), np.ldexp(a.right, shift_right[:, None])), exponent


_NOTHING = -(1 << 20)  # the exponent of a column of zeros


def _absent(exponents: Int[np.ndarray, "*n"]) -> Bool[np.ndarray, "*n"]:
    return np.asarray(exponents == _NOTHING)


def _exponents(x: Float[np.ndarray, "n m"], axis: int | None) -> Int[np.ndarray, "*k"]:
    """Power of two above the largest entry of each column (axis 0), row (axis 1) or of all."""

    def largest(rows: slice) -> Float[np.ndarray, "*k"]:
        block = x[rows]
        return np.asarray(np.maximum(block.max(axis=axis), -block.min(axis=axis)))

    found = of_row_blocks(largest, *x.shape)
    size = np.concatenate(found) if axis == 1 else np.max(found, axis=0)
    if not np.isfinite(size).all():
        raise NumericsError(
            f"F has factors that are not finite in {x.dtype.name}; check the weights, or use "
            "--dtype float64"
        )
    return np.asarray(np.where(size > 0, np.frexp(size)[1], _NOTHING), dtype=np.int32)


def restored(x: float, exponent: int) -> float:
    """``2^exponent x`` for the norm of a map that `normalised` scaled.

    Raises
    ------
    NumericsError
        It is beyond the range of float64.
    """
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        raise NumericsError(
            f"F has a norm near 1e{math.log10(x) + exponent * math.log10(2):.0f}, beyond the range "
            "of float64; scale the weights down"
        ) from None


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
