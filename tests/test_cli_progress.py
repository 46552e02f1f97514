"""What a long command says where stderr is no terminal: a line now and then, nothing if quiet."""

from __future__ import annotations

import io
import sys
import threading
import time
from typing import Any

import pytest
from typer.testing import CliRunner

from eigenlens.cli import progress
from eigenlens.cli.app import app
from eigenlens.cli.boundary import progress_bar
from eigenlens.cli.progress import Heartbeat
from eigenlens.tensors.transfers import current

FAST = 0.02


class Log:
    """All that was written to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def getvalue(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Log:
    """stderr as a log would have it, and a line so often that a test sees some."""
    monkeypatch.setattr(progress, "EVERY", FAST)
    return Log(capsys)


def wait_for(pipe: Log, what: str) -> str:
    end = time.monotonic() + 5
    while what not in pipe.getvalue() and time.monotonic() < end:
        time.sleep(FAST / 4)
    return pipe.getvalue()


def test_a_line_says_how_far_the_run_is(pipe: Log) -> None:
    with progress_bar(False, "prompts") as step:
        assert step is not None
        assert "eigenlens: reading, 0 s so far\n" in wait_for(pipe, "reading")
        step(24, 128, "prompts")
        assert "eigenlens: prompts: 24 of 128, 0 s so far\n" in wait_for(pipe, "24 of 128")
        step(128, 128, "")
        wait_for(pipe, "writing: 128 of 128")
    assert all(line.startswith("eigenlens: ") for line in pipe.getvalue().splitlines())


def test_a_run_that_takes_no_step_is_told_too(pipe: Log) -> None:
    """Minutes may pass within one step; the thread says so again and again."""
    with progress_bar(False) as step:
        assert step is not None
        step(1, 5, "trace")
        end = time.monotonic() + 5
        while pipe.getvalue().count("trace: 1 of 5") < 3 and time.monotonic() < end:
            time.sleep(FAST)
    assert pipe.getvalue().count("trace: 1 of 5") >= 3


def test_bytes_that_come_are_told(pipe: Log) -> None:
    with progress_bar(False):
        watching = current()
        assert watching is not None
        watching.progress(20_000_000, 100_000_000, "model\x1b[2J.safetensors")
        text = wait_for(pipe, "fetching")
    assert "fetching model" in text
    assert ": 20 of 100 MB, 0 s so far" in text
    assert "\x1b" not in text


def test_quiet_says_nothing(pipe: Log) -> None:
    with progress_bar(True) as step:
        assert step is None
        time.sleep(5 * FAST)
    assert pipe.getvalue() == ""


def test_a_name_cannot_reach_the_terminal() -> None:
    said: list[str] = []
    beat = Heartbeat(said.append)
    beat.step(1, 2, "layer\x1b]0;x\x07")
    assert "\x1b" not in beat._told
    assert beat._told.endswith(": 1 of 2")


def test_nothing_is_left_running(pipe: Log) -> None:
    with pytest.raises(RuntimeError), progress_bar(False):
        raise RuntimeError
    names = [t.name for t in threading.enumerate()]
    assert "eigenlens-progress" not in names
    before = pipe.getvalue()
    time.sleep(3 * FAST)
    assert pipe.getvalue() == before


class Gone(io.StringIO):
    """A log whose reader left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_leaves_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", FAST)
    monkeypatch.setattr(sys, "stderr", Gone())
    with progress_bar(False) as step:
        assert step is not None
        step(1, 2, "x")
        time.sleep(4 * FAST)
        assert "eigenlens-progress" in [t.name for t in threading.enumerate()]


COMMANDS = {
    "trace": ("trace", "sample:gpt2-tiny", "--text", "a b c", "--no-nulls"),
    "spectrum": ("spectrum", "sample:gpt2-tiny", "--no-cache"),
    "compare": ("compare", "sample:gpt2-tiny", "sample:gpt2-tiny"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("quiet", [False, True])
def test_commands_share_it(name: str, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that never waits: the first line comes at once, whatever the command does."""
    monkeypatch.setattr(progress, "EVERY", 1e-4)
    done: Any = CliRunner().invoke(app, [*COMMANDS[name], *(["--quiet"] if quiet else [])])
    assert done.exit_code == 0
    assert ("s so far" in done.stderr) is not quiet
    assert "so far" not in done.stdout
