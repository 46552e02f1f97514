"""`eigenlens report`: everything about a model in one HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.groups import arguments, grouped
from eigenlens.cli.model_options import Chosen, Leading, LiveModel, Texts
from eigenlens.cli.options import (
    ModelArgument,
    NoCacheOption,
    optional,
    path_option,
    seed_option,
)
from eigenlens.cli.output import Figures, ProductOutput, table


@dataclass(frozen=True)
class PageOutput(ProductOutput):
    """The page, and what is told of it."""

    out: Annotated[
        Path,
        path_option("--out", "FILE", "Where the page goes: a .html file.", show_default=True),
    ] = Path("report.html")

    def check(self) -> None:
        """Refuse a page that cannot be written.

        Raises
        ------
        EigenlensError
            As `eigenlens.report.serialise.check_target`.
        """
        from eigenlens.report.page.write import SUFFIXES
        from eigenlens.report.serialise import check_target

        check_target(self.out, list(SUFFIXES))


@dataclass(frozen=True)
class MaterialFigures(Figures):
    """The figures of everything that the page was made from."""

    def files(self, **results: Any) -> dict[Path, bytes]:
        """The figures of one ``material``; none without `--figures`."""
        if self.figures is None:
            return {}
        from eigenlens.report.figures.table import material_files

        return material_files(results["material"], self.figures)


@grouped
def report(
    model: ModelArgument,
    *,
    sections: Annotated[
        str | None,
        optional(
            "--sections",
            metavar="LIST",
            help="Only these, e.g. spectrum,heads,tokens (which need no torch); besides alignment, "
            "collapse, sphere, simulate.",
        ),
    ] = None,
    fed: Texts,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Layer steps of the simulation.",
            show_default="100, or as many as settle it, up to 1000",
        ),
    ] = None,
    leading: Leading,
    chosen: Chosen,
    live: LiveModel,
    no_cache: NoCacheOption = False,
    seed: Annotated[int, seed_option("Of everything random.")] = 0,
    figures: MaterialFigures,
    output: PageOutput,
) -> None:
    """A model's spectrum, tokens and deep stack on one page that opens without a network.

    Writes a single HTML file with a summary in plain words, interactive figures, the tables behind
    them and the data to download. What a model or an installation does not allow (no torch: nothing
    that runs the model) is said in the page. On stdout: the summary.
    """
    asked = arguments(fed, leading, chosen, live)
    names = None if sections is None else [s.strip() for s in sections.split(",") if s.strip()]
    with boundary(output.debug):
        from eigenlens.cache import Cache
        from eigenlens.prompts import check_file
        from eigenlens.report.page.write import make_report

        output.check()
        figures.check()
        if fed.prompts is not None:
            check_file(fed.prompts)
        with output.progress() as progress:
            made = make_report(
                model,
                sections=names,
                target=output.out,
                cache=None if no_cache else Cache(),
                progress=progress,
                steps=steps,
                seed=seed,
                **asked,
            )
        left_out = [f"section {name} left out: {why}" for name, why in made.missing.items()]
        output.warn([*made.warnings, *left_out])
        page = {output.out: made.html.encode("utf-8")}
        view = table("page.view", "report_view", made, output.out)
        output.emit(made, view, page | figures.files(material=made.material))
