"""Figures for papers, by matplotlib: one file a topic, all from the data of `report.panels`.

Deterministic: the same data give the same bytes, whatever the user's own matplotlib settings are.
"""

from __future__ import annotations

from eigenlens.report.figures.simulations import simulation_figure
from eigenlens.report.figures.style import SUFFIXES, need_matplotlib

__all__ = ["SUFFIXES", "need_matplotlib", "simulation_figure"]
