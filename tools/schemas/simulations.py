"""The document of simulate."""

from __future__ import annotations

from eigenlens.dynamics import live_run, outcome, predict
from eigenlens.dynamics import result as dynamics
from eigenlens.dynamics.simulate import FORMS
from eigenlens.live.replay import NORMS
from schemas.common import DTYPE, INTERVAL, MAYBE_STR, OPERATOR, ORDER, TARGET, head, model
from schemas.traces import MEASURES
from schemas.words import (
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
    many,
    maybe,
    one_of,
)

RATES: dict[str, Schema] = {
    "disagreement_rate": FLOAT,
    "alignment_rate": FLOAT,
    "exponent": FLOAT,
    "angle_per_step": FLOAT,
}
FORETOLD = [name for name in outcome.LABELS if name != outcome.UNSETTLED]
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
        "angle_tolerance": NUM,
        "turn_tolerance": NUM,
        "longest_period": COUNT,
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
        "angle_tolerance": "Radians within which two directions are one.",
        "turn_tolerance": "Radians yet to turn from which on a direction counts as turning.",
        "longest_period": "Longest period, in steps, that is looked for in a rotation.",
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
                "steps_to_settle": FLOAT,
                "target": TARGET,
                "reached": MAYBE_STR,
                "distance": FLOAT,
                "period": maybe(COUNT),
                "balanced": BOOL,
                "observed": closed(RATES, predict.Prediction),
                "predicted": maybe(
                    closed(
                        {"label": one_of(FORETOLD), **RATES, "stable": BOOL},
                        predict.Prediction,
                    )
                ),
            },
            dynamics.Summary,
            words={
                "label": "The most frequent outcome over the starts; unsettled: none yet.",
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
                    "together": COUNT,
                },
                words={
                    "label": "The outcome, or unsettled.",
                    "count": "Starts that ended so.",
                    "share": "Their share of all starts, settled or not.",
                    "interval": "Wilson's 95 % interval; its upper end is for all unsettled "
                    "starts ending so.",
                    "together": "Of these starts, those whose tokens had become one direction.",
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
