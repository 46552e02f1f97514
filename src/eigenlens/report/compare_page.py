"""The page of a comparison: what moved in short, its figures, a table, the data; one file."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

from eigenlens.comparing.result import Comparison
from eigenlens.report.compare_panels import COMPARISONS
from eigenlens.report.compare_plots import COMPARISON_PLOTS
from eigenlens.report.compare_tables import (
    SIZES,
    WIDE,
    angle_text,
    compare_sentences,
    leader_places,
    leader_shift,
    leader_text,
    nowhere_note,
    only_texts,
    regime_change,
    relative_note,
    turns_of,
)
from eigenlens.report.model_words import facts_text
from eigenlens.report.names import Names
from eigenlens.report.page.blocks import summary
from eigenlens.report.page.private import Veil
from eigenlens.report.page.single import data_section, figure_section, one_page, table_section
from eigenlens.report.page.summary import Answer
from eigenlens.report.panels.figure import n_rows

_LEADS = {
    "changes": "F = W_O W_V is what attention writes when all tokens are alike.",
    "moves": "The eigenvalues that decide where tokens go when a layer is iterated, in A and in B.",
}

SUFFIXES = (".html", ".htm")
"""File formats of the page."""


def compare_page(result: Comparison) -> bytes:
    """The page as UTF-8 text; no outside address, local models by the last part of their path.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    result = _veiled(result)
    found = {name: figure.data(result) for name, figure in COMPARISONS.items()}
    found = {name: data for name, data in found.items() if n_rows(data)}
    if not any(found["changes"]["relative_change"]):  # bars of no height, or of no finite one
        found.pop("changes")
    if not any(x.difference.is_real for x in result.layers):
        found.clear()
    body = [summary(_answers(result), None, [*result.warnings, *only_texts(result)])]
    body += [figure_section(COMPARISONS[name], _LEADS[name]) for name in found]
    body += [_layers(result), data_section(result.options, "comparison")]
    anchors = {"summary": "In short"} | {name: COMPARISONS[name].title for name in found}
    anchors |= {"layers": "All layers", "provenance": "Data"}
    names = [str(m["source"]) for m in (result.model, result.other)]
    facts = f"A {facts_text(result.model, *SIZES)}; B {facts_text(result.other, *SIZES)}"
    plots = {name: COMPARISON_PLOTS[name](data) for name, data in found.items()}
    return one_page(f"{names[0]} and {names[1]}", facts, body, anchors, result, plots)


def _veiled(result: Comparison) -> Comparison:
    """The comparison without folders of this machine."""
    labels = [str(m["source"]) for m in (result.model, result.other)]
    local = [x for x in labels if x.startswith(("/", "~", ".")) or os.path.exists(x)]
    veil = Veil(x for x in local if not x.startswith("sample:"))
    return replace(
        result,
        model={**result.model, "source": veil.text(labels[0])},
        other={**result.other, "source": veil.text(labels[1])},
        options=veil.record(result.options),
        warnings=tuple(veil.text(w) for w in result.warnings),
        only={side: tuple(veil.record(list(x))) for side, x in result.only.items()},
    )


def _answers(result: Comparison) -> list[Answer]:
    layers, ranking = result.layers, result.ranking
    names = Names.of(layers)
    moved = [x for x in layers if x.difference.is_real]
    first = compare_sentences(result)[0]
    if not moved:
        return [Answer("Did anything move?", "No", first)]
    top = ranking[0]
    rank = f"has an effective rank of {top.difference.effective_rank:.1f}"
    where = f"The difference {rank}."
    if len(layers) > 1:
        least = names.phrase(ranking[-1])
        where = f"Most in {names.phrase(top)}, where the difference {rank}; least in {least}."
    out = [
        Answer("Did anything move?", f"Yes, {_in(len(moved), len(layers))}", first),
        Answer(
            "How far?",
            _far(result.largest, len(layers)),
            where,
        ),
    ]
    turned = [x for x in layers if x.regime_changed]
    detail = "; ".join(f"{names.phrase(x)}: {regime_change(x)}" for x in turned[:4])
    verdict = f"Yes, {_in(len(turned), len(layers))}" if turned else "No"
    kept = "What leads is of the same kind in every layer."
    out.append(Answer("Did a regime change?", verdict, f"{detail}." if detail else kept))
    angled = turns_of(moved)
    if angled:
        widest = next(iter(angled))
        wide = [x for x in moved if angled.get(x, 0.0) > WIDE]
        out.append(
            Answer(
                "Are tokens drawn elsewhere?",
                f"By {'up to ' * (len(angled) > 1)}{angle_text(widest)}",
                "The angle between what A and B draw tokens to"
                + (f": widest in {names.phrase(widest)}" if len(angled) > 1 else "")
                + f"; more than 5 degrees in {names.phrases(wide) if wide else 'no layer'}.",
            )
        )
    return out


def _in(some: int, total: int) -> str:
    """``in 2 of 3 layers``, ``in all 3 layers``."""
    if total == 1:
        return "in its one layer"
    return f"in all {total} layers" if some == total else f"in {some} of {total} layers"


def _far(relative: float, n_layers: int) -> str:
    if not math.isfinite(relative):
        return "From zero"
    up = "Up to " * (n_layers > 1)
    return f"{up}{100 * relative:.3g} % of |F|" if relative < 1 else f"{up}{relative:.3g} times |F|"


def _layers(result: Comparison) -> str:
    headings = ["layer", "|dF|/|F|", "rank of dF", "leading A", "leading B", "shift", "angle"]
    names, places = Names.of(result.layers), leader_places(result.layers)
    rows: list[list[Any]] = [
        [
            *(names(x), x.relative, x.difference.effective_rank),
            *(leader_text(x.a, places), leader_text(x.b, places), leader_shift(x, places)),
            *(angle_text(x), regime_change(x)),
        ]
        for x in result.ranking
    ]
    caption = (
        "One row a layer, by |F_A - F_B| over |F_A| (Frobenius norms); the effective rank is that "
        "of the difference, the shift that of A's leading eigenvalue ('=' within its error bars, "
        "'*' where another one leads B), the angle the largest between what A and B draw tokens to"
    )
    caption += relative_note(str(row[5]) for row in rows) + nowhere_note(result.layers)
    return table_section("layers", "All layers", [*headings, "regime"], rows, caption)
