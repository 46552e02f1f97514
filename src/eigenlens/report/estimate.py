"""The table of ``eigenlens spectrum --dry-run``: what a run would read, hold and take."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.names import bare_names
from eigenlens.report.tables import plain_table
from eigenlens.spectra.estimate import Estimate, LayerCost


def estimate_view(result: Estimate) -> RenderableType:
    """Equal layers in one row, and a sentence with the totals."""
    columns = [("layers", "left"), ("d", "right"), ("solved", "right"), ("solver", "left")]
    columns += [("read a layer", "right"), ("memory a layer", "right")]
    table = plain_table(columns)
    shown = dict(zip(result.layers, bare_names([x.name for x in result.layers]), strict=True))
    for _, same in groupby(result.layers, key=_kind):
        run = list(same)
        first, last = run[0], run[-1]
        name = shown[first]
        name += "" if len(run) == 1 else f" to {shown[last]} ({len(run)})"
        size = f"{first.solved} x {first.solved}"
        table.add_row(
            *(Text(inert(name)), str(first.d), size, first.solver),
            *(bytes_text(first.read_bytes), bytes_text(first.memory_bytes)),
        )
    source = inert(str(result.model["source"]))
    sentence = (
        f"{source}: in all {bytes_text(result.read_bytes)} to read (or to fetch), at most "
        f"{bytes_text(result.memory_bytes)} of memory, about {seconds_text(result.seconds)} "
        "once the bytes are on a local disk. Nothing was read but the config and the headers."
    )
    return Group(table, Text(sentence))


def _kind(cost: LayerCost) -> tuple[object, ...]:
    return cost.d, cost.solved, cost.solver, cost.read_bytes, cost.memory_bytes


def bytes_text(size: float) -> str:
    """A number of bytes in three digits.

    Examples
    --------
    >>> bytes_text(150994944), bytes_text(2.5e9)
    ('151 MB', '2.5 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return (
                f"{size / unit:.3g} {name}" if size < 999.5 * unit else f"{size / unit:.0f} {name}"
            )
    return f"{size:.0f} B"


def seconds_text(seconds: float) -> str:
    """A time in words: seconds up to two minutes, then minutes, then hours.

    Examples
    --------
    >>> seconds_text(0.31), seconds_text(600.0), seconds_text(9000.0)
    ('0.3 s', '10 min', '2.5 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
