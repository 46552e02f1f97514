"""The page of a comparison: what moved in short, its figures, a table, the data; one file."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from eigenlens.comparing.result import Comparison
from eigenlens.report.compare_panels import COMPARISONS
from eigenlens.report.compare_plots import COMPARISON_PLOTS
from eigenlens.report.compare_tables import (
    angle_text,
    compare_sentences,
    leader_text,
    only_texts,
    regime_change,
)
from eigenlens.report.page.assemble import assemble
from eigenlens.report.page.blocks import summary
from eigenlens.report.page.embed import plain, table, text
from eigenlens.report.page.private import Veil
from eigenlens.report.page.provenance import today, versions
from eigenlens.report.page.summary import Answer
from eigenlens.report.panels.figure import Figure, n_rows
from eigenlens.report.words import layer_list

SUFFIXES = (".html", ".htm")
"""File formats of the page."""


def compare_page(result: Comparison) -> bytes:
    """The page as UTF-8 text; no outside address, local models by the last part of their path.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    from eigenlens import __version__

    result = _veiled(result)
    found = {name: figure.data(result) for name, figure in COMPARISONS.items()}
    found = {name: data for name, data in found.items() if n_rows(data)}
    body = [summary(_answers(result), None, [*result.warnings, *only_texts(result)])]
    body += [_section(COMPARISONS[name]) for name in found]
    body += [_layers(result), _provenance(result)]
    anchors = {name: COMPARISONS[name].title for name in found}
    anchors |= {"layers": "All layers", "provenance": "Data"}
    nav = "".join(f'<li><a href="#{a}">{text(title)}</a></li>' for a, title in anchors.items())
    names = [str(m["source"]) for m in (result.model, result.other)]
    page = assemble(
        title=f"{names[0]} and {names[1]}",
        facts=f"A {_facts(result.model)}; B {_facts(result.other)}",
        nav=nav,
        body="".join(body),
        data=plain(result.to_dict()),
        plots={name: COMPARISON_PLOTS[name](data) for name, data in found.items()},
        version=__version__,
        date=today(),
    )
    return page.encode("utf-8")


def _veiled(result: Comparison) -> Comparison:
    """The comparison without folders of this machine."""
    labels = [str(m["source"]) for m in (result.model, result.other)]
    veil = Veil([label for label in labels if label.startswith(("/", "~", "."))])
    return replace(
        result,
        model={**result.model, "source": veil.text(labels[0])},
        other={**result.other, "source": veil.text(labels[1])},
        options=veil.record(result.options),
        warnings=tuple(veil.text(w) for w in result.warnings),
        only={side: tuple(veil.record(list(x))) for side, x in result.only.items()},
    )


def _facts(model: dict[str, Any]) -> str:
    kind = f"{model['model_type']}, " if model["model_type"] else ""
    return f"{kind}d {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads"


def _answers(result: Comparison) -> list[Answer]:
    layers, ranking = result.layers, result.ranking
    moved = [x for x in layers if x.difference.is_real]
    first = compare_sentences(result)[0]
    if not moved:
        return [Answer("Did anything move?", "no", first)]
    top = ranking[0]
    rank = f"effective rank {top.difference.effective_rank:.1f} of the difference there"
    out = [
        Answer("Did anything move?", f"{len(moved)} of {len(layers)} layers", first),
        Answer(
            "How far?",
            f"|dF|/|F| up to {result.largest:.3g}",
            f"Most in {top.name}, least in {ranking[-1].name}; {rank}.",
        ),
    ]
    turned = [x for x in layers if x.regime_changed]
    detail = "; ".join(f"{x.name}: {regime_change(x)}" for x in turned[:4])
    verdict = f"in {len(turned)} of {len(layers)} layers" if turned else "no"
    kept = "What leads is of the same kind in every layer."
    out.append(Answer("Did a regime change?", verdict, f"{detail}." if detail else kept))
    angled = [x for x in moved if x.principal_angles]
    if angled:
        widest = max(angled, key=lambda x: x.principal_angles[0])
        wide = [x.layer for x in angled if x.principal_angles[0] > math.radians(5)]
        out.append(
            Answer(
                "Are tokens drawn elsewhere?",
                f"by up to {angle_text(widest)}",
                f"Widest in {widest.name}; more than 5 degrees in {_places(wide)}.",
            )
        )
    return out


def _places(layers: list[int]) -> str:
    if not layers:
        return "no layer"
    return f"layer{'s' * (len(layers) > 1)} {layer_list(layers)}"


def _section(figure: Figure) -> str:
    label = text(f"{figure.title}. {figure.alt}")
    return (
        f'<section id="{figure.name}" aria-labelledby="h-{figure.name}"><h2 id="h-{figure.name}">'
        f'{text(figure.title)}</h2><div class="figures"><figure class="{figure.name}" '
        f'id="figure-{figure.name}"><div class="controls"></div><div class="chart" '
        f'data-plot="{figure.name}" role="img" aria-label="{label}"></div><figcaption>'
        f"{text(figure.caption)}</figcaption></figure></div></section>"
    )


def _layers(result: Comparison) -> str:
    headings = ["layer", "|dF|/|F|", "rank of dF", "leading A", "leading B", "shift", "angle"]
    rows: list[list[Any]] = [
        [
            *(x.name, x.relative, x.difference.effective_rank, leader_text(x.a), leader_text(x.b)),
            None if x.leader is None else x.leader.distance,
            *(angle_text(x), regime_change(x)),
        ]
        for x in result.ranking
    ]
    caption = (
        "One row a layer, by |F_A - F_B| over |F_A| (Frobenius norms); the effective rank is that "
        "of the difference, the shift that of A's leading eigenvalue, the angle the largest "
        "between what A and B draw tokens to"
    )
    return (
        '<section id="layers" aria-labelledby="h-layers"><h2 id="h-layers">All layers</h2>'
        f"{table([*headings, 'regime'], rows, caption)}</section>"
    )


def _provenance(result: Comparison) -> str:
    options = [[k, "-" if v is None else str(v)] for k, v in result.options.items()]
    made = ", ".join(f"{k} {v}" for k, v in versions().items())
    return (
        '<section id="provenance" aria-labelledby="h-provenance">'
        '<h2 id="h-provenance">Where this comes from</h2>'
        '<p><button type="button" id="download" data-file="comparison.json">Download the data '
        f'(JSON)</button></p><dl class="facts-list"><dt>Versions</dt><dd>{text(made)}</dd></dl>'
        f"{table(['option', 'value'], options, 'Options of the comparison')}</section>"
    )
