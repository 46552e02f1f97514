"""FP8 and FP4 weights against transformers' own dequantisation and plain loops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from eigenlens.errors import FormatError
from eigenlens.tensors.quantised import dequantised
from eigenlens.tensors.quantised.codes import exponents, unpack_fp4, unpack_words
from eigenlens.tensors.store import ArrayStore, TensorStore

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def opened(config: dict[str, Any], **parts: Any) -> TensorStore:
    store = ArrayStore({f"v.{part}": array for part, array in parts.items()}, "files")
    return dequantised(store, {"quantization_config": config}, "model")


def codes(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 20, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize(("shape", "block"), [((256, 384), (128, 128)), ((64, 96), (32, 16))])
def test_blocks_agree_with_transformers(dtype: Any, shape: Any, block: Any) -> None:
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    q = codes(shape, dtype)
    grid = (shape[0] // block[0], shape[1] // block[1])
    scale = np.random.default_rng(1).uniform(1e-4, 1e-2, grid).astype(np.float32)
    kind = torch.float8_e4m3fn if dtype is E4M3 else torch.float8_e5m2
    truth = fp8.Fp8Dequantize(None)._dequantize_one(
        torch.from_numpy(q.view(np.uint8)).view(kind), torch.from_numpy(scale)
    )
    store = opened(
        {"quant_method": "fp8", "weight_block_size": list(block)}, weight=q, weight_scale_inv=scale
    )
    found = store.read("v.weight")
    assert store.info("v.weight").dtype == ("FP8_E4M3" if dtype is E4M3 else "FP8_E5M2")
    np.testing.assert_array_equal(found, truth.numpy())
    assert not np.array_equal(found, q.astype(np.float32) * np.repeat(scale, 1, 0).mean())


def test_blocks_that_do_not_fill_the_matrix() -> None:
    q = codes((5, 7), E4M3)
    scale = np.random.default_rng(1).uniform(0.1, 1, (2, 3)).astype(np.float32)
    store = opened(
        {"quant_method": "fp8", "weight_block_size": [4, 3]}, weight=q, weight_scale_inv=scale
    )
    truth = np.array([[float(q[i, j]) * scale[i // 4, j // 3] for j in range(7)] for i in range(5)])
    np.testing.assert_allclose(store.read("v.weight"), truth, rtol=2**-23)
    np.testing.assert_allclose(store.read("v.weight", slice(3, 5)), truth[3:5], rtol=2**-23)


@pytest.mark.parametrize(
    ("config", "name", "shape"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "weight_scale_inv", ()),
        ({"quant_method": "fp8"}, "weight_scale", (1,)),
        ({"quant_method": "fbgemm_fp8"}, "weight_scale", (6, 1)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "weight_scale", ()),
    ],
)
def test_one_scale_a_tensor_or_a_row(config: Any, name: str, shape: Any) -> None:
    q = codes((6, 4), E4M3)
    scale = np.random.default_rng(1).uniform(0.1, 1, shape).astype(np.float32)
    store = opened(config, weight=q, **{name: scale}, input_scale=np.float32(1).reshape(1))
    assert store.names() == {"v.weight"}
    np.testing.assert_array_equal(store.read("v.weight"), q.astype(np.float32) * scale)


@pytest.mark.parametrize("kind", [np.uint8, ml_dtypes.float8_e8m0fnu])
def test_scales_that_are_powers_of_two(kind: Any) -> None:
    # MXFP8: 32 codes of a row share an exponent, stored as a byte or as its own type.
    q = codes((3, 64), E4M3)
    octets = np.array([[120, 127], [0, 130], [128, 1]], dtype=np.uint8)
    config = {"quant_method": "fp8", "weight_block_size": [1, 32]}
    store = opened(config, weight=q, weight_scale_inv=octets.view(kind))
    truth = q.astype(np.float64) * np.repeat(2.0 ** (octets.astype(int) - 127), 32, axis=1)
    np.testing.assert_array_equal(store.read("v.weight"), truth.astype(np.float32))


def test_every_byte_is_the_float_that_torch_makes_of_it() -> None:
    octets = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for dtype, kind in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)):
        found = opened(
            {"quant_method": "fp8"}, weight=octets.view(dtype), weight_scale=np.ones(1, np.float32)
        ).read("v.weight")
        truth = torch.from_numpy(octets.copy()).view(kind).float().numpy()
        np.testing.assert_array_equal(found, truth)


def test_gpt_oss_experts_agree_with_transformers() -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3, 8, 4, 16), dtype=np.uint8)
    scales = rng.integers(110, 135, (3, 8, 4), dtype=np.uint8)
    truth = mxfp4.convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    ).numpy()
    parts = {"m.gate_up_proj_blocks": blocks, "m.gate_up_proj_scales": scales}
    plain = {"m.v_proj.weight": np.ones((2, 2), ml_dtypes.bfloat16)}
    store = dequantised(
        ArrayStore({**parts, **plain}), {"quantization_config": {"quant_method": "mxfp4"}}, "model"
    )
    assert store.names() == {"m.gate_up_proj", "m.v_proj.weight"}
    assert store.info("m.gate_up_proj").dtype == "MXFP4"
    assert store.info("m.gate_up_proj").shape == truth.shape
    np.testing.assert_array_equal(store.read("m.gate_up_proj"), truth)
    np.testing.assert_array_equal(store.read("m.gate_up_proj", slice(1, 2)), truth[1:2])
    assert store.read("m.v_proj.weight").dtype == ml_dtypes.bfloat16


def test_nvfp4_of_modelopt_by_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (3, 16), dtype=np.uint8)
    scale = rng.uniform(0.5, 300, (3, 2)).astype(E4M3)
    outer = np.float32(0.0037).reshape(())
    numbers = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    truth = np.empty((3, 32))
    for i in range(3):
        for j in range(32):
            code = (int(packed[i, j // 2]) >> (4 * (j % 2))) & 15
            number = numbers[code & 7] * (-1 if code & 8 else 1)
            truth[i, j] = number * float(scale[i, j // 16]) * float(outer)
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    store = opened(config, weight=packed, weight_scale=scale, weight_scale_2=outer)
    assert store.names() == {"v.weight"}
    assert store.info("v.weight").shape == (3, 32)
    np.testing.assert_allclose(store.read("v.weight"), truth, rtol=2**-22)


@pytest.mark.parametrize("bits", range(1, 9))
def test_words_by_a_loop_over_bits(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for count in (1, 31, 32, 33, 70):
        truth = rng.integers(0, 2**bits, (3, count))
        words = np.zeros((3, -(-count * bits // 32)), dtype=np.uint32)
        for i in range(3):
            stream = sum(int(code) << (bits * k) for k, code in enumerate(truth[i]))
            words[i] = [(stream >> (32 * w)) & 0xFFFFFFFF for w in range(words.shape[1])]
        np.testing.assert_array_equal(unpack_words(words.view(np.int32), bits, count), truth)


def test_exponents_and_fp4_are_those_of_ml_dtypes() -> None:
    octets = np.arange(256, dtype=np.uint8)
    truth = octets.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(exponents(octets), truth)
    halves = np.stack([octets & 15, octets >> 4], -1).astype(np.uint8)
    four = halves.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(unpack_fp4(octets[None]), four.reshape(1, -1))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"weight": codes((6, 4), E4M3)}, "no scale"),
        ({"weight": codes((6, 4), np.float32), "weight_scale_inv": np.ones(1)}, "stored as F32"),
        (
            {"weight": codes((6, 4), E4M3), "weight_scale_inv": np.ones((3, 1), np.float32)},
            r"shape \(3, 1\), expected \(2, 1\)",
        ),
        (
            {
                "weight": codes((6, 4), E4M3),
                "weight_scale_inv": np.ones((2, 1), np.float32),
                "weight_scale": np.ones((2, 1), np.float32),
            },
            "2 kinds of scales",
        ),
        (
            {"weight": codes((2, 6, 4), E4M3), "weight_scale_inv": np.ones((2, 1), np.float32)},
            "matrices only",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: Any, message: str) -> None:
    store = opened({"quant_method": "fp8", "weight_block_size": [4, 4]}, **parts)
    for call in (store.info, store.read):
        with pytest.raises(FormatError, match=message) as caught:
            call("v.weight")
        assert "v.weight" in str(caught.value)
        assert "GGUF" in str(caught.value)
        assert "\n" not in str(caught.value)
