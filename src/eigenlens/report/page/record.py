"""What the page embeds: the results as strict JSON, with nothing of this machine in it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eigenlens.report.names import left_out_texts
from eigenlens.report.page.blocks import Drawn
from eigenlens.report.page.embed import plain, rounded
from eigenlens.report.page.gather import Material, Options
from eigenlens.report.page.private import Veil
from eigenlens.report.page.provenance import files_of, today, versions
from eigenlens.report.page.sections import SECTIONS, Section
from eigenlens.report.page.summary import Answer

SCHEMA = "eigenlens.report/1"
DIGITS = 10
"""Significant digits of the numbers that the page embeds."""
HEAD_VALUES = 4
"""Leading eigenvalues of a head that it embeds; `eigenlens spectrum` gives all."""


def veil_of(options: Options, material: Material) -> Veil:
    """What hides the folders of this machine: the model's, the prompts', the rules'."""
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


def model_of(material: Material, veil: Veil) -> dict[str, Any]:
    """The model block, by a name that says no folder."""
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


def warnings_of(material: Material, veil: Veil) -> list[str]:
    """What a reader should see: of every result, each once, and the layers left out."""
    found: list[str] = []
    for result in (material.spectrum, material.trace, material.simulate, material.states):
        found += [] if result is None else list(result.warnings)
    if material.spectrum is not None:
        shown = [(x.stack, x.kind) for x in material.spectrum.layers]
        skipped = [(s.stack, s.kind, s.layer, s.reason) for s in material.spectrum.skipped]
        found += left_out_texts(shown, skipped)
    return list(dict.fromkeys(veil.text(w) for w in found))


def record_of(
    chosen: Sequence[Section],
    options: Options,
    material: Material,
    veil: Veil,
    drawn: Mapping[str, Drawn],
    verdicts: Sequence[Answer],
    warnings: Sequence[str],
    model: Mapping[str, Any],
    target: str,
) -> dict[str, Any]:
    """What the page embeds; strict JSON, nothing of this machine in it.

    Of the page's own place it has the file's name, `target`, without the folders before it.
    """
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
                        "steps": options.steps
                        if material.simulate is None
                        else material.simulate.options["steps"],
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
                        "command": _command(chosen, options, model, target),
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


def _command(
    chosen: Sequence[Section],
    options: Options,
    model: Mapping[str, Any],
    target: str,
) -> str:
    parts = ["eigenlens", "report", str(model.get("source") or "MODEL"), "--out", target]
    if len(chosen) < len(SECTIONS):
        parts += ["--sections", ",".join(section.name for section in chosen)]
    usual = Options()
    for name in ("order", "operator", "tie_tolerance", "seed", "steps", "stack", "dtype", "device"):
        value = getattr(options, name)
        if value != getattr(usual, name):
            parts += [f"--{name.replace('_', '-')}", str(value)]
    for text in options.texts or ():
        parts += ["--text", text]
    if options.prompts is not None:
        parts += ["--prompts", Path(options.prompts).name]
    if options.layers is not None:
        parts += ["--layers", ",".join(map(str, options.layers))]
    if isinstance(options.architecture, (str, Path)):
        parts += ["--architecture", Path(options.architecture).name]
    if options.trust_remote_code:
        parts.append("--trust-remote-code")
    return shlex.join(parts)
