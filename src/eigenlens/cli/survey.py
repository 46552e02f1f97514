"""`eigenlens survey`: many checkpoints on dask, and what they have in common."""

from __future__ import annotations

import sys
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eigenlens.cli.boundary import boundary, emit, fail, progress_bar, warn
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    Dtype,
    FormatOption,
    LayersOption,
    OutOption,
    QuietOption,
    StackOption,
    VersionOption,
    parse_layers,
)
from eigenlens.cli.prompt_options import DeviceOption, PromptsOption, TrustOption
from eigenlens.cli.spectrum import OperatorName, OrderName, SolverName
from eigenlens.inert import inert


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


app = typer.Typer(cls=ListOrCommand, subcommand_metavar="[summary DIR]")

HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write the pictures, one page that opens without a network.",
        show_default=False,
    ),
]


@app.callback(invoke_without_command=True)
def survey(
    context: typer.Context,
    list_: Annotated[
        str,
        typer.Argument(
            metavar="LIST",
            help="A text file of MODEL lines, a pattern such as 'runs/checkpoint-*', a range of "
            "hub revisions org/name@step1000..step5000, or one MODEL.",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the results (parquet); what is there already is not computed again.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Also run each model on prompts: gamma, gain, rho.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Local processes; by default one a core.", show_default=False
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR",
            help="A dask scheduler to use instead: tcp://host:8786, tls://...",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Leading eigenvalues a layer.")] = 8,
    order: Annotated[
        OrderName, typer.Option(help="What leads, as in eigenlens spectrum.")
    ] = OrderName.auto,
    operator: Annotated[
        OperatorName, typer.Option(help="F alone, or with the norm's gain.")
    ] = OperatorName.raw,
    all_: Annotated[bool, typer.Option("--all", help="All eigenvalues instead of k.")] = False,
    solver: Annotated[
        SolverName, typer.Option(help="How to solve; auto decides by size and k.")
    ] = SolverName.auto,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    prompts: PromptsOption = None,
    nulls: Annotated[
        bool, typer.Option("--nulls/--no-nulls", help="Of a trace: what there is by chance.")
    ] = True,
    batch_size: Annotated[int, typer.Option(help="Prompts a batch.")] = 8,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[Dtype, typer.Option(help="Compute dtype of spectra.")] = Dtype.float64,
    device: DeviceOption = "cpu",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not look up kept results of layers.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    architecture: ArchitectureOption = None,
    trust_remote_code: TrustOption = False,
    html: HtmlOption = None,
    format: FormatOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
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
    if out is None:
        raise typer.BadParameter("missing: the folder for the results", param_hint="--out")
    chosen = parse_layers(layers)
    with boundary(debug):
        from eigenlens.surveys.survey import survey as compute

        if html is not None:
            _check_html(html)
        try:
            with progress_bar(quiet, "tasks") as progress:
                result = compute(
                    list_,
                    out,
                    trace=trace,
                    k=k,
                    order=order.value,
                    operator=operator.value,
                    all=all_,
                    solver=solver.value,
                    tie_tolerance=tie_tolerance,
                    dtype=dtype.value,
                    seed=seed,
                    stack=stack,
                    layers=chosen,
                    architecture=architecture,
                    prompts=prompts,
                    nulls=nulls,
                    batch_size=batch_size,
                    device=device,
                    trust_remote_code=trust_remote_code,
                    workers=workers,
                    scheduler=scheduler,
                    cache=not no_cache,
                    progress=progress,
                    note=None if quiet else _note,
                )
        except KeyboardInterrupt:
            _note(f"what is done stays in {out}; the same command goes on from there")
            raise
        warn(list(result.warnings), quiet)
        _show(result, format, None, html, quiet)
        failed = [m for m in result.failed if result.run is not None and m.model in result.asked]
        if failed:
            first = f"{failed[0].model}: {failed[0].why}"
            which = ":" if len(failed) == 1 else ", the first is"
            fail(f"{len(failed)} of {len(result.asked)} checkpoints failed{which} {first}")


@app.command(short_help="A survey that is there, one row a checkpoint.")
def summary(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The --out of a survey.", show_default=False)
    ],
    html: HtmlOption = None,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Print a survey: one row a checkpoint, with those that failed and why.

    Works while the survey runs, too.
    """
    with boundary(debug):
        from eigenlens.report.serialise import SUFFIXES, check_target
        from eigenlens.surveys.summary import summary as read

        if out is not None:
            check_target(out, list(SUFFIXES))
        if html is not None:
            _check_html(html)
        result = read(folder)
        warn(list(result.warnings), quiet)
        _show(result, format, out, html, quiet)


def _show(result: Any, format: Any, out: Path | None, html: Path | None, quiet: bool) -> None:
    """The table and the files of a survey."""
    files = {}
    if html is not None:
        files[html] = import_module("eigenlens.report.survey_page").survey_page(result)

    def view() -> Any:
        return import_module("eigenlens.report.survey_tables").survey_view(result)

    emit(result, view, format, out, files=files, quiet=quiet)


def _check_html(path: Path) -> None:
    from eigenlens.report.serialise import check_target

    check_target(path, [".html"])


def _note(text: str) -> None:
    print(f"eigenlens: {inert(text)}", file=sys.stderr)
