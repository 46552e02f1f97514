"""Rows of image models: widening stages, other names of the same tensors, configs of one level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.resolve import find_geometry
from eigenlens.circuit.stages import Stages

RNG = np.random.default_rng(0)
TINY = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}


def array(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def test_a_wider_stage_reads_the_stage_before() -> None:
    config = {"depths": [1, 2, 1], "w": 4, "h": [1, 2, 4], "growth": 2.0}
    stages = Stages(width="w", heads="h", growth="growth", first=3, widens=True)
    slots = stages(stages.geometry(config), config)
    sizes = [(s.sizes.get("d_in"), s.sizes["d_model"], s.sizes["n_heads"]) for s in slots]
    assert sizes == [(None, 4, 1), (4, 8, 2), (None, 8, 2), (8, 16, 4)]
    assert [s.fields["stage"] for s in slots] == [3, 4, 4, 5]
    assert [s.fields["layer"] for s in slots] == [0, 1, 2, 3]


def test_hiera_has_no_square_matrix_where_it_widens() -> None:
    config = {"model_type": "hiera", "depths": [1, 1], "embed_dim": 4, "num_heads": [1, 2]}
    tensors = {}
    for stage, (d_in, d) in enumerate(((4, 4), (4, 8))):
        at = f"encoder.stages.{stage}.layers.0"
        tensors |= {
            f"{at}.attn.qkv.weight": array(3 * d, d_in),
            f"{at}.attn.qkv.bias": array(3 * d),
            f"{at}.attn.proj.weight": array(d, d),
            f"{at}.attn.proj.bias": array(d),
            f"{at}.layernorm_before.weight": array(d_in),
            f"{at}.layernorm_before.bias": array(d_in),
        }
    shapes = [c.dense().shape for c in open_checkpoint((tensors, config)).circuits()]
    assert shapes == [(4, 4), (8, 4)]


def radio(fused: bool) -> dict[str, Any]:
    """The same weights under the names of the files and of the module."""
    rng = np.random.default_rng(1)
    tensors: dict[str, Any] = {}
    for layer in range(2):
        q, k, v, o = (rng.standard_normal((8, 8)) for _ in range(4))
        at = f"encoder.layer.{layer}."
        old = f"radio_model.model.blocks.{layer}."
        bias = np.arange(24.0)
        if fused:
            tensors |= {
                f"{old}attn.qkv.weight": np.concatenate([q, k, v]),
                f"{old}attn.qkv.bias": bias,
                f"{old}attn.proj.weight": o,
                f"{old}attn.proj.bias": np.ones(8),
            }
        else:
            tensors |= {
                f"{at}attention.v_proj.weight": v,
                f"{at}attention.v_proj.bias": bias[16:],
                f"{at}attention.o_proj.weight": o,
                f"{at}attention.o_proj.bias": np.ones(8),
            }
        tensors |= {
            f"{old if fused else at}norm1.weight": np.ones(8),
            f"{old if fused else at}norm1.bias": np.zeros(8),
            f"{old if fused else at}layer_scale1.lambda1": np.full(8, 0.5),
        }
    return tensors


def test_a_naming_may_fuse_what_another_keeps_apart() -> None:
    config = {"model_type": "radio", **TINY}
    a, b = (open_checkpoint((radio(fused), config)).circuits() for fused in (True, False))
    for left, right in zip(a, b, strict=True):
        np.testing.assert_array_equal(left.dense(), right.dense())
        np.testing.assert_array_equal(left.bias, right.bias)
    queries = radio(True)["radio_model.model.blocks.0.attn.qkv.weight"][:8]
    assert not np.allclose(a[0].W_V, queries)


@pytest.mark.parametrize("beside", [True, False], ids=["v_bias", "value.bias"])
def test_names_that_share_the_values_are_told_apart_by_the_others(beside: bool) -> None:
    config = {"model_type": "videomae", **TINY}
    tensors: dict[str, Any] = {}
    bias = np.arange(8.0)
    for layer in range(2):
        at = f"videomae.encoder.layer.{layer}."
        tensors |= {
            f"{at}attention.attention.value.weight": array(8, 8),
            f"{at}attention.attention.{'v_bias' if beside else 'value.bias'}": bias,
            f"{at}attention.output.dense.weight": array(8, 8),
            f"{at}attention.output.dense.bias": array(8),
            f"{at}layernorm_before.weight": array(8),
            f"{at}layernorm_before.bias": array(8),
        }
    circuit = open_checkpoint((tensors, config)).circuits()[1]
    assert circuit.b_V is not None
    np.testing.assert_array_equal(circuit.b_V, bias)


def test_a_config_of_one_level_describes_the_language_model() -> None:
    sizes = {**TINY, "num_key_value_heads": 1}
    vision = {"depth": 1, "embed_dim": 4, "num_heads": 2, "hidden_size": 8}
    tensors: dict[str, Any] = {}
    for layer in range(2):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}self_attn.v_proj.weight": array(4, 8),
            f"{at}self_attn.v_proj.bias": array(4),
            f"{at}self_attn.o_proj.weight": array(8, 8),
            f"{at}input_layernorm.weight": array(8),
        }
    tensors |= {
        "visual.blocks.0.attn.qkv.weight": array(12, 4),
        "visual.blocks.0.attn.qkv.bias": array(12),
        "visual.blocks.0.attn.proj.weight": array(4, 4),
        "visual.blocks.0.attn.proj.bias": array(4),
        "visual.blocks.0.norm1.weight": array(4),
        "visual.blocks.0.norm1.bias": array(4),
    }
    flat = {"model_type": "qwen2_vl", **sizes, "vision_config": vision}
    deep = {"model_type": "qwen2_vl", "text_config": sizes, "vision_config": vision}
    found = [open_checkpoint((tensors, config)).circuits() for config in (flat, deep)]
    for a, b in zip(*found, strict=True):
        assert (a.stack, a.layer) == (b.stack, b.layer)
        np.testing.assert_array_equal(a.dense(), b.dense())
    assert sorted({c.stack for c in found[0]}) == ["text", "vision"]


def test_names_of_a_part_do_not_reach_into_the_other_parts_of_a_part() -> None:
    sizes = {**TINY, "num_key_value_heads": 2, "head_dim": 4}
    config = {
        "model_type": "colpali",
        "vlm_config": {
            "model_type": "paligemma",
            "text_config": {"model_type": "gemma", **sizes},
            "vision_config": {"model_type": "siglip_vision_model", **TINY},
        },
    }
    tensors: dict[str, Any] = {}
    for layer in range(2):
        text = f"vlm.language_model.layers.{layer}."
        vision = f"vlm.vision_tower.encoder.layers.{layer}."
        tensors |= {
            f"{text}self_attn.v_proj.weight": array(8, 8),
            f"{text}self_attn.o_proj.weight": array(8, 8),
            f"{text}input_layernorm.weight": array(8),
            f"{vision}layer_norm1.weight": array(8),
            f"{vision}layer_norm1.bias": array(8),
        }
        for name in ("v_proj", "out_proj"):
            tensors[f"{vision}self_attn.{name}.weight"] = array(8, 8)
            tensors[f"{vision}self_attn.{name}.bias"] = array(8)
    found = {c.stack for c in open_checkpoint((tensors, config)).circuits()}
    assert found == {"vlm.vision", "vlm.text"}


def test_one_prediction_of_mask2former_has_no_layer() -> None:
    row = ARCHITECTURES["mask2former"]
    config = {"hidden_dim": 8, "decoder_layers": 3, "num_attention_heads": 2}
    stack = row.stacks[0]
    assert len(stack.slots(find_geometry(row, stack, config), config)) == 2
