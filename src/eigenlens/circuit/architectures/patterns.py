"""The ways in which models name and fuse V and O: builders that one line of a table calls.

A builder returns an `Architecture`; every keyword that it does not know goes to the `Stack`
(`placement=`, `causal=`, `layout=`, `notes=`, ...). What several model types share goes in here,
what one deviates in stands in its line. Names are written without the prefix (`model.`): any
prefix is found, the usual ones win where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.rows import (
    PLAIN_HEADS,
    Architecture,
    Factor,
    Naming,
    Readout,
    Rule,
    Stack,
    Switch,
    Tower,
    flag,
)

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
    also
        Other namings of the same tensors.
    plain
        Whether the model knows neither n_kv_heads nor head_dim.
    readout
        Where tokens enter and leave.
    stack
        Any field of `Stack`.
    """
    naming = Naming(value, output, before, after, prefixes, scale=scale, value_bias=value_bias_name)
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


# -- vision and audio ---------------------------------------------------------------------------


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
        f"{at}attention.attention.value",
        f"{at}attention.output.dense",
        f"{at}{before}",
        prefixes=("", *prefixes),
        scale=scale and f"{at}{scale}",
        value_bias_name=value_bias_name and f"{at}{value_bias_name}",
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
        f"{at}attention.v_proj",
        f"{at}attention.out_proj",
        f"{at}{norm}",
        f"{at}{norm}",
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


# -- models of several towers -------------------------------------------------------------------

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
MINICPM_SCALE = (Factor("scale_depth"), Factor("num_hidden_layers", -0.5))
