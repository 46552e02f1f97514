"""GPTQ and AWQ: whole-number codes in 32-bit words, a scale and a zero point for each group.

Both store the transpose of the usual matrix: with c the codes, W[o, i] = (c[i, o] - z[g, o]) *
s[g, o], where g is the group of input i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eigenlens.tensors.quantised.codes import apply_grid, unpack_words
from eigenlens.tensors.quantised.scaled import FLOATS
from eigenlens.tensors.quantised.store import Parts
from eigenlens.tensors.store import Array

# Inputs decoded at once; a multiple of 32, so that a piece begins at a word for every width.
PIECE = 1024


def _words(count: int, bits: int) -> int:
    """32-bit words of a row of codes."""
    return -(-count * bits // 32)


@dataclass(frozen=True)
class GPTQ:
    """`qweight` (in * bits / 32, out), packed along the input, one stream of bits a column.

    Attributes
    ----------
    bits
        2, 3, 4 or 8; None where the config lets modules differ (then `g_idx` tells the number of
        inputs, and with it the width).
    group_size
        Inputs of a group where there is no `g_idx`; -1 for one group.
    shift
        Added to stored zero points: 1 in the first format, which stores them less one, and 0 in
        ``gptq_v2``. Where the sum passes the largest code it wraps to 0, the zero point that was
        stored as -1.
    """

    bits: int | None
    group_size: int
    shift: int
    marks: Sequence[str] = (".qweight",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """Codes, zero points, scales, and which group each input is of."""
        return {
            "codes": ".qweight",
            "qzeros": ".qzeros",
            "scales": ".scales",
            "g_idx": ".g_idx",
        }

    def _sizes(self, parts: Parts) -> tuple[int, int, int]:
        """(bits, inputs, outputs)."""
        shape = parts.expect("codes", ("I32",)).shape
        if len(shape) != 2:
            raise parts.bad(f"its qweight has shape {shape}, expected two axes")
        bits = self.bits
        if "g_idx" in parts:
            index = parts.expect("g_idx", ("I32", "I64")).shape
            inputs = index[0] if len(index) == 1 else 0
            if bits is None and inputs:
                bits = next((b for b in (2, 3, 4, 8) if b * inputs == 32 * shape[0]), None)
        elif bits is not None:
            inputs = 32 * shape[0] // bits
        if bits is None or bits * inputs != 32 * shape[0] or not inputs:
            raise parts.bad(
                f"its qweight has shape {shape}, which no width that is allowed explains"
            )
        return bits, inputs, shape[1]

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``GPTQ4`` and the like, and (out, in)."""
        bits, inputs, outputs = self._sizes(parts)
        scales = parts.expect("scales", FLOATS).shape
        if len(scales) != 2 or scales[1] != outputs or not scales[0]:
            raise parts.bad(f"its scales have shape {scales}, expected (groups, {outputs})")
        parts.expect("qzeros", ("I32",), (scales[0], _words(outputs, bits)))
        if "g_idx" not in parts:
            size = inputs if self.group_size == -1 else self.group_size
            if -(-inputs // size) != scales[0]:
                raise parts.bad(
                    f"it has {scales[0]} groups of scales for {inputs} inputs by {size}"
                )
        return f"GPTQ{bits}", (outputs, inputs)

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Some outputs, over all inputs."""
        bits, inputs, outputs = self._sizes(parts)
        part = slice(rows.start, rows.stop)
        scales = np.ascontiguousarray(parts.floats("scales")[:, part].T)
        zeros = unpack_words(parts.read("qzeros"), bits, outputs)[:, part].T.astype(np.int32)
        zeros = ((zeros + self.shift) & ((1 << bits) - 1)).astype(np.float32)
        group = self._groups(parts, inputs, scales.shape[1])
        words = parts.read("codes")
        values = np.empty((len(scales), inputs), dtype=np.float32)
        size = int(np.count_nonzero(group == 0))
        runs = np.array_equal(group, np.arange(inputs) // size)
        for start in range(0, inputs, PIECE):
            stop = min(start + PIECE, inputs)
            first, last = start * bits // 32, _words(stop, bits)
            codes = unpack_words(words[first:last, part].T, bits, stop - start)
            at = group[start:stop]
            with np.errstate(all="ignore"):
                values[:, start:stop] = codes if runs else (codes - zeros[:, at]) * scales[:, at]
        if runs:
            apply_grid(values, scales, (1, size), 0, zeros)
        return values

    def _groups(self, parts: Parts, inputs: int, n_groups: int) -> Array:
        if "g_idx" not in parts:
            size = inputs if self.group_size == -1 else self.group_size
            return np.arange(inputs) // size
        group: Array = parts.read("g_idx").astype(np.int64)
        if not np.array_equal(np.unique(group), np.arange(n_groups)):
            raise parts.bad(f"its g_idx does not use each of its {n_groups} groups")
        return group


# Which of its eight places in a word the codes of eight neighbouring outputs have.
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@dataclass(frozen=True)
class AWQ:
    """The GEMM form: `qweight` (in, out / 8), 4 bits, the outputs of a word interleaved.

    Attributes
    ----------
    group_size
        Inputs of a group; -1 for one group.
    """

    group_size: int
    marks: Sequence[str] = (".qweight",)
    plain: str = ".weight"

    @property
    def roles(self) -> Mapping[str, str]:
        """Codes, zero points and scales."""
        return {"codes": ".qweight", "qzeros": ".qzeros", "scales": ".scales"}

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """``AWQ4`` and (out, in)."""
        shape = parts.expect("codes", ("I32",)).shape
        if len(shape) != 2:
            raise parts.bad(f"its qweight has shape {shape}, expected two axes")
        inputs, outputs = shape[0], 8 * shape[1]
        size = inputs if self.group_size == -1 else self.group_size
        if not inputs or inputs % size:
            raise parts.bad(f"its {inputs} inputs are not whole groups of {size}")
        parts.expect("scales", FLOATS, (inputs // size, outputs))
        parts.expect("qzeros", ("I32",), (inputs // size, shape[1]))
        return "AWQ4", (outputs, inputs)

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Some outputs, over all inputs."""
        inputs = parts.info("codes").shape[0]
        part = slice(rows.start, rows.stop)
        scales = parts.floats("scales")[:, part].T
        zeros = _awq_codes(parts.read("qzeros"))[:, part].T.astype(np.float32)
        values = np.empty((len(scales), inputs), dtype=np.float32)
        for start in range(0, inputs, PIECE):
            stop = min(start + PIECE, inputs)
            values[:, start:stop] = _awq_codes(parts.read("codes", slice(start, stop)))[:, part].T
        apply_grid(values, scales, (1, inputs // scales.shape[1]), 0, zeros)
        return values


def _awq_codes(words: Array) -> Array:
    """(n, w) words to (n, 8 w) codes in the order of the outputs."""
    stored = unpack_words(words, 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
    return stored[:, :, _AWQ_PLACES].reshape(len(words), -1)
