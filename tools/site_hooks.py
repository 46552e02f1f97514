"""What the documentation site takes from outside of docs/: the JSON schemas, as files to link to.

In the repository the page of schemas links to the package data; on the site these are files beside
the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SCHEMAS = Path(__file__).resolve().parents[1] / "src" / "eigenlens" / "data" / "schemas"
PAGE = "reference/schemas.md"
IN_REPOSITORY = "../../src/eigenlens/data/schemas/"
ON_SITE = "schemas/"


def on_files(files: Files, config: Any) -> Files:
    """Add the schemas to the site."""
    for path in sorted(SCHEMAS.glob("*.json")):
        place = f"reference/{ON_SITE}{path.name}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to the package data into links to the site's files."""
    if page.file.src_uri != PAGE:
        return markdown
    return markdown.replace(f"]({IN_REPOSITORY}", f"]({ON_SITE}")
