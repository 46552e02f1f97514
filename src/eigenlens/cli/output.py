"""Groups of options that say where results go, checked before anything is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from eigenlens.cli.boundary import emit, progress_bar, warn
from eigenlens.cli.groups import Group
from eigenlens.cli.options import (
    DebugOption,
    FormatOption,
    QuietOption,
    VersionOption,
    path_option,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eigenlens.report.serialise import Result


def table(room: str, name: str, *of: Any) -> Callable[[], RenderableType]:
    """The view `name` of a room of `eigenlens.report`, imported when a table is printed."""
    return lambda: getattr(import_module(f"eigenlens.report.{room}"), name)(*of)


@dataclass(frozen=True)
class Output(Group):
    """What a command says of its result, in which form, and how much besides."""

    format: FormatOption = None
    out: Annotated[
        Path | None,
        path_option("--out", "FILE", "Also write the result to FILE: .json, .csv or .parquet."),
    ] = None
    quiet: QuietOption = False
    debug: DebugOption = False
    version: VersionOption = False

    @property
    def file(self) -> Path | None:
        """Where the result is written besides stdout."""
        return self.out

    def check(self) -> None:
        """Refuse an `--out` that cannot be written.

        Raises
        ------
        EigenlensError
            As `eigenlens.report.serialise.check_target`.
        """
        from eigenlens.report.serialise import SUFFIXES, check_target

        if self.file is not None:
            check_target(self.file, list(SUFFIXES))

    def progress(
        self, unit: str | None = None
    ) -> AbstractContextManager[Callable[[int, int, str], None] | None]:
        """As `eigenlens.cli.boundary.progress_bar`."""
        return progress_bar(self.quiet, unit)

    def warn(self, warnings: Iterable[str]) -> None:
        """Print warnings to stderr, one a line, unless `--quiet`."""
        warn(list(warnings), self.quiet)

    def emit(
        self,
        result: Result,
        view: Callable[[], RenderableType],
        files: Mapping[Path, bytes] | None = None,
    ) -> None:
        """Write the result, with `files` or not at all, and print it.

        Raises
        ------
        EigenlensError
            As `eigenlens.cli.boundary.emit`.
        """
        emit(result, view, self.format, self.file, files=files, quiet=self.quiet)


@dataclass(frozen=True)
class ProductOutput(Output):
    """Where `--out` is for what the command makes, and the result is told on stdout alone."""

    @property
    def file(self) -> None:
        """None: nothing is written besides stdout."""
        return None


@dataclass(frozen=True)
class Figures(Group):
    """A folder for the figures of a result."""

    figures: Annotated[
        Path | None,
        path_option(
            "--figures",
            "DIR",
            "Also draw the figures into DIR, as PDF and PNG with the data as CSV beside them.",
        ),
    ] = None

    def check(self) -> None:
        """Refuse a folder that cannot take figures.

        Raises
        ------
        EigenlensError
            As `eigenlens.report.figures.table.check_folder`.
        """
        if self.figures is not None:
            from eigenlens.report.figures.table import check_folder

            check_folder(self.figures)

    def files(self, **results: Any) -> dict[Path, bytes]:
        """The figures of results, which are named by their kind; none without `--figures`."""
        if self.figures is None:
            return {}
        from eigenlens.report.figures.table import figure_files

        return figure_files(results, self.figures)


@dataclass(frozen=True)
class MadeFile(Group, ABC):
    """One more file that a command makes of its result; the path is the group's one option."""

    @property
    def path(self) -> Path | None:
        """Where the file goes, if it was asked for."""
        (path,) = self.asked().values()
        return None if path is None else Path(path)

    @abstractmethod
    def suffixes(self) -> Collection[str]:
        """The endings that the path may have."""

    @abstractmethod
    def content(self, result: Any, path: Path) -> bytes:
        """The file, in the format of the path's ending."""

    def need(self) -> None:
        """Refuse where a library is missing that makes the file."""

    def check(self) -> None:
        """Refuse a file that cannot be written or made.

        Raises
        ------
        EigenlensError
            As `eigenlens.report.serialise.check_target`; or a library is missing.
        """
        if self.path is not None:
            from eigenlens.report.serialise import check_target

            check_target(self.path, list(self.suffixes()))
            self.need()

    def files(self, result: Any) -> dict[Path, bytes]:
        """The file of a result; none if it was not asked for."""
        return {} if self.path is None else {self.path: self.content(result, self.path)}


@dataclass(frozen=True)
class Figure(MadeFile):
    """One picture of a result."""

    def suffixes(self) -> Collection[str]:
        """The formats that figures are drawn in."""
        from eigenlens.report.figures import SUFFIXES

        return SUFFIXES

    def need(self) -> None:
        """A figure needs matplotlib."""
        from eigenlens.report.figures import need_matplotlib

        need_matplotlib()


def record(schema: str, **parts: Any) -> dict[str, Any]:
    """The JSON form of a list of what is there, which is of no model."""
    from eigenlens import __version__

    return {
        "schema": schema,
        "eigenlens_version": __version__,
        "model": None,
        "options": {},
        "warnings": [],
        **parts,
    }
