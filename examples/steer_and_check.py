"""Steer a model towards a token by editing one matrix, then check what the edit did to it.

The edit is written as an ordinary checkpoint, and compared with the original as if nobody knew
where it came from (needs torch and transformers)::

    python examples/steer_and_check.py
    python examples/steer_and_check.py sample:gpt2-tiny --token " file" --max-kl 0.3
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import eigenlens


def main(argv: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description="Steer a model towards a token, and check it.")
    parser.add_argument("model", nargs="?", default="sample:gpt2-tiny")
    parser.add_argument("--token", default=" error")
    parser.add_argument("--max-kl", type=float, default=0.3, help="nats a token, on held-out text")
    asked = parser.parse_args(argv)

    steered = eigenlens.steer(asked.model, asked.token, max_kl=asked.max_kl)
    before, after = steered.before, steered.after
    print(f"Towards {asked.token!r} with strength {steered.edit.strength:.2f}:")
    print(
        f"  probability of the token  {before.target_probability:.1e} -> "
        f"{after.target_probability:.1e}"
    )
    print(f"  change of predictions     {after.kl:.3f} nats a token")
    for c in steered.continuations[:2]:
        print(f"  {c.prompt!r} goes on {c.texts['before']!r}, steered {c.texts['after']!r}")

    with tempfile.TemporaryDirectory() as folder:
        edited = Path(folder) / "edited"
        steered.write(edited)
        # Which layers differ, by how much and in how many directions?
        found = eigenlens.compare(asked.model, edited)
    print("\nThe written checkpoint beside the original:\n")
    print(found)

    moved = [layer for layer in found.layers if layer.difference.is_real]
    top = found.ranking[0]
    if [layer.layer for layer in moved] != [steered.edit.layer]:
        raise SystemExit("the edit reached other layers than it says")
    print(
        f"\nOne matrix of one layer was edited, by a term of rank one. Seen from outside: "
        f"{len(moved)} layer moved, and the difference has effective rank "
        f"{top.difference.effective_rank:.2f} (what is beyond 1 is the rounding of the file)."
    )
    return found


if __name__ == "__main__":
    main()
