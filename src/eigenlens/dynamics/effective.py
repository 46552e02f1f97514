"""The one matrix that a whole pass stands for, its spectrum, and the targets of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.blas import threads_for
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.dynamics.maps import Form
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.result import LayerSpectrum

Matrix = Float[np.ndarray, "d d"]

ORDER_OF: dict[Form, str] = {"normalised": "residual", "stream": "real"}
"""Which order says where a form of the map leads."""


@dataclass(frozen=True)
class Target:
    """A principal subspace and the spectrum that it comes from.

    Attributes
    ----------
    name
        `v1`, `plane`, `span` or `kernel`.
    basis
        Orthonormal, (d, k).
    regime
        As in `eigenlens.spectra`.
    eigenvalues
        All d, leading first, the kernel's zeros included.
    """

    name: str
    basis: Float[np.ndarray, "d k"]
    regime: str
    eigenvalues: Complex[np.ndarray, "d"]


def effective_matrix(matrices: Sequence[Matrix], form: Form) -> Matrix:
    """The layers of a pass as one.

    ``prod_t (I + F_t) - I`` for the normalised map, where norms only rescale equal tokens;
    ``sum_t F_t`` for the stream, whose state hardly changes within a late pass. One layer gives F
    itself.
    """
    if len(matrices) == 1:
        return matrices[0]
    if form == "stream":
        return np.asarray(sum(matrices[1:], matrices[0]))
    total = np.eye(matrices[0].shape[0])
    for F in matrices:
        total = total + F @ total
    return np.asarray(total - np.eye(len(total)))


def find_target(F: Matrix, order: str, tie_tolerance: float = 0.01) -> Target:
    """The principal subspace of a matrix under an order, from its full spectrum; O(d^3)."""
    d = F.shape[0]
    circuit = OVCircuit(np.eye(d), F, n_heads=1, n_kv_heads=1, head_dim=d)
    options = SpectrumOptions(order=order, all=True, solver="dense", tie_tolerance=tie_tolerance)
    with threads_for(d):
        return as_target(analyse(circuit, options))


def as_target(layer: LayerSpectrum) -> Target:
    """A layer's spectrum as a target; the list of eigenvalues is made d long with the kernel's."""
    values = np.r_[layer.eigenvalues, np.zeros(layer.d - len(layer.eigenvalues))].astype(complex)
    return Target(layer.target, layer.basis(), layer.regime, values)
