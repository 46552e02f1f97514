"""Documents of steer, apply and unsteer, and of the files that they write."""

from __future__ import annotations

from typing import get_args

from eigenlens.steering import continuations, eigenpair, forms, measures, options, probes
from eigenlens.steering import result as steering
from eigenlens.steering.directions import Direction
from eigenlens.steering.edit import SITES, STEPS, Edit
from eigenlens.steering.opening import Head
from eigenlens.steering.strength import FACTOR, Window
from eigenlens.steering.undo import Undone
from eigenlens.steering.written import Written
from schemas.common import DTYPE, LAYER, MAYBE_STR, NO_OPTIONS, ORDER, TARGET, head, model
from schemas.words import (
    BOOL,
    COMPLEX,
    COUNT,
    FLOAT,
    INT,
    NUM,
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
    "noted": many(STR),
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
FIRST = closed(COSINES, measures.Cosines, words=COSINE_WORDS)
PLACES = {
    "after_sublayer": "Right after the edited sub-layer; null where there is no such place.",
    "after_block": "After the block.",
    "after_final_norm": "After the final norm.",
}
AT_PLACES = closed(
    {
        place: maybe(
            closed({**COSINES, "first": ref("cosines")}, measures.Cosines, words=COSINE_WORDS)
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
                measures.Cosines,
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
    measures.Measure,
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
        "contrast": "The two files of texts, or how many texts: positive, negative.",
        "probe": "The rule that the probe comes from.",
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
STEER_MODEL = model(head=maybe(one_of(get_args(Head))))
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
                measures.Measure,
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
        "window": maybe(
            closed(
                {"low": FLOAT, "high": FLOAT},
                Window,
                words={"low": f"The smallest that makes the tokens {FACTOR:g} times as probable."},
            )
        ),
        "activation": maybe(ref("point")),
        "continuations": many(
            closed(
                {
                    "prompt": STR,
                    "before": STR,
                    "after": STR,
                    "activation": STR,
                    "distinct": keyed(FLOAT, ["before", "after", "activation"]),
                },
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
                {"delta": STR, "as": one_of(forms.FORMS)},
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
    "noted": "Files that describe the model and got a note with this edit.",
    "untied": "Of shared layers that were untied for the edit: what brings them back.",
}
UNSTEER = closed(
    {
        **head("unsteer", model=STR, options=NO_OPTIONS),
        "undone": closed(
            {**RECORDED, "noted": many(STR)}, Edit, words=RECORDED_WORDS, optional=["noted"]
        ),
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
                    "noted": many(STR),
                    "untied": closed(
                        {"files": keyed(STR), "tensors": keyed(STR), "key": STR},
                        words={
                            "files": "SHA-256 of each file that was changed for it, as it was.",
                            "tensors": "Where each tensor is now.",
                            "key": "The key of config.json that says how many layers are shared.",
                        },
                    ),
                },
                Edit,
                words=RECORDED_WORDS,
                optional=["noted", "untied"],
            )
        ),
    },
    words={"edits": "The edits of the folder, the oldest first."},
)
