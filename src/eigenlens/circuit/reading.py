"""One layer's circuit from its tensors: as stored, or with the heads of each group added up."""

from __future__ import annotations

from math import frexp
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import check_finite, upcast
from eigenlens.circuit.circuit import Norm, OVCircuit
from eigenlens.circuit.layouts import read_output
from eigenlens.circuit.plans import LayerPlan, NormPlan
from eigenlens.circuit.widening import Take, summed, widened
from eigenlens.inert import inert
from eigenlens.tensors.dtypes import DTYPES
from eigenlens.tensors.remote import prefetch
from eigenlens.tensors.store import TensorStore, reads_runs


@runtime_checkable
class Seen(Protocol):
    """What looks at the stored factors as they go by: W_V, then W_O, block by block."""

    def begin(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """A factor begins."""

    def add(self, rows: Float[np.ndarray, "b m"]) -> None:
        """Its next rows, as stored."""


def read_circuit(plan: LayerPlan, store: TensorStore) -> OVCircuit:
    """Read one layer's circuit; of a fused projection only the value rows where they are a run.

    Raises
    ------
    NumericsError
        If a tensor holds NaN or infinity, naming it.
    """
    g, rows = plan.geometry, plan.layout.rows(plan.geometry)
    prefetch(store, [(name, rows if name == plan.value else None) for name in plan.tensors])
    if rows is None:
        W_V = plan.layout.read(g, _matrix(_finite(plan.value, store)))
    else:
        W_V = _matrix(store.read(plan.value, rows))
        check_finite(inert(plan.value), W_V)
    if plan.value_scale != 1.0:
        W_V = _scaled(W_V, plan.value_scale)
    W_O = read_output(plan.orientation, _matrix(_finite(plan.output, store)))
    return _with_the_rest(plan, store, W_V, W_O, g.n_heads, checked=plan.value_scale == 1.0)


def comes_in_runs(plan: LayerPlan, store: TensorStore, dtype: str) -> bool:
    """Whether `read_grouped` can read a layer: its factors lie in the file as runs of rows.

    They must fit `dtype` exactly besides. Nothing is read.
    """
    if plan.layout.rows(plan.geometry) is None or plan.orientation != "linear":
        return False
    names = (plan.value, plan.output)
    if plan.value_scale != 1.0 or not all(reads_runs(store, name) for name in names):
        return False
    stored = [DTYPES.get(store.info(name).dtype) for name in names]
    wide = np.dtype(dtype).itemsize
    return all(d is not None and d.kind in "fV" and d.itemsize <= wide for d in stored)


def read_grouped(
    plan: LayerPlan, store: TensorStore, dtype: str, seen: Seen | None = None
) -> OVCircuit:
    """A layer's F as a circuit in `dtype` with as many heads as there are value heads.

    The columns of ``W_O`` are added up over the query heads that share a value head while they are
    read, block by block: in memory is what is needed for F, d (r + r) numbers, and no more.

    Parameters
    ----------
    plan, store
        A layer that `comes_in_runs`.
    dtype
        `float32` or `float64`.
    seen
        Looks at the stored rows as they go by.

    Raises
    ------
    NumericsError
        If a tensor holds NaN or infinity, naming it.
    """
    g, rows = plan.geometry, plan.layout.rows(plan.geometry)
    first = 0 if rows is None else rows.start
    in_order = seen is not None
    doubtful: list[bool] = []

    def look(wide: Float[np.ndarray, "..."]) -> None:
        with np.errstate(all="ignore"):  # a sum of squares is finite only if all entries are
            if not np.isfinite(np.vdot(wide, wide)):
                doubtful.append(True)

    def take(name: str, offset: int) -> Take:
        def some(block: slice) -> Float[np.ndarray, "b m"]:
            found = _matrix(store.read(name, slice(block.start + offset, block.stop + offset)))
            if seen is not None:
                seen.add(found)
            return found

        return some

    def begin(name: str, shape: tuple[int, int]) -> tuple[int, int]:
        if seen is not None:
            seen.begin(DTYPES[store.info(name).dtype], shape)
        return shape

    shape = begin(plan.value, (g.value_width, g.width_in))
    W_V = widened(take(plan.value, first), shape, dtype, look, in_order=in_order)
    shape = begin(plan.output, (g.d_model, g.output_width))
    heads = g.n_kv_heads, g.head_dim
    W_O = summed(take(plan.output, 0), shape, *heads, dtype, look, in_order=in_order)
    if doubtful:
        read_circuit(plan, store)  # which counts what is bad over the whole tensor
    return _with_the_rest(plan, store, W_V, W_O, g.n_kv_heads, checked=True)


def _with_the_rest(
    plan: LayerPlan,
    store: TensorStore,
    W_V: Float[np.ndarray, "r d_in"],
    W_O: Float[np.ndarray, "d_out hd"],
    n_heads: int,
    *,
    checked: bool,
) -> OVCircuit:
    """The circuit of two factors: biases, scale and norms are read."""
    g = plan.geometry
    b_V = None if plan.value_bias is None else _finite(plan.value_bias, store)
    if b_V is not None and not plan.bias_alone:
        b_V = plan.layout.read_bias(g, b_V)
    if b_V is not None and plan.value_scale != 1.0:
        b_V = _scaled(b_V, plan.value_scale)
    scale: float | Float[np.ndarray, "d"] = plan.output_scale
    if plan.scale is not None:
        scale = plan.output_scale * upcast(_finite(plan.scale, store)).reshape(-1)
    return OVCircuit(
        W_V,
        W_O,
        n_heads=n_heads,
        n_kv_heads=g.n_kv_heads,
        head_dim=g.head_dim,
        stack=plan.stack,
        layer=plan.layer,
        kind=plan.kind,
        steps=plan.steps,
        b_V=b_V,
        b_O=None if plan.output_bias is None else _finite(plan.output_bias, store),
        output_scale=scale,
        placement=plan.placement,
        norm_in=read_norm(plan.norm_in, g.width_in, store),
        norm_out=read_norm(plan.norm_out, g.d_model, store),
        rectangular=g.width_in != g.d_model,
        checked=checked,
    )


def read_norm(plan: NormPlan | None, d: int, store: TensorStore) -> Norm | None:
    """Read a norm with its effective gain: offset + w in float64; 1 if it has none."""
    if plan is None:
        return None
    if plan.gain is None:
        return Norm(plan.kind, np.ones(d), None, plan.module)
    gain = _finite(plan.gain, store)
    if plan.offset:
        gain = upcast(gain, "float64") + plan.offset
    bias = None if plan.bias is None else _finite(plan.bias, store)
    return Norm(plan.kind, gain.reshape(-1), None if bias is None else bias.reshape(-1), plan.gain)


def _matrix(stored: Float[np.ndarray, "a *b"]) -> Float[np.ndarray, "a c"]:
    """A weight as a matrix; a convolution of width 1, or one with its heads apart, is one."""
    return stored.reshape(len(stored), -1)


def _scaled(array: Float[np.ndarray, "..."], scale: float) -> Float[np.ndarray, "..."]:
    """A power of two leaves every float32 as exact as it was; any other product rounds."""
    exact = abs(frexp(scale)[0]) == 0.5
    return upcast(array, _wide(array) if exact else "float64") * scale


def _wide(array: Float[np.ndarray, "..."]) -> str:
    return "float64" if array.dtype.itemsize > 4 else "float32"


def _finite(name: str, store: TensorStore) -> Float[np.ndarray, "..."]:
    array = store.read(name)
    check_finite(inert(name), array)
    return array
