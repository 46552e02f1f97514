"""What a checkpoint's author writes is shown and never acts; sizes out of all proportion."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.cli.boundary import boundary
from eigenlens.cli.reproduce import _tracebacks
from eigenlens.errors import OptionError

D = 8
TOKENS = [
    "=cmd()|' /C calc'!A0",
    "[red]x[/red]",
    "\x1b]0;own\x07",
    "\u202eabc",
    "@SUM(1)",
    "l" * 240,
]
ACTIVE = ("\x1b", "\x07", "\u202e")


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A one-layer BERT whose tokens and folder name are hostile."""
    path = tmp_path / "\x1b[31m[red]model"
    path.mkdir()
    draw = np.random.default_rng(0)
    tensors = {"bert.embeddings.word_embeddings.weight": draw.normal(0, 1, (len(TOKENS), D))}
    at = "bert.encoder.layer.0.attention"
    for part in ("self.value", "output.dense"):
        tensors[f"{at}.{part}.weight"] = draw.normal(0, 0.4, (D, D))
        tensors[f"{at}.{part}.bias"] = draw.normal(0, 0.2, D)
    for part in ("weight", "bias"):
        tensors[f"{at}.output.LayerNorm.{part}"] = np.ones(D)
    save_file({n: a.astype(np.float32) for n, a in tensors.items()}, path / "model.safetensors")
    (path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    configure(path)
    return path


def configure(path: Path, **changes: Any) -> None:
    config = {
        "model_type": "bert",
        "hidden_size": D,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": len(TOKENS),
    }
    (path / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("command", ["spectrum", "inspect"])
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_hostile_tokens_and_places_do_nothing(folder: Path, command: str, form: str) -> None:
    more = ["--decode", "6", "--per-head"] if command == "spectrum" else []
    result = run(command, folder, "--format", form, *more)
    assert result.exit_code == 0, result.stderr
    assert not [c for c in ACTIVE if c in result.stdout + result.stderr]
    assert "[red]model" in result.stdout or (command, form) == ("inspect", "csv")
    if form == "table":
        body = [x for x in result.stdout.splitlines() if not x.startswith(str(folder.parent))]
        assert max(map(len, body)) <= 100
        assert command == "inspect" or "'[red]x[/red]'" in result.stdout
    if form == "csv":
        cells = [cell for row in csv.reader(io.StringIO(result.stdout)) for cell in row]
        assert not [c for c in cells if c.startswith(("=", "@", "\t"))]
    if form == "json" and command == "spectrum":
        tokens = json.loads(result.stdout)["layers"][0]["tokens"]["right"]["positive"]
        assert {t["token"] for t in tokens} >= {"\\x1b]0;own\\x07", "\\u202eabc", "[red]x[/red]"}


def test_the_check_of_this_file_sees_what_acts() -> None:
    assert [c for c in ACTIVE if c in "".join(TOKENS)] == list(ACTIVE)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("size", ["big", -1, True, [8], 1e999, 10**12])
def test_sizes_that_cannot_be(folder: Path, key: str, size: Any, tmp_path: Path) -> None:
    configure(folder, **{key: size})
    result = run("spectrum", folder, "--out", tmp_path / "a.json")
    if key == "vocab_size":  # not needed for a spectrum
        assert result.exit_code in (0, 1)
        return
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "fault of eigenlens" not in result.stderr
    assert not (tmp_path / "a.json").exists()


def test_a_size_beyond_any_index(folder: Path) -> None:
    configure(folder, hidden_size=10**30)
    assert "hidden_size" in run("spectrum", folder).stderr


def test_more_layers_than_the_files_can_hold(folder: Path) -> None:
    configure(folder, num_hidden_layers=10**9)
    result = run("spectrum", folder)
    assert result.exit_code == 1
    assert "num_hidden_layers" in result.stderr


def test_a_negative_seed_is_wrong_usage() -> None:
    assert run("spectrum", "sample:albert-tiny", "--seed", "-1").exit_code == 2


def test_a_negative_seed_from_python() -> None:
    with pytest.raises(OptionError, match="seed is -1"):
        eigenlens.spectrum("sample:albert-tiny", seed=-1)


def test_verification_keeps_transformers_quiet(folder: Path) -> None:
    loud = ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS")
    done = subprocess.run(
        [sys.executable, "-m", "eigenlens", "inspect", folder, "--verify", "--quiet"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={k: v for k, v in os.environ.items() if k not in loud},
    )
    assert done.stderr == ""


def test_an_interrupt_while_modules_load_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import eigenlens.cli
    from eigenlens.cli import app

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        eigenlens.cli.main()
    assert ended.value.code == 130


def test_a_traceback_is_shown_and_never_acts(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of other libraries hold names of the model as they are."""

    def broken() -> None:
        raise ValueError(f"no {TOKENS[2]} in {TOKENS[3]}\nof two lines")

    with pytest.raises(typer.Exit), boundary(debug=True):
        broken()
    told = capsys.readouterr().err
    assert not set(told) & set(ACTIVE)
    assert "ValueError: no \\x1b]0;own\\x07 in \\u202eabc" in told.splitlines()
    assert "    broken()" in told.splitlines()
    with _tracebacks(wanted=True):
        logging.getLogger("eigenlens.claims").debug("no %s", TOKENS[2])
    assert capsys.readouterr().err == "no \\x1b]0;own\\x07\n"
