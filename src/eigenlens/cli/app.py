"""The app: commands put together, nothing else."""

from __future__ import annotations

import sys

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.cache import app as cache_app
from eigenlens.cli.inspect import inspect
from eigenlens.cli.options import VersionOption
from eigenlens.cli.samples import app as samples_app
from eigenlens.cli.simulate import simulate
from eigenlens.cli.spectrum import spectrum
from eigenlens.cli.trace import trace

app = typer.Typer(
    name="eigenlens",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(short_help="The direction each layer pushes tokens towards.")(spectrum)
app.command(short_help="Which tensors make each layer's F.")(inspect)
app.command(short_help="Do real tokens tilt towards the leading directions?")(trace)
app.command(short_help="Where do tokens end, and was it foretold?")(simulate)
app.add_typer(samples_app, name="samples")
app.add_typer(cache_app, name="cache")


@app.callback()
def eigenlens(version: VersionOption = False) -> None:
    """The spectral microscope for transformers.

    Shows which direction each attention layer pushes every token towards, and how strongly.
    Exit code: 0 done, 1 the work failed (one line on stderr says why), 2 wrong usage.
    """


def main() -> None:
    """Entry point of the ``eigenlens`` command."""
    try:
        with boundary(debug=False):
            app()
    except typer.Exit as error:
        sys.exit(error.exit_code)
