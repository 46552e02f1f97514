"""What is captured: the states around one attention call, and checks on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from eigenlens.errors import NumericsError
from eigenlens.live.batches import Batch
from eigenlens.live.places import Place
from eigenlens.live.precision import dtype_name
from eigenlens.live.recipe import Recipe


@dataclass(frozen=True)
class AttentionCall:
    """One call of one attention layer. All states are (b, n, d) tensors of the model's dtype.

    Attributes
    ----------
    place, step
        Which layer; which attention call of its stack in the pass (ALBERT: 0 to n_layers - 1).
    before
        Residual state that the attention output is added to.
    attention
        What is added: the output projection's output times the output scale; behind its own norm
        in sandwich blocks.
    after
        `before + attention`. In post-norm models this is what enters the norm.
    settled
        The state that the model goes on with: `after` behind the norm in post-norm models, else
        `after` itself.
    block
        State after the whole block, feed-forward part included.
    values
        What enters the value projection (F acts on it).
    weights
        A, (b, n_heads, n, n), where asked for.
    norm
        The norm between `before` and the attention, or None.
    recipe, block_recipe
        How to call the attention module and the block on other states.
    """

    place: Place = field(repr=False)
    step: int
    before: Any = field(repr=False)
    attention: Any = field(repr=False)
    after: Any = field(repr=False)
    settled: Any = field(repr=False)
    block: Any = field(repr=False)
    values: Any = field(repr=False)
    weights: Any = field(repr=False)
    norm: Any = field(repr=False)
    recipe: Recipe = field(repr=False)
    block_recipe: Recipe = field(repr=False)

    @property
    def label(self) -> str:
        """`encoder layer 3 (step 5)`, for messages."""
        shared = f" (step {self.step})" if self.place.plan.steps > 1 else ""
        return f"{self.place.label}{shared}"


@dataclass(frozen=True)
class Captured:
    """What one batch showed.

    Attributes
    ----------
    batch
        The prompts.
    calls
        Attention calls in the order in which they ran.
    unchecked
        Layers whose sum could be compared with nothing in the model.
    """

    batch: Batch
    calls: tuple[AttentionCall, ...] = field(repr=False)
    unchecked: tuple[str, ...] = ()

    def stack(self, name: str) -> tuple[AttentionCall, ...]:
        """The calls of one stack."""
        return tuple(call for call in self.calls if call.place.plan.stack == name)


def find_weights(torch: Any, result: Any, n_heads: int) -> Any | None:
    """The attention weights (b, n_heads, n, m) among a module's outputs, or None.

    Told from position biases of the same shape (T5) by their rows: not negative, with a sum above
    0 and at most 1.
    """
    for x in result if isinstance(result, tuple) else ():
        if torch.is_tensor(x) and x.ndim == 4 and x.shape[1] == n_heads:
            rows = x.detach().sum(dim=-1, dtype=torch.float32)
            if float(x.min()) >= 0 and float(rows.min()) > 0 and float(rows.max()) < 1.02:
                return x.detach()
    return None


def mask_for(mask: Any, states: Any) -> Any:
    """The mask of real tokens where it is one of these states; None (all count) elsewhere.

    In a composite model a batch's mask is that of its text; an image tower has no pads.
    """
    return mask if mask is not None and tuple(mask.shape) == tuple(states.shape[:2]) else None


def scaled(x: Any, scale: Any) -> Any:
    """An attention output times its output scale."""
    return x if isinstance(scale, float) and scale == 1.0 else x * scale


def total(torch: Any, call: AttentionCall) -> Any:
    """Sum of the states of one call, a tensor: finite only if all their entries are."""
    wide = torch.promote_types(call.before.dtype, torch.float32)
    return call.after.sum(dtype=wide) + call.block.sum(dtype=wide)


def check_finite(torch: Any, call: AttentionCall, mask: Any) -> None:
    """Check the states of one call, pads left out.

    Raises
    ------
    NumericsError
        Naming the layer, the first state that is not finite, and a dtype that helps.
    """
    if math.isfinite(float(total(torch, call))):  # quicker than looking at every entry
        return
    named = (
        ("the state before it", call.before),
        ("its attention output", call.attention),
        ("the state after it", call.after),
        ("the state behind its norm", call.settled),
        ("the state after the block", call.block),
    )
    for what, x in named:
        finite = torch.isfinite(x if mask is None else x[mask.to(x.device)])
        if bool(finite.all()):
            continue
        name = dtype_name(x)
        remedy = {
            "float16": "float16 ends at 65504: load the model with dtype float32 or bfloat16",
            "bfloat16": "load the model with dtype float32",
            "float32": "try dtype float64; if that fails too, the weights are damaged",
        }.get(name, "the weights are damaged or do not belong to this config")
        bad = int((~finite).sum())
        raise NumericsError(
            f"{call.label}: {what} has {bad} of {finite.numel()} entries that are NaN or infinite "
            f"in {name}: {remedy}"
        )
