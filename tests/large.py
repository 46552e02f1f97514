"""Llama-shaped checkpoints, random V and O in bf16, a shard a layer; peaks of fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import shards


def write(folder: Path, layers: int, d: int, heads: int, kv_heads: int) -> Path:
    """The checkpoint in `folder`, as the benchmarks write it."""
    folder.mkdir(exist_ok=True)
    shards.write(folder, layers, d, heads, kv_heads)
    return folder


PEAK = """
import json, resource, sys
import numpy as np
from eigenlens import open_checkpoint, spectrum
layers = None if sys.argv[2] == "all" else list(range(int(sys.argv[2])))
hold = list(open_checkpoint(sys.argv[1]).circuits()) if sys.argv[3] == "hold" else None
found = spectrum(sys.argv[1], layers=layers)
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
worst = max(float(x.residuals.max()) for x in found.layers)
json.dump({"peak": peak, "worst": worst, "layers": len(found.layers)}, sys.stdout)
"""


def peak(folder: Path, layers: str = "all", hold: str = "") -> dict[str, float]:
    """Peak memory in bytes of a fresh process that computes the leading 8 of these layers.

    A small process stands in between: Linux counts the memory of the parent at the start of a
    child into the child's peak.
    """
    inner = [sys.executable, "-c", PEAK, str(folder), layers, hold]
    outer = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", outer, *inner], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found
