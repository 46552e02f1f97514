"""The tables of `eigenlens trace`, and the sentences that answer the paper's question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.tables import plain_table
from eigenlens.report.words import layer_list, percent
from eigenlens.tracing.ladder import RUNGS
from eigenlens.tracing.nulls import NULLS
from eigenlens.tracing.options import MODES
from eigenlens.tracing.result import LEVEL, LayerTrace, Trace

_LEGEND = (
    "gap: lead over the second eigenvalue; gamma: mean alignment |cos| after the step; expected: "
    "that of a random direction; gain: after - before; rho: share of tokens that moved closer, "
    "with its 95 % interval over prompts"
)
_LEGEND_NULLS = (
    "; random: the middle 95 % of rho over random directions; p: how often those have such a rho, "
    "corrected over {rows}"
)
_NULL_HEADINGS = {
    "random_direction": "random",
    "second_pair": "second",
    "other_layer": "other",
    "top_singular": "singular",
    "matched_spectrum": "rotated F",
    "random_init": "untrained",
}
_NULL_LEGEND = (
    "rho of the same tokens towards random directions (mean), the second eigenpair, the leaders of "
    "other layers, where F writes most; with F rotated at random; and of an untrained model"
)
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
    "states after attention: mean cosine of tokens of a prompt and across prompts; what is left of "
    "them without the mean token (three norms); effective and stable rank, participation ratio"
)


def trace_view(result: Trace, collapse: bool = False) -> RenderableType:
    """Everything that `eigenlens trace` prints as a table; `collapse` adds those measures."""
    parts: list[RenderableType] = [_heading(result)]
    tables: list[tuple[Callable[[Sequence[LayerTrace]], RenderableType], str, bool]] = [
        (_layers_table, _legend(result), True),
        (_ladder_table, _ladder_legend(), result.options["ladder"]),
        (_nulls_table, _NULL_LEGEND, result.options["nulls"]),
        (_collapse_table, _COLLAPSE_LEGEND, collapse),
    ]
    groups = _groups(result)
    for make, legend, wanted in tables:
        if not wanted:
            continue
        for name, layers in groups.items():
            if len(groups) > 1:
                parts.append(Text(inert(name), style="italic"))
            parts.append(make(layers))
        parts.append(Text(legend, style="dim"))
    parts += [Text(note, style="dim") for note in _notes(result)]
    for skipped in result.skipped:
        left_out = f"{skipped.stack} layer {skipped.layer} left out: {skipped.reason}"
        parts.append(Text(inert(left_out)))
    parts += [Text(), *(Text(sentence) for sentence in trace_sentences(result))]
    return Group(*parts)


def _heading(result: Trace) -> Text:
    m, o = result.model, result.options
    text = Text()
    text.append(inert(str(m["source"])), style="bold")
    text.append(f"  {inert(str(m['model_type']))}, d {m['d_model']}, {m['placement']}-norm; ")
    text.append(_fed(result))
    first = result.layers[0]
    text.append(f"\nmode {o['mode']}: {MODES[o['mode']]}; ")
    text.append(f"{'with' if o['bias'] else 'no'} biases, operator {first.operator}, ")
    text.append(f"leading by {first.order}")
    return text


def _fed(result: Trace) -> str:
    """``64 prompts (default), 1034 tokens``."""
    tokens = max((x.n_tokens for x in result.layers), default=0)
    o = result.options
    return f"{o['n_prompts']} prompts ({o['prompts']}), {tokens} tokens"


def _groups(result: Trace) -> dict[str, list[LayerTrace]]:
    found: dict[str, list[LayerTrace]] = {}
    for layer in result.layers:
        found.setdefault(f"{layer.stack}{' cross' * (layer.kind == 'cross')}", []).append(layer)
    return found


def _by_step(layers: Sequence[LayerTrace]) -> bool:
    """Whether rows are told apart by their step: a layer that is used more than once."""
    return len({(x.stack, x.kind, x.layer) for x in layers}) < len(layers)


def _name(x: LayerTrace, by_step: bool) -> int:
    return x.step if by_step else x.layer


def _legend(result: Trace) -> str:
    if not result.options["nulls"]:
        return _LEGEND
    rows = "steps" if _by_step(result.layers) else "layers"
    return _LEGEND + _LEGEND_NULLS.format(rows=rows)


def _layers_table(layers: Sequence[LayerTrace]) -> RenderableType:
    nulls = layers[0].nulls is not None
    by_step = _by_step(layers)
    several = len({x.layer for x in layers}) > 1
    columns = [("step", "right")] if by_step else []
    columns += [("layer", "right")] if several or not by_step else []
    columns += [(h, "right") for h in ("gap", "gamma", "expected", "gain", "rho", "[95 %]")]
    columns += [("random", "right"), ("p", "right")] if nulls else []
    table = plain_table(columns)
    for x in layers:
        row: list[str | Text] = [str(x.step)] if by_step else []
        row += [str(x.layer)] if several or not by_step else []
        row += [percent(x.gap), _share(x.gamma), _share(x.expected_gamma), f"{x.gain:+.4f}"]
        row += [Text(_share(x.rho), style=_style(x)), _interval(x.rho_ci)]
        if x.nulls is not None:
            low, _, high = x.nulls["random_direction"]["quantiles"]["rho"]
            row += [f"{_share(low)} to {_share(high)}", _p(x.p_holm)]
        table.add_row(*row)
    return table


def _style(x: LayerTrace) -> str:
    if x.beyond is None:
        return ""
    return "green" if x.beyond else "red" if x.rho < 0.5 else "yellow"


def _share(value: float) -> str:
    """``.712`` with its zero, so that columns align."""
    return f"{value:.3f}"


def _interval(ci: tuple[float, float] | None) -> str:
    return "-" if ci is None else f"[{ci[0]:.3f}, {ci[1]:.3f}]"


def _p(p: float | None) -> str:
    if p is None:
        return "-"
    if p < 0.001:
        return "< .001"
    return f"{p:.4f}" if p < LEVEL <= round(p, 3) else f"{p:.3f}"


def _ladder_legend() -> str:
    parts = [f"{_RUNG_HEADINGS[name]}: {what}" for name, what in RUNGS.items()]
    return "; ".join(parts) + "; each with rho and, in brackets, the gain"


def _ladder_table(layers: Sequence[LayerTrace]) -> RenderableType:
    by_step = _by_step(layers)
    columns = [("step" if by_step else "layer", "right")]
    table = plain_table([*columns, *((_RUNG_HEADINGS[name], "right") for name in RUNGS)])
    for x in layers:
        found = x.ladder or {}
        cells = [
            f"{_share(found[name]['rho'])} ({found[name]['gain']:+.4f})" if name in found else "-"
            for name in RUNGS
        ]
        table.add_row(str(_name(x, by_step)), *cells)
    return table


def _nulls_table(layers: Sequence[LayerTrace]) -> RenderableType:
    by_step = _by_step(layers)
    columns = [("step" if by_step else "layer", "right"), ("rho", "right")]
    table = plain_table([*columns, *((_NULL_HEADINGS[name], "right") for name in NULLS)])
    for x in layers:
        nulls = x.nulls or {}
        cells = [_null(nulls.get(name)) for name in NULLS]
        table.add_row(str(_name(x, by_step)), Text(_share(x.rho), style=_style(x)), *cells)
    return table


def _null(found: Any) -> str:
    return "-" if found is None else _share(found["rho"])


def _collapse_table(layers: Sequence[LayerTrace]) -> RenderableType:
    by_step = _by_step(layers)
    columns = [("step" if by_step else "layer", "right")]
    table = plain_table([*columns, *((h, "right") for h in _COLLAPSE.values())])
    for x in layers:
        values = [x.collapse.get(name) for name in _COLLAPSE]
        cells = ["-" if v is None else f"{v:.3f}" if abs(v) < 10 else f"{v:.2f}" for v in values]
        table.add_row(str(_name(x, by_step)), *cells)
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
            f"sinks: {most.sinks['n']} tokens ({percent(most.sinks['share'])}) have norms above "
            f"{result.options['sink_threshold']:g} times the median and are "
            f"{'left out' if dropped else 'counted'}; {'with' if dropped else 'without'} them rho "
            f"changes by {shift:.3f} at most"
        )
    for stack in result.stacks:
        relation = stack.gain_against_gap
        if relation["r"] is None:
            continue
        named = f" ({inert(stack.stack)})" if len(result.stacks) > 1 else ""
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
    groups = _groups(result)
    for (name, layers), stack in zip(groups.items(), result.stacks, strict=False):
        parts = []
        pairs = [
            (value, f"layers {stack.layers[j]} and {stack.layers[i]}")
            for i, row in enumerate(stack.overlaps)
            for j, value in enumerate(row[:i])
        ]
        if pairs:
            parts.append(f"of two layers {_mean_and_most(pairs)}")
        by_step = _by_step(layers)
        word = "step" if by_step else "layer"
        for what, field in (("mean token", "overlap_mean"), ("sinks", "overlap_sinks")):
            found = [(getattr(x, field), f"{word} {_name(x, by_step)}") for x in layers]
            known = [(value, where) for value, where in found if value is not None]
            if known:
                parts.append(f"with the {what} {_mean_and_most(known)}")
        if parts:
            named = f" ({inert(name)})" if len(groups) > 1 else ""
            chance = sum(x.expected_gamma for x in layers) / len(layers)
            notes.append(
                f"overlap of leaders{named} (1: the same direction, a random one has about "
                f"{_share(chance)}): {'; '.join(parts)}"
            )
    return notes


def _mean_and_most(found: Sequence[tuple[float, str]]) -> str:
    most = max(found)
    mean = sum(value for value, _ in found) / len(found)
    return f"{_share(mean)} on average, at most {_share(most[0])} ({most[1]})"


def trace_sentences(result: Trace) -> list[str]:
    """What the tables mean; the last one answers whether tokens tilt."""
    layers = result.layers
    verdict = result.verdict
    word = "steps" if _by_step(layers) else "layers"
    out = [
        f"Rho is above 1/2 in {verdict['rho_above_half']} of {len(layers)} {word}, and the mean "
        f"gain is positive in {verdict['gain_positive']}."
    ]
    if verdict["beyond_random"] is None:
        return [*out, _untested(result, word)]
    return [*out, _caution(result, word), _answer(result, word)]


def _untested(result: Trace, word: str) -> str:
    yes = [x for x in result.layers if x.rho > 0.5]
    return (
        f"{_QUESTION} More often than not in {len(yes)} of {len(result.layers)} {word}"
        f"{_where(result, yes)}; whether that is more than chance only the nulls say (--nulls)."
    )


_QUESTION = "Do tokens tilt towards the principal eigenvector?"


def _caution(result: Trace, word: str) -> str:
    layers = result.layers
    highs = [x.nulls["random_direction"]["quantiles"]["rho"][2] for x in layers if x.nulls]
    texts = [f"{h:.2f}" for h in (min(highs), max(highs))]
    reach = " to ".join(dict.fromkeys(texts))
    text = f"That alone is no evidence: one random direction in 40 has a rho above {reach}"
    rotated = [x.nulls["matched_spectrum"] for x in layers if x.nulls]
    if None not in rotated:
        above = sum(x.rho > null["rho"] for x, null in zip(layers, rotated, strict=True))
        text += (
            f", and F rotated at random, which has the same spectrum, has a smaller rho in "
            f"{above} of {len(layers)} {word}"
        )
    return text + "."


def _answer(result: Trace, word: str) -> str:
    if result.options["mode"] == "free":
        return f"{_QUESTION} {'; '.join(_end(result))}."
    layers = result.layers
    yes = [x for x in layers if x.beyond]
    no = [x for x in layers if not x.beyond]
    away = [x for x in no if x.rho < 0.5]
    how = (
        f"corrected p < {LEVEL:g}"
        if result.verdict["by"] == "p"
        else "above their 97.5 % quantile; too few prompts for a p-value"
    )
    if yes:
        text = (
            f"{_QUESTION} Yes in {len(yes)} of {len(layers)} {word}{_where(result, yes)}, beyond "
            f"random directions ({how})"
        )
        other = "the other one" if len(no) == 1 else f"the other {len(no)}"
        text += f"; not in {other}{_where(result, no)}" if no else ""
    else:
        text = f"{_QUESTION} In none of {len(layers)} {word} more than random directions ({how})"
    if away and len(away) == len(no):
        text += ", where most tokens move away"
    elif away:
        text += f"; most tokens move away in {len(away)} of them{_where(result, away)}"
    return f"{text}.{_beyond_rotated(result, yes)}"


def _beyond_rotated(result: Trace, yes: Sequence[LayerTrace]) -> str:
    """Of the layers beyond random directions those that are beyond F rotated at random, too."""
    rotated = [(x.nulls or {}).get("matched_spectrum") for x in yes]
    if not yes or None in rotated:
        return ""
    both = [x for x, null in zip(yes, rotated, strict=True) if null and x.rho > null["rho"]]
    text = f" Above F rotated at random, too: {len(both)} of these {len(yes)}"
    if len(both) == len(yes):
        return f"{text}."
    return (
        f"{text}{_where(result, both)}; in the others any matrix with this spectrum does as much."
    )


def _end(result: Trace) -> list[str]:
    """Where a free run ends, which is judged by its alignment.

    Tokens that have become one move all alike: rho is then 0 or 1 for any direction.
    """
    groups = _groups(result)
    out = []
    for name, layers in groups.items():
        last = layers[-1]
        _, _, high = (last.nulls or {})["random_direction"]["quantiles"]["gamma"]
        tilted = last.gamma > high
        stack = f" ({inert(name)})" if len(groups) > 1 else ""
        cosine = last.collapse.get("cosine")
        alike = "" if cosine is None else f" and the mean cosine of two tokens {cosine:.3f}"
        out.append(
            f"{'Yes' if tilted else 'No'}{stack}: after {last.step + 1} steps their alignment is "
            f"{last.gamma:.3f}{alike}, where one random direction in 40 has an alignment above "
            f"{high:.3f}"
        )
    return out


def _where(result: Trace, chosen: Sequence[LayerTrace]) -> str:
    """`` (0, 2-4)``, with the stack's name where there are several; nothing for all of them."""
    if not chosen or len(chosen) == len(result.layers):
        return ""
    groups = _groups(result)
    parts = []
    for name, layers in groups.items():
        by_step = _by_step(layers)
        own = [_name(x, by_step) for x in layers if x in chosen]
        if own:
            parts.append(f"{inert(name)} {layer_list(own)}" if len(groups) > 1 else layer_list(own))
    return f" ({'; '.join(parts)})"
