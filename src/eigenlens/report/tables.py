"""Rich tables for a terminal, 100 columns at most, with a plain sentence under each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.heads import head_fraction
from eigenlens.report.model_words import FULL, model_line
from eigenlens.report.names import Names, left_out_texts
from eigenlens.report.order_words import leading_text, orders_of, unusual_text
from eigenlens.report.sentences import spectrum_sentences
from eigenlens.report.whole_table import WholeTable
from eigenlens.report.words import (
    complex_text,
    count_text,
    decimals,
    fraction_text,
    layer_list,
    leader_decimals,
    percent,
    regime_text,
    separation_heading,
    separation_meaning,
    size_of,
    steps_text,
)
from eigenlens.spectra.result import LayerSpectrum, Spectrum

WIDTH = 100

_STYLES = {
    "real_dominant": "green",
    "complex_dominant": "magenta",
    "flip": "yellow",
    "near_degenerate": "cyan",
    "no_consensus": "red",
}


def plain_table(columns: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """An empty table in the house style; `columns` are (heading, justification)."""
    table = WholeTable(title)
    for heading, justify in columns:
        # Numbers stay whole; where 100 columns are short, words wrap.
        table.add_column(
            heading,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=justify == "right",
            overflow="fold",
        )
    return table


def spectrum_view(result: Spectrum) -> RenderableType:
    """Everything that `eigenlens spectrum` prints as a table."""
    parts: list[RenderableType] = [_heading(result)]
    names = Names.of(result.layers)
    shown = Decimals.of(result.layers)
    tables: dict[tuple[str, str], list[LayerSpectrum]] = {}
    for x in result.layers:  # the heading of the steps holds for all rows of a table
        tables.setdefault((x.stack, separation_heading(x.order)), []).append(x)
    parts += [_layers_table(layers, names, shown) for layers in tables.values()]
    parts += [Text(sentence) for sentence in spectrum_sentences(result)]
    if result.layers:
        legend = columns_legend(orders_of(result.layers))
        parts.append(Text(f"{legend}{_further(result.layers)}", style="dim"))
    with_heads = [x for x in result.layers if x.heads is not None]
    if with_heads:
        parts += [Text(), _heads_table(with_heads, names, shown), Text(_HEADS_LEGEND, style="dim")]
    with_tokens = [x for x in result.layers if x.tokens is not None]
    if with_tokens:
        parts += [Text(), *_tokens_table(with_tokens, names)]
    groups = [(x.stack, x.kind) for x in result.layers]
    skipped = [(x.stack, x.kind, x.layer, x.reason) for x in result.skipped]
    parts += [Text(text) for text in left_out_texts(groups, skipped)]
    return Group(*parts)


@dataclass(frozen=True)
class Decimals:
    """Decimals that the columns of a spectrum share: of eigenvalues and of norms."""

    values: int
    norms: int

    @classmethod
    def of(cls, layers: Sequence[LayerSpectrum]) -> Decimals:
        """Those under which every leader and every norm keeps its digits."""
        leaders = [x.eigenvalues[0] for x in layers if x.eigenvalues.size and x.target != "kernel"]
        return cls(leader_decimals(leaders), decimals([x.spectral_norm for x in layers], 2))


def _heading(result: Spectrum) -> Text:
    text = model_line(result.model, *FULL)
    if result.layers:
        operator = result.layers[0].operator
        text.append(f"\noperator {operator}, {leading_text(result.layers, meaning=True)}")
        # Of a stack that was asked for the placement is not known here.
        asked = result.options["order"] if result.options.get("stack") is None else "auto"
        remark = unusual_text(result.layers, asked, result.model["placement"])
        text.append(f"\n{remark}" if remark else "")
    return text


def columns_legend(orders: Iterable[str]) -> str:
    """What the headings of tables of layers stand for, under the orders that occur."""
    after = "; ".join(
        dict.fromkeys(f"{separation_heading(x)}: {separation_meaning(x)}" for x in orders)
    )
    return (
        f"gap: how far the first is ahead of the second; {after}; |F|: largest factor by which F "
        "stretches a state; error: error bar of the leading eigenvalue"
    )


def _layers_table(layers: Sequence[LayerSpectrum], names: Names, shown: Decimals) -> Table:
    shared = any(x.steps > 1 for x in layers)
    columns = [("layer", "right")]
    columns += [("steps", "right")] if shared else []
    columns += [
        ("leading", "right"),
        ("second", "right"),
        ("gap", "right"),
        (separation_heading(layers[0].order), "right"),
        ("|F|", "right"),
        ("error", "right"),
        ("regime", "left"),
    ]
    table = plain_table(columns)
    for layer in layers:
        first, second = _distinct(layer, shown.values)
        row: list[str | Text] = [names(layer)]
        row += [str(layer.steps)] if shared else []
        row += [
            first,
            second,
            percent(layer.gap),
            steps_text(layer.steps_to_separate),
            size_of(layer.spectral_norm, shown.norms),
            f"{layer.error_bars[0]:.0e}" if layer.error_bars.size else "-",
            Text(regime_text(layer.regime), style=_STYLES[layer.regime]),
        ]
        table.add_row(*row)
    return table


def _told_once(layer: LayerSpectrum) -> list[complex]:
    """The eigenvalues as a table has them: of a pair the one, which stands for both."""
    return [complex(v) for v in layer.eigenvalues if v.imag >= 0]


def _further(layers: Sequence[LayerSpectrum]) -> str:
    """How many eigenvalues there are besides the two of a row, and where; nothing for none."""
    if not any(len(_told_once(x)) > 2 - (x.target == "kernel") for x in layers):
        return ""
    sizes = sorted({x.eigenvalues.size for x in layers})
    computed = " to ".join(str(n) for n in dict.fromkeys((sizes[0], sizes[-1])))
    each = " of each layer" if len(layers) > 1 else ""
    return (
        f". The table shows the first two, a pair as one, of the {computed} eigenvalues that were "
        f"computed{each}: --format json or csv, or --out FILE, gives them all."
    )


def _distinct(layer: LayerSpectrum, places: int) -> tuple[str, str]:
    """Texts of the leading and of the second eigenvalue, a pair counted once."""
    texts = [complex_text(v, places) for v in _told_once(layer)[:2]]
    if layer.target == "kernel":
        texts.insert(0, "0 (kernel)")
    texts += ["-", "-"]
    return texts[0], texts[1]


_HEADS_LEGEND = (
    "trace ratio: +1 for a head that copies what it sees, -1 for one that inverts it; copying: the "
    "same seen through the vocabulary; share of leading: the part of the layer's leading "
    "eigenvalue that comes from the head, as a fraction of it (real part; all heads together: 1; "
    "JSON share: the same not divided by the eigenvalue, a complex number)"
)


def _heads_table(layers: Sequence[LayerSpectrum], names: Names, shown: Decimals) -> Table:
    table = plain_table(
        [
            ("layer", "left"),
            ("head", "right"),
            ("leading", "right"),
            ("trace ratio", "right"),
            ("copying", "right"),
            ("share of leading", "right"),
        ],
        title="heads",
    )
    for layer in layers:
        for head in layer.heads or ():
            own = head.eigenvalues[:1]
            lead = complex_text(complex(own[0]), shown.values) if own.size else "-"
            table.add_row(
                names(layer) if head.head == 0 else "",
                str(head.head),
                lead,
                _signed(head.ov_trace_ratio),
                _signed(head.copying_score),
                fraction_text(head_fraction(head, layer)),
            )
        table.add_section()
    return table


def _signed(x: float | None) -> str:
    return "-" if x is None else f"{x:+.2f}"


_SIDES = {
    "right": "writes",
    "right_imag": "writes, turned",
    "left": "reads",
    "left_imag": "reads, turned",
}
_TOKENS_LEGEND = (
    "writes: the tokens at both ends of the direction that is written (right eigenvector); reads: "
    "of the one that is read (left eigenvector); turned: the other axis of a pair's plane; "
    "\u2423: a space"
)


def _tokens_table(layers: Sequence[LayerSpectrum], names: Names) -> Iterator[RenderableType]:
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
        title="tokens of the leading direction",
        width=WIDTH,
    )
    table.add_column("layer", no_wrap=True)
    table.add_column("side", no_wrap=True)
    table.add_column("towards", ratio=1, overflow="fold")
    table.add_column("away from", ratio=1, overflow="fold")
    notes: dict[str, None] = {}
    for layer in layers:
        name = names(layer)
        for side, found in (layer.tokens or {}).items():
            lists = _token_list(found.positive), _token_list(found.negative)
            table.add_row(name, _SIDES[side], *lists)
            name = ""
            notes[f"{_SIDES[side].split(',')[0]}: through the {found.through}"] = None
        table.add_section()
    yield table
    yield Text(_TOKENS_LEGEND, style="dim")
    for note in notes:
        yield Text(inert(note), style="dim")


def _token_list(tokens: Sequence[tuple[str, float]]) -> Text:
    """Tokens between quotes, so that leading spaces show; no markup is read from them.

    Their own spaces are shown as signs, so that a line ends between tokens only.
    """
    return Text(" ".join(f"'{inert(t)}'".replace(" ", "\u2423") for t, _ in tokens))


_INSPECT_LEGEND = (
    "steps: how often a pass uses the layer; layout: how the files hold the values; rank: the most "
    "that F can have; scale: factor on the attention output; bias: of the projections V and O"
)
_VERIFY_LEGEND = (
    "; 1 token, 4 tokens, per head: relative error of F x + b against the running model, for one "
    "token, for four equal ones, and head by head for different ones"
)


def inspect_view(record: dict[str, Any]) -> RenderableType:
    """The table of `eigenlens inspect`."""
    m = record["model"]
    layers = record["layers"]
    count = count_text(len(layers), "layer")
    names = Names((x["stack"], x["kind"]) for x in layers)
    known = {**m, "n_layers": len(layers)}
    parts: list[RenderableType] = [model_line(known, "layers", "d", "each head", "norm")]
    verified = any(x["verified"] is not None for x in layers)
    columns = [
        ("layer", "right"),
        ("steps", "right"),
        ("layout", "left"),
        ("rank", "right"),
        ("scale", "right"),
        ("bias", "left"),
    ]
    columns += (
        [("1 token", "right"), ("4 tokens", "right"), ("per head", "right"), ("identity", "left")]
        if verified
        else []
    )
    table = plain_table(columns)
    for x in layers:
        bias = "+".join(b for b in ("V", "O") if x["bias"][b]) or "none"
        row: list[str | Text] = [
            names.name(x["stack"], x["kind"], x["layer"]),
            str(x["steps"]),
            x["layout"],
            f"{x['rank']} of {x['d_out']}",
            f"{x['output_scale']:g}",
            bias,
        ]
        if verified:
            row += _verified_cells(x["verified"])
        table.add_row(*row)
    parts.append(table)
    parts += list(_tensor_names(layers))
    for note in dict.fromkeys(note for x in layers for note in x["notes"]):
        where = [x for x in layers if note in x["notes"]]
        some = "" if len(where) == len(layers) else f" ({len(where)} of {count})"
        parts.append(Text(f"note{some}: {inert(note)}"))
    groups = [(x["stack"], x["kind"]) for x in layers]
    skipped = [(s["stack"], s["kind"], s["layer"], s["reason"]) for s in record["skipped"]]
    parts += [Text(text) for text in left_out_texts(groups, skipped)]
    if verified:
        good = sum(x["verified"] is not None and x["verified"]["ok"] for x in layers)
        parts.append(
            Text(
                f"The attention output of the running model is W_O W_V x + b for equal tokens in "
                f"{good} of {count}, so F is "
                + ("what this model applies." if good == len(layers) else "NOT right everywhere.")
            )
        )
    parts.append(Text(_INSPECT_LEGEND + (_VERIFY_LEGEND if verified else ""), style="dim"))
    return Group(*parts)


def _tensor_names(layers: Sequence[dict[str, Any]]) -> Iterator[Text]:
    """The tensors of the first layer of every stack and kind, and which others have the same."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for x in layers:
        groups.setdefault((x["stack"], x["kind"]), []).append(x)
    names = Names(groups)
    for (stack, kind), group in groups.items():
        if len(groups) > 1 or len(group) > 1:
            name = names.name(stack, kind, group[0]["layer"])
            yield Text(f"layer {name}:" if names.one else f"{name}:", style="dim")
        for role, name in group[0]["tensors"].items():
            if name is not None:
                yield Text(f"{role:>8}  {inert(name)}", style="dim")
        yield from (Text(text, style="dim") for text in _other_layers(group))


def _other_layers(group: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Which layers behind the first have its tensors, and which have others."""
    first, *rest = group
    alike = [x["layer"] for x in rest if _same_tensors(first["tensors"], x["tensors"])]
    others = [x["layer"] for x in rest if x["layer"] not in alike]
    for layers, what in (
        (alike, "the same tensors ({own} aside)"),
        (others, "others, which --format json lists"),
    ):
        if layers:
            one = len(layers) == 1
            noun, verb, own = (
                ("layer", "has", "its number") if one else ("layers", "have", "their numbers")
            )
            yield f"{noun} {layer_list(layers)} {verb} {what.format(own=own)}"


_NUMBER = re.compile(r"(\d+)")


def _same_tensors(a: dict[str, str | None], b: dict[str, str | None]) -> bool:
    """Whether the names differ in nothing but one number, the layer's."""
    differing: set[tuple[str, str]] = set()
    for role in a.keys() | b.keys():
        p, q = _NUMBER.split(a.get(role) or ""), _NUMBER.split(b.get(role) or "")
        if len(p) != len(q) or p[::2] != q[::2]:
            return False
        differing |= {pair for pair in zip(p[1::2], q[1::2], strict=True) if pair[0] != pair[1]}
    return len(differing) <= 1


def _verified_cells(v: dict[str, Any] | None) -> list[str | Text]:
    if v is None:
        return ["-", "-", "-", "not checked"]
    heads = "-" if v["error_heads"] is None else f"{v['error_heads']:.0e}"
    verdict = Text("holds", style="green") if v["ok"] else Text("FAILS", style="bold red")
    return [f"{v['error_one']:.0e}", f"{v['error_four']:.0e}", heads, verdict]
