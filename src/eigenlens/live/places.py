"""Where a layer's states can be read in a running model, found from its structure alone.

From the names of the two projections follow the attention module (the smallest that holds both) and
the block (what the naming scheme counts layers with); from the placement, where the residual state
enters and where the attention output joins it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.plans import LayerPlan, StackPlan
from eigenlens.errors import ArchitectureError
from eigenlens.inert import inert

Key = tuple[str, int, str]


@dataclass(frozen=True)
class Place:
    """The modules around one attention layer.

    Attributes
    ----------
    plan
        Its plan; names are those of the running model.
    value, output
        The projections; the value projection's input is what F acts on.
    attention
        The smallest module that holds both; in BERT it also holds residual and norm.
    block
        Attention, feed-forward part and norms: what the model has n_layers of.
    norm_in, norm_out
        The norms of the placement, or None.
    """

    plan: LayerPlan
    value: Any = field(repr=False)
    output: Any = field(repr=False)
    attention: Any = field(repr=False)
    block: Any = field(repr=False)
    norm_in: Any = field(repr=False)
    norm_out: Any = field(repr=False)

    @property
    def key(self) -> Key:
        """Stack, layer, kind."""
        return self.plan.stack, self.plan.layer, self.plan.kind

    @property
    def label(self) -> str:
        """`encoder layer 3`, for messages."""
        cross = "cross-attention " if self.plan.kind == "cross" else ""
        return f"{inert(self.plan.stack)} {cross}layer {self.plan.layer}"

    @property
    def post(self) -> bool:
        """Whether the norm stands on the residual sum."""
        return self.plan.placement == "post"


def find_places(model: Any, checkpoint: Checkpoint) -> list[Place]:
    """The places of every layer of a running model.

    Parameters
    ----------
    model
        A `PreTrainedModel`.
    checkpoint
        The same model opened as a checkpoint (`open_checkpoint(model)`).

    Raises
    ------
    ArchitectureError
        If the model has no attention layer, or a module is not where its name says.
    """
    places = [_place(model, stack, plan) for stack in checkpoint.stacks for plan in stack.layers]
    if not places:
        raise ArchitectureError(
            f"{checkpoint.source_label}: has no layer with softmax attention: there is nothing to "
            "trace"
        )
    return places


def _place(model: Any, stack: StackPlan, plan: LayerPlan) -> Place:
    value, output = owner(plan.value), owner(plan.output)
    attention = common(value, output)
    return Place(
        plan=plan,
        value=_module(model, plan, value),
        output=_module(model, plan, output),
        attention=_module(model, plan, attention),
        block=_module(model, plan, block_name(stack, plan, attention)),
        norm_in=plan.norm_in and _module(model, plan, plan.norm_in.module),
        norm_out=plan.norm_out and _module(model, plan, plan.norm_out.module),
    )


def owner(parameter: str) -> str:
    """The module that a parameter belongs to."""
    return parameter.rpartition(".")[0]


def common(a: str, b: str) -> str:
    """The smallest module that holds two modules; the outer one if one holds the other."""
    shared = []
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if x != y:
            break
        shared.append(x)
    return ".".join(shared)


def block_name(stack: StackPlan, plan: LayerPlan, attention: str) -> str:
    """The module that the naming scheme counts: up to the last part of the name with a number."""
    template = stack.naming.value.removeprefix("=").split(".")
    counted = [i for i, part in enumerate(template) if "{" in part]
    if not counted:
        return owner(attention)
    start = len([part for part in stack.prefix.split(".") if part])
    return ".".join(plan.value.split(".")[: start + counted[-1] + 1])


def _module(model: Any, plan: LayerPlan, name: str) -> Any:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise ArchitectureError(
            f"{plan.stack} layer {plan.layer}: the running model has no module '{inert(name)}': it "
            "is not the model of these weights"
        ) from error
