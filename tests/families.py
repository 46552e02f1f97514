"""Tiny random models: some of them by hand, one a row; every other model type by `zoo`.

python tests/families.py llama clip        checks model types against transformers
python tests/families.py --write           checks all, and writes golden/families.json
python tests/families.py --write llama     checks these, and renews their lines in it
python tests/families.py --switches llama  checks them with each switch of their row turned as well
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "families.json"
TOLERANCE = 1e-10

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = {**SIZES, "intermediate_size": 24, "vocab_size": 40, "max_position_embeddings": 32}
GROUPED = {**ENCODER, "num_key_value_heads": 2}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 32}


@dataclass(frozen=True)
class Family:
    """A tiny model: `name` for test ids, model type, config values, auto class with the head."""

    name: str
    model_type: str
    options: dict[str, Any] = field(default_factory=dict)
    head: str | None = "AutoModelForCausalLM"

    def config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(self.model_type, **self.options)

    def build(self, *, head: bool, seed: int = 0) -> Any:
        """The model in float64 with every parameter normal of std .2 (norm gains around 1)."""
        import torch
        import transformers

        torch.manual_seed(seed)
        auto = getattr(transformers, self.head if head and self.head else "AutoModel")
        model = auto.from_config(self.config(), attn_implementation="eager").double().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.normal_(0, 0.2)
                if "norm" in name.lower() or "ln_" in name:
                    p.add_(1.0 if name.endswith("weight") else 0.0)
        return model


def mlm(name: str, model_type: str, **options: Any) -> Family:
    base = ENCODER | SPECIAL
    return Family(name, model_type, {**base, **options}, "AutoModelForMaskedLM")


def clm(name: str, model_type: str, base: dict[str, Any], **options: Any) -> Family:
    return Family(name, model_type, {**base, **SPECIAL, **options})


DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "vocab_size": 40}
NEO = {"hidden_size": 16, "num_layers": 4, "num_heads": 4, "vocab_size": 40, "window_size": 2}
OPT = {**ENCODER, "ffn_dim": 24}

FAMILIES = [
    mlm("albert", "albert", embedding_size=8, hidden_act="linear"),
    mlm(
        "albert-groups",
        "albert",
        embedding_size=8,
        num_hidden_layers=5,
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    mlm("bert", "bert"),
    mlm("bert-deep", "bert", num_hidden_layers=11),
    mlm("roberta", "roberta"),
    mlm("xlm-roberta", "xlm-roberta"),
    Family("distilbert", "distilbert", DISTILBERT | {"pad_token_id": 0}, "AutoModelForMaskedLM"),
    mlm("electra", "electra", embedding_size=8),
    mlm("esm", "esm", mask_token_id=3, token_dropout=False),
    clm("gpt2", "gpt2", GPT),
    clm(
        "gpt_neo",
        "gpt_neo",
        NEO,
        max_position_embeddings=32,
        attention_types=[[["global", "local"], 2]],
    ),
    clm("gpt_neox", "gpt_neox", ENCODER),
    clm("gpt_neox-serial", "gpt_neox", ENCODER, use_parallel_residual=False),
    clm("gpt_neox-no-bias", "gpt_neox", ENCODER, attention_bias=False),
    clm("gptj", "gptj", GPT, rotary_dim=4),
    clm("opt", "opt", OPT, word_embed_proj_dim=8),
    clm("opt-post", "opt", OPT, word_embed_proj_dim=8, do_layer_norm_before=False),
    clm("opt-plain", "opt", OPT, enable_bias=False, layer_norm_elementwise_affine=False),
    clm("llama", "llama", GROUPED, head_dim=6, attention_bias=True),
    clm("llama-no-bias", "llama", ENCODER),
    clm("mistral", "mistral", GROUPED, head_dim=6, sliding_window=3),
    clm("qwen2", "qwen2", GROUPED, head_dim=6),
    clm("qwen3", "qwen3", GROUPED, head_dim=6),
    clm("gemma", "gemma", GROUPED, head_dim=6),
    clm("gemma2", "gemma2", GROUPED, head_dim=6, query_pre_attn_scalar=6, sliding_window=3),
    clm("phi", "phi", GROUPED, head_dim=8),
    clm("phi3", "phi3", GROUPED, head_dim=6, sliding_window=3),
    Family(
        "vit",
        "vit",
        {**SIZES, "intermediate_size": 24, "image_size": 8, "patch_size": 4},
        None,
    ),
    Family(
        "vit-no-bias",
        "vit",
        {**SIZES, "intermediate_size": 24, "image_size": 8, "patch_size": 4, "qkv_bias": False},
        "AutoModelForImageClassification",
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}


# Other values that a row's rules look at, where turning a boolean does not reach them.
ALSO: dict[str, list[dict[str, Any]]] = {
    "informer": [{"attention_type": "full"}],
    "longt5": [{"encoder_attention_type": "transient-global"}],
    "mobilebert": [{"normalization_type": "layer_norm"}],
    "perceiver": [
        {"cross_attention_shape_for_attention": "q", "d_model": 48},
        {"qk_channels": 64, "v_channels": 32},
        {"qk_channels": 32},
        {"num_blocks": 2, "num_self_attends_per_block": 2},
    ],
    "squeezebert": [{"v_groups": 1}, {"post_attention_groups": 2}],
    "funnel": [{"block_repeats": [2, 1, 1]}, {"pool_q_only": False}],
    "trocr": [{"cross_attention_hidden_size": 48}],
    "seamless_m4t": [{"position_embeddings_type": "rotary"}],
    "t5": [{"num_decoder_layers": 3}],
    "beit": [{"layer_scale_init_value": 0.0}],
    "data2vec-vision": [{"layer_scale_init_value": 0.0}],
    "cohere2_moe": [{"rms_norm_eps": 1e-5}],
    "internvl_vision": [{"norm_type": "rms_norm"}],
    "qianfan_ocr_vision": [{"norm_type": "rms_norm"}],
    "timesformer": [{"attention_type": "space_only"}],
    "falcon": [{"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}],
    "laguna": [{"num_attention_heads_per_layer": [4, 2]}],
    "mimo_v2_flash": [{"attention_value_scale": None}],
    "olmo": [{"clip_qkv": 1e3}],
}


def switches(model_type: str) -> list[dict[str, Any]]:
    """Config values that decide a fact of a row's stacks otherwise than the zoo's model does."""
    from eigenlens.circuit.architectures import ARCHITECTURES
    from eigenlens.circuit.facts import Switch
    from zoo import config_of

    config = config_of(model_type)
    turned: list[dict[str, Any]] = []

    def walk(rule: Any, before: dict[str, Any]) -> None:
        """Every switch, below the answers of those before it that lead to it."""
        if isinstance(rule, tuple):
            for part in rule:
                walk(part, before)
        if not isinstance(rule, Switch):
            return
        value = getattr(config, rule.key, None)
        if not isinstance(value, bool):
            return
        given = {**before, rule.key: not before.get(rule.key, value)}
        if given not in turned:
            turned.append(given)
        walk(rule.yes, {**before, rule.key: True})
        walk(rule.no, {**before, rule.key: False})

    for stack in ARCHITECTURES[model_type].stacks:
        for name in stack.__dataclass_fields__:
            walk(getattr(stack, name), {})
        for naming in stack.namings:
            walk(naming.norm_before, {})
    return turned + ALSO.get(model_type, [])


def verified(model_type: str, given: dict[str, Any] | None = None) -> list[Any]:
    """The equal-token identity of a model type's tiny model, every layer of every stack.

    `given` holds values of the config that win over the shrunk ones.
    """
    from eigenlens.circuit.checkpoint import open_checkpoint
    from eigenlens.live.verify import verify
    from zoo import build, double

    by_hand = None if given else BY_NAME.get(model_type)
    model = build(model_type, given=given) if by_hand is None else by_hand.build(head=False)
    with double():
        feed = every_input(model)
    rows = verify(open_checkpoint(model), model, inputs=feed)
    wrong = norm_faults(model, feed)
    if wrong:
        raise AssertionError(wrong[0])
    return rows


def every_input(model: Any) -> list[Any]:
    """Inputs of the model, and of those parts of it that need their own."""
    from zoo import INPUTS, inputs

    found: list[Any] = []
    with contextlib.suppress(Exception):
        found.append(inputs(model, 4))
    sections = [value for value in vars(model.config).values() if hasattr(value, "model_type")]
    for name, part in model.named_modules():
        config = getattr(part, "config", model.config)
        if config is model.config or not hasattr(part, "main_input_name"):
            continue
        make = INPUTS.get(getattr(config, "model_type", None))
        if make is None and any(config is section for section in sections):
            make = inputs
        if make is not None:
            with contextlib.suppress(Exception):
                found.append((name, make(part, 4)))
    return found


def norm_faults(model: Any, given: list[Any]) -> list[str]:
    """Norms that do not stand where the plans say: before the values, on the output, or the sum."""
    import numpy as np
    import torch

    from eigenlens.circuit.checkpoint import open_checkpoint
    from eigenlens.live.verify import _Bench

    plans = open_checkpoint(model).plans
    seen: dict[str, list[Any]] = {}
    hooks = []
    for norm in {n.module for p in plans for n in (p.norm_in, p.norm_out) if n is not None}:

        def keep(_m: Any, args: Any, out: Any, at: list[Any] = seen.setdefault(norm, [])) -> None:  # noqa: B008
            out = out[0] if isinstance(out, tuple) else out
            at.append((args[0].detach().numpy(), out.detach().numpy()))

        hooks.append(model.get_submodule(norm).register_forward_hook(keep))
    bench = _Bench(torch, model, plans, np.random.default_rng(0), tuple(given))
    ways = bench._ways(4)
    for calls in seen.values():
        calls.clear()
    runs = bench._run(ways, None)
    for hook in hooks:
        hook.remove()

    def agree(a: Any, b: Any) -> bool:  # windows are cut and rolled: the same numbers, elsewhere
        return a.size == b.size and bool(np.allclose(np.sort(a, None), np.sort(b, None), atol=1e-9))

    found = []
    for plan, calls in zip(plans, runs, strict=True):
        name = f"{plan.stack} {plan.kind} layer {plan.layer}"
        if not calls:
            found.append(f"{name}: it never ran")
            continue
        X, y = calls[0].X, calls[0].y
        padding = ~X.any(-1)
        fed = X[~padding] if X.ndim > 1 and padding.any() else X
        if plan.norm_in is not None and not any(
            agree(o, fed) for _, o in seen[plan.norm_in.module]
        ):
            found.append(f"{name}: {plan.norm_in.module} does not feed the values")
        if plan.norm_out is None or y is None:
            continue
        total = y if plan.placement == "sandwich" or X.size != y.size else y + X.reshape(y.shape)
        if plan.placement == "post" and (plan.kind == "cross" or X.size != y.size):
            continue  # the sum is with the stream, which the values do not read, or read pooled
        if not any(agree(i, total) for i, _ in seen[plan.norm_out.module]):
            found.append(f"{name}: {plan.norm_out.module} does not act on the output")
    return found


def fault(rows: list[Any]) -> str:
    """What is wrong with a verification; empty if nothing."""
    if not rows:
        return "no layer"
    worst = max(max(r.error_one or 0.0, r.error_four, r.error_heads or 0.0) for r in rows)
    bad = [r for r in rows if not r.ok]
    if worst <= TOLERANCE and not bad:
        return ""
    r = (bad or rows)[0]
    return (
        f"{r.stack} {r.kind} layer {r.layer}: one token {r.error_one}, four {r.error_four}, "
        f"heads {r.error_heads} {r.note}"
    )


def outcome(model_type: str, given: dict[str, Any] | None = None) -> str:
    """`verified`, or why not."""
    try:
        return fault(verified(model_type, given)) or "verified"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def main(arguments: list[str]) -> int:
    from eigenlens.circuit.architectures import ARCHITECTURES

    write, turned, faults = "--write" in arguments, "--switches" in arguments, 0
    types = [a for a in arguments if not a.startswith("-")] or sorted(ARCHITECTURES)
    found = {}
    for model_type in types:
        found[model_type] = outcome(model_type)
        print(f"{model_type:32} {found[model_type]}", flush=True)
        for given in switches(model_type) if turned else ():
            other = outcome(model_type, given)
            print(f"{model_type:32} {given}: {other}", flush=True)
            # A config that refuses the value, or a row that refuses the model, is no fault.
            faults += not any(word in other for word in ("verified", "has no F", "Dataclass"))
    good = sum(text == "verified" for text in found.values())
    print(f"{good} of {len(found)} verified")
    if write:
        if len(types) < len(ARCHITECTURES) and GOLDEN.exists():
            known = json.loads(GOLDEN.read_text(encoding="utf-8"))
            found = {t: text for t, text in known.items() if t in ARCHITECTURES} | found
        GOLDEN.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    return int(good < len(found) or faults > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    raise SystemExit(main(sys.argv[1:]))
