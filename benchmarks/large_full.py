"""Every head with its own values (r = d), random weights: the flat worst case for leading pairs.

Leading k = 8, certified, against `numpy.linalg.eig`, both with forming F. At d = 4096 eig takes
minutes, so by default both sides are compared at 2048 and only ours runs at 4096; the ratio grows
with d.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from measure import goal, run_json, table

FASTER = 25.0


def inside(d: int, side: str) -> dict[str, float]:
    """One side in one process: wall and CPU seconds, and the worst residual of ours."""
    import numpy as np

    from eigenlens import OVCircuit, spectrum

    rng = np.random.default_rng(0)
    W_V, W_O = (
        (0.02 * rng.standard_normal((d, d), dtype=np.float32)).astype(np.float32) for _ in range(2)
    )
    circuit = OVCircuit(W_V, W_O, n_heads=d // 128, n_kv_heads=d // 128, head_dim=128)
    small = OVCircuit(W_V[:512, :512], W_O[:512, :512], n_heads=4, n_kv_heads=4, head_dim=128)
    spectrum(small)  # imports and first use
    worst = 0.0
    wall, cpu = time.perf_counter(), time.process_time()
    if side == "dense":
        np.linalg.eig(W_O.astype(np.float64) @ W_V.astype(np.float64))
    else:
        layer = spectrum(circuit, k=8, order="real", dtype=side).layers[0]
        worst = float(layer.residuals.max())
        if layer.solver != "krylov":
            raise SystemExit(f"solved by {layer.solver}, not by krylov")
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "residual": worst,
    }


def report(scratch: Path, runs: int, dense_4096: bool) -> None:
    """Print the times of both sides, and whether the goal is met."""
    rows = [["d", "side", "wall s", "CPU s", "x faster", "x (CPU)", "worst residual"]]
    says = []
    for d in (2048, 4096):
        plain = None
        if d == 2048 or dense_4096:
            plain, _ = run_json(scratch, Path(__file__), str(d), "dense")
            rows.append([str(d), "eig", f"{plain['wall']:.1f}", f"{plain['cpu']:.1f}", "", "", ""])
        for dtype in ("float64", "float32"):
            ours, _ = run_json(scratch, Path(__file__), str(d), dtype)
            row = [str(d), f"ours, {dtype}", f"{ours['wall']:.1f}", f"{ours['cpu']:.1f}", "-", "-"]
            if plain is not None:
                ratio = plain["wall"] / ours["wall"]
                row[4:] = [f"{ratio:.0f}", f"{plain['cpu'] / ours['cpu']:.0f}"]
                name = f"d = {d}, k = 8 in {dtype}: >= {FASTER:g}x faster than eig"
                says.append(goal(name, f"{ratio:.0f}x", ratio >= FASTER))
            rows.append([*row, f"{ours['residual']:.0e}"])
    print("Leading 8 of a layer with r = d, random weights, forming F included\n")
    print(table(rows), end="\n\n")
    if not dense_4096:
        print(
            "eig at d = 4096 was not run (--dense-4096 runs it); the goal is for 4096, what follows"
        )
        print("is at 2048, where the ratio is smaller")
    print(*says, sep="\n")


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    json.dump(inside(int(sys.argv[1]), sys.argv[2]), sys.stdout)
