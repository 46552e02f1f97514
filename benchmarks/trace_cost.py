"""What tracing adds to a forward pass: `trace` without nulls against the model alone.

Both sides run in one process on the same prompts in the same dtype and attention, in turn
(A B A B ...), after one uncounted run each. The plain side is the body's forward pass with
`output_hidden_states=True` on the prompts as they come, padded in batches of as many as `trace` is
asked for: what anyone does who runs the model on a file of prompts. `sorted` is the same with the
prompts sorted by length first, which pads less; the trace against that is given too. The other
side makes its batches as `trace` does, captures the states of every attention call, checks on
every batch that they add up, and takes all measures: alignments with and without sinks, both sets
of collapse measures, intervals and p-values at the end. Not in it is what is done once a session
whatever the number of prompts: loading, the spectra that give the targets, and the check that every
F is the model's; the seconds of the last two stand beside. `eigvalsh` is what LAPACK takes for the
singular values of as many states of the same shape, one after the other on one thread: exact
effective, stable and participation ranks need them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import Ratio, best, goal, in_turn, run_json, table, timed

MODELS = ("gpt2-tiny", "albert-tiny", "minilm", "smollm2", "albert-rxn")
MOST = 1.3
SECONDS = 20.0  # of every model at least: fewer rounds catch the machine in one mood


def inside(name: str, pairs: int) -> dict[str, Any]:
    """Times of one model, in a process of its own."""
    import numpy as np

    from eigenlens.blas import one_thread
    from eigenlens.live.batches import make_batches
    from eigenlens.live.capture import capture, capture_each
    from eigenlens.live.identity import check_circuits
    from eigenlens.live.session import open_session
    from eigenlens.tracing.feed import Prompts, batches_of, read_feed
    from eigenlens.tracing.finish import Gathered, finish
    from eigenlens.tracing.gather import Gatherer
    from eigenlens.tracing.options import TraceOptions
    from eigenlens.tracing.targets import read_targets

    source = f"sample:{name}"
    session = open_session(source)
    options = TraceOptions(nulls=False)
    feed = read_feed(session, Prompts())
    batches = list(batches_of(session, feed, options)[1])
    most = options.batch_size

    def full(ids: Sequence[tuple[int, ...]]) -> list[Any]:
        starts = range(0, len(ids), most)
        return [make_batches(session, ids[i : i + most]).together() for i in starts]

    as_they_come = full(feed.ids)
    by_length = full(sorted(feed.ids, key=len, reverse=True))
    targets: dict[Any, Any] = {}

    def analyse() -> None:
        targets.update(read_targets(session, options, session.places, nulls=False))

    def run(batches: Sequence[Any]) -> None:
        with session.running():
            for batch in batches:
                session.body(**batch.inputs, use_cache=False, output_hidden_states=True)

    def plain() -> None:
        run(as_they_come)

    def ordered() -> None:
        run(by_length)

    def captured() -> None:
        for _ in capture(session, batches):
            pass

    def traced() -> None:
        gatherer = Gatherer(session, options, targets)
        for reading in capture_each(session, batches, gatherer.read):
            gatherer.add(reading)
        finish(Gathered(gatherer, None, None), options)

    def eigenvalues() -> None:
        """The one LAPACK call a state that exact singular values of all tokens take."""
        with one_thread():  # or a second one spins on into what is measured next
            for grams in made:
                np.linalg.eigvalsh(grams)

    d = session.checkpoint.plans[0].geometry.d_model
    made = []
    for batch in batches:
        b, n = batch.mask.shape
        steps = sum(circuit.steps for circuit in session.checkpoint.circuits())
        X = np.random.default_rng(0).standard_normal((2 * steps + 1, b, min(n, d), d))
        made.append(X @ X.swapaxes(2, 3))
    once = {"spectra": timed(analyse), "check": timed(lambda: check_circuits(session, batches[0]))}
    sides = {"plain": plain, "sorted": ordered, "capture": captured}
    sides |= {"eigvalsh": eigenvalues, "trace": traced}
    for side in sides.values():
        side()
    return {"sides": in_turn(sides, pairs, SECONDS), "once": once}


def report(scratch: Path, runs: int) -> None:
    """Print the ratios and whether the goal is met."""
    head = ["sample", "plain s", "sorted", "capture", "eigvalsh", "trace", "CPU"]
    rows = [[*head, "median", "quartiles", "to sorted", "spectra", "F s"]]
    says = []
    for name in MODELS:
        found, _ = run_json(scratch, Path(__file__), name, str(runs))
        sides = found["sides"]
        wall = {side: best(times)[0] for side, times in sides.items()}
        used = best(sides["trace"])[1] / best(sides["plain"])[1]
        ratio = Ratio.of(sides["trace"], sides["plain"])
        row = [name, f"{wall['plain']:.3f}"]
        row += [f"{wall[side] / wall['plain']:.2f}" for side in ("sorted", "capture", "eigvalsh")]
        row += [f"{ratio.best:.2f}", f"{used:.2f}", f"{ratio.median:.2f}"]
        row.append(f"{ratio.low:.2f}-{ratio.high:.2f}")
        row.append(f"{wall['trace'] / wall['sorted']:.2f}")
        rows.append([*row, *(f"{found['once'][part][0]:.2f}" for part in ("spectra", "check"))])
        least = (wall["capture"] + wall["eigvalsh"]) / wall["plain"]
        told = f"{ratio.best:.2f}, median {ratio.median:.2f} "
        told += f"(capture and eigvalsh alone {least:.2f})"
        says.append(goal(f"{name}: <= {MOST:g}x a forward pass", told, ratio.meets(MOST)))
    print("Tracing the default prompts without nulls against forward passes with hidden states")
    print(f"over the same prompts, in turn for at least {SECONDS:g} s and {runs} rounds: the ratio")
    print("of the best of all, median and quartiles of the ratios round by round, and the ratio to")
    print("a plain pass over prompts sorted by length; once a session, in seconds: spectra and the")
    print("check of F\n")
    print(table(rows), end="\n\n")
    print(*says, sep="\n")


if __name__ == "__main__":
    json.dump(inside(sys.argv[1], int(sys.argv[2])), sys.stdout)
