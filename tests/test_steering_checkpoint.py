"""A steered folder: one tensor's bytes differ, and it is there whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

import eigenlens.steering.checkpoint as checkpoint_module
import eigenlens.steering.folders as folders_module
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import FormatError, NumericsError, OptionError, SourceError
from eigenlens.samples import sample_path
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.delta import write_delta
from eigenlens.steering.record import read_edits
from eigenlens.steering.untie import Untied
from eigenlens.tensors.patch import piece_of_bytes, write_pieces
from hub_server import serving
from steering_models import (
    changed_tensors,
    hashes,
    opened,
    random_edit,
    stored_model,
)

OWN = {"eigenlens.json", "eigenlens.undo"}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file, bfloat16; do not change it."""
    return stored_model(tmp_path_factory.mktemp("llama") / "source", "llama", "bfloat16")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several files with an index; do not change it."""
    folder = tmp_path_factory.mktemp("shards") / "source"
    return stored_model(folder, "llama", max_shard_size="8KB")


def different(source: Path, steered: Path) -> set[str]:
    before, after = hashes(source), hashes(steered)
    assert set(before) <= set(after)
    return {name for name in after if after[name] != before.get(name)}


def test_one_tensor_of_one_file(llama: Path, tmp_path: Path) -> None:
    untouched = hashes(llama)
    edit = random_edit(opened(llama))
    written = write_checkpoint(opened(llama), edit, tmp_path / "steered")
    assert different(llama, tmp_path / "steered") == {"model.safetensors", *OWN}
    before, after = llama / "model.safetensors", tmp_path / "steered/model.safetensors"
    assert changed_tensors(before, after) == [written.tensor]
    assert written.tensor == "model.layers.1.self_attn.o_proj.weight"
    length = struct.unpack("<Q", before.read_bytes()[:8])[0]
    assert before.read_bytes()[: 8 + length] == after.read_bytes()[: 8 + length]
    assert sorted(written.files) == sorted(hashes(tmp_path / "steered"))
    assert hashes(llama) == untouched
    (record,) = read_edits(tmp_path / "steered")
    assert record["sha256_before"] != record["sha256_after"] == written.sha256_after
    assert record["realised_ratio"] == written.realised_ratio
    assert 0.9 < written.realised_ratio < 1.1
    assert str(tmp_path) not in (tmp_path / "steered/eigenlens.json").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["steered"]


def test_a_byte_too_many_is_seen(llama: Path, tmp_path: Path) -> None:
    """The comparison sees a changed byte of another tensor, another type, a lost tensor."""
    copy = tmp_path / "model.safetensors"
    content = bytearray((llama / "model.safetensors").read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    assert len(changed_tensors(llama / "model.safetensors", copy)) == 1
    content[-1] ^= 1
    copy.write_bytes(bytes(content).replace(b'"BF16"', b'"F16" ', 1))
    assert len(changed_tensors(llama / "model.safetensors", copy)) == 1
    copy.write_bytes(bytes(content).replace(b"layers.0.input", b"layers.0.inpux", 1))
    assert len(changed_tensors(llama / "model.safetensors", copy)) == 2


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("site", ["attention", "ffn"])
def test_one_shard_of_many(shards: Path, tmp_path: Path, layer: int, site: str) -> None:
    edit = random_edit(opened(shards), layer=layer, site=site)
    written = write_checkpoint(opened(shards), edit, tmp_path / "steered")
    index = json.loads((shards / "model.safetensors.index.json").read_bytes())
    assert len(set(index["weight_map"].values())) > 2
    file = index["weight_map"][written.tensor]
    assert written.file == file
    assert different(shards, tmp_path / "steered") == {file, *OWN}
    assert changed_tensors(shards / file, tmp_path / "steered" / file) == [written.tensor]


def test_blocks_are_shared_where_the_file_system_can(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for FICLONE; where it fails, as on most systems, bytes are copied."""
    asked: list[int] = []

    def clone(handle: int, request: int, source: int) -> int:
        asked.append(request)
        os.write(handle, os.pread(source, 1 << 24, 0))
        return 0

    edit = random_edit(opened(llama))
    plain = write_checkpoint(opened(llama), edit, tmp_path / "copied")
    monkeypatch.setattr(fcntl, "ioctl", clone)
    shared = write_checkpoint(opened(llama), edit, tmp_path / "cloned")
    assert set(asked) == {0x40049409}
    assert set(shared.copied.values()) == {"reflink"}
    assert set(plain.copied.values()) <= {"copy", "reflink"}
    assert hashes(tmp_path / "copied") == hashes(tmp_path / "cloned")


def test_another_disk_has_no_hard_links(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    edit = random_edit(opened(llama))
    written = write_checkpoint(opened(llama), edit, tmp_path / "steered", link=True)
    assert "link" not in written.copied.values()
    assert different(llama, tmp_path / "steered") == {"model.safetensors", *OWN}


def as_hub_cache(source: Path, root: Path) -> Path:
    """The same files as the hub's cache holds them: links into a folder of blobs."""
    repository = root / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    blobs = repository / "blobs"
    blobs.mkdir(parents=True)
    for i, (name, _) in enumerate(hashes(source).items()):
        blob = blobs / f"{i:064x}"
        shutil.copy(source / name, blob)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.mark.parametrize("link", [False, True])
def test_links_of_the_hub_cache_become_files(shards: Path, tmp_path: Path, link: bool) -> None:
    snapshot = as_hub_cache(shards, tmp_path)
    untouched = hashes(snapshot)
    edit = random_edit(opened(snapshot))
    written = write_checkpoint(opened(snapshot), edit, tmp_path / "steered", link=link)
    assert not any(path.is_symlink() for path in (tmp_path / "steered").rglob("*"))
    assert different(snapshot, tmp_path / "steered") == {written.file, *OWN}
    assert hashes(snapshot) == untouched
    shared = {
        name
        for name in hashes(tmp_path / "steered")
        if name not in OWN and (tmp_path / "steered" / name).samefile(snapshot / name)
    }
    assert shared == (set(hashes(snapshot)) - {written.file} if link else set())
    assert ("link" in written.copied.values()) == link


def test_a_link_out_of_the_folder_is_refused(llama: Path, tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "source")
    (tmp_path / "secret").write_text("x")
    (source / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError, match="outside the model's folder"):
        write_checkpoint(opened(source), random_edit(opened(source)), tmp_path / "steered")
    (source / "notes.txt").unlink()
    (source / "round").symlink_to(source)
    with pytest.raises(SourceError, match="round in a circle"):
        write_checkpoint(opened(source), random_edit(opened(source)), tmp_path / "steered")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "source"]


def test_other_tools_folders_and_other_weights_are_told(llama: Path, tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "source")
    (source / ".git").mkdir()
    (source / ".git/config").write_text("x")
    (source / "pytorch_model.bin").write_bytes(b"x")
    edit = random_edit(opened(source))
    written = write_checkpoint(opened(source), edit, tmp_path / "steered")
    assert written.left_out == (".git",)
    assert not (tmp_path / "steered/.git").exists()
    assert any("pytorch_model.bin" in w and "not edited" in w for w in written.warnings)
    assert (tmp_path / "steered/pytorch_model.bin").read_bytes() == b"x"


def test_a_folder_that_is_there_is_kept(llama: Path, tmp_path: Path) -> None:
    checkpoint, there = opened(llama), tmp_path / "there"
    edit = random_edit(checkpoint)
    there.mkdir()
    (there / "thesis.txt").write_text("x")
    with pytest.raises(OptionError, match="is there already"):
        write_checkpoint(checkpoint, edit, there)
    with pytest.raises(OptionError, match=r"holds none of config\.json"):
        write_checkpoint(checkpoint, edit, there, force=True)
    with pytest.raises(OptionError, match="is a file"):
        write_checkpoint(checkpoint, edit, there / "thesis.txt", force=True)
    assert hashes(there).keys() == {"thesis.txt"}
    for other in ("{}", '{"port": 80}', "["):  # many folders hold a config.json
        (there / "config.json").write_text(other)
        with pytest.raises(OptionError, match=r"holds none of eigenlens\.json"):
            write_checkpoint(checkpoint, edit, there, force=True)
    (there / "config.json").write_text('{"model_type": "llama"}')
    (there / ".git").mkdir()
    with pytest.raises(OptionError, match=r"holds \.git"):
        write_checkpoint(checkpoint, edit, there, force=True)
    assert hashes(there).keys() == {"thesis.txt", "config.json"}
    (there / ".git").rmdir()
    write_checkpoint(checkpoint, edit, there, force=True)
    assert different(llama, there) == {"model.safetensors", *OWN}
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_neither_in_nor_around_the_model(llama: Path, tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "a" / "source")
    edit = random_edit(opened(source))
    with pytest.raises(OptionError, match="lies inside the model's folder"):
        write_checkpoint(opened(source), edit, source / "steered")
    (tmp_path / "a/config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(OptionError, match="or holds it"):
        write_checkpoint(opened(source), edit, tmp_path / "a", force=True)
    assert hashes(source) == hashes(llama)


@pytest.mark.parametrize("exchange", [True, False])
def test_over_the_model_itself(
    llama: Path, tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(folders_module, "_rename", lambda *_: False)
    source = shutil.copytree(llama, tmp_path / "source")
    edit = random_edit(opened(source))
    write_checkpoint(opened(source), edit, source, force=True, link=True)
    assert different(llama, source) == {"model.safetensors", *OWN}
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="renameat2 is Linux's")
def test_an_old_folder_is_exchanged_in_one_step(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No moment without the folder: it is not moved aside first."""

    def refuse(*_: Any) -> None:
        raise OSError(1, "moved aside")

    edit = random_edit(opened(llama))
    write_checkpoint(opened(llama), edit, tmp_path / "steered")
    monkeypatch.setattr(os, "rename", refuse)
    write_checkpoint(opened(llama), edit, tmp_path / "steered", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["steered"]


def test_a_failure_leaves_nothing(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_module, "write_undo", fail)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(opened(llama), random_edit(opened(llama)), tmp_path / "a/b/steered")
    assert not list(tmp_path.iterdir())


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("steps", ["all", "last"])
@pytest.mark.parametrize("size", [100, 3000, 10_000])
def test_a_full_disk_leaves_nothing_and_is_told(
    tmp_path: Path, albert: Path, size: int, steps: str
) -> None:
    edit = random_edit(opened(albert), steps=steps)
    message = ""
    with largest_file(size):
        try:
            write_checkpoint(opened(albert), edit, tmp_path / "steered")
        except SourceError as error:
            message = str(error)
    assert "cannot write" in message
    assert "nothing is left behind" in message
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def albert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_model(tmp_path_factory.mktemp("albert") / "source", "albert")


@pytest.mark.parametrize(
    ("place", "bug"),
    [
        ("write_span", lambda path, start, data: _spoil(path, start, data, -1)),
        ("write_span", lambda path, start, data: _spoil(path, start, data, 16)),
        ("write_span", lambda path, start, data: None),
        ("write_span", lambda path, start, data: _spoil(path, path.stat().st_size, b"x", 0)),
        ("write_span", lambda path, start, data: _spoil(path, 9, b"x", 0)),
    ],
    ids=["shifted", "shifted on", "nothing written", "longer", "header"],
)
def test_what_was_written_is_checked(
    llama: Path, tmp_path: Path, place: str, bug: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(checkpoint_module, place, bug)
    with pytest.raises(FormatError):
        write_checkpoint(opened(llama), random_edit(opened(llama)), tmp_path / "steered")
    assert not list(tmp_path.iterdir())


def test_the_other_tensors_of_an_untied_file_are_checked(
    albert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Untied.write

    def spoiled(self: Untied, source: Path, target: Path, file: str) -> None:
        real(self, source, target, file)
        content = bytearray(target.read_bytes())
        content[-1] ^= 1
        target.write_bytes(content)

    monkeypatch.setattr(Untied, "write", spoiled)
    with pytest.raises(FormatError, match="is not what was written"):
        write_checkpoint(opened(albert), random_edit(opened(albert), steps="last"), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def _spoil(path: Path, start: int, data: Any, shift: int) -> None:
    with path.open("r+b") as file:
        file.seek(start + shift)
        file.write(data)


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    """A source, its edit, what is to come of it, and an older folder that may be replaced."""
    source = stored_model(tmp_path / "source", "gpt2")
    checkpoint = opened(source)
    edit = random_edit(checkpoint)
    write_checkpoint(checkpoint, edit, tmp_path / "expected")
    write_delta(checkpoint, edit, tmp_path / "expected.safetensors")
    write_checkpoint(checkpoint, random_edit(checkpoint, seed=5), tmp_path / "old")
    return tmp_path


def killed(arena: Path, job: str, points: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "steering_kills.py"), str(points), "steering_kill_jobs"]
    return subprocess.run(
        [*command, job, str(arena)], capture_output=True, text=True, timeout=600, check=False
    )


JOBS = ("write", "replace", "replace_in_two", "undo")


@pytest.mark.parametrize(
    ("job", "points"),
    [
        *[(job, 10) for job in JOBS if job != "replace_in_two"],
        *[pytest.param(job, 0, marks=pytest.mark.slow) for job in JOBS],
    ],
)
def test_kill_leaves_no_half(arena: Path, job: str, points: int) -> None:
    """kill -9 before system calls spread over the whole run: all or nothing, then and after."""
    result = killed(arena, job, points)
    assert result.returncode == 0, result.stderr[-2000:]
    done, total = map(int, result.stdout.split(" of "))
    assert done == (points or total) >= 10


def test_a_folder_filled_in_place_is_seen(arena: Path) -> None:
    result = killed(arena, "bare", 4)
    assert result.returncode != 0
    assert "half a folder" in result.stderr


def test_a_running_write_is_not_cleaned_away(llama: Path, tmp_path: Path) -> None:
    edit = random_edit(opened(llama))
    with folders_module.new_folder(
        tmp_path / "steered", force=False, known_by=("config.json",)
    ) as building:
        command = [sys.executable, "-c", "import sys; from pathlib import Path; "]
        command[-1] += "from eigenlens.steering.folders import clean; clean(Path(sys.argv[1]))"
        subprocess.run([*command, str(tmp_path / "steered")], check=True)
        assert building.is_dir()
        (building / "config.json").write_text('{"model_type": "llama"}')
    write_checkpoint(opened(llama), edit, tmp_path / "steered", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["steered"]


def test_memory_is_a_block_whatever_the_shard(llama: Path, tmp_path: Path) -> None:
    """Beside the edited tensor only blocks are in memory; a planted whole read would be seen."""
    source = shutil.copytree(llama, tmp_path / "source")
    from eigenlens.tensors.patch import piece_of
    from eigenlens.tensors.safetensors_file import SafetensorsFile

    plain = SafetensorsFile(llama / "model.safetensors")
    (source / "model.safetensors").unlink()
    large = piece_of_bytes("extra", bytes(96 << 20))
    pieces = [*(piece_of(plain, n) for n in sorted(plain.names())), large]
    write_pieces(source / "model.safetensors", pieces, plain.metadata)
    del large, pieces
    edit = random_edit(opened(source))
    tracemalloc.start()
    written = write_checkpoint(opened(source), edit, tmp_path / "steered")
    peak = tracemalloc.get_traced_memory()[1]
    whole = (source / "model.safetensors").read_bytes()
    seen = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20 < len(whole) <= seen
    assert written.size > 96 << 20


def test_models_that_are_no_folder_of_safetensors(
    tiny: Callable[..., Any], llama: Path, tmp_path: Path
) -> None:
    import torch

    live = open_checkpoint(tiny("llama"))
    with pytest.raises(OptionError, match=r"in memory.*--as lora or delta"):
        write_checkpoint(live, random_edit(live), tmp_path / "steered")
    source = tmp_path / "bin"
    source.mkdir()
    shutil.copy(llama / "config.json", source)
    state = {n: t.clone() for n, t in tiny("llama").state_dict().items()}
    torch.save(state, source / "pytorch_model.bin")
    with pytest.raises(OptionError, match=r"stored as \.bin.*save_pretrained"):
        write_checkpoint(opened(source), random_edit(opened(source)), tmp_path / "steered")
    assert not (tmp_path / "steered").exists()


def test_a_quantised_tensor_is_refused_by_scheme(llama: Path, tmp_path: Path) -> None:
    """FP8 with scales: the tensor's bytes are codes, and the remedy is told; another layer's
    projection that is stored plain can be edited."""
    from safetensors.numpy import load_file, save_file

    source = shutil.copytree(llama, tmp_path / "source")
    found = load_file(source / "model.safetensors")
    name = "model.layers.1.self_attn.o_proj.weight"
    import ml_dtypes

    found[name] = found[name].astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    found[f"{name}_scale_inv"] = np.ones((1, 1), dtype=np.float32)
    save_file(found, source / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_bytes())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (source / "config.json").write_text(json.dumps(config))
    checkpoint = opened(source)
    with pytest.raises(OptionError, match=r"quantised \(.*dequantise the model first"):
        write_checkpoint(checkpoint, random_edit(checkpoint), tmp_path / "steered")
    written = write_checkpoint(checkpoint, random_edit(checkpoint, layer=0), tmp_path / "steered")
    changed = changed_tensors(source / "model.safetensors", tmp_path / "steered/model.safetensors")
    assert changed == [written.tensor]


def test_a_gguf_is_refused_with_the_remedy() -> None:

    checkpoint = open_checkpoint(sample_path("gpt2-tiny"))
    assert checkpoint.source is not None
    gguf = replace(checkpoint, source=replace(checkpoint.source, format="gguf"))
    with pytest.raises(OptionError, match="GGUF file, which is not rewritten"):
        write_checkpoint(gguf, random_edit(checkpoint), "nowhere")


def _unreachable(*_: Any, **__: Any) -> None:
    raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")


def test_a_model_of_the_hub_is_fetched_whole(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other files come with it, weights in other formats do not."""
    home = tmp_path / "home"
    with serving(home, monkeypatch) as hub:
        hub.files = {name: (llama / name).read_bytes() for name in hashes(llama)}
        hub.files["pytorch_model.bin"] = b"x"
        checkpoint = open_checkpoint("org/name")
        edit = random_edit(checkpoint)
        written = write_checkpoint(checkpoint, edit, tmp_path / "steered")
        assert not hub.sent("pytorch_model.bin")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _unreachable)
    with pytest.raises(SourceError, match="cannot be fetched whole"):
        write_checkpoint(checkpoint, edit, tmp_path / "x")
    assert different(llama, tmp_path / "steered") == {"model.safetensors", *OWN}
    assert written.edit.model == "org/name"
    assert read_edits(tmp_path / "steered")[0]["model"] == "org/name"


def test_an_edit_that_is_lost_is_an_error_and_a_faint_one_is_told(
    llama: Path, tmp_path: Path
) -> None:
    checkpoint = opened(llama)
    with pytest.raises(NumericsError, match="vanishes"):
        write_checkpoint(checkpoint, random_edit(checkpoint, strength=1e-6), tmp_path / "x")
    assert not list(tmp_path.iterdir())
    for strength in (0.02 * 0.6**i for i in range(10)):
        edit = random_edit(checkpoint, strength=strength)
        try:
            written = write_checkpoint(checkpoint, edit, tmp_path / f"{strength}")
        except NumericsError:
            break
        assert written.projection is not None
        faint = any("of the edit arrives" in w for w in written.warnings)
        assert faint == (written.projection < 0.9)


def test_layers_that_no_config_unties_are_refused(tmp_path: Path) -> None:

    checkpoint = opened(stored_model(tmp_path / "source", "albert"))
    edit = random_edit(checkpoint, steps="last")
    other = replace(checkpoint, config={**checkpoint.config, "model_type": "zamba"})
    with pytest.raises(OptionError, match=r"cannot give the last call weights of its own"):
        write_checkpoint(other, replace(edit, model_type="zamba"), tmp_path / "steered")


def test_the_history_of_the_models_folder_is_kept(llama: Path, tmp_path: Path) -> None:
    """It is not copied, so that an edit in place would remove it."""
    source = shutil.copytree(llama, tmp_path / "source")
    (source / ".git").mkdir()
    (source / ".git/HEAD").write_text("ref: refs/heads/main")
    there = hashes(source)
    with pytest.raises(OptionError, match=r"holds \.git"):
        write_checkpoint(opened(source), random_edit(opened(source)), source, force=True)
    assert hashes(source) == there
    written = write_checkpoint(opened(source), random_edit(opened(source)), tmp_path / "steered")
    assert written.left_out == (".git",)


@pytest.mark.parametrize("strength", [1e-300, 1e-160, -1e-200])
def test_an_edit_whose_squares_underflow_vanishes(
    llama: Path, tmp_path: Path, strength: float
) -> None:
    edit = random_edit(opened(llama), strength=strength)
    with pytest.raises(NumericsError, match="vanishes"):
        write_checkpoint(opened(llama), edit, tmp_path / "steered")
    assert not list(tmp_path.iterdir())
