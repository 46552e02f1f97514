"""The one place where errors become exit codes, and results reach stdout."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eigenlens.cli.options import Format
from eigenlens.errors import EigenlensError
from eigenlens.inert import inert

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eigenlens.report.serialise import Result


@contextmanager
def boundary(debug: bool) -> Iterator[None]:
    """Turn what goes wrong into one line on stderr and exit code 1.

    Usage errors are typer's and exit with 2; an interrupt exits with 130; a reader that closes the
    pipe early (``| head``) is no error.
    """
    try:
        yield
    except BrokenPipeError:
        # What is left in the buffer has no reader; keep the interpreter from flushing it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (EigenlensError, OSError, MemoryError, RecursionError) as error:
        if debug:
            traceback.print_exc()
        _complain(_one_line(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _complain("interrupted")
        raise typer.Exit(130) from None


def _one_line(error: BaseException) -> str:
    if isinstance(error, EigenlensError):
        return inert(str(error))
    if isinstance(error, MemoryError):
        return "not enough memory; try --layers, a smaller k or --dtype float32"
    if isinstance(error, OSError) and error.strerror:
        return inert(f"{error.filename or 'input'}: {error.strerror}")
    return inert(f"{type(error).__name__}: {error}")


def _complain(text: str) -> None:
    print(f"eigenlens: {text}", file=sys.stderr)


def warn(warnings: list[str], quiet: bool) -> None:
    """Print warnings to stderr, one a line."""
    if not quiet:
        for text in warnings:
            print(f"eigenlens: warning: {inert(text)}", file=sys.stderr)


def emit(
    result: Result,
    view: Callable[[], RenderableType],
    format: Format | None,
    out: Path | None,
) -> None:
    """Write the result to `out` if asked, and to stdout in `format`.

    The table goes to stdout unless only a file was asked for; 100 columns when stdout is no
    terminal, so that what is piped reads the same everywhere.
    """
    from eigenlens.report.serialise import FORMATS, write_result

    if out is not None:
        write_result(result, out)
    if format in (Format.json, Format.csv):
        sys.stdout.write(FORMATS[format.value](result))
        sys.stdout.flush()
        return
    if format is None and out is not None:
        print(f"written: {inert(str(out))}", file=sys.stderr)
        return
    from rich.console import Console

    from eigenlens.report.tables import WIDTH

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else WIDTH, highlight=False, markup=False, emoji=False)
    console.print(view())


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar over layers on stderr; None when stderr is no terminal or `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def step(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=inert(name) or "done")

        yield step
