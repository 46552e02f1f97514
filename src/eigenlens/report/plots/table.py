"""The plot of every figure that is drawn, and plotly figures of them for notebooks."""

from __future__ import annotations

from collections.abc import Callable

from eigenlens.report.panels.figure import Columns
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
