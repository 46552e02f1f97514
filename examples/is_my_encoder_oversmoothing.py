"""Do the tokens of an encoder become alike, and is it attention that does it?

Runs real sentences through the model (needs torch and transformers)::

    python examples/is_my_encoder_oversmoothing.py
    python examples/is_my_encoder_oversmoothing.py sample:minilm
    python examples/is_my_encoder_oversmoothing.py path/to/my-encoder --prompts sentences.txt
"""

from __future__ import annotations

import argparse

import eigenlens

COLLAPSED, SMOOTHED = 0.95, 0.5  # mean cosine between two tokens of a sentence


def main(argv: list[str] | None = None) -> dict[str, float | str]:
    parser = argparse.ArgumentParser(description="Do the tokens of an encoder become alike?")
    parser.add_argument("model", nargs="?", default="sample:bert-tiny")
    parser.add_argument("--prompts", help="a file with a sentence a line; by default 64 sentences")
    asked = parser.parse_args(argv)

    # mode "block" is the model as it is, feed-forward part and biases included; what attention
    # alone does and what the whole block leaves are both measured.
    trace = eigenlens.trace(asked.model, prompts=asked.prompts, mode="block", nulls=False)
    start = trace.stacks[0].start["cosine"]
    print(f"{trace.model['source']}: {trace.layers[0].n_prompts} sentences")
    print("Mean cosine between two tokens of a sentence (1: all alike), and the effective rank:\n")
    print("  after layer   attention   block   effective rank")
    print(
        f"        start               {start:.3f}   {trace.stacks[0].start['effective_rank']:7.2f}"
    )
    pulled = put_back = 0.0
    before = start
    for layer in trace.layers:
        attention, block = layer.collapse, layer.collapse_block or layer.collapse
        print(
            f"  {layer.step if trace.model['model_type'] == 'albert' else layer.layer:>11}"
            f"   {attention['cosine']:9.3f}   {block['cosine']:.3f}"
            f"   {block['effective_rank']:7.2f}"
        )
        pulled += attention["cosine"] - before
        put_back += block["cosine"] - attention["cosine"]
        before = block["cosine"]

    end = before
    if end > COLLAPSED:
        verdict = "yes: its tokens have all but become one direction"
    elif end > SMOOTHED or end - start > 0.3:
        verdict = "in part: tokens come much closer, but stay apart"
    else:
        verdict = "no: tokens stay different"
    print(f"\nOversmoothing? {verdict} (mean cosine {start:.2f} -> {end:.2f}).")
    print(
        f"Attention {'brings tokens together' if pulled > 0 else 'drives tokens apart'} "
        f"({pulled:+.2f} in all), the feed-forward part "
        f"{'undoes some of it' if pulled * put_back < 0 else 'adds to it'} ({put_back:+.2f})."
    )

    # And if the stack were much deeper? The same attention, iterated without the rest.
    deep = eigenlens.simulate(asked.model, steps=60)
    last = deep.trajectory[-1]
    print(
        f"Attention alone, iterated {last['step']} steps, ends in '{deep.outcome.label}' "
        f"(mean cosine {last['cosine']:.3f})."
    )
    return {"start": start, "end": end, "verdict": verdict, "deep": deep.outcome.label}


if __name__ == "__main__":
    main()
