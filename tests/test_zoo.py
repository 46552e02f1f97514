"""The zoo: tiny models are tiny, random, reproducible, run, and keep every kind of layer."""

from __future__ import annotations

from typing import Any

import pytest

import zoo

SOME = ["bert", "gpt2", "llama", "t5", "vit", "qwen2_vl", "whisper", "deepseek_v3"]


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return {name: zoo.build(name) for name in SOME}


@pytest.mark.parametrize("name", SOME)
def test_a_tiny_model_runs_in_float64(name: str, built: dict[str, Any]) -> None:
    import torch

    model = built[name]
    assert sum(p.numel() for p in model.parameters()) < 400_000
    assert {p.dtype for p in model.parameters() if p.is_floating_point()} == {torch.float64}
    assert model.config._attn_implementation == "eager"
    with torch.no_grad(), zoo.double():
        out = model(**zoo.inputs(model))
    state = out[0]
    assert state.dtype == torch.float64
    assert torch.isfinite(state).all()
    assert state.std() > 1e-3


def test_heads_are_grouped_and_wider_than_the_model(built: dict[str, Any]) -> None:
    attention = built["llama"].layers[0].self_attn
    assert attention.v_proj.weight.shape == (zoo.KV_HEADS * zoo.HEAD_DIM, zoo.D)
    assert attention.o_proj.weight.shape == (zoo.D, zoo.HEADS * zoo.HEAD_DIM)


def test_a_seed_gives_the_same_weights(built: dict[str, Any]) -> None:
    import torch

    first = built["bert"].encoder.layer[0].attention.self.value.weight
    again, other = (
        zoo.build("bert", seed=s).encoder.layer[0].attention.self.value.weight for s in (0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_weights_are_random_and_gains_are_near_one(built: dict[str, Any]) -> None:
    model = built["llama"]
    weight = model.layers[0].mlp.up_proj.weight
    assert abs(float(weight.detach().std()) - 0.2) < 0.02
    gain = model.norm.weight.detach()
    assert abs(float(gain.mean()) - 1) < 0.2
    assert float(gain.std()) > 0.05


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen3_next", {"linear_attention", "full_attention"}),
        ("gemma3_text", {"sliding_attention", "full_attention"}),
        ("lfm2", {"conv", "full_attention"}),
    ],
)
def test_every_kind_of_layer_is_kept(name: str, kinds: set[str]) -> None:
    config = zoo.config_of(name)
    assert set(config.layer_types) == kinds
    assert len(config.layer_types) == config.num_hidden_layers <= 6


def test_token_ids_lie_in_the_vocabulary_and_agree_between_parts() -> None:
    config = zoo.config_of("qwen2_vl")
    ids = {k: v for k, v in vars(config).items() if k.endswith("_token_id") and v is not None}
    assert len(set(ids.values())) == len(ids) > 3
    assert max(ids.values()) < config.text_config.vocab_size == zoo.VOCAB


def test_softmax_in_single_precision_becomes_double() -> None:
    import torch

    x = torch.zeros(3, dtype=torch.float64)
    assert torch.softmax(x, -1, dtype=torch.float32).dtype == torch.float32
    with zoo.double():
        assert torch.softmax(x, -1, dtype=torch.float32).dtype == torch.float64
        assert x.float().dtype == torch.float64
        assert torch.ones(1).dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_the_head_is_built_when_asked() -> None:
    assert type(zoo.build("bert", head=True)).__name__ == "BertForMaskedLM"


def test_what_is_not_built_is_named_with_its_reason() -> None:
    types = zoo.model_types()
    assert set(zoo.REFUSED) <= set(types)
    assert all(zoo.REFUSED.values())
    assert len(types) - len(zoo.REFUSED) >= 0.84 * len(types)


@pytest.mark.slow
def test_every_other_type_is_built_and_runs() -> None:
    import torch

    failed = {}
    for name in zoo.model_types():
        if name in zoo.REFUSED:
            continue
        try:
            model = zoo.build(name)
            with torch.no_grad(), zoo.double():
                model(**zoo.inputs(model))
        except Exception as error:  # every failure is collected
            failed[name] = repr(error)
    assert not failed
