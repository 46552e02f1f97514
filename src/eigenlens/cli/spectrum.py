"""`eigenlens spectrum`: the spectrum of every layer, from the weight files alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eigenlens.cli.boundary import boundary, emit, progress_bar, warn
from eigenlens.cli.options import (
    DebugOption,
    Dtype,
    FormatOption,
    LayersOption,
    ModelArgument,
    OutOption,
    QuietOption,
    StackOption,
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
    solver: Annotated[
        SolverName, typer.Option(help="How to solve; auto decides by size and k.")
    ] = SolverName.auto,
    tie_tolerance: Annotated[
        float, typer.Option(help="Relative gap below which leaders count as tied.")
    ] = 0.01,
    stack: StackOption = None,
    layers: LayersOption = None,
    dtype: Annotated[Dtype, typer.Option(help="Compute dtype.")] = Dtype.float64,
    seed: Annotated[int, typer.Option(min=0, help="Of the Krylov start vectors.")] = 0,
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
        from eigenlens.report.serialise import SUFFIXES, check_target
        from eigenlens.report.tables import spectrum_view
        from eigenlens.report.vectors import SUFFIXES as VECTOR_SUFFIXES
        from eigenlens.report.vectors import vector_bytes
        from eigenlens.spectra.analyse import spectrum as compute

        if out is not None:
            check_target(out, list(SUFFIXES))
        if vectors is not None:
            check_target(vectors, VECTOR_SUFFIXES)
        with progress_bar(quiet) as progress:
            result = compute(
                model,
                k,
                order.value,
                operator=operator.value,
                all=all_,
                per_head=per_head,
                decode=decode,
                solver=solver.value,
                tie_tolerance=tie_tolerance,
                dtype=dtype.value,
                seed=seed,
                keep_vectors=vectors is not None,
                stack=stack,
                layers=chosen,
                progress=progress,
            )
        warn(list(result.warnings), quiet)
        files = {} if vectors is None else {vectors: vector_bytes(result, vectors)}
        emit(result, lambda: spectrum_view(result), format, out, files=files, quiet=quiet)
