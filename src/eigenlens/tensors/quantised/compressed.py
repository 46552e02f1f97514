"""compressed-tensors: whole-number or float codes, plain or packed, as its config groups say.

The config describes groups of modules by patterns of their names. Here a pattern is never run (it
comes with the model, and may be made to hang): of the descriptions, those are kept that the stored
types and shapes do not contradict, and what is kept must say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.tensors.quantised.codes import apply_grid, grid_shape, unpack_fp4, unpack_words
from eigenlens.tensors.quantised.scaled import E8M0, FLOATS, FP8, float8_name, fp4_shape, scales_of
from eigenlens.tensors.quantised.store import Parts
from eigenlens.tensors.store import Array


@dataclass(frozen=True)
class Weights:
    """What one config group says of its weights.

    Attributes
    ----------
    bits, floating
        Width of a code, and whether codes are floats.
    symmetric
        Whether there are no zero points.
    strategy
        ``tensor``, ``channel``, ``group``, ``tensor_group`` (NVFP4) or ``block``.
    size
        Rows and columns of a block of scales; 0 for the whole axis.
    """

    bits: int
    floating: bool
    symmetric: bool
    strategy: str
    size: tuple[int, int]

    def block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        return self.size[0] or shape[0], self.size[1] or shape[1]

    def check(self, parts: Parts, shape: tuple[int, int]) -> None:
        """Hold scales and zero points against the description; FormatError names what differs."""
        grid = grid_shape(shape, self.block(shape))
        shapes = [grid, *([(), (1,)] if self.strategy == "tensor" else [])]
        shapes += [(shape[0],)] if self.strategy == "channel" else []
        parts.expect("scale", (*FLOATS, *FP8, *E8M0), *shapes)
        if self.symmetric:
            return
        packed = (-(-shape[0] * self.bits // 32), grid[1])
        parts.expect("zeros", ("I8", "U8", "I32", "F32", "BF16", "F16"), *shapes, packed)

    def zeros(self, parts: Parts, shape: tuple[int, int], *, packed: bool) -> Array | None:
        """Zero points as a grid, or None; packed ones are packed along the rows."""
        if self.symmetric:
            return None
        grid = grid_shape(shape, self.block(shape))
        found = parts.read("zeros")
        if packed and parts.info("zeros").dtype == "I32" and self.strategy in ("channel", "group"):
            codes = unpack_words(found.T, self.bits, shape[0]).T
            return codes.astype(np.float32) - np.float32(1 << (self.bits - 1))
        return found.astype(np.float32).reshape(grid)


def _grouped(parts: Parts, values: Array, scales: Array, zeros: Array | None, first: int) -> None:
    """As `apply_grid` with the group of each column given by `g_idx`."""
    group = parts.read("g_idx").astype(np.int64)
    if group.shape != (values.shape[1],) or group.min() < 0 or group.max() >= scales.shape[1]:
        raise parts.bad(f"its weight_g_idx does not name one of {scales.shape[1]} groups a column")
    rows = slice(first, first + len(values))
    for g in range(scales.shape[1]):
        at = group == g
        zero = 0 if zeros is None else zeros[rows, g, None]
        with np.errstate(all="ignore"):
            values[:, at] = (values[:, at] - zero) * scales[rows, g, None]


@dataclass(frozen=True)
class Plain:
    """A code a byte: formats ``naive-quantized``, ``int-quantized``, ``float-quantized``.

    Attributes
    ----------
    groups
        What the config's groups say.
    """

    groups: tuple[Weights, ...]
    marks: Sequence[str] = (".weight_scale",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """Codes, scales, zero points, and which group each column is of."""
        return {
            "codes": ".weight",
            "scale": ".weight_scale",
            "zeros": ".weight_zero_point",
            "g_idx": ".weight_g_idx",
        }

    def _layout(self, parts: Parts) -> tuple[Weights, tuple[int, int]]:
        info = parts.expect("codes", ("I8", *FP8))
        if len(info.shape) != 2:
            raise parts.bad(f"its codes have shape {info.shape}, expected two axes")
        shape = (info.shape[0], info.shape[1])
        floating = info.dtype in FP8
        fitting = [
            w for w in self.groups if w.floating == floating and (w.bits == 8 or not floating)
        ]
        return _only(parts, fitting, shape), shape

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``CT_INT8``, ``FP8_E4M3``, and the stored shape."""
        weights, shape = self._layout(parts)
        dtype = parts.info("codes").dtype
        return (float8_name(dtype) if weights.floating else f"CT_INT{weights.bits}"), shape

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Codes less zero points, times scales."""
        weights, shape = self._layout(parts)
        values = parts.read("codes", rows).astype(np.float32)
        zeros = weights.zeros(parts, shape, packed=False)
        _scale(parts, weights, shape, values, zeros, rows.start)
        return values


@dataclass(frozen=True)
class Packed:
    """``pack-quantized`` (32-bit words), ``nvfp4-pack-quantized`` and ``mxfp4-pack-quantized``.

    Whole numbers are stored plus half their range, `32 / bits` a word, lowest bits first. Widths
    that do not divide 32 are refused: the library has packed them in two ways.
    """

    groups: tuple[Weights, ...]
    marks: Sequence[str] = (".weight_packed",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """As `Plain`, and the shape before packing, and NVFP4's scale of all scales."""
        return {
            "codes": ".weight_packed",
            "scale": ".weight_scale",
            "zeros": ".weight_zero_point",
            "g_idx": ".weight_g_idx",
            "shape": ".weight_shape",
            "global": ".weight_global_scale",
        }

    def _layout(self, parts: Parts) -> tuple[Weights, tuple[int, int]]:
        info = parts.expect("codes", ("I32", "U8"))
        if info.dtype == "U8":
            return self._float4(parts)
        parts.expect("shape", ("I64", "I32"), (2,))
        rows, columns = (int(n) for n in parts.read("shape"))
        if rows < 1 or columns < 1:
            raise parts.bad(f"its weight_shape is ({rows}, {columns})")
        whole = [w for w in self.groups if not w.floating]
        fitting = [w for w in whole if info.shape == (rows, -(-columns * w.bits // 32))]
        if not fitting:
            widths = ", ".join(sorted({str(w.bits) for w in whole})) or "no"
            raise parts.bad(
                f"its words have shape {info.shape} for a weight ({rows}, {columns}), which codes "
                f"of {widths} bits do not fill"
            )
        chosen = _only(parts, fitting, (rows, columns))
        if 32 % chosen.bits:
            raise parts.bad(f"packed codes of {chosen.bits} bits are not read, only of 2, 4 and 8")
        return chosen, (rows, columns)

    def _float4(self, parts: Parts) -> tuple[Weights, tuple[int, int]]:
        shape = fp4_shape(parts, "codes")
        exponents = parts.info("scale").dtype in E8M0
        fitting = [
            w
            for w in self.groups
            if w.floating and w.bits == 4 and w.size == (1, 32 if exponents else 16)
        ]
        chosen = _only(parts, fitting, shape)
        if not exponents:
            parts.expect("scale", ("F8_E4M3",))
            parts.expect("global", ("F32",), (), (1,))
        return chosen, shape

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``CT_INT4``, ``NVFP4``, ``MXFP4`` and the shape before packing."""
        weights, shape = self._layout(parts)
        if not weights.floating:
            return f"CT_INT{weights.bits}", shape
        return ("MXFP4" if parts.info("scale").dtype in E8M0 else "NVFP4"), shape

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Unpacked codes less zero points, times scales."""
        weights, shape = self._layout(parts)
        words = parts.read("codes", rows)
        if weights.floating:
            values = unpack_fp4(words)
            _scale(parts, weights, shape, values, None, rows.start)
            return values
        values = unpack_words(words, weights.bits, shape[1]).astype(np.float32)
        values -= np.float32(1 << (weights.bits - 1))
        zeros = weights.zeros(parts, shape, packed=True)
        _scale(parts, weights, shape, values, zeros, rows.start)
        return values


def _scale(
    parts: Parts,
    weights: Weights,
    shape: tuple[int, int],
    values: Array,
    zeros: Array | None,
    first: int,
) -> None:
    block = weights.block(shape)
    scales = scales_of(parts, "scale").reshape(grid_shape(shape, block))
    if "global" in parts:
        with np.errstate(all="ignore"):
            scales = scales / parts.floats("global").reshape(())
    if "g_idx" in parts and weights.strategy == "group":
        _grouped(parts, values, scales, zeros, first)
    else:
        apply_grid(values, scales, block, first, zeros)


def _only(parts: Parts, groups: Sequence[Weights], shape: tuple[int, int]) -> Weights:
    """The description that the parts do not contradict; several must say the same."""
    fitting, why = [], None
    for weights in dict.fromkeys(groups):
        if not weights.symmetric and "zeros" not in parts:
            why = parts.bad("it has no zero points, the config says symmetric=false")
            continue
        # Early files of symmetric schemes hold zero points that are all 0.
        if weights.symmetric and "zeros" in parts and parts.read("zeros").astype(bool).any():
            why = parts.bad("it has zero points other than 0, the config says symmetric=true")
            continue
        try:
            weights.check(parts, shape)
        except FormatError as error:
            why = error
        else:
            fitting.append(weights)
    # Where an axis has one block only, descriptions that differ in its size say the same.
    distinct = {(w.bits, w.floating, w.symmetric, w.block(shape)) for w in fitting}
    if len(distinct) == 1:
        return fitting[0]
    if fitting:
        raise parts.bad(f"{len(fitting)} config_groups fit it and differ")
    raise why or parts.bad("no entry of config_groups describes weights stored like it")
