"""Grouped heads at the size of Llama 70B: d 8192, 64 heads, 8 value heads of 128, bf16.

Leading k = 8 against the time of reading V and O of a layer, once from the page cache (warm) and
once from the disk, as a first run meets it (cold: written out, then dropped from the page cache);
all eigenvalues of the 1024 x 1024 core against one `numpy.linalg.eig` of it, which gives no left
vectors and no certificate; and the peak memory of a whole process over all layers and shards.
Reading and k = 8 take turns. What the products that nobody can avoid take at the rate
of this machine's BLAS is given beside.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import Ratio, Times, best, goal, in_turn, run, run_json, table

SHAPE = {"layers": 8, "d": 8192, "heads": 64, "kv_heads": 8}
DTYPES = ("float64", "float32")
READS, EIGS = 5.0, 1.5
SECONDS = 40.0  # of rounds of either state at least: fewer catch the machine in one mood


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


def inside(folder: str, rounds: int) -> dict[str, list[Times]]:
    """Times of one process, its imports and first use not counted: a layer's, of every round."""
    import numpy as np

    from eigenlens import open_checkpoint, spectrum
    from eigenlens.blas import one_thread

    checkpoint = open_checkpoint(folder)
    circuits, store = checkpoint.circuits(), checkpoint.source.store
    plans = checkpoint.plans

    def read() -> None:
        for plan in plans:
            store.read(plan.value), store.read(plan.output)

    def leading(dtype: str) -> Callable[[], Any]:
        return lambda: spectrum(checkpoint, dtype=dtype)

    def products(dtype: str) -> Callable[[], Any]:
        """The core in this dtype, and two Gram matrices, which are symmetric: half of its work."""
        left, right = np.ones((8192, 1024), dtype), np.ones((1024, 8192), dtype)
        narrow = left.astype(np.float32)
        return lambda: (right @ left, narrow.T @ narrow, narrow.T @ narrow)

    def eig() -> None:
        with one_thread():  # which is faster than two here
            np.linalg.eig(small)

    def a_layer(found: dict[str, list[Times]]) -> dict[str, list[Times]]:
        return {
            name: [(wall / len(plans), cpu / len(plans)) for wall, cpu in times]
            for name, times in found.items()
        }

    small = circuits[0].core(np.float64)
    spectrum(checkpoint, layers=[0])
    found: dict[str, list[Times]] = {}
    for state, before in (("warm", read), ("cold", lambda: drop_pages(folder))):
        sides = {f"read, {state}": read}
        sides |= {f"k = 8, {dtype}, {state}": leading(dtype) for dtype in DTYPES}
        found |= a_layer(in_turn(sides, rounds, SECONDS, before))
    read()
    found |= in_turn({f"products, {dtype}": products(dtype) for dtype in DTYPES}, 3)
    found |= a_layer(in_turn({"all, float64": lambda: spectrum(checkpoint, all=True)}, 3))
    alone = {"all, one layer alone": lambda: spectrum(checkpoint, layers=[0], all=True)}
    found |= in_turn(alone | {"numpy.linalg.eig of the core": eig}, 3)
    return found


def report(scratch: Path, runs: int) -> None:
    """Print the times a layer, the peak, and whether the goals are met."""
    folder = scratch / "llama70b"
    folder.mkdir()
    run(scratch, str(Path(__file__).with_name("shards.py")), str(folder), *map(str, SHAPE.values()))
    found, _ = run_json(scratch, Path(__file__), str(folder), str(runs))
    times = {name: best(rounds) for name, rounds in found.items()}
    print("Llama-70B-shaped, per layer: V 1024 x 8192 and O 8192 x 8192 in bf16, 151 MB; the best")
    print(f"of all rounds, which were {len(found['read, warm'])} warm and ", end="")
    print(f"{len(found['read, cold'])} cold; quartiles are those of the ratios")
    print("round by round; products: the core, and in float32 both Gram matrices, which the norms")
    print("come from\n")
    rows = [["part", "wall s", "CPU s", "x its read", "median", "quartiles"]]
    says = []
    for name, (wall, cpu) in times.items():
        rows.append([name, f"{wall:.3f}", f"{cpu:.3f}", "", "", ""])
        if not name.startswith("k = 8"):
            continue
        _, dtype, state = name.split(", ")
        ratio = Ratio.of(found[name], found[f"read, {state}"])
        rows[-1][3:] = [f"{ratio.best:.1f}", f"{ratio.median:.1f}"]
        rows[-1].append(f"{ratio.low:.1f}-{ratio.high:.1f}")
        floor = times[f"products, {dtype}"][0] / times[f"read, {state}"][0]
        told = f"{ratio.best:.1f}x, median {ratio.median:.1f} (products alone {floor:.1f}x)"
        title = f"k = 8 in {dtype}, {state}: <= {READS:g}x the time of reading"
        says.append(goal(title, told, ratio.meets(READS)))
    print(table(rows), end="\n\n")
    print(*says, sep="\n")
    eig = times["numpy.linalg.eig of the core"][0]
    all_, alone = (times[f"all, {name}"][0] / eig for name in ("float64", "one layer alone"))
    name = f"all eigenvalues: <= {EIGS:g}x one eig of the core a layer"
    print(goal(name, f"{all_:.2f}x (of one layer alone {alone:.2f}x)", all_ <= EIGS))
    d, wide = SHAPE["d"], 128 * (SHAPE["kv_heads"] + SHAPE["heads"])
    bound = 1.5 * d * wide * 4 / 1e6 + 300
    for dtype in DTYPES:
        command = ("-m", "eigenlens", "spectrum", str(folder), "--dtype", dtype, "--quiet")
        peak = run(scratch, *command).peak
        name = f"peak of {SHAPE['layers']} layers in {dtype}: <= {bound:.0f} MB"
        print(goal(name, f"{peak:.0f} MB", peak <= bound))


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    json.dump(inside(sys.argv[1], int(sys.argv[2])), sys.stdout)
