"""The forms that an edit is written in: a whole checkpoint, a LoRA adapter, a delta.

`FORMS` is the one table of them: how each is written, and what its place has to be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.edits import RECORD
from eigenlens.errors import OptionError, nearest
from eigenlens.inert import inert
from eigenlens.live.load import ADAPTER_CONFIG
from eigenlens.steering.checkpoint import check_stored, known_by, write_checkpoint
from eigenlens.steering.delta import SUFFIX, check_delta_place, write_delta
from eigenlens.steering.edit import Edit
from eigenlens.steering.folders import apart, check_free
from eigenlens.steering.lora import write_lora
from eigenlens.steering.undo import read_edits
from eigenlens.steering.written import Written, same_edit
from eigenlens.tensors.files import shown


@dataclass(frozen=True)
class Form:
    """One way to write an edit.

    Attributes
    ----------
    write
        Of (checkpoint, edit, place, force, link).
    check
        Of (checkpoint, place, force): refuses a place or a model that it cannot be written for,
        before any work is done.
    copies
        Whether the model's files are copied, so that they may be linked instead.
    """

    write: Callable[[Checkpoint, Edit, Path, bool, bool], Written]
    check: Callable[[Checkpoint, Path, bool], None]
    copies: bool = False


def _checkpoint(c: Checkpoint, e: Edit, place: Path, force: bool, link: bool) -> Written:
    return write_checkpoint(c, e, place, force=force, link=link)


def _lora(c: Checkpoint, e: Edit, place: Path, force: bool, link: bool) -> Written:
    return write_lora(c, e, place, force=force)


def _delta(c: Checkpoint, e: Edit, place: Path, force: bool, link: bool) -> Written:
    return write_delta(c, e, place, force=force)


def _check_checkpoint(c: Checkpoint, place: Path, force: bool) -> None:
    check_stored(c)
    _check_folder(c, place, force, known_by(place), own=True, inside=False)


def _check_lora(c: Checkpoint, place: Path, force: bool) -> None:
    _check_folder(c, place, force, (ADAPTER_CONFIG,), own=False, inside=True)


def _check_folder(
    c: Checkpoint, place: Path, force: bool, known: tuple[str, ...], *, own: bool, inside: bool
) -> None:
    if place.suffix == SUFFIX:
        raise OptionError(
            f"{shown(place)}: would be a folder with the ending of a file; give another name, or "
            f"--as delta, which writes a {SUFFIX} file"
        )
    if c.source is not None and c.source.folder is not None:
        apart(c.source.folder, place, own=own, inside=inside)
    check_free(Path(os.path.realpath(place.expanduser())), force, known)


def _check_delta(c: Checkpoint, place: Path, force: bool) -> None:
    check_delta_place(place, force=force)


FORMS: Mapping[str, Form] = {
    "checkpoint": Form(_checkpoint, _check_checkpoint, copies=True),
    "lora": Form(_lora, _check_lora),
    "delta": Form(_delta, _check_delta),
}
"""The forms, by the name that users type."""


def check_form(
    checkpoint: Checkpoint,
    place: str | Path,
    form: str = "checkpoint",
    *,
    force: bool = False,
    link: bool = False,
) -> None:
    """Refuse what cannot be written, before any work is done.

    Raises
    ------
    OptionError
        There is no such form, hard links are asked of one that copies nothing, the place is taken
        or has the wrong ending, or the model is not stored in a way that the form is written in.
    FormatError
        What is at the place of a delta is none.
    """
    if form not in FORMS:
        raise OptionError(f"form is {form!r}{nearest(form, FORMS)}: allowed are {', '.join(FORMS)}")
    if link and not FORMS[form].copies:
        raise OptionError(f"--link is for --as checkpoint: --as {form} copies no files")
    place = Path(place).expanduser()
    FORMS[form].check(checkpoint, place, force)
    above = next(p for p in (place.absolute().parent, *place.absolute().parents) if p.exists())
    if not above.is_dir():
        raise OptionError(f"{shown(above)}: is a file, so that nothing can be written in it")
    if not os.access(above, os.W_OK):
        raise OptionError(f"{shown(above)}: is not yours to write in; give another place")


def write_form(
    checkpoint: Checkpoint,
    edit: Edit,
    place: str | Path,
    form: str = "checkpoint",
    *,
    force: bool = False,
    link: bool = False,
) -> Written:
    """Write an edit in one of `FORMS`; warns where the model holds that very edit already.

    Raises
    ------
    OptionError, FormatError
        See `check_form`.
    EigenlensError
        See `write_checkpoint`, `write_lora`, `write_delta`.
    """
    check_form(checkpoint, place, form, force=force, link=link)
    twice = held_already(checkpoint, edit, form)
    written = FORMS[form].write(checkpoint, edit, Path(place).expanduser(), force, link)
    return replace(written, warnings=(*written.warnings, *twice))


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
