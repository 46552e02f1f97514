"""The app: commands put together, nothing else."""

from __future__ import annotations

import typer

from eigenlens.cli.inspect import inspect
from eigenlens.cli.options import VersionOption
from eigenlens.cli.samples import app as samples_app
from eigenlens.cli.spectrum import spectrum

app = typer.Typer(
    name="eigenlens",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(spectrum)
app.command()(inspect)
app.add_typer(samples_app, name="samples")


@app.callback()
def eigenlens(version: VersionOption = False) -> None:
    """The spectral microscope for transformers.

    Shows which direction each attention layer pushes every token towards, and how strongly.
    Exit code: 0 done, 1 the work failed (one line on stderr says why), 2 wrong usage.
    """


def main() -> None:
    """Entry point of the ``eigenlens`` command."""
    app()
