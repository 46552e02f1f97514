"""States of many depths measured together: a call a layer would cost more than a small model's own.

States of one batch are stacked as (states, prompts, tokens, d) in float64, rows of zeros where a
token does not count, a stack at a time that fits the processor's cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.errors import NumericsError
from eigenlens.measure.alignment import Targets
from eigenlens.measure.collapse import TOKEN_METRICS

_ENTRIES = 1 << 19  # numbers in one stack, 4 MB: few calls, and caches still hold most of it
_EVEN = 0.8  # share of n^3 that the prompts of a batch have together, to be solved in one call
_NEAR = 1e-6  # |X - mean|^2 / |X|^2 below which the difference of squares has lost too many digits
_SMALL = 1e-300  # keeps 0/0 quiet where the result is set to NaN anyway


class _Scratch(threading.local):
    """Room for the temporaries of one stack, kept by each thread.

    Memory that is fresh from the system has to be entered page by page, which takes longer than
    all that is done in it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Float[np.ndarray, "size"]] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
        """An array of this shape with anything in it; of a stack that is too large, a fresh one."""
        size = math.prod(shape)
        if size > _ENTRIES:
            return np.empty(shape)
        if name not in self._kept:
            self._kept[name] = np.empty(_ENTRIES)
        return self._kept[name][:size].reshape(shape)


_scratch = _Scratch()


@dataclass(frozen=True)
class Masks:
    """Which tokens of a batch count.

    Attributes
    ----------
    keep
        Tokens whose alignment is measured.
    counted
        Those of them that collapse is measured on: all, or all but sinks.
    """

    keep: Bool[np.ndarray, "b n"]
    counted: Bool[np.ndarray, "b n"]


@dataclass(frozen=True)
class CollapsePart:
    """What one state of a batch adds to means over prompts.

    Attributes
    ----------
    sums, counts
        Of every measure, over the prompts that define it.
    total, within
        Sum of the unit tokens that collapse is measured on, and over prompts that of the squared
        lengths of the prompts' own sums.
    tokens, pairs_within
        How many tokens, and pairs of two of one prompt in either order, themselves included.
    n_prompts
        Prompts with a token that counts.
    """

    sums: Float[np.ndarray, "7"]
    counts: Int[np.ndarray, "7"]
    total: Float[np.ndarray, "d"]
    within: float
    tokens: int
    pairs_within: int
    n_prompts: int


@dataclass(frozen=True)
class Depth:
    """What is kept of one state.

    Attributes
    ----------
    cosines
        With the columns that were asked for; NaN for a zero token and for one that is not kept.
    direction
        Sum of the unit tokens that are kept.
    used
        How many of them have a direction.
    values
        The collapse measures of each prompt, in the order of `TOKEN_METRICS`.
    part
        What they add to means over prompts.
    """

    cosines: Float[np.ndarray, "b n k"]
    direction: Float[np.ndarray, "d"]
    used: int
    values: Float[np.ndarray, "7 b"]
    part: CollapsePart


class Pile:
    """States of one batch and stack that are read together, each of them once.

    The state before a layer often is the one after the block before it: the same memory is the
    same state.
    """

    def __init__(self) -> None:
        self._states: dict[Any, Any] = {}
        self._targets: dict[Any, list[Targets]] = {}
        self._found: dict[Any, Depth] = {}

    def add(self, states: Any, target: Targets | None = None) -> None:
        """Add a state (b, n, d), and what it is to be compared with."""
        key = _memory(states)
        self._states.setdefault(key, states)
        wanted = self._targets.setdefault(key, [])
        if target is not None and not any(t is target for t in wanted):
            wanted.append(target)

    def read(self, masks: Masks) -> None:
        """Measure all of them.

        Raises
        ------
        NumericsError
            A token that counts holds a NaN or an infinity.
        """
        columns = [
            np.concatenate([np.zeros((x.shape[2], 0)), *(t.columns for t in ts)], axis=1)
            for x, ts in zip(self._states.values(), self._targets.values(), strict=True)
        ]
        found = read_depths(list(self._states.values()), columns, masks)
        self._found = dict(zip(self._states, found, strict=True))

    def __getitem__(self, states: Any) -> Depth:
        return self._found[_memory(states)]

    def cosines(self, states: Any, target: Targets) -> Float[np.ndarray, "b n k"]:
        """Cosines of a state with the columns of one of its targets."""
        key, start = _memory(states), 0
        for other in self._targets[key]:
            width = other.columns.shape[1]
            if other is target:
                return self._found[key].cosines[..., start : start + width]
            start += width
        raise KeyError(target)


def _memory(states: Any) -> tuple[Any, ...]:
    return (states.data_ptr(), tuple(states.shape), states.stride(), states.dtype, states.device)


def as_numpy(states: Any) -> Float[np.ndarray, "b n d"]:
    """A state as numpy, in float32 or wider; not copied if it need not be."""
    if isinstance(states, np.ndarray):
        return states
    tensor = states.detach()
    tensor = tensor if tensor.dtype.itemsize >= 4 else tensor.float()
    return np.asarray(tensor.cpu().numpy())


def read_depths(
    states: Sequence[Any], columns: Sequence[Float[np.ndarray, "d _k"]], masks: Masks
) -> list[Depth]:
    """Measure states of one batch and stack.

    Parameters
    ----------
    states
        Tensors or arrays (b, n, d), all of one shape.
    columns
        Unit vectors that the tokens of each state are compared with; as many states.
    masks
        Which tokens count.

    Raises
    ------
    NumericsError
        A token that counts holds a NaN or an infinity.
    """
    if not states:
        return []
    size = math.prod(states[0].shape)
    together = max(1, _ENTRIES // max(1, size))

    def read(start: int) -> list[Depth]:
        some = [as_numpy(x) for x in states[start : start + together]]
        return list(_stack(some, columns[start : start + together], masks))

    return list(chain.from_iterable(map(read, range(0, len(states), together))))


def _stack(
    states: Sequence[Float[np.ndarray, "b n d"]],
    columns: Sequence[Float[np.ndarray, "d _k"]],
    masks: Masks,
) -> Iterator[Depth]:
    precise = any(x.dtype == np.float64 for x in states)
    W = _scratch.array("states", (len(states), *states[0].shape))
    for i, x in enumerate(states):
        W[i] = x
    if not masks.keep.all():
        W[:, ~masks.keep] = 0.0
    same = masks.counted is masks.keep or bool((masks.counted == masks.keep).all())
    gram = None
    with np.errstate(over="ignore", invalid="ignore"):
        if same and not precise and W.shape[2] <= W.shape[3] and _even(masks.counted, W.shape):
            gram = _gram(W)
            norms = np.sqrt(gram.diagonal(axis1=2, axis2=3))
        else:
            norms = np.sqrt(np.einsum("sbnd,sbnd->sbn", W, W))
    _need_finite(norms)
    flat = W.reshape(W.shape[0], -1, W.shape[3])
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 1.0 / norms
        # Dividing the few cosines instead of the tokens saves a copy of the states.
        cosines = [
            (x @ B).reshape(*masks.keep.shape, -1) * y[..., None]
            for x, B, y in zip(flat, columns, inverse, strict=True)
        ]
    inverse[np.isinf(inverse)] = 0.0
    sizes = masks.counted.sum(axis=1)
    mean = np.broadcast_to(masks.counted / np.maximum(sizes, 1)[:, None], norms.shape)
    weights = np.stack([inverse, mean, *([] if same else [inverse * masks.counted])], axis=2)
    sums = weights @ W
    direction = sums[:, :, 0].sum(axis=1)
    used = np.count_nonzero(norms, axis=(1, 2))
    units = sums[:, :, 0 if same else 2]
    if not same:
        norms = norms * masks.counted
        W[:, ~masks.counted] = 0.0
    sigma_squares = _squares(W, gram, masks.counted, precise)
    values = _collapse(W, sums[:, :, 1], units, norms, sigma_squares, masks.counted)
    tokens = np.count_nonzero(norms, axis=2)
    parts = _parts(values, units, tokens, int(np.count_nonzero(sizes)))
    for i, (found, part) in enumerate(zip(cosines, parts, strict=True)):
        yield Depth(found, direction[i], int(used[i]), values[:, i], part)


def _parts(
    values: Float[np.ndarray, "7 s b"],
    units: Float[np.ndarray, "s b d"],
    tokens: Int[np.ndarray, "s b"],
    n_prompts: int,
) -> list[CollapsePart]:
    """Sums over the prompts of each state; `units` are the prompts' sums of unit tokens."""
    known = np.isfinite(values)
    sums, counts = np.where(known, values, 0.0).sum(axis=2), np.count_nonzero(known, axis=2)
    total, within = units.sum(axis=1), np.einsum("sbd,sbd->s", units, units)
    every, pairs = tokens.sum(axis=1), np.einsum("sb,sb->s", tokens, tokens)
    return [
        CollapsePart(
            sums[:, i],
            counts[:, i],
            total[i],
            float(within[i]),
            int(every[i]),
            int(pairs[i]),
            n_prompts,
        )
        for i in range(len(within))
    ]


def _need_finite(norms: Float[np.ndarray, "s b n"]) -> None:
    finite = np.isfinite(norms)
    if not finite.all():
        raise NumericsError(
            f"{int(np.count_nonzero(~finite.all(axis=0)))} token states of a batch hold NaN or "
            "infinite values: states must be finite; run the model in float32 or wider"
        )


def _squares(
    W: Float[np.ndarray, "s b n d"],
    gram: Float[np.ndarray, "s b n n"] | None,
    counted: Bool[np.ndarray, "b n"],
    precise: bool,
) -> Float[np.ndarray, "s b k"]:
    """Squared singular values, ascending, in the last places; zeros before a prompt's own.

    Of float32 states by the smaller Gram matrix in float64, whose loss of 1.5e-8 sigma_1 is below
    the states' own rounding of 6e-8 sigma_1; float64 states get the SVD.
    """
    sizes, k = counted.sum(axis=1), min(W.shape[2:])
    if precise:
        squares = np.square(np.linalg.svd(W, compute_uv=False)[..., ::-1])
    elif gram is not None:
        squares = _eigenvalues(gram)
    elif _even(counted, W.shape):
        squares = _eigenvalues(_gram(W))
    else:
        squares = np.zeros((*W.shape[:2], k))
        for b, size in enumerate(sizes):
            own = np.flatnonzero(counted[b])
            if size:
                run = slice(own[0], own[-1] + 1)
                found = _eigenvalues(_gram(W[:, b, run if own[-1] - own[0] < size else own]))
                squares[:, b, k - found.shape[-1] :] = found
    if (sizes < k).any():  # a prompt of n tokens has n of them, the largest
        squares = np.where(np.arange(k)[::-1] < sizes[:, None], squares, 0.0)
    return np.asarray(squares)


def _gram(X: Float[np.ndarray, "... n d"]) -> Float[np.ndarray, "... k k"]:
    """The smaller one of the two."""
    T = X.swapaxes(-1, -2)
    return np.asarray(X @ T if X.shape[-2] <= X.shape[-1] else T @ X)


def _eigenvalues(gram: Float[np.ndarray, "... k k"]) -> Float[np.ndarray, "... k"]:
    return np.asarray(np.maximum(np.linalg.eigvalsh(gram), 0.0))


def _even(counted: Bool[np.ndarray, "b n"], shape: tuple[int, ...]) -> bool:
    """Whether the prompts' Gram matrices cost about as much together as one by one.

    A short prompt in a long batch has mostly rows of zeros, which cost as much as its own.
    """
    n, d = shape[2:]
    sizes = np.minimum(counted.sum(axis=1), d).astype(float)
    return float(np.sum(sizes**3)) > _EVEN * len(sizes) * float(min(n, d)) ** 3


def _collapse(
    W: Float[np.ndarray, "s b n d"],
    mean: Float[np.ndarray, "s b d"],
    units: Float[np.ndarray, "s b d"],
    norms: Float[np.ndarray, "s b n"],
    squares: Float[np.ndarray, "s b k"],
    counted: Bool[np.ndarray, "b n"],
) -> Float[np.ndarray, "7 s b"]:
    """The measures of `eigenlens.measure.collapse` for every prompt; `W` is written over."""
    n = counted.sum(axis=1)
    centred = np.subtract(W, mean[:, :, None], out=_scratch.array("centred", W.shape))
    lengths, means = np.einsum("sbn,sbn->sb", norms, norms), np.einsum("sbd,sbd->sb", mean, mean)
    deviations = np.maximum(lengths - n * means, 0.0)
    near = deviations < _NEAR * lengths
    if near.any():
        rows = np.einsum("pnd,pnd->pn", centred[near], centred[near])
        own = np.broadcast_to(counted, norms.shape)[near]
        deviations[near] = np.einsum("pn,pn->p", rows, own)
    length, deviation = np.sqrt(lengths), np.sqrt(deviations)
    total = squares.sum(axis=2)
    defined = (n > 1) & ((norms > 0) | ~counted).all(axis=2)
    sigma = np.sqrt(squares)
    share = sigma / np.maximum(sigma.sum(axis=2, keepdims=True), _SMALL)
    entropy = -np.einsum("sbk,sbk->sb", share, np.log(np.maximum(share, _SMALL)))
    found = np.empty((len(TOKEN_METRICS), *total.shape))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (np.einsum("sbd,sbd->sb", units, units) - n) / (n * (n - 1))
        found[0] = np.where(defined, np.minimum(cosine, 1.0), np.nan)
        found[1] = _norm_1_inf(centred, counted) / _norm_1_inf(W, counted)
        found[2] = deviation / length
        found[3] = deviation / (np.sqrt(n) * np.sqrt(means))
        found[4] = np.where(total > 0, np.exp(entropy), np.nan)
        found[5] = total / squares[..., -1]
        found[6] = total**2 / np.einsum("sbk,sbk->sb", squares, squares)
    return found


def _norm_1_inf(
    X: Float[np.ndarray, "s b n d"], counted: Bool[np.ndarray, "b n"]
) -> Float[np.ndarray, "s b"]:
    """``sqrt(|X|_1 |X|_inf)`` of every matrix; `X` becomes its absolute value."""
    np.abs(X, out=X)
    columns = (counted[:, None].astype(X.dtype) @ X)[:, :, 0].max(axis=2)
    rows = ((X @ np.ones(X.shape[3])) * counted).max(axis=2)
    return np.asarray(np.sqrt(columns * rows))
