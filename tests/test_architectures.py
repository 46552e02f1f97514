"""Config keys, defaults, naming schemes and plans of the architectures table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.resolve import find_architecture, find_geometry
from eigenlens.circuit.rows import KEYS, albert_groups
from eigenlens.errors import ArchitectureError, FormatError, ShapeError

SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim")


def state(model: Any) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def geometry(config: dict[str, Any]) -> tuple[int, ...]:
    _, architecture = find_architecture(config)
    found = find_geometry(architecture, architecture.stacks[0], config)
    return tuple(getattr(found, size) for size in SIZES)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_sizes_are_those_of_the_config_class(model_type: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    full = config.to_dict()
    sizes = geometry(full)
    d, n = config.hidden_size, config.num_attention_heads
    kv = getattr(config, "num_key_value_heads", None) or n
    head_dim = getattr(config, "head_dim", None) or d // n
    assert sizes == (d, config.num_hidden_layers, n, kv, head_dim)
    # A config.json may leave out whatever equals the default.
    keys = {key for aliases in KEYS.values() for key in aliases}
    left = {key: value for key, value in full.items() if key not in keys}
    assert len(left) < len(full)
    assert geometry(left) == sizes


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_flags_have_the_defaults_of_the_config_class(model_type: str) -> None:
    from transformers import AutoConfig

    from eigenlens.circuit.rows import Switch

    full = AutoConfig.for_model(model_type).to_dict()
    row = ARCHITECTURES[model_type]
    rules = [v for part in (*row.stacks, row.readout) if part for v in vars(part).values()]
    for rule in rules:
        if isinstance(rule, Switch) and rule.key in full:
            assert bool(full[rule.key]) == rule.default, rule.key


def test_one_row_serves_model_types_that_are_the_same() -> None:
    assert ARCHITECTURES["roberta"] is ARCHITECTURES["xlm-roberta"]


def test_head_dim_and_groups_may_be_null() -> None:
    base = {"model_type": "mistral", "hidden_size": 16, "num_attention_heads": 4}
    assert geometry({**base, "num_key_value_heads": None, "head_dim": None})[3:] == (4, 4)
    assert geometry({**base, "num_key_value_heads": 2})[3:] == (2, 4)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({}, ArchitectureError, "no model_type"),
        ({"model_type": 3}, ArchitectureError, "no model_type"),
        ({"model_type": "berd"}, ArchitectureError, r"nearest: 'bert'.*albert, bert"),
        ({"model_type": "bert", "hidden_size": "x"}, FormatError, "hidden_size.*positive whole"),
        ({"model_type": "bert", "hidden_size": True}, FormatError, "positive whole"),
        ({"model_type": "bert", "num_hidden_layers": 0}, FormatError, "positive whole"),
        ({"model_type": "gpt2", "n_embd": 8, "hidden_size": 9}, FormatError, "twice"),
        ({"model_type": "bert", "num_attention_heads": 7}, ShapeError, "does not divide"),
        (
            {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5},
            ShapeError,
            "not a multiple",
        ),
    ],
)
def test_bad_configs(config: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        geometry(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "groups", "inner"), [(12, 1, 1), (12, 12, 1), (5, 2, 3), (7, 3, 1)]
)
def test_albert_calls_follow_the_model(layers: int, groups: int, inner: int) -> None:
    from eigenlens.circuit.layouts import Geometry

    config = {"num_hidden_groups": groups, "inner_group_num": inner}
    slots = albert_groups(Geometry(4, layers, 1, 1, 4), config)
    order = {}
    for slot in slots:
        for call in slot.calls:
            order[call] = (slot.fields["group"], slot.fields["inner"])
    expected = [(int(i / (layers / groups)), k) for i in range(layers) for k in range(inner)]
    assert [order[i] for i in range(layers * inner)] == expected


def test_layers_come_in_natural_order(saved: Any) -> None:
    plans = open_checkpoint(saved("bert-deep")).plans
    assert [p.layer for p in plans] == list(range(11))
    assert ".10." in plans[10].value


def test_a_missing_tensor_names_the_nearest(tiny: Any) -> None:
    model = tiny("bert")
    tensors = state(model)
    name = "bert.encoder.layer.1.attention.self.value.weight"
    del tensors[name]
    with pytest.raises(ArchitectureError, match=f"{name}.*nearest"):
        open_checkpoint((tensors, model.config))


def test_weights_of_another_model_are_refused(tiny: Any) -> None:
    with pytest.raises(ArchitectureError, match="no value projection of the decoder"):
        open_checkpoint((state(tiny("bert")), tiny("llama").config))


def test_any_prefix_is_found_when_it_is_the_only_one(tiny: Any) -> None:
    model = tiny("bert", head=False)
    wrapped = {f"backbone.net.{k}": v for k, v in state(model).items()}
    found = open_checkpoint((wrapped, model.config)).circuits()[1].dense()
    np.testing.assert_array_equal(found, open_checkpoint(model).circuits()[1].dense())


@pytest.mark.parametrize("prefixes", [("", "bert."), ("a.", "b.")])
def test_two_copies_of_a_stack_are_ambiguous(prefixes: tuple[str, str], tiny: Any) -> None:
    model = tiny("bert", head=False)
    twice = {f"{p}{k}": v for p in prefixes for k, v in state(model).items()}
    with pytest.raises(ArchitectureError, match="more than once"):
        open_checkpoint((twice, model.config))


def test_old_norm_names(tiny: Any) -> None:
    model = tiny("bert", head=False)
    renamed = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in state(model).items()
    }
    a, b = (
        open_checkpoint((renamed, model.config)).circuits()[0],
        open_checkpoint(model).circuits()[0],
    )
    assert a.norm_out is not None
    assert b.norm_out is not None
    np.testing.assert_array_equal(a.norm_out.gain, b.norm_out.gain)
    np.testing.assert_array_equal(a.norm_out.bias, b.norm_out.bias)


GGUF = {
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
}


def test_gguf_names_hold_gemma_gains_with_the_one(tiny: Any) -> None:
    model = tiny("gemma2", head=False)
    renamed = {}
    for name, tensor in state(model).items():
        new = name.replace("layers.", "blk.")
        for old, short in GGUF.items():
            new = new.replace(old, short)
        renamed[new] = tensor + 1 if "norm" in name else tensor
    a = open_checkpoint((renamed, model.config)).circuits()[0]
    b = open_checkpoint(model).circuits()[0]
    for left, right in ((a.norm_in, b.norm_in), (a.norm_out, b.norm_out)):
        assert left is not None
        assert right is not None
        np.testing.assert_allclose(left.gain, right.gain, rtol=1e-15)
    np.testing.assert_array_equal(a.dense(), b.dense())


@pytest.mark.parametrize(
    ("name", "placement", "causal"),
    [
        ("bert", "post", False),
        ("albert", "post", False),
        ("gpt2", "pre", True),
        ("gpt_neox", "parallel", True),
        ("gpt_neox-serial", "pre", True),
        ("opt", "pre", True),
        ("opt-post", "post", True),
        ("gemma2", "sandwich", True),
        ("phi", "parallel", True),
        ("vit", "pre", False),
    ],
)
def test_placement_follows_the_config(
    name: str, placement: str, causal: bool, saved: Any, tiny: Any
) -> None:
    plan = open_checkpoint(tiny(name)).plans[0]
    assert (plan.placement, plan.causal) == (placement, causal)


def test_quantised_tensors_are_refused(tiny: Any) -> None:
    model = tiny("llama")
    tensors = state(model)
    name = "model.layers.0.self_attn.v_proj.weight"
    tensors[name] = tensors[name].astype(np.int8)
    with pytest.raises(FormatError, match=f"{name}.*quantised"):
        open_checkpoint((tensors, model.config))
