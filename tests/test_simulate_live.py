"""A live model iterated is the written-out recursion, and ends where its spectrum foretells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenlens
from eigenlens.dynamics.live_maps import LiveMap, live_multipliers, running, sight
from eigenlens.dynamics.live_run import simulate_model
from eigenlens.dynamics.live_starts import prompt_ids
from eigenlens.dynamics.maps import LayerMap, l2_map, on_sphere
from eigenlens.dynamics.masks import Mask
from eigenlens.dynamics.matrices import MatrixLayer, random_starts
from eigenlens.dynamics.stability import jacobian
from eigenlens.errors import OptionError, ShapeError, SourceError
from eigenlens.live.batches import make_batches, named_ids
from eigenlens.live.capture import capture
from eigenlens.live.replay import Variant, free_run
from eigenlens.live.session import Session, open_session, session_of
from eigenlens.tracing.feed import Prompts, read_feed
from families import BY_NAME

N, D = 5, 16
IDS = [[5, 9, 31, 7, 12]]
CAUSAL, FULL = Mask(causal=True), Mask()


def bare(name: str) -> Session:
    """A tiny model without query and key biases, so that its logits are x^T B y."""
    model = BY_NAME[name].build(head=False)
    torch = __import__("torch")
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith(("query.bias", "key.bias")):
                p.zero_()
            elif key.endswith("c_attn.bias"):
                p[: 2 * D].zero_()
    return session_of(model)


def bert_parts(state: dict[str, Any], layer: int) -> tuple[Any, Any, Any, Any, float]:
    at = f"encoder.layer.{layer}.attention."
    W = [state[f"{at}self.{part}.weight"] for part in ("query", "key", "value")]
    return (*W, state[f"{at}output.dense.weight"], 0.5)


def gpt2_parts(state: dict[str, Any], layer: int) -> tuple[Any, Any, Any, Any, float]:
    at = f"h.{layer}.attn."
    W = np.split(state[f"{at}c_attn.weight"].T, 3)
    return (*W, state[f"{at}c_proj.weight"].T, 0.5)


def gpt_neo_parts(state: dict[str, Any], layer: int) -> tuple[Any, Any, Any, Any, float]:
    at = f"h.{layer}.attn.attention."
    W = [state[f"{at}{part}_proj.weight"] for part in ("q", "k", "v")]
    return (*W, state[f"{at}out_proj.weight"], 1.0)  # its logits are not scaled


def by_hand(session: Session, parts: Callable[..., Any], masks: list[Mask]) -> list[MatrixLayer]:
    """The paper's layers from the stored W_Q, W_K, W_V and W_O of four heads of 4 coordinates."""
    state = {k: v.numpy() for k, v in session.body.state_dict().items()}
    found = []
    for layer, mask in enumerate(masks):
        W_Q, W_K, W_V, W_O, scale = parts(state, layer)
        rows = [slice(4 * h, 4 * h + 4) for h in range(4)]
        F = np.stack([W_O[:, r] @ W_V[r] for r in rows])
        B = np.stack([scale * W_Q[r].T @ W_K[r] for r in rows])
        found.append(MatrixLayer(F, B, mask=mask))
    return found


WRITTEN = {
    "bert": (bert_parts, "normalised", [FULL] * 2, "full"),
    "gpt2": (gpt2_parts, "stream", [CAUSAL] * 2, "causal"),
    "gpt_neo": (gpt_neo_parts, "stream", [CAUSAL, Mask(True, 2)] * 2, "causal and window:2"),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("radius", [1.0, "sqrt_d"])
def test_the_map_is_the_one_of_its_matrices(name: str, radius: Any) -> None:
    parts, form, masks, shown = WRITTEN[name]
    session = bare(name)
    X = random_starts(3, N, D, 1.0, 4)
    found = simulate_model(session, states=X, n_tokens=N, steps=7, radius=radius)
    assert found.options["form"] == form
    assert found.options["mask"] == shown
    r = 4.0 if radius == "sqrt_d" else 1.0
    maps = [l2_map(layer, form, r) for layer in by_hand(session, parts, masks)]
    Y = on_sphere(X, r)
    for t in range(7):
        Y = maps[t % len(maps)](Y)
    assert np.abs(found.final - Y).max() < 1e-10
    # Masks, order of the layers and heads all matter: a wrong one is far off.
    other = CAUSAL if masks[-1] != CAUSAL else FULL
    wrong = [l2_map(layer, form, r) for layer in by_hand(session, parts, [other] * len(masks))]
    Y = on_sphere(X, r)
    for t in range(7):
        Y = wrong[t % len(wrong)](Y)
    assert np.abs(found.final - Y).max() > 1e-3


def test_a_shared_layer_is_one_map(tiny: Any) -> None:
    session = session_of(tiny("albert"))
    found = simulate_model(session, n_tokens=N, steps=5)
    assert found.options["layers"] == [0]
    assert {row["layer"] for row in found.trajectory[1:]} == {0}
    captured = next(capture(session, make_batches(session, IDS)))
    *_, last = free_run(session, captured.calls, steps=5)
    own = simulate_model(session, token_ids=IDS, steps=5)
    np.testing.assert_allclose(own.final, last.after.numpy(), atol=1e-13)
    groups = simulate_model(session_of(tiny("albert-groups")), n_tokens=N, steps=12)
    assert len(groups.options["layers"]) == 10  # 5 layers of 2 inner ones each, all in turn


VARIANTS = [
    Variant(norm=norm, bias=bias, ffn=ffn)  # type: ignore[arg-type]
    for norm in ("l2", "real")
    for bias in (False, True)
    for ffn in (False, True)
]


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "gemma2", "gpt_neox", "esm"])
def test_variants_are_those_of_the_replay(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    for v in VARIANTS:
        post = session.places[0].post
        if v.norm == "l2" and not post and v.ffn:
            continue  # a stream around the block: written out below
        found = simulate_model(
            session, token_ids=IDS, steps=4, norm=v.norm, bias=v.bias, ffn=v.ffn,
            form="auto" if v.norm == "real" or v.ffn else "normalised",
        )  # fmt: skip
        calls = next(capture(session, make_batches(session, IDS))).calls
        *_, last = free_run(session, calls, v, steps=4)
        np.testing.assert_allclose(found.final, last.after.numpy(), atol=1e-11)


def test_the_stream_takes_the_blocks_step_at_the_normalised_state(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    calls = next(capture(session, make_batches(session, IDS))).calls
    X = random_starts(1, N, D, 3.0, 0)
    step = LiveMap(session, calls[0], "stream", Variant(ffn=True, bias=True))
    with running(session, [step]):
        found = step(X)
        torch = session.torch
        at = torch.as_tensor(on_sphere(X, 1.0))
        block = calls[0].block_recipe(at)
    block = (block[0] if isinstance(block, tuple) else block).numpy()
    np.testing.assert_allclose(found, X + block - on_sphere(X, 1.0), atol=1e-12)


def test_the_first_causal_token_takes_the_power_step_from_any_start(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    X = random_starts(2, N, D, 1.0, 3)
    found = simulate_model(session, states=X, n_tokens=N, steps=6, form="normalised")
    x = X[:, 0]
    for t in range(6):
        F = session.circuit(session.places[t % 2]).dense()
        x = on_sphere((x + x @ F.T)[:, None], 1.0)[:, 0]
    np.testing.assert_allclose(found.final[:, 0], x, atol=1e-13)
    assert np.abs(found.final[:, 1] - x).max() > 1e-3  # of the first token alone


def test_equal_tokens_take_it_whatever_the_heads_and_positions(tiny: Any) -> None:
    session = session_of(tiny("llama"))
    X = np.repeat(random_starts(1, 1, D, 1.0, 3), N, axis=1)
    found = simulate_model(session, states=X, n_tokens=N, steps=6)
    h = X[0, 0]
    for t in range(6):
        h = h + session.circuit(session.places[t % 2]).dense() @ (h / np.linalg.norm(h))
    np.testing.assert_allclose(found.final[0], np.tile(h, (N, 1)), atol=1e-12)


@settings(max_examples=15)
@given(order=st.permutations(range(N)), seed=st.integers(0, 99))
def test_full_attention_does_not_see_the_order_of_tokens(order: list[int], seed: int) -> None:
    session = _bert()
    X = random_starts(1, N, D, 1.0, seed)
    one = simulate_model(session, states=X, n_tokens=N, steps=3).final
    two = simulate_model(session, states=X[:, order], n_tokens=N, steps=3).final
    np.testing.assert_allclose(one[:, order], two, atol=1e-12)


_BUILT: list[Session] = []


def _bert() -> Session:
    if not _BUILT:
        _BUILT.append(session_of(BY_NAME["bert"].build(head=False)))
    return _BUILT[0]


def test_starts_in_one_batch_are_those_of_their_own() -> None:
    X = random_starts(4, N, D, 1.0, 3)
    together = simulate_model(_bert(), states=X, n_tokens=N, steps=5).final
    for start, final in zip(X, together, strict=True):
        alone = simulate_model(_bert(), states=start, n_tokens=N, steps=5).final[0]
        np.testing.assert_allclose(alone, final, atol=1e-13)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_multipliers_by_differentiation_are_those_by_differences(
    sign: float, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tiny("albert"))
    call = next(capture(session, make_batches(session, IDS))).calls[0]
    step = LiveMap(session, call, "normalised", Variant())
    # Any state serves to compare the two; of a power step's direction both take the same tangents.
    X = random_starts(1, N, D, 1.0, 0)[0]
    with running(session, [step]):
        X = _fixed(step, X)
        by_differences = np.linalg.eigvals(jacobian(step, X, sign))
        found = live_multipliers([step], X, sign)
        assert found is not None
        leading = by_differences[np.argsort(-np.abs(by_differences))][:4]
        np.testing.assert_allclose(np.sort(np.abs(found)), np.sort(np.abs(leading)), rtol=1e-6)
        monkeypatch.setattr("eigenlens.dynamics.live_maps.DENSE_LIMIT", 0)
        arnoldi = live_multipliers([step], X, sign)
        assert arnoldi is not None
        assert abs(arnoldi[0]) == pytest.approx(abs(leading[0]), rel=1e-3)
        monkeypatch.setattr("eigenlens.dynamics.live_maps.JACOBIAN_LIMIT", 3)
        assert live_multipliers([step], X, sign) is None


def _fixed(step: LiveMap, X: np.ndarray) -> np.ndarray:
    """A consensus on the leading eigenvector of the layer, where the map's step is known."""
    F = step.session.circuit(step.call.place).dense()
    values, vectors = np.linalg.eig(F)
    real = np.flatnonzero(values.imag == 0)
    v = vectors[:, real[np.argmax(np.abs(1 + values[real].real))]].real
    return np.tile(v / np.linalg.norm(v), (len(X), 1))


@pytest.mark.parametrize(
    ("name", "mask", "even"),
    [
        ("bert", "full", True),
        ("gpt2", "causal", True),
        ("llama", "causal", False),  # positions turn queries and keys
        ("mistral", "window:3", False),
        ("roformer", "full", False),
    ],
)
def test_what_tokens_see_is_read_from_the_weights(
    name: str, mask: str, even: bool, tiny: Any
) -> None:
    import zoo

    model = tiny(name) if name in BY_NAME else zoo.build(name).double().eval()
    session = session_of(model)
    call = next(capture(session, make_batches(session, [[11, 25, 31, 17, 12]]))).calls[0]
    found = sight(session, call, Variant(radius=4.0))
    assert (str(found.mask), found.even) == (mask, even)


def test_a_mask_of_ones_own(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    X = random_starts(1, N, D, 1.0, 3)
    full = simulate_model(session, states=X, n_tokens=N, steps=3)
    again = simulate_model(session, states=X, n_tokens=N, steps=3, mask="full")
    np.testing.assert_allclose(full.final, again.final, atol=1e-13)
    causal = simulate_model(session, states=X, n_tokens=N, steps=3, mask="causal")
    assert causal.options["mask"] == "causal"
    assert causal.outcome.predicted is None  # different layers that mix differently
    first = simulate_model(session, states=X[:, :1], n_tokens=1, steps=3)
    np.testing.assert_allclose(causal.final[:, 0], first.final[:, 0], atol=1e-13)
    with pytest.raises(OptionError, match="its own code decides"):
        simulate_model(session_of(tiny("gpt_neo")), n_tokens=N, mask="full")


def test_nothing_is_foretold_where_the_power_method_does_not_hold(tiny: Any) -> None:
    bert, llama = session_of(tiny("bert")), session_of(tiny("llama-no-bias"))
    plain = simulate_model(bert, n_tokens=N, steps=2)
    assert plain.outcome.predicted is not None
    for options in ({"norm": "real"}, {"ffn": True}, {"bias": True}):
        found = simulate_model(bert, n_tokens=N, steps=2, **options)
        assert found.outcome.predicted is None, options
        assert found.options["operator"] == ("folded" if "norm" in options else "raw")
    # RMSNorm without a bias only divides by a length: the stream's exponents stay.
    stream = simulate_model(llama, n_tokens=N, steps=2, norm="real")
    assert stream.outcome.target != "span"
    assert (stream.outcome.predicted is None) == (stream.outcome.target == "kernel")


def test_prompts_become_starts_of_one_length(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    found = simulate_model(session, token_ids=[[5, 6, 7], [8, 9, 10, 11], [3, 4, 5]], steps=2)
    assert found.final.shape == (3, 3, D)
    assert "1 of 3 prompts is cut to the 3 tokens of the shortest" in found.warnings
    assert sum(b.count for b in found.basins) == 3
    alone = simulate_model(session, token_ids=[[8, 9, 10]], steps=2)
    np.testing.assert_allclose(found.final[1], alone.final[0], atol=1e-13)
    two = simulate_model(session, token_ids=[[5, 6, 7], [8, 9, 10]], steps=2, starts=1)
    assert len(two.final) == 1
    random = simulate_model(session, n_tokens=N, starts=20, random_states=True, steps=2)
    assert random.final.shape == (20, N, D)
    assert random.options["start"] == "random states"


def test_images_are_starts_too(tiny: Any) -> None:
    found = simulate_model(session_of(tiny("vit")), steps=3, starts=2)
    assert found.options["start"] == "images"
    assert found.final.shape[0] == 2
    with pytest.raises(OptionError, match="sees images"):
        simulate_model(session_of(tiny("vit")), texts=["a"])


def test_one_layer_and_one_stack(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    found = simulate_model(session, n_tokens=N, steps=3, layers=[1])
    assert found.options["layers"] == [1]
    assert {row["layer"] for row in found.trajectory[1:]} == {1}
    F = session.circuit(session.places[1]).dense()
    expected = np.linalg.eigvals(F)
    expected = expected[np.argsort(-np.abs(1 + expected))]
    assert found.eigenvalues[0] == pytest.approx(expected[0], abs=1e-10)
    from test_live_capture import encoder_decoder

    t5 = session_of(encoder_decoder("t5"))
    both = simulate_model(t5, n_tokens=N, steps=2)
    assert any("--stack decoder" in w for w in both.warnings)
    decoder = simulate_model(t5, n_tokens=N, steps=2, stack="decoder")
    assert decoder.options["mask"].startswith("causal")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, OptionError, "at least 1"),
        ({"starts": 0}, OptionError, "0 starts"),
        ({"n_tokens": 0}, OptionError, "0 tokens"),
        ({"n_tokens": 99}, OptionError, "has 32 positions"),
        ({"form": "pre"}, OptionError, "auto, normalised, stream"),
        ({"form": "stream", "norm": "real"}, OptionError, "normalised map, not stream"),
        ({"mask": "windw"}, OptionError, "window:W"),
        ({"norm": "l3"}, OptionError, "l2, real"),
        ({"radius": "big"}, OptionError, "must be a positive number"),
        ({"radius": -1}, OptionError, "must be a positive number"),
        ({"seed": -1}, OptionError, "seed is -1"),
        ({"layers": [7]}, OptionError, "no layer 7"),
        ({"stack": "tower"}, OptionError, "no stack 'tower'"),
        ({"dtype": "float8"}, OptionError, "float32, float64"),
        ({"token_ids": [[99]]}, OptionError, "ids are 0 to 39"),
        ({"token_ids": [[1]], "random_states": True}, OptionError, "not several"),
        ({"token_ids": [[1, 2]], "starts": 2}, OptionError, "there is 1 prompt;"),
        ({"texts": ["a"]}, SourceError, "token ids"),
        ({"states": np.ones((2, 3))}, ShapeError, r"expected \(n, 16\)"),
        ({"states": np.ones((2, 16))}, ShapeError, "give n_tokens=2"),
        ({"states": np.full((24, 16), np.nan)}, OptionError, "NaN"),
    ],
)
def test_wrong_input_is_told(options: Any, error: Any, message: str, unchecked: Any) -> None:
    with pytest.raises(error, match=message):
        simulate_model(_bert(), **options)


def test_the_one_name_takes_models_and_matrices() -> None:
    for options, message in (
        ({}, "either a model, or matrices"),
        ({"source": "sample:bert-tiny", "F": np.eye(2)}, "not both"),
        ({"F": np.eye(2), "stepz": 3}, "'stepz' is unknown here .nearest: 'steps'"),
        ({"source": "sample:bert-tiny", "logits": 3}, "'logits' is unknown here"),
    ):
        with pytest.raises(OptionError, match=message):
            eigenlens.simulate(**options)  # type: ignore[arg-type]
    assert eigenlens.simulate(F=np.diag([1.0, 0.5]), n_tokens=3).outcome.label == "consensus"
    assert eigenlens.simulate(_bert(), n_tokens=3, steps=2).options["steps"] == 2


def test_matrices_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import eigenlens, numpy as np\n"
        "print(eigenlens.simulate(F=np.diag([1.0, 0.5]), n_tokens=3).outcome.label)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "consensus", done.stderr


def test_layer_maps_and_live_maps_are_of_one_kind() -> None:
    assert LayerMap.__call__.__annotations__.keys() == LiveMap.__call__.__annotations__.keys()


def test_fused_attention_runs_and_foretells_what_needs_no_weights() -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = BY_NAME["bert"].config()
    config.num_hidden_layers = 1
    model = transformers.AutoModel.from_config(config, attn_implementation="sdpa").double().eval()
    found = simulate_model(model, n_tokens=N, steps=4)
    predicted = found.outcome.predicted
    assert found.options["mask"] == "auto"
    assert predicted is None or predicted.disagreement_rate is None
    model.set_attn_implementation("eager")
    eager = simulate_model(model, n_tokens=N, steps=4)
    np.testing.assert_allclose(found.final, eager.final, atol=1e-12)
    assert eager.options["mask"] == "full"


def test_one_seed_draws_the_same_starts_with_and_without_a_tokenizer() -> None:
    """A command that reads text and one that does not speak of the same random tokens."""
    found = []
    for tokenizer in (True, False):
        session = open_session("sample:bert-tiny", tokenizer=tokenizer)
        assert (session.tokenizer is not None) == tokenizer
        ids, _ = prompt_ids(session, None, None, 3, 40, 5)
        feed = read_feed(session, Prompts(random=3, length=40), 5)
        found += [ids, [list(p) for p in feed.ids]]
    assert found[0] is not None
    assert all(ids == found[0] for ids in found)
    drawn = {i for prompt in found[0] for i in prompt}
    assert len(drawn) > 60
    assert not drawn & named_ids(session)
