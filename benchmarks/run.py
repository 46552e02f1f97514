"""All benchmarks: time and memory as ratios, both sides in one run. See README.md beside it.

The exit code is 0 whether or not a goal is met. The temporary folder is removed at the end, also
when the run is interrupted (SIGINT) or terminated (SIGTERM).
"""

from __future__ import annotations

import argparse
import os

import large_full
import large_grouped
import survey_scaling
import trace_cost
import watch_cost
import whole_process
from measure import scratch

CASES = ("whole", "grouped", "full", "survey", "watch", "trace")


def main() -> None:
    """Run the cases that are named, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of whole processes (3)")
    parser.add_argument("--dense-4096", action="store_true", help="also eig at d = 4096 (minutes)")
    options = parser.parse_args()
    wrong = sorted(set(options.cases) - set(CASES))
    if wrong:
        parser.error(f"no case {', '.join(wrong)}; there are {', '.join(CASES)}")
    runs = max(1, options.runs)
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}; other work may run")
    print("beside: read the ratios, not the seconds")
    reports = {
        "whole": lambda folder: whole_process.report(folder, runs),
        "grouped": lambda folder: large_grouped.report(folder, runs),
        "full": lambda folder: large_full.report(folder, runs, options.dense_4096),
        "survey": lambda folder: survey_scaling.report(folder, runs),
        "watch": watch_cost.report,
        "trace": lambda folder: trace_cost.report(folder, runs),
    }
    for name in options.cases or CASES:
        print()
        with scratch() as folder:
            reports[name](folder)


if __name__ == "__main__":
    main()
