"""Write tests/golden/quantised.safetensors.gz: one small layer of each scheme, by its own library.

    python tools/write_quantised_golden.py AUTO_GPTQ AUTOAWQ

bitsandbytes and compressed-tensors must be installed (they have wheels for the CPU). auto-gptq and
autoawq want CUDA to be installed, so their wheels are only unpacked: the arguments are the folders
with `auto_gptq` and `awq` in them, and the one module of each that packs is run by itself.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

OUT, IN, GROUP = 32, 64, 32
TARGET = Path(__file__).parents[1] / "tests" / "golden" / "quantised.safetensors.gz"
Case = tuple[str, dict[str, Any], dict[str, torch.Tensor], torch.Tensor]


def package(name: str, folder: Path | None = None, **contents: Any) -> None:
    """An empty package of this name, so that its own __init__ (which wants CUDA) is not run."""
    module = types.ModuleType(name)
    module.__path__ = [] if folder is None else [str(folder)]
    module.__dict__.update(contents)
    sys.modules[name] = module


def load(name: str, path: Path) -> Any:
    """One module of a package that is not imported as a whole."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: no such module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def on_grid(
    weight: torch.Tensor, group: torch.Tensor, top: int, low: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales and zero points (out, groups), and the weight rounded to them."""
    scales, zeros = [], []
    for k in range(int(group.max()) + 1):
        part = weight[:, group == k]
        least, most = part.amin(1).clamp(max=-0.05), part.amax(1).clamp(min=0.05)
        scales.append(((most - least) / top).half().float())
        zeros.append(torch.round(-least / scales[-1]).clamp(low, top))
    s, z = torch.stack(scales, 1), torch.stack(zeros, 1)
    codes = torch.clamp(torch.round(weight / s[:, group]) + z[:, group], 0, top)
    return s, z, (codes - z[:, group]) * s[:, group]


def gptq(root: Path) -> Iterator[Case]:
    """2, 3, 4 and 8 bits with shuffled groups (desc_act)."""
    for name in ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
        package(name, root / name.replace(".", "/"))
    where = root / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py"
    module = load("auto_gptq.nn_modules.qlinear.qlinear_cuda", where)
    for bits in (2, 3, 4, 8):
        group = (torch.randperm(IN) // GROUP).to(torch.int32)
        linear = torch.nn.Linear(IN, OUT, bias=False)
        # A zero point of 0 is stored as -1, which this library packs over its neighbours.
        scales, zeros, weight = on_grid(torch.randn(OUT, IN) * 0.2, group, 2**bits - 1, 1)
        linear.weight.data = weight
        layer = module.QuantLinear(bits, GROUP, IN, OUT, bias=False, weight_dtype=torch.float32)
        layer.pack(linear, scales, zeros, group)
        parts = {"qweight": layer.qweight, "qzeros": layer.qzeros, "g_idx": layer.g_idx}
        config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": True}
        truth = layer(torch.eye(IN)).T
        yield f"gptq{bits}", config, {**parts, "scales": layer.scales.half()}, truth


def awq(root: Path) -> Iterator[Case]:
    """The GEMM form."""
    for name in ("awq", "awq.utils", "awq.modules"):
        package(name)
    packing = load("awq.utils.packing_utils", root / "awq/utils/packing_utils.py")
    package("awq.utils.module", try_import=lambda name: (None, name))
    package("awq.utils.utils", get_best_device=lambda: "cpu")
    gemm = load("awq.modules.gemm", root / "awq/modules/linear/gemm.py")
    linear = torch.nn.Linear(IN, OUT, bias=False)
    scales, zeros, weight = on_grid(torch.randn(OUT, IN) * 0.2, torch.arange(IN) // GROUP, 15, 0)
    linear.weight.data = weight
    layer = gemm.WQLinear_GEMM.from_linear(
        linear, 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.T.contiguous()
    )
    parts = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
    truth = packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, GROUP)
    yield "awq", {**config, "version": "gemm"}, parts, truth.T


def bitsandbytes() -> Iterator[Case]:
    """int8, and 4 bits with and without double quantisation; rows are whole blocks of 64."""
    from bitsandbytes import functional

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    for kind, double in (("nf4", False), ("fp4", False), ("nf4", True)):
        weight = torch.randn(*((96, 192) if double else (OUT, IN))) * 0.2
        codes, state = functional.quantize_4bit(
            weight, quant_type=kind, compress_statistics=double, blocksize=64
        )
        parts = {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        truth = functional.dequantize_4bit(codes, state)
        name = f"bnb_{kind}{'_double' if double else ''}"
        yield name, config, {"weight": codes, **parts}, truth
    codes, scales, _ = functional.int8_vectorwise_quant((torch.randn(OUT, IN) * 0.2).half())
    order = torch.tensor(0, dtype=torch.uint8)
    parts = {"weight": codes, "SCB": scales, "weight_format": order}
    truth = functional.int8_vectorwise_dequant(codes, scales)
    yield "bnb_int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, parts, truth


PACK, INT, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
CHANNEL, BLOCK = {"strategy": "channel"}, {"strategy": "block", "block_structure": [24, 40]}
MX = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
GROUPED = {"strategy": "group", "group_size": GROUP}
# Name, format, bits, type, symmetric, the rest of the scheme, rows and columns that share a scale.
COMPRESSED: tuple[tuple[str, str, int, str, bool, dict[str, Any], tuple[int, int]], ...] = (
    ("ct_int4", PACK, 4, "int", True, GROUPED, (1, GROUP)),
    ("ct_int4_zero", PACK, 4, "int", False, GROUPED, (1, GROUP)),
    ("ct_int8_packed", PACK, 8, "int", False, CHANNEL, (1, IN)),
    ("ct_int8", INT, 8, "int", True, CHANNEL, (1, IN)),
    ("ct_int8_zero", INT, 8, "int", False, GROUPED, (1, GROUP)),
    ("ct_fp8", FLOAT, 8, "float", True, {"strategy": "tensor"}, (OUT, IN)),
    ("ct_fp8_rows", FLOAT, 8, "float", True, CHANNEL, (1, IN)),
    ("ct_fp8_block", FLOAT, 8, "float", True, BLOCK, (24, 40)),
    (
        "ct_nvfp4",
        "nvfp4-pack-quantized",
        4,
        "float",
        True,
        {"strategy": "tensor_group", "group_size": 16},
        (1, 16),
    ),
    ("ct_mxfp4", "mxfp4-pack-quantized", 4, "float", True, MX, (1, 32)),
    ("ct_mxfp8", "mxfp8-quantized", 8, "float", True, MX, (1, 32)),
)


def compressed() -> Iterator[Case]:
    """compressed-tensors."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams

    for name, form, bits, kind, symmetric, rest, (rows, columns) in COMPRESSED:
        args = QuantizationArgs(num_bits=bits, type=kind, symmetric=symmetric, **rest)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weight = torch.randn(OUT, IN) * 0.2
        padded = torch.nn.functional.pad(weight, (0, -IN % columns, 0, -OUT % rows))
        tiles = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
        outer = None
        if name == "ct_nvfp4":
            outer = (448 * 6 / weight.abs().max()).reshape(1)
        scale, zero = calculate_qparams(
            tiles.amin((1, 3)), tiles.amax((1, 3)), args, global_scale=outer
        )
        if rest["strategy"] == "tensor":
            scale = scale.reshape(1)
        state = {"weight": weight, "weight_scale": scale}
        if not symmetric:
            state["weight_zero_point"] = zero.reshape(scale.shape).to(torch.int8)
        if outer is not None:
            state["weight_global_scale"] = outer
        compressor = BaseCompressor.get_value_from_registry(form)
        parts = compressor.compress(state, scheme)
        if outer is None:
            truth = compressor.decompress(dict(parts), scheme)["weight"]
        else:  # decompress rounds to bfloat16
            codes = unpack_fp4_from_uint8(parts["weight_packed"], OUT, IN, dtype=torch.float32)
            scales = parts["weight_scale"].float()
            truth = dequantize(codes, scales, args=args, global_scale=outer, dtype=torch.float32)
        weights = json.loads(args.model_dump_json(exclude_none=True))
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        config = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}
        yield name, config, {k: v.detach() for k, v in parts.items()}, truth.detach()


def main(auto_gptq: str, autoawq: str) -> None:
    """Make all cases and write them, with the config of each in the metadata."""
    from importlib.metadata import version

    torch.manual_seed(0)
    libraries = (
        ("auto-gptq", gptq(Path(auto_gptq))),
        ("autoawq", awq(Path(autoawq))),
        (f"bitsandbytes {version('bitsandbytes')}", bitsandbytes()),
        (f"compressed-tensors {version('compressed-tensors')}", compressed()),
    )
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for library, cases in libraries:
        for name, config, parts, truth in cases:
            metadata[name] = json.dumps({"made_with": library, "config": config})
            for part, array in {**parts, "=": truth.float()}.items():
                tensors[f"{name}/{part}"] = array.contiguous().clone()
    TARGET.write_bytes(gzip.compress(save(tensors, metadata), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
