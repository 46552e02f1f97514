"""A batch equals its single prompts, wherever pads stand; what cannot be run says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenlens.errors import OptionError
from eigenlens.live.batches import (
    Batches,
    first_position,
    first_prompts,
    make_batches,
    max_positions,
    pad_id,
)
from eigenlens.live.capture import capture
from eigenlens.live.session import Session, session_of
from eigenlens.live.tokenizer import Tokenizer, from_vocabulary
from families import BY_NAME

PROMPTS = [[5, 9, 31, 7, 12, 6], [8, 3, 22], [30, 4, 17, 6, 9], [11]]
BOTH = ["bert", "roberta", "albert", "gpt2", "gptj", "gpt_neo", "opt", "llama", "gemma2", "phi3"]


def states(session: Session, batches: Any) -> dict[int, list[Any]]:
    """Per prompt, its real tokens' states at every layer."""
    found: dict[int, list[Any]] = {}
    for one in capture(session, batches):
        owners = one.batch.owners()
        for call in one.calls:
            for name in ("before", "attention", "after", "settled", "block"):
                flat = one.batch.flat(getattr(call, name))
                for prompt in one.batch.prompts:
                    found.setdefault(int(prompt), []).append(flat[owners == prompt])
    return found


def worst(session: Session, **options: Any) -> float:
    together = states(session, make_batches(session, PROMPTS, batch_size=4, **options))
    alone = states(session, make_batches(session, PROMPTS, batch_size=1))
    assert sorted(together) == sorted(alone) == [0, 1, 2, 3]
    errors = []
    for i, ids in enumerate(PROMPTS):
        for a, b in zip(together[i], alone[i], strict=True):
            assert a.shape == b.shape == (len(ids), a.shape[1])
            errors.append(np.abs(a - b).max() / np.abs(b).max())
    return float(max(errors))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", BOTH)
def test_a_batch_equals_its_single_prompts(name: str, side: Any, tiny: Any) -> None:
    assert worst(session_of(tiny(name)), side=side) <= 1e-10


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_in_single_precision_too(name: str, side: Any) -> None:
    assert worst(session_of(BY_NAME[name].build(head=False).float()), side=side) <= 1e-5


@pytest.mark.parametrize("name", ["gpt_neox", "qwen3", "mistral", "electra", "xlm-roberta", "phi"])
def test_other_families_on_the_right(name: str, tiny: Any) -> None:
    assert worst(session_of(tiny(name))) <= 1e-10


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("model_type", ["bart", "t5"])
def test_encoder_decoders(model_type: str, side: Any) -> None:
    from test_live_capture import encoder_decoder

    session = session_of(encoder_decoder(model_type))
    if side == "left" and model_type == "bart":  # its positions follow the place in the row
        with pytest.raises(OptionError, match="takes no positions"):
            make_batches(session, PROMPTS, side=side)
        return
    assert worst(session, side=side) <= 1e-10


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta"])
def test_without_positions_left_pads_would_shift_tokens(name: str, tiny: Any) -> None:
    """Why positions are given: the comparison above sees it when they are not."""
    session = session_of(tiny(name))

    class Shifted(Batches):
        def _batch(self, chosen: Any) -> Any:
            batch = super()._batch(chosen)
            n = batch.inputs["input_ids"].shape[1]
            import torch

            start = first_position(session)
            positions = torch.arange(start, start + n)[None].expand(len(chosen), n)
            return replace(batch, inputs={**batch.inputs, "position_ids": positions})

    good = make_batches(session, PROMPTS, batch_size=4, side="left")
    bad = Shifted(session, good.prompts, 4, "left")
    together, alone = states(session, bad), states(session, make_batches(session, PROMPTS))
    assert np.abs(together[3][0] - alone[3][0]).max() > 1e-3


def test_no_pad_token_is_needed_and_nothing_is_resized() -> None:
    model = BY_NAME["gpt2"].build(head=True)
    model.config.pad_token_id = None
    before = model.get_input_embeddings().weight
    session = session_of(model)
    assert pad_id(session) == 0
    assert worst(session) <= 1e-10
    assert model.get_input_embeddings().weight is before
    model.config.pad_token_id = 4000  # outside the vocabulary
    assert pad_id(session) == 0


def test_positions_of_roberta_begin_behind_its_padding_row(tiny: Any) -> None:
    assert first_position(session_of(tiny("roberta"))) == 1
    assert max_positions(session_of(tiny("roberta"))) == 31
    assert first_position(session_of(tiny("bert"))) == 0
    assert max_positions(session_of(tiny("bert"))) == 32


def test_order_and_owners(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    batches = make_batches(session, PROMPTS, batch_size=3)
    assert len(batches) == 2
    assert [b.prompts.tolist() for b in batches] == [[0, 2], [1, 3]]  # less padded than 3 and 1
    first = batches.together()
    assert first.prompts.tolist() == [0, 2, 1, 3]
    first = first_prompts(first, 3)
    assert first.mask.sum(axis=1).tolist() == [6, 5, 3]
    assert first.owners().tolist() == [0] * 6 + [2] * 5 + [1] * 3
    flat = first.flat(first.inputs["input_ids"][..., None].double())
    assert flat[:, 0].tolist() == [*PROMPTS[0], *PROMPTS[2], *PROMPTS[1]]


def test_special_tokens_are_told_apart(tiny: Any) -> None:
    session = session_of(tiny("bert"))  # its config names 0, 1 and 2
    batch = next(iter(make_batches(session, [[1, 7, 9, 2], [1, 8]])))
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.special.tolist() == [[True, False, False, True], [True, False, False, False]]
    text = Tokenizer(lambda s: [7], frozenset({7}), None, 40)
    other = next(iter(make_batches(replace(session, tokenizer=text), [[1, 7, 9, 2]])))
    assert other.special.tolist() == [[False, True, False, False]]


def test_half_precision_states_become_single(tiny: Any) -> None:
    import torch

    batch = next(iter(make_batches(session_of(tiny("bert")), [[5, 6]])))
    for dtype in (torch.bfloat16, torch.float16):
        flat = batch.flat(torch.ones(1, 2, 3, dtype=dtype))
        assert flat.dtype == np.float32
        assert flat.shape == (2, 3)
    assert batch.flat(torch.ones(1, 2, 3, dtype=torch.float64)).dtype == np.float64
    assert batch.flat(torch.ones(2, 7, 3)).shape == (14, 3)


def test_long_prompts_are_cut_or_refused(tiny: Any) -> None:
    session = session_of(tiny("bert"))
    long = [[5] * 40, [6] * 3]
    batches = make_batches(session, long)
    assert [len(p) for p in batches.prompts] == [32, 3]
    assert batches.warnings == (
        "1 of 2 prompts has more tokens than the model has positions (32): the rest is not used "
        "(prompt 0, counted from 0, has 40)",
    )
    (several,) = make_batches(session, [[5] * 33, [6] * 3, [7] * 41, [8] * 41]).warnings
    assert several.startswith("3 of 4 prompts have more tokens")
    assert several.endswith("(the longest, prompt 2, counted from 0, has 41)")
    assert len(list(capture(session, batches))) == 1
    with pytest.raises(
        OptionError, match=r"prompt 0 \(counted from 0\) has 40 tokens, the model has 32 positions"
    ):
        make_batches(session, long, truncation="error")
    assert make_batches(session, PROMPTS).warnings == ()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "there is no prompt"),
        ([[5], []], {}, "prompt 1 .counted from 0. is empty"),
        ([[5, 40]], {}, "prompt 0 .counted from 0. has the token id 40: ids are 0 to 39"),
        ([[-1]], {}, "the token id -1"),
        ([[5]], {"batch_size": 0}, "batch size 0"),
        ([[5]], {"side": "top"}, "side 'top' is unknown: allowed are right, left"),
        ([[5]], {"truncation": "no"}, "truncation 'no' is unknown: allowed are warn, error"),
    ],
)
def test_bad_input_is_one_line(prompts: Any, options: Any, message: str, tiny: Any) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        make_batches(session_of(tiny("bert")), prompts, **options)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_with_a_split_is_a_tokenizer() -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "C", "O", "(", "=", ")"]
    tokenizer = from_vocabulary(words, list)
    assert tokenizer.encode("CC(=O)") == [2, 4, 4, 6, 7, 5, 8, 3]
    assert tokenizer.special == {0, 2, 3}
    assert tokenizer.unknown_share([tokenizer.encode("CCON")]) == 0.25  # [CLS], [SEP] left out
    five = [tokenizer.encode("CCCON")]
    assert tokenizer.unknown_share(five) == 0.2
    assert tokenizer.encode_all(["CCCON"]) == five  # 20 % itself is allowed
    assert tokenizer.encode_all(["CO", "CCCCCN"]) == [[2, 4, 5, 3], [2, 4, 4, 4, 4, 4, 1, 3]]
    with pytest.raises(OptionError, match=r"30 % of the tokens are unknown .*at most 20 %"):
        tokenizer.encode_all(["CCCCCCCNNN"])
    with pytest.raises(OptionError, match="no prompt"):
        tokenizer.encode_all([])
    bare = from_vocabulary(["C"], list)
    assert bare.encode("CC") == [0, 0]
    with pytest.raises(OptionError, match="the token 'N' is not in the vocabulary"):
        bare.encode("CN")
    with pytest.raises(OptionError, match="the prompt '' has no tokens"):
        bare.encode_all(["C", ""])
