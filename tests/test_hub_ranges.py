"""Of a large checkpoint on the hub only the bytes that are read are fetched, and only once."""

from __future__ import annotations

import json
import logging
import os
import stat
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from eigenlens.errors import SourceError
from eigenlens.tensors import remote
from eigenlens.tensors.http_ranges import Identity
from eigenlens.tensors.remote import RemotePlace, prefetch
from eigenlens.tensors.segments import Segments, merge
from eigenlens.tensors.source import Source, resolve
from eigenlens.tensors.transfers import Transfers, watching
from hub_server import COMMIT, SECRET, Hub, llama, publish, serving

ARRAYS = llama()
FILE = "model.safetensors"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path, monkeypatch) as found:
        publish(found, ARRAYS)
        yield found


def circuit_names(layer: int) -> list[str]:
    at = f"model.layers.{layer}"
    return [
        f"{at}.self_attn.v_proj.weight",
        f"{at}.self_attn.o_proj.weight",
        f"{at}.input_layernorm.weight",
    ]


def read_circuits(source: Source) -> int:
    """Read V, O and norm of every layer as an analysis does; gives their bytes."""
    total = 0
    for layer in range(4):
        names = circuit_names(layer)
        prefetch(source.store, [(name, None) for name in names])
        for name in names:
            found = source.store.read(name)
            np.testing.assert_array_equal(found, ARRAYS[name])
            total += found.nbytes
    return total


def cached(tmp_path: Path) -> list[Path]:
    return [p for p in (tmp_path / "assets").rglob("*") if p.is_file() and p.suffix != ".json"]


@pytest.mark.parametrize("shards", [1, 3])
def test_only_what_is_read_is_fetched(hub: Hub, shards: int) -> None:
    hub.files.clear()
    publish(hub, ARRAYS, shards)
    size = sum(len(data) for name, data in hub.files.items() if name.endswith(".safetensors"))
    source = resolve("org/name")
    wanted = read_circuits(source)
    sent = sum(a.sent for a in hub.gets() if a.file.endswith(".safetensors"))
    assert wanted < 0.06 * size
    # A header (and what the first request brings along) a shard, and gaps between V, O and norm.
    assert wanted < sent < wanted + shards * remote.PROBE + 4 * 2 * remote.GAP
    assert sent < 0.1 * size


def test_the_oracle_of_bytes_sees_a_whole_download(hub: Hub) -> None:
    hub.ranges = False
    read_circuits(resolve("org/name"))
    assert hub.sent(FILE) >= len(hub.files[FILE])


def test_the_token_goes_to_the_endpoint_only(
    hub: Hub, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    read_circuits(resolve("org/name"))
    ours = [a for a in hub.asked if a.host == f"127.0.0.1:{hub.port}"]
    others = [a for a in hub.asked if a.host == f"localhost:{hub.storage_port}"]
    assert len(ours) + len(others) == len(hub.asked)
    assert {a.token for a in ours} == {f"Bearer {SECRET}"}
    assert others
    assert {a.token for a in others} == {None}
    assert not any(SECRET.encode() in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert capfd.readouterr() == ("", "")


def test_all_files_are_of_the_first_commit(hub: Hub) -> None:
    source = resolve("org/name")
    hub.commit = OTHER
    source.store.read(circuit_names(0)[0])
    assert {a.revision for a in hub.asked if a.file == FILE and a.revision} == {COMMIT}


def test_a_second_run_asks_for_one_small_file_only(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    read_circuits(resolve("org/name"))
    hub.forget()
    read_circuits(resolve("org/name"))
    assert [(a.method, a.file) for a in hub.asked] == [("HEAD", "config.json")]
    hub.forget()
    read_circuits(resolve(f"org/name@{COMMIT}"))
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    source = resolve("org/name")
    read_circuits(source)
    assert hub.asked == []
    with pytest.raises(SourceError, match=r"HF_HUB_OFFLINE is set and tensor 'model.embed") as e:
        source.store.read("model.embed_tokens.weight")
    assert "\n" not in str(e.value)


def test_without_a_connection_what_is_kept_is_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    read_circuits(resolve("org/name"))
    nobody = "http://127.0.0.1:9"
    template = nobody + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    # What is kept belongs to the endpoint that it came from, so ENDPOINT stays.
    source = resolve("org/name")
    read_circuits(source)
    with pytest.raises(SourceError, match=r"tensor 'model\.embed.* could not be fetched from"):
        source.store.read("model.embed_tokens.weight")


def test_adjacent_tensors_are_one_request(hub: Hub) -> None:
    source = resolve("org/name")
    hub.forget()
    at = "model.layers.1.self_attn"
    names = [f"{at}.{part}_proj.weight" for part in ("o", "q", "v")]
    prefetch(source.store, [(name, None) for name in reversed(names)])
    assert len(hub.gets(FILE)) == 1
    for name in names:
        np.testing.assert_array_equal(source.store.read(name), ARRAYS[name])
    assert len(hub.gets(FILE)) == 1


def test_rows_are_fetched_as_rows(hub: Hub) -> None:
    source = resolve("org/name")
    hub.forget()
    name = "model.embed_tokens.weight"
    np.testing.assert_array_equal(
        source.store.read(name, slice(5000, 5010)), ARRAYS[name][5000:5010]
    )
    assert hub.sent(FILE) == 10 * 256 * 4
    prefetch(source.store, [(name, slice(4990, 5020))])
    np.testing.assert_array_equal(
        source.store.read(name, slice(4990, 5020)), ARRAYS[name][4990:5020]
    )
    assert hub.sent(FILE) <= 30 * 256 * 4 + 10 * 256 * 4


def test_shards_are_shared_by_commits_that_did_not_change_them(hub: Hub) -> None:
    read_circuits(resolve("org/name"))
    hub.forget()
    hub.commit = OTHER
    read_circuits(resolve("org/name"))
    assert hub.sent(FILE) <= remote.PROBE


def test_a_new_version_is_fetched_anew_and_never_mixed(hub: Hub) -> None:
    read_circuits(resolve("org/name"))
    hub.commit = OTHER
    changed = {name: array + 1 for name, array in ARRAYS.items()}
    publish(hub, changed)
    name = circuit_names(2)[0]
    np.testing.assert_array_equal(resolve("org/name").store.read(name), changed[name])
    np.testing.assert_array_equal(resolve(f"org/name@{COMMIT}").store.read(name), ARRAYS[name])


@pytest.mark.parametrize("other", ["repository", "endpoint"])
def test_the_same_tag_elsewhere_is_another_file(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Else whoever runs one endpoint could put bytes into what is read from another."""
    from huggingface_hub import constants

    read_circuits(resolve("org/name"))
    hub.forget()
    if other == "endpoint":
        endpoint = f"http://localhost:{hub.port}"
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    read_circuits(resolve("org/other" if other == "repository" else "org/name"))
    assert hub.sent(FILE) > 1_000_000


def test_a_file_in_the_library_cache_is_used(hub: Hub) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download("org/name", FILE)
    hub.forget()
    read_circuits(resolve("org/name"))
    assert hub.gets(FILE) == []


def test_small_files_are_fetched_whole(hub: Hub) -> None:
    small = llama(d=32, kv=8, ff=64, vocab=100)
    publish(hub, small)
    store = resolve("org/name").store
    np.testing.assert_array_equal(store.read(circuit_names(0)[0]), small[circuit_names(0)[0]])
    assert [a.range for a in hub.gets(FILE)] == [None]


def test_an_old_library_fetches_whole(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenlens.tensors.hub._can_range", lambda: False)
    read_circuits(resolve("org/name"))
    assert [a.range for a in hub.gets(FILE)] == [None]


def test_bin_is_fetched_whole(hub: Hub, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1 << 21)}, tmp_path / "w.bin")
    hub.files = {"config.json": hub.files["config.json"]}
    hub.files["pytorch_model.bin"] = (tmp_path / "w.bin").read_bytes()
    source = resolve("org/name")
    assert source.format == "bin"
    assert source.store.read("w").sum() == 1 << 21
    assert [a.range for a in hub.gets("pytorch_model.bin")] == [None]


def test_no_ranges_is_said_with_the_bytes(hub: Hub) -> None:
    hub.ranges = False
    notes: list[str] = []
    seen: list[tuple[int, int, str]] = []
    with watching(Transfers(lambda *now: seen.append(now), notes.append)):
        source = resolve("org/name")
    read_circuits(source)
    size = len(hub.files[FILE])
    assert len(notes) == 1
    assert f"sends no byte ranges, so {FILE} is fetched whole ({size / 1e6:.1f} MB)" in notes[0]
    assert seen[-1][:2] == (size, size)
    hub.forget()
    read_circuits(resolve("org/name"))
    assert hub.gets(FILE) == []


def test_without_a_watcher_a_note_goes_to_the_log(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.ranges = False
    resolve("org/name")
    assert ["sends no byte ranges" in text for text in caplog.messages] == [True]


def test_ranges_that_end_later_lead_to_the_whole_file(hub: Hub) -> None:
    source = resolve("org/name")
    hub.ranges = False
    read_circuits(source)
    assert hub.sent(FILE) >= len(hub.files[FILE])


def test_progress_counts_the_bytes_that_come(hub: Hub) -> None:
    seen: list[tuple[int, int, str]] = []
    with watching(Transfers(lambda *now: seen.append(now))):
        source = resolve("org/name")
    name = circuit_names(1)[1]
    seen.clear()
    source.store.read(name)
    assert {total for _, total, _ in seen} == {ARRAYS[name].nbytes}
    assert [done for done, _, _ in seen] == sorted({done for done, _, _ in seen})
    assert seen[-1] == (ARRAYS[name].nbytes, ARRAYS[name].nbytes, f"org/name/{FILE}")
    seen.clear()
    source.store.read(name)
    assert seen == []


def test_the_cache_is_private_and_holds_plain_bytes(hub: Hub, tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    read_circuits(resolve("org/name"))
    root = tmp_path / "assets" / "eigenlens"
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    data = hub.files[FILE]
    assert cached(tmp_path)
    for path in cached(tmp_path):
        start, stop = map(int, path.name.split("-"))
        assert path.read_bytes() == data[start:stop]
    for path in root.rglob("*.json"):
        assert json.loads(path.read_text())["size"] == len(data)


@pytest.mark.parametrize("damage", ["short", "gone", "stray", "link"])
def test_damaged_pieces_are_fetched_again(hub: Hub, tmp_path: Path, damage: str) -> None:
    read_circuits(resolve("org/name"))
    source = resolve("org/name")  # has seen the good pieces
    for path in cached(tmp_path):
        if damage == "stray":
            (path.parent / "0-99999999999999999999").write_bytes(b"x")
            (path.parent / "5-3").write_bytes(b"")
            (path.parent / ".arriving-x").write_bytes(b"x")
        elif damage == "link":
            path.unlink()
            path.symlink_to("/dev/zero")
        elif damage == "short":
            os.truncate(path, 10)
        else:
            path.unlink()
    read_circuits(source)
    read_circuits(resolve("org/name"))


def test_damaged_records_are_made_again(hub: Hub, tmp_path: Path) -> None:
    read_circuits(resolve("org/name"))
    (record,) = (tmp_path / "assets").rglob("*.json")
    good = record.read_text()
    for content in ("", "[]", "{", '{"size": -1}', '{"size": "x", "etag": 3}', "[" * 50_000):
        record.write_text(content)
        resolve("org/name").store.read(circuit_names(0)[0])
        assert record.read_text() == good


def test_a_folder_that_takes_nothing(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "assets").write_bytes(b"")
    notes: list[str] = []
    with watching(Transfers(note=notes.append)):
        source = resolve("org/name")
    read_circuits(source)
    assert len(notes) == 1
    assert "cannot be kept in" in notes[0]


def test_a_folder_of_another_user(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_circuits(resolve("org/name"))
    hub.forget()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    notes: list[str] = []
    with watching(Transfers(note=notes.append)):
        read_circuits(resolve("org/name"))
    assert ["belongs to another user" in note for note in notes] == [True]
    assert hub.sent(FILE) > 1_000_000


def test_a_disk_that_fills_up(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    with watching(Transfers(note=notes.append)):
        source = resolve("org/name")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    before = len(cached(tmp_path))
    monkeypatch.setattr(os, "fsync", full)
    read_circuits(source)
    assert [("No space left" in note, "fetches it again" in note) for note in notes] == [
        (True, True)
    ]
    assert len(cached(tmp_path)) == before


def test_threads_may_read_at_once(hub: Hub) -> None:
    hub.files.clear()
    publish(hub, ARRAYS, shards=2)
    store = resolve("org/name").store
    names = sorted(ARRAYS) * 2
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    with ThreadPoolExecutor(4) as pool:
        for name, found in zip(names, pool.map(store.read, names), strict=True):
            np.testing.assert_array_equal(found, ARRAYS[name])
    assert logger.level == before


def test_memory_is_that_of_the_tensor(hub: Hub) -> None:
    source = resolve("org/name")
    name = "model.embed_tokens.weight"
    tracemalloc.start()
    found = source.store.read(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < found.nbytes + 3_000_000  # the test server's pieces count too


def test_merge_and_missing(tmp_path: Path) -> None:
    assert merge([(5, 9), (0, 3), (9, 12), (20, 20)], 0) == [(0, 3), (5, 12)]
    assert merge([(5, 9), (0, 3)], 2) == [(0, 9)]
    assert merge([(0, 100), (10, 20)], 0) == [(0, 100)]
    segments = Segments(tmp_path / "s", lambda reason: None)
    for start, data in ((10, b"abc"), (12, b"cdef"), (30, b"x" * 10)):
        with segments.writer(start) as writer:
            writer.write(data)
    assert segments.missing(0, 50) == [(0, 10), (16, 30), (40, 50)]
    assert segments.missing(11, 15) == []
    out = bytearray(5)
    assert segments.read_into(11, memoryview(out))
    assert out == b"bcdef"


def test_pieces_are_cut_so_that_a_kill_loses_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigenlens.tensors.segments.PIECE", 100)
    segments = Segments(tmp_path / "s", lambda reason: None)
    with segments.writer(0) as writer:
        for _ in range(7):
            writer.write(b"x" * 40)
        assert segments.missing(0, 280) == [(240, 280)]
    assert segments.missing(0, 280) == []


def test_places_differ_by_all_that_makes_a_file(tmp_path: Path) -> None:
    place = RemotePlace("u", "l", "key", tmp_path)
    same = Identity(10, "t")
    found = {
        place.pieces(same, "a"),
        place.pieces(Identity(11, "t"), "a"),
        place.pieces(Identity(10, "s"), "a"),
        place.pieces(same, "b"),
        place.pieces(Identity(10, None), "a"),
        RemotePlace("u", "l", "key2", tmp_path).pieces(Identity(10, None), "a"),
    }
    assert len(found) == 6
    assert all(p is not None and p.parent == tmp_path for p in found)
