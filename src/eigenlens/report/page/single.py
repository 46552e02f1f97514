"""What the pages of one result share: a section a figure, tables, where the data comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eigenlens.frames import Result
from eigenlens.report.page.assemble import assemble
from eigenlens.report.page.embed import plain, table, text
from eigenlens.report.page.provenance import today, versions
from eigenlens.report.panels.figure import Figure


def one_page(
    title: str,
    facts: str,
    sections: Sequence[str],
    titles: Mapping[str, str],
    result: Result,
    plots: Mapping[str, Any],
) -> bytes:
    """The page of a result as UTF-8 text.

    Parameters
    ----------
    title, facts
        Name, and a line of sizes; texts.
    sections, titles
        The sections as HTML, and their titles by anchor.
    result
        What the button gives as JSON.
    plots
        Plots by figure.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    record = result.to_dict()
    page = assemble(
        title=title,
        facts=facts,
        nav=navigation(titles),
        body="".join(sections),
        data=plain(record),
        plots=plots,
        version=record["eigenlens_version"],
        date=today(),
    )
    return page.encode("utf-8")


def navigation(titles: Mapping[str, str]) -> str:
    """The list of sections, titles by anchor."""
    return "".join(f'<li><a href="#{a}">{text(title)}</a></li>' for a, title in titles.items())


def figure_section(figure: Figure, lead: str) -> str:
    """A section that holds one figure, under a sentence that leads to it."""
    name, label = figure.name, text(f"{figure.title}. {figure.alt}")
    return (
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">'
        f'{text(figure.title)}</h2><p class="lead">{text(lead)}</p>'
        f'<div class="figures"><figure class="{name}" id="figure-{name}">'
        f'<div class="controls"></div><div class="chart" data-plot="{name}" role="img" '
        f'aria-label="{label}"></div><figcaption>{text(figure.caption)}</figcaption></figure>'
        "</div></section>"
    )


def table_section(
    anchor: str,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    caption: str,
) -> str:
    """A section that holds one table."""
    return (
        f'<section id="{anchor}" aria-labelledby="h-{anchor}"><h2 id="h-{anchor}">{text(title)}'
        f"</h2>{table(list(headings), list(rows), caption)}</section>"
    )


def data_section(options: Mapping[str, Any], of: str) -> str:
    """The last section: the data to download, versions, and the options of `of`."""
    asked = [[k, "-" if v is None else str(v)] for k, v in options.items()]
    made = ", ".join(f"{k} {v}" for k, v in versions().items())
    return (
        '<section id="provenance" aria-labelledby="h-provenance">'
        '<h2 id="h-provenance">Where this comes from</h2>'
        f'<p><button type="button" id="download" data-file="{of}.json">Download the data '
        f'(JSON)</button></p><dl class="facts-list"><dt>Versions</dt><dd>{text(made)}</dd></dl>'
        f"{table(['option', 'value'], asked, f'Options of the {of}')}</section>"
    )
