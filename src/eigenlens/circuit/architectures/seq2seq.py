"""Encoder-decoders: three stacks (`encoder`, `decoder` self, `decoder` cross) a model type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    cross,
    each,
    named,
    several,
)
from eigenlens.circuit.architectures.decoder_patterns import llama
from eigenlens.circuit.architectures.encoders_bert import GLOBAL_VALUES
from eigenlens.circuit.architectures.sense_patterns import (
    conformer,
)
from eigenlens.circuit.architectures.seq2seq_patterns import bart, bart_stack, t5
from eigenlens.circuit.facts import Cases, Switch, flag
from eigenlens.circuit.rows import Architecture, Readout, Tower

GLOBAL_TOKENS = "global tokens, which no position holds, are read through the same W_V"
CUMULATIVE = (
    "queries that are not chosen take the running sum of the values (attention_type prob): rows "
    "of A do not sum to 1"
)
MEAN_VALUES = "queries that are not chosen take the mean of the values (attention_type prob)"
UNCHECKED = "it decodes units by the durations of characters: not checked, so not offered"
SHORTENED = "a convolution stands between the norm and the values, another before the residual"
CONCATENATED = "input and attention output are concatenated and projected (concat_after)"

_USE_BIAS = flag("use_bias", False)
_NO_READOUT = Readout(("shared",), unembedding=())


def _at(name: str) -> Mapping[str, tuple[str, ...]]:
    """Keys `name_attention_heads` and `name_layers`, beside one width for all."""
    return {
        "d_model": ("hidden_size",),
        "n_layers": (f"{name}_layers",),
        "n_heads": (f"{name}_attention_heads",),
    }


def _seamless(*, t2u_cross: bool) -> Architecture:
    """SeamlessM4T: text and speech encoders, a text decoder, and a model from text to units.

    The second version's decoder of units (post-norm, no cross attention) is refused.
    """
    after = {".self_attn.": ".cross_attention."}

    def stack(name: str, part: str, keys: str, *, causal: bool) -> Architecture:
        at = f"{part}.layers.{{layer}}."
        return bart_stack(name, at=at, before=True, keys=_at(keys), causal=causal)

    def beside(row: Architecture) -> Architecture:
        return replace(row, stacks=(cross(row, after),))

    encoder = stack("encoder", "text_encoder", "encoder", causal=False)
    speech = _at("speech_encoder")
    adapter = {**speech, "n_layers": ("num_adapter_layers",)}
    decoder = stack("decoder", "text_decoder", "decoder", causal=True)
    unchecked = Architecture((replace(encoder.stacks[0], name="units.decoder", refused=UNCHECKED),))
    units = stack("units.decoder", "t2u_model.model.decoder", "t2u_decoder", causal=True)
    return several(
        encoder,
        decoder,
        beside(decoder),
        conformer("speech", "speech_encoder.encoder.layers.{layer}.", keys=speech),
        conformer(
            "speech.adapter",
            "speech_encoder.adapter.layers.{layer}.",
            keys=adapter,
            exists=flag("add_adapter", True),
            normed=False,
            notes=(SHORTENED,),
        ),
        stack("units.encoder", "t2u_model.model.encoder", "t2u_encoder", causal=False),
        *((units, beside(units)) if t2u_cross else (unchecked,)),
        readout=Readout(("shared",)),
    )


def _sectioned(
    encoder: tuple[str, ...],
    decoder: tuple[str, ...],
    encoder_row: Architecture,
    decoder_row: Architecture,
    swaps: Mapping[str, str],
    **beside: Any,
) -> Architecture:
    """Encoder and decoder with a section of the config each; the cross stack is the decoder's."""
    first = replace(named(encoder_row, "encoder").stacks[0], config_path=encoder)
    second = replace(decoder_row.stacks[0], config_path=decoder)
    third = replace(cross(decoder_row, swaps, **beside), config_path=decoder)
    return Architecture((first, second, third), readout=decoder_row.readout)


_TROCR_CROSS: Mapping[str, Any] = {
    "d_model": ("d_model",),
    "d_in": Switch("cross_attention_hidden_size", False, ("cross_attention_hidden_size",), ()),
    "n_layers": ("decoder_layers",),
    "n_heads": ("decoder_attention_heads",),
}
_MUSICGEN = bart(
    before=True,
    value_bias=False,
    output_bias=False,
    decoder_keys={
        "d_model": ("hidden_size",),
        "n_layers": ("num_hidden_layers",),
        "n_heads": ("num_attention_heads",),
    },
    readout=Readout(("decoder.embed_tokens.0",), unembedding=()),
)


def _streaming() -> tuple[Architecture, ...]:
    """Moonshine over a stream: the encoder has a config of its own, gains of 1 + gamma."""
    encoder = llama(
        at="encoder.layers.{layer}.",
        norm_kind="layernorm",
        norm_bias=False,
        gain_offset=1.0,
        causal=False,
        gguf=False,
        config_path=("encoder_config",),
    )
    decoder = llama(
        at="decoder.layers.{layer}.",
        value_bias=ATTENTION_BIAS,
        output_bias=False,
        norm_kind="layernorm",
        norm_bias=False,
        gguf=False,
    )
    beside = cross(decoder, {".self_attn.": ".encoder_attn."})
    return named(encoder, "encoder"), decoder, replace(decoder, stacks=(beside,))


def _fastspeech(name: str) -> Architecture:
    """One of FastSpeech2Conformer's two encoders."""
    return conformer(
        name,
        f"{name}.conformer_layers.{{layer}}.",
        keys={
            "d_model": ("hidden_size",),
            "n_layers": (f"{name}_layers",),
            "n_heads": (f"{name}_num_attention_heads",),
        },
        before=None,
        placement=Switch(f"{name}_normalize_before", False, "pre", "post"),
        refused=Switch(f"{name}_concat_after", False, CONCATENATED, None),
    )


def _decoder(row: Architecture) -> Architecture:
    """The decoder's two stacks alone."""
    return replace(row, stacks=row.stacks[1:])


def _recogniser(section: tuple[str, ...], across: Mapping[str, Any]) -> Architecture:
    """A conformer with a decoder over it; `section` holds its sizes."""
    row = llama(
        at="decoder.layers.{layer}.",
        bias=ATTENTION_BIAS,
        norm_kind="layernorm",
        gguf=False,
        readout=Readout(("decoder.embed_tokens",), unembedding=("proj_out", "lm_head")),
    )
    beside = cross(row, {".self_attn.": ".encoder_attn."}, keys=across)
    return Architecture(
        tuple(replace(stack, config_path=section) for stack in (*row.stacks, beside)),
        readout=row.readout,
        towers=(Tower("encoder", ("encoder_config",), within=("encoder.",)),),
    )


_T5GEMMA: dict[str, Any] = {
    "before": "pre_self_attn_layernorm",
    "after": "post_self_attn_layernorm",
    "gain_offset": 1.0,
    "gguf": False,
}

SEQ2SEQ: Mapping[str, Architecture] = {
    # -- BART's names, a norm on the sum
    **each(bart(), "bart", "blenderbot-small", "plbart", "mvp", "fsmt", "marian"),
    "time_series_transformer": bart(readout=_NO_READOUT),
    "informer": bart(
        readout=_NO_READOUT,
        encoder={"notes": (Cases("attention_type", {"prob": MEAN_VALUES}, None),)},
        decoder={"refused": Cases("attention_type", {"prob": CUMULATIVE}, None)},
        beside={"refused": None},
    ),
    "led": bart(
        prefixes=("", "led."),
        encoder={
            "attention": "self_attn",
            "value": "longformer_self_attn.value",
            "output": "output",
            "notes": (GLOBAL_VALUES,),
        },
    ),
    "prophetnet": bart(
        value="value_proj",
        across="cross_attn",
        prefixes=("", "prophetnet."),
        readout=Readout(("word_embeddings",)),
        encoder_keys={
            "d_model": ("hidden_size",),
            "n_layers": ("num_encoder_layers",),
            "n_heads": ("num_encoder_attention_heads",),
        },
        decoder_keys={
            "d_model": ("hidden_size",),
            "n_layers": ("num_decoder_layers",),
            "n_heads": ("num_decoder_attention_heads",),
        },
    ),
    "speecht5": bart(
        prefixes=("", "speecht5."),
        encoder_at="encoder.wrapped_encoder.layers.{layer}.",
        decoder_at="decoder.wrapped_decoder.layers.{layer}.",
        encoder={"attention": "attention", "norm": "layer_norm"},
        encoder_keys={"d_model": ("hidden_size",)},
        decoder_keys={"d_model": ("hidden_size",)},
        readout=_NO_READOUT,
    ),
    # -- BART's names, a norm before
    **each(bart(before=True), "mbart", "pegasus", "m2m_100", "blenderbot"),
    **each(bart(before=True, readout=Readout(("decoder.embed_tokens",))), "whisper"),
    "speech_to_text": bart(before=True, readout=Readout(("decoder.embed_tokens",))),
    "nllb-moe": bart(before=True, across="cross_attention"),
    "pegasus_x": bart(
        before=True, value_bias=False, output_bias=False, encoder={"notes": (GLOBAL_TOKENS,)}
    ),
    "bigbird_pegasus": bart(
        before=True,
        value_bias=_USE_BIAS,
        output_bias=_USE_BIAS,
        encoder={"value": "self.value", "output": "output"},
    ),
    "seamless_m4t": _seamless(t2u_cross=True),
    "seamless_m4t_v2": _seamless(t2u_cross=False),
    "moonshine": bart(
        before=True,
        output="o_proj",
        norm="input_layernorm",
        norm_bias=False,
        plain=False,
        value_bias=ATTENTION_BIAS,
        output_bias=False,
        encoder_keys={
            "d_model": ("hidden_size",),
            "n_layers": ("encoder_num_hidden_layers",),
            "n_heads": ("encoder_num_attention_heads",),
            "n_kv_heads": ("encoder_num_key_value_heads",),
        },
        decoder_keys={
            "d_model": ("hidden_size",),
            "n_layers": ("decoder_num_hidden_layers",),
            "n_heads": ("decoder_num_attention_heads",),
            "n_kv_heads": ("decoder_num_key_value_heads",),
        },
        readout=Readout(("decoder.embed_tokens",), unembedding=("proj_out",)),
    ),
    "trocr": _decoder(
        bart(beside={"keys": _TROCR_CROSS}, readout=Readout(("decoder.embed_tokens",)))
    ),
    "musicgen_decoder": _decoder(_MUSICGEN),
    "musicgen_melody_decoder": replace(_MUSICGEN, stacks=_MUSICGEN.stacks[1:2]),
    "clvp_decoder": bart_stack(
        "decoder",
        at="decoder.layers.{layer}.",
        attention="attn",
        norm="input_layernorm",
        before=True,
        value_bias=flag("use_attention_bias", True),
    ),
    "fastspeech2_conformer": several(_fastspeech("encoder"), _fastspeech("decoder")),
    "moonshine_streaming": several(
        *_streaming(), readout=Readout(("decoder.embed_tokens",), unembedding=("proj_out",))
    ),
    "canary": _recogniser(("decoder_config",), {"d_in": ("/encoder_config.hidden_size",)}),
    "cohere_asr": _recogniser((), {}),
    # -- T5's names
    **each(t5(), "t5", "mt5", "umt5", "switch_transformers", "udop", "pop2piano"),
    "longt5": t5(
        also=("LocalSelfAttention", "TransientGlobalSelfAttention"),
        encoder={
            "notes": (Cases("encoder_attention_type", {"transient-global": GLOBAL_TOKENS}, None),)
        },
    ),
    # -- encoder and decoder have a config of their own
    "t5gemma": _sectioned(
        ("encoder",),
        ("decoder",),
        llama(at="encoder.layers.{layer}.", causal=False, **_T5GEMMA),
        llama(at="decoder.layers.{layer}.", **_T5GEMMA),
        {".self_attn.": ".cross_attn.", "_self_attn_": "_cross_attn_"},
        keys={"d_in": ("/encoder.hidden_size",)},
    ),
    "dia": _sectioned(
        ("encoder_config",),
        ("decoder_config",),
        llama(
            at="encoder.layers.{layer}.",
            attention="self_attention",
            before="pre_sa_norm",
            bias=False,
            causal=False,
            gguf=False,
        ),
        llama(
            at="decoder.layers.{layer}.",
            attention="self_attention",
            before="pre_sa_norm",
            bias=False,
            gguf=False,
        ),
        {".self_attention.": ".cross_attention."},
        keys={
            "d_in": ("cross_hidden_size",),
            "n_heads": ("cross_num_attention_heads",),
            "n_kv_heads": ("cross_num_key_value_heads",),
            "head_dim": ("cross_head_dim",),
        },
    ),
}
