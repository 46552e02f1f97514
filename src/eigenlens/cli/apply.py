"""`eigenlens apply`: add a delta file to a model."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit, warn
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    FormatOption,
    ModelArgument,
    OutOption,
    QuietOption,
    VersionOption,
)


class FormName(StrEnum):
    """The names of `eigenlens.steering.applying.FORMS`."""

    checkpoint = "checkpoint"
    lora = "lora"
    delta = "delta"


ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace what is there, once the new one is complete.")
]
LinkOption = Annotated[
    bool,
    typer.Option("--link", help="Hard links for the files that stay as they are, not copies."),
]


def apply(
    delta: Annotated[
        Path,
        typer.Argument(
            metavar="DELTA",
            help="A file that steer --as delta has written.",
            show_default=False,
        ),
    ],
    model: ModelArgument,
    write: Annotated[
        Path,
        typer.Option("--write", metavar="DIR", help="Where to write.", show_default=False),
    ],
    as_: Annotated[
        FormName,
        typer.Option(
            "--as", help="The model's folder again (checkpoint), or a LoRA adapter (lora)."
        ),
    ] = FormName.checkpoint,
    force: ForceOption = False,
    link: LinkOption = False,
    architecture: ArchitectureOption = None,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """Add a delta file to a model, and write the result.

    It is checked that the delta fits: model type, layer and sizes. The model is never loaded; of
    its weights one tensor is changed, and eigenlens unsteer restores it.
    """
    with boundary(debug):
        from eigenlens.report.serialise import SUFFIXES, check_target
        from eigenlens.steering.applying import apply_delta

        if out is not None:
            check_target(out, list(SUFFIXES))
        result = apply_delta(
            delta, model, write, as_.value, force=force, link=link, architecture=architecture
        )
        warn(list(result.written.warnings), quiet)
        emit(result, lambda: _view(result), format, out, quiet=quiet)


def _view(result: Any) -> Any:
    """The table of `eigenlens.report`, whose imports only a table is worth."""
    return import_module("eigenlens.report.forms_tables").apply_view(result)
