"""`eigenlens trace`: real tokens through a live model, and whether they tilt."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
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
    OutOption,
    QuietOption,
    StackOption,
    VersionOption,
    parse_layers,
)
from eigenlens.cli.prompt_options import (
    DeviceOption,
    PromptsOption,
    TextOption,
    TokenIdsOption,
    TrustOption,
)
from eigenlens.cli.spectrum import OperatorName, OrderName


class ModeName(StrEnum):
    """The names of `eigenlens.tracing.options.MODES`."""

    step = "step"
    free = "free"
    block = "block"


class SpecialName(StrEnum):
    """The names of `eigenlens.measure.sinks.SPECIAL`."""

    keep = "keep"
    drop = "drop"


class TooLongName(StrEnum):
    """The names of `eigenlens.live.batches.TRUNCATIONS`."""

    warn = "warn"
    error = "error"


class LiveDtype(StrEnum):
    """Dtypes that a live model is loaded in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


def trace(
    model: ModelArgument,
    prompts: PromptsOption = None,
    text: TextOption = None,
    token_ids: TokenIdsOption = None,
    random_tokens: Annotated[
        int | None,
        typer.Option(
            "--random-tokens", metavar="N", help="N prompts of random tokens.", show_default=False
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", metavar="L", help="Of random prompts.", show_default=False),
    ] = None,
    mode: Annotated[
        ModeName,
        typer.Option(
            help="step: one attention layer from the real state; free: the attention-only model "
            "from the embeddings; block: the real block with its feed-forward part."
        ),
    ] = ModeName.step,
    ladder: Annotated[
        bool,
        typer.Option("--ladder", help="Also from the paper's model to the real block, by rungs."),
    ] = False,
    bias: Annotated[
        bool | None,
        typer.Option(
            "--bias/--no-bias",
            help="Whether b = W_O b_V + b_O stays; by default only in mode block.",
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        OrderName, typer.Option(help="What leads, as in eigenlens spectrum.")
    ] = OrderName.auto,
    operator: Annotated[
        OperatorName, typer.Option(help="F alone, or with the norm's gain.")
    ] = OperatorName.raw,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    radius: Annotated[
        str | None,
        typer.Option(
            metavar="R",
            help="Length of the states under the L2 norm: a number or sqrt_d; by default 1 in "
            "mode free, sqrt_d in the ladder of step.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Steps of mode free; by default each layer once.", show_default=False
        ),
    ] = None,
    nulls: Annotated[
        bool, typer.Option("--nulls/--no-nulls", help="Measure what there is without an effect.")
    ] = True,
    directions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Random directions, at least 200; by default 1000, or 40 a layer.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples of the prompts.")] = 1000,
    drop_sinks: Annotated[
        bool, typer.Option("--drop-sinks", help="Leave attention sinks out of all measures.")
    ] = False,
    special_tokens: Annotated[
        SpecialName, typer.Option(help="Whether begin, end and separator tokens count.")
    ] = SpecialName.keep,
    collapse: Annotated[
        bool, typer.Option("--collapse", help="Also the table of collapse measures.")
    ] = False,
    figures: FiguresOption = None,
    too_long: Annotated[
        TooLongName,
        typer.Option(help="Prompts beyond the model's positions: cut with a warning, or stop."),
    ] = TooLongName.warn,
    batch_size: Annotated[int, typer.Option(help="Prompts a batch.")] = 8,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[LiveDtype, typer.Option(help="Of the live model.")] = LiveDtype.float32,
    device: DeviceOption = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    architecture: ArchitectureOption = None,
    trust_remote_code: TrustOption = False,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """Whether real tokens tilt towards each layer's principal eigenvector.

    Runs the model on prompts and measures, at every layer, how close tokens are to the leading
    direction before and after the step, against six nulls. Without prompts: 64 short sentences.
    """
    chosen = parse_layers(layers)
    length_of = _radius(radius)
    with boundary(debug):
        from eigenlens.report.serialise import SUFFIXES, check_target
        from eigenlens.tracing.run import trace as compute

        if out is not None:
            check_target(out, list(SUFFIXES))
        if figures is not None:
            from eigenlens.report.figures.table import check_folder, figure_files

            check_folder(figures)
        with progress_bar(quiet, "prompts") as progress:
            result = compute(
                model,
                text,
                prompts=prompts,
                token_ids=token_ids,
                random_tokens=random_tokens,
                length=length,
                mode=mode.value,
                ladder=ladder,
                bias=bias,
                order=order.value,
                operator=operator.value,
                tie_tolerance=tie_tolerance,
                radius=length_of,
                steps=steps,
                nulls=nulls,
                directions=directions,
                bootstrap=bootstrap,
                drop_sinks=drop_sinks,
                special_tokens=special_tokens.value,
                batch_size=batch_size,
                too_long=too_long.value,
                stack=stack,
                layers=chosen,
                dtype=dtype.value,
                device=device,
                seed=seed,
                architecture=architecture,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
        warn(list(result.warnings), quiet)

        def view() -> Any:
            return import_module("eigenlens.report.trace_tables").trace_view(result, collapse)

        files = {} if figures is None else figure_files({"trace": result}, figures)
        emit(result, view, format, out, files=files, quiet=quiet)


def _radius(text: str | None) -> Any:
    """A radius as it was typed: a number, or ``sqrt_d``.

    Raises
    ------
    typer.BadParameter
        It is neither.
    """
    if text is None or text == "sqrt_d":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no radius; write a positive number or sqrt_d", param_hint="--radius"
        ) from None
