"""Undoing gives back every byte, edit by edit, and refuses where it cannot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eigenlens.steering.undo as undo_module
from eigenlens.errors import FormatError, SourceError
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.record import read_edits
from eigenlens.steering.undo import unsteer
from eigenlens.tensors.safetensors_file import SafetensorsFile
from steering_models import changed_tensors, hashes, opened, random_edit, stored_model

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_model(tmp_path_factory.mktemp("undo") / "source", "gpt2", "float16")


@pytest.fixture
def steered(source: Path, tmp_path: Path) -> Path:
    write_checkpoint(opened(source), random_edit(opened(source)), tmp_path / "steered")
    return tmp_path / "steered"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "8KB"}], ids=["one file", "shards"])
def test_undoing_restores_every_byte(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    source = stored_model(tmp_path / "source", "llama", dtype, **options)
    write_checkpoint(opened(source), random_edit(opened(source)), tmp_path / "steered")
    assert hashes(tmp_path / "steered") != hashes(source)
    done = unsteer(tmp_path / "steered")
    assert (done.remaining, done.resumed) == (0, False)
    assert hashes(tmp_path / "steered") == hashes(source)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "steered"]


def test_edits_stack_and_are_undone_in_turn(source: Path, tmp_path: Path) -> None:
    """Two of the same tensor and one of another; in new folders, and in place."""
    states = [source]
    for i, options in enumerate([{}, {"seed": 1}, {"layer": 0, "site": "ffn"}]):
        here = opened(states[-1])
        write_checkpoint(here, random_edit(here, **options), tmp_path / f"s{i}")
        states.append(tmp_path / f"s{i}")
    last = states[-1]
    assert [e["site"] for e in read_edits(last)] == ["attention", "attention", "ffn"]
    for i in (2, 1, 0):
        assert unsteer(last).remaining == i
        left, older = hashes(last), hashes(states[i])
        assert left.keys() == older.keys()
        assert {n for n in left if left[n] != older[n]} <= {"eigenlens.undo"}
        assert read_edits(last) == read_edits(states[i])
    assert hashes(last) == hashes(source)


def test_in_place_and_back(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "model")
    for seed in (0, 1):
        write_checkpoint(opened(folder), random_edit(opened(folder), seed=seed), folder, force=True)
    assert len(read_edits(folder)) == 2
    unsteer(folder)
    unsteer(folder)
    assert hashes(folder) == hashes(source)


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "4KB"}], ids=["one file", "shards"])
@pytest.mark.parametrize("name", ["albert", "albert-groups"])
def test_untied_layers_are_shared_again(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    source = stored_model(tmp_path / "source", name, **options)
    checkpoint = opened(source)
    edit = random_edit(checkpoint, steps="last", layer=0)
    write_checkpoint(checkpoint, edit, tmp_path / "steered")
    untied = opened(tmp_path / "steered")
    config = json.loads((tmp_path / "steered/config.json").read_bytes())
    assert config["num_hidden_groups"] == config["num_hidden_layers"]
    second = random_edit(untied, layer=untied.plans[-1].layer)
    write_checkpoint(untied, second, tmp_path / "steered", force=True)
    assert unsteer(tmp_path / "steered").remaining == 1
    assert unsteer(tmp_path / "steered").remaining == 0
    assert hashes(tmp_path / "steered") == hashes(source)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "steered"]


def test_untied_tensors_are_copies(tmp_path: Path) -> None:
    """Every tensor of the untied file but the edited one has the bytes of a shared one."""
    from steering_models import tensors

    source = stored_model(tmp_path / "source", "albert-groups", max_shard_size="4KB")
    checkpoint = opened(source)
    written = write_checkpoint(
        checkpoint, random_edit(checkpoint, steps="last", layer=0), tmp_path / "steered"
    )
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for path in source.glob("*.safetensors"):
        before |= tensors(path)
        after |= tensors(tmp_path / "steered" / path.name)
    shared = {name: found for name, found in before.items() if "layer_groups" in name}
    for name, found in after.items():
        if name == written.tensor:
            assert found not in before.values()
        elif name in before and name not in shared:
            assert found == before[name]
        else:
            tail = name.split(".albert_layers.")[1]
            assert found in [f for n, f in shared.items() if n.endswith(f".{tail}")]
    index = json.loads((tmp_path / "steered/model.safetensors.index.json").read_bytes())
    assert index["weight_map"].keys() == after.keys()
    size = sum(len(content) for _, _, content in after.values())
    assert index["metadata"]["total_size"] == size


def test_a_tensor_that_was_changed_since_is_not_overwritten(steered: Path) -> None:
    (edit,) = read_edits(steered)
    weights = steered / edit["file"]
    start, _, _ = SafetensorsFile(weights).span(edit["tensor"])
    content = bytearray(weights.read_bytes())
    content[start + 5] ^= 1
    weights.write_bytes(content)
    there = hashes(steered)
    with pytest.raises(SourceError, match="was changed since it was edited"):
        unsteer(steered)
    assert hashes(steered) == there


def test_another_tensor_that_was_changed_since_stays(source: Path, steered: Path) -> None:
    (edit,) = read_edits(steered)
    weights = steered / edit["file"]
    other = "transformer.h.0.attn.c_proj.weight"
    start, _, _ = SafetensorsFile(weights).span(other)
    content = bytearray(weights.read_bytes())
    content[start] ^= 1
    weights.write_bytes(content)
    unsteer(steered)
    assert changed_tensors(source / edit["file"], weights) == [other]


def test_what_is_kept_is_checked(steered: Path) -> None:
    """An undo file with other bytes restores nothing."""
    undo = steered / "eigenlens.undo"
    content = bytearray(undo.read_bytes())
    content[-1] ^= 1
    undo.write_bytes(content)
    there = hashes(steered)
    with pytest.raises(FormatError, match=r"is not what eigenlens\.json says stood there"):
        unsteer(steered)
    undo.unlink()
    with pytest.raises(FormatError, match=r"eigenlens\.undo"):
        unsteer(steered)
    assert hashes(steered) == {n: h for n, h in there.items() if n != "eigenlens.undo"}


def test_bytes_restored_wrongly_are_seen(steered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = hashes(steered)
    monkeypatch.setattr(undo_module, "write_span", lambda path, start, data: None)
    with pytest.raises(FormatError, match="is not what was written"):
        unsteer(steered)
    assert hashes(steered) == there


def test_a_file_with_a_second_name_is_not_changed_in_place(source: Path, tmp_path: Path) -> None:
    """Of two folders with hard links between them, undoing in one leaves the other alone."""
    first = tmp_path / "first"
    here = stored_model(tmp_path / "source", "llama", max_shard_size="8KB")
    write_checkpoint(opened(here), random_edit(opened(here)), first)
    edit = random_edit(opened(first), layer=0, site="ffn")
    write_checkpoint(opened(first), edit, tmp_path / "second", link=True)
    (edited,) = read_edits(first)
    assert (first / edited["file"]).samefile(tmp_path / "second" / edited["file"])
    there = hashes(tmp_path / "second")
    unsteer(first)
    assert hashes(tmp_path / "second") == there
    assert hashes(first) == hashes(here)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda r: r.update(schema="other/9"), FormatError, "is no record of edits"),
        (lambda r: r.update(edits=3), FormatError, "is no record of edits"),
        (lambda r: r["edits"][0].pop("tensor"), FormatError, "does not state tensor, file"),
        (lambda r: r["edits"][0].update(file="../source/x"), SourceError, "has no file"),
        (lambda r: r["edits"][0].update(file="/etc/passwd"), SourceError, "has no file"),
        (lambda r: r["edits"][0].update(file="config.json"), FormatError, "config.json"),
        (lambda r: r["edits"][0].update(tensor="x\x1b[31m"), SourceError, r"x\\x1b"),
        (lambda r: r["edits"].clear(), SourceError, "nothing is to be undone"),
        (lambda r: r["edits"][0].update(untied={}), FormatError, "does not say what was untied"),
        (
            lambda r: r["edits"][0].update(
                untied={"files": {"model.safetensors": "0"}, "tensors": {}}
            ),
            FormatError,
            "keeps no '0/config.json'",
        ),
    ],
)
def test_a_record_that_is_wrong(
    steered: Path, change: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    record = json.loads((steered / "eigenlens.json").read_bytes())
    change(record)
    (steered / "eigenlens.json").write_text(json.dumps(record))
    there = hashes(steered)
    from eigenlens.errors import EigenlensError

    with pytest.raises((error, EigenlensError), match=words):
        unsteer(steered)
    assert hashes(steered) == there
    assert [p.name for p in steered.parent.iterdir()] == ["steered"]


def test_a_folder_without_edits(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing is to be undone"):
        unsteer(source)
    with pytest.raises(SourceError, match="no such folder"):
        unsteer(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda edit: edit.pop("untied"), "does not say what was untied"),
        (lambda edit: edit["untied"].update(files={}), "does not state every file"),
        (lambda edit: edit["untied"]["files"].pop("model.safetensors"), "does not state every"),
        (lambda edit: edit["untied"]["files"].update({"../x": "0"}), r"keeps no '0/\.\./x'"),
        (lambda edit: edit["untied"].update(tensors={"a": ["b"]}), "does not say what"),
        (lambda edit: edit["untied"]["files"].update({"config.json": "0"}), "config.json"),
    ],
)
def test_an_untied_record_that_is_wrong(
    tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    """Config without weights, or weights without config, would be no model."""
    source = stored_model(tmp_path / "source", "albert")
    edit = random_edit(opened(source), steps="last", layer=0)
    write_checkpoint(opened(source), edit, tmp_path / "steered")
    record = json.loads((tmp_path / "steered/eigenlens.json").read_bytes())
    change(record["edits"][0])
    (tmp_path / "steered/eigenlens.json").write_text(json.dumps(record))
    there = hashes(tmp_path / "steered")
    with pytest.raises(FormatError, match=words):
        unsteer(tmp_path / "steered")
    assert hashes(tmp_path / "steered") == there
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "steered"]


@pytest.mark.parametrize("header", [b"[" * 100_000, b"[1]", b"{", b'{"a": 5}', b"\xff"])
def test_a_kept_header_that_is_damaged(tmp_path: Path, header: bytes) -> None:
    now = tmp_path / "model.safetensors"
    with pytest.raises(FormatError, match="a header that it keeps is damaged"):
        undo_module._make_again(tmp_path / "new", bytes(8) + header, now, {})
    assert not (tmp_path / "new").exists()
