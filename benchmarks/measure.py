"""What every case uses: a fresh process with its usage, sides timed in turn, goals, tables.

The standard library only: Linux counts the memory of the parent at the start of a child into the
child's peak, so a driver that held numpy or weights would falsify the small peaks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NoReturn


@dataclass(frozen=True)
class Usage:
    """What one finished process used: seconds of wall and CPU, peak memory in MB, its output."""

    wall: float
    cpu: float
    peak: float
    stdout: str


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards, also when the run is interrupted or terminated."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    folder = Path(tempfile.mkdtemp(prefix="eigenlens-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(folder: Path) -> dict[str, str]:
    """Of both sides: no network, and compiled modules kept in `folder`, as an installation has."""
    found = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return found | {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def run(folder: Path, *arguments: str) -> Usage:
    """Run this Python with arguments; its own usage by `os.wait4`; SystemExit when it fails.

    The process ends with this one, whatever ends this one.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        command = [sys.executable, *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment(folder))
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise SystemExit(f"a process failed, so nothing is compared:\n{err.read()[-2000:]}")
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there
        peak = used.ru_maxrss * unit / 1e6
        return Usage(wall, used.ru_utime + used.ru_stime, peak, out.read())


def run_json(folder: Path, script: Path, *arguments: str) -> tuple[Any, Usage]:
    """Run a script that prints one JSON value; the value, and the usage of its process."""
    used = run(folder, str(script), *arguments)
    return json.loads(used.stdout), used


Times = tuple[float, float]
"""Seconds of wall and of CPU."""


def timed(work: Callable[[], Any]) -> Times:
    """Of one run."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def in_turn(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    seconds: float = 0.0,
    before: Callable[[], Any] = lambda: None,
) -> dict[str, list[Times]]:
    """All sides one after the other (A B C A B C ...), at least so often and so long.

    What is done before each run is not counted.
    """
    found: dict[str, list[Times]] = {side: [] for side in sides}
    start, done = time.perf_counter(), 0
    while done < rounds or time.perf_counter() - start < seconds:
        for side, work in sides.items():
            before()
            found[side].append(timed(work))
        done += 1
    return found


def best(times: Sequence[Times]) -> Times:
    """The shortest wall and the shortest CPU time."""
    wall, cpu = (min(side) for side in zip(*times, strict=True))
    return wall, cpu


@dataclass(frozen=True)
class Ratio:
    """Wall times against others of the same rounds: of the best, and round by round."""

    best: float
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, a: Sequence[Times], b: Sequence[Times]) -> Ratio:
        """Of `a` to `b`; `low` and `high` are the quartiles of the rounds."""
        each = sorted(x[0] / y[0] for x, y in zip(a, b, strict=True))
        quarter = len(each) // 4
        whole = best(a)[0] / best(b)[0]
        return cls(whole, median(each), each[quarter], each[-1 - quarter])

    def meets(self, most: float) -> bool:
        """Whether neither the best nor the median exceeds this."""
        return max(self.best, self.median) <= most


def goal(name: str, found: str, met: bool) -> str:
    """One line: the goal, what was found, and whether that meets it."""
    return f"{name}: {found}, {'met' if met else 'NOT met'}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )
