"""Options that say what is fed to a live model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="Texts, one a line, or .jsonl with a field text.",
        show_default=False,
    ),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="S", help="A text; may be repeated.", show_default=False),
]
TokenIdsOption = Annotated[
    Path | None,
    typer.Option(
        "--token-ids", metavar="FILE", help="One JSON list of ids a line.", show_default=False
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs, e.g. cuda.")]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
]
