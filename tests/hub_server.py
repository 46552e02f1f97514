"""A hub on this machine: what huggingface_hub asks of one, over real HTTP, and every way to fail.

Large files lie on a second server under another host name, as on the hub, behind a redirect. What
was asked, with which token, and how many bytes were sent is written down.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
from safetensors.numpy import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_secretsecretsecret"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Fault:
    """What goes wrong with one answer.

    `cut` sends only so many bytes of the body and closes; `reset` breaks the connection instead of
    closing it. `pause` waits so long between two pieces of 64 KiB. `skew` shifts the Content-Range,
    `short` answers with fewer bytes than asked for.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    reset: bool = False
    skew: int = 0
    short: int = 0
    content: bytes | None = None
    ranges: bool = True
    whole_size: str | None = None
    chunked: bool = False
    pause: float = 0.0


@dataclass
class Asked:
    """One request as it came."""

    method: str
    host: str
    file: str
    range: str | None
    token: str | None
    revision: str = ""
    sent: int = 0


@dataclass
class Hub:
    """The content, the behaviour and the diary of the two servers."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    stored: set[str] = field(default_factory=set)
    """Files that are redirected to the storage host."""
    revisions: set[str] = field(default_factory=lambda: {"main", COMMIT})
    commit: str = COMMIT
    branches: dict[str, str] = field(default_factory=dict)
    """Commit by name, as the list of refs has them; `tags` likewise."""
    tags: dict[str, str] = field(default_factory=dict)
    status: int = 200
    code: str = ""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """By file: what happens to the next answers with a body, in order."""
    asked: list[Asked] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    port: int = 0
    storage_port: int = 0

    def etag(self, file: str) -> str:
        return _sha256(self.files.get(file, b""))

    def gets(self, file: str | None = None) -> list[Asked]:
        """Requests for bodies that were answered with one."""
        return [a for a in self.asked if a.method == "GET" and file in (None, a.file) and a.sent]

    def sent(self, file: str) -> int:
        """Bytes of bodies that were sent of a file."""
        return sum(a.sent for a in self.gets(file))

    def forget(self) -> None:
        self.asked.clear()
        self.slept.clear()


@cache
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _handler(hub: Hub, storage: bool) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Silent."""

        def _answer(self) -> None:
            parts = [unquote(part) for part in self.path.strip("/").split("/")]
            token = self.headers.get("authorization")
            asked = Asked(
                self.command,
                self.headers.get("host", ""),
                "/".join(parts[1:] if storage else parts[4:]),
                self.headers.get("range"),
                token,
                "" if storage else (parts[3] if len(parts) > 3 else ""),
            )
            hub.asked.append(asked)
            if storage:
                return self._body(asked, {"ETag": '"tag-of-the-storage"'})
            if parts[:2] == ["api", "models"] and parts[4:] == ["refs"]:
                if hub.status != 200:
                    return self._send(hub.status, {"X-Error-Code": hub.code}, b"")
                listed = {
                    kind: [
                        {"name": name, "ref": f"refs/{where}/{name}", "targetCommit": commit}
                        for name, commit in names.items()
                    ]
                    for kind, where, names in (
                        ("branches", "heads", hub.branches),
                        ("tags", "tags", hub.tags),
                    )
                }
                return self._send(200, {}, json.dumps(listed | {"converts": []}).encode(), asked)
            if parts[:2] == ["api", "models"] and parts[4:5] == ["tree"]:
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hub.etag(name)[:40]}
                    for name, data in hub.files.items()
                ]
                return self._send(hub.status, {}, json.dumps(tree).encode(), asked)
            if parts[:2] == ["api", "models"]:
                names = [{"rfilename": name} for name in hub.files]
                info = {"id": "/".join(parts[2:4]), "sha": hub.commit, "siblings": names}
                return self._send(200, {}, json.dumps(info).encode(), asked)
            status, code = hub.status, hub.code
            if status == 200 and asked.revision not in hub.revisions | {hub.commit}:
                status, code = 404, "RevisionNotFound"
            elif status == 200 and asked.file not in hub.files:
                status, code = 404, "EntryNotFound"
            headers = {"X-Repo-Commit": hub.commit}
            if status != 200:
                return self._send(status, headers | ({"X-Error-Code": code} if code else {}), b"")
            tag = f'"{hub.etag(asked.file)}"'
            if asked.file not in hub.stored:
                return self._body(asked, headers | {"ETag": tag})
            headers |= {
                "X-Linked-Etag": tag,
                "X-Linked-Size": str(len(hub.files[asked.file])),
                "Location": f"http://localhost:{hub.storage_port}/storage/{quote(asked.file)}",
            }
            return self._send(302, headers, b"")

        def _body(self, asked: Asked, headers: dict[str, str]) -> None:
            queue = hub.faults.get(asked.file, []) if self.command == "GET" else []
            fault = queue.pop(0) if queue else Fault()
            if fault.status is not None:
                return self._send(fault.status, headers | fault.headers, fault.body)
            data = memoryview(fault.content or hub.files[asked.file])
            match = _RANGE.fullmatch(asked.range or "")
            if match is None or not hub.ranges or not fault.ranges:
                return self._send(200, headers | fault.headers, data, asked, fault)
            first = int(match[1])
            last = min(int(match[2] or len(data)), len(data) - 1) - fault.short
            if first >= len(data):
                return self._send(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
            size = fault.whole_size or str(len(data))
            headers["Content-Range"] = f"bytes {first + fault.skew}-{last + fault.skew}/{size}"
            return self._send(206, headers | fault.headers, data[first : last + 1], asked, fault)

        def _send(
            self,
            status: int,
            headers: dict[str, str],
            body: bytes | memoryview,
            asked: Asked | None = None,
            fault: Fault | None = None,
        ) -> None:
            fault = fault or Fault()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if fault.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            body = body[: fault.cut]
            if fault.chunked:
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
            try:
                for start in range(0, len(body), 1 << 16):
                    piece = body[start : start + (1 << 16)]
                    self.wfile.write(piece)
                    if fault.pause:
                        time.sleep(fault.pause)
                    if asked is not None:
                        asked.sent += len(piece)
            except OSError:
                self.close_connection = True
            if fault.cut is not None and not fault.chunked:
                self.close_connection = True
                if fault.reset:  # linger 0: the peer gets RST, not FIN
                    self.connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )

        do_GET = _answer
        do_HEAD = _answer

    return Handler


@contextmanager
def _server(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True  # idle connections of the client's pool stay open
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def servers() -> Iterator[Hub]:
    """A hub and its storage host, on ports of their own."""
    hub = Hub()
    with _server(_handler(hub, False)) as hub.port, _server(_handler(hub, True)) as port:
        hub.storage_port = port
        yield hub


@contextmanager
def serving(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub takes for the real one, with its caches in `home`, no waits."""
    from huggingface_hub import close_session, constants

    with servers() as hub:
        endpoint = f"http://127.0.0.1:{hub.port}"
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(home / "assets"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setenv("HF_TOKEN", SECRET)
        monkeypatch.setattr(time, "sleep", hub.slept.append)
        yield hub
        close_session()


def llama(
    d: int = 256, kv: int = 64, ff: int = 1024, vocab: int = 8192, layers: int = 4
) -> dict[str, np.ndarray]:
    """Weights with the names and proportions of a Llama: V and O are a small part of them."""
    draw = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return draw.normal(0, 0.2, shape).astype(np.float32)

    found = {"model.embed_tokens.weight": weight(vocab, d), "model.norm.weight": weight(d)}
    for i in range(layers):
        at = f"model.layers.{i}"
        for part, rows in (("q", d), ("k", kv), ("v", kv), ("o", d)):
            found[f"{at}.self_attn.{part}_proj.weight"] = weight(rows, d)
        found[f"{at}.mlp.gate_proj.weight"] = weight(ff, d)
        found[f"{at}.mlp.up_proj.weight"] = weight(ff, d)
        found[f"{at}.mlp.down_proj.weight"] = weight(d, ff)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{norm}.weight"] = weight(d)
    return found


CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 8192,
    "rms_norm_eps": 1e-6,
}


def publish(hub: Hub, arrays: dict[str, np.ndarray], shards: int = 1) -> None:
    """Put a checkpoint on the hub, large files behind the redirect."""
    hub.files["config.json"] = json.dumps(CONFIG).encode()
    if shards == 1:
        hub.files["model.safetensors"] = save(arrays)
        hub.stored.add("model.safetensors")
        return
    names = list(arrays)
    size = -(-len(names) // shards)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: arrays[name] for name in names[i * size : (i + 1) * size]}
        weight_map |= dict.fromkeys(part, file)
        hub.files[file] = save(part)
        hub.stored.add(file)
    index = {"metadata": {}, "weight_map": weight_map}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
