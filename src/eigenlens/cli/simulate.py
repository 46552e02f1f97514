"""`eigenlens simulate`: a live model's layers iterated, and whether the end was foretold."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit, progress_bar, warn
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    Dtype,
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


class NormName(StrEnum):
    """The names of `eigenlens.live.replay.NORMS`."""

    l2 = "l2"
    real = "real"


class FormName(StrEnum):
    """The names of `eigenlens.dynamics.simulate.FORMS`, and `auto`."""

    auto = "auto"
    normalised = "normalised"
    stream = "stream"


def simulate(
    model: ModelArgument,
    steps: Annotated[int, typer.Option(metavar="N", help="Layer steps at most.")] = 100,
    norm: Annotated[
        NormName, typer.Option(help="N(z) = r z/|z| (the paper's), or the model's own norms.")
    ] = NormName.l2,
    radius: Annotated[
        str, typer.Option(metavar="R", help="r of the L2 norm: a number or sqrt_d.")
    ] = "1",
    bias: Annotated[
        bool, typer.Option("--bias/--no-bias", help="Whether b = W_O b_V + b_O stays.")
    ] = False,
    ffn: Annotated[
        bool, typer.Option("--ffn/--no-ffn", help="Whether the whole block runs.")
    ] = False,
    form: Annotated[
        FormName,
        typer.Option(
            help="N(x + attn(x)) (normalised) or h + attn(N(h)) (stream); auto takes the first "
            "for post-norm models."
        ),
    ] = FormName.auto,
    mask: Annotated[
        str,
        typer.Option(
            metavar="M", help="What tokens see: auto (the model's own), full, causal or window:W."
        ),
    ] = "auto",
    starts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Starts in one batch; by default 1, or all prompts that are given.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        int, typer.Option("--length", metavar="L", help="Tokens in a random start.")
    ] = 24,
    prompts: PromptsOption = None,
    text: TextOption = None,
    token_ids: TokenIdsOption = None,
    random_states: Annotated[
        bool,
        typer.Option(
            "--random-states",
            help="Start at random points of the sphere, not at embeddings of random tokens.",
        ),
    ] = False,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw the run to FILE: .png, .pdf or .svg.",
            show_default=False,
        ),
    ] = None,
    figures: FiguresOption = None,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the live model.")] = Dtype.float32,
    device: DeviceOption = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of random starts.")] = 0,
    architecture: ArchitectureOption = None,
    trust_remote_code: TrustOption = False,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """Where tokens end if the layers go on and on, and whether that was foretold.

    Iterates the model's own attention far beyond its depth, a stack of different layers in order
    and then again, and sets what happens beside what the spectrum of F foretells. By default the
    paper's model: attention and residual with the L2 norm, no biases, no feed-forward part.
    """
    chosen = parse_layers(layers)
    with boundary(debug):
        from eigenlens.dynamics.live_run import simulate_model
        from eigenlens.errors import OptionError
        from eigenlens.prompts import read_prompts, read_token_ids
        from eigenlens.report.serialise import SUFFIXES, check_target

        if out is not None:
            check_target(out, list(SUFFIXES))
        if figure is not None:
            from eigenlens.report.figures import SUFFIXES as FIGURES
            from eigenlens.report.figures import need_matplotlib

            check_target(figure, list(FIGURES))
            need_matplotlib()
        if figures is not None:
            from eigenlens.report.figures.table import check_folder, figure_files

            check_folder(figures)
        sources = {
            "--prompts": prompts is not None,
            "--text": bool(text),
            "--token-ids": token_ids is not None,
            "--random-states": random_states,
        }
        given = [name for name, is_given in sources.items() if is_given]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} exclude each other; give one of them")
        with progress_bar(quiet, "steps") as progress:

            def step(done: int, total: int) -> None:
                if progress is not None:
                    progress(done, total, "steps")

            result = simulate_model(
                model,
                steps=steps,
                norm=norm.value,
                radius=radius,
                bias=bias,
                ffn=ffn,
                form=form.value,
                mask=mask,
                starts=starts,
                n_tokens=length,
                texts=read_prompts(prompts) if prompts is not None else text or None,
                token_ids=None if token_ids is None else read_token_ids(token_ids),
                random_states=random_states,
                stack=stack,
                layers=chosen,
                dtype=dtype.value,
                device=device,
                architecture=architecture,
                trust_remote_code=trust_remote_code,
                tie_tolerance=tie_tolerance,
                seed=seed,
                progress=step,
            )
        warn(list(result.warnings), quiet)
        files = {}
        if figure is not None:
            from eigenlens.report.figures import simulation_figure

            files[figure] = simulation_figure(result, figure)
        if figures is not None:
            files |= figure_files({"simulate": result}, figures)
        emit(result, lambda: _view(result), format, out, files=files, quiet=quiet)


def _view(result: Any) -> Any:
    """The table of `eigenlens.report`, whose imports only a table is worth."""
    return import_module("eigenlens.report.simulate_tables").simulate_view(result)
