"""Quantised checkpoints as whole models: F of the folder, refusals, damage, memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import EigenlensError, FormatError
from eigenlens.tensors.quantised import QuantisedStore, dequantised
from eigenlens.tensors.remote import prefetch
from eigenlens.tensors.source import resolve
from eigenlens.tensors.store import ArrayStore

D, HEADS, KV, WIDTH, LAYERS = 32, 4, 2, 8, 2
CONFIG = {
    "model_type": "llama",
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": WIDTH,
    "intermediate_size": 16,
    "vocab_size": 16,
    "tie_word_embeddings": True,
}
Parts = dict[str, Any]
Packer = Callable[[str, Any], tuple[Parts, Any]]


def words(codes: Any, bits: int) -> Any:
    """Codes (n, c) as one stream of bits a row, by a loop over codes."""
    out = np.zeros((len(codes), codes.shape[1] * bits // 32), dtype=np.uint32)
    for row, target in zip(codes, out, strict=True):
        stream = sum(int(code) << (bits * k) for k, code in enumerate(row))
        target[:] = [(stream >> (32 * w)) & 0xFFFFFFFF for w in range(len(target))]
    return out.view(np.int32)


def fp8(name: str, rng: Any) -> tuple[Parts, Any]:
    shape = shape_of(name)
    codes = rng.normal(0, 30, shape).astype(ml_dtypes.float8_e4m3fn)
    scale = rng.uniform(1e-3, 1e-2, (shape[0] // 16, 2)).astype(np.float32)
    return (
        {f"{name}.weight": codes, f"{name}.weight_scale_inv": scale},
        codes.astype(np.float32) * np.kron(scale, np.ones((16, 16), np.float32)),
    )


def gptq(name: str, rng: Any) -> tuple[Parts, Any]:
    out, inputs = shape_of(name)
    codes, zeros = rng.integers(0, 16, (out, inputs)), rng.integers(1, 16, (out, 2))
    scale = rng.uniform(0.01, 0.05, (out, 2)).astype(np.float16)
    group = rng.permutation(np.arange(inputs) // (inputs // 2)).astype(np.int32)
    parts = {
        f"{name}.qweight": np.ascontiguousarray(words(codes, 4).T),
        f"{name}.qzeros": words(zeros.T - 1, 4),
        f"{name}.scales": np.ascontiguousarray(scale.T),
        f"{name}.g_idx": group,
    }
    return parts, ((codes - zeros[:, group]) * scale.astype(np.float32)[:, group])


def nf4(name: str, rng: Any) -> tuple[Parts, Any]:
    out, inputs = shape_of(name)
    table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    codes = rng.integers(0, 16, out * inputs)
    absmax = rng.uniform(0.1, 1, -(-codes.size // 64)).astype(np.float32)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [out, inputs]}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    weight = f"{name}.weight"
    parts = {
        weight: (codes[::2] * 16 + codes[1::2]).astype(np.uint8)[:, None],
        f"{weight}.absmax": absmax,
        f"{weight}.quant_map": table,
        f"{weight}.quant_state.bitsandbytes__nf4": text.copy(),
    }
    return parts, (table[codes] * np.repeat(absmax, 64)[: codes.size]).reshape(out, inputs)


SCHEMES: dict[str, tuple[Packer, Parts, str]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [16, 16]}, "FP8_E4M3"),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 16}, "GPTQ4"),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "BNB_NF4"),
}


def shape_of(name: str) -> tuple[int, int]:
    return (KV * WIDTH, D) if "v_proj" in name or "c_attn" in name else (D, HEADS * WIDTH)


def write(folder: Path, scheme: str | None, seed: int = 0) -> Path:
    """A tiny Llama folder: quantised, or (None) with the same weights as float32."""
    pack, quantisation, _ = SCHEMES[scheme or "fp8"]
    rng = np.random.default_rng(seed)
    tensors: Parts = {"model.embed_tokens.weight": rng.normal(0, 0.2, (16, D)).astype(np.float32)}
    plain: Parts = {}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors[f"{at}input_layernorm.weight"] = rng.uniform(0.5, 2, D).astype(np.float32)
        for module in ("v_proj", "o_proj"):
            parts, weight = pack(f"{at}self_attn.{module}", rng)
            tensors |= parts
            plain[f"{at}self_attn.{module}.weight"] = weight.astype(np.float32)
    folder.mkdir()
    config = {**CONFIG, "quantization_config": quantisation}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    both = folder / "plain"
    both.mkdir()
    rest = {k: v for k, v in tensors.items() if "proj" not in k}
    save_file({**rest, **plain}, both / "model.safetensors")
    (both / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
def test_circuits_are_those_of_the_plain_weights(tmp_path: Path, scheme: str) -> None:
    folder = write(tmp_path / "m", scheme)
    found, truth = (list(open_checkpoint(f).circuits()) for f in (folder, folder / "plain"))
    assert len(found) == LAYERS
    for a, b in zip(found, truth, strict=True):
        # Two roundings of float32 apart, in a product over heads * width terms.
        np.testing.assert_allclose(a.dense(), b.dense(), atol=1e-5 * np.abs(b.dense()).max())
        assert np.abs(a.dense()).max() > 1e-3
    store = resolve(folder).store
    assert store.info("model.layers.1.self_attn.o_proj.weight").dtype == SCHEMES[scheme][2]
    assert store.names() == resolve(folder / "plain").store.names()


def test_a_permuted_group_index_is_seen(tmp_path: Path) -> None:
    pack, quantisation, _ = SCHEMES["gptq"]
    parts, truth = pack("v_proj", np.random.default_rng(0))
    parts["v_proj.g_idx"] = np.sort(parts["v_proj.g_idx"])
    store = dequantised(ArrayStore(parts), {"quantization_config": quantisation}, "model")
    assert np.abs(store.read("v_proj.weight") - truth).max() > 0.01


CT = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "channel"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "hqq"}, r"'quantization_config.quant_method' \"hqq\""),
        ({"quant_method": "torchao"}, "torchao"),
        ({"quant_method": ["gptq"]}, "quant_method' \\(a list\\)"),
        ({"bits": 4}, "quant_method' null"),
        ({"quant_method": "gptq", "bits": 5}, "bits' 5"),
        ({"quant_method": "gptq", "bits": True}, "bits' true"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, 'format\' "marlin"'),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "is_marlin_format"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size' 0"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, 'version\' "gemv"'),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:gguf"}, "packing_format"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({**CT, "format": "marlin-24"}, "marlin-24"),
        ({**CT, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({**CT, "transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        ({**CT, "config_groups": {"g": {"weights": {**WEIGHTS, "num_bits": 9}}}}, "num_bits' 9"),
        ({**CT, "config_groups": [1]}, "config_groups"),
    ],
)
def test_schemes_that_are_refused(tmp_path: Path, config: Parts, message: str) -> None:
    folder = write(tmp_path / "m", "gptq")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": config}))
    with pytest.raises(FormatError, match=message) as caught:
        resolve(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert "quantization_config." in text
    assert "GGUF" in text


def test_a_config_that_says_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "gptq")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(FormatError, match=r"g_idx|qweight.*no quantization_config"):
        resolve(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": 3}))
    with pytest.raises(FormatError, match="must be an object"):
        resolve(folder)


def test_sections_of_composite_models() -> None:
    parts, truth = gptq("t.v_proj", np.random.default_rng(0))
    own = SCHEMES["gptq"][1]
    store = ArrayStore(parts)
    found = dequantised(store, {"text_config": {"quantization_config": own}}, "model")
    np.testing.assert_allclose(found.read("t.v_proj.weight"), truth, rtol=1e-6)
    both = {"quantization_config": {**own, "bits": 8}, "text_config": {"quantization_config": own}}
    with pytest.raises(FormatError, match="more than once"):
        dequantised(store, both, "model")


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_bigcode"])
def test_modules_that_are_plain_as_in_out(model_type: str) -> None:
    # Quantisers store GPT-2's Conv1D like a linear layer; other models call linear layers c_attn.
    parts, truth = gptq("h.0.attn.c_attn", np.random.default_rng(0))
    config = {"model_type": model_type, "quantization_config": SCHEMES["gptq"][1]}
    store = dequantised(ArrayStore(parts), config, "model")
    truth = truth.T if model_type == "gpt2" else truth
    found = store.read("h.0.attn.c_attn.weight")
    assert store.info("h.0.attn.c_attn.weight").shape == truth.shape
    np.testing.assert_allclose(found, truth, rtol=1e-6)
    np.testing.assert_array_equal(store.read("h.0.attn.c_attn.weight", slice(3, 9)), found[3:9])


def test_files_below_hear_of_every_part() -> None:
    class Remote(ArrayStore):
        heard: list[Any]

        def prefetch(self, wants: Any) -> None:
            self.heard = list(wants)

    parts, _ = gptq("v", np.random.default_rng(0))
    below = Remote({**parts, "norm.weight": np.ones(4)})
    store = dequantised(below, {"quantization_config": SCHEMES["gptq"][1]}, "model")
    prefetch(store, [("v.weight", slice(0, 4)), ("norm.weight", slice(1, 2))])
    assert set(below.heard[:-1]) == {(name, None) for name in parts}
    assert below.heard[-1] == ("norm.weight", slice(1, 2))


def test_plain_models_pass_untouched() -> None:
    store = ArrayStore({"v.weight": np.ones((2, 2), ml_dtypes.bfloat16)})
    for config in ({}, {"quantization_config": None}, {"quantization_config": {}}):
        assert dequantised(store, config, "model") is store
    stale = dequantised(store, {"quantization_config": SCHEMES["gptq"][1]}, "model")
    assert stale.read("v.weight").dtype == ml_dtypes.bfloat16


def test_group_descriptions_that_differ_and_both_fit() -> None:
    codes = np.zeros((4, 8), np.int8)
    parts = {"v.weight": codes, "v.weight_scale": np.ones((4, 1), np.float32)}
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
        "b": {"weights": {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 6}},
    }
    config = {**CT, "format": "int-quantized", "config_groups": groups}
    store = dequantised(ArrayStore(parts), {"quantization_config": config}, "model")
    assert store.read("v.weight").shape == (4, 8)
    groups["b"]["weights"] = {"num_bits": 4, "type": "int", "strategy": "channel"}
    store = dequantised(ArrayStore(parts), {"quantization_config": config}, "model")
    with pytest.raises(FormatError, match="config_groups fit it and differ"):
        store.read("v.weight")


def test_memory_is_that_of_one_weight() -> None:
    inputs, outputs = 1024, 2048
    rng = np.random.default_rng(0)
    parts = {
        "v.qweight": rng.integers(-(2**31), 2**31, (inputs // 8, outputs)).astype(np.int32),
        "v.qzeros": np.full((inputs // 128, outputs // 8), 0x77777777, np.int32),
        "v.scales": np.full((inputs // 128, outputs), 0.01, np.float16),
    }
    config = {"quantization_config": {**SCHEMES["gptq"][1], "group_size": 128}}
    store = dequantised(ArrayStore(parts), config, "model")
    tracemalloc.start()
    found = store.read("v.weight")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # float32 of the weight, its words, and pieces of 1024 inputs; ArrayStore copies the words.
    assert found.nbytes == 4 * inputs * outputs
    assert peak <= 4.5 * found.nbytes


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_parts_never_escape_the_error_class(data: Any) -> None:
    scheme = data.draw(st.sampled_from(sorted(SCHEMES)))
    pack, quantisation, _ = SCHEMES[scheme]
    parts, _ = pack("v_proj", np.random.default_rng(0))
    name = data.draw(st.sampled_from(sorted(parts)))
    kinds = (np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, ml_dtypes.bfloat16)
    act = data.draw(st.sampled_from(["remove", "shape", "bytes", "dtype"]))
    if act == "remove":
        del parts[name]
    elif act == "shape":
        shape = tuple(data.draw(st.lists(st.integers(0, 40), max_size=3)))
        parts[name] = np.zeros(shape, parts[name].dtype)
    elif act == "dtype":
        parts[name] = np.ones(parts[name].shape, data.draw(st.sampled_from(kinds)))
    else:
        raw = np.array(parts[name]).reshape(-1).view(np.uint8)
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        parts[name] = raw.view(parts[name].dtype).reshape(parts[name].shape)
    found: Any = None
    message = ""
    try:
        store = dequantised(ArrayStore(parts), {"quantization_config": quantisation}, "model")
        assert isinstance(store, QuantisedStore)
        found = store.read("v_proj.weight")
    except EigenlensError as error:
        message = str(error)
    assert "\n" not in message
    assert message or found.nbytes <= 64 * 1024
