"""From a config's `quantization_config` to the codecs that read its checkpoint, or a refusal.

What is not read exactly is refused here, when the model is opened: the message names the scheme and
the config key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.quantised.bnb import FourBit, Int8Rows
from eigenlens.tensors.quantised.compressed import Packed, Plain, Weights
from eigenlens.tensors.quantised.grouped import AWQ, GPTQ
from eigenlens.tensors.quantised.scaled import (
    ACTIVATION_PARTS,
    GptOssBlocks,
    ModelOptFloat4,
    ScaledFloat8,
)
from eigenlens.tensors.quantised.store import REMEDY, Codec, QuantisedStore
from eigenlens.tensors.store import TensorStore

KEYS = ("quantization_config", "compression_config")
# Endings of names that only quantised checkpoints have.
_TELLTALES = (".qweight", ".weight_packed", ".weight.absmax", ".SCB")


# Modules of transformers' `Conv1D`, whose plain weight is (in, out): every quantiser turns them.
_GPT2 = ("c_attn", "c_proj", "c_fc", "q_attn")
_CONV1D = dict.fromkeys(("gpt2", "openai-gpt", "imagegpt", "decision_transformer"), _GPT2)


class _Config:
    """A quantization config with the place it stands at, for messages."""

    def __init__(self, key: str, values: Mapping[str, Any], label: str) -> None:
        self.key, self.values, self.label = key, values, label

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of the keys that is stated and not null."""
        return next((self.values[n] for n in names if self.values.get(n) is not None), default)

    def refuse(self, name: str, allowed: str) -> FormatError:
        """The error for a key whose value is not read."""
        value = self.values.get(name)
        plain = value is None or isinstance(value, str | int | float)
        found = inert(json.dumps(value))[:80] if plain else f"(a {type(value).__name__})"
        return FormatError(
            f"{self.label}: quantised checkpoint with '{self.key}.{name}' {found}, which is not "
            f"read; allowed: {allowed}; {REMEDY}"
        )

    def choose(self, name: str, allowed: Sequence[Any], default: Any) -> Any:
        """The value of a key, one of `allowed`."""
        value = self.get(name, default=default)
        if not any(type(value) is type(a) and value == a for a in allowed):
            raise self.refuse(name, ", ".join(map(str, allowed)))
        return value

    def size(self, name: str, default: int) -> int:
        """A group size: -1 or a positive whole number."""
        value = self.get(name, default=default)
        if type(value) is not int or not (value == -1 or value > 0):
            raise self.refuse(name, "-1 or a positive whole number")
        return value


def _block(config: _Config, name: str, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or not all(type(n) is int and n > 0 for n in value)
    ):
        raise config.refuse(name, "two positive whole numbers")
    return value[0], value[1]


def _fp8(config: _Config) -> list[Codec]:
    block = _block(config, "weight_block_size", config.get("weight_block_size"))
    return [ScaledFloat8(block)]


def _fbgemm(config: _Config) -> list[Codec]:
    return [ScaledFloat8(None, ("_scale",))]


def _modelopt(config: _Config) -> list[Codec]:
    algorithm = config.choose("quant_algo", ("FP8", "NVFP4"), None)
    if algorithm == "FP8":
        return [ScaledFloat8(None, ("_scale",))]
    return [ModelOptFloat4(config.size("group_size", 16))]


def _mxfp4(config: _Config) -> list[Codec]:
    return [GptOssBlocks()]


def _gptq(config: _Config) -> list[Codec]:
    bits = config.choose("bits", (2, 3, 4, 8), None)
    if config.get("is_marlin_format"):
        raise config.refuse("is_marlin_format", "false")
    config.choose("pack_dtype", ("int32",), "int32")
    key = "checkpoint_format" if config.get("checkpoint_format") else "format"
    version = config.choose(key, ("gptq", "gptq_v2"), "gptq")
    size = config.size("group_size", -1)
    return [GPTQ(None if config.get("dynamic") else bits, size, 0 if version == "gptq_v2" else 1)]


def _awq(config: _Config) -> list[Codec]:
    config.choose("bits" if "bits" in config.values else "w_bit", (4,), 4)
    config.choose("backend", ("auto", "autoawq"), "autoawq")
    if not config.get("zero_point", default=True):
        raise config.refuse("zero_point", "true")
    key = "version" if config.get("version") else "format"
    if str(config.get(key, default="gemm")).lower() != "gemm":
        raise config.refuse(key, "gemm")
    return [
        AWQ(config.size("group_size" if "group_size" in config.values else "q_group_size", 128))
    ]


def _auto_round(config: _Config) -> list[Codec]:
    """Exports in the packing of GPTQ's first format (without `g_idx`) or of AWQ."""
    packings = ("auto_round:auto_gptq", "auto_round:auto_awq")
    packing = config.choose("packing_format", packings, None)
    config.choose("data_type", ("int",), "int")
    size = config.size("group_size", 128)
    if packing == packings[1]:
        config.choose("bits", (4,), 4)
        return [AWQ(size)]
    return [GPTQ(config.choose("bits", (2, 3, 4, 8), None), size, 1)]


def _bitsandbytes(config: _Config) -> list[Codec]:
    return [FourBit(), Int8Rows()]


_FORMATS = (
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
    "dense",
)


def _compressed(config: _Config) -> list[Codec]:
    nested = config.get("quantization_config")
    if isinstance(nested, Mapping):
        config = _Config(config.key, {**config.values, **nested}, config.label)
    config.choose("format", _FORMATS, "dense")
    if config.get("transform_config"):
        raise config.refuse("transform_config", "none (rotated weights)")
    sparsity = config.get("sparsity_config", default={})
    if not isinstance(sparsity, Mapping) or sparsity.get("format", "dense") != "dense":
        raise config.refuse("sparsity_config", "none, or format dense")
    groups = config.get("config_groups", default={})
    if not isinstance(groups, Mapping):
        raise config.refuse("config_groups", "an object of groups")
    found: list[Weights] = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise config.refuse("config_groups", "an object of groups")
        here = _Config(f"{config.key}.config_groups.{inert(str(name))}", group, config.label)
        here.choose("format", _FORMATS, "dense")
        weights = here.get("weights")
        if weights is not None:
            found.append(_weights(here, weights))
    return [Packed(tuple(found)), Plain(tuple(found))]


def _weights(config: _Config, values: Any) -> Weights:
    if not isinstance(values, Mapping):
        raise config.refuse("weights", "an object")
    here = _Config(f"{config.key}.weights", values, config.label)
    floating = here.choose("type", ("int", "float"), "int") == "float"
    bits = here.choose("num_bits", (4, 8) if floating else tuple(range(1, 9)), 8)
    group = here.size("group_size", -1)
    block = _block(here, "block_structure", here.get("block_structure"))
    usual = "block" if block else "group" if group > 0 else "tensor"
    if here.get("group_size") == -1:
        usual = "channel"
    strategy = here.choose("strategy", tuple(_SIZES), usual)
    if (strategy == "block") != (block is not None):
        raise here.refuse("block_structure", "two numbers with strategy block, else none")
    if strategy in ("group", "tensor_group") and group < 1:
        raise here.refuse("group_size", f"a positive number with strategy {strategy}")
    symmetric = here.choose("symmetric", (True, False), True)
    return Weights(bits, floating, symmetric, strategy, block or _SIZES[strategy](group))


_SIZES: Mapping[str, Callable[[int], tuple[int, int]]] = {
    "tensor": lambda group: (0, 0),
    "channel": lambda group: (1, 0),
    "group": lambda group: (1, group),
    "tensor_group": lambda group: (1, group),
    "block": lambda group: (0, 0),
}

METHODS: Mapping[str, Callable[[_Config], list[Codec]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
}


def _find(config: Mapping[str, Any], label: str) -> _Config | None:
    """The quantization config, at the top or in the section of one tower."""
    found: dict[str, _Config] = {}
    for section, part in (("", config), *config.items()):
        for key in KEYS if isinstance(part, Mapping) else ():
            value = part.get(key)
            if value is None or (section in KEYS):
                continue
            place = f"{inert(section)}.{key}" if section else key
            if not isinstance(value, Mapping):
                raise FormatError(
                    f"{label}: '{place}' in config.json is a {type(value).__name__}, but must be "
                    "an object; correct it or get the file again"
                )
            if value:
                found[place] = _Config(place, value, label)
    if not _agree([each.values for each in found.values()]):
        raise FormatError(
            f"{label}: config.json describes the quantisation more than once and differently: "
            f"{', '.join(found)}; keep the right one"
        )
    return next(iter(found.values()), None)


def _agree(values: Sequence[Mapping[str, Any]]) -> bool:
    try:
        return all(other == values[0] for other in values[1:])
    except RecursionError:  # nested too deep to be compared, so not genuine
        return False


def _method(config: _Config) -> str:
    old = "bitsandbytes" if config.get("load_in_8bit") or config.get("load_in_4bit") else None
    last = config.key.rpartition(".")[2]
    method = config.get(
        "quant_method", default="compressed-tensors" if last == "compression_config" else old
    )
    if not isinstance(method, str) or method not in METHODS:
        raise config.refuse("quant_method", ", ".join(METHODS))
    return method


def dequantised(store: TensorStore, config: Mapping[str, Any], label: str) -> TensorStore:
    """The store with its quantised weights shown as plain float32 ones.

    A store whose config speaks of no quantisation comes back as it is. Nothing is read here.

    Parameters
    ----------
    store
        The tensors as stored.
    config
        The parsed config.json.
    label
        What to call the model in messages.

    Raises
    ------
    FormatError
        The scheme (or one of its options) is not read: with the config key and what is allowed; or
        the tensors are quantised and the config does not say how.
    """
    found = _find(config, label)
    if found is None:
        for name in sorted(store.names()):
            if name.endswith(_TELLTALES):
                raise FormatError(
                    f"{label}: tensor '{inert(name)}' is part of a quantised weight, but "
                    "config.json has no quantization_config that says how to read it; put there "
                    "what quantize_config.json or quant_config.json holds (with its quant_method)"
                )
        return store
    method = _method(found)
    turned = _CONV1D.get(str(config.get("model_type")), ())
    return QuantisedStore(store, METHODS[method](found), ACTIVATION_PARTS, turned)
