"""The plot of every figure that is drawn, and plotly figures of them for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eigenlens.report.panels.figure import Columns
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.plots.library import as_figure
from eigenlens.report.plots.parts import Plot
from eigenlens.report.plots.simulations import trajectory
from eigenlens.report.plots.spectra import depth, eigenvalues, heads, regimes
from eigenlens.report.plots.sphere import sphere
from eigenlens.report.plots.traces import alignment, collapse

PLOTS: dict[str, Callable[[Columns], Plot]] = {
    "eigenvalues": eigenvalues,
    "depth": depth,
    "regimes": regimes,
    "heads": heads,
    "alignment": alignment,
    "collapse": collapse,
    "sphere": sphere,
    "trajectory": trajectory,
}
"""Figures by name; the decoded tokens are a table, not a plot."""


def plotly_figure(name: str, result: Any) -> Any:
    """The plotly figure of a result: what `.plot()` returns in a notebook.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    return as_figure(PLOTS[name](FIGURES[name].data(result)), FIGURES[name].title)
