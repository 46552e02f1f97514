"""The type of a figure's row in the table, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eigenlens.report.names import Names

Columns = dict[str, list[Any]]
"""Tidy data: equally long lists of plain Python values, one row a mark of the figure."""

COLOURS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#8A8F98",
}
"""The palette of Okabe and Ito (2008), told apart by colour-blind readers, and a grey."""

GUIDE = COLOURS["grey"]
"""Colour of lines that help the eye."""

REGIME_COLOURS = {
    "real_dominant": COLOURS["blue"],
    "complex_dominant": COLOURS["purple"],
    "flip": COLOURS["orange"],
    "near_degenerate": COLOURS["green"],
    "no_consensus": COLOURS["grey"],
}
"""One colour a regime, the same in every figure."""


@dataclass(frozen=True)
class Figure:
    """One figure: what it shows, not how it is drawn.

    Attributes
    ----------
    name
        Stable name: of files, of page anchors, of the plot functions.
    title
        Heading in plain words.
    needs
        The result that `data` takes: ``spectrum``, ``trace``, ``simulate`` or ``states``.
    data
        That result to columns; empty columns where it has nothing to show.
    caption
        How to read it, in plain words.
    alt
        What a reader who does not see it should know is there.
    further
        What the caption adds for some columns only; empty where nothing.
    """

    name: str
    title: str
    needs: str
    data: Callable[[Any], Columns]
    caption: str
    alt: str
    further: Callable[[Columns], str] = lambda data: ""


def empty(*names: str) -> Columns:
    """Columns without rows."""
    return {name: [] for name in names}


def columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Columns:
    """Rows as columns."""
    out = empty(*names)
    for row in rows:
        for name, value in zip(names, row, strict=True):
            out[name].append(value)
    return out


def n_rows(data: Columns) -> int:
    """Rows of the data."""
    return len(next(iter(data.values()), []))


def labels_of(places: list[tuple[str, str, int]]) -> dict[tuple[str, str, int], str]:
    """A label a layer, as `eigenlens.report.names` has it; `places` are (stack, kind, layer)."""
    names = Names((stack, kind) for stack, kind, _ in places)
    return {place: names.name(*place) for place in places}


def where(data: Columns, **wanted: Any) -> list[int]:
    """Rows whose columns have these values."""
    length = len(next(iter(data.values()), []))
    return [i for i in range(length) if all(data[k][i] == v for k, v in wanted.items())]


def take(values: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    """Some rows of a column."""
    return [values[i] for i in rows]
