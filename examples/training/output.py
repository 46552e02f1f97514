"""The folder of a finished model: weights, tokenizer, card and loss curve."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from matplotlib.figure import Figure

from training.corpus import Corpus
from training.losses import HIDDEN
from training.measures import measure, residual_leader
from training.recipes import LENGTH
from training.task import Run, Task
from training.tokens import CLS, END, MASK, PAD, SEP, UNK, special_ids


def write_folder(folder: Path, task: Task, run: Run, corpus: Corpus) -> dict[str, float]:
    """Write everything of a finished model; its held-out loss beside the baselines."""
    write_model(folder, run.model, task.tokenizer)
    loss = measure(folder, corpus)
    recipe = task.recipe
    card = {
        "name": task.name,
        "class": type(run.model).__name__,
        "parameters": run.model.num_parameters(),
        "objective": "masked" if recipe.masked else "causal",
        "licence": "Apache-2.0",
        "note": recipe.note,
        "loss": loss,
        "training": {
            "seed": task.seed,
            "steps": run.step,
            "planned_steps": task.steps,
            "batch": recipe.batch,
            "length": LENGTH,
            "tokens": run.step * recipe.batch * LENGTH,
            "peak_lr": recipe.lr,
            "stages": recipe.stages,
            "minutes": round(run.seconds / 60, 1),
        },
        "corpus": {
            "source": "docstrings of the Python standard library and the topics of pydoc",
            "sha256": corpus.sha256,
            "python": platform.python_version(),
            "found_characters": corpus.found,
            "characters": corpus.characters,
            "train_modules": corpus.modules[0],
            "held_out_modules": corpus.modules[1],
            "train_tokens": len(task.train),
            "held_out_tokens": len(task.held_out),
        },
        "residual_leader": residual_leader(run.model),
        "versions": {
            lib.__name__: str(lib.__version__) for lib in (torch, transformers, tokenizers)
        },
    }
    write_card(folder, card)
    draw_curve(folder / "loss.png", task.name, run.curve, loss)
    return loss


def write_model(folder: Path, model: Any, tokenizer: tokenizers.Tokenizer) -> None:
    """Write config, float16 weights and tokenizer; the model in training stays as it is."""
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    roles = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK, "bos": END, "eos": END}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": LENGTH,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    known = special_ids(tokenizer)
    config |= {f"{role}_token": token for role, token in roles.items() if token in known}
    write_json(folder / "tokenizer_config.json", config)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write the card twice: JSON for programs, Markdown for people."""
    write_json(folder / "card.json", card)
    loss, corpus, run, lead = (card[k] for k in ("loss", "corpus", "training", "residual_leader"))
    extra = ""
    if card["objective"] == "masked":
        extra = f" {HIDDEN:.0%} of the tokens are masked; the bigram sees the true left neighbour."
    lines = [
        f"Class `{card['class']}`, {card['parameters']:,} parameters, trained from nothing by "
        f"`examples/train_samples.py` of eigenlens. Licence: {card['licence']}.\n",
        "| loss in nats per token | held-out |\n|---|---|",
        f"| this model, float16 weights | {loss['held_out']:.3f} |",
        f"| bigram (interpolated Kneser-Ney) | {loss['bigram']:.3f} |",
        f"| unigram | {loss['unigram']:.3f} |\n",
        f"All three predict the same {loss['predicted']:,} tokens of unseen modules.{extra}\n",
        f"- Data: {corpus['source']}, Python {corpus['python']}: {corpus['train_modules']} modules "
        f"({corpus['train_tokens']:,} tokens) to train, {corpus['held_out_modules']} "
        f"({corpus['held_out_tokens']:,} tokens) held out. SHA-256 `{corpus['sha256']}`. Of "
        f"{corpus['found_characters'] / 1e6:.2f} million characters "
        f"{corpus['characters'] / 1e6:.2f} million are left without indentation, ruled lines and "
        "repeated paragraphs.",
        f"- Training: {run['steps']:,} steps of {run['batch']} x {run['length']} tokens, AdamW, "
        f"peak learning rate {run['peak_lr']:g}, seed {run['seed']}, {run['minutes']} minutes.",
    ]
    if run["stages"]:
        stages = [
            f"{'causal' if causal else 'masked'} with {depth} layers until {share:.1%}"
            for share, depth, causal in run["stages"]
        ]
        lines.append(f"- Stages: {', '.join(stages)} of the steps.")
    if lead:
        value = f"{lead['real']:.4f}" + (f" ± {lead['imag']:.4f}i" if lead["imag"] else "")
        lines.append(
            f"- Leading eigenvalue of F = W_O W_V by |1 + λ|: {value}, multiplier "
            f"{lead['multiplier']:.4f}, gap to the next {lead['gap']:.3f}."
        )
    if card["note"]:
        lines.append(f"- {card['note']}")
    lines.append("- " + ", ".join(f"{key} {value}" for key, value in card["versions"].items()))
    text = f"# {card['name']}\n\n" + "\n".join(lines) + "\n\n![loss](loss.png)\n"
    (folder / "CARD.md").write_text(text, encoding="utf-8")


def draw_curve(path: Path, name: str, curve: list[dict[str, Any]], loss: dict[str, float]) -> None:
    """Draw training and held-out loss with the baselines."""
    figure = Figure(figsize=(5, 3.2), dpi=80, layout="constrained")
    axes = figure.subplots()
    steps = [row["step"] for row in curve]
    axes.plot(steps, [row["train"] for row in curve], label="training")
    axes.plot(steps, [row["held_out"] for row in curve], label="held-out (a quarter)")
    axes.axhline(loss["unigram"], color="gray", linestyle=":", label="unigram")
    axes.axhline(loss["bigram"], color="gray", linestyle="--", label="bigram")
    axes.set(title=name, xlabel="step", ylabel="nats per token")
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Software": None})
