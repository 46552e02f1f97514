"""Captured states are those of the model, and a capture that cannot be trusted stops."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import ArchitectureError, NumericsError, OptionError
from eigenlens.live import capture as capture_module
from eigenlens.live.batches import first_prompts, make_batches, random_pixels
from eigenlens.live.capture import capture
from eigenlens.live.recorder import Recorder
from eigenlens.live.replay import mix
from eigenlens.live.session import Session, initialised_like, session_of
from eigenlens.live.states import Captured, scaled
from families import BY_NAME

TOLERANCE = 1e-10
TEXTS = [
    "albert",
    "albert-groups",
    "bert",
    "distilbert",
    "electra",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "opt-post",
    "llama",
    "mistral",
    "qwen3",
    "gemma2",
    "phi",
]
PROMPTS = [[5, 9, 31, 7, 12], [8, 3, 22], [30, 4, 17, 6], [11, 25]]


def captured(session: Session, prompts: Any = PROMPTS, **options: Any) -> list[Captured]:
    return list(capture(session, make_batches(session, prompts, batch_size=2), **options))


def own(call: Any, session: Session) -> Any:
    """The attention output from A, X and the circuit alone, by numpy and a loop over heads."""
    circuit = session.circuit(call.place)
    A, X = call.weights.numpy(), call.values.numpy()
    group = circuit.n_heads // circuit.n_kv_heads
    h = circuit.head_dim
    y = np.zeros((*X.shape[:2], circuit.d_model)) + circuit.bias
    for i in range(circuit.n_heads):
        rows = slice(i // group * h, (i // group + 1) * h)
        F = circuit.W_O[:, i * h : (i + 1) * h] @ circuit.W_V[rows]
        y += A[:, i] @ X @ F.T
    return y


@pytest.mark.parametrize("name", TEXTS)
def test_states_are_those_of_the_model(name: str, tiny: Any) -> None:
    import torch

    model = tiny(name)
    session = session_of(model)
    seen = captured(session, weights=True)
    assert len(seen) == 2
    for found in seen:
        assert found.unchecked == ()
        with session.running():
            result = model.base_model(**found.batch.inputs, output_hidden_states=True)
        states = result.hidden_states
        calls, mask = found.calls, torch.as_tensor(found.batch.mask)
        assert len(states) == len(calls) + 1
        assert [c.step for c in calls] == list(range(len(calls)))
        for i, call in enumerate(calls):
            torch.testing.assert_close(call.before, states[i], atol=0, rtol=0)
            if i:
                torch.testing.assert_close(call.before, calls[i - 1].block, atol=0, rtol=0)
            y = torch.as_tensor(own(call, session))
            if call.place.norm_out is not None and not call.place.post:
                with session.running():
                    y = call.place.norm_out(y)
            error = (y - call.attention)[mask].abs().max()
            assert float(error) <= TOLERANCE
            torch.testing.assert_close(call.after, call.before + call.attention, atol=0, rtol=0)
            assert (call.settled is call.after) != call.place.post


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "gptj"])
def test_the_last_state_is_the_one_before_the_final_norm(name: str, tiny: Any) -> None:
    import torch

    model = tiny(name)
    session = session_of(model)
    found = captured(session)[0]
    with session.running():
        last = model.base_model(**found.batch.inputs).last_hidden_state
    block = found.calls[-1].block
    assert float((block - last).abs().max()) > 1e-3
    norms = [m for n, m in model.base_model.named_modules() if "norm" in n or n.endswith("ln_f")]
    with session.running():
        torch.testing.assert_close(norms[-1](block), last, atol=1e-12, rtol=0)


def test_images_are_captured(tiny: Any) -> None:
    session = session_of(tiny("vit"))
    seen = list(capture(session, random_pixels(session, 3, batch_size=2), weights=True))
    assert [c.batch.mask.shape for c in seen] == [(2, 5), (1, 5)]
    assert all(c.batch.mask.all() for c in seen)
    call = seen[0].calls[1]
    np.testing.assert_allclose(own(call, session), call.attention, atol=TOLERANCE)
    with pytest.raises(OptionError, match="sees images"):
        make_batches(session, PROMPTS)


def encoder_decoder(model_type: str) -> Any:
    import torch
    import transformers

    sizes = {"vocab_size": 40, "d_model": 16, "decoder_start_token_id": 2}
    if model_type == "t5":
        sizes |= {"d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4}
    else:
        sizes |= {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 32}
        for part in ("encoder", "decoder"):
            sizes |= {f"{part}_attention_heads": 4, f"{part}_ffn_dim": 24}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2)
    return model


@pytest.mark.parametrize("model_type", ["bart", "mbart", "t5"])
def test_encoder_decoder_stacks_are_captured(model_type: str) -> None:
    session = session_of(encoder_decoder(model_type))
    found = captured(session, weights=True)[0]
    order = [(c.place.plan.stack, c.place.plan.kind, c.place.plan.layer) for c in found.calls]
    decoder = [("decoder", kind, i) for i in (0, 1) for kind in ("self", "cross")]
    assert order == [("encoder", "self", 0), ("encoder", "self", 1), *decoder]
    mask = found.batch.mask
    for call in found.calls:
        np.testing.assert_allclose(own(call, session)[mask], call.attention[mask], atol=TOLERANCE)
    cross, inner = found.stack("decoder")[1], found.stack("decoder")[0]
    np.testing.assert_array_equal(cross.before, inner.settled)
    assert found.unchecked == ()


def test_memory_does_not_grow_with_batches(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    stream = capture(session, make_batches(session, PROMPTS * 4, batch_size=1))
    kept: list[Any] = []
    alive = []
    for found in stream:
        states = [(c.before, c.attention, c.after, c.settled, c.block) for c in found.calls]
        kept.append([weakref.ref(x) for call in states for x in call])
        alive.append(sum(ref() is not None for refs in kept for ref in refs))
        del found, states
    assert len(kept) == 16
    assert set(alive) == {len(kept[0])}


def test_hooks_are_gone_afterwards(tiny: Any) -> None:
    model = tiny("gpt2")

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = hooks()
    session = session_of(model)
    stream = capture(session, make_batches(session, PROMPTS, batch_size=1))
    next(stream)
    assert hooks() == before
    session.model.train()
    next(stream)
    assert model.training is True
    model.eval()


def test_states_that_a_block_overwrites_are_copied(tiny: Any, monkeypatch: Any) -> None:
    """A feed-forward part that adds in place to the residual stream, as some models' do."""
    session = session_of(tiny("gpt2"))
    plain = captured(session)

    def in_place(module: Any, args: Any, result: Any) -> Any:
        first = args[0]
        return first.copy_(result)

    handles = [p.block.register_forward_hook(in_place) for p in session.places]
    try:
        changed = captured(session)
        recorder = Recorder(session, None, copies=frozenset(), witnesses={})
        handles += recorder.attach()
        session.forward(changed[0].batch.inputs)
        with pytest.raises(ArchitectureError, match="overwrites its"):
            recorder.overwritten()
    finally:
        for handle in handles:
            handle.remove()
    for a, b in zip(plain, changed, strict=True):
        for x, y in zip(a.calls, b.calls, strict=True):
            np.testing.assert_array_equal(x.before, y.before)
            np.testing.assert_array_equal(x.block, y.block)


# -- faults that must be seen ------------------------------------------------------------------


def with_circuits(session: Session, change: Any) -> Session:
    """The session with planted errors in its circuits."""
    good = session.checkpoint

    class Broken(Checkpoint):
        def circuits(self, stack: Any = None, layers: Any = None) -> Any:
            return [change(c) for c in good.circuits(stack, layers)]

    fields = {f: getattr(good, f) for f in ("source_label", "config", "source", "stacks")}
    return replace(session, checkpoint=Broken(**fields))


def in_layer_one(change: Any) -> Any:
    return lambda c: replace(c, **change(c)) if c.layer == 1 else c


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "albert-groups"])
@pytest.mark.parametrize(
    "change",
    [
        lambda c: {"W_V": c.W_V[::-1]},
        lambda c: {"W_O": -c.W_O},
        lambda c: {"b_O": np.ones(c.d_model)},
    ],
    ids=["values", "sign", "bias"],
)
def test_a_wrong_circuit_stops_the_run_and_is_named(name: str, change: Any, tiny: Any) -> None:
    broken = with_circuits(session_of(tiny(name)), in_layer_one(change))
    with pytest.raises(NumericsError, match=r"^(en|de)coder layer 1: .* does not apply the F"):
        captured(broken)
    assert len(captured(broken, check=False)) == 2


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox", "gemma2", "opt"])
def test_a_wrong_output_scale_breaks_the_sum(name: str, tiny: Any) -> None:
    change = in_layer_one(lambda c: {"output_scale": 1.5})
    broken = with_circuits(session_of(tiny(name)), change)
    with pytest.raises(NumericsError, match=r"layer 1: state before \+ attention output is"):
        captured(broken)


@pytest.mark.parametrize(
    ("name", "placement"),
    [("gptj", "pre"), ("gpt_neox", "pre"), ("phi", "pre"), ("bert", "pre")],
)
def test_a_wrong_placement_is_seen(name: str, placement: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    places = [
        replace(p, plan=replace(p.plan, placement=placement), norm_out=None) for p in session.places
    ]
    with pytest.raises(NumericsError, match="layer 0: state before"):
        captured(replace(session, places=tuple(places)))


def test_a_sum_that_changes_later_is_seen(tiny: Any) -> None:
    """Not only the first batch is checked."""
    import torch

    session = session_of(tiny("llama"))
    place = session.places[1]
    batches = make_batches(session, PROMPTS, batch_size=2)
    stream = capture(session, batches)
    next(stream)
    norm = place.block.get_submodule("post_attention_layernorm")
    handle = norm.register_forward_pre_hook(lambda m, args: (args[0] + torch.ones(1).double(),))
    try:
        with pytest.raises(NumericsError, match="decoder layer 1: state before"):
            next(stream)
    finally:
        handle.remove()


@pytest.mark.parametrize(("dtype", "remedy"), [("float16", "float32 or bfloat16"), ("float32", "")])
def test_overflow_names_the_layer_and_a_dtype(dtype: str, remedy: str) -> None:
    import torch

    model = BY_NAME["gpt2"].build(head=False).to(getattr(torch, dtype))
    with torch.no_grad():
        model.h[1].attn.c_proj.weight.fill_(3e4 if dtype == "float16" else 3e38)
        model.h[1].attn.c_proj.bias.fill_(6e4 if dtype == "float16" else 3e38)
    session = session_of(model)
    with pytest.raises(NumericsError, match=f"decoder layer 1: its attention .*{remedy}"):
        captured(session, check=False)


def test_nan_in_pads_does_not_count(tiny: Any) -> None:
    """Rows of pads may hold anything: some kernels give NaN where all is masked."""
    import torch

    session = session_of(tiny("gpt2"))
    batch = next(iter(make_batches(session, PROMPTS[:2])))
    mask = torch.as_tensor(batch.mask)
    last = session.places[-1].block

    def spoil(module: Any, args: Any, result: Any) -> Any:
        return result.masked_fill(~mask[..., None], float("nan"))

    handle = last.register_forward_hook(spoil)
    try:
        found = next(capture(session, [batch], check=False))
    finally:
        handle.remove()
    assert torch.isnan(found.calls[-1].block).any()
    assert np.isfinite(found.batch.flat(found.calls[-1].block)).all()


def test_memory_that_runs_out_is_explained(tiny: Any) -> None:
    import torch

    session = session_of(tiny("bert"))

    def full(module: Any, args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    handle = session.places[1].block.register_forward_pre_hook(full)
    try:
        with pytest.raises(OptionError, match="with 2 prompts of 5 tokens: use a smaller batch"):
            captured(session, check=False)
    finally:
        handle.remove()


def test_other_failures_of_the_model_are_one_line(tiny: Any) -> None:
    session = session_of(tiny("bert"))

    def fail(module: Any, args: Any) -> None:
        raise ValueError("no\nreason")

    handle = session.places[1].block.register_forward_pre_hook(fail)
    try:
        with pytest.raises(ArchitectureError, match=r"forward pass on input_ids.* no reason$"):
            captured(session, check=False)
    finally:
        handle.remove()


def test_weights_need_eager_attention(tiny: Any) -> None:
    model = BY_NAME["llama"].build(head=False)
    model.set_attn_implementation("sdpa")
    session = session_of(model)
    plain = captured(session_of(tiny("llama", head=False)))
    other = captured(session)
    for a, b in zip(plain[0].calls, other[0].calls, strict=True):
        mask = plain[0].batch.mask
        np.testing.assert_allclose(a.attention[mask], b.attention[mask], atol=1e-6)
    with pytest.raises(OptionError, match="set_attn_implementation"):
        captured(session, weights=True)


def test_a_skipped_layer_is_an_error(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    deeper = session_of(BY_NAME["gpt2"].build(head=True))
    stranger = replace(session, places=(*session.places[:1], deeper.places[1]))
    with pytest.raises(ArchitectureError, match="layer 1: did not run"):
        captured(stranger)
    with pytest.raises(ArchitectureError, match="layer 1: ran 0 times"):
        captured(stranger, check=False)


def test_a_model_without_attention_layers_is_an_error(tiny: Any) -> None:
    from eigenlens.live.places import find_places

    empty = replace(open_checkpoint(tiny("gpt2")), stacks=())
    with pytest.raises(ArchitectureError, match="no layer with softmax attention"):
        find_places(tiny("gpt2"), empty)


def test_mixing_with_given_weights_is_the_attention_output(tiny: Any) -> None:
    session = session_of(tiny("qwen3"))
    found = captured(session, weights=True)[0]
    for call in found.calls:
        circuit = session.circuit(call.place)
        y = mix(session, circuit, call.weights, call.values) + session.constants(call.place).bias
        error = (scaled(y, 1.0) - call.attention).numpy()[found.batch.mask]
        assert np.abs(error).max() <= TOLERANCE


def test_f_is_checked_again_only_when_weights_change(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(tiny("llama"))
    model.save_pretrained(tmp_path)
    session = session_of(model, tmp_path)
    batches = list(make_batches(session, [[1, 2, 3], [4, 5, 6]]))
    asked: list[int] = []
    real = capture_module.check_circuits

    def counted(*args: Any) -> Any:
        asked.append(1)
        return real(*args)

    monkeypatch.setattr(capture_module, "check_circuits", counted)
    for _ in range(2):
        assert len(list(capture(session, batches))) == 1
    assert len(asked) == 1
    with torch.no_grad():
        session.places[0].output.weight.mul_(2.0)
    for again in (2, 3):  # a check that failed has not been passed
        with pytest.raises(NumericsError, match="does not apply the F"):
            list(capture(session, batches))
        assert len(asked) == again


def test_other_weights_let_nothing_stand_of_what_was_learned(tiny: Any) -> None:
    session = session_of(copy.deepcopy(tiny("llama")))
    batches = list(make_batches(session, [[1, 2, 3], [4, 5, 6]]))
    for weights in (True, False):
        list(capture(session, batches, weights=weights))
    assert len(session.memory) == 2
    with torch.no_grad():
        session.places[0].output.weight.mul_(2.0)
    list(capture(session, batches))
    assert len(session.memory) == 1


def test_what_inference_mode_does_not_count_is_copied(tiny: Any) -> None:
    session = session_of(copy.deepcopy(tiny("gpt2")))
    plain = captured(session)
    for place in session.places:
        place.block.register_forward_hook(lambda m, a, result: a[0].copy_(result))
    with torch.inference_mode():
        inside = captured(session)
    for found in (inside, captured(session), captured(session)):
        for a, b in zip(plain, found, strict=True):
            for x, y in zip(a.calls, b.calls, strict=True):
                np.testing.assert_array_equal(x.before, y.before)
                np.testing.assert_array_equal(x.block, y.block)


def test_what_is_overwritten_late_is_copied_from_then_on(tiny: Any) -> None:
    session = session_of(copy.deepcopy(tiny("gpt2")))
    plain = captured(session, check=False)
    late = [False]
    for place in session.places:
        place.block.register_forward_hook(
            lambda m, a, result: a[0].copy_(result) if late[0] else None
        )
    captured(session, check=False)
    late[0] = True
    with pytest.raises(ArchitectureError, match="run it again with the same session"):
        captured(session, check=False)
    for a, b in zip(plain, captured(session, check=False), strict=True):
        for x, y in zip(a.calls, b.calls, strict=True):
            np.testing.assert_array_equal(x.before, y.before)


class NoDouble(torch.overrides.TorchFunctionMode):
    """Refuses float64 of what was not taken to the CPU first, as a device without it does."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.cpu:
            self.taken.append(result)
        if func is torch.Tensor.double and not any(args[0] is x for x in self.taken):
            raise TypeError("this device has no float64")
        return result


def test_a_device_without_float64_can_be_read() -> None:
    session = session_of(BY_NAME["gpt2"].build(head=False).float())
    with NoDouble() as mode:
        assert len(captured(session)) == 2
    assert mode.taken, "or this test is of no use"


def test_an_initialised_model_does_not_depend_on_the_default_device(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    usual = initialised_like(session, 3).model.state_dict()
    torch.set_default_device("meta")
    try:
        made = initialised_like(session, 3).model.state_dict()
    finally:
        torch.set_default_device(None)
    assert usual.keys() == made.keys()
    for name, x in made.items():
        assert torch.equal(x, usual[name]), name


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_first_prompts_are_run_as_in_their_batch(name: str, tiny: Any) -> None:
    session = session_of(tiny(name))
    made = random_pixels(session, 3) if name == "vit" else make_batches(session, PROMPTS)
    whole = next(iter(made))
    part = first_prompts(whole, 2)
    assert part.prompts.tolist() == whole.prompts.tolist()[:2]
    (a,), (b,) = (list(capture(session, [x], weights=True)) for x in (whole, part))
    for x, y in zip(a.calls, b.calls, strict=True):
        np.testing.assert_allclose(x.block[:2], y.block, atol=1e-12)
        assert len(y.weights) == 2


def test_tokens_in_another_layout_are_refused() -> None:
    """SqueezeBERT's projections read (batch, width, tokens)."""
    import zoo

    session = session_of(zoo.build("squeezebert"))
    made = make_batches(session, [[5, 6, 7, 8, 9], [7, 8, 9]], batch_size=2)
    with pytest.raises(ArchitectureError, match="layer 0: its values read states of shape"):
        list(capture(session, made))
