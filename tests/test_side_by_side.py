"""Batches that run side by side show what they show one after the other, each to its own thread."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from eigenlens.live.hooks import hooked, hooks_on, on_enter
from eigenlens.live.modes import evaluating
from eigenlens.live.session import Session, session_of
from eigenlens.live.states import Captured
from eigenlens.live.steadiness import Steadiness
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


def of_lengths(session: Session, *lengths: int) -> list[Any]:
    """Batches of two prompts each, in this order."""
    made = []
    for n in lengths:
        made += make_batches(session, RNG.integers(3, 40, size=(2, n)).tolist(), batch_size=2)
    return made


def beside(session: Session, made: list[Any], **options: Any) -> list[bool]:
    """Of each batch, whether it ran in another thread than this."""
    here = threading.get_ident()
    return list(capture_each(session, made, lambda _: threading.get_ident() != here, **options))


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

    together = list(capture_each(session, made, work))
    assert [p for p, _ in together] == [p for p, _ in alone]
    for (_, xs), (_, ys) in zip(together, alone, strict=True):
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
    lengths = (3, 3, 5, 3, 5, 5, 9, 9, 7, 2, 11, 11)
    seen = beside(session, of_lengths(session, *lengths))
    assert seen == [n <= max(lengths[:i], default=0) for i, n in enumerate(lengths)]
    assert sum(seen) == 8


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


class Tabled(torch.nn.Module):
    """Makes a table where `stale` says that the one it has does not do for a length."""

    def __init__(self, inner: Any, stale: Callable[[int, int], bool], size: int) -> None:
        super().__init__()
        self.inner, self.stale, self.table = inner, stale, torch.zeros(size)

    def forward(self, x: Any) -> Any:
        if self.stale(x.shape[1], len(self.table)):
            self.table = torch.zeros(x.shape[1])
        return self.inner(x)


def tabled(stale: Callable[[int, int], bool], size: int = 0) -> Session:
    model = llama()
    model.layers[0].mlp = Tabled(model.layers[0].mlp, stale, size)
    return session_of(model)


def test_a_longer_batch_that_runs_alone_may_change_the_model() -> None:
    """What ran beside others before it was right, and what comes later is judged anew."""
    session = tabled(lambda n, held: n > held, size=4)
    seen = beside(session, of_lengths(session, 4, 4, 4, 9, 9, 9, 4, 4))
    assert seen == [False, True, True, False, False, True, False, True]


def test_a_change_beside_others_is_seen_before_a_batch_that_runs_alone() -> None:
    session = session_of(noting(below=5))
    with pytest.raises(ArchitectureError, match="set_num_threads"):
        list(capture_each(session, of_lengths(session, 8, 8, 4, 4, 9, 9), states))
    late = session_of(noting(below=5))
    stream = capture_each(late, of_lengths(late, 8, 8, 4, 9, 7), states)
    assert len([next(stream) for _ in range(3)]) == 3
    with pytest.raises(ArchitectureError, match="set_num_threads"):
        next(stream)


def test_a_table_for_one_length_is_found_though_it_is_there_already() -> None:
    session = tabled(lambda n, held: n != held)
    list(capture(session, of_lengths(session, 9)))
    seen = beside(session, of_lengths(session, 9, 7, 5, 5, 5, 9, 3))
    assert seen == [True, False, False, False, True, False, False]


def test_a_table_that_is_made_once_is_no_change_between_passes() -> None:
    session = tabled(lambda n, held: not held)
    seen = beside(session, of_lengths(session, 9, 8, 7, 6, 5), check=False)
    assert not any(seen[:2])
    assert all(seen[-2:])


def test_an_error_of_passes_that_were_mixed_up_says_why() -> None:
    class Failing(Noting):
        def forward(self, x: Any) -> Any:
            if x.shape[1] < self.below:
                self.calls.append(1)
                raise ValueError("sizes of tensors differ")
            return self.inner(x)

    model = llama()
    model.layers[0].mlp = Failing(model.layers[0].mlp, 5)
    session = session_of(model)
    with pytest.raises(ArchitectureError, match="set_num_threads"):
        list(capture_each(session, of_lengths(session, 9, 8, 4, 4), states))


def test_calls_in_a_deque_are_a_change() -> None:
    from collections import deque

    model = llama()
    model.layers[0].mlp.calls = deque([1])
    before = Steadiness(model)
    assert before.kept()
    model.layers[0].mlp.calls.append(1)
    assert not before.kept()


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
    owners: list[int] = []

    def work(found: Captured) -> list[np.ndarray]:
        owners.append(threading.get_ident())
        return states(found)

    for x, y in zip(alone, capture_each(session, made, work), strict=True):
        np.testing.assert_allclose(np.stack(x), np.stack(y), rtol=0, atol=1e-6)
    assert threading.get_ident() not in owners


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


def test_hooks_for_all_modules_are_others(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    made = batches(session)
    list(capture(session, made))
    everywhere = torch.nn.modules.module
    for register in (
        everywhere.register_module_forward_hook,
        everywhere.register_module_forward_pre_hook,
    ):
        with hooked([register(lambda module, args, result=None: None)]):
            assert not any(beside(session, made))
    assert all(beside(session, made)[1:])


def test_hooks_of_another_thread_are_no_others(tiny: Any) -> None:
    """They let these passes through; those of this thread would be missed by other threads."""
    session = session_of(copy.deepcopy(tiny("bert")))
    made = batches(session)
    list(capture(session, made))
    place, usual = session.places[0], hooks_on(session.model)  # transformers' own may be there
    with ThreadPoolExecutor(1) as pool:
        handle = pool.submit(on_enter, place.block, lambda *_: None).result()
    assert place.block._forward_pre_hooks, "or this test is of no use"
    with hooked([handle]):
        assert hooks_on(session.model) == usual
        assert all(beside(session, made))
    with hooked([on_enter(place.block, lambda *_: None)]):
        assert len(hooks_on(session.model)) == len(usual) + 1
        assert not any(beside(session, made))


def test_hooks_may_come_while_they_are_counted(tiny: Any) -> None:
    """Another thread's, between one and the next."""
    model = copy.deepcopy(tiny("bert"))
    block = session_of(model).places[0].block

    class Intruder:
        @property
        def __module__(self) -> str:  # type: ignore[override]  # asked for by who counts
            block.register_forward_hook(print)
            return "other"

        def __call__(self, *args: Any) -> None:
            return None

    for _ in range(2):
        block.register_forward_hook(Intruder())
    assert len(hooks_on(model)) == 2


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


def test_a_pass_that_fails_beside_others_says_why(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the model, in another thread: the error is that of the pass, raised in the caller."""
    session = session_of(copy.deepcopy(tiny("bert")))
    made = batches(session)
    list(capture(session, made))
    here, failed = threading.get_ident(), []
    block = session.places[1].block
    usual = type(block).forward

    def fails(self: Any, *given: Any, **named: Any) -> Any:
        if self is block and threading.get_ident() != here:
            failed.append(threading.get_ident())
            raise ValueError("no reason")
        return usual(self, *given, **named)

    monkeypatch.setattr(type(block), "forward", fails)
    with pytest.raises(ArchitectureError) as caught:
        list(capture_each(session, made, states))
    assert failed, "no pass ran beside the caller"
    assert str(caught.value) == (
        f"{session.label}: a forward pass on input_ids, attention_mask failed: no reason"
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in session.model.modules())


def test_large_batches_run_alone(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(tiny("bert"))
    made = batches(session)
    list(capture(session, made))
    monkeypatch.setattr(capture_module, "_ENTRIES", 1)
    owners = set(capture_each(session, made, lambda _: threading.get_ident()))
    assert owners == {threading.get_ident()}


def test_long_prompts_run_alone_for_their_scores(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention holds (heads, n, n) numbers a prompt, however few the states have."""
    session = session_of(tiny("bert"))
    made = of_lengths(session, 30, 30, 3, 3)
    list(capture(session, made[:1]))
    geometry = session.places[0].plan.geometry
    bound = 2 * 30 * 5 * len(session.places) * geometry.d_model + 3 * 2 * geometry.n_heads * 30**2
    monkeypatch.setattr(capture_module, "_ENTRIES", bound + 1)
    assert beside(session, made) == [True, True, True, True]
    monkeypatch.setattr(capture_module, "_ENTRIES", bound)
    assert beside(session, made) == [False, False, True, True]
    monkeypatch.setattr(capture_module, "_ENTRIES", bound + 1)
    list(capture(session, made[:1], weights=True))
    assert beside(session, made, weights=True) == [False, False, True, True]


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Passing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
        Counting,
        Passing,
        lambda: torch.device("cpu"),
    ],
    ids=["autocast", "inference", "dispatch", "function", "device"],
)
def test_what_other_threads_would_not_have_keeps_batches_here(mode: Any) -> None:
    session = session_of(llama())
    made = batches(session)
    list(capture(session, made, check=False))
    with mode():
        assert not any(beside(session, made, check=False))
    assert all(beside(session, made, check=False))


def test_one_session_serves_several_threads(tiny: Any) -> None:
    """Two captures of one model at once: the hooks of one are not called by the other's passes."""
    session = session_of(tiny("gpt2"))
    made = batches(session)
    alone = [states(b) for b in capture(session, made)]
    together = threading.Barrier(3)

    def follow(number: int) -> list[Any]:
        together.wait(timeout=20)
        return [states(b) for b in capture(session, made)]

    with ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(follow, number) for number in range(3)]
    for task in tasks:
        for x, y in zip(task.result(), alone, strict=True):
            np.testing.assert_allclose(np.stack(x), np.stack(y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["step", "free", "block"])
@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_a_trace_is_the_same(
    mode: str, name: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tiny(name))
    feed = Feed(tuple(map(tuple, PROMPTS)), "token ids", len(PROMPTS))
    options = TraceOptions(mode=mode, nulls=False, batch_size=2, bias=False)
    owners: list[int] = []
    real = run_module.Gatherer.read

    def read(self: Any, found: Captured) -> Any:
        owners.append(threading.get_ident())
        return real(self, found)

    monkeypatch.setattr(run_module.Gatherer, "read", read)
    together = run_module.run(session, feed, options)
    assert threading.get_ident() not in owners[1:]
    owners.clear()
    each = run_module.capture_each

    def one_by_one(*args: Any, **kwargs: Any) -> Any:
        return each(*args, **{**kwargs, "alone": True})

    monkeypatch.setattr(run_module, "capture_each", one_by_one)
    alone = run_module.run(session, feed, options)
    assert set(owners) == {threading.get_ident()}
    for a, b in zip(together.layers, alone.layers, strict=True):
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


def test_whether_weights_come_is_asked_of_two_prompts(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole batch with its weights would be the largest pass there is."""
    session = session_of(tiny("bert"))
    asked: list[Any] = []
    real = run_module.capture

    def noted(session: Session, made: list[Any], **options: Any) -> Any:
        asked.extend((batch.mask.shape, options["weights"]) for batch in made)
        return real(session, made, **options)

    monkeypatch.setattr(run_module, "capture", noted)
    warnings: list[str] = []
    assert run_module._weights(session, batches(session, 8), warnings)
    assert asked == [((2, 9), True)]
    assert warnings == []
