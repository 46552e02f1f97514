"""The wheel carries the bundled models, stays small, and needs neither torch nor a network."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from eigenlens.samples import SAMPLES, sample_path

ROOT = Path(__file__).parents[1]
BUNDLED = [s.name for s in SAMPLES.values() if s.kind == "bundled"]

ALONE = """
import socket, sys
for name in ("torch", "transformers", "pandas", "gguf"):
    sys.modules[name] = None
def refuse(*args, **options):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
sys.argv[1:] = ["spectrum", "sample:gpt2-tiny"]
from eigenlens.cli import main
main()
"""


def run_alone(package: Path) -> subprocess.CompletedProcess[str]:
    """The first table, with the package from a folder."""
    code = f"import sys\nsys.path.insert(0, {str(package)!r})\n{ALONE}"
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def test_the_first_table_needs_the_core_alone() -> None:
    done = run_alone(ROOT / "src")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sample:gpt2-tiny" in done.stdout
    assert "real dominant" in done.stdout


def test_all_bundled_models_together_are_small() -> None:
    sizes = [SAMPLES[name].size for name in BUNDLED]
    assert len(sizes) >= 6
    assert max(sizes) <= 2_300_000
    assert sum(sizes) <= 14_000_000


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_models(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("eigenlens-*.whl")
    assert wheel.stat().st_size <= 15_000_000
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        for name in BUNDLED:
            for path in sample_path(name).iterdir():
                inside = f"eigenlens/data/samples/{name}/{path.name}"
                assert file.read(inside) == path.read_bytes()
        file.extractall(tmp_path / "package")
    assert "eigenlens/py.typed" in names
    assert not [n for n in names if "__pycache__" in n or n.startswith(("tests", "examples"))]
    done = run_alone(tmp_path / "package")
    assert (done.returncode, done.stderr) == (0, "")
    assert "real dominant" in done.stdout
