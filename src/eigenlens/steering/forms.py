"""The forms that an edit is written in: a whole checkpoint, a LoRA adapter, a delta.

`FORMS` is the one table of them: how each is written, and what its place has to be; a
`Destination` is what is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.edits import RECORD
from eigenlens.errors import MissingDependencyError, OptionError, nearest
from eigenlens.inert import inert
from eigenlens.live.load import ADAPTER_CONFIG, need_transformers
from eigenlens.steering.checkpoint import known_by, write_checkpoint
from eigenlens.steering.delta import SUFFIX, check_delta_place, write_delta
from eigenlens.steering.edit import Edit
from eigenlens.steering.folders import apart, check_free
from eigenlens.steering.lora import write_lora
from eigenlens.steering.on_disk import check_stored
from eigenlens.steering.record import read_edits
from eigenlens.steering.written import Written, same_edit
from eigenlens.tensors.files import shown


@dataclass(frozen=True)
class Destination:
    """Where an edit is to be written, and as what.

    Attributes
    ----------
    place, form, force, link
        As in `eigenlens.steering.result.Steering.write`.
    """

    place: str | Path
    form: str = "checkpoint"
    force: bool = False
    link: bool = False

    @property
    def path(self) -> Path:
        """The place, with the user's home where ``~`` stands for it."""
        return Path(self.place).expanduser()

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse what cannot be written, before any work is done.

        Raises
        ------
        OptionError
            There is no such form, hard links are asked of one that copies nothing, the place is
            taken or has the wrong ending, or the model is not stored in a way that the form is
            written in.
        FormatError
            What is at the place of a delta is none.
        MissingDependencyError
            A library is not installed that the form is written with.
        """
        if self.form not in FORMS:
            raise OptionError(
                f"form is {self.form!r}{nearest(self.form, FORMS)}: allowed are {', '.join(FORMS)}"
            )
        form, path = FORMS[self.form], self.path
        if self.link and not form.copies:
            raise OptionError(f"--link is for --as checkpoint: --as {self.form} copies no files")
        form.check(checkpoint, self)
        above = next(p for p in path.absolute().parents if os.path.exists(p))
        if not above.is_dir():
            raise OptionError(f"{shown(above)}: is a file, so that nothing can be written in it")
        if not os.access(above, os.W_OK):
            raise OptionError(f"{shown(above)}: is not yours to write in; give another place")

    def write(self, checkpoint: Checkpoint, edit: Edit) -> Written:
        """Write an edit; warns where the model holds that very edit already.

        Raises
        ------
        OptionError, FormatError, MissingDependencyError
            See `check`.
        EigenlensError
            See `write_checkpoint`, `write_lora`, `write_delta`.
        """
        self.check(checkpoint)
        twice = held_already(checkpoint, edit, self.form)
        written = FORMS[self.form].write(checkpoint, edit, self)
        return replace(written, warnings=(*written.warnings, *twice))


@dataclass(frozen=True)
class Form:
    """One way to write an edit.

    Attributes
    ----------
    write
        Of (checkpoint, edit, destination).
    check
        Of (checkpoint, destination): refuses a place or a model that it cannot be written for,
        before any work is done.
    copies
        Whether the model's files are copied, so that they may be linked instead.
    """

    write: Callable[[Checkpoint, Edit, Destination], Written]
    check: Callable[[Checkpoint, Destination], None]
    copies: bool = False


def _checkpoint(checkpoint: Checkpoint, edit: Edit, to: Destination) -> Written:
    return write_checkpoint(checkpoint, edit, to.path, force=to.force, link=to.link)


def _lora(checkpoint: Checkpoint, edit: Edit, to: Destination) -> Written:
    return write_lora(checkpoint, edit, to.path, force=to.force)


def _delta(checkpoint: Checkpoint, edit: Edit, to: Destination) -> Written:
    return write_delta(checkpoint, edit, to.path, force=to.force)


def _check_checkpoint(checkpoint: Checkpoint, to: Destination) -> None:
    check_stored(checkpoint)
    _check_folder(checkpoint, to, known_by(to.path), own=True, inside=False)


def _check_lora(checkpoint: Checkpoint, to: Destination) -> None:
    _check_folder(checkpoint, to, (ADAPTER_CONFIG,), own=False, inside=True)
    try:
        need_transformers()
    except MissingDependencyError as error:
        raise MissingDependencyError(
            f"--as lora takes names from the model's class: {error}; or write --as checkpoint or "
            "delta"
        ) from error


def _check_folder(
    checkpoint: Checkpoint, to: Destination, known: tuple[str, ...], *, own: bool, inside: bool
) -> None:
    if to.path.suffix == SUFFIX:
        raise OptionError(
            f"{shown(to.path)}: would be a folder with the ending of a file; give another name, or "
            f"--as delta, which writes a {SUFFIX} file"
        )
    if checkpoint.source is not None and checkpoint.source.folder is not None:
        apart(checkpoint.source.folder, to.path, own=own, inside=inside)
    check_free(Path(os.path.realpath(to.path)), to.force, known)


def _check_delta(checkpoint: Checkpoint, to: Destination) -> None:
    check_delta_place(to.path, force=to.force)


FORMS: Mapping[str, Form] = {
    "checkpoint": Form(_checkpoint, _check_checkpoint, copies=True),
    "lora": Form(_lora, _check_lora),
    "delta": Form(_delta, _check_delta),
}
"""The forms, by the name that users type."""


def held_already(checkpoint: Checkpoint, edit: Edit, form: str) -> list[str]:
    """What must be told where the model's folder was given that very edit before.

    Raises
    ------
    FormatError
        The folder's record of edits is damaged.
    """
    source = checkpoint.source
    if source is None or source.folder is None or source.format != "safetensors":
        return []
    same = [i for i, held in enumerate(read_edits(source.folder), 1) if same_edit(edit, held)]
    if not same:
        return []
    back = "; eigenlens unsteer takes the last one back" if FORMS[form].copies else ""
    return [
        f"{inert(checkpoint.source_label)} holds this very edit already (edit "
        f"{', '.join(map(str, same))} of its {RECORD}): with what is written the model has it "
        f"{len(same) + 1} times, so {len(same) + 1} times as strong{back}"
    ]
