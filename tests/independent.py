"""The spectra of the bundled models a second time: plain numpy, nothing of eigenlens.

`python tests/independent.py` writes ``tests/golden/bundled.json``. The weights are read from the
bytes of the safetensors files, F is a sum over heads in float64, its eigenvalues come from
`numpy.linalg.eig` of the whole (d, d) matrix, and gap and regime follow the definitions: a leader
by one of three keys; conjugates and repeated values count once; the kernel of F counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "src" / "eigenlens" / "data" / "samples"
GOLDEN = Path(__file__).parent / "golden" / "bundled.json"
NAMES = sorted(folder.name for folder in SAMPLES.iterdir() if folder.is_dir())
EPS = float(np.finfo(float).eps)
TIE = 0.01
KEPT = 8  # eigenvalues, and entries of a vector, that are written down

Heads = list[tuple[np.ndarray, np.ndarray]]  # (W_O^h, W_V^h) of every query head
KEYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "residual": lambda values: np.abs(1 + values),
    "real": lambda values: values.real,
    "modulus": np.abs,
}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a float16 safetensors file: a length, a JSON header, the numbers."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            if entry["dtype"] != "F16":
                raise ValueError(f"{path}: {name} is {entry['dtype']}, not F16")
            first, last = entry["data_offsets"]
            numbers = np.frombuffer(data[start + first : start + last], "<f2")
            out[name] = numbers.reshape(entry["shape"]).astype(np.float64)
    return out


def read_config(name: str) -> dict[str, Any]:
    """The config of a bundled model."""
    config: dict[str, Any] = json.loads((SAMPLES / name / "config.json").read_text("utf-8"))
    return config


# ---- F and the norm beside it, family by family


def slices(W_O: np.ndarray, W_V: np.ndarray, n_heads: int, n_kv: int) -> Heads:
    """Cut (d, n_heads * hd) and (n_kv * hd, d); query heads of one group share their values."""
    hd = W_O.shape[1] // n_heads
    out = []
    for h in range(n_heads):
        g = h * n_kv // n_heads
        out.append((W_O[:, h * hd : (h + 1) * hd], W_V[g * hd : (g + 1) * hd]))
    return out


def layers_of(name: str) -> Iterator[tuple[Heads, str, np.ndarray]]:
    """Per layer its heads, the kind of norm and its gain (after a post-norm layer, else before)."""
    config, w = read_config(name), read_weights(SAMPLES / name / "model.safetensors")
    family = config["model_type"]
    if family == "albert":
        at = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention."
        n = config["num_attention_heads"]
        heads = slices(w[at + "dense.weight"], w[at + "value.weight"], n, n)
        yield heads, "post", w[at + "LayerNorm.weight"]
    elif family == "bert":
        n = config["num_attention_heads"]
        for i in range(config["num_hidden_layers"]):
            at = f"bert.encoder.layer.{i}.attention."
            W_O, W_V = w[at + "output.dense.weight"], w[at + "self.value.weight"]
            yield slices(W_O, W_V, n, n), "post", w[at + "output.LayerNorm.weight"]
    elif family == "gpt2":
        d, n = config["n_embd"], config["n_head"]
        for i in range(config["n_layer"]):  # stored (in, out), and q, k, v side by side
            at = f"transformer.h.{i}."
            W_V = w[at + "attn.c_attn.weight"][:, 2 * d : 3 * d].T
            yield slices(w[at + "attn.c_proj.weight"].T, W_V, n, n), "pre", w[at + "ln_1.weight"]
    elif family == "gpt_neo":
        n = config["num_heads"]
        for i in range(config["num_layers"]):
            at = f"transformer.h.{i}."
            W_O, W_V = (w[f"{at}attn.attention.{x}_proj.weight"] for x in ("out", "v"))
            yield slices(W_O, W_V, n, n), "pre", w[at + "ln_1.weight"]
    elif family == "llama":
        n, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
        for i in range(config["num_hidden_layers"]):
            at = f"model.layers.{i}."
            W_O, W_V = (w[f"{at}self_attn.{x}_proj.weight"] for x in "ov")
            yield slices(W_O, W_V, n, n_kv), "rms", w[at + "input_layernorm.weight"]
    else:
        raise ValueError(f"{name}: no reader for {family}")


def whole(heads: Heads) -> np.ndarray:
    """F, the sum over heads."""
    F = np.zeros((heads[0][0].shape[0], heads[0][1].shape[1]))
    for W_O, W_V in heads:
        F += W_O @ W_V
    return F


def folded(F: np.ndarray, norm: str, gain: np.ndarray) -> np.ndarray:
    """F with its norm: ``diag(g) P (I + F) - I`` after a layer, ``F diag(g) P`` before it."""
    d = len(F)
    centre = np.eye(d) - np.ones((d, d)) / d
    if norm == "post":
        return np.diag(gain) @ centre @ (np.eye(d) + F) - np.eye(d)
    return F @ np.diag(gain) @ (np.eye(d) if norm == "rms" else centre)


# ---- What leads


def eigen(F: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues (the kernel's exactly 0), unit right and left vectors, error bars."""
    norm = np.linalg.norm(F, 2)
    values, right = np.linalg.eig(F)
    left = np.linalg.inv(right).conj().T
    conditions = np.linalg.norm(left, axis=0)
    bars = conditions * EPS * norm
    values = np.where(np.abs(values) < 1e-9 * norm, 0, values)
    return values, right, left / conditions, bars


def judge(values: np.ndarray, bars: np.ndarray, order: str) -> dict[str, Any]:
    """Leader, second, gap, angle and regime under an order."""
    values, bars = values[values.imag >= 0], bars[values.imag >= 0]
    keys = KEYS[order](values)
    by_key = np.argsort(-keys, kind="stable")
    first, others = by_key[0], by_key[1:]
    others = [i for i in others if abs(values[i] - values[first]) > 1e-9 * abs(values[first])]
    second = others[0]
    value, key = complex(values[first]), float(keys[first])
    close = key - float(keys[second])
    multiplier = 1 + value if order == "residual" else value
    if (order == "residual" and (value == 0 or abs(multiplier) <= 1 + bars[first])) or key <= 0:
        regime = "no_consensus"
    elif close < TIE * key or close <= bars[first] + bars[second]:
        regime = "near_degenerate"
    elif abs(value.imag) > bars[first]:
        regime = "complex_dominant"
    else:
        regime = "flip" if multiplier.real < 0 and order != "real" else "real_dominant"
    turn = None
    if key > 0:
        turn = float(value.imag / value.real if order == "real" else abs(np.angle(multiplier)))
    apart = None
    if key > 0 and regime != "near_degenerate":
        apart = math.log(10) / -math.log1p(-close / key)
        if order == "real":  # the ratio of the two falls as a power of depth
            apart = 10 ** (key / close)
    return {
        "value": pair(value),
        "second": pair(values[second]),
        "gap": close / key if key > 0 else None,
        "angle": turn,
        "regime": regime,
        "steps_to_separate": apart,
    }


def pair(value: complex) -> list[float]:
    """Real part, and imaginary part without the sign that a conjugate pair leaves open."""
    return [float(value.real), abs(float(value.imag))]


def in_order(values: np.ndarray, order: str) -> list[list[float]]:
    """The leading eigenvalues that are not the kernel's, a conjugate pair once."""
    values = values[(values.imag >= 0) & (values != 0)]
    return [pair(v) for v in values[np.argsort(-KEYS[order](values), kind="stable")][:KEPT]]


def describe(heads: Heads, norm: str, gain: np.ndarray) -> dict[str, Any]:
    """Everything that is written down of a layer."""
    F = whole(heads)
    values, right, left, bars = eigen(F)
    size = float(np.linalg.norm(F))
    order = "residual" if norm == "post" else "real"
    record: dict[str, Any] = {
        "order": order,
        "rank": int(np.count_nonzero(values)),
        "spectral_norm": float(np.linalg.norm(F, 2)),
        "frobenius_norm": size,
        "henrici": math.sqrt(size**2 - float(np.sum(np.abs(values) ** 2))) / size,
        "negative_fraction": float(np.mean(values.real < 0)),
        "unit_negative_fraction": float(np.mean((values.real < 0) & (values.real >= -1))),
        "orders": {},
    }
    for name, key in KEYS.items():
        lead = int(np.argmax(np.where(values.imag >= 0, key(values), -np.inf)))
        record["orders"][name] = {
            **judge(values, bars, name),
            "leading": in_order(values, name),
            "right": np.abs(right[:KEPT, lead]).tolist(),
            "left": np.abs(left[:KEPT, lead]).tolist(),
        }
    lead = int(np.argmax(np.where(values.imag >= 0, KEYS[order](values), -np.inf)))
    v, w = right[:, lead], left[:, lead]
    record["heads"] = []
    for W_O, W_V in heads:
        own = np.linalg.eigvals(W_O @ W_V)
        share = complex(w.conj() @ (W_O @ W_V) @ v / (w.conj() @ v))
        record["heads"].append(
            {
                "leading": in_order(np.where(np.abs(own) < 1e-9, 0, own), order)[0],
                "ov_trace_ratio": float(own.sum().real / np.abs(own).sum()),
                "share": pair(share),
            }
        )
    values, _, _, bars = eigen(folded(F, norm, gain))
    record["folded"] = judge(values, bars, order)
    return record


def golden() -> dict[str, list[dict[str, Any]]]:
    """All bundled models, layer by layer."""
    return {name: [describe(*layer) for layer in layers_of(name)] for name in NAMES}


def text_of(record: dict[str, list[dict[str, Any]]]) -> str:
    """JSON with one line a layer, so that a difference names its layer."""
    models = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(layer) for layer in layers) + "\n]"
        for name, layers in record.items()
    ]
    return "{\n" + ",\n".join(models) + "\n}\n"


if __name__ == "__main__":
    GOLDEN.write_text(text_of(golden()), encoding="utf-8")
    print(f"{GOLDEN} written")
