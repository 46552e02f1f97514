"""Eigenvectors of a low-rank map in the core's coordinates, lifted to R^d as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Complex, Float, Num

from eigenlens.spectra.maps import times


@dataclass(frozen=True)
class Lifted:
    """The columns ``factor @ small``, with unit length and a fixed phase; none of them is kept.

    All vectors of a full spectrum are d x r complex numbers, many times the factors themselves, and
    most of them nobody looks at. Indexing (``vectors[:, index]``) gives arrays like an array does.

    Attributes
    ----------
    factor
        The left factor for right vectors, the right one's transpose for left vectors.
    small
        The core's vectors as columns.
    """

    factor: Float[np.ndarray, "d r"]
    small: Complex[np.ndarray, "r k"]

    @property
    def shape(self) -> tuple[int, int]:
        """(d, k), of the array that `numpy.asarray` would give."""
        return int(self.factor.shape[0]), int(self.small.shape[1])

    def columns(self, index: Any) -> Lifted:
        """Some of the vectors, still not lifted."""
        return Lifted(self.factor, self.small[:, index])

    def __getitem__(self, key: tuple[Any, Any]) -> Complex[np.ndarray, "d *m"]:
        rows, index = key
        small = self.small[:, index]
        vectors = fix_phase(times(self.factor, small.reshape(small.shape[0], -1)))
        return np.asarray(vectors.reshape(-1, *small.shape[1:])[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Complex[np.ndarray, "d k"]:
        return np.asarray(self[:, :], dtype=dtype)


Vectors = np.ndarray | Lifted
"""Columns of R^d: as they are, or in the core's coordinates."""


def columns(vectors: Vectors, index: Any) -> Vectors:
    """The vectors at `index`, in the form that they have."""
    return vectors.columns(index) if isinstance(vectors, Lifted) else vectors[:, index]


def fix_phase(vectors: Num[np.ndarray, "d k"]) -> Complex[np.ndarray, "d k"]:
    """Unit columns whose largest-magnitude entry (the lowest index on ties) is real, positive."""
    norms = np.linalg.norm(vectors, axis=0)
    safe = np.where(norms > 0, norms, 1)
    vectors = vectors / safe
    magnitude = np.abs(vectors)
    # Entries equal up to rounding are ties: take the first of them, not the luckiest.
    tied = magnitude >= magnitude.max(axis=0, keepdims=True) * (
        1 - 64 * np.finfo(magnitude.dtype).eps
    )
    pivot = vectors[np.argmax(tied, axis=0), np.arange(vectors.shape[1])]
    size = np.abs(pivot)
    phase = np.where(size > 0, pivot / np.where(size > 0, size, 1), 1)
    return np.asarray(vectors / phase, dtype=np.result_type(vectors.dtype, np.complex64))
