"""`eigenlens.compare`: two checkpoints of one architecture, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.blas import threads_for
from eigenlens.circuit.checkpoint import Checkpoint, Circuits, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.comparing.difference import Factors, difference, difference_of_factors
from eigenlens.comparing.layers import Key, pair_layers
from eigenlens.comparing.matching import Match, match, points
from eigenlens.comparing.result import Comparison, LayerComparison, Side
from eigenlens.comparing.subspaces import principal_angles
from eigenlens.errors import EigenlensError, ShapeError
from eigenlens.inert import inert
from eigenlens.shown.names import Names
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.maps import build_map
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.result import LayerSpectrum

Progress = Callable[[int, int, str], None]
"""Called before each layer with (layers done, layers in all, name of the layer)."""

_SPARE = 2  # so many times the leaders asked for are computed, as partners that may be needed
_MOST = 8  # and at most so many times, unless the layer is small
_SMALL = 512  # up to this size all eigenvalues are at hand anyway


def compare(
    a: Any,
    b: Any,
    k: int = 8,
    order: str = "auto",
    *,
    operator: str = "raw",
    solver: str = "auto",
    tie_tolerance: float = 0.01,
    dtype: str = "float64",
    seed: int = 0,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    architecture: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """What of every layer's F differs between two checkpoints: base and tuned, exact and quantised.

    Layer by layer: ``|F_A - F_B|_F / |F_A|_F`` from the factors, the rank of the difference, how
    far the leading eigenvalues moved (matched by assignment on the complex plane, against their
    error bars), the angles between what the two draw tokens to, and whether the regime changed. Two
    layers are in memory at a time.

    Parameters
    ----------
    a, b
        Each a folder, a file, ``sample:NAME``, a hub id, a live model, a state dict with its
        config, ``(W_V, W_O)``, circuits or an open checkpoint.
    k
        Leading eigenvalues of either to follow.
    order, operator, solver, tie_tolerance, dtype, seed
        As in `eigenlens.spectrum`.
    stack, layers
        Which layers; None for all.
    architecture
        Rules for a model type that the table does not know; used for both.
    progress
        Called before each layer.

    Returns
    -------
    `Comparison`, with one `LayerComparison` a layer that both have.

    Raises
    ------
    EigenlensError
        The two have other widths, other depths or no layer in common, or one is not usable.

    Examples
    --------
    >>> import numpy as np, eigenlens
    >>> W_V, W_O = np.diag([1.0, 0.5]), np.eye(2)
    >>> layer = eigenlens.compare((W_V, W_O), (1.5 * W_V, W_O)).layers[0]
    >>> layer.relative, layer.leader.after, layer.principal_angles
    (0.5, (1.5+0j), (0.0,))
    """
    options = SpectrumOptions(
        k, order, operator, solver=solver, tie_tolerance=tie_tolerance, dtype=dtype, seed=seed
    )
    one, two = open_checkpoint(a, architecture), open_checkpoint(b, architecture)
    paired = pair_layers(one, two, stack, layers)
    found = []
    for done, ((_, _, _), i, j) in enumerate(paired.both):
        name = paired.a.names[i]
        if progress is not None:
            progress(done, len(paired.both), name)
        pair = _read(paired.a, i, one), _read(paired.b, j, two)
        found.append(compare_circuits(*pair, options, name))
        del pair
    if progress is not None:
        progress(len(paired.both), len(paired.both), "")
    result = Comparison(
        model=describe(one),
        other=describe(two),
        options={
            **{
                name: getattr(options, name)
                for name in ("k", "order", "operator", "solver", "tie_tolerance", "dtype", "seed")
            },
            "stack": stack,
            "layers": None if layers is None else list(layers),
        },
        layers=tuple(found),
        only={"a": paired.only_a, "b": paired.only_b},
    )
    return replace(result, warnings=tuple(_warnings(result)))


def _read(circuits: Circuits, index: int, model: Checkpoint) -> OVCircuit:
    """A circuit; an error says in which of the two models it is."""
    try:
        return circuits[index]
    except EigenlensError as error:
        raise type(error)(f"{inert(model.source_label)}: {error}") from error


def compare_circuits(
    a: OVCircuit, b: OVCircuit, options: SpectrumOptions, name: str = "layer"
) -> LayerComparison:
    """Two circuits compared.

    Raises
    ------
    ShapeError
        They act on states of other widths.
    NumericsError
        No solver reached the tolerance.
    """
    if (a.d_model, a.d_in) != (b.d_model, b.d_in):
        raise ShapeError(
            f"{inert(name)}: F is ({a.d_model}, {a.d_in}) in the first model and ({b.d_model}, "
            f"{b.d_in}) in the second; compare two checkpoints of one architecture"
        )
    with threads_for(max(a.rank_bound, b.rank_bound)):
        sides: tuple[LayerSpectrum, LayerSpectrum] | None = None
        matches: list[Match] = []
        angles: Sequence[float] = ()
        if not a.is_square:
            apart = difference_of_factors(_factors(a, options), _factors(b, options))
        else:
            maps = [build_map(x, options.operator, options.dtype) for x in (a, b)]
            apart = difference(*maps)
            del maps
            sides, matches = _follow(a, b, options, apart.identical)
            angles = principal_angles(*sides).tolist()
    return LayerComparison(
        stack=a.stack,
        layer=a.layer,
        kind=a.kind,
        order=sides[0].order if sides else options.order,
        operator=options.operator,
        difference=apart,
        a=_side(sides[0]) if sides else None,
        b=_side(sides[1]) if sides else None,
        matches=tuple(matches),
        principal_angles=tuple(angles),
        bias_change=_bias_change(a, b),
    )


def _follow(
    a: OVCircuit, b: OVCircuit, options: SpectrumOptions, identical: bool
) -> tuple[tuple[LayerSpectrum, LayerSpectrum], list[Match]]:
    """Spectra of both, and where the leading eigenvalues of either are in the other.

    More eigenvalues than asked for are computed, and more again where a partner may lie below them.
    """
    count = _SPARE * max(options.k, 2)
    small = max(a.rank_bound, b.rank_bound) <= _SMALL
    while True:
        wider = _asking(options, count)
        first = analyse(a, wider)
        second = first if identical else analyse(b, _asking(wider, count, first.order))
        found = match(points(first, options.k), points(second, options.k), first.order)
        whole = all(x.negative_fraction is not None for x in (first, second))
        most = whole or (count >= _MOST * options.k and not small)
        if most or all(m.certain for m in found):
            return (first, second), found
        count *= 4


def _factors(x: OVCircuit, options: SpectrumOptions) -> Factors:
    """Of a layer that reads states of another width than it writes: no norm can be folded in."""
    left = x.grouped_output(options.dtype)
    scale = np.asarray(x.output_scale, dtype=left.dtype)
    return np.asarray(left * (scale[:, None] if scale.ndim else scale)), x.value(options.dtype)


def _asking(options: SpectrumOptions, k: int, order: str | None = None) -> SpectrumOptions:
    return SpectrumOptions(
        k,
        order or options.order,
        options.operator,
        solver=options.solver,
        tie_tolerance=options.tie_tolerance,
        dtype=options.dtype,
        seed=options.seed,
    )


def _side(x: LayerSpectrum) -> Side:
    listed = x.eigenvalues.size > 0
    return Side(
        eigenvalue=complex(x.eigenvalues[0]) if listed else None,
        error_bar=float(x.error_bars[0]) if listed else None,
        regime=x.regime,
        target=x.target,
        gap=x.gap,
        angle=x.angle,
        spectral_norm=x.spectral_norm,
    )


def _bias_change(a: OVCircuit, b: OVCircuit) -> float | None:
    if not (a.has_bias or b.has_bias):
        return None
    before, after = a.bias, b.bias
    moved, size = float(np.linalg.norm(before - after)), float(np.linalg.norm(before))
    return 0.0 if moved == 0 else moved / size if size else math.inf


def _warnings(result: Comparison) -> Iterator[str]:
    first, second = result.model, result.other
    for name in ("model_type", "norm", "placement"):
        if first[name] != second[name] and None not in (first[name], second[name]):
            yield (
                f"the two differ in {name}: {first[name]} and {second[name]}; F is compared all "
                "the same"
            )
    alone = {
        side: [Key(x["stack"], x["kind"], x["layer"]) for x in found]
        for side, found in result.only.items()
    }
    here = Names.of(result.layers)
    both = Names.of([*result.layers, *alone["a"], *alone["b"]])
    for side, label in (("a", first["source"]), ("b", second["source"])):
        if alone[side]:
            yield f"only {label} has {both.phrases(alone[side])}"
    unsure = [x for x in result.layers if not all(m.certain for m in x.matches)]
    if unsure:
        yield (
            f"in {here.phrases(unsure)} a partner may lie below the eigenvalues that were "
            "computed; ask for a larger k"
        )
    biased = [x for x in result.layers if x.bias_change and not x.difference.is_real]
    if biased:
        yield f"in {here.phrases(biased)} the biases changed, which are no part of F"
