"""Options that several commands share, and the checks of their syntax."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens import __version__
from eigenlens.cli.boundary import boundary, say
from eigenlens.cli.choices import Format


def _print_version(wanted: bool) -> None:
    if wanted:
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


def parse_number(text: str | None, word: str, what: str, option: str) -> Any:
    """A number as it was typed, or the one `word` that may stand for it; None for None.

    Raises
    ------
    typer.BadParameter
        It is neither; `what` says how to write it.
    """
    if text is None or text == word:
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no {what}", param_hint=option) from None


def parse_path(text: str | Path) -> Path:
    """A path as it was typed; an empty one would silently be the working folder.

    Raises
    ------
    typer.BadParameter
        Nothing was typed.
    """
    if not str(text):
        raise typer.BadParameter("the path is empty; name a file or folder (. is this folder)")
    return Path(text)


def path_argument(metavar: str, help: str) -> Any:
    """An argument that is a path."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, parser=parse_path)


def path_option(name: str, metavar: str, help: str, *, show_default: bool = False) -> Any:
    """An option that is a path."""
    return typer.Option(
        name, metavar=metavar, help=help, show_default=show_default, parser=parse_path
    )


def optional(*names: str, help: str, metavar: str | None = None, min: int | None = None) -> Any:
    """An option that is not set by default: its help says what then happens."""
    return typer.Option(*names, metavar=metavar, help=help, min=min, show_default=False)


def seed_option(of: str) -> Any:
    """The seed of what `of` says."""
    return typer.Option(min=0, help=of)


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder, a .safetensors or .gguf file, a hub id org/name[@rev], or sample:NAME.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format | None, optional("--format", help="What stdout carries; by default a table.")
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
    path_option(
        "--architecture",
        "FILE",
        "Rules (.toml) that say where a model type nobody knows keeps V and O.",
    ),
]
StackOption = Annotated[str | None, optional("--stack", help="Only this stack, e.g. encoder.")]
PromptsOption = Annotated[
    Path | None,
    path_option("--prompts", "FILE", "Texts, one a line, or .jsonl with a field text."),
]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs, e.g. cuda.")]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]
TieOption = Annotated[float, typer.Option(help="Relative gap below which leaders count as tied.")]
KOption = Annotated[int, typer.Option("-k", "--k", help="Leading eigenvalues a layer.")]
