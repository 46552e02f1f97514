"""GGUF files of many architectures against the transformers models that they were made of.

The files are written here: names by the `gguf` package's own map from transformers' names, and
what llama.cpp's converter does to the tensors besides, in `CONVERTED`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.architectures.gguf import GGUF
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.layouts import Geometry
from eigenlens.errors import ArchitectureError, EigenlensError
from eigenlens.tensors.gguf_config import MODEL_TYPES, NO_F
from eigenlens.tensors.gguf_file import GGUFFile
from zoo import build

PREFIXES = ("", "model.", "transformer.", "gpt_neox.", "bert.", "encoder.", "decoder.")
# Architecture, and the model type when GGUF's name for it is another.
PAIRS = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi2": "phi",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "starcoder": "gpt_bigcode",
    "starcoder2": "starcoder2",
    "gptneox": "gpt_neox",
    "bloom": "bloom",
    "falcon": "falcon",
    "mpt": "mpt",
    "stablelm": "stablelm",
    "command-r": "cohere",
    "cohere2": "cohere2",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "nemotron": "nemotron",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "exaone4": "exaone4",
    "glm4": "glm4",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "dots1": "dots1",
    "arcee": "arcee",
    "ernie4_5": "ernie4_5",
    "hunyuan-dense": "hunyuan_v1_dense",
    "smollm3": "smollm3",
    "seed_oss": "seed_oss",
    "apertus": "apertus",
    "minimax-m2": "minimax_m2",
    "eurobert": "eurobert",
    "bert": "bert",
    "t5": "t5",
}
Tensor = Any
Change = Callable[[str, Tensor, Any], Tensor]


def offset(name: str, x: Tensor, config: Any) -> Tensor:
    return x + 1 if name.endswith("norm.weight") else x


def transposed(name: str, x: Tensor, config: Any) -> Tensor:
    linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return x.T if name.endswith(linear) else x


def sorted_heads(name: str, x: Tensor, config: Any) -> Tensor:
    """[q; k; v] of each head next to each other become all q, all k, all v."""
    if "query_key_value" not in name:
        return x
    parts = x.reshape(config.num_attention_heads, 3, -1, *x.shape[1:]).swapaxes(0, 1)
    return parts.reshape(x.shape)


def sorted_groups(name: str, x: Tensor, config: Any) -> Tensor:
    if "query_key_value" not in name:
        return x
    n, kv = config.num_attention_heads, 1 if config.multi_query else config.num_attention_heads
    kv = config.num_kv_heads if config.new_decoder_architecture else kv
    groups = x.reshape(kv, n // kv + 2, -1, *x.shape[1:])
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return np.concatenate([p.reshape(-1, *x.shape[1:]) for p in parts])


def permuted(name: str, x: Tensor, config: Any) -> Tensor:
    """Query and key rows in the order of the other rotary embedding."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return x
    return x.reshape(-1, 2, x.shape[0] // 2 // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


CONVERTED: dict[str, Change] = {
    "llama": permuted,
    "gemma": offset,
    "gemma2": offset,
    "gemma3": offset,
    "nemotron": offset,
    "gpt2": transposed,
    "gptneox": sorted_heads,
    "bloom": sorted_heads,
    "falcon": sorted_groups,
}


def geometry(model: Any) -> Any:
    """Sizes as our row has them, or where there is none yet, as the usual config keys do."""
    c = model.config
    if c.model_type in ARCHITECTURES:
        return open_checkpoint(model).plans[0].geometry
    kv = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return Geometry(c.hidden_size, c.num_hidden_layers, c.num_attention_heads, kv, head_dim)


def write(path: Path, arch: str, model: Any, *, fuse: bool = False) -> Path:
    """The model as a GGUF file of this architecture, in float32."""
    config, g = model.config, geometry(model)
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "embedding_length": g.d_model,
        "block_count": g.n_layers,
        "attention.head_count": g.n_heads,
        "attention.head_count_kv": g.n_kv_heads,
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"{arch}.{key}", number)
    if arch.startswith("granite"):
        writer.add_float32(f"{arch}.residual_scale", config.residual_multiplier)
    if arch in ("gptneox", "stablelm"):
        writer.add_bool(f"{arch}.use_parallel_residual", config.use_parallel_residual)
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(kind, g.n_layers)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.state_dict().items():
        found = None
        for prefix in PREFIXES:
            found = found or names.get_name(prefix + name, (".weight", ".bias"))
        if found is None:
            continue
        change = CONVERTED.get(arch, lambda name, x, config: x)
        array = change(name, parameter.detach().float().numpy(), config)
        tensors[found] = np.ascontiguousarray(array, dtype=np.float32)
    if fuse:
        for layer in range(g.n_layers):
            at = f"blk.{layer}.attn_"
            for end in ("weight", "bias"):
                three = [tensors.pop(f"{at}{p}.{end}", None) for p in "qkv"]
                if three[0] is not None:
                    tensors[f"{at}qkv.{end}"] = np.concatenate(three)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def close(found: Any, truth: Any, what: str) -> None:
    assert (found is None) == (truth is None), what
    if truth is not None:
        assert_allclose(found, truth, rtol=1e-5, atol=1e-6, err_msg=what)


def same_circuits(found: Any, truth: Any) -> None:
    """F, biases, norms, scales and places of two checkpoints, layer by layer."""
    pairs = list(zip(found.circuits(), truth.circuits(), strict=True))
    assert pairs
    for a, b in pairs:
        assert np.abs(b.dense()).max() > 1e-3
        assert_allclose(a.dense(), b.dense(), atol=1e-5 * np.abs(b.dense()).max())
        for name in ("placement", "kind", "stack", "steps", "layer", "n_heads", "n_kv_heads"):
            assert getattr(a, name) == getattr(b, name), name
        close(a.output_scale, b.output_scale, "output_scale")
        close(a.bias if a.has_bias else None, b.bias if b.has_bias else None, "bias")
        for which in ("norm_in", "norm_out"):
            mine, other = getattr(a, which), getattr(b, which)
            assert (mine is None) == (other is None), which
            if other is not None:
                assert mine.kind == other.kind
                close(mine.gain, other.gain, which)
                close(mine.bias, other.bias, which)
    for a, b in zip(found.plans, truth.plans, strict=True):
        assert a.causal == b.causal


@pytest.mark.parametrize("arch", PAIRS)
def test_agrees_with_the_model(tmp_path: Path, arch: str) -> None:
    model = build(PAIRS[arch])
    same_circuits(open_checkpoint(write(tmp_path / "m.gguf", arch, model)), open_checkpoint(model))


def test_enough_of_them_are_compared() -> None:
    assert len(PAIRS) >= 17
    assert set(PAIRS.values()) <= set(ARCHITECTURES)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_projections_that_the_converter_fused(tmp_path: Path, arch: str) -> None:
    model = build(PAIRS[arch])
    path = write(tmp_path / "m.gguf", arch, model, fuse=True)
    assert "blk.0.attn_qkv.weight" in GGUFFile(path).names()
    same_circuits(open_checkpoint(path), open_checkpoint(model))


@pytest.mark.parametrize("arch", ["gptneox", "bloom", "gpt2", "gemma"])
def test_what_the_converter_does_is_seen(
    tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(PAIRS[arch])
    monkeypatch.delitem(CONVERTED, arch)
    with pytest.raises((AssertionError, EigenlensError)):
        same_circuits(
            open_checkpoint(write(tmp_path / "m.gguf", arch, model)), open_checkpoint(model)
        )


def test_heads_that_differ_from_layer_to_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "openelm")
    numbers = {"embedding_length": 16, "block_count": 2}
    for key, n in {**numbers, "attention.key_length": 4, "attention.value_length": 4}.items():
        writer.add_uint32(f"openelm.{key}", n)
    heads = ((4, 1), (8, 2))
    writer.add_array("openelm.attention.head_count", [n for n, _ in heads])
    writer.add_array("openelm.attention.head_count_kv", [kv for _, kv in heads])
    fused = [rng.normal(0, 1, (4 * (n + 2 * kv), 16)).astype(np.float32) for n, kv in heads]
    for layer, (n, _) in enumerate(heads):
        writer.add_tensor(f"blk.{layer}.attn_qkv.weight", fused[layer])
        writer.add_tensor(f"blk.{layer}.attn_output.weight", np.ones((16, 4 * n), np.float32))
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(16, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    circuits = list(open_checkpoint(tmp_path / "m.gguf").circuits())
    assert [(c.n_heads, c.n_kv_heads) for c in circuits] == list(heads)
    for c, stored in zip(circuits, fused, strict=True):
        assert_allclose(c.W_V, stored[-4 * c.n_kv_heads :])


def test_falcon_with_two_norms(tmp_path: Path) -> None:
    # Attention of the new decoder reads ln_attn, which is called attn_norm_2; attn_norm is ln_mlp.
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "falcon")
    sizes = {"embedding_length": 16, "block_count": 1}
    for key, n in {**sizes, "attention.head_count": 4, "attention.head_count_kv": 2}.items():
        writer.add_uint32(f"falcon.{key}", n)
    tensors = {"attn_qkv.weight": (32, 16), "attn_output.weight": (16, 16)}
    tensors |= {f"{n}.{e}": (16,) for n in ("attn_norm", "attn_norm_2") for e in ("weight", "bias")}
    arrays = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in tensors.items()}
    for name, array in arrays.items():
        writer.add_tensor(f"blk.0.{name}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    circuit = next(iter(open_checkpoint(tmp_path / "m.gguf").circuits()))
    assert circuit.placement == "parallel"
    assert_allclose(circuit.norm_in.gain, arrays["attn_norm_2.weight"])
    assert_allclose(circuit.W_V, arrays["attn_qkv.weight"][24:])


def test_tables_speak_of_the_same_architectures() -> None:
    assert set(GGUF) - {"falcon/attn_norm_2"} == set(MODEL_TYPES)
    assert not set(NO_F) & set(MODEL_TYPES)
    known = set(gguf.MODEL_ARCH_NAMES.values())
    assert set(MODEL_TYPES) <= known
    assert len(MODEL_TYPES) >= 75
    for arch in MODEL_TYPES:
        for naming in GGUF[arch].stacks[0].namings:
            text = naming.value.removeprefix("enc.").removeprefix("blk.{layer}.")
            assert any(t.endswith(text) for t in gguf.TENSOR_NAMES.values())


def test_each_architecture_without_f_says_why(tmp_path: Path) -> None:
    for arch in ("mamba", "deepseek2", "gemma4", "bitnet"):
        writer = gguf.GGUFWriter(tmp_path / f"{arch}.gguf", arch)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(ArchitectureError, match=f"'{arch}' has no F that can be read") as error:
            open_checkpoint(tmp_path / f"{arch}.gguf")
        assert NO_F[arch] in str(error.value)
