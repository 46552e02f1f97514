"""The OV circuit of one attention layer: `F = W_O W_V`, kept as its two stored factors.

Column vectors throughout: `F` maps a token's state `x` (d,) to what attention writes when all
tokens equal `x`. Tools that write row vectors (TransformerLens) hold the transpose of this `F`:
the eigenvalues agree, their left eigenvectors are the right ones here.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Inexact

from eigenlens.arrays import check_finite, compute_dtype, is_float, upcast
from eigenlens.circuit.widening import summed, widened
from eigenlens.errors import OptionError, ShapeError
from eigenlens.shown import Told

Kind = Literal["self", "cross"]
NormKind = Literal["layernorm", "rmsnorm"]
Placement = Literal["post", "pre", "parallel", "sandwich"]

KINDS: tuple[str, ...] = ("self", "cross")
NORM_KINDS: tuple[str, ...] = ("layernorm", "rmsnorm")
PLACEMENTS: tuple[str, ...] = ("post", "pre", "parallel", "sandwich")


@dataclass(frozen=True)
class Norm:
    """A normalisation with its effective elementwise gain.

    Attributes
    ----------
    kind
        `layernorm` (centres, then scales) or `rmsnorm` (scales only).
    gain
        Effective gain: where a model multiplies by `1 + w` (Gemma), this is `1 + w`.
    bias
        Added after the gain; None where the norm has none.
    name
        The stored gain's tensor name, for messages.
    """

    kind: NormKind
    gain: Float[np.ndarray, "d"]
    bias: Float[np.ndarray, "d"] | None = None
    name: str = "norm"

    def __post_init__(self) -> None:
        if self.kind not in NORM_KINDS:
            raise OptionError(f"norm kind {self.kind!r} is unknown: allowed are {NORM_KINDS}")
        if self.gain.ndim != 1:
            raise ShapeError(f"norm {self.name!r}: gain has shape {self.gain.shape}, expected (d,)")
        if self.bias is not None and self.bias.shape != self.gain.shape:
            raise ShapeError(
                f"norm {self.name!r}: bias has shape {self.bias.shape}, "
                f"expected {self.gain.shape} like the gain"
            )
        check_finite(self.name, self.gain)
        if self.bias is not None:
            check_finite(f"{self.name} (bias)", self.bias)

    def linear(self, x: Inexact[np.ndarray, "d *k"]) -> Inexact[np.ndarray, "d *k"]:
        """The linear part without the division by the token's norm: `diag(gain) P x`.

        `P = I - 11^T/d` for a layernorm, the identity for an rmsnorm; columns of `x` are tokens.
        """
        gain = upcast(self.gain).reshape(-1, *(1,) * (x.ndim - 1))
        centred = x - x.mean(axis=0, keepdims=True) if self.kind == "layernorm" else x
        return np.asarray(gain * centred)


@dataclass(frozen=True, repr=False)
class OVCircuit(Told):
    """One layer's `F = W_O W_V` as stored factors, with biases, norms and scale beside it.

    Attributes
    ----------
    W_V
        Value projection, (n_kv_heads * head_dim, d_in); rows of one head are contiguous.
    W_O
        Output projection, (d_out, n_heads * head_dim); columns of one head are contiguous. Query
        head i reads value head `i // (n_heads // n_kv_heads)`: an interleaved repeat, not a tile.
    n_heads, n_kv_heads, head_dim
        Head geometry. `n_heads * head_dim` need not equal `d_model`.
    stack, layer, kind
        Where the circuit sits: `encoder`, `decoder`, `vision`, ...; the real 0-based index;
        `self` or `cross` (a cross circuit reads the other stack's states).
    steps
        How many times a forward pass calls these weights (ALBERT shares them), else 1.
    b_V, b_O
        Biases of the two projections, or None. They are never mixed into `F`.
    output_scale
        What the model multiplies the attention output with before the residual sum, a number or
        one a coordinate: the residual map is `I + diag(s) F`. `F` itself stays without it.
    placement
        Where norms sit: `post`, `pre`, `parallel`, `sandwich`; None when not known.
    norm_in
        The norm whose output enters the value projection (pre, parallel, sandwich).
    norm_out
        The norm on the attention output (sandwich) or on the residual sum (post).
    rectangular
        Whether a self circuit is known to read states of another width than it writes
        (MobileBERT); F then has no spectrum, only singular values.
    checked
        The factors are known to be finite and are not looked at again.

    Raises
    ------
    ShapeError
        If the factors, biases, norms or heads do not fit each other.
    NumericsError
        If a factor or bias holds NaN or infinity.

    Examples
    --------
    >>> import numpy as np
    >>> W_V, W_O = np.array([[1.0, 0.0]]), np.array([[2.0], [0.0]])
    >>> c = OVCircuit(W_V, W_O, n_heads=1, n_kv_heads=1, head_dim=1)
    >>> c.dense().tolist(), c.core().tolist()
    ([[2.0, 0.0], [0.0, 0.0]], [[2.0]])
    """

    BRIEF = ("F = W_O W_V", "heads")

    W_V: Float[np.ndarray, "r d_in"] = field(repr=False)
    W_O: Float[np.ndarray, "d_out hd"] = field(repr=False)
    n_heads: int
    n_kv_heads: int
    head_dim: int
    stack: str = "decoder"
    layer: int = 0
    kind: Kind = "self"
    steps: int = 1
    b_V: Float[np.ndarray, "r"] | None = field(default=None, repr=False)
    b_O: Float[np.ndarray, "d_out"] | None = field(default=None, repr=False)
    output_scale: float | Float[np.ndarray, "d_out"] = 1.0
    placement: Placement | None = None
    norm_in: Norm | None = field(default=None, repr=False)
    norm_out: Norm | None = field(default=None, repr=False)
    rectangular: bool = False
    checked: InitVar[bool] = False

    def __post_init__(self, checked: bool) -> None:
        where = f"{self.stack} layer {self.layer}"
        if self.kind not in KINDS:
            raise OptionError(f"{where}: kind {self.kind!r} is unknown: allowed are {KINDS}")
        if self.placement is not None and self.placement not in PLACEMENTS:
            raise OptionError(
                f"{where}: placement {self.placement!r} is unknown: allowed are {PLACEMENTS}"
            )
        for label, matrix in (("W_V", self.W_V), ("W_O", self.W_O)):
            if matrix.ndim != 2 or not is_float(matrix):
                raise ShapeError(
                    f"{where}: {label} has shape {matrix.shape} and dtype {matrix.dtype}, "
                    "expected a real floating-point matrix"
                )
        if min(self.n_heads, self.n_kv_heads, self.head_dim, self.steps) < 1:
            raise ShapeError(
                f"{where}: n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, "
                f"head_dim={self.head_dim}, steps={self.steps}: each must be at least 1"
            )
        if self.n_heads % self.n_kv_heads:
            raise ShapeError(
                f"{where}: n_heads={self.n_heads} is not a multiple of n_kv_heads="
                f"{self.n_kv_heads}: heads share values in groups of equal size"
            )
        self._fits(where)
        named = [("b_V", self.b_V), ("b_O", self.b_O)]
        if not checked:
            named += [("W_V", self.W_V), ("W_O", self.W_O)]
        for label, array in named:
            if array is not None:
                check_finite(f"{label} of {where}", array)
        check_finite(f"output_scale of {where}", np.asarray(self.output_scale))

    def _fits(self, where: str) -> None:
        r, hd = self.n_kv_heads * self.head_dim, self.n_heads * self.head_dim
        d_out, d_in = self.W_O.shape[0], self.W_V.shape[1]
        scale = np.shape(self.output_scale)
        checks = [
            ("W_V", self.W_V.shape, (r, d_in), "(n_kv_heads * head_dim, d)"),
            ("W_O", self.W_O.shape, (d_out, hd), "(d, n_heads * head_dim)"),
            ("b_V", None if self.b_V is None else self.b_V.shape, (r,), "(n_kv_heads * head_dim,)"),
            ("b_O", None if self.b_O is None else self.b_O.shape, (d_out,), "(d,)"),
            ("output_scale", scale if scale else None, (d_out,), "a number or (d,)"),
            ("norm_in gain", self.norm_in and self.norm_in.gain.shape, (d_in,), "(d,)"),
            ("norm_out gain", self.norm_out and self.norm_out.gain.shape, (d_out,), "(d,)"),
        ]
        if self.kind == "self" and not self.rectangular:
            checks.append(("W_V", self.W_V.shape, (r, d_out), "(.., d) with the d of W_O"))
        for label, shape, expected, meaning in checks:
            if shape is not None and shape != expected:
                raise ShapeError(
                    f"{where}: {label} has shape {shape}, expected {expected} = {meaning} with "
                    f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, "
                    f"head_dim={self.head_dim}"
                )

    def facts(self) -> dict[str, object]:
        """What `print` tells."""
        shared = "" if self.n_kv_heads == self.n_heads else f" ({self.n_kv_heads} for values)"
        norms = [f"{where} {n.kind}" for where, n in self._norms() if n is not None]
        scale = self.output_scale
        return {
            "F = W_O W_V": f"{self.d_model} x {self.d_in}, rank at most {self.rank_bound}",
            "W_V": f"{self.W_V.shape[0]} x {self.W_V.shape[1]}, {self.W_V.dtype}",
            "W_O": f"{self.W_O.shape[0]} x {self.W_O.shape[1]}, {self.W_O.dtype}",
            "heads": f"{self.n_heads}{shared} of {self.head_dim}",
            "steps": self.steps if self.steps > 1 else None,
            "biases": " and ".join(n for n in ("b_V", "b_O") if getattr(self, n) is not None)
            or "none",
            "output scale": scale if isinstance(scale, (int, float)) else "one a coordinate",
            "placement": self.placement,
            "norms": ", ".join(norms) or None,
        }

    def _norms(self) -> tuple[tuple[str, Norm | None], ...]:
        return ("in", self.norm_in), ("out", self.norm_out)

    @property
    def d_model(self) -> int:
        """Width of the residual stream that the circuit writes to."""
        return int(self.W_O.shape[0])

    @property
    def d_in(self) -> int:
        """Width of the states that the circuit reads; `d_model` for self attention."""
        return int(self.W_V.shape[1])

    @property
    def is_square(self) -> bool:
        """Whether F has eigenvalues: it reads states of the width that it writes."""
        return self.d_in == self.d_model

    @property
    def rank_bound(self) -> int:
        """The most that rank F can be: min(n_kv_heads * head_dim, d)."""
        return min(self.n_kv_heads * self.head_dim, self.d_model, self.d_in)

    @property
    def has_bias(self) -> bool:
        """Whether either projection has a bias."""
        return self.b_V is not None or self.b_O is not None

    @property
    def bias(self) -> Float[np.ndarray, "d_out"]:
        """The affine part `b = W_O b_V + b_O` in float64 (b_V repeated over its group); 0 if none.

        Rows of attention sum to 1, so every token receives exactly this, whatever the attention.
        """
        total = np.zeros(self.d_model)
        if self.b_V is not None:
            total += self.grouped_output() @ upcast(self.b_V)
        if self.b_O is not None:
            total += upcast(self.b_O)
        return total

    def value(self, dtype: Any = np.float64) -> Float[np.ndarray, "r d_in"]:
        """`W_V` in a compute dtype."""
        return _widened(self.W_V, dtype)

    def grouped_output(self, dtype: Any = np.float64) -> Float[np.ndarray, "d_out r"]:
        """`O'`: the columns of `W_O` summed over the query heads that share a value head.

        Then `F = O' W_V`, and its non-zero spectrum is that of the (r, r) core `W_V O'`. The sum is
        taken in `dtype`, after the upcast. Cost O(d n_heads head_dim).
        """
        if self.n_heads == self.n_kv_heads:
            return _widened(self.W_O, dtype)
        compute_dtype(dtype)
        return summed(
            lambda rows: self.W_O[rows], self.W_O.shape, self.n_kv_heads, self.head_dim, dtype
        )

    def dense(self, dtype: Any = np.float64) -> Float[np.ndarray, "d_out d_in"]:
        """`F` itself, (d_out, d_in). Cost O(d^2 r); prefer `core` where only eigenvalues count."""
        return np.asarray(self.grouped_output(dtype) @ self.value(dtype))

    def core(self, dtype: Any = np.float64) -> Float[np.ndarray, "r r"]:
        """`W_V O'`, (r, r): has the non-zero spectrum of `F`. Cost O(d r^2), never forms F.

        Raises
        ------
        ShapeError
            If the circuit reads states of another width than it writes: no spectrum there.
        """
        if not self.is_square:
            raise ShapeError(
                f"{self.stack} layer {self.layer}: F is ({self.d_model}, {self.d_in}), not square: "
                "it has no eigenvalues; use its singular_values()"
            )
        return np.asarray(self.value(dtype) @ self.grouped_output(dtype))

    def singular_values(self, dtype: Any = np.float64) -> Float[np.ndarray, "m"]:
        """The largest min(r, d_out, d_in) singular values of F, descending; also if not square.

        From the triangular factors of both sides; cost O(d r^2), never forms F.
        """
        left = np.asarray(np.linalg.qr(self.grouped_output(dtype), mode="r"))
        right = np.asarray(np.linalg.qr(self.value(dtype).T, mode="r"))
        return np.asarray(np.linalg.svd(left @ right.T, compute_uv=False))

    def matvec(
        self, x: Inexact[np.ndarray, "d_in *k"], dtype: Any = np.float64
    ) -> Inexact[np.ndarray, "d_out *k"]:
        """`F x` through the factors; `x` is (d,) or (d, k), real or complex. Cost O(d r k)."""
        return np.asarray(self.grouped_output(dtype) @ (self.value(dtype) @ x))

    def head(self, i: int) -> OVCircuit:
        """Query head i alone, as a circuit with one head: `F_i = W_O^i W_V^i`.

        `F` is the sum of `head(i).dense()` over heads. The head keeps its share of the value bias;
        `b_O` belongs to the layer and is left out.

        Raises
        ------
        OptionError
            If i is not in 0 .. n_heads - 1.
        """
        if not 0 <= i < self.n_heads:
            raise OptionError(
                f"{self.stack} layer {self.layer} has no head {i}: "
                f"heads are 0 to {self.n_heads - 1}"
            )
        h = self.head_dim
        j = i // (self.n_heads // self.n_kv_heads)
        rows = slice(j * h, (j + 1) * h)
        return replace(
            self,
            W_V=self.W_V[rows],
            W_O=self.W_O[:, i * h : (i + 1) * h],
            n_heads=1,
            n_kv_heads=1,
            b_V=None if self.b_V is None else self.b_V[rows],
            b_O=None,
        )


def _widened(matrix: Float[np.ndarray, "n m"], dtype: Any) -> Float[np.ndarray, "n m"]:
    """`upcast`, a large matrix by two threads: most of it is the system handing out memory."""
    if not matrix.flags.c_contiguous or matrix.dtype == compute_dtype(dtype):
        return upcast(matrix, dtype)
    return widened(lambda rows: matrix[rows], matrix.shape, dtype)
