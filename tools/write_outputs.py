"""Renew, or check, the outputs shown in README.md and docs/: every block that begins with `$`.

A fenced block whose first line is ``$ eigenlens ...`` holds that command and what it prints. This
script runs the commands of the given files (README.md and docs/*.md by default) and writes what
they print now; with ``--check`` it changes nothing and exits 1 where a page is stale. Error bars
and seconds differ between machines and are not compared. A line ``[...]`` in a block stands for
lines that were cut: the lines before it and after it have to be in the output, in this order.
Spaces count: a column that widens is a change. The commands of all pages run one after the other in
one empty folder, so that a page may write a file and use it further down.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^```(?P<kind>\w*)\n\$ (?P<command>eigenlens [^\n]+)\n(?P<shown>.*?)^```$", re.M | re.S
)
MACHINE = re.compile(r"\b\d(?:\.\d)?e[-+]\d\d\b|\b\d+(?:\.\d+)? s\b")
DECIMAL = re.compile(r"[+-]?\b\d+\.\d+\b")
CUT = "[...]"


def run(command: str, folder: Path) -> str:
    """What an eigenlens command prints on stdout, without the spaces at the ends of lines."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "COLUMNS": "100",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
    )
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.strip("\n").splitlines())


def renew(shown: str, output: str) -> str:
    """The block's new text: the output, cut where the block is cut."""
    if f"{CUT}\n" not in shown:
        return output
    head, _, tail = shown.partition(f"{CUT}\n")
    lines = output.splitlines(keepends=True)
    return "".join(
        [*lines[: head.count("\n")], f"{CUT}\n", *lines[len(lines) - tail.count("\n") :]]
    )


def same(a: str, b: str) -> bool:
    """Whether two outputs agree but for what the machine decides.

    Decimal fractions may differ by 2 in their last place: a token on the edge counts on one
    machine and not on another.
    """
    a, b = MACHINE.sub("#", a), MACHINE.sub("#", b)
    if DECIMAL.sub("#", a) != DECIMAL.sub("#", b):
        return False
    pairs = zip(DECIMAL.findall(a), DECIMAL.findall(b), strict=True)
    return all(_near(x, y) for x, y in pairs)


def _near(x: str, y: str) -> bool:
    places = len(x.partition(".")[2])
    if places != len(y.partition(".")[2]):
        return False
    return abs(float(x) - float(y)) <= 2.5 * 10.0**-places


def main() -> int:
    """Renew or check the pages named on the command line."""
    with tempfile.TemporaryDirectory() as folder:
        return renew_pages(Path(folder))


def renew_pages(folder: Path) -> int:
    """The work of `main`, whose commands run in `folder`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path)
    asked = parser.parse_args()
    pages = asked.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    stale = 0
    outputs: dict[str, str] = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")

        def replace(block: re.Match[str], page: Path = page) -> str:
            nonlocal stale
            command, shown = block["command"], block["shown"]
            if command not in outputs:
                outputs[command] = run(command, folder)
            new = renew(shown, outputs[command])
            if same(shown, new):
                return block[0]
            stale += 1
            diff = difflib.unified_diff(shown.splitlines(), new.splitlines(), lineterm="", n=0)
            print(f"{page.name}: $ {command}", *list(diff)[2:], sep="\n")
            return f"```{block['kind']}\n$ {command}\n{new}```"

        renewed = BLOCK.sub(replace, text)
        if renewed != text and not asked.check:
            page.write_text(renewed, encoding="utf-8")
    if not outputs:
        raise SystemExit("no page holds a block that begins with '$ eigenlens'")
    return 1 if asked.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
