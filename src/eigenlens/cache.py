"""Results kept in the user's cache folder, so that the same question is answered at once.

An entry is one .npz file (arrays and a JSON text, no pickle, every member with its CRC), named by
the SHA-256 of its key; the key is stored inside and compared, and whatever does not read back whole
counts as absent. The folder belongs to the user alone (0700). A cache that cannot be used costs
time, never a result: `Cache.problem` says why.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import SourceError
from eigenlens.inert import inert
from eigenlens.writing import write_atomically

Array = np.ndarray[Any, np.dtype[Any]]

ENTRY_LIMIT = 64 * 1024 * 1024
"""Larger results are not kept: reading them back is no gain over computing them."""
FOLDER_LIMIT = 2 * 1024**3
"""Bytes beyond which the entries used longest ago are removed."""

_TEXT = "json"


def default_folder() -> Path:
    """Where results are kept: ``EIGENLENS_CACHE``, else the system's place for user caches."""
    chosen = os.environ.get("EIGENLENS_CACHE")
    if chosen:
        return _home(chosen)
    if sys.platform == "darwin":
        return _home("~/Library/Caches/eigenlens")
    if sys.platform == "win32":
        return _home(os.environ.get("LOCALAPPDATA", "~")) / "eigenlens" / "cache"
    return _home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "eigenlens"


def _home(text: str) -> Path:
    """A path with ``~`` filled in; left as it is for a user who does not exist."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


@dataclass(frozen=True)
class Entry:
    """What was kept: JSON values and arrays."""

    record: dict[str, Any]
    arrays: dict[str, Array]


@dataclass
class Cache:
    """Entries by key in one folder, each read and written whole.

    Parameters
    ----------
    folder
        Made with mode 0700 when the first entry is written.
    limit
        Bytes that the entries may take together.

    Attributes
    ----------
    problem
        Why nothing can be kept, for a warning; None while all is well.
    """

    folder: Path = field(default_factory=default_folder)
    limit: int = FOLDER_LIMIT
    problem: str | None = None

    def get(self, key: Mapping[str, Any]) -> Entry | None:
        """The entry of a key, or None: never kept, damaged, or of another version."""
        path, text = self._place(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        entry = _unpack(content, text)
        with suppress(OSError):
            os.utime(path)  # used now: the last to be removed
        return entry

    def put(
        self, key: Mapping[str, Any], record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> None:
        """Keep an entry; failure is told by `problem`, not raised.

        Raises
        ------
        TypeError
            A record that is not JSON, or an array of objects: a fault of the caller.
        """
        if self.problem is not None or sum(a.nbytes for a in arrays.values()) > ENTRY_LIMIT:
            return
        path, text = self._place(key)
        content = _pack(text, record, arrays)
        try:
            self._prepare(path.parent)
            self._prune(len(content))
            write_atomically(path, content, mode=0o600)
        except (OSError, SourceError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self.problem = f"results are not kept in {inert(str(self.folder))!r}: {why}"

    def entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Every entry's path and status, in no order."""
        for path in self.folder.glob("??/*.npz"):
            with suppress(OSError):
                yield path, path.stat()

    def clear(self) -> int:
        """Remove every entry; how many there were."""
        paths = [path for path, _ in self.entries()]
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _place(self, key: Mapping[str, Any]) -> tuple[Path, str]:
        text = json.dumps(key, sort_keys=True, separators=(",", ":"))
        name = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.npz", text

    def _prepare(self, parent: Path) -> None:
        """The folders, open to their owner alone; a folder of somebody else is refused."""
        for folder in (self.folder, parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if hasattr(os, "getuid"):
                status = folder.stat()
                if status.st_uid != os.getuid():
                    raise SourceError("the folder belongs to another user; set EIGENLENS_CACHE")
                if stat.S_IMODE(status.st_mode) & 0o077:
                    folder.chmod(0o700)

    def _prune(self, more: int) -> None:
        """Make room for `more` bytes, the entries used longest ago first."""
        found = sorted(self.entries(), key=lambda e: e[1].st_mtime)
        total = sum(status.st_size for _, status in found) + more
        for path, status in found:
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= status.st_size


def _pack(key: str, record: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"array {name} holds objects, which are not kept")
    text = json.dumps({"key": key, "record": dict(record)})
    out = io.BytesIO()
    named: dict[str, Any] = {f"a.{name}": array for name, array in arrays.items()}
    named[_TEXT] = np.frombuffer(text.encode(), np.uint8)
    np.savez(out, **named)
    return out.getvalue()


def _unpack(content: bytes, key: str) -> Entry | None:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            held = json.loads(found[_TEXT].tobytes())
            if held["key"] != key:
                return None
            names = [name for name in found.files if name.startswith("a.")]
            return Entry(held["record"], {name[2:]: found[name] for name in names})
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        NotImplementedError,  # zipfile: a method of packing that it does not know
    ):
        return None  # damaged: to be computed again
