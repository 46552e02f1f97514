"""SafetensorsFile against the reference reader, and every way a header can lie."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from eigenlens.errors import ArchitectureError, EigenlensError, FormatError, OptionError, ShapeError
from eigenlens.tensors.dtypes import DTYPES
from eigenlens.tensors.safetensors_file import SafetensorsFile


def _bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_bit_for_bit(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    dtype = DTYPES[name]
    raw = rng.integers(0, 2 if name == "BOOL" else 256, 6 * 5 * dtype.itemsize, dtype=np.uint8)
    start, tail = 3, len(raw)
    path = _write(
        tmp_path / "x.safetensors",
        {
            "pad": _entry("U8", [start], [0, start]),
            "w": _entry(name, [6, 5], [start, start + tail]),
        },
        b"abc" + raw.tobytes(),
    )
    store = SafetensorsFile(path)
    found = store.read("w")
    assert found.dtype == dtype
    assert found.shape == (6, 5)
    assert _bits(found) == raw.tobytes()
    assert store.info("w").dtype == name
    row = 5 * dtype.itemsize
    assert _bits(store.read("w", slice(2, 5))) == raw.tobytes()[2 * row : 5 * row]


def test_agrees_with_the_reference_reader_on_a_sample(minilm_file: Path) -> None:
    reference = load_file(minilm_file)
    store = SafetensorsFile(minilm_file)
    assert store.names() == set(reference)
    for name, array in reference.items():
        if "layer.0" in name or "LayerNorm" in name:
            np.testing.assert_array_equal(store.read(name), array)
            assert store.info(name).shape == array.shape


def test_oracle_sees_a_transposed_tensor(tmp_path: Path) -> None:
    array = np.random.default_rng(1).normal(0, 0.2, (4, 4)).astype(np.float32)
    save_file({"w": array}, tmp_path / "x.safetensors")
    found = SafetensorsFile(tmp_path / "x.safetensors").read("w")
    np.testing.assert_array_equal(found, array)
    assert not np.array_equal(found.T, array)


def test_rows_read_only_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    save_file({"w": array}, tmp_path / "x.safetensors")
    store = SafetensorsFile(tmp_path / "x.safetensors")
    asked: list[int] = []
    import eigenlens.tensors.safetensors_file as module

    genuine = module.read_bytes

    def spy(path: Path, offset: int, length: int, what: str) -> Any:
        asked.append(length)
        return genuine(path, offset, length, what)

    monkeypatch.setattr(module, "read_bytes", spy)
    np.testing.assert_array_equal(store.read("w", slice(-10, None)), array[-10:])
    assert store.read("w", slice(7, 3)).shape == (0, 4)
    assert asked == [160, 0]


def test_rows_of_a_scalar_and_steps_are_refused(tmp_path: Path) -> None:
    save_file({"s": np.array(1.0), "w": np.zeros((4, 2))}, tmp_path / "x.safetensors")
    store = SafetensorsFile(tmp_path / "x.safetensors")
    assert store.read("s") == 1.0
    with pytest.raises(ShapeError, match="scalar"):
        store.read("s", slice(0, 1))
    with pytest.raises(OptionError, match="step of 2"):
        store.read("w", slice(None, None, 2))


def test_metadata_is_optional(tmp_path: Path) -> None:
    plain = SafetensorsFile(_write(tmp_path / "a.safetensors", {"w": _entry()}, bytes(8)))
    assert plain.metadata == {}
    marked = {"__metadata__": {"format": "pt"}, "w": _entry()}
    store = SafetensorsFile(_write(tmp_path / "b.safetensors", marked, bytes(8)))
    assert store.metadata == {"format": "pt"}
    assert store.names() == {"w"}


def test_unknown_dtype_is_an_error_only_when_read(tmp_path: Path) -> None:
    header = {"odd": _entry("F4", [4], [0, 2]), "w": _entry("U8", [2], [2, 4])}
    store = SafetensorsFile(_write(tmp_path / "x.safetensors", header, b"\1\2\3\4"))
    assert store.info("odd").dtype == "F4"
    assert store.read("w").tolist() == [3, 4]
    with pytest.raises(FormatError, match="'odd' has the type 'F4'"):
        store.read("odd")


def test_unknown_name_lists_the_nearest(tmp_path: Path) -> None:
    store = SafetensorsFile(
        _write(tmp_path / "x.safetensors", {"layer.weight": _entry()}, bytes(8))
    )
    with pytest.raises(ArchitectureError, match=r"nearest: 'layer\.weight'"):
        store.read("layer.weigth")


def test_truncated_after_opening_is_an_error_and_earlier_arrays_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(1000), "b": np.ones(1000)}, path)
    store = SafetensorsFile(path)
    first = store.read("a")
    os.truncate(path, 200)
    with pytest.raises(FormatError, match="truncated"):
        store.read("b")
    assert first.sum() == 1000


BAD_HEADERS: dict[str, tuple[Any, str]] = {
    "not json": (b"{'a': 1}", "line 1 column 2"),
    "not utf-8": (b'{"\xff": 1}', "not UTF-8"),
    "a list": ([1], "must be a JSON object"),
    "deep": (b'{"a":' + b"[" * 200_000, "nested too deep"),
    "duplicate": (
        b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        "occurs twice",
    ),
    "entry type": ({"w": 3}, "not an object"),
    "dtype type": ({"w": _entry(3)}, "dtype is missing"),  # type: ignore[arg-type]
    "shape type": ({"w": _entry(shape=2)}, "shape"),
    "negative shape": ({"w": _entry(shape=[-2])}, "shape"),
    "bool shape": ({"w": _entry(shape=[True, 2])}, "shape"),
    "float shape": ({"w": _entry(shape=[2.0])}, "shape"),
    "huge shape": ({"w": _entry(shape=[2**62] * 64)}, "takes"),
    "offsets type": ({"w": _entry(offsets=[0])}, "data_offsets"),
    "offsets reversed": ({"w": _entry(offsets=[8, 0])}, "leaves the file"),
    "offsets outside": ({"w": _entry(shape=[4], offsets=[0, 16])}, "leaves the file"),
    "length": ({"w": _entry(shape=[1])}, "takes 4 bytes, the header gives it 8"),
    "overlap": ({"a": _entry(), "b": _entry(shape=[1], offsets=[4, 8])}, "'a' and 'b' overlap"),
    "metadata": ({"__metadata__": {"a": 1}}, "__metadata__"),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_a_lying_header_is_refused(tmp_path: Path, kind: str) -> None:
    header, message = BAD_HEADERS[kind]
    path = _write(tmp_path / "bad.safetensors", header, bytes(8))
    with pytest.raises(FormatError, match=r"bad\.safetensors") as caught:
        SafetensorsFile(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x08\0\0", "too few"),
        (b"\xff" * 64, "not safetensors"),
        ((10**8 + 1).to_bytes(8, "little") + b"{}", "header at most"),
        ((50).to_bytes(8, "little") + b"{}", "truncated"),
        (b"<!DOCTYPE html><html>not found</html>", "not safetensors"),
    ],
)
def test_files_that_are_not_safetensors(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        SafetensorsFile(path)
    assert "bad.safetensors" in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        SafetensorsFile(tmp_path / "none.safetensors")
    with pytest.raises(FormatError, match="no such file"):
        SafetensorsFile(tmp_path)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_bytes_never_escape_the_error_class(tmp_path_factory: Any, data: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    save_file({"a": np.ones((3, 2), np.float32), "b": np.ones(4, ml_dtypes.bfloat16)}, path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    try:
        store = SafetensorsFile(path)
        arrays = [store.read(name) for name in store.names() if store.info(name).dtype in DTYPES]
    except EigenlensError as error:
        arrays, message = [], str(error)
    else:
        message = path.name
    assert sum(a.nbytes for a in arrays) <= len(raw)
    assert path.name in message


@pytest.fixture
def minilm_file() -> Path:
    from eigenlens.samples import sample_path

    return sample_path("minilm") / "model.safetensors"
