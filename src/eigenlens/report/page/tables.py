"""The numbers behind each figure as HTML tables: for readers who cannot or will not see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eigenlens.report.page.embed import table, text
from eigenlens.report.panels.figure import Columns, n_rows
from eigenlens.report.panels.spectra import HEAD_MEASURES, KEY_TITLES, orders_in
from eigenlens.report.panels.traces import COLLAPSE
from eigenlens.report.words import (
    complex_text,
    leader_decimals,
    p_text,
    percent,
    regime_text,
    separation_heading,
    separation_meaning,
    steps_text,
)
from eigenlens.tracing.result import LEVEL

MOST_ROWS = 240
_LEADING = 4  # eigenvalues a layer in a table; the download has all

Rows = tuple[list[str], list[list[Any]]]


def data_table(name: str, data: Columns, title: str) -> str:
    """The table of a figure, cut where it is long."""
    headings, rows = TABLES[name](data)
    more = len(rows) - MOST_ROWS
    note = NOTES[name](data) if name in NOTES else ""
    note += "" if more <= 0 else f"; {more} more rows are in the data to download"
    return table(headings, rows[:MOST_ROWS], f"{title}{note}")


def _eigenvalues(data: Columns) -> Rows:
    leaders = [i for i in range(n_rows(data)) if data["leading"][i]]
    places = leader_decimals(_value(data, i) for i in leaders)
    rows = [
        [
            data["label"][i],
            data["index"][i] + 1 if data["index"][i] >= 0 else "kernel",
            complex_text(_value(data, i), places),
            data["key"][i],
            data["error_bar"][i],
            data["leading"][i],
        ]
        for i in range(n_rows(data))
        if data["im"][i] >= 0 and data["index"][i] < 2 * _LEADING
    ]
    kept: dict[str, int] = {}
    out = []
    for row in rows:
        kept[row[0]] = kept.get(row[0], 0) + 1
        if kept[row[0]] <= _LEADING:
            out.append(row)
    return ["layer", "no.", "eigenvalue", _key_heading(data), "error bar", "leading"], out


def _key_heading(data: Columns) -> str:
    """What the keys are called; where layers have several orders, just that."""
    titles = [KEY_TITLES[order] for order in orders_in(data)]
    return titles[0] if len(titles) == 1 else "key"


def _of_the_eigenvalues(data: Columns) -> str:
    """Which eigenvalues are in the table, and what their key is."""
    counts: dict[str, int] = {}
    for label, index in zip(data["label"], data["index"], strict=True):
        counts[label] = counts.get(label, 0) + (index >= 0)
    found = sorted(set(counts.values()))
    computed = " to ".join(str(n) for n in dict.fromkeys((found[0], found[-1]))) if found else "0"
    orders = orders_in(data)
    keys = [
        f"{KEY_TITLES[order]}{f' ({_names(names)})' if len(orders) > 1 else ''}: {_KEYS[order]}"
        for order, names in orders.items()
    ]
    first = ""
    if found and found[-1] > _LEADING:
        first = (
            f"; the first {_LEADING} of a layer, a pair as one, of {computed} that were computed "
            "(all are in the data to download)"
        )
    return f"{first}; {'; '.join(keys)}"


def _names(names: list[str]) -> str:
    return ", ".join(names)


_KEYS = {
    "residual": "what a step with the residual connection multiplies the direction by; the largest "
    "leads",
    "real": "the real part, by which a direction grows with depth where no norm is on the residual "
    "stream; the largest leads",
    "modulus": "the size, without the residual connection; the largest leads",
}
"""What the key of an order is."""


def _value(data: Columns, i: int) -> complex:
    return complex(data["re"][i], data["im"][i])


def _regimes(data: Columns) -> Rows:
    places = leader_decimals(_value(data, i) for i in range(n_rows(data)))
    rows = [
        [
            data["label"][i],
            regime_text(data["regime"][i]),
            data["target"][i],
            complex_text(_value(data, i), places),
            percent(data["gap"][i]),
            _separation(data, i),
            data["spectral_norm"][i],
            data["henrici"][i],
            data["negative_fraction"][i],
        ]
        for i in range(n_rows(data))
    ]
    orders = dict.fromkeys(map(separation_heading, data["order"]))
    after = next(iter(orders)) if len(orders) == 1 else "10x behind after"
    heads = ["layer", "regime", "target", "leading", "gap", after, "|F|"]
    return [*heads, "Henrici", "share Re λ < 0"], rows


def _of_the_regimes(data: Columns) -> str:
    """What the columns of the regimes stand for."""
    orders = dict.fromkeys(data["order"])
    after = "; ".join(
        dict.fromkeys(f"{separation_heading(x)}: {separation_meaning(x)}" for x in orders)
    )
    return (
        f"; gap: how far the leading eigenvalue is ahead of the second; {after}; |F|: largest "
        "factor by which F stretches a state; Henrici: departure from normality, "
        "sqrt(|F|² - Σ|λ|²) / |F| with Frobenius norms: 0 where eigenvectors are at right angles, "
        "near 1 where eigenvalues say little about single steps; share Re λ < 0: of all d "
        "eigenvalues; - where not all eigenvalues were computed"
    )


def _separation(data: Columns, i: int) -> str:
    """Steps or depths until the second is behind; with the unit where layers have either."""
    text = steps_text(data["steps_to_separate"][i])
    if text == "-" or len(set(map(separation_heading, data["order"]))) == 1:
        return text
    return f"{text} x depth" if data["order"][i] == "real" else f"{text} step{'s' * (text != '1')}"


def _heads(data: Columns) -> Rows:
    names = ("label", "head", "ov_trace_ratio", "copying_score", "share")
    rows = [[data[n][i] for n in names] for i in range(n_rows(data))]
    return ["layer", "head", "trace ratio", "copying", HEAD_MEASURES["share"]], rows


def _alignment(data: Columns) -> Rows:
    names = ("label", "measure", "value", "low", "high", "random_low", "random_high")
    more = ("matched_spectrum", "random_init", "second_pair")
    p = [None if v is None else p_text(v, LEVEL) for v in data["p_holm"]]
    rows = [[*(data[n][i] for n in (*names, *more)), p[i]] for i in range(n_rows(data))]
    heads = ["call", "measure", "value", "95 % from", "to", "random from", "to"]
    return [*heads, "rotated F", "untrained", "second", "corrected p"], rows


def _collapse(data: Columns) -> Rows:
    rows: dict[tuple[int, str], list[Any]] = {}
    measures = list(COLLAPSE)
    for i in range(n_rows(data)):
        key = (data["depth"][i], data["where"][i])
        row = rows.setdefault(key, [data["label"][i], data["where"][i], *[None] * len(measures)])
        row[2 + measures.index(data["measure"][i])] = data["value"][i]
    return ["call", "state", *COLLAPSE.values()], list(rows.values())


def _sphere(data: Columns) -> Rows:
    last = max(data["depth"], default=0)
    half = [i for i in range(n_rows(data)) if data["depth"][i] == last]
    first = [i for i in range(n_rows(data)) if data["depth"][i] == min(data["depth"])]
    rows = [
        [
            data["prompt"][i] + 1,
            data["position"][i] + 1,
            data["token"][i],
            data["alignment"][j],
            data["alignment"][i],
            data["share"][j],
            data["share"][i],
        ]
        for j, i in zip(first, half, strict=True)
    ]
    heads = ["prompt", "place", "token", "alignment at the start", "at the end"]
    return [*heads, "share in the axes at the start", "at the end"], rows


def _trajectory(data: Columns) -> Rows:
    n = n_rows(data)
    every = max(1, n // 40)
    shown = [i for i in range(n) if i % every == 0 or i == n - 1]
    names = ("step", "layer", "cosine", "disagreement", "misalignment", "gamma", "gain", "rho")
    heads = ["step", "layer", "mean cosine", "disagreement", "sine to target"]
    return [*heads, "gamma", "gain", "rho"], [[data[k][i] for k in names] for i in shown]


TABLES: dict[str, Callable[[Columns], Rows]] = {
    "eigenvalues": _eigenvalues,
    "depth": _eigenvalues,
    "regimes": _regimes,
    "heads": _heads,
    "alignment": _alignment,
    "collapse": _collapse,
    "sphere": _sphere,
    "trajectory": _trajectory,
}


NOTES: dict[str, Callable[[Columns], str]] = {
    "eigenvalues": _of_the_eigenvalues,
    "depth": _of_the_eigenvalues,
    "regimes": _of_the_regimes,
}
"""What the caption of a table adds to its title."""


def token_table(data: Columns) -> str:
    """The decoded directions: a row a layer and side, tokens as chips."""
    rows: dict[tuple[int, str], dict[str, list[str]]] = {}
    labels: dict[int, str] = {}
    for i in range(n_rows(data)):
        position, side = data["position"][i], data["side"][i]
        labels[position] = data["label"][i]
        ends = rows.setdefault((position, side), {"towards": [], "away from": []})
        ends[data["end"][i]].append(_chip(data["token"][i], data["score"][i]))
    per_layer = {p: sum(key[0] == p for key in rows) for p in labels}
    body, seen = [], None
    for (position, side), ends in rows.items():
        first = ""
        if position != seen:
            first = (
                f'<th scope="rowgroup" rowspan="{per_layer[position]}">'
                f"{text(labels[position])}</th>"
            )
        new = ' class="first"' if position != seen else ""
        seen = position
        body.append(
            f'<tr{new}>{first}<th scope="row">{text(side)}</th>'
            f"{_cell('towards', ends)}{_cell('away from', ends)}</tr>"
        )
    head = "".join(f'<th scope="col">{h}</th>' for h in ("layer", "side", "towards", "away from"))
    size = "tall" if len(labels) <= 8 else "long"
    caption = "Tokens at both ends of the leading direction of each layer"
    return (
        f'<div class="scroll {size}" tabindex="0" role="region" aria-label="{caption}">'
        f'<table class="tokens"><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(end: str, ends: dict[str, list[str]]) -> str:
    """One end's tokens; on a phone, where the heading is hidden, with its name before them."""
    return f'<td data-end="{end}">{" ".join(ends[end])}</td>'


def _chip(token: str, score: float) -> str:
    """A token with its spaces to be seen, its score on hover."""
    shown = text(token).replace(" ", "\u2423") or "&empty;"
    return f'<span class="token" title="score {score:.3g}">{shown}</span>'
