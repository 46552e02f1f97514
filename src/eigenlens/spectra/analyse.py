"""`eigenlens.spectrum`: from a model to the certified spectrum of its layers, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Complex

from eigenlens.blas import threads_for
from eigenlens.cache import Cache
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.circuit.plans import Skipped
from eigenlens.errors import NumericsError, OptionError
from eigenlens.spectra.decode import decode_leader
from eigenlens.spectra.estimate import layer_costs
from eigenlens.spectra.heads import HeadReader
from eigenlens.spectra.maps import LinearMap, build_map
from eigenlens.spectra.norms import spectral_norm
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.orders import Order, resolve_order, whole_pairs
from eigenlens.spectra.principal import Principal, find_principal, sure_bars, target_basis
from eigenlens.spectra.remembered import Content, Remembered
from eigenlens.spectra.result import LayerSpectrum, Spectrum
from eigenlens.spectra.schedule import in_sequence, workers_for
from eigenlens.spectra.solvers import Eigenpairs, eigenpairs

Progress = Callable[[int, int, str], None]
"""Called before each layer with (layers done, layers in all, name of the layer)."""


def spectrum(
    source: Any,
    k: int = 8,
    order: str = "auto",
    *,
    operator: str = "raw",
    all: bool = False,
    per_head: bool = False,
    decode: int = 0,
    solver: str = "auto",
    tie_tolerance: float = 0.01,
    dtype: str = "float64",
    seed: int = 0,
    keep_vectors: bool = False,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
    verify_cache: bool = False,
) -> Spectrum:
    """The leading eigenvalues of every attention layer's ``F = W_O W_V``, and what they mean.

    Weights are read one layer at a time from the files; no model is instantiated. Every pair is
    certified by its residual against the factors.

    Parameters
    ----------
    source
        A folder, a .safetensors or .gguf file, ``sample:NAME``, a hub id, a live model, a state
        dict with its config, ``(W_V, W_O)``, an `OVCircuit` or several, or an open checkpoint.
    k, order, operator, all, per_head, decode, solver, tie_tolerance, dtype, seed, keep_vectors
        See `SpectrumOptions`.
    stack, layers
        Which layers; None for all.
    progress
        Called before each layer.
    cache
        Where finished layers are kept and looked up (`eigenlens.cache.Cache()` is the user's
        folder, which the command line uses); None for no cache.
    verify_cache
        Read the tensors and compare their content before a kept layer is used.

    Returns
    -------
    `Spectrum`, with one `LayerSpectrum` a layer.

    Raises
    ------
    EigenlensError
        The source, an option or a tensor is not usable; the message says what and what to do.

    Examples
    --------
    >>> import numpy as np, eigenlens
    >>> W_V, W_O = np.diag([1.0, 0.5]), np.eye(2)
    >>> layer = eigenlens.spectrum((W_V, W_O)).layers[0]
    >>> layer.regime, layer.eigenvalues.real.tolist(), round(layer.gap, 3)
    ('real_dominant', [1.0, 0.5], 0.25)
    """
    options = SpectrumOptions(
        k, order, operator, all, per_head, decode, solver, tie_tolerance, dtype, seed, keep_vectors
    )
    if not (cache is None or isinstance(cache, Cache)):
        raise OptionError(f"cache={cache!r}: give an eigenlens.cache.Cache(), or None for none")
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    memory = None if cache is None else Remembered(cache, checkpoint, options, verify_cache)
    found = list(
        iterate(checkpoint, options, stack=stack, layers=layers, progress=progress, memory=memory)
    )
    problem = [cache.problem] if cache is not None and cache.problem else []
    return Spectrum(
        model=describe(checkpoint),
        options={
            **{name: getattr(options, name) for name in options.__dataclass_fields__},
            "stack": stack,
            "layers": None if layers is None else list(layers),
        },
        layers=tuple(found),
        skipped=(*checkpoint.skipped, *not_square(checkpoint, stack, layers)),
        warnings=(*_warnings(found), *problem),
    )


def not_square(
    checkpoint: Checkpoint, stack: str | None = None, layers: Sequence[int] | None = None
) -> list[Skipped]:
    """Layers that read states of another width than they write: no spectrum there."""
    return [
        Skipped(
            plan.stack,
            plan.layer,
            f"F is ({plan.geometry.d_model}, {plan.geometry.width_in}), not square: it has no "
            "eigenvalues, only singular values (OVCircuit.singular_values)",
            plan.kind,
        )
        for plan in checkpoint.plans
        if plan.geometry.width_in != plan.geometry.d_model
        and stack in (None, plan.stack)
        and (layers is None or plan.layer in layers)
    ]


def iterate(
    checkpoint: Checkpoint,
    options: SpectrumOptions,
    *,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
    memory: Remembered | None = None,
) -> Iterator[LayerSpectrum]:
    """The layers' spectra one by one, in bounded memory whatever their number.

    One layer a worker is in memory (`eigenlens.spectra.schedule`): as many workers as cores where
    memory allows it, else one, with the next layer read ahead. Layers whose F is not square are
    passed over. A layer that `memory` holds is not read; others are kept there as soon as they are
    done, so that a run which is stopped goes on where it was.
    """
    circuits = checkpoint.circuits(stack=stack, layers=layers)
    readers = HeadReader(checkpoint) if options.per_head else None
    listed = layer_costs(checkpoint, options, stack=stack, layers=layers)
    names, costs = circuits.names, {cost.name: cost for cost in listed}
    workers = workers_for(listed)
    waits = workers == 1 and len(listed) > 1

    def read(i: int) -> Reading:
        cost = costs.get(names[i])
        if cost is None:
            return Reading(i)
        kept = None if memory is None else memory.find(circuits.items[i], lambda: circuits[i])
        if kept is not None:
            return Reading(i, found=kept)
        if not cost.by_blocks(waits):
            return Reading(i, circuits[i])
        content = None if memory is None else Content()
        return Reading(i, circuits.grouped(i, options.dtype, content), content)

    def solve(reading: Reading) -> LayerSpectrum | None:
        circuit = reading.circuit
        if circuit is None:
            return reading.found
        with threads_for(circuit.rank_bound):
            found = analyse(circuit, options, readers)
        if memory is not None:
            memory.keep(circuits.items[reading.place], circuit, found, reading.content)
        return found

    coming = in_sequence(len(names), read, solve, workers)
    with closing(coming):
        for i, name in enumerate(names):
            if progress is not None:
                progress(i, len(names), name)
            found = next(coming)
            if found is not None:
                yield decode_leader(checkpoint, found, options.decode) if options.decode else found
    if progress is not None:
        progress(len(names), len(names), "")


@dataclass(frozen=True)
class Reading:
    """A layer on its way to the solver; neither circuit nor spectrum where it has none.

    `content` is the hash of its tensors where that was taken on the way.
    """

    place: int
    circuit: OVCircuit | None = None
    content: Content | None = None
    found: LayerSpectrum | None = None


def analyse(
    circuit: OVCircuit, options: SpectrumOptions, heads: HeadReader | None = None
) -> LayerSpectrum:
    """The spectrum of one circuit.

    Raises
    ------
    NumericsError
        No solver reached the tolerance; the message names the layer.
    """
    order = resolve_order(options.order, circuit.placement)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        a = build_map(circuit, options.operator, options.dtype)
    try:
        pairs, principal = leading(a, order, options)
        if pairs.norm == 0 and options.dtype != "float64":
            _refuse_underflow(circuit, options)
        full, frobenius = pairs.complete, pairs.frobenius
    except NumericsError as error:
        raise NumericsError(f"{circuit.stack} layer {circuit.layer}: {error}") from None
    basis = target_basis(a, pairs, principal)
    shown = len(pairs.values) if options.all else whole_pairs(pairs.values, options.k)
    kept = shown if options.keep_vectors else min(whole_pairs(pairs.values, options.k), shown)
    values = pairs.values[:shown]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = pairs.residuals[:shown] * pairs.norm / np.abs(values)
    return LayerSpectrum(
        stack=circuit.stack,
        layer=circuit.layer,
        kind=circuit.kind,
        steps=circuit.steps,
        d=a.d,
        rank=a.rank_bound,
        order=order.name,
        operator=options.operator,
        output_scale=circuit.output_scale,
        dtype=options.dtype,
        solver=pairs.solver,
        eigenvalues=values,
        residuals=pairs.residuals[:shown],
        relative_residuals=np.where(values == 0, np.inf, relative),
        conditions=pairs.conditions[:shown],
        error_bars=pairs.error_bars[:shown],
        regime=principal.regime,
        target=principal.target,
        gap=principal.gap,
        angle=principal.angle,
        angle_unit=principal.angle_unit,
        steps_to_separate=principal.steps_to_separate,
        spectral_norm=pairs.norm,
        frobenius_norm=frobenius,
        henrici=henrici(pairs.values, frobenius) if full else None,
        negative_fraction=negative_fraction(pairs, a.d) if full else None,
        unit_negative_fraction=negative_fraction(pairs, a.d, -1.0) if full else None,
        right_vectors=pairs.right[:, :kept].copy(),  # a view would keep all of them alive
        left_vectors=pairs.left[:, :kept].copy(),
        target_vectors=basis,
        heads=None
        if heads is None
        else heads.read(circuit, options, order, _leader(pairs, principal)),
    )


def _refuse_underflow(circuit: OVCircuit, options: SpectrumOptions) -> None:
    """Raise where F is zero in the dtype only: weights below its range were rounded to 0."""
    if spectral_norm(build_map(circuit, options.operator, "float64"), options.seed) > 0:
        raise NumericsError(f"F underflows to 0 in {options.dtype}; use --dtype float64")


def leading(a: LinearMap, order: Order, options: SpectrumOptions) -> tuple[Eigenpairs, Principal]:
    """Enough certified pairs for `options`, and the decision that they carry.

    More pairs than asked for are computed where the tie at the top is longer than the request.
    """
    k = None if options.all else max(options.k, 2)
    while True:
        pairs = eigenpairs(a, k, order, options.solver, options.seed)
        principal = find_principal(pairs, a.d, a.rank_bound, order, options.tie_tolerance)
        if principal is not None:
            return pairs, principal
        k = None if k is None or 4 * k > a.rank_bound else 4 * k
        if k is None:
            pairs = eigenpairs(a, None, order, "dense", options.seed)
            principal = find_principal(pairs, a.d, a.rank_bound, order, options.tie_tolerance)
            if principal is None:
                raise NumericsError("the list of eigenvalues is incomplete; use --solver dense")
            return pairs, principal


def henrici(values: Complex[np.ndarray, "n"], frobenius: float) -> float | None:
    """Henrici's departure from normality, ``sqrt(|A|_F^2 - sum |lambda|^2) / |A|_F``, in [0, 1].

    0 for a normal matrix; None for the zero matrix.
    """
    if frobenius == 0:
        return None
    size, exponent = math.frexp(frobenius)  # squares of the numbers as they are may overflow
    values = values.astype(complex)
    parts = np.ldexp(values.real, -exponent), np.ldexp(values.imag, -exponent)
    total = float(np.sum(np.hypot(*parts) ** 2))
    return float(np.sqrt(max(size**2 - total, 0.0)) / size)


def negative_fraction(pairs: Eigenpairs, d: int, floor: float = -np.inf) -> float:
    """Share of the d eigenvalues with ``floor <= Re lambda < 0`` (Dovonon et al., 2024).

    The kernel counts among the d but is not negative, nor is what is negative by less than its
    error bar.
    """
    real = pairs.values.real
    return float(np.count_nonzero((real < -sure_bars(pairs)) & (real >= floor)) / d)


def _leader(
    pairs: Eigenpairs, principal: Principal
) -> tuple[Complex[np.ndarray, "d"], Complex[np.ndarray, "d"]] | None:
    """The leading right and left vector, None where the kernel leads."""
    if not principal.members:
        return None
    first = principal.members[0]
    return pairs.right[:, first], pairs.left[:, first]


def _warnings(layers: Sequence[LayerSpectrum]) -> Iterator[str]:
    loose = [x.name for x in layers if np.isinf(x.error_bars[:1]).any()]
    if loose:
        yield (
            f"the leading eigenvalue of {', '.join(loose)} is defective to working precision: "
            "its error bar is unbounded"
        )
