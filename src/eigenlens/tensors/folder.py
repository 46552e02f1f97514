"""A checkpoint folder on disk: its weight files, its index, and where its links lead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from eigenlens.errors import FormatError, SourceError
from eigenlens.inert import inert
from eigenlens.tensors.files import read_json, shown
from eigenlens.tensors.safetensors_file import SafetensorsFile
from eigenlens.tensors.store import ShardedStore, TensorStore
from eigenlens.tensors.torch_file import TorchFile

# Index and single file of each format, the safe format first.
WEIGHT_FILES = (
    ("safetensors", "model.safetensors.index.json", "model.safetensors"),
    ("bin", "pytorch_model.bin.index.json", "pytorch_model.bin"),
)
OPENERS: dict[str, Callable[[Path], TensorStore]] = {
    "safetensors": SafetensorsFile,
    "bin": TorchFile,
}
# Files with a weight suffix that hold no model.
_NOT_WEIGHTS = frozenset(
    {"training_args.bin", "optimizer.bin", "scheduler.bin", "adapter_model.bin"}
)
_ADAPTERS = frozenset({"adapter_model.safetensors", "adapter_model.bin"})


def read_config(path: Path) -> dict[str, Any]:
    """A config.json with a `model_type`, or an error that says what is wrong with it."""
    config = read_json(path, "config.json")
    if not isinstance(config.get("model_type"), str):
        raise SourceError(
            f"{shown(path)}: has no 'model_type' (text); add it, as transformers' save_pretrained "
            "writes it"
        )
    return config


def read_index(path: Path) -> dict[str, str]:
    """The weight_map of an index file: tensor name to a file inside the folder.

    Raises
    ------
    FormatError
        Damaged, without a weight_map, or naming a file outside the folder.
    """
    weight_map = read_json(path, "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{shown(path)}: has no 'weight_map' object; get the file again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_inside(file):
            raise FormatError(
                f"{shown(path)}: places '{inert(name)}' in {inert(repr(file))[:80]}, which is not "
                "a file inside the model's folder; refused"
            )
    return weight_map


def _is_inside(file: str) -> bool:
    parts = PurePosixPath(file).parts
    plain = file.isprintable() and "\\" not in file and ":" not in file
    return bool(parts) and plain and not file.startswith("/") and ".." not in parts


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def inside(folder: Path, file: str) -> Path:
    """The path of `file` in `folder`, links followed; a link that leaves the folder is refused.

    The hub's cache is the exception: its ``snapshots/REVISION`` folders are links into the
    ``blobs`` folder of the same repository (which may link into one ``blobs`` folder of the whole
    cache).
    """
    path = folder / file
    target, root = path.resolve(), folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
        repository = root.parent.parent
        allowed += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(base) for base in allowed):
        raise SourceError(
            f"{shown(path)}: is a link to {shown(target)}, outside the model's folder; refused, "
            "copy the file into the folder"
        )
    return path


def open_folder(folder: Path) -> tuple[TensorStore, str]:
    """The store of a folder's weights and its format (``"safetensors"`` or ``"bin"``).

    An index comes first, then the usual single file, then the only file with that suffix;
    safetensors before .bin.

    Raises
    ------
    SourceError
        No weight files, several without an index, or shards missing (they are listed).
    """
    for kind, index, single in WEIGHT_FILES:
        if (folder / index).exists():
            return _open_sharded(folder, index, kind), kind
        if (folder / single).exists():
            return OPENERS[kind](inside(folder, single)), kind
        found = sorted(
            p.name
            for p in folder.glob(f"*.{kind}")
            if p.name not in _NOT_WEIGHTS | _ADAPTERS and p.is_file()
        )
        if len(found) == 1:
            return OPENERS[kind](inside(folder, found[0])), kind
        if found:
            listed = ", ".join(inert(name) for name in found[:12])
            raise SourceError(
                f"{shown(folder)}: has {len(found)} .{kind} files and no {index} that says which "
                f"tensor is where: {listed}{' ...' if len(found) > 12 else ''}; name one file, or "
                "add the index"
            )
    if any((folder / name).exists() for name in _ADAPTERS):
        raise SourceError(
            f"{shown(folder)}: holds an adapter only; give the base model, or merge the two"
        )
    raise SourceError(
        f"{shown(folder)}: has no weights; a model folder holds model.safetensors (or shards with "
        "model.safetensors.index.json) or pytorch_model.bin"
    )


def _open_sharded(folder: Path, index: str, kind: str) -> ShardedStore:
    path = inside(folder, index)
    weight_map = read_index(path)
    shards = sorted(set(weight_map.values()))
    absent = [file for file in shards if not _is_file(folder / file)]
    if absent:
        listed = ", ".join(inert(file[:200]) for file in absent[:12])
        raise SourceError(
            f"{shown(path)}: names {len(shards)} shards, {len(absent)} are missing: {listed}"
            f"{' ...' if len(absent) > 12 else ''}; get them, or correct the index"
        )
    return ShardedStore(path, weight_map, lambda file: OPENERS[kind](inside(folder, file)))
