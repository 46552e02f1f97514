"""From sums to results: intervals, p-values with Holm's correction, overlaps, gain against gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenlens.measure.alignment import overlap
from eigenlens.measure.bootstrap import Interval
from eigenlens.measure.significance import (
    Summary,
    holm,
    rank_p_value,
    spearman,
    summarise,
)
from eigenlens.measure.sums import AlignmentSums
from eigenlens.tracing.gather import Gatherer, RowKey, RowSums
from eigenlens.tracing.ladder import LadderSums
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.result import LayerTrace, StackTrace
from eigenlens.tracing.targets import LayerTarget


@dataclass(frozen=True)
class Gathered:
    """All sums of a run: the model, the ladder, the initialised model."""

    main: Gatherer
    ladder: LadderSums | None
    fresh: Gatherer | None


def finish(
    gathered: Gathered, options: TraceOptions
) -> tuple[tuple[LayerTrace, ...], tuple[StackTrace, ...]]:
    """The results of every row, corrected for their number, and of every stack."""
    rows = gathered.main.rows
    summaries = {
        key: summarise(_main(row, options), resamples=options.bootstrap, seed=options.seed)
        for key, row in rows.items()
    }
    ranks = {key: _rank(row, summaries[key]) for key, row in rows.items()}
    halves = {key: s.p_half.p_value for key, s in summaries.items()}
    ranked = dict(zip(ranks, holm(list(ranks.values())), strict=True))
    halved = dict(zip(halves, holm(list(halves.values())), strict=True))
    layers = tuple(
        _layer(key, row, summaries[key], gathered, options, (ranks[key], ranked[key], halved[key]))
        for key, row in rows.items()
    )
    return layers, tuple(_stacks(gathered.main, layers))


def _main(row: RowSums, options: TraceOptions) -> AlignmentSums:
    return row.fewer if options.drop_sinks else row.every


def _rank(row: RowSums, summary: Summary, *, of_gamma: bool = False) -> float | None:
    if row.nulls is None or not summary.n_tokens:
        return None
    null = row.nulls.random
    measure, drawn = (summary.gamma, null.gamma()) if of_gamma else (summary.rho, null.rho())
    n = summary.n_prompts
    return rank_p_value(measure, drawn, alternative="greater", n_prompts=n).value


def _layer(
    key: RowKey,
    row: RowSums,
    summary: Summary,
    gathered: Gathered,
    options: TraceOptions,
    p: tuple[float | None, float | None, float | None],
) -> LayerTrace:
    spectrum = row.target.spectrum
    stack, layer, kind, step = key
    has_block = bool(row.block.n_prompts)
    return LayerTrace(
        stack=stack,
        layer=layer,
        kind=kind,
        step=step,
        order=spectrum.order,
        operator=spectrum.operator,
        regime=spectrum.regime,
        target=spectrum.target,
        target_dim=row.target.dim,
        gap=spectrum.gap,
        gamma=summary.gamma,
        expected_gamma=row.target.expected,
        gain=summary.gain,
        signed_gain=summary.signed_gain,
        rho=summary.rho,
        gamma_ci=_ci(summary.gamma_ci),
        gain_ci=_ci(summary.gain_ci),
        signed_gain_ci=_ci(summary.signed_gain_ci),
        rho_ci=_ci(summary.rho_ci),
        p_value=p[0],
        p_holm=p[1],
        p_gamma=_rank(row, summary, of_gamma=True),
        p_half=summary.p_half.p_value,
        p_half_holm=p[2],
        nulls=_nulls(key, row, gathered, options),
        sinks=_sinks(row),
        collapse={**row.attention.means(), "dirichlet_energy": row.dirichlet()},
        collapse_block=row.block.means() if has_block else None,
        overlap_mean=_overlap(row.target, row.mean.basis()),
        overlap_sinks=_overlap(row.target, row.sinks.basis()),
        n_tokens=summary.n_tokens,
        n_prompts=summary.n_prompts,
        undefined=_main(row, options).undefined,
        ladder=None if gathered.ladder is None else gathered.ladder.result(key),
    )


def _ci(interval: Interval | None) -> tuple[float, float] | None:
    if interval is None or interval.low is None or interval.high is None:
        return None
    return interval.low, interval.high


def _means(sums: AlignmentSums) -> dict[str, float | int]:
    return {
        "gamma": float(sums.gamma()[0]),
        "gain": float(sums.gain()[0]),
        "rho": float(sums.rho()[0]),
        "n_tokens": sums.n_tokens,
    }


def _sinks(row: RowSums) -> dict[str, Any]:
    total = row.every.n_tokens + row.every.undefined
    return {
        "n": row.n_sinks,
        "share": row.n_sinks / total if total else 0.0,
        "with": _means(row.every),
        "without": _means(row.fewer),
    }


def _nulls(
    key: RowKey, row: RowSums, gathered: Gathered, options: TraceOptions
) -> dict[str, Any] | None:
    if row.nulls is None:
        return None
    found = row.nulls.results()
    fresh = None if gathered.fresh is None else gathered.fresh.rows.get(key)
    if fresh is not None:
        measured = _means(_main(fresh, options))
        found["random_init"] = {name: measured[name] for name in ("gamma", "gain", "rho")}
    return found


def _overlap(target: LayerTarget, basis: Any) -> float | None:
    return None if basis is None or not target.dim else overlap(target.span, basis)


def _stacks(gatherer: Gatherer, layers: tuple[LayerTrace, ...]) -> list[StackTrace]:
    found = []
    for stack, kind in dict.fromkeys((x.stack, x.kind) for x in layers):
        targets = [t for key, t in gatherer.targets.items() if (key[0], key[2]) == (stack, kind)]
        table = np.eye(len(targets))
        for i, a in enumerate(targets):
            for j, b in enumerate(targets[:i]):
                table[i, j] = table[j, i] = overlap(a.span, b.span)
        own = [x for x in layers if (x.stack, x.kind) == (stack, kind)]
        relation = spearman([x.gain for x in own], [x.gap for x in own])
        found.append(
            StackTrace(
                stack=stack,
                kind=kind,
                layers=tuple(t.spectrum.layer for t in targets),
                overlaps=table.tolist(),
                gain_against_gap={
                    "r": relation.r,
                    "ci": None
                    if relation.interval.low is None
                    else [relation.interval.low, relation.interval.high],
                    "n": relation.n,
                    "warning": relation.interval.warning,
                },
                start=gatherer.start[stack].means(),
            )
        )
    return found
