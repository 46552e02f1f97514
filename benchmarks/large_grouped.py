"""Grouped heads at the size of Llama 70B: d 8192, 64 heads, 8 value heads of 128, bf16.

Leading k = 8 against the time of reading V and O of a layer (files in the page cache, best of
three), all eigenvalues of the 1024 x 1024 core against one `numpy.linalg.eig` of it, and the peak
memory of a whole process over all layers and shards.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import goal, run, run_json, table

SHAPE = {"layers": 3, "d": 8192, "heads": 64, "kv_heads": 8}
READS, EIGS = 5.0, 1.5


def best(work: Callable[[], Any], runs: int = 3) -> list[float]:
    """Shortest wall and CPU time of several runs."""
    found = []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [min(side) for side in zip(*found, strict=True)]


def inside(folder: str) -> dict[str, list[float]]:
    """Times of one process, its imports and first use not counted: wall and CPU of each part."""
    import numpy as np

    from eigenlens import open_checkpoint, spectrum
    from eigenlens.blas import one_thread

    checkpoint = open_checkpoint(folder)
    circuits, store = checkpoint.circuits(), checkpoint.source.store
    plans = checkpoint.plans
    count = len(plans)

    def read() -> None:
        for plan in plans:
            store.read(plan.value), store.read(plan.output)

    spectrum(checkpoint, layers=[0])
    found = {"read": [t / count for t in best(read)]}
    for dtype in ("float64", "float32"):
        times = best(lambda dtype=dtype: spectrum(checkpoint, dtype=dtype))
        found[f"k = 8, {dtype}"] = [t / count for t in times]
    found["all, float64"] = best(lambda: spectrum(checkpoint, layers=[0], all=True), 1)
    core = circuits[0].core(np.float64)
    with one_thread():
        found["numpy.linalg.eig of the core"] = best(lambda: np.linalg.eig(core), 1)
    return found


def report(scratch: Path, runs: int) -> None:
    """Print the times a layer, the peak, and whether the goals are met."""
    folder = scratch / "llama70b"
    folder.mkdir()
    run(scratch, str(Path(__file__).with_name("shards.py")), str(folder), *map(str, SHAPE.values()))
    found, _ = run_json(scratch, Path(__file__), str(folder))
    read, eig = found["read"], found["numpy.linalg.eig of the core"]
    print("Llama-70B-shaped, per layer: V 1024 x 8192 and O 8192 x 8192 in bf16, 151 MB\n")
    rows = [["part", "wall s", "CPU s", "x read", "x read (CPU)"]]
    rows += [
        [name, f"{t[0]:.2f}", f"{t[1]:.2f}", f"{t[0] / read[0]:.1f}", f"{t[1] / read[1]:.1f}"]
        for name, t in found.items()
    ]
    print(table(rows), end="\n\n")
    for dtype in ("float64", "float32"):
        ratio = found[f"k = 8, {dtype}"][0] / read[0]
        name = f"k = 8 in {dtype}: <= {READS:g}x the time of reading"
        print(goal(name, f"{ratio:.1f}x", ratio <= READS))
    ratio = found["all, float64"][0] / eig[0]
    name = f"all eigenvalues: <= {EIGS:g}x one eig of the core"
    print(goal(name, f"{ratio:.1f}x", ratio <= EIGS))
    d, wide = SHAPE["d"], 128 * (SHAPE["kv_heads"] + SHAPE["heads"])
    bound = 1.5 * d * wide * 4 / 1e6 + 300
    for dtype in ("float64", "float32"):
        command = ("-m", "eigenlens", "spectrum", str(folder), "--dtype", dtype, "--quiet")
        peak = run(scratch, *command).peak
        name = f"peak of {SHAPE['layers']} layers in {dtype}: <= {bound:.0f} MB"
        print(goal(name, f"{peak:.0f} MB", peak <= bound))


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    json.dump(inside(sys.argv[1]), sys.stdout)
