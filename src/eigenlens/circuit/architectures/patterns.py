"""The ways in which text models name and fuse V and O: builders that one line of a table calls.

What several model types share goes in here, what one deviates in stands in its line; keywords are
those of the pattern or fields of `Stack` (see `bases`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    NORM_ON_OUTPUT,
    TO_HIDDEN,
    cross,
    one,
    several,
)
from eigenlens.circuit.rows import (
    Architecture,
    Naming,
    Readout,
    Rule,
    Switch,
    flag,
)

# -- text encoders ------------------------------------------------------------------------------


def bert(
    *prefixes: str,
    readout: Readout | None = None,
    at: str = "encoder.layer.{layer}.",
    name: str = "encoder",
    attention: str = "attention",
    value: str = "self.value",
    output: str = "output.dense",
    after: str = "output.LayerNorm",
    norm_inside: str | None = None,
    value_bias_name: str | None = None,
    **stack: Any,
) -> Architecture:
    """BERT's names: `attention.self.value`, `attention.output.dense`; post-norm, biases.

    `norm_inside`: the norm stands before the values, inside `attention` (`LayerNorm`), and
    `after` is left out unless a `placement` rule decides.
    `with_cross` adds the stack that `add_cross_attention` in the config makes.
    """
    here = f"{at}{attention}." if attention else at
    return one(
        name,
        f"{here}{value}",
        f"{here}{output}",
        norm_inside and f"{here}{norm_inside}",
        f"{here}{after}" if norm_inside is None or "placement" in stack else None,
        prefixes=("", *prefixes),
        value_bias_name=value_bias_name and f"{here}{value_bias_name}",
        readout=readout or BERT_READOUT,
        **{"causal": flag("is_decoder", False), **stack},
    )


def with_cross(row: Architecture, **stack: Any) -> Architecture:
    """A BERT that may be a decoder with cross attention, `crossattention` beside `attention`."""
    exists = Switch("is_decoder", False, flag("add_cross_attention", False), False)
    beside = cross(row, {".attention.": ".crossattention."}, exists=exists, **stack)
    return replace(row, stacks=(*row.stacks, beside))


BERT_READOUT = Readout(
    ("embeddings.word_embeddings",),
    unembedding=("cls.predictions.decoder",),
    head_dense="cls.predictions.transform.dense",
    head_norm="cls.predictions.transform.LayerNorm",
)
# Of pre-norm encoders whose head is more than a norm: the embedding alone.
WORDS = Readout(("embeddings.word_embeddings",), unembedding=())
ROBERTA_READOUT = Readout(
    ("embeddings.word_embeddings",),
    unembedding=("lm_head.decoder",),
    head_dense="lm_head.dense",
    head_norm="lm_head.layer_norm",
    activation="=gelu",
)


# -- decoders -----------------------------------------------------------------------------------

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
    here = f"{at}{attention}."
    before_name = before and f"{at}{before}"
    after_name = after and f"{at}{after}"
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
        here + (value or ("qkv_proj" if fused else "v_proj")),
        here + output,
        before_name,
        after_name,
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
        f"{at}{attention}.{value}",
        f"{at}{attention}.{output}",
        before and f"{at}{before}",
        after and f"{at}{after}",
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
        f"{at}{attention}.query_key_value",
        f"{at}{attention}.dense",
        f"{at}{before}" if isinstance(before, str) else before,
        prefixes=prefixes,
        readout=readout,
        **{"layout": "per_head", **stack},
    )


# -- seq2seq: encoder, decoder and cross stacks -------------------------------------------------


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
        f"{at}{attention}.{value}",
        f"{at}{attention}.{output}",
        f"{at}{norm}" if before is not False else None,
        f"{at}{norm}" if before is not True else None,
        prefixes=prefixes,
        **stack,
    )


def opt(**stack: Any) -> Architecture:
    """A decoder with fairseq's names whose norm stands before or after by the config."""
    at = "layers.{layer}."
    fields: dict[str, Any] = {
        "placement": Switch("do_layer_norm_before", True, "pre", "post"),
        "norm_affine": flag("layer_norm_elementwise_affine", True),
        "value_bias": flag("enable_bias", True),
        "output_bias": flag("enable_bias", True),
    }
    return one(
        "decoder",
        f"{at}self_attn.v_proj",
        f"{at}self_attn.out_proj",
        f"{at}self_attn_layer_norm",
        f"{at}self_attn_layer_norm",
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
        at = f"{name}.block.{{layer}}.layer.{i}."
        norm = None if more.get("kind") == "cross" else f"{at}layer_norm"
        fields: dict[str, Any] = {
            "norm_kind": "rmsnorm",
            "value_bias": False,
            "output_bias": False,
            "keys": sizes,
        }
        return one(
            name,
            f"{at}{module}.v",
            f"{at}{module}.o",
            norm,
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
