"""The paper's attention layer as plain matrices, in numpy: what theory is tested on.

States are (s, n, d): s starts in one batch, n tokens, d coordinates; columns in the formulas are
rows here, so a matrix acts as ``X @ F.T``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import check_finite
from eigenlens.dynamics.masks import Mask
from eigenlens.errors import OptionError, ShapeError

States = Float[np.ndarray, "s n d"]


@dataclass(frozen=True)
class MatrixLayer:
    """One attention layer: ``y_i = sum_h F_h sum_j A^h_ij x_j``.

    ``A^h = softmax_j(x_i^T B_h x_j + P^h_ij)`` over what the mask shows.

    Attributes
    ----------
    F_heads
        ``W_O^h W_V^h`` of every head, (h, d, d).
    logits
        ``W_Q^hT W_K^h`` times the scale, (h, d, d); None for logits 0 (uniform attention).
    position
        A position term of the logits, (h, m, m), of which the first n rows and columns are used;
        None for none.
    mask
        What each token sees.
    """

    F_heads: Float[np.ndarray, "h d d"]
    logits: Float[np.ndarray, "h d d"] | None = None
    position: Float[np.ndarray, "h m m"] | None = None
    mask: Mask = field(default_factory=Mask)

    @property
    def F(self) -> Float[np.ndarray, "d d"]:
        """The layer matrix, the sum over heads."""
        return np.asarray(self.F_heads.sum(axis=0))

    def weights(self, X: States) -> Float[np.ndarray, "s h n n"]:
        """The attention matrices; every row sums to 1."""
        n, h = X.shape[1], self.F_heads.shape[0]
        scores = np.zeros((X.shape[0], h, n, n))
        if self.logits is not None:
            scores += np.einsum("snd,hde,sme->shnm", X, self.logits, X, optimize=True)
        if self.position is not None:
            scores += self.position[:, :n, :n]
        scores = np.where(self.mask.allowed(n), scores, -np.inf)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores

    def __call__(self, X: States) -> States:
        """The attention output, before the residual."""
        mixed = self.weights(X) @ X[:, None]
        return np.asarray(np.einsum("shnd,hed->sne", mixed, self.F_heads, optimize=True))


def build_layers(
    F: Float[np.ndarray, "..."] | None = None,
    heads: Float[np.ndarray, "..."] | None = None,
    logits: Float[np.ndarray, "..."] | None = None,
    position: Float[np.ndarray, "..."] | None = None,
    mask: Mask = Mask(),  # noqa: B008 - a frozen value
) -> list[MatrixLayer]:
    """Layers from matrices of one's own.

    Parameters
    ----------
    F
        One layer matrix (d, d) for one head, or (layers, d, d). Leave out if `heads` is given.
    heads
        ``W_O^h W_V^h`` of every head: (h, d, d), or (layers, h, d, d).
    logits
        (d, d), (h, d, d) or (layers, h, d, d); one for all layers and heads where axes are missing.
    position
        (m, m), (h, m, m) or (layers, h, m, m).
    mask
        What each token sees.

    Raises
    ------
    OptionError
        Neither or both of `F` and `heads`.
    ShapeError
        Matrices that are not square, or numbers of heads, layers or coordinates that differ.
    NumericsError
        A NaN or an infinity.
    """
    if (F is None) == (heads is None):
        raise OptionError(
            "give either F (one matrix a layer) or heads (one matrix a head), not both"
        )
    if heads is None:
        given = _array("F", F)
        stacked = given[None, None] if given.ndim == 2 else given[:, None]
        if given.ndim not in (2, 3):
            raise ShapeError(f"F has shape {given.shape}; expected (d, d) or (layers, d, d)")
    else:
        given = _array("heads", heads)
        stacked = given[None] if given.ndim == 3 else given
        if given.ndim not in (3, 4):
            raise ShapeError(
                f"heads have shape {given.shape}; expected (h, d, d) or (layers, h, d, d)"
            )
    layers, h, d, other = stacked.shape
    if d != other or 0 in stacked.shape:
        raise ShapeError(f"layer matrices have shape ({d}, {other}); they must be square")
    b = _spread("logits", logits, layers, h)
    if b is not None and b.shape[2:] != (d, d):
        raise ShapeError(f"logits have shape {b.shape[2:]}; F has ({d}, {d})")
    p = _spread("position", position, layers, h)
    return [
        MatrixLayer(stacked[t], None if b is None else b[t], None if p is None else p[t], mask)
        for t in range(layers)
    ]


def _array(name: str, value: object) -> Float[np.ndarray, "..."]:
    array = np.asarray(value, dtype=np.float64)
    check_finite(name, array)
    return array


def _spread(
    name: str, value: object | None, layers: int, h: int
) -> Float[np.ndarray, "layers h a b"] | None:
    """(a, b), (h, a, b) or (layers, h, a, b) as the last of these."""
    if value is None:
        return None
    array = _array(name, value)
    if not 2 <= array.ndim <= 4 or array.shape[-1] != array.shape[-2]:
        raise ShapeError(f"{name} have shape {array.shape}; the last two axes must be equal")
    while array.ndim < 4:
        array = array[None]
    if array.shape[0] not in (1, layers) or array.shape[1] not in (1, h):
        raise ShapeError(
            f"{name} are for {array.shape[0]} layers and {array.shape[1]} heads; F has {layers} "
            f"and {h}"
        )
    return np.asarray(np.broadcast_to(array, (layers, h, *array.shape[2:])))


def random_starts(starts: int, n: int, d: int, radius: float, seed: int) -> States:
    """Independent tokens, uniform on the sphere of a radius; (starts, n, d)."""
    draw = np.random.default_rng(seed).standard_normal((starts, n, d))
    return np.asarray(radius * draw / np.linalg.norm(draw, axis=-1, keepdims=True))


def given_starts(states: Any, d: int) -> Float[np.ndarray, "s n d"]:
    """Starts of one's own, (n, d) or (s, n, d), as a float64 copy (s, n, d).

    Raises
    ------
    ShapeError
        They have another shape, or hold nothing.
    OptionError
        A NaN or an infinity is in them.
    """
    X = np.array(states, dtype=np.float64)
    X = X[None] if X.ndim == 2 else X
    if X.ndim != 3 or X.shape[2] != d or 0 in X.shape:
        raise ShapeError(f"states have shape {np.shape(states)}; expected (n, {d}) or (s, n, {d})")
    if not np.isfinite(X).all():
        raise OptionError("states hold a NaN or an infinity")
    return X
