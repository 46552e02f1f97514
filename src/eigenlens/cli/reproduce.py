"""`eigenlens reproduce`: the paper's claims as an executable table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, fail, inert_lines
from eigenlens.cli.groups import grouped
from eigenlens.cli.options import optional, path_option, seed_option
from eigenlens.cli.output import Figure, Output, table


class SuiteName(StrEnum):
    """The names of `eigenlens.claims.suites.SUITES`."""

    samples = "samples"
    paper = "paper"


@dataclass(frozen=True)
class VerdictFigure(Figure):
    """A picture of the verdicts."""

    figure: Annotated[
        Path | None,
        path_option("--figure", "FILE", "Draw the verdicts to FILE: .png, .pdf or .svg."),
    ] = None

    def content(self, result: Any, path: Path) -> bytes:
        """The verdicts, drawn."""
        from eigenlens.report.claims_figure import claims_figure

        return claims_figure(result, path)


@grouped
def reproduce(
    *,
    suite: Annotated[
        SuiteName,
        typer.Option(help="The samples that are here, or the paper's models from the hub."),
    ] = SuiteName.samples,
    models: Annotated[
        list[str] | None,
        optional(
            "--model",
            metavar="MODEL",
            help="A model in place of the suite; may be given several times.",
        ),
    ] = None,
    claims: Annotated[
        list[str] | None,
        optional("--claim", metavar="NAME", help="Only this claim; may be given several times."),
    ] = None,
    starts: Annotated[int, typer.Option(metavar="N", help="Starts of a simulation.")] = 64,
    steps: Annotated[int, typer.Option(metavar="N", help="Layer steps of a simulation.")] = 400,
    seed: Annotated[int, seed_option("Of tokens, directions and resamples.")] = 0,
    figure: VerdictFigure,
    output: Output,
) -> None:
    """The claims of the paper that eigenlens carries out, measured, with a verdict each.

    Every claim of Li and Altafini (arXiv 2605.25619) is measured on every model it speaks of: it
    holds, fails or is undecided, by an interval. What the paper leaves open is chosen and said.
    The exit code is 1 where nothing at all could be measured.
    """
    with boundary(output.debug), _tracebacks(output.debug):
        from eigenlens.claims.run import reproduce as run

        output.check()
        figure.check()
        with output.progress("models") as progress:
            result = run(
                models or suite.value,
                claims=claims or None,
                starts=starts,
                steps=steps,
                seed=seed,
                progress=progress,
            )
        output.warn(result.warnings)
        view = table("claims_tables", "claims_view", result)
        output.emit(result, view, figure.files(result))
        if result.counts["not run"] == len(result.rows_):
            reasons = [row.finding.measured for row in result.rows_] or ["no claim speaks of it"]
            fail(f"nothing was measured: {reasons[0]}")


class _Inert(logging.Formatter):
    """Texts of the model in a traceback are harmless, as everywhere."""

    def format(self, record: logging.LogRecord) -> str:
        return inert_lines(super().format(record))


@contextmanager
def _tracebacks(wanted: bool) -> Iterator[None]:
    """What stands behind rows that are not run, on stderr."""
    log = logging.getLogger("eigenlens.claims")
    before, handler = log.level, logging.StreamHandler()
    handler.setFormatter(_Inert())
    if wanted:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
