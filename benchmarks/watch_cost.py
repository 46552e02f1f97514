"""What a watch adds to training: the recipe of the bundled gpt2-tiny with and without it.

Two trainings from the same seed run in one process, in turn: some steps of the one without, the
same steps of the one with a watch at its default interval, which takes one reading in them; CPU
time, one thread. A probe of 8 prompts of 64 tokens of the training's text. The cost is told twice:
what is spent inside `watch.step`, and the median of the paired differences over the median of the
plain side, which holds what caches lose as well and is noisy on a busy machine. At the end the
weights of both have to be the same to the bit.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from measure import goal, run_json, table

MOST = 0.03
BLOCKS = 6


def inside(blocks: int) -> dict[str, Any]:
    """Times of both sides, block by block, in a process of its own."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    import argparse

    import torch
    from training.corpus import read_corpus
    from training.loop import begin, one_step
    from training.recipes import RECIPES
    from training.task import prepare

    from eigenlens.integrations import watch

    torch.set_num_threads(1)
    asked = argparse.Namespace(out=Path("unused"), steps=None, seed=None, resume=False)
    task = prepare("gpt2-tiny", RECIPES["gpt2-tiny"], asked, read_corpus())
    runs = [begin(task, asked) for _ in range(2)]
    for run in runs:
        run.model.train()
    probe = task.held_out[: 8 * 64].reshape(8, 64)
    watching = watch(runs[1].model, probe, strict=True)
    watching.read(0)  # uncounted: imports, and the check of every F

    inside_watch: list[float] = []

    def block(side: int) -> float:
        run, start = runs[side], time.process_time()
        for _ in range(watching.every):
            loss = one_step(run, task, task.recipe.depth, causal=False)
            if side:
                before = time.process_time()
                watching.step(run.step, loss)
                inside_watch.append(time.process_time() - before)
        return time.process_time() - start

    sides: tuple[list[float], list[float]] = ([], [])
    for number in range(blocks):
        for side in ((0, 1), (1, 0))[number % 2]:  # the first in turn as well
            sides[side].append(block(side))
    states = [run.model.state_dict() for run in runs]
    return {
        "every": watching.every,
        "plain": sides[0],
        "watched": sides[1],
        "inside": sum(inside_watch),
        "same": all(torch.equal(a, states[1][name]) for name, a in states[0].items()),
        "alarms": len(watching.alarms),
    }


def report(scratch: Path) -> None:
    """Print both sides, and whether the goal is met."""
    found, _ = run_json(scratch, Path(__file__), str(BLOCKS))
    pairs = list(zip(found["plain"], found["watched"], strict=True))
    plain = statistics.median(found["plain"])
    added = statistics.median(b - a for a, b in pairs)
    direct = found["inside"] / (sum(found["watched"]) - found["inside"])
    print(f"gpt2-tiny's training, a reading every {found['every']} steps, CPU seconds\n")
    rows = [["steps", "without", "with", "added %"]]
    for i, (a, b) in enumerate(pairs):
        first = i * found["every"]
        steps = f"{first + 1} to {first + found['every']}"
        rows.append([steps, f"{a:.2f}", f"{b:.2f}", f"{100 * (b - a) / a:+.1f}"])
    print(table(rows), end="\n\n")
    share, each = added / plain, 1000 * found["inside"] / len(pairs)
    print(f"a reading takes {each:.0f} ms of CPU")
    name = f"a watch adds <= {MOST:.0%}"
    print(goal(f"{name}, inside watch.step", f"{direct:.1%}", direct <= MOST))
    print(goal(f"{name}, median of pairs", f"{share:.1%}", share <= MOST))
    print(goal("no alarm", str(found["alarms"]), not found["alarms"]))
    print(goal("weights are the same to the bit", str(found["same"]), found["same"]))


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    json.dump(inside(int(sys.argv[1])), sys.stdout)
