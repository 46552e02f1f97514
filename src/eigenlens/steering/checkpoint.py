"""A steered checkpoint: the model's folder again, with the bytes of one tensor changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.edits import RECORD
from eigenlens.errors import EigenlensError, OptionError
from eigenlens.inert import inert
from eigenlens.steering.edit import Edit
from eigenlens.steering.folders import apart, copy_file, listed, new_folder
from eigenlens.steering.notes import is_card, noted
from eigenlens.steering.on_disk import on_disk, weight_files
from eigenlens.steering.record import (
    UNDO,
    read_edits,
    record_bytes,
    untied_pieces,
    untied_record,
    write_undo,
)
from eigenlens.steering.target import EDITABLE, FAINT, Realised, Target, find_target, sha256
from eigenlens.steering.untie import CONFIG, INDEX, Untied, untie
from eigenlens.steering.written import Written, describe
from eigenlens.tensors.files import read_json
from eigenlens.tensors.folder import inside
from eigenlens.tensors.patch import Piece, check_patched, raw, shard_of, write_new, write_span
from eigenlens.tensors.safetensors_file import SafetensorsFile

KNOWN_BY = (CONFIG, RECORD)
"""A folder that may be replaced holds one of these: a model's config, or a record of edits."""
# Weights in other formats, which stay as they are.
_OTHERS = (".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".gguf", ".safetensors")


def write_checkpoint(
    checkpoint: Checkpoint,
    edit: Edit,
    folder: str | Path,
    *,
    force: bool = False,
    link: bool = False,
) -> Written:
    """Write a model's folder with an edit in it; the model is never instantiated.

    Of the edited shard only the tensor's bytes differ; every other file is copied (sharing its
    blocks where the file system can), but a model card gets a note at its top that its figures are
    those of the original. `eigenlens.json` and `eigenlens.undo` are added, from which
    `unsteer` restores the bytes; a folder that was steered before keeps its earlier edits. One
    shard is moved at a time, block by block.

    An edit of the last call alone of a shared layer (ALBERT, `steps` "last") unties the layer's
    groups: then config and index change too, and shared tensors are written once for each step.

    Parameters
    ----------
    checkpoint
        A folder, a .safetensors file beside its config, or a model of the hub (which is fetched
        whole).
    edit
        What to add.
    folder
        Where; must not be there yet.
    force
        Replace a model's folder that is there. The old one stays until the new one is complete.
    link
        Give the files that stay as they are a second name instead of copying them. What later
        changes such a file in place changes both folders.

    Raises
    ------
    OptionError
        The edit does not fit, the tensor is quantised, the model is no folder of .safetensors
        files, or `folder` is there.
    NumericsError
        The edit vanishes in the stored type, or overflows it.
    SourceError
        The folder cannot be written; nothing is left behind.
    FormatError
        A file is damaged, or what was written is not what was to be written.
    """
    target = find_target(checkpoint, edit)
    checkpoint = on_disk(checkpoint, target)
    job = _Job.plan(checkpoint, edit, find_target(checkpoint, edit))
    folder = Path(folder)
    apart(job.source, folder, own=True, inside=False)
    with new_folder(folder, force=force, known_by=known_by(folder)) as building:
        copied = {name: job.copy(name, building, link) for name in job.plain}
        job.write_weights(building)
        job.write_record(building)
        size = sum(p.stat().st_size for p in building.rglob("*") if p.is_file())
    return job.written(folder, copied, size)


@dataclass(frozen=True)
class _Job:
    """Everything that is known before the first byte is written."""

    source: Path
    edit: Edit
    target: Target
    shard: SafetensorsFile
    stored: Any
    new: Any
    realised: Realised
    untied: Untied | None
    weights: tuple[str, ...]
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    before: list[dict[str, Any]]
    cards: Mapping[str, bytes]

    @classmethod
    def plan(cls, checkpoint: Checkpoint, edit: Edit, target: Target) -> _Job:
        """Read the tensor and edit it."""
        found = checkpoint.source
        if found is None or found.folder is None:  # `on_disk` has seen to that
            raise OptionError(f"{checkpoint.source_label} has no folder")
        source, shard = found.folder, shard_of(found.store, target.tensor)
        files, left = listed(source)
        weights = weight_files(checkpoint, source)
        untied = None
        if target.plan.steps > 1 and edit.steps == "last":
            untied = untie(checkpoint, target, source, weights)
        stored = shard.read(target.tensor)
        new, realised = target.edited(stored, edit)
        plain = tuple(name for name in files if name not in (RECORD, UNDO))
        edits = read_edits(source)
        cards = {} if edits else _noted_cards(source, plain)
        return cls(
            source, edit, target, shard, stored, new, realised, untied, weights, plain,
            tuple(left), edits, cards,
        )  # fmt: skip

    @property
    def file(self) -> str:
        """The edited shard, relative to the folder."""
        return self.shard.path.relative_to(self.source).as_posix()

    @property
    def tensor(self) -> str:
        """The edited tensor's name in what is written."""
        return self.untied.tensor if self.untied is not None else self.target.tensor

    @property
    def texts(self) -> Mapping[str, bytes]:
        """Files whose content is given."""
        if self.untied is None:
            return self.cards
        index = {} if self.untied.index is None else {INDEX: self.untied.index}
        return {CONFIG: self.untied.config, **index, **self.cards}

    @property
    def rewritten(self) -> tuple[str, ...]:
        """Weight files that are not copied as they are."""
        return (self.file,) if self.untied is None else self.weights

    @property
    def plain(self) -> list[str]:
        """Files that are copied as they are."""
        return [f for f in self.files if f not in self.rewritten and f not in self.texts]

    def copy(self, name: str, building: Path, link: bool) -> str:
        """One file."""
        return copy_file(self.source / name, building / name, link=link)

    def write_weights(self, building: Path) -> None:
        """The weight files with the edit, checked; and the texts that go with them."""
        data = raw(self.new)
        for file in self.rewritten:
            path = building / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.untied is None:
                copy_file(self.shard.path, path)
            else:
                self.untied.write(self.source, path, file)
            if file != self.file:
                continue
            plain = SafetensorsFile(path)
            write_span(path, plain.span(self.tensor)[0], data)
            if self.untied is None:
                check_patched(self.shard, path, self.tensor, data)
        if self.untied is not None:
            self.untied.check(self.source, building)
        for file, text in self.texts.items():
            write_new(building / file, text)

    def write_record(self, building: Path) -> None:
        """`eigenlens.json` and `eigenlens.undo`."""
        number, info = len(self.before), self.shard.info(self.target.tensor)
        kept = raw(self.stored)
        pieces: list[Piece] = [
            Piece(str(number), info.dtype, info.shape, len(kept), lambda: (kept,))
        ]
        record: dict[str, Any] = {
            **describe(self.edit),
            "model": Path(self.edit.model).name if self._is_path else self.edit.model,
            "tensor": self.tensor,
            "file": self.file,
            "dtype": EDITABLE[self.target.dtype],
            "orientation": self.target.orientation,
            "realised_ratio": self.realised.ratio,
            "projection": self.realised.projection,
            "sha256_before": sha256(self.stored),
            "sha256_after": sha256(self.new),
        }
        if self.cards:
            record["noted"] = sorted(self.cards)
        if self.untied is not None:
            pieces += untied_pieces(number, self.untied, self.source)
            record["untied"] = untied_record(self.untied, self.source)
        write_undo(building / UNDO, self.source, number, pieces)
        write_new(building / RECORD, record_bytes([*self.before, record]))

    @property
    def _is_path(self) -> bool:
        """Whether the model was given by its place on this machine, which stays private."""
        return Path(self.edit.model).expanduser().exists()

    def written(self, folder: Path, copied: Mapping[str, str], size: int) -> Written:
        """What is told of it."""
        files = sorted({*copied, *self.rewritten, *self.texts, RECORD, UNDO})
        return Written(
            edit=self.edit,
            form="checkpoint",
            folder=folder,
            files=tuple(files),
            tensor=self.tensor,
            file=self.file,
            realised_ratio=self.realised.ratio,
            projection=self.realised.projection,
            changed=self.realised.changed,
            sha256_before=sha256(self.stored),
            sha256_after=sha256(self.new),
            copied=copied,
            noted=tuple(sorted(self.cards)),
            left_out=self.left_out,
            size=size,
            warnings=tuple(self._warnings()),
        )

    def _warnings(self) -> list[str]:
        found: list[str] = []
        if self.realised.projection < FAINT:
            found.append(
                f"only {self.realised.projection:.0%} of the edit arrives in "
                f"{EDITABLE[self.target.dtype]}, the rest is lost in the rounding; a larger "
                "strength, or --as lora or delta, keeps it"
            )
        others = [f for f in self.plain if f.endswith(_OTHERS) and f not in self.weights]
        if others:
            found.append(
                f"the folder holds further weight files, which are not edited: "
                f"{', '.join(inert(f) for f in others[:6])}{' ...' if len(others) > 6 else ''}"
            )
        if self.untied is not None:
            found.append(
                f"the shared layers are untied: {CONFIG} says {self.untied.key} = "
                f"{max(len(v) for v in self.untied.copies.values())}, and every step has weights "
                "of its own"
            )
        if self.left_out:
            found.append(
                f"not copied: {', '.join(inert(f) for f in self.left_out[:6])}"
                f"{' ...' if len(self.left_out) > 6 else ''}"
            )
        return found


def _noted_cards(folder: Path, files: Sequence[str]) -> dict[str, bytes]:
    """The files that describe the model, with a note that its weights were edited."""
    found = {
        name: noted(name, inside(folder, name).read_bytes()) for name in files if is_card(name)
    }
    return {name: data for name, data in found.items() if data is not None}


def known_by(folder: Path) -> tuple[str, ...]:
    """`KNOWN_BY`; without config.json where that is none of a model, as many other folders hold."""
    path = folder.expanduser() / CONFIG
    if not os.path.isfile(path):  # False also below a folder that is closed to us
        return KNOWN_BY
    try:
        config = read_json(path, CONFIG)
    except EigenlensError:  # none that can be read
        return (RECORD,)
    return KNOWN_BY if {"model_type", "architectures"} & config.keys() else (RECORD,)
