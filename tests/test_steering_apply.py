"""Delta files, `eigenlens apply` and `eigenlens unsteer`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from eigenlens.cli.app import app
from eigenlens.cli.choices import WriteForm
from eigenlens.errors import EigenlensError, FormatError, OptionError
from eigenlens.steering.applying import apply
from eigenlens.steering.delta import TEXTS, VECTORS, read_delta, write_delta
from eigenlens.steering.forms import FORMS, Destination
from eigenlens.tensors.safetensors_file import SafetensorsFile
from steering_models import hashes, opened, random_edit

Saved = Callable[..., Path]
HOSTILE = "\x1b[31mred\n=1+1"


@pytest.fixture
def delta(saved: Saved, tmp_path: Path) -> Path:
    checkpoint = opened(saved("llama"))
    edit = replace(random_edit(checkpoint), label=HOSTILE)
    write_delta(checkpoint, edit, tmp_path / "paris.safetensors")
    return tmp_path / "paris.safetensors"


def invoke(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def refused(*args: str | Path, code: int = 1) -> str:
    lines: list[str] = invoke(*args, code=code).stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_delta_comes_back_as_it_was(saved: Saved, delta: Path) -> None:
    edit = replace(random_edit(opened(saved("llama"))), label=HOSTILE)
    back = read_delta(delta)
    assert np.array_equal(back.delta(), edit.delta())
    assert {n: getattr(back, n) for n in TEXTS} == {n: getattr(edit, n) for n in TEXTS}
    assert (back.layer, back.strength) == (edit.layer, edit.strength)
    for name in VECTORS:
        assert np.array_equal(getattr(back, name), getattr(edit, name))
    assert delta.stat().st_size < 4096


def altered(delta: Path, **changes: Any) -> None:
    """The same file with a tensor or a text replaced; None removes it."""
    tensors, metadata = load_file(delta), dict(SafetensorsFile(delta).metadata)
    for name, value in changes.items():
        into: dict[str, Any] = tensors if name in tensors else metadata
        if value is None:
            del into[name]
        else:
            into[name] = value
    save_file(tensors, delta, metadata)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "pt"}, "is no delta of eigenlens"),
        ({"layer": "-1"}, "layer is '-1'"),
        ({"layer": "9" * 30}, "expected a whole number"),
        ({"stack": None}, "does not state stack"),
        ({"site": "mlp"}, "allowed are attention, ffn"),
        ({"w": None}, "has no tensor 'w'"),
        ({"w": np.zeros((2, 2))}, "w has shape"),
        ({"w": np.arange(24)}, "stored as I64, expected floats"),
        ({"alpha": np.array([1.0, 2.0])}, "expected one number"),
        ({"alpha": np.array(np.nan)}, "strength is nan"),
        ({"direction": np.ones(16)}, "expected a unit vector"),
    ],
)
def test_a_damaged_delta(delta: Path, changes: dict[str, Any], words: str) -> None:
    altered(delta, **changes)
    with pytest.raises(FormatError, match=words):
        read_delta(delta)


def test_a_file_that_is_there_is_kept(saved: Saved, tmp_path: Path, delta: Path) -> None:
    checkpoint = opened(saved("llama"))
    edit, there = random_edit(checkpoint), delta.read_bytes()
    with pytest.raises(OptionError, match="is there already"):
        write_delta(checkpoint, edit, delta)
    with pytest.raises(OptionError, match=r"a delta is a \.safetensors file"):
        write_delta(checkpoint, edit, tmp_path / "x.npy")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((saved("llama") / "model.safetensors").read_bytes())
    with pytest.raises(FormatError, match="is no delta"):
        write_delta(checkpoint, edit, weights, force=True)
    assert delta.read_bytes() == there
    write_delta(checkpoint, replace(edit, strength=9.0), delta, force=True)
    assert read_delta(delta).strength == 9.0
    with pytest.raises(EigenlensError, match="cannot write"):
        write_delta(checkpoint, edit, tmp_path / "nowhere" / "x.safetensors")


def test_it_must_fit(saved: Saved, tmp_path: Path, delta: Path) -> None:
    for name, words in (("gpt2", "is for model_type 'llama'"), ("llama-no-bias", "another model")):
        with pytest.raises(EigenlensError, match=words):
            apply(delta, saved(name), tmp_path / "out")
    altered(delta, layer="5")
    with pytest.raises(OptionError, match="has no layer 5 in decoder"):
        apply(delta, saved("llama"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_forms_have_one_list() -> None:
    assert [f.value for f in WriteForm] == list(FORMS)


def test_an_unknown_form_and_links_of_nothing(saved: Saved, tmp_path: Path) -> None:
    checkpoint = opened(saved("llama"))
    with pytest.raises(OptionError, match="nearest: 'lora'"):
        Destination(tmp_path / "x", "lorra").write(checkpoint, random_edit(checkpoint))
    with pytest.raises(OptionError, match="copies no files"):
        Destination(tmp_path / "x", "lora", link=True).write(checkpoint, random_edit(checkpoint))


def test_apply_and_unsteer(saved: Saved, tmp_path: Path, delta: Path) -> None:
    """The commands: a folder that differs in a tensor, said in a table; and back."""
    source = saved("llama")
    out = tmp_path / "steered"
    shown = invoke("apply", delta, source, "--write", out).stdout
    assert "model.layers.1.self_attn.o_proj.weight" in shown.replace("\n", "")
    assert "unsteer" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert hashes(out) != hashes(source)
    assert "is there already" in refused("apply", delta, source, "--write", out, code=2)
    invoke("apply", delta, source, "--write", out, "--force", "--link")
    shown = invoke("unsteer", out).stdout
    assert "No edit is left" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert hashes(out) == hashes(source)
    assert "nothing is to be undone" in refused("unsteer", out)
    assert "no such folder" in refused("unsteer", tmp_path / "nowhere")


def test_json_of_both(saved: Saved, tmp_path: Path, delta: Path) -> None:
    found = json.loads(
        invoke("apply", delta, saved("llama"), "--write", tmp_path / "s", "--format", "json").stdout
    )
    top = ["schema", "eigenlens_version", "model", "options", "warnings"]
    assert list(found)[:5] == top
    assert found["schema"] == "eigenlens.apply/1"
    assert found["edit"]["label"] == "\\x1b[31mred\\n=1+1"
    assert found["realised_ratio"] == pytest.approx(1.0, abs=1e-6)
    undone = json.loads(invoke("unsteer", tmp_path / "s", "--format", "json").stdout)
    assert list(undone)[:5] == top
    assert undone["undone"]["sha256_after"] == found["sha256_after"]
    assert undone["remaining"] == 0


@pytest.mark.parametrize("form", ["lora", "delta"])
def test_other_forms(saved: Saved, tmp_path: Path, delta: Path, form: str) -> None:
    place = tmp_path / ("again.safetensors" if form == "delta" else "adapter")
    shown = invoke("apply", delta, saved("llama"), "--write", place, "--as", form).stdout
    told = {"lora": "LoRA adapter of rank 1", "delta": "holds the edit alone"}[form]
    assert told in " ".join(shown.split())  # where lines break depends on the folder's length
    if form == "delta":
        assert place.read_bytes() == delta.read_bytes()
    else:
        assert (place / "adapter_config.json").is_file()
