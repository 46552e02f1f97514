"""`eigenlens.unsteer`: the bytes of a steered folder come back, from what it remembers.

Edits are undone in turn, the youngest first; with the first edit the note that it put in the
model's card goes (see `eigenlens.steering.notes`). Shared layers that an edit untied are made again
from the headers that are kept and the tensors of the untied files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eigenlens import __version__
from eigenlens.circuit.edits import RECORD
from eigenlens.errors import FormatError, SourceError
from eigenlens.inert import inert
from eigenlens.steering.folders import clean, copy_file, listed, new_folder, replace_file
from eigenlens.steering.notes import is_card, without
from eigenlens.steering.record import (
    UNDO,
    kept_files,
    read_edits,
    record_bytes,
    undo_file,
    undo_of,
    write_undo,
)
from eigenlens.steering.target import sha256
from eigenlens.steering.untie import CONFIG, INDEX, file_sha256
from eigenlens.tensors.files import shown
from eigenlens.tensors.folder import inside
from eigenlens.tensors.patch import (
    check_patched,
    piece_of,
    raw,
    write_all,
    write_new,
    write_span,
)
from eigenlens.tensors.safetensors_file import SafetensorsFile
from eigenlens.writing import write_atomically


@dataclass(frozen=True)
class Undone:
    """What `unsteer` did.

    Attributes
    ----------
    folder
        The folder.
    edit
        The record of the edit that was undone.
    remaining
        How many edits are left.
    resumed
        Whether an earlier call had restored the bytes and was killed before it could say so.
    """

    folder: Path
    edit: Mapping[str, Any]
    remaining: int
    resumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.unsteer/1``."""
        return {
            "schema": "eigenlens.unsteer/1",
            "eigenlens_version": __version__,
            "model": str(self.folder),
            "options": {},
            "warnings": [],
            "undone": {k: v for k, v in self.edit.items() if k != "untied"},
            "remaining": self.remaining,
            "resumed": self.resumed,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One record."""
        found = self.to_dict()["undone"]
        plain = {k: v for k, v in found.items() if not isinstance(v, (dict, list))}
        return [{**plain, "remaining": self.remaining}]


def unsteer(folder: str | Path) -> Undone:
    """Restore the bytes that the youngest edit of a folder changed.

    The weight file is written beside and moved into place, so that a kill leaves the old one or
    the new one; a second call ends what a killed one began. With the last edit the two files of
    eigenlens go as well, and the folder is what it was.

    Raises
    ------
    SourceError
        The folder holds no edit, its tensor was changed since, or it cannot be written.
    FormatError
        Record, undo file or weight file is damaged.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise SourceError(f"{shown(folder)}: no such folder; give one that steer has written")
    clean(folder.resolve())
    edits = read_edits(folder)
    if not edits:
        raise SourceError(
            f"{shown(folder)}: holds no {RECORD} with edits, so nothing is to be undone"
        )
    edit, left = edits[-1], edits[:-1]
    if "untied" in edit or (_is_file(folder / UNDO) and kept_files(undo_file(folder), len(left))):
        _tie(folder, edit, left)
        return Undone(folder, edit, len(left))
    resumed = _restore(folder, edit, len(left))
    for name in _noted(edit):
        if _is_file(folder / name):
            _take_note_out(inside(folder, name), name)
    _forget(folder, left)
    return Undone(folder, edit, len(left), resumed)


def _noted(edit: Mapping[str, Any]) -> list[str]:
    """The cards that an edit put a note in."""
    names = edit.get("noted")
    known = names if isinstance(names, list) else []
    return [name for name in known if isinstance(name, str) and is_card(name)]


def _take_note_out(path: Path, name: str) -> None:
    data = path.read_bytes()
    as_before = without(name, data)
    if as_before != data:
        write_atomically(path, as_before)


def _weights(folder: Path, edit: Mapping[str, Any]) -> SafetensorsFile:
    file = str(edit["file"])
    if ".." in Path(file).parts or Path(file).is_absolute() or not _is_file(folder / file):
        raise SourceError(
            f"{shown(folder)}: has no file '{inert(file[:200])}', which {RECORD} says was edited; "
            "nothing was changed"
        )
    found = SafetensorsFile(inside(folder, file))
    if edit["tensor"] not in found.names():
        raise SourceError(
            f"{shown(found.path)}: has no tensor '{inert(str(edit['tensor']))}', which {RECORD} "
            "says was edited; nothing was changed"
        )
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _original(folder: Path, edit: Mapping[str, Any], number: int, like: Any) -> Any:
    """The kept tensor, held against its hash, type and shape."""
    undo = undo_of(folder, number, [str(number)])
    kept = undo.read(str(number))
    if (
        kept.dtype != like.dtype
        or kept.shape != like.shape
        or (sha256(kept) != edit["sha256_before"])
    ):
        raise FormatError(
            f"{shown(undo.path)}: what it keeps of '{inert(str(edit['tensor']))}' is not what "
            f"{RECORD} says stood there; nothing was changed, take the original model"
        )
    return kept


def _restore(folder: Path, edit: Mapping[str, Any], number: int) -> bool:
    """Put the tensor back; whether it was back already."""
    name, found = str(edit["tensor"]), _weights(folder, edit)
    present = found.read(name)
    now = sha256(present)
    if now != edit["sha256_after"]:
        if now == edit["sha256_before"]:
            return True
        raise SourceError(
            f"{shown(found.path)}: tensor '{inert(name)}' was changed since it was edited "
            f"(SHA-256 {now[:12]}, recorded {str(edit['sha256_after'])[:12]}); nothing was undone, "
            "take the original model"
        )
    kept = raw(_original(folder, edit, number, present))
    start, _, _ = found.span(name)

    def write(path: Path) -> None:
        copy_file(found.path, path)
        write_span(path, start, kept)
        check_patched(found, path, name, kept)

    replace_file(found.path, write)
    return False


def _forget(folder: Path, left: list[dict[str, Any]]) -> None:
    """Take the youngest edit off the record; the undo file goes first, so that a kill is told."""
    undo, record = folder / UNDO, folder / RECORD
    if left:
        if undo.is_file():
            replace_file(undo, partial(_write_kept, folder, len(left)))
        write_atomically(record, record_bytes(left))
        return
    for path in (undo, record):
        with suppress(FileNotFoundError):
            path.unlink()


def _write_kept(folder: Path, before: int, path: Path) -> None:
    write_undo(path, folder, before, ())


def _tie(folder: Path, edit: Mapping[str, Any], left: list[dict[str, Any]]) -> None:
    """Make the shared form again: a new folder, in which all else is linked, takes the old's place.

    Raises
    ------
    SourceError, FormatError
        See `unsteer`; also if a file that was made again has not its old hash.
    """
    number, name = len(left), str(edit["tensor"])
    found = _weights(folder, edit)
    now = sha256(found.read(name))
    if now != edit["sha256_after"]:
        raise SourceError(
            f"{shown(found.path)}: tensor '{inert(name)}' was changed since it was edited; nothing "
            "was undone, take the original model"
        )
    untied = edit.get("untied")
    stated = untied if isinstance(untied, dict) else {}
    hashes, tensors = stated.get("files"), stated.get("tensors")
    if not (isinstance(hashes, dict) and isinstance(tensors, dict)) or not all(
        isinstance(name, str) for name in tensors.values()
    ):
        raise FormatError(
            f"{shown(folder / RECORD)}: does not say what was untied; take the record from where "
            "the folder was written"
        )
    undo = undo_of(folder, number, [f"{number}/{file}" for file in (CONFIG, *hashes)])
    kept = kept_files(undo, number)
    texts = kept & {CONFIG, INDEX}
    if str(edit["file"]) not in hashes or not kept <= {*hashes, *texts}:
        raise FormatError(
            f"{shown(folder / RECORD)}: does not state every file that was untied; nothing was "
            "undone, take the record from where the folder was written"
        )
    files, _ = listed(folder)
    noted = _noted(edit)
    with new_folder(folder, force=True, known_by=(RECORD,)) as building:
        for file in files:
            if file in (RECORD, UNDO):
                continue
            target = building / file
            if file in noted:
                write_new(target, without(file, inside(folder, file).read_bytes()))
            elif file in texts:
                write_new(target, undo.read(f"{number}/{file}").tobytes())
            elif file in hashes:
                header = undo.read(f"{number}/{file}").tobytes()
                _make_again(target, header, inside(folder, file), tensors)
            else:
                copy_file(folder / file, target, link=True)
            if file in hashes and file_sha256(target) != hashes[file]:
                raise FormatError(
                    f"{shown(folder / file)}: another tensor of it was changed since it was "
                    "edited, or what was kept of it; nothing was undone, take the original model"
                )
        if left:
            write_undo(building / UNDO, folder, number, ())
            write_new(building / RECORD, record_bytes(left))


def _make_again(target: Path, header: bytes, now: Path, tensors: Mapping[str, str]) -> None:
    """A file of shared tensors: its old header, and the tensors from where they are now."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        entries = json.loads(header[8:])
        entries.pop("__metadata__", None)
        order = sorted(entries, key=lambda name: (entries[name]["data_offsets"], name))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{shown(now.parent / UNDO)}: a header that it keeps is damaged; nothing was undone, "
            "take the original model"
        ) from error
    found = SafetensorsFile(now)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(handle, header)
        for name in order:
            for block in piece_of(found, tensors.get(name, name)).content():
                write_all(handle, memoryview(block))
        os.fsync(handle)
    finally:
        os.close(handle)
