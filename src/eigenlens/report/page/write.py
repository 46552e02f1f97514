"""`write_report`: from a model, or finished results, to one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eigenlens.cache import Cache
from eigenlens.dynamics.result import Simulation
from eigenlens.dynamics.simulate import check_steps
from eigenlens.errors import OptionError
from eigenlens.report.page.assemble import assemble, plotly_script
from eigenlens.report.page.blocks import Drawn, draw, provenance, summary
from eigenlens.report.page.embed import plain, rounded, text
from eigenlens.report.page.gather import Material, Options, Progress, gather
from eigenlens.report.page.private import Veil
from eigenlens.report.page.provenance import files_of, today, versions
from eigenlens.report.page.sections import SECTIONS, Section, choose
from eigenlens.report.page.summary import Answer, answers
from eigenlens.report.panels.sphere import States
from eigenlens.report.serialise import check_apart, check_target
from eigenlens.spectra.result import Spectrum
from eigenlens.tracing.result import Trace
from eigenlens.writing import write_atomically

SCHEMA = "eigenlens.report/1"
SUFFIXES = (".html", ".htm")
DIGITS = 10
"""Significant digits of the numbers that the page embeds."""
HEAD_VALUES = 4
"""Leading eigenvalues of a head that it embeds; `eigenlens spectrum` gives all."""


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
        spectrum=spectrum,
        trace=trace,
        simulation=simulation,
        states=states,
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
    spectrum: Spectrum | None = None,
    trace: Trace | None = None,
    simulation: Simulation | None = None,
    states: States | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    target: Path | None = None,
    **options: Any,
) -> Report:
    """`write_report` without writing.

    Raises
    ------
    EigenlensError
        As `write_report`.
    """
    plotly_script()  # what is missing is said before the work is done
    chosen = choose(sections)
    asked = _options(options)
    _check_steps(chosen, asked)
    material = Material(spectrum=spectrum, trace=trace, simulate=simulation, states=states)
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
    if any(section.needs == "simulate" for section in chosen):
        check_steps(options.steps)


def _page(
    chosen: Sequence[Section], options: Options, material: Material, target: Path | None
) -> Report:
    veil = _veil(options, material)
    material.missing = {need: _sentence(veil.text(r)) for need, r in material.missing.items()}
    drawn = {section.name: draw(section, material) for section in chosen}
    verdicts = answers(material, [section.needs for section in chosen])
    warnings = _warnings(material, veil)
    model = _model(material, veil)
    record = _record(chosen, options, material, veil, drawn, verdicts, warnings, model)
    name = str(model.get("source") or "model")
    parts = [summary(verdicts, material.spectrum, warnings)]
    parts += [drawn[section.name].html for section in chosen]
    file = _file_name(name)
    parts.append(provenance({**record, **record["provenance"]}, file))
    html = assemble(
        title=name,
        facts=_facts(model),
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


def _veil(options: Options, material: Material) -> Veil:
    checkpoint = material.checkpoint
    paths: list[str | Path] = []
    if checkpoint is not None and checkpoint.source is not None:
        folder = checkpoint.source.folder
        if folder is not None:
            paths.append(folder)
            label = checkpoint.source_label
            if not label.startswith("sample:"):
                paths.append(label)
    if options.prompts is not None:
        paths.append(options.prompts)
    if isinstance(options.architecture, (str, Path)):
        paths.append(options.architecture)
    return Veil(paths)


def _model(material: Material, veil: Veil) -> dict[str, Any]:
    for result in (material.spectrum, material.trace, material.simulate):
        if result is not None:
            model = dict(result.model)
            label = str(model.get("source") or "model")
            local = material.checkpoint is not None and (
                material.checkpoint.source is not None
                and material.checkpoint.source.folder is not None
            )
            if local and not label.startswith("sample:"):
                label = Path(label.rstrip("/\\")).name or label
            model["source"] = veil.text(label)
            return dict(plain(model))
    return {}


def _warnings(material: Material, veil: Veil) -> list[str]:
    found: list[str] = []
    for result in (material.spectrum, material.trace, material.simulate, material.states):
        found += [] if result is None else list(result.warnings)
    if material.spectrum is not None:
        found += [
            f"{s.stack} layer {s.layer} left out: {s.reason}" for s in material.spectrum.skipped
        ]
    return list(dict.fromkeys(veil.text(w) for w in found))


def _record(
    chosen: Sequence[Section],
    options: Options,
    material: Material,
    veil: Veil,
    drawn: Mapping[str, Drawn],
    verdicts: Sequence[Answer],
    warnings: Sequence[str],
    model: Mapping[str, Any],
) -> dict[str, Any]:
    """What the page embeds; strict JSON, nothing of this machine in it."""
    from eigenlens import __version__

    results = {
        name: None if found is None else _result(found.to_dict(), veil, model)
        for name, found in (
            ("spectrum", material.spectrum),
            ("trace", material.trace),
            ("simulate", material.simulate),
        )
    }
    return dict(
        rounded(
            plain(
                {
                    "schema": SCHEMA,
                    "eigenlens_version": __version__,
                    "model": dict(model),
                    "options": {
                        "sections": [section.name for section in chosen],
                        "seed": options.seed,
                        "steps": options.steps,
                    },
                    "warnings": list(warnings),
                    "summary": [
                        {"question": a.question, "verdict": a.verdict, "detail": a.detail}
                        for a in verdicts
                    ],
                    "missing": {n: d.reason for n, d in drawn.items() if d.reason is not None},
                    **results,
                    "sphere": _sphere(drawn),
                    "provenance": {
                        "command": _command(chosen, options, model),
                        "made_on": today(),
                        "files": files_of(material.checkpoint),
                        "versions": versions(),
                        "seconds": {k: round(v, 2) for k, v in material.seconds.items()},
                        "parts": {
                            name: veil.record(found["options"])
                            for name, found in results.items()
                            if found is not None
                        },
                    },
                }
            ),
            DIGITS,
        )
    )


def _sphere(drawn: Mapping[str, Drawn]) -> dict[str, Any] | None:
    """The columns of the sphere, the prompts' texts once instead of on every row."""
    found = drawn["sphere"].columns.get("sphere") if "sphere" in drawn else None
    if found is None:
        return None
    texts = dict(zip(found["prompt"], found["text"], strict=True))
    rest = {name: column for name, column in found.items() if name not in ("text", "unit")}
    return {**rest, "prompts": [texts[p] for p in sorted(texts)]}


def _result(record: dict[str, Any], veil: Veil, model: Mapping[str, Any]) -> dict[str, Any]:
    """A result's record with what may hold a path shortened; tokens stay what they are."""
    out = dict(record)
    for name in ("options", "warnings", "skipped"):
        if name in out:
            out[name] = veil.record(out[name])
    out["model"] = {**out["model"], "source": model.get("source")}
    for layer in out.get("layers", []):
        for name in ("residuals", "relative_residuals", "conditions", "error_bars"):
            if layer.get(name):
                layer[name] = rounded(layer[name], 3)  # sizes of errors
        for head in layer.get("heads") or []:
            head["eigenvalues"] = head["eigenvalues"][:HEAD_VALUES]
    return out


def _command(chosen: Sequence[Section], options: Options, model: Mapping[str, Any]) -> str:
    parts = ["eigenlens", "report", str(model.get("source") or "MODEL"), "--out", "report.html"]
    if len(chosen) < len(SECTIONS):
        parts += ["--sections", ",".join(section.name for section in chosen)]
    usual = Options()
    for name in ("order", "operator", "tie_tolerance", "seed", "steps", "stack", "dtype"):
        value = getattr(options, name)
        if value != getattr(usual, name):
            parts += [f"--{name.replace('_', '-')}", str(value)]
    if options.prompts is not None:
        parts += ["--prompts", Path(options.prompts).name]
    if options.layers is not None:
        parts += ["--layers", ",".join(map(str, options.layers))]
    return shlex.join(parts)


def _facts(model: Mapping[str, Any]) -> str:
    """``bert, 6 layers, d 384, 12 heads of 32, post-norm (layernorm)``."""
    parts = [str(model["model_type"])] if model.get("model_type") else []
    n = model.get("n_layers")
    parts += [f"{n} layer{'s' * (n != 1)}"] if n else []
    parts += [f"d {model['d_model']}"] if model.get("d_model") else []
    if model.get("n_heads"):
        kv = model.get("n_kv_heads")
        groups = "" if kv in (None, model["n_heads"]) else f" ({kv} for values)"
        size = f" of {model['head_dim']}" if model.get("head_dim") else ""
        parts.append(f"{model['n_heads']} heads{groups}{size}")
    if model.get("placement"):
        norm = f" ({model['norm']})" if model.get("norm") else ""
        parts.append(f"{model['placement']}-norm{norm}")
    return ", ".join(parts)


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
    names = [("summary", "In short")]
    names += [(section.name, _NAV[section.name]) for section in chosen]
    names.append(("provenance", "Provenance"))
    return "".join(f'<li><a href="#{name}">{text(word)}</a></li>' for name, word in names)


def _file_name(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return f"{kept.strip('-.')[:60] or 'model'}-report.json"
