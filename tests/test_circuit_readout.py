"""Reading directions as tokens, against the live model's own head and embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit import readout as readout_module
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import ArchitectureError, NumericsError, OptionError
from eigenlens.tensors.vocabulary import byte_level_text
from families import BY_NAME

PRE = {
    "gpt2": ["transformer.ln_f", "lm_head"],
    "gpt_neo": ["transformer.ln_f", "lm_head"],
    "gptj": ["transformer.ln_f", "lm_head"],
    "gpt_neox": ["gpt_neox.final_layer_norm", "lm_head"],
    "opt": ["model.decoder.final_layer_norm", "model.decoder.project_out", "lm_head"],
    "opt-post": ["model.decoder.project_out", "lm_head"],
    "llama": ["model.norm", "lm_head"],
    "gemma": ["model.norm", "lm_head"],
    "gemma2": ["model.norm", "lm_head"],
    "phi": ["model.final_layernorm", "lm_head"],
    "phi3": ["model.norm", "lm_head"],
}


def unit(x: Any) -> Any:
    return x / np.linalg.norm(x)


def odd_part(model: Any, path: list[str], v: Any) -> Any:
    """The path's response to v without its affine part: f(v) - f(-v)."""
    import torch

    x = torch.tensor(np.stack([v, -v]))
    with torch.no_grad():
        for name in path:
            x = model.get_submodule(name)(x)
    return (x[0] - x[1]).numpy()


@pytest.mark.parametrize("name", PRE)
def test_what_a_direction_writes_is_what_the_head_says(name: str, tiny: Any, saved: Any) -> None:
    model = tiny(name)
    out = open_checkpoint(saved(name)).readout
    v = np.random.default_rng(0).standard_normal(16)
    expected = odd_part(model, PRE[name], v)
    found = out.write_logits(v)
    np.testing.assert_allclose(unit(found), unit(expected), atol=1e-6)
    assert "unembedding" in out.write_note
    gained = "final norm" in out.write_note
    assert gained == (len(PRE[name]) > 1 and name != "opt-post")


def test_the_final_gain_matters_to_that_test(tiny: Any, saved: Any) -> None:
    v = np.random.default_rng(0).standard_normal(16)
    plain = open_checkpoint(saved("gemma")).readout.W_U() @ v
    expected = odd_part(tiny("gemma"), PRE["gemma"], v)
    assert np.abs(unit(plain) - unit(expected)).max() > 1e-3


@pytest.mark.parametrize(
    ("family", "head"),
    [("albert", ["predictions"]), ("bert", ["cls"])],
)
def test_a_linear_masked_head_is_followed(family: str, head: list[str]) -> None:
    from dataclasses import replace

    base = BY_NAME[family]
    model = replace(base, options={**base.options, "hidden_act": "linear"}).build(head=True)
    for name, p in model.named_parameters():
        if name.endswith("dense.bias") and ("predictions" in name):
            p.data.zero_()
    out = open_checkpoint(model).readout
    v = np.random.default_rng(0).standard_normal(16)
    np.testing.assert_allclose(unit(out.write_logits(v)), unit(odd_part(model, head, v)), atol=1e-6)
    assert "linear transform" in out.write_note


@pytest.mark.parametrize(
    ("name", "head", "why"),
    [
        ("bert", True, "not linear: gelu"),
        ("bert", False, "no masked-language head"),
        ("roberta", True, "not linear: gelu"),
        ("distilbert", True, "not linear: gelu"),
        ("electra", True, "not linear: gelu"),
        ("llama", False, "no output head"),
    ],
)
def test_else_the_raw_embedding_is_used_and_said(
    name: str, head: bool, why: str, tiny: Any
) -> None:
    out = open_checkpoint(tiny(name, head=head)).readout
    assert why in out.write_note
    v = np.random.default_rng(0).standard_normal(16)
    np.testing.assert_array_equal(out.write_logits(v), out.read_scores(v))
    np.testing.assert_array_equal(out.W_U(), out.W_E())


@pytest.mark.parametrize(
    ("name", "lift"),
    [
        ("albert", "albert.encoder.embedding_hidden_mapping_in"),
        ("electra", "electra.embeddings_project"),
        ("opt", "model.decoder.project_in"),
        ("llama", None),
    ],
)
def test_embeddings_are_lifted_to_the_stream(name: str, lift: str | None, tiny: Any) -> None:
    model = tiny(name)
    E = model.get_input_embeddings().weight.detach().numpy()
    W_E = E if lift is None else E @ model.get_submodule(lift).weight.detach().numpy().T
    out = open_checkpoint(model).readout
    w = np.random.default_rng(0).standard_normal(16)
    np.testing.assert_allclose(out.W_E(), W_E, atol=1e-6)
    np.testing.assert_allclose(out.read_scores(w), W_E @ w, atol=1e-12)
    assert (lift is not None) == (", then" in out.read_note)


@pytest.mark.parametrize("name", ["llama", "opt", "albert", "electra", "bert"])
@pytest.mark.parametrize("block", [readout_module.BLOCK_ENTRIES, 7])
def test_blocks_and_the_copying_map(
    name: str, block: int, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readout_module, "BLOCK_ENTRIES", block)
    out = open_checkpoint(tiny(name)).readout
    expected = out.W_E().astype(float).T @ out.W_U().astype(float)
    np.testing.assert_allclose(out.copying_map(), expected, rtol=1e-5, atol=1e-5)
    assert out.W_U().shape == (40, 16)


def test_files_without_an_embedding_have_null_copying_scores(tiny: Any) -> None:
    model = tiny("llama", head=False)
    body = {k: v for k, v in model.state_dict().items() if "embed_tokens" not in k}
    checkpoint = open_checkpoint((body, model.config))
    assert not checkpoint.readout.has_vocabulary
    heads = eigenlens.spectrum(checkpoint, per_head=True).layers[0].heads
    assert heads is not None
    assert [head.copying_score for head in heads] == [None] * 4
    assert all(head.ov_trace_ratio is not None for head in heads)
    with pytest.raises(ArchitectureError, match="embed_tokens"):
        checkpoint.readout.read_scores(np.ones(16))


def test_bytes_that_are_no_character_are_shown_as_bytes() -> None:
    assert byte_level_text("Ġcaf\u00c3\u00a9") == " caf\u00e9"
    assert byte_level_text("a\u00c3") == "a<0xC3>"
    assert byte_level_text("\u00a9\u00c3\u00a9") == "<0xA9>\u00e9"


def test_a_vision_model_has_no_tokens(tiny: Any) -> None:
    with pytest.raises(OptionError, match="vit has no token embedding"):
        _ = open_checkpoint(tiny("vit")).readout


def test_a_broken_embedding_is_named(tiny: Any) -> None:
    model = tiny("gpt2")
    tensors = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    tensors["transformer.wte.weight"][5, 5] = np.nan
    out = open_checkpoint((tensors, model.config)).readout
    with pytest.raises(NumericsError, match=r"transformer\.wte\.weight"):
        out.read_scores(np.ones(16))
