"""One .safetensors file, read range by range.

Layout: 8 bytes little-endian header length n, n bytes of JSON (name -> dtype, shape, data_offsets
relative to the end of the header; ``__metadata__`` optional), then the data, C order,
little-endian. The header is checked whole before anything is read on its word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.dtypes import DTYPES, from_bytes
from eigenlens.tensors.files import file_size, identity, parse_json, read_bytes, row_range, shown
from eigenlens.tensors.store import Array, Named, TensorInfo

HEADER_LIMIT = 100_000_000


@dataclass(frozen=True)
class _Entry:
    info: TensorInfo
    start: int  # absolute, in the file
    stop: int


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise FormatError(f"the name '{inert(name)}' occurs twice")
            seen.add(name)
    return found


def _is_index(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


class SafetensorsFile(Named[_Entry]):
    """A store over one .safetensors file; opening reads and checks the header only.

    Raises
    ------
    FormatError
        The file is empty, truncated, not safetensors, or its header contradicts itself or the
        file; the message names the file. A dtype that is not known is an error only when that
        tensor is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.metadata: dict[str, str] = {}
        self._entries: dict[str, _Entry] = {}
        size = self._size()
        self._identity = self._known_as()
        if size < 8:
            raise self._bad(
                f"has {size} bytes, too few for a safetensors file; it is empty or truncated"
            )
        length = int.from_bytes(self._bytes(0, 8, "the header length").tobytes(), "little")
        if length > HEADER_LIMIT or 8 + length > size:
            raise self._bad(
                f"says that its header has {length} bytes, but the file has {size} and a header "
                f"at most {HEADER_LIMIT}; it is not safetensors or it is truncated"
            )
        raw = self._bytes(8, length, "the header").tobytes()
        try:
            header = parse_json(raw, self.path, "the safetensors header", _unique)
        except FormatError as error:
            text = str(error)
            raise (
                error if text.startswith(shown(self.path)) else self._bad(f"header: {text}")
            ) from error
        metadata = header.pop("__metadata__", None)
        if metadata is not None:
            if not isinstance(metadata, dict) or not all(
                isinstance(v, str) for v in metadata.values()
            ):
                raise self._bad("__metadata__ must map text to text")
            self.metadata = metadata
        for name, value in header.items():
            self._entries[name] = self._entry(name, value, 8 + length, size)
        self._check_overlap()

    def _size(self) -> int:
        return file_size(self.path)

    def _known_as(self) -> str | None:
        return identity(self.path)

    def _bytes(self, start: int, length: int, what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return read_bytes(self.path, start, length, what)

    def _bad(self, what: str) -> FormatError:
        return FormatError(f"{shown(self.path)}: {what}; get the file again")

    def _entry(self, name: str, value: object, base: int, size: int) -> _Entry:
        tensor = f"tensor '{inert(name)}'"
        if not isinstance(value, dict):
            raise self._bad(f"{tensor}: header entry is a {type(value).__name__}, not an object")
        dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
        if not isinstance(dtype, str):
            raise self._bad(f"{tensor}: dtype is missing or not text")
        if not isinstance(shape, list) or len(shape) > 64 or not all(_is_index(n) for n in shape):
            raise self._bad(f"{tensor}: shape is not a short list of whole numbers >= 0")
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(_is_index(n) for n in offsets)
        ):
            raise self._bad(f"{tensor}: data_offsets is not a pair of whole numbers >= 0")
        start, stop = base + offsets[0], base + offsets[1]
        if stop < start or stop > size:
            raise self._bad(
                f"{tensor}: its data ({start} to {stop}) leaves the file of {size} bytes"
            )
        if dtype in DTYPES:
            expected = math.prod(shape) * DTYPES[dtype].itemsize
            if expected != stop - start:
                raise self._bad(
                    f"{tensor}: {dtype} {shape} takes {expected} bytes, the header gives it "
                    f"{stop - start}"
                )
        return _Entry(
            TensorInfo(name, dtype, tuple(shape), self.path.name, self._identity), start, stop
        )

    def _check_overlap(self) -> None:
        end, previous = 0, ""
        for entry in sorted(self._entries.values(), key=lambda e: (e.start, e.stop)):
            if entry.start < end and entry.stop > entry.start:
                raise self._bad(
                    f"tensors '{inert(previous)}' and '{inert(entry.info.name)}' overlap"
                )
            if entry.stop > end:
                end, previous = entry.stop, entry.info.name

    def info(self, name: str) -> TensorInfo:
        """Type and shape, from the header."""
        return self._find(name).info

    def entry(self, name: str) -> tuple[int, int]:
        """Where a tensor lies, whatever its type: first byte in the file, byte after the last."""
        found = self._find(name)
        return found.start, found.stop

    def span(self, name: str, rows: slice | None = None) -> tuple[int, int, tuple[int, ...]]:
        """Where a tensor, or a run of its rows, lies: first byte, number of bytes, shape.

        Raises
        ------
        ArchitectureError
            No such tensor.
        FormatError
            Its dtype is not known, so the length of a row is not.
        ShapeError, OptionError
            The rows are not a run of its rows.
        """
        entry = self._find(name)
        info, what = entry.info, f"tensor '{inert(name)}'"
        if info.dtype not in DTYPES:
            raise FormatError(
                f"{shown(self.path)}: {what} has the type '{inert(info.dtype)}', which is not "
                f"read; known types: {' '.join(DTYPES)}"
            )
        if rows is None:
            return entry.start, entry.stop - entry.start, info.shape
        first, last = row_range(rows, info.shape, f"{shown(self.path)}: {what}")
        row = math.prod(info.shape[1:]) * DTYPES[info.dtype].itemsize
        return entry.start + first * row, (last - first) * row, (last - first, *info.shape[1:])

    def reads_runs(self, name: str) -> bool:
        """A run of rows is a run of bytes."""
        return True

    def read(self, name: str, rows: slice | None = None) -> Array:
        """One tensor, or a run of its rows (only those bytes are read), in the stored dtype."""
        start, length, shape = self.span(name, rows)
        raw = self._bytes(start, length, f"tensor '{inert(name)}'")
        return from_bytes(raw, DTYPES[self.info(name).dtype]).reshape(shape)
