"""A process that is killed at the n-th call into the system, for every n that is asked.

python steering_kills.py POINTS MODULE FUNCTION ARGUMENTS... runs MODULE.FUNCTION in forked
children, the first to count the calls, the others to die by SIGKILL before one of them: before
POINTS of them, spread over all (0: before each). After every child FUNCTION_check is called with
the same arguments and the number of the call.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

CALLS = ("open", "write", "fsync", "link", "mkdir", "rename", "replace", "unlink", "rmdir", "chmod")


def watched(before: Callable[[int], None]) -> Callable[[], int]:
    """Have `before(n)` called before the n-th system call that changes a disk; gives the count."""
    count = [0]

    def wrap(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            before(count[0])
            count[0] += 1
            return real(*args, **options)

        return call

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    # The exchange of two folders does not go through os.
    from eigenlens.steering import folders

    folders._rename = wrap(folders._rename)
    return lambda: count[0]


def child(work: Callable[[], Any], kill_at: int | None) -> int:
    """Run `work` in a fork; the number of calls, or 0 where it was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        send = os.write

        def before(n: int) -> None:
            if n == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        counted = watched(before)
        try:
            work()
            send(writing, str(counted()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if kill_at is not None and not killed:
        raise SystemExit(f"call {kill_at} did not come")
    return 0 if killed else int(answer)


def main(wanted: str, module: str, function: str, *arguments: str) -> None:
    """Count the calls, then die before some of them, the first and the last included."""
    found = importlib.import_module(module)
    work, check = getattr(found, function), getattr(found, f"{function}_check")
    prepare = getattr(found, f"{function}_prepare")
    prepare(*arguments)
    total = child(lambda: work(*arguments), None)
    check(*arguments, None)
    last = int(wanted) - 1
    points = sorted(
        {i * (total - 1) // last for i in range(last + 1)} if last > 0 else range(total)
    )
    for point in points:
        prepare(*arguments)
        child(lambda: work(*arguments), point)
        check(*arguments, point)
    print(f"{len(points)} of {total}")


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main(*sys.argv[1:])
