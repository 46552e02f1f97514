"""resolve(): every kind of source, every way it can be missing, and what is asked of the hub."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from eigenlens.errors import EigenlensError, FormatError, SourceError
from eigenlens.samples import sample_path
from eigenlens.tensors.hub import HubModel
from eigenlens.tensors.source import resolve

W = np.arange(12, dtype=np.float32).reshape(4, 3)
CONFIG = {"model_type": "bert", "hidden_size": 3}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_secretsecretsecret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"w": W}, path / "model.safetensors")
    return path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"network call {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_socket_guard_works(no_network: None) -> None:
    with pytest.raises(AssertionError, match="network call"):
        socket.create_connection(("127.0.0.1", 9))


@pytest.mark.usefixtures("no_network")
def test_local_sources_make_no_network_call(folder: Path) -> None:
    for model in (folder, str(folder), folder / "model.safetensors"):
        source = resolve(model)
        assert source.label == str(model)
        assert source.config == CONFIG
        assert source.format == "safetensors"
        assert source.folder == folder
        np.testing.assert_array_equal(source.store.read("w"), W)
    for name, kind in (("albert-rxn", "bin"), ("minilm", "safetensors"), ("smollm2", "gguf")):
        source = resolve(f"sample:{name}")
        assert (source.label, source.format) == (f"sample:{name}", kind)
        assert len(source.tokens()) == source.config["vocab_size"]
        assert len(source.store.names()) > 20


def test_a_bin_file_beside_its_config(folder: Path) -> None:
    torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
    assert resolve(folder / "pytorch_model.bin").format == "bin"
    assert resolve(folder).format == "safetensors"


def test_albert_tokens_are_the_lines_of_its_vocabulary() -> None:
    lines = (sample_path("albert-rxn") / "vocab.txt").read_text().split("\n")
    assert list(resolve("sample:albert-rxn").tokens()) == lines[:591]


def test_a_folder_that_looks_like_a_hub_id_is_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    assert resolve(f"{folder.parent.name}/model").folder is not None


@pytest.mark.usefixtures("no_network")
def test_a_misspelt_folder_is_not_looked_up_on_the_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    there = folder.parent.name
    with pytest.raises(SourceError) as caught:
        resolve(f"{there}/mode")
    assert str(caught.value) == (
        f"{there}/mode: no such file or folder in {there}; if a model of the hub is meant, name "
        f"its revision: {there}/mode@main"
    )


def test_a_revision_makes_it_a_model_of_the_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Asked(HubModel):
        def need(self, name: str) -> Path:
            asked.append((self.repo_id, self.label, name))
            raise SourceError("the hub was asked")

    monkeypatch.setattr("eigenlens.tensors.source.HubModel", Asked)
    monkeypatch.chdir(folder.parent.parent)
    there = folder.parent.name
    for model in (f"{there}/mode@main", "elsewhere/mode"):
        with pytest.raises(SourceError, match="the hub was asked"):
            resolve(model)
    assert asked == [
        (f"{there}/mode", f"{there}/mode@main", "config.json"),
        ("elsewhere/mode", "elsewhere/mode", "config.json"),
    ]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt2", r"no such folder or file; a hub id looks like org/name"),
        ("./org/name", "no such folder"),
        ("/no/such/folder", "no such folder"),
        ("../org/name", "no such folder"),
        ("a/b/c", "no such folder"),
        ("org/name@", "no such folder"),
        ("org/na..me", "no such folder"),
        ("org/x\x1b[31m", r"x\\x1b\[31m"),
        ("", "names no model"),
        ("a\0b", "names no model"),
        ("x" * 5000, "cannot be looked up|no such folder"),
        ("sample:nothing", "unknown sample"),
        ("~no-such-user-here/x", "cannot be looked up"),
        (Path("org/name"), "no such folder"),
    ],
)
def test_what_is_no_source(model: str | Path, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        resolve(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{\n  broken}", r"config\.json.*line 2 column 3"),
        ("[1]", "is a list, but must be a JSON object"),
        ("null", "is a NoneType"),
        ("{}", "no 'model_type'"),
        ('{"model_type": 3}', "no 'model_type'"),
        ('{"a":' + "[" * 100_000, "nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "number that cannot be read"),
        ("", "line 1 column 1"),
    ],
)
def test_damaged_configs(folder: Path, config: str, message: str) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises((FormatError, SourceError), match=message) as caught:
        resolve(folder)
    assert "\n" not in str(caught.value)
    assert "config.json" in str(caught.value)


def test_missing_pieces(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(FormatError, match="not UTF-8"):
        resolve(folder)
    (folder / "config.json").unlink()
    with pytest.raises(SourceError, match=r"has no config\.json"):
        resolve(folder)
    with pytest.raises(SourceError, match=r"needs a config\.json beside it"):
        resolve(folder / "model.safetensors")
    (folder / "x.gguf").write_bytes(b"")
    with pytest.raises(SourceError, match=r"holds x\.gguf: give that file"):
        resolve(folder)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match="not a model file"):
        resolve(tmp_path / "notes.txt")
    with pytest.raises(FormatError, match=r"x\.gguf"):
        resolve(folder / "x.gguf")


def test_a_config_that_is_a_link_outside_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "config.json", tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(SourceError, match="outside the model's folder"):
        resolve(folder)


def test_no_vocabulary(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"no vocabulary \(tokenizer\.json, vocab\.json"):
        resolve(folder).tokens()


def test_vocabulary_files(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes("[PAD]\na\u2028b\n##c\r\n".encode())
    assert resolve(folder).tokens() == ["[PAD]", "a\u2028b", "##c"]
    (folder / "vocab.json").write_text(json.dumps({"\u0120the": 0, "x": 3, "\u00c3\u00a9": 1}))
    assert resolve(folder).tokens() == [" the", "é", "<no token 2>", "x"]
    (folder / "vocab.json").write_text(json.dumps({"\u2581the": 0, "x": 1}))
    assert resolve(folder).tokens() == [" the", "x"]

    level = Tokenizer(models.BPE({"\u0120a": 0, "\u010a": 1, "b": 2}, []))
    level.pre_tokenizer = pre_tokenizers.ByteLevel()
    level.decoder = decoders.ByteLevel()
    level.add_special_tokens([AddedToken("<s>\u0120", special=True)])
    level.save(str(folder / "tokenizer.json"))
    assert resolve(folder).tokens() == [" a", "\n", "b", "<s>\u0120"]

    meta = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581a", -1.0), ("<0x0A>", -2.0)], 0, True))
    meta.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    meta.save(str(folder / "tokenizer.json"))
    assert resolve(folder).tokens() == ["<unk>", " a", "\n"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", '{"a": -1}', "has the id -1"),
        ("vocab.json", '{"a": 1000000000000}', "has the id"),
        ("vocab.json", '{"a": "b"}', "has the id"),
        ("vocab.json", "[", "line 1"),
        ("tokenizer.json", "{}", r"not a tokenizer\.json"),
        ("tokenizer.json", "\x1b", r"not a tokenizer\.json"),
    ],
)
def test_damaged_vocabularies(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content)
    source = resolve(folder)
    with pytest.raises(FormatError, match=message) as caught:
        source.tokens()
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@dataclass
class Hub:
    """A hub on this machine: repository files by path, and what was asked of it."""

    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    code: str = ""
    port: int = 0
    asked: list[str] = field(default_factory=list)
    revisions: set[str] = field(default_factory=set)
    tokens: set[str | None] = field(default_factory=set)

    def downloaded(self) -> list[str]:
        return [a.removeprefix("GET ") for a in self.asked if a.startswith("GET ")]


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Silent: the test reads `hub.asked`."""

        def _answer(self) -> None:
            parts = self.path.strip("/").split("/")
            revision, file = (parts[3], "/".join(parts[4:])) if len(parts) > 4 else ("", self.path)
            hub.tokens.add(self.headers.get("authorization"))
            hub.revisions.add(revision)
            status, code = hub.status, hub.code
            if status == 200 and revision not in ("main", "v2", COMMIT):
                status, code = 404, "RevisionNotFound"
            elif status == 200 and file not in hub.files:
                status, code = 404, "EntryNotFound"
            body = hub.files.get(file, b"") if status == 200 else b""
            self.send_response(status)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{file.replace("/", "-")}"')
            self.send_header("Content-Length", str(len(body)))
            if code:
                self.send_header("X-Error-Code", code)
            self.end_headers()
            if self.command == "GET":
                hub.asked.append(f"GET {file}")
                self.wfile.write(body)
            else:
                hub.asked.append(f"HEAD {file}")

        do_GET = _answer
        do_HEAD = _answer

    return Handler


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    content = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(content))
    content.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    endpoint = f"http://127.0.0.1:{content.port}"
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    yield content
    server.shutdown()
    server.server_close()
    thread.join()


def _saved(tmp_path: Path, **arrays: np.ndarray) -> bytes:
    save_file(arrays, tmp_path / "scratch.safetensors")
    return (tmp_path / "scratch.safetensors").read_bytes()


def test_hub_single_file(hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hub.files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": _saved(tmp_path, w=W),
        "pytorch_model.bin": b"never asked for",
        "vocab.txt": b"a\nb\n",
        "README.md": b"x",
    }
    source = resolve("org/name")
    assert (source.label, source.format, source.folder) == ("org/name", "safetensors", None)
    np.testing.assert_array_equal(source.store.read("w"), W)
    assert hub.downloaded() == ["config.json", "model.safetensors"]
    assert source.tokens() == ["a", "b"]
    assert hub.downloaded() == ["config.json", "model.safetensors", "vocab.txt"]
    assert hub.tokens == {f"Bearer {SECRET}"}
    out, err = capfd.readouterr()
    assert out == ""
    assert SECRET not in err


def test_hub_fetches_a_shard_when_it_is_read(hub: Hub, tmp_path: Path) -> None:
    weight_map = {"a": "one.safetensors", "b": "two.safetensors", "c": "gone.safetensors"}
    hub.files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "one.safetensors": _saved(tmp_path, a=W),
        "two.safetensors": _saved(tmp_path, b=W + 1),
    }
    source = resolve("org/name@v2")
    index = ["config.json", "model.safetensors.index.json"]
    assert hub.downloaded() == index
    np.testing.assert_array_equal(source.store.read("b"), W + 1)
    assert hub.downloaded() == [*index, "two.safetensors"]
    assert source.store.names() == {"a", "b", "c"}
    with pytest.raises(SourceError, match=r"org/name@v2: has no gone\.safetensors"):
        source.store.read("c")
    # The first answer fixes the commit, so that later files are of the same version.
    assert hub.revisions == {"v2", COMMIT}


def test_hub_index_with_a_path_outside(hub: Hub) -> None:
    hub.files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors.index.json": b'{"weight_map": {"a": "../../x"}}',
    }
    with pytest.raises(FormatError, match="not a file inside"):
        resolve("org/name")


def test_hub_bin_only_and_no_weights(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"config.json": json.dumps(CONFIG).encode()}
    with pytest.raises(SourceError, match=r"has no model\.safetensors or pytorch"):
        resolve("org/empty")
    torch.save({"w": torch.ones(2)}, tmp_path / "w.bin")
    hub.files["pytorch_model.bin"] = (tmp_path / "w.bin").read_bytes()
    assert resolve("org/name").format == "bin"


def test_hub_cached_model_works_offline(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": _saved(tmp_path, w=W),
    }
    resolve("org/name")
    before = len(hub.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    np.testing.assert_array_equal(resolve("org/name").store.read("w"), W)
    with pytest.raises(SourceError, match=r"HF_HUB_OFFLINE is set and config\.json is not in"):
        resolve("org/other")
    with pytest.raises(SourceError, match="no vocabulary"):
        resolve("org/name").tokens()
    assert len(hub.asked) == before


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "RepoNotFound", "no such model on 127.0.0.1"),
        (404, "RepoNotFound", "no such model on 127.0.0.1"),
        (403, "GatedRepo", "access is gated; accept its terms"),
        (401, "GatedRepo", "access is gated; accept its terms"),
        (404, "RevisionNotFound", "no revision 'v9'"),
        (403, "", r"127\.0\.0\.1:\d+ answered 403 for config\.json; log in with"),
        (401, "", r"no such model on 127|answered 401 .*; log in with"),
        (418, "", "answered 418 for .*; try again later"),
        (404, "EntryNotFound", r"has no config\.json"),
    ],
)
def test_hub_refusals(hub: Hub, status: int, code: str, message: str) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(SourceError, match=message) as caught:
        resolve("org/name@v9")
    text = str(caught.value)
    assert text.startswith("org/name@v9: ")
    assert SECRET not in text
    assert "\n" not in text
    assert "http" not in text


def test_hub_revision_that_is_not_there(hub: Hub) -> None:
    hub.files = {"config.json": b"{}"}
    with pytest.raises(SourceError, match="no revision 'old'; give a branch, tag or commit"):
        resolve("org/name@old")


def test_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    """In a process of its own, as a user sets it: nobody listens at HF_ENDPOINT; and offline."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "import time\n"
        "time.sleep = lambda seconds: None\n"  # the library waits between its retries
        "from eigenlens.errors import SourceError\n"
        "from eigenlens.tensors.source import resolve\n"
        "try:\n    resolve('org/name')\nexcept SourceError as error:\n    print(error)\n"
    )
    env = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": f"http://user:{SECRET}@127.0.0.1:{port}",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_TOKEN": SECRET,
    }
    expected = {"0": f"127.0.0.1:{port} cannot be reached", "1": "HF_HUB_OFFLINE is set"}
    for offline, message in expected.items():
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**env, "HF_HUB_OFFLINE": offline},
            capture_output=True,
            text=True,
            check=True,
        )
        assert message in done.stdout
        assert done.stdout.count("\n") == 1
        assert SECRET not in done.stdout + done.stderr


def test_a_source_error_is_an_eigenlens_error() -> None:
    assert issubclass(SourceError, EigenlensError)
