"""A table that never cuts a cell: what is too wide for the terminal goes on in a second table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rich import box
from rich.measure import Measurement
from rich.table import Column, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class WholeTable(Table):
    """A table in the house style whose numbers stay whole.

    Columns that are not to be wrapped keep their width, others wrap between words. Where even so
    the columns do not fit, those that do not are put below, each part after the first column, which
    names the rows. A cell wider than the terminal is folded.
    """

    def __init__(self, title: str | None = None) -> None:
        super().__init__(
            box=box.SIMPLE_HEAD,
            title=title,
            title_justify="left",
            pad_edge=False,
            collapse_padding=True,
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._parts(console, options) if self.columns else ():
            yield from Table.__rich_console__(part, console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> Iterator[WholeTable]:
        """The columns of each part, as wide as they are to be."""
        key, *others = [_Sized.of(column, console, options) for column in self.columns]
        line: list[_Sized] = [key]
        title = self.title
        for column in others:
            if len(line) > 1 and _least([*line, column]) > options.max_width:
                yield self._with(line, title, options.max_width)
                line, title = [key], None
            line.append(column)
        yield self._with(line, title, options.max_width)

    def _with(self, line: list[_Sized], title: object, width: int) -> WholeTable:
        part = WholeTable()
        part.title = title  # type: ignore[assignment]
        part.rows = self.rows
        part.columns = [
            replace(sized.column, _index=i, width=wide, min_width=None, no_wrap=wide >= sized.most)
            for i, (sized, wide) in enumerate(zip(line, _widths(line, width), strict=True))
        ]
        return part


_GAP = 2  # between two columns
_EDGE = 2  # of the whole table


class _Sized:
    """A column, and between which widths it is whole."""

    def __init__(self, column: Column, least: int, most: int) -> None:
        self.column, self.least, self.most = column, least, most

    @classmethod
    def of(cls, column: Column, console: Console, options: ConsoleOptions) -> _Sized:
        wide = options.update(width=10_000)
        cells = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        most = max(cell.maximum for cell in cells)
        return cls(column, most if column.no_wrap else max(c.minimum for c in cells), most)


def _least(line: list[_Sized]) -> int:
    return sum(x.least for x in line) + _GAP * (len(line) - 1) + _EDGE


def _widths(line: list[_Sized], width: int) -> list[int]:
    """The narrower of what a column wants and what is left, least first; none below its least."""
    room = width - _EDGE - _GAP * (len(line) - 1)
    out = [x.least for x in line]
    if sum(out) > room:  # a terminal that is too narrow for one column beside the first
        out = [min(x, max(1, room // len(line))) for x in out]
    spare = room - sum(out)
    for i in sorted(range(len(line)), key=lambda i: line[i].most - line[i].least):
        more = min(line[i].most - out[i], spare) if spare > 0 else 0
        out[i], spare = out[i] + more, spare - more
    return out
