"""Reading bytes and JSON from files that others made: bounded, copied, never mapped.

Nothing here keeps a memory map: a file that is truncated while mapped kills the process with
SIGBUS, a short `read` is an error that can be told.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError, OptionError, ShapeError
from eigenlens.inert import inert

# A blob of the hub's cache is named by the hash of what it holds: SHA-256, or git's SHA-1.
_HUB_BLOB = re.compile(r"/(?:models|datasets)--[^/]+/blobs/(?:[0-9a-f]{64}|[0-9a-f]{40})$")
JSON_LIMIT = 100 * 1024 * 1024


def shown(path: Path) -> str:
    """A path for an error message, on one line."""
    return inert(str(path))


def unreadable(path: Path, error: OSError) -> FormatError:
    """The error for a file that the system refuses to open or read."""
    return FormatError(
        f"{shown(path)}: cannot be read ({error.strerror or type(error).__name__}); "
        "check that it exists and may be read"
    )


def file_size(path: Path) -> int:
    """Size of a file in bytes; FormatError when there is none or it is not a regular file."""
    try:
        if not path.is_file():
            raise FormatError(f"{shown(path)}: no such file; check the path")
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def identity(path: Path) -> str:
    """What tells a file's content: the hash of a hub blob, else device, inode, size and times.

    The second tells every ordinary change of a file: the time of the last change of its inode goes
    on even where the time of the content is put back. Whoever doubts compares the content.
    """
    try:
        real = path.resolve()
        status = real.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if _HUB_BLOB.search(real.as_posix()):
        return f"blob {real.name} {status.st_size}"
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"file {status.st_dev} {status.st_ino} {status.st_size} {times}"


def read_bytes(
    path: Path, offset: int, length: int, what: str
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`length` bytes at `offset`, copied into memory of our own as uint8.

    The range is held against the present size of the file before memory is taken for it. `what`
    names the thing that is read in the error message.

    Raises
    ------
    FormatError
        The range leaves the file (truncated since it was opened, or damaged), or it cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if offset < 0 or length < 0 or offset + length > size:
                raise FormatError(
                    f"{shown(path)}: {what} needs bytes {offset} to {offset + length} but the "
                    f"file has {size}; it is truncated, get it again"
                )
            data = np.empty(length, dtype=np.uint8)
            view = data.data
            file.seek(offset)
            done = 0
            while done < length:
                got = file.readinto(view[done:])
                if not got:
                    raise FormatError(
                        f"{shown(path)}: ends inside {what}; it is truncated, get it again"
                    )
                done += got
    except OSError as error:
        raise unreadable(path, error) from error
    return data


def parse_json(
    text: bytes,
    path: Path,
    what: str,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> dict[str, Any]:
    """Parse a JSON object; every way it can be broken is a FormatError that says where.

    `pairs` is json's `object_pairs_hook`, for readers that refuse duplicate names.
    """
    place = f"{shown(path)}: {what}"
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{place} is not UTF-8 text (byte {error.start}); get the file again"
        ) from error
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{place} is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}; "
            "correct it or get the file again"
        ) from error
    except RecursionError as error:
        raise FormatError(
            f"{place} is nested too deep to be genuine; get the file again"
        ) from error
    except ValueError as error:  # an integer of thousands of digits
        raise FormatError(
            f"{place} holds a number that cannot be read; get the file again"
        ) from error
    if not isinstance(found, dict):
        raise FormatError(f"{place} is a {type(found).__name__}, but must be a JSON object {{...}}")
    return found


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a file that must hold one JSON object (see `parse_json`)."""
    size = file_size(path)
    if size > JSON_LIMIT:
        raise FormatError(f"{shown(path)}: {what} has {size} bytes, more than {JSON_LIMIT} allowed")
    return parse_json(read_bytes(path, 0, size, what).tobytes(), path, what)


def row_range(rows: slice | None, shape: tuple[int, ...], where: str) -> tuple[int, int]:
    """`rows` as 0 <= start <= stop <= shape[0] along axis 0; all of it for None.

    Raises
    ------
    ShapeError
        A scalar has no rows.
    OptionError
        The slice has a step other than 1: rows are read as one run of bytes.
    """
    if not shape:
        raise ShapeError(f"{where} is a scalar and has no rows to select")
    if rows is None:
        return 0, shape[0]
    start, stop, step = rows.indices(shape[0])
    if step != 1:
        raise OptionError(
            f"{where}: rows are read in one run; a step of {step} is not supported, use 1"
        )
    return start, max(start, stop)
