"""ALBERT's shared layers given to each step of their own, so that one step can be edited alone.

``num_hidden_groups = num_hidden_layers`` is an ordinary config: step i then runs group i. The
tensors of a group are written once for each step that ran it, bit for bit; config and index change
with them, and every other tensor keeps its bits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import FormatError, OptionError
from eigenlens.inert import inert
from eigenlens.steering.target import Target
from eigenlens.tensors.files import file_size, read_bytes, read_json, shown
from eigenlens.tensors.folder import WEIGHT_FILES, inside
from eigenlens.tensors.patch import BLOCK, Piece, piece_of, write_pieces
from eigenlens.tensors.safetensors_file import SafetensorsFile

CONFIG = "config.json"
INDEX = WEIGHT_FILES[0][1]


@dataclass(frozen=True)
class _Groups:
    """How a model type names the groups that its layers share."""

    key: str
    layers: str
    pattern: re.Pattern[str]


_GROUPS: Mapping[str, _Groups] = {
    "albert": _Groups(
        "num_hidden_groups",
        "num_hidden_layers",
        re.compile(r"(?P<before>.*\balbert_layer_groups\.)(?P<group>\d+)(?P<after>\..+)"),
    )
}


@dataclass(frozen=True)
class Untied:
    """What is to be written of an untied checkpoint.

    Attributes
    ----------
    tensor
        The name that the target's tensor has in its last step.
    copies
        Old name of a shared tensor to its names, step by step.
    config, index
        The new texts; index None where there is none.
    files
        The weight files, relative to the folder.
    key
        The config key that changed.
    """

    tensor: str
    copies: Mapping[str, tuple[str, ...]]
    config: bytes
    index: bytes | None
    files: tuple[str, ...]
    key: str

    def write(self, source: Path, target: Path, file: str) -> None:
        """One weight file with its shared tensors step by step; streamed."""
        found = SafetensorsFile(inside(source, file))
        pieces: list[Piece] = []
        for name in stored_order(found):
            pieces += [piece_of(found, name, new) for new in self.copies.get(name, (name,))]
        write_pieces(target, pieces, found.metadata)

    def check(self, source: Path, target: Path) -> None:
        """Every tensor of the files but the edited one has the bytes that it was copied from.

        Raises
        ------
        FormatError
            One has not.
        """
        for file in self.files:
            path = target / file
            before, after = SafetensorsFile(inside(source, file)), SafetensorsFile(path)
            for name in before.names():
                for new in self.copies.get(name, (name,)):
                    pairs: Any = zip(
                        piece_of(before, name).content(),
                        piece_of(after, new).content(),
                        strict=True,
                    )
                    if new != self.tensor and not all(bytes(a) == bytes(b) for a, b in pairs):
                        raise FormatError(
                            f"{shown(path)}: tensor '{inert(new)}' is not what was written; check "
                            "the disk, and write again"
                        )


def untie(checkpoint: Checkpoint, target: Target, folder: Path, files: tuple[str, ...]) -> Untied:
    """Plan the untied form of a checkpoint, for an edit of the last call of a target's layer.

    Parameters
    ----------
    checkpoint, target
        The model, and the tensor that is to be edited.
    folder, files
        Its folder and weight files.

    Raises
    ------
    OptionError
        The model type shares layers in a way that no config can undo.
    FormatError
        The config or a weight file is not as it has to be.
    """
    groups = _GROUPS.get(str(checkpoint.model_type))
    if groups is None:
        raise OptionError(
            f"model_type '{inert(str(checkpoint.model_type))}' calls {target.label} "
            f"{target.plan.steps} times with the same weights, and its config cannot give the last "
            "call weights of its own: edit all calls (--steps-edited all)"
        )
    stack = next(s for s in checkpoint.stacks if target.plan in s.layers)
    n_layers, n_groups = stack.geometry.n_layers, int(stack.config.get(groups.key, 1))
    steps: dict[int, list[int]] = {}
    for step in range(n_layers):  # the division is in floats, as the model does it
        steps.setdefault(int(step / (n_layers / n_groups)), []).append(step)
    copies: dict[str, tuple[str, ...]] = {}
    names = () if checkpoint.source is None else checkpoint.source.store.names()
    for name in names:
        match = groups.pattern.fullmatch(name)
        if match:
            at = steps.get(int(match["group"]), [])
            copies[name] = tuple(f"{match['before']}{i}{match['after']}" for i in at)
            if not at:
                raise FormatError(
                    f"tensor '{inert(name)}' belongs to a group that no step runs: it cannot be "
                    "untied; edit all calls (--steps-edited all)"
                )
    if target.tensor not in copies:
        raise FormatError(
            f"tensor '{inert(target.tensor)}' has no group in its name: it cannot be untied; edit "
            "all calls (--steps-edited all)"
        )
    for file in files:
        check_dense(SafetensorsFile(inside(folder, file)))
    config = read_json(inside(folder, CONFIG), CONFIG)
    config[groups.key] = n_layers
    index = None
    if (folder / INDEX).is_file():
        index = _text(_new_index(read_json(inside(folder, INDEX), INDEX), copies, folder, files))
    last = copies[target.tensor][-1]
    return Untied(last, copies, _text(config), index, files, groups.key)


def _new_index(
    index: dict[str, Any], copies: Mapping[str, tuple[str, ...]], folder: Path, files: Any
) -> dict[str, Any]:
    weight_map = index["weight_map"]
    index["weight_map"] = {
        new: file for name, file in weight_map.items() for new in copies.get(name, (name,))
    }
    size = 0
    for file in files:
        found = SafetensorsFile(inside(folder, file))
        for name in found.names():
            start, stop = found.entry(name)
            size += (stop - start) * len(copies.get(name, (name,)))
    if isinstance(index.get("metadata"), dict) and "total_size" in index["metadata"]:
        index["metadata"]["total_size"] = size
    return index


def _text(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def stored_order(file: SafetensorsFile) -> list[str]:
    """A file's tensors as they lie in it."""
    return sorted(file.names(), key=lambda name: (*file.entry(name), name))


def check_dense(file: SafetensorsFile) -> None:
    """Check that tensors lie end to end, so that a file can be made again from them.

    Raises
    ------
    FormatError
        There are holes between them.
    """
    at = header_length(file.path)
    for name in stored_order(file):
        start, stop = file.entry(name)
        if start != at:
            raise FormatError(
                f"{shown(file.path)}: has a hole before tensor '{inert(name)}': save it again"
            )
        at = stop
    if at != file_size(file.path):
        raise FormatError(f"{shown(file.path)}: has bytes after its last tensor: save it again")


def header_length(path: Path) -> int:
    """Bytes of a .safetensors file before its first tensor."""
    return 8 + int.from_bytes(read_bytes(path, 0, 8, "the header length").tobytes(), "little")


def header_of(path: Path) -> bytes:
    """These bytes."""
    return read_bytes(path, 0, header_length(path), "the header").tobytes()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read block by block."""
    digest, size, at = hashlib.sha256(), file_size(path), 0
    while at < size:
        count = min(BLOCK, size - at)
        digest.update(read_bytes(path, at, count, "its content").data)
        at += count
    return digest.hexdigest()
