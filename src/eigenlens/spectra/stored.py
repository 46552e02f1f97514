"""A layer's spectrum as JSON values and arrays, and back, exactly: what the cache keeps."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from eigenlens.spectra.result import HeadSpectrum, LayerSpectrum, Tokens

Array = np.ndarray[Any, np.dtype[Any]]

_NESTED = ("heads", "tokens")


def pack(layer: LayerSpectrum) -> tuple[dict[str, Any], dict[str, Array]]:
    """The layer's plain values, heads and tokens as a JSON record, and its arrays by field name."""
    record: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        elif field.name not in _NESTED:
            record[field.name] = value
    if layer.heads is not None:
        record["heads"] = [
            [h.head, h.ov_trace_ratio, h.copying_score, _parts(h.share)] for h in layer.heads
        ]
        arrays |= {f"heads.{i}": h.eigenvalues for i, h in enumerate(layer.heads)}
    if layer.tokens is not None:
        record["tokens"] = {
            side: [list(map(list, t.positive)), list(map(list, t.negative)), t.through]
            for side, t in layer.tokens.items()
        }
    return record, arrays


def unpack(record: dict[str, Any], arrays: dict[str, Array]) -> LayerSpectrum:
    """The layer that `pack` took apart.

    Raises
    ------
    KeyError, TypeError, ValueError
        The record is of something else.
    """
    values = {name: value for name, value in record.items() if name not in _NESTED}
    values |= {name: array for name, array in arrays.items() if not name.startswith("heads.")}
    heads = tokens = None
    if "heads" in record:
        heads = tuple(
            HeadSpectrum(head, arrays[f"heads.{i}"], trace, copying, _joined(share))
            for i, (head, trace, copying, share) in enumerate(record["heads"])
        )
    if "tokens" in record:
        tokens = {
            side: Tokens(tuple((t, s) for t, s in up), tuple((t, s) for t, s in down), through)
            for side, (up, down, through) in record["tokens"].items()
        }
    return LayerSpectrum(**values, heads=heads, tokens=tokens)


def _parts(z: complex | None) -> list[float] | None:
    return None if z is None else [z.real, z.imag]


def _joined(parts: list[float] | None) -> complex | None:
    return None if parts is None else complex(*parts)
