"""What the documentation site takes from outside of docs/, so that it opens without a network.

The page of schemas links to the package data in the repository; on the site these are files beside
the page. The theme's search wants a script from a server when pages are opened from disk; it gets
tools/site_worker.js instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOOLS = Path(__file__).resolve().parent
SCHEMAS = TOOLS.parent / "src" / "eigenlens" / "data" / "schemas"
PAGE = "reference/schemas.md"
IN_REPOSITORY = "../../src/eigenlens/data/schemas/"
ON_SITE = "schemas/"
FOREIGN_WORKER = "https://unpkg.com/iframe-worker/shim"
WORKER = "assets/javascripts/site_worker.js"
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>"
)


def on_files(files: Files, config: Any) -> Files:
    """Add the schemas and the worker to the site."""
    for path in sorted(SCHEMAS.glob("*.json")):
        place = f"reference/{ON_SITE}{path.name}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    files.append(File.generated(config, WORKER, abs_src_path=str(TOOLS / "site_worker.js")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to the package data into links to the site's files."""
    if page.file.src_uri != PAGE:
        return markdown
    return markdown.replace(f"]({IN_REPOSITORY}", f"]({ON_SITE}")


def on_post_build(config: Any) -> None:
    """Put the worker in the place of the foreign one, and refuse what is fetched from elsewhere.

    Raises
    ------
    SystemExit
        A page loads something from another server.
    """
    site = Path(config["site_dir"])
    for path in site.rglob("*.html"):
        depth = len(path.relative_to(site).parts) - 1
        text = path.read_text(encoding="utf-8")
        new = text.replace(FOREIGN_WORKER, "../" * depth + WORKER)
        if found := FOREIGN.search(new):
            raise SystemExit(f"{path.name} loads from another server: {found[0]}")
        if new != text:
            path.write_text(new, encoding="utf-8")
