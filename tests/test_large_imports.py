"""What a run imports: scipy only where a matrix needs it, tables only where one is printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from eigenlens.cli import main
sys.argv = ["eigenlens", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules} | set(sys.modules))))
"""


def modules(*arguments: str) -> set[str]:
    """Names of all modules that a run of the command line has loaded."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_spectrum_as_json_needs_numpy_and_little_else() -> None:
    found = modules("spectrum", "sample:minilm", "--format", "json", "--quiet")
    assert "numpy" in found
    assert not found & {"scipy", "torch", "transformers", "pandas", "rich.table", "pyarrow"}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("spectrum", "--help")])
def test_help_needs_no_numbers(arguments: tuple[str, ...]) -> None:
    assert not modules(*arguments) & {"numpy", "scipy", "torch", "transformers", "pandas"}


def test_a_table_needs_rich() -> None:
    """The probe sees what it should: a table is made of rich."""
    assert "rich.table" in modules("spectrum", "sample:minilm", "--layers", "0", "--quiet")
