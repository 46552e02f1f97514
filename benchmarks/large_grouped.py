"""Grouped heads at the size of Llama 70B: d 8192, 64 heads, 8 value heads of 128, bf16.

Leading k = 8 against the time of reading V and O of a layer, once from the page cache (warm) and
once from the disk, as a first run meets it (cold: written out, then dropped from the page cache);
all eigenvalues of the 1024 x 1024 core against one `numpy.linalg.eig` of it, which gives no left
vectors and no certificate; and the peak memory of
a whole process over all layers and shards. What the products that nobody can avoid take at the rate
of this machine's BLAS is given beside.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import goal, run, run_json, table

SHAPE = {"layers": 8, "d": 8192, "heads": 64, "kv_heads": 8}
READS, EIGS = 5.0, 1.5

Times = list[float]
"""Seconds of wall and of CPU."""


def drop_pages(folder: str) -> None:
    """Let the system forget the shards' pages; only clean ones go, so they are written out first.

    Where the system has no such call nothing happens, and cold is warm.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for shard in Path(folder).glob("*.safetensors"):
        handle = os.open(shard, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def best(work: Callable[[], Any], runs: int = 3, before: Callable[[], Any] | None = None) -> Times:
    """Shortest wall and CPU time of several runs; what is done before each is not counted."""
    found = []
    for _ in range(runs):
        if before is not None:
            before()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [min(side) for side in zip(*found, strict=True)]


def inside(folder: str) -> dict[str, Times]:
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

    def drop() -> None:
        drop_pages(folder)

    spectrum(checkpoint, layers=[0])
    found = {
        "read, warm": [t / count for t in best(read)],
        "read, cold": [t / count for t in best(read, before=drop)],
    }
    read()
    for dtype in ("float64", "float32"):
        left, right = (np.ones(shape, dtype=dtype) for shape in ((8192, 1024), (1024, 8192)))
        narrow = left.astype(np.float32)
        # The core in this dtype, and two Gram matrices, which are symmetric: half of its work.
        core = best(lambda a=right, b=left: a @ b)
        gram = best(lambda a=narrow: a.T @ a)
        found[f"products, {dtype}"] = [c + 2 * g for c, g in zip(core, gram, strict=True)]
        del left, right, narrow
        for name, before in (("warm", None), ("cold", drop)):
            times = best(lambda dtype=dtype: spectrum(checkpoint, dtype=dtype), before=before)
            found[f"k = 8, {dtype}, {name}"] = [t / count for t in times]
    found["all, float64"] = [t / count for t in best(lambda: spectrum(checkpoint, all=True))]
    found["all, one layer alone"] = best(lambda: spectrum(checkpoint, layers=[0], all=True))
    small = circuits[0].core(np.float64)
    with one_thread():  # which is faster than two here
        found["numpy.linalg.eig of the core"] = best(lambda: np.linalg.eig(small))
    return found


def report(scratch: Path, runs: int) -> None:
    """Print the times a layer, the peak, and whether the goals are met."""
    folder = scratch / "llama70b"
    folder.mkdir()
    run(scratch, str(Path(__file__).with_name("shards.py")), str(folder), *map(str, SHAPE.values()))
    found, _ = run_json(scratch, Path(__file__), str(folder))
    eig = found["numpy.linalg.eig of the core"]
    print("Llama-70B-shaped, per layer: V 1024 x 8192 and O 8192 x 8192 in bf16, 151 MB;")
    print("products: the core, and in float32 both Gram matrices, which the norms come from\n")
    rows = [["part", "wall s", "CPU s", "x warm read", "x cold read"]]
    for name, (wall, cpu) in found.items():
        ratios = [f"{wall / found[f'read, {state}'][0]:.1f}" for state in ("warm", "cold")]
        rows.append([name, f"{wall:.3f}", f"{cpu:.3f}", *ratios])
    print(table(rows), end="\n\n")
    for dtype in ("float64", "float32"):
        for state in ("warm", "cold"):
            ratio = found[f"k = 8, {dtype}, {state}"][0] / found[f"read, {state}"][0]
            floor = found[f"products, {dtype}"][0] / found[f"read, {state}"][0]
            name = f"k = 8 in {dtype}, {state}: <= {READS:g}x the time of reading"
            says = f"{ratio:.1f}x (products alone {floor:.1f}x)"
            print(goal(name, says, ratio <= READS))
    ratio, alone = (found[f"all, {name}"][0] / eig[0] for name in ("float64", "one layer alone"))
    name = f"all eigenvalues: <= {EIGS:g}x one eig of the core a layer"
    print(goal(name, f"{ratio:.2f}x (of one layer alone {alone:.2f}x)", ratio <= EIGS))
    d, wide = SHAPE["d"], 128 * (SHAPE["kv_heads"] + SHAPE["heads"])
    bound = 1.5 * d * wide * 4 / 1e6 + 300
    for dtype in ("float64", "float32"):
        command = ("-m", "eigenlens", "spectrum", str(folder), "--dtype", dtype, "--quiet")
        peak = run(scratch, *command).peak
        name = f"peak of {SHAPE['layers']} layers in {dtype}: <= {bound:.0f} MB"
        print(goal(name, f"{peak:.0f} MB", peak <= bound))


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    json.dump(inside(sys.argv[1]), sys.stdout)
