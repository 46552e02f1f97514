"""What all documents have in common: the model block, skipped layers, short names."""

from __future__ import annotations

from eigenlens.circuit.circuit import KINDS, NORM_KINDS, PLACEMENTS
from eigenlens.circuit.plans import Skipped
from eigenlens.spectra import orders, principal
from schemas.words import (
    COUNT,
    FLOAT,
    INT,
    STR,
    Schema,
    closed,
    many,
    maybe,
    one_of,
)

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
    words = {
        "edits": "Edits that the folder's eigenlens.json lists; 0 where it has none.",
        "stack": "The stack that was run.",
        "head": "What the model predicts; null where it has no output head.",
    }
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
            "edits": COUNT,
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
    {"stack": STR, "layer": INT, "reason": STR, "kind": maybe(KIND)},
    Skipped,
    words={
        "layer": "Its index; -1 where the reason holds for all layers of the stack and kind.",
        "kind": "Null where the reason holds for a whole tower, whatever attention it has.",
    },
)
