"""Config keys, defaults, naming schemes and plans of the architectures table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.architectures import ARCHITECTURES, REFUSED, merge
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.config import Config, class_defaults
from eigenlens.circuit.facts import Cases, Switch, decide
from eigenlens.circuit.geometry import find_geometry
from eigenlens.circuit.resolve import find_architecture
from eigenlens.circuit.rows import KEYS, Listed
from eigenlens.circuit.slots import albert_groups
from eigenlens.errors import ArchitectureError, FormatError, ShapeError
from families import FAMILIES

SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim")


def state(model: Any) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def geometry(config: dict[str, Any]) -> tuple[int, ...]:
    _, architecture = find_architecture(config)
    found = find_geometry(architecture, architecture.stacks[0], config)
    return tuple(getattr(found, size) for size in SIZES)


@pytest.mark.parametrize("model_type", sorted({f.model_type for f in FAMILIES}))
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
def test_facts_are_those_of_the_config_class_where_keys_are_left_out(model_type: str) -> None:
    from transformers import AutoConfig

    full, left = AutoConfig.for_model(model_type).to_dict(), Config({"model_type": model_type})
    row = ARCHITECTURES[model_type]
    rules = [v for part in (*row.stacks, row.readout) if part for v in vars(part).values()]
    rules += [naming.norm_before for stack in row.stacks for naming in stack.namings]
    for rule in rules:
        if isinstance(rule, (Switch, Cases)):
            assert decide(rule, left) == decide(rule, full), rule


def test_a_wrong_default_would_be_seen() -> None:
    rule = Switch("attention_bias", False, True, False)
    assert decide(rule, Config({"model_type": "glm"})) is True
    assert decide(rule, {}) is False


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
        ({"model_type": "berd"}, ArchitectureError, r"nearest: 'bert'.*docs/architectures"),
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


def test_a_type_in_two_tables_is_an_error() -> None:
    row = ARCHITECTURES["bert"]
    with pytest.raises(ArchitectureError, match="'x' has a row in a and in b"):
        merge({"a": {"x": row}, "b": {"x": row}}, {})
    with pytest.raises(ArchitectureError, match="in refused and in a"):
        merge({"a": {"x": row}}, {"x": "why"})


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_refused_type_says_why(model_type: str) -> None:
    with pytest.raises(ArchitectureError, match="has no F") as caught:
        find_architecture({"model_type": model_type})
    assert REFUSED[model_type] in str(caught.value)


def test_config_defaults_are_those_of_transformers() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for model_type in ("bert", "clip_vision_model", "whisper", "jamba"):
        fresh = CONFIG_MAPPING[model_type]()
        for key, value in class_defaults(model_type).items():
            if not key.startswith("@") and value is not None and hasattr(fresh, key):
                found = getattr(fresh, key)
                found = list(found) if isinstance(found, tuple) else found
                assert found == value, (model_type, key)


def test_what_config_json_leaves_out_is_named_where_shapes_disagree(tiny: Any) -> None:
    model = tiny("bert", head=False)
    config = model.config.to_dict()
    del config["hidden_size"]
    with pytest.raises(ShapeError, match=r"hidden_size .not stated; default of bert.=768"):
        open_checkpoint((state(model), config))


def test_sections_hold_what_their_class_assumes() -> None:
    config = Config({"model_type": "clip", "vision_config": {"hidden_size": 16}})
    vision = config.section(("vision_config",))
    assert (vision["hidden_size"], vision["num_attention_heads"]) == (16, 12)
    assert vision["/vision_config.hidden_size"] == config["vision_config.hidden_size"] == 16
    assert config["=4"] == 4
    with pytest.raises(KeyError):
        config["nothing"]
    with pytest.raises(ArchitectureError, match="no section 'audio_config'"):
        config.section(("audio_config",))


def test_files_with_one_tower_only_say_which_is_missing() -> None:
    from zoo import build

    model = build("clip")
    half = {k: v for k, v in state(model).items() if k.startswith("vision_model.")}
    found = open_checkpoint((half, model.config))
    assert {p.stack for p in found.plans} == {"vision"}
    assert [(s.stack, s.layer) for s in found.skipped] == [("text", -1)]


def with_others(checkpoint_of: Any) -> Any:
    row = ARCHITECTURES["llama"]
    stack = replace(row.stacks[0], others={"layers.{layer}.mamba.": "a Mamba layer"})
    return open_checkpoint(checkpoint_of, replace(row, stacks=(stack,)))


def test_layers_of_another_kind_are_skipped_by_name(tiny: Any) -> None:
    model = tiny("llama-no-bias", head=False)
    tensors = {k: v for k, v in state(model).items() if "layers.0.self_attn" not in k}
    with pytest.raises(ArchitectureError, match=r"layers\.0\.self_attn"):
        with_others((tensors, model.config))
    tensors["layers.0.mamba.A"] = np.ones(3)
    found = with_others((tensors, model.config))
    assert [p.layer for p in found.plans] == [1]
    assert [(s.layer, s.reason) for s in found.skipped] == [(0, "a Mamba layer")]


def test_layers_are_skipped_by_a_list_of_the_config(tiny: Any) -> None:
    model = tiny("llama-no-bias", head=False)
    row = ARCHITECTURES["llama"]
    skip = Listed("layer_types", {"linear": "linear attention"})
    rules = replace(row, stacks=(replace(row.stacks[0], skip=skip),))
    config = {**model.config.to_dict(), "layer_types": ["full", "linear"]}
    found = open_checkpoint((state(model), config), rules)
    assert ([p.layer for p in found.plans], [s.layer for s in found.skipped]) == ([0], [1])
    with pytest.raises(FormatError, match=r"layer_types.*an entry for each"):
        open_checkpoint((state(model), {**config, "layer_types": ["full"]}), rules)


def test_a_layer_that_is_not_square_has_singular_values_only() -> None:
    import eigenlens

    rng = np.random.default_rng(0)
    tensors = {
        "layers.0.self_attn.v_proj.weight": rng.normal(size=(4, 6)),
        "layers.0.self_attn.o_proj.weight": rng.normal(size=(8, 4)),
        "layers.0.input_layernorm.weight": np.ones(6),
    }
    config = {
        "model_type": "new", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "head_dim": 2, "width": 6,
    }  # fmt: skip
    row = ARCHITECTURES["llama"]
    rules = replace(row, stacks=(replace(row.stacks[0], keys={"d_in": ("width",)}),))
    checkpoint = open_checkpoint((tensors, config), rules)
    circuit = checkpoint.circuits()[0]
    assert not circuit.is_square
    full = np.linalg.svd(circuit.dense(), compute_uv=False)[:4]
    np.testing.assert_allclose(circuit.singular_values(), full, rtol=1e-12)
    found = eigenlens.spectrum(checkpoint)
    assert found.layers == ()
    assert "not square" in found.skipped[0].reason
