"""Pieces of a remote file that were fetched already, kept on disk for the next run.

A piece is a file named ``START-STOP`` (bytes of the remote file) in a folder of its own: it is
complete on disk before it gets its name, and its length must be what its name says, so neither a
crash nor a full disk leaves a piece that lies. Pieces may overlap when two processes fetch at once;
they hold the same bytes. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eigenlens.errors import SourceError
from eigenlens.writing import write_atomically

Span = tuple[int, int]
"""First byte and the byte after the last."""

PIECE = 32 * 1024 * 1024  # what a kill -9 can lose
_NAME = re.compile(r"(\d{1,19})-(\d{1,19})")
_TEMPORARY = ".arriving-"
_STALE = 3600.0  # seconds after which an unnamed piece belongs to nobody


def private_folder(path: Path) -> Path:
    """Make a folder, and those above it that are not there, for the eyes of its owner only."""
    if not path.parent.is_dir():
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "the folder belongs to another user")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def merge(spans: Iterable[Span], gap: int = 0) -> list[Span]:
    """The spans in order, joined where no more than `gap` bytes lie between two.

    Examples
    --------
    >>> merge([(30, 40), (0, 10), (12, 20)], gap=2)
    [(0, 20), (30, 40)]
    """
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif stop > start:
            joined.append((start, stop))
    return joined


class Segments:
    """The pieces of one remote file.

    Parameters
    ----------
    folder
        Where they lie (made with mode 0700); None keeps nothing.
    refuse
        Told once, with the reason, when the disk takes no more; fetching goes on without.
    """

    def __init__(self, folder: Path | None, refuse: Callable[[str], None]) -> None:
        self._folder = folder
        self._refuse = refuse
        self._have: list[Span] = []
        self.keeps = folder is not None  # whether what is fetched now will be here later
        if folder is not None:
            try:
                self._scan(private_folder(folder))
            except OSError as error:
                self._give_up(error)

    def _scan(self, folder: Path) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    start, stop = int(match[1]), int(match[2])
                    if entry.stat(follow_symlinks=False).st_size == stop - start > 0:
                        self._have.append((start, stop))
                elif entry.name.startswith(_TEMPORARY):
                    with suppress(OSError):
                        if entry.stat(follow_symlinks=False).st_mtime < time.time() - _STALE:
                            os.unlink(entry.path)
        self._have.sort()

    def _give_up(self, error: OSError) -> None:
        self.keeps = False
        self._refuse(error.strerror or type(error).__name__)

    def missing(self, start: int, stop: int) -> list[Span]:
        """What of ``start`` to ``stop`` is not here, in order."""
        gaps, at = [], start
        for first, last in self._have:
            if last <= at:
                continue
            if first >= stop:
                break
            if first > at:
                gaps.append((at, first))
            at = last
        if at < stop:
            gaps.append((at, stop))
        return gaps

    def read_into(self, start: int, out: memoryview) -> bool:
        """Fill `out` with the bytes from `start` on; False if a piece is gone or damaged.

        Such a piece is forgotten, so that `missing` names its bytes afterwards.
        """
        at, stop = start, start + len(out)
        while at < stop:
            piece = max((p for p in self._have if p[0] <= at < p[1]), key=lambda p: p[1])
            end = min(piece[1], stop)
            if not self._read_piece(piece, at - piece[0], out[at - start : end - start]):
                self._have.remove(piece)
                return False
            at = end
        return True

    def _read_piece(self, piece: Span, offset: int, out: memoryview) -> bool:
        if self._folder is None:
            return False
        try:
            with (self._folder / f"{piece[0]}-{piece[1]}").open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != piece[1] - piece[0]:
                    return False
                file.seek(offset)
                done = 0
                while done < len(out):
                    got = file.readinto(out[done:])
                    if not got:
                        return False
                    done += got
        except OSError:
            return False
        return True

    def writer(self, start: int) -> SegmentWriter:
        """Takes the bytes from `start` on, as they come; use it as a context."""
        return SegmentWriter(self, start)

    def _new(self) -> Any:
        """A file without a name yet, readable by its owner only; None when nothing is kept."""
        if self._folder is None or not self.keeps:
            return None
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=_TEMPORARY)
        return os.fdopen(handle, "wb"), name

    def _keep(self, name: str, span: Span) -> None:
        if self._folder is not None:
            os.replace(name, self._folder / f"{span[0]}-{span[1]}")
            self._have = sorted({*self._have, span})


class SegmentWriter:
    """Writes a run of bytes as pieces; what has come is kept also when the run breaks off."""

    def __init__(self, segments: Segments, start: int) -> None:
        self._segments = segments
        self._start = self._at = start
        self._open: Any = None

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()

    def write(self, data: memoryview | bytes) -> None:
        """Append; a disk that takes no more ends the keeping, not the run."""
        try:
            if self._open is None:
                self._open = self._segments._new()
            if self._open is not None:
                self._open[0].write(data)
        except OSError as error:
            self._drop(error)
        self._at += len(data)
        if self._at - self._start >= PIECE:
            self._finish()

    def _finish(self) -> None:
        if self._open is None:
            return
        file, name = self._open
        try:
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave a named piece of zeros
            file.close()
            self._segments._keep(name, (self._start, self._at))
        except OSError as error:
            self._drop(error)
        self._open, self._start = None, self._at

    def _drop(self, error: OSError) -> None:
        if self._open is not None:
            file, name = self._open
            self._open = None
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                os.unlink(name)
        self._segments._give_up(error)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a small JSON record in one step; a disk that does not take it is no error."""
    with suppress(OSError, SourceError):
        private_folder(path.parent)
        write_atomically(path, json.dumps(record).encode(), mode=0o600)


def read_record(path: Path) -> dict[str, Any]:
    """A record as it was written; empty when there is none or it is damaged."""
    try:
        found = json.loads(path.read_bytes()[:100_000])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
