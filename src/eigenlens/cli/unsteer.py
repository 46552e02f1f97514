"""`eigenlens unsteer`: restore the bytes that an edit changed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit
from eigenlens.cli.options import (
    DebugOption,
    FormatOption,
    OutOption,
    QuietOption,
    VersionOption,
)


def unsteer(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder that steer or apply has written.",
            show_default=False,
        ),
    ],
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """Restore the bytes that the youngest edit of a steered folder changed.

    They come from the folder's own undo file. Nothing is restored where the tensor was changed
    since. Edits are undone in turn, one a call.
    """
    with boundary(debug):
        from eigenlens.report.serialise import SUFFIXES, check_target
        from eigenlens.steering.undo import unsteer as undo

        if out is not None:
            check_target(out, list(SUFFIXES))
        result = undo(folder)
        emit(result, lambda: _view(result), format, out, quiet=quiet)


def _view(result: Any) -> Any:
    """The table of `eigenlens.report`, whose imports only a table is worth."""
    return import_module("eigenlens.report.forms_tables").unsteer_view(result)
