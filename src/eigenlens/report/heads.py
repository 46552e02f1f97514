"""What part of a layer's leading eigenvalue comes from one head."""

from __future__ import annotations

from eigenlens.spectra.result import HeadSpectrum, LayerSpectrum


def head_fraction(head: HeadSpectrum, layer: LayerSpectrum) -> float | None:
    """Real part of the head's share over lambda_1; over the heads of a layer they add up to 1.

    Of a complex leader the imaginary parts of these fractions add up to 0. None where the kernel
    leads, or lambda_1 is 0.
    """
    lead = complex(layer.eigenvalues[0]) if layer.eigenvalues.size else 0j
    return None if head.share is None or lead == 0 else (head.share / lead).real
