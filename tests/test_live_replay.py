"""Replays of real states are the model itself; free runs are the written-out recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eigenlens.errors import NumericsError, OptionError
from eigenlens.live.batches import make_batches, random_pixels
from eigenlens.live.capture import capture
from eigenlens.live.masking import with_mask
from eigenlens.live.replay import (
    LADDER,
    Variant,
    attention_output,
    block_output,
    free_run,
    mix,
    sphere,
    step,
)
from eigenlens.live.session import Session, initialised_like, session_of
from eigenlens.live.states import Captured
from families import BY_NAME

TOLERANCE = 1e-10
PROMPTS = [[5, 9, 31, 7, 12], [8, 3, 22]]


def one(session: Session, prompts: Any = PROMPTS, **options: Any) -> Captured:
    batches = (
        random_pixels(session, 2)
        if session.vision
        else make_batches(session, prompts, batch_size=2)
    )
    return next(capture(session, batches, **options))


@pytest.mark.parametrize("name", BY_NAME)
def test_real_states_give_the_real_outputs_exactly(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    found = one(session, weights=True)
    assert found.unchecked == ()
    for call in found.calls:
        y, A = attention_output(session, call, call.before, weights=True)
        np.testing.assert_array_equal(y, call.attention)
        np.testing.assert_array_equal(A, call.weights)
        block, _ = block_output(session, call, call.before)
        np.testing.assert_array_equal(block, call.block)
        settled, _ = step(session, call, call.before, Variant(norm="real", bias=True))
        np.testing.assert_array_equal(settled, call.settled)
        bare, _ = attention_output(session, call, call.before, bias=False)
        if call.place.norm_out is None or call.place.post:
            bias = session.constants(call.place).bias
            np.testing.assert_allclose(bare + bias, y, atol=1e-12)
    last = None
    for last in free_run(session, found.calls, LADDER["ffn"]):
        np.testing.assert_array_equal(last.after, last.call.block)
    assert last is not None


@pytest.mark.parametrize(
    "model_type",
    # asked for weights; router with tuples; output scale; residual inside the attention module;
    # norm on the output alone; sum of experts beside attention
    ["deberta-v2", "mixtral", "granite", "bloom", "falcon", "olmo2", "cohere2_moe"],
)
def test_unusual_blocks(model_type: str) -> None:
    import zoo

    session = session_of(zoo.build(model_type).double().eval())
    found = one(session, [[11, 25, 31, 17, 12], [28, 13, 22]], weights=True)
    assert found.unchecked == ()
    for call in found.calls:
        circuit, constants = session.circuit(call.place), session.constants(call.place)
        with session.running():
            y = mix(session, circuit, call.weights, call.values) + constants.bias
            y = call.place.norm_out(y) if call.place.norm_out is not None else y
        if not call.place.post:
            error = (y * constants.scale - call.attention).numpy()[found.batch.mask]
            assert np.abs(error).max() <= TOLERANCE
        again, A = attention_output(session, call, call.before, weights=True)
        np.testing.assert_array_equal(again, call.attention)
        np.testing.assert_array_equal(A, call.weights)
        block, _ = block_output(session, call, call.before)
        np.testing.assert_array_equal(block, call.block)


@pytest.mark.parametrize("name", ["bert", "gpt2", "esm", "gemma2"])
def test_other_states_give_other_outputs(name: str, tiny: Any) -> None:
    """The replay follows its states, token by token, and never what was captured."""
    session = session_of(tiny(name))
    call = one(session).calls[0]
    for variant in LADDER.values():
        first, _ = step(session, call, variant.start(call.before), variant)
        moved = call.before.clone()
        moved[:, 0] = -moved[:, 0] + 0.5
        second, _ = step(session, call, variant.start(moved), variant)
        assert float((first - second).abs().max()) > 1e-3
        both, _ = step(session, call, variant.start(call.before), variant)
        np.testing.assert_array_equal(first, both)


def attention_by_hand(model: Any, layer: int, X: Any, causal: bool) -> Any:
    """sum_h A^h X F_h^T of one prompt of a tiny BERT or GPT-2, from its state dict by numpy."""
    state = {k: v.numpy() for k, v in model.base_model.state_dict().items()}
    heads, d = 4, X.shape[1]
    if causal:
        at = f"h.{layer}.attn."
        W = state[f"{at}c_attn.weight"].T.reshape(3, d, d)
        b = state[f"{at}c_attn.bias"].reshape(3, d)
        W_O = state[f"{at}c_proj.weight"].T
    else:
        at = f"encoder.layer.{layer}.attention."
        parts = ("query", "key", "value")
        W = np.stack([state[f"{at}self.{p}.weight"] for p in parts])
        b = np.stack([state[f"{at}self.{p}.bias"] for p in parts])
        W_O = state[f"{at}output.dense.weight"]
    Q, K = X @ W[0].T + b[0], X @ W[1].T + b[1]
    n, h = len(X), d // heads
    y = np.zeros_like(X)
    for i in range(heads):
        s = slice(i * h, (i + 1) * h)
        logits = Q[:, s] @ K[:, s].T / np.sqrt(h)
        if causal:
            logits = np.where(np.tri(n, dtype=bool), logits, -np.inf)
        A = np.exp(logits - logits.max(axis=1, keepdims=True))
        A /= A.sum(axis=1, keepdims=True)
        y += A @ X @ (W_O[:, s] @ W[2][s]).T
    return y


@pytest.mark.parametrize(("name", "causal"), [("bert", False), ("gpt2", True)])
@pytest.mark.parametrize("radius", [1.0, "sqrt_d"])
def test_a_free_run_is_the_papers_recursion(
    name: str, causal: bool, radius: Any, tiny: Any
) -> None:
    session = session_of(tiny(name))
    found = one(session)
    mask = found.batch.mask
    r = 4.0 if radius == "sqrt_d" else 1.0
    starts = found.calls[0].before.numpy()
    runs = list(free_run(session, found.calls, Variant(radius=radius), steps=5))
    assert [s.call.place.plan.layer for s in runs] == [0, 1, 0, 1, 0]
    for row in range(len(mask)):
        X = starts[row][mask[row]]
        X = r * X / np.linalg.norm(X, axis=1, keepdims=True)
        for s in runs:
            np.testing.assert_allclose(s.before[row][mask[row]], X, atol=TOLERANCE)
            X = X + attention_by_hand(session.model, s.call.place.plan.layer, X, causal)
            X = r * X / np.linalg.norm(X, axis=1, keepdims=True)
            np.testing.assert_allclose(s.after[row][mask[row]], X, atol=TOLERANCE)


def test_the_hand_written_recursion_can_fail(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    found = one(session)
    X = sphere(found.calls[0].before)[0][: found.batch.mask[0].sum()].numpy()
    y, _ = attention_output(
        session, found.calls[0], sphere(found.calls[0].before), norm="l2", bias=False
    )
    full = attention_by_hand(session.model, 0, X, causal=True)
    wrong = attention_by_hand(session.model, 1, X, causal=True)
    found_y = y[0][: len(X)].numpy()
    assert np.abs(found_y - full).max() < TOLERANCE
    assert np.abs(found_y - wrong).max() > 1e-2


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_neox", "albert"])
def test_equal_tokens_follow_the_power_method(name: str, tiny: Any) -> None:
    """Equal tokens stay equal and follow N((I + F)x), whatever the mask."""
    import torch

    session = session_of(tiny(name))
    found = one(session)
    rng = np.random.default_rng(3)
    x = rng.standard_normal(16)
    start = torch.tensor(x).expand_as(found.calls[0].before)
    x /= np.linalg.norm(x)
    for s in free_run(session, found.calls, start=start, steps=6):
        x = x + session.circuit(s.call.place).matvec(x)
        x /= np.linalg.norm(x)
        error = s.after.numpy() - x
        assert np.abs(error[found.batch.mask]).max() <= TOLERANCE


@pytest.mark.parametrize("name", ["bert", "qwen3", "gpt2"])
def test_a_rotated_spectrum_keeps_the_weights(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    found = one(session, weights=True)
    call = found.calls[1]
    circuit = session.circuit(call.place)
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((16, 16)))
    A, X = call.weights.numpy(), call.values.numpy()
    expected = np.zeros_like(X)
    for i in range(circuit.n_heads):
        expected += A[:, i] @ X @ (Q @ circuit.head(i).dense() @ Q.T).T
    rotated = mix(session, circuit, call.weights, call.values, rotation=Q).numpy()
    np.testing.assert_allclose(rotated, expected, atol=TOLERANCE)
    assert np.abs(rotated - mix(session, circuit, call.weights, call.values).numpy()).max() > 0.01
    same = mix(session, circuit, call.weights, call.values, rotation=np.eye(16)).numpy()
    np.testing.assert_allclose(same + circuit.bias, call.attention, atol=TOLERANCE)


def test_rungs_of_the_ladder_differ_by_one_thing_each(tiny: Any) -> None:
    session = session_of(tiny("llama"))
    call = one(session).calls[0]
    x = call.before
    after = {name: step(session, call, v.start(x), v)[0] for name, v in LADDER.items()}
    np.testing.assert_allclose(after["l2"].norm(dim=-1), 1, atol=1e-12)
    bias = session.constants(call.place).bias
    np.testing.assert_allclose(after["bias"] - after["norm"], bias.expand_as(x), atol=1e-12)
    np.testing.assert_array_equal(after["ffn"], call.block)
    bare, _ = step(session, call, x, Variant(norm="real", ffn=True))
    assert float((bare - call.block).abs().max()) > 1e-3
    on_sphere, _ = step(session, call, x, Variant(bias=True, ffn=True, radius=2))
    np.testing.assert_allclose(on_sphere, sphere(call.block, 2.0), atol=1e-12)


def test_a_block_without_bias_is_one_whose_biases_are_zero(tiny: Any) -> None:
    import torch

    model = BY_NAME["bert"].build(head=False)
    session = session_of(model)
    call = one(session).calls[0]
    bare, _ = block_output(session, call, call.before, bias=False)
    with torch.no_grad():
        attention = model.encoder.layer[0].attention
        attention.self.value.bias.zero_()
        attention.output.dense.bias.zero_()
    zeroed, _ = block_output(session, call, call.before)
    np.testing.assert_allclose(bare, zeroed, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "albert"])
@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_masks_can_be_changed(name: str, pattern: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    call = one(session, [[5, 9, 31, 7]]).calls[0]
    sees = np.ones((4, 4), bool) if pattern == "full" else np.tri(4, dtype=bool)
    changed = with_mask(session, call, sees)
    _, A = attention_output(session, changed, call.before, weights=True)
    np.testing.assert_array_equal(A[0].numpy() > 0, np.broadcast_to(sees, (4, 4, 4)))
    if (pattern == "causal") == call.place.plan.causal:
        y, _ = attention_output(session, changed, call.before)
        np.testing.assert_allclose(y, call.attention, atol=1e-12)
    block, _ = block_output(session, changed, call.before)
    same = (pattern == "causal") == call.place.plan.causal
    assert (float((block - call.block).abs().max()) < 1e-12) == same


def test_a_mask_that_the_layer_overrides_is_refused(tiny: Any) -> None:
    """GPT-Neo's layers are causal by a buffer of their own."""
    session = session_of(tiny("gpt_neo"))
    call = one(session, [[5, 9, 31, 7]]).calls[0]
    with pytest.raises(OptionError, match="its own code decides what a token sees"):
        with_mask(session, call, np.ones((4, 4), bool))


def test_states_that_grow_without_bound_stop_a_free_run(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    calls = one(session).calls
    huge = calls[0].before * 1e308
    with pytest.raises(NumericsError, match="layer 0: states are NaN or infinite after step 0"):
        list(free_run(session, calls, Variant(norm="real"), start=huge * 10))


def test_options_of_a_variant_are_checked(tiny: Any) -> None:
    for radius in (0, -1.0, "d", True, float("nan"), float("inf"), 1e-46, 1e-16, 1e16, 1e300):
        with pytest.raises(OptionError, match="radius"):
            Variant(radius=radius)
    with pytest.raises(OptionError, match="norm 'L2' is unknown: allowed are l2, real"):
        Variant(norm="L2")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no attention layer to run"):
        list(free_run(session_of(tiny("gpt2")), []))


def test_an_initialised_model_has_its_own_weights(tiny: Any) -> None:
    import torch

    session = session_of(tiny("bert"))
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    fresh, again = initialised_like(session, seed=1), initialised_like(session, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert fresh.dtype == session.dtype
    a, b, c = (one(s).calls[0].place for s in (fresh, again, session))
    np.testing.assert_array_equal(fresh.circuit(a).W_V, again.circuit(b).W_V)
    assert np.abs(fresh.circuit(a).W_V - session.circuit(c).W_V).max() > 0.01
    other = initialised_like(session, seed=2)
    assert np.abs(other.circuit(a).W_V - fresh.circuit(a).W_V).max() > 0.001


def test_encoder_decoder_blocks_run_once(tiny: Any) -> None:
    from test_live_capture import encoder_decoder

    session = session_of(encoder_decoder("t5"))
    decoder = one(session).stack("decoder")
    runs = list(free_run(session, decoder, LADDER["ffn"]))
    assert [s.call.place.plan.layer for s in runs] == [0, 1]
    np.testing.assert_array_equal(runs[-1].after, decoder[-1].block)
    paper = list(free_run(session, decoder))
    assert [s.call.place.plan.kind for s in paper] == ["self", "cross"] * 2
