"""`eigenlens samples`: real trained weights to try things on, and where they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from eigenlens.cli.boundary import boundary, emit, say
from eigenlens.cli.options import (
    DebugOption,
    FormatOption,
    OutOption,
    QuietOption,
    VersionOption,
)

if TYPE_CHECKING:
    from eigenlens.samples import Sample

app = typer.Typer(help="List the sample models, or print the folder of one.")


@dataclass(frozen=True)
class SampleList:
    """The samples with whether each is installed; the result of ``eigenlens samples``."""

    found: tuple[tuple[Sample, bool], ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.samples/1``."""
        from eigenlens import __version__

        return {
            "schema": "eigenlens.samples/1",
            "eigenlens_version": __version__,
            "model": None,
            "options": {},
            "warnings": [],
            "samples": self.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One record a sample."""
        return [
            {**asdict(s), "installed": here, "install_command": s.install_command}
            for s, here in self.found
        ]


@app.callback(invoke_without_command=True)
def samples(
    context: typer.Context,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """List the sample models: name, family, size, licence, and how to install what is missing."""
    if context.invoked_subcommand is not None:
        return
    with boundary(debug):
        from eigenlens.errors import SourceError
        from eigenlens.report.samples import samples_view
        from eigenlens.samples import SAMPLES, sample_path

        found = []
        for name, sample in SAMPLES.items():
            try:
                sample_path(name)
                found.append((sample, True))
            except SourceError:
                found.append((sample, False))
        result = SampleList(tuple(found))
        emit(result, lambda: samples_view(result.found), format, out, quiet=quiet)


@app.command()
def path(name: str, debug: DebugOption = False) -> None:
    """Print the folder (or the .gguf file) of sample NAME."""
    with boundary(debug):
        from eigenlens.samples import sample_path

        say(str(sample_path(name.removeprefix("sample:"))))
