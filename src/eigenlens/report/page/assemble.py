"""One file from all parts: template, style, script and plotly, under a policy of no requests."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

from eigenlens.report.page.embed import rounded, script_json, text
from eigenlens.report.plots.library import need_plotly


def plotly_script() -> str:
    """The source of plotly.js, from the Python package.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    return _closed(str(need_plotly("plotly.offline", "a report").get_plotlyjs()))


def _closed(script: str) -> str:
    """A script that cannot end its element early, and that parses to the same text everywhere."""
    script = script.replace("\r\n", "\n").replace("\r", "\n")
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def assemble(
    *,
    title: str,
    facts: str,
    nav: str,
    body: str,
    data: Any,
    plots: Mapping[str, Any],
    version: str,
    date: str,
) -> str:
    """The page.

    Parameters
    ----------
    title, facts
        Name of the model, and a line of its sizes; texts.
    nav, body
        HTML.
    data
        What the button gives: strict JSON data.
    plots
        Plotly figures by name.
    version, date
        Of eigenlens, and of today.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    room = files("eigenlens.report.page")
    css = (room / "page.css").read_text(encoding="utf-8")
    script = "\n" + _closed((room / "page.js").read_text(encoding="utf-8"))
    plotly = plotly_script()
    # Only these two scripts run, whatever else might find its way into the page, and nothing is
    # fetched: no address, no frame, no form. Plotly writes style elements and draws on blobs.
    hashes = " ".join(f"'sha256-{_digest(code)}'" for code in (plotly, script))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = Template((room / "page.html").read_text(encoding="utf-8"))
    return page.substitute(
        policy=policy,
        version=text(version),
        title=text(f"{title} · eigenlens report"),
        css=css,
        nav=nav,
        heading=text(title),
        facts=text(facts),
        body=body,
        date=text(date),
        data=script_json(data),
        plots=script_json(rounded(dict(plots), 5)),
        plotly=plotly,
        script=script,
    )


def _digest(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode("utf-8")).digest()).decode("ascii")
