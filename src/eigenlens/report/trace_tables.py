"""The tables of `eigenlens trace`, and the sentences that answer the paper's question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.collapse_words import contradiction, sinks_text
from eigenlens.report.model_words import model_line
from eigenlens.report.names import Names, left_out_texts
from eigenlens.report.order_words import leading_text
from eigenlens.report.tables import plain_table
from eigenlens.report.trace_words import (
    call_phrase,
    row_name,
    stack_groups,
    three,
    told_by_step,
    trace_sentences,
)
from eigenlens.report.words import count_text, p_text, percent
from eigenlens.shown.names import group_name
from eigenlens.tracing.ladder import RUNGS
from eigenlens.tracing.nulls import NULLS
from eigenlens.tracing.options import MODES
from eigenlens.tracing.result import LEVEL, LayerTrace, Trace

_LEGEND = (
    "gap: lead over the second eigenvalue; gamma: mean alignment |cos| after the step; chance: "
    "that of a random direction; gain: after - before; rho: share of tokens that moved closer, "
    "with its 95 % interval over prompts"
)
_LEGEND_NULLS = (
    "; random: the middle 95 % of rho over random directions; p (JSON: p_holm): how often those "
    "have such a rho, corrected over {rows}"
)
_NULL_HEADINGS = {
    "random_direction": "random",
    "second_pair": "second",
    "other_layer": "other",
    "top_singular": "singular",
    "matched_spectrum": "rotated F",
    "random_init": "untrained",
}
_NULL_WORDS = {
    "random_direction": "towards random directions, the mean",
    "second_pair": "towards the second eigenpair",
    "other_layer": "towards the leaders of other layers",
    "top_singular": "towards where F writes most",
    "matched_spectrum": "with F rotated at random",
    "random_init": "of an untrained model",
}
_RUNG_HEADINGS = {"l2": "L2 norm", "norm": "real norm", "bias": "+ biases", "ffn": "+ FFN"}
_COLLAPSE = {
    "cosine": "cosine",
    "anisotropy": "across",
    "rank_residual": "residual",
    "frobenius_residual": "Frobenius",
    "high_low_ratio": "high/low",
    "effective_rank": "eff. rank",
    "stable_rank": "stable",
    "participation_ratio": "particip.",
}
_COLLAPSE_LEGEND = (
    "states after attention; cosine, across: mean cosine of two tokens of a prompt, of two prompts "
    "(1: one direction); residual, Frobenius, high/low: how far the tokens of a prompt are from "
    "their mean token (0: all are equal), as a part of their size in two norms (at most 2 and 1) "
    "and over the size of the mean token (no bound); eff. rank, stable, particip.: how many "
    "directions they take (1: one); weak ones count most in eff. rank and least in stable"
)


_Maker = Callable[[Sequence[LayerTrace], Names], RenderableType]


def trace_view(result: Trace, collapse: bool = False) -> RenderableType:
    """Everything that `eigenlens trace` prints as a table; `collapse` adds those measures."""
    parts: list[RenderableType] = [_heading(result)]
    names = Names.of(result.layers)
    tables: list[tuple[_Maker, str, bool]] = [
        (_layers_table, _legend(result), True),
        (_ladder_table, _ladder_legend(), result.options["ladder"]),
        (_nulls_table, _null_legend(result.layers), result.options["nulls"]),
        (_collapse_table, _COLLAPSE_LEGEND, collapse),
    ]
    groups = stack_groups(result)
    for make, legend, wanted in tables:
        if not wanted:
            continue
        for name, layers in groups.items():
            if len(groups) > 1 and told_by_step(layers):  # else the rows have full names
                parts.append(Text(name, style="italic"))
            parts.append(make(layers, names))
        parts.append(Text(legend, style="dim"))
    against = contradiction(result, block=False) if collapse else ""
    parts += [Text(note, style="dim") for note in _notes(result)]
    parts += [Text(against)] if against else []
    shown = [(x.stack, x.kind) for x in result.layers]
    left_out = [(s.stack, s.kind, s.layer, s.reason) for s in result.skipped]
    parts += [Text(text) for text in left_out_texts(shown, left_out)]
    parts += [Text(), *(Text(sentence) for sentence in trace_sentences(result))]
    return Group(*parts)


def _heading(result: Trace) -> Text:
    o = result.options
    text = model_line(result.model, "d", "placement").append(f"; {_fed(result)}")
    text.append(f"\nmode {o['mode']}: {MODES[o['mode']]}; ")
    text.append(f"{'with' if o['bias'] else 'no'} biases, operator {result.layers[0].operator}, ")
    text.append(leading_text(result.layers))
    return text


def _fed(result: Trace) -> str:
    """``64 prompts (default), 1034 tokens``."""
    tokens = max((x.n_tokens for x in result.layers), default=0)
    o = result.options
    prompts = count_text(o["n_prompts"], "prompt")
    return f"{prompts} ({o['prompts']}), {count_text(tokens, 'token')}"


def _legend(result: Trace) -> str:
    if not result.options["nulls"]:
        return _LEGEND
    rows = "steps" if told_by_step(result.layers) else "layers"
    return _LEGEND + _LEGEND_NULLS.format(rows=rows)


def _layers_table(layers: Sequence[LayerTrace], names: Names) -> RenderableType:
    nulls = layers[0].nulls is not None
    by_step = told_by_step(layers)
    several = len({x.layer for x in layers}) > 1
    columns = [("step", "right")] if by_step else []
    columns += [("layer", "right")] if several or not by_step else []
    columns += [(h, "right") for h in ("gap", "gamma", "chance", "gain", "rho", "[95 %]")]
    columns += [("random", "right"), ("p", "right")] if nulls else []
    table = plain_table(columns)
    for x in layers:
        row: list[str | Text] = [str(x.step)] if by_step else []
        row += [names(x)] if several or not by_step else []
        row += [percent(x.gap), three(x.gamma), three(x.expected_gamma), f"{x.gain:+.4f}"]
        row += [Text(three(x.rho), style=_style(x)), _interval(x.rho_ci)]
        if x.nulls is not None:
            low, _, high = x.nulls["random_direction"]["quantiles"]["rho"]
            row += [f"{low:.2f}-{high:.2f}", p_text(x.p_holm, LEVEL)]
        table.add_row(*row)
    return table


def _style(x: LayerTrace) -> str:
    if x.beyond is None:
        return ""
    return "green" if x.beyond else "red" if x.rho < 0.5 else "yellow"


def _interval(ci: tuple[float, float] | None) -> str:
    return "-" if ci is None else f"[{ci[0]:.3f}, {ci[1]:.3f}]"


def _ladder_legend() -> str:
    parts = [f"{_RUNG_HEADINGS[name]}: {what}" for name, what in RUNGS.items()]
    return "; ".join(parts) + "; each with rho and, in brackets, the gain"


def _ladder_table(layers: Sequence[LayerTrace], names: Names) -> RenderableType:
    by_step = told_by_step(layers)
    columns = [("step" if by_step else "layer", "right")]
    table = plain_table([*columns, *((_RUNG_HEADINGS[name], "right") for name in RUNGS)])
    for x in layers:
        found = x.ladder or {}
        cells = [
            f"{three(found[name]['rho'])} ({found[name]['gain']:+.4f})" if name in found else "-"
            for name in RUNGS
        ]
        table.add_row(row_name(x, by_step, names), *cells)
    return table


def _had(layers: Sequence[LayerTrace]) -> list[str]:
    """The nulls that some layer has: a model of one layer has no other one, say."""
    return [name for name in NULLS if any((x.nulls or {}).get(name) for x in layers)]


def _null_legend(layers: Sequence[LayerTrace]) -> str:
    had = _had(layers)
    text = "rho of the same tokens, in brackets the JSON field of nulls; " + "; ".join(
        f"{_NULL_HEADINGS[name]}: {_NULL_WORDS[name]} ({name})" for name in had
    )
    missing = [f"{_NULL_WORDS[name]} ({name})" for name in NULLS if name not in had]
    return f"{text}; not to be had here: {', '.join(missing)}" if missing else text


def _nulls_table(layers: Sequence[LayerTrace], names: Names) -> RenderableType:
    by_step, had = told_by_step(layers), _had(layers)
    columns = [("step" if by_step else "layer", "right"), ("rho", "right")]
    table = plain_table([*columns, *((_NULL_HEADINGS[name], "right") for name in had)])
    for x in layers:
        nulls = x.nulls or {}
        cells = [_null(nulls.get(name)) for name in had]
        table.add_row(row_name(x, by_step, names), Text(three(x.rho), style=_style(x)), *cells)
    return table


def _null(found: Any) -> str:
    return "-" if found is None else three(found["rho"])


def _collapse_table(layers: Sequence[LayerTrace], names: Names) -> RenderableType:
    by_step = told_by_step(layers)
    columns = [("step" if by_step else "layer", "right")]
    table = plain_table([*columns, *((h, "right") for h in _COLLAPSE.values())])
    for x in layers:
        values = [x.collapse.get(name) for name in _COLLAPSE]
        cells = ["-" if v is None else f"{v:.3f}" if abs(v) < 10 else f"{v:.2f}" for v in values]
        table.add_row(row_name(x, by_step, names), *cells)
    return table


def _notes(result: Trace) -> list[str]:
    """Sinks, and gain against gap, in a line each."""
    notes = []
    layers = result.layers
    most = max(layers, key=lambda x: x.sinks["n"])
    if most.sinks["n"]:
        dropped = result.options["drop_sinks"]
        shift = max(abs(x.sinks["with"]["rho"] - x.sinks["without"]["rho"]) for x in layers)
        notes.append(
            f"sinks: {sinks_text(result)}: "
            f"{'left out' if dropped else 'counted'}; {'with' if dropped else 'without'} them rho "
            f"changes by {shift:.3f} at most"
        )
    for stack in result.stacks:
        relation = stack.gain_against_gap
        if relation["r"] is None:
            continue
        name = inert(group_name(stack.stack, stack.kind))
        named = f" ({name})" if len(result.stacks) > 1 else ""
        ci = (
            ""
            if relation["ci"] is None
            else f" [{relation['ci'][0]:+.2f}, {relation['ci'][1]:+.2f}]"
        )
        notes.append(
            f"gain against gap over layers{named}: Spearman {relation['r']:+.2f}{ci}, "
            f"n = {relation['n']}"
        )
    return [*notes, *_overlap_notes(result)]


def _overlap_notes(result: Trace) -> list[str]:
    """How leaders lie to each other, to the mean token and to the sinks, a line a stack."""
    notes = []
    groups = stack_groups(result)
    for stack in result.stacks:
        name = inert(group_name(stack.stack, stack.kind))
        layers = groups.get(name)
        if layers is None:
            continue
        parts = []
        pairs = [
            (value, f"layers {stack.layers[j]} and {stack.layers[i]}")
            for i, row in enumerate(stack.overlaps)
            for j, value in enumerate(row[:i])
        ]
        if pairs:
            parts.append(f"of two layers {_mean_and_most(pairs)}")
        where = [call_phrase(x, result.layers) for x in layers]
        for what, field in (("mean token", "overlap_mean"), ("sinks", "overlap_sinks")):
            found = [(getattr(x, field), at) for x, at in zip(layers, where, strict=True)]
            known = [(value, at) for value, at in found if value is not None]
            if known:
                parts.append(f"with the {what} {_mean_and_most(known)}")
        if parts:
            named = f" ({name})" if len(groups) > 1 else ""
            chance = sum(x.expected_gamma for x in layers) / len(layers)
            notes.append(
                f"overlap of leaders{named} (1: the same direction, a random one has about "
                f"{three(chance)}): {'; '.join(parts)}"
            )
    return notes


def _mean_and_most(found: Sequence[tuple[float, str]]) -> str:
    most = max(found)
    mean = sum(value for value, _ in found) / len(found)
    return f"{three(mean)} on average, at most {three(most[0])} ({most[1]})"
