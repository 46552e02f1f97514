"""Numbers in the form people read, and the sentence under a spectrum table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from eigenlens.spectra.principal import REGIMES
from eigenlens.spectra.result import LayerSpectrum, Spectrum


def complex_text(value: complex) -> str:
    """``+1.238`` or ``-0.133±2.169i`` (a pair is shown once); very small or large: ``+1.2e-05``."""
    digits = _digits(abs(value))
    real = _signed(value.real, digits)
    return real if value.imag == 0 else f"{real}±{abs(value.imag):{digits}}i"


def share_text(share: complex, whole: float) -> str:
    """A head's part of an eigenvalue of modulus `whole`: ``+0.130+0.219i``.

    All parts of one eigenvalue are shown to the same digits; an imaginary part below them is left
    out.
    """
    digits = _digits(whole)
    real, imag = _signed(share.real, digits), _signed(share.imag, digits)
    return real if abs(share.imag) < 5e-4 * min(1.0, whole) else f"{real}{imag}i"


def _digits(size: float) -> str:
    """Three decimals for numbers that they fit, else two digits and an exponent."""
    return ".3f" if size == 0 or 1e-3 <= size < 1e4 else ".1e"


def _signed(x: float, digits: str) -> str:
    """`x` with its sign, which is not a minus before nothing but zeros."""
    text = f"{x:+{digits}}"
    return text if float(text) else text.replace("-", "+", 1)


def size_of(x: float) -> str:
    """A norm: ``5.06``, or ``1.2e-05`` where two decimals do not fit it."""
    return f"{x:.2f}" if x == 0 or 0.01 <= x < 1e4 else f"{x:.1e}"


def percent(x: float | None) -> str:
    """``14.0 %``, or a dash."""
    if x is None:
        return "-"
    return f"{100 * x:.1f} %" if x < 10 else f"{100 * x:.0f} %"


def steps_text(x: float | None) -> str:
    """Steps to separate, rounded up; a dash where they are not defined, ``> 1e6`` beyond use."""
    if x is None:
        return "-"
    if x > 1e6:
        return "> 1e6"
    return f"{math.ceil(x)}" if x <= 1e5 else f"{x:.0e}".replace("e+0", "e")


def regime_text(regime: str) -> str:
    """``real_dominant`` as people read it."""
    return regime.replace("_", " ")


def layer_list(names: Sequence[int], limit: int = 6) -> str:
    """``0, 2-5, 7``: runs are joined, long lists are cut."""
    runs: list[list[int]] = []
    for n in names:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    parts = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    more = f" and {len(parts) - limit} more" if len(parts) > limit else ""
    return ", ".join(parts[:limit]) + more


_CROSS = (
    "Cross attention reads the states of another stack: its regime is that of F alone, no token "
    "passes it twice."
)


def spectrum_sentences(result: Spectrum) -> list[str]:
    """What the table means, in plain words."""
    layers = result.layers
    if not layers:
        return ["No layer has an attention matrix with a spectrum here."]
    if len(layers) == 1:
        return [" ".join(_one_layer(layers[0]))]
    groups: dict[str, list[LayerSpectrum]] = {}
    for layer in layers:
        groups.setdefault(f"{layer.stack}{' cross' * (layer.kind == 'cross')}", []).append(layer)
    if len(groups) == 1:
        texts = [" ".join(_many_layers(layers))]
    else:
        texts = [f"{name}: {' '.join(_many_layers(group))}" for name, group in groups.items()]
    if any(layer.kind == "cross" for layer in layers):
        texts.append(_CROSS)
    return texts


def _many_layers(layers: Sequence[LayerSpectrum]) -> list[str]:
    counts = Counter(layer.regime for layer in layers)
    parts = []
    for regime in REGIMES:
        if counts[regime]:
            where = layer_list([x.layer for x in layers if x.regime == regime])
            noun = "layers" if counts[regime] > 1 else "layer"
            parts.append(f"in {counts[regime]} {noun} ({where}) {REGIMES[regime]}")
    out = [_upper("; ".join(parts)) + "."]
    led = [x for x in layers if x.gap is not None and x.regime != "no_consensus"]
    if len(led) > 1:
        strong, weak = max(led, key=_gap), min(led, key=_gap)
        out.append(
            f"The lead is clearest in layer {strong.layer} ({percent(strong.gap)} ahead of the "
            f"second) and weakest in layer {weak.layer} ({percent(weak.gap)})."
        )
    return out


def _gap(layer: LayerSpectrum) -> float:
    return layer.gap or 0.0


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _one_layer(layer: LayerSpectrum) -> list[str]:
    shared = f", which is applied {layer.steps} times" if layer.steps > 1 else ""
    out = [f"In this layer{shared}, {_meaning(layer)}."]
    steps = steps_text(layer.steps_to_separate)
    if steps != "-" and layer.order != "real":
        enough = ""
        if layer.steps > 1 and layer.steps_to_separate is not None:
            reached = layer.steps_to_separate <= layer.steps
            enough = ", within" if reached else ", more than"
            enough += f" the {layer.steps} that the model takes"
        out.append(
            f"The second direction falls 10 times behind the first in {steps} steps{enough}."
        )
    return out


def _meaning(layer: LayerSpectrum) -> str:
    text = REGIMES[layer.regime]
    if layer.regime == "complex_dominant" and layer.angle is not None:
        size = math.degrees(abs(layer.angle))
        angle = f"{size:.0f} degrees" if size >= 10 else f"{size:.2g} degrees"
        per = "a step" if layer.order != "real" else "per unit of log depth"
        text += f", {angle} {per}"
    return text
