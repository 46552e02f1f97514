"""What is measured is what the edited model does: against whole passes, transformers and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.errors import OptionError
from eigenlens.live.batches import make_batches
from eigenlens.live.session import session_of
from eigenlens.steering.continuations import starts_of
from eigenlens.steering.evaluate import Study
from eigenlens.steering.moments import read_inputs
from eigenlens.steering.opening import Subject, open_subject, place_of
from eigenlens.steering.push import Added, Term
from eigenlens.steering.resume import forward, record, resumed
from eigenlens.steering.stage import Stage, find_stage
from eigenlens.steering.texts import read_sets

IDS = [[int(i) for i in np.random.default_rng(s).integers(5, 38, 4 + s % 6)] for s in range(12)]
FAMILIES = [
    "albert",
    "albert-groups",
    "bert",
    "distilbert",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "opt-post",
    "llama",
    "mistral",
    "gemma2",
    "phi",
]


def study_of(
    model: Any, *, layer: int = -1, site: str = "attention", steps: str = "last", seed: int = 1
) -> tuple[Study, Term]:
    """A study of one edit with a drawn probe and direction."""
    subject = open_subject(model)
    session = subject.session
    place = place_of(session, layer)
    batches = list(make_batches(session, IDS, batch_size=5))
    stage = find_stage(session, place, site, steps, batches[0].inputs)
    d = place.plan.geometry.d_model
    rng = np.random.default_rng(seed)
    u = rng.standard_normal(d)
    u /= np.linalg.norm(u)
    study = Study(stage, u, (7, 9), subject.head)
    study.read(batches)
    w = rng.standard_normal(study._kept[0].inputs.shape[1])
    return study, Term(stage.output, w, u, 1.5)


def edit_of(study: Study, term: Term, steps: str = "last") -> Any:
    from eigenlens.steering.edit import Edit

    plan, live = study.stage.place.plan, study.stage.session.live
    return Edit(
        *("m", live.model_type or "", plan.stack, plan.layer, plan.kind),
        *(study.stage.site, steps, "eigen", study.direction, term.written, term.w),
        *(term.strength, "drawn"),
    )


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("steps", ["last", "all"])
def test_a_resumed_pass_with_the_term_is_a_whole_pass_with_the_edit(
    name: str, steps: str, tiny: Any
) -> None:
    if steps == "all" and not name.startswith("albert"):
        steps = "last"
    model = tiny(name)
    study, term = study_of(model, steps=steps)
    quick = study.measure(term, 1.5)
    edit = edit_of(study, term, steps)
    whole = study.measure(None, 1.5, applied=edit.applied(study.stage.session))
    assert quick.kl == pytest.approx(whole.kl, rel=1e-6)
    assert quick.kl is not None
    assert quick.kl > 1e-3
    assert quick.target_probability == pytest.approx(whole.target_probability, rel=1e-6)
    for place, pair in quick.tokens.items():
        other = whole.tokens[place]
        assert (pair is None) == (other is None)
        if pair is not None and other is not None:
            assert pair[0] is not None
            assert other[0] is not None
            assert pair[0].mean_cosine == pytest.approx(other[0].mean_cosine, abs=1e-9)
    assert study.unedited().kl == 0.0
    assert not any("forward" in m.__dict__ for m in model.modules())


def test_steps_of_a_shared_layer_differ(tiny: Any) -> None:
    effects = {}
    for steps in ("last", "all"):
        study, term = study_of(tiny("albert"), steps=steps)
        effects[steps] = study.measure(term, 1.5).kl
    assert effects["last"] != pytest.approx(effects["all"], rel=1e-2)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "gpt_neox"])
def test_an_edit_of_an_earlier_layer_or_of_the_feed_forward_part(name: str, tiny: Any) -> None:
    for layer, site in ((0, "attention"), (-1, "ffn")):
        study, term = study_of(tiny(name), layer=layer, site=site)
        quick = study.measure(term, 1.5)
        applied = edit_of(study, term).applied(study.stage.session)
        whole = study.measure(None, 1.5, applied=applied)
        assert quick.kl == pytest.approx(whole.kl, rel=1e-6)
        assert quick.kl is not None
        assert quick.kl > 1e-3
        after, before = quick.tokens["after_sublayer"], study.unedited().tokens["after_sublayer"]
        assert after is not None
        assert before is not None
        assert after != before


def test_the_numbers_are_those_of_the_definitions(tiny: Any) -> None:
    import torch

    model = tiny("gpt2")
    study, term = study_of(model)
    found = study.measure(term, 1.5)
    kls, losses, wanted, ranks, cosines, firsts = [], [], [], [], [], []
    block = study.stage.place.block
    states: list[Any] = []

    def see(module: Any, args: Any, result: Any) -> None:
        states.append(result if torch.is_tensor(result) else result[0])

    for ids in IDS:
        row = torch.tensor([ids])
        with torch.no_grad():
            old = model(row).logits[0].log_softmax(-1).numpy()
            handle = block.register_forward_hook(see)
            with term.active(torch):
                new = model(row).logits[0].log_softmax(-1).numpy()
            handle.remove()
        kls += list((np.exp(old) * (old - new)).sum(-1))
        losses += [-new[i, ids[i + 1]] for i in range(len(ids) - 1)]
        wanted += list(np.exp(new[:, 7]) + np.exp(new[:, 9]))
        ranks += list((new > new[:, [7, 9]].max(-1, keepdims=True)).sum(-1) + 1)
        x = states[-1][0].numpy()
        c = x @ study.direction / np.linalg.norm(x, axis=1)
        cosines += list(c[1:])
        firsts.append(c[0])
    # transformers takes float32 softmaxes inside attention here, the study keeps float64
    assert found.kl == pytest.approx(np.mean(kls), rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert found.target_probability == pytest.approx(np.mean(wanted), rel=1e-5)
    assert found.target_rank == np.median(ranks)
    pair = found.tokens["after_block"]
    assert pair is not None
    assert pair[0] is not None
    assert pair[1] is not None
    assert pair[0].mean_cosine == pytest.approx(np.mean(cosines), abs=1e-5)
    assert pair[0].min_cosine == pytest.approx(np.min(cosines), abs=1e-5)
    assert pair[0].positive_fraction == np.mean(np.array(cosines) > 0)
    assert pair[1].mean_cosine == pytest.approx(np.mean(firsts), abs=1e-5)
    assert (pair[0].n_tokens, pair[1].n_tokens) == (len(cosines), len(IDS))


def test_batches_do_not_matter(tiny: Any) -> None:
    subject = Subject(session_of(tiny("llama")), "causal")
    results = [
        eigenlens.steer(
            subject, 7, strength=4.0, calibrate=IDS[:6], evaluate=IDS[6:], batch_size=size
        )
        for size in (1, 6)
    ]
    a, b = (r.after for r in results)
    assert a is not None
    assert b is not None
    assert a.kl == pytest.approx(b.kl, rel=1e-9)
    assert results[0].edit.w == pytest.approx(results[1].edit.w, rel=1e-9)


def test_without_room_the_unedited_predictions_are_computed_again(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, term = study_of(tiny("llama"))
    usual = study.measure(term, 1.5)
    monkeypatch.setattr("eigenlens.steering.evaluate.KEPT_BYTES", 0)
    again, term = study_of(tiny("llama"))
    assert all(kept.reference is None for kept in again._kept)
    assert again.measure(term, 1.5) == usual


def test_activation_addition_adds_the_vector_to_every_token(tiny: Any) -> None:
    import torch

    study, _ = study_of(tiny("llama"))
    block = study.stage.place.block
    added = study.measure(Added(block, study.direction, 3.0), 3.0)
    assert added.tokens["after_sublayer"] == study.unedited().tokens["after_sublayer"]
    model = study.stage.session.model
    row = torch.tensor([IDS[0]])
    with torch.no_grad():
        plain = model(row, output_hidden_states=True).hidden_states[-1]
        with Added(block, study.direction, 3.0).active(torch):
            pushed = model.model.layers[-1](torch.zeros(1, 2, 16).double(), **_positions(model))
        x = model.model.layers[-1](torch.zeros(1, 2, 16).double(), **_positions(model))
    assert plain.shape[-1] == 16
    pushed, x = (y if torch.is_tensor(y) else y[0] for y in (pushed, x))
    np.testing.assert_allclose((pushed - x)[0].numpy(), np.tile(3 * study.direction, (2, 1)))


def _positions(model: Any) -> dict[str, Any]:
    import torch

    ids = torch.arange(2)[None]
    return {"position_embeddings": model.model.rotary_emb(torch.zeros(1).double(), ids)}


def test_a_state_behind_a_norm_is_compared_with_the_image_of_the_direction(tiny: Any) -> None:
    model = tiny("bert")
    study, _ = study_of(model)
    stage: Stage = study.stage
    u = study.direction
    norm = model.bert.encoder.layer[-1].attention.output.LayerNorm
    gain = norm.weight.detach().numpy()
    image = gain * (u - u.mean())
    np.testing.assert_allclose(stage.after_sublayer(u), image / np.linalg.norm(image), atol=1e-6)
    last = model.bert.encoder.layer[-1].output.LayerNorm
    assert stage.block_norm is last
    there = last.weight.detach().numpy() * (image - image.mean())
    np.testing.assert_allclose(stage.after_block(u), there / np.linalg.norm(there), atol=1e-6)
    plain, _ = study_of(tiny("gpt2"))
    np.testing.assert_array_equal(plain.stage.after_block(plain.direction), plain.direction)
    assert plain.stage.final_norm is tiny("gpt2").transformer.ln_f


def test_blocks_before_the_edited_one_do_not_run_again(tiny: Any) -> None:
    model = tiny("gpt2")
    session = session_of(model)
    place = place_of(session, -1)
    batch = next(iter(make_batches(session, IDS[:2])))
    past, result = record(session, place, batch.inputs, last=False)
    ran: list[int] = []
    handles = [
        block.attn.register_forward_hook(lambda *_, i=i: ran.append(i))
        for i, block in enumerate(model.transformer.h)
    ]
    with resumed(session, past):
        again = forward(session, batch.inputs)
    for handle in handles:
        handle.remove()
    assert ran == [1]
    assert bool((again.logits == result.logits).all())
    with pytest.raises(RuntimeError, match="stop"), resumed(session, past):
        raise RuntimeError("stop")
    assert not any("forward" in m.__dict__ for m in model.modules())


def test_text_that_is_calibrated_on_is_not_evaluated_on(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    with pytest.raises(OptionError, match="has not seen"):
        read_sets(session, IDS, IDS)
    found = read_sets(session, IDS[:4], IDS[2:])
    assert found.evaluation == tuple(tuple(ids) for ids in IDS[4:])
    assert "2 prompts that are calibrated on" in found.warnings[0]
    usual = open_subject("sample:gpt2-tiny").session
    sets = read_sets(usual, None, None)
    assert (len(sets.calibration), len(sets.evaluation)) == (32, 32)
    assert not set(sets.calibration) & set(sets.evaluation)


def test_layers_that_are_not_there(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    assert place_of(session, -2).plan.layer == 0
    for layer in (2, -3):
        with pytest.raises(OptionError, match="layers are 0 to 1"):
            place_of(session, layer)


def test_starts_of_sentences_end_between_words_and_where_the_wanted_is_likeliest() -> None:
    words = ["<s>", " the", " cat", "s", " sat", " on", " a", " mat", " and", " ran", " off"]

    def decode(ids: Any) -> str:
        return "".join(words[i] for i in ids)

    sentence = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    prompts = [
        sentence,
        [0, 4, *sentence[1:]],
        [0, 1, 2],
        [0, 5, *sentence[1:]],
        [0, *sentence[4:]],
    ]
    plain = starts_of(prompts, frozenset({0}), decode)
    assert [len(s) for s in plain] == [len(plain[0])] * 3
    assert all(s[0] == 0 for s in plain)
    for start, whole in ((s, next(p for p in prompts if p[: len(s)] == s)) for s in plain):
        assert words[whole[len(start)]].startswith(" ")
    likely = {(number, place): 0.0 for number in range(5) for place in range(13)}
    likely[3, 6] = 0.9
    chosen = starts_of(prompts, frozenset({0}), decode, likely)
    assert chosen[-1] == prompts[3][:7]
    assert starts_of([[0, 1, 2]], frozenset({0}), decode) == []


def test_a_block_that_writes_into_its_input_does_not_spoil_the_past(tiny: Any) -> None:
    import torch

    study, term = study_of(tiny("gpt2"))
    block = study.stage.place.block

    def overwrite(module: Any, args: Any) -> None:
        with torch.no_grad():
            args[0].add_(1.0)

    handle = block.register_forward_pre_hook(overwrite)
    try:
        first = study.measure(term, 1.5)
        again = study.measure(term, 1.5)
    finally:
        handle.remove()
    assert first == again


def test_first_tokens_are_not_calibrated_on(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    place = place_of(session, -1)
    batches = list(make_batches(session, IDS, batch_size=5))
    stage = find_stage(session, place, "attention", "last", batches[0].inputs)
    Z = read_inputs(stage, batches)
    assert len(Z) == sum(len(ids) - 1 for ids in IDS)
    study, _ = study_of(tiny("gpt2"))
    later = np.concatenate([kept.inputs for kept in study._kept])[~study.first]
    np.testing.assert_allclose(Z, later, atol=1e-12)
    with pytest.raises(OptionError, match="has one token"):
        read_inputs(stage, list(make_batches(session, [[5], [6]])))
