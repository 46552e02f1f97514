"""An edit as one small file: direction, what is written, what is read, strength, and what it fits.

A safetensors file with the tensors ``direction``, ``written``, ``w`` and ``alpha`` (the strength),
all F64, so that an edit comes back as it was; its metadata say where the edit acts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import EigenlensError, FormatError, OptionError
from eigenlens.inert import inert
from eigenlens.steering.edit import Edit
from eigenlens.steering.folders import replace_file
from eigenlens.steering.target import find_target
from eigenlens.steering.written import Written
from eigenlens.tensors.dtypes import DTYPES
from eigenlens.tensors.files import shown
from eigenlens.tensors.patch import Piece, raw, write_pieces
from eigenlens.tensors.safetensors_file import SafetensorsFile

SCHEMA = "eigenlens.delta/1"
SUFFIX = ".safetensors"
TEXTS = ("model", "model_type", "stack", "kind", "site", "steps", "probe", "label")
VECTORS = ("direction", "written", "w")


def write_delta(
    checkpoint: Checkpoint, edit: Edit, path: str | Path, *, force: bool = False
) -> Written:
    """Write an edit as a delta file, which `read_delta` and ``eigenlens apply`` read.

    Parameters
    ----------
    checkpoint
        The model that it must fit.
    edit
        What to write.
    path
        A .safetensors file that is not there yet.
    force
        Replace a delta that is there.

    Raises
    ------
    OptionError
        The edit does not fit the model, the name has another ending, or something is there.
    SourceError
        It cannot be written; nothing is left behind.
    """
    target = find_target(checkpoint, edit)
    path = Path(path).expanduser()
    check_delta_place(path, force=force)
    metadata = {"format": SCHEMA, "layer": str(edit.layer)}
    metadata |= {name: str(getattr(edit, name)) for name in TEXTS}
    arrays = {name: np.asarray(getattr(edit, name)) for name in VECTORS}
    arrays["alpha"] = np.asarray(edit.strength)
    pieces = [_piece(name, array) for name, array in arrays.items()]
    replace_file(path.resolve(), lambda place: write_pieces(place, pieces, metadata))
    size = path.stat().st_size
    return Written(edit, "delta", path, (path.name,), target.tensor, path.name, size=size)


def check_delta_place(path: Path, *, force: bool) -> None:
    """Refuse a place where no delta can be written.

    Raises
    ------
    OptionError
        The name has another ending, something is there, or the folder is not.
    FormatError
        What is there and would be replaced is no delta.
    """
    if path.suffix != SUFFIX:
        raise OptionError(f"{shown(path)}: a delta is a {SUFFIX} file; give it that ending")
    there = os.path.exists(path)  # False also below a folder that is closed to us
    if there and not force:
        raise OptionError(
            f"{shown(path)}: is there already; give another name, or --force to replace it"
        )
    if there:
        _check_delta(path)
    if not os.path.isdir(path.parent):
        raise OptionError(
            f"cannot write {shown(path)}: there is no folder {shown(path.parent)}; make it, or "
            "give another place"
        )


def read_delta(path: str | Path) -> Edit:
    """The edit of a delta file.

    Raises
    ------
    FormatError
        It is no delta file, or it is damaged.
    """
    found = _check_delta(Path(path).expanduser())
    place = shown(found.path)
    values: dict[str, Any] = dict(_texts(found.metadata, place))
    for name in (*VECTORS, "alpha"):
        if name not in found.names():
            raise FormatError(f"{place}: has no tensor '{name}', so is no delta; write it again")
        if found.info(name).dtype not in ("F64", "F32", "F16", "BF16"):
            raise FormatError(
                f"{place}: tensor '{name}' is stored as {inert(found.info(name).dtype)}, expected "
                "floats"
            )
        values[name] = found.read(name).astype(np.float64)
    alpha = values.pop("alpha")
    if alpha.size != 1:
        raise FormatError(f"{place}: 'alpha' has shape {alpha.shape}, expected one number")
    try:
        return Edit(**values, strength=float(alpha.reshape(())))
    except EigenlensError as error:
        raise FormatError(f"{place}: {error}") from error


def _texts(metadata: Mapping[str, str], place: str) -> dict[str, Any]:
    lost = [name for name in (*TEXTS, "layer") if name not in metadata]
    if lost:
        raise FormatError(f"{place}: does not state {', '.join(lost)}; write the delta again")
    layer = metadata["layer"]
    if not (layer.isascii() and layer.isdecimal() and len(layer) < 8):
        raise FormatError(f"{place}: layer is '{inert(layer[:40])}', expected a whole number")
    return {**{name: metadata[name] for name in TEXTS}, "layer": int(layer)}


def _check_delta(path: Path) -> SafetensorsFile:
    found = SafetensorsFile(path)
    if found.metadata.get("format") != SCHEMA:
        raise FormatError(
            f"{shown(path)}: is no delta of eigenlens ({SCHEMA}); steer --as delta writes one"
        )
    return found


def _piece(name: str, array: Any) -> Piece:
    data = raw(array.astype(DTYPES["F64"]))
    return Piece(name, "F64", array.shape, len(data), lambda: (data,))
