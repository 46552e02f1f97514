"""A rank-one edit of one layer's output matrix: ``W_O + strength written w^T``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.errors import NumericsError, OptionError, ShapeError

SITES: tuple[str, ...] = ("attention", "ffn")
STEPS: tuple[str, ...] = ("all", "last")


@dataclass(frozen=True, eq=False)
class Edit:
    """One rank-one edit: where it acts, what it reads, what it writes, how strongly.

    Attributes
    ----------
    model
        What the user said the model is, for display.
    model_type
        The config's model_type; an edit fits models of this type alone.
    stack, layer, kind
        The attention layer, as in `OVCircuit`.
    site
        `attention`: the output projection; `ffn`: the output matrix of the layer's feed-forward
        part.
    steps
        Of a layer that a forward pass runs several times (ALBERT): `all` its calls, or the `last`
        alone. For every other layer both mean the same.
    probe
        Name of the rule that `w` comes from.
    direction
        The unit vector that the edit is to put on top, (d,).
    written
        What is written for a reading ``w.z = 1`` at strength 1, (d,): the direction, or for the
        placement probe ``(lambda* I - F) u``; of attention divided by the layer's output scale, so
        that it arrives in the residual stream.
    w
        What reads the output projection's input, (m,); m is n_heads * head_dim, or the width of
        the feed-forward part.
    strength
        Factor on the product; a negative one suppresses.
    label
        What the direction is, for display.

    Raises
    ------
    ShapeError
        The vectors are not vectors, or do not fit each other.
    NumericsError
        A number is not finite, or the direction is not a unit vector.
    OptionError
        Site or steps are unknown.
    """

    model: str
    model_type: str
    stack: str
    layer: int
    kind: str
    site: str
    steps: str
    probe: str
    direction: Float[np.ndarray, "d"] = field(repr=False)
    written: Float[np.ndarray, "d"] = field(repr=False)
    w: Float[np.ndarray, "m"] = field(repr=False)
    strength: float
    label: str

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise OptionError(f"site is {self.site!r}: allowed are {', '.join(SITES)}")
        if self.steps not in STEPS:
            raise OptionError(f"steps is {self.steps!r}: allowed are {', '.join(STEPS)}")
        for name in ("direction", "written", "w"):
            vector = np.asarray(getattr(self, name))
            if vector.ndim != 1 or not len(vector):
                raise ShapeError(f"{name} has shape {vector.shape}: expected a vector")
            if not np.isfinite(vector).all():
                raise NumericsError(f"{name} holds NaN or infinity: take another direction or text")
        if self.direction.shape != self.written.shape:
            raise ShapeError(
                f"direction has shape {self.direction.shape}, written {self.written.shape}: both "
                "are vectors of the residual stream"
            )
        if not np.isfinite(self.strength):
            raise NumericsError(f"strength is {self.strength}: expected a finite number")
        length = float(np.linalg.norm(self.direction))
        if abs(length - 1.0) > 1e-4:
            raise NumericsError(f"direction has length {length:.6g}: expected a unit vector")

    @property
    def dW_norm(self) -> float:
        """Frobenius (and spectral) norm of the edit: ``|strength| |written| |w|``."""
        with np.errstate(over="ignore", invalid="ignore"):  # of an absurd edit: infinite
            sizes = np.linalg.norm(self.written), np.linalg.norm(self.w)
            return float(abs(self.strength) * sizes[0] * sizes[1])

    def delta(self) -> Float[np.ndarray, "d m"]:
        """``strength written w^T`` in float64, as the output projection sees it."""
        written = self.strength * np.asarray(self.written, dtype=np.float64)
        return np.asarray(np.outer(written, np.asarray(self.w, dtype=np.float64)))

    def applied(self, model: Any) -> AbstractContextManager[Any]:
        """The edit in a running model for as long as the context lasts; see `applied.applied`.

        Parameters
        ----------
        model
            A transformers model, or a `Session`.
        """
        from eigenlens.steering.applied import applied

        return applied(self, model)


def relative_norm(dW_norm: float, size: float) -> float | None:
    """``|dW| / |W|``; None where W is zero, as that of a layer which adds nothing."""
    return dW_norm / size if size else None
