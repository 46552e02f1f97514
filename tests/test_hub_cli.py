"""`eigenlens spectrum org/name` as a user runs it: a process, the environment, a hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eigenlens.cli.app import app
from hub_server import SECRET, Fault, Hub, llama, publish, servers, serving
from terminals import terminal, written_to

ARRAYS = llama()
FILE = "model.safetensors"
V_AND_O = (64 + 256) * 256 * 4  # bytes of a layer


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path, monkeypatch) as found:
        publish(found, ARRAYS)
        yield found


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["spectrum", "org/name", "-k", "2", *args])


def command(hub: Hub, home: Path, *args: str, **options: Any) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
        "HF_TOKEN": SECRET,
        "HF_HUB_OFFLINE": options.pop("offline", "0"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TERM": "xterm",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "eigenlens", "spectrum", "org/name", "-k", "2", *args],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        **options,
    )


def test_one_layer_costs_one_layer_and_the_environment_is_honoured(tmp_path: Path) -> None:
    with servers() as hub:
        publish(hub, ARRAYS)
        for offline, most in (("0", 1.5 * V_AND_O + 300_000), ("1", 0)):
            hub.forget()
            process = command(
                hub,
                tmp_path,
                *("--layers", "2", "--format", "json"),
                stderr=subprocess.PIPE,
                offline=offline,
            )
            out, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, "")
            assert [layer["layer"] for layer in json.loads(out)["layers"]] == [2]
            assert hub.sent(FILE) <= most < 0.05 * len(hub.files[FILE])
            assert SECRET not in out
            if offline == "0":
                assert hub.sent(FILE) > V_AND_O
                assert f"Bearer {SECRET}" in {a.token for a in hub.asked}
            else:
                assert hub.asked == []


def test_bytes_are_shown_on_a_terminal(tmp_path: Path) -> None:
    with servers() as hub:
        publish(hub, ARRAYS)
        hub.ranges = False
        hub.faults[FILE] = [Fault(), Fault(pause=0.02)]  # long enough to be drawn
        master, slave = terminal()
        process = command(hub, tmp_path, "--format", "csv", stderr=slave)
        text = written_to(master, slave)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "\x1b" not in out
    assert "is fetched whole (" in text
    assert re.search(r"[0-9.]+ [kM]?B/s", text), text
    assert f"/{len(hub.files[FILE]) / 1e6:.1f} MB" in text
    assert SECRET not in text


def test_a_note_is_one_line_and_quiet_is_quiet(hub: Hub) -> None:
    hub.ranges = False
    result = run("--format", "json")
    assert result.exit_code == 0
    json.loads(result.stdout)
    (line,) = result.stderr.splitlines()
    assert line.startswith("eigenlens: org/name: 127.0.0.1:")
    hub.files["model.safetensors"] += b"\0"  # nothing is kept of this one
    hub.commit = "89abcdef0123456789abcdef0123456789abcdef"
    assert run("--quiet").stderr == ""


def test_nothing_is_asked_for_twice(hub: Hub) -> None:
    result = run("--format", "json")
    assert result.exit_code == 0, result.stderr
    ranges = [a.range for a in hub.gets(FILE)]
    assert len(set(ranges)) == len(ranges) <= 1 + 3 * 4  # header; V, O and norm of a layer
    assert hub.sent(FILE) < 0.1 * len(hub.files[FILE])


def test_a_refusal_is_one_line(hub: Hub) -> None:
    hub.status, hub.code = 403, "GatedRepo"
    result = run("--format", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "access is gated" in line
    assert SECRET not in line
