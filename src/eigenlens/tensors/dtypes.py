"""Names of stored number types and the numpy types that hold them.

The names are those of the safetensors format and serve every file format here. numpy has no
bfloat16 and no 8-bit floats; `ml_dtypes` adds them with the same bit patterns, so reading never
changes a bit.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "BOOL": np.dtype(np.bool_),
}

if hasattr(ml_dtypes, "float8_e8m0fnu"):  # powers of two, the scales of MX formats; since 0.5
    DTYPES["F8_E8M0"] = np.dtype(ml_dtypes.float8_e8m0fnu)

_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# torch's spelling of the same types.
TORCH_DTYPES: dict[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "bool": "BOOL",
}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The stored name of a numpy dtype, or numpy's own name for a type that no file here stores."""
    return _NAMES.get(dtype.newbyteorder("="), dtype.name)


def from_bytes(
    raw: np.ndarray[Any, np.dtype[np.uint8]], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Little-endian bytes (flat uint8) as numbers of `dtype`; a view on such a host."""
    if sys.byteorder == "big" and dtype.itemsize > 1:
        raw = raw.view(f"u{dtype.itemsize}").byteswap().view(np.uint8)
    return raw.view(dtype)
