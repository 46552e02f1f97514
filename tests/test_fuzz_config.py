"""A config that says anything leads to circuits or to one line, soon and in little memory."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import EigenlensError

D = 8
MEMORY = 64_000  # KiB that the process may grow by


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {name: draw.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


LLAMA = (
    {
        "model_type": "llama",
        "hidden_size": D,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "vocab_size": 10,
        "tie_word_embeddings": True,
    },
    _weights(
        {"model.embed_tokens.weight": (10, D), "model.norm.weight": (D,)}
        | {
            f"model.layers.{i}.{part}.weight": shape
            for i in range(2)
            for part, shape in {
                "input_layernorm": (D,),
                "post_attention_layernorm": (D,),
                "self_attn.q_proj": (D, D),
                "self_attn.k_proj": (4, D),
                "self_attn.v_proj": (4, D),
                "self_attn.o_proj": (D, D),
            }.items()
        }
    ),
)
GPT2 = (
    {
        "model_type": "gpt2",
        "n_embd": D,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 10,
        "layer_norm_epsilon": 1e-5,
        "scale_attn_by_inverse_layer_idx": False,
    },
    _weights(
        {"transformer.wte.weight": (10, D)}
        | {
            f"transformer.h.{i}.{part}": shape
            for i in range(2)
            for part, shape in {
                "ln_1.weight": (D,),
                "ln_1.bias": (D,),
                "attn.c_attn.weight": (D, 3 * D),
                "attn.c_attn.bias": (3 * D,),
                "attn.c_proj.weight": (D, D),
                "attn.c_proj.bias": (D,),
            }.items()
        }
    ),
)
BERT = (
    {
        "model_type": "bert",
        "hidden_size": D,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "is_decoder": False,
    },
    _weights(
        {
            f"encoder.layer.{i}.attention.{part}": shape
            for i in range(2)
            for part, shape in {
                "self.value.weight": (D, D),
                "self.value.bias": (D,),
                "output.dense.weight": (D, D),
                "output.dense.bias": (D,),
                "output.LayerNorm.weight": (D,),
                "output.LayerNorm.bias": (D,),
            }.items()
        }
    ),
)
MODELS = {"llama": LLAMA, "gpt2": GPT2, "bert": BERT}

NUMBERS = [
    0,
    -1,
    1,
    3,
    7,
    10**4,
    10**9,
    2**63,
    10**30,
    1e308,
    float("inf"),
    float("nan"),
    0.5,
    True,
]
TEXT = st.sampled_from(
    ["", "llama", "bert", "t5", "x" * 3000, "\x1b[31m", "a\nb", "\ud800", "../x"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
# Keys that mean something to some architecture.
KEYS = st.sampled_from(
    [
        *("text_config", "vision_config", "layer_types", "quantization_config", "norm_type"),
        *("head_dim", "num_key_value_heads", "multi_query", "kv_lora_rank", "residual_multiplier"),
    ]
)


def use(config: dict[str, Any], weights: dict[str, np.ndarray]) -> str | None:
    """Open it and read every circuit; gives the message that refused it."""
    message = None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    try:
        for circuit in open_checkpoint((weights, config)).circuits():
            assert circuit.d_model == D
    except EigenlensError as error:
        message = str(error)
    assert time.perf_counter() - begin < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY
    if message is not None:
        assert message.isprintable()
        assert len(message) < 20_000
    return message


@pytest.mark.parametrize("name", MODELS)
def test_the_good_configs_pass(name: str) -> None:
    config, weights = MODELS[name]
    assert use(config, weights) is None
    assert use(config | {"hidden_size": 5, "n_embd": 5}, weights) is not None


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_values_of_any_kind(name: str, data: Any) -> None:
    config, weights = MODELS[name]
    keys = st.sampled_from(sorted(config)) | KEYS
    changes = data.draw(st.dictionaries(keys, VALUES, min_size=1, max_size=3))
    use(config | changes, weights)


@pytest.mark.parametrize("name", MODELS)
def test_every_value_missing_or_extreme(name: str) -> None:
    config, weights = MODELS[name]
    for key in config:
        use({k: v for k, v in config.items() if k != key}, weights)
        for value in (0, -1, 10**9, 2**63, 1e308, float("nan"), True, None, "x", [1], {"a": 1}):
            use(config | {key: value}, weights)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_weights_of_any_shape(data: Any) -> None:
    config, weights = MODELS[data.draw(st.sampled_from(sorted(MODELS)))]
    changed = dict(weights)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(weights)))
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 24]), max_size=4))
        dtype = data.draw(st.sampled_from(["float32", "int64", "bool", "complex64", "uint8"]))
        changed[name] = np.ones(shape, dtype=dtype)
        if data.draw(st.booleans()):
            del changed[name]
    use(config, changed)
