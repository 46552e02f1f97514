"""Ctrl-C while a layer is being solved ends the program then, not when the layer is done."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from eigenlens.spectra.schedule import in_sequence

LONG = """
import os, sys, time
from eigenlens.spectra import analyse
from eigenlens.cli import main

def long(*args):  # as LAPACK: does not hold the interpreter, and cannot be asked to stop
    os.write(1, b"begun\\n")
    time.sleep(50)

analyse.analyse = long
sys.argv = ["eigenlens", "spectrum", "sample:bert-tiny", "--no-cache", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("layers", [[], ["--layers", "1"]])
def test_an_interrupt_is_heard_while_a_layer_is_solved(layers: list[str]) -> None:
    command = [sys.executable, "-c", LONG, *layers]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert "Traceback" not in (said := process.stderr.read())
        assert said.endswith("eigenlens: interrupted\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_ordinary_error_waits_for_what_has_begun(workers: int) -> None:
    """So that nothing computes on behind the back of a caller that goes on."""
    done: list[int] = []

    def solve(i: int) -> int:
        if i == 0:
            raise ValueError("layer 0")
        done.append(i)
        return i

    begun: list[int] = []

    def read(i: int) -> int:
        begun.append(i)
        return i

    with pytest.raises(ValueError, match="layer 0"):
        list(in_sequence(9, read, solve, workers))
    assert len(begun) <= 3
    assert set(done) <= set(begun)


LATE = """
import threading, time
import numpy as np
import eigenlens

rng = np.random.default_rng(0)
layers = [
    eigenlens.OVCircuit(rng.standard_normal((4, 9)), rng.standard_normal((9, 4)), 1, 1, 4)
    for _ in range({count})
]

def late():
    threading.main_thread().join()
    print("done", len(eigenlens.spectrum(layers).layers))

threading.Thread(target=late).start()
"""


@pytest.mark.parametrize("count", [1, 5])
def test_a_thread_that_outlives_the_main_one_gets_its_layers(count: int) -> None:
    """Python begins no thread any more then."""
    command = [sys.executable, "-c", LATE.format(count=count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"done {count}\n", "")
