"""What builders of patterns are made of: rows of one stack, of several, of towers.

A builder returns an `Architecture`; every keyword that it does not know goes to the `Stack`
(`placement=`, `causal=`, `layout=`, `notes=`, ...). Names are written without the prefix
(`model.`): any prefix is found, the usual ones win where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.facts import Rule, Switch, flag
from eigenlens.circuit.rows import PLAIN_HEADS, Architecture, Naming, Readout, Stack, Tower

RESIDUAL_INSIDE = "the attention module's output contains the residual already; F does not"
NORM_ON_OUTPUT = "a norm follows the output projection, none precedes the values"
TO_HIDDEN = ("", "model.")
ATTENTION_BIAS = flag("attention_bias", False)


def clamped(key: str = "clip_qkv") -> Switch[str | None]:
    """What to say of values that are clamped where the config has a number at `key`."""
    text = f"the values are clamped to +-{key}: F holds where none of them reaches it"
    return Switch(key, False, text, None)


def each(architecture: Architecture, *model_types: str) -> dict[str, Architecture]:
    """The same row for several model types."""
    return dict.fromkeys(model_types, architecture)


def one(
    name: str,
    value: str,
    output: str,
    before: Rule[str | None] = None,
    after: str | None = None,
    *,
    at: str = "",
    prefixes: tuple[str, ...] = ("",),
    scale: str | None = None,
    value_bias_name: str | None = None,
    also: tuple[Naming, ...] = (),
    plain: bool = True,
    readout: Readout | None = None,
    **stack: Any,
) -> Architecture:
    """An architecture of one stack with one naming; the base of the other patterns.

    Parameters
    ----------
    name
        The stack.
    value, output, before, after, prefixes, scale, value_bias_name
        See `Naming`.
    at
        What all of these names begin with, ``layers.{layer}.``; a rule in place of `before` is of
        whole names.
    also
        Other namings of the same tensors, whole.
    plain
        Whether the model knows neither n_kv_heads nor head_dim.
    readout
        Where tokens enter and leave.
    stack
        Any field of `Stack`.
    """
    naming = Naming(
        f"{at}{value}",
        f"{at}{output}",
        f"{at}{before}" if isinstance(before, str) else before,
        after and f"{at}{after}",
        prefixes,
        scale=scale and f"{at}{scale}",
        value_bias=value_bias_name and f"{at}{value_bias_name}",
    )
    fields: dict[str, Any] = {"placement": "pre" if after is None else "post"}
    if before is not None and after is not None:
        fields["placement"] = "sandwich"
    made = Stack(name, (naming, *also), **{**fields, **stack})
    return Architecture((made,), PLAIN_HEADS if plain else {}, readout)


def several(*parts: Architecture, readout: Readout | None = None) -> Architecture:
    """The stacks of several rows as one model's; size keys of each part stay with its stacks."""
    stacks = [
        replace(stack, keys={**part.keys, **stack.keys}) for part in parts for stack in part.stacks
    ]
    return Architecture(tuple(stacks), readout=readout or parts[0].readout)


def named(row: Architecture, name: str) -> Architecture:
    """The same row with another name for its stacks."""
    return replace(row, stacks=tuple(replace(stack, name=name) for stack in row.stacks))


def of(row: Architecture, **stack: Any) -> Architecture:
    """The same row with other fields of its stacks."""
    return replace(row, stacks=tuple(replace(s, **stack) for s in row.stacks))


def cross(row: Architecture, swaps: Mapping[str, str], **stack: Any) -> Stack:
    """The cross stack beside a row's self stack: the same names with parts exchanged.

    `swaps` maps old to new parts of names (`{".self_attn.": ".encoder_attn."}`). A norm before
    the block is dropped: it feeds the queries, the values read the other stack's states.
    """

    def swapped(name: str | None) -> str | None:
        for old, new in swaps.items():
            name = name and name.replace(old, new)
        return name

    first = row.stacks[0]
    namings = tuple(
        replace(
            n,
            value=swapped(n.value) or "",
            output=swapped(n.output) or "",
            norm_before=None,
            norm_after=swapped(n.norm_after),
        )
        for n in first.namings
    )
    fields: dict[str, Any] = {"namings": namings, "kind": "cross", "causal": False}
    return replace(first, **{**fields, **stack})


LANGUAGE = ("language_model.", "text_model.")
VISION = ("vision_tower.", "visual.", "vision_model.", "vision_backbone.", "image_encoder.")
AUDIO = ("audio_tower.", "audio_model.", "audio_encoder.")


def towers(*parts: Tower) -> Architecture:
    """A model whose parts are models of their own, each by the row of its section's model_type."""
    return Architecture(towers=parts)


def text_tower(
    path: str = "text_config", model_type: str | None = None, within: tuple[str, ...] = ()
) -> Tower:
    """The language model of a composite; its tokens are the composite's.

    Without `within` it is whatever the other towers are not.
    """
    return Tower("text", (path,), within, model_type, readout=True)


def vision_tower(
    path: str = "vision_config", model_type: str | None = None, within: tuple[str, ...] = VISION
) -> Tower:
    """The image encoder of a composite."""
    return Tower("vision", (path,), within, model_type)


def audio_tower(
    path: str = "audio_config", model_type: str | None = None, within: tuple[str, ...] = AUDIO
) -> Tower:
    """The sound encoder of a composite."""
    return Tower("audio", (path,), within, model_type)


GRANITE_SCALE = "residual_multiplier"
