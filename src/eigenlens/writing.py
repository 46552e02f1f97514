"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from eigenlens.errors import SourceError
from eigenlens.inert import inert


def write_atomically(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write `content` beside `path` and move it into place; a failure leaves nothing behind.

    Parameters
    ----------
    path, content
        Where and what.
    mode
        Permissions of the file; by default what the umask leaves.

    Raises
    ------
    SourceError
        The file cannot be written; the message says why.
    """
    write_together({path: content}, mode)


def write_together(
    files: Mapping[Path, bytes], mode: int | None = None, *, folders: Collection[Path] = ()
) -> None:
    """Write several files, all of them or none: each is complete on disk before the first moves.

    A symbolic link is followed and stays.

    Parameters
    ----------
    files, mode
        See `write_atomically`.
    folders
        Made where they are not there, and taken away again where nothing could be written.

    Raises
    ------
    SourceError
        A file cannot be written; the message says which and why.
    """
    staged: dict[str, Path] = {}
    made: list[Path] = []
    path = Path()
    try:
        for path in folders:
            if not path.is_dir():
                path.mkdir()
                made.append(path)
        for path, content in files.items():
            _stage(path.resolve(), content, staged, mode)
        for name, path in staged.items():
            os.replace(name, path)
    except OSError as error:
        raise SourceError(f"cannot write {inert(str(path))!r}: {error.strerror}") from None
    finally:
        for name in staged:
            with suppress(OSError):
                os.unlink(name)
        for folder in made:
            with suppress(OSError):  # what holds files stays
                folder.rmdir()


def _stage(path: Path, content: bytes, staged: dict[str, Path], mode: int | None) -> None:
    """`content` in a new file beside `path`, entered in `staged` before a byte is written."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".eigenlens-")
    staged[name] = path
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    if mode is None:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    os.chmod(name, mode)
