"""What all figures share: sizes, colours told apart by everybody, texts, and how they are saved."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eigenlens.errors import MissingDependencyError
from eigenlens.inert import inert
from eigenlens.report.panels.figure import COLOURS

SUFFIXES = (".png", ".pdf", ".svg")
"""File formats of a figure."""

WIDTH = 6.9
"""Inches: the text width of a page, two columns of most journals."""

DPI = 200
"""Dots an inch of a PNG."""

REGIME_MARKS = {
    "real_dominant": ("o", ""),
    "complex_dominant": ("s", "///"),
    "flip": ("^", "\\\\\\"),
    "near_degenerate": ("D", "..."),
    "no_consensus": ("x", "xxx"),
}
"""Mark and hatching of a regime, so that colour is never alone in saying it."""

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "0.91",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # letters stay letters, which journals ask for
    "svg.hashsalt": "eigenlens",
    "savefig.dpi": DPI,
}


def need_matplotlib() -> None:
    """Say what is missing before the work is done.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "a figure needs matplotlib: pip install 'eigenlens[report]'"
        ) from None


@contextmanager
def house_style() -> Iterator[None]:
    """The house's settings in place of the user's, which come back afterwards."""
    need_matplotlib()
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        # A name in a script that the font lacks is drawn as boxes; that is not worth a word.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(height: float, width: float = WIDTH) -> Any:
    """An empty figure of this many inches, which no window or global state knows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def saved(draw: Callable[[], Any], kind: str) -> bytes:
    """What `draw` draws, as the bytes of a ``png``, ``pdf`` or ``svg`` file; no date is in them."""
    with house_style():
        figure = draw()
        sink = io.BytesIO()
        metadata: dict[str, Any] = {
            "svg": {"Date": None},
            "pdf": {"CreationDate": None},
            "png": {},
        }[kind]
        figure.savefig(sink, format=kind, metadata=metadata)
    return sink.getvalue()


def plain(text: object) -> str:
    """A text of the model as matplotlib should show it: one line, and ``$`` starts no formula."""
    return inert(str(text)).replace("$", r"\$")


def layer_ticks(axes: Any, places: Sequence[int], labels: Sequence[str], title: str) -> None:
    """A tick a layer, fewer where there are many, so that their labels stay apart."""
    found = dict(zip(places, labels, strict=True))
    longest = max((len(plain(v)) for v in found.values()), default=1)
    most = 31 if longest <= 2 else max(4, 64 // longest)
    step = max(1, -(-len(found) // most))
    shown = sorted(found)[::step]
    axes.set_xticks(shown, [plain(found[p]) for p in shown])
    room = 0.6 + max(0, 4 - len(found)) / 2  # few layers do not make wide bars
    axes.set_xlim(min(found, default=0) - room, max(found, default=0) + room)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(title)


def head(axes: Any, source: str, text: str = "") -> None:
    """The model's name over the figure, and what it shows."""
    axes.set_title(plain(source) + (f": {text}" if text else ""))


def depth_colours() -> Any:
    """The colour map of depth, from the first layer to the last: lightness rises all the way."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    whole = matplotlib.colormaps["viridis"]
    return ListedColormap(whole([i / 255 * 0.92 for i in range(256)]), "depth")


def signed_colours() -> Any:
    """The colour map from -1 over 0 (white) to 1."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [COLOURS["vermilion"], "#FFFFFF", COLOURS["blue"]]
    return LinearSegmentedColormap.from_list("signed", ends)


def legend_above(axes: Any, columns: int, **more: Any) -> None:
    """A legend in rows over the axes, at its right end, clear of the marks."""
    handles, _ = axes.get_legend_handles_labels()
    if handles or "handles" in more:
        found = axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=columns,
            borderaxespad=0.1,
            columnspacing=1.2,
            handletextpad=0.5,
            **more,
        )
        found.set_in_layout(False)  # room above is kept by the title
