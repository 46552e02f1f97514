"""The table of all JSON documents of eigenlens, and the parts that they share."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.common import SHOWN_SCORE, SKIPPED, model
from schemas.comparisons import COMPARE, SIDE
from schemas.edits import APPLY, AT_PLACES, EDIT, FIRST, LEADER, POINT, STEER, STEERED, UNSTEER
from schemas.simulations import SIMULATE
from schemas.spectra import ESTIMATE, HEAD, INSPECT, SPECTRUM, SPECTRUM_LAYER, TOKENS
from schemas.surveys import (
    CACHE,
    DELTA,
    REPORT,
    REPRODUCE,
    SAMPLES,
    SURVEY,
    SURVEY_RECORD,
    UNDO,
    VECTORS,
)
from schemas.traces import COLLAPSE, TRACE, TRACE_ESTIMATE, TRACE_LAYER, TRACE_STACK
from schemas.words import Schema

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
    "trace-estimate": (
        "`trace --dry-run`",
        "prompts, tokens, memory and time of a trace",
        TRACE_ESTIMATE,
    ),
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
