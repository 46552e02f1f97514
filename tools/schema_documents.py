"""The JSON documents of eigenlens, key by key, for tools/write_schemas.py.

`DOCUMENTS` holds one entry a schema: where it comes from, what it holds, its body. `PARTS` holds
what several documents share. Texts that one of a table's keys can be are read from that table.
"""

from __future__ import annotations

from collections.abc import Mapping

from write_schemas import (
    BOOL,
    COMPLEX,
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

from eigenlens.circuit.circuit import KINDS, NORM_KINDS, PLACEMENTS
from eigenlens.circuit.plans import LayerPlan, Skipped
from eigenlens.claims.evidence import Settings
from eigenlens.claims.result import Reproduction
from eigenlens.claims.suites import SUITES
from eigenlens.claims.table import CLAIMS
from eigenlens.claims.verdicts import VERDICTS, Finding
from eigenlens.cli.samples import SampleList
from eigenlens.comparing import matching
from eigenlens.comparing.difference import Difference
from eigenlens.comparing.result import Comparison, LayerComparison
from eigenlens.dynamics import live_run, outcome, predict
from eigenlens.dynamics import result as dynamics
from eigenlens.dynamics.simulate import FORMS
from eigenlens.live import verify
from eigenlens.live.replay import NORMS
from eigenlens.report.page.sections import SECTIONS
from eigenlens.report.page.write import Report
from eigenlens.samples import Sample
from eigenlens.spectra import estimate, orders, principal
from eigenlens.spectra import result as spectra
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.steering import applying, continuations, eigenpair, evaluate, options, probes
from eigenlens.steering import result as steering
from eigenlens.steering.delta import TEXTS
from eigenlens.steering.directions import Direction
from eigenlens.steering.edit import SITES, STEPS, Edit
from eigenlens.steering.strength import Window
from eigenlens.steering.undo import Undone
from eigenlens.steering.written import Written
from eigenlens.surveys import result as surveys
from eigenlens.surveys.options import TraceQuestion
from eigenlens.tracing import ladder, nulls
from eigenlens.tracing import options as tracing_options
from eigenlens.tracing import result as tracing

REGIME = one_of(principal.REGIMES)
TARGET = one_of(principal.TARGETS)
ORDER = one_of(orders.ORDERS)
ASKED_ORDER = one_of(["auto", *orders.ORDERS])
OPERATOR = one_of(["raw", "folded"])
DTYPE = one_of(["float64", "float32", "bfloat16", "float16"])
SOLVER = one_of(["auto", "dense", "krylov"])
KIND = one_of(KINDS)
LAYERS = maybe(many(INT))
INTERVAL = many(FLOAT, 2, 2)
MAYBE_STR = maybe(STR)


def head(name: str, *, model: Schema, options: Schema) -> dict[str, Schema]:
    """The keys that every document begins with."""
    return {
        "schema": {"const": f"eigenlens.{name}/1"},
        "eigenlens_version": STR,
        "model": model,
        "options": options,
        "warnings": many(STR),
    }


def model(**more: Schema) -> Schema:
    """The block that describes the model, with what a command adds to it."""
    words = {"stack": "The stack that was run.", "head": "What the model predicts: causal, masked."}
    return closed(
        {
            "source": STR,
            "model_type": MAYBE_STR,
            "d_model": COUNT,
            "n_layers": maybe(COUNT),
            "n_heads": maybe(COUNT),
            "n_kv_heads": maybe(COUNT),
            "head_dim": maybe(COUNT),
            "norm": maybe(one_of(NORM_KINDS)),
            "placement": maybe(one_of(PLACEMENTS)),
            **more,
        },
        words=words,
        optional=[],
    )


NO_OPTIONS = {**closed({}), "description": "Empty: there is nothing to choose."}
NO_MODEL = {"type": "null", "description": "Null: it is about no single model."}
LAYER = {"stack": STR, "layer": INT, "kind": KIND}
SHOWN_SCORE = closed(
    {"token": STR, "score": FLOAT},
    words={"token": "Text of the token.", "score": "Its entry in the vector of scores."},
)
SKIPPED = closed(
    {"stack": STR, "layer": INT, "reason": STR},
    Skipped,
    words={"layer": "Its index; -1 where the reason holds for the whole stack."},
)

# ---------------------------------------------------------------- spectrum, estimate, inspect

SPECTRUM_KEYS: dict[str, Schema] = {
    "k": COUNT,
    "order": ASKED_ORDER,
    "operator": OPERATOR,
    "all": BOOL,
    "per_head": BOOL,
    "decode": COUNT,
    "solver": SOLVER,
    "tie_tolerance": NUM,
    "dtype": DTYPE,
    "seed": COUNT,
    "keep_vectors": BOOL,
    "stack": MAYBE_STR,
    "layers": LAYERS,
}
STACK_WORDS = {"stack": "Only this stack; null for all.", "layers": "Only these; null for all."}

TOKENS = closed(
    {
        "positive": many(ref("score")),
        "negative": many(ref("score")),
        "through": STR,
    },
    words={
        "positive": "Tokens that the vector points to, the strongest first.",
        "negative": "Tokens that it points away from, the strongest first.",
        "through": "Which matrix turned the vector into scores.",
    },
)
PRINCIPAL_WORDS = {
    "regime": "As if this layer were iterated; one of the regimes.",
    "target": "What spans it: v1, a plane (complex pair), a span (tie) or the kernel.",
    "angle": "Turn of a complex leader in `angle_unit`; 0 for a real one, null where undefined.",
    "angle_unit": "Unit of the angle.",
    "steps_to_separate": "Until the second is a factor 10 behind, in `separate_unit`; null: never.",
}
HEAD = closed(
    {
        "head": COUNT,
        "eigenvalues": many(COMPLEX),
        "ov_trace_ratio": FLOAT,
        "copying_score": FLOAT,
        "share": maybe(COMPLEX),
    },
    spectra.HeadSpectrum,
)
SPECTRUM_LAYER = closed(
    {
        **LAYER,
        "steps": COUNT,
        "rank": COUNT,
        "order": ORDER,
        "operator": OPERATOR,
        "output_scale": either(NUM, many(NUM)),
        "eigenvalues": many(COMPLEX),
        "residuals": many(FLOAT),
        "relative_residuals": many(FLOAT),
        "conditions": many(FLOAT),
        "error_bars": many(FLOAT),
        "regime": REGIME,
        "target": TARGET,
        "gap": FLOAT,
        "angle": FLOAT,
        "angle_unit": STR,
        "steps_to_separate": FLOAT,
        "separate_unit": one_of(["steps", "depth factor"]),
        "spectral_norm": NUM,
        "frobenius_norm": NUM,
        "solver": STR,
        "dtype": DTYPE,
        "henrici": FLOAT,
        "negative_fraction": SHARE,
        "unit_negative_fraction": SHARE,
        "heads": maybe(many(ref("head"))),
        "tokens": maybe(keyed(ref("tokens"), ["right", "left", "right_imag", "left_imag"])),
    },
    spectra.LayerSpectrum,
    words={
        **PRINCIPAL_WORDS,
        "stack": "Name of the stack: decoder, encoder, ...",
        "layer": "Index of the layer, from 0.",
        "kind": "self or cross attention.",
        "steps": "How many times a forward pass applies the layer.",
        "order": "What leads: residual, real or modulus.",
        "operator": "raw: F; folded: with the linear part of the norm.",
        "output_scale": "Factor on the attention output, a number or one a coordinate.",
        "dtype": "Compute dtype.",
        "solver": "How it was computed.",
        "residuals": "|A v - lambda v| / |A|_2 of each eigenvalue.",
        "conditions": "1 / |w^H v| of each eigenvalue.",
        "error_bars": "Absolute first-order error bar of each eigenvalue.",
        "separate_unit": "steps, or depth factor under the order real.",
        "spectral_norm": "|A|_2.",
        "frobenius_norm": "|A|_F.",
    },
)
SPECTRUM = closed(
    {
        **head(
            "spectrum",
            model=ref("model"),
            options=closed(SPECTRUM_KEYS, SpectrumOptions, words=STACK_WORDS),
        ),
        "layers": many(ref("spectrum_layer")),
        "skipped": many(ref("skipped")),
    },
    spectra.Spectrum,
    words={"model": "The model; sizes are those of its first stack."},
)
ESTIMATE = closed(
    {
        **head(
            "estimate",
            model=ref("model"),
            options=closed(
                {k: SPECTRUM_KEYS[k] for k in ("k", "all", "operator", "solver", "dtype")}
                | {"per_head": BOOL},
                SpectrumOptions,
            ),
        ),
        "read_bytes": COUNT,
        "memory_bytes": COUNT,
        "seconds": NUM,
        "layers": many(
            closed(
                {
                    "name": STR,
                    "d": COUNT,
                    "solved": COUNT,
                    "solver": STR,
                    "read_bytes": COUNT,
                    "memory_bytes": COUNT,
                    "product_flops": NUM,
                    "eig_flops": NUM,
                    "moved_bytes": NUM,
                },
                estimate.LayerCost,
                words={
                    "d": "Width of the stream.",
                    "solved": "Size of the matrix that is solved.",
                    "product_flops": "Operations in matrix products.",
                    "eig_flops": "Operations in the dense solver.",
                    "moved_bytes": "Bytes streamed by the Krylov solver.",
                },
            )
        ),
    },
    estimate.Estimate,
)
ROLES = ("V", "O", "b_V", "b_O", "norm_in", "norm_out", "scale")
INSPECT_LAYER = closed(
    {
        **LAYER,
        "steps": COUNT,
        "layout": STR,
        "orientation": STR,
        "rank": COUNT,
        "d_in": COUNT,
        "d_out": COUNT,
        "output_scale": NUM,
        "placement": one_of(PLACEMENTS),
        "causal": BOOL,
        "bias": closed({"V": BOOL, "O": BOOL}, words={"V": "b_V is there.", "O": "b_O is there."}),
        "tensors": closed(
            {role: STR if role in ("V", "O") else MAYBE_STR for role in ROLES},
            words={role: f"Name of the tensor of {role}." for role in ROLES},
        ),
        "notes": many(STR),
        "verified": maybe(
            closed(
                {
                    "error_one": FLOAT,
                    "error_four": FLOAT,
                    "error_heads": FLOAT,
                    "ok": BOOL,
                    "note": STR,
                },
                verify.VerifyRow,
            )
        ),
    },
    LayerPlan,
    words={
        "layout": "How the value projection is fused with others.",
        "orientation": "How the output projection is stored.",
        "rank": "Largest rank that the shapes of F allow.",
        "d_in": "Width that F reads; if it is not d_out there is no spectrum.",
        "d_out": "Width that F writes.",
        "bias": "Whether V and O have biases.",
        "tensors": "Names in the files; null where the layer has none.",
        "verified": "Errors of the equal-token identity; null unless asked for.",
        "placement": "Where the norm is: post, pre, parallel or sandwich.",
    },
)
INSPECT = closed(
    {
        **head(
            "inspect",
            model=ref("model"),
            options=closed(
                {"verify": BOOL}, words={"verify": "Whether F was checked against the live model."}
            ),
        ),
        "layers": many(INSPECT_LAYER),
        "skipped": many(ref("skipped")),
    },
    words={"layers": "A record a layer: its tensors, and how they are stored."},
)

# ---------------------------------------------------------------- trace

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
    "participation_ratio": "Count of directions by the fourth powers.",
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
        "order": "What leads, or auto.",
        "operator": "raw or folded.",
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

# ---------------------------------------------------------------- simulate

RATES: dict[str, Schema] = {
    "disagreement_rate": FLOAT,
    "alignment_rate": FLOAT,
    "exponent": FLOAT,
    "angle_per_step": FLOAT,
}
STEP_WORDS = {
    "step": "Layer steps done; 0 is the start.",
    "layer": "The layer of this step; null at the start.",
    "cosine": "Mean cosine of two different tokens.",
    "disagreement": "|U - mean| / |U| of the unit tokens U.",
    "misalignment": "Sine of the angle to the target, root mean square.",
}
SIMULATE_OPTIONS = closed(
    {
        "form": one_of(FORMS),
        "norm": one_of(NORMS),
        "radius": FLOAT,
        "bias": BOOL,
        "ffn": BOOL,
        "mask": STR,
        "steps": COUNT,
        "starts": COUNT,
        "n_tokens": COUNT,
        "start": STR,
        "layers": many(INT),
        "order": ORDER,
        "operator": OPERATOR,
        "dtype": DTYPE,
        "tie_tolerance": NUM,
        "seed": COUNT,
    },
    live_run.simulate_model,
    words={
        "form": "normalised: N(x + attn(x)); stream: h + attn(N(h)).",
        "norm": "l2: N(z) = r z/|z|; real: the model's own norms.",
        "radius": "r of the L2 norm; null under the model's own norms.",
        "bias": "Whether b = W_O b_V + b_O stays.",
        "ffn": "Whether the whole block runs.",
        "mask": "What tokens see: full, causal or window:W.",
        "start": "What the starts are.",
        "starts": "How many starts.",
        "layers": "The layers of one pass.",
        "order": "What leads: residual or real.",
        "operator": "raw: F; folded: with the linear part of the norm.",
        "dtype": "Of the live model.",
        "seed": "Of random starts.",
    },
    optional=["norm", "bias", "ffn", "start", "layers", "operator", "dtype"],
)
MATRICES = closed(
    {"source": {"const": "matrices"}, "d_model": COUNT, "n_layers": COUNT, "n_heads": COUNT}
)
SIMULATE = closed(
    {
        **head("simulate", model=either(model(stack=STR), MATRICES), options=SIMULATE_OPTIONS),
        "outcome": closed(
            {
                "label": one_of(outcome.LABELS),
                "groups": many(COUNT),
                "step_reached": FLOAT,
                "settled": BOOL,
                "target": TARGET,
                "reached": MAYBE_STR,
                "distance": FLOAT,
                "period": maybe(COUNT),
                "balanced": BOOL,
                "observed": closed(RATES, predict.Prediction),
                "predicted": maybe(
                    closed(
                        {"label": one_of(outcome.LABELS), **RATES, "stable": BOOL},
                        predict.Prediction,
                    )
                ),
            },
            dynamics.Summary,
            words={
                "observed": "The predicted quantities as fitted to what was seen.",
                "predicted": "What the spectrum foretells; null where it foretells nothing.",
            },
        ),
        "basins": many(
            closed(
                {
                    "label": one_of(outcome.LABELS),
                    "count": COUNT,
                    "share": SHARE,
                    "interval": INTERVAL,
                },
                words={
                    "label": "The outcome.",
                    "count": "Starts that ended so.",
                    "share": "Their share.",
                    "interval": "Wilson's 95 % interval of the share.",
                },
            )
        ),
        "stability": maybe(many(FLOAT)),
        "eigenvalues": many(COMPLEX),
        "trajectory": many(
            closed(
                {
                    "step": COUNT,
                    "layer": maybe(INT),
                    **MEASURES,
                    "cosine": FLOAT,
                    "disagreement": FLOAT,
                    "misalignment": FLOAT,
                },
                words=STEP_WORDS,
            )
        ),
    },
    dynamics.Simulation,
    words={
        "outcome": "Where the tokens ended.",
        "basins": "How often each outcome was met.",
        "model": "The model, or the matrices that were given.",
        "options": "How it was simulated.",
    },
)

# ---------------------------------------------------------------- compare

SIDE = closed(
    {
        "eigenvalue": maybe(COMPLEX),
        "error_bar": FLOAT,
        "regime": REGIME,
        "target": TARGET,
        "gap": FLOAT,
        "angle": FLOAT,
        "spectral_norm": FLOAT,
    },
    words={
        **PRINCIPAL_WORDS,
        "eigenvalue": "The leading one.",
        "error_bar": "Its error bar.",
        "angle": "Turn of a complex leader.",
        "spectral_norm": "|F|_2.",
    },
)
MATCHED = closed(
    {
        "before": COMPLEX,
        "after": COMPLEX,
        "index_before": maybe(COUNT),
        "index_after": maybe(COUNT),
        "distance": FLOAT,
        "bar": FLOAT,
        "kind": one_of(matching.KINDS),
        "certain": BOOL,
        "changed": BOOL,
    },
    matching.Match,
    words={
        "before": "Its value in A; of a pair the one with positive imaginary part.",
        "after": "Its value in B.",
        "index_before": "Place in A's sorted list, from 0; null for the kernel.",
        "index_after": "Place in B's sorted list, from 0; null for the kernel.",
        "kind": "What was matched with what.",
        "changed": "Whether it moved by more than both error bars together.",
    },
)
COMPARE_LAYER = closed(
    {
        **LAYER,
        "order": ORDER,
        "operator": OPERATOR,
        "relative_change": FLOAT,
        "frobenius_difference": FLOAT,
        "frobenius_a": FLOAT,
        "frobenius_b": FLOAT,
        "spectral_difference": FLOAT,
        "rounding": FLOAT,
        "cosine": FLOAT,
        "changed": BOOL,
        "identical": BOOL,
        "rank": COUNT,
        "effective_rank": FLOAT,
        "bias_change": FLOAT,
        "a": maybe(ref("side")),
        "b": maybe(ref("side")),
        "regime_changed": BOOL,
        "new_leader": BOOL,
        "principal_angles": many(FLOAT),
        "eigenvalues": many(MATCHED),
    },
    LayerComparison,
    Difference,
    words={
        "stack": "Name of the stack.",
        "layer": "Index of the layer, from 0.",
        "kind": "self or cross attention.",
        "order": "What leads, in both.",
        "operator": "Of which matrix, in both.",
        "relative_change": "|F_A - F_B|_F / |F_A|_F; null where only A is zero.",
        "frobenius_difference": "|F_A - F_B|_F.",
        "frobenius_a": "|F_A|_F.",
        "frobenius_b": "|F_B|_F.",
        "spectral_difference": "|F_A - F_B|_2.",
        "cosine": "<F_A, F_B> / (|F_A|_F |F_B|_F); null for a zero matrix.",
        "changed": "Whether the difference is more than rounding.",
        "a": "What leads A; null where F is not square.",
        "b": "What leads B; null where F is not square.",
        "regime_changed": "Whether the two lead in different regimes, or to other targets.",
        "new_leader": "Whether another eigenvalue than A's leading one leads B.",
        "eigenvalues": "The leading eigenvalues of both with their partners, in A's sequence.",
    },
)
ONLY = closed(
    {"stack": STR, "layer": INT, "kind": KIND, "reason": STR},
    words={"reason": "Why the other has none."},
)
COMPARE = closed(
    {
        "schema": {"const": "eigenlens.compare/1"},
        "eigenlens_version": STR,
        "model": ref("model"),
        "other": ref("model"),
        "options": closed(
            {
                **{
                    k: SPECTRUM_KEYS[k]
                    for k in ("k", "order", "operator", "solver", "tie_tolerance", "dtype", "seed")
                },
                "stack": MAYBE_STR,
                "layers": LAYERS,
            },
            SpectrumOptions,
            words=STACK_WORDS,
        ),
        "warnings": many(STR),
        "largest_change": FLOAT,
        "ranking": many(STR),
        "layers": many(COMPARE_LAYER),
        "only": closed(
            {"a": many(ONLY), "b": many(ONLY)},
            words={"a": "Layers that only A has.", "b": "Layers that only B has."},
        ),
    },
    Comparison,
    words={
        "model": "A, the one before.",
        "other": "B, the one after.",
        "largest_change": "The largest relative_change of any layer: what --fail-above is about.",
        "ranking": "Names of the layers, the one that moved most first.",
        "only": "Layers that only one of them has.",
    },
)

# ---------------------------------------------------------------- steer, apply, unsteer, files

EDIT_WORDS = {
    "stack": "Name of the stack.",
    "layer": "Index of the layer that is edited.",
    "kind": "self or cross attention.",
    "steps": "Of a layer that runs several times: all its calls, or the last alone.",
    "dW_norm": "Frobenius norm of the term that is added.",
    "realised_ratio": "|cast(W + D) - W| / |D|: what the dtype kept of the edit.",
    "realised_projection": "Share of the edit itself that arrived.",
    "projection": "Share of the edit itself that arrived in the stored type.",
    "tensor": "The edited tensor; for an adapter the module that it acts on.",
    "file": "The file that holds it.",
    "sha256_before": "SHA-256 of the tensor's bytes before.",
    "sha256_after": "SHA-256 of the tensor's bytes after.",
}
EDIT_KEYS: dict[str, Schema] = {
    "model": STR,
    "model_type": STR,
    **LAYER,
    "site": one_of(SITES),
    "steps": one_of(STEPS),
    "probe": STR,
    "label": STR,
    "strength": NUM,
    "dW_norm": NUM,
}
EDIT = closed(EDIT_KEYS, Edit, words=EDIT_WORDS)
WRITTEN_KEYS: dict[str, Schema] = {
    "edit": ref("edit"),
    "form": one_of(steering.FORM_NAMES),
    "folder": STR,
    "files": many(STR),
    "tensor": STR,
    "file": MAYBE_STR,
    "realised_ratio": FLOAT,
    "projection": FLOAT,
    "changed": maybe(COUNT),
    "sha256_before": MAYBE_STR,
    "sha256_after": MAYBE_STR,
    "left_out": many(STR),
    "size": COUNT,
}
WRITTEN_WORDS = {**EDIT_WORDS, "changed": "Entries of the tensor with other bits."}
COSINES: dict[str, Schema] = {
    "mean_cosine": FLOAT,
    "min_cosine": FLOAT,
    "positive_fraction": FLOAT,
    "n_tokens": maybe(COUNT),
}
COSINE_WORDS = {
    "mean_cosine": "Mean signed cosine of tokens with the direction.",
    "min_cosine": "The least.",
    "mean_cosine_before": "The mean in the unedited model.",
    "first": "The same of the first token of each prompt, which is left out above.",
}
FIRST = closed(COSINES, evaluate.Cosines, words=COSINE_WORDS)
PLACES = {
    "after_sublayer": "Right after the edited sub-layer; null where there is no such place.",
    "after_block": "After the block.",
    "after_final_norm": "After the final norm.",
}
AT_PLACES = closed(
    {
        place: maybe(
            closed({**COSINES, "first": ref("cosines")}, evaluate.Cosines, words=COSINE_WORDS)
        )
        for place in PLACES
    },
    words=PLACES,
)
AT_PLACES_BEFORE = closed(
    {
        place: maybe(
            closed(
                {**COSINES, "mean_cosine_before": FLOAT, "first": ref("cosines")},
                evaluate.Cosines,
                words=COSINE_WORDS,
            )
        )
        for place in PLACES
    },
    words=PLACES,
)
POINT = closed(
    {
        "strength": FLOAT,
        "kl": FLOAT,
        "perplexity": FLOAT,
        "target_probability": FLOAT,
        "target_rank": FLOAT,
        "tokens": ref("places"),
    },
    evaluate.Measure,
    words={"tokens": "Cosines of the tokens with the direction, by place."},
)
LEADER = closed(
    {"eigenvalue": COMPLEX, "gap": FLOAT, "cos_direction": FLOAT, "order": ORDER, "target": TARGET},
    eigenpair.Leader,
    words={"order": "What leads.", "target": "What tokens are drawn to."},
)
STEER_OPTIONS = closed(
    {
        "token": maybe(many(either(STR, INT))),
        "direction": MAYBE_STR,
        "contrast": maybe(many(STR, 2, 2)),
        "probe": one_of(probes.PROBES),
        "from_layer": maybe(INT),
        "layer": INT,
        "stack": MAYBE_STR,
        "site": one_of(SITES),
        "steps_edited": one_of(STEPS),
        "strength": either(NUM, {"const": "auto"}),
        "target_cosine": FLOAT,
        "max_kl": NUM,
        "sweep": BOOL,
        "weights_only": BOOL,
        "batch_size": COUNT,
        "seed": COUNT,
        "calibration": STR,
        "evaluation": STR,
        "n_calibration": COUNT,
        "n_evaluation": COUNT,
        "dtype": DTYPE,
    },
    options.SteerOptions,
    words={
        "direction": "The file that holds the vector, or array.",
        "layer": "The layer as it was asked for; -1 is the last.",
        "stack": "Its stack; null for the first.",
        "batch_size": "Prompts a batch.",
        "seed": "Of random tokens.",
        "calibration": "Where the texts of the probe come from.",
        "evaluation": "Where the texts come from that the edit is judged on.",
        "n_calibration": "How many texts the probe is fitted to.",
        "n_evaluation": "How many texts the edit is judged on.",
        "dtype": "Of the live model.",
    },
    optional=["calibration", "evaluation", "n_calibration", "n_evaluation", "dtype"],
)
STEER_MODEL = model(head=STR)
STEER_MODEL["required"].remove("head")
STEER = closed(
    {
        **head("steer", model=STEER_MODEL, options=STEER_OPTIONS),
        "direction": closed(
            {
                "label": STR,
                "kind": STR,
                "through": STR,
                "targets": many(COUNT),
                "says": many(STR),
            },
            Direction,
            words={"says": "Tokens that it makes likeliest."},
        ),
        "edit": closed(
            {
                **{k: v for k, v in EDIT_KEYS.items() if k not in ("model", "model_type", "label")},
                "calls": COUNT,
                "relative_norm": FLOAT,
                "alpha_qu": FLOAT,
                "realised_ratio": FLOAT,
                "realised_projection": FLOAT,
            },
            Edit,
            steering.Steering,
            words=EDIT_WORDS,
        ),
        "spectrum": maybe(
            closed(
                {
                    "before": ref("leader"),
                    "after": ref("leader"),
                    "formula": maybe(
                        closed(
                            {
                                "eigenvalue": COMPLEX,
                                "cos_direction": FLOAT,
                                "residual": FLOAT,
                                "error": FLOAT,
                            },
                            eigenpair.Formula,
                        )
                    ),
                },
                words={
                    "before": "What leads the layer unedited.",
                    "after": "What leads the edited layer.",
                    "formula": "The exact new eigenpair, and how far the solver's is from it.",
                },
            )
        ),
        "tokens": maybe(AT_PLACES_BEFORE),
        "effect": maybe(
            closed(
                {
                    "kl": FLOAT,
                    "kl_unedited": FLOAT,
                    "perplexity_before": FLOAT,
                    "perplexity_after": FLOAT,
                    "target_probability_before": FLOAT,
                    "target_probability_after": FLOAT,
                    "target_rank_before": FLOAT,
                    "target_rank_after": FLOAT,
                },
                evaluate.Measure,
                words={
                    "kl_unedited": "The same for an edit of strength 0: rounding.",
                    "perplexity_before": "Perplexity of the unedited model.",
                    "perplexity_after": "Perplexity of the edited model.",
                    "target_probability_before": "Mean probability of the wanted tokens.",
                    "target_probability_after": "The same in the edited model.",
                    "target_rank_before": "Median of the best rank of a wanted token, from 1.",
                    "target_rank_after": "The same in the edited model.",
                },
            )
        ),
        "curve": maybe(many(ref("point"))),
        "window": maybe(closed({"low": FLOAT, "high": FLOAT}, Window)),
        "activation": maybe(ref("point")),
        "continuations": many(
            closed(
                {"prompt": STR, "before": STR, "after": STR, "activation": STR},
                continuations.Continuation,
                words={
                    "before": "What the unedited model says next.",
                    "after": "What the edited model says next.",
                    "activation": "What it says with activation addition.",
                },
                optional=["before", "after", "activation"],
            )
        ),
        "written": maybe(closed(WRITTEN_KEYS, Written, words=WRITTEN_WORDS)),
    },
    steering.Steering,
    words={
        "model": "The model; sizes are those of its first stack.",
        "options": "What was asked, and what was taken where nothing was.",
        "warnings": "Sentences a reader should see.",
        "edit": "Where the edit acts, and how strongly.",
        "tokens": "Cosines of the tokens with the direction, by place; null without a model.",
        "effect": "Effect on predictions; null without a model.",
        "written": "What was saved of it; null where nothing was.",
    },
)
APPLY = closed(
    {
        **head(
            "apply",
            model=STR,
            options=closed(
                {"delta": STR, "as": one_of(applying.FORMS)},
                words={"delta": "The delta file.", "as": "The form that was written."},
            ),
        ),
        **WRITTEN_KEYS,
    },
    Written,
    words={**WRITTEN_WORDS, "model": "What the user named."},
)
RECORDED: dict[str, Schema] = {
    **EDIT_KEYS,
    "tensor": STR,
    "file": STR,
    "dtype": STR,
    "orientation": STR,
    "realised_ratio": FLOAT,
    "projection": FLOAT,
    "sha256_before": STR,
    "sha256_after": STR,
}
RECORDED_WORDS = {
    **EDIT_WORDS,
    "dtype": "Stored type of the tensor.",
    "orientation": "How the output projection is stored.",
    "untied": "Of shared layers that were untied for the edit: what brings them back.",
}
UNSTEER = closed(
    {
        **head("unsteer", model=STR, options=NO_OPTIONS),
        "undone": closed(RECORDED, Edit, words=RECORDED_WORDS),
        "remaining": COUNT,
        "resumed": BOOL,
    },
    Undone,
    words={"model": "The folder.", "undone": "The record of the edit that was undone."},
)
STEERED = closed(
    {
        "schema": {"const": "eigenlens.steered/1"},
        "eigenlens_version": STR,
        "edits": many(
            closed(
                {
                    **RECORDED,
                    "untied": closed(
                        {"files": keyed(STR), "tensors": keyed(STR), "key": STR},
                        words={
                            "files": "SHA-256 of each weight file as it was.",
                            "tensors": "Where each tensor is now.",
                            "key": "The key of config.json that says how many layers are shared.",
                        },
                    ),
                },
                Edit,
                words=RECORDED_WORDS,
                optional=["untied"],
            )
        ),
    },
    words={"edits": "The edits of the folder, the oldest first."},
)

# ---------------------------------------------------------------- reproduce, survey, report

REPRODUCE = closed(
    {
        **head(
            "reproduce",
            model=NO_MODEL,
            options=closed(
                {
                    "suite": either(one_of(SUITES), many(STR)),
                    "claims": many(one_of([c.name for c in CLAIMS])),
                    "starts": COUNT,
                    "steps": COUNT,
                    "seed": COUNT,
                },
                Settings,
                words={
                    "suite": "Name of the suite, or the models that were given.",
                    "claims": "The claims that were asked for.",
                },
            ),
        ),
        "counts": closed(dict.fromkeys(VERDICTS, COUNT), words=VERDICTS),
        "claims": many(
            closed(
                {
                    "claim": one_of([c.name for c in CLAIMS]),
                    "statement": STR,
                    "choice": STR,
                    "model": STR,
                    "verdict": one_of(VERDICTS),
                    "measured": STR,
                    "value": FLOAT,
                    "interval": maybe(INTERVAL),
                    "details": {"type": "object"},
                },
                Finding,
                words={
                    "claim": "Name of the claim.",
                    "statement": "The claim in words.",
                    "choice": "What was chosen where the paper leaves it open.",
                    "model": "The model it was measured on.",
                    "verdict": "holds, fails, undecided or not run.",
                    "details": "Further numbers of this claim.",
                },
            )
        ),
    },
    Reproduction,
    words={
        "counts": "How many rows have each verdict.",
        "claims": "One entry a claim and model, in the order of the claims.",
    },
)
SURVEY_OPTIONS = closed(
    {
        **{k: v for k, v in SPECTRUM_KEYS.items() if k not in ("per_head", "decode")},
        "architecture": MAYBE_STR,
        "trace": BOOL,
        "prompts": maybe(COUNT),
        "nulls": BOOL,
        "device": STR,
    },
    SpectrumOptions,
    TraceQuestion,
    words={
        **STACK_WORDS,
        "trace": "Whether the models are traced as well.",
        "prompts": "How many prompts; null for the usual ones.",
        "nulls": "Whether the nulls are measured.",
        "device": "Where the models run.",
    },
    optional=["prompts", "nulls", "device"],
)
del SURVEY_OPTIONS["properties"]["keep_vectors"]
SURVEY_OPTIONS["required"].remove("keep_vectors")
SUMMARY = closed(
    {
        "model": STR,
        "series": STR,
        "train_step": maybe(INT),
        "status": one_of(surveys.STATUSES),
        "reason": MAYBE_STR,
        "model_type": MAYBE_STR,
        "d_model": maybe(COUNT),
        "n_layers": maybe(COUNT),
        "placement": maybe(one_of(PLACEMENTS)),
        "layers": COUNT,
        "skipped": COUNT,
        "regimes": keyed(SHARE, principal.REGIMES),
        "gap": FLOAT,
        "disagreement_rate": FLOAT,
        "alignment_rate": FLOAT,
        "exponent": FLOAT,
        **MEASURES,
        "beyond_random": SHARE,
    },
    surveys.ModelSummary,
    words={
        "model": "Name of the checkpoint, as in the list.",
        "series": "What it is a step or a revision of.",
        "train_step": "Its training step, read from the name.",
        "status": "complete, partial, failed or missing.",
        "reason": "Why it failed.",
        "model_type": "The config's model_type; null while nothing is there.",
        "d_model": "Width of the residual stream.",
        "n_layers": "Layers.",
        "placement": "Where the norms are.",
        "layers": "Layers with a spectrum.",
        "skipped": "Layers without one.",
        "disagreement_rate": "Median of the predicted factor a step; null in pre-norm models.",
        "alignment_rate": "Median of the predicted factor a step; null in pre-norm models.",
        "exponent": "Median of the predicted exponent of depth; null in post-norm models.",
        "gamma": "Mean over the traced attention calls; null unless the survey traces.",
        "gain": "Mean over the traced attention calls.",
        "rho": "Mean over the traced attention calls.",
    },
)
SURVEY = closed(
    {
        **head("survey", model=NO_MODEL, options=either(SURVEY_OPTIONS, closed({}))),
        "folder": STR,
        "run": maybe(
            closed(
                {"computed": COUNT, "kept": COUNT, "failed": COUNT, "seconds": NUM},
                words={
                    "computed": "Checkpoints of which something was computed.",
                    "kept": "Checkpoints that were there already.",
                    "failed": "Checkpoints that failed.",
                    "seconds": "Wall time.",
                },
            )
        ),
        "models": many(SUMMARY),
        "failed": many(
            closed(
                {"model": STR, "reason": MAYBE_STR},
                words={"model": "Name of the checkpoint.", "reason": "Why it failed."},
            )
        ),
    },
    surveys.Survey,
    words={"failed": "The checkpoints that failed."},
)
SURVEY_RECORD = closed(
    {
        "schema": {"const": "eigenlens.survey-record/1"},
        "options": SURVEY_OPTIONS,
        "members": keyed(MAYBE_STR),
    },
    words={"members": "By checkpoint why it failed; null where it did not."},
)
SPHERE = closed(
    {
        "depth": many(COUNT),
        "label": many(STR),
        "prompt": many(COUNT),
        "position": many(COUNT),
        "token": many(STR),
        "special": many(BOOL),
        **{name: many(FLOAT) for name in ("x", "y", "z", "share", "alignment")},
        "prompts": many(STR),
    },
    words={
        "depth": "Depth of each point, from 0, the start.",
        "label": "What the depth is: start, or a layer or step.",
        "prompt": "Which prompt the token belongs to.",
        "position": "Its place in the prompt.",
        "token": "Its text.",
        "special": "Whether it is a special token.",
        "x": "First coordinate of its direction.",
        "y": "Second coordinate.",
        "z": "Third coordinate.",
        "share": "Share of the state's length that the three coordinates hold.",
        "alignment": "Cosine with what leads.",
        "prompts": "Text of each prompt.",
    },
)
REPORT = closed(
    {
        **head(
            "report",
            model=either(ref("model"), closed({})),
            options=closed(
                {"sections": many(one_of(SECTIONS)), "seed": COUNT, "steps": COUNT},
                words={
                    "sections": "Sections of the page.",
                    "steps": "Layer steps of the simulation.",
                },
            ),
        ),
        "summary": many(
            closed(
                {"question": STR, "verdict": STR, "detail": STR},
                words={
                    "question": "A question of the reader.",
                    "verdict": "The answer in a few words.",
                    "detail": "What it rests on.",
                },
            )
        ),
        "missing": keyed(STR, SECTIONS),
        "spectrum": maybe(ref("spectrum")),
        "trace": maybe(ref("trace")),
        "simulate": maybe(ref("simulate")),
        "sphere": maybe(SPHERE),
        "provenance": closed(
            {
                "command": STR,
                "made_on": STR,
                "files": many(
                    closed(
                        {"file": STR, "bytes": COUNT, "sha256": MAYBE_STR},
                        words={
                            "file": "Its name.",
                            "bytes": "Its size.",
                            "sha256": "Its SHA-256; null where it was not taken.",
                        },
                    )
                ),
                "versions": keyed(STR),
                "seconds": keyed(NUM),
                "parts": keyed({"type": "object"}, ["spectrum", "trace", "simulate"]),
            },
            words={
                "command": "The command that makes the page again.",
                "made_on": "The date, in UTC.",
                "files": "Weight files and config.",
                "versions": "Versions of Python and of what computes.",
                "seconds": "Wall time of each part.",
                "parts": "Options of each part.",
            },
        ),
    },
    Report,
    words={
        "summary": "The answers that the page begins with.",
        "missing": "Sections without a figure, with the reason.",
        "spectrum": "A document of eigenlens.spectrum/1; of each head the four leading values.",
        "trace": "A document of eigenlens.trace/1.",
        "simulate": "A document of eigenlens.simulate/1.",
        "sphere": "Points of the sphere, column by column.",
        "provenance": "What the page was made of, by what, and when.",
    },
)
SAMPLES = closed(
    {
        **head("samples", model=NO_MODEL, options=NO_OPTIONS),
        "samples": many(
            closed(
                {
                    **dict.fromkeys(Sample.__dataclass_fields__, STR),
                    "kind": one_of(["bundled", "wheel"]),
                    "size": COUNT,
                    "installed": BOOL,
                    "install_command": STR,
                },
                Sample,
                words={
                    "kind": "bundled: in the package; wheel: in another distribution.",
                    "distribution": "Name on the package index; empty for a bundled sample.",
                    "version": "Its version there.",
                    "wheel": "File name of its wheel.",
                    "wheel_sha256": "SHA-256 of the wheel.",
                    "installed": "Whether it is here.",
                    "install_command": "The command that installs it; empty for a bundled one.",
                },
            )
        ),
    },
    SampleList,
    words={"samples": "One entry a sample."},
)
CACHE = closed(
    {
        **head("cache", model=NO_MODEL, options=NO_OPTIONS),
        "folders": closed(
            {"results": STR, "weights": STR},
            words={
                "results": "Where results of layers are kept.",
                "weights": "Where byte ranges from the hub are kept.",
            },
        ),
        "kept": many(
            closed(
                {
                    "kind": one_of(["results", "weights"]),
                    "of": MAYBE_STR,
                    "bytes": COUNT,
                    "files": COUNT,
                },
                words={
                    "kind": "Results of layers, or byte ranges of weights.",
                    "of": "The repository on the hub; null for results.",
                    "bytes": "Bytes on disk.",
                    "files": "Files on disk.",
                },
            )
        ),
    },
    words={"folders": "Where it is.", "kept": "What is kept."},
)
VECTORS = closed(
    {"format": STR, "schema": {"const": "eigenlens.vectors/1"}},
    words={"format": "np: tensors are numpy's."},
)
DELTA = closed(
    {"format": {"const": "eigenlens.delta/1"}, "layer": STR, **dict.fromkeys(TEXTS, STR)},
    Edit,
    words={
        **EDIT_WORDS,
        "format": "Name and version of this schema.",
        "layer": "Index of the layer, in digits.",
    },
)
UNDO = closed(
    {"format": {"const": "eigenlens.undo/1"}},
    words={"format": "Name and version of this schema."},
)

PARTS: Mapping[str, Schema] = {
    "model": model(),
    "skipped": SKIPPED,
    "score": SHOWN_SCORE,
    "tokens": TOKENS,
    "head": HEAD,
    "spectrum_layer": SPECTRUM_LAYER,
    "collapse": COLLAPSE,
    "trace_layer": TRACE_LAYER,
    "trace_stack": TRACE_STACK,
    "side": SIDE,
    "edit": EDIT,
    "cosines": FIRST,
    "places": AT_PLACES,
    "point": POINT,
    "leader": LEADER,
    "spectrum": SPECTRUM,
    "trace": TRACE,
    "simulate": SIMULATE,
}
"""What several documents, or several places of one, share."""

_METADATA = "metadata of a .safetensors file"
DOCUMENTS: Mapping[str, tuple[str, str, Schema]] = {
    "spectrum": ("`spectrum`", "the leading eigenvalues of every layer, certified", SPECTRUM),
    "estimate": ("`spectrum --dry-run`", "bytes, memory and time of a spectrum run", ESTIMATE),
    "inspect": ("`inspect`", "which tensors make each layer's F", INSPECT),
    "trace": ("`trace`", "alignment of real tokens with each layer's leader", TRACE),
    "simulate": ("`simulate`", "where a deep stack ends, and what was foretold", SIMULATE),
    "compare": ("`compare`", "what of F differs between two checkpoints", COMPARE),
    "steer": ("`steer`", "an edit, and what it does to spectrum, tokens and text", STEER),
    "apply": ("`apply`", "a delta as it was written into a model", APPLY),
    "unsteer": ("`unsteer`", "the edit that was undone", UNSTEER),
    "survey": ("`survey`, `survey summary`", "one entry a checkpoint", SURVEY),
    "reproduce": ("`reproduce`", "the paper's claims, measured, with a verdict each", REPRODUCE),
    "report": ("`report`, and inside the page", "the data that a report page embeds", REPORT),
    "samples": ("`samples`", "the sample models", SAMPLES),
    "cache": ("`cache`", "what is kept on disk", CACHE),
    "steered": ("`eigenlens.json` in an edited folder", "the edits of a folder", STEERED),
    "survey-record": ("`_survey.json` in a survey's folder", "what was asked", SURVEY_RECORD),
    "vectors": (f"`spectrum --vectors`, {_METADATA}", "the eigenvectors", VECTORS),
    "delta": (f"`steer --as delta`, {_METADATA}", "an edit as a file", DELTA),
    "undo": (f"`eigenlens.undo` in an edited folder, {_METADATA}", "the bytes before", UNDO),
}
