"""bitsandbytes: int8 with a scale a row, and 4-bit codes into a table with a scale a block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.tensors.files import parse_json
from eigenlens.tensors.quantised.codes import apply_grid
from eigenlens.tensors.quantised.store import Parts
from eigenlens.tensors.store import Array

# Codes decoded at once.
PIECE = 1 << 22


@dataclass(frozen=True)
class Int8Rows:
    """LLM.int8: W[o, i] = code[o, i] * SCB[o] / 127, SCB the largest magnitude of a row."""

    marks: Sequence[str] = (".SCB",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """Codes, row maxima and the number of the storage order."""
        return {"codes": ".weight", "SCB": ".SCB", "weight_format": ".weight_format"}

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``BNB_INT8`` and the stored shape."""
        shape = parts.expect("codes", ("I8",)).shape
        if len(shape) != 2:
            raise parts.bad(f"its codes have shape {shape}, expected two axes")
        parts.expect("SCB", ("F32", "F16", "BF16"), (shape[0],), (1, shape[0]), (shape[0], 1))
        if "weight_format" in parts:
            parts.expect("weight_format", ("U8", "I8", "I32", "I64"), (), (1,))
            order = int(parts.read("weight_format").reshape(()))
            if order:
                raise parts.bad(f"its weight_format is {order}, only 0 (by rows) is read")
        return "BNB_INT8", shape

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Codes times row maxima over 127."""
        values = parts.read("codes", rows).astype(np.float32)
        scales = (parts.floats("SCB").reshape(-1, 1) / np.float32(127)).astype(np.float32)
        apply_grid(values, scales, (1, values.shape[1]), rows.start)
        return values


@dataclass(frozen=True)
class FourBit:
    """NF4 and FP4: W in row-major order, W[k] = quant_map[code[k]] * absmax[k // blocksize].

    Two codes a byte, the first in the high half. With double quantisation the block maxima are
    8-bit codes themselves: absmax = nested_quant_map[code] * nested_absmax[block] + nested_offset.
    """

    marks: Sequence[str] = (".weight.absmax",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """Codes, tables, block maxima, and the JSON that holds the sizes."""
        own = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
        state = {f"state_{k}": f".weight.quant_state.bitsandbytes__{k}" for k in ("nf4", "fp4")}
        return {"codes": ".weight", **{part: f".weight.{part}" for part in own}, **state}

    def _state(self, parts: Parts) -> tuple[str, dict[str, Any], tuple[int, int]]:
        kinds = [kind for kind in ("nf4", "fp4") if f"state_{kind}" in parts]
        if len(kinds) != 1:
            raise parts.bad(f"it has {len(kinds)} quant_state tensors, expected one")
        info = parts.expect(f"state_{kinds[0]}", ("U8",))
        if math.prod(info.shape) > 1 << 16:
            raise parts.bad(f"its quant_state has {math.prod(info.shape)} bytes, more than 65536")
        text = parts.read(f"state_{kinds[0]}").tobytes()
        try:
            state = parse_json(text, Path(info.where), "quant_state")
        except FormatError as error:
            raise parts.bad(f"its quant_state cannot be read ({error})") from error
        shape, block = state.get("shape"), state.get("blocksize")
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
            raise parts.bad("its quant_state has no shape of whole numbers")
        if len(shape) != 2:
            raise parts.bad(f"its quant_state has the shape {tuple(shape)}, expected two axes")
        if type(block) is not int or block < 2 or block % 2:
            raise parts.bad("its quant_state has no even blocksize")
        return kinds[0], state, (shape[0], shape[1])

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``BNB_NF4`` or ``BNB_FP4``, and the shape that the quant_state gives."""
        kind, state, shape = self._state(parts)
        count = math.prod(shape)
        size = math.prod(parts.info("codes").shape) * _ITEMSIZE.get(parts.info("codes").dtype, 0)
        if size != -(-count // 2):
            raise parts.bad(f"its codes have {size} bytes, expected {-(-count // 2)} for {shape}")
        parts.expect("quant_map", ("F32",), (16,))
        blocks = -(-count // state["blocksize"])
        if "nested_absmax" not in parts:
            parts.expect("absmax", ("F32",), (blocks,))
            return f"BNB_{kind.upper()}", shape
        parts.expect("absmax", ("U8",), (blocks,))
        nested, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if type(nested) is not int or nested < 1 or not isinstance(offset, float | int):
            raise parts.bad("its quant_state has no nested_blocksize and nested_offset")
        parts.expect("nested_quant_map", ("F32",), (256,))
        parts.expect("nested_absmax", ("F32",), (-(-blocks // nested),))
        return f"BNB_{kind.upper()}", shape

    def _absmax(self, parts: Parts, state: Mapping[str, Any]) -> Array:
        found = parts.read("absmax")
        if "nested_absmax" not in parts:
            return found
        size = state["nested_blocksize"]
        table, outer = parts.floats("nested_quant_map"), parts.floats("nested_absmax")
        maxima: Array = table[found] * outer[np.arange(len(found)) // size]
        return maxima + np.float32(state["nested_offset"])

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Rows of the matrix; the codes are read whole, decoded in pieces."""
        _, state, (_, width) = self._state(parts)
        block, first, last = state["blocksize"], rows.start * width, rows.stop * width
        packed = parts.read("codes").reshape(-1).view(np.uint8)
        table, absmax = parts.floats("quant_map"), self._absmax(parts, state)
        values = np.empty(last - first, dtype=np.float32)
        for start in range(first, last, PIECE):
            stop = min(start + PIECE, last)
            octets = packed[start // 2 : -(-stop // 2)]
            codes = np.stack([octets >> 4, octets & 15], axis=-1).reshape(-1)
            codes = codes[start % 2 :][: stop - start]
            with np.errstate(all="ignore"):
                values[start - first : stop - first] = (
                    table[codes] * absmax[np.arange(start, stop) // block]
                )
        return values.reshape(-1, width)


# Codes may be kept in a wider type (bnb_4bit_quant_storage): the bytes are the same.
_ITEMSIZE = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4, "I16": 2, "I32": 4}
