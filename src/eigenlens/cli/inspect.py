"""`eigenlens inspect`: what was found in the files, and whether F is what the model applies."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.groups import grouped
from eigenlens.cli.options import ArchitectureOption, ModelArgument
from eigenlens.cli.output import Output, table


@grouped
def inspect(
    model: ModelArgument,
    *,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run the model and check that F is what each layer applies."),
    ] = False,
    architecture: ArchitectureOption = None,
    output: Output,
) -> None:
    """Which tensors make each layer's F, how they are stored, and what is not supported.

    With --verify, exit code 1 if the running model disagrees with F in any layer.
    """
    with boundary(output.debug):
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.circuit.inspection import inspect as look
        from eigenlens.report.serialise import check_apart

        output.check()
        checkpoint = open_checkpoint(model, architecture)
        check_apart([output.out], checkpoint.source)
        result = look(checkpoint)
        if verify:
            from eigenlens.live.verify import verify as run

            rows = {(r.stack, r.layer, r.kind): asdict(r) for r in run(checkpoint)}
            result = result.with_verification(rows)
        output.emit(result, table("tables", "inspect_view", result.to_dict()))
        if not result.ok:
            raise typer.Exit(1)
