"""`eigenlens reproduce`: the paper's claims as an executable table."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit, fail, progress_bar, warn
from eigenlens.cli.options import (
    DebugOption,
    FormatOption,
    OutOption,
    QuietOption,
    VersionOption,
)


class SuiteName(StrEnum):
    """The names of `eigenlens.claims.suites.SUITES`."""

    samples = "samples"
    paper = "paper"


def reproduce(
    suite: Annotated[
        SuiteName,
        typer.Option(help="The samples that are here, or the paper's models from the hub."),
    ] = SuiteName.samples,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="A model in place of the suite; may be given several times.",
            show_default=False,
        ),
    ] = None,
    claims: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="NAME",
            help="Only this claim; may be given several times.",
            show_default=False,
        ),
    ] = None,
    starts: Annotated[int, typer.Option(metavar="N", help="Starts of a simulation.")] = 64,
    steps: Annotated[int, typer.Option(metavar="N", help="Layer steps of a simulation.")] = 400,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw the verdicts to FILE: .png, .pdf or .svg.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of tokens, directions and resamples.")] = 0,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """The claims of the paper that eigenlens carries out, measured, with a verdict each.

    Every claim of Li and Altafini (arXiv 2605.25619) is measured on every model it speaks of: it
    holds, fails or is undecided, by an interval. What the paper leaves open is chosen and said.
    The exit code is 1 where nothing at all could be measured.
    """
    with boundary(debug):
        from eigenlens.claims.run import reproduce as run
        from eigenlens.report.serialise import SUFFIXES, check_target

        if out is not None:
            check_target(out, list(SUFFIXES))
        if figure is not None:
            from eigenlens.report.figures import SUFFIXES as FIGURES
            from eigenlens.report.figures import need_matplotlib

            check_target(figure, list(FIGURES))
            need_matplotlib()
        with progress_bar(quiet, "models") as progress:
            result = run(
                models or suite.value,
                claims=claims or None,
                starts=starts,
                steps=steps,
                seed=seed,
                progress=progress,
            )
        warn(list(result.warnings), quiet)
        files = {}
        if figure is not None:
            from eigenlens.report.claims_figure import claims_figure

            files[figure] = claims_figure(result, figure)
        emit(result, lambda: _view(result), format, out, files=files, quiet=quiet)
        if result.counts["not run"] == len(result.rows_):
            fail("nothing was measured: " + (result.warnings or ("no claim speaks of it",))[0])


def _view(result: Any) -> Any:
    """The table of `eigenlens.report`, whose imports only a table is worth."""
    return import_module("eigenlens.report.claims_tables").claims_view(result)
