"""Documents of spectrum, spectrum --dry-run and inspect."""

from __future__ import annotations

from eigenlens.circuit.circuit import PLACEMENTS
from eigenlens.circuit.plans import LayerPlan
from eigenlens.live import verify
from eigenlens.spectra import estimate
from eigenlens.spectra import result as spectra
from eigenlens.spectra.options import SpectrumOptions
from schemas.common import (
    ASKED_ORDER,
    DTYPE,
    LAYER,
    LAYERS,
    MAYBE_STR,
    OPERATOR,
    ORDER,
    REGIME,
    SOLVER,
    TARGET,
    head,
)
from schemas.words import (
    BOOL,
    COMPLEX,
    COUNT,
    FLOAT,
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
                    "weights": COUNT,
                    "read_bytes": COUNT,
                    "factor_bytes": COUNT,
                    "grouped": BOOL,
                    "memory_bytes": COUNT,
                    "product_flops": NUM,
                    "eig_flops": NUM,
                    "moved_bytes": NUM,
                },
                estimate.LayerCost,
                words={
                    "d": "Width of the stream.",
                    "solved": "Size of the matrix that is solved.",
                    "weights": "Entries of W_V and W_O.",
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
