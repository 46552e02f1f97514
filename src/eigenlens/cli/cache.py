"""`eigenlens cache`: what is kept on disk for later runs, and its removal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, say
from eigenlens.cli.groups import grouped
from eigenlens.cli.options import DebugOption
from eigenlens.cli.output import Output, record, table

app = typer.Typer(help="Show what is kept on disk for later runs, or remove it.")


@dataclass(frozen=True)
class Kept:
    """What the two caches hold; the result of ``eigenlens cache``."""

    kept: tuple[dict[str, Any], ...]
    folders: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.cache/1``."""
        return record("eigenlens.cache/1", folders=self.folders, kept=self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One record for the results, and one a repository whose weights are kept."""
        return [dict(row) for row in self.kept]


@app.callback(invoke_without_command=True)
@grouped
def cache(context: typer.Context, *, output: Output) -> None:
    """Show what is kept on disk for later runs: results of layers, and byte ranges from the hub."""
    if context.invoked_subcommand is not None:
        return
    with boundary(output.debug):
        from eigenlens.cache import Cache
        from eigenlens.tensors.kept import kept_repositories, pieces_folder

        results = Cache()
        sizes = [status.st_size for _, status in results.entries()]
        rows = [{"kind": "results", "of": None, "bytes": sum(sizes), "files": len(sizes)}]
        rows += [
            {"kind": "weights", "of": kept.repo_id, "bytes": kept.size, "files": kept.files}
            for kept in kept_repositories()
        ]
        folders = {"results": str(results.folder), "weights": str(pieces_folder())}
        found = Kept(tuple(rows), folders)
        output.emit(found, table("kept", "kept_view", found.rows(), folders))


@app.command()
def clear(
    what: Annotated[
        str,
        typer.Argument(
            metavar="results|weights|all|ORG/NAME",
            help="Results of layers, byte ranges from the hub, both, or one repository's ranges.",
        ),
    ],
    debug: DebugOption = False,
) -> None:
    """Remove what is kept: it is computed or fetched again when it is needed."""
    with boundary(debug):
        from eigenlens.cache import Cache
        from eigenlens.errors import OptionError
        from eigenlens.tensors.kept import forget, kept_repositories

        results = what in ("results", "all")
        kept = list(kept_repositories())
        chosen = [x for x in kept if what in ("weights", "all", x.repo_id)]
        if not results and not chosen and what != "weights":
            known = ", ".join(["results", "weights", "all", *(x.repo_id for x in kept)])
            raise OptionError(f"nothing called '{what}' is kept; there is {known}")
        removed = Cache().clear() if results else 0
        for repository in chosen:
            forget(repository.repo_id)
        total = sum(x.size for x in chosen)
        say(f"removed: {removed} results, {total / 1e6:.1f} MB of weights")
