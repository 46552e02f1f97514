"""`eigenlens compare`: what of every layer's F differs between two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, fail
from eigenlens.cli.choices import SolverName
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.model_options import Chosen, Leading, Numbers
from eigenlens.cli.options import ArchitectureOption, optional, path_option
from eigenlens.cli.output import Figures, MadeFile, Output, table


def _model(name: str, what: str) -> Any:
    return typer.Argument(metavar=name, help=what, show_default=False)


@dataclass(frozen=True)
class Followed(Group):
    """How many eigenvalues are followed from one checkpoint to the other."""

    k: Annotated[int, typer.Option("-k", "--k", help="Leading eigenvalues to follow.")] = 8
    solver: Annotated[SolverName, typer.Option(help="How to solve.")] = SolverName.auto


@dataclass(frozen=True)
class ComparePage(MadeFile):
    """A page of the comparison."""

    html: Annotated[
        Path | None,
        path_option(
            "--html",
            "FILE",
            "Also write a page that opens in a browser, without a network, to FILE (.html).",
        ),
    ] = None

    def suffixes(self) -> Collection[str]:
        """Those of a page."""
        from eigenlens.report.compare_page import SUFFIXES

        return SUFFIXES

    def content(self, result: Any, path: Path) -> bytes:
        """The page of a result."""
        from eigenlens.report.compare_page import compare_page

        return compare_page(result)

    def need(self) -> None:
        """The page needs plotly."""
        from eigenlens.report.page.assemble import plotly_script

        plotly_script()


@grouped
def compare(
    a: Annotated[str, _model("A", "The one before: a folder, a file, a hub id, or sample:NAME.")],
    b: Annotated[str, _model("B", "The one after, of the same architecture.")],
    *,
    fail_above: Annotated[
        float | None,
        optional(
            "--fail-above",
            metavar="X",
            help="Exit with 1 if |F_A - F_B|_F / |F_A|_F exceeds X in any layer, beyond rounding.",
        ),
    ] = None,
    followed: Followed,
    leading: Leading,
    chosen: Chosen,
    numbers: Numbers,
    architecture: ArchitectureOption = None,
    page: ComparePage,
    figures: Figures,
    output: Output,
) -> None:
    """What of every layer's F differs between two checkpoints of one architecture.

    Base and tuned, exact and quantised, base and merged, before and after steering: how far F
    moved, of what rank the difference is, where the leading eigenvalues went, and whether a layer
    changed its regime. Layers are ranked by how far they moved.
    """
    asked = arguments(followed, leading, chosen, numbers)
    if fail_above is not None and not (fail_above >= 0 and math.isfinite(fail_above)):
        raise typer.BadParameter(
            f"{fail_above} is no bound; write a number, 0 or more", param_hint="--fail-above"
        )
    with boundary(output.debug):
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.comparing.compare import compare as compute
        from eigenlens.report.serialise import check_apart

        output.check()
        page.check()
        figures.check()
        with output.progress() as progress:
            models = [open_checkpoint(x, architecture) for x in (a, b)]
            for model in models:
                check_apart([output.out, page.html], model.source)
            result = compute(models[0], models[1], **asked, progress=progress)
        output.warn(result.warnings)
        files = figures.files(compare=result) | page.files(result)
        output.emit(result, table("compare_tables", "compare_view", result), files)
        if fail_above is not None and result.largest > fail_above:
            from eigenlens.report.names import Names

            top = result.ranking[0]
            layer = Names.of(result.layers).phrase(top)
            fail(
                f"{layer} moved by |F_A - F_B|_F / |F_A|_F = {top.relative:.6g}, more than the "
                f"{fail_above:g} of --fail-above"
            )
