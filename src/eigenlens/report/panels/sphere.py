"""Tokens on the sphere: real states of all depths, in three axes that do not move."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from eigenlens.report.panels.figure import Columns, columns

_SPHERE = (
    *("depth", "label", "unit", "prompt", "text", "position", "token", "special"),
    *("x", "y", "z", "share", "alignment"),
)


@dataclass(frozen=True)
class States:
    """Captured states of a few prompts, over the depth of one stack.

    Attributes
    ----------
    labels
        What each depth is: ``start``, then one label a block.
    unit
        What the labels number: ``layer`` or ``step``.
    prompts
        The text of each prompt.
    owners, positions
        Which prompt each token belongs to, and where it stands in it.
    tokens, special
        Text of each token, and whether it is a special one.
    states
        (depths, tokens, d).
    plane
        Orthonormal basis of the target that the axes show, (d, m).
    plane_of
        What the plane is, for the caption.
    """

    labels: tuple[str, ...]
    prompts: tuple[str, ...]
    owners: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    states: Float[np.ndarray, "l t d"] = field(repr=False)
    plane: Float[np.ndarray, "d m"] = field(repr=False)
    plane_of: str = ""
    unit: str = "layer"
    warnings: tuple[str, ...] = ()


def sphere(result: States) -> Columns:
    """One row a depth and token: its direction in the three axes, a point of the unit sphere.

    `share` is the part of the state's squared length that lies in the axes; `alignment` its
    alignment with the leading target itself, in all d dimensions.
    """
    axes = axes_of(result)
    U = _unit(result.states)
    shadow = U @ axes
    share = np.sum(shadow**2, axis=-1)
    points = _unit(shadow)
    target = result.plane
    aligned = np.sqrt(np.sum((U @ target) ** 2, axis=-1))
    rows = [
        (
            *(depth, label, result.unit, result.owners[i], result.prompts[result.owners[i]]),
            *(result.positions[i], result.tokens[i], result.special[i]),
            *(float(points[depth, i, 0]), float(points[depth, i, 1]), float(points[depth, i, 2])),
            *(float(share[depth, i]), float(aligned[depth, i])),
        )
        for depth, label in enumerate(result.labels)
        for i in range(len(result.tokens))
    ]
    return columns(_SPHERE, rows)


def axes_of(result: States) -> Float[np.ndarray, "d 3"]:
    """Orthonormal axes: two of the target, then what shows most of the tokens' directions.

    A target of one dimension leaves two axes to the tokens: the leading singular vectors of all
    unit states outside it. Signs are fixed by the mean token, so the picture does not depend on
    the machine.
    """
    U = _unit(result.states).reshape(-1, result.states.shape[-1])
    first = result.plane[:, :2]
    rest = U - (U @ first) @ first.T
    axes = list(first.T)
    # Coordinate axes follow for states that leave nothing beside the target.
    by_size = np.argsort(np.sum(first**2, axis=1), kind="stable")[:3]
    for v in (*_leading(rest, 3 - len(axes)).T, *np.eye(len(first))[by_size]):
        for _ in range(2):
            v = v - sum((a * (a @ v) for a in axes), np.zeros_like(v))
        size = float(np.linalg.norm(v))
        if len(axes) < 3 and size > _NOTHING:
            axes.append(v / size)
    while len(axes) < 3:  # fewer than three dimensions
        axes.append(np.zeros(len(first)))
    shown = np.stack(axes, axis=1)
    return np.asarray(shown * np.where(U.mean(axis=0) @ shown < 0, -1.0, 1.0))


_NOTHING = 1e-6


def _leading(X: Float[np.ndarray, "n d"], k: int) -> Float[np.ndarray, "d k"]:
    """The k leading right singular vectors by subspace iteration: exact enough for a picture.

    O(n d k) a turn, where a full decomposition of wide states would take minutes.
    """
    V = np.random.default_rng(0).standard_normal((X.shape[1], k + 2))
    for _ in range(60):
        V, _ = np.linalg.qr(X.T @ (X @ V))
    _, _, turn = np.linalg.svd(X @ V, full_matrices=False)
    return np.asarray((V @ turn.T)[:, :k])


def _unit(X: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n d"]:
    size = np.linalg.norm(X, axis=-1, keepdims=True)
    return np.asarray(np.divide(X, size, out=np.zeros_like(X), where=size > 0))
