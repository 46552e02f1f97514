"""The training itself: optimizer, learning rate, one step, all steps, checkpoints."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch

from training.losses import held_out_batches, held_out_loss, model_loss
from training.measures import residual_leader
from training.output import write_model
from training.task import Run, Task


def make_optimizer(model: Any, lr: float) -> torch.optim.Optimizer:
    """AdamW; no decay of gains and biases."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Linear warm-up over the first 4 %, then half a cosine down to 2 % of the peak."""
    warm = max(1, steps // 25)
    if step < warm:
        return peak * (step + 1) / warm
    share = (step - warm) / max(1, steps - warm)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


def begin(task: Task, args: argparse.Namespace) -> Run:
    """The model as it is before the first step, or where ``--resume`` finds it."""
    torch.manual_seed(task.seed)
    model = task.recipe.build(task.ids)
    identity = {"name": task.name, "seed": task.seed, "steps": task.steps, "corpus": task.sha256}
    identity["tokenizer"] = task.tokenizer.to_str()
    state = args.out / ".state" / f"{task.name}.pt"
    run = Run(model, make_optimizer(model, task.recipe.lr), state, identity)
    if args.resume and state.exists():
        run.load()
    return run


def one_step(run: Run, task: Task, depth: int, causal: bool) -> float:
    """Train on the next batch; the loss before the step."""
    model = run.model
    model.config.num_hidden_layers = depth
    loss = model_loss(model, task.batch(run.step, causal), causal)
    if not torch.isfinite(loss):
        raise SystemExit(f"{task.name}: the loss is {loss.item()} at step {run.step}")
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(task.recipe.lr, run.step, task.steps)
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    run.optimizer.step()
    run.step += 1
    return float(loss.item())


def train(task: Task, args: argparse.Namespace) -> Run:
    """Train until the last step or the time limit; the model ends at its full depth."""
    run = begin(task, args)
    model, steps = run.model, task.steps
    full_depth = task.recipe.depth
    quarter = list(held_out_batches(task.held_out, task.ids, task.recipe.masked))[::4]
    parameters = model.num_parameters()
    print(f"{task.name}: {parameters} parameters, seed {task.seed}, from step {run.step}")
    every = max(1, steps // 40)
    marks = {steps * (i + 1) // args.checkpoints for i in range(args.checkpoints)}
    recent: list[float] = []
    start = time.monotonic() - run.seconds
    model.train()
    while run.step < steps and run.seconds < 60 * args.minutes:
        depth, causal = task.stage(run.step)
        recent.append(one_step(run, task, depth, causal))
        run.seconds = time.monotonic() - start
        if run.step % every == 0 or run.step == steps:
            row = {"step": run.step, "depth": depth, "train": sum(recent) / len(recent)}
            row["held_out"] = held_out_loss(model, quarter)
            run.curve.append(row)
            recent.clear()
            run.save()
            lead = residual_leader(model) or ""
            print(f"{task.name} {row} {run.seconds / 60:.1f} min {lead}", flush=True)
        if run.step in marks:
            model.config.num_hidden_layers = full_depth
            folder = args.out / f"{task.name}-steps" / f"step-{run.step:06d}"
            write_model(folder, model, task.tokenizer)
    model.config.num_hidden_layers = full_depth
    if run.step < steps:
        print(f"{task.name}: stopped by --minutes {args.minutes:g} at step {run.step} of {steps}")
    return run
