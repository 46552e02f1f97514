"""`eigenlens report`: everything about a model in one HTML file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit, progress_bar, warn
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    FiguresOption,
    FormatOption,
    LayersOption,
    ModelArgument,
    NoCacheOption,
    QuietOption,
    StackOption,
    VersionOption,
    parse_layers,
)
from eigenlens.cli.prompt_options import DeviceOption, PromptsOption, TextOption, TrustOption
from eigenlens.cli.spectrum import OperatorName, OrderName
from eigenlens.cli.trace import LiveDtype


def report(
    model: ModelArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the page goes: a .html file.")
    ] = Path("report.html"),
    sections: Annotated[
        str | None,
        typer.Option(
            "--sections",
            metavar="LIST",
            help="Only these, e.g. spectrum,heads,tokens (which need no torch); besides alignment, "
            "collapse, sphere, simulate.",
            show_default=False,
        ),
    ] = None,
    prompts: PromptsOption = None,
    text: TextOption = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Layer steps of the simulation.")] = 100,
    order: Annotated[
        OrderName, typer.Option(help="What leads, as in eigenlens spectrum.")
    ] = OrderName.auto,
    operator: Annotated[
        OperatorName, typer.Option(help="F alone, or with the norm's gain.")
    ] = OperatorName.raw,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    figures: FiguresOption = None,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[LiveDtype, typer.Option(help="Of the live model.")] = LiveDtype.float32,
    device: DeviceOption = "cpu",
    no_cache: NoCacheOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    architecture: ArchitectureOption = None,
    trust_remote_code: TrustOption = False,
    format: FormatOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """A model's spectrum, tokens and deep stack on one page that opens without a network.

    Writes a single HTML file with a summary in plain words, interactive figures, the tables behind
    them and the data to download. What a model or an installation does not allow (no torch: nothing
    that runs the model) is said in the page. On stdout: the summary.
    """
    chosen = parse_layers(layers)
    names = None if sections is None else [s.strip() for s in sections.split(",") if s.strip()]
    with boundary(debug):
        from eigenlens.cache import Cache
        from eigenlens.report.page.write import SUFFIXES, make_report
        from eigenlens.report.serialise import check_target

        check_target(out, list(SUFFIXES))
        if figures is not None:
            from eigenlens.report.figures.table import check_folder, material_files

            check_folder(figures)
        with progress_bar(quiet) as progress:
            made = make_report(
                model,
                sections=names,
                target=out,
                cache=None if no_cache else Cache(),
                progress=progress,
                order=order.value,
                operator=operator.value,
                tie_tolerance=tie_tolerance,
                seed=seed,
                texts=text or None,
                prompts=prompts,
                steps=steps,
                stack=stack,
                layers=chosen,
                dtype=dtype.value,
                device=device,
                trust_remote_code=trust_remote_code,
                architecture=architecture,
            )
        left_out = [f"section {name} left out: {why}" for name, why in made.missing.items()]
        warn([*made.warnings, *left_out], quiet)

        def view() -> Any:
            return import_module("eigenlens.report.page.view").report_view(made, out)

        files = {out: made.html.encode("utf-8")}
        if figures is not None:
            files |= material_files(made.material, figures)
        emit(made, view, format, None, files=files, quiet=quiet)
