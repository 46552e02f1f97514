"""Writing safetensors files: one tensor replaced byte for byte, or a file made tensor by tensor.

A replaced tensor keeps its place, so that the header and everything else keep their bytes. Nothing
is read whole: the memory in use is one block.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError, SourceError
from eigenlens.inert import inert
from eigenlens.tensors.files import file_size, read_bytes, shown
from eigenlens.tensors.quantised import QuantisedStore
from eigenlens.tensors.safetensors_file import SafetensorsFile
from eigenlens.tensors.store import Array, ShardedStore, TensorStore

BLOCK = 8 * 1024 * 1024
"""Bytes that are moved at a time."""


def shard_of(store: TensorStore, name: str) -> SafetensorsFile:
    """The local .safetensors file that holds a tensor as it is.

    Raises
    ------
    SourceError
        The tensor is not stored as such in a local .safetensors file.
    """
    if isinstance(store, QuantisedStore):
        store = store.stored
    if isinstance(store, ShardedStore):
        store = store.shard(name)
    if type(store) is not SafetensorsFile or name not in store.names():
        raise SourceError(f"tensor '{inert(name)}' is not in a local .safetensors file")
    return store


def raw(array: Array) -> memoryview:
    """The bytes of an array as a file holds them: C order, little-endian."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if sys.byteorder == "big" and flat.dtype.itemsize > 1:
        flat = flat.view(f"u{flat.dtype.itemsize}").byteswap()
    view: memoryview = flat.view(np.uint8).data
    return view


def write_span(path: Path, start: int, data: memoryview | bytes) -> None:
    """Overwrite bytes of a file from `start` on, and wait until the disk has them.

    Raises
    ------
    OSError
        The disk takes no more.
    """
    handle = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
    try:
        os.lseek(handle, start, os.SEEK_SET)
        write_all(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: memoryview | bytes) -> None:
    """All of `data` at the file's present place, in blocks."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += os.write(handle, view[done : done + BLOCK])


def write_new(path: Path, content: bytes) -> None:
    """A small file with this content, flushed; the folder it is in is a new one.

    Raises
    ------
    OSError
        The disk takes no more.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        write_all(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)


def blocks(path: Path, start: int, length: int, what: str) -> Iterator[Array]:
    """A range of a file, block by block."""
    for at in range(start, start + length, BLOCK):
        yield read_bytes(path, at, min(BLOCK, start + length - at), what)


def check_patched(before: SafetensorsFile, after: Path, name: str, data: memoryview) -> None:
    """Check a file in which one tensor was replaced: the header, the tensor, every other byte.

    Raises
    ------
    FormatError
        Something else differs, or the tensor is not the new one: the disk or the memory is at
        fault.
    """
    start, length, _ = before.span(name)
    size = file_size(before.path)
    found = SafetensorsFile(after)
    same = (
        file_size(after) == size
        and found.metadata == before.metadata
        and found.names() == before.names()
        and all(
            found.info(n).dtype == before.info(n).dtype and found.entry(n) == before.entry(n)
            for n in before.names()
        )
    )
    if not same:
        raise FormatError(
            f"{shown(after)}: its header is not that of {shown(before.path)} after writing; check "
            "the disk, and write again"
        )
    for first, count in ((0, start), (start + length, size - start - length)):
        pairs = zip(
            blocks(before.path, first, count, "what was copied"),
            blocks(after, first, count, "what was copied"),
            strict=True,
        )
        if not all(bytes(a) == bytes(b) for a, b in pairs):
            raise FormatError(
                f"{shown(after)}: differs from {shown(before.path)} outside '{inert(name)}' after "
                "writing; check the disk, and write again"
            )
    done = 0
    for block in blocks(after, start, length, "the edited tensor"):
        if bytes(block) != data[done : done + len(block)]:
            raise FormatError(
                f"{shown(after)}: tensor '{inert(name)}' is not what was written; check the disk, "
                "and write again"
            )
        done += len(block)


@dataclass(frozen=True)
class Piece:
    """A tensor that is to be written.

    Attributes
    ----------
    name, dtype, shape
        For the header.
    length
        Bytes.
    content
        Gives the bytes, block by block.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    length: int
    content: Callable[[], Iterable[Any]]


def piece_of(file: SafetensorsFile, name: str, new_name: str | None = None) -> Piece:
    """A tensor of a file, to be copied under its name or another."""
    info, (start, stop) = file.info(name), file.entry(name)

    def content() -> Iterator[Array]:
        return blocks(file.path, start, stop - start, f"tensor '{inert(name)}'")

    return Piece(new_name or name, info.dtype, info.shape, stop - start, content)


def piece_of_bytes(name: str, data: bytes | memoryview) -> Piece:
    """Plain bytes as a tensor of U8."""
    return Piece(name, "U8", (len(data),), len(data), lambda: iter((data,)))


def write_pieces(
    path: Path, pieces: Sequence[Piece], metadata: Mapping[str, str] | None = None
) -> None:
    """A new .safetensors file with these tensors in this order; it must not be there yet.

    Raises
    ------
    OSError
        The disk takes no more.
    """
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    at = 0
    for piece in pieces:
        header[piece.name] = {
            "dtype": piece.dtype,
            "shape": list(piece.shape),
            "data_offsets": [at, at + piece.length],
        }
        at += piece.length
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data start on a multiple of 8, as readers expect
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o666)
    try:
        write_all(handle, len(text).to_bytes(8, "little") + text)
        for piece in pieces:
            for block in piece.content():
                write_all(handle, memoryview(block))
        os.fsync(handle)
    finally:
        os.close(handle)
