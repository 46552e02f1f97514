"""The cache gives back what was put, or nothing: never another answer, never an error."""

from __future__ import annotations

import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens import cache as cache_module
from eigenlens.cache import Cache, default_folder
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.spectra.stored import pack, unpack

KEY = {"tensor": "a", "k": 8}


def filled(folder: Path, **options: Any) -> Cache:
    cache = Cache(folder, **options)
    cache.put(KEY, {"x": 1.5, "inf": float("inf")}, {"z": np.array([1 + 2j])})
    return cache


def entry_path(cache: Cache) -> Path:
    (path,) = (path for path, _ in cache.entries())
    return path


def test_what_was_put_is_got_exactly(tmp_path: Path) -> None:
    found = filled(tmp_path / "c").get(KEY)
    assert found is not None
    assert found.record == {"x": 1.5, "inf": float("inf")}
    np.testing.assert_array_equal(found.arrays["z"], [1 + 2j])
    assert Cache(tmp_path / "c").get({**KEY, "k": 9}) is None
    assert Cache(tmp_path / "other").get(KEY) is None


def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir(mode=0o755)
    cache = filled(tmp_path / "c")
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_path(cache).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_path(cache).stat().st_mode) == 0o600


def test_every_damaged_byte_counts_as_absent_or_changes_nothing(tmp_path: Path) -> None:
    cache = filled(tmp_path / "c")
    path = entry_path(cache)
    whole = path.read_bytes()
    lost = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        found = cache.get(KEY)
        lost += found is None
        if found is not None and found.arrays:  # fields of the zip that nothing reads
            assert found.record["x"] == 1.5
            np.testing.assert_array_equal(found.arrays["z"], [1 + 2j])
    assert lost > len(whole) // 4
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert cache.get(KEY) is None
    path.write_bytes(whole)
    assert cache.get(KEY) is not None


def test_an_entry_of_another_key_in_its_place_is_not_taken(tmp_path: Path) -> None:
    cache = filled(tmp_path / "c")
    content = entry_path(cache).read_bytes()
    cache.put({"other": 1}, {}, {})
    for path, _ in cache.entries():
        path.write_bytes(content)
    assert cache.get({"other": 1}) is None
    assert cache.get(KEY) is not None


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    cache = filled(tmp_path / "c")
    path = entry_path(cache)
    with np.load(path) as found:
        text = found["json"]
    np.savez(path, json=text, **{"a.z": np.array([{"evil": 1}], dtype=object)})
    assert cache.get(KEY) is None
    with pytest.raises(TypeError, match="array z holds objects"):
        cache.put(KEY, {}, {"z": np.array([{}], dtype=object)})


def test_the_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", limit=10_000)
    for i in range(10):
        cache.put({"i": i}, {}, {"z": np.zeros(250)})
        for path, status in cache.entries():
            os.utime(path, (status.st_mtime - 10, status.st_mtime - 10))
        cache.get({"i": 0})
    kept = [i for i in range(10) if cache.get({"i": i}) is not None]
    assert kept[0] == 0
    assert kept[1:] == list(range(11 - len(kept), 10))
    assert sum(s.st_size for _, s in cache.entries()) <= 10_000
    assert cache.clear() == len(kept)
    assert list(cache.entries()) == []


def test_large_results_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "ENTRY_LIMIT", 15)
    assert filled(tmp_path / "c").get(KEY) is None


def test_a_cache_that_cannot_be_written_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = filled(tmp_path / "file" / "c")
    assert cache.problem is not None
    assert "results are not kept in" in cache.problem
    assert cache.get(KEY) is None


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EIGENLENS_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "eigenlens"
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"


@pytest.mark.parametrize("options", [{}, {"all": True, "per_head": True, "decode": 2}])
def test_a_layer_survives_the_cache(tmp_path: Path, options: dict[str, Any]) -> None:
    cache = Cache(tmp_path / "c")
    for layer in eigenlens.spectrum("sample:llama-tiny", **options).layers:
        cache.put({"name": layer.name}, *pack(layer))
        entry = cache.get({"name": layer.name})
        assert entry is not None
        back = unpack(entry.record, entry.arrays)
        assert back.to_dict() == layer.to_dict()
        for field in fields(LayerSpectrum):
            a, b = getattr(layer, field.name), getattr(back, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
