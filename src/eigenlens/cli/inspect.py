"""`eigenlens inspect`: what was found in the files, and whether F is what the model applies."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from eigenlens.cli.boundary import boundary, emit
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    FormatOption,
    ModelArgument,
    OutOption,
    QuietOption,
    VersionOption,
)


def inspect(
    model: ModelArgument,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run the model and check that F is what each layer applies."),
    ] = False,
    architecture: ArchitectureOption = None,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """Which tensors make each layer's F, how they are stored, and what is not supported.

    With --verify, exit code 1 if the running model disagrees with F in any layer.
    """
    with boundary(debug):
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.circuit.inspection import inspect as look
        from eigenlens.report.serialise import SUFFIXES, check_apart, check_target
        from eigenlens.report.tables import inspect_view

        if out is not None:
            check_target(out, list(SUFFIXES))
        checkpoint = open_checkpoint(model, architecture)
        check_apart([out], checkpoint.source)
        result = look(checkpoint)
        if verify:
            from eigenlens.live.verify import verify as run

            rows = {(r.stack, r.layer, r.kind): asdict(r) for r in run(checkpoint)}
            result = result.with_verification(rows)
        emit(result, lambda: inspect_view(result.to_dict()), format, out, quiet=quiet)
        if not result.ok:
            raise typer.Exit(1)
