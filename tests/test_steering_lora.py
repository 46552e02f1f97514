"""The adapter's files: small, for one module, named as the running model names it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import NumericsError, OptionError
from eigenlens.live.load import load_model
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.delta import read_delta, write_delta
from eigenlens.steering.lora import write_lora
from steering_models import hashes, logits, opened, random_edit, stored_model

Saved = Callable[..., Path]


def parts(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config = json.loads((folder / "adapter_config.json").read_bytes())
    return config, load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("strength", [3.0, -3.0, 0.0])
@pytest.mark.parametrize(("name", "turned"), [("gpt2", True), ("llama", False)])
def test_factors(saved: Saved, tmp_path: Path, name: str, turned: bool, strength: float) -> None:
    checkpoint = opened(saved(name))
    edit = random_edit(checkpoint, strength=strength)
    written = write_lora(checkpoint, edit, tmp_path / "lora")
    config, tensors = parts(tmp_path / "lora")
    (a,) = (v for k, v in tensors.items() if k.endswith(".lora_A.weight"))
    (b,) = (v for k, v in tensors.items() if k.endswith(".lora_B.weight"))
    assert (config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == (1, 1, turned)
    error = np.abs(b.astype(np.float64) @ a.astype(np.float64) - edit.delta()).max()
    assert error <= 2**-22 * edit.dW_norm
    assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=1e-6)
    assert written.size == sum(p.stat().st_size for p in (tmp_path / "lora").iterdir()) < 4096


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "opt", "albert-groups"])
def test_one_module_alone(saved: Saved, tmp_path: Path, name: str) -> None:
    """PEFT's rule (a whole match of the name) picks one module of the model."""
    checkpoint = opened(saved(name))
    edit = random_edit(checkpoint, layer=0)
    write_lora(checkpoint, edit, tmp_path / "lora")
    config, tensors = parts(tmp_path / "lora")
    model = load_model(str(saved(name)), head=True)
    matched = [n for n, _ in model.named_modules() if re.fullmatch(config["target_modules"], n)]
    assert len(matched) == 1
    assert set(tensors) == {f"base_model.model.{matched[0]}.lora_{x}.weight" for x in "AB"}


def test_names_are_those_of_the_class_not_of_the_files(saved: Saved, tmp_path: Path) -> None:
    """Files of a body without its head's prefix, for a class with a head: as on the hub."""
    body = saved("gpt2", head=False)
    checkpoint = opened(body)
    write_lora(checkpoint, random_edit(checkpoint), tmp_path / "body")
    source = shutil.copytree(body, tmp_path / "source")
    config = json.loads((source / "config.json").read_bytes())
    assert config["architectures"] == ["GPT2Model"]
    config["architectures"] = ["GPT2LMHeadModel"]
    (source / "config.json").write_text(json.dumps(config))
    with_head = opened(source)
    assert with_head.plans[-1].output == "h.1.attn.c_proj.weight"
    write_lora(with_head, random_edit(with_head), tmp_path / "head")
    assert parts(tmp_path / "body")[0]["target_modules"] == r"h\.1\.attn\.c_proj"
    assert parts(tmp_path / "head")[0]["target_modules"] == r"transformer\.h\.1\.attn\.c_proj"


def test_a_live_model_has_an_adapter(tiny: Callable[..., Any], tmp_path: Path) -> None:
    live = open_checkpoint(tiny("llama"))
    write_lora(live, random_edit(live), tmp_path / "lora")
    found = parts(tmp_path / "lora")[0]["target_modules"]
    assert found.replace("\\", "") == "model.layers.1.self_attn.o_proj"


def test_eigenlens_opens_the_adapter_as_a_model(tmp_path: Path) -> None:
    """The folder names its base, so that it is a model to every other command."""
    source = stored_model(tmp_path / "source", "llama")
    checkpoint = opened(source)
    edit = random_edit(checkpoint)
    write_lora(checkpoint, edit, tmp_path / "lora")
    model = load_model(str(source), head=True)
    with edit.applied(model):
        expected = logits(model)
    got = logits(load_model(tmp_path / "lora", head=True))
    assert float((got - expected).abs().max()) < 1e-4
    assert float((got - logits(model)).abs().max()) > 1e-2


def test_a_gguf_is_parsed_once_for_a_steering(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    from eigenlens.errors import SourceError
    from eigenlens.steering import opening
    from test_tensors_gguf_families import write

    model = tiny("llama")
    path = write(tmp_path / "model.gguf", "llama", model)
    parsed: list[str] = []

    def load_tokenizer(*_: Any, **__: Any) -> Any:
        gguf.GGUFReader(str(path))
        raise SourceError("none")

    def load_model(*_: Any, **__: Any) -> Any:
        gguf.GGUFReader(str(path))
        return model

    monkeypatch.setattr(gguf, "GGUFReader", parsed.append)
    monkeypatch.setattr(opening, "load_tokenizer", load_tokenizer)
    monkeypatch.setattr(opening, "load_model", load_model)
    subject = opening.open_subject(path)
    assert subject.session.model is model
    assert parsed == [str(path)]


def test_a_gguf_has_an_adapter_and_a_delta(tiny: Callable[..., Any], tmp_path: Path) -> None:
    """Its names are llama.cpp's, the adapter's those of the model that transformers makes of it."""
    from test_tensors_gguf_families import write

    model = tiny("llama-no-bias")
    checkpoint = opened(write(tmp_path / "model.gguf", "llama", model))
    edit = random_edit(checkpoint)
    write_lora(checkpoint, edit, tmp_path / "lora")
    config = parts(tmp_path / "lora")[0]
    assert config["target_modules"].replace("\\", "") == "model.layers.1.self_attn.o_proj"
    assert Path(config["base_model_name_or_path"]).samefile(tmp_path / "model.gguf")
    write_delta(checkpoint, edit, tmp_path / "x.safetensors")
    with pytest.raises(OptionError, match="GGUF"):
        write_checkpoint(checkpoint, edit, tmp_path / "steered")
    before = open_checkpoint(model).circuits()[-1].W_O
    with read_delta(tmp_path / "x.safetensors").applied(model):
        after = open_checkpoint(model).circuits()[-1].W_O
    assert np.allclose(after - before, edit.delta(), atol=1e-14)
    # This file does not say how wide its feed-forward part is, and transformers assumes a width.
    other = random_edit(checkpoint, site="ffn")
    with pytest.raises(OptionError, match="is not found in LlamaForCausalLM"):
        write_lora(checkpoint, other, tmp_path / "ffn")


def test_what_no_adapter_can_do(saved: Saved, tmp_path: Path) -> None:
    checkpoint = opened(saved("albert"))
    edit = random_edit(checkpoint, steps="last")
    with pytest.raises(OptionError, match="an adapter acts on every call"):
        write_lora(checkpoint, edit, tmp_path / "lora")
    everywhere = replace(edit, steps="all")
    write_lora(checkpoint, everywhere, tmp_path / "lora")
    with pytest.raises(OptionError, match="is there already"):
        write_lora(checkpoint, everywhere, tmp_path / "lora")
    there = hashes(tmp_path / "lora")
    write_lora(checkpoint, replace(everywhere, strength=-1.0), tmp_path / "lora", force=True)
    assert hashes(tmp_path / "lora") != there
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("{}")
    with pytest.raises(OptionError, match=r"holds none of adapter_config\.json"):
        write_lora(checkpoint, everywhere, tmp_path / "other", force=True)


def test_the_model_is_not_replaced_by_its_adapter(saved: Saved, tmp_path: Path) -> None:
    """A model's folder may hold an adapter's config, which --force asks for."""
    model = shutil.copytree(saved("llama"), tmp_path / "a/model")
    (model / "adapter_model.safetensors").write_bytes(b"")
    checkpoint = opened(model)
    for folder in (model, tmp_path / "a"):
        (folder / "adapter_config.json").write_text("{}")
    there = hashes(tmp_path)
    with pytest.raises(OptionError, match="is the model's own folder"):
        write_lora(checkpoint, random_edit(checkpoint), model, force=True)
    with pytest.raises(OptionError, match="or holds it"):
        write_lora(checkpoint, random_edit(checkpoint), tmp_path / "a", force=True)
    assert hashes(tmp_path) == there


@pytest.mark.parametrize("strength", [1e-300, 1e-90, 1e90, -1e300])
def test_an_edit_that_float32_cannot_hold_is_no_adapter(
    saved: Saved, tmp_path: Path, strength: float
) -> None:
    checkpoint = opened(saved("llama"))
    with pytest.raises(NumericsError, match="cannot hold its size"):
        write_lora(checkpoint, random_edit(checkpoint, strength=strength), tmp_path / "lora")
    assert not (tmp_path / "lora").exists()


@pytest.mark.parametrize("kind", ["NonDynamicallyQuantizableLinear", "Bilinear"])
def test_a_module_that_is_no_plain_product_is_refused(
    saved: Saved, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's MultiheadAttention reads its projection's weight past the module, for one."""
    import torch

    import eigenlens.steering.lora as lora_module

    real = lora_module._empty_model
    found = getattr(torch.nn.modules.linear, kind)

    def other(checkpoint: Any) -> Any:
        model = real(checkpoint)
        module = model.get_submodule("model.layers.1.self_attn.o_proj")
        module.__class__ = found
        return model

    monkeypatch.setattr(lora_module, "_empty_model", other)
    checkpoint = opened(saved("llama"))
    with pytest.raises(OptionError, match=f"belongs to a {kind}"):
        write_lora(checkpoint, random_edit(checkpoint), tmp_path / "lora")


def test_a_class_that_transformers_cannot_build(saved: Saved, tmp_path: Path) -> None:
    """A config that its class does not accept."""
    source = shutil.copytree(saved("llama"), tmp_path / "source")
    config = json.loads((source / "config.json").read_bytes())
    config["model_type"] = "internlm3"
    (source / "config.json").write_text(json.dumps(config))
    checkpoint = opened(source)
    with pytest.raises(OptionError, match="transformers cannot build the model's class"):
        write_lora(checkpoint, random_edit(checkpoint), tmp_path / "lora")
