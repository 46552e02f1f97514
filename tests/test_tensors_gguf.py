"""GGUFFile against the gguf package's own reader and writer, and damaged files."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenlens.errors import (
    ArchitectureError,
    EigenlensError,
    FormatError,
    MissingDependencyError,
    SourceError,
)
from eigenlens.samples import sample_path
from eigenlens.tensors.gguf_config import MODEL_TYPES
from eigenlens.tensors.gguf_file import GGUFFile
from eigenlens.tensors.source import resolve

SIZES = {
    "embedding_length": 64,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
KINDS = (Quant.F32, Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_1)


def write(path: Path, arch: str = "llama", **changes: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A small file by the reference writer, and its tensors as the reference dequantises them."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**SIZES, **changes.pop("sizes", {})}.items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(changes.get("model", "gpt2"))
    tokens = ["a", "\u0120b", "\u010a", "\u00c3\u00a9", "<s>\u0120"]
    writer.add_token_list(changes.get("tokens", tokens))
    writer.add_token_types(changes.get("kinds", [1, 1, 1, 1, 3]))
    rng = np.random.default_rng(0)
    truth = {}
    for kind in KINDS:
        array = rng.normal(0, 0.2, (6, 64)).astype(np.float32)
        stored = gguf.quants.quantize(array, kind)
        writer.add_tensor(f"blk.0.{kind.name}.weight", stored, raw_dtype=kind)
        truth[f"blk.0.{kind.name}.weight"] = gguf.quants.dequantize(stored, kind)
    gain = rng.normal(0, 0.2, 64).astype(np.float32)
    writer.add_tensor("norm.weight", gain)
    truth["norm.weight"] = gain
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, truth


def test_every_kind_agrees_with_the_package(tmp_path: Path) -> None:
    path, truth = write(tmp_path / "m.gguf")
    store = GGUFFile(path)
    assert store.names() == set(truth)
    for name, array in truth.items():
        found = store.read(name)
        assert found.dtype == np.float32, name
        np.testing.assert_array_equal(found, array, err_msg=name)
        np.testing.assert_array_equal(store.read(name, slice(2, 5)), array[2:5], err_msg=name)
        assert store.info(name).shape == array.shape
    assert store.info("blk.0.Q4_1.weight").dtype == "Q4_1"


QUANTS = sorted(gguf.quants._type_traits, key=lambda q: q.name)


@pytest.mark.parametrize("kind", QUANTS, ids=lambda q: q.name)
def test_every_type_that_the_package_knows(tmp_path: Path, kind: Quant) -> None:
    size, octets = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (4, 2 * octets), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"):
        truth = gguf.quants.dequantize(blocks, kind)
    store = GGUFFile(tmp_path / "m.gguf")
    assert (store.info("a.weight").dtype, store.info("a.weight").shape) == (
        kind.name,
        (4, 2 * size),
    )
    np.testing.assert_array_equal(store.read("a.weight"), truth)
    np.testing.assert_array_equal(store.read("a.weight", slice(1, 3)), truth[1:3])
    assert np.isfinite(truth).any()


def test_the_scale_beside_a_weight(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0, 1, (4, 32)).astype(np.float32)
    for shape, good in (((1,), True), ((4,), False)):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.add_tensor("blk.0.attn_v.weight", x)
        writer.add_tensor("blk.0.attn_v.scale", np.full(shape, 0.25, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        store = GGUFFile(tmp_path / "m.gguf")
        if good:
            np.testing.assert_array_equal(
                store.read("blk.0.attn_v.weight", slice(1, 3)), x[1:3] / 4
            )
            assert store.read("blk.0.attn_v.scale") == 0.25
            continue
        with pytest.raises(FormatError, match=r"attn_v\.scale.*must be one F32 number"):
            store.read("blk.0.attn_v.weight")


def test_the_oracle_sees_a_file_shifted_by_one_block(tmp_path: Path) -> None:
    path, truth = write(tmp_path / "m.gguf")
    raw = bytearray(path.read_bytes())
    start = GGUFFile(path)._entries["blk.0.Q8_0.weight"].start
    raw[start : start + 68] = raw[start + 34 : start + 68] + raw[start : start + 34]
    path.write_bytes(bytes(raw))
    found = GGUFFile(path).read("blk.0.Q8_0.weight")
    assert not np.array_equal(found, truth["blk.0.Q8_0.weight"])


def test_sample_agrees_with_the_package_reader() -> None:
    path = sample_path("smollm2")
    store = GGUFFile(path)
    reference = gguf.GGUFReader(path)
    assert store.names() == {t.name for t in reference.tensors}
    for tensor in reference.tensors:
        assert store.info(tensor.name).shape == tuple(int(n) for n in tensor.shape[::-1])
        if tensor.name.startswith(("blk.7.attn_v", "blk.7.attn_o", "blk.7.attn_norm")):
            truth = gguf.quants.dequantize(np.array(tensor.data), tensor.tensor_type)
            np.testing.assert_array_equal(store.read(tensor.name), truth)


def test_sample_config_and_tokens() -> None:
    source = resolve("sample:smollm2")
    assert source.format == "gguf"
    expected = {
        "model_type": "llama",
        "gguf": True,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    assert {key: source.config[key] for key in expected} == expected
    assert source.config["rms_norm_eps"] == pytest.approx(1e-5)
    tokens = source.tokens()
    assert len(tokens) == 49152
    assert " Paris" in tokens
    assert tokens[0] == "<|endoftext|>"
    assert not any("\u0120" in token for token in tokens)
    assert source.tokens() is tokens


@pytest.mark.parametrize("arch", MODEL_TYPES)
def test_config_of_every_architecture(tmp_path: Path, arch: str) -> None:
    sizes = {"attention.value_length": 24, "residual_scale": 1}
    path, _ = write(tmp_path / "m.gguf", arch, sizes=sizes)
    config = GGUFFile(path).config()
    assert config["model_type"] == MODEL_TYPES[arch]
    assert config["gguf"] is True
    assert (config["hidden_size"], config["num_hidden_layers"]) == (64, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["head_dim"] == 24
    assert config["vocab_size"] == 5
    assert config["gguf_architecture"] == arch
    assert (config["gguf_key_length"], config["residual_multiplier"]) == (16, 1)


def test_defaults_when_keys_are_absent(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "m.gguf", sizes={"attention.head_count_kv": None})
    config = GGUFFile(path).config()
    assert (config["num_key_value_heads"], config["head_dim"]) == (4, 16)
    path, _ = write(tmp_path / "n.gguf", sizes={"attention.head_count_kv": [2, 2]})
    assert GGUFFile(path).config()["num_key_value_heads"] == 2
    path, _ = write(tmp_path / "o.gguf", sizes={"attention.head_count_kv": [2, 4]})
    assert GGUFFile(path).config()["num_key_value_heads"] == [2, 4]


@pytest.mark.parametrize(
    ("arch", "sizes", "kind", "message"),
    [
        ("lama", {}, ArchitectureError, r"'lama' is not read \(nearest: 'llama'.*known: llama"),
        ("mamba", {}, ArchitectureError, "'mamba' has no F that can be read: it has no softmax"),
        ("olmo", {"attention.clamp_kqv": 8}, ArchitectureError, "values are clamped"),
        ("minicpm", {}, ArchitectureError, r"minicpm\.residual_scale"),
        ("llama", {"embedding_length": [64, 32]}, FormatError, "embedding_length' is missing"),
        ("llama", {"embedding_length": None}, FormatError, "embedding_length' is missing"),
    ],
)
def test_configs_that_cannot_be_made(
    tmp_path: Path, arch: str, sizes: Any, kind: type[EigenlensError], message: str
) -> None:
    path, _ = write(tmp_path / "m.gguf", arch, sizes=sizes)
    with pytest.raises(kind, match=message):
        GGUFFile(path).config()


def test_tokens_of_both_alphabets(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "m.gguf")
    assert GGUFFile(path).tokens() == ["a", " b", "\n", "é", "<s>\u0120"]
    tokens = ["\u2581the", "<0x0A>", "<0xE2>", "x", "<s>"]
    path, _ = write(tmp_path / "n.gguf", model="llama", tokens=tokens, kinds=[1, 6, 6, 1, 3])
    assert GGUFFile(path).tokens() == [" the", "\n", "<0xE2>", "x", "<s>"]


def test_no_vocabulary(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"ggml.tokens", b"ggml.tokenx"))
    with pytest.raises(SourceError, match="no vocabulary"):
        resolve(path).tokens()


def test_unknown_tensor_and_unknown_type(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "m.gguf")
    with pytest.raises(ArchitectureError, match=r"nearest: 'norm\.weight'"):
        GGUFFile(path).read("norm.weigh")
    raw = path.read_bytes()
    at = raw.index(b"norm.weight") + len(b"norm.weight") + 4 + 8
    path.write_bytes(raw[:at] + struct.pack("<I", 999) + raw[at + 4 :])
    store = GGUFFile(path)
    assert "blk.0.F32.weight" in store.names()
    with pytest.raises(FormatError, match="GGML type 999"):
        store.read("norm.weight")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = write(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'eigenlens\[gguf\]'"):
        GGUFFile(path)


def test_truncations_and_garbage(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "m.gguf")
    raw = path.read_bytes()
    end = GGUFFile(path)._entries["norm.weight"]
    for length in [*range(0, end.start, 97), end.start + end.row_bytes - 1]:
        path.write_bytes(raw[:length])
        with pytest.raises(FormatError, match=r"m\.gguf"):
            GGUFFile(path)
    for content in (
        bytes(100),
        b"GGUF" + b"\xff" * 100,
        b"GGUF" + struct.pack(">I", 3) + bytes(99),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"m\.gguf"):
            GGUFFile(path)


def test_truncated_after_opening(tmp_path: Path) -> None:
    path, _ = write(tmp_path / "m.gguf")
    store = GGUFFile(path)
    kept = store.read("blk.0.F32.weight")
    os.truncate(path, 300)
    with pytest.raises(FormatError, match="truncated"):
        store.read("norm.weight")
    with pytest.raises(FormatError, match="truncated"):
        store.tokens()
    assert np.isfinite(kept).all()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_headers_never_escape_the_error_class(tmp_path_factory: Any, data: Any) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path, _ = write(folder / "x.gguf")
    raw = bytearray(path.read_bytes())
    limit = GGUFFile(path)._entries["blk.0.F32.weight"].start
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, limit))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    messages = []
    try:
        store = GGUFFile(path)
        known = [name for name in store.names() if "type" not in store.info(name).dtype]
        arrays = [store.read(name) for name in known]
        messages.append(f"{store.config()['model_type']} {len(store.tokens() or ())}")
    except EigenlensError as error:
        arrays = []
        messages.append(str(error))
    assert sum(a.nbytes for a in arrays) <= 64 * len(raw)
    assert "\n" not in messages[0]
