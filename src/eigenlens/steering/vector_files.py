"""Directions from files: .npy, .safetensors, and control vectors in GGUF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.steering.directions import Direction, unit
from eigenlens.tensors.files import shown
from eigenlens.tensors.gguf_file import GGUFFile
from eigenlens.tensors.safetensors_file import SafetensorsFile
from eigenlens.tensors.store import TensorStore


def check_vector_file(place: Path) -> None:
    """Refuse a file that is not there, or of a kind that directions are not read from.

    Raises
    ------
    FormatError
        It is.
    """
    if place.suffix.lower() not in READERS:
        raise FormatError(
            f"{shown(place)}: directions are read from {', '.join(READERS)} files; save the "
            "vector as one of them"
        )
    if not place.is_file():
        raise FormatError(f"{shown(place)}: no such file; check the path")


def of_file(path: str | Path, d: int, layer: int) -> Direction:
    """A vector in a .npy, .safetensors or .gguf file.

    Parameters
    ----------
    path
        .npy holds one vector (pickles are refused); .safetensors one tensor, or one named
        ``direction`` or ``direction.LAYER``; .gguf a control vector, ``direction.LAYER`` for each
        layer.
    d
        Its dimension.
    layer
        Which of a control vector's layers.

    Raises
    ------
    FormatError
        No such file, another kind, damaged, or no vector for this layer in it.
    OptionError, NumericsError
        See `unit`.
    """
    place = Path(path)
    check_vector_file(place)
    vector, name = READERS[place.suffix.lower()](place, layer)
    through = f"'{inert(name)}' of the file" if name else "the file's vector"
    return Direction(
        unit(vector, d, f"{shown(place)}{f' ({inert(name)})' if name else ''}"),
        f"vector {inert(place.name)[:40]}",
        "file",
        through,
    )


def _npy(path: Path, layer: int) -> tuple[Any, str]:
    # Mapped, so that a file of another kind or a header that lies costs no memory.
    try:
        return np.lib.format.open_memmap(path, mode="r"), ""
    except (ValueError, OverflowError, EOFError, OSError) as error:
        raise FormatError(
            f"{shown(path)}: is no .npy file of plain numbers ({inert(str(error))[:80]}); save the "
            "vector with numpy.save as floats"
        ) from error


def _safetensors(path: Path, layer: int) -> tuple[Any, str]:
    return _named(SafetensorsFile(path), path, layer)


def _gguf(path: Path, layer: int) -> tuple[Any, str]:
    return _named(GGUFFile(path), path, layer)


def _named(store: TensorStore, path: Path, layer: int) -> tuple[Any, str]:
    names = store.names()
    wanted = [n for n in (f"direction.{layer}", "direction") if n in names]
    if not wanted and len(names) == 1 and not next(iter(names)).startswith("direction."):
        wanted = list(names)
    if not wanted:
        some = ", ".join(inert(n) for n in sorted(names)[:4])
        raise FormatError(
            f"{shown(path)}: has no tensor 'direction.{layer}' for layer {layer} (found "
            f"{some or 'none'}{', ...' if len(names) > 4 else ''}); take another --layer or file"
        )
    return store.read(wanted[0]), wanted[0]


READERS: Mapping[str, Callable[[Path, int], tuple[Any, str]]] = {
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".gguf": _gguf,
}
"""How a file's vector is read, by suffix."""
