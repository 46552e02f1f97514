"""`eigenlens survey`: many checkpoints on dask, and what they have in common."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eigenlens.cli.boundary import boundary, fail, note
from eigenlens.cli.choices import Dtype
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.model_options import Chosen, Leading, Loaded, Solving
from eigenlens.cli.options import PromptsOption, optional, path_argument, path_option, seed_option
from eigenlens.cli.output import MadeFile, Output, ProductOutput, table
from eigenlens.inert import inert
from eigenlens.shown.words import count_text


class ListOrCommand(TyperGroup):
    """A group with an argument of its own: the first word is a sub-command, else the LIST."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Before a sub-command there is no LIST; elsewhere options may follow it."""
        if args and args[0] in self.commands:
            bare = copy(self)
            bare.params = [p for p in self.params if p.param_type_name == "option"]
            ctx.command, ctx.params["list_"] = bare, ""
            return TyperGroup.parse_args(bare, ctx, args)
        ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As usual, with a hint for a misspelt sub-command or a pattern that a shell took apart.

        Raises
        ------
        click.UsageError
            The first word is no sub-command.
        """
        if args[0] not in self.commands and not args[0].startswith("-"):
            word = str(ctx.params.get("list_") or "")
            meant = get_close_matches(word, self.commands, 1, cutoff=0.75)
            if meant and not Path(word).exists():
                ctx.fail(f"no such command {inert(word)!r}; did you mean {meant[0]!r}?")
            ctx.fail(
                f"a second LIST was given, {inert(args[0])!r}, but survey takes one: quote a "
                "pattern, as in 'runs/checkpoint-*', so that the shell leaves it whole, or name "
                "the models in a text file"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=ListOrCommand, subcommand_metavar="[summary DIR]")


@dataclass(frozen=True)
class SurveyPage(MadeFile):
    """A page of the survey."""

    html: Annotated[
        Path | None,
        path_option(
            "--html",
            "FILE",
            "Also write the pictures, one page that opens without a network.",
        ),
    ] = None

    def suffixes(self) -> Collection[str]:
        """Those of a page."""
        return (".html",)

    def content(self, result: Any, path: Path) -> bytes:
        """The page of a survey."""
        from eigenlens.report.survey_page import survey_page

        return survey_page(result)


@dataclass(frozen=True)
class DataOutput(ProductOutput):
    """The folder of the results, and what is told of them."""

    out: Annotated[
        Path | None,
        path_option(
            "--out",
            "DIR",
            "Folder of the results (parquet); what is there already is not computed again.",
        ),
    ] = None


@dataclass(frozen=True)
class Workers(Group):
    """Who does the work."""

    workers: Annotated[
        int | None,
        optional(metavar="N", min=1, help="Local processes; by default one a core."),
    ] = None
    scheduler: Annotated[
        str | None,
        optional(
            metavar="ADDR", help="A dask scheduler to use instead: tcp://host:8786, tls://..."
        ),
    ] = None


@dataclass(frozen=True)
class Tracing(Group):
    """Whether each model runs on prompts, and how."""

    trace: Annotated[
        bool, typer.Option("--trace", help="Also run each model on prompts: gamma, gain, rho.")
    ] = False
    prompts: PromptsOption = None
    nulls: Annotated[
        bool, typer.Option("--nulls/--no-nulls", help="Of a trace: what there is by chance.")
    ] = True
    batch_size: Annotated[int, typer.Option(help="Most prompts a batch.")] = 8


@dataclass(frozen=True)
class SurveyedModel(Loaded):
    """Each of the models, and the numbers that its spectra are computed with."""

    dtype: Annotated[Dtype, typer.Option(help="Compute dtype of spectra.")] = Dtype.float64
    seed: Annotated[int, seed_option("Of everything random.")] = 0


@app.callback(invoke_without_command=True)
@grouped
def survey(
    context: typer.Context,
    list_: Annotated[
        str,
        typer.Argument(
            metavar="LIST",
            help="A text file of MODEL lines, a pattern in quotes such as 'runs/checkpoint-*', a "
            "range of hub revisions org/name@step1000..step5000, or one MODEL.",
            show_default=False,
        ),
    ] = "",
    *,
    work: Workers,
    solving: Solving,
    leading: Leading,
    tracing: Tracing,
    chosen: Chosen,
    live: SurveyedModel,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not look up kept results of layers.")
    ] = False,
    page: SurveyPage,
    output: DataOutput,
) -> None:
    """Spectra of many checkpoints, in parallel, into one parquet data set.

    Stop it whenever you like: the same command goes on where it was. A checkpoint that fails is
    listed with its reason, the others complete, and the exit code is 1. eigenlens survey summary
    DIR prints a survey that is there, one row a checkpoint.
    """
    if context.invoked_subcommand is not None:
        return
    if not list_:
        raise typer.BadParameter(
            "missing: a file of MODEL lines, a pattern, a range or one MODEL", param_hint="LIST"
        )
    if output.out is None:
        raise typer.BadParameter("missing: the folder for the results", param_hint="--out")
    asked = arguments(work, solving, leading, tracing, chosen, live)
    with boundary(output.debug):
        from eigenlens.surveys.survey import survey as compute

        page.check()
        try:
            with output.progress("tasks") as progress:
                result = compute(
                    list_,
                    output.out,
                    **asked,
                    cache=not no_cache,
                    progress=progress,
                    note=None if output.quiet else note,
                )
        except KeyboardInterrupt:
            note(f"what is done stays in {output.out}; the same command goes on from there")
            raise
        _show(result, output, page)
        failed = [m for m in result.failed if result.run is not None and m.model in result.asked]
        if failed:
            first = f"{failed[0].model}: {failed[0].why}"
            which = ":" if len(failed) == 1 else ", the first is"
            whole = count_text(len(result.asked), "checkpoint")
            fail(f"{len(failed)} of {whole} failed{which} {first}")


@app.command(short_help="A survey that is there, one row a checkpoint.")
@grouped
def summary(
    folder: Annotated[Path, path_argument("DIR", "The --out of a survey.")],
    *,
    page: SurveyPage,
    output: Output,
) -> None:
    """Print a survey: one row a checkpoint, with those that failed and why.

    Works while the survey runs, too.
    """
    with boundary(output.debug):
        from eigenlens.surveys.summary import summary as read

        output.check()
        page.check()
        _show(read(folder), output, page)


def _show(result: Any, output: Output, page: SurveyPage) -> None:
    """The table and the files of a survey."""
    output.warn(result.warnings)
    output.emit(result, table("survey_tables", "survey_view", result), page.files(result))
