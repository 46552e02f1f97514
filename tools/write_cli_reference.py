"""Write docs/reference/cli.md from the commands' --help; ``--check`` exits 1 where it is stale."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import typer.main
from typer.testing import CliRunner

from eigenlens.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
HEAD = """# Command line

Written by tools/write_cli_reference.py from the commands themselves; do not edit. Data go to
stdout, progress and warnings to stderr; the exit code is 0 when the work is done, 1 when it failed
(one line says why), 2 for wrong usage: an option, or a value of one, that the command or the model
does not allow, such as a layer that the model does not have.
"""


def commands(command: click.Command, name: str) -> Iterator[str]:
    """The names of a command and of those below it, as they are typed."""
    yield name
    for below, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, f"{name} {below}")


def page() -> str:
    """The page as it has to be."""
    os.environ.update(TERMINAL_WIDTH="96", COLUMNS="96", _TYPER_FORCE_DISABLE_TERMINAL="1")
    runner = CliRunner()
    parts = [HEAD]
    for name in commands(typer.main.get_command(app), "eigenlens"):
        done = runner.invoke(app, [*name.split()[1:], "--help"], prog_name="eigenlens")
        if done.exit_code:
            raise SystemExit(f"{name} --help: exit {done.exit_code}")
        lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
        parts.append(f"\n## {name}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    new = page()
    if parser.parse_args().check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != new:
            print(f"{PAGE.name} is stale: run python tools/write_cli_reference.py")
            return 1
        return 0
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
