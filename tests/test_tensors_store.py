"""ArrayStore, ShardedStore and the folder rules: the index decides, nothing leaves the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from eigenlens.errors import (
    ArchitectureError,
    EigenlensError,
    FormatError,
    OptionError,
    SourceError,
)
from eigenlens.tensors.folder import open_folder
from eigenlens.tensors.store import ArrayStore

RNG = np.random.default_rng(0)
W = RNG.normal(0, 0.2, (4, 3)).astype(np.float32)


INDEX = "model.safetensors.index.json"


def shards(folder: Path, weight_map: dict[str, Any], index: str = INDEX) -> None:
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_arrays_and_tensors_bit_for_bit() -> None:
    base = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)) * 0.2
    state = {
        "numpy": W,
        "float": base,
        "transposed": base.T,
        "parameter": torch.nn.Parameter(base),
        "bf16": base.to(torch.bfloat16),
        "bf16 transposed": base.to(torch.bfloat16).T,
        "half": base.half(),
        "fp8": base.to(torch.float8_e4m3fn),
        "ml_dtypes": W.astype(ml_dtypes.bfloat16),
    }
    store = ArrayStore(state)
    assert store.names() == set(state)
    np.testing.assert_array_equal(store.read("numpy"), W)
    for name in ("float", "transposed", "parameter", "half"):
        np.testing.assert_array_equal(store.read(name), state[name].detach().numpy())
    for name in ("bf16", "bf16 transposed", "fp8"):
        found = store.read(name)
        assert found.dtype.name in ("bfloat16", "float8_e4m3fn")
        np.testing.assert_array_equal(found.astype(np.float32), state[name].float().numpy())
        np.testing.assert_array_equal(store.read(name, slice(1, 3)), found[1:3])
    kinds = [store.info(n).dtype for n in ("numpy", "float", "bf16", "half", "fp8", "ml_dtypes")]
    assert kinds == ["F32", "F32", "BF16", "F16", "F8_E4M3", "BF16"]


def test_reading_copies() -> None:
    array, tensor = W.copy(), torch.ones(3)
    store = ArrayStore({"a": array, "t": tensor})
    store.read("a")[:] = 7
    store.read("t")[:] = 7
    store.read("a", slice(0, 2))[:] = 7
    np.testing.assert_array_equal(array, W)
    assert tensor.sum() == 3


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ({3: W}, FormatError, "must be text"),
        ({"a": [1.0]}, FormatError, "is a list"),
        ({"a": np.array([None])}, FormatError, "Python objects"),
        ({"a": torch.ones(2, device="meta")}, FormatError, "meta device"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, FormatError, "complex64"),
        ({"ab": W}, ArchitectureError, "nearest: 'ab'"),
    ],
)
def test_arrays_that_are_no_weights(arrays: Any, kind: type[EigenlensError], message: str) -> None:
    with pytest.raises(kind, match=message):
        ArrayStore(arrays).read("a")


def test_rows_with_a_step_are_refused() -> None:
    with pytest.raises(OptionError, match="step"):
        ArrayStore({"a": W}).read("a", slice(0, 4, 2))


def test_shards_are_opened_when_needed(tmp_path: Path) -> None:
    save_file({"a": W}, tmp_path / "one.safetensors")
    (tmp_path / "two.safetensors").write_bytes(b"damaged")
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    store, kind = open_folder(tmp_path)
    assert kind == "safetensors"
    assert store.names() == {"a", "b"}
    np.testing.assert_array_equal(store.read("a", slice(1, 3)), W[1:3])
    assert store.info("a").where == "one.safetensors"
    with pytest.raises(FormatError, match=r"two\.safetensors"):
        store.read("b")
    with pytest.raises(ArchitectureError, match="no tensor 'c'"):
        store.info("c")


def test_the_index_is_the_authority(tmp_path: Path) -> None:
    save_file({"a": W, "x": W}, tmp_path / "one.safetensors")
    save_file({"a": W + 1, "b": W}, tmp_path / "two.safetensors")
    save_file({"a": W + 2}, tmp_path / "model.safetensors")
    shards(tmp_path, {"a": "two.safetensors", "b": "one.safetensors"})
    store, _ = open_folder(tmp_path)
    np.testing.assert_array_equal(store.read("a"), W + 1)
    assert "x" not in store.names()
    with pytest.raises(FormatError, match=r"'b' in one\.safetensors, which does not hold it"):
        store.read("b")


def test_missing_shards_are_listed(tmp_path: Path) -> None:
    save_file({"a": W}, tmp_path / "one.safetensors")
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors", "c": "three.safetensors"})
    with pytest.raises(SourceError, match=r"2 are missing: three\.safetensors, two\.safetensors"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "file",
    ["../x.safetensors", "/etc/passwd", "a/../../x", "..\\x", "C:x", "", "a\n", "\0", 3, None],
)
def test_an_index_may_not_leave_the_folder(tmp_path: Path, file: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": W}, tmp_path / "x.safetensors")
    shards(folder, {"a": file})
    with pytest.raises(FormatError, match="not a file inside") as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[", "[]"])
def test_damaged_index(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(FormatError, match=r"index\.json"):
        open_folder(tmp_path)


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": W}, tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to("../outside.safetensors")
    with pytest.raises(SourceError, match="outside the model's folder"):
        open_folder(folder)
    (folder / "model.safetensors").unlink()
    (folder / "shard.safetensors").symlink_to("../outside.safetensors")
    shards(folder, {"a": "shard.safetensors"})
    store, _ = open_folder(folder)
    with pytest.raises(SourceError, match="outside the model's folder"):
        store.read("a")


def test_links_inside_the_folder_and_in_the_hub_cache(tmp_path: Path) -> None:
    save_file({"a": W}, tmp_path / "real.safetensors")
    (tmp_path / "model.safetensors").symlink_to("real.safetensors")
    np.testing.assert_array_equal(open_folder(tmp_path)[0].read("a"), W)

    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    save_file({"a": W}, repository / "blobs" / "abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    np.testing.assert_array_equal(open_folder(snapshot)[0].read("a"), W)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../real.safetensors")
    with pytest.raises(SourceError, match="outside the model's folder"):
        open_folder(snapshot)


def test_which_file_of_several(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no weights"):
        open_folder(tmp_path)
    torch.save({"a": torch.zeros(4, 3)}, tmp_path / "weights.bin")
    torch.save({"a": 1}, tmp_path / "training_args.bin")
    assert open_folder(tmp_path)[1] == "bin"
    torch.save({"a": torch.zeros(4, 3)}, tmp_path / "other.bin")
    with pytest.raises(SourceError, match=r"2 \.bin files.*other\.bin, weights\.bin"):
        open_folder(tmp_path)
    save_file({"a": W}, tmp_path / "odd-name.safetensors")
    assert open_folder(tmp_path)[1] == "safetensors"
    save_file({"a": W + 1}, tmp_path / "another.safetensors")
    with pytest.raises(SourceError, match=r"another\.safetensors, odd-name\.safetensors"):
        open_folder(tmp_path)
    save_file({"a": W + 2}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(open_folder(tmp_path)[0].read("a"), W + 2)


def test_an_adapter_alone_is_named_as_such(tmp_path: Path) -> None:
    save_file({"a": W}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(SourceError, match="adapter only"):
        open_folder(tmp_path)


def test_bin_shards(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "p1.bin")
    torch.save({"b": torch.ones(3)}, tmp_path / "p2.bin")
    shards(tmp_path, {"a": "p1.bin", "b": "p2.bin"}, "pytorch_model.bin.index.json")
    store, kind = open_folder(tmp_path)
    assert kind == "bin"
    assert store.read("b").tolist() == [1, 1, 1]
