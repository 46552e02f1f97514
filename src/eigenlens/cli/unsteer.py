"""`eigenlens unsteer`: restore the bytes that an edit changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from eigenlens.cli.boundary import boundary
from eigenlens.cli.groups import grouped
from eigenlens.cli.options import path_argument
from eigenlens.cli.output import Output, table


@grouped
def unsteer(
    folder: Annotated[Path, path_argument("DIR", "A folder that steer or apply has written.")],
    *,
    output: Output,
) -> None:
    """Restore the bytes that the youngest edit of a steered folder changed.

    They come from the folder's own undo file. Nothing is restored where the tensor was changed
    since. Edits are undone in turn, one a call.
    """
    with boundary(output.debug):
        from eigenlens.steering.undo import unsteer as undo

        output.check()
        result = undo(folder)
        output.emit(result, table("forms_tables", "unsteer_view", result))
