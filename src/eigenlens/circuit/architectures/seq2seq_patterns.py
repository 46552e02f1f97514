"""How models of an encoder and a decoder name V and O: fairseq's and T5's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    cross,
    one,
    several,
)
from eigenlens.circuit.facts import Rule, Switch, flag
from eigenlens.circuit.rows import Architecture, Naming, Readout


def bart_stack(
    name: str,
    *,
    at: str = "layers.{layer}.",
    attention: str = "self_attn",
    value: str = "v_proj",
    output: str = "out_proj",
    norm: str = "self_attn_layer_norm",
    before: bool | None = False,
    prefixes: tuple[str, ...] = ("", "model."),
    **stack: Any,
) -> Architecture:
    """One stack with fairseq's names: `self_attn.v_proj`, `self_attn.out_proj`.

    `before`: whether the norm stands before the values; None where a `placement` rule decides.
    """
    return one(
        name,
        f"{attention}.{value}",
        f"{attention}.{output}",
        norm if before is not False else None,
        norm if before is not True else None,
        at=at,
        prefixes=prefixes,
        **stack,
    )


def opt(**stack: Any) -> Architecture:
    """A decoder with fairseq's names whose norm stands before or after by the config."""
    fields: dict[str, Any] = {
        "placement": Switch("do_layer_norm_before", True, "pre", "post"),
        "norm_affine": flag("layer_norm_elementwise_affine", True),
        "value_bias": flag("enable_bias", True),
        "output_bias": flag("enable_bias", True),
    }
    return one(
        "decoder",
        "self_attn.v_proj",
        "self_attn.out_proj",
        "self_attn_layer_norm",
        "self_attn_layer_norm",
        at="layers.{layer}.",
        prefixes=("decoder.", "model.decoder."),
        readout=Readout(
            ("embed_tokens",),
            embedding_map=("project_in",),
            unembedding_map=("project_out",),
            final_norm=("final_layer_norm",),
            has_final_norm=Switch("_remove_final_layer_norm", False, False, True),
        ),
        **{**fields, **stack},
    )


def bart(
    *,
    before: bool = False,
    across: str = "encoder_attn",
    prefixes: tuple[str, ...] = ("", "model."),
    readout: Readout | None = None,
    encoder_at: str = "encoder.layers.{layer}.",
    decoder_at: str = "decoder.layers.{layer}.",
    encoder: Mapping[str, Any] | None = None,
    decoder: Mapping[str, Any] | None = None,
    beside: Mapping[str, Any] | None = None,
    encoder_keys: Mapping[str, Rule[tuple[str, ...]]] | None = None,
    decoder_keys: Mapping[str, Rule[tuple[str, ...]]] | None = None,
    **both: Any,
) -> Architecture:
    """BART's three stacks: `encoder`, `decoder` (self) and `decoder` (cross, `encoder_attn`).

    Parameters
    ----------
    before
        Pre-norm (mBART, Pegasus, M2M100).
    across
        What the cross attention is called.
    prefixes, readout
        See `one`.
    encoder_at, decoder_at, encoder_keys, decoder_keys
        Where the layers are, and the keys of the sizes.
    encoder, decoder, beside
        Keywords of one stack alone; `beside` is the cross stack.
    both
        Keywords of all stacks.
    """
    encoder_sizes = {
        "d_model": ("d_model",),
        "n_layers": ("encoder_layers",),
        "n_heads": ("encoder_attention_heads",),
        **(encoder_keys or {}),
    }
    decoder_sizes = {
        "d_model": ("d_model",),
        "n_layers": ("decoder_layers",),
        "n_heads": ("decoder_attention_heads",),
        **(decoder_keys or {}),
    }
    common: dict[str, Any] = {"before": before, "prefixes": prefixes, **both}
    first = bart_stack(
        "encoder",
        **{"at": encoder_at, "causal": False, "keys": encoder_sizes, **common, **(encoder or {})},
    )
    second = bart_stack(
        "decoder", **{"at": decoder_at, "keys": decoder_sizes, **common, **(decoder or {})}
    )
    swaps = {".self_attn.": f".{across}.", ".self_attn_layer_norm": f".{across}_layer_norm"}
    third = replace(second, stacks=(cross(second, swaps, **(beside or {})),))
    return several(first, second, third, readout=readout or Readout(("shared",)))


def t5(
    *,
    readout: Readout | None = None,
    encoder: Mapping[str, Any] | None = None,
    also: tuple[str, ...] = (),
    **both: Any,
) -> Architecture:
    """T5's three stacks: `layer.0.SelfAttention.v`, `layer.1.EncDecAttention.v`; RMS norms.

    `encoder` are keywords of the encoder alone, `also` other names of its attention.
    """
    sizes: dict[str, Any] = {
        "d_model": ("d_model",),
        "n_layers": ("num_layers",),
        "n_heads": ("num_heads",),
        "head_dim": ("d_kv",),
        "n_kv_heads": (),
    }
    deep = Switch("num_decoder_layers", False, ("num_decoder_layers",), ("num_layers",))
    decoder_sizes = {**sizes, "n_layers": deep}

    def stack(name: str, i: int, module: str, **more: Any) -> Architecture:
        fields: dict[str, Any] = {
            "norm_kind": "rmsnorm",
            "value_bias": False,
            "output_bias": False,
            "keys": sizes,
        }
        return one(
            name,
            f"{module}.v",
            f"{module}.o",
            None if more.get("kind") == "cross" else "layer_norm",
            at=f"{name}.block.{{layer}}.layer.{i}.",
            plain=False,
            **{**fields, **more, **both},
        )

    names = tuple(
        Naming(f"{at}.v", f"{at}.o", "encoder.block.{layer}.layer.0.layer_norm")
        for at in (f"encoder.block.{{layer}}.layer.0.{other}" for other in also)
    )
    return several(
        stack("encoder", 0, "SelfAttention", causal=False, also=names, **(encoder or {})),
        stack("decoder", 0, "SelfAttention", keys=decoder_sizes),
        stack("decoder", 1, "EncDecAttention", kind="cross", causal=False, keys=decoder_sizes),
        readout=readout or Readout(("shared",)),
    )
