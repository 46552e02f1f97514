"""Traces and simulations of bundled models a second time: plain numpy, nothing of eigenlens.

`python tests/independent_live.py` writes ``tests/golden/bundled_live.json``: four families run
forward on four fixed prompts in float64, from the bytes of the float16 weights, and the shared
layer of each ALBERT iterated without its norms, biases on the output and feed-forward part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from independent import KEYS, SAMPLES, Heads, eigen, read_config, read_weights, slices, whole

GOLDEN = Path(__file__).parent / "golden" / "bundled_live.json"
TRACED = {
    "gpt2-tiny": "real",
    "bert-tiny": "residual",
    "gptneo-tiny": "real",
    "llama-tiny": "real",
}
"""Models that run forward, and the order of each."""
ITERATED = ("albert-tiny", "albert-tiny-rotating")
LOOKED_AT = (1, 5, 20, 60)
N_PROMPTS, N_STARTS, N_TOKENS = 4, 3, 12
LENGTHS = {"gptneo-tiny": 48}  # longer than its window of 32
SHOWN = (3, 11, slice(0, 6))  # prompt, token, entries of the states that are written down

States = np.ndarray
"""(prompts, tokens, d)."""
Weights = dict[str, np.ndarray]
Step = tuple[States, States, States]
"""Before, attention output without its constant, after."""


def prompts(name: str) -> list[list[int]]:
    """Fixed token ids, none of them a special one: a linear congruence, the same everywhere."""
    length, x, out = LENGTHS.get(name, 16), 12345, []
    for _ in range(N_PROMPTS * length):
        x = (1103515245 * x + 12345) % 2**31
        out.append(10 + (x >> 8) % 2000)
    return [out[i * length : (i + 1) * length] for i in range(N_PROMPTS)]


def starts(d: int) -> States:
    """Random states (N_STARTS, N_TOKENS, d) of length 1."""
    X = np.random.default_rng(20).standard_normal((N_STARTS, N_TOKENS, d))
    return np.asarray(X / np.linalg.norm(X, axis=-1, keepdims=True))


# ---- What a model is made of


def layer_norm(X: States, w: Weights, at: str, eps: float) -> States:
    """Centred, divided by the root of the biased variance, times the gain, plus the shift."""
    centred = X - X.mean(axis=-1, keepdims=True)
    size = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return np.asarray(centred / size * w[at + "weight"] + w[at + "bias"])


def gelu(X: States) -> States:
    """The approximation by a hyperbolic tangent."""
    return np.asarray(0.5 * X * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def rms_norm(X: States, gain: np.ndarray, eps: float) -> States:
    """Divided by the root of the mean square, times the gain."""
    return np.asarray(X / np.sqrt((X**2).mean(axis=-1, keepdims=True) + eps) * gain)


def rotated(X: States, n_heads: int, theta: float) -> States:
    """Rotary positions: entries i and i + hd/2 of a head turn by ``position theta^(-2i/hd)``."""
    b, n, width = X.shape
    hd = width // n_heads
    angle = np.arange(n)[:, None] * theta ** (-2 * np.arange(hd // 2) / hd)
    z = X.reshape(b, n, n_heads, hd)
    z = z[..., : hd // 2] + 1j * z[..., hd // 2 :]
    z = z * np.exp(1j * angle)[:, None]
    return np.concatenate([z.real, z.imag], axis=-1).reshape(b, n, width)


def attend(
    X: States, Q: States, K: States, heads: Heads, allowed: np.ndarray, scale: float
) -> States:
    """``sum_h A_h X W_V^T W_O^T`` head by head; no constant is in it.

    Queries and keys have their heads side by side, keys perhaps fewer; `allowed` is (n, n).
    """
    hd, n_heads = len(heads[0][1]), len(heads)
    group = n_heads * hd // K.shape[-1]
    Y = np.zeros_like(X)
    for h, (W_O, W_V) in enumerate(heads):
        g = h // group
        q, k = Q[..., h * hd : (h + 1) * hd], K[..., g * hd : (g + 1) * hd]
        logits = scale * np.einsum("bid,bjd->bij", q, k)
        Y += softmax(np.where(allowed, logits, -np.inf)) @ X @ W_V.T @ W_O.T
    return Y


def causal(n: int, window: int | None = None) -> np.ndarray:
    """Which tokens (columns) a token (row) sees: itself and those before it, or the last few."""
    back = np.arange(n)[:, None] - np.arange(n)
    return (back >= 0) & (back < (n if window is None else window))


# ---- Forward passes


Pass = tuple[list[Step], list[np.ndarray]]
"""Steps of every layer, and its F."""


def gpt2(c: dict[str, Any], w: Weights, ids: np.ndarray) -> Pass:
    """Learned positions, LayerNorm before each part, q, k and v in one matrix (in, out)."""
    d, n_heads, eps, n = c["n_embd"], c["n_head"], c["layer_norm_epsilon"], ids.shape[1]
    scale = 1 / math.sqrt(d // n_heads)
    X = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:n]
    steps, Fs = [], []
    for i in range(c["n_layer"]):
        at = f"transformer.h.{i}."
        W, b = w[at + "attn.c_attn.weight"], w[at + "attn.c_attn.bias"]
        W_O = w[at + "attn.c_proj.weight"].T
        heads = slices(W_O, W[:, 2 * d :].T, n_heads, n_heads)
        Z = layer_norm(X, w, at + "ln_1.", eps)
        Q, K = Z @ W[:, :d] + b[:d], Z @ W[:, d : 2 * d] + b[d : 2 * d]
        Y = attend(Z, Q, K, heads, causal(n), scale)
        steps.append((X, Y, X + Y))
        Fs.append(whole(heads))
        X = X + Y + W_O @ b[2 * d :] + w[at + "attn.c_proj.bias"]
        Z = layer_norm(X, w, at + "ln_2.", eps)
        Z = gelu(Z @ w[at + "mlp.c_fc.weight"] + w[at + "mlp.c_fc.bias"])
        X = X + Z @ w[at + "mlp.c_proj.weight"] + w[at + "mlp.c_proj.bias"]
    return steps, Fs


def gpt_neo(c: dict[str, Any], w: Weights, ids: np.ndarray) -> Pass:
    """As GPT-2, but logits are not scaled, q, k and v have no biases, and windows alternate."""
    n_heads, eps, n = c["num_heads"], c["layer_norm_epsilon"], ids.shape[1]
    X = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:n]
    steps, Fs = [], []
    for i, kind in enumerate(c["attention_layers"]):
        at = f"transformer.h.{i}."
        W_Q, W_K, W_V, W_O = (
            w[f"{at}attn.attention.{x}_proj.weight"] for x in ("q", "k", "v", "out")
        )
        heads = slices(W_O, W_V, n_heads, n_heads)
        Z = layer_norm(X, w, at + "ln_1.", eps)
        allowed = causal(n, c["window_size"] if kind == "local" else None)
        Y = attend(Z, Z @ W_Q.T, Z @ W_K.T, heads, allowed, 1.0)
        steps.append((X, Y, X + Y))
        Fs.append(whole(heads))
        X = X + Y + w[at + "attn.attention.out_proj.bias"]
        Z = layer_norm(X, w, at + "ln_2.", eps)
        Z = gelu(Z @ w[at + "mlp.c_fc.weight"].T + w[at + "mlp.c_fc.bias"])
        X = X + Z @ w[at + "mlp.c_proj.weight"].T + w[at + "mlp.c_proj.bias"]
    return steps, Fs


def llama(c: dict[str, Any], w: Weights, ids: np.ndarray) -> Pass:
    """Rotary positions, RMSNorm before each part, grouped keys and values, a gated part."""
    n_heads, n_kv, eps, n = (
        *(c["num_attention_heads"], c["num_key_value_heads"]),
        *(c["rms_norm_eps"], ids.shape[1]),
    )
    theta = c["rope_parameters"]["rope_theta"]
    X = w["model.embed_tokens.weight"][ids]
    steps, Fs = [], []
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        W_Q, W_K, W_V, W_O = (w[f"{at}self_attn.{x}_proj.weight"] for x in "qkvo")
        heads = slices(W_O, W_V, n_heads, n_kv)
        Z = rms_norm(X, w[at + "input_layernorm.weight"], eps)
        Q, K = rotated(Z @ W_Q.T, n_heads, theta), rotated(Z @ W_K.T, n_kv, theta)
        Y = attend(Z, Q, K, heads, causal(n), 1 / math.sqrt(c["head_dim"]))
        steps.append((X, Y, X + Y))
        Fs.append(whole(heads))
        X = X + Y
        Z = rms_norm(X, w[at + "post_attention_layernorm.weight"], eps)
        gate, up, down = (w[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
        gated = Z @ gate.T
        X = X + (gated / (1 + np.exp(-gated)) * (Z @ up.T)) @ down.T
    return steps, Fs


def bert(c: dict[str, Any], w: Weights, ids: np.ndarray) -> Pass:
    """LayerNorm after each part; what is after a step is not normalised yet."""
    n_heads, eps, n = c["num_attention_heads"], c["layer_norm_eps"], ids.shape[1]
    scale, at = 1 / math.sqrt(c["hidden_size"] // n_heads), "bert.embeddings."
    X = w[at + "word_embeddings.weight"][ids] + w[at + "position_embeddings.weight"][:n]
    X = layer_norm(X + w[at + "token_type_embeddings.weight"][0], w, at + "LayerNorm.", eps)
    steps, Fs = [], []
    for i in range(c["num_hidden_layers"]):
        at = f"bert.encoder.layer.{i}."
        (W_Q, b_Q), (W_K, b_K), (W_V, b_V), (W_O, b_O) = (
            (w[f"{at}attention.{x}.weight"], w[f"{at}attention.{x}.bias"])
            for x in ("self.query", "self.key", "self.value", "output.dense")
        )
        heads = slices(W_O, W_V, n_heads, n_heads)
        everyone = np.ones((n, n), dtype=bool)
        Y = attend(X, X @ W_Q.T + b_Q, X @ W_K.T + b_K, heads, everyone, scale)
        steps.append((X, Y, X + Y))
        Fs.append(whole(heads))
        X = layer_norm(X + Y + W_O @ b_V + b_O, w, at + "attention.output.LayerNorm.", eps)
        Z = gelu(X @ w[at + "intermediate.dense.weight"].T + w[at + "intermediate.dense.bias"])
        Z = Z @ w[at + "output.dense.weight"].T + w[at + "output.dense.bias"]
        X = layer_norm(X + Z, w, at + "output.LayerNorm.", eps)
    return steps, Fs


FORWARD: dict[str, Callable[[dict[str, Any], Weights, np.ndarray], Pass]] = {
    "gpt2-tiny": gpt2,
    "bert-tiny": bert,
    "gptneo-tiny": gpt_neo,
    "llama-tiny": llama,
}


# ---- What is measured


def leading_basis(F: np.ndarray, order: str) -> np.ndarray:
    """The leading real eigenvector, or the plane of a leading pair: orthonormal columns."""
    values, right, _, _ = eigen(F)
    lead = int(np.argmax(KEYS[order](values)))
    v = right[:, lead]
    columns = [v.real] if values[lead].imag == 0 else [v.real, v.imag]
    return np.asarray(np.linalg.qr(np.stack(columns, axis=1))[0])


def alignment(X: States, B: np.ndarray) -> np.ndarray:
    """Length of the part in the target, over the length of the token."""
    return np.asarray(np.linalg.norm(X @ B, axis=-1) / np.linalg.norm(X, axis=-1))


def trace(name: str) -> list[dict[str, Any]]:
    """Per layer the states in a few numbers, and gamma, gain and rho over all tokens."""
    rows = []
    prompt, token, entries = SHOWN
    config, weights = read_config(name), read_weights(SAMPLES / name / "model.safetensors")
    steps, Fs = FORWARD[name](config, weights, np.array(prompts(name)))
    for (before, attention, after), F in zip(steps, Fs, strict=True):
        B = leading_basis(F, TRACED[name])
        a, b = alignment(before, B), alignment(after, B)
        shown = {"before": before, "attention": attention, "after": after}
        rows.append(
            {
                "target_dim": B.shape[1],
                "gamma": float(b.mean()),
                "gain": float((b - a).mean()),
                "rho": float(np.where(b > a, 1.0, np.where(b == a, 0.5, 0.0)).mean()),
                "norms": {key: float(np.linalg.norm(X)) for key, X in shown.items()},
                "entries": {key: X[prompt, token, entries].tolist() for key, X in shown.items()},
            }
        )
    return rows


def simulate(name: str) -> list[dict[str, Any]]:
    """``x <- N(x + attn(x))`` on the unit sphere; means over the starts at some steps."""
    c, w = read_config(name), read_weights(SAMPLES / name / "model.safetensors")
    at = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention."
    (W_Q, b_Q), (W_K, b_K) = ((w[f"{at}{x}.weight"], w[f"{at}{x}.bias"]) for x in ("query", "key"))
    n_heads = c["num_attention_heads"]
    heads = slices(w[at + "dense.weight"], w[at + "value.weight"], n_heads, n_heads)
    scale, everyone = 1 / math.sqrt(len(heads[0][1])), np.ones((N_TOKENS, N_TOKENS), dtype=bool)
    B = leading_basis(whole(heads), "residual")
    X, rows = starts(c["hidden_size"]), []
    _, token, entries = SHOWN
    for t in range(1, max(LOOKED_AT) + 1):
        X = X + attend(X, X @ W_Q.T + b_Q, X @ W_K.T + b_K, heads, everyone, scale)
        X = X / np.linalg.norm(X, axis=-1, keepdims=True)
        if t in LOOKED_AT:
            G = np.einsum("sid,sjd->sij", X, X)
            others = G[:, ~np.eye(N_TOKENS, dtype=bool)]
            rows.append(
                {
                    "step": t,
                    "target_dim": B.shape[1],
                    "cosine": float(others.mean()),
                    "gamma": float(alignment(X, B).mean()),
                    "entries": X[-1, token, entries].tolist(),
                }
            )
    return rows


def golden() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Everything that is written down."""
    return {
        "trace": {name: trace(name) for name in TRACED},
        "simulate": {name: simulate(name) for name in ITERATED},
    }


def text_of(record: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """JSON with one line a layer or step."""
    parts = []
    for kind, models in record.items():
        rows = [
            f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, found)) + "\n]"
            for name, found in models.items()
        ]
        parts.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    GOLDEN.write_text(text_of(golden()), encoding="utf-8")
    print(f"{GOLDEN} written")
