"""Which stored tensor an edit changes, and the edited tensor: added in fp32, cast once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import check_finite
from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.layouts import Orientation, read_output
from eigenlens.circuit.plans import LayerPlan, StackPlan
from eigenlens.errors import NumericsError, OptionError, ShapeError
from eigenlens.inert import inert
from eigenlens.steering.edit import SITES, Edit
from eigenlens.steering.feedforward import feed_forward

EDITABLE: Mapping[str, str] = {"F64": "float64", "F32": "float32", "F16": "float16"} | {
    "BF16": "bfloat16"
}
"""Stored types that an edit can be added to, and what users call them."""

VANISHED = 0.05
"""Below this share of the edit (its projection) it counts as lost in the rounding."""
FAINT = 0.9
"""Below this share it is worth a warning."""
_BLOCK = 1 << 20  # entries widened at a time


@dataclass(frozen=True)
class Realised:
    """What of an edit is left after the cast to the stored type.

    Attributes
    ----------
    ratio
        ``|cast(W + D) - W| / |D|``; 1 for an edit of strength 0. Rounding scatters, so it may be
        far from 1 where `projection` is near it.
    projection
        ``<cast(W + D) - W, D> / |D|^2``: the share of the edit itself that arrived.
    changed
        How many entries have other bits.
    """

    ratio: float
    projection: float
    changed: int


@dataclass(frozen=True)
class Target:
    """One stored output matrix.

    Attributes
    ----------
    plan
        The attention layer's plan.
    tensor
        Name of the weight.
    orientation
        `linear` stores (d, m), `conv1d` (m, d).
    shape, dtype, where
        As stored; the name of the file.
    """

    plan: LayerPlan
    tensor: str
    orientation: Orientation
    shape: tuple[int, ...]
    dtype: str
    where: str

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(d, m): what the matrix writes, what it reads."""
        rows, columns = self.shape[0], prod(self.shape[1:])
        return (rows, columns) if self.orientation == "linear" else (columns, rows)

    @property
    def label(self) -> str:
        """`decoder layer 3`, for messages."""
        cross = "cross-attention " if self.plan.kind == "cross" else ""
        return f"{inert(self.plan.stack)} {cross}layer {self.plan.layer}"

    def view(self, stored: Float[np.ndarray, "..."]) -> Float[np.ndarray, "d m"]:
        """The stored tensor as (d, m), sharing its memory."""
        return read_output(self.orientation, stored.reshape(self.shape[0], -1))

    def edited(
        self, stored: Float[np.ndarray, "..."], edit: Edit
    ) -> tuple[Float[np.ndarray, "..."], Realised]:
        """The tensor with the edit added, in its shape and type, and what the cast left of it.

        The sum is taken in float32 (float64 for a float64 tensor) and rounded once, to nearest.
        Only a block of rows is wide at a time.

        Raises
        ------
        NumericsError
            The tensor is not finite, the edit vanishes in the rounding, or the sum overflows.
        """
        check_finite(inert(self.tensor), stored)
        new = np.empty_like(stored, order="C")
        before, after = self.view(stored), self.view(new)
        compute = np.dtype(np.float64 if stored.dtype.itemsize > 4 else np.float32)
        with np.errstate(over="ignore"):
            written = edit.strength * np.asarray(edit.written, dtype=np.float64)
        w = np.asarray(edit.w, dtype=np.float64)
        asked = got = along = 0.0
        changed = 0
        rows = max(1, _BLOCK // before.shape[1])
        for start in range(0, len(before), rows):
            at = slice(start, start + rows)
            with np.errstate(over="ignore", invalid="ignore"):
                D = np.outer(written[at], w)
                after[at] = (before[at].astype(compute) + D.astype(compute)).astype(stored.dtype)
            moved = after[at].astype(np.float64) - before[at].astype(np.float64)
            if not np.isfinite(moved).all():
                raise NumericsError(
                    f"tensor '{inert(self.tensor)}': the edit overflows {stored.dtype.name}, the "
                    f"type it is stored in (|dW| = {edit.dW_norm:.3g}): use a smaller strength, or "
                    "--as lora or delta"
                )
            asked += float(np.vdot(D, D))
            got += float(np.vdot(moved, moved))
            along += float(np.vdot(moved, D))
            changed += int(np.count_nonzero(moved))
        if edit.strength == 0.0:
            return new, Realised(1.0, 1.0, changed)
        none = asked == 0.0  # its squares are too small for a float64
        realised = Realised(
            0.0 if none else float(np.sqrt(got / asked)), 0.0 if none else along / asked, changed
        )
        if not changed or realised.projection < VANISHED:
            raise NumericsError(
                f"tensor '{inert(self.tensor)}': the edit vanishes in the rounding to "
                f"{stored.dtype.name} ({max(realised.projection, 0.0):.1%} of it arrives, |dW| = "
                f"{edit.dW_norm:.3g}): use a larger strength, or --as lora or delta, which keep it "
                "apart"
            )
        return new, realised


def locate(checkpoint: Checkpoint, stack: str, layer: int, kind: str, site: str) -> Target:
    """The output matrix of a layer; nothing is read.

    Parameters
    ----------
    checkpoint
        The files, or a live model opened as a checkpoint.
    stack, layer, kind
        As in `OVCircuit`.
    site
        `attention` or `ffn`.

    Raises
    ------
    OptionError
        No such layer, plain arrays, or a feed-forward part whose output matrix is not declared.
    """
    if site not in SITES:
        raise OptionError(f"site is {site!r}: allowed are {', '.join(SITES)}")
    if checkpoint.source is None:
        raise OptionError(
            f"{checkpoint.source_label}: plain arrays have no tensors to edit; give a model"
        )
    held, plan = _plan(checkpoint, stack, layer, kind)
    name, orientation = plan.output, plan.orientation
    store = checkpoint.source.store
    if site == "ffn":
        gguf = checkpoint.config.get("gguf") is True
        own = getattr(held.config, "model_type", None) or checkpoint.model_type
        name, orientation = feed_forward(own, stack, kind, name, store.names(), gguf=gguf)
    info = store.info(name)
    target = Target(plan, name, orientation, info.shape, info.dtype, info.where)
    if len(info.shape) < 2 or target.matrix_shape[0] != plan.geometry.d_model:
        raise ShapeError(
            f"tensor '{inert(name)}' has shape {info.shape}, which does not write the "
            f"{plan.geometry.d_model} coordinates of the residual stream: it cannot be edited"
        )
    return target


def find_target(checkpoint: Checkpoint, edit: Edit) -> Target:
    """The tensor of an edit, checked to fit it: model type, layer, d and m.

    Raises
    ------
    OptionError
        The edit belongs to another model type, or there is no such layer.
    ShapeError
        Its vectors do not fit the matrix.
    """
    # A GGUF file names the architecture its own way: there the sizes alone decide.
    stated = checkpoint.model_type
    if checkpoint.config.get("gguf") is not True and stated != edit.model_type:
        raise OptionError(
            f"the edit is for model_type '{inert(edit.model_type)}', {checkpoint.source_label} is "
            f"'{inert(str(stated))}': make the edit for this model"
        )
    target = locate(checkpoint, edit.stack, edit.layer, edit.kind, edit.site)
    d, m = target.matrix_shape
    if edit.written.shape != (d,) or edit.w.shape != (m,):
        raise ShapeError(
            f"the edit writes {len(edit.written)} and reads {len(edit.w)} coordinates, "
            f"'{inert(target.tensor)}' writes {d} and reads {m}: it belongs to another model"
        )
    return target


def sha256(array: Float[np.ndarray, "..."]) -> str:
    """SHA-256 of an array's bytes, as they are stored."""
    contiguous: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(contiguous.data).hexdigest()


def _plan(checkpoint: Checkpoint, stack: str, layer: int, kind: str) -> tuple[StackPlan, LayerPlan]:
    for held in checkpoint.stacks:
        for plan in held.layers:
            if (plan.stack, plan.layer, plan.kind) == (stack, layer, kind):
                return held, plan
    there = sorted({(p.stack, p.kind) for p in checkpoint.plans})
    layers = sorted({p.layer for p in checkpoint.plans if (p.stack, p.kind) == (stack, kind)})
    if not layers:
        known = ", ".join(f"{inert(s)} ({k})" for s, k in there)
        raise OptionError(
            f"{checkpoint.source_label} has no stack '{inert(stack)}' ({inert(kind)}): it has "
            f"{known}"
        )
    raise OptionError(
        f"{checkpoint.source_label} has no layer {layer} in {inert(stack)}: layers are "
        f"{layers[0]} to {layers[-1]}"
    )
