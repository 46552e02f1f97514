"""The sentences under a spectrum table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from eigenlens.report.names import Names
from eigenlens.report.words import count_text, layer_list, percent, steps_text
from eigenlens.shown.names import by_group
from eigenlens.spectra.principal import REGIMES
from eigenlens.spectra.result import LayerSpectrum, Spectrum

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
    names = Names.of(layers)
    groups = by_group(layers)
    if len(groups) == 1:
        texts = [" ".join(_many_layers(layers, names))]
    else:
        texts = [
            f"{name}: {' '.join(_many_layers(group, names))}" for name, group in groups.items()
        ]
    if any(layer.kind == "cross" for layer in layers):
        texts.append(_CROSS)
    return texts


def _many_layers(layers: Sequence[LayerSpectrum], names: Names) -> list[str]:
    counts = Counter(layer.regime for layer in layers)
    parts = []
    for regime in REGIMES:
        if counts[regime]:
            where = layer_list([x.layer for x in layers if x.regime == regime])
            parts.append(f"in {count_text(counts[regime], 'layer')} ({where}) {REGIMES[regime]}")
    out = [_upper("; ".join(parts)) + "."]
    led = [x for x in layers if x.gap is not None and x.regime != "no_consensus"]
    if len(led) > 1:
        strong, weak = max(led, key=_gap), min(led, key=_gap)
        if percent(strong.gap) == percent(weak.gap):
            there = f"{names.phrases(led)} ({percent(weak.gap)} ahead of the second in each)"
            return [*out, f"The lead is equally clear in {there}."]
        out.append(
            f"The lead is clearest in {names.phrase(strong)} ({percent(strong.gap)} ahead of the "
            f"second) and weakest in {names.phrase(weak)} ({percent(weak.gap)})."
        )
    return out


def _gap(layer: LayerSpectrum) -> float:
    return layer.gap or 0.0


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _one_layer(layer: LayerSpectrum) -> list[str]:
    shared = f", which is applied {layer.steps} times" if layer.steps > 1 else ""
    out = [f"In this layer{shared}, {_meaning(layer)}."]
    behind = behind_text(layer, "in")
    if behind and layer.order != "real":
        enough = ""
        if layer.steps > 1 and layer.steps_to_separate is not None:
            reached = layer.steps_to_separate <= layer.steps
            enough = ", within" if reached else ", more than"
            enough += f" the {layer.steps} that the model takes"
        out.append(f"The second direction falls 10 times behind the first {behind}{enough}.")
    return out


def behind_text(layer: LayerSpectrum, before: str = "after") -> str:
    """When the second is far behind: ``after 12 steps``, ``after 3 times the depth``, ``at once``.

    Nothing where that never is, or where the first attracts nothing.
    """
    steps = layer.steps_to_separate
    if steps is None or layer.regime == "no_consensus":
        return ""
    if layer.order == "real":
        return f"{before} {steps_text(steps)} times the depth"
    if steps == 0:
        return "at once"
    text = steps_text(steps)
    return f"{before} {text} step{'s' * (text != '1')}"


def _meaning(layer: LayerSpectrum) -> str:
    text = REGIMES[layer.regime]
    if layer.regime == "complex_dominant" and layer.angle is not None:
        size = math.degrees(abs(layer.angle))
        angle = f"{size:.0f} degrees" if size >= 10 else f"{size:.2g} degrees"
        per = "a step" if layer.order != "real" else "per unit of log depth"
        text += f", {angle} {per}"
    return text
