"""The command line: formats, files, exit codes, and what a run imports."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from eigenlens import __version__, open_checkpoint
from eigenlens.cli.app import app
from eigenlens.cli.boundary import exit_code
from eigenlens.errors import OptionError, UnreachableError

ALBERT = "sample:albert-tiny-rotating"
TOP = {"schema", "eigenlens_version", "model", "options", "warnings", "layers", "skipped"}
MODEL = {
    *("source", "model_type", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim"),
    *("norm", "placement"),
}
LAYER = {
    *("stack", "layer", "kind", "steps", "rank", "order", "operator", "output_scale"),
    *("eigenvalues", "residuals", "conditions", "error_bars", "regime", "target", "gap", "angle"),
    *("angle_unit", "steps_to_separate", "spectral_norm", "frobenius_norm", "solver", "henrici"),
    *("negative_fraction", "heads", "tokens"),
}
HEAVY = ("torch", "transformers", "pandas")


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def refuse(name: str) -> Any:
    raise AssertionError(f"JSON holds {name}")


def record(*args: str | Path) -> dict[str, Any]:
    text = run("spectrum", *args, "--format", "json").stdout
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_json_has_the_fields_of_the_interface() -> None:
    found = record(ALBERT, "--per-head", "--decode", "3")
    assert set(found) >= TOP
    assert set(found["model"]) >= MODEL
    layer = found["layers"][0]
    assert set(layer) >= LAYER
    assert (found["schema"], layer["steps"]) == ("eigenlens.spectrum/1", 12)
    assert len(layer["heads"]) == 4
    assert {"eigenvalues", "ov_trace_ratio", "copying_score", "share"} <= set(layer["heads"][0])
    for side in ("right", "left"):
        assert len(layer["tokens"][side]["positive"]) == 3
        assert len(layer["tokens"][side]["negative"]) == 3


def test_csv_and_json_agree() -> None:
    rows = list(csv.DictReader(io.StringIO(run("spectrum", ALBERT, "--format", "csv").stdout)))
    values = record(ALBERT)["layers"][0]["eigenvalues"]
    assert [[float(r["re"]), float(r["im"])] for r in rows] == values
    assert len(values) >= 8


def test_out_files(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for suffix in ("json", "csv", "parquet"):
        result = run("spectrum", ALBERT, "--out", tmp_path / f"x.{suffix}")
        assert result.stdout == run("spectrum", ALBERT).stdout  # the table is also printed
        assert "written" in result.stderr
    text = (tmp_path / "x.json").read_text()
    values = json.loads(text, parse_constant=refuse)["layers"][0]["eigenvalues"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert [float(r["re"]) for r in rows] == [v[0] for v in values]
    assert pq.read_table(tmp_path / "x.parquet")["re"].to_pylist() == [v[0] for v in values]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_vectors_are_eigenvectors(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"v.{suffix}"
    run("spectrum", ALBERT, "--vectors", path, "--quiet")
    if suffix == "npz":
        with np.load(path) as file:
            found = dict(file)
    else:
        raw = load_file(path)
        names = {name.rsplit(".", 1)[0] for name in raw}
        found = {n: raw[f"{n}.real"] + 1j * raw[f"{n}.imag"] for n in names}
    stem = next(n for n in found if n.endswith(".right")).removesuffix(".right")
    values, right, left = (found[f"{stem}.{part}"] for part in ("eigenvalues", "right", "left"))
    F = open_checkpoint(ALBERT).circuits()[0].dense()
    assert right.shape == left.shape == (128, len(values))
    tolerance = 1e-11 * np.linalg.norm(F, 2)
    assert np.abs(F @ right - right * values).max() < tolerance
    assert np.abs(left.conj().T @ F - values[:, None] * left.conj().T).max() < tolerance
    assert np.abs(F @ right - right * values[::-1]).max() > tolerance


def test_layers_all_quiet_and_version() -> None:
    found = record("sample:llama-tiny", "--layers", "0,2-4", "-k", "2")
    assert [x["layer"] for x in found["layers"]] == [0, 2, 3, 4]
    full = record(ALBERT, "--all")["layers"][0]
    assert len(full["eigenvalues"]) == 128
    assert full["henrici"] is not None
    assert run("spectrum", ALBERT, "--quiet").stderr == ""
    assert run("--version").stdout == f"eigenlens {__version__}\n"
    assert run("spectrum", "--version").stdout == f"eigenlens {__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        ["spectrum"],
        ["nothing"],
        ["spectrum", ALBERT, "--order", "size"],
        ["spectrum", ALBERT, "--layers", "3-1"],
        ["spectrum", ALBERT, "--format", "xml"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    assert run(*args, code=2).stdout == ""


@pytest.mark.parametrize("option", ["--order", "--dtype"])
def test_a_refused_choice_is_told_in_no_words_of_a_library(option: str) -> None:
    told = run("spectrum", ALBERT, option, "foo", code=2).stderr
    assert f"'{option}': 'foo' is not one of" in told


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["spectrum", "sample:gpt2-tiny", "-k", "0"], 2),
        (["spectrum", "sample:gpt2-tiny", "--layers", "9"], 2),
        (["spectrum", "sample:gpt2-tiny", "--order", "none"], 2),
        (["spectrum", "sample:gpt2-tiny", "--out", "a.txt"], 2),
        (["spectrum", "sample:none"], 1),
        (["spectrum", "sample:gpt2-tiny", "--out", "no-such-folder/a.json"], 1),
    ],
)
def test_an_option_that_has_to_change_is_wrong_usage(args: list[str], code: int) -> None:
    """Whoever notices it: the parser, the library, or the model that has no such layer."""
    assert run(*args, code=code).stdout == ""


def test_what_no_value_reaches_is_no_wrong_usage() -> None:
    assert exit_code(OptionError("k is 0")) == 2
    assert exit_code(UnreachableError("no strength gives it")) == 1


def test_a_traceback_only_with_debug() -> None:
    assert len(run("spectrum", "sample:none", code=1).stderr.splitlines()) == 1
    shown = CliRunner().invoke(app, ["spectrum", "sample:none", "--debug"])
    assert shown.exit_code == 1
    assert "Traceback" in shown.stderr


@pytest.mark.parametrize(
    "args",
    [
        [ALBERT, "--per-head", "--decode", "3"],
        ["sample:bert-tiny", "--layers", "0,3", "--per-head", "--decode", "3"],
        ["sample:smollm2", "--layers", "2,27", "--decode", "8"],
        ["sample:smollm2", "--layers", "20", "--per-head"],
    ],
)
def test_tables_fit_100_columns(args: list[str]) -> None:
    text = run("spectrum", *args).stdout
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "…" not in text


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "banned"),
    [
        (["--help"], (*HEAVY, "scipy", "numpy")),
        (["--version"], (*HEAVY, "scipy", "numpy")),
        (["spectrum", "sample:gpt2-tiny", "--layers", "0"], HEAVY),
    ],
)
def test_what_a_command_imports(args: list[str], banned: tuple[str, ...]) -> None:
    loaded = python(
        f"import sys\nsys.argv[1:] = {args!r}\nfrom eigenlens.cli import main\n"
        "try:\n main()\nexcept SystemExit:\n print('\\n' + ' '.join(sys.modules))"
    ).split()
    assert "eigenlens.cli.app" in loaded
    assert not set(banned) & set(loaded)


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_reader_that_leaves_early(form: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "eigenlens", "spectrum", ALBERT, "--format", form],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert done.stderr == ""
