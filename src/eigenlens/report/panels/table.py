"""The table of all figures."""

from __future__ import annotations

from eigenlens.report.panels.figure import Figure
from eigenlens.report.panels.simulations import trajectory, what_is_drawn
from eigenlens.report.panels.spectra import eigenvalues, heads, regimes, tokens, what_grows
from eigenlens.report.panels.sphere import sphere
from eigenlens.report.panels.traces import alignment, collapse

_ROWS = (
    Figure(
        "eigenvalues",
        "Eigenvalues in the complex plane",
        "spectrum",
        eigenvalues,
        "Each point is an eigenvalue of a layer's F = W_O W_V. Diamonds lead the layer.",
        "Scatter of eigenvalues, real part across and imaginary part up, with a dashed line where "
        "a direction neither grows nor shrinks; the leading ones are marked by diamonds.",
        what_grows,
    ),
    Figure(
        "depth",
        "Spectrum by depth",
        "spectrum",
        eigenvalues,
        "The eigenvalues of each layer that were computed, of a large layer the leading ones, by "
        "the key that decides what leads; the line joins the leaders. A leader that stands clear "
        "of the cloud below it pulls tokens its way quickly.",
        "Eigenvalue keys of every layer as columns of points over depth, the leaders joined by a "
        "line.",
    ),
    Figure(
        "regimes",
        "Gap and regime by layer",
        "spectrum",
        regimes,
        "How far the leading eigenvalue is ahead of the second, coloured by what that means for "
        "the tokens if the layer were iterated. The strip gives the regime where there is no gap.",
        "Bars of the relative gap of every layer, and a strip of coloured squares that gives the "
        "regime of every layer.",
    ),
    Figure(
        "heads",
        "Heads",
        "spectrum",
        heads,
        "Trace ratio: +1 for a head that copies what it sees, -1 for one that inverts it. "
        "Copying: the same through the vocabulary. Share of leading: the part of the layer's "
        "leading eigenvalue that comes from the head, as a fraction of it (real part; all heads "
        "together: 1).",
        "Map of layers by attention heads, coloured from inverting to copying.",
    ),
    Figure(
        "tokens",
        "Directions in words",
        "spectrum",
        tokens,
        "Tokens at both ends of what the leading direction writes (right eigenvector) and of what "
        "it reads (left eigenvector); turned: the other axis of the plane of a complex pair. A "
        "sign carries no meaning: the two ends may be swapped.",
        "Table of the tokens that the leading direction of every layer writes and reads.",
    ),
    Figure(
        "alignment",
        "Alignment of real tokens, against nulls",
        "trace",
        alignment,
        "Points: what was measured, with the 95 % interval over prompts. Band: the middle 95 % of "
        "random directions. Only the points of rho can be filled, where its corrected p is below "
        ".05: that alone is evidence of tilting. Gamma and gain are not tested and stay open.",
        "Three panels over depth: rho, gamma and gain with intervals, and the band that random "
        "directions give.",
    ),
    Figure(
        "collapse",
        "Collapse of tokens by depth",
        "trace",
        collapse,
        "How alike the tokens are: cosines near 1, residuals near 0 and ranks near 1, all three "
        "together, mean that tokens have become one direction. Cosines count every token alike; "
        "residuals and ranks go by length, so a few long tokens can decide them. Solid: after "
        "attention; dotted: after the whole block, with its feed-forward part. Residuals: the size "
        "of what the tokens do not share over the size of all, by two norms; high/low ratio: the "
        "same over the size of what they share, their mean. Ranks: how many directions the tokens "
        "fill, by singular values (effective rank), by their squares (participation ratio) or by "
        "their squares against the largest (stable rank).",
        "Three panels over depth: mean cosines, residuals without the mean token, and ranks.",
    ),
    Figure(
        "sphere",
        "Tokens on the sphere",
        "states",
        sphere,
        "Real states of the model, block by block, seen in three axes that stay the same: the last "
        "layer's principal plane, or its leading direction, and those that show most of the rest. "
        "Every state is projected onto them and put on the unit sphere; the larger a point, the "
        "more of the state lies in these axes.",
        "Three-dimensional sphere with one point a token; a slider moves them through the layers.",
    ),
    Figure(
        "trajectory",
        "The deep stack, simulated",
        "simulate",
        trajectory,
        "The model's own attention iterated far beyond its depth: behind the last layer comes the "
        "first again. Falling curves: tokens become one direction, or reach the leading one.",
        "Curves on a logarithmic scale over steps.",
        what_is_drawn,
    ),
)

FIGURES: dict[str, Figure] = {figure.name: figure for figure in _ROWS}
"""All figures by name."""
