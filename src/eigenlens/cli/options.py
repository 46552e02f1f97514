"""Options that several commands share, and the checks of their syntax."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eigenlens import __version__


class Format(StrEnum):
    """What stdout carries."""

    table = "table"
    json = "json"
    csv = "csv"


class Dtype(StrEnum):
    """Compute dtypes."""

    float64 = "float64"
    float32 = "float32"


def _print_version(wanted: bool) -> None:
    if wanted:
        # boundary uses the formats of this module
        from eigenlens.cli.boundary import boundary, say

        with boundary(debug=False):
            say(f"eigenlens {__version__}")
        raise typer.Exit


def parse_layers(text: str | None) -> list[int] | None:
    """``0,3-5`` as ``[0, 3, 4, 5]``; None for None.

    Raises
    ------
    typer.BadParameter
        The text is not a list of numbers and ranges.
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise typer.BadParameter(
                f"{part!r} is no layer or range of layers; write for example 0,3-5",
                param_hint="--layers",
            )
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(found))


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder, a .safetensors or .gguf file, a hub id org/name[@rev], or sample:NAME.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="What stdout carries; by default a table.", show_default=False),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Also write the result to FILE: .json, .csv or .parquet.",
        show_default=False,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress, no warnings.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
NoCacheOption = Annotated[
    bool, typer.Option("--no-cache", help="Neither look up nor keep results of layers.")
]
VerifyCacheOption = Annotated[
    bool,
    typer.Option(
        "--verify-cache", help="Compare the weights' content before a kept result is used."
    ),
]
VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]
ArchitectureOption = Annotated[
    Path | None,
    typer.Option(
        "--architecture",
        metavar="FILE",
        help="Rules (.toml) that say where a model type nobody knows keeps V and O.",
        show_default=False,
    ),
]
StackOption = Annotated[
    str | None,
    typer.Option("--stack", help="Only this stack, e.g. encoder.", show_default=False),
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        "--layers", metavar="LIST", help="Only these layers, e.g. 0,3-5.", show_default=False
    ),
]
FiguresOption = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="Also draw the figures into DIR, as PDF and PNG with the data as CSV beside them.",
        show_default=False,
    ),
]
