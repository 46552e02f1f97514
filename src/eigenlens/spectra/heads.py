"""One layer seen head by head: spectra, trace ratios, copying scores, shares of the leader."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import OptionError
from eigenlens.spectra.maps import build_factors
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.orders import Order, leading_first, whole_pairs
from eigenlens.spectra.result import HeadSpectrum

Leader = tuple[Complex[np.ndarray, "d"], Complex[np.ndarray, "d"]]


class HeadReader:
    """Analyses heads, holding what all layers share: ``W_E^T W_U`` of the model's vocabulary.

    That (d, d) matrix is formed once, and only if the model has a vocabulary; the copying scores
    of all heads then cost small products.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @cached_property
    def _vocabulary(self) -> Float[np.ndarray, "d d"] | None:
        return vocabulary_map(self._checkpoint)

    def read(
        self, circuit: OVCircuit, options: SpectrumOptions, order: Order, leader: Leader | None
    ) -> tuple[HeadSpectrum, ...]:
        """Every head of one layer.

        Parameters
        ----------
        circuit
            The layer.
        options
            k, operator and dtype are used.
        order
            What leads, as resolved for the layer.
        leader
            Right and left vector of the layer's lambda_1; None where the kernel leads.
        """
        return tuple(
            self._read_head(circuit.head(i), i, options, order, leader)
            for i in range(circuit.n_heads)
        )

    def _read_head(
        self,
        head: OVCircuit,
        index: int,
        options: SpectrumOptions,
        order: Order,
        leader: Leader | None,
    ) -> HeadSpectrum:
        factors = build_factors(head, options.operator, options.dtype)
        values = np.linalg.eigvals(factors.core()).astype(complex)
        values = values[leading_first(values, order)]
        copying = None
        if self._vocabulary is not None and self._vocabulary.shape[0] == factors.d:
            core = factors.right @ self._vocabulary.astype(factors.dtype) @ factors.left
            copying = trace_ratio(core)
        share = None
        if leader is not None:
            v, w = leader
            share = complex((w.conj() @ factors.matvec(v)) / (w.conj() @ v))
        return HeadSpectrum(
            head=index,
            eigenvalues=values[: whole_pairs(values, options.k)],
            ov_trace_ratio=trace_ratio(factors.core(), values),
            copying_score=copying,
            share=share,
        )


def trace_ratio(
    core: Float[np.ndarray, "h h"], values: Complex[np.ndarray, "h"] | None = None
) -> float | None:
    """``Re(sum lambda) / sum |lambda|``: 1 for a head that copies, -1 for one that inverts.

    The numerator is the trace, exact; None where all eigenvalues are 0.
    """
    if values is None:
        values = np.linalg.eigvals(core).astype(complex)
    total = float(np.abs(values).sum())
    return float(np.trace(core)) / total if total > 0 else None


def vocabulary_roles(checkpoint: Checkpoint) -> tuple[dict[str, str], tuple[str, ...]]:
    """What copying scores depend on: which tensor has which part, and the names of all."""
    try:
        readout = checkpoint.readout
    except OptionError:
        return {}, ()
    return readout.roles, readout.tensors


def vocabulary_map(checkpoint: Checkpoint) -> Float[np.ndarray, "d d"] | None:
    """``W_E^T W_U`` (d, d) of the token matrices; None for a model or files without them."""
    try:
        readout = checkpoint.readout
    except OptionError:  # a vision model, or arrays without a vocabulary: no score to give
        return None
    return readout.copying_map() if readout.has_vocabulary else None
