"""The one place where errors become exit codes, and results reach stdout."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from eigenlens.cli.choices import Format
from eigenlens.errors import EigenlensError, OptionError, SourceError, UnreachableError
from eigenlens.inert import inert

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eigenlens.report.serialise import Result


@contextmanager
def boundary(debug: bool) -> Iterator[None]:
    """Turn what goes wrong into one line on stderr and exit code 1, or 2 for wrong usage.

    Wrong usage is what typer refuses, and an option that the library does (`exit_code`); an
    interrupt exits with 130; a reader that closes the pipe early (``| head``) is no error. What
    nobody foresaw is a fault of eigenlens and says so.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except BrokenPipeError:
        _abandon_stdout()
    except Exception as error:
        if debug:
            print(inert_lines(traceback.format_exc()), file=sys.stderr)
        _complain(_one_line(error))
        raise typer.Exit(exit_code(error)) from None
    except KeyboardInterrupt:
        _complain("interrupted")
        raise typer.Exit(130) from None


def exit_code(error: BaseException) -> int:
    """2 where an option has to change, whoever noticed; 1 where the work failed.

    That no value of an option reaches what was asked for is a finding, for which work was done.
    """
    usage = isinstance(error, OptionError) and not isinstance(error, UnreachableError)
    return 2 if usage else 1


@contextmanager
def may_be_left() -> Iterator[None]:
    """End quietly, with exit code 0, where the reader of what is written closes the pipe early."""
    try:
        yield
    except BrokenPipeError:
        _abandon_stdout()
        raise typer.Exit(0) from None


@contextmanager
def own_words() -> Iterator[None]:
    """Take what a validating library puts before the message of a refused value off it."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")
        raise


def inert_lines(text: str) -> str:
    """Several lines, each `inert`: messages in a traceback hold names of the model."""
    return "\n".join(map(inert, text.splitlines()))


def _one_line(error: BaseException) -> str:
    if isinstance(error, EigenlensError):
        return inert(str(error))
    if isinstance(error, MemoryError):
        return "not enough memory; try --layers, a smaller k or --dtype float32"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return inert(f"{place}{error.strerror}")
    return inert(
        f"an error that was not foreseen, {type(error).__name__}: {str(error)[:300]}; this is a "
        "fault of eigenlens: please report it with the output of --debug"
    )


def _abandon_stdout() -> None:
    """Point stdout nowhere: what is left in its buffer cannot be written, at exit neither."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _writing_stdout() -> Iterator[None]:
    """Flush at the end, while an error can still be told; a full disk is named as such.

    Raises
    ------
    SourceError
        stdout takes no more, other than for a reader that left.
    """
    if sys.stdout is None:  # closed by whoever started the program
        raise SourceError("cannot write to stdout: it is closed")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_stdout()
        raise SourceError(f"cannot write to stdout: {error.strerror}") from None


_QUOTED = re.compile(r"(?<![^\s(])'[^']*'")


def _complain(text: str) -> None:
    """Say one inert line on stderr; on a terminal, lines that fit it."""
    print(_fitted(f"eigenlens: {text}"), file=sys.stderr)


def _fitted(text: str) -> str:
    """`text` broken at spaces where stderr is a terminal, further lines set in.

    Columns are counted, of which wide signs (East Asian) take two. What is quoted (paths, names)
    and words longer than a line stay whole, so that they can be copied.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return text
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        width = 0
    from rich.cells import cell_len

    first, *words = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", "\0"), text).split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if cell_len(longer.replace("\0", " ")) <= (width or 80):
            lines[-1] = longer
        else:
            lines.append(f"  {word}")
    return "\n".join(lines).replace("\0", " ")


def note(text: str) -> None:
    """Say something, made inert, on stderr."""
    _complain(inert(text))


def fail(text: str) -> NoReturn:
    """One line on stderr and exit code 1, where the work went well but its result is refused.

    Raises
    ------
    typer.Exit
        Always.
    """
    note(text)
    raise typer.Exit(1)


def warn(warnings: list[str], quiet: bool) -> None:
    """Print warnings to stderr, one a line."""
    if not quiet:
        for text in warnings:
            note(f"warning: {text}")


def emit(
    result: Result,
    view: Callable[[], RenderableType],
    format: Format | None,
    out: Path | None,
    *,
    files: Mapping[Path, bytes] | None = None,
    quiet: bool = False,
) -> None:
    """Write the result to `out` if asked, and to stdout in `format`, by default as a table.

    Further `files` are written together with `out`: all of them or none, and the folder that is
    made for them goes with them.
    The table has 100 columns when stdout is no terminal, so that what is piped reads the same
    everywhere.
    """
    from eigenlens.report.serialise import FORMATS, file_bytes
    from eigenlens.writing import write_together

    written = dict(files or {})
    if out is not None:
        written[out] = file_bytes(result, out)
    write_together(written, folders={path.parent for path in files or ()})
    if not quiet:
        _tell(written)
    if format in (Format.json, Format.csv):
        text = FORMATS[format.value](result)
        with _writing_stdout():
            _encode("utf-8", "strict")
            sys.stdout.write(text)
        return
    from rich.console import Console

    from eigenlens.report.tables import WIDTH

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # which rich would make an exit code of 1

    terminal = sys.stdout is not None and sys.stdout.isatty()
    _encode(None, "replace")
    console = Plain(width=None if terminal else WIDTH, highlight=False, markup=False, emoji=False)
    with _writing_stdout():
        console.print(view())


_MANY = 4


def _tell(written: Iterable[Path]) -> None:
    """Name the files on stderr; many in one folder are only counted."""
    folders: dict[Path, list[Path]] = {}
    for path in written:
        folders.setdefault(path.parent, []).append(path)
    for folder, paths in folders.items():
        many = f"{folder} ({len(paths)} files)"
        for text in [str(p) for p in paths] if len(paths) < _MANY else [many]:
            print(f"written: {inert(text)}", file=sys.stderr)


def say(text: str) -> None:
    """Print one line of data, made inert, on stdout."""
    with _writing_stdout():
        print(inert(text))


def _encode(encoding: str | None, errors: str) -> None:
    """Data are UTF-8 whatever the locale; in a table a sign that it lacks becomes ``?``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=encoding, errors=errors)


@contextmanager
def progress_bar(
    quiet: bool, unit: str | None = None
) -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar over layers on stderr; a line now and then on a pipe; None when `quiet`.

    With a `unit` (prompts) the bar also has their rate and the time left.

    Bytes that come over the network have a line of their own while they come. Notes on downloads
    are printed unless `quiet`.
    """
    from eigenlens.tensors.transfers import Transfers, watching

    if quiet:
        with watching(Transfers(note=lambda text: None)):
            yield None
        return
    if not sys.stderr.isatty():
        from eigenlens.cli.progress import Heartbeat

        beat = Heartbeat(_complain)
        with watching(Transfers(beat.moved, _complain)), beat.running():
            yield beat.step
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    words = TextColumn("{task.description}", markup=False)
    rate = [TextColumn(f"{{task.fields[rate]}} {unit}/s"), TimeRemainingColumn()] if unit else []
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *rate)
    bar = Progress(*columns, console=console)
    loads = Progress(words, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console)
    task = bar.add_task("reading", total=None, rate="-")
    load = loads.add_task("", visible=False)

    def step(done: int, total: int, name: str) -> None:
        bar.update(task, completed=done, total=total, description=inert(name) or "done")
        speed = bar.tasks[0].speed
        bar.update(task, rate="-" if speed is None else f"{speed:.1f}")

    def moved(done: int, total: int, file: str) -> None:
        if loads.tasks[0].completed > done:
            loads.reset(load)  # the speed is of this request
        loads.update(
            load, completed=done, total=total, description=inert(file), visible=done < total
        )

    def tell(text: str) -> None:
        console.print(f"eigenlens: {inert(text)}")

    with Live(Group(bar, loads), console=console, transient=True), watching(Transfers(moved, tell)):
        yield step
