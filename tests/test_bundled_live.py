"""Traces and simulations of the bundled models against a second computation that shares no code.

Both sides are float64, and states agree to 1e-14 of the largest; directions of leaders agree to
some hundred eps over gaps above 1e-3. Llama is apart: transformers takes its rotary angles in
float32 whatever the model's dtype, which moves their cosines by 3e-7.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import eigenlens
import independent_live
from eigenlens.live.batches import make_batches
from eigenlens.live.capture import capture
from eigenlens.live.session import Session, open_session, session_of
from eigenlens.tracing.moves import without_bias
from independent_live import GOLDEN, ITERATED, LOOKED_AT, N_TOKENS, SHOWN, TRACED, prompts, starts

GOLD: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
MEASURES = ("gamma", "gain", "rho")


TOLERANCES = {"llama-tiny": 1e-6}  # of the rotary angles; one test takes them in float64


def close(expected: Any, tolerance: float = 1e-9) -> Any:
    """Float64 through two routes."""
    return pytest.approx(expected, rel=tolerance, abs=tolerance)


def same(a: Any, b: Any) -> bool:
    """Whether two records hold the same keys and, to 1e-8, the same numbers."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == close(b, 1e-8))


def test_the_golden_file_is_what_the_script_computes() -> None:
    fresh = independent_live.golden()
    assert list(fresh["trace"]) == list(TRACED)
    assert list(fresh["simulate"]) == list(ITERATED)
    assert same(fresh, GOLD)
    changed = json.loads(json.dumps(GOLD))
    changed["trace"]["gpt2-tiny"][2]["gain"] += 1e-6
    assert not same(fresh, changed)


@pytest.fixture(scope="module")
def sessions() -> dict[str, Session]:
    """The models in float64."""
    return {
        name: open_session(f"sample:{name}", dtype="float64", tokenizer=False)
        for name in (*TRACED, *ITERATED)
    }


def traced(name: str, session: Session, **options: Any) -> eigenlens.Trace:
    asked = {"bias": False, "tie_tolerance": 0.0, "nulls": False, **options}
    return eigenlens.trace(session, token_ids=prompts(name), **asked)


def measures(found: Any) -> np.ndarray:
    return np.array([[getattr(x, key) for key in MEASURES] for x in found.layers])


def expected(name: str) -> np.ndarray:
    return np.array([[x[key] for key in MEASURES] for x in GOLD["trace"][name]])


@pytest.mark.parametrize("name", TRACED)
def test_traces_of_the_bundled_models(name: str, sessions: dict[str, Session]) -> None:
    found = traced(name, sessions[name])
    gold = GOLD["trace"][name]
    assert found.options["dtype"] == "float64"
    assert {x.order for x in found.layers} == {TRACED[name]}
    assert [x.target_dim for x in found.layers] == [x["target_dim"] for x in gold]
    assert {x.n_tokens for x in found.layers} == {sum(len(ids) for ids in prompts(name))}
    assert measures(found) == close(expected(name), TOLERANCES.get(name, 1e-9))


@pytest.mark.parametrize("name", TRACED)
def test_float32_gives_the_same_trace(name: str) -> None:
    found = traced(name, open_session(f"sample:{name}", tokenizer=False))
    assert found.options["dtype"] == "float32"
    assert measures(found) == close(expected(name), 1e-4)


def check_states(name: str, session: Session, tolerance: float) -> None:
    captured = next(capture(session, make_batches(session, prompts(name))))
    prompt, token, entries = SHOWN
    for call, gold in zip(captured.calls, GOLD["trace"][name], strict=True):
        before, after = call.before.numpy(), without_bias(session, call).numpy()
        shown = {"before": before, "attention": after - before, "after": after}
        for key, X in shown.items():
            assert np.linalg.norm(X) == close(gold["norms"][key], tolerance)
            assert X[prompt, token, entries] == close(np.array(gold["entries"][key]), tolerance)


@pytest.mark.parametrize("name", TRACED)
def test_captured_states_of_the_bundled_models(name: str, sessions: dict[str, Session]) -> None:
    check_states(name, sessions[name], TOLERANCES.get(name, 1e-9))


def test_with_rotary_angles_in_float64_llama_agrees_as_closely(
    sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions["llama-tiny"]
    torch = session.torch

    def forward(x: Any, position_ids: Any) -> tuple[Any, Any]:
        hd = session.places[0].plan.geometry.head_dim
        speeds = 10000.0 ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
        angles = (position_ids[..., None].double() * speeds).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(session.body.rotary_emb, "forward", forward)
    check_states("llama-tiny", session, 1e-9)
    assert measures(traced("llama-tiny", session)) == close(expected("llama-tiny"))


@pytest.mark.parametrize("name", ITERATED)
def test_simulations_of_the_bundled_models(name: str, sessions: dict[str, Session]) -> None:
    gold = GOLD["simulate"][name]
    d = sessions[name].places[0].plan.geometry.d_model
    for row in gold:
        found = eigenlens.simulate(
            sessions[name],
            states=starts(d),
            n_tokens=N_TOKENS,
            steps=row["step"],
            tie_tolerance=0.0,
        )
        assert found.options["radius"] == 1.0
        assert found.options["mask"] == "full"
        _, token, entries = SHOWN
        assert found.final[-1, token, entries] == close(np.array(row["entries"]))
    assert tuple(row["step"] for row in gold) == LOOKED_AT
    for row in gold:
        seen = found.trajectory[row["step"]]
        assert seen["step"] == row["step"]
        assert [seen["cosine"], seen["gamma"]] == close([row["cosine"], row["gamma"]])


# ---- Each of these differences is one that the comparison above would see


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("gpt2-tiny", {"bias": True}),
        ("gpt2-tiny", {"order": "modulus"}),
        ("gpt2-tiny", {"operator": "folded"}),
        ("bert-tiny", {"bias": True}),
        ("bert-tiny", {"mode": "block"}),
        ("gptneo-tiny", {"bias": True}),
        ("llama-tiny", {"operator": "folded"}),
    ],
)
def test_another_trace_is_seen(
    name: str, option: dict[str, Any], sessions: dict[str, Session]
) -> None:
    assert not np.allclose(
        measures(traced(name, sessions[name], **option)), expected(name), atol=1e-4
    )


@pytest.mark.parametrize("bug", ["scale", "mask", "heads"])
def test_planted_bugs_in_the_second_computation_are_seen(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = independent_live.attend

    def wrong(X: Any, Q: Any, K: Any, heads: Any, allowed: Any, scale: float) -> np.ndarray:
        if bug == "scale":
            scale *= 1.01
        elif bug == "mask":
            allowed = allowed & (np.arange(len(allowed)) != 5) | np.eye(len(allowed), dtype=bool)
        else:
            heads = heads[::-1]
        return true(X, Q, K, heads, allowed, scale)

    monkeypatch.setattr(independent_live, "attend", wrong)
    fresh = independent_live.golden()
    for kind, models in GOLD.items():
        for name, gold in models.items():
            assert not same(fresh[kind][name], gold)


def test_a_transposed_output_matrix_is_seen(sessions: dict[str, Session]) -> None:
    """A live model whose weights are read the wrong way round."""
    session = session_of(copy.deepcopy(sessions["albert-tiny"].model))
    W_O = session.places[0].output.weight
    with session.torch.no_grad():
        W_O.copy_(W_O.T.clone())
    found = eigenlens.simulate(session, states=starts(len(W_O)), n_tokens=N_TOKENS, steps=1)
    _, token, entries = SHOWN
    gold = GOLD["simulate"]["albert-tiny"][0]["entries"]
    assert not np.allclose(found.final[-1, token, entries], gold, atol=1e-6)
