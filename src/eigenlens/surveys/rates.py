"""What a layer's leading pairs foretell of iterating it, in numbers: one row's worth."""

from __future__ import annotations

from dataclasses import dataclass

from eigenlens.spectra.result import LayerSpectrum


@dataclass(frozen=True)
class Rates:
    """Predicted rates of a layer, as if it were iterated (shared weights, full attention).

    Attributes
    ----------
    disagreement_rate
        Factor per step by which tokens come together, ``1 / |m_1|`` with ``m = 1 + lambda``; None
        for pre-norm streams.
    alignment_rate
        Factor per step by which the angle to the target shrinks, ``|m_2| / |m_1| = 1 - gap``; None
        for pre-norm streams.
    exponent
        Pre-norm streams only: the angle shrinks as depth to this power,
        ``-(1 - Re lambda_2 / Re lambda_1) = -gap``.
    """

    disagreement_rate: float | None
    alignment_rate: float | None
    exponent: float | None


def rates_of(layer: LayerSpectrum) -> Rates:
    """The rates that the leading eigenvalues of a layer predict; all None without a consensus.

    Under order ``modulus`` there is no residual, so nothing is foretold of disagreement. Formulas:
    local analysis around equal tokens, as in `eigenlens.dynamics.predict`.
    """
    if layer.regime == "no_consensus" or layer.kind == "cross":
        return Rates(None, None, None)
    if layer.order == "real":
        return Rates(None, None, None if layer.gap is None else -layer.gap)
    size = abs(1.0 + complex(layer.eigenvalues[0]))
    together = 1.0 / size if layer.order == "residual" and size > 0 else None
    return Rates(together, None if layer.gap is None else 1.0 - layer.gap, None)
