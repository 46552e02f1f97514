"""What a trace reports equals plain numpy on the captured arrays; planted bugs do not."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens import blas
from eigenlens.errors import OptionError
from eigenlens.live.batches import make_batches
from eigenlens.live.capture import capture
from eigenlens.live.replay import free_run, mix
from eigenlens.live.session import Session, session_of
from eigenlens.measure.alignment import Targets
from eigenlens.measure.collapse import TOKEN_METRICS, collapse
from eigenlens.measure.pairs import anisotropy, dirichlet_energy
from eigenlens.tracing import depths
from eigenlens.tracing.collapse import CollapseMeans
from eigenlens.tracing.depths import Masks, Pile
from eigenlens.tracing.feed import Feed
from eigenlens.tracing.moves import MOVES
from eigenlens.tracing.nulls import ROTATIONS, rotated_steps
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.run import run, trace
from eigenlens.tracing.tokens import choose

FAMILIES = ["bert", "gpt2", "llama", "gpt_neo", "gemma2"]
KEYS = {"bert": "residual"}
# rows of different length, so that there are pads; special ids 1 and 2 at the ends
RNG = np.random.default_rng(5)
PROMPTS = [[1, *RNG.integers(3, 40, size=n).tolist(), 2] for n in (5, 9, 3, 7, 4) * 4]
FEED = Feed(tuple(map(tuple, PROMPTS)), "token ids", len(PROMPTS))
PLAIN: dict[str, Any] = {"batch_size": 3, "directions": 200, "tie_tolerance": 0.0}


def captured(session: Session) -> list[Any]:
    return list(capture(session, make_batches(session, PROMPTS, batch_size=3), weights=True))


def leaders(session: Session, place: Any, order: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bases of the leading and the second eigenpair, and the top left singular vector, by LAPACK.

    The kernel's eigenvalue takes no part in these tests: keys of pairs are above its own.
    """
    F = session.circuit(place).dense()
    values, vectors = np.linalg.eig(F)
    key = np.abs(1 + values) if order == "residual" else values.real
    bases = []
    for i in np.lexsort((-values.imag, -np.round(key, 9))):
        if values[i].imag < -1e-12:
            continue
        v = vectors[:, i]
        columns = [v.real] if abs(values[i].imag) <= 1e-12 else [v.real, v.imag]
        bases.append(np.linalg.qr(np.stack(columns, axis=1))[0])
        if len(bases) == 2:
            break
    return bases[0], bases[1], np.linalg.svd(F)[0][:, :1]


def tokens(batches: list[Any], index: int, what: Any, drop: bool = False) -> list[np.ndarray]:
    """States of every prompt, one array each, in the order of the prompts."""
    rows: dict[int, np.ndarray] = {}
    for c in batches:
        states = what(c.calls[index]).numpy()
        for row, prompt in enumerate(c.batch.prompts):
            n = len(PROMPTS[prompt])
            own = states[row][:n]
            rows[int(prompt)] = own[1:-1] if drop else own
    return [rows[i] for i in range(len(PROMPTS))]


def alignment(X: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.linalg.norm(X @ B, axis=1) / np.linalg.norm(X, axis=1)


def measures(before: Any, after: Any, B: np.ndarray) -> dict[str, float]:
    a, b = (alignment(np.concatenate(x), B) for x in (before, after))
    closer = np.where(np.abs(b - a) < 1e-14, 0.5, b > a)
    return {"gamma": b.mean(), "gain": (b - a).mean(), "rho": closer.mean()}


def close(found: Any, expected: dict[str, float]) -> bool:
    return all(abs(found[name] - value) < 1e-9 for name, value in expected.items())


def of(x: Any) -> dict[str, float]:
    return {"gamma": x.gamma, "gain": x.gain, "rho": x.rho}


def bare(session: Session, call: Any) -> Any:
    """The state after attention without b, from A, the values and the weights alone."""
    y = mix(session, session.circuit(call.place), call.weights, call.values)
    sandwich = call.place.norm_out is not None and not call.place.post
    with session.running():
        y = call.place.norm_out(y) if sandwich else y
    return call.before + y * session.constants(call.place).scale


@pytest.fixture(scope="module")
def runs(tiny: Any) -> Any:
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            session = session_of(tiny(name))
            made[name] = session, captured(session), run(session, FEED, TraceOptions(**PLAIN))
        return made[name]

    return get


@pytest.mark.parametrize("name", FAMILIES)
def test_measures_and_nulls_are_plain_numpy(name: str, runs: Any) -> None:
    session, batches, result = runs(name)
    order = KEYS.get(name, "real")
    every = [leaders(session, place, order) for place in session.places]
    for i, x in enumerate(result.layers):
        assert x.order == order
        assert (x.n_prompts, x.n_tokens) == (20, sum(map(len, PROMPTS)))
        before = tokens(batches, i, lambda c: c.before)
        after = tokens(batches, i, lambda c: bare(session, c))
        first, second, singular = every[i]
        assert x.target_dim == first.shape[1]
        assert close(of(x), measures(before, after, first))
        assert x.nulls is not None
        assert close(x.nulls["second_pair"], measures(before, after, second))
        assert close(x.nulls["top_singular"], measures(before, after, singular))
        others = [measures(before, after, e[0]) for j, e in enumerate(every) if j != i]
        mean = {m: float(np.mean([o[m] for o in others])) for m in ("gamma", "gain", "rho")}
        assert close(x.nulls["other_layer"], mean)
        # what a bug would give: swapped states, pads counted, another layer's vector
        assert not close(of(x), measures(after, before, first))
        padded = [s.reshape(-1, s.shape[-1]) for s in _padded(batches, i, session)]
        assert not close(of(x), measures([padded[0]], [padded[1]], first))
        assert not close(of(x), measures(before, after, every[i - 1][0]))


def _padded(batches: list[Any], i: int, session: Session) -> list[np.ndarray]:
    d = batches[0].calls[i].before.shape[-1]
    befores = [c.calls[i].before.numpy().reshape(-1, d) for c in batches]
    afters = [bare(session, c.calls[i]).numpy().reshape(-1, d) for c in batches]
    return [np.concatenate(befores), np.concatenate(afters)]


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_collapse_of_both_states(name: str, runs: Any) -> None:
    session, batches, result = runs(name)
    for i, x in enumerate(result.layers):
        for found, what in (
            (x.collapse, lambda c: bare(session, c)),
            (x.collapse_block, lambda c: c.block),
        ):
            rows = [collapse(X) for X in tokens(batches, i, what)]
            for metric in TOKEN_METRICS:
                assert found[metric] == pytest.approx(np.mean([r[metric] for r in rows]), rel=1e-6)
        energies = []
        for c in batches:
            for row, prompt in enumerate(c.batch.prompts):
                n = len(PROMPTS[prompt])
                A = c.calls[i].weights[row].numpy().mean(axis=0)[:n, :n]
                energies.append(dirichlet_energy(c.calls[i].before[row][:n].numpy(), A))
        assert x.collapse["dirichlet_energy"] == pytest.approx(np.mean(energies), rel=1e-9)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_block_mode_bias_and_special_tokens(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    batches = captured(session)
    order = KEYS.get(name, "real")
    first = [leaders(session, place, order)[0] for place in session.places]
    options = {**PLAIN, "nulls": False}
    for extra, what, drop in (
        ({"mode": "block"}, lambda c: c.block, False),
        ({"bias": True}, lambda c: c.after, False),
        ({"bias": True, "special_tokens": "drop"}, lambda c: c.after, True),
    ):
        result = run(session, FEED, TraceOptions(**{**options, **extra}))
        for i, x in enumerate(result.layers):
            before = tokens(batches, i, lambda c: c.before, drop)
            assert close(of(x), measures(before, tokens(batches, i, what, drop), first[i]))
            assert x.nulls is None
            assert x.p_value is None
            swapped = measures(tokens(batches, i, what, drop), before, first[i])
            assert not close(of(x), swapped)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2"])
@pytest.mark.parametrize("mode", ["step", "free"])
def test_rotated_tokens_are_rotated_weights(name: str, mode: str, tiny: Any) -> None:
    """matched_spectrum: the quick way equals attention with ``W_V Q^T`` and ``Q W_O``."""
    session = session_of(tiny(name))
    found = captured(session)[0]
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))[0]
    for move in MOVES[mode](session, found, TraceOptions(mode=mode)):
        circuit = session.circuit(move.call.place)
        got, plain = rotated_steps(session, circuit, move, [Q, np.eye(16)], bias=False)
        y = mix(session, circuit, move.weights, move.values, rotation=Q)
        if mode == "step" and move.call.place.norm_out is not None and name == "gemma2":
            with session.running():
                y = move.call.place.norm_out(y)
        np.testing.assert_allclose(got, move.before + y, atol=1e-10)
        assert float((got - plain).abs().max()) > 1e-2
        if mode == "step":  # no rotation: the step itself
            np.testing.assert_allclose(plain, move.after, atol=1e-10)


def test_matched_spectrum_is_the_mean_over_rotations(runs: Any) -> None:
    session, batches, result = runs("bert")
    from eigenlens.measure.nulls import haar_orthogonal

    first = leaders(session, session.places[0], "residual")[0]
    before = tokens(batches, 0, lambda c: c.before)
    found = []
    for i in range(ROTATIONS):
        Q = haar_orthogonal(16, i)

        def turned(c: Any, Q: np.ndarray = Q) -> Any:
            return c.before + mix(
                session, session.circuit(c.place), c.weights, c.values, rotation=Q
            )

        found.append(measures(before, tokens(batches, 0, turned), Q @ first))
    expected = {m: float(np.mean([f[m] for f in found])) for m in ("gamma", "gain", "rho")}
    assert close(result.layers[0].nulls["matched_spectrum"], expected)


def test_results_do_not_depend_on_the_batch_size(runs: Any) -> None:
    session, _, result = runs("llama")
    other = run(session, FEED, TraceOptions(**{**PLAIN, "batch_size": 20}))
    for x, y in zip(result.layers, other.layers, strict=True):
        assert close(of(x), of(y))
        assert x.rho_ci == pytest.approx(y.rho_ci)
        assert x.nulls["random_init"] == pytest.approx(y.nulls["random_init"])


def test_intervals_p_values_and_corrections(runs: Any) -> None:
    _, _, result = runs("gpt2")
    rows = result.layers
    raw = sorted(x.p_value for x in rows)
    assert min(x.p_holm for x in rows) == pytest.approx(min(1.0, len(rows) * raw[0]))
    for x in rows:
        assert x.rho_ci[0] <= x.rho <= x.rho_ci[1]
        assert x.p_value <= x.p_holm
        assert x.p_half <= x.p_half_holm
        assert x.nulls["random_direction"]["n"] == 200


def test_few_prompts_give_no_intervals(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    few = Feed(FEED.ids[:15], "token ids", 15)
    result = run(session, few, TraceOptions(**PLAIN))
    for x in result.layers:
        assert (x.rho_ci, x.p_value, x.p_half, x.p_holm) == (None, None, None, None)
        assert x.beyond is (x.rho > x.nulls["random_direction"]["quantiles"]["rho"][2])
    assert any("too few" in w for w in result.warnings)


def test_a_prompt_that_is_given_again_is_no_further_evidence(tiny: Any) -> None:
    options: dict[str, Any] = {"nulls": False, "batch_size": 3}
    once = trace(tiny("gpt2"), token_ids=PROMPTS, **options)
    again = trace(tiny("gpt2"), token_ids=[*PROMPTS, *PROMPTS[:7], PROMPTS[2]], **options)
    assert again.layers == once.layers
    assert again.layers[0].n_prompts == once.layers[0].n_prompts == 20
    assert not any("repeat" in w for w in once.warnings)
    told = [w for w in again.warnings if "repeat" in w]
    assert len(told) == 1
    assert told[0].startswith("8 of 28 prompts repeat another one and are left out")
    limit = tiny("gpt2").config.n_positions
    alike = [[3 + j % 37 for j in range(limit)] + [i] for i in range(20)]
    for prompts in (PROMPTS[:1] * 20, alike):  # some differ behind the last position alone
        same = trace(tiny("gpt2"), token_ids=prompts, **options)
        assert same.layers[0].n_prompts == 1
        assert same.layers[0].p_value is None
        assert same.layers[0].rho_ci is None
        assert any(w.startswith("19 of 20 prompts repeat") for w in same.warnings)
    with pytest.raises(OptionError, match=r"prompt 27 .counted from 0. has the token id 99999"):
        trace(tiny("gpt2"), token_ids=[*PROMPTS, *PROMPTS[:7], [99999]], **options)


def test_sinks_are_told_apart(tiny: Any) -> None:
    """One embedding a thousand times as long: its tokens are sinks, and nothing else is."""
    import copy

    import torch

    model = copy.deepcopy(tiny("llama"))
    with torch.no_grad():
        model.get_input_embeddings().weight[1] *= 1000
    session = session_of(model)
    both = [run(session, FEED, TraceOptions(**PLAIN, drop_sinks=d)) for d in (False, True)]
    for x, y in zip(*(r.layers for r in both), strict=True):
        assert x.sinks["n"] == y.sinks["n"] == 20
        assert (x.n_tokens, y.n_tokens) == (sum(map(len, PROMPTS)), sum(map(len, PROMPTS)) - 20)
        assert x.sinks["without"] == y.sinks["without"]
        assert y.sinks["without"]["rho"] == y.rho
        assert x.sinks["with"]["rho"] == x.rho
        assert x.overlap_sinks is not None


def test_free_runs_are_traced_step_by_step(tiny: Any) -> None:
    session = session_of(tiny("albert"))
    result = run(session, FEED, TraceOptions(**PLAIN, mode="free", steps=7, ladder=True))
    assert [x.step for x in result.layers] == list(range(7))
    # every step begins where the one before it ended
    for x, y in zip(result.layers, result.layers[1:], strict=False):
        assert y.gamma - y.gain == pytest.approx(x.gamma, abs=1e-12)
    for x in result.layers:
        assert x.ladder["l2"]["rho"] == x.rho
        assert set(x.ladder) == {"l2", "norm", "bias", "ffn"}


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma2"])
def test_the_ladder_ends_at_the_real_block(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    batches = captured(session)
    result = run(session, FEED, TraceOptions(**{**PLAIN, "nulls": False, "ladder": True}))
    order = KEYS.get(name, "real")
    for i, x in enumerate(result.layers):
        first = leaders(session, session.places[i], order)[0]
        before = tokens(batches, i, lambda c: c.before)
        for rung, what in (("ffn", lambda c: c.block), ("bias", lambda c: c.settled)):
            assert close(x.ladder[rung], measures(before, tokens(batches, i, what), first))
        assert len({round(r["gain"], 9) for r in x.ladder.values()}) >= 3


def test_overlaps_between_layers_and_with_the_mean_token(runs: Any) -> None:
    session, batches, result = runs("bert")
    a, b = (leaders(session, place, "residual")[0] for place in session.places)
    cosines = np.linalg.svd(a.T @ b, compute_uv=False)
    table = np.asarray(result.stacks[0].overlaps)
    assert table[0, 1] == pytest.approx(np.sqrt(np.mean(cosines**2)), abs=1e-9)
    X = np.concatenate(tokens(batches, 1, lambda c: c.before))
    mean = (X / np.linalg.norm(X, axis=1, keepdims=True)).sum(axis=0)
    cosine = np.linalg.norm(b.T @ mean) / np.linalg.norm(mean)
    assert result.layers[1].overlap_mean == pytest.approx(cosine, abs=1e-9)


def test_collapse_of_many_prompts_is_that_of_each() -> None:
    """Prompts of one length in one stack, float32 as it comes from a model, odd ones included."""
    rng = np.random.default_rng(2)
    lengths = [5, 1, 5, 7, 20, 5]
    X = rng.standard_normal((sum(lengths), 12)).astype(np.float32)
    X[:5] = X[0]  # a collapsed prompt
    X[8] = 0.0  # a zero token
    owners = np.repeat([4, 0, 2, 3, 9, 1], lengths)
    many, single = CollapseMeans(), []
    many.add(X[:18], owners[:18])
    many.add(X[18:], owners[18:])
    for part in np.split(X, np.cumsum(lengths)[:-1]):
        single.append(collapse(part))
    found = many.means()
    expected = {
        name: np.mean([x[name] for x in single if np.isfinite(x[name])]) for name in single[0]
    }
    expected["anisotropy"] = anisotropy(np.split(X, np.cumsum(lengths)[:-1]))
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    many.add(X[:5], owners[:5])
    assert many.means()["cosine"] != pytest.approx(expected["cosine"], rel=1e-3)


def test_tokens_kept_are_in_order_of_the_batch(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    found = captured(session)[0]
    own = choose(found, TraceOptions(special_tokens="drop"))["encoder"]
    assert (
        own.owners.tolist()
        == np.repeat(
            found.batch.prompts, [len(PROMPTS[p]) - 2 for p in found.batch.prompts]
        ).tolist()
    )
    np.testing.assert_array_equal(
        own.flat(found.calls[0].before)[0], found.calls[0].before[0, 1].numpy()
    )


def heads_by_hand(session: Session, call: Any, A: np.ndarray, X: np.ndarray) -> np.ndarray:
    """``sum_h A^h X F_h^T``, a loop over heads."""
    circuit = session.circuit(call.place)
    group, h = circuit.n_heads // circuit.n_kv_heads, circuit.head_dim
    y = np.zeros_like(X)
    for i in range(circuit.n_heads):
        k = i // group
        F = circuit.W_O[:, i * h : (i + 1) * h] @ circuit.W_V[k * h : (k + 1) * h]
        y += A[:, i] @ X @ F.T
    return y * np.asarray(session.constants(call.place).scale)


def real_tokens(batches: list[Any], states: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([x[c.batch.mask] for c, x in zip(batches, states, strict=True)])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_real_block_is_plain_numpy(name: str, runs: Any) -> None:
    session, batches, _ = runs(name)
    result = run(session, FEED, TraceOptions(**PLAIN, mode="block", nulls=False))
    for i, (x, place) in enumerate(zip(result.layers, session.places, strict=True)):
        B = leaders(session, place, KEYS.get(name, "real"))[0]
        before, after, attention = (
            tokens(batches, i, what)
            for what in (lambda c: c.before, lambda c: c.block, lambda c: c.after)
        )
        assert close(of(x), measures(before, after, B))
        assert not close(of(x), measures(before, attention, B))  # the step alone is another map
        assert x.collapse_block is not None
        for found, states in ((x.collapse, attention), (x.collapse_block, after)):
            for measure in TOKEN_METRICS:
                plain = float(np.mean([collapse(s)[measure] for s in states]))
                assert found[measure] == pytest.approx(plain, rel=1e-9), measure


@pytest.mark.parametrize("name", FAMILIES)
def test_a_free_run_is_plain_numpy(name: str, runs: Any) -> None:
    """``x <- N(x + sum_h A^h x F_h^T)`` on the sphere, with the attention of each step."""
    session, batches, _ = runs(name)
    result = run(session, FEED, TraceOptions(**PLAIN, mode="free", nulls=False))
    attention = [
        [s.weights.numpy() for s in free_run(session, c.calls, weights=True)] for c in batches
    ]
    X = [c.calls[0].before.numpy() for c in batches]
    X = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in X]
    for i, (x, place) in enumerate(zip(result.layers, session.places, strict=True)):
        after = []
        for c, state, A in zip(batches, X, attention, strict=True):
            z = state + heads_by_hand(session, c.calls[i], A[i], state)
            after.append(z / np.linalg.norm(z, axis=-1, keepdims=True))
        B = leaders(session, place, KEYS.get(name, "real"))[0]
        a, b = real_tokens(batches, X), real_tokens(batches, after)
        assert close(of(x), measures([a], [b], B))
        assert not close(of(x), measures([b], [a], B))
        X = after


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("entries", [1, 400, 1 << 18])
def test_states_that_are_one_are_read_once_and_sinks_are_left_out(
    entries: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many depths, stacked or side by side, pads and sinks among them, against one prompt alone."""
    import torch

    monkeypatch.setattr(depths, "_ENTRIES", entries)
    monkeypatch.setattr(blas, "cores", lambda: cores)
    rng = np.random.default_rng(7)
    states = [torch.as_tensor(rng.standard_normal((3, 6, 9)).astype(np.float32)) for _ in range(5)]
    keep = np.arange(6) < np.array([6, 4, 1])[:, None]
    counted = keep & (np.arange(6) != 2)
    directions = [Targets([np.linalg.qr(rng.standard_normal((9, k)))[0]]) for k in (1, 2)]
    pile = Pile()
    for x in states:
        pile.add(x, directions[0])
        pile.add(x[:], directions[1])  # another view of the same memory
    pile.read(Masks(keep, counted))
    assert len({id(pile[x]) for x in states}) == 5
    for x in states:
        assert pile[x[:]] is pile[x]
        array = x.numpy()
        units = array / np.linalg.norm(array, axis=-1, keepdims=True)
        np.testing.assert_allclose(pile[x].direction, units[keep].sum(axis=0), atol=1e-6)
        for target in directions:
            found = target.of_cosines(pile.cosines(x, target)[keep])
            np.testing.assert_allclose(found, target.alignment(array[keep]), atol=1e-12)
        for b in range(3):
            plain = collapse(array[b][counted[b]])
            for value, measure in zip(pile[x].values[:, b], TOKEN_METRICS, strict=True):
                assert value == pytest.approx(plain[measure], rel=1e-6, nan_ok=True), measure
            padded = collapse(array[b][keep[b]])  # what counting the sinks would give
            assert b == 2 or pile[x].values[4, b] != pytest.approx(padded["effective_rank"], 1e-3)


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ("0,9", r"layers is '0,9': give numbers, such as \[0, 9\]"),
        ([0, "1"], r"layers holds '1': give numbers"),
        (3, r"layers is 3: give numbers"),
        ([0, 9], r"has no layer 9: layers are 0 to 3"),
    ],
)
@pytest.mark.parametrize("verb", ["trace", "simulate", "compare"])
def test_layers_are_numbers(verb: str, layers: Any, match: str) -> None:
    models = ["sample:gpt2-tiny"] * (2 if verb == "compare" else 1)
    with pytest.raises(OptionError, match=match):
        inspect.unwrap(getattr(eigenlens, verb))(*models, layers=layers)


def test_a_list_of_texts_is_no_file() -> None:
    with pytest.raises(OptionError, match=r"prompts is a list: it names a file; give .* as texts"):
        trace("sample:gpt2-tiny", prompts=["a b"])
