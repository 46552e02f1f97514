"""Train the tiny models that ship inside eigenlens, from nothing.

Six models of five families (transformers' own classes and configs) learn from text that is on
every machine with Python, see `training.corpus`. Nothing is downloaded. One model takes about
twenty minutes::

    python examples/train_samples.py gpt2-tiny --out trained
    python examples/train_samples.py all --out trained --resume
    python examples/train_samples.py gpt2-tiny --out trained --checkpoints 8

Each model ends as a folder ``OUT/NAME`` that ``AutoModel.from_pretrained`` and
``AutoTokenizer.from_pretrained`` open: config, float16 safetensors, tokenizer, a loss curve
(``loss.png``) and a card for people (``CARD.md``) and for programs (``card.json``). With
``--checkpoints`` the model along the way is kept in ``OUT/NAME-steps``. The state of a run lives
in ``OUT/.state/NAME.pt`` until it is complete; ``--resume`` continues from there.

Notes
-----
- Losses are nats per token on held-out modules, computed from the rounded (float16) weights. The
  baselines predict exactly the tokens that the model predicts.
- Masked models see few targets a step and sit long at the unigram loss. They therefore begin by
  predicting the next token under a causal mask, then turn to masked tokens; an ALBERT, which
  applies one layer twelve times, also begins with two (`training.recipes.Recipe.stages`).
- The corpus, hence the outcome, depends on the Python version. The card records it with a hash.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers
from training.corpus import read_corpus
from training.loop import train
from training.output import write_folder
from training.recipes import RECIPES
from training.task import prepare


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled samples of eigenlens.")
    parser.add_argument("name", choices=[*RECIPES, "all"], help="which model, or all of them")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained models")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--seed", type=int, help="seed (default: the recipe's)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--minutes", type=float, default=25, help="time limit of one model")
    parser.add_argument("--checkpoints", type=int, default=0, help="keep as many along the way")
    parser.add_argument("--resume", action="store_true", help="continue, and skip what is done")
    args = parser.parse_args()
    if args.threads < 1 or args.checkpoints < 0 or (args.steps is not None and args.steps < 1):
        parser.error("--steps and --threads must be at least 1, --checkpoints at least 0")
    return args


def main() -> None:
    """Train what is asked for, one model after another."""
    args = parse()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    corpus = read_corpus()
    for name in RECIPES if args.name == "all" else [args.name]:
        if args.resume and (args.out / name / "card.json").exists():
            print(f"{name}: done already")
            continue
        task = prepare(name, RECIPES[name], args, corpus)
        run = train(task, args)
        loss = write_folder(args.out / name, task, run, corpus)
        run.path.unlink(missing_ok=True)
        print(f"{name}: held-out {loss['held_out']:.3f}, written to {args.out / name}")


if __name__ == "__main__":
    main()
