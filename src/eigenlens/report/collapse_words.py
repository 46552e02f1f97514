"""What the collapse measures mean together, and where sinks make them contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eigenlens.report.trace_words import call_phrase, calls_phrase
from eigenlens.report.words import count_text, percent
from eigenlens.tracing.result import LayerTrace, Trace

_ONE = 1.25
"""Stable rank below which the states are those of one direction, by their squares."""
_APART = 0.5
"""Frobenius residual above which tokens are not the mean token, by their squares."""
_RISE = 1.25
"""Factor by which a rank in the middle differs from both ends where it is told."""


def rank_sentence(
    before: float | None,
    after: Sequence[float | None],
    layers: Sequence[LayerTrace],
    among: Sequence[LayerTrace],
) -> str:
    """How the effective rank goes, with what it reaches between its ends; nothing if not known.

    Parameters
    ----------
    before, after
        The rank before the first of `layers`, and behind each.
    layers, among
        The layers, and all that are told of.
    """
    known = [(value, x) for value, x in zip(after, layers, strict=True) if value is not None]
    if before is None or not known or after[-1] is None:
        return ""
    end = after[-1]
    text = f"the effective rank goes from {before:.1f} to {end:.1f}"
    low, at = min(known, key=lambda pair: pair[0])
    high, top = max(known, key=lambda pair: pair[0])
    between = []
    if low * _RISE < min(before, end):
        between.append(f"down to {low:.1f} after {call_phrase(at, among)}")
    if high > _RISE * max(before, end):
        between.append(f"up to {high:.1f} after {call_phrase(top, among)}")
    return f"{text}, between them {' and '.join(between)}" if between else text


def contradiction(result: Trace, *, block: bool = True) -> str:
    """Where ranks say one direction and residuals say many, and why; nothing where they agree.

    Both weigh tokens by their squared length, so one long token a prompt decides them: its
    direction is the rank, and its distance to the mean token the residual. The states are those
    after the block where they were seen, or, if not `block`, those after attention.
    """
    found = [x for x in result.layers if _contradicts((block and x.collapse_block) or x.collapse)]
    if not found:
        return ""
    where = calls_phrase(found, result.layers)
    text = (
        f"In {where} the measures seem to contradict each other: stable ranks near 1 would mean "
        "one direction, residuals near 1 that tokens differ. Both weigh tokens by their length"
    )
    if all(x.sinks["n"] for x in found):
        text += f", and sinks outweigh the others there: {sinks_text(result)}"
    else:
        text += ", and a few long tokens outweigh the others there"
    return f"{text}. The cosine counts every token alike: read it there."


def _contradicts(state: Mapping[str, float | None]) -> bool:
    rank, rest = state.get("stable_rank"), state.get("frobenius_residual")
    return rank is not None and rest is not None and rank < _ONE and rest > _APART


def sinks_text(result: Trace) -> str:
    """``64 tokens (6.7 %) with norms above 10 times the median``: of the layer that has most."""
    most = max(result.layers, key=lambda x: int(x.sinks["n"]))
    return (
        f"{count_text(most.sinks['n'], 'token')} ({percent(most.sinks['share'])}) with norms above "
        f"{result.options['sink_threshold']:g} times the median"
    )
