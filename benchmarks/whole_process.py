"""Whole processes on real weights: `eigenlens spectrum` against AutoModel and numpy.linalg.eig.

Every figure is of a fresh process, imports included: `eigenlens spectrum MODEL --format json`
against a script that loads the model with `AutoModel`, forms F = W_O W_V of every layer in torch
and calls `numpy.linalg.eig`. Both sides run in turn (A B A B ...) after one uncounted run each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measure import goal, run, table

LEADERS = 8
TOLERANCE = 1e-4  # of the largest |leader| of the layer; the plain side computes in float32
HELP_CPU_SECONDS = 0.3

# What a user would write; arguments: the folder and the order (real or residual).
PLAIN = """
import json, sys
import numpy as np, torch
from transformers import AutoModel

model = AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32)
leaders = []
with torch.no_grad():
    for layer in model.layers if model.config.model_type == "llama" else model.encoder.layer:
        if model.config.model_type == "llama":
            W_V, W_O = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
            heads = W_V.view(-1, layer.self_attn.head_dim, W_V.shape[1])
            W_V = heads.repeat_interleave(W_O.shape[1] // W_V.shape[0], dim=0).flatten(0, 1)
        else:
            W_V, W_O = layer.attention.self.value.weight, layer.attention.output.dense.weight
        values, vectors = np.linalg.eig((W_O @ W_V).numpy())
        key = values.real if sys.argv[2] == "real" else abs(1 + values)
        leaders.append([[float(z.real), float(z.imag)] for z in values[np.argsort(-key)[:8]]])
json.dump(leaders, sys.stdout)
"""

# Names of a llama.cpp file and of the same tensors in a checkpoint of transformers.
GGUF_TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
GGUF_LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
GGUF_LAYER |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
GGUF_LAYER |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
GGUF_LAYER |= {"attn_output": "self_attn.o_proj"}


@dataclass(frozen=True)
class Case:
    """One comparison and its goals: how many times faster, which part of the memory at most."""

    name: str
    model: str  # as eigenlens is told
    folder: str  # as AutoModel is told
    order: str
    faster: float
    memory: float | None = None


def llama_name(name: str) -> str:
    """The transformers name of a tensor of a llama.cpp file, e.g. blk.3.attn_q.weight."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return f"model.{GGUF_TOP[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{GGUF_LAYER[part]}.weight"


def write_smollm2(folder: str) -> None:
    """Write sample:smollm2 as a float32 safetensors checkpoint; run in a process of its own.

    llama.cpp keeps the rows of W_Q and W_K in another order. They are left so: the load is as
    heavy, and F does not contain them.
    """
    from safetensors.numpy import save_file

    from eigenlens.tensors.source import resolve

    source = resolve("sample:smollm2")
    config = {key: value for key, value in source.config.items() if key != "gguf"}
    config |= {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
    tensors = {llama_name(name): source.store.read(name) for name in source.store.names()}
    save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
    Path(folder, "config.json").write_text(json.dumps(config))


def disagreement(ours: str, plain: str, order: str) -> float:
    """Largest difference of the leading eigenvalues of both sides, over the largest |lambda|.

    The leaders' keys are compared rank by rank, and every eigenvalue with the nearest one of the
    other side up to conjugation: float32 may swap leaders that all but tie, or cut a pair in two.
    """
    worst = 0.0
    for layer, pairs in zip(json.loads(ours)["layers"], json.loads(plain), strict=True):
        if layer["order"] != order:
            raise SystemExit(f"eigenlens ordered by {layer['order']}, not by {order}")
        a, b = (
            [complex(real, abs(imaginary)) for real, imaginary in side]
            for side in (layer["eigenvalues"][:LEADERS], pairs)
        )
        keys = [sorted(z.real if order == "real" else abs(1 + z) for z in side) for side in (a, b)]
        apart = [abs(x - y) for x, y in zip(*keys, strict=True)]
        apart += [min(abs(x - y) for y in b) for x in a]
        worst = max(worst, max(apart) / max(map(abs, a)))
    return worst


def compare(scratch: Path, case: Case, runs: int) -> tuple[list[str], list[str]]:
    """Run both sides in turn; the row of the table and the sentences below it."""
    ours_command = ("-m", "eigenlens", "spectrum", case.model, "--format", "json")
    plain_command = ("-c", PLAIN, case.folder, case.order)
    apart = disagreement(
        run(scratch, *ours_command).stdout, run(scratch, *plain_command).stdout, case.order
    )
    pairs = [(run(scratch, *ours_command), run(scratch, *plain_command)) for _ in range(runs)]
    ours, plain = zip(*pairs, strict=True)
    wall, cpu, peak = (
        [statistic(getattr(used, field) for used in side) for side in (ours, plain)]
        for field, statistic in (("wall", median), ("cpu", median), ("peak", max))
    )
    each = [b.wall / a.wall for a, b in pairs]
    speed, memory = wall[1] / wall[0], peak[0] / peak[1]
    row = [case.name, *(f"{x:.2f}" for x in wall), f"{speed:.1f}x"]
    row += [f"{min(each):.1f}-{max(each):.1f}x", *(f"{x:.2f}" for x in cpu)]
    row += [*(f"{x:.0f}" for x in peak), f"{memory:.2f}"]
    says = [goal(f"{case.name}: >= {case.faster:g}x faster", f"{speed:.1f}x", speed >= case.faster)]
    if case.memory is not None:
        name = f"{case.name}: <= {case.memory:g} of the memory"
        says.append(goal(name, f"{memory:.3f}", memory <= case.memory))
    name = (
        f"{case.name}: same {LEADERS} leaders in every layer to {TOLERANCE:g} (order {case.order})"
    )
    says.append(goal(name, f"worst {apart:.1e}", apart <= TOLERANCE))
    return row, says


def report(scratch: Path, runs: int) -> None:
    """Print the table of all cases and whether their goals are met."""
    minilm = run(scratch, "-m", "eigenlens", "samples", "path", "minilm").stdout.strip()
    smollm2 = scratch / "smollm2"
    smollm2.mkdir()
    run(scratch, __file__, str(smollm2))
    cases = [
        Case("smollm2 fp32, 30 layers", str(smollm2), str(smollm2), "real", 10, 0.2),
        Case("minilm, 6 layers", "sample:minilm", minilm, "residual", 4),
    ]
    results = [compare(scratch, case, runs) for case in cases]
    head = ["case", "ours s", "plain s", "ratio", "pairwise", "ours CPU", "plain CPU"]
    head += ["ours MB", "plain MB", "memory"]
    print(f"Whole processes against AutoModel + numpy.linalg.eig, {runs} runs: medians of time,")
    print("largest peaks\n")
    print(table([head, *(row for row, _ in results)]), end="\n\n")
    print(*(line for _, says in results for line in says), sep="\n")
    for option in ("--help", "--version"):
        used = [run(scratch, "-m", "eigenlens", option) for _ in range(runs + 1)][1:]
        cpu, peak = median(u.cpu for u in used), max(u.peak for u in used)
        name = f"eigenlens {option}: <= {HELP_CPU_SECONDS} s of CPU"
        print(goal(name, f"{cpu:.2f} s ({peak:.0f} MB)", cpu <= HELP_CPU_SECONDS))


if __name__ == "__main__":  # a process of its own, so that the driver never holds weights
    write_smollm2(sys.argv[1])
