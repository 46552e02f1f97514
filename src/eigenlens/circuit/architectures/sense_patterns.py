"""The ways in which encoders of images and sound name and fuse V and O; see `patterns`."""

from __future__ import annotations

from typing import Any

from eigenlens.circuit.architectures.bases import (
    one,
)
from eigenlens.circuit.architectures.seq2seq_patterns import bart_stack
from eigenlens.circuit.facts import Switch, flag
from eigenlens.circuit.rows import Architecture, Naming


def vit(
    *prefixes: str,
    at: str = "encoder.layer.{layer}.",
    new: str | None = "layers.{layer}.",
    before: str = "layernorm_before",
    scale: str | None = None,
    value_bias_name: str | None = None,
    **stack: Any,
) -> Architecture:
    """ViT's names, those of old files (`attention.attention.value`) and, if any, the new ones."""
    also = Naming(
        f"{new}attention.v_proj",
        f"{new}attention.o_proj",
        f"{new}{before}",
        prefixes=("", *prefixes),
        scale=scale and f"{new}{scale}",
    )
    return one(
        "vision",
        "attention.attention.value",
        "attention.output.dense",
        before,
        at=at,
        prefixes=("", *prefixes),
        scale=scale,
        value_bias_name=value_bias_name,
        also=() if new is None else (also,),
        **{"value_bias": flag("qkv_bias", True), "causal": False, **stack},
    )


def clip_stack(
    name: str,
    *,
    within: tuple[str, ...] = (),
    norm: str = "layer_norm1",
    **stack: Any,
) -> Architecture:
    """One encoder with CLIP's names: `encoder.layers.N.self_attn.out_proj`, pre-norm, biases."""
    return bart_stack(
        name,
        norm=norm,
        before=True,
        **{
            "at": "encoder.layers.{layer}.",
            "prefixes": ("", *within),
            "causal": name == "text",
            "within": within,
            **stack,
        },
    )


def conformer(name: str, at: str, **stack: Any) -> Architecture:
    """A speech encoder whose projections are called `linear_v` and `linear_out`; pre-norm."""
    fields: dict[str, Any] = {"before": True, "causal": False, **stack}
    return bart_stack(name, at=at, value="linear_v", output="linear_out", **fields)


def wav2vec2(
    *prefixes: str,
    at: str = "encoder.layers.{layer}.",
    norm: str = "layer_norm",
    **stack: Any,
) -> Architecture:
    """wav2vec 2.0's names; the norm stands before the block with `do_stable_layer_norm`."""
    rule = Switch("do_stable_layer_norm", False, "pre", "post")
    return one(
        "audio",
        "attention.v_proj",
        "attention.out_proj",
        norm,
        norm,
        at=at,
        prefixes=("", *prefixes),
        **{"placement": rule, "causal": False, **stack},
    )


def in_proj(
    name: str,
    at: str,
    before: str | None = None,
    after: str | None = None,
    **stack: Any,
) -> Architecture:
    """`torch.nn.MultiheadAttention` at `at`: `in_proj_weight` stacked `[q; k; v]`, `out_proj`."""
    fields: dict[str, Any] = {"layout": "stacked", **stack}
    return one(name, f"{at}in_proj_weight", f"{at}out_proj", before, after, **fields)
