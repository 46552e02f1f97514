"""Which stored weights serve which attention call, for weights that are used several times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.config import Config
from eigenlens.circuit.layouts import Geometry
from eigenlens.circuit.slots import (
    cycles,
    funnel_blocks,
    shared_blocks,
    twice_in_windows,
    two_ways,
)
from eigenlens.errors import ArchitectureError, FormatError, ShapeError
from zoo import build

SIZES = Geometry(8, 2, 2, 1, 4)


def test_cycles_count_every_pass() -> None:
    slots = cycles("H", "L")(SIZES, {"H": 2, "L": 3})
    assert [s.calls for s in slots] == [(0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11)]


@pytest.mark.parametrize("number", [0, -1, True, 2.0, "2", 10**9])
def test_cycles_refuse_other_numbers(number: Any) -> None:
    with pytest.raises(ValueError, match="H"):
        cycles("H")(SIZES, {"H": number})


def test_blocks_are_taken_in_turn_by_the_layers_of_their_kind() -> None:
    kinds = ["m", "hybrid", "hybrid", "m", "hybrid", "hybrid", "hybrid"]
    slots = shared_blocks("n", "kinds")(SIZES, {"n": 2, "kinds": kinds})
    assert [(s.layer, s.calls) for s in slots] == [(1, (0, 2, 4)), (2, (1, 3))]
    with pytest.raises(ValueError, match="hybrid"):
        shared_blocks("n", "kinds")(SIZES, {"n": 2, "kinds": ["m"]})
    with pytest.raises(TypeError, match="kinds"):
        shared_blocks("n", "kinds")(SIZES, {"n": 2, "kinds": 3})


def test_layers_with_a_window_have_twice_the_value_heads() -> None:
    kinds = {"layer_types": ["full_attention", "sliding_attention"]}
    assert [s.sizes for s in twice_in_windows(SIZES, kinds)] == [{}, {"n_kv_heads": 2}]


def test_shared_blocks_are_those_that_the_model_runs() -> None:
    model = build("zamba2")
    plans = open_checkpoint(model).plans
    assert [(p.layer, p.calls) for p in plans] == [(1, (0, 2)), (2, (1,))]
    first, third = (model.layers[i].shared_transformer.self_attn.v_proj.weight for i in (1, 3))
    np.testing.assert_array_equal(first.detach().numpy(), third.detach().numpy())
    assert not np.array_equal(first, model.layers[2].shared_transformer.self_attn.v_proj.weight)


def test_adapters_on_shared_values_are_refused() -> None:
    model = build("zamba2")
    config = {**model.config.to_dict(), "use_shared_attention_adapter": True}
    tensors = {name: t.numpy() for name, t in model.state_dict().items()}
    with pytest.raises(ArchitectureError, match="adapters"):
        open_checkpoint((tensors, config))


def test_layer_kinds_that_make_no_sense_are_one_line() -> None:
    model = build("zamba2")
    tensors = {name: t.numpy() for name, t in model.state_dict().items()}
    with pytest.raises(FormatError, match="layer groups make no sense"):
        open_checkpoint((tensors, {**model.config.to_dict(), "num_mem_blocks": 0}))


def test_the_length_of_a_list_is_a_size() -> None:
    config = Config({"model_type": "new", "kinds": ["a", "b", "c"], "n": 4})
    assert config["#kinds"] == 3
    for key in ("#n", "#nothing"):
        with pytest.raises(KeyError):
            config[key]


def test_a_funnel_repeats_its_layers_one_after_the_other() -> None:
    slots = funnel_blocks(SIZES, {"block_sizes": [2, 1], "block_repeats": [2, 1]})
    assert [s.calls for s in slots] == [(0, 1), (2, 3), (4,)]
    assert [tuple(s.fields.values()) for s in slots] == [(0, 0), (0, 1), (1, 0)]
    plain = funnel_blocks(SIZES, {"block_sizes": [2, 1], "block_repeats": None})
    assert [s.calls for s in plain] == [(0,), (1,), (2,)]
    for bad in ([1], [1, 0], [1, 2.0], [1, 10**9]):
        with pytest.raises(ValueError, match="block_repeats"):
            funnel_blocks(SIZES, {"block_sizes": [2, 1], "block_repeats": bad})


def test_two_streams_call_a_layer_twice() -> None:
    assert [s.calls for s in two_ways(SIZES, {})] == [(0, 1), (2, 3)]


def test_keys_may_be_made_of_others() -> None:
    config = Config({"sizes": [2, 3], "width": 48, "heads": 5, "none": None})
    assert config["+sizes"] == 5
    assert config["width//heads"] == 9
    assert config.get("width//absent") is None
    assert config.get("+absent") is None
    for key in ("+width", "none//heads", "width//sizes", "+none"):
        with pytest.raises(FormatError, match="positive whole numbers"):
            config[key]
    with pytest.raises(FormatError, match="positive whole numbers"):
        Config({"a": 3, "b": 0})["a//b"]


def test_a_layer_may_stand_without_its_norm() -> None:
    plans = open_checkpoint(build("modernbert")).plans
    assert [p.norm_in is None for p in plans] == [True] + [False] * (len(plans) - 1)
    assert len(plans) > 1


def test_norms_of_another_kind_are_left_out() -> None:
    first, second = (
        open_checkpoint(build("mobilebert", given={"normalization_type": kind})).plans[0]
        for kind in ("no_norm", "layer_norm")
    )
    assert first.norm_out is None
    assert second.norm_out is not None
    assert first.placement == second.placement == "post"
    assert any("not normalised" in note for note in first.notes)


def test_a_grouped_convolution_is_block_diagonal() -> None:
    from eigenlens.circuit.layouts import LAYOUTS

    g = Geometry(6, 1, 2, 2, 2, groups=2)
    layout = LAYOUTS["separate"]
    stored = np.arange(12.0).reshape(4, 3) + 1
    W_V = layout.read(g, stored)
    np.testing.assert_array_equal(W_V[:2, :3], stored[:2])
    np.testing.assert_array_equal(W_V[2:, 3:], stored[2:])
    assert not W_V[:2, 3:].any()
    assert not W_V[2:, :3].any()
    assert layout.shape(g, 6) == stored.shape
    assert layout.rows(g) is None
    np.testing.assert_array_equal(layout.write(g, 0 * stored, 2 * W_V), 2 * stored)
    W_V[0, 5] = 1
    with pytest.raises(ShapeError, match="2 groups"):
        layout.write(g, stored, W_V)


def test_groups_must_divide_the_width() -> None:
    model = build("squeezebert")
    model.config.v_groups = 3
    with pytest.raises(ShapeError, match="v_groups=3"):
        open_checkpoint(model)
