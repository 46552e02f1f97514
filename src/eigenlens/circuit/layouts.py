"""How a stored projection holds its parts: one description for reading, writing back and checking.

A *fusing* says which entries of the stored projection's output axis are the values; an
*orientation* says which axis of the weight that is. Both come from the architecture's row, never
from a tensor's shape: square matrices look the same either way. The shape is only checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from eigenlens.errors import ShapeError

Orientation = Literal["linear", "conv1d"]


@dataclass(frozen=True)
class Geometry:
    """Sizes of one stack, as the config states them.

    Attributes
    ----------
    d_model
        Width of the residual stream.
    n_layers
        Number of layers that a forward pass runs (for ALBERT: calls, not stored layers).
    n_heads, n_kv_heads, head_dim
        Query heads, value heads, and the width of one value head.
    keys
        For messages: which config key (or rule) each size came from.
    d_in
        Width of the states that the values are read from, where it is not `d_model`.
    qk_dim
        Width of one query or key head, where it is not `head_dim`.
    groups
        Into how many blocks along its diagonal `W_V` falls, of which alone the file holds entries
        (a grouped convolution).
    per_layer
        Sizes that the config lists layer by layer.
    """

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    keys: tuple[tuple[str, str], ...] = ()
    d_in: int | None = None
    qk_dim: int | None = None
    groups: int = 1
    per_layer: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def width_in(self) -> int:
        """Columns of `W_V`: `d_in`, or `d_model` where that is the same."""
        return self.d_model if self.d_in is None else self.d_in

    @property
    def query_width(self) -> int:
        """Rows of the query projection."""
        return self.n_heads * (self.qk_dim or self.head_dim)

    @property
    def key_width(self) -> int:
        """Rows of the key projection."""
        return self.n_kv_heads * (self.qk_dim or self.head_dim)

    def at(self, layer: int) -> Geometry:
        """The sizes of one layer, where the config lists them layer by layer."""
        return self.with_sizes({size: listed[layer] for size, listed in self.per_layer})

    def with_sizes(self, sizes: Mapping[str, int]) -> Geometry:
        """The same with other sizes."""
        fields: dict[str, Any] = dict(sizes)
        return replace(self, **fields)

    @property
    def value_width(self) -> int:
        """Rows of `W_V`: n_kv_heads * head_dim."""
        return self.n_kv_heads * self.head_dim

    @property
    def output_width(self) -> int:
        """Columns of `W_O`: n_heads * head_dim."""
        return self.n_heads * self.head_dim

    def describe(self) -> str:
        """The head sizes with their config keys, for messages."""
        names = dict(self.keys)
        sizes = ["d_model", "n_heads", "n_kv_heads", "head_dim"]
        sizes += [s for s in ("d_in", "qk_dim") if getattr(self, s) is not None]
        return ", ".join(f"{names.get(s, s)}={getattr(self, s)}" for s in sizes)


Fusing = Callable[[Geometry], tuple[int, Int[np.ndarray, "r"]]]


def separate(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """The projection holds the values alone."""
    return g.value_width, np.arange(g.value_width)


def stacked(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`[Q; K; V]` one after the other, of widths n_heads, n_kv_heads, n_kv_heads times head_dim.

    Explicit widths: cutting a grouped-query projection in thirds gives wrong rows and no error.
    """
    start = g.query_width + g.key_width
    return start + g.value_width, start + np.arange(g.value_width)


def kv_stacked(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`[K; V]` one after the other; the queries are stored apart."""
    return g.key_width + g.value_width, g.key_width + np.arange(g.value_width)


def per_head(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`(n_heads, [q, k, v], head_dim)`: each head's three parts lie together (GPT-NeoX, BLOOM)."""
    _equal(g)
    rows = np.arange(3 * g.output_width).reshape(g.n_heads, 3, g.head_dim)
    return rows.size, rows[:, 2].ravel()


def _equal(g: Geometry) -> None:
    if g.n_kv_heads != g.n_heads or g.query_width != g.output_width:
        raise ShapeError(
            f"{g.describe()}: this layout stores as many values as queries, of equal width"
        )


def kv_per_head(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`(n_kv_heads, [k, v])`: each head's key and value lie together."""
    qk = g.qk_dim or g.head_dim
    rows = np.arange(g.key_width + g.value_width).reshape(g.n_kv_heads, qk + g.head_dim)
    return rows.size, rows[:, qk:].ravel()


def per_group(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`(n_kv_heads, [q, .., q, k, v], head_dim)`: each group's parts lie together (Falcon)."""
    group = g.n_heads // g.n_kv_heads
    rows = np.arange(g.output_width + 2 * g.value_width)
    split = rows.reshape(g.n_kv_heads, group + 2, g.head_dim)
    return rows.size, split[:, group + 1].ravel()


def blocks_of_four(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """Four blocks, one a device of the TPU pod, each `[q; v; k]` of its heads (CodeGen).

    Raises
    ------
    ShapeError
        If the heads do not divide into four.
    """
    _equal(g)
    if g.n_heads % 4:
        raise ShapeError(f"{g.describe()}: CodeGen stores its heads in four blocks of equal size")
    rows = np.arange(3 * g.output_width).reshape(4, 3, -1)
    return rows.size, rows[:, 1].ravel()


def interleaved(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`(n_heads, head_dim, [q, k, v])`: the three parts of each coordinate lie together."""
    _equal(g)
    rows = np.arange(3 * g.output_width).reshape(g.output_width, 3)
    return rows.size, rows[:, 2].copy()


@dataclass(frozen=True)
class Layout:
    """A fusing scheme and an orientation: where `W_V` and `b_V` are in the stored projection.

    Attributes
    ----------
    name
        Its key in `LAYOUTS`.
    fusing
        Geometry -> (size of the stored output axis, the places of the values on it, head by head).
    orientation
        `linear` stores (out, in); `conv1d` (GPT-2) stores (in, out).
    """

    name: str
    fusing: Fusing
    orientation: Orientation = "linear"

    def shape(self, g: Geometry, d_in: int) -> tuple[int, int]:
        """The shape that the stored weight must have."""
        total, _ = self.fusing(g)
        width = d_in // g.groups
        return (total, width) if self.orientation == "linear" else (width, total)

    def check(
        self, g: Geometry, d_in: int, name: str, shape: tuple[int, ...], *, bias: bool = False
    ) -> None:
        """Check a stored projection (or its bias) against the geometry.

        Raises
        ------
        ShapeError
            Naming tensor, shape, expected shape and the config keys it follows from.
        """
        total, _ = self.fusing(g)
        expect_shape(name, shape, (total,) if bias else self.shape(g, d_in), self.name, g)

    def rows(self, g: Geometry) -> slice | None:
        """The values as a run of stored rows, where they are one: then only these need reading."""
        _, index = self.fusing(g)
        first, last = int(index[0]), int(index[-1])
        if self.orientation != "linear" or not np.array_equal(index, np.arange(first, last + 1)):
            return None
        if g.groups > 1:
            return None
        return slice(first, last + 1)

    def read(self, g: Geometry, stored: Float[np.ndarray, "a b"]) -> Float[np.ndarray, "r d_in"]:
        """`W_V` (n_kv_heads * head_dim, d_in) out of the whole stored weight."""
        _, index = self.fusing(g)
        W_V = np.take(stored, index, axis=0) if self.orientation == "linear" else stored[:, index].T
        return W_V if g.groups == 1 else _spread(W_V, g.groups)

    def read_bias(self, g: Geometry, stored: Float[np.ndarray, "a"]) -> Float[np.ndarray, "r"]:
        """`b_V` (n_kv_heads * head_dim,) out of the whole stored bias."""
        _, index = self.fusing(g)
        return stored[index]

    def write(
        self, g: Geometry, stored: Float[np.ndarray, "a b"], W_V: Float[np.ndarray, "r d_in"]
    ) -> Float[np.ndarray, "a b"]:
        """A copy of the stored weight with `W_V` put back; the other parts keep their bits.

        Raises
        ------
        ShapeError
            If `W_V` has entries where a grouped convolution holds none.
        """
        _, index = self.fusing(g)
        if g.groups > 1:
            blocks = _gather(W_V, g.groups)
            if not np.array_equal(_spread(blocks, g.groups), W_V):
                raise ShapeError(
                    f"the values are a convolution of {g.groups} groups: an edit with entries "
                    "outside the blocks on the diagonal cannot be stored"
                )
            W_V = blocks
        edited = stored.copy()
        if self.orientation == "linear":
            edited[index] = W_V.astype(stored.dtype)
        else:
            edited[:, index] = W_V.T.astype(stored.dtype)
        return edited


def _spread(blocks: Float[np.ndarray, "r c"], groups: int) -> Float[np.ndarray, "r d_in"]:
    """The block-diagonal matrix of a grouped convolution, whose blocks lie one below the other."""
    rows, columns = len(blocks) // groups, blocks.shape[1]
    wide = np.zeros((len(blocks), columns * groups), blocks.dtype)
    for i in range(groups):
        at = slice(i * rows, (i + 1) * rows)
        wide[at, i * columns : (i + 1) * columns] = blocks[at]
    return wide


def _gather(wide: Float[np.ndarray, "r d_in"], groups: int) -> Float[np.ndarray, "r c"]:
    """The blocks on the diagonal, one below the other: undoes `_spread`."""
    rows, columns = len(wide) // groups, wide.shape[1] // groups
    return np.concatenate(
        [wide[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] for i in range(groups)]
    )


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("separate", separate),
        Layout("stacked", stacked),
        Layout("stacked_conv1d", stacked, "conv1d"),
        Layout("per_head", per_head),
        Layout("kv_stacked", kv_stacked),
        Layout("kv_stacked_conv1d", kv_stacked, "conv1d"),
        Layout("kv_per_head", kv_per_head),
        Layout("per_group", per_group),
        Layout("blocks_of_four", blocks_of_four),
        Layout("interleaved", interleaved),
        Layout("separate_conv1d", separate, "conv1d"),
    )
}


def output_shape(orientation: Orientation, g: Geometry) -> tuple[int, int]:
    """The shape that the stored output projection must have."""
    linear = (g.d_model, g.output_width)
    return linear if orientation == "linear" else (linear[1], linear[0])


def read_output(
    orientation: Orientation, stored: Float[np.ndarray, "a b"]
) -> Float[np.ndarray, "d_out hd"]:
    """`W_O` (d, n_heads * head_dim) from the stored output projection; its own inverse."""
    return stored if orientation == "linear" else stored.T


def expect_shape(
    name: str, shape: tuple[int, ...], expected: tuple[int, ...], layout: str, g: Geometry
) -> None:
    """Raise a `ShapeError` unless `shape` is `expected`."""
    if tuple(shape) != tuple(expected):
        raise ShapeError(
            f"tensor {name!r} has shape {tuple(shape)}, expected {tuple(expected)} ({layout}) from "
            f"the config's {g.describe()}: the config does not belong to these weights"
        )
