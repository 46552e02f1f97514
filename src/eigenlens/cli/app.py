"""The app: commands put together, nothing else."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from eigenlens.cli.apply import apply
from eigenlens.cli.boundary import boundary, may_be_left, own_words
from eigenlens.cli.cache import app as cache_app
from eigenlens.cli.compare import compare
from eigenlens.cli.inspect import inspect
from eigenlens.cli.options import VersionOption
from eigenlens.cli.report import report
from eigenlens.cli.reproduce import reproduce
from eigenlens.cli.samples import app as samples_app
from eigenlens.cli.simulate import simulate
from eigenlens.cli.spectrum import spectrum
from eigenlens.cli.steer import steer
from eigenlens.cli.survey import app as survey_app
from eigenlens.cli.trace import trace
from eigenlens.cli.unsteer import unsteer


class Commands(TyperGroup):
    """All commands; a reader may leave their help as well, which typer makes an error."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the options, and print the help of the whole."""
        with may_be_left():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Run a command, or print its help."""
        with may_be_left(), own_words():
            return super().invoke(*args, **options)


app = typer.Typer(
    name="eigenlens",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(short_help="The direction each layer pushes tokens towards.")(spectrum)
app.command(short_help="Which tensors make each layer's F.")(inspect)
app.command(short_help="Do real tokens tilt towards the leading directions?")(trace)
app.command(short_help="Where do tokens end, and was it foretold?")(simulate)
app.command(short_help="What of F differs between two checkpoints?")(compare)
app.command(short_help="The paper's claims, measured, with a verdict each.")(reproduce)
app.command(short_help="Put a direction on top of the spectrum, and see.")(steer)
app.command(short_help="Restore the bytes that an edit changed.")(unsteer)
app.command(short_help="Add a delta file to a model.")(apply)
app.add_typer(survey_app, name="survey", short_help="Many checkpoints, in parallel.")
app.command(short_help="Everything about a model on one HTML page.")(report)
app.add_typer(samples_app, name="samples")
app.add_typer(cache_app, name="cache")


@app.callback()
def eigenlens(version: VersionOption = False) -> None:
    """The spectral microscope for transformers.

    Shows which direction each attention layer pushes every token towards, and how strongly.
    Exit code: 0 done, 1 the work failed, 2 wrong usage: an option, or a value of one, that the
    command or the model does not allow. One line on stderr says why.
    """


def main() -> None:
    """Entry point of the ``eigenlens`` command."""
    if sys.stderr is None:  # closed by whoever started the program: nothing may take its place
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        with boundary(debug=False):
            app()
    except typer.Exit as error:
        sys.exit(error.exit_code)
