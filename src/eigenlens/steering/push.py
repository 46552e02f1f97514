"""What is done to a running model while it is measured: the edit's term, or a vector added."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.live.hooks import hooked, on_call, on_leave
from eigenlens.live.recipe import first_input


@dataclass(frozen=True)
class Term:
    """The edit as a term of the output projection's output: ``strength written (w.z)``.

    Up to rounding the same as the edited weight, without one: strengths can be tried quickly.
    `skip` calls of the projection in a pass come before the first that is edited.
    """

    output: Any = field(repr=False)
    w: Float[np.ndarray, "m"] = field(repr=False)
    written: Float[np.ndarray, "d"] = field(repr=False)
    strength: float
    skip: int = 0

    @contextmanager
    def active(self, torch: Any) -> Iterator[None]:
        """The model with the term, for as long as the context lasts."""
        left = [self.skip]
        kept: dict[str, Any] = {}

        def hook(module: Any, args: Any, kwargs: Any, result: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                return None
            z = first_input(args, kwargs)
            wide = torch.promote_types(result.dtype, torch.float32)
            if not kept:
                made = [
                    torch.as_tensor(np.array(x, dtype=np.float64)) for x in (self.w, self.written)
                ]
                kept["w"], kept["written"] = (x.to(result.device, wide) for x in made)
            flat = z.reshape(*result.shape[:-1], -1).to(wide)
            added = (flat @ kept["w"])[..., None] * (self.strength * kept["written"])
            return (result.to(wide) + added).to(result.dtype)

        with hooked([on_call(self.output, hook)]):
            yield


@dataclass(frozen=True)
class Added:
    """A constant vector on what a block writes: activation addition, as it is used today."""

    block: Any = field(repr=False)
    vector: Float[np.ndarray, "d"] = field(repr=False)
    strength: float
    skip: int = 0

    @contextmanager
    def active(self, torch: Any) -> Iterator[None]:
        """The model with the vector added, for as long as the context lasts."""
        left = [self.skip]

        def hook(module: Any, args: Any, result: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                return None
            states = result if torch.is_tensor(result) else result[0]
            vector = torch.as_tensor(self.strength * np.array(self.vector, dtype=np.float64))
            moved = states + vector.to(states.device, states.dtype)
            return moved if torch.is_tensor(result) else (moved, *result[1:])

        with hooked([on_leave(self.block, hook)]):
            yield


Push = Term | Added
