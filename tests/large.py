"""Llama-shaped checkpoints, random V and O in bf16, a shard a layer; peaks of fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

HEAD_DIM = 128


def write(folder: Path, layers: int, d: int, heads: int, kv_heads: int) -> Path:
    """The checkpoint in `folder`."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        out = np.empty((rows, columns), dtype=ml_dtypes.bfloat16)
        for start in range(0, rows, 256):
            block = out[start : start + 256]
            block[:] = 0.02 * rng.standard_normal(block.shape, dtype=np.float32)
        return out

    folder.mkdir(exist_ok=True)
    index = {}
    for layer in range(layers):
        prefix, shard = f"model.layers.{layer}", f"model-{layer + 1:05d}.safetensors"
        tensors = {
            f"{prefix}.self_attn.v_proj.weight": matrix(kv_heads * HEAD_DIM, d),
            f"{prefix}.self_attn.o_proj.weight": matrix(d, heads * HEAD_DIM),
            f"{prefix}.input_layernorm.weight": np.ones(d, dtype=ml_dtypes.bfloat16),
        }
        save_file(tensors, folder / shard)
        index |= dict.fromkeys(tensors, shard)
    sizes = {"hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": kv_heads, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-5}
    config = {"model_type": "llama", "vocab_size": 128, "intermediate_size": d, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


PEAK = """
import json, resource, sys
import numpy as np
from eigenlens import open_checkpoint, spectrum
layers = None if sys.argv[2] == "all" else list(range(int(sys.argv[2])))
hold = list(open_checkpoint(sys.argv[1]).circuits()) if sys.argv[3] == "hold" else None
found = spectrum(sys.argv[1], layers=layers)
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
worst = max(float(x.residuals.max()) for x in found.layers)
json.dump({"peak": peak, "worst": worst, "layers": len(found.layers)}, sys.stdout)
"""


def peak(folder: Path, layers: str = "all", hold: str = "") -> dict[str, float]:
    """Peak memory in bytes of a fresh process that computes the leading 8 of these layers.

    A small process stands in between: Linux counts the memory of the parent at the start of a
    child into the child's peak.
    """
    inner = [sys.executable, "-c", PEAK, str(folder), layers, hold]
    outer = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", outer, *inner], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found
