"""Angles between what two layers draw tokens to: a direction, a plane, a span or a kernel."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from eigenlens.spectra.result import LayerSpectrum

SHOWN = 8
"""Angles that are kept of two large subspaces, the largest ones."""


def principal_angles(a: LayerSpectrum, b: LayerSpectrum) -> Float[np.ndarray, "m"]:
    """Principal angles between the targets of two layers in radians, largest first.

    Of a kernel the stored basis is that of its complement; two kernels of one dimension are at the
    same angles as their complements, apart from zeros (Knyazev and Argentati, 2007), so nothing of
    size d is formed. At most `SHOWN` of them; small angles come from sines and keep their digits.
    """
    import scipy.linalg

    x, y = a.target_vectors.astype(np.float64), b.target_vectors.astype(np.float64)
    kernels = (a.target == "kernel") + (b.target == "kernel")
    if kernels == 1:
        space, rest = (x, y) if b.target == "kernel" else (y, x)
        return _to_complement(space, rest)[:SHOWN]
    if np.array_equal(x, y):
        return np.zeros(min(x.shape[1], SHOWN))
    return np.asarray(scipy.linalg.subspace_angles(x, y))[:SHOWN]


def _to_complement(
    space: Float[np.ndarray, "d m"], rest: Float[np.ndarray, "d r"]
) -> Float[np.ndarray, "m"]:
    """Angles between a space and the complement of another: their sines are within the other."""
    sines = np.linalg.svd(rest.T @ space, compute_uv=False)
    out = np.zeros(space.shape[1])
    out[: sines.size] = np.arcsin(np.clip(sines, 0.0, 1.0))
    return np.sort(out)[::-1]
