"""Every figure that is drawn, and the files of a run: PDF, PNG and the data as CSV beside them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from eigenlens.errors import SourceError
from eigenlens.inert import inert, inert_cell
from eigenlens.report.compare_panels import COMPARISONS
from eigenlens.report.figures import (
    comparisons,
    simulations,
    spectra,
    sphere,
    steerings,
    traces,
)
from eigenlens.report.figures.style import need_matplotlib, saved
from eigenlens.report.panels.figure import Columns, Figure, n_rows
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.steer_panels import STEERINGS

KINDS = ("pdf", "png")
"""Formats of every figure."""

DRAWN: dict[str, Callable[[Columns, str], Any]] = {
    "eigenvalues": spectra.eigenvalues,
    "depth": spectra.depth,
    "regimes": spectra.regimes,
    "heads": spectra.heads,
    "alignment": traces.alignment,
    "collapse": traces.collapse,
    "sphere": sphere.sphere,
    "trajectory": simulations.trajectory,
    "changes": comparisons.changes,
    "moves": comparisons.moves,
    "strengths": steerings.strengths,
}
"""Figures by name; a panel without one (decoded tokens) is a table, of which there is the CSV."""

PANELS: dict[str, Figure] = {**FIGURES, **COMPARISONS, **STEERINGS}
"""The panels of all results."""


def figure_files(results: Mapping[str, Any], folder: Path) -> dict[Path, bytes]:
    """The files of all figures that the results can fill; nothing is written.

    Parameters
    ----------
    results
        By what panels need: ``spectrum``, ``trace``, ``simulate``, ``states``, ``compare``,
        ``steer``.
    folder
        Where the files will be: ``NAME.pdf``, ``NAME.png`` and ``NAME.csv``.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    need_matplotlib()
    source = title_of(results)
    files: dict[Path, bytes] = {}
    for name, panel in PANELS.items():
        if panel.needs not in results:
            continue
        data = panel.data(results[panel.needs])
        if not n_rows(data):
            continue
        if name in DRAWN:
            for kind in KINDS:
                files[folder / f"{name}.{kind}"] = saved(partial(DRAWN[name], data, source), kind)
        files[folder / f"{name}.csv"] = csv_of(data).encode()
    return files


def material_files(material: Any, folder: Path) -> dict[Path, bytes]:
    """`figure_files` of everything that a report was made from.

    Raises
    ------
    EigenlensError
        As `figure_files`.
    """
    names = dict.fromkeys(panel.needs for panel in FIGURES.values())
    found = {name: getattr(material, name) for name in names}
    return figure_files({name: x for name, x in found.items() if x is not None}, folder)


def title_of(results: Mapping[str, Any]) -> str:
    """What stands over every figure: the models' names, of a local path its last part only."""
    for result in results.values():
        model = getattr(result, "model", None)
        if model is not None:
            other = getattr(result, "other", None)
            names = [model, *([other] if other is not None else [])]
            return " and ".join(_short(str(m["source"])) for m in names)
    return ""


def _short(source: str) -> str:
    """A figure is shown to others, whom the folders of this machine do not concern."""
    local = source.count("/") > 1 or source.startswith(("/", "~", "."))
    return Path(source).name if local else source


def csv_of(data: Columns) -> str:
    """Columns as CSV; a cell that a spreadsheet would run as a formula is quoted inert."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(data)
    for row in zip(*data.values(), strict=True):
        writer.writerow([inert_cell(v) if isinstance(v, str) else v for v in row])
    return text.getvalue()


def check_folder(folder: Path) -> None:
    """Refuse a folder for figures before any work is done; one that is not there can be made.

    Raises
    ------
    SourceError
        It is a file, its parent does not exist, or it takes no files.
    MissingDependencyError
        matplotlib is not installed.
    """
    need_matplotlib()
    shown = repr(inert(str(folder)))
    if folder.exists() and not folder.is_dir():
        raise SourceError(f"{shown} is a file; name a folder for the figures")
    place = folder if folder.is_dir() else folder.absolute().parent
    if not place.is_dir():
        raise SourceError(
            f"cannot make {shown}: there is no folder {inert(str(folder.parent))!r}; create it "
            "first"
        )
    if not os.access(place, os.W_OK):
        raise SourceError(f"cannot write to {shown}: Permission denied")
