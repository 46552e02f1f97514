"""A delta file added to a model: read, checked to fit, and written in a form that people load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenlens import __version__
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import OptionError, nearest
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.delta import read_delta, write_delta
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


@dataclass(frozen=True)
class Application:
    """A delta as it was applied; the result of ``eigenlens apply``."""

    source: str
    delta: Path
    written: Written

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.apply/1``."""
        return {
            "schema": "eigenlens.apply/1",
            "eigenlens_version": __version__,
            "model": self.source,
            "options": {"delta": str(self.delta), "as": self.written.form},
            "warnings": list(self.written.warnings),
            **self.written.to_dict(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One record, without lists."""
        found = self.written.to_dict()
        plain = {k: v for k, v in found.items() if not isinstance(v, (dict, list))}
        return [{**found["edit"], **plain}]


def apply_delta(
    delta: str | Path,
    model: Any,
    place: str | Path,
    form: str = "checkpoint",
    *,
    force: bool = False,
    link: bool = False,
    architecture: Any = None,
) -> Application:
    """Add a delta to a model and write the result.

    Parameters
    ----------
    delta
        A file that `write_delta` wrote.
    model
        What `open_checkpoint` takes.
    place
        Where to write.
    form, force, link
        See `write_form` and `write_checkpoint`.
    architecture
        See `open_checkpoint`.

    Raises
    ------
    EigenlensError
        The delta is damaged or does not fit the model, or it cannot be written.
    """
    edit = read_delta(delta)
    checkpoint = open_checkpoint(model, architecture)
    written = write_form(checkpoint, edit, place, form, force=force, link=link)
    return Application(checkpoint.source_label, Path(delta), written)
