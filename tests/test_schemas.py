"""Every JSON that eigenlens writes follows its schema, and the schemas refuse what is wrong."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from safetensors import safe_open
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"[\"`]eigenlens\.([a-z-]+)/1[\"`]")
TEXTS = ("--text", "The function returns a list of all names.", "--text", "Import it at the top.")
GPT2 = "sample:gpt2-tiny"
LIVE = {
    "inspect --verify": ("inspect", GPT2, "--verify"),
    "trace": ("trace", GPT2, *TEXTS, "--layers", "1", "--ladder", "--directions", "200"),
    "trace --dry-run": ("trace", GPT2, *TEXTS, "--dry-run"),
    "trace --no-nulls": ("trace", GPT2, *TEXTS, "--layers", "1", "--no-nulls", "--mode", "free"),
    "simulate": ("simulate", "sample:albert-tiny", "--steps", "20", "--starts", "2"),
    "simulate, a stack": ("simulate", GPT2, "--steps", "8", "--norm", "real"),
    "steer --sweep": ("steer", GPT2, "--token", " return", "--sweep"),
    "reproduce": (
        *("reproduce", "--model", "sample:albert-tiny", "--model", GPT2, "--starts", "2"),
        *("--steps", "20", "--claim", "power-step", "--claim", "consensus", "--claim", "gamma"),
    ),
    "report": ("report", GPT2, *TEXTS, "--steps", "8", "--layers", "1", "--out", "@report.html"),
}
FILES = {
    "spectrum": ("spectrum", GPT2, "-k", "2", "--per-head", "--decode", "1", "--layers", "0,1"),
    "spectrum --all": ("spectrum", "sample:albert-tiny", "--all", "--operator", "folded"),
    "spectrum --dry-run": ("spectrum", GPT2, "--dry-run"),
    "inspect": ("inspect", "sample:llama-tiny"),
    "samples": ("samples",),
    "cache": ("cache",),
    "steer --write": (
        *("steer", GPT2, "--token", " return", "--weights-only", "--strength", "10"),
        *("--write", "@edit.safetensors", "--as", "delta"),
    ),
    "apply": ("apply", "@edit.safetensors", GPT2, "--write", "@edited"),
    "compare": ("compare", GPT2, "@edited", "-k", "2", "--layers", "0,3"),
    "report without torch": (
        *("report", GPT2, "--sections", "spectrum,heads", "--layers", "1"),
        *("--out", "@short.html"),
    ),
    "survey": ("survey", GPT2, "--out", "@survey", "--workers", "1"),
    "survey summary": ("survey", "summary", "@survey"),
}
RUNS = {**FILES, **LIVE, "unsteer": ("unsteer", "@edited")}
"""What is run, in this order; `@` stands for the folder of the run."""

Path_ = tuple[str | int, ...]


def schema_of(name: str) -> dict[str, Any]:
    """A schema as users find it: package data."""
    text = (files("eigenlens") / "data" / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


NAMES = sorted(
    path.name.removesuffix(".json")
    for path in (files("eigenlens") / "data" / "schemas").iterdir()
    if path.name.endswith(".json")
)
VALID = {name: Draft202012Validator(schema_of(name)) for name in NAMES}


def named(document: dict[str, Any]) -> str:
    found = re.fullmatch(r"eigenlens\.([a-z-]+)/1", document.get("schema", document.get("format")))
    assert found is not None
    return found[1]


def faults(document: dict[str, Any], name: str | None = None) -> list[str]:
    return [
        f"{'.'.join(map(str, e.absolute_path))}: {e.message}"
        for e in VALID[name or named(document)].iter_errors(document)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every command once, and the documents that it leaves."""
    folder = tmp_path_factory.mktemp("schemas")
    found: dict[str, dict[str, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EIGENLENS_CACHE", str(folder / "cache"))
        patch.setenv("HF_ASSETS_CACHE", str(folder / "assets"))
        for what, words in RUNS.items():
            args = [word.replace("@", f"{folder}{os.sep}") for word in words]
            if what == "unsteer":
                record = (folder / "edited" / "eigenlens.json").read_text(encoding="utf-8")
                found["eigenlens.json"] = json.loads(record)
                found["eigenlens.undo"] = metadata(folder / "edited" / "eigenlens.undo")
            done = CliRunner().invoke(app, [*args, "--format", "json", "--quiet"])
            assert done.exit_code == 0, f"{what}: {done.stderr}"
            found[what] = json.loads(done.stdout)
        vectors = str(folder / "v.safetensors")
        args = ["spectrum", GPT2, "-k", "1", "--layers", "1", "--vectors", vectors, "--quiet"]
        assert CliRunner().invoke(app, args).exit_code == 0
    found["v.safetensors"] = metadata(folder / "v.safetensors")
    found["edit.safetensors"] = metadata(folder / "edit.safetensors")
    found["_survey.json"] = json.loads((folder / "survey" / "_survey.json").read_text())
    simulated = eigenlens.simulate(F=np.diag([1.0, 0.5, 0.2]), steps=20)
    found["simulate, matrices"] = simulated.to_dict()
    return found


def metadata(path: Path) -> dict[str, Any]:
    with safe_open(str(path), "np") as file:
        return dict(file.metadata())


def test_there_is_one_schema_for_every_name_in_the_code() -> None:
    in_code = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in NAME.findall(path.read_text(encoding="utf-8"))
    }
    assert in_code == set(NAMES)
    assert len(in_code) > 15


def test_the_files_are_what_the_tool_writes() -> None:
    tool = [sys.executable, str(ROOT / "tools" / "write_schemas.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_are_schemas_with_every_key_explained(name: str) -> None:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"eigenlens.{name}/1"
    assert schema["additionalProperties"] is False
    for key, value in schema["properties"].items():
        assert len(value["description"]) > 3, key


def test_every_output_follows_its_schema(written: dict[str, dict[str, Any]]) -> None:
    assert {what: faults(document) for what, document in written.items()} == {
        what: [] for what in written
    }
    assert {named(document) for document in written.values()} == set(NAMES)


def test_numbers_that_are_not_finite_are_null_and_follow_the_schema() -> None:
    from eigenlens.report.serialise import to_json

    F = np.diag([0.0, 0.0, 0.0, 0.0])
    found = eigenlens.spectrum((F, F))
    document = json.loads(to_json(found))
    assert document["layers"][0]["relative_residuals"][0] is None
    assert faults(document) == []


def parts(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """A document's parts by path; of a list the first two, which stand for the others."""
    yield path, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from parts(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value[:2]):
            yield from parts(part, (*path, i))


def changed(document: Any, path: Path_, change: Any) -> Any:
    """The document with one part changed, the rest shared."""
    if not path:
        return change(document)
    out = copy.copy(document)
    out[path[0]] = changed(document[path[0]], path[1:], change)
    return out


OPEN = {"details", "parts"}
"""Objects of a report and of a claim that hold further numbers, and the options of its parts."""
NAMED = {"seconds"}
"""Objects whose keys are names of something, so that one more is no mistake."""


def is_open(path: Path_) -> bool:
    return any(key in OPEN for key in path)


def test_a_missing_key_is_refused(written: dict[str, dict[str, Any]]) -> None:
    for what, document in written.items():
        for key in document:
            less = {k: v for k, v in document.items() if k != key}
            assert faults(less, named(document)), f"{what}: without {key}"


def test_a_key_too_many_is_refused(written: dict[str, dict[str, Any]]) -> None:
    places = 0
    for what, document in written.items():
        for path, part in parts(document):
            if isinstance(part, dict) and not is_open(path) and not NAMED & set(path):
                more = changed(document, path, lambda x: {**x, "surprise": 1})
                assert not VALID[named(document)].is_valid(more), f"{what}: {path}"
                places += 1
    assert places > 150


def test_a_text_for_a_number_and_a_number_for_a_text_are_refused(
    written: dict[str, dict[str, Any]],
) -> None:
    places = 0
    for what, document in written.items():
        for path, part in parts(document):
            if is_open(path) or part is None or isinstance(part, (dict, list)):
                continue
            wrong = 1.5 if isinstance(part, str) else "a text"
            if path[-1] in ("strength", "radius", "token"):
                wrong = [wrong]
            bad = changed(document, path, lambda x, wrong=wrong: wrong)
            assert not VALID[named(document)].is_valid(bad), f"{what}: {path}"
            places += 1
    assert places > 500


def test_other_mistakes_are_refused(written: dict[str, dict[str, Any]]) -> None:
    spectrum = written["spectrum"]
    assert faults(changed(spectrum, ("layers", 0, "regime"), lambda x: "real dominant"))
    assert faults(changed(spectrum, ("layers", 0, "eigenvalues", 0), lambda x: x[:1]))
    assert faults(changed(spectrum, ("schema",), lambda x: "eigenlens.spectrum/2"), "spectrum")
    assert faults(changed(spectrum, ("layers", 0, "steps"), lambda x: -1))
    trace = written["trace"]
    assert faults(changed(trace, ("layers", 0, "rho"), lambda x: 1.5))
    assert faults(changed(trace, ("layers", 0, "nulls"), lambda x: {}))
    page = written["report"]
    assert faults(changed(page, ("trace", "layers", 0, "rho"), lambda x: 1.5))
    assert faults(changed(page, ("spectrum",), lambda x: {}))
