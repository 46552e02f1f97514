"""`eigenlens spectrum`: the spectrum of every layer, from the weight files alone."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
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
    NoCacheOption,
    OutOption,
    QuietOption,
    StackOption,
    VerifyCacheOption,
    VersionOption,
    parse_layers,
)


class OrderName(StrEnum):
    """What leads; the names of `eigenlens.spectra.orders.ORDERS`, and `auto`."""

    auto = "auto"
    residual = "residual"
    real = "real"
    modulus = "modulus"


class OperatorName(StrEnum):
    """The names of `eigenlens.spectra.maps.OPERATORS`."""

    raw = "raw"
    folded = "folded"


class SolverName(StrEnum):
    """The names of `eigenlens.spectra.solvers.SOLVERS`, and `auto`."""

    auto = "auto"
    dense = "dense"
    krylov = "krylov"


def spectrum(
    model: ModelArgument,
    k: Annotated[int, typer.Option("-k", "--k", help="Leading eigenvalues a layer.")] = 8,
    order: Annotated[
        OrderName,
        typer.Option(
            help="What leads: |1+lambda| (residual), Re lambda (real) or |lambda| (modulus); "
            "auto takes residual for post-norm and real for pre-norm layers."
        ),
    ] = OrderName.auto,
    operator: Annotated[
        OperatorName,
        typer.Option(help="F alone (raw), or with the norm's gain made part of it (folded)."),
    ] = OperatorName.raw,
    all_: Annotated[bool, typer.Option("--all", help="All eigenvalues instead of k.")] = False,
    per_head: Annotated[
        bool, typer.Option("--per-head", help="Also every head: trace ratio, copying, share.")
    ] = False,
    decode: Annotated[
        int,
        typer.Option(
            metavar="N", help="Also the N tokens at both ends of what each leader writes and reads."
        ),
    ] = 0,
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the vectors to FILE: .safetensors or .npz.",
            show_default=False,
        ),
    ] = None,
    figures: FiguresOption = None,
    solver: Annotated[
        SolverName, typer.Option(help="How to solve; auto decides by size and k.")
    ] = SolverName.auto,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[Dtype, typer.Option(help="Compute dtype.")] = Dtype.float64,
    no_cache: NoCacheOption = False,
    verify_cache: VerifyCacheOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the Krylov start vectors.")] = 0,
    architecture: ArchitectureOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how many bytes, how much memory and time."),
    ] = False,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """The direction each attention layer pushes tokens towards, and how strongly.

    Reads only the value and output matrices of the weight files, one layer at a time, and prints
    the leading eigenvalues of F = W_O W_V with their error bars and what they mean.
    """
    chosen = parse_layers(layers)
    with boundary(debug):
        from eigenlens.cache import Cache
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.report.serialise import SUFFIXES, check_apart, check_target
        from eigenlens.spectra.analyse import spectrum as compute
        from eigenlens.spectra.estimate import calibrate, dense_warning, estimate, layer_costs
        from eigenlens.spectra.options import SpectrumOptions

        if out is not None:
            check_target(out, list(SUFFIXES))
        if vectors is not None:
            from eigenlens.report.vectors import SUFFIXES as VECTOR_SUFFIXES
            from eigenlens.report.vectors import vector_bytes

            check_target(vectors, VECTOR_SUFFIXES)
        if figures is not None:
            from eigenlens.report.figures.table import check_folder, figure_files

            check_folder(figures)
        asked: dict[str, Any] = {
            "operator": operator.value,
            "all": all_,
            "per_head": per_head,
            "decode": decode,
            "solver": solver.value,
            "tie_tolerance": tie_tolerance,
            "dtype": dtype.value,
            "seed": seed,
            "keep_vectors": vectors is not None,
        }
        options = SpectrumOptions(k, order.value, **asked)
        with progress_bar(quiet) as progress:
            checkpoint = open_checkpoint(model, architecture)
            check_apart([out, vectors], checkpoint.source)
            if dry_run:
                cost = estimate(checkpoint, options, stack=stack, layers=chosen)
            else:
                costs = layer_costs(checkpoint, options, stack=stack, layers=chosen)
                slow = dense_warning(costs, lambda: calibrate(dtype.value))
                warn([slow] if slow else [], quiet)
                result = compute(
                    *(checkpoint, k, order.value),
                    **asked,
                    stack=stack,
                    layers=chosen,
                    progress=progress,
                    cache=None if no_cache else Cache(),
                    verify_cache=verify_cache,
                )
        if dry_run:
            warn(list(cost.warnings), quiet)
            emit(cost, partial(_view, "estimate", "estimate_view", cost), format, out, quiet=quiet)
            return
        warn(list(result.warnings), quiet)
        files = {} if vectors is None else {vectors: vector_bytes(result, vectors)}
        if figures is not None:
            files |= figure_files({"spectrum": result}, figures)
        view = partial(_view, "tables", "spectrum_view", result)
        emit(result, view, format, out, files=files, quiet=quiet)


def _view(room: str, name: str, result: object) -> Any:
    """A table of `eigenlens.report`, whose imports only a table is worth."""
    return getattr(import_module(f"eigenlens.report.{room}"), name)(result)
