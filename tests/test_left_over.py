"""Tensors in the files that change F and that the plan does not read: an error, or said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.inspection import inspect
from eigenlens.circuit.rules import parse_rules
from eigenlens.errors import FormatError

AT = "model.layers.1.self_attn."


def files(model: Any, **more: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    draw = np.random.default_rng(0)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    state |= {name: draw.normal(0, 0.2, shape) for name, shape in more.items()}
    return state, model.config.to_dict()


@pytest.fixture
def llama(tiny: Any) -> Any:
    return tiny("llama-no-bias")


@pytest.mark.parametrize("part", ["v_proj", "o_proj"])
def test_a_bias_that_the_config_denies(part: str, llama: Any) -> None:
    open_checkpoint(files(llama))
    name = f"{AT}{part}.bias"
    width = llama.state_dict()[f"{AT}{part}.weight"].shape[0]
    with pytest.raises(FormatError, match=rf"'{name}', but config key 'attention_bias'"):
        open_checkpoint(files(llama, **{name: (width,)}))
    # Zeros change nothing, and a bias of another projection is not part of F.
    state, config = files(llama)
    open_checkpoint(({**state, name: np.zeros(width)}, config))
    open_checkpoint(files(llama, **{f"{AT}q_proj.bias": (width,)}))


def test_a_bias_that_the_rules_deny(tiny: Any) -> None:
    rules = """
[[stack]]
value = "layers.{layer}.self_attn.v_proj"
output = "layers.{layer}.self_attn.o_proj"
norm_before = "layers.{layer}.input_layernorm"
norm_kind = "rmsnorm"
value_bias = BIAS
output_bias = BIAS
"""
    source = files(tiny("llama"))
    assert open_checkpoint(source, parse_rules(rules.replace("BIAS", "true"))).plans[0].value_bias
    with pytest.raises(FormatError, match=r"v_proj\.bias', but the architecture's value_bias says"):
        open_checkpoint(source, parse_rules(rules.replace("BIAS", "false")))


@pytest.mark.parametrize(
    "end",
    ["lora_A.weight", "lora_B.default.weight", "lora_magnitude_vector.default.weight", "ia3_l.a"],
)
@pytest.mark.parametrize("part", ["v_proj", "o_proj"])
def test_adapters_that_are_not_merged(part: str, end: str, llama: Any) -> None:
    name = f"{AT}{part}.{end}"
    with pytest.raises(FormatError, match=rf"'{name}' is an adapter's.*merge") as caught:
        open_checkpoint(files(llama, **{name: (2, 2)}))
    assert "\n" not in str(caught.value)
    # One on the queries changes the weights of attention, not F.
    open_checkpoint(files(llama, **{f"{AT}q_proj.{end}": (2, 2)}))


@pytest.mark.parametrize("end", ["weight_g", "weight_v", "parametrizations.weight.original0"])
def test_weight_norms_that_are_not_folded_in(end: str, llama: Any) -> None:
    name = f"{AT}v_proj.{end}"
    with pytest.raises(FormatError, match=rf"'{name}' belongs to a weight norm"):
        open_checkpoint(files(llama, **{name: (2, 2)}))


def test_layers_that_the_config_does_not_count(llama: Any) -> None:
    source = files(llama)
    n = llama.config.num_hidden_layers
    assert open_checkpoint(source).skipped == ()
    state, config = source
    for i in (n, n + 1, n + 4):
        state |= {k.replace("layers.1.", f"layers.{i}."): v for k, v in source[0].items()}
    found = inspect((state, config))
    assert [s.layer for s in found.skipped] == [n, n + 4]
    assert f"layers {n} to {n + 1}, which the config (num_hidden_layers={n})" in (
        found.skipped[0].reason
    )
    assert f"layer {n + 4}, which" in found.skipped[1].reason
    assert len(found.layers) == n


def test_the_gain_of_a_norm_is_not_rounded(tiny: Any) -> None:
    model = tiny("gemma")
    state, config = files(model)
    state = {name: array.astype(np.float32) for name, array in state.items()}
    norm = open_checkpoint((state, config)).circuits()[0].norm_in
    assert norm is not None
    stored = state["model.layers.0.input_layernorm.weight"]
    np.testing.assert_array_equal(norm.gain, 1 + stored.astype(np.float64))
    assert not np.array_equal(norm.gain, 1 + stored)
