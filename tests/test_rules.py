"""Rule files: the same circuits as the table's row, and an error for everything unknown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.rules import parse_rules, read_rules
from eigenlens.errors import ArchitectureError, EigenlensError, FormatError, SourceError
from eigenlens.live.verify import verify
from eigenlens.samples import sample_path

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


GPT2 = """
[[stack]]
value = "transformer.h.{layer}.attn.c_attn"
output = "transformer.h.{layer}.attn.c_proj"
norm_before = "transformer.h.{layer}.ln_1"
layout = "stacked_conv1d"

[readout]
embedding = ["transformer.wte"]
final_norm = ["transformer.ln_f"]
"""


def test_the_output_is_stored_as_the_values_are(tiny: Any) -> None:
    """Its shape tells nothing: W_O is square, and read the wrong way round it is another F."""
    source = unknown(tiny("gpt2"))
    rules = GPT2.replace("transformer.", "")
    right = open_checkpoint(source, parse_rules(rules)).circuits()[0]
    row = open_checkpoint(tiny("gpt2")).circuits()[0]
    np.testing.assert_array_equal(right.dense(), row.dense())
    stated = rules.replace("[readout]", 'output_orientation = "linear"\n[readout]')
    other = open_checkpoint(source, parse_rules(stated)).circuits()[0]
    assert not np.allclose(other.dense(), row.dense())
    mixed = rules.replace(
        '"stacked_conv1d"', '{ key = "a", default = true, yes = "stacked", no = "stacked_conv1d" }'
    )
    with pytest.raises(FormatError, match="state the output_orientation"):
        parse_rules(mixed)


def test_names_of_the_files_serve_the_model_without_its_head(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(GPT2, encoding="utf-8")
    rows = verify("sample:gpt2-tiny", architecture=file)
    assert len(rows) == 4
    assert all(row.ok for row in rows)


def test_a_type_that_transformers_does_not_know_cannot_run(tmp_path: Path) -> None:
    folder = tmp_path / "mygpt"
    shutil.copytree(sample_path("gpt2-tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mygpt"}))
    (tmp_path / "rules.toml").write_text(GPT2, encoding="utf-8")
    assert len(open_checkpoint(folder, tmp_path / "rules.toml").circuits()) == 4
    with pytest.raises(
        SourceError, match=r"no model of type 'mygpt', so it cannot run: what reads"
    ):
        verify(folder, architecture=tmp_path / "rules.toml")


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


PLAIN = """
[[stack]]
value = "layers.{layer}.self_attn.v_proj"
output = "layers.{layer}.self_attn.o_proj"
norm_before = "layers.{layer}.norm"
"""


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('output_scale = "a//b//c"', "expected a config key"),
        ('output_scale = "..."', "expected a config key"),
        ('output_scale = "/"', "expected a config key"),
        ('output_scale = "=x"', "output_scale: '=x' is no literal"),
        ('output_scale = "=NaN"', "a number of at most"),
        ('output_scale = "=1e999"', "a number of at most"),
        ('output_scale = "=[1]"', "a number after '='"),
        ('value_scale = "=1e308"', "a number of at most"),
        ("gain_offset = nan", "a number of at most"),
        ('per_layer = ["zzz"]', "per_layer is 'zzz'.*n_heads"),
        ('name = "a\\nb"', r"name is 'a\\nb'.*control"),
        ('notes = ["\\u001b[31m"]', "control characters"),
        ('placement = "post"', "placement is 'post' without norm_after"),
        ('placement = "sandwich"', "placement is 'sandwich' without norm_after"),
        (
            'placement = { key = "a", default = false, yes = "post", no = "pre" }',
            "placement is 'post' without norm_after",
        ),
        ('causal = { key = "=x", default = false, yes = true, no = false }', "causal.key: '=x'"),
        ('[keys]\nn_heads = [""]', "n_heads is ''"),
        ('[keys]\nn_layers = ["=x"]', "'=x' is no literal"),
        (f'[keys]\nn_layers = ["={"9" * 5000}"]', "'=999.* is no literal"),
        (f'[keys]\nn_layers = ["={"[" * 5000}"]', r"'=\[\[.* is no literal"),
        ("[readout]\nembedding = []", "at least one name"),
        ('[readout]\nembedding = [""]', "at least one name"),
    ],
)
def test_values_that_make_no_sense(line: str, match: str) -> None:
    assert parse_rules(PLAIN)
    with pytest.raises(FormatError, match=match) as caught:
        parse_rules(PLAIN + line)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_rules_in_rules_end() -> None:
    rule = "true"
    for _ in range(9):
        rule = f'{{ key = "a", default = false, yes = true, no = {rule} }}'
    with pytest.raises(FormatError, match="8 deep"):
        parse_rules(f"{PLAIN}causal = {rule}")


@pytest.mark.parametrize("name", ["{{layer}}", "}{layer}{", "{layer}}", "{layer!r}"])
def test_names_have_no_other_braces(name: str) -> None:
    with pytest.raises(FormatError, match="no other braces"):
        parse_rules(PLAIN.replace("{layer}", name))


def test_where_the_norms_are_is_stated_or_named() -> None:
    bare = "\n".join(line for line in PLAIN.splitlines() if "norm" not in line)
    with pytest.raises(FormatError, match="state the placement"):
        parse_rules(bare)
    assert parse_rules(bare + '\nplacement = "parallel"').stacks[0].placement == "parallel"
    after = PLAIN.replace("norm_before", "norm_after")
    assert [parse_rules(text).stacks[0].placement for text in (PLAIN, after)] == ["pre", "post"]


@pytest.mark.parametrize("field", ["output_scale", "value_scale"])
def test_a_scale_that_the_config_does_not_state(field: str, tiny: Any) -> None:
    state, config = unknown(tiny("llama"))
    config = {**config, "residual_multiplier": 0.22, "listed": [1, 2]}

    def opened(key: str) -> Any:
        rules = parse_rules(LLAMA.replace("[readout]", f'{field} = "{key}"\n[readout]'))
        return open_checkpoint((state, config), rules)

    assert getattr(opened("residual_multiplier").plans[0], field) == 0.22
    assert getattr(opened("#listed").plans[0], field) == 2
    with pytest.raises(FormatError, match=r"nearest: 'residual_multiplier'"):
        opened("residual_multiplyer")
    for key in ("#model_type", "no.where", "/absent"):
        with pytest.raises(FormatError, match=f"does not state '{key}'"):
            opened(key)
    with pytest.raises(FormatError, match="'nobody_has_seen_it': expected a number"):
        opened("model_type")
    config["residual_multiplier"] = 1e308
    with pytest.raises(FormatError, match="at most 1e"):
        opened("residual_multiplier")


def test_a_scale_of_our_own_row_has_its_default() -> None:
    from eigenlens.circuit.architectures import ARCHITECTURES

    factors = ARCHITECTURES["granite"].stacks[0].output_scale
    assert isinstance(factors, str) or all(f.default == 1.0 for f in factors or ())


def test_rules_without_a_stack_that_exists(tiny: Any) -> None:
    rules = parse_rules(LLAMA.replace("[readout]", "exists = false\n[readout]"))
    with pytest.raises(ArchitectureError, match="'exists' holds"):
        open_checkpoint(unknown(tiny("llama")), rules)


def test_a_scaled_value_is_not_rounded(tiny: Any) -> None:
    state, config = unknown(tiny("llama"))
    state = {name: array.astype(np.float32) for name, array in state.items()}

    def values(scale: float) -> np.ndarray:
        rules = LLAMA.replace("[readout]", f'value_scale = "={scale}"\n[readout]')
        return open_checkpoint((state, config), parse_rules(rules)).circuits()[0].W_V

    plain = values(1.0)
    assert values(0.5).dtype == np.float32
    np.testing.assert_array_equal(values(0.5), plain * 0.5)
    np.testing.assert_array_equal(values(0.3), plain.astype(np.float64) * 0.3)
    assert not np.array_equal(values(0.3), plain * np.float32(0.3))
