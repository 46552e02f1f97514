"""Synthetic Llama-shaped checkpoints: random V and O in bf16, a shard a layer, nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEAD_DIM = 128


def write(folder: Path, layers: int, d: int, heads: int, kv_heads: int) -> None:
    """Write the checkpoint; blocks of rows at a time, so that memory stays that of one layer."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        out = np.empty((rows, columns), dtype=ml_dtypes.bfloat16)
        for start in range(0, rows, 256):
            block = out[start : start + 256]
            block[:] = 0.02 * rng.standard_normal(block.shape, dtype=np.float32)
        return out

    index = {}
    for layer in range(layers):
        prefix, shard = (
            f"model.layers.{layer}",
            f"model-{layer + 1:05d}-of-{layers:05d}.safetensors",
        )
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


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
