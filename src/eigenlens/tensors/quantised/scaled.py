"""Weights stored whole in 8 bits (or packed in 4-bit floats) beside a grid of scales.

FP8 of DeepSeek, Qwen, Mistral, fbgemm and modelopt; MXFP4 of gpt-oss; NVFP4 of modelopt. The weight
is always code * scale; "inv" in `weight_scale_inv` says that the scale is the inverse of the one
that the weight was multiplied with when it was quantised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eigenlens.tensors.quantised.codes import (
    apply_grid,
    exponents,
    grid_shape,
    unpack_fp4,
)
from eigenlens.tensors.quantised.store import Parts
from eigenlens.tensors.store import Array

FLOATS = ("F32", "BF16", "F16")
FP8 = ("F8_E4M3", "F8_E5M2")
E8M0 = ("U8", "F8_E8M0")
# What only the kernels for quantised activations need.
ACTIVATION_PARTS = tuple(
    f".{name}"
    for name in (
        "input_scale",
        "input_zero_point",
        "input_global_scale",
        "input_scale_ub",
        "activation_scale",
    )
)


@dataclass(frozen=True)
class ScaledFloat8:
    """FP8 codes with one scale a tensor, a row or a block.

    Attributes
    ----------
    block
        Rows and columns of a block as the config states them; None for one scale a tensor or row.
    endings
        What follows the weight's name in that of its scale: ``_scale_inv``, ``_scale``.
    """

    block: tuple[int, int] | None
    endings: tuple[str, ...] = ("_scale_inv", "_scale")
    plain: str = ""

    @property
    def marks(self) -> Sequence[str]:
        """A scale tells; a weight of 8 bits without one is found by its type alone."""
        return self.endings

    @property
    def roles(self) -> Mapping[str, str]:
        """The weight keeps its name."""
        return {"codes": "", **{ending.strip("_"): ending for ending in self.endings}}

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``FP8_E4M3`` and the like, and the stored shape, once the scales fit it."""
        info = parts.expect("codes", FP8)
        self._grid(parts, info.shape)
        return float8_name(info.dtype), info.shape

    def _grid(self, parts: Parts, shape: tuple[int, ...]) -> tuple[str, tuple[int, int]]:
        if len(shape) != 2:
            raise parts.bad(f"it has the shape {shape}, and FP8 is read for matrices only")
        given = [ending.strip("_") for ending in self.endings if ending.strip("_") in parts]
        if len(given) != 1:
            raise parts.bad(f"it has {len(given)} kinds of scales, expected one")
        if self.block is None:
            found = parts.expect(given[0], FLOATS, (), (1,), (1, 1), (shape[0],), (shape[0], 1))
            block = (shape[0] if found.shape in ((), (1,), (1, 1)) else 1, shape[1])
        else:
            parts.expect(given[0], (*FLOATS, *E8M0), grid_shape((shape[0], shape[1]), self.block))
            block = self.block
        return given[0], block

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Codes times scales."""
        shape = parts.info("codes").shape
        role, block = self._grid(parts, shape)
        scales = scales_of(parts, role).reshape(grid_shape((shape[0], shape[1]), block))
        values = parts.read("codes", rows).astype(np.float32)
        apply_grid(values, scales, block, rows.start)
        return values


def float8_name(dtype: str) -> str:
    """``FP8_E4M3`` for a scaled ``F8_E4M3``."""
    return dtype.replace("F8", "FP8")


def scales_of(parts: Parts, role: str) -> Array:
    """Scales as float32; bytes are E8M0 exponents."""
    if parts.info(role).dtype == "U8":
        return exponents(parts.read(role))
    return parts.floats(role)


@dataclass(frozen=True)
class GptOssBlocks:
    """MXFP4 experts of gpt-oss: (experts, out, groups, 16) bytes, (experts, out, groups) exponents.

    The plain tensor is (experts, in, out), as transformers' model has it. Attention is not
    quantised in these checkpoints.
    """

    marks: Sequence[str] = ("_blocks",)
    plain: str = ""

    @property
    def roles(self) -> Mapping[str, str]:
        """`X_blocks` and `X_scales` make X."""
        return {"codes": "_blocks", "scales": "_scales"}

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``MXFP4`` and (experts, in, out)."""
        info = parts.expect("codes", ("U8",))
        if len(info.shape) != 4 or info.shape[3] != 16:
            raise parts.bad(f"its blocks have shape {info.shape}, expected (experts, out, n, 16)")
        experts, out, groups, _ = info.shape
        parts.expect("scales", E8M0, (experts, out, groups))
        return "MXFP4", (experts, 32 * groups, out)

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Some experts."""
        packed = parts.read("codes", rows)
        scales = scales_of(parts, "scales")[rows]
        values = unpack_fp4(packed)
        values *= scales[..., None]
        return np.ascontiguousarray(values.reshape(*packed.shape[:2], -1).swapaxes(1, 2))


@dataclass(frozen=True)
class ModelOptFloat4:
    """NVFP4 of modelopt: 16 E2M1 numbers share an E4M3 scale, all share one float32 scale."""

    group: int = 16
    marks: Sequence[str] = (".weight_scale_2",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """Codes and two levels of scales."""
        return {
            "codes": ".weight",
            "weight_scale": ".weight_scale",
            "weight_scale_2": ".weight_scale_2",
        }

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``NVFP4`` and (out, in)."""
        shape = fp4_shape(parts, "codes")
        parts.expect("weight_scale", ("F8_E4M3",), grid_shape(shape, (1, self.group)))
        parts.expect("weight_scale_2", ("F32",), (), (1,))
        return "NVFP4", shape

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Codes times both scales."""
        scales = parts.floats("weight_scale") * parts.floats("weight_scale_2").reshape(())
        values = unpack_fp4(parts.read("codes", rows))
        apply_grid(values, scales, (1, self.group), rows.start)
        return values


def fp4_shape(parts: Parts, role: str) -> tuple[int, int]:
    """Shape of a matrix that is stored as two 4-bit numbers a byte."""
    info = parts.expect(role, ("U8",))
    if len(info.shape) != 2:
        raise parts.bad(f"its codes have shape {info.shape}, expected (out, in / 2)")
    return info.shape[0], 2 * info.shape[1]
