"""Every head with its own values (r = d), random weights: the flat worst case for leading pairs.

Leading k = 8, certified, against `numpy.linalg.eig` in the same dtype, both with forming F; what
that alone takes is given apart. At d = 4096 eig takes minutes, so by default both sides are
compared at 2048 and only ours runs at 4096; the ratio grows with d.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from measure import goal, run_json, table

FASTER = 25.0
NAMES = {"eig": "numpy.linalg.eig", "F": "forming F alone", "ours": "eigenlens"}


def inside(d: int, side: str, dtype: str) -> dict[str, float]:
    """One side in one process: wall and CPU seconds, and the worst residual of ours."""
    import numpy as np

    from eigenlens import OVCircuit, spectrum

    rng = np.random.default_rng(0)
    W_V, W_O = (
        (0.02 * rng.standard_normal((d, d), dtype=np.float32)).astype(np.float32) for _ in range(2)
    )
    circuit = OVCircuit(W_V, W_O, n_heads=d // 128, n_kv_heads=d // 128, head_dim=128)
    small = OVCircuit(W_V[:512, :512], W_O[:512, :512], n_heads=4, n_kv_heads=4, head_dim=128)
    spectrum(small, dtype=dtype)  # imports and first use
    worst = 0.0
    wall, cpu = time.perf_counter(), time.process_time()
    if side in ("eig", "F"):
        F = W_O.astype(dtype) @ W_V.astype(dtype)
        if side == "eig":
            np.linalg.eig(F)
    else:
        layer = spectrum(circuit, k=8, order="real", dtype=dtype).layers[0]
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
    rows = [["d", "dtype", "side", "wall s", "CPU s", "x faster", "x (CPU)", "worst residual"]]
    says = []
    for d in (2048, 4096):
        for dtype in ("float64", "float32"):
            sides = ["F", "ours"]
            if d == 2048 or dense_4096:
                sides.append("eig")
            used = {s: run_json(scratch, Path(__file__), str(d), s, dtype)[0] for s in sides}
            for side, u in used.items():
                row = [str(d), dtype, NAMES[side], f"{u['wall']:.2f}", f"{u['cpu']:.2f}"]
                if side == "ours" and "eig" in used:
                    ratio, cpu = (used["eig"][x] / u[x] for x in ("wall", "cpu"))
                    row += [f"{ratio:.0f}", f"{cpu:.0f}"]
                    name = f"d = {d}, k = 8 in {dtype}: >= {FASTER:g}x faster than eig"
                    says.append(goal(name, f"{ratio:.1f}x", ratio >= FASTER))
                else:
                    row += ["", ""]
                rows.append([*row, f"{u['residual']:.0e}" if side == "ours" else ""])
    print("Leading 8 of a layer with r = d, random weights, forming F included\n")
    print(table(rows), end="\n\n")
    if not dense_4096:
        print(
            "eig at d = 4096 was not run (--dense-4096 runs it); the goal is for 4096, what follows"
        )
        print("is at 2048, where the ratio is smaller")
    print(*says, sep="\n")


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    json.dump(inside(int(sys.argv[1]), *sys.argv[2:]), sys.stdout)
