"""Eigenvectors as a file: .npz with complex arrays, .safetensors with real and imaginary parts."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from eigenlens.report.serialise import check_target
from eigenlens.spectra.result import Spectrum

SUFFIXES = (".safetensors", ".npz")


def vector_bytes(result: Spectrum, path: Path) -> bytes:
    """Eigenvalues and right and left vectors of every layer, in the format of the path's suffix.

    Keys are ``decoder.3.right`` (d, k), ``decoder.3.left`` (d, k) and ``decoder.3.eigenvalues``
    (k,), cross attention as ``decoder.cross.3``; column j belongs to eigenvalue j. In a
    .safetensors file each is split in ``….real`` and ``….imag``.

    Raises
    ------
    OptionError, SourceError
        The suffix is not .npz or .safetensors, or the place is not writable.
    """
    check_target(path, SUFFIXES)
    arrays: dict[str, np.ndarray] = {}
    for layer in result.layers:
        kept = layer.right_vectors.shape[1]
        arrays[f"{layer.name}.right"] = layer.right_vectors
        arrays[f"{layer.name}.left"] = layer.left_vectors
        arrays[f"{layer.name}.eigenvalues"] = layer.eigenvalues[:kept]
    if path.suffix.lower() == ".npz":
        sink = io.BytesIO()
        np.savez(sink, **arrays)  # type: ignore[arg-type]
        return sink.getvalue()
    from safetensors.numpy import save

    split = {
        f"{name}.{part}": np.ascontiguousarray(getattr(array, part))
        for name, array in arrays.items()
        for part in ("real", "imag")
    }
    return bytes(save(split, metadata={"format": "np", "schema": "eigenlens.vectors/1"}))
