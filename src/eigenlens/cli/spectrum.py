"""`eigenlens spectrum`: the spectrum of every layer, from the weight files alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.choices import OperatorName, OrderName
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.model_options import Chosen, Leading, Numbers, Solving
from eigenlens.cli.options import (
    ArchitectureOption,
    ModelArgument,
    NoCacheOption,
    VerifyCacheOption,
    path_option,
)
from eigenlens.cli.output import Figures, MadeFile, Output, table


@dataclass(frozen=True)
class LeadingExplained(Leading):
    """What leads, in the words that other commands refer to."""

    order: Annotated[
        OrderName,
        typer.Option(
            help="What leads: |1+lambda| (residual), Re lambda (real) or |lambda| (modulus); "
            "auto takes residual for post-norm and real for pre-norm layers."
        ),
    ] = OrderName.auto
    operator: Annotated[
        OperatorName,
        typer.Option(help="F alone (raw), or with the norm's gain made part of it (folded)."),
    ] = OperatorName.raw


@dataclass(frozen=True)
class Besides(Group):
    """What is computed of a layer besides its spectrum."""

    per_head: Annotated[
        bool, typer.Option("--per-head", help="Also every head: trace ratio, copying, share.")
    ] = False
    decode: Annotated[
        int,
        typer.Option(
            metavar="N", help="Also the N tokens at both ends of what each leader writes and reads."
        ),
    ] = 0


@dataclass(frozen=True)
class Vectors(MadeFile):
    """A file for the eigenvectors."""

    vectors: Annotated[
        Path | None,
        path_option("--vectors", "FILE", "Write the vectors to FILE: .safetensors or .npz."),
    ] = None

    def suffixes(self) -> Collection[str]:
        """The formats of `eigenlens.report.vectors`."""
        from eigenlens.report.vectors import SUFFIXES

        return SUFFIXES

    def content(self, result: Any, path: Path) -> bytes:
        """The vectors of a result."""
        from eigenlens.report.vectors import vector_bytes

        return vector_bytes(result, path)


@grouped
def spectrum(
    model: ModelArgument,
    *,
    solving: Solving,
    leading: LeadingExplained,
    besides: Besides,
    chosen: Chosen,
    numbers: Numbers,
    architecture: ArchitectureOption = None,
    no_cache: NoCacheOption = False,
    verify_cache: VerifyCacheOption = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how many bytes, how much memory and time."),
    ] = False,
    vectors: Vectors,
    figures: Figures,
    output: Output,
) -> None:
    """The direction each attention layer pushes tokens towards, and how strongly.

    Reads only the value and output matrices of the weight files, one layer at a time, and prints
    the leading eigenvalues of F = W_O W_V with their error bars and what they mean.
    """
    asked = arguments(solving, leading, besides, numbers)
    asked["keep_vectors"] = vectors.path is not None
    part = chosen.asked()
    with boundary(output.debug):
        from eigenlens.cache import Cache
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.errors import OptionError
        from eigenlens.report.serialise import check_apart
        from eigenlens.spectra.analyse import spectrum as compute
        from eigenlens.spectra.estimate import calibrate, dense_warning, estimate, layer_costs
        from eigenlens.spectra.options import SpectrumOptions

        output.check()
        if dry_run and (vectors.path is not None or figures.figures is not None):
            given = "--figures" if vectors.path is None else "--vectors"
            raise OptionError(
                f"--dry-run computes nothing that {given} could be made of: leave one of them out"
            )
        vectors.check()
        figures.check()
        options = SpectrumOptions(**asked)
        with output.progress() as progress:
            checkpoint = open_checkpoint(model, architecture)
            check_apart([output.out, vectors.path], checkpoint.source)
            if dry_run:
                cost = estimate(checkpoint, options, **part)
            else:
                costs = layer_costs(checkpoint, options, **part)
                slow = dense_warning(costs, lambda: calibrate(options.dtype))
                output.warn([slow] if slow else [])
                result = compute(
                    checkpoint,
                    **asked,
                    **part,
                    progress=progress,
                    cache=None if no_cache else Cache(),
                    verify_cache=verify_cache,
                )
        if dry_run:
            output.warn(cost.warnings)
            output.emit(cost, table("estimate", "estimate_view", cost))
            return
        output.warn(result.warnings)
        files = vectors.files(result) | figures.files(spectrum=result)
        output.emit(result, table("tables", "spectrum_view", result), files)
