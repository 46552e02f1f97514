"""`eigenlens.survey` with two workers against one: local processes of one BLAS thread each.

One checkpoint, all eigenvalues of every layer, so one task a layer of about a second. Both sides
run in turn (1 2 1 2 ...), each in a process of its own with a cluster of its own and an empty
folder. What is timed is the survey on a cluster that is up, from the list to the summary, after one
uncounted use in each worker; the start of the cluster is given beside it.

The wall ratio means something only where both cores are free: what runs beside takes its share from
both sides, and Linux shares cores between sessions first, so two workers of one session get no more
of a busy machine than one. The CPU of the busier worker says how the work divides.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from measure import goal, run_json, table

LAYERS = 32
D = 640  # geev of this size takes one core about a second
FASTER = 1.7


def write(folder: Path) -> None:
    """A Llama-shaped checkpoint with r = d, all layers in one file; run in its own process."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {}
    for i in range(LAYERS):
        for part in ("v", "o"):
            weight = 0.02 * rng.standard_normal((D, D), dtype=np.float32)
            arrays[f"model.layers.{i}.self_attn.{part}_proj.weight"] = weight
        arrays[f"model.layers.{i}.input_layernorm.weight"] = np.ones(D, np.float32)
    save_file(arrays, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": D, "num_hidden_layers": LAYERS}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-6}
    config |= {"vocab_size": 128, "intermediate_size": D}
    (folder / "config.json").write_text(json.dumps(config))


def warm() -> None:
    """One uncounted use in a worker: what it imports for its first task."""
    import numpy as np

    import eigenlens
    import eigenlens.surveys.tasks

    eigenlens.spectrum((np.eye(8), np.diag(np.arange(8.0))), all=True)


def survey(model: str, out: str, workers: int) -> dict[str, Any]:
    """Seconds of a survey with so many workers, and of the start of its cluster."""
    import eigenlens
    from eigenlens.surveys.clusters import connected

    begun = time.perf_counter()
    with connected(workers=workers) as cluster:
        cluster.client.run(warm)
        before = cluster.client.run(time.process_time)
        up = time.perf_counter()
        address = cluster.client.scheduler.address
        found = eigenlens.survey(model, out, all=True, cache=False, scheduler=address)
        done = time.perf_counter()
        after = cluster.client.run(time.process_time)
    (entry,) = found.models
    cpu = [after[worker] - before[worker] for worker in before]
    seconds = {"seconds": done - up, "start": up - begun, "busiest": max(cpu), "cpu": sum(cpu)}
    return {**seconds, "layers": entry.layers, "gap": entry.gap}


def report(scratch: Path, runs: int) -> None:
    """Print times of both sides, their ratios, and whether the goal is met."""
    model = scratch / "model"
    model.mkdir()
    run_json(scratch, Path(__file__), "write", str(model))
    pairs = []
    for i in range(runs):
        sides = []
        for workers in (1, 2):
            out = scratch / f"out-{i}-{workers}"
            arguments = ("survey", str(model), str(out), str(workers))
            found, used = run_json(scratch, Path(__file__), *arguments)
            if found["layers"] != LAYERS:
                raise SystemExit(f"the survey has {found['layers']} layers, not {LAYERS}")
            sides.append((found, used))
        pairs.append(sides)
    print(f"eigenlens.survey, {LAYERS} tasks (all eigenvalues, d = r = {D}), one BLAS thread a")
    print(f"worker, {runs} pairs in turn\n")
    rows = [["pair", "1 worker s", "2 workers s", "ratio", "CPU 1", "CPU 2, busier", "CPU ratio"]]
    rows[0] += ["CPU 2 / 1", "start s", "client MB"]
    ratios, by_cpu = [], []
    for i, ((one, _), (two, used)) in enumerate(pairs, 1):
        ratios.append(one["seconds"] / two["seconds"])
        by_cpu.append(one["busiest"] / two["busiest"])
        cells = [f"{one['seconds']:.1f}", f"{two['seconds']:.1f}", f"{ratios[-1]:.2f}x"]
        cells += [f"{one['busiest']:.1f}", f"{two['busiest']:.1f}", f"{by_cpu[-1]:.2f}x"]
        cells += [f"{two['cpu'] / one['cpu']:.2f}", f"{two['start']:.1f}", f"{used.peak:.0f}"]
        rows.append([str(i), *cells])
    print(table(rows), end="\n\n")
    for what, found in (("one", ratios), ("one, by CPU of the busier", by_cpu)):
        met = median(found) >= FASTER
        print(goal(f"two workers >= {FASTER}x {what} (median)", f"{median(found):.2f}x", met))
    apart = {round(side["gap"], 9) for sides in pairs for side, _ in sides}
    print(goal("same rows", f"{len(apart)} median gap", len(apart) == 1))


if __name__ == "__main__":  # processes of their own: the driver holds neither weights nor dask
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
        print("null")
    else:
        json.dump(survey(sys.argv[2], sys.argv[3], int(sys.argv[4])), sys.stdout)
