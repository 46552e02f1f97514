"""Unit directions for an edit: tokens, contrasts of texts, another layer's v1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import (
    EigenlensError,
    NumericsError,
    OptionError,
)
from eigenlens.inert import inert
from eigenlens.live.batches import make_batches
from eigenlens.live.hooks import hooked, on_leave
from eigenlens.live.tokenizer import Tokenizer
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.steering.opening import layer_index
from eigenlens.steering.resume import forward
from eigenlens.steering.stage import Stage

Vector = Float[np.ndarray, "d"]

_SHOWN = 5


@dataclass(frozen=True)
class Direction:
    """A unit vector of the residual stream, and what it is.

    Attributes
    ----------
    vector
        (d,), |vector| = 1.
    label
        For display: ``token ' Paris'``.
    kind
        ``token``, ``contrast``, ``file`` or ``layer``.
    through
        How it was made of its source, in a few words.
    targets
        Ids of the tokens that are wanted; empty where it is no token's.
    warnings
        What must be told with it.
    """

    vector: Vector = field(repr=False)
    label: str
    kind: str
    through: str
    targets: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


def unit(vector: Any, d: int, what: str) -> Vector:
    """A vector as a unit vector in float64.

    Raises
    ------
    OptionError
        It is no array of real numbers, has another shape than (d,), or is zero.
    NumericsError
        It is not finite.
    """
    try:
        found = np.asarray(vector)
        if found.ndim == 2 and 1 in found.shape:
            found = found.reshape(-1)
        # The kind of bfloat16 is V, as of raw bytes and of records, which are no numbers.
        real = found.dtype.kind in "fiuV" and found.dtype.type is not np.void
        wide = found.astype(np.float64) if real else None
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"{what} is no array of numbers ({inert(str(error))[:80]}): a direction is one real "
            f"vector of {d} numbers, saved as float32 or float64"
        ) from error
    if found.ndim != 1 or wide is None:
        raise OptionError(
            f"{what} has shape {found.shape} and dtype {found.dtype}: a direction is one real "
            f"vector of {d} numbers"
        )
    if len(found) != d:
        raise OptionError(
            f"{what} has {len(found)} numbers, the residual stream of this model has {d}: it "
            "belongs to another model"
        )
    if not np.isfinite(wide).all():
        bad = int(np.count_nonzero(~np.isfinite(wide)))
        raise NumericsError(f"{what} holds NaN or infinity ({bad} of {d} numbers)")
    largest = float(np.abs(wide).max())
    if largest == 0:
        raise OptionError(f"{what} is zero: it has no direction")
    wide = wide / largest  # squares of very large numbers would overflow
    return np.asarray(wide / np.linalg.norm(wide))


# -- texts ---------------------------------------------------------------------------------------


def of_contrast(
    stage: Stage,
    positive: Sequence[Sequence[int]],
    negative: Sequence[Sequence[int]],
    names: tuple[str, str],
) -> Direction:
    """Mean state of one set of texts less that of another, at the output of the stage's block.

    Over all tokens but the first of each prompt (of a prompt with one token, that one).

    Raises
    ------
    OptionError
        The two means are equal.
    """
    d = stage.place.plan.geometry.d_model
    means = [_mean_state(stage, prompts) for prompts in (positive, negative)]
    a, b = (inert(Path(name).name)[:30] for name in names)
    return Direction(
        unit(means[0] - means[1], d, "the difference of the two texts' mean states"),
        f"contrast {a} - {b}",
        "contrast",
        f"mean difference after {stage.place.label}",
    )


def _mean_state(stage: Stage, prompts: Sequence[Sequence[int]]) -> Vector:
    session = stage.session
    found = []
    for batch in make_batches(session, prompts):
        seen: list[Any] = []

        def keep(module: Any, args: Any, result: Any, seen: list[Any] = seen) -> None:
            seen.append(result if session.torch.is_tensor(result) else result[0])

        with hooked([on_leave(stage.place.block, keep)]):
            forward(session, batch.inputs, batch.advice)
        order = np.cumsum(batch.mask, axis=1)
        alone = batch.mask.sum(axis=1, keepdims=True) == 1
        found.append(batch.flat(seen[-1], batch.mask & ((order > 1) | alone)))
    return np.asarray(np.concatenate(found).astype(np.float64).mean(axis=0))


# -- another layer -------------------------------------------------------------------------------


def of_layer(checkpoint: Checkpoint, stack: str, layer: int, d: int) -> Direction:
    """The leading right eigenvector of another layer's F.

    The sign of an eigenvector is a convention: its largest entry is positive. Of a complex pair the
    real part of the eigenvector, which lies in the plane that the pair turns in, is taken, with a
    warning.

    Raises
    ------
    OptionError
        No such layer, or its kernel leads.
    """
    known = [p.layer for p in checkpoint.plans if p.stack == stack and p.kind == "self"]
    known = known or [c.layer for c in checkpoint.arrays]
    at = known[layer_index(known, layer, checkpoint.source_label)]
    circuits = checkpoint.circuits(stack=stack, layers=[at])
    found = analyse(next(c for c in circuits if c.kind == "self"), SpectrumOptions(k=2))
    if found.target == "kernel":
        raise OptionError(f"{found.name}: its kernel leads, so that it has no leading direction")
    vector: Complex[np.ndarray, "d"] = found.right_vectors[:, 0]
    warnings = []
    if found.target == "plane":
        warnings.append(
            f"{found.name} is led by a complex pair, so by a plane: the direction is the real part "
            "of its eigenvector, one direction of that plane"
        )
    elif found.target == "span":
        warnings.append(f"{found.name}: its leaders are tied, so that its direction is uncertain")
    return Direction(
        unit(vector.real, d, f"the eigenvector of {found.name}"),
        f"v1 of {found.name}",
        "layer",
        "leading right eigenvector, its largest entry positive",
        (),
        tuple(warnings),
    )


# -- what it says --------------------------------------------------------------------------------


def says(checkpoint: Checkpoint, vector: Vector) -> tuple[str, ...]:
    """The tokens that a direction stands for most, through the unembedding; empty if not known.

    A masked-language head that is not linear has no such reading.
    """
    try:
        readout = checkpoint.readout
        if readout.roles.get("mode", "raw") == "raw":
            return ()
        scores = readout.write_logits(vector)
        texts = checkpoint.source.tokens() if checkpoint.source is not None else ()
    except EigenlensError:  # no vocabulary, or no matrix that reads the stream
        return ()
    scores = scores[: len(texts)]
    order = np.argsort(-scores, kind="stable")[:_SHOWN]
    return tuple(texts[int(i)] for i in order)


def names_of(tokenizer: Tokenizer | None, checkpoint: Checkpoint) -> Callable[[int], str]:
    """Text of a token id, for display."""

    def name(i: int) -> str:
        if tokenizer is not None and tokenizer.decode is not None:
            return tokenizer.decode([i])
        try:
            texts = checkpoint.source.tokens() if checkpoint.source is not None else ()
        except EigenlensError:  # no vocabulary
            return f"id {i}"
        return texts[i] if i < len(texts) else f"id {i}"

    return name
