"""The table of `eigenlens survey`: one row a checkpoint, and what they have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.tables import plain_table
from eigenlens.report.words import count_text, most_frequent, percent, regime_text
from eigenlens.spectra.principal import REGIMES
from eigenlens.surveys.result import STATUSES, ModelSummary, Survey

_HEADINGS = {
    "real_dominant": ("real", "are led by one real direction"),
    "complex_dominant": ("complex", "turn in a plane"),
    "flip": ("flip", "flip at each step"),
    "near_degenerate": ("tied", "have a tie for the lead"),
    "no_consensus": ("none", "attract tokens nowhere"),
}
_NUMBERS: tuple[tuple[str, str, str], ...] = (
    (
        "disagreement_rate",
        "together",
        "together: factor a step by which tokens come together, 1/|1+lambda_1|",
    ),
    (
        "alignment_rate",
        "align",
        "align: factor a step by which the angle to the target shrinks (post-norm, full attention)",
    ),
    (
        "exponent",
        "depth^",
        "depth^: the angle to the target shrinks as depth to this power (pre-norm)",
    ),
    ("gamma", "gamma", "gamma: mean alignment |cos| of tokens after a layer"),
    ("gain", "gain", "gain: after - before"),
    ("rho", "rho", "rho: share of tokens that moved closer"),
    (
        "beyond_random",
        "beyond",
        "beyond: share of layers whose rho is larger than random directions give",
    ),
)
_RATES = ("disagreement_rate", "alignment_rate", "exponent")
_SIGNED = ("exponent", "gain")
_SHARES = ("beyond_random",)


def survey_view(result: Survey) -> RenderableType:
    """Everything that `eigenlens survey` and `eigenlens survey summary` print as a table."""
    parts: list[RenderableType] = [_heading(result)]
    there = [m for m in result.models if m.layers]
    if there:
        shown = [row for row in _NUMBERS if any(getattr(m, row[0]) is not None for m in there)]
        parts += [_table(there, shown), Text(_legend(there, shown), style="dim")]
    parts += [Text(), *(Text(sentence) for sentence in survey_sentences(result))]
    return Group(*parts)


def _heading(result: Survey) -> Text:
    text = Text()
    text.append(inert(result.folder), style="bold")
    what = "traces" if result.options.get("trace") else "spectra"
    counts = Counter(m.status for m in result.models)
    found = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s])
    text.append(f"  {what} of {count_text(len(result.models), 'checkpoint')}: {found or 'none'}")
    if result.run is not None:
        r = result.run
        text.append(
            f"\nthis run: {r.computed} computed, {r.kept} there already, {r.failed} failed, "
            f"{r.seconds:.0f} s"
        )
    return text


def _table(models: Sequence[ModelSummary], shown: Sequence[tuple[str, str, str]]) -> Table:
    regimes = _occurring(models)
    columns = [("checkpoint", "left"), ("d", "right"), ("layers", "right")]
    columns += [(_HEADINGS[name][0], "right") for name in regimes]
    columns += [("gap", "right"), *((heading, "right") for _, heading, _ in shown)]
    table = plain_table(columns)
    for m in models:
        name = inert(m.model) + ("" if m.status == "complete" else f" ({m.status})")
        table.add_row(
            Text(name, overflow="fold"),
            str(m.d_model),
            str(m.layers),
            *(percent_short(m.regimes[r]) if m.regimes.get(r) else "-" for r in regimes),
            percent(m.gap),
            *(_number(field, getattr(m, field)) for field, _, _ in shown),
        )
    return table


def _occurring(models: Sequence[ModelSummary]) -> list[str]:
    """Regimes that some layer is in."""
    return [name for name in REGIMES if any(m.regimes.get(name) for m in models)]


def percent_short(share: float) -> str:
    """A share without decimals: ``33 %``."""
    return f"{100 * share:.0f} %"


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _SHARES:
        return percent_short(value)
    return f"{value:+.3f}" if name in _SIGNED else f"{value:.3f}"


def _legend(models: Sequence[ModelSummary], shown: Sequence[tuple[str, str, str]]) -> str:
    regimes = (_HEADINGS[name] for name in _occurring(models))
    base = (
        f"share of the layers that {', '.join(f'{words} ({head})' for head, words in regimes)}, "
        "- for none; gap: how far the first direction is ahead of the second, the median over "
        "layers"
    )
    rates = any(field in _RATES for field, _, _ in shown)
    medians = "; rates are medians over layers, as if each were iterated" if rates else ""
    return "; ".join([base, *(text for _, _, text in shown)]) + medians


def survey_sentences(result: Survey) -> list[str]:
    """What the survey says in plain words, and every checkpoint that is not complete."""
    there = [m for m in result.models if m.layers]
    out: list[str] = []
    if there:
        out += [_leading_sentence(there), *_extremes(there)]
    for status, tell in _TELL.items():
        out += [tell(m) for m in result.models if m.status == status]
    if not result.models:
        out.append("The list names no checkpoint.")
    return out


def leading_regimes(models: Sequence[ModelSummary]) -> tuple[list[str], float, bool]:
    """The most frequent regimes of the average checkpoint, their share, whether that is most."""
    shares = {name: fmean(m.regimes.get(name, 0.0) for m in models) for name in REGIMES}
    first, majority = most_frequent(shares)
    return first, shares[first[0]], majority


def _leading_sentence(models: Sequence[ModelSummary]) -> str:
    """Which regime has all, most or half of the layers, or that none has."""
    first, share, majority = leading_regimes(models)
    average = " of the average checkpoint" * (len(models) > 1)
    told = [f"{regime_text(name)} ({REGIMES[name]})" for name in first]
    if math.isclose(share, 1):
        whose = "" if len(models) == 1 else f" of all {len(models)} checkpoints"
        return f"All layers{whose} are {regime_text(first[0])}: {REGIMES[first[0]]}."
    if majority:
        most = "Most" if share < _NEARLY_ALL else "Nearly all"
        return (
            f"{most} layers{average} are {regime_text(first[0])} ({share_told(share)}): "
            f"{REGIMES[first[0]]}."
        )
    if math.isclose(share, 0.5):
        return f"Half of the layers{average} are {', the other half '.join(told)}."
    each = " each" * (len(first) > 1)
    return (
        f"No regime has most layers{average}; most frequent, with {share_told(share)}{each}: "
        f"{'; '.join(told)}."
    )


_NEARLY_ALL = 0.95


def share_told(share: float) -> str:
    """A share beside words such as most or half: with decimals where it would round to these.

    Examples
    --------
    >>> share_told(2 / 3), share_told(0.5), share_told(0.503), share_told(0.9996)
    ('67 %', '50 %', '50.3 %', '99.96 %')
    """
    for places in range(4):
        shown = f"{100 * share:.{places}f}"
        if all((float(shown) == x) == math.isclose(100 * share, x) for x in (50, 100)):
            break
    return f"{shown} %"


def _extremes(models: Sequence[ModelSummary]) -> list[str]:
    led = [m for m in models if m.gap is not None]
    if len(led) < 2:
        return []
    strong, weak = max(led, key=_gap), min(led, key=_gap)
    if percent(strong.gap) == percent(weak.gap):
        where = "every checkpoint"
        if len(led) < len(models):
            where = f"the {len(led)} checkpoints that have one"
        return [f"The lead is equally clear in {where} (median gap {percent(weak.gap)})."]
    return [
        f"The lead is clearest in {inert(strong.model)} (median gap {percent(strong.gap)}) and "
        f"weakest in {inert(weak.model)} ({percent(weak.gap)})."
    ]


def _gap(model: ModelSummary) -> float:
    return model.gap or 0.0


_TELL: dict[str, Callable[[ModelSummary], str]] = {
    "failed": lambda m: f"failed: {inert(m.model)}: {inert(m.why)}",
    "partial": lambda m: f"not complete: {inert(m.model)}; run the survey again to go on",
    "missing": lambda m: f"not there yet: {inert(m.model)}; run the survey again to go on",
}
