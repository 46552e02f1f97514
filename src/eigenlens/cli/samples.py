"""`eigenlens samples`: real trained weights to try things on, and where they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from eigenlens.cli.boundary import boundary, say
from eigenlens.cli.groups import grouped
from eigenlens.cli.options import DebugOption
from eigenlens.cli.output import Output, record, table

if TYPE_CHECKING:
    from eigenlens.samples import Sample


class NamedSample(TyperGroup):
    """A group that knows what is meant by a sample's name where a sub-command should stand."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As usual, with a hint for a name.

        Raises
        ------
        click.UsageError
            The first word is no sub-command.
        """
        word = args[0].removeprefix("sample:")
        if args[0] not in self.commands and not word.startswith("-"):
            from eigenlens.samples import SAMPLES

            if word in SAMPLES:
                ctx.fail(
                    f"a sample is no command: eigenlens samples path {word} prints its folder, "
                    f"and sample:{word} is its name as a MODEL"
                )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=NamedSample,
    subcommand_metavar="[path NAME]",
    help="List the sample models. To print the folder of one: eigenlens samples path NAME.",
    short_help="List the sample models; path NAME: the folder of one.",
)


@dataclass(frozen=True)
class SampleList:
    """The samples with whether each is installed; the result of ``eigenlens samples``."""

    found: tuple[tuple[Sample, bool], ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.samples/1``."""
        return record("eigenlens.samples/1", samples=self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One record a sample."""
        return [
            {**asdict(s), "installed": here, "install_command": s.install_command}
            for s, here in self.found
        ]


@app.callback(invoke_without_command=True)
@grouped
def samples(context: typer.Context, *, output: Output) -> None:
    """List the sample models: name, family, size, licence, and how to install what is missing."""
    if context.invoked_subcommand is not None:
        return
    with boundary(output.debug):
        from eigenlens.errors import SourceError
        from eigenlens.samples import SAMPLES, sample_path

        found = []
        for name, sample in SAMPLES.items():
            try:
                sample_path(name)
                found.append((sample, True))
            except SourceError:
                found.append((sample, False))
        result = SampleList(tuple(found))
        output.emit(result, table("samples", "samples_view", result.found))


@app.command()
def path(name: str, debug: DebugOption = False) -> None:
    """Print the folder (or the .gguf file) of sample NAME."""
    with boundary(debug):
        from eigenlens.samples import sample_path

        say(str(sample_path(name.removeprefix("sample:"))))
