"""What steering does to a model, and sees of it, is its own thread's: others read it meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest
import torch

import eigenlens
from eigenlens.live.batches import make_batches
from eigenlens.live.steadiness import Steadiness
from eigenlens.steering.directions import of_contrast
from eigenlens.steering.evaluate import Study
from eigenlens.steering.moments import read_inputs
from eigenlens.steering.opening import Subject
from eigenlens.steering.push import Added
from eigenlens.steering.resume import forward, resumed
from eigenlens.steering.stage import find_stage
from eigenlens.steering.token_directions import of_masked_tokens
from families import BY_NAME
from test_live_capture import NoDouble
from test_steering_evaluate import IDS, study_of

STRANGE = [[30, 31, 32, 33, 34, 35, 36, 37, 36, 35]] * 5


def elsewhere(work: Any) -> Any:
    """What a work gives in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=60)


@pytest.mark.parametrize("what", ["term", "added", "resumed"])
def test_passes_of_another_thread_are_as_they_were(what: str, tiny: Any) -> None:
    study, term = study_of(tiny("gpt2"))
    session, inputs = study.stage.session, make_batches(study.stage.session, IDS)
    batch = next(iter(inputs))

    def run() -> Any:
        return forward(session, batch.inputs).logits

    plain = run()
    around = {
        "term": lambda: term.active(torch),
        "added": lambda: Added(study.stage.place.block, study.direction, 3.0).active(torch),
        "resumed": lambda: resumed(session, study._kept[0].past),
    }[what]
    with around():
        assert torch.equal(elsewhere(run), plain)
        if what != "resumed":
            assert not torch.equal(run(), plain)


def test_two_threads_resume_one_model(tiny: Any) -> None:
    """Each is given its own past, and whoever ends last leaves the blocks as they were."""
    model = tiny("gpt2")
    study, _ = study_of(model)
    session, kept = study.stage.session, study._kept[:2]
    blocks = [place.block for place in session.places]
    ran: list[int] = []
    handle = blocks[0].mlp.register_forward_hook(lambda *_: ran.append(get_ident()))
    plain = [forward(session, k.batch.inputs).logits for k in kept]
    ran.clear()
    meet = Barrier(2)

    def follow(number: int) -> Any:
        with resumed(session, kept[number].past):
            meet.wait(timeout=30)
            if number:
                meet.wait(timeout=30)  # the other one has ended
            found = forward(session, kept[number].batch.inputs).logits
        if not number:
            meet.wait(timeout=30)
        return found

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(follow, number) for number in range(2)]
    handle.remove()
    for task, expected in zip(tasks, plain, strict=True):
        assert torch.equal(task.result(), expected)
    assert ran == [], "a block that is left out ran"
    assert not any("forward" in m.__dict__ for m in model.modules())


def test_a_block_with_a_forward_of_its_own_has_it_again(tiny: Any) -> None:
    study, _ = study_of(tiny("gpt2"))
    session, kept = study.stage.session, study._kept[0]
    block = session.places[0].block
    own = block.forward
    block.forward = lambda *args, **kwargs: own(*args, **kwargs)
    held = block.forward
    try:
        with resumed(session, kept.past), resumed(session, kept.past):
            assert block.forward is not held
        assert block.forward is held
    finally:
        del block.forward


def test_a_resumed_pass_is_no_change_of_the_model(tiny: Any) -> None:
    """Of those that `trace` looks for, whose batches may be running beside it."""
    study, _ = study_of(tiny("gpt2"))
    before = Steadiness(study.stage.session.model)
    with resumed(study.stage.session, study._kept[0].past):
        assert before.kept()


@contextmanager
def intruder(session: Any, block: Any) -> Iterator[list[int]]:
    """Whenever this thread has run a block, another thread runs the model on other prompts."""
    here, strange, ran = get_ident(), next(iter(make_batches(session, STRANGE))), []

    def pass_of_another() -> None:
        forward(session, strange.inputs)

    def after(*_: Any) -> None:
        if get_ident() == here:
            ran.append(1)
            elsewhere(pass_of_another)

    handles = [m.register_forward_hook(after) for m in (block, session.body)]
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


def readings(study: Study, subject: Subject) -> dict[str, np.ndarray]:
    """All that steering reads of the running model, before any edit."""
    stage, session = study.stage, study.stage.session
    made = list(make_batches(session, IDS, batch_size=5))
    again = Study(stage, study.direction, study.targets, study.head)
    again.read(made)
    found = find_stage(session, stage.place, "attention", "last", made[0].inputs)
    norm = found.final_norm
    return {
        "inputs": read_inputs(stage, made),
        "sums": again.sums,
        "read": np.concatenate([kept.inputs for kept in again._kept]),
        "contrast": of_contrast(stage, IDS[:3], IDS[3:6], ("a", "b")).vector,
        "effect": np.array([again.measure(None, 0.0).kl]),
        "final": np.zeros(1) if norm is None else found.image(norm, study.direction),
        "masked": of_masked_tokens(subject, IDS[:4], (7, 9), str, len(study.direction)).vector
        if subject.head == "masked"
        else np.zeros(1),
    }


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_passes_of_another_thread_are_not_read(name: str) -> None:
    study, _ = study_of(BY_NAME[name].build(head=True))
    stage = study.stage
    subject = Subject(stage.session, study.head)
    alone = readings(study, subject)
    with intruder(stage.session, stage.place.block) as ran:
        beside = readings(study, subject)
    assert len(ran) > 8, "or this test is of no use"
    for key, x in alone.items():
        np.testing.assert_allclose(beside[key], x, rtol=0, atol=1e-12, err_msg=key)


def test_only_an_edit_of_the_weights_has_hooks_for_all_threads() -> None:
    """It is the model of all threads that it changes."""
    rooms = Path(eigenlens.__file__).parent / "steering"
    files = [f.name for f in sorted(rooms.glob("*.py")) if "register_f" in f.read_text("utf-8")]
    assert files == ["applied.py"]
    assert re.search(r"register_forward_(pre_)?hook", (rooms / "applied.py").read_text("utf-8"))


def test_a_masked_tokens_direction_leaves_gradients_alone() -> None:
    model = BY_NAME["bert"].build(head=True)
    study, _ = study_of(model)
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, i) if i % 2 else None
    subject = Subject(study.stage.session, study.head)
    of_masked_tokens(subject, IDS[:4], (7, 9), str, len(study.direction))
    for i, parameter in enumerate(model.parameters()):
        if i % 2:
            assert parameter.grad is not None
            assert bool((parameter.grad == i).all())
        else:
            assert parameter.grad is None


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_device_without_float64_can_be_steered(name: str) -> None:
    model = BY_NAME[name].build(head=True).float()
    with NoDouble() as mode:
        study, term = study_of(model)
        assert np.isfinite(study.measure(term, 1.5).kl or np.nan)
        if study.head == "masked":
            subject = Subject(study.stage.session, study.head)
            of_masked_tokens(subject, IDS[:4], (7, 9), str, len(study.direction))
    assert mode.taken, "or this test is of no use"
