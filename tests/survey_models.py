"""Small Llama-shaped checkpoints for surveys, and workers that are made to die or to be slow."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from eigenlens.surveys import tasks
from eigenlens.surveys.members import Member
from eigenlens.surveys.options import Question


def write(folder: Path, seed: int, d: int = 16, layers: int = 2) -> Path:
    """A checkpoint of its own weights: V, O and the norm of each layer, d = r."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    arrays = {}
    for i in range(layers):
        at = f"model.layers.{i}"
        for part in ("v", "o"):
            weight = draw.normal(0, 0.2, (d, d)).astype(np.float32)
            arrays[f"{at}.self_attn.{part}_proj.weight"] = weight
        arrays[f"{at}.input_layernorm.weight"] = np.ones(d, np.float32)
    save_file(arrays, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "hidden_size": d,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": d,
        "vocab_size": 64,
        "rms_norm_eps": 1e-6,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def hybrid(folder: Path) -> Path:
    """The checkpoint in `folder` as one whose layer 0 is a convolution without attention."""
    arrays = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("o_proj", "out_proj").replace("input_layernorm", "operator_norm"): array
        for name, array in arrays.items()
        if "layers.0." not in name
    }
    renamed["model.layers.0.conv.in_proj.weight"] = np.ones((48, 16), np.float32)
    save_file(renamed, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def deadly(member: Member, question: Question, known: tasks.Known) -> Any:
    """`tasks.begin`, but a checkpoint whose name says so kills the process that opens it."""
    if "deadly" in member.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return tasks.begin(member, question, known)
