"""The page of a survey: its figures, its table, what failed; one file as the report's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eigenlens.report.page.blocks import summary
from eigenlens.report.page.private import Veil
from eigenlens.report.page.single import data_section, figure_section, one_page, table_section
from eigenlens.report.page.summary import Answer
from eigenlens.report.panels.figure import n_rows
from eigenlens.report.survey_panels import SURVEYS
from eigenlens.report.survey_plots import SURVEY_PLOTS
from eigenlens.report.survey_tables import leading_regimes, share_told, survey_sentences
from eigenlens.report.words import count_text, percent, regime_text
from eigenlens.spectra.principal import REGIMES
from eigenlens.surveys.result import STATUSES, ModelSummary, Survey

_LEADS = {
    "survey_scale": "The same question to every checkpoint: what would its layers do, iterated?",
    "survey_gap": "A small gap means that tokens agree fast and align slowly.",
    "survey_steps": "How the layers change while a model learns.",
}


def survey_page(result: Survey) -> bytes:
    """The page as UTF-8 text; no outside address, paths shortened to their last parts.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    result = _veiled(result)
    found = {name: figure.data(result) for name, figure in SURVEYS.items()}
    found = {name: data for name, data in found.items() if n_rows(data)}
    plots = {name: SURVEY_PLOTS[name](data) for name, data in found.items()}
    body = [summary(_answers(result), None, _notes(result))]
    body += [figure_section(SURVEYS[name], _LEADS[name]) for name in found]
    body += [_table(result), data_section(result.options, "survey")]
    anchors = {"summary": "In short"} | {name: SURVEYS[name].title for name in found}
    anchors |= {"checkpoints": "All checkpoints", "provenance": "Data"}
    name = f"Survey {Path(result.folder).name}"
    return one_page(name, _facts(result), body, anchors, result, plots)


def _veiled(result: Survey) -> Survey:
    """The survey without folders of this machine: local models by the last parts of their path."""
    models = _shortened([m.model for m in result.models])
    runs = _shortened([m.series for m in result.models])
    veil = Veil([name for name in models if Path(name).is_absolute()])

    def told(model: ModelSummary) -> ModelSummary:
        return replace(
            model,
            model=models.get(model.model, model.model),
            series=runs.get(model.series, model.series),
            reason=None if model.reason is None else veil.text(model.why),
        )

    return Survey(
        folder=Path(result.folder).name,
        options=veil.record(result.options),
        models=tuple(told(m) for m in result.models),
        run=result.run,
        warnings=tuple(veil.text(w) for w in result.warnings),
    )


def _shortened(names: Sequence[str]) -> dict[str, str]:
    """Paths by their last parts: as few as tell them apart, at most five."""
    paths = {n: n.replace("\\", "/").rstrip("/").split("/") for n in names if _is_path(n)}
    for keep in range(1, 6):
        short = {name: "/".join(parts[-keep:]) for name, parts in paths.items()}
        if len(set(short.values())) == len(short):
            break
    return short


def _is_path(name: str) -> bool:
    """Whether a name looks like a path rather than like ``org/name`` or a sample."""
    return name.startswith(("/", "~", "./", "../")) or name.count("/") > 1 or "\\" in name


def _facts(result: Survey) -> str:
    counts = [sum(m.status == status for m in result.models) for status in STATUSES]
    told = [f"{n} {status}" for n, status in zip(counts, STATUSES, strict=True) if n]
    return f"{count_text(len(result.models), 'checkpoint')}: {', '.join(told) or 'none'}"


def _answers(result: Survey) -> list[Answer]:
    there = [m for m in result.models if m.layers]
    if not there:
        return [Answer("What leads the layers?", "Nothing to show", _facts(result), known=False)]
    first, share, majority = leading_regimes(there)
    told = ", ".join(map(regime_text, first))
    some = share_told(share) + " each" * (len(first) > 1)
    whole, half = math.isclose(share, 1), math.isclose(share, 0.5)
    mostly = f"{'All' if whole else 'Half of them' if half else 'Mostly'} {told}"
    out = [
        Answer(
            "What leads the layers?",
            mostly if majority or (half and len(first) == 1) else f"No majority: {told}, {some}",
            f"{some} of the layers of the average checkpoint: "
            f"{'; '.join(REGIMES[name] for name in first)}.",
        )
    ]
    led = [m for m in there if m.gap is not None]
    if led:
        out.append(_lead(led))
    failed = result.failed
    detail = "; ".join(f"{m.model}: {m.why}" for m in failed[:3]) or "Every checkpoint was read."
    verdict = f"{len(failed)} failed" if failed else "None failed"
    out.append(Answer("Is anything missing?", verdict, detail))
    return out


def _lead(led: Sequence[ModelSummary]) -> Answer:
    asked = "How clear is the lead?"
    weak, strong = (pick(led, key=lambda m: m.gap or 0.0) for pick in (min, max))
    if percent(weak.gap) == percent(strong.gap):
        where = f"In {weak.model}" if len(led) == 1 else f"In each of {len(led)} checkpoints"
        return Answer(asked, f"Median gap {percent(weak.gap)}", f"{where}.")
    spread = f"Median gaps {percent(weak.gap)} to {percent(strong.gap)}"
    return Answer(asked, spread, f"Weakest in {weak.model}, clearest in {strong.model}.")


def _notes(result: Survey) -> list[str]:
    unfinished = [s for s in survey_sentences(result) if s.startswith(("failed:", "not "))]
    return [*result.warnings, *unfinished]


def _table(result: Survey) -> str:
    regimes = [r for r in REGIMES if any(m.regimes.get(r) for m in result.models)]
    headings = ["checkpoint", "type", "d", "layers", *map(regime_text, regimes)]
    headings += ["median gap", "together", "align", "depth exponent"]
    traced = any(m.rho is not None for m in result.models)
    headings += [*["gamma", "gain", "rho"] * traced, "state"]
    rows: list[list[Any]] = []
    for m in result.models:
        row: list[Any] = [m.model, m.model_type, m.d_model, m.layers]
        row += [m.regimes.get(r) for r in regimes]
        row += [m.gap, m.disagreement_rate, m.alignment_rate, m.exponent]
        row += [m.gamma, m.gain, m.rho] * traced
        rows.append([*row, m.status if m.reason is None else f"failed: {m.why}"])
    caption = (
        "One row a checkpoint: shares of its layers by regime, and medians over its layers. "
        "Together: factor a step by which tokens come together; align: factor by which the angle "
        "to what leads shrinks (post-norm); depth exponent: it shrinks as depth to this power "
        "(pre-norm)"
    )
    return table_section("checkpoints", "All checkpoints", headings, rows, caption)
