"""The equal-token identity of every model type against transformers, and that it can fail."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import ArchitectureError, MissingDependencyError, OptionError
from eigenlens.live import watch as watch_module
from eigenlens.live.load import load_model
from eigenlens.live.verify import VerifyRow, verify
from families import BY_NAME, FAMILIES, GOLDEN, fault, outcome, switches, verified

TOLERANCE = 1e-10


def errors(rows: list[Any]) -> list[float]:
    assert rows
    assert all(row.error_heads is not None for row in rows)
    return [e for row in rows for e in (row.error_one, row.error_four, row.error_heads)]


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("head", [False, True], ids=["body", "head"])
def test_saved_model_agrees_with_the_live_one(name: str, head: bool, tiny: Any, saved: Any) -> None:
    if head and BY_NAME[name].head is None:
        head = False
    rows = verify(saved(name, head=head), tiny(name, head=head))
    assert max(errors(rows)) <= TOLERANCE
    assert all(row.ok for row in rows)


def traps() -> list[str]:
    """As few model types as show every layout, placement, note, ... that the table knows."""
    shown: dict[str, set[str]] = {}
    for model_type, row in ARCHITECTURES.items():
        found = shown.setdefault(model_type, set())
        for s in row.stacks:
            found.add(f"{s.kind} {s.output_orientation} {s.layout!r}")
            found |= {f"{s.kind} {s.placement!r}", f"{s.norm_kind!r} {s.norm_affine!r}"}
            found |= {repr(x) for x in (s.output_scale, s.value_scale, s.skip, s.bare, s.per_layer)}
            found |= {repr(x) for x in (s.slots, s.gain_offset, s.layer_notes, *s.notes)}
        found |= {f"tower {tower.name}" for tower in row.towers}
    by_hand = {family.model_type for family in FAMILIES}
    left = set().union(*shown.values()) - set().union(*(shown[t] for t in by_hand))
    chosen: list[str] = []
    while left:
        best = max(sorted(shown), key=lambda t: len(shown[t] & left))
        chosen.append(best)
        left -= shown[best]
    return sorted(chosen)


@pytest.mark.parametrize("model_type", traps())
def test_a_tiny_model_of_each_trap_agrees(model_type: str) -> None:
    assert fault(verified(model_type)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(ARCHITECTURES) - set(traps())))
def test_a_tiny_model_of_every_type_agrees(model_type: str) -> None:
    assert fault(verified(model_type)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_every_switch_of_a_row_turned_agrees(model_type: str) -> None:
    for given in switches(model_type):
        text = outcome(model_type, given)
        assert "verified" in text or "has no F" in text or "Dataclass" in text, given


def test_a_fault_is_named() -> None:
    row = VerifyRow("decoder", 3, "self", 0.0, 0.5, None, False)
    assert "decoder self layer 3" in fault([row])
    assert fault([]) == "no layer"


def test_every_row_of_the_table_has_been_verified() -> None:
    known = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert set(known) == set(ARCHITECTURES)
    assert {t for t, text in known.items() if text != "verified"} == set()


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "albert-groups"])
def test_other_sources_give_the_same_circuits(
    name: str, tiny: Any, saved: Any, tmp_path: Any
) -> None:
    model = tiny(name)
    folder = saved(name)
    expected = [c.dense() for c in open_checkpoint(folder).circuits()]
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    sources = [
        model,
        (model.state_dict(), model.config),
        (model.state_dict(), model.config.to_dict()),
        tmp_path,
    ]
    for source in sources:
        found = [c.dense() for c in open_checkpoint(source).circuits()]
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def with_circuits(checkpoint: Checkpoint, change: Any) -> Checkpoint:
    """The checkpoint with planted errors in its circuits."""

    class Broken(Checkpoint):
        def circuits(self, stack: Any = None, layers: Any = None) -> Any:
            return [change(c) for c in checkpoint.circuits(stack, layers)]

    fields = {f: getattr(checkpoint, f) for f in ("source_label", "config", "source", "stacks")}
    return Broken(**fields)


def transposed(c: OVCircuit) -> OVCircuit:
    F = c.dense()
    d = c.d_model
    return replace(c, W_V=np.eye(d), W_O=F.T, n_heads=1, n_kv_heads=1, head_dim=d, b_V=None)


def tiled(c: OVCircuit) -> OVCircuit:
    order = np.arange(c.n_heads).reshape(c.n_kv_heads, -1).T.ravel()
    blocks = c.W_O.reshape(c.d_model, c.n_heads, c.head_dim)[:, order]
    return replace(c, W_O=blocks.reshape(c.W_O.shape))


def split_wrongly(c: OVCircuit) -> OVCircuit:
    """Heads made of every n-th row: F stays right, each head is wrong."""
    order = np.arange(c.W_V.shape[0]).reshape(c.head_dim, c.n_heads).T.ravel()
    b_V = None if c.b_V is None else c.b_V[order]
    return replace(c, W_V=c.W_V[order], W_O=c.W_O[:, order], b_V=b_V)


def test_a_transposed_layer_matrix_is_seen(tiny: Any, saved: Any) -> None:
    broken = with_circuits(open_checkpoint(saved("llama-no-bias")), transposed)
    rows = verify(broken, tiny("llama-no-bias"))
    assert not any(row.ok for row in rows)
    assert min(min(row.error_one, row.error_four) for row in rows) > 0.5


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "phi3"])
def test_a_tiled_group_repeat_is_seen(name: str, tiny: Any, saved: Any) -> None:
    rows = verify(with_circuits(open_checkpoint(saved(name)), tiled), tiny(name))
    assert not any(row.ok for row in rows)
    assert min(row.error_one for row in rows) > 0.1


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi3"])
def test_query_rows_in_place_of_value_rows_are_seen(
    name: str, tiny: Any, saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(saved(name))
    layout = checkpoint.plans[0].layout
    original = layout.fusing

    def queries_first(g: Any) -> Any:
        total, index = original(g)
        return total, index - index.min()

    swapped = replace(layout, fusing=queries_first)
    stacks = tuple(
        replace(s, layers=tuple(replace(p, layout=swapped) for p in s.layers))
        for s in checkpoint.stacks
    )
    rows = verify(replace(checkpoint, stacks=stacks), tiny(name))
    assert not any(row.ok for row in rows)
    assert min(row.error_one for row in rows) > 0.1


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox"])
def test_a_wrong_head_split_is_seen_per_head_only(name: str, tiny: Any, saved: Any) -> None:
    rows = verify(with_circuits(open_checkpoint(saved(name)), split_wrongly), tiny(name))
    assert not any(row.ok for row in rows)
    assert max(max(row.error_one, row.error_four) for row in rows) <= TOLERANCE
    assert min(row.error_heads for row in rows) > 1e-3


def test_a_lost_bias_is_seen(tiny: Any, saved: Any) -> None:
    broken = with_circuits(open_checkpoint(saved("bert")), lambda c: replace(c, b_V=None))
    assert not any(row.ok for row in verify(broken, tiny("bert")))


def test_albert_is_verified_at_every_call(saved: Any, tiny: Any) -> None:
    checkpoint = open_checkpoint(saved("albert-groups"))
    assert [(p.layer, p.calls) for p in checkpoint.plans] == [
        (0, (0, 2, 4)),
        (1, (1, 3, 5)),
        (2, (6, 8)),
        (3, (7, 9)),
    ]
    assert sum(c.steps for c in checkpoint.circuits()) == 10


def test_norm_gains_are_those_of_the_live_norms(tiny: Any) -> None:
    import torch

    rng = np.random.default_rng(0)
    checked = set()
    for name in BY_NAME:
        model = tiny(name, head=False)
        checkpoint = open_checkpoint(model)
        circuit, plan = checkpoint.circuits()[0], checkpoint.plans[0]
        for norm, where in ((circuit.norm_in, plan.norm_in), (circuit.norm_out, plan.norm_out)):
            assert (norm is None) == (where is None)
            if norm is None or where is None:
                continue
            x = rng.standard_normal(circuit.d_model)
            live = model.get_submodule(where.module)
            with torch.no_grad():
                y = live(torch.tensor(x[None]))[0].numpy()
            centred = x - x.mean() if norm.kind == "layernorm" else x
            ours = norm.linear(x) / np.sqrt(np.mean(centred**2))
            ours = ours + (0.0 if norm.bias is None else norm.bias)
            np.testing.assert_allclose(ours, y, rtol=2e-4, atol=2e-4, err_msg=name)
            checked.add((BY_NAME[name].model_type, plan.placement))
    assert {("gemma", "pre"), ("gemma2", "sandwich"), ("opt", "post"), ("vit", "pre")} <= checked


def capture(model: Any, module: str) -> list[Any]:
    seen: list[Any] = []
    model.get_submodule(module).register_forward_hook(
        lambda _m, args, out: seen.append((args[0].detach().numpy(), out.detach().numpy()))
    )
    return seen


@pytest.mark.parametrize("name", [n for n in BY_NAME if not n.startswith("vit")])
def test_norms_stand_where_the_plan_says(name: str) -> None:
    import torch

    model = BY_NAME[name].build(head=False)
    plan = open_checkpoint(model).plans[0]
    value, output = (capture(model, w.removesuffix(".weight")) for w in (plan.value, plan.output))
    before = plan.norm_in and capture(model, plan.norm_in.module)
    after = plan.norm_out and capture(model, plan.norm_out.module)
    assert before is not None or plan.placement == "post"
    with torch.no_grad():
        model(input_ids=torch.tensor([[3, 5, 7]]))
    width = plan.geometry.d_model
    if before is not None:
        np.testing.assert_array_equal(
            before[0][1].reshape(-1, width), value[0][0].reshape(-1, width)
        )
    if plan.placement == "sandwich":
        np.testing.assert_array_equal(after[0][0], output[0][1])
    if plan.placement == "post":
        residual = value[0][0].reshape(-1, width) + output[0][1].reshape(-1, width)
        np.testing.assert_allclose(after[0][0].reshape(-1, width), residual, atol=1e-12)


@pytest.mark.parametrize("sample", ["sample:minilm", "sample:albert-rxn"])
def test_trained_weights_agree(sample: str) -> None:
    rows = verify(sample)
    assert max(errors(rows)) <= TOLERANCE


@pytest.mark.slow
def test_trained_llama_from_gguf_agrees() -> None:
    rows = verify("sample:smollm2")
    assert len(rows) == 30
    assert max(errors(rows)) <= TOLERANCE


def test_load_gives_the_head_when_asked(saved: Any) -> None:
    assert type(load_model(str(saved("bert")), head=True)).__name__ == "BertForMaskedLM"
    model = load_model(str(saved("gpt2")), "float64", head=True)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert str(model.dtype) == "torch.float64"
    assert model.config._attn_implementation == "eager"


def test_arrays_have_nothing_to_verify_against() -> None:
    with pytest.raises(OptionError, match="plain arrays have no model"):
        verify((np.eye(2), np.eye(2)))


def test_a_shallower_live_model_is_refused(tiny: Any, saved: Any) -> None:
    with pytest.raises(ArchitectureError, match="has no encoder layer 2"):
        verify(saved("bert-deep"), tiny("bert"))


def test_without_transformers_the_remedy_is_named(
    saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("bert")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'eigenlens\[models\]'"):
        verify(folder)


def test_softmax_in_single_precision_would_hide_small_errors(
    saved: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why `verify` keeps float64 models in float64: without it the bound of 1e-10 is missed."""
    monkeypatch.setattr(watch_module, "NARROW", "none")
    rows = verify(saved("llama"), tiny("llama"))
    assert max(row.error_four for row in rows) > TOLERANCE
    assert max(row.error_one for row in rows) <= TOLERANCE
