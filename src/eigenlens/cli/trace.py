"""`eigenlens trace`: real tokens through a live model, and whether they tilt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.model_options import Chosen, Fed, Leading, LiveModel
from eigenlens.cli.options import ModelArgument, optional, parse_number, seed_option
from eigenlens.cli.output import Figures, Output, table


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


@dataclass(frozen=True)
class Traced(Fed):
    """What is fed to the model, random tokens included, and how the batches are made."""

    random_tokens: Annotated[
        int | None, optional("--random-tokens", metavar="N", help="N prompts of random tokens.")
    ] = None
    length: Annotated[int | None, optional("--length", metavar="L", help="Of random prompts.")] = (
        None
    )
    too_long: Annotated[
        TooLongName,
        typer.Option(help="Prompts beyond the model's positions: cut with a warning, or stop."),
    ] = TooLongName.warn
    batch_size: Annotated[int, typer.Option(help="Most prompts a batch.")] = 8


@dataclass(frozen=True)
class Steps(Group):
    """What carries the tokens from layer to layer."""

    mode: Annotated[
        ModeName,
        typer.Option(
            help="step: one attention layer from the real state; free: the attention-only model "
            "from the embeddings; block: the real block with its feed-forward part."
        ),
    ] = ModeName.step
    ladder: Annotated[
        bool,
        typer.Option("--ladder", help="Also from the paper's model to the real block, by rungs."),
    ] = False
    bias: Annotated[
        bool | None,
        optional(
            "--bias/--no-bias",
            help="Whether b = W_O b_V + b_O stays; by default only in mode block.",
        ),
    ] = None
    radius: Annotated[
        str | None,
        optional(
            metavar="R",
            help="Length of the states under the L2 norm: a number or sqrt_d; by default 1 in "
            "mode free, sqrt_d in the ladder of step.",
        ),
    ] = None
    steps: Annotated[
        int | None,
        optional(metavar="N", help="Steps of mode free; by default each layer once."),
    ] = None

    def asked(self) -> dict[str, Any]:
        """The options, the radius as a number.

        Raises
        ------
        typer.BadParameter
            The radius is neither a number nor ``sqrt_d``.
        """
        what = "radius; write a positive number or sqrt_d"
        return super().asked() | {"radius": parse_number(self.radius, "sqrt_d", what, "--radius")}


@dataclass(frozen=True)
class Measured(Group):
    """What is measured, and against what."""

    nulls: Annotated[
        bool, typer.Option("--nulls/--no-nulls", help="Measure what there is without an effect.")
    ] = True
    directions: Annotated[
        int | None,
        optional(
            metavar="N", help="Random directions, at least 200; by default 1000, or 40 a layer."
        ),
    ] = None
    bootstrap: Annotated[int, typer.Option(help="Resamples of the prompts.")] = 1000
    drop_sinks: Annotated[
        bool, typer.Option("--drop-sinks", help="Leave attention sinks out of all measures.")
    ] = False
    special_tokens: Annotated[
        SpecialName, typer.Option(help="Whether begin, end and separator tokens count.")
    ] = SpecialName.keep
    seed: Annotated[int, seed_option("Of everything random.")] = 0


@grouped
def trace(
    model: ModelArgument,
    *,
    fed: Traced,
    moved: Steps,
    leading: Leading,
    measured: Measured,
    collapse: Annotated[
        bool, typer.Option("--collapse", help="Also the table of collapse measures.")
    ] = False,
    chosen: Chosen,
    live: LiveModel,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only count prompts and tokens, and say how much memory and time, from a part "
            "that is measured.",
        ),
    ] = False,
    figures: Figures,
    output: Output,
) -> None:
    """Whether real tokens tilt towards each layer's principal eigenvector.

    Runs the model on prompts and measures, at every layer, how close tokens are to the leading
    direction before and after the step, against six nulls. Without prompts: a set of the package
    that suits the model, 64 short sentences, or 32 SMILES strings where it reads chemistry.
    """
    asked = arguments(fed, moved, leading, measured, chosen, live)
    with boundary(output.debug):
        from eigenlens.errors import OptionError
        from eigenlens.tracing.run import trace as compute

        output.check()
        if dry_run and figures.figures is not None:
            raise OptionError(
                "--dry-run computes nothing that --figures could be made of: leave one of them out"
            )
        figures.check()
        if dry_run:
            from eigenlens.tracing.estimate import estimate

            with output.progress() as progress:
                cost = estimate(model, **asked, progress=progress)
            output.warn(cost.warnings)
            output.emit(cost, table("trace_estimate", "trace_estimate_view", cost))
            return
        with output.progress("prompts") as progress:
            result = compute(model, **asked, progress=progress)
        output.warn(result.warnings)
        view = table("trace_tables", "trace_view", result, collapse)
        output.emit(result, view, figures.files(trace=result))
