"""Helpers that every floor needs for arrays of weights: upcasting and the check for NaN and inf."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Shaped

from eigenlens.errors import NumericsError, OptionError

COMPUTE_DTYPES = ("float32", "float64")


def compute_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype to calculate in: float32 or float64, nothing narrower.

    Parameters
    ----------
    dtype
        Anything numpy reads as a dtype.

    Raises
    ------
    OptionError
        If it is not float32 or float64.
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.name not in COMPUTE_DTYPES:
        raise OptionError(
            f"cannot compute in dtype {dtype!r}: allowed are {' and '.join(COMPUTE_DTYPES)}; "
            "16-bit weights are upcast before the first product"
        )
    return found


def upcast(array: Shaped[np.ndarray, "..."], dtype: Any = np.float64) -> Shaped[np.ndarray, "..."]:
    """`array` in a compute dtype; the stored dtype may be any float, bfloat16 and fp8 included.

    No copy is made where the dtype already fits. Half-precision values are exact in float32, so
    upcasting before the product loses nothing; upcasting after it would.
    """
    return np.asarray(array).astype(compute_dtype(dtype), copy=False)


RADII = (1e-15, 1e15)
"""Lengths that states may be put to: their squares are far from the ends of float32."""


def check_radius(radius: float) -> None:
    """Raise if states of this length cannot be computed with in float32.

    Raises
    ------
    OptionError
        If it is not a number within `RADII`.
    """
    if not RADII[0] <= radius <= RADII[1]:
        raise OptionError(
            f"radius {radius!r}: it must be a positive number, {RADII[0]:g} to {RADII[1]:g}, or "
            "sqrt_d"
        )


def is_float(array: Shaped[np.ndarray, "..."]) -> bool:
    """Whether `array` holds real floating-point numbers (ml_dtypes' bfloat16 and fp8 included)."""
    dtype = array.dtype
    return bool(np.issubdtype(dtype, np.floating)) or dtype.name.startswith(("bfloat16", "float8"))


def check_finite(name: str, array: Shaped[np.ndarray, "..."]) -> None:
    """Raise if `array` holds a NaN or an infinity; LAPACK may crash on them.

    Parameters
    ----------
    name
        What to call the array in the message: the tensor's name in its file.
    array
        Any real floating-point array.

    Raises
    ------
    NumericsError
        With the count of bad entries and the place of the first.
    """
    if _surely_finite(array):
        return
    finite = np.isfinite(array)
    if finite.all():
        return
    bad = int(finite.size - np.count_nonzero(finite))
    place = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), finite.shape))
    raise NumericsError(
        f"tensor {name!r} has {bad} entries that are NaN or infinite (the first at {place}): "
        "weights must be finite; the checkpoint is damaged or its training diverged"
    )


_BLOCK = 1 << 17  # entries looked at a time, within a core's cache


def _surely_finite(array: Shaped[np.ndarray, "..."]) -> bool:
    """A quick yes for large arrays of common types; False means look closely.

    16-bit floats are infinite or NaN where all bits of the exponent are set, which is told from
    their bits as integers; the sum of wider ones is finite only if every entry is.
    """
    exponent = {"bfloat16": 0x7F80, "float16": 0x7C00}.get(array.dtype.name)
    if array.size == 0 or not array.flags.forc:
        return False
    flat = array.reshape(-1, order="A")
    if exponent is not None:
        bits = flat.view(np.int16)
        return all(
            int((bits[i : i + _BLOCK] & 0x7FFF).max()) < exponent
            for i in range(0, bits.size, _BLOCK)
        )
    if array.dtype.name in COMPUTE_DTYPES:
        with np.errstate(all="ignore"):
            return bool(np.isfinite(flat.sum(dtype=array.dtype)))
    return False
