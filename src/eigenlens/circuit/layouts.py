"""How a stored projection holds its parts: one description for reading, writing back and checking.

A *fusing* says which entries of the stored projection's output axis are the values; an
*orientation* says which axis of the weight that is. Both come from the architecture's row, never
from a tensor's shape: square matrices look the same either way. The shape is only checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from eigenlens.errors import ShapeError

Orientation = Literal["linear", "conv1d"]
OUTPUT_AXIS: Mapping[str, int] = {"linear": 0, "conv1d": 1}


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
    """

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    keys: tuple[tuple[str, str], ...] = ()

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
        sizes = ("d_model", "n_heads", "n_kv_heads", "head_dim")
        return ", ".join(f"{names.get(s, s)}={getattr(self, s)}" for s in sizes)


Fusing = Callable[[Geometry], tuple[int, Int[np.ndarray, "r"]]]


def separate(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """The projection holds the values alone."""
    return g.value_width, np.arange(g.value_width)


def stacked(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`[Q; K; V]` one after the other, of widths n_heads, n_kv_heads, n_kv_heads times head_dim.

    Explicit widths: cutting a grouped-query projection in thirds gives wrong rows and no error.
    """
    start = g.output_width + g.value_width
    return start + g.value_width, start + np.arange(g.value_width)


def per_head(g: Geometry) -> tuple[int, Int[np.ndarray, "r"]]:
    """`(n_heads, [q, k, v], head_dim)`: each head's three parts lie together (GPT-NeoX)."""
    rows = np.arange(3 * g.output_width).reshape(g.n_heads, 3, g.head_dim)
    return rows.size, rows[:, 2].ravel()


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
        return (total, d_in) if self.orientation == "linear" else (d_in, total)

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
        return slice(first, last + 1)

    def read(self, g: Geometry, stored: Float[np.ndarray, "a b"]) -> Float[np.ndarray, "r d_in"]:
        """`W_V` (n_kv_heads * head_dim, d_in) out of the whole stored weight."""
        _, index = self.fusing(g)
        return (
            np.take(stored, index, axis=0) if self.orientation == "linear" else stored[:, index].T
        )

    def read_bias(self, g: Geometry, stored: Float[np.ndarray, "a"]) -> Float[np.ndarray, "r"]:
        """`b_V` (n_kv_heads * head_dim,) out of the whole stored bias."""
        _, index = self.fusing(g)
        return stored[index]

    def write(
        self, g: Geometry, stored: Float[np.ndarray, "a b"], W_V: Float[np.ndarray, "r d_in"]
    ) -> Float[np.ndarray, "a b"]:
        """A copy of the stored weight with `W_V` put back; the other parts keep their bits."""
        _, index = self.fusing(g)
        edited = stored.copy()
        if self.orientation == "linear":
            edited[index] = W_V.astype(stored.dtype)
        else:
            edited[:, index] = W_V.T.astype(stored.dtype)
        return edited


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("separate", separate),
        Layout("stacked", stacked),
        Layout("stacked_conv1d", stacked, "conv1d"),
        Layout("per_head", per_head),
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
