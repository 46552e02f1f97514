"""Write src/eigenlens/data/schemas/*.json and docs/reference/schemas.md; ``--check`` compares.

The documents are in tools/schemas. What a key means is taken from the docstring of the
class that it comes from, so that it is said in one place; a key without a description is an error.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.words import Schema

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "eigenlens" / "data" / "schemas"
PAGE = ROOT / "docs" / "reference" / "schemas.md"
LINK = "../../src/eigenlens/data/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document(name: str, title: str, body: Schema, parts: Mapping[str, Schema]) -> Schema:
    """A whole schema file: head, body, and the parts that it refers to."""
    used: dict[str, Schema] = {}
    todo = [body]
    while todo:
        for found in re.findall(r'"#/\$defs/([\w-]+)"', json.dumps(todo.pop())):
            if found not in used:
                used[found] = copy.deepcopy(parts[found])
                todo.append(used[found])
    out = {
        "$schema": DIALECT,
        "$id": f"urn:eigenlens:schema:{name}:1",
        "title": f"eigenlens.{name}/1",
        "description": title,
        **copy.deepcopy(body),
    }
    if used:
        out["$defs"] = used
    return out


def documents() -> dict[str, Schema]:
    """All schemas by name.

    Raises
    ------
    SystemExit
        A key has no description.
    """
    from schemas.documents import DOCUMENTS, PARTS
    from schemas.words import meant

    out = {name: document(name, *found[1:], PARTS) for name, found in DOCUMENTS.items()}
    bare = [f"{name}: {path}" for name, found in out.items() for path in meant(found)]
    if bare:
        raise SystemExit("keys without a description:\n" + "\n".join(bare))
    return out


def text(schema: Schema) -> str:
    """The file's text."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


HEAD = f"""# JSON schemas

Written by tools/write_schemas.py; do not edit.

Everything that eigenlens writes as JSON names its schema and its version in the field `schema`,
such as `eigenlens.spectrum/1`. The number grows when a key is renamed, removed or changes its
meaning. The schemas are [JSON Schema]({DIALECT.rpartition("/")[0]}) of the draft 2020-12. Objects
are closed: a key that is not in the schema is an error, and so is one that is missing. A number
that is not defined or not finite is `null`.

They are in the package as well:

```python
import json
from importlib.resources import files

import jsonschema                                  # pip install jsonschema

place = files("eigenlens") / "data" / "schemas" / "spectrum.json"
jsonschema.validate(json.load(open("out.json")), json.loads(place.read_text()))
```

| schema | comes from | holds |
|---|---|---|
"""


def page() -> str:
    """The page that lists the schemas."""
    from schemas.documents import DOCUMENTS

    rows = [
        f"| [eigenlens.{name}/1]({LINK}/{name}.json) | {source} | {title} |\n"
        for name, (source, title, _) in DOCUMENTS.items()
    ]
    return HEAD + "".join(rows)


def main() -> int:
    """Write the files, or with ``--check`` say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = {FOLDER / f"{name}.json": text(schema) for name, schema in documents().items()}
    wanted[PAGE] = page()
    gone = sorted(set(FOLDER.glob("*.json")) - set(wanted))
    stale = [p for p, new in wanted.items() if not p.is_file() or p.read_text("utf-8") != new]
    if check:
        for path in [*stale, *gone]:
            print(f"{path.name} is stale: run python tools/write_schemas.py")
        return int(bool(stale or gone))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in gone:
        path.unlink()
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
