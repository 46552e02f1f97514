"""Whatever a model folder holds: tensors, or one line; no crash, no hang, nothing outside is read.

Bytes at random are the business of the tests of each format; here the files are well formed where
it takes that to come far, and what they say is hostile.
"""

from __future__ import annotations

import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from eigenlens.errors import EigenlensError
from eigenlens.tensors.source import resolve

W = np.arange(12, dtype=np.float32).reshape(4, 3)
CONFIG = json.dumps({"model_type": "bert", "hidden_size": 3})
MEMORY = 12_000_000  # the JSON of the files, a few times over, and the vocabularies
quickly = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

OPENED: list[str] = []
WATCH = [False]


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if WATCH[0] and event == "open":
        OPENED.append(str(args[0]))


sys.addaudithook(_hook)

EDGES = st.sampled_from(
    [0, 1, -1, 2, 3, 8, 12, 2**31, 2**32 - 1, 2**53, 2**62, 2**63, 2**64, 10**30, True, 1.0, 1e308]
)
TEXT = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["", "\0", "\x1b[31m", "a\nb", "\u202e", "\ud800", "F32", "__metadata__", "../x", "x" * 5000]
)
JSON = st.recursive(
    st.none() | st.booleans() | EDGES | TEXT | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


PARTS = st.sampled_from(
    ["..", ".", "", "/", "~", "C:", "\\", "\0", "\u202e", "x" * 300, "x" * 5000]
)
PLACES = st.sampled_from(
    ["good", "a", "x", "link", "up", "loop", "hole", "pipe", "inner", "outside"]
)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with files that nobody may open."""
    path = tmp_path / "outside"
    path.mkdir()
    for name in ("model.safetensors", "a", "x", "config.json"):
        save_file({"a": W}, path / name)
    return path


def use(folder: Path, outside: Path) -> str | None:
    """Open the model, read all of it; gives the message, and holds everything against the rules."""
    message = None
    OPENED.clear()
    tracemalloc.start()
    begin = time.perf_counter()
    WATCH[0] = True
    try:
        source = resolve(folder)
        for name in sorted(source.store.names()):
            with suppress(EigenlensError):
                source.store.read(name, slice(0, 2))
            info = source.store.info(name)
            array = source.store.read(name)
            assert array.shape == info.shape
        source.tokens()
    except EigenlensError as error:
        message = str(error)
    finally:
        WATCH[0] = False
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.perf_counter() - begin < 20  # a hang, not a slow machine
    assert peak < MEMORY
    for path in OPENED:
        assert not Path(os.path.realpath(path)).is_relative_to(outside), path
    if message is not None:
        assert message.isprintable()
        assert len(message) < 20_000
    return message


def renew(folder: Path, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.unlink()
    (folder / "config.json").write_text(CONFIG)
    (folder / "vocab.txt").write_text("a\nb")
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def framed(header: str | bytes, data: bytes = bytes(48), length: int | None = None) -> bytes:
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def test_the_good_folder_is_read_and_the_rules_can_fail(tmp_path: Path, outside: Path) -> None:
    folder = renew(tmp_path / "m", model__safetensors=save({"a": W}))
    assert use(folder, outside) is None
    with pytest.raises(AssertionError):
        use(outside.parent / "m", folder)


@quickly
@given(data=st.data())
def test_headers_that_lie(tmp_path: Path, outside: Path, data: Any) -> None:
    entry: dict[str, Any] = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}
    header: dict[str, Any] = {"a": entry}
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "name", "entry"]))
        if field == "name":
            header[data.draw(TEXT)] = dict(entry)
        elif field == "entry":
            header[data.draw(TEXT)] = data.draw(JSON)
        elif field == "dtype":
            entry[field] = data.draw(st.sampled_from(["F64", "BOOL", "F4", "F8_E8M0"]) | JSON)
        else:
            entry[field] = data.draw(st.lists(EDGES, max_size=3) | JSON)
    text = json.dumps(header)
    if data.draw(st.booleans()):
        text = text[:-1] + "," + text[1:]  # every name twice
    length = data.draw(st.none() | st.integers(0, 400) | st.just(2**63) | st.just(10**8))
    raw = framed(text, bytes(data.draw(st.sampled_from([0, 47, 48, 100]))), length)
    use(renew(tmp_path / "m", model__safetensors=raw), outside)


@quickly
@example(["link"])
@example(["up/a"])
@example(["../outside/a"])
@example(["inner/../../outside/x"])
@given(
    st.lists(
        st.lists(
            PARTS | PLACES,
            max_size=4,
        ).map("/".join)
        | JSON,
        min_size=1,
        max_size=3,
    )
)
def test_an_index_leads_nowhere_else(tmp_path: Path, outside: Path, places: list[Any]) -> None:
    folder = renew(tmp_path / "m", good=save({str(i): W for i in range(3)}))
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to(outside / "model.safetensors")
        (folder / "up").symlink_to(outside)
        (folder / "loop").symlink_to("loop")
        (folder / "hole").symlink_to("nothing")
        (folder / "inner").mkdir()
        os.mkfifo(folder / "pipe")
    weight_map = {str(i): place for i, place in enumerate(places)}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    message = use(folder, outside)
    assert (message is None) <= all(isinstance(p, str) and p.endswith("good") for p in places)


@quickly
@given(JSON, st.sampled_from(["config.json", "model.safetensors.index.json", "vocab.json"]))
def test_json_of_any_shape(tmp_path: Path, outside: Path, found: Any, name: str) -> None:
    folder = renew(tmp_path / "m", model__safetensors=save({"a": W}))
    (folder / name).write_text(json.dumps(found))
    use(folder, outside)


@quickly
@given(found=JSON, key=st.sampled_from(["model", "added_tokens", "pre_tokenizer", "decoder"]))
def test_tokenizers_of_any_shape(tmp_path: Path, outside: Path, found: Any, key: str) -> None:
    folder = renew(tmp_path / "m", model__safetensors=save({"a": W}))
    good: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(good | {key: found}))
    use(folder, outside)


JSON_FILES = ["config.json", "model.safetensors.index.json", "vocab.json", "tokenizer.json"]


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 1_000_000,
        b'{"a":' * 300_000,
        b'{"model_type": "bert", "weight_map": ' + b"[" * 200_000,
        b'{"a": ' + b"9" * 1_000_000 + b"}",
        b'{"model_type": "bert", "a": NaN, "b": Infinity, "c": 1e999}',
        b'{"model_type": "bert", "model_type": 3}',
        b"\xff\xfe{\0}\0",
        b"\xef\xbb\xbf{}",
        b"",
        b"\0" * 100_000,
    ],
    ids=lambda content: content[:24].decode("ascii", "replace"),
)
def test_json_that_breaks_parsers(tmp_path: Path, outside: Path, name: str, content: bytes) -> None:
    folder = renew(tmp_path / "m", model__safetensors=save({"a": W}))
    (folder / name).write_bytes(content)
    message = use(folder, outside)
    harmless = b"NaN" in content and name == "config.json"
    last_wins = b"bert" in content and name == "vocab.json"
    assert (message is None) <= (harmless or last_wins)


def test_a_header_nested_deep(tmp_path: Path, outside: Path) -> None:
    for text in ('{"a":' * 100_000, '{"a":{"dtype":"F32","shape":' + "[" * 100_000):
        folder = renew(tmp_path / "m", model__safetensors=framed(text))
        assert "model.safetensors" in (use(folder, outside) or "")


def test_a_json_file_too_large_is_not_loaded(tmp_path: Path, outside: Path) -> None:
    folder = renew(tmp_path / "m", model__safetensors=save({"a": W}))
    for name in JSON_FILES:
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)  # sparse
        message = use(folder, outside)
        assert name in (message or "")
        (folder / name).unlink()
        (folder / "config.json").write_text(CONFIG)


def _no_file(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"loop": path.name, "hole": "nothing", "zero": "/dev/zero"}.get(kind, ""))


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "hole", "zero"])
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "model.safetensors.index.json", "vocab.json"]
)
def test_what_is_no_file(tmp_path: Path, outside: Path, kind: str, name: str) -> None:
    folder = renew(tmp_path / "m", model__safetensors=save({"a": W}))
    _no_file(kind, folder / name)
    message = use(folder, outside)
    passed_over = name == "vocab.json" or ("index" in name and kind in ("loop", "hole"))
    assert (message is None) == passed_over


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".gguf", ".pt"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "hole", "zero"])
def test_what_is_no_file_given_by_name(
    tmp_path: Path, outside: Path, kind: str, suffix: str
) -> None:
    folder = renew(tmp_path / "m")
    _no_file(kind, folder / f"x{suffix}")
    assert use(folder / f"x{suffix}", outside) is not None


def _safetensors(path: Path) -> None:
    save_file({"a": np.ones((50_000, 4), np.float32)}, path)


def _torch(path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(50_000, 4)}, path)


def _gguf(path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key in ("embedding_length", "block_count", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 4)
    writer.add_tensor("a", np.ones((50_000, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WRITERS: dict[str, Callable[[Path], None]] = {
    "x.safetensors": _safetensors,
    "x.bin": _torch,
    "x.gguf": _gguf,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_shrinks_or_goes_while_it_is_open(tmp_path: Path, name: str) -> None:
    folder = renew(tmp_path / "m")
    path = folder / name
    for change in (lambda: os.truncate(path, 3000), lambda: os.truncate(path, 0), path.unlink):
        WRITERS[name](path)
        store = resolve(path).store
        first = store.read("a")
        change()
        with pytest.raises(EigenlensError, match=name) as caught:
            store.read("a")
        assert str(caught.value).isprintable()
        assert first.sum() == 200_000


@pytest.fixture(autouse=True)
def _limit_of_recursion() -> Iterator[None]:
    """Deep JSON must not depend on what a library did to the limit."""
    before = sys.getrecursionlimit()
    yield
    assert sys.getrecursionlimit() == before
