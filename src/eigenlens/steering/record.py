"""What a steered folder remembers of its edits, from which its bytes can come back.

``eigenlens.json`` lists the edits, the oldest first, with SHA-256 of the tensor before and after;
``eigenlens.undo`` (a safetensors file by content) keeps the tensors as they were, under the edits'
numbers. Where an edit untied shared layers, the undo file also keeps config, index and headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eigenlens import __version__
from eigenlens.circuit.edits import RECORD, SCHEMA
from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.steering.untie import CONFIG, INDEX, Untied, file_sha256, header_of
from eigenlens.tensors.files import read_json, shown
from eigenlens.tensors.folder import inside
from eigenlens.tensors.patch import Piece, piece_of, piece_of_bytes, write_pieces
from eigenlens.tensors.safetensors_file import SafetensorsFile

UNDO = "eigenlens.undo"
UNDO_SCHEMA = "eigenlens.undo/1"
_TEXTS = ("tensor", "file", "sha256_before", "sha256_after")


def read_edits(folder: Path) -> list[dict[str, Any]]:
    """The edits of a folder, the oldest first; empty where there is no record.

    Raises
    ------
    FormatError
        The record is damaged.
    """
    path = folder / RECORD
    if not path.exists():
        return []
    record = read_json(inside(folder, RECORD), RECORD)
    edits = record.get("edits")
    if record.get("schema") != SCHEMA or not isinstance(edits, list):
        raise FormatError(
            f"{shown(path)}: is no record of edits ({SCHEMA}); this eigenlens reads no other"
        )
    for edit in edits:
        if not isinstance(edit, dict) or not all(isinstance(edit.get(k), str) for k in _TEXTS):
            raise FormatError(
                f"{shown(path)}: an edit does not state {', '.join(_TEXTS)}; take the record from "
                "where the folder was written"
            )
    return edits


def record_bytes(edits: Sequence[Mapping[str, Any]]) -> bytes:
    """`eigenlens.json`."""
    record = {"schema": SCHEMA, "eigenlens_version": __version__, "edits": list(edits)}
    return (json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_undo(path: Path, source: Path, before: int, pieces: Sequence[Piece]) -> None:
    """An undo file: what a source's keeps of its first `before` edits, and more pieces.

    Raises
    ------
    OSError
        The disk takes no more.
    """
    kept = [*_kept(source, before), *pieces]
    write_pieces(path, kept, {"format": UNDO_SCHEMA})


def untied_pieces(number: int, untied: Untied, source: Path) -> Iterator[Piece]:
    """What brings the shared form back: config, index and the headers of the weight files."""
    yield piece_of_bytes(f"{number}/{CONFIG}", inside(source, CONFIG).read_bytes())
    if untied.index is not None:
        yield piece_of_bytes(f"{number}/{INDEX}", inside(source, INDEX).read_bytes())
    for file in untied.files:
        yield piece_of_bytes(f"{number}/{file}", header_of(inside(source, file)))


def untied_record(untied: Untied, source: Path) -> dict[str, Any]:
    """What the record says of an untied edit: the files' hashes, and where each tensor is now."""
    now = {name: new[0] for name, new in untied.copies.items()}
    texts = [CONFIG, *([] if untied.index is None else [INDEX])]
    hashes = {file: file_sha256(inside(source, file)) for file in (*untied.files, *texts)}
    return {"files": hashes, "tensors": now, "key": untied.key}


def _kept(folder: Path, before: int) -> list[Piece]:
    path = folder / UNDO
    if not before or not path.is_file():
        return []
    found = undo_file(folder)
    numbers = {str(i) for i in range(before)}
    return [piece_of(found, n) for n in sorted(found.names()) if n.split("/")[0] in numbers]


def undo_file(folder: Path) -> SafetensorsFile:
    """The undo file of a folder.

    Raises
    ------
    FormatError
        It is damaged, or a file of another kind.
    """
    found = SafetensorsFile(inside(folder, UNDO))
    if found.metadata.get("format") != UNDO_SCHEMA:
        raise FormatError(
            f"{shown(found.path)}: is no undo file ({UNDO_SCHEMA}); take it from where the folder "
            "was written"
        )
    return found


def kept_files(undo: SafetensorsFile, number: int) -> set[str]:
    """The files that an undo file keeps something of, for an edit that untied shared layers."""
    start = f"{number}/"
    return {name.removeprefix(start) for name in undo.names() if name.startswith(start)}


def undo_of(folder: Path, number: int, pieces: Sequence[str]) -> SafetensorsFile:
    """The undo file of a folder, which has to hold what it is asked for.

    Raises
    ------
    FormatError
        It does not, or it is damaged.
    """
    undo = undo_file(folder)
    lost = [piece for piece in pieces if piece not in undo.names()]
    if lost:
        raise FormatError(
            f"{shown(undo.path)}: keeps no '{inert(lost[0][:200])}', which edit {number + 1} of "
            f"{RECORD} needs; nothing was changed, take the original model"
        )
    return undo
