"""The figure of `eigenlens reproduce`: a row a measurement, its range, coloured by the verdict."""

from __future__ import annotations

import io
from itertools import groupby
from pathlib import Path

from eigenlens.claims.result import Reproduction
from eigenlens.claims.verdicts import VERDICTS
from eigenlens.inert import inert
from eigenlens.report.figures import need_matplotlib

# Okabe and Ito's colours; verdicts differ by their mark as well.
_MARKS = {
    "holds": ("#009E73", "o"),
    "fails": ("#D55E00", "X"),
    "undecided": ("#E69F00", "D"),
    "not run": ("#999999", "|"),
}


def claims_figure(result: Reproduction, path: Path) -> bytes:
    """Every measurement's range on [-1, 1] under its claim, in the suffix's format.

    The range is of layers or starts (of the correlation for the claim on the gap). A measurement
    without a range, as the equal-token identity, stands at 1 where it holds and at 0 where not.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    labels: list[str] = []
    heads: list[int] = []
    drawn: list[tuple[int, str, float, tuple[float, float]]] = []
    for _, group in groupby(result.rows_, key=lambda r: r.claim):
        rows = list(group)
        heads.append(len(labels))
        labels.append(inert(rows[0].statement))
        for row in rows:
            f = row.finding
            point = 1.0 if f.verdict == "holds" else 0.0
            if f.interval is not None:
                point = sum(f.interval) / 2 if f.value is None else f.value
            drawn.append((len(labels), f.verdict, point, f.interval or (point, point)))
            labels.append(inert(row.model.removeprefix("sample:")))
    fig = Figure(figsize=(9.0, 1.0 + 0.24 * len(labels)), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    for y, verdict, point, (low, high) in drawn:
        colour, mark = _MARKS[verdict]
        axes.plot([low, high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([point], [y], mark, color=colour, markersize=5.5)
    for limit, style in ((0.5, ":"), (0.0, "-")):
        axes.axvline(limit, color="0.75", linewidth=0.8, linestyle=style, zorder=0)
    axes.set_yticks(range(len(labels)), [""] * len(labels))
    for y, label in enumerate(labels):
        weight = "bold" if y in heads else "normal"
        axes.text(-1.08, y, label, ha="right", va="center", fontsize=8, fontweight=weight)
    axes.tick_params(length=0, axis="y")
    axes.set_xlim(-1.05, 1.05)
    axes.set_ylim(len(labels) - 0.3, -0.7)
    axes.set_xlabel("share of layers or starts; for the gap: correlation")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    marks = [
        Line2D([], [], color=_MARKS[v][0], marker=_MARKS[v][1], linestyle="", label=v)
        for v in VERDICTS
        if result.counts[v]
    ]
    axes.legend(handles=marks, loc="lower left", fontsize=8, frameon=False, ncols=len(marks))
    out = io.BytesIO()
    kind = path.suffix[1:]
    fixed = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    fig.savefig(out, format=kind, dpi=160, metadata=fixed)
    return out.getvalue()
