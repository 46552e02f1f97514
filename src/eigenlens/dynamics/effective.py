"""The one matrix that a whole pass stands for, its spectrum, and the targets of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    vectors
        Right eigenvectors of the first of them, (d, m).
    """

    name: str
    basis: Float[np.ndarray, "d k"]
    regime: str
    eigenvalues: Complex[np.ndarray, "d"]
    vectors: Complex[np.ndarray, "d m"] = field(
        repr=False, default_factory=lambda: np.zeros((0, 0), complex)
    )

    def nearest(self, U: Float[np.ndarray, "n d"], angle: float) -> str | None:
        """The eigenspace that unit tokens lie in, within `angle` (root mean square), or None.

        The target's own name; else ``v2``, ``v3``, ... or ``plane 2``, ..., numbered from the
        leader, a pair counted once.
        """
        if _outside(U, self.basis) <= np.sin(angle):
            return self.name
        number, found = 0, (np.inf, "")
        for k in range(self.vectors.shape[1]):
            value, v = self.eigenvalues[k], self.vectors[:, k]
            if value.imag < 0:
                continue  # its conjugate spans the same plane
            number += 1
            span = np.c_[v.real, v.imag] if value.imag else v.real[:, None]
            basis, _ = np.linalg.qr(span)
            name = f"plane {number}" if value.imag else f"v{number}"
            found = min(found, (_outside(U, basis), name))
        return found[1] if found[0] <= np.sin(angle) else None


def _outside(U: Float[np.ndarray, "n d"], basis: Float[np.ndarray, "d k"]) -> float:
    rest = U - (U @ basis) @ basis.T
    return float(np.sqrt(np.mean(np.sum(rest**2, axis=-1))))


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
    return circuit_target(circuit, order, tie_tolerance)


def circuit_target(
    circuit: OVCircuit,
    order: str,
    tie_tolerance: float = 0.01,
    operator: str = "raw",
    *,
    whole: bool = True,
) -> Target:
    """The principal subspace of one layer.

    From its full spectrum, O(r^3) for a core of size r (O(d^3) for the folded operator of a
    post-norm layer); not `whole`: from the leading eigenvalues alone.
    """
    solver = "dense" if whole else "auto"
    options = SpectrumOptions(
        order=order,
        operator=operator,
        all=whole,
        solver=solver,
        tie_tolerance=tie_tolerance,
        keep_vectors=whole,
    )
    with threads_for(circuit.rank_bound):
        return as_target(analyse(circuit, options))


def as_target(layer: LayerSpectrum) -> Target:
    """A layer's spectrum as a target; the list of eigenvalues is made d long with the kernel's."""
    values = np.r_[layer.eigenvalues, np.zeros(layer.d - len(layer.eigenvalues))].astype(complex)
    return Target(layer.target, layer.basis(), layer.regime, values, layer.right_vectors)
