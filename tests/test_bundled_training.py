"""The script that trains the bundled models: it resumes exactly and keeps checkpoints."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenlens

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = 8


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`room(name)` imports a module of the training."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return lambda name: importlib.import_module(f"training.{name}")


@pytest.fixture
def corpus(room: Any) -> Any:
    """A text that is short, and long enough for the vocabulary and two windows."""
    words = [f"{a}{b}{c}" for a in "bcdfglmnprst" for b in "aeiou" for c in "bdgklmnrst"]
    rng = np.random.default_rng(0)
    text = [" ".join(rng.choice(words, 12)) for _ in range(900)]
    return room("corpus").Corpus("\n".join(text[100:]), "\n".join(text[:100]), (1, 1), 1, "abc")


def options(out: Path, **changes: Any) -> argparse.Namespace:
    asked = {"out": out, "steps": STEPS, "seed": 3, "minutes": 5.0, "checkpoints": 0}
    return argparse.Namespace(**asked | {"resume": False, **changes})


def state_of(run: Any) -> dict[str, np.ndarray]:
    return {name: x.numpy().copy() for name, x in run.model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["albert-tiny", "llama-tiny"])
def test_a_stopped_run_resumes_to_the_same_weights(
    name: str, room: Any, corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, recipe = room("loop"), room("recipes").RECIPES[name]
    prepare = room("task").prepare
    plain = options(tmp_path / "plain")
    whole = state_of(loop.train(prepare(name, recipe, plain, corpus), plain))

    honest = loop.one_step

    def stops(run: Any, *rest: Any) -> float:
        if run.step == 5:
            raise KeyboardInterrupt
        return float(honest(run, *rest))

    args = options(tmp_path / "stopped")
    task = prepare(name, recipe, args, corpus)
    monkeypatch.setattr(loop, "one_step", stops)
    with pytest.raises(KeyboardInterrupt):
        loop.train(task, args)
    monkeypatch.setattr(loop, "one_step", honest)
    args.resume = True
    again = loop.train(task, args)
    assert (again.step, len(again.curve)) == (STEPS, STEPS)
    for key, value in state_of(again).items():
        assert np.array_equal(value, whole[key]), key
    other = options(tmp_path / "other", seed=4)
    different = state_of(loop.train(prepare(name, recipe, other, corpus), other))
    assert any(not np.array_equal(different[key], whole[key]) for key in whole)


def test_the_state_of_another_run_is_refused(room: Any, corpus: Any, tmp_path: Path) -> None:
    loop, prepare = room("loop"), room("task").prepare
    recipe = room("recipes").RECIPES["gpt2-tiny"]
    args = options(tmp_path, steps=1)
    loop.train(prepare("gpt2-tiny", recipe, args, corpus), args)
    args = options(tmp_path, steps=2, resume=True)
    with pytest.raises(SystemExit, match="is of another run"):
        loop.train(prepare("gpt2-tiny", recipe, args, corpus), args)


@pytest.mark.slow
def test_checkpoints_and_the_folder_are_models(room: Any, corpus: Any, tmp_path: Path) -> None:
    """Eight along the way, at full depth though the training begins with fewer layers."""
    recipe = room("recipes").RECIPES["albert-tiny"]
    args = options(tmp_path, checkpoints=STEPS)
    task = room("task").prepare("albert-tiny", recipe, args, corpus)
    run = room("loop").train(task, args)
    folders = sorted((tmp_path / "albert-tiny-steps").iterdir())
    assert len(folders) == STEPS
    leaders = []
    for folder in folders:
        layer = eigenlens.spectrum(str(folder)).layers[0]
        assert layer.steps == 12
        leaders.append(layer.eigenvalues[0])
    assert len(set(leaders)) == STEPS
    folder = tmp_path / "albert-tiny"
    loss = room("output").write_folder(folder, task, run, corpus)
    assert np.isfinite(list(loss.values())).all()
    assert eigenlens.spectrum(str(folder)).layers[0].eigenvalues[0] == leaders[-1]
    assert {"CARD.md", "card.json", "loss.png", "tokenizer.json"} <= {
        path.name for path in folder.iterdir()
    }
    lead = room("measures").residual_leader(run.model)
    assert lead["real"] == pytest.approx(leaders[-1].real, rel=1e-9)


def test_a_recipe_says_depth_and_stages(room: Any, corpus: Any, tmp_path: Path) -> None:
    recipes = room("recipes").RECIPES
    assert [recipe.depth for recipe in recipes.values()] == [12, 12, 4, 4, 4, 5]
    args = options(tmp_path, steps=1000)
    task = room("task").prepare("albert-tiny", recipes["albert-tiny"], args, corpus)
    assert [task.stage(step) for step in (0, 300, 999)] == [(2, True), (2, False), (12, False)]
    first, again = task.batch(7, causal=False), task.batch(7, causal=False)
    assert (first.inputs == again.inputs).all()
    assert not (first.inputs == dataclasses.replace(task, seed=4).batch(7, False).inputs).all()
