"""What a written form of an edit says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eigenlens.steering.edit import Edit


@dataclass(frozen=True)
class Written:
    """An edit as it was written.

    Attributes
    ----------
    edit
        The edit.
    form
        `checkpoint`, `lora` or `delta`.
    folder
        Where it lies; for a delta, the file.
    files
        What was written, relative to the folder.
    tensor, file
        The edited tensor and the file that holds it; for a LoRA adapter the module it acts on.
    realised_ratio, projection, changed
        What the stored type left of the edit (see `Realised`); None where it is kept apart.
    sha256_before, sha256_after
        Of the tensor's bytes; None where none was changed.
    copied
        How each other file came over: `copy`, `reflink` or `link`.
    noted
        Files that describe the model and got a note that its weights were edited.
    left_out
        Files and folders of the source that were not taken over.
    size
        Bytes of all files, counted as if none was shared.
    warnings
        What must be told.
    """

    edit: Edit
    form: str
    folder: Path
    files: tuple[str, ...]
    tensor: str
    file: str | None = None
    realised_ratio: float | None = None
    projection: float | None = None
    changed: int | None = None
    sha256_before: str | None = None
    sha256_after: str | None = None
    copied: Mapping[str, str] = field(default_factory=dict)
    noted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    size: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without schema and version."""
        return {
            "edit": describe(self.edit),
            "form": self.form,
            "folder": str(self.folder),
            "files": list(self.files),
            "tensor": self.tensor,
            "file": self.file,
            "realised_ratio": self.realised_ratio,
            "projection": self.projection,
            "changed": self.changed,
            "sha256_before": self.sha256_before,
            "sha256_after": self.sha256_after,
            "noted": list(self.noted),
            "left_out": list(self.left_out),
            "size": self.size,
        }


def same_edit(edit: Edit, held: Mapping[str, Any]) -> bool:
    """Whether a record of an edit is that of `edit`, whatever the model was called."""
    return all(held.get(k) == v for k, v in describe(edit).items() if k != "model")


def describe(edit: Edit) -> dict[str, Any]:
    """An edit without its vectors."""
    return {
        "model": edit.model,
        "model_type": edit.model_type,
        "stack": edit.stack,
        "layer": edit.layer,
        "kind": edit.kind,
        "site": edit.site,
        "steps": edit.steps,
        "probe": edit.probe,
        "label": edit.label,
        "strength": edit.strength,
        "dW_norm": edit.dW_norm,
    }
