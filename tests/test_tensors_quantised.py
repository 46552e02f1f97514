"""Quantised weights against the libraries that write them.

`golden/quantised.safetensors.gz` holds one small layer of each scheme, packed by the library that
its metadata names, and under `=` the matrix that the same library makes of it in float32.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from eigenlens.errors import FormatError
from eigenlens.tensors.quantised import dequantised
from eigenlens.tensors.safetensors_file import SafetensorsFile
from eigenlens.tensors.store import ArrayStore, TensorStore

GOLDEN = Path(__file__).parent / "golden" / "quantised.safetensors.gz"
DTYPES = {
    "gptq2": "GPTQ2",
    "gptq3": "GPTQ3",
    "gptq4": "GPTQ4",
    "gptq8": "GPTQ8",
    "awq": "AWQ4",
    "bnb_nf4": "BNB_NF4",
    "bnb_nf4_double": "BNB_NF4",
    "bnb_fp4": "BNB_FP4",
    "bnb_int8": "BNB_INT8",
    "ct_int4": "CT_INT4",
    "ct_int4_zero": "CT_INT4",
    "ct_int8_packed": "CT_INT8",
    "ct_int8": "CT_INT8",
    "ct_int8_zero": "CT_INT8",
    "ct_fp8": "FP8_E4M3",
    "ct_fp8_rows": "FP8_E4M3",
    "ct_fp8_block": "FP8_E4M3",
    "ct_nvfp4": "NVFP4",
    "ct_mxfp4": "MXFP4",
    "ct_mxfp8": "FP8_E4M3",
}
# The part whose damage the comparison must see, and is nothing but a permutation or a bit.
MAIN = ("qweight", "weight_packed", "weight")


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> SafetensorsFile:
    path = tmp_path_factory.mktemp("golden") / "quantised.safetensors"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    return SafetensorsFile(path)


def case(golden: SafetensorsFile, name: str) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Config, parts and expected matrix of one case."""
    parts = {n.split("/", 1)[1]: golden.read(n) for n in golden.names() if n.startswith(f"{name}/")}
    truth = parts.pop("=")
    return json.loads(golden.metadata[name])["config"], parts, truth


def opened(config: dict[str, Any], parts: dict[str, Any]) -> TensorStore:
    """The parts as module `m.v_proj` of a model with this quantization config."""
    store = ArrayStore({f"m.v_proj.{part}": array for part, array in parts.items()}, "files")
    return dequantised(store, {"model_type": "llama", "quantization_config": config}, "model")


def test_every_case_is_named(golden: SafetensorsFile) -> None:
    assert set(golden.metadata) == set(DTYPES)


@pytest.mark.parametrize("name", DTYPES)
def test_agrees_with_the_library(golden: SafetensorsFile, name: str) -> None:
    config, parts, truth = case(golden, name)
    store = opened(config, parts)
    assert store.names() == {"m.v_proj.weight"}
    info = store.info("m.v_proj.weight")
    assert (info.dtype, info.shape) == (DTYPES[name], truth.shape)
    found = store.read("m.v_proj.weight")
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    # bitsandbytes multiplies by a rounded 1/127; all others must agree to the bit.
    units = 1 if name == "bnb_int8" else 0
    np.testing.assert_array_max_ulp(found, truth, maxulp=max(units, 1))
    if not units:
        np.testing.assert_array_equal(found, truth)
    np.testing.assert_array_equal(store.read("m.v_proj.weight", slice(5, 17)), found[5:17])


@pytest.mark.parametrize("name", DTYPES)
def test_the_comparison_sees_one_flipped_bit(golden: SafetensorsFile, name: str) -> None:
    config, parts, truth = case(golden, name)
    part = next(p for p in MAIN if p in parts)
    raw = np.array(parts[part]).reshape(-1).view(np.uint8)
    raw[len(raw) // 3] ^= 1
    parts[part] = raw.view(parts[part].dtype).reshape(parts[part].shape)
    found = opened(config, parts).read("m.v_proj.weight")
    assert np.count_nonzero(found != truth) >= 1
    assert np.abs(found - truth).max() > 1e-4


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_zero_points_of_both_formats(golden: SafetensorsFile, bits: int) -> None:
    # The second format stores the zero point itself: the same words then mean one code less.
    config, parts, truth = case(golden, f"gptq{bits}")
    second = opened({**config, "checkpoint_format": "gptq_v2"}, parts).read("m.v_proj.weight")
    scales = parts["scales"].astype(np.float32)[parts["g_idx"]].T
    np.testing.assert_allclose(second - truth, scales, atol=1e-6 * 2**bits)
    first = opened({**config, "checkpoint_format": "gptq"}, parts).read("m.v_proj.weight")
    np.testing.assert_array_equal(first, truth)


def test_gptq_without_group_index(golden: SafetensorsFile) -> None:
    # Where the groups are runs of inputs, g_idx says nothing; the golden layer's are shuffled.
    config, parts, truth = case(golden, "gptq4")
    shuffled = parts.pop("g_idx")
    assert (opened(config, parts).read("m.v_proj.weight") != truth).any()
    runs = {**parts, "g_idx": np.sort(shuffled)}
    expected = opened(config, runs).read("m.v_proj.weight")
    for plain in (config, {**config, "desc_act": False}):
        np.testing.assert_array_equal(opened(plain, parts).read("m.v_proj.weight"), expected)
    rounded = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
    rounded |= {"bits": 4, "group_size": 32}
    np.testing.assert_array_equal(opened(rounded, parts).read("m.v_proj.weight"), expected)


def test_gptq_widths_that_differ_between_modules(golden: SafetensorsFile) -> None:
    config, parts, truth = case(golden, "gptq8")
    mixed = {**config, "bits": 4, "dynamic": {"+:.*v_proj": {"bits": 8}}}
    store = opened(mixed, parts)
    assert store.info("m.v_proj.weight").dtype == "GPTQ8"
    np.testing.assert_array_equal(store.read("m.v_proj.weight"), truth)


def test_awq_order_is_not_the_plain_one(golden: SafetensorsFile) -> None:
    config, parts, truth = case(golden, "awq")
    found = opened(config, parts).read("m.v_proj.weight")
    plain = found[[0, 2, 4, 6, 1, 3, 5, 7]]
    assert not np.array_equal(plain, truth[:8])
    np.testing.assert_array_equal(found[:8], truth[:8])
    aliases = {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"}
    np.testing.assert_array_equal(opened(aliases, parts).read("m.v_proj.weight"), truth)


def test_codes_in_a_wider_storage_type(golden: SafetensorsFile) -> None:
    config, parts, truth = case(golden, "bnb_nf4")
    parts["weight"] = parts["weight"].reshape(-1).view(ml_dtypes.bfloat16)[:, None]
    np.testing.assert_array_equal(opened(config, parts).read("m.v_proj.weight"), truth)


def test_groups_of_a_config_that_differ(golden: SafetensorsFile) -> None:
    # Two groups for different modules: the stored types tell which is meant.
    config, parts, truth = case(golden, "ct_int4_zero")
    other = case(golden, "ct_fp8_rows")
    words = config["config_groups"]["group_0"]
    both = {
        "floats": other[0]["config_groups"]["group_0"],
        "words": words | {"targets": ["re:.*v_proj"], "format": "pack-quantized"},
        "same": words | {"targets": ["re:(a+)+$"]},
    }
    mixed = {**config, "format": "mixed-precision", "config_groups": both}
    np.testing.assert_array_equal(opened(mixed, parts).read("m.v_proj.weight"), truth)
    np.testing.assert_array_equal(opened(mixed, other[1]).read("m.v_proj.weight"), other[2])


def test_zero_points_of_a_symmetric_scheme(golden: SafetensorsFile) -> None:
    config, parts, truth = case(golden, "ct_int8")
    parts["weight_zero_point"] = np.zeros((len(truth), 1), np.int8)
    parts["input_zero_point"] = np.zeros(1, np.int8)
    store = opened(config, parts)
    assert store.names() == {"m.v_proj.weight"}
    np.testing.assert_array_equal(store.read("m.v_proj.weight"), truth)
    parts["weight_zero_point"][3] = 1
    with pytest.raises(FormatError, match="zero points other than 0"):
        opened(config, parts).read("m.v_proj.weight")
    asymmetric = case(golden, "ct_int8_zero")[0]
    del parts["weight_zero_point"]
    with pytest.raises(FormatError, match="no zero points, the config says symmetric=false"):
        opened(asymmetric, parts).info("m.v_proj.weight")


def test_compression_config_of_older_files(golden: SafetensorsFile) -> None:
    config, parts, truth = case(golden, "ct_int4")
    del config["quant_method"]
    store = ArrayStore({f"m.v_proj.{k}": v for k, v in parts.items()}, "files")
    for old in (config, {"quantization_config": config, "sparsity_config": {"format": "dense"}}):
        found = dequantised(store, {"compression_config": old}, "model")
        np.testing.assert_array_equal(found.read("m.v_proj.weight"), truth)


@pytest.mark.parametrize("name", ["gptq4", "awq", "bnb_nf4_double", "ct_int4_zero", "ct_nvfp4"])
def test_nothing_is_read_before_it_is_asked_for(golden: SafetensorsFile, name: str) -> None:
    config, parts, _ = case(golden, name)
    store = ArrayStore({f"m.v_proj.{k}": v for k, v in parts.items()}, "files")
    read: list[str] = []
    plain = store.read

    def watched(name: str, rows: slice | None = None) -> Any:
        read.append(name)
        return plain(name, rows)

    store.read = watched  # type: ignore[method-assign]
    found = dequantised(store, {"quantization_config": config}, "model")
    assert found.names()
    assert not read
    found.info("m.v_proj.weight")
    # The shape of a packed weight may be stored; codes and scales are not touched for it.
    assert not [n for n in read if not n.endswith(("weight_shape", "__nf4"))]
