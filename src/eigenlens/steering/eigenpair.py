"""The spectrum of the edited layer: by the certified solver, and by the exact formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import upcast
from eigenlens.blas import threads_for
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import OptionError
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.maps import build_factors
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.orders import ORDERS
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.steering.edit import Edit
from eigenlens.steering.probes import repeated_values
from eigenlens.steering.rank_one import Factors, top_pair

Vector = Float[np.ndarray, "d"]
_LEADERS = 8


@dataclass(frozen=True)
class Leader:
    """What leads a layer's spectrum.

    Attributes
    ----------
    eigenvalue
        The leading one, under the layer's usual order.
    gap
        How far it is ahead; None where that is not defined.
    cos_direction
        Cosine of u with the leading direction (with the plane or span, where one leads), from 0.
    order, target
        As in a spectrum.
    """

    eigenvalue: complex
    gap: float | None
    cos_direction: float
    order: str
    target: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "eigenvalue": [self.eigenvalue.real, self.eigenvalue.imag],
            "gap": self.gap,
            "cos_direction": self.cos_direction,
            "order": self.order,
            "target": self.target,
        }


@dataclass(frozen=True)
class Formula:
    """The exact new eigenpair, and how far the solver's answer is from it.

    Attributes
    ----------
    eigenvalue
        Root of ``1 = alpha q^T (lambda I - F)^-1 p``, p what arrives in the residual stream.
    cos_direction
        Of its eigenvector with u.
    residual
        ``|F' v - lambda v| / |F'|_2`` of the edited layer F'.
    error
        Distance to the nearest eigenvalue that the solver found, relative to its size; None where
        it is not among the leading ones.
    """

    eigenvalue: complex
    cos_direction: float
    residual: float
    error: float | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "eigenvalue": [self.eigenvalue.real, self.eigenvalue.imag],
            "cos_direction": self.cos_direction,
            "residual": self.residual,
            "error": self.error,
        }


@dataclass(frozen=True)
class Change:
    """Before and after."""

    before: Leader
    after: Leader
    formula: Formula | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "formula": None if self.formula is None else self.formula.to_dict(),
        }


def edited_circuit(circuit: OVCircuit, edit: Edit) -> OVCircuit:
    """The layer with the edit on its output projection, in float64."""
    return replace(circuit, W_O=upcast(circuit.W_O) + edit.delta())


def spectrum_change(circuit: OVCircuit, edit: Edit) -> Change:
    """What leads the layer before and after an edit, both recomputed from the matrices."""
    u = np.asarray(edit.direction, dtype=np.float64)
    with threads_for(circuit.rank_bound):
        options = SpectrumOptions(k=_LEADERS)
        before = analyse(circuit, options)
        after = analyse(edited_circuit(circuit, edit), options)
        formula = _formula(circuit, edit, after)
    return Change(_leader(before, u), _leader(after, u), formula)


def alpha_qu(circuit: OVCircuit, edit: Edit) -> float:
    """``strength q.u``, ``q = W_V^T w``: about the new eigenvalue where it is large."""
    q = read_of(circuit, edit)
    return float(edit.strength * (q @ np.asarray(edit.direction, dtype=np.float64)))


def arriving(circuit: OVCircuit, edit: Edit) -> Vector:
    """``diag(s) written``: what arrives in the residual stream for a reading of 1 at strength 1."""
    return np.asarray(circuit.output_scale * np.asarray(edit.written, dtype=np.float64))


def factors(circuit: OVCircuit) -> Factors:
    """The layer's F as its spectrum has it, output scale included."""
    found = build_factors(circuit)
    return Factors(found.left, found.right)


def read_of(circuit: OVCircuit, edit: Edit) -> Vector:
    """``q = W_V^T w``: what the term reads of a token's state."""
    return np.asarray(repeated_values(circuit).T @ np.asarray(edit.w, dtype=np.float64))


def leader_with(circuit: OVCircuit, edit: Edit) -> Leader:
    """What leads the layer with an edit, by the certified solver."""
    with threads_for(circuit.rank_bound):
        found = analyse(edited_circuit(circuit, edit), SpectrumOptions(k=_LEADERS))
    return _leader(found, np.asarray(edit.direction, dtype=np.float64))


def _leader(found: LayerSpectrum, u: Vector) -> Leader:
    value = complex(found.eigenvalues[0]) if found.target != "kernel" else 0j
    cosine = float(np.linalg.norm(found.basis().T @ u))
    return Leader(value, found.gap, min(cosine, 1.0), found.order, found.target)


def _formula(circuit: OVCircuit, edit: Edit, after: LayerSpectrum) -> Formula | None:
    """None where the term is too weak to make a pair of its own."""
    u = np.asarray(edit.direction, dtype=np.float64)
    q, p, F = read_of(circuit, edit), arriving(circuit, edit), factors(circuit)
    try:
        pair = top_pair(F, p, q, edit.strength, alpha_qu(circuit, edit))
    except OptionError:
        return None
    leaders = after.eigenvalues
    order = ORDERS[after.order]
    listed = float(order.key(np.array([pair.value]))[0]) >= float(order.key(leaders).min())
    error = float(np.abs(leaders - pair.value).min()) / max(abs(pair.value), 1e-300)
    Fv = build_factors(edited_circuit(circuit, edit)).matvec(pair.vector)
    residual = float(np.linalg.norm(Fv - pair.value * pair.vector)) / after.spectral_norm
    cosine = float(abs(np.vdot(pair.vector, u)))
    return Formula(pair.value, min(cosine, 1.0), residual, error if listed else None)
