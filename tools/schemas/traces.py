"""The document of trace."""

from __future__ import annotations

from eigenlens.tracing import estimate, ladder, nulls
from eigenlens.tracing import options as tracing_options
from eigenlens.tracing import result as tracing
from schemas.common import (
    ASKED_ORDER,
    DTYPE,
    INTERVAL,
    KIND,
    LAYER,
    LAYERS,
    MAYBE_STR,
    OPERATOR,
    ORDER,
    REGIME,
    TARGET,
    head,
)
from schemas.spectra import PRINCIPAL_WORDS
from schemas.words import (
    BOOL,
    COUNT,
    FLOAT,
    INT,
    NUM,
    SHARE,
    STR,
    Schema,
    closed,
    either,
    keyed,
    many,
    maybe,
    one_of,
    ref,
)

MEASURES: dict[str, Schema] = {"gamma": FLOAT, "gain": FLOAT, "rho": FLOAT}
QUANTILES = closed(
    {name: many(FLOAT, 3, 3) for name in MEASURES},
    words={name: f"2.5 %, 50 % and 97.5 % quantile of {name}." for name in MEASURES},
)
NULL_N = {"n": "How many directions, or rotations, the means are over.", "quantiles": "Spread."}
NULLS = closed(
    {
        "random_direction": closed({**MEASURES, "quantiles": QUANTILES, "n": COUNT}, words=NULL_N),
        **{
            name: maybe(closed({**MEASURES, "n": COUNT}, words=NULL_N))
            for name in nulls.NULLS
            if name not in ("random_direction", "random_init")
        },
        "random_init": maybe(closed(MEASURES)),
    },
    words={name: f"{text[0].upper()}{text[1:]}." for name, text in nulls.NULLS.items()},
)
COLLAPSE_WORDS = {
    "cosine": "Mean cosine of two different tokens.",
    "rank_residual": "Distance from the mean token, relative, sqrt(1-norm times inf-norm).",
    "frobenius_residual": "The same in the Frobenius norm.",
    "high_low_ratio": "What differs between tokens over what they share.",
    "effective_rank": "exp of the entropy of the normalised singular values.",
    "stable_rank": "|X|_F^2 / |X|_2^2.",
    "participation_ratio": "(sum s)^2 / sum s^2, s the squared singular values.",
    "anisotropy": "Mean cosine of tokens of different prompts.",
    "dirichlet_energy": "Differences of tokens weighted by attention; null where not measured.",
}
COLLAPSE_NAMES = [name for name in COLLAPSE_WORDS if name != "dirichlet_energy"]
COLLAPSE = closed(dict.fromkeys(COLLAPSE_NAMES, FLOAT), words=COLLAPSE_WORDS)
SINK_MEASURES = closed({**MEASURES, "n_tokens": COUNT})
TRACE_LAYER = closed(
    {
        **LAYER,
        "step": COUNT,
        "order": ORDER,
        "operator": OPERATOR,
        "regime": REGIME,
        "target": TARGET,
        "target_dim": COUNT,
        "gap": FLOAT,
        "gamma": FLOAT,
        "expected_gamma": FLOAT,
        "gain": FLOAT,
        "signed_gain": FLOAT,
        "rho": SHARE,
        "gamma_ci": maybe(INTERVAL),
        "gain_ci": maybe(INTERVAL),
        "signed_gain_ci": maybe(INTERVAL),
        "rho_ci": maybe(INTERVAL),
        "p_value": SHARE,
        "p_holm": SHARE,
        "p_gamma": SHARE,
        "p_half": SHARE,
        "p_half_holm": SHARE,
        "nulls": maybe(NULLS),
        "sinks": closed(
            {"n": COUNT, "share": SHARE, "with": SINK_MEASURES, "without": SINK_MEASURES},
            words={
                "n": "Attention sinks among the tokens.",
                "share": "Their share.",
                "with": "Measures of all tokens.",
                "without": "Measures of tokens that are no sinks.",
            },
        ),
        "collapse": closed(dict.fromkeys(COLLAPSE_WORDS, FLOAT), words=COLLAPSE_WORDS),
        "collapse_block": maybe(ref("collapse")),
        "overlap_mean": FLOAT,
        "overlap_sinks": FLOAT,
        "n_tokens": COUNT,
        "n_prompts": COUNT,
        "undefined": COUNT,
        "ladder": maybe(keyed(closed(MEASURES), ladder.RUNGS)),
        "beyond_random": maybe(BOOL),
    },
    tracing.LayerTrace,
    words={
        **{name: PRINCIPAL_WORDS[name] for name in ("regime", "target")},
        "stack": "Name of the stack.",
        "layer": "Index of the layer, from 0.",
        "kind": "self or cross attention.",
        "step": "Which attention call of the stack, from 0.",
        "order": "What leads: residual, real or modulus.",
        "operator": "raw: F; folded: with the linear part of the norm.",
        "gap": "Lead of the first over the second.",
        "target_dim": "Dimension of what tokens are measured against.",
        "gamma": "Mean alignment after the step.",
        "gain": "Mean of the alignment after less before.",
        "signed_gain": "The same of the signed cosine; null unless one real direction leads.",
        "rho": "Share of tokens that moved closer.",
        "p_value": "Share of random directions with a rho as large or larger.",
        "p_holm": "The same, corrected over layers.",
        "p_half": "Two-sided sign test over prompts of rho against 1/2.",
        "p_half_holm": "The same, corrected over layers.",
        "collapse": "Collapse measures of the state after attention.",
        "collapse_block": "Collapse measures of the state after the block; null where not run.",
        "overlap_mean": "Overlap of the target with the mean direction of the tokens before.",
        "overlap_sinks": "Overlap of the target with the mean direction of the sinks.",
        "n_tokens": "Tokens that count.",
        "n_prompts": "Prompts that count.",
        "undefined": "Tokens left out because a state is exactly zero.",
        "beyond_random": "Whether rho is larger than random directions give; null without them.",
    },
)
TRACE_STACK = closed(
    {
        "stack": STR,
        "kind": KIND,
        "layers": many(INT),
        "overlaps": many(many(FLOAT)),
        "gain_against_gap": closed(
            {"r": FLOAT, "ci": maybe(INTERVAL), "n": COUNT, "warning": MAYBE_STR},
            words={
                "r": "Spearman's correlation over layers.",
                "ci": "Its 95 % interval.",
                "n": "Layers.",
                "warning": "Why there is no interval.",
            },
        ),
        "start": ref("collapse"),
    },
    tracing.StackTrace,
    words={"stack": "Name of the stack.", "kind": "self or cross attention."},
)
TRACE_OPTIONS = closed(
    {
        "mode": one_of(tracing_options.MODES),
        "order": ASKED_ORDER,
        "operator": OPERATOR,
        "tie_tolerance": NUM,
        "bias": BOOL,
        "radius": maybe(either(NUM, STR)),
        "steps": maybe(COUNT),
        "ladder": BOOL,
        "nulls": BOOL,
        "directions": maybe(COUNT),
        "bootstrap": COUNT,
        "drop_sinks": BOOL,
        "sink_threshold": NUM,
        "special_tokens": STR,
        "batch_size": COUNT,
        "too_long": STR,
        "seed": COUNT,
        "prompts": STR,
        "n_prompts": COUNT,
        "dtype": DTYPE,
        "device": STR,
        "layers": LAYERS,
    },
    tracing_options.TraceOptions,
    words={
        "mode": "step, free or block: what is compared with what.",
        "order": "What leads, or auto.",
        "operator": "raw or folded.",
        "bias": "Whether b = W_O b_V + b_O stays on the attention output.",
        "radius": "Length of the states under the L2 norm; null where it is not used.",
        "nulls": "Whether the nulls are measured.",
        "directions": "Random directions; null without nulls.",
        "special_tokens": "Whether special tokens count: keep or drop.",
        "tie_tolerance": "Relative gap below which leaders count as tied.",
        "prompts": "Where the prompts come from.",
        "n_prompts": "How many.",
        "dtype": "Of the live model.",
        "batch_size": "Prompts a batch.",
        "too_long": "Whether prompts beyond the model's positions are cut or refused.",
    },
)
TRACE = closed(
    {
        **head("trace", model=ref("model"), options=TRACE_OPTIONS),
        "layers": many(ref("trace_layer")),
        "stacks": many(ref("trace_stack")),
        "verdict": closed(
            {
                "layers": COUNT,
                "rho_above_half": COUNT,
                "gain_positive": COUNT,
                "beyond_random": maybe(COUNT),
                "by": maybe(one_of(["p", "quantile"])),
            },
            words={
                "layers": "Attention calls that were measured.",
                "rho_above_half": "Calls with a rho above 1/2.",
                "gain_positive": "Calls with a positive gain.",
                "beyond_random": "Calls beyond random directions; null without them.",
                "by": "Whether the corrected p or a quantile decided.",
            },
        ),
        "skipped": many(ref("skipped")),
    },
    tracing.Trace,
    words={
        "model": "The model; sizes are those of its first stack.",
        "verdict": "How many layers tilt.",
    },
)
TRACE_ESTIMATE = closed(
    {
        **head("trace-estimate", model=ref("model"), options=TRACE_OPTIONS),
        "n_prompts": COUNT,
        "n_tokens": COUNT,
        "n_batches": COUNT,
        "longest": COUNT,
        "n_layers": COUNT,
        "measured_prompts": COUNT,
        "measured_layers": COUNT,
        "measured_seconds": NUM,
        "memory_bytes": maybe(COUNT),
        "seconds": NUM,
    },
    estimate.TraceEstimate,
    words={
        "n_prompts": "Prompts.",
        "n_tokens": "Their tokens; 0 for images.",
        "n_batches": "Batches.",
        "longest": "Tokens of the longest prompt.",
        "measured_prompts": "Prompts of the batch that was measured.",
        "measured_layers": "Layers that were measured; the others are reckoned from them.",
        "measured_seconds": "How long that took.",
    },
)
