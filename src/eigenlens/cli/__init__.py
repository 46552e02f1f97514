"""The command line: one file a command, one error boundary."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the ``eigenlens`` command; an interrupt exits with 130 from the start."""
    try:
        from eigenlens.cli.app import main as run

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:  # print would take stdout instead
            print("eigenlens: interrupted", file=sys.stderr)
        sys.exit(130)
