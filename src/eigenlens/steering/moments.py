"""What the output projection reads of every token of the calibration text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError
from eigenlens.live.batches import Batch
from eigenlens.live.hooks import hooked, on_enter
from eigenlens.live.recipe import first_input
from eigenlens.steering.probes import Moments
from eigenlens.steering.stage import Stage

MOST_ENTRIES = 1 << 28
"""Numbers that are kept of the calibration text: 1 GB in float32."""


def read_inputs(
    stage: Stage, batches: Iterable[Batch], progress: Any = None
) -> Float[np.ndarray, "n m"]:
    """Z of every token: the concatenated head outputs, as the edited module reads them.

    First tokens of prompts are left out: many models park their attention there, and what an edit
    does to them is reported apart. Where only the last call of a shared layer is edited, z is that
    of the last call; else that of all calls.

    Raises
    ------
    OptionError
        Prompts have no token but their first, or there are more tokens than fit.
    """
    session = stage.session
    found: list[Float[np.ndarray, "k m"]] = []
    kept = 0
    made = list(batches)
    for i, batch in enumerate(made):
        seen: list[Any] = []

        def tap(module: Any, args: Any, kwargs: Any, seen: list[Any] = seen) -> None:
            seen.append(first_input(args, kwargs))

        with hooked([on_enter(stage.output, tap)]):
            session.forward(batch.inputs, batch.advice)
        later = batch.mask & (np.cumsum(batch.mask, axis=1) > 1)
        for z in seen[-1:] if stage.last else seen:
            b, n = batch.mask.shape
            found.append(batch.flat(z.reshape(b, n, -1), later))
            kept += found[-1].size
        if kept > MOST_ENTRIES:
            raise OptionError(
                f"the calibration text has more tokens than are kept ({kept} numbers so far): a "
                "few thousand tokens are enough; give a shorter file"
            )
        if progress is not None:
            progress(i + 1, len(made), "calibrating")
    Z = np.concatenate(found)
    if not len(Z):
        raise OptionError("every prompt of the calibration text has one token: give longer ones")
    return np.asarray(Z)


def moments_of(Z: Float[np.ndarray, "n m"]) -> Moments:
    """First and second moments in float64."""
    wide = Z.astype(np.float64)
    return Moments(wide.mean(axis=0), wide.T @ wide / len(wide), len(wide))
