"""A first look at a model: which direction each attention layer pushes tokens towards.

Needs the weight files alone, no torch::

    python examples/first_look.py
    python examples/first_look.py sample:minilm
    python examples/first_look.py HuggingFaceTB/SmolLM2-135M
"""

from __future__ import annotations

import argparse

import eigenlens


def main(argv: list[str] | None = None) -> eigenlens.Spectrum:
    parser = argparse.ArgumentParser(description="Which direction does each layer push towards?")
    parser.add_argument("model", nargs="?", default="sample:llama-tiny")
    model = parser.parse_args(argv).model

    # Only W_V and W_O are read, a layer at a time. F = W_O W_V is what attention writes when all
    # tokens are alike; its leading eigenvector is the direction that repeated layers pull towards.
    result = eigenlens.spectrum(model, k=4, decode=4)
    print(result)

    led = [layer for layer in result.layers if layer.gap is not None]
    if led:
        clear = max(led, key=lambda layer: layer.gap)
        value = clear.eigenvalues[0]
        pair = f" (and its conjugate, Im {value.imag:.3f})" if value.imag else ""
        shown = f"{value.real:+.3f}{pair}"
        print(
            f"\nThe clearest lead is in {clear.name}: its eigenvalue {shown} is {clear.gap:.0%} "
            f"ahead of the next, by the order '{clear.order}'."
        )
        if clear.tokens:
            written = ", ".join(repr(text) for text, _ in clear.tokens["right"].positive)
            away = ", ".join(repr(text) for text, _ in clear.tokens["right"].negative)
            print(f"In tokens that direction points to {written}, and away from {away}.")
            print("(An eigenvector has no sign: the two ends may be read the other way round.)")

    # Every pair is certified: how far may rounding have moved the leaders?
    worst = max(float(layer.error_bars[0]) for layer in result.layers if layer.error_bars.size)
    print(f"The leading eigenvalues are off by at most {worst:.0e}.")
    print("In a notebook, `result` shows its table and figure, and result.plot() opens it up.")
    return result


if __name__ == "__main__":
    main()
