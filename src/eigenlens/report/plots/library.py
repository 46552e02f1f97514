"""plotly, asked for only where a figure or a page is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from eigenlens.errors import MissingDependencyError
from eigenlens.report.plots.parts import Plot


def need_plotly(module: str, what: str) -> Any:
    """A module of plotly.

    Parameters
    ----------
    module
        Which one.
    what
        What needs it, for the message.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise MissingDependencyError(
            f"{what} needs plotly: pip install 'eigenlens[report]'"
        ) from None


def as_figure(plot: Plot, title: str) -> Any:
    """A plot as a plotly figure, which shows itself in a notebook.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    figure = need_plotly("plotly.graph_objects", "a plot").Figure(plot)
    figure.update_layout(template="plotly_white", title={"text": title})
    return figure
