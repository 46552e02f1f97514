"""Prompts share batches so that tokens and calls together cost least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenlens.live.batches import make_batches
from eigenlens.live.capture import capture
from eigenlens.live.packing import DEAR, PER_CALL, packed
from eigenlens.live.session import session_of


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to put items into groups, neighbours or not."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [first, *group], *groups[i + 1 :]]


def cost(groups: Sequence[Sequence[int]], lengths: Sequence[int], per_call: int) -> int:
    return sum(per_call + len(g) * max(lengths[i] for i in g) for g in groups)


@pytest.mark.parametrize("per_call", [0, 3, 10, DEAR])
@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_nothing_costs_less(most: int, per_call: int) -> None:
    """Against every partition, also those whose batches are no neighbours by length."""
    rng = np.random.default_rng(most)
    for n in (1, 2, 5, 7):
        lengths = [int(x) for x in rng.integers(1, 20, n)]
        found = packed(lengths, most, per_call)
        assert sorted(i for g in found for i in g) == list(range(n))
        assert all(len(g) <= most for g in found)
        fits = (g for g in partitions(range(n)) if max(map(len, g)) <= most)
        assert cost(found, lengths, per_call) == min(cost(g, lengths, per_call) for g in fits)


def test_longest_first_and_ties_in_order() -> None:
    assert packed([3, 9, 3, 9, 1], 2, 0) == [[1, 3], [0, 2], [4]]
    assert packed([4] * 5, 3) == [[0, 1, 2], [3, 4]]  # nothing to save: as few as can be
    assert packed([100, 4, 4], 8) == [[0], [1, 2]]
    assert packed([100, 90, 90], 8) == [[0, 1, 2]]
    assert packed([PER_CALL + 2, 1], 8) == [[0], [1]]
    assert packed([PER_CALL, 1], 8) == [[0, 1]]
    assert packed([100, 4, 4], 8, DEAR) == [[0, 1, 2]]


def test_many_prompts_are_packed_at_once() -> None:
    lengths = [1 + i % 97 for i in range(20_000)]
    assert sum(map(len, packed(lengths, 8))) == 20_000


def test_states_are_the_same_however_prompts_are_put_together(tiny: Any) -> None:
    session = session_of(tiny("gpt2"))
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [3, 4], [7, 8, 9], [1]]
    batches = make_batches(session, prompts, batch_size=4)
    alone = {
        int(c.batch.prompts[0]): c
        for c in capture(session, make_batches(session, prompts, batch_size=1))
    }
    for groups in ([[0], [2, 1, 3]], [[0, 2], [1, 3]]):
        for captured in capture(session, map(batches._batch, groups)):
            for row, i in enumerate(captured.batch.prompts):
                one, n = captured.calls[-1].block[row], len(prompts[i])
                assert np.allclose(one[:n], alone[int(i)].calls[-1].block[0], rtol=0, atol=1e-12)


def test_other_devices_are_given_full_batches(tiny: Any) -> None:
    """What a call costs there was not measured."""
    session = session_of(tiny("gpt2"))
    prompts = [[5] * 30, *([[6]] * 3)]

    class Elsewhere:
        device = type("Device", (), {"type": "cuda"})()
        model = session.model

    batches = make_batches(session, prompts, batch_size=2)
    assert batches.groups == [[0, 1], [2, 3]]
    batches = make_batches(session, [[5] * 30 + [6] * 30, *([[6]] * 3)][:4], batch_size=4)
    assert len(replace(batches, session=Elsewhere()).groups) == 1


def test_prompts_share_no_batch_where_positions_are_scaled_to_its_length(tiny: Any) -> None:
    """A short prompt beside a long one would be given the long one's positions."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4,
            "long_factor": [4.0] * 4, "original_max_position_embeddings": 8,
        },
    )  # fmt: skip
    session = session_of(LlamaModel(config).double().eval())
    prompts = [[5, 6, 7, 8, 9], [3, 4] * 6, [7, 8, 9], [6, 7, 8, 9, 10]]
    batches = make_batches(session, prompts, batch_size=4)
    assert batches.groups == [[1], [0, 3], [2]]
    alone = {
        i: next(iter(capture(session, make_batches(session, [p])))).calls[-1].block[0]
        for i, p in enumerate(prompts)
    }
    for captured in capture(session, batches):
        for row, i in enumerate(captured.batch.prompts):
            assert np.allclose(captured.calls[-1].block[row], alone[int(i)], rtol=0, atol=1e-12)
    (other,) = capture(session, [batches.together()])  # what the rule is for
    assert not np.allclose(other.calls[-1].block[1][:5], alone[0], rtol=0, atol=1e-6)
