"""`write_report`: from a model, or finished results, to one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eigenlens.cache import Cache
from eigenlens.dynamics.result import Simulation
from eigenlens.dynamics.simulate import check_steps
from eigenlens.errors import OptionError
from eigenlens.report.model_words import facts_text
from eigenlens.report.page.assemble import assemble, plotly_script
from eigenlens.report.page.blocks import draw, provenance, summary
from eigenlens.report.page.gather import Material, Options, Progress, gather
from eigenlens.report.page.record import model_of, record_of, veil_of, warnings_of
from eigenlens.report.page.sections import Section, choose
from eigenlens.report.page.single import navigation
from eigenlens.report.page.summary import Answer, answers
from eigenlens.report.panels.sphere import States
from eigenlens.report.serialise import check_apart, check_target
from eigenlens.spectra.result import Spectrum
from eigenlens.tracing.result import Trace
from eigenlens.writing import write_atomically

SUFFIXES = (".html", ".htm")
"""File formats of the page."""

_TARGET = "report.html"


@dataclass(frozen=True)
class Report:
    """A finished page.

    Attributes
    ----------
    html
        The page.
    record
        The data that it embeds: strict JSON, paths shortened.
    answers
        The verdicts of the summary.
    missing
        Sections that were asked for and have no figure, with the reason.
    material
        The results, to be used again.
    warnings
        Sentences a reader should see.
    """

    html: str = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    answers: tuple[Answer, ...]
    missing: Mapping[str, str]
    material: Material = field(repr=False)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.report/1``: the data that the page embeds."""
        return self.record

    def rows(self) -> list[dict[str, Any]]:
        """One flat record an answer of the summary."""
        return [
            {"question": a.question, "verdict": a.verdict, "detail": a.detail} for a in self.answers
        ]


def write_report(
    source: Any,
    path: str | Path,
    *,
    sections: Sequence[str] | None = None,
    spectrum: Spectrum | None = None,
    trace: Trace | None = None,
    simulation: Simulation | None = None,
    states: States | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Write the report of a model as one self-contained HTML file.

    Parameters
    ----------
    source
        What `eigenlens.spectrum` and `eigenlens.trace` take; None where all results are given.
    path
        Where to: a file that ends in .html.
    sections
        Names of `SECTIONS`; None for all. What a model or an installation does not allow (no
        torch) is said in the page.
    spectrum, trace, simulation, states
        Results that exist already; they are not computed again.
    cache
        See `eigenlens.spectrum`.
    progress
        Called with (parts done, parts in all, what comes next).
    options
        See `eigenlens.report.page.gather.Options`.

    Returns
    -------
    `Report`, with the page and the results.

    Raises
    ------
    EigenlensError
        The source, an option or the path is not usable, or plotly is missing.
    """
    place = Path(path)
    check_target(place, list(SUFFIXES))
    report = make_report(
        source,
        sections=sections,
        given=Material(spectrum=spectrum, trace=trace, simulate=simulation, states=states),
        cache=cache,
        progress=progress,
        target=place,
        **options,
    )
    write_atomically(place, report.html.encode("utf-8"))
    return report


def make_report(
    source: Any,
    *,
    sections: Sequence[str] | None = None,
    given: Material | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    target: Path | None = None,
    **options: Any,
) -> Report:
    """`write_report` without writing.

    Parameters
    ----------
    source, sections, cache, progress, options
        As `write_report`.
    given
        Results that exist already.
    target
        Where the page will be written: not over the model's own files.

    Raises
    ------
    EigenlensError
        As `write_report`.
    """
    plotly_script()  # what is missing is said before the work is done
    chosen = choose(sections)
    asked = _options(options)
    _check_steps(chosen, asked)
    material = Material() if given is None else replace(given, missing={}, seconds={})
    gather(source, chosen, asked, material, cache=cache, progress=progress)
    checkpoint = material.checkpoint
    if checkpoint is not None:
        check_apart([target], checkpoint.source)
    return _page(chosen, asked, material, target)


def _options(options: Mapping[str, Any]) -> Options:
    known = Options.__dataclass_fields__
    for name in options:
        if name not in known:
            raise OptionError(f"option {name!r} is unknown; use some of {', '.join(known)}")
    return Options(**options)


def _check_steps(chosen: Sequence[Section], options: Options) -> None:
    """A number of steps that cannot be is said before the work, not as a missing part."""
    if options.steps is not None and any(section.needs == "simulate" for section in chosen):
        check_steps(options.steps)


def _page(
    chosen: Sequence[Section], options: Options, material: Material, target: Path | None
) -> Report:
    veil = veil_of(options, material)
    material.missing = {need: _sentence(veil.text(r)) for need, r in material.missing.items()}
    drawn = {section.name: draw(section, material) for section in chosen}
    verdicts = answers(material, [section.needs for section in chosen])
    warnings = warnings_of(material, veil)
    model = model_of(material, veil)
    to = _TARGET if target is None else Path(target).name
    record = record_of(chosen, options, material, veil, drawn, verdicts, warnings, model, to)
    name = str(model.get("source") or "model")
    parts = [summary(verdicts, material.spectrum, warnings)]
    parts += [drawn[section.name].html for section in chosen]
    file = _file_name(name)
    parts.append(provenance({**record, **record["provenance"]}, file))
    html = assemble(
        title=name,
        facts=facts_text(model, "layers", "d", "each head", "norm"),
        nav=_nav(chosen),
        body="\n".join(parts),
        data=record,
        plots={k: v for d in drawn.values() for k, v in d.plots.items()},
        version=record["eigenlens_version"],
        date=record["provenance"]["made_on"],
    )
    missing = {name: d.reason for name, d in drawn.items() if d.reason is not None}
    return Report(html, record, tuple(verdicts), missing, material, tuple(warnings))


def _sentence(reason: str) -> str:
    return reason.strip().rstrip(".")


_NAV = {
    "spectrum": "Spectrum",
    "heads": "Heads",
    "tokens": "Words",
    "alignment": "Alignment",
    "collapse": "Collapse",
    "sphere": "Sphere",
    "simulate": "Deep stack",
}


def _nav(chosen: Sequence[Section]) -> str:
    titles = {"summary": "In short"} | {s.name: _NAV[s.name] for s in chosen}
    return navigation(titles | {"provenance": "Provenance"})


def _file_name(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return f"{kept.strip('-.')[:60] or 'model'}-report.json"
