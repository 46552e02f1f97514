"""Kept spectra: found for the same question alone, never for changed files, layer by layer."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.cache import Cache
from eigenlens.cli.app import app
from eigenlens.errors import OptionError, ShapeError
from eigenlens.samples import sample_path
from eigenlens.spectra import analyse as analyse_module
from eigenlens.tensors import safetensors_file
from eigenlens.tensors.files import identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a bundled sample, free to be changed."""
    return Path(shutil.copytree(sample_path("llama-tiny"), tmp_path / "model"))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the layers that were computed, in their sequence of completion."""
    done: list[int] = []
    original = analyse_module.analyse

    def counted(circuit: Any, *rest: Any) -> Any:
        done.append(circuit.layer)
        return original(circuit, *rest)

    monkeypatch.setattr(analyse_module, "analyse", counted)
    return done


def test_the_second_run_computes_nothing_and_says_the_same(
    folder: Path, tmp_path: Path, computed: list[int]
) -> None:
    cache = Cache(tmp_path / "c")
    options: dict[str, Any] = {"k": 4, "per_head": True, "decode": 3, "cache": cache}
    first = eigenlens.spectrum(folder, **options)
    assert sorted(computed) == [0, 1, 2, 3, 4]
    second = eigenlens.spectrum(folder, **options)
    assert len(computed) == 5
    assert first.to_dict() == second.to_dict()
    for a, b in zip(first.layers, second.layers, strict=True):
        np.testing.assert_array_equal(a.basis(), b.basis())


@pytest.mark.parametrize(
    "change",
    [
        {"k": 5},
        {"order": "modulus"},
        {"operator": "folded"},
        {"dtype": "float32"},
        {"tie_tolerance": 0.2},
        {"per_head": True},
        {"all": True},
        {"seed": 1},
    ],
)
def test_another_question_is_computed(
    folder: Path, tmp_path: Path, computed: list[int], change: dict[str, Any]
) -> None:
    cache = Cache(tmp_path / "c")
    eigenlens.spectrum(folder, layers=[0], cache=cache)
    eigenlens.spectrum(folder, layers=[0], cache=cache, **change)
    assert computed == [0, 0]


def test_a_stopped_run_goes_on_where_it_was(
    folder: Path, tmp_path: Path, computed: list[int]
) -> None:
    cache = Cache(tmp_path / "c")

    def stop(done: int, total: int, name: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eigenlens.spectrum(folder, cache=cache, progress=stop)
    before = set(computed)
    assert {0, 1, 2} <= before
    computed.clear()
    eigenlens.spectrum(folder, cache=cache)
    assert set(computed) == {0, 1, 2, 3, 4} - before


def test_changed_files_are_computed_anew(folder: Path, tmp_path: Path, computed: list[int]) -> None:
    cache = Cache(tmp_path / "c")
    weights = folder / "model.safetensors"
    eigenlens.spectrum(folder, layers=[1], cache=cache)
    status = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-4000:] = bytes(4000)
    weights.write_bytes(content)
    eigenlens.spectrum(folder, layers=[1], cache=cache)
    assert computed == [1, 1]
    # A config that says the same of the layer in other words is the same question.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_bias": None}))
    eigenlens.spectrum(folder, layers=[1], cache=cache)
    assert computed == [1, 1]
    # One that groups the heads otherwise is another.
    (folder / "config.json").write_text(
        json.dumps(config | {"num_attention_heads": 2, "head_dim": 32, "num_key_value_heads": 2})
    )
    with pytest.raises(ShapeError):
        eigenlens.spectrum(folder, layers=[1], cache=cache)
    assert status.st_size == weights.stat().st_size


@pytest.mark.parametrize("hidden", [False, True])
def test_a_change_whose_time_is_put_back(
    folder: Path,
    tmp_path: Path,
    computed: list[int],
    hidden: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The inode's own time tells it; where nothing does (`hidden`), only the content can."""
    if hidden:
        monkeypatch.setattr(safetensors_file, "identity", lambda path: "the same")
    cache = Cache(tmp_path / "c")
    weights = folder / "model.safetensors"
    status = weights.stat()
    store = eigenlens.open_checkpoint(folder).source.store  # type: ignore[union-attr]
    start, length, _ = store.span("model.layers.0.self_attn.v_proj.weight")  # type: ignore[attr-defined]
    kept = eigenlens.spectrum(folder, layers=[0], cache=cache).layers[0]
    with weights.open("r+b") as file:
        file.seek(start)
        file.write(bytes(length // 2))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    if hidden:
        stale = eigenlens.spectrum(folder, layers=[0], cache=cache).layers[0]
        np.testing.assert_array_equal(stale.eigenvalues, kept.eigenvalues)
        assert computed == [0]
    fresh = eigenlens.spectrum(folder, layers=[0], cache=cache, verify_cache=True).layers[0]
    assert computed == [0, 0]
    assert abs(fresh.eigenvalues[0] - kept.eigenvalues[0]) > 1e-3
    eigenlens.spectrum(folder, layers=[0], cache=cache, verify_cache=True)
    assert computed == [0, 0]


def test_a_folder_that_is_called_blobs_is_no_hub(tmp_path: Path, computed: list[int]) -> None:
    cache = Cache(tmp_path / "c")
    for name in ("bert-tiny", "albert-tiny"):
        folder = shutil.copytree(sample_path(name), tmp_path / name / "blobs")
        assert identity(Path(folder) / "model.safetensors").startswith("file ")
        eigenlens.spectrum(folder, layers=[0], cache=cache)
    assert computed == [0, 0]
    blob = tmp_path / "models--a--b" / "blobs" / ("0a" * 32)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"1234")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    assert identity(link) == f"blob {'0a' * 32} 4"


def test_scores_through_another_head_are_computed_anew(
    tmp_path: Path, computed: list[int], tiny: Any
) -> None:
    """Whether the head is the embedding is said by config.json alone."""
    cache = Cache(tmp_path / "c")
    folder = tmp_path / "opt"
    tiny("opt").save_pretrained(folder)
    path = folder / "config.json"
    found = []
    for tied in (True, False):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": tied}))
        result = eigenlens.spectrum(folder, layers=[0], per_head=True, cache=cache)
        found.append([h.copying_score for h in result.layers[0].heads or ()])
    assert computed == [0, 0]
    assert found[0] != found[1]


def test_a_vocabulary_that_changed_unseen(
    tmp_path: Path, computed: list[int], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "identity", lambda path: "the same")
    cache, folder = Cache(tmp_path / "c"), tmp_path / "opt"
    tiny("opt").save_pretrained(folder)
    options: dict[str, Any] = {"layers": [0], "per_head": True, "cache": cache}
    eigenlens.spectrum(folder, **options)
    weights = folder / "model.safetensors"
    store = safetensors_file.SafetensorsFile(weights)
    name = next(n for n in store.names() if n.endswith("embed_tokens.weight"))
    start, length, _ = store.span(name)
    content = bytearray(weights.read_bytes())
    content[start : start + length // 2] = bytes(length // 2)
    weights.write_bytes(content)
    eigenlens.spectrum(folder, **options)
    assert computed == [0]
    eigenlens.spectrum(folder, verify_cache=True, **options)
    assert computed == [0, 0]


def test_what_is_in_memory_is_not_kept(tmp_path: Path, computed: list[int]) -> None:
    cache = Cache(tmp_path / "c")
    for _ in range(2):
        eigenlens.spectrum((np.eye(3), np.diag([3.0, 2.0, 1.0])), cache=cache)
    assert computed == [0, 0]
    assert not list(cache.entries())


def test_a_damaged_entry_is_computed_anew(
    folder: Path, tmp_path: Path, computed: list[int]
) -> None:
    cache = Cache(tmp_path / "c")
    eigenlens.spectrum(folder, layers=[0], cache=cache)
    for path, _ in cache.entries():
        path.write_bytes(path.read_bytes()[:-100])
    eigenlens.spectrum(folder, layers=[0], cache=cache)
    assert computed == [0, 0]


def test_the_command_uses_the_cache_unless_told_not_to(folder: Path, computed: list[int]) -> None:
    first, second, third = (
        CliRunner().invoke(app, ["spectrum", str(folder), "--format", "json", *more])
        for more in ([], [], ["--no-cache"])
    )
    assert len(computed) == 10
    assert first.stdout == second.stdout
    assert first.stdout == third.stdout
    assert CliRunner().invoke(app, ["spectrum", str(folder), "--verify-cache"]).exit_code == 0
    assert len(computed) == 10


def test_a_cache_in_the_home_of_nobody_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EIGENLENS_CACHE", "~nobody-of-this-name/x")
    assert CliRunner().invoke(app, ["spectrum", str(folder), "--layers", "0"]).exit_code == 0


def test_a_cache_that_cannot_be_used_is_a_warning(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = eigenlens.spectrum(folder, layers=[0], cache=Cache(tmp_path / "file" / "c"))
    assert any("results are not kept in" in w for w in found.warnings)


def test_what_is_no_cache_is_refused() -> None:
    with pytest.raises(OptionError, match=r"cache=True: give an eigenlens\.cache\.Cache\(\)"):
        inspect.unwrap(eigenlens.spectrum)((np.eye(3), np.eye(3)), cache=True)
