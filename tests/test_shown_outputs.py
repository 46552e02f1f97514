"""The tool that keeps the outputs in the pages true: it renews, and it sees a stale figure."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "write_outputs.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_outputs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, *args], capture_output=True, text=True, check=False
    )


def test_a_page_is_renewed_and_a_stale_figure_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n```\n$ eigenlens spectrum sample:gpt2-tiny -k 2\n```\n\nafter\n")
    assert call("--check", page).returncode == 1
    assert call(page).returncode == 0
    fresh = page.read_text()
    assert fresh.startswith("before\n\n```\n$ eigenlens")
    assert fresh.endswith("```\n\nafter\n")
    assert "+3.220" in fresh
    assert call("--check", page).returncode == 0
    page.write_text(fresh.replace("+3.220", "+3.231"))
    stale = call("--check", page)
    assert stale.returncode == 1
    assert "-     1         +3.231" in stale.stdout
    assert "+3.231" in page.read_text()


def test_cut_blocks_keep_their_cut(tool: ModuleType) -> None:
    output = "a\nb\nc\nd\ne\n"
    assert tool.renew("x\ny\n[...]\nz\n", output) == "a\nb\n[...]\ne\n"
    assert tool.renew("x\n", output) == output
    assert tool.same("error 2e-14, 1.2 s", "error 5e-13, 3 s")
    assert tool.same("gap 4.2 %", "gap 4.3 %")
    assert not tool.same("gap 4.2 %", "gap 4.5 %")
    assert not tool.same("gap 4.2 %", "gap  4.2 %")
    assert not tool.same("in 3 layers", "in 4 layers")
    assert not tool.same("rho 0.50", "rho 0.500")


def test_a_page_without_a_block_and_a_command_that_fails_are_errors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    assert "no page holds a block" in call(page).stderr
    page.write_text("```\n$ eigenlens spectrum sample:none\n```\n")
    assert "exit 1: eigenlens:" in call(page).stderr
