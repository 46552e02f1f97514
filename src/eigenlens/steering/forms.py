"""The forms that an edit is written in: a whole checkpoint, a LoRA adapter, a delta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import OptionError, nearest
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.delta import write_delta
from eigenlens.steering.edit import Edit
from eigenlens.steering.lora import write_lora
from eigenlens.steering.written import Written


def _checkpoint(c: Checkpoint, e: Edit, place: Path, force: bool, link: bool) -> Written:
    return write_checkpoint(c, e, place, force=force, link=link)


def _lora(c: Checkpoint, e: Edit, place: Path, force: bool, link: bool) -> Written:
    return write_lora(c, e, place, force=force)


def _delta(c: Checkpoint, e: Edit, place: Path, force: bool, link: bool) -> Written:
    return write_delta(c, e, place, force=force)


FORMS: Mapping[str, Callable[[Checkpoint, Edit, Path, bool, bool], Written]] = {
    "checkpoint": _checkpoint,
    "lora": _lora,
    "delta": _delta,
}
"""How an edit is written, by the name that users type."""


def write_form(
    checkpoint: Checkpoint,
    edit: Edit,
    place: str | Path,
    form: str = "checkpoint",
    *,
    force: bool = False,
    link: bool = False,
) -> Written:
    """Write an edit in one of `FORMS`.

    Raises
    ------
    OptionError
        There is no such form, or hard links are asked of one that copies nothing.
    EigenlensError
        See `write_checkpoint`, `write_lora`, `write_delta`.
    """
    if form not in FORMS:
        raise OptionError(f"form is {form!r}{nearest(form, FORMS)}: allowed are {', '.join(FORMS)}")
    if link and form != "checkpoint":
        raise OptionError(f"--link is for --as checkpoint: --as {form} copies no files")
    return FORMS[form](checkpoint, edit, Path(place), force, link)
