"""The document of compare."""

from __future__ import annotations

from eigenlens.comparing import matching
from eigenlens.comparing.difference import Difference
from eigenlens.comparing.result import Comparison, LayerComparison
from eigenlens.spectra.options import SpectrumOptions
from schemas.common import KIND, LAYER, LAYERS, MAYBE_STR, OPERATOR, ORDER, REGIME, TARGET
from schemas.spectra import PRINCIPAL_WORDS, SPECTRUM_KEYS, STACK_WORDS
from schemas.words import (
    BOOL,
    COMPLEX,
    COUNT,
    FLOAT,
    INT,
    STR,
    closed,
    many,
    maybe,
    one_of,
    ref,
)

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
        "largest_change": "The largest relative_change of any layer beyond rounding, else 0: what "
        "--fail-above is about.",
        "ranking": "Names of the layers, the one that moved most first.",
        "only": "Layers that only one of them has.",
    },
)
