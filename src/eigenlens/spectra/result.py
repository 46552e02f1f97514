"""What a spectrum run returns: plain frozen objects, and their JSON and data-frame forms."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.circuit.plans import Skipped
from eigenlens.shown import Shown, Told


@dataclass(frozen=True)
class Tokens:
    """Tokens that a vector points to (`positive`) and away from (`negative`): (text, score).

    `through` says which matrix turned the vector into scores.
    """

    positive: tuple[tuple[str, float], ...]
    negative: tuple[tuple[str, float], ...]
    through: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "positive": [{"token": t, "score": s} for t, s in self.positive],
            "negative": [{"token": t, "score": s} for t, s in self.negative],
            "through": self.through,
        }


@dataclass(frozen=True)
class HeadSpectrum:
    """One attention head of a layer.

    Attributes
    ----------
    head
        Index of the query head.
    eigenvalues
        Leading eigenvalues of ``W_O^h W_V^h`` under the layer's order and operator.
    ov_trace_ratio
        ``Re(sum lambda) / sum |lambda|`` over all of the head's eigenvalues, in [-1, 1]; None for
        a head whose eigenvalues are all 0.
    copying_score
        The same of ``W_U W_O^h W_V^h W_E`` (Elhage et al., 2021); None without a vocabulary.
    share
        The head's part of lambda_1, ``w_1^H F_h v_1 / (w_1^H v_1)``; over heads they add up to
        lambda_1 exactly (less the residual's part in a folded post-norm layer). None where the
        kernel leads.
    """

    head: int
    eigenvalues: Complex[np.ndarray, "k"]
    ov_trace_ratio: float | None
    copying_score: float | None
    share: complex | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "head": self.head,
            "eigenvalues": _pairs(self.eigenvalues),
            "ov_trace_ratio": self.ov_trace_ratio,
            "copying_score": self.copying_score,
            "share": None if self.share is None else [self.share.real, self.share.imag],
        }


@dataclass(frozen=True, repr=False)
class LayerSpectrum(Told):
    """The spectrum of one layer, certified, and what it means.

    Attributes
    ----------
    stack, layer, kind, steps
        Which circuit: the real index, and how many times a forward pass applies it.
    rank
        Largest rank that the shapes allow; if it is below d, the eigenvalue 0 exists besides.
    order, operator, output_scale, dtype, solver
        What was asked and how it was computed.
    eigenvalues
        Sorted by `order`, a conjugate pair whole, positive imaginary part first.
    residuals, conditions, error_bars
        Per eigenvalue: ``|A v - lambda v| / |A|_2``, ``1 / |w^H v|``, and the absolute first-order
        error bar ``condition * max(residual, eps) * |A|_2``. In a full spectrum of a large layer
        the first two are bounds from above, a few times larger at most where all is well
        (`eigenlens.spectra.in_core`).
    relative_residuals
        ``|A v - lambda v| / |lambda|``; infinite at 0.
    regime, target, gap, angle, angle_unit, steps_to_separate
        See `eigenlens.spectra.principal.Principal`.
    spectral_norm, frobenius_norm
        ``|A|_2`` and ``|A|_F``.
    henrici
        Departure from normality, ``sqrt(|A|_F^2 - sum |lambda|^2) / |A|_F``; full spectrum only.
    negative_fraction, unit_negative_fraction
        Fractions of the d eigenvalues with ``Re lambda < 0`` and with ``Re lambda`` in [-1, 0)
        (the kernel counts as not negative); full spectrum only.
    right_vectors, left_vectors
        Unit columns of the leading pairs, (d, k).
    heads
        With ``per_head``, one entry a query head.
    tokens
        With ``decode``: what the leading right vector writes and the left one reads; for a pair
        also their imaginary parts.
    """

    BRIEF = ("shape", "regime", "gap")

    stack: str
    layer: int
    kind: str
    steps: int
    d: int
    rank: int
    order: str
    operator: str
    output_scale: float | Float[np.ndarray, "d"]
    dtype: str
    solver: str
    eigenvalues: Complex[np.ndarray, "k"]
    residuals: Float[np.ndarray, "k"] = field(repr=False)
    relative_residuals: Float[np.ndarray, "k"] = field(repr=False)
    conditions: Float[np.ndarray, "k"] = field(repr=False)
    error_bars: Float[np.ndarray, "k"] = field(repr=False)
    regime: str
    target: str
    gap: float | None
    angle: float | None
    angle_unit: str
    steps_to_separate: float | None
    spectral_norm: float
    frobenius_norm: float
    henrici: float | None
    negative_fraction: float | None
    unit_negative_fraction: float | None
    right_vectors: Complex[np.ndarray, "d m"] = field(repr=False)
    left_vectors: Complex[np.ndarray, "d m"] = field(repr=False)
    target_vectors: Float[np.ndarray, "d t"] = field(repr=False)
    heads: tuple[HeadSpectrum, ...] | None = field(default=None, repr=False)
    tokens: dict[str, Tokens] | None = field(default=None, repr=False)

    def facts(self) -> dict[str, object]:
        """What `print` tells."""
        return {
            "shape": f"{self.d} x {self.d}, rank at most {self.rank}",
            "steps": self.steps if self.steps > 1 else None,
            "asked": f"order {self.order}, operator {self.operator}",
            "regime": f"{self.regime} (target {self.target})",
            "leading": complex(self.eigenvalues[0]) if len(self.eigenvalues) else None,
            "gap": self.gap,
            "angle": None if self.angle is None else f"{self.angle:.4g} {self.angle_unit}",
            "spectral norm": self.spectral_norm,
            "Frobenius norm": self.frobenius_norm,
            "departure from normality": self.henrici,
            "eigenvalues": len(self.eigenvalues),
            "largest residual": float(np.max(self.residuals)) if len(self.residuals) else None,
            "computed by": f"{self.solver}, {self.dtype}",
            "heads": None if self.heads is None else len(self.heads),
        }

    def basis(self) -> Float[np.ndarray, "d m"]:
        """Orthonormal basis of the target: v1, the plane, the tied span or the kernel.

        Of the kernel, whose dimension is at least ``d - rank``, this is the complement of the row
        space; O(d^2 rank).
        """
        if self.target != "kernel":
            return self.target_vectors
        q, _ = np.linalg.qr(self.target_vectors, mode="complete")
        return np.asarray(q[:, self.target_vectors.shape[1] :])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.spectrum/1``."""
        scale = self.output_scale
        return {
            "stack": self.stack,
            "layer": self.layer,
            "kind": self.kind,
            "steps": self.steps,
            "rank": self.rank,
            "order": self.order,
            "operator": self.operator,
            "output_scale": scale if isinstance(scale, float) else np.asarray(scale).tolist(),
            "eigenvalues": _pairs(self.eigenvalues),
            "residuals": self.residuals.tolist(),
            "relative_residuals": self.relative_residuals.tolist(),
            "conditions": self.conditions.tolist(),
            "error_bars": self.error_bars.tolist(),
            "regime": self.regime,
            "target": self.target,
            "gap": self.gap,
            "angle": self.angle,
            "angle_unit": self.angle_unit,
            "steps_to_separate": self.steps_to_separate,
            "separate_unit": "depth factor" if self.order == "real" else "steps",
            "spectral_norm": self.spectral_norm,
            "frobenius_norm": self.frobenius_norm,
            "solver": self.solver,
            "dtype": self.dtype,
            "henrici": self.henrici,
            "negative_fraction": self.negative_fraction,
            "unit_negative_fraction": self.unit_negative_fraction,
            "heads": None if self.heads is None else [h.to_dict() for h in self.heads],
            "tokens": None
            if self.tokens is None
            else {side: t.to_dict() for side, t in self.tokens.items()},
        }


@dataclass(frozen=True, repr=False)
class Spectrum(Shown, shown_as="spectrum"):
    """The spectra of a model's attention layers.

    Attributes
    ----------
    model
        source, model_type, d_model, n_layers, n_heads, n_kv_heads, head_dim, norm, placement.
    options
        What was asked.
    layers
        One entry a layer, in natural order.
    skipped
        Layers left out, with the reason.
    warnings
        Sentences a reader should see.
    """

    SCHEMA = "eigenlens.spectrum/1"

    model: dict[str, Any]
    options: dict[str, Any]
    layers: tuple[LayerSpectrum, ...]
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.spectrum/1``; numbers may be non-finite."""
        return {
            **self._head(model=self.model),
            "layers": [layer.to_dict() for layer in self.layers],
            "skipped": [asdict(s) for s in self.skipped],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record an eigenvalue: what the data frame, CSV and parquet hold."""
        out = []
        for layer in self.layers:
            for i, value in enumerate(layer.eigenvalues):
                out.append(
                    {
                        "source": self.model["source"],
                        "model_type": self.model["model_type"],
                        "stack": layer.stack,
                        "layer": layer.layer,
                        "kind": layer.kind,
                        "steps": layer.steps,
                        "rank": layer.rank,
                        "order": layer.order,
                        "operator": layer.operator,
                        "index": i,
                        "re": float(value.real),
                        "im": float(value.imag),
                        "residual": float(layer.residuals[i]),
                        "condition": float(layer.conditions[i]),
                        "error_bar": float(layer.error_bars[i]),
                        "regime": layer.regime,
                        "target": layer.target,
                        "gap": layer.gap,
                        "angle": layer.angle,
                        "angle_unit": layer.angle_unit,
                        "steps_to_separate": layer.steps_to_separate,
                        "separate_unit": "depth factor" if layer.order == "real" else "steps",
                        "spectral_norm": layer.spectral_norm,
                        "frobenius_norm": layer.frobenius_norm,
                        "solver": layer.solver,
                        "henrici": layer.henrici,
                        "negative_fraction": layer.negative_fraction,
                    }
                )
        return out


def _pairs(values: Complex[np.ndarray, "k"]) -> list[list[float]]:
    return [[float(v.real), float(v.imag)] for v in values]
