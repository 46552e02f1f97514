"""The ways in which image and video encoders name and fuse V and O; see `patterns`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    NORM_ON_OUTPUT,
    cross,
    one,
)
from eigenlens.circuit.architectures.encoder_patterns import bert
from eigenlens.circuit.architectures.seq2seq_patterns import bart
from eigenlens.circuit.facts import Rule, flag
from eigenlens.circuit.layouts import Geometry
from eigenlens.circuit.rows import Architecture, Naming, Stack
from eigenlens.circuit.slots import Slot, Slots
from eigenlens.circuit.stages import Stages

QKV_BIAS = flag("qkv_bias", True)
# Longer or shorter ways to write the same: what config keys such blocks count with.
DEPTH = {"n_layers": ("depth",), "n_heads": ("num_heads",)}


def blocks(
    at: str = "blocks.{layer}.",
    *prefixes: str,
    value: str = "attn.qkv",
    output: str = "attn.proj",
    before: str | None = "norm1",
    after: str | None = None,
    name: str = "vision",
    fused: bool = True,
    scale: str | None = None,
    **stack: Any,
) -> Architecture:
    """Names of timm: `blocks.N.attn.qkv` stacked `[q; k; v]`, `attn.proj`, `norm1` before."""
    return one(
        name,
        value,
        output,
        before,
        after,
        at=at,
        prefixes=("", *prefixes),
        scale=scale,
        **{"layout": "stacked" if fused else "separate", "causal": False, **stack},
    )


def attended(at: str, *prefixes: str, **options: Any) -> Architecture:
    """Blocks with `v_proj` and `o_proj` in `attention`, `layernorm_before`."""
    names = {"value": "attention.v_proj", "output": "attention.o_proj"}
    return blocks(
        at, *prefixes, **{**names, "before": "layernorm_before", "fused": False, **options}
    )


def dino(
    *prefixes: str,
    at: str = "encoder.layer.{layer}.",
    old: bool = True,
    also: tuple[Naming, ...] = (),
    **stack: Any,
) -> Architecture:
    """DINOv2's names, LayerScale in `layer_scale1.lambda1`; `old`: with the names before 2026."""
    earlier = Naming(
        f"{at}attention.attention.value",
        f"{at}attention.output.dense",
        f"{at}norm1",
        prefixes=("", *prefixes),
        scale=f"{at}layer_scale1.lambda1",
    )
    return one(
        "vision",
        "attention.v_proj",
        "attention.o_proj",
        "norm1",
        at=at,
        prefixes=("", *prefixes),
        scale="layer_scale1.lambda1",
        also=((earlier,) if old else ()) + also,
        **{"value_bias": QKV_BIAS, "causal": False, **stack},
    )


def timm(at: str, scale: str | None = None, *prefixes: str) -> Naming:
    """Names of timm beside others: fused where those are apart."""
    return Naming(
        f"{at}attn.qkv",
        f"{at}attn.proj",
        f"{at}norm1",
        prefixes=("", *prefixes),
        scale=scale and f"{at}{scale}",
        layout="stacked",
    )


def swin(
    *prefixes: str,
    at: str = "encoder.layers.{stage}.blocks.{block}.",
    old: bool = True,
    new: bool = False,
    on_output: bool = False,
    slots: Slots | None = None,
    **stack: Any,
) -> Architecture:
    """Swin's windows, stage by stage; `on_output`: the norm follows W_O (Swin 2)."""
    norm = f"{at}layernorm_before"
    earlier = Naming(
        f"{at}attention.self.value",
        f"{at}attention.output.dense",
        None if on_output else norm,
        norm if on_output else None,
        ("", *prefixes),
    )
    later = replace(earlier, value=f"{at}attention.v_proj", output=f"{at}attention.o_proj")
    namings = ((earlier,) if old else ()) + ((later,) if new else ())
    fields: dict[str, Any] = {
        "value_bias": QKV_BIAS,
        "causal": False,
        "slots": slots or Stages(width="embed_dim", heads="num_heads"),
        "placement": "sandwich" if on_output else "pre",
        "notes": (NORM_ON_OUTPUT,) if on_output else (),
    }
    first = namings[0]
    row = one("vision", first.value, first.output, **{**fields, **stack})
    return replace(row, stacks=(replace(row.stacks[0], namings=namings),))


def detr(
    *,
    output: str = "o_proj",
    old: str | None = "out_proj",
    earlier: Mapping[str, str] | None = None,
    prefixes: tuple[str, ...] = ("", "model."),
    **both: Any,
) -> Architecture:
    """DETR's stacks `encoder`, `decoder` and `decoder` (cross), post-norm, seen both ways.

    `old` is what `output` was called before 2026, `earlier` what the decoder's values were called.
    """
    row = bart(output=output, prefixes=prefixes, **{"causal": False, **both})

    def before(stack: Stack, naming: Naming) -> Naming:
        value = naming.value
        if earlier and stack.name == "decoder":
            value = f"decoder.layers.{{layer}}.{earlier[stack.kind]}"
        return replace(naming, value=value, output=naming.output.replace(output, old or ""))

    stacks = [
        s if old is None else replace(s, namings=(*s.namings, *(before(s, n) for n in s.namings)))
        for s in row.stacks
    ]
    return replace(row, stacks=tuple(stacks), readout=None)


def either(*rows: Architecture) -> Architecture:
    """The first row with the namings of all: files call the same tensors differently."""
    first = rows[0].stacks[0]
    namings = tuple(naming for row in rows for naming in row.stacks[0].namings)
    return replace(rows[0], stacks=(replace(first, namings=namings), *rows[0].stacks[1:]))


def beside(row: Architecture, naming: Naming) -> Architecture:
    """The row with one more naming of its first stack."""
    first = row.stacks[0]
    named = replace(first, namings=(*first.namings, naming))
    return replace(row, stacks=(named, *row.stacks[1:]))


def one_less(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """One layer fewer than the config says (Mask2Former's first prediction has no layer)."""
    return [Slot(i, {"layer": i}, (i,)) for i in range(g.n_layers - 1)]


def every_second(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """Layers 0, f, 2 f, ... with f the config's `cross_attention_frequency`; others have none."""
    step = max(1, int(config["cross_attention_frequency"]))
    layers = range(0, g.n_layers, step)
    return [Slot(layer, {"layer": layer}, (i,)) for i, layer in enumerate(layers)]


def crossed(row: Architecture, exists: Rule[bool] = True, **stack: Any) -> Architecture:
    """With BERT's cross attention to states of width `encoder_hidden_size`."""
    keys = {"d_in": ("encoder_hidden_size",)}
    beside = cross(row, {".attention.": ".crossattention."}, exists=exists, keys=keys, **stack)
    return replace(row, stacks=(*row.stacks, beside))


def pix2struct(attention: str, **stack: Any) -> Architecture:
    """Pix2Struct's text layers; in cross attention the norm is on the query."""
    fields: dict[str, Any] = {
        "keys": {"head_dim": (), "n_heads": ("num_heads",), "n_layers": ("num_layers",)},
        "norm_kind": "rmsnorm",
        **with_bias(False),
    }
    return one(
        "decoder",
        "attention.value",
        "attention.output",
        None if "kind" in stack else "layer_norm",
        at=f"layer.{{layer}}.{attention}.",
        **fields,
        **stack,
    )


def qformer() -> Architecture:
    """BLIP-2's Q-Former: a BERT whose queries look at the image in every second layer."""
    row = bert(value="attention.value", causal=False, name="qformer")
    return replace(crossed(row, slots=every_second), readout=None)


def with_bias(bias: Rule[bool]) -> dict[str, Any]:
    """The same rule for the biases of both projections."""
    return {"value_bias": bias, "output_bias": bias}
