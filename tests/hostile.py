"""A model whose author would like to run a script on whoever reads about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from eigenlens.samples import sample_path
from eigenlens.spectra.analyse import spectrum

SCRIPT = "<script>alert(1)</script>"
TOKENS = (
    SCRIPT,
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(3)>",
    "a\u2028b\u202e",
    "<b>bold</b> <a href='https://example.invalid/'>here</a>",
    "%{x} ${1} &lt;i&gt;",
    "]]> --> \" ' `",
)
FOLDER = "<svg onload=alert(4)> & 'so' \"on\""
PROMPTS = (
    f"return {SCRIPT} of the list",
    "the value of a dictionary",
    "an object is called when the first of all the names in this long list is asked for",
)


def hostile_model(parent: Path) -> Path:
    """The sample bert-tiny in a folder of a hostile name, with hostile tokens where they show.

    The tokens that its leading directions decode to are renamed, and one is made an added token, so
    that a prompt can hold it.
    """
    folder = parent / "somebody" / "models" / FOLDER
    shutil.copytree(sample_path("bert-tiny"), folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    shown = {
        token
        for layer in spectrum("sample:bert-tiny", decode=8).layers
        for found in (layer.tokens or {}).values()
        for token, _ in (*found.positive, *found.negative)
    }
    names = [token for token in vocabulary if token in shown and not token.startswith("[")]
    for number, name in enumerate(names):
        evil = TOKENS[number % len(TOKENS)]
        vocabulary[evil if number < len(TOKENS) else f"{evil}{number}"] = vocabulary.pop(name)
    number = vocabulary[SCRIPT]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    tokenizer["added_tokens"].append(
        {"id": number, "content": SCRIPT, "normalized": False, "special": False, **flags}
    )
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return folder
