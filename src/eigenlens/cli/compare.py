"""`eigenlens compare`: what of every layer's F differs between two checkpoints."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit, fail, progress_bar, warn
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    Dtype,
    FiguresOption,
    FormatOption,
    LayersOption,
    OutOption,
    QuietOption,
    StackOption,
    VersionOption,
    parse_layers,
)
from eigenlens.cli.spectrum import OperatorName, OrderName, SolverName


def _model(name: str, what: str) -> Any:
    return typer.Argument(metavar=name, help=what, show_default=False)


def compare(
    a: Annotated[str, _model("A", "The one before: a folder, a file, a hub id, or sample:NAME.")],
    b: Annotated[str, _model("B", "The one after, of the same architecture.")],
    fail_above: Annotated[
        float | None,
        typer.Option(
            "--fail-above",
            metavar="X",
            help="Exit with 1 if |F_A - F_B|_F / |F_A|_F exceeds X in any layer.",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Leading eigenvalues to follow.")] = 8,
    order: Annotated[
        OrderName, typer.Option(help="What leads, as in eigenlens spectrum.")
    ] = OrderName.auto,
    operator: Annotated[
        OperatorName, typer.Option(help="F alone, or with the norm's gain.")
    ] = OperatorName.raw,
    solver: Annotated[SolverName, typer.Option(help="How to solve.")] = SolverName.auto,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write a page that opens in a browser, without a network, to FILE (.html).",
            show_default=False,
        ),
    ] = None,
    figures: FiguresOption = None,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[Dtype, typer.Option(help="Compute dtype.")] = Dtype.float64,
    seed: Annotated[int, typer.Option(min=0, help="Of the Krylov start vectors.")] = 0,
    architecture: ArchitectureOption = None,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """What of every layer's F differs between two checkpoints of one architecture.

    Base and tuned, exact and quantised, base and merged, before and after steering: how far F
    moved, of what rank the difference is, where the leading eigenvalues went, and whether a layer
    changed its regime. Layers are ranked by how far they moved.
    """
    chosen = parse_layers(layers)
    if fail_above is not None and not (fail_above >= 0 and math.isfinite(fail_above)):
        raise typer.BadParameter(
            f"{fail_above} is no bound; write a number, 0 or more", param_hint="--fail-above"
        )
    with boundary(debug):
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.comparing.compare import compare as compute
        from eigenlens.report.serialise import SUFFIXES, check_apart, check_target

        if out is not None:
            check_target(out, list(SUFFIXES))
        if html is not None:
            from eigenlens.report.compare_page import SUFFIXES as PAGES
            from eigenlens.report.compare_page import compare_page
            from eigenlens.report.page.assemble import plotly_script

            check_target(html, list(PAGES))
            plotly_script()  # what is missing is said before the work is done
        if figures is not None:
            from eigenlens.report.figures.table import check_folder, figure_files

            check_folder(figures)
        with progress_bar(quiet) as progress:
            models = [open_checkpoint(x, architecture) for x in (a, b)]
            for model in models:
                check_apart([out, html], model.source)
            result = compute(
                models[0],
                models[1],
                k,
                order.value,
                operator=operator.value,
                solver=solver.value,
                tie_tolerance=tie_tolerance,
                dtype=dtype.value,
                seed=seed,
                stack=stack,
                layers=chosen,
                progress=progress,
            )
        warn(list(result.warnings), quiet)
        files = {} if figures is None else figure_files({"compare": result}, figures)
        if html is not None:
            files[html] = compare_page(result)
        emit(result, lambda: _view(result), format, out, files=files, quiet=quiet)
        if fail_above is not None and result.largest > fail_above:
            top = result.ranking[0]
            fail(
                f"{top.name} moved by |F_A - F_B|_F / |F_A|_F = {top.relative:.6g}, more than the "
                f"{fail_above:g} of --fail-above"
            )


def _view(result: Any) -> Any:
    """The table of `eigenlens.report`, whose imports only a table is worth."""
    return import_module("eigenlens.report.compare_tables").compare_view(result)
