"""Documents of reproduce, survey, report, samples and cache."""

from __future__ import annotations

from eigenlens.circuit.circuit import PLACEMENTS
from eigenlens.claims.evidence import Settings
from eigenlens.claims.result import Reproduction
from eigenlens.claims.suites import SUITES
from eigenlens.claims.table import CLAIMS
from eigenlens.claims.verdicts import VERDICTS, Finding
from eigenlens.cli.samples import SampleList
from eigenlens.report.page.sections import SECTIONS
from eigenlens.report.page.write import Report
from eigenlens.samples import Sample
from eigenlens.spectra import principal
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.steering.delta import TEXTS
from eigenlens.steering.edit import Edit
from eigenlens.surveys import result as surveys
from eigenlens.surveys.options import TraceQuestion
from schemas.common import INTERVAL, MAYBE_STR, NO_MODEL, NO_OPTIONS, head
from schemas.edits import EDIT_WORDS
from schemas.spectra import SPECTRUM_KEYS, STACK_WORDS
from schemas.traces import MEASURES
from schemas.words import (
    BOOL,
    COUNT,
    FLOAT,
    INT,
    NUM,
    SHARE,
    STR,
    closed,
    either,
    keyed,
    many,
    maybe,
    one_of,
    ref,
)

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
        "other_options": many(STR),
    },
    words={
        "members": "By checkpoint why it failed; null where it did not.",
        "other_options": "Checkpoints whose rows are of an earlier survey with other options.",
    },
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
        "x": "First coordinate of its direction in the three axes.",
        "y": "Second coordinate.",
        "z": "Third coordinate.",
        "share": "Part of the state's squared length that lies in the axes.",
        "alignment": "Its alignment with what leads, in all dimensions.",
        "prompts": "Text of each prompt.",
    },
)
REPORT = closed(
    {
        **head(
            "report",
            model=either(ref("model"), closed({})),
            options=closed(
                {"sections": many(one_of(SECTIONS)), "seed": COUNT, "steps": maybe(COUNT)},
                words={
                    "sections": "Sections of the page.",
                    "steps": "Layer steps of the simulation; null if left open and none was run.",
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
