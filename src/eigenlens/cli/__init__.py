"""The command line: one file a command, one error boundary."""

from eigenlens.cli.app import main

__all__ = ["main"]
