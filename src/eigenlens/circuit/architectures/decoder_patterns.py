"""How decoders name and fuse V and O: the names of Llama, GPT-2 and GPT-NeoX, a line a type."""

from __future__ import annotations

from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    NORM_ON_OUTPUT,
    TO_HIDDEN,
    one,
)
from eigenlens.circuit.facts import Rule, Switch, flag
from eigenlens.circuit.rows import Architecture, Naming, Readout

WTE = Readout(("wte",), final_norm=("ln_f",))


def llama_readout(*, tied: bool = False, norm: str = "norm") -> Readout:
    """Embedding, final norm and head under the names of Llama and of GGUF."""
    return Readout(
        ("embed_tokens", "token_embd"),
        unembedding=("lm_head", "output"),
        tied=flag("tie_word_embeddings", tied),
        final_norm=(norm, "output_norm"),
    )


def llama(
    *,
    bias: Rule[bool] | None = None,
    tied: bool = False,
    at: str = "layers.{layer}.",
    attention: str = "self_attn",
    value: str | None = None,
    output: str = "o_proj",
    before: str | None = "input_layernorm",
    after: str | None = None,
    fused: bool = False,
    final_norm: str = "norm",
    readout: Readout | None = None,
    prefixes: tuple[str, ...] = TO_HIDDEN,
    gguf: bool = True,
    plain: bool = False,
    **stack: Any,
) -> Architecture:
    """Llama's names: `self_attn.v_proj`, `self_attn.o_proj`, `input_layernorm`; RMS norms, GQA.

    Parameters
    ----------
    at, attention, value, output, before, prefixes
        Parts of the names, where they differ.
    bias
        Of both projections; by default what the config's `attention_bias` says. `value_bias` and
        `output_bias` set them apart.
    after
        Name of a norm on the attention output; with `before` that is a sandwich (Gemma 2), with
        `before=None` the norm stands on the output alone (OLMo 2).
    fused
        `qkv_proj` stacked `[q; k; v]` instead of `v_proj`.
    tied, final_norm, readout
        Where tokens leave.
    gguf
        Whether llama.cpp's names (`blk.N.attn_v`) are read as well.
    plain
        Whether the model knows neither n_kv_heads nor head_dim.
    stack
        Any field of `Stack`.
    """
    also = Naming(
        f"blk.{{layer}}.{'attn_qkv' if fused else 'attn_v'}",
        "blk.{layer}.attn_output",
        norm_before=None if before is None else "blk.{layer}.attn_norm",
        norm_after=None if after is None else "blk.{layer}.post_attention_norm",
        gain_offset=0.0,
        bias_if_present=True,
    )
    fields: dict[str, Any] = {
        "norm_kind": "rmsnorm",
        "value_bias": ATTENTION_BIAS if bias is None else bias,
        "output_bias": ATTENTION_BIAS if bias is None else bias,
        "layout": "stacked" if fused else "separate",
    }
    if after is not None:
        fields["placement"] = "sandwich"
        if before is None:
            fields["notes"] = (NORM_ON_OUTPUT,)
    return one(
        "decoder",
        f"{attention}.{value or ('qkv_proj' if fused else 'v_proj')}",
        f"{attention}.{output}",
        before,
        after,
        at=at,
        prefixes=prefixes,
        also=(also,) if gguf else (),
        plain=plain,
        readout=readout or llama_readout(tied=tied, norm=final_norm),
        **{**fields, **stack},
    )


def gemma(**options: Any) -> Architecture:
    """Llama's names with gains of 1 + w and tied embeddings."""
    two_ways = Switch("use_bidirectional_attention", False, False, True)
    return llama(**{"tied": True, "gain_offset": 1.0, "causal": two_ways, **options})


def gpt2(
    *,
    attention: str = "attn",
    value: str = "c_attn",
    output: str = "c_proj",
    before: str | None = "ln_1",
    after: str | None = None,
    at: str = "h.{layer}.",
    prefixes: tuple[str, ...] = ("", "transformer."),
    readout: Readout | None = None,
    **stack: Any,
) -> Architecture:
    """GPT-2's names under `h.N.`; by default fused and stored (in, out)."""
    fields: dict[str, Any] = {"layout": "stacked_conv1d", "output_orientation": "conv1d"}
    return one(
        "decoder",
        f"{attention}.{value}",
        f"{attention}.{output}",
        before,
        after,
        at=at,
        prefixes=prefixes,
        readout=readout or WTE,
        **{**fields, **stack},
    )


def gpt_neo(**options: Any) -> Architecture:
    """GPT-2's tree with separate projections stored (out, in)."""
    linear: dict[str, Any] = {"layout": "separate", "output_orientation": "linear"}
    return gpt2(**{**linear, "value": "v_proj", "output": "out_proj", **options})


def neox(
    *,
    at: str = "layers.{layer}.",
    attention: str = "attention",
    before: Rule[str | None] = "input_layernorm",
    prefixes: tuple[str, ...] = ("", "gpt_neox."),
    readout: Readout | None = None,
    **stack: Any,
) -> Architecture:
    """GPT-NeoX's names: `attention.query_key_value`, fused head by head, and `attention.dense`.

    Falcon and BLOOM have the same names elsewhere (`at="h.{layer}."`, `self_attention`). A rule in
    place of `before` gives whole names.
    """
    return one(
        "decoder",
        f"{attention}.query_key_value",
        f"{attention}.dense",
        before,
        at=at,
        prefixes=prefixes,
        readout=readout,
        **{"layout": "per_head", **stack},
    )
