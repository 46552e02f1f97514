"""What reaches stdout, stderr and the disk when something outside eigenlens goes wrong."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from eigenlens.cli.app import app
from eigenlens.samples import sample_path
from terminals import terminal, written_to

TINY = "sample:albert-tiny"
DEVICE = Path("/dev/full")
full_disk = pytest.mark.skipif(not DEVICE.exists(), reason="needs /dev/full")


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in args])


def process(*args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, "-m", "eigenlens", *(str(a) for a in args)],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
        check=False,
        **options,
    )


def one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


@full_disk
@pytest.mark.parametrize(
    "args", [["--version"], ["--help"], ["spectrum", TINY], ["spectrum", TINY, "--format", "csv"]]
)
def test_a_full_disk_behind_stdout(args: list[str]) -> None:
    with DEVICE.open("w") as full:
        one_line(process(*args, stdout=full), "No space left on device")


def test_a_full_disk_under_the_files(tmp_path: Path) -> None:
    """Neither file is there, the old one is as it was, and nothing temporary is left."""
    values, vectors = tmp_path / "a.csv", tmp_path / "v.npz"
    values.write_text("old")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    files = ("--out", values, "--vectors", vectors, "--no-cache")
    done = process("spectrum", TINY, *files, preexec_fn=limit)
    one_line(done, "cannot write", "File too large")
    assert done.stdout == ""
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    assert values.read_text() == "old"


def test_both_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file is complete when the second fails: the first must not appear."""
    real, opened = os.fdopen, []

    def fdopen(handle: int, *args: Any, **options: Any) -> Any:
        opened.append(handle)
        if len(opened) == 2:
            os.close(handle)
            raise OSError(28, "No space left on device")
        return real(handle, *args, **options)

    files = ["--vectors", tmp_path / "v.npz", "--out", tmp_path / "a.json"]
    args = ["spectrum", TINY, "--no-cache", *files]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", fdopen)
        result = run(*args)
    assert result.exit_code == 1
    assert len(opened) == 2
    assert result.stderr.splitlines() == [
        f"eigenlens: cannot write '{tmp_path / 'a.json'}': No space left on device"
    ]
    assert list(tmp_path.iterdir()) == []
    assert run(*args).exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "v.npz"]


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_a_read_only_target_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    # Root may write everywhere, so what the system would say is put in its mouth.
    path = tmp_path / "a.json"
    if locked == "file":
        path.write_text("old")
    place = path if locked == "file" else tmp_path
    monkeypatch.setattr(os, "access", lambda p, mode: mode != os.W_OK or Path(p) != place)
    monkeypatch.setattr("eigenlens.spectra.analyse.open_checkpoint", None)
    result = run("spectrum", TINY, "--out", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"eigenlens: cannot write '{path}': Permission denied\n"
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"] * (locked == "file")


def test_a_device_is_no_target_and_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "null.json").symlink_to("/dev/null")
    result = run("samples", "--out", tmp_path / "null.json")
    assert result.exit_code == 1
    assert "no ordinary file" in result.stderr
    link, real = tmp_path / "link.json", tmp_path / "real.json"
    link.symlink_to(real)
    assert run("samples", "--out", link).exit_code == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["schema"] == "eigenlens.samples/1"


@pytest.mark.parametrize("form", ["table", "json"])
def test_an_ascii_terminal(form: str) -> None:
    """Data are UTF-8 whatever the locale says; a table loses a sign, not the run."""
    done = process(
        *("spectrum", "sample:gptneo-tiny", "--layers", "3", "--decode", "30", "--format", form),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    if form == "json":
        tokens = json.loads(done.stdout)["layers"][0]["tokens"]["right"]["positive"]
        assert not all(t["token"].isascii() for t in tokens), "shows nothing: all are ASCII"
    else:
        assert "real" in done.stdout


def raising(error: BaseException) -> Callable[..., Any]:
    def compute(*args: Any, **options: Any) -> Any:
        raise error

    return compute


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "eigenlens: interrupted"),
        (MemoryError(), 1, "eigenlens: not enough memory"),
        (np.linalg.LinAlgError("no\nway"), 1, "LinAlgError: no\\nway; this is a fault of eigenl"),
        (PermissionError(13, "Permission denied", "/x\x1b[31m"), 1, "/x\\x1b[31m: Permission"),
    ],
)
def test_errors_from_below(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, code: int, line: str
) -> None:
    monkeypatch.setattr("eigenlens.spectra.analyse.spectrum", raising(error))
    out = tmp_path / "x.json"
    result = run("spectrum", TINY, "--out", out)
    assert (result.exit_code, result.stdout) == (code, "")
    assert len(result.stderr.splitlines()) == 1
    assert line in result.stderr
    assert not out.exists()
    if code == 1:
        shown = run("spectrum", TINY, "--debug")
        assert shown.exit_code == 1
        assert "Traceback" in shown.stderr


def test_messages_and_data_do_not_mix(tmp_path: Path) -> None:
    args = ["spectrum", TINY, "--format", "json", "--out", tmp_path / "a.csv"]
    loud, quiet = run(*args), run(*args, "--quiet")
    assert json.loads(loud.stdout) == json.loads(quiet.stdout)
    assert loud.stderr == f"written: {tmp_path / 'a.csv'}\n"
    assert quiet.stderr == ""


@pytest.mark.parametrize(
    "command", [["samples"], ["inspect", TINY], ["spectrum", TINY, "--layers", "0"]]
)
def test_every_command_takes_the_common_options(tmp_path: Path, command: list[str]) -> None:
    for suffix in ("json", "csv", "parquet"):
        result = run(*command, "--quiet", "--debug", "--out", tmp_path / f"x.{suffix}")
        assert result.exit_code == 0, result.stderr
        assert (result.stdout != "", result.stderr) == (True, "")
        assert (tmp_path / f"x.{suffix}").stat().st_size > 50
    assert len(list(tmp_path.iterdir())) == 3
    for form in ("table", "json", "csv"):
        assert run(*command, "--format", form).stdout
    found = json.loads(run(*command, "--format", "json").stdout)
    assert {"schema", "eigenlens_version", "model", "options", "warnings"} <= set(found)
    assert run(*command[:1], "--version").stdout.startswith("eigenlens ")


def test_stack_and_options_are_told(tmp_path: Path) -> None:
    args = ["spectrum", "sample:bert-tiny", "--stack", "encoder", "--layers", "1,3-3", "-k", "1"]
    found = json.loads(run(*args, "--format", "json").stdout)
    assert [x["layer"] for x in found["layers"]] == [1, 3]
    assert (found["options"]["stack"], found["options"]["layers"]) == ("encoder", [1, 3])


D = 4
WEIGHTS = ("self.value", "output.dense")


def model(folder: Path, value: np.ndarray, heads: int = 1, layers: int = 1) -> Path:
    folder.mkdir()
    tensors = {"embeddings.word_embeddings.weight": np.eye(6, D, dtype=np.float32)}
    for i in range(layers):
        at = f"encoder.layer.{i}.attention"
        for part in WEIGHTS:
            weight = value if part == "self.value" else np.eye(D)
            tensors[f"{at}.{part}.weight"] = weight.astype(np.float32)
            tensors[f"{at}.{part}.bias"] = np.zeros(D, dtype=np.float32)
        for part in ("weight", "bias"):
            tensors[f"{at}.output.LayerNorm.{part}"] = np.ones(D, dtype=np.float32)
    config = {
        "model_type": "bert",
        "hidden_size": D,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_tables_and_json_at_every_scale(tmp_path: Path, size: float) -> None:
    """Numbers far from 1 are neither cut nor shown as zero, and JSON stays strict."""
    turn = size * np.kron(np.diag([1.0, 0.5]), [[0.6, -0.8], [0.8, 0.6]])
    folder = model(tmp_path / ("long-name-" * 12), turn)
    result = run("spectrum", folder, "--per-head")
    assert result.exit_code == 0, result.stderr
    body = [line for line in result.stdout.splitlines() if not line.startswith(str(tmp_path))]
    assert max(map(len, body)) <= 100
    assert "…" not in result.stdout
    assert ("+0.000" in result.stdout or " 0.00 " in result.stdout) == (size == 0)
    found = run("spectrum", folder, "--all", "--per-head", "--format", "json").stdout

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    assert json.loads(found, parse_constant=refuse)["schema"] == "eigenlens.spectrum/1"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_the_models_own_files_are_not_written_over(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(sample_path("bert-tiny"), tmp_path / "model"))
    before = (folder / name).read_bytes()
    option = "--out" if name.endswith("json") else "--vectors"
    result = run("spectrum", folder, option, folder / name)
    assert result.exit_code == 2
    assert "is a file of the model itself" in result.stderr
    assert (folder / name).read_bytes() == before
    assert run("spectrum", folder, "--out", folder / "spectrum.json").exit_code == 0
    assert run("spectrum", folder, "--out", folder / "spectrum.json").exit_code == 0


def test_a_closed_stdout_is_told() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m eigenlens spectrum {TINY} --format json >&-"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["eigenlens: cannot write to stdout: it is closed"]


def on_a_terminal(width: int, *args: str | Path) -> list[str]:
    """The lines that a command writes to a terminal of this width."""
    master, slave = terminal(width)
    command = [sys.executable, "-m", "eigenlens", *(str(a) for a in args)]
    done = subprocess.run(command, stderr=slave, stdout=subprocess.DEVNULL, timeout=60, check=False)
    lines = written_to(master, slave).splitlines()
    assert done.returncode in (1, 2)
    return lines


@pytest.mark.parametrize("width", [50, 72, 200])
def test_an_error_fits_the_terminal_and_is_one_line_elsewhere(tmp_path: Path, width: int) -> None:
    place = tmp_path / "a folder with many words in its name" / "out.txt"
    args = ("samples", "--out", place)
    lines = on_a_terminal(width, *args)
    whole = process(*args).stderr
    assert len(whole.splitlines()) == 1
    assert " ".join(line.strip() for line in lines) == whole.strip()
    assert sum(str(place) in line for line in lines) == 1, "a path that can be copied"
    assert all(len(line) <= width or str(place) in line for line in lines)
    assert len(lines) > 1 or width > len(whole)
    assert lines[0].startswith("eigenlens: ")
    assert all(line.startswith("  ") and line[2] != " " for line in lines[1:])


def test_a_terminal_that_tells_no_width_has_80_columns() -> None:
    lines = on_a_terminal(0, "spectrum", "no-such-model", "--quiet")
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in lines)


def test_wide_signs_take_two_columns() -> None:
    lines = on_a_terminal(40, "unsteer", " ".join(["界面" * 3] * 9))
    columns = [sum(1 + (east_asian_width(sign) in "WF") for sign in line) for line in lines]
    assert max(columns) <= 40
    assert min(columns[:-1]) > 40 - 14, "as many words as fit"


def test_a_folder_for_figures_goes_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    figures, args = tmp_path / "figures", ["spectrum", TINY, "-k", "2", "--figures"]
    for place, there in ((figures, []), (tmp_path, [])):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            result = run(*args, place)
        assert result.exit_code == 1
        assert "No space left on device" in result.stderr
        assert list(tmp_path.iterdir()) == there
    assert run(*args, figures).exit_code == 0
    assert "depth.pdf" in {path.name for path in figures.iterdir()}


def test_a_closed_stderr_costs_nothing_but_what_is_said_there(tmp_path: Path) -> None:
    """What is opened meanwhile must not become the place where messages go, either."""
    out = tmp_path / "r.json"
    command = [sys.executable, "-m", "eigenlens", "trace", "sample:bert-tiny", "--text", "one two"]
    command += ["--no-nulls", "--format", "json", "--out", str(out)]
    line = " ".join(map(shlex.quote, command)) + " 2>&-"
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == json.loads(out.read_text())["schema"]
    wrong = subprocess.run(["sh", "-c", line.replace("bert-tiny", "none")], stdout=-1, check=False)
    assert (wrong.returncode, wrong.stdout) == (1, b"")


@pytest.mark.parametrize(
    "line",
    [
        *(f"samples --format {format}" for format in ("table", "json", "csv")),
        *("--help", "spectrum --help", "survey run --help", "--version"),
    ],
)
def test_a_reader_that_leaves_is_no_error(line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "eigenlens", *line.split()]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
