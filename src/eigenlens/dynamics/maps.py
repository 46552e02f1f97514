"""One step of a stack: attention, residual, and where the state is normalised.

An attention is any callable from states (s, n, d) to outputs (s, n, d): matrices in numpy, or a
live model's own layer. What is iterated around it is one of the two forms here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Float

States = Float[np.ndarray, "s n d"]
Attention = Callable[[States], States]
Form = Literal["normalised", "stream"]


class StateMap(Protocol):
    """Anything that takes states to the next states: a `LayerMap`, or a live model's layer."""

    @property
    def form(self) -> Form:
        """Which of the two forms it has."""
        ...

    def __call__(self, X: States) -> States:
        """The next states, in float64."""
        ...


def on_sphere(X: States, radius: float) -> States:
    """Every token scaled to length `radius`; a token of length 0 stays 0."""
    norm = np.linalg.norm(X, axis=-1, keepdims=True)
    return np.asarray(radius * X / np.where(norm == 0, 1.0, norm))


@dataclass(frozen=True)
class LayerMap:
    """A layer as a map of states.

    Attributes
    ----------
    attention
        States to attention outputs.
    form
        ``normalised``: ``N(x + attn(x))``, the paper's model and post-norm models; ``stream``:
        ``h + attn(N(h))``, pre-norm models.
    norm
        The norm N, states to states.
    """

    attention: Attention
    form: Form
    norm: Callable[[States], States]

    def __call__(self, X: States) -> States:
        """The next states."""
        if self.form == "normalised":
            return self.norm(X + self.attention(X))
        return X + self.attention(self.norm(X))


def l2_map(attention: Attention, form: Form, radius: float = 1.0) -> LayerMap:
    """A map with the paper's norm, ``N(z) = r z / |z|``."""
    return LayerMap(attention, form, lambda X: on_sphere(X, radius))
