"""A folder that is there whole or not at all: written beside, flushed, and moved into place.

What is being written is called ``.NAME.eigenlens-XXXX`` and holds a lock. What a kill leaves under
such a name is removed by the next write to NAME; a folder that a kill left moved aside is put back.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eigenlens.errors import OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.tensors.files import shown
from eigenlens.tensors.folder import inside
from eigenlens.tensors.patch import BLOCK, write_all

MARK = ".eigenlens-"
"""In the name of what is being written."""
_ASIDE = ".eigenlens-old-"
_FICLONE = 0x40049409
_SKIPPED = frozenset({".git", ".cache", "__pycache__"})
_NOREPLACE, _EXCHANGE = 1, 2  # of renameat2
_AT_FDCWD = -100


@contextmanager
def new_folder(folder: Path, *, force: bool, known_by: Sequence[str]) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the context ends well.

    Parameters
    ----------
    folder
        Where it shall be.
    force
        Whether a folder that is there may be replaced; it stays until the new one is complete.
    known_by
        Files of which a replaced folder must hold one: no other folder is ever removed.

    Raises
    ------
    OptionError
        `folder` is there already, or is none that may be replaced (with a .git, none is).
    SourceError
        It cannot be written; nothing is left behind.
    """
    folder = Path(os.path.realpath(folder.expanduser()))
    clean(folder)
    check_free(folder, force, known_by)
    building: Path | None = None
    lock: int | None = None
    made = [p for p in (folder.parent, *folder.parent.parents) if not p.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{folder.name}{MARK}"
        building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
        lock = _locked(building)
        building.chmod(0o777 & ~_umask())
        yield building
        flush_folders(building)
        _move(building, folder, force)
        flush_folder(folder.parent)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SourceError(
            f"cannot write {shown(folder)}: {reason}; nothing is left behind, make room or take "
            "another place"
        ) from error
    finally:
        if building is not None and building.exists():
            shutil.rmtree(building, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        if not folder.exists():
            with suppress(OSError):
                for parent in made:
                    parent.rmdir()


def apart(source: Path, folder: Path, *, own: bool, inside: bool) -> None:
    """Refuse to write what would be copied into itself, or would take the model's place.

    Parameters
    ----------
    source
        The model's folder.
    folder
        What is to be written.
    own
        Whether it may be the model's folder itself.
    inside
        Whether it may lie in the model's folder.

    Raises
    ------
    OptionError
        It may not.
    """
    here, there = source.resolve(), folder.expanduser().resolve()
    if here == there:
        if not own:
            raise OptionError(
                f"{shown(folder)}: is the model's own folder, which this would replace; give "
                "another folder"
            )
    elif here.is_relative_to(there) or (there.is_relative_to(here) and not inside):
        raise OptionError(
            f"{shown(folder)}: lies inside the model's folder, or holds it; give another folder"
        )


def clean(folder: Path) -> None:
    """Remove what a killed write left beside `folder`, and put back what it had moved aside."""
    try:
        entries = sorted(folder.parent.iterdir())
    except OSError:
        return
    for path in entries:
        if path.name.startswith(f".{folder.name}{_ASIDE}"):
            if os.path.lexists(folder):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.rename(path, folder)
        elif path.name.startswith(f".{folder.name}{MARK}") and path.is_dir():
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A handle of the folder that holds its lock; None where another process holds it."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def check_free(folder: Path, force: bool, known_by: Sequence[str]) -> None:
    """Refuse a folder that `new_folder` would not make or replace.

    Raises
    ------
    OptionError
        See `new_folder`.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise OptionError(f"{shown(folder)}: is a file; give the name of a new folder")
    if not force:
        raise OptionError(
            f"{shown(folder)}: is there already; give another folder, or --force to replace it"
        )
    if any(folder.iterdir()) and not any((folder / name).is_file() for name in known_by):
        raise OptionError(
            f"{shown(folder)}: holds none of {', '.join(known_by)}, so it is no folder of this "
            "kind and --force does not remove it; give another folder"
        )
    if os.path.lexists(folder / ".git"):
        raise OptionError(
            f"{shown(folder)}: holds .git, the history of all that is in it, which would be "
            "removed; move it away, or give another folder"
        )


def _move(building: Path, folder: Path, force: bool) -> None:
    """Put the finished folder in place, in one step where the system can."""
    if not os.path.lexists(folder):
        if not _rename(building, folder, _NOREPLACE):
            os.rename(building, folder)
        return
    if not force:
        raise FileExistsError(17, "it appeared meanwhile", str(folder))
    if _rename(building, folder, _EXCHANGE):
        return  # what is called `building` now is the old folder; it is removed by the caller
    aside = folder.with_name(f".{folder.name}{_ASIDE}{building.name[-8:]}")
    os.rename(folder, aside)
    os.rename(building, folder)
    shutil.rmtree(aside, ignore_errors=True)


def _rename(old: Path, new: Path, flags: int) -> bool:
    """Linux's renameat2; False where system or file system do not know it."""
    if not sys.platform.startswith("linux"):
        return False
    call: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    failed = call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags)
    if failed and ctypes.get_errno() == 17:  # EEXIST
        raise FileExistsError(17, "it appeared meanwhile", str(new))
    return not failed


def flush_folder(folder: Path) -> None:
    """Wait until the disk knows the names in a folder."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folders(folder: Path) -> None:
    """The same for a folder and all in it."""
    for place, _, _ in os.walk(folder):
        flush_folder(Path(place))


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """The files of a model's folder, subfolders included, and what is left out.

    Left out are the histories and caches of other tools (.git, .cache, __pycache__).

    Raises
    ------
    SourceError
        A link leads out of the folder (into the hub's cache it may), or something is no file.
    """
    files: list[str] = []
    left: list[str] = []

    def walk(at: Path, above: tuple[Path, ...]) -> None:
        for path in sorted(at.iterdir()):
            name = path.relative_to(folder).as_posix()
            if path.name in _SKIPPED or MARK in path.name:
                left.append(name)
                continue
            inside(folder, name)
            if path.is_file():
                files.append(name)
            elif path.is_dir() and path.resolve() not in above:
                walk(path, (*above, path.resolve()))
            else:
                raise SourceError(
                    f"{shown(path)}: is no file that can be copied (a link that leads nowhere or "
                    "round in a circle, or a device); remove it"
                )

    try:
        walk(folder, (folder.resolve(),))
    except OSError as error:
        raise SourceError(
            f"{inert(str(error.filename or folder))}: {error.strerror}; check that it may be read"
        ) from error
    return files, left


def copy_file(source: Path, target: Path, *, link: bool = False) -> str:
    """A copy of a file, links followed; how it was made: `link`, `reflink` or `copy`.

    With `link` the file gets a second name (a hard link) where that is possible.

    Raises
    ------
    OSError
        The disk takes no more.
    """
    real = Path(os.path.realpath(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    if link:
        with suppress(OSError):  # another disk, or one that has no hard links
            os.link(real, target)
            return "link"
    mode = real.stat().st_mode & 0o777 | 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with real.open("rb", buffering=0) as reader:
        handle = os.open(target, flags, mode)
        try:
            how = "reflink" if _reflink(reader.fileno(), handle) else "copy"
            if how == "copy":
                while block := reader.read(BLOCK):
                    write_all(handle, block)
            os.fsync(handle)
        finally:
            os.close(handle)
    return how


def _reflink(source: int, target: int) -> bool:
    """Share the blocks of one file with another, where the file system can."""
    try:
        import fcntl

        fcntl.ioctl(target, _FICLONE, source)
    except (ImportError, OSError):
        return False
    return True


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file beside `path` with `write`, and move it into place.

    Raises
    ------
    SourceError
        It cannot be written; `path` is as it was.
    """
    building = path.with_name(f".{path.name}{MARK}new")
    try:
        with suppress(FileNotFoundError):
            os.unlink(building)
        write(building)
        os.replace(building, path)
        flush_folder(path.parent)
    except OSError as error:
        raise SourceError(
            f"cannot write {shown(path)}: {error.strerror or type(error).__name__}; it is as it "
            "was, make room and try again"
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(building)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
