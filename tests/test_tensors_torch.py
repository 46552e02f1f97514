"""TorchFile against torch.load(weights_only=True), bit for bit, and files that mean harm."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenlens.errors import ArchitectureError, EigenlensError, FormatError
from eigenlens.samples import sample_path
from eigenlens.tensors.dtypes import DTYPES, TORCH_DTYPES
from eigenlens.tensors.torch_file import TorchFile

FORMATS = {"zip": True, "legacy": False}
DTYPES_OF_TORCH = [name for name in TORCH_DTYPES if hasattr(torch, name)]


def save(content: Any, path: Path, kind: str) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=FORMATS[kind])
    return path


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def torch_bits(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.view(tensor.shape).copy_(tensor.detach())
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(store: TorchFile, reference: dict[str, torch.Tensor]) -> None:
    """The oracle: names, dtypes, shapes and every bit as torch has them."""
    assert store.names() == set(reference)
    for name, tensor in reference.items():
        found = store.read(name)
        dtype = TORCH_DTYPES[str(tensor.dtype).removeprefix("torch.")]
        assert store.info(name).dtype == dtype, name
        assert found.dtype == DTYPES[dtype], name
        assert found.shape == store.info(name).shape == tuple(tensor.shape), name
        assert bits(found) == torch_bits(tensor), name
        if tensor.ndim and len(tensor):
            assert bits(store.read(name, slice(1, None))) == torch_bits(tensor[1:]), name
            assert bits(store.read(name, slice(0, 1))) == torch_bits(tensor[:1]), name


def awkward_tensors() -> dict[str, torch.Tensor]:
    base = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)) * 0.2
    return {
        "base": base,
        "transposed": base.T,
        "view": base[1:4, 2:],
        "column": base[:, 3],
        "step": base[::2],
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
        "expanded": base[0].expand(7, 5),
        "one": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(torch.randn(3, 3)),
        "overlap": torch.arange(10.0).as_strided((4, 3), (2, 1), 1),
    }


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES_OF_TORCH)
def test_every_dtype(tmp_path: Path, kind: str, dtype: str) -> None:
    raw = torch.arange(0, 256, dtype=torch.uint8).repeat(8)
    tensor = (raw % 2 == 0) if dtype == "bool" else raw.view(getattr(torch, dtype))
    state = {"w": tensor.reshape(16, -1)}
    path = save(state, tmp_path / "w.bin", kind)
    if kind == "legacy" and dtype.startswith(("float8", "uint")) and dtype != "uint8":
        # torch writes these types in the old format but cannot read them back.
        with pytest.raises(AttributeError, match="dtype"):
            torch.load(path, weights_only=True)
        assert_same(TorchFile(path), state)
    else:
        assert_same(TorchFile(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize("kind", FORMATS)
def test_views_strides_and_shared_storages(tmp_path: Path, kind: str) -> None:
    path = save(OrderedDict(awkward_tensors()), tmp_path / "w.bin", kind)
    assert_same(TorchFile(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_runs_of_bytes_unless_a_view_was_stored(tmp_path: Path, kind: str) -> None:
    store = TorchFile(save(OrderedDict(awkward_tensors()), tmp_path / "w.bin", kind))
    runs = {name for name in store.names() if store.reads_runs(name)}
    assert runs == {"base", "parameter", "empty"}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_oracle_sees_a_reader_that_ignores_strides(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(awkward_tensors(), tmp_path / "w.bin", kind)
    genuine = TorchFile.read

    def flat(self: TorchFile, name: str, rows: slice | None = None) -> np.ndarray:
        tensor = self._entries[name]
        found = genuine(self, name, rows)
        if rows is None and tensor.strides == (1, 5):
            return np.ascontiguousarray(found.T).reshape(found.shape)
        return found

    monkeypatch.setattr(TorchFile, "read", flat)
    with pytest.raises(AssertionError, match="transposed"):
        assert_same(TorchFile(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_oracle_sees_a_wrong_storage_offset(tmp_path: Path, kind: str) -> None:
    path = save(awkward_tensors(), tmp_path / "w.bin", kind)
    store = TorchFile(path)
    store._offsets = {key: offset - 4 for key, offset in store._offsets.items()}
    with pytest.raises(AssertionError):
        assert_same(store, torch.load(path, weights_only=True))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", FORMATS)
def test_other_pickle_protocols(tmp_path: Path, kind: str, protocol: int) -> None:
    path = tmp_path / "w.bin"
    torch.save(
        awkward_tensors(),
        path,
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=FORMATS[kind],
    )
    assert_same(TorchFile(path), torch.load(path, weights_only=False))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_module_state_dict_with_metadata(tmp_path: Path, kind: str) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)).state_dict()
    path = save(state, tmp_path / "w.bin", kind)
    assert_same(TorchFile(path), torch.load(path, weights_only=True))


def test_sample_albert_is_read_bit_for_bit() -> None:
    path = sample_path("albert-rxn") / "pytorch_model.bin"
    assert path.read_bytes()[:2] == b"\x80\x02"  # the legacy format
    reference = torch.load(path, weights_only=True, map_location="cpu")
    assert_same(TorchFile(path), reference)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "module"])
def test_one_wrapper_is_unwrapped(tmp_path: Path, kind: str, key: str) -> None:
    inner = {"w": torch.ones(2, 2)}
    path = save({key: inner, "epoch": 3, "loss": 0.5}, tmp_path / "w.bin", kind)
    assert_same(TorchFile(path), inner)


def test_values_that_are_not_tensors_are_left_out(tmp_path: Path) -> None:
    path = save({"w": torch.ones(2), "step": 7, "note": "x"}, tmp_path / "w.bin", "zip")
    assert TorchFile(path).names() == {"w"}


@pytest.mark.parametrize("content", [[torch.ones(2)], {"epoch": 1}, {}, {3: torch.ones(2)}, 5])
@pytest.mark.parametrize("kind", FORMATS)
def test_no_state_dict_inside(tmp_path: Path, kind: str, content: Any) -> None:
    path = save(content, tmp_path / "w.bin", kind)
    with pytest.raises(FormatError, match=r"w\.bin.*state dict"):
        TorchFile(path)


def test_unknown_name(tmp_path: Path) -> None:
    path = save({"layer.weight": torch.ones(2)}, tmp_path / "w.bin", "zip")
    with pytest.raises(ArchitectureError, match=r"nearest: 'layer\.weight'"):
        TorchFile(path).read("layer.weights")


def test_torch_is_not_imported() -> None:
    code = (
        "import sys\nfrom eigenlens.tensors.source import resolve\ns = "
        "resolve('sample:albert-rxn')\ns.store.read(sorted(s.store.names())[0])\nprint([m for m "
        "in ('torch', 'transformers', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.target}'",)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("place", ["top", "inside"])
def test_a_pickle_that_wants_code_is_refused_and_does_not_run(
    tmp_path: Path, kind: str, place: str
) -> None:
    mark = tmp_path / "ran"
    content = Evil(mark) if place == "top" else {"w": torch.ones(2), "x": Evil(mark)}
    path = save(content, tmp_path / "evil.bin", kind)
    with pytest.raises(FormatError, match=r"evil\.bin.*'(posix|nt)\.system'.*not run"):
        TorchFile(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the file does work as an attack on a plain unpickler
    assert mark.exists()


def zip_with(path: Path, pickled: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        for key, data in members.items():
            archive.writestr(f"a/data/{key.lstrip('k')}", data)
    return path


def tensor_pickle(
    *, size: Any = (2,), stride: Any = (1,), offset: Any = 0, numel: Any = 2, storage: str = "Float"
) -> bytes:
    """A data.pkl with one tensor 'w', with numbers of our choice."""

    def number(value: int) -> bytes:
        return pickle.dumps(value, protocol=2)[2:-1]

    def numbers(values: Any) -> bytes:
        return b"(" + b"".join(number(v) for v in values) + b"t"

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    ident = b"(" + text("storage") + b"ctorch\n" + storage.encode() + b"Storage\n"
    ident += text("0") + text("cpu") + number(numel) + b"tQ"
    args = b"(" + ident + number(offset) + numbers(size) + numbers(stride) + b"\x89N" + b"t"
    return b"\x80\x02}" + text("w") + b"ctorch._utils\n_rebuild_tensor_v2\n" + args + b"Rs."


def test_the_handmade_pickle_is_genuine(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "w.bin", tensor_pickle(), k0=np.array([1, 2], np.float32).tobytes())
    np.testing.assert_array_equal(TorchFile(path).read("w"), np.array([1, 2], np.float32))


@pytest.mark.parametrize(
    "numbers",
    [
        {"size": (3,)},
        {"offset": 1},
        {"offset": -1},
        {"stride": (-1,)},
        {"stride": (2,)},
        {"stride": (2**61,)},
        {"size": (-2,)},
        {"size": (2**40, 2**40), "stride": (0, 0)},
        {"size": (2**61,) * 3, "stride": (0, 0, 0)},
        {"size": (2, 2)},
        {"size": (1,) * 65, "stride": (1,) * 65},
        {"numel": 2**61},
        {"numel": 2**200},
        {"numel": -2},
        {"numel": 3},
        {"numel": True},
        {"size": (True,)},
        {"storage": "Double"},
        {"storage": "Quint8"},
    ],
)
def test_numbers_that_leave_the_storage_are_refused(tmp_path: Path, numbers: Any) -> None:
    path = zip_with(tmp_path / "w.bin", tensor_pickle(**numbers), k0=bytes(8))
    with pytest.raises(FormatError, match=r"w\.bin") as caught:
        TorchFile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02}" + b"\x85" * 400_000 + b"s.",  # a deep tuple as key: hashing it kills CPython
        b"\x80\x02)" + b"\x85" * 50_000 + b"Ns.",
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",  # bytearray of 4 EiB
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".",  # memo slot 4294967295
        b"\x80\x02cbuiltins\neval\n(X\x01\0\0\x001tR.",
        b"\x80\x02ctorch\\.\nSize\n.",
        b"\x80\x02}}b.",
        b"\x80\x02ctorch\nSize\n}b.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02X\x01\0\0\0aQ.",
        b"\x80\x02" + b"\x8a\x02aaR.",
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        b"\x80\x02(X\x01\0\0\0a.",
        b"",
        b".",
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_hostile_programs_end_in_one_line(tmp_path: Path, kind: str, program: bytes) -> None:
    path = tmp_path / "w.bin"
    if kind == "zip":
        zip_with(path, program)
    else:
        path.write_bytes(program)
    with pytest.raises(FormatError, match=r"w\.bin") as caught:
        TorchFile(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_truncation_is_refused(tmp_path: Path, kind: str) -> None:
    path = save({"w": torch.randn(8, 8), "b": torch.randn(8)}, tmp_path / "w.bin", kind)
    raw = path.read_bytes()
    for length in [*range(0, len(raw) - 1, max(1, len(raw) // 60)), len(raw) - 1]:
        path.write_bytes(raw[:length])
        with pytest.raises(FormatError, match=r"w\.bin"):
            TorchFile(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_after_opening(tmp_path: Path, kind: str) -> None:
    path = save({"w": torch.randn(64, 64)}, tmp_path / "w.bin", kind)
    store = TorchFile(path)
    os.truncate(path, 2000)
    with pytest.raises(FormatError, match="truncated"):
        store.read("w")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04garbage", b"garbage", b"\x80", bytes(100)])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"w\.bin"):
        TorchFile(path)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", tensor_pickle())
        archive.writestr("a/data/0", bytes(8))
    with pytest.raises(FormatError, match="compressed"):
        TorchFile(path)


def test_an_ordinary_zip_and_a_missing_storage(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FormatError, match=r"without one data\.pkl"):
        TorchFile(path)
    with pytest.raises(FormatError, match="missing from the zip"):
        TorchFile(zip_with(tmp_path / "v.bin", tensor_pickle()))


def test_big_endian_is_refused(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "w.bin", tensor_pickle(), k0=bytes(8))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/byteorder", "big")
    with pytest.raises(FormatError, match="big-endian"):
        TorchFile(path)


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_damaged_bytes_never_escape_the_error_class(
    tmp_path_factory: Any, kind: str, data: Any
) -> None:
    buffer = io.BytesIO()
    torch.save(
        {"a": torch.ones(3, 2), "b": torch.ones(4, dtype=torch.bfloat16)},
        buffer,
        _use_new_zipfile_serialization=FORMATS[kind],
    )
    raw = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "x.bin"
    path.write_bytes(bytes(raw))
    try:
        store = TorchFile(path)
        arrays = [store.read(name) for name in store.names()]
    except EigenlensError as error:
        arrays, message = [], str(error)
    else:
        message = ""
    assert sum(a.nbytes for a in arrays) <= 1 << 26
    assert "\n" not in message
