"""Codes and their scales: unpacking words of bits, 4-bit floats, grids of scales.

Everything here is exact: codes are small whole or 4- to 8-bit floating numbers, which float32
holds without error, so that only the last product with the scale rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

Array = np.ndarray[Any, np.dtype[Any]]

# OCP Microscaling Formats 1.0, section 5.3.3: E2M1, sign in the highest bit.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
# Rows scaled at once, so that they stay in the processor's cache.
_ROWS = 64
FP4_VALUES = np.concatenate([_E2M1, -_E2M1])


def unpack_words(words: Int[np.ndarray, "n w"], bits: int, count: int) -> UInt8[np.ndarray, "n c"]:
    """The first `count` codes of each row of 32-bit words, lowest bits first.

    A row is one stream of bits: code k has the bits `bits * k` to `bits * (k + 1) - 1`, the first
    word holds bits 0 to 31. Codes of 3, 5, 6 or 7 bits may straddle two words.

    Parameters
    ----------
    words
        (n, w) of int32 or uint32, `w >= ceil(bits * count / 32)`.
    bits
        1 to 8.
    count
        Codes a row.
    """
    stream = np.ascontiguousarray(words).view(np.uint32).astype("<u4", copy=False)
    n = len(stream)
    if bits == 8:
        return stream.view(np.uint8)[:, :count]
    if 8 % bits == 0:
        octets = stream.view(np.uint8)
        mask, per = np.uint8((1 << bits) - 1), 8 // bits
        codes = np.empty((n, octets.shape[1], per), dtype=np.uint8)
        for k in range(per):
            np.bitwise_and(octets >> np.uint8(bits * k), mask, out=codes[:, :, k])
        return codes.reshape(n, -1)[:, :count]
    groups = -(-count // 32)  # 32 codes fill `bits` words exactly
    padded = np.zeros((n, groups * bits + 1), dtype=np.uint64)
    width = min(stream.shape[1], groups * bits)
    padded[:, :width] = stream[:, :width]
    codes = np.empty((n, groups, 32), dtype=np.uint8)
    for k in range(32):
        word, shift = divmod(k * bits, 32)
        low = padded[:, word : groups * bits : bits]
        high = padded[:, word + 1 :: bits][:, :groups]
        both = (low | (high << np.uint64(32))) >> np.uint64(shift)
        codes[:, :, k] = both & np.uint64((1 << bits) - 1)
    return codes.reshape(n, -1)[:, :count]


def unpack_fp4(packed: UInt8[np.ndarray, "n w"]) -> Float32[np.ndarray, "n c"]:
    """Two E2M1 numbers a byte, the low half first; (n, w) to (n, 2 w)."""
    values = np.empty((*packed.shape, 2), dtype=np.float32)
    np.take(FP4_VALUES, packed & np.uint8(15), out=values[..., 0])
    np.take(FP4_VALUES, packed >> np.uint8(4), out=values[..., 1])
    return values.reshape(*packed.shape[:-1], -1)


def exponents(codes: UInt8[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    """E8M0 scales: 2 ** (code - 127), and NaN for 255 (OCP Microscaling Formats, section 5.4.1)."""
    powers = np.ldexp(np.float32(1), np.minimum(codes, 254).astype(np.int32) - 127)
    return np.where(codes == 255, np.float32(np.nan), powers).astype(np.float32)


def grid_shape(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """How many blocks of scales a matrix has along each axis; the last ones may be cut off."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def apply_grid(
    values: Float32[np.ndarray, "n c"],
    scales: Float[np.ndarray, "a b"],
    block: tuple[int, int],
    first: int = 0,
    zeros: Float[np.ndarray, "a b"] | None = None,
) -> None:
    """`(values - zero) * scale` in place, one scale and zero a block.

    Parameters
    ----------
    values
        Codes of the rows from `first` on.
    scales, zeros
        One a block, for the whole matrix.
    block
        Rows and columns of a block.
    first
        Which row of the matrix `values` starts with.
    """
    rows = (first + np.arange(len(values))) // block[0]
    width = min(block[1], values.shape[1])
    whole = values.shape[1] // width if width else 0
    edge = whole * width
    with np.errstate(all="ignore"):  # NaN and inf are named by whoever uses the weights
        for start in range(0, len(values), _ROWS):
            some, at = values[start : start + _ROWS], rows[start : start + _ROWS]
            # Splitting the last axis gives views: what is done to them is done to `values`.
            _apply(some[:, :edge].reshape(len(some), whole, width), at, slice(whole), scales, zeros)
            if edge < values.shape[1]:
                _apply(some[:, None, edge:], at, slice(whole, None), scales, zeros)


def _apply(part: Array, rows: Array, blocks: slice, scales: Array, zeros: Array | None) -> None:
    if zeros is not None:
        part -= zeros[rows][:, blocks, None]
    part *= scales[rows][:, blocks, None]
