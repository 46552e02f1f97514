"""An edit in a running model: what it adds, where, and that nothing of it stays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import eigenlens.steering.applied as applied_module
import eigenlens.steering.target as target_module
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import ArchitectureError, NumericsError, OptionError, ShapeError
from eigenlens.live.session import session_of
from eigenlens.steering.edit import Edit
from eigenlens.steering.feedforward import FEED_FORWARD, feed_forward
from eigenlens.steering.target import find_target, locate
from families import BY_NAME
from steering_models import FAMILIES, by_hook, logits, random_edit

Tiny = Callable[..., Any]


def copy_of(tiny: Tiny, name: str) -> Any:
    return copy.deepcopy(tiny(name))


def bits(model: Any) -> dict[str, tuple[int, bytes]]:
    """Place and content of every parameter."""
    return {n: (p.data_ptr(), p.detach().numpy().tobytes()) for n, p in model.named_parameters()}


def the_edit(**changes: Any) -> Edit:
    u = np.array([0.6, 0.8])
    fields: dict[str, Any] = {
        "model": "m",
        "model_type": "llama",
        "stack": "decoder",
        "layer": 0,
        "kind": "self",
        "site": "attention",
        "steps": "all",
        "probe": "eigen",
        "direction": u,
        "written": 2 * u,
        "w": np.array([1.0, 2.0, 2.0]),
        "strength": -0.5,
        "label": "x",
    }
    return Edit(**{**fields, **changes})


def test_the_edit_is_its_product() -> None:
    edit = the_edit()
    expected = -0.5 * np.array([[1.2, 2.4, 2.4], [1.6, 3.2, 3.2]])
    assert np.allclose(edit.delta(), expected, atol=1e-15)
    assert edit.dW_norm == pytest.approx(np.linalg.norm(expected), rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"site": "mlp"}, OptionError, "allowed are attention, ffn"),
        ({"steps": "first"}, OptionError, "allowed are all, last"),
        ({"w": np.array([np.nan, 1.0])}, NumericsError, "w holds NaN"),
        ({"w": np.ones((2, 2))}, ShapeError, r"w has shape \(2, 2\)"),
        ({"w": np.ones(0)}, ShapeError, r"w has shape \(0,\)"),
        ({"direction": np.array([1.0, 1.0])}, NumericsError, "length 1.41421"),
        ({"written": np.ones(3)}, ShapeError, "both are vectors of the residual stream"),
        ({"strength": float("inf")}, NumericsError, "strength is inf"),
    ],
)
def test_what_is_no_edit_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        the_edit(**changes)


def module_of(model: Any, edit: Edit) -> str:
    return find_target(open_checkpoint(model), edit).tensor.removesuffix(".weight")


@pytest.mark.parametrize("site", ["attention", "ffn"])
@pytest.mark.parametrize("name", FAMILIES)
def test_in_memory_as_the_formula_says(tiny: Tiny, name: str, site: str) -> None:
    """Whatever the layout, a token receives ``strength written (w.z)`` after the projection."""
    model = copy_of(tiny, name)
    edit = random_edit(open_checkpoint(model), site=site)
    before, unedited = bits(model), logits(model)
    with by_hook(model, edit, module_of(model, edit)):
        expected = logits(model)
    with edit.applied(model) as realised:
        got = logits(model)
    scale = float(unedited.abs().max())
    assert float((expected - unedited).abs().max()) > 1e-4 * scale
    assert float((got - expected).abs().max()) < 1e-11 * scale
    assert realised.ratio == pytest.approx(1.0, abs=1e-12)
    assert bits(model) == before
    assert torch.equal(logits(model), unedited)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_turned_matrix_is_seen(tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle above tells the two orientations apart, though both shapes are square."""
    model = copy_of(tiny, "gpt2" if name == "gpt2" else "llama-no-bias")
    edit = random_edit(open_checkpoint(model))
    with by_hook(model, edit, module_of(model, edit)):
        expected = logits(model)
    real = target_module.read_output
    other = {"linear": "conv1d", "conv1d": "linear"}
    monkeypatch.setattr(target_module, "read_output", lambda o, a: real(other[o], a))
    with edit.applied(model):
        assert float((logits(model) - expected).abs().max()) > 1e-6


@pytest.mark.parametrize("site", ["attention", "ffn"])
@pytest.mark.parametrize("name", ["albert", "albert-groups"])
def test_the_last_call_alone(tiny: Tiny, name: str, site: str) -> None:
    model = copy_of(tiny, name)
    checkpoint = open_checkpoint(model)
    edit = random_edit(checkpoint, site=site, steps="last")
    steps = find_target(checkpoint, edit).plan.steps
    assert steps > 1
    before, unedited = bits(model), logits(model)
    with by_hook(model, edit, module_of(model, edit), last_of=steps):
        expected = logits(model)
    with edit.applied(model):
        got, again = logits(model), logits(model)
        assert bits(model) == before  # between passes the model is as it was
    everywhere = replace(edit, steps="all")
    with everywhere.applied(model):
        all_steps = logits(model)
    scale = float(unedited.abs().max())
    assert float((got - expected).abs().max()) < 1e-12 * scale
    assert torch.equal(got, again)
    assert float((all_steps - expected).abs().max()) > 1e-4 * scale
    assert torch.equal(logits(model), unedited)
    assert not model.base_model._forward_hooks
    assert not model.base_model._forward_pre_hooks


@pytest.mark.parametrize("at", [1, 2])
def test_a_pass_that_breaks_off_does_not_shift_the_last_call(tiny: Tiny, at: int) -> None:
    """Neither in the first call, nor in the last, when the edited weight is in its place."""
    model = copy_of(tiny, "albert")
    edit = random_edit(open_checkpoint(model), steps="last")
    before, calls = bits(model), [0]

    def fail(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise KeyError(at)

    with edit.applied(model):
        whole = logits(model)
        late = model.get_submodule(module_of(model, edit))
        handle = late.register_forward_hook(fail)
        with pytest.raises(KeyError):
            logits(model)
        handle.remove()
        assert bits(model) == before
        assert torch.equal(logits(model), whole)
    assert bits(model) == before


def test_a_layer_that_runs_another_number_of_times_is_told(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where modules share weights but not calls (Zamba), the last call would silently be missed."""
    real = applied_module._LastCall
    monkeypatch.setattr(
        applied_module, "_LastCall", lambda a, b, c, steps: real(a, b, c, steps + 1)
    )
    model = copy_of(tiny, "albert")
    edit = random_edit(open_checkpoint(model), steps="last")
    before = bits(model)
    with (
        edit.applied(model),
        pytest.raises(ArchitectureError, match="ran 2 times in a pass, not 3"),
    ):
        logits(model)
    assert bits(model) == before


def test_the_layer_called_alone_is_unedited_when_its_last_call_is_meant(tiny: Tiny) -> None:
    model = copy_of(tiny, "albert")
    edit = random_edit(open_checkpoint(model), steps="last")
    projection = model.get_submodule(module_of(model, edit))
    x = torch.ones(1, projection.in_features, dtype=torch.float64)
    with torch.no_grad():
        unedited = projection(x)
        with edit.applied(model):
            assert all(torch.equal(projection(x), unedited) for _ in range(5))


def test_restored_after_an_error_and_in_turn(tiny: Tiny) -> None:
    model = copy_of(tiny, "gpt2")
    checkpoint = open_checkpoint(model)
    first, second = random_edit(checkpoint), random_edit(checkpoint, seed=1)
    other = random_edit(checkpoint, layer=0, site="ffn", seed=2)
    before, seen = bits(model), []

    def fail() -> None:
        with first.applied(model):
            seen.append(bits(model))
            with second.applied(model), other.applied(model):
                seen.append(bits(model))
                raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert bits(model) == before
    assert before != seen[0] != seen[1]
    with first.applied(model):
        with second.applied(model):
            pass
        inside = {name: content for name, (_, content) in bits(model).items()}
    assert inside == {name: content for name, (_, content) in seen[0].items()}


def test_a_weight_that_is_not_put_back_is_seen(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    @contextmanager
    def forgetful(weight: Any, new: Any) -> Any:
        weight.data = new
        yield

    monkeypatch.setattr(applied_module, "_swapped", forgetful)
    model = copy_of(tiny, "gpt2")
    before = bits(model)
    with random_edit(open_checkpoint(model)).applied(model):
        pass
    assert bits(model) != before


def test_a_session_is_a_model(tiny: Tiny) -> None:
    model = copy_of(tiny, "llama")
    edit = random_edit(open_checkpoint(model))
    with edit.applied(model):
        expected = logits(model)
    with edit.applied(session_of(model)):
        assert torch.equal(logits(model), expected)


NARROW = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64}


@pytest.mark.parametrize("dtype", list(NARROW))
@pytest.mark.parametrize("strength", [2.0, 0.02])
def test_added_wide_and_rounded_once(
    saved: Callable[..., Path], dtype: str, strength: float
) -> None:
    checkpoint = open_checkpoint(saved("gpt2"))
    edit = random_edit(checkpoint, strength=strength)
    target = find_target(checkpoint, edit)
    stored = np.random.default_rng(3).normal(size=target.shape).astype(NARROW[dtype])
    new, realised = target.edited(stored, edit)
    wide = np.float64 if dtype == "F64" else np.float32
    expected = (stored.astype(wide) + edit.delta().T.astype(wide)).astype(NARROW[dtype])
    assert new.tobytes() == expected.tobytes()
    twice = (stored + edit.delta().T.astype(NARROW[dtype])).astype(NARROW[dtype])
    if strength == 2.0 and dtype in ("F16", "BF16"):
        assert new.tobytes() != twice.tobytes()  # two roundings would be seen
    moved = expected.astype(np.float64) - stored.astype(np.float64)
    D = edit.delta().T
    assert realised.ratio == pytest.approx(np.linalg.norm(moved) / np.linalg.norm(D), rel=1e-12)
    assert realised.projection == pytest.approx(np.vdot(moved, D) / np.vdot(D, D), rel=1e-12)
    assert realised.changed == np.count_nonzero(moved)


def test_blocks_of_rows_make_no_difference(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(saved("gpt2"))
    edit = random_edit(checkpoint)
    target = find_target(checkpoint, edit)
    stored = np.random.default_rng(3).normal(size=target.shape).astype(np.float16)
    whole, told = target.edited(stored, edit)
    monkeypatch.setattr(target_module, "_BLOCK", 3 * target.shape[0])
    parts, told_parts = target.edited(stored, edit)
    assert whole.tobytes() == parts.tobytes()
    assert told_parts.ratio == pytest.approx(told.ratio, rel=1e-12)


def test_an_edit_that_vanishes_or_overflows_is_refused(saved: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(saved("gpt2"))
    target = find_target(checkpoint, random_edit(checkpoint))
    stored = np.ones(target.shape, dtype=ml_dtypes.bfloat16)
    with pytest.raises(NumericsError, match="vanishes in the rounding to bfloat16"):
        target.edited(stored, random_edit(checkpoint, strength=1e-4))
    with pytest.raises(NumericsError, match="overflows float16"):
        target.edited(stored.astype(np.float16), random_edit(checkpoint, strength=1e6))
    same, realised = target.edited(stored, random_edit(checkpoint, strength=0.0))
    assert same.tobytes() == stored.tobytes()
    assert (realised.ratio, realised.changed) == (1.0, 0)
    stored[0, 0] = np.nan
    with pytest.raises(NumericsError, match="NaN or infinite"):
        target.edited(stored, random_edit(checkpoint))


def test_an_edit_of_another_model_is_refused(tiny: Tiny) -> None:
    llama, gpt2 = tiny("llama"), tiny("gpt2")
    edit = random_edit(open_checkpoint(llama))
    with pytest.raises(OptionError, match="is for model_type 'llama'"), edit.applied(gpt2):
        pass
    wide = replace(edit, w=np.ones(len(edit.w) + 1))
    with pytest.raises(ShapeError, match="reads 25 coordinates"), wide.applied(llama):
        pass
    with pytest.raises(OptionError, match="has no layer 7 in decoder"):
        find_target(open_checkpoint(llama), replace(edit, layer=7))
    with pytest.raises(OptionError, match="has no stack 'vision'"):
        find_target(open_checkpoint(llama), replace(edit, stack="vision"))
    arrays = open_checkpoint((np.eye(2), np.eye(2)))
    with pytest.raises(OptionError, match="plain arrays"):
        locate(arrays, "decoder", 0, "self", "attention")


def test_weights_that_cannot_be_changed_are_refused(tiny: Tiny) -> None:
    model = copy_of(tiny, "gpt2")
    edit = random_edit(open_checkpoint(model))
    with pytest.raises(OptionError, match="offloaded"), edit.applied(model.to("meta")):
        pass
    model = copy_of(tiny, "gpt2")
    module = model.get_submodule(module_of(model, edit))
    module.weight = torch.nn.Parameter(module.weight.to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(OptionError, match="load the model dequantised"), edit.applied(model):
        pass


def test_an_unknown_feed_forward_part_is_not_guessed(tiny: Tiny) -> None:
    names = ["layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"]
    assert feed_forward("llama", "decoder", "self", names[0], names)[0] == names[1]
    with pytest.raises(OptionError, match="is not declared"):
        feed_forward("made_up", "decoder", "self", names[0], names)
    with pytest.raises(OptionError, match="is not declared"):
        feed_forward("llama", "decoder", "self", "layers.0.attn.out.weight", names)
    with pytest.raises(OptionError, match="cross attention has no feed-forward"):
        feed_forward("llama", "decoder", "cross", names[0], names)
    with pytest.raises(OptionError, match=r"no tensor 'layers\.0\.mlp\.down_proj\.weight'"):
        feed_forward("llama", "decoder", "self", names[0], names[:1])
    experts = [*names, "layers.0.mlp.experts.0.down_proj.weight"]
    with pytest.raises(OptionError, match="mixture of experts"):
        feed_forward("qwen3_moe", "decoder", "self", names[0], experts)
    gguf = ["blk.0.attn_output.weight", "blk.0.ffn_down.weight"]
    assert feed_forward("x", "decoder", "self", gguf[0], gguf, gguf=True)[0] == gguf[1]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(FEED_FORWARD))
def test_the_feed_forward_table(model_type: str) -> None:
    """Every row names a module that is there, is called in a pass, and is stored as it says.

    What it writes reaches the residual stream: the hook's effect on the logits is the weight's.
    """
    from transformers.pytorch_utils import Conv1D

    from zoo import build, double, inputs

    model = BY_NAME[model_type].build(head=False) if model_type in BY_NAME else build(model_type)
    checkpoint = open_checkpoint(model)
    with double():
        feed = inputs(model, 4)
    for stack in {p.stack for p in checkpoint.plans if p.kind == "self"}:
        plan = [p for p in checkpoint.plans if (p.stack, p.kind) == (stack, "self")][-1]
        try:
            target = locate(checkpoint, stack, plan.layer, "self", "ffn")
        except OptionError as error:
            assert "mixture of experts" in str(error), error  # noqa: PT017
            continue
        module = model.get_submodule(target.tensor.removesuffix(".weight"))
        assert isinstance(module, Conv1D) == (target.orientation == "conv1d")
        calls: list[Any] = []
        handle = module.register_forward_hook(lambda m, a, o, c=calls: c.append((a[0], o)))
        with torch.no_grad(), double():
            model(**feed)
        handle.remove()
        assert len(calls) >= 1
        x, y = calls[0]
        assert (y.shape[-1], x.shape[-1]) == target.matrix_shape
