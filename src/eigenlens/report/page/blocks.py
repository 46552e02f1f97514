"""The parts of the page as HTML: summary, sections with their figures, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eigenlens.report.collapse_words import contradiction
from eigenlens.report.page.embed import prose, table, text
from eigenlens.report.page.gather import Material, why_no_tokens
from eigenlens.report.page.sections import Section
from eigenlens.report.page.summary import Answer, regime_runs
from eigenlens.report.page.tables import TABLES, data_table, token_table
from eigenlens.report.panels.figure import REGIME_COLOURS, Columns, Figure, n_rows
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.plots.table import PLOTS
from eigenlens.report.simulate_tables import too_short_sentence
from eigenlens.report.words import count_text, regime_text
from eigenlens.shown.names import by_group
from eigenlens.spectra.result import LayerSpectrum, Spectrum

_LIGHT = ("complex_dominant", "flip", "near_degenerate", "no_consensus")
"""Regimes whose colour takes dark text."""

EMPTY = {
    "eigenvalues": "No layer has an F with a spectrum.",
    "depth": "No layer has an F with a spectrum.",
    "regimes": "No layer has an F with a spectrum.",
    "heads": "The spectrum that was handed over has no heads (per_head=True computes them).",
    "tokens": "The spectrum that was handed over has no tokens (decode=8 reads them).",
    "alignment": "No layer was traced.",
    "collapse": "No layer was traced.",
    "sphere": "No state was captured.",
    "trajectory": "Nothing was simulated.",
}
"""What is said in place of a figure that has nothing to show."""


ONE_LAYER = replace(
    FIGURES["depth"],
    title="Spectrum from the leader down",
    caption="The eigenvalues that were computed, by the key that decides what leads. Above the "
    "dashed line a direction grows; where the leader stands clear of the rest, tokens reach it "
    "quickly.",
    alt="Eigenvalue keys in falling order, the leading one marked.",
)
"""The figure `depth` of a model with one layer, which has no depth to show."""


@dataclass(frozen=True)
class Drawn:
    """A section as HTML, and what its figures are drawn from."""

    html: str
    plots: dict[str, Any]
    columns: dict[str, Columns]
    reason: str | None


def summary(answers: Sequence[Answer], spectrum: Spectrum | None, notes: Sequence[str]) -> str:
    """The first section: a card a question, the layers' regimes, the warnings."""
    cards = []
    for i, answer in enumerate(answers):
        # Five cards: the longest answer has a row of its own, the others stand in pairs.
        size = (" full" if i == 2 else " wide") * (len(answers) == 5)
        size += " full" * (len(answers) == 1)
        kind = f"card{size}{' unknown' * (not answer.known)}"
        cards.append(
            f'<div class="{kind}"><h3>{text(answer.question)}</h3>'
            f'<p class="verdict">{prose(answer.verdict)}</p>'
            f'<p class="detail">{prose(answer.detail)}</p></div>'
        )
    few = " two" if len(answers) in (2, 4) else ""
    parts = [
        '<section id="summary" aria-labelledby="h-summary"><h2 id="h-summary">In short</h2>',
        f'<div class="cards{few}">{"".join(cards)}</div>',
    ]
    if spectrum is not None and len(spectrum.layers) > 1:
        parts.append(_strip(spectrum))
    if notes:
        items = "".join(f"<li>{prose(note)}</li>" for note in notes)
        count = f"{count_text(len(notes), 'note')} on these results"
        parts.append(f'<details class="notes"><summary>{count}</summary><ul>{items}</ul></details>')
    return "".join(parts) + "</section>"


def _strip(spectrum: Spectrum) -> str:
    """Every layer as a coloured field with its number, a row a stack."""
    groups = by_group(spectrum.layers)
    rows = "".join(
        (f"<b>{text(name)}</b>" if len(groups) > 1 else "") + "".join(map(_field, layers))
        for name, layers in groups.items()
    )
    several = " several" * (len(groups) > 1)
    key = "".join(
        f'<li><i style="--c:{REGIME_COLOURS[regime]}"></i>{text(regime_text(regime))}: '
        f"{_layers(where)}</li>"
        for regime, where in regime_runs(spectrum)
    )
    return f'<div class="strip{several}" aria-hidden="true">{rows}</div><ul class="key">{key}</ul>'


def _field(x: LayerSpectrum) -> str:
    light = ' class="light"' if x.regime in _LIGHT else ""
    return (
        f'<span{light} style="--c:{REGIME_COLOURS[x.regime]}" title="layer {x.layer}: '
        f'{text(regime_text(x.regime))}">{x.layer}</span>'
    )


def _layers(where: str) -> str:
    """``layer 3``, ``layers 0-2, 5``; with stacks, these alone."""
    if not where[:1].isdecimal():
        return text(where)
    return f"layer{'s' * (not where.isdecimal())} {text(where)}"


def draw(section: Section, material: Material) -> Drawn:
    """A section: its figures, or the reason why it has none."""
    head = (
        f'<section id="{section.name}" aria-labelledby="h-{section.name}">'
        f'<h2 id="h-{section.name}">{text(section.title)}</h2><p class="lead">'
        f"{text(section.lead)}</p>"
    )
    result = getattr(material, section.needs)
    if result is None:
        reason = material.missing.get(section.needs, "it was not computed")
        note = f'<p class="note">Left out: {prose(reason)}</p>'
        return Drawn(f"{head}{note}</section>", {}, {}, reason)
    figures: list[str] = []
    plots: dict[str, Any] = {}
    found: dict[str, Columns] = {}
    reasons: list[str] = []
    alone = len(section.figures) == 1  # its heading is the section's
    for name in section.figures:
        figure = FIGURES[name]
        data = figure.data(result)
        if n_rows(data) == 0:
            reasons.append(_empty(name, material))
            continue
        if name == "regimes" and len(data["position"]) == 1:
            continue  # one bar says less than the summary
        if name == "depth" and len(set(data["position"])) == 1:
            figure = ONE_LAYER
        found[name] = data
        if name in PLOTS:
            plots[name] = PLOTS[name](data)
        figures.append(_figure(figure, data, name in plots, more(name, material), alone))
    if {"depth", "eigenvalues"} <= plots.keys():  # they stand side by side
        plots["depth"]["layout"]["height"] = plots["eigenvalues"]["layout"]["height"]
    body = ""
    if figures:
        pair = " pair" if len(figures) > 1 else ""
        body = f'<div class="figures{pair}">{"".join(figures)}</div>'
    for reason in dict.fromkeys(reasons):
        body += f'<p class="note">{text(reason)}</p>'
    return Drawn(f"{head}{body}</section>", plots, found, reasons[0] if not figures else None)


def _empty(name: str, material: Material) -> str:
    """Why a figure has nothing to show."""
    found = material.spectrum
    if FIGURES[name].needs == "spectrum" and found is not None:
        if not found.layers:
            return EMPTY["eigenvalues"]
        if name == "heads" and any(x.heads for x in found.layers):
            return "Every head of these layers is 0 or is not square."
        if name == "tokens":
            return _no_tokens(found, material)
    return EMPTY[name]


def _no_tokens(found: Spectrum, material: Material) -> str:
    """Why no leading direction was read in tokens: the first reason that holds."""
    because = "The leading directions cannot be read in tokens: "
    if material.checkpoint is not None:
        reason = why_no_tokens(material.checkpoint)
        if reason:
            return f"{because}{reason}."
    if all(x.target == "kernel" for x in found.layers):
        return f"{because}the kernel leads every layer, so there is no single direction."
    return EMPTY["tokens"]


def more(name: str, material: Material) -> str:
    """What a caption adds for this model."""
    if name == "sphere" and material.states is not None:
        return f"Here {material.states.plane_of}."
    if name == "trajectory" and material.simulate is not None:
        o = material.simulate.options
        starts = f"{count_text(o['starts'], 'start')} of {count_text(o['n_tokens'], 'token')}"
        ffn = "with" if o["ffn"] else "without"
        how = f"Here {starts}, {o['norm']} norm, {o['mask']} mask, {ffn} the feed-forward part."
        return f"{how} {too_short_sentence(material.simulate)}".strip()
    if name in ("alignment", "collapse") and material.trace is not None:
        o = material.trace.options
        tokens = max((x.n_tokens for x in material.trace.layers), default=0)
        prompts = count_text(o["n_prompts"], "prompt")
        against = contradiction(material.trace) if name == "collapse" else ""
        fed = f"Here {prompts} ({o['prompts']}), {count_text(tokens, 'token')}."
        return f"{fed} {against}".strip()
    return ""


def _figure(figure: Figure, data: Columns, plotted: bool, extra: str, alone: bool) -> str:
    heading = "" if alone else f"<h3>{text(figure.title)}</h3>"
    caption = prose(f"{figure.caption} {figure.further(data)}".strip())
    if extra:
        caption += f' <span class="more">{prose(extra)}</span>'
    wide = " full" if figure.name == "regimes" else ""
    parts = [f'<figure class="{figure.name}{wide}" id="figure-{figure.name}">']
    if plotted:
        parts.append(
            f'{heading}<div class="controls"></div>'
            f'<div class="chart" data-plot="{figure.name}" role="img" '
            f'aria-label="{text(f"{figure.title}. {figure.alt}")}"></div>'
        )
    else:
        parts.append(token_table(data))
    parts.append(f"<figcaption>{caption}</figcaption>")
    if plotted and figure.name in TABLES:
        title = f"Numbers of: {figure.title}"
        parts.append(
            f"<details><summary>The numbers</summary>{data_table(figure.name, data, title)}"
            "</details>"
        )
    return "".join(parts) + "</figure>"


def provenance(record: Mapping[str, Any], file: str) -> str:
    """The last section: model, files, options, versions, and the button for the data."""
    facts = {
        "Command": f"<code>{text(record['command'])}</code>",
        "Model": text(_model_line(record["model"])),
        "Seed": text(record["options"]["seed"]),
        "Made on": text(record["made_on"]),
        "Versions": text(", ".join(f"{k} {v}" for k, v in record["versions"].items())),
        "Seconds": text(", ".join(f"{k} {v:.1f}" for k, v in record["seconds"].items()) or "-"),
    }
    items = "".join(f"<dt>{k}</dt><dd>{v}</dd>" for k, v in facts.items())
    rows = [[f["file"], f["bytes"], f["sha256"] or "not taken"] for f in record["files"]]
    files = (
        table(["file", "bytes", "SHA-256"], rows, "Files of the model", kind="data files")
        if rows
        else '<p class="note">The model was not read from local files, so there is no hash.</p>'
    )
    options = "".join(
        f"<details><summary>Options: {text(name)}</summary>"
        + table(["option", "value"], [[k, _option(v)] for k, v in found.items()], f"{name} options")
        + "</details>"
        for name, found in record["parts"].items()
    )
    return (
        '<section id="provenance" aria-labelledby="h-provenance">'
        '<h2 id="h-provenance">Where this comes from</h2>'
        '<p class="lead">What is needed to make this page again, and the numbers behind it.</p>'
        f'<p><button type="button" id="download" data-file="{text(file)}">Download the data '
        f'(JSON)</button></p><dl class="facts-list">{items}</dl>{files}{options}</section>'
    )


def _option(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)


def _model_line(model: Mapping[str, Any]) -> str:
    known = {k: v for k, v in model.items() if v is not None and (k != "edits" or v)}
    return ", ".join(f"{k} {v}" for k, v in known.items())
