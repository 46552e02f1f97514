"""Rule files: the same circuits as the table's row, and an error for everything unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.rules import parse_rules, read_rules
from eigenlens.errors import EigenlensError, FormatError, SourceError
from eigenlens.live.verify import verify

LLAMA = """
[[stack]]
name = "decoder"
value = "layers.{layer}.self_attn.v_proj"
output = "layers.{layer}.self_attn.o_proj"
norm_before = "layers.{layer}.input_layernorm"
norm_kind = "rmsnorm"
value_bias = { key = "attention_bias", default = false, yes = true, no = false }
output_bias = { key = "attention_bias", default = false, yes = true, no = false }

[readout]
embedding = ["embed_tokens"]
final_norm = ["norm"]
"""


def unknown(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return state, {**model.config.to_dict(), "model_type": "nobody_has_seen_it"}


@pytest.mark.parametrize("name", ["llama", "llama-no-bias"])
def test_rules_give_the_circuits_of_the_row(name: str, tiny: Any, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(LLAMA, encoding="utf-8")
    source = unknown(tiny(name))
    with pytest.raises(EigenlensError, match=r"rules\.toml"):
        open_checkpoint(source)
    found = open_checkpoint(source, file)
    assert found.readout.final_norm is not None
    for a, b in zip(found.circuits(), open_checkpoint(tiny(name)).circuits(), strict=True):
        np.testing.assert_array_equal(a.dense(), b.dense())
        np.testing.assert_array_equal(a.bias, b.bias)


def test_wrong_rules_are_seen_by_the_running_model(tiny: Any) -> None:
    right = verify(tiny("gpt_neox"), architecture=parse_rules(NEOX))
    assert all(row.ok for row in right)
    wrong = verify(tiny("gpt_neox"), architecture=parse_rules(NEOX.replace("per_head", "stacked")))
    assert not any(row.ok for row in wrong)


NEOX = """
[[stack]]
value = "layers.{layer}.attention.query_key_value"
output = "layers.{layer}.attention.dense"
norm_before = "layers.{layer}.input_layernorm"
layout = "per_head"
"""


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("value =", "valeu ="), "unknown key 'valeu'.*nearest: 'value'"),
        (("[readout]", "[readuot]"), "unknown key 'readuot'.*readout"),
        (("rmsnorm", "rsmnorm"), "norm_kind is 'rsmnorm'.*nearest: 'rmsnorm'"),
        (("{layer}.self_attn.v_proj", "self_attn.v_proj"), "with {layer}"),
        (("yes = true", 'yes = "no"'), "true or false"),
        (("default = false, ", ""), "needs key, default"),
        (('embedding = ["embed_tokens"]', "embedding = 3"), "list of texts"),
        (("[[stack]]", "[stack]"), r"no \[\[stack\]\]"),
        (("[[stack]]", "[[stack"), "not TOML"),
        (('name = "decoder"', 'keys = { n_head = ["a"] }'), "unknown key 'n_head'.*'n_heads'"),
    ],
)
def test_every_fault_is_one_clear_line(change: tuple[str, str], match: str) -> None:
    assert change[0] in LLAMA
    with pytest.raises(FormatError, match=match) as caught:
        parse_rules(LLAMA.replace(*change))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read the rules"):
        read_rules(tmp_path / "none.toml")


@given(st.text(max_size=200))
def test_no_text_is_more_than_an_error(text: str) -> None:
    for whole in (text, f"[[stack]]\n{text}", LLAMA + text):
        message = ""
        try:
            parse_rules(whole)
        except FormatError as error:
            message = str(error)
        assert "\n" not in message
