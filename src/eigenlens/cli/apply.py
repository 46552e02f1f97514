"""`eigenlens apply`: add a delta file to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.choices import WriteForm
from eigenlens.cli.groups import grouped
from eigenlens.cli.options import ArchitectureOption, ModelArgument, path_argument, path_option
from eigenlens.cli.output import Output, table


@grouped
def apply(
    delta: Annotated[Path, path_argument("DELTA", "A file that steer --as delta has written.")],
    model: ModelArgument,
    *,
    write: Annotated[Path, path_option("--write", "DIR", "Where to write.")],
    as_: Annotated[
        WriteForm,
        typer.Option(
            "--as", help="The model's folder again (checkpoint), or a LoRA adapter (lora)."
        ),
    ] = WriteForm.checkpoint,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is there, once the new one is complete.")
    ] = False,
    link: Annotated[
        bool,
        typer.Option("--link", help="Hard links for the files that stay as they are, not copies."),
    ] = False,
    architecture: ArchitectureOption = None,
    output: Output,
) -> None:
    """Add a delta file to a model, and write the result.

    It is checked that the delta fits: model type, layer and sizes. The model is never loaded; of
    its weights one tensor is changed, and eigenlens unsteer restores it.
    """
    with boundary(output.debug):
        from eigenlens.steering.applying import apply as add

        output.check()
        result = add(
            delta, model, write, as_.value, force=force, link=link, architecture=architecture
        )
        output.warn(result.written.warnings)
        output.emit(result, table("forms_tables", "apply_view", result))
