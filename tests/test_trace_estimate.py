"""`trace --dry-run`: what is fed is counted, what is not measured is reckoned from what is."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eigenlens.cli.app import app
from eigenlens.errors import OptionError
from eigenlens.live.session import open_session
from eigenlens.prompts import prompt_set
from eigenlens.tracing import estimate as room
from eigenlens.tracing.estimate import TraceEstimate, _kept, _measured, _scaled, _Timed, estimate
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.run import trace

MODEL = "sample:gpt2-tiny"
TEXTS = ("return x", "def f(a, b): return a + b", "x")


def run(*args: str | Path, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["trace", *map(str, args)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def usual() -> TraceEstimate:
    return estimate(MODEL)


def test_what_is_fed_is_counted_as_the_run_does(usual: TraceEstimate) -> None:
    real = trace(MODEL, nulls=False)
    assert usual.n_prompts == real.options["n_prompts"] == len(prompt_set("default"))
    assert usual.n_tokens == max(x.n_tokens for x in real.layers)
    assert usual.n_layers == len(real.layers) == 4
    assert (usual.n_batches, usual.measured_prompts) == (9, 8)  # the longest prompt is alone
    assert usual.options["directions"] == 1000
    assert usual.options["prompts"] == "default"


def test_random_directions_are_those_of_the_run() -> None:
    few = ("a b c", "d e f")
    for mode, steps in (("step", None), ("free", 30)):
        cost = estimate("sample:albert-tiny", texts=few, mode=mode, steps=steps)
        real = trace("sample:albert-tiny", texts=few, mode=mode, steps=steps)
        assert cost.options["directions"] == real.options["directions"]


@pytest.mark.slow
def test_the_time_is_that_of_a_run_within_a_factor(usual: TraceEstimate) -> None:
    """Generous, as others use the machine."""
    begun = time.perf_counter()
    trace(MODEL)
    real = time.perf_counter() - begun
    assert real / 5 < usual.seconds < 5 * real + 2


@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize("n", [8, 16, 1600])
def test_batches_are_multiplied(n: int, nulls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known times: 10 s for a run of one batch, 2 s of them the batch, 1 s the bare model.

    Every further batch is measured once, and with nulls goes through the untrained model as well.
    """
    monkeypatch.setattr(room, "_bare", lambda *_: 1.0)
    monkeypatch.setattr(room, "_timed", lambda *_: _Timed(10.0, 2.0))
    ids = [[1, 2, 3, 4, 5, 6, 1 + i // 40, 1 + i % 40] for i in range(n)]
    begun = time.perf_counter()
    cost = estimate(MODEL, token_ids=ids, nulls=nulls)
    took = time.perf_counter() - begun
    assert (cost.n_batches, cost.n_tokens, cost.longest) == (n // 8, 8 * n, 8)
    known = 10.0 + (n / 8 - 1) * (3.0 if nulls else 2.0)
    assert known <= cost.seconds <= known + took  # the model had to be opened
    assert cost.options["directions"] == (1000 if nulls else None)


def test_longer_prompts_count_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_bare", lambda *_: 0.0)
    monkeypatch.setattr(room, "_timed", lambda *_: _Timed(1000.0, 1000.0))
    ids = [[1, i] for i in range(16)] + [
        [1] * 11 + [i] for i in range(8)
    ]  # the middle batch has 16 tokens of 128
    cost = estimate(MODEL, token_ids=ids, nulls=False)
    assert cost.measured_prompts == 8
    assert 8000.0 <= cost.seconds < 8100.0


def test_memory_grows_with_layers_and_longest_prompt(usual: TraceEstimate) -> None:
    session = open_session(MODEL, tokenizer=False)
    options = TraceOptions()
    one, two = (_kept(session.places[:n], options, [(2, 30)]) for n in (1, 2))
    assert two == 2 * one > 0
    assert _kept(session.places, options, [(2, 60)]) > _kept(session.places, options, [(2, 30)])
    g = session.places[0].plan.geometry
    rotated = one - _kept(session.places[:1], replace(options, nulls=False), [(2, 30)])
    assert rotated == 8 * g.d_model * (g.value_width + g.output_width)
    assert usual.memory_bytes is None or usual.memory_bytes > 50e6


def test_layers_are_reckoned_from_a_difference() -> None:
    one, five = _Timed(3.0, 0.5), _Timed(7.0, 0.9)
    assert _scaled(one, five, 5, 30) == _Timed(pytest.approx(32.0), pytest.approx(3.4))
    assert _scaled(None, five, 5, 5) is five
    busy = _scaled(_Timed(9.0, 2.0), five, 5, 30)  # the short run was disturbed
    assert busy == _Timed(pytest.approx(42.0), pytest.approx(5.4))


@pytest.mark.parametrize("n", range(1, 90))
def test_measured_layers_are_apart(n: int) -> None:
    units = [3 * i for i in range(n)]
    first, others = _measured(units)
    assert set(first) | set(others) <= set(units)
    assert not set(first) & set(others)
    if n < 6:
        assert (first, others) == ([], units)
    else:
        assert len(first) == 1
        assert 2 <= len(others) <= 5
        assert units[0] not in first + others  # it warms up


def deep(n_layers: int) -> Any:
    """A tiny Llama of many layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=32, num_hidden_layers=n_layers, **sizes)
    return LlamaForCausalLM(config).eval()


def test_a_deep_model_is_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    real = room.run

    def noted(session: Any, feed: Any, options: Any, *, layers: Any, progress: Any) -> Any:
        asked.append(tuple(layers))
        return real(session, feed, options, layers=layers, progress=progress)

    monkeypatch.setattr(room, "run", noted)
    cost = estimate(deep(12), random_tokens=20, length=6, directions=200)
    assert asked == [(0,), (1,), (2, 3, 4, 5, 6)]
    assert (cost.measured_layers, cost.n_layers) == (6, 12)


def test_the_table_says_what_it_is_based_on() -> None:
    out = " ".join(run(MODEL, "--dry-run", "--text", TEXTS[0], "--text", TEXTS[1]).stdout.split())
    assert "prompts tokens longest batches layers directions memory time" in out
    assert "Measured on 2 prompts (which took" in out
    assert "good to a factor of about two" in out
    assert "Nothing was traced." in out
    bare = run(MODEL, "--dry-run", "--no-nulls", "--text", TEXTS[0]).stdout
    assert "directions" not in bare
    assert max(map(len, bare.splitlines())) <= 100


def test_json_and_csv_have_the_same_record() -> None:
    record = json.loads(run(MODEL, "--dry-run", "--text", TEXTS[0], "--format", "json").stdout)
    assert record["schema"] == "eigenlens.trace-estimate/1"
    assert (record["n_prompts"], record["n_batches"], record["n_layers"]) == (1, 1, 4)
    assert record["seconds"] > 0
    text = run(MODEL, "--dry-run", "--text", TEXTS[0], "--format", "csv").stdout
    assert text.count("\n") == 2
    assert set(text.splitlines()[0].split(",")) <= set(record)


def test_what_is_wrong_is_said_as_by_the_run(tmp_path: Path) -> None:
    done = run(MODEL, "--dry-run", "--figures", tmp_path / "f", code=2)
    assert "--dry-run computes nothing that --figures could be made of" in done.stderr
    assert not (tmp_path / "f").exists()
    assert "has no layer 9" in run(MODEL, "--dry-run", "--layers", "9", code=2).stderr
    with pytest.raises(OptionError, match="mode 'x' is unknown"):
        estimate(MODEL, mode="x")


def test_images_are_counted_alone(tiny: Any) -> None:
    cost = estimate(tiny("vit"), random_tokens=9, directions=200)
    assert (cost.n_prompts, cost.n_tokens, cost.longest, cost.n_batches) == (9, 0, 0, 2)
    assert cost.seconds > 0
