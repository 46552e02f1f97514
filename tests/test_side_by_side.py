"""Batches that run side by side show what they show one after the other, each to its own thread."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from eigenlens import blas
from eigenlens.errors import ArchitectureError
from eigenlens.live import capture as capture_module
from eigenlens.live.batches import make_batches
from eigenlens.live.capture import capture, capture_each
from eigenlens.live.hooks import hooks_on
from eigenlens.live.modes import evaluating
from eigenlens.live.session import Session, session_of
from eigenlens.live.states import Captured
from eigenlens.tracing import run as run_module
from eigenlens.tracing.feed import Feed
from eigenlens.tracing.options import TraceOptions

FAMILIES = ["bert", "gpt2", "llama", "gemma2", "albert-groups", "gptj"]
RNG = np.random.default_rng(2)
PROMPTS = [RNG.integers(3, 40, size=n).tolist() for n in (9, 4, 7, 9, 6, 3, 8, 5, 5, 2, 7, 6)]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


def batches(session: Session, size: int = 2) -> list[Any]:
    return list(make_batches(session, PROMPTS, batch_size=size))


def states(found: Captured) -> list[np.ndarray]:
    return [
        x.numpy().copy() for call in found.calls for x in (call.before, call.attention, call.block)
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_those_of_batches_that_run_alone(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    made = batches(session)
    alone = [(b.batch.prompts.tolist(), states(b)) for b in capture(session, made)]
    owners: list[int] = []

    def work(found: Captured) -> Any:
        owners.append(threading.get_ident())
        return found.batch.prompts.tolist(), states(found)

    beside = list(capture_each(session, made, work))
    assert [p for p, _ in beside] == [p for p, _ in alone]
    for (_, xs), (_, ys) in zip(beside, alone, strict=True):
        for x, y in zip(xs, ys, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * np.abs(y).max())
    assert threading.get_ident() not in owners  # what `capture` saw of the model serves here


def test_two_passes_run_at_once(tiny: Any) -> None:
    """Each waits in the work of its batch until another is there."""
    session = session_of(tiny("bert"))
    made = batches(session)
    list(capture(session, made[:1]))
    meeting = threading.Barrier(2)
    assert len(list(capture_each(session, made, lambda _: meeting.wait(timeout=20)))) == len(made)


def test_the_first_and_longer_batches_run_alone(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    made = batches(session)[::-1]  # shortest first: each may be longer than what is known
    main = threading.get_ident()
    seen = list(
        capture_each(session, made, lambda b: (b.batch.mask.shape[1], threading.get_ident()))
    )
    longest = 0
    for length, thread in seen:
        assert (thread == main) == (length > longest)
        longest = max(longest, length)


def llama(**options: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **options,
    )
    return transformers.LlamaModel._from_config(config, attn_implementation="eager").eval()


def scaled_positions() -> Any:
    """A model whose positions are scaled where a prompt is longer than 4 tokens.

    It is left scaled, so that no change is seen until a prompt is short again.
    """
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    model.rotary_emb.original_max_seq_len = model.rotary_emb.max_seq_len_cached = 4
    session = session_of(model)
    list(capture(session, batches(session)[:1]))
    return model


class Noting(torch.nn.Module):
    """Keeps a list of its calls with few tokens, or of all."""

    def __init__(self, inner: Any, below: int) -> None:
        super().__init__()
        self.inner, self.below, self.calls = inner, below, []

    def forward(self, x: Any) -> Any:
        if x.shape[1] < self.below:
            self.calls.append(1)
        return self.inner(x)


def noting(below: int = 99) -> Any:
    model = llama()
    model.layers[0].mlp = Noting(model.layers[0].mlp, below)
    return model


@pytest.mark.parametrize("make", [scaled_positions, noting])
def test_a_model_that_changes_as_it_runs_runs_alone(make: Any) -> None:
    session = session_of(make())
    made = batches(session)
    owners = list(capture_each(session, made, lambda _: threading.get_ident()))
    assert owners == [threading.get_ident()] * len(made)


def test_a_change_that_comes_late_is_an_error() -> None:
    session = session_of(noting(below=5))
    made = batches(session)
    list(capture(session, made[:1]))
    with pytest.raises(ArchitectureError, match="set_num_threads"):
        list(capture_each(session, made, states))


def test_the_same_model_that_does_not_change_runs_side_by_side() -> None:
    session = session_of(noting(below=0))
    owners = list(capture_each(session, batches(session), lambda _: threading.get_ident()))
    assert threading.get_ident() not in owners[1:]


def test_a_model_in_training_is_no_change() -> None:
    model = llama().train()
    session = session_of(model)
    owners = list(capture_each(session, batches(session), lambda _: threading.get_ident()))
    assert threading.get_ident() not in owners[1:]
    assert all(module.training for module in model.modules())


def test_a_model_stays_in_evaluation_while_anyone_runs_it() -> None:
    model = llama().train()
    with evaluating(model):
        with evaluating(model):
            assert not model.training
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())


def test_models_that_were_made_in_inference_mode_run() -> None:
    with torch.inference_mode():
        model = llama()
    session = session_of(model)
    made = batches(session)
    alone = [states(b) for b in capture(session, made)]
    for x, y in zip(alone, capture_each(session, made, states), strict=True):
        np.testing.assert_allclose(np.stack(x), np.stack(y), rtol=0, atol=1e-6)


def test_hooks_that_come_later_are_learned_anew(tiny: Any) -> None:
    """A hook of the user's that makes blocks add in place: states must be copied from then on."""
    session = session_of(copy.deepcopy(tiny("gpt2")))
    made = batches(session)
    plain = [states(b) for b in capture(session, made)]
    for place in session.places:
        place.block.register_forward_hook(lambda m, a, result: a[0].copy_(result))
    for x, y in zip(plain, capture_each(session, made, states), strict=True):
        np.testing.assert_allclose(np.stack(x), np.stack(y), rtol=0, atol=1e-12)


def test_where_others_have_hooks_batches_run_alone(tiny: Any) -> None:
    """They may carry something from one layer to the next, which passes side by side would mix."""
    session = session_of(copy.deepcopy(tiny("bert")))
    made = batches(session)
    list(capture(session, made))
    session.places[0].block.register_forward_hook(lambda module, args, result: None)
    for _ in range(2):
        owners = set(capture_each(session, made, lambda _: threading.get_ident()))
        assert owners == {threading.get_ident()}


def test_hooks_of_transformers_are_no_others(tiny: Any) -> None:
    """A model that once gave its hidden states keeps the hooks for it."""
    session = session_of(copy.deepcopy(tiny("gpt2")))
    made = batches(session)
    with session.running():
        session.body(**made[0].inputs, output_hidden_states=True)
    assert hooks_on(session.model), "or this test is of no use"
    list(capture(session, made))
    owners = set(capture_each(session, made, lambda _: threading.get_ident()))
    assert threading.get_ident() not in owners


class StopError(Exception):
    pass


@pytest.mark.parametrize("where", ["work", "caller"])
def test_a_failure_leaves_everything_as_it_was(where: str, tiny: Any) -> None:
    session = session_of(copy.deepcopy(tiny("bert")))
    session.model.train()
    made = batches(session, 1)
    begun: list[int] = []

    def work(found: Captured) -> int:
        begun.append(1)
        time.sleep(0.02)
        assert not session.model.training
        if where == "work" and len(begun) == 3:
            raise StopError
        return 1

    def follow() -> None:
        for i, _ in enumerate(capture_each(session, made, work)):
            if where == "caller" and i == 1:
                raise StopError

    with pytest.raises(StopError):
        follow()
    assert len(begun) < len(made)
    assert all(m.training for m in session.model.modules())
    assert torch.get_num_threads() == 2
    thread = threading.Thread(target=lambda: begun.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert begun[-1] == 2  # threads that start later have their usual share
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in session.model.modules())
    assert blas._inside == 0


def test_a_layer_that_fails_is_named(tiny: Any) -> None:
    session = session_of(copy.deepcopy(tiny("bert")))
    made = batches(session)
    list(capture(session, made))

    def fail(module: Any, args: Any) -> None:
        raise ValueError("no reason")

    session.places[1].block.register_forward_pre_hook(fail)
    with pytest.raises(ArchitectureError, match=r"no reason$"):
        list(capture_each(session, made, states))


def test_large_batches_run_alone(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(tiny("bert"))
    made = batches(session)
    list(capture(session, made))
    monkeypatch.setattr(capture_module, "_ENTRIES", 1)
    owners = set(capture_each(session, made, lambda _: threading.get_ident()))
    assert owners == {threading.get_ident()}


def test_one_session_serves_several_threads(tiny: Any) -> None:
    """Two captures of one model at once: the hooks of one are not called by the other's passes."""
    session = session_of(tiny("gpt2"))
    made = batches(session)
    alone = [states(b) for b in capture(session, made)]
    found: dict[int, list[Any]] = {}

    def follow(number: int) -> None:
        found[number] = [states(b) for b in capture(session, made)]

    threads = [threading.Thread(target=follow, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        for x, y in zip(found[number], alone, strict=True):
            np.testing.assert_allclose(np.stack(x), np.stack(y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["step", "free", "block"])
@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_a_trace_is_the_same(
    mode: str, name: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tiny(name))
    feed = Feed(tuple(map(tuple, PROMPTS)), "token ids", len(PROMPTS))
    options = TraceOptions(mode=mode, nulls=False, batch_size=2, bias=False)
    beside = run_module.run(session, feed, options)
    each = run_module.capture_each

    def one_by_one(*args: Any, **kwargs: Any) -> Any:
        return each(*args, **{**kwargs, "alone": True})

    monkeypatch.setattr(run_module, "capture_each", one_by_one)
    alone = run_module.run(session, feed, options)
    for a, b in zip(beside.layers, alone.layers, strict=True):
        x, y = flat(asdict(a)), flat(asdict(b))
        assert x.keys() == y.keys()
        for key in x:
            assert x[key] == pytest.approx(y[key], rel=1e-9, abs=1e-9, nan_ok=True), key


def flat(value: Any, name: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple)):
        pairs = list(enumerate(value))
    else:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {name: float(value)} if number else {}
    return {k: v for key, part in pairs for k, v in flat(part, f"{name}.{key}").items()}
