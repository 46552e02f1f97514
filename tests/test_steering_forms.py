"""In memory, as a checkpoint that is loaded again, as an adapter: the same model, all but a tensor.

The first two agree to the bit in the stored dtype; an adapter is added in another order, so it
agrees to rounding.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import eigenlens.steering.checkpoint as checkpoint_module
from eigenlens.errors import OptionError
from eigenlens.live.load import load_model
from eigenlens.samples import sample_path
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.forms import FORMS, Destination
from eigenlens.steering.lora import write_lora
from families import BY_NAME
from steering_models import (
    FAMILIES,
    changed_tensors,
    hashes,
    logits,
    opened,
    random_edit,
    stored_model,
)

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
SITES = ("attention", "ffn")
# Every family in float32, GPT-2 and Llama in bfloat16 too; the rest of the grid when there is time.
CASES: list[Any] = [(name, "float32", SITES[i % 2]) for i, name in enumerate(FAMILIES)]
CASES += [("gpt2", "bfloat16", "attention"), ("llama", "float16", "ffn")]
CASES += [
    pytest.param(name, dtype, site, marks=pytest.mark.slow)
    for name in FAMILIES
    for dtype in EPSILON
    for site in SITES
    if (name, dtype, site) not in CASES
]


def adapted(model: Any, folder: Path) -> Any:
    """A model with an adapter merged by PEFT, which must find every key."""
    import peft

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        warnings.filterwarnings("error", message=".*adapter.*")
        return peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


@pytest.mark.parametrize(("name", "dtype", "site"), CASES)
def test_three_forms_are_one_model(tmp_path: Path, name: str, dtype: str, site: str) -> None:
    source = stored_model(tmp_path / "source", name, dtype)
    checkpoint = opened(source)
    edit = random_edit(checkpoint, site=site, strength=1.0)
    written = write_checkpoint(checkpoint, edit, tmp_path / "steered")
    write_lora(checkpoint, edit, tmp_path / "lora")

    model = load_model(str(source), dtype, head=True)
    unedited = logits(model)
    with edit.applied(model):
        preview = logits(model)
    again = load_model(str(tmp_path / "steered"), dtype, head=True)
    reloaded = logits(again)
    merged_model = adapted(load_model(str(source), dtype, head=True), tmp_path / "lora")
    merged = logits(merged_model)

    assert torch.equal(preview, reloaded)
    assert float((preview - unedited).abs().max()) > 0.01
    # The factors are float32, whatever the model is; PEFT rounds the product before the sum.
    noise = max(EPSILON[dtype], EPSILON["float32"])
    here = again.get_parameter(live_name(again, written.tensor))
    there = merged_model.get_parameter(live_name(merged_model, written.tensor))
    bound = 2 * noise * (here.double().abs() + edit.dW_norm)
    assert bool(((here.double() - there.double()).abs() <= bound).all())
    spread = float(unedited.double().abs().max())
    assert float((merged - preview).double().abs().max()) < 64 * noise * spread
    assert changed_tensors(
        source / "model.safetensors", tmp_path / "steered/model.safetensors"
    ) == [written.tensor]


def live_name(model: Any, stored: str) -> str:
    """A stored tensor's name in the running model (the head's class may lack a prefix)."""
    names = [n for n, _ in model.named_parameters() if n == stored or n.endswith(f".{stored}")]
    assert len(names) == 1, (stored, names)
    return names[0]


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "albert-tiny"])
@pytest.mark.parametrize("site", SITES)
def test_bundled_models(tmp_path: Path, name: str, site: str) -> None:
    """Trained weights in float16: preview, reloaded and adapter agree in float16."""
    source = sample_path(name)
    checkpoint = opened(source)
    edit = random_edit(checkpoint, site=site)
    written = write_checkpoint(checkpoint, edit, tmp_path / "steered")
    write_lora(checkpoint, edit, tmp_path / "lora")
    model = load_model(str(source), "float32", head=True)
    unedited = logits(model)
    with edit.applied(model):
        preview = logits(model)
    assert torch.equal(logits(model), unedited)
    reloaded = logits(load_model(str(tmp_path / "steered"), "float32", head=True))
    merged = logits(adapted(load_model(str(source), "float32", head=True), tmp_path / "lora"))
    spread = float(unedited.abs().max())
    assert float((reloaded - preview).abs().max()) < 4 * EPSILON["float16"] * spread
    assert float((merged - preview).abs().max()) < 64 * EPSILON["float32"] * spread
    assert float((preview - unedited).abs().max()) > 0.1
    assert written.projection == pytest.approx(1.0, abs=1e-4)
    before, after = hashes(source), hashes(tmp_path / "steered")
    assert {n for n in after if after[n] != before.get(n)} == {
        *("model.safetensors", "eigenlens.json", "eigenlens.undo", "CARD.md", "card.json")
    }
    assert written.noted == ("CARD.md", "card.json")
    assert changed_tensors(
        source / "model.safetensors", tmp_path / "steered/model.safetensors"
    ) == [written.tensor]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize(
    ("name", "layer"), [("albert", 0), ("albert-groups", 2), ("albert-groups", 1)]
)
def test_the_last_step_alone(tmp_path: Path, name: str, layer: int, site: str) -> None:
    """Untied, the model is the same at strength 0, and the previewed one with the edit."""
    source = stored_model(tmp_path / "source", name)
    checkpoint = opened(source)
    nothing = random_edit(checkpoint, site=site, steps="last", layer=layer, strength=0.0)
    edit = random_edit(checkpoint, site=site, steps="last", layer=layer)
    same = write_checkpoint(checkpoint, nothing, tmp_path / "untied")
    write_checkpoint(checkpoint, edit, tmp_path / "steered")
    model = load_model(str(source), "float32", head=True)
    unedited = logits(model)
    with edit.applied(model):
        preview = logits(model)
    assert torch.equal(logits(load_model(str(tmp_path / "untied"), head=True)), unedited)
    reloaded = logits(load_model(str(tmp_path / "steered"), head=True))
    assert torch.equal(reloaded, preview)
    assert not torch.equal(preview, unedited)
    assert any("num_hidden_groups" in w for w in same.warnings)
    untied = opened(tmp_path / "untied")
    assert {plan.steps for plan in untied.plans} == {1}
    assert len(untied.plans) == BY_NAME[name].config().num_hidden_layers * (
        BY_NAME[name].config().inner_group_num
    )


def test_a_step_too_early_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of the last step's two forms tells one step from another."""
    source = stored_model(tmp_path / "source", "albert-groups")
    checkpoint = opened(source)
    edit = random_edit(checkpoint, steps="last", layer=0)
    real = checkpoint_module.untie

    def early(*args: Any) -> Any:
        from dataclasses import replace

        found = real(*args)
        names = next(v for v in found.copies.values() if found.tensor in v)
        return replace(found, tensor=names[-2])

    monkeypatch.setattr(checkpoint_module, "untie", early)
    write_checkpoint(checkpoint, edit, tmp_path / "steered")
    model = load_model(str(source), "float32", head=True)
    with edit.applied(model):
        preview = logits(model)
    reloaded = logits(load_model(str(tmp_path / "steered"), head=True))
    assert not torch.allclose(reloaded, preview, atol=1e-4)


def test_an_adapter_that_is_turned_is_seen(tmp_path: Path) -> None:
    """GPT-2's square c_proj with fan_in_fan_out missing has the right shape and is wrong."""
    source = stored_model(tmp_path / "source", "gpt2")
    checkpoint = opened(source)
    edit = random_edit(checkpoint)
    write_lora(checkpoint, edit, tmp_path / "lora")
    config = tmp_path / "lora/adapter_config.json"
    model = load_model(str(source), head=True)
    with edit.applied(model):
        preview = logits(model)
    right = logits(adapted(load_model(str(source), head=True), tmp_path / "lora"))
    assert torch.allclose(right, preview, atol=1e-4)
    tensors = tmp_path / "lora/adapter_model.safetensors"
    from safetensors.numpy import load_file, save_file

    found = load_file(tensors)
    a, b = sorted(found)
    save_file({a: found[b].T.copy(), b: found[a].T.copy()}, tensors, {"format": "pt"})
    wrong = logits(adapted(load_model(str(source), head=True), tmp_path / "lora"))
    assert not torch.allclose(wrong, preview, atol=1e-2)
    assert '"fan_in_fan_out": true' in config.read_text()


@pytest.mark.parametrize("form", FORMS)
def test_a_place_below_a_closed_folder_is_refused(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in it cannot even be looked for."""
    closed = tmp_path / "closed"
    closed.mkdir()
    real, access = os.stat, os.access

    def stat(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith(f"{closed}{os.sep}"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)

    def allowed(path: Any, *args: Any, **options: Any) -> bool:
        return not str(path).startswith(str(closed)) and access(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", allowed)
    name = "x.safetensors" if form == "delta" else "x"
    checkpoint = opened(stored_model(tmp_path / "source", "gpt2"))
    for place in (closed / name, closed / "inner" / name):
        with pytest.raises(OptionError, match="closed"):
            Destination(place, form).check(checkpoint)
