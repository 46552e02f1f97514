"""Reading by blocks: the same F as from the whole tensors, never more than a block as stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import eigenlens
from eigenlens import open_checkpoint
from eigenlens.cache import Cache
from eigenlens.circuit import widening
from eigenlens.circuit.reading import comes_in_runs, read_circuit, read_grouped
from eigenlens.errors import NumericsError, OptionError
from eigenlens.spectra import analyse
from eigenlens.spectra.estimate import LayerCost, layer_costs
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.remembered import Content, factors_of
from eigenlens.tensors.safetensors_file import SafetensorsFile

D, HEADS, KV, H = 24, 6, 2, 4


def llama(
    folder: Path,
    dtype: Any = ml_dtypes.bfloat16,
    layers: int = 3,
    spoil: tuple[str, int, float] | None = None,
    fused: bool = False,
) -> Path:
    """A grouped-query decoder; `spoil` puts a number into a projection of layer 1 at that row.

    `fused` is Phi-3, whose values lie behind queries and keys in one tensor.
    """
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for i in range(layers):
        at = f"model.layers.{i}"
        rows, name = ((HEADS + 2 * KV) * H, "qkv") if fused else (KV * H, "v")
        tensors[f"{at}.self_attn.{name}_proj.weight"] = 0.2 * rng.standard_normal((rows, D))
        tensors[f"{at}.self_attn.o_proj.weight"] = 0.2 * rng.standard_normal((D, HEADS * H))
        tensors[f"{at}.input_layernorm.weight"] = rng.uniform(0.5, 1.5, D)
    if spoil is not None:
        name, row, value = spoil
        tensors[f"model.layers.1.self_attn.{name}_proj.weight"][row, 7] = value
    folder.mkdir(exist_ok=True)
    save_file({k: v.astype(dtype) for k, v in tensors.items()}, folder / "model.safetensors")
    config = {
        "model_type": "phi3" if fused else "llama",
        "hidden_size": D,
        "num_hidden_layers": layers,
    }
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": H}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("block", [1, 100, 1 << 18])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stored", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("fused", [False, True])
def test_the_same_factors_as_from_whole_tensors(
    fused: bool,
    stored: Any,
    dtype: str,
    block: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(widening, "BLOCK", block)
    checkpoint = open_checkpoint(llama(tmp_path / "m", stored, fused=fused))
    assert checkpoint.source is not None
    store = checkpoint.source.store
    for plan in checkpoint.plans:
        whole = read_circuit(plan, store)
        content = Content()
        found = read_grouped(plan, store, dtype, content)
        assert found.n_heads == found.n_kv_heads == KV
        assert np.array_equal(found.value(dtype), whole.value(dtype))
        assert np.array_equal(found.grouped_output(dtype), whole.grouped_output(dtype))
        assert found.norm_in is not None
        assert whole.norm_in is not None
        assert np.array_equal(found.norm_in.gain, whole.norm_in.gain)
        assert content.closed(found) == factors_of(whole).closed(whole)


@pytest.mark.parametrize("name", ["minilm", "smollm2", "albert-rxn", "gpt2-tiny", "bert-tiny"])
def test_samples_have_the_spectrum_of_the_whole_tensors(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widening, "BLOCK", 5000)
    checkpoint = open_checkpoint(f"sample:{name}")
    for dtype in ("float64", "float32"):
        found = eigenlens.spectrum(checkpoint, dtype=dtype).layers
        whole = eigenlens.spectrum(list(checkpoint.circuits()), dtype=dtype).layers
        for a, b in zip(found, whole, strict=True):
            assert a.name == b.name
            assert np.array_equal(a.eigenvalues, b.eigenvalues)
            assert a.spectral_norm == b.spectral_norm


def test_no_more_than_a_block_is_in_memory_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widening, "BLOCK", 60)
    sizes: list[int] = []
    honest = SafetensorsFile.read

    def watched(self: SafetensorsFile, name: str, rows: slice | None = None) -> Any:
        found = honest(self, name, rows)
        if "self_attn" in name:
            sizes.append(found.size)
        return found

    monkeypatch.setattr(SafetensorsFile, "read", watched)
    folder = llama(tmp_path / "m")
    eigenlens.spectrum(folder)
    assert max(sizes) <= 60
    assert sum(sizes) == 3 * (KV * H * D + D * HEADS * H)
    sizes.clear()
    eigenlens.spectrum(folder, per_head=True)  # heads are asked for one by one
    assert max(sizes) == D * HEADS * H


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["v", "o"])
@pytest.mark.parametrize("block", [60, 1 << 18])
def test_what_is_not_finite_is_counted_over_the_whole_tensor(
    block: int, name: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widening, "BLOCK", block)
    folder = llama(tmp_path / "m", spoil=(name, 5, value))
    where = rf"'model.layers.1.self_attn.{name}_proj.weight' has 1 entries .*the first at \(5, 7\)"
    with pytest.raises(NumericsError, match=where):
        eigenlens.spectrum(folder)
    assert len(eigenlens.spectrum(folder, layers=[0, 2]).layers) == 2


def test_large_but_finite_weights_are_read(tmp_path: Path) -> None:
    """Their squares overflow, which is no damage to the file."""
    checkpoint = open_checkpoint(llama(tmp_path / "m", spoil=("o", 5, 1e30)))
    found = checkpoint.circuits().grouped(1, "float32")
    assert np.abs(found.grouped_output("float32")).max() == pytest.approx(1e30, rel=1e-2)
    assert len(eigenlens.spectrum(checkpoint, layers=[1], dtype="float64").layers) == 1


def test_what_does_not_lie_in_runs_is_read_whole(tmp_path: Path) -> None:
    def runs(source: Any, dtype: str = "float32") -> set[bool]:
        checkpoint = open_checkpoint(source)
        assert checkpoint.source is not None
        return {comes_in_runs(p, checkpoint.source.store, dtype) for p in checkpoint.plans}

    assert runs(llama(tmp_path / "a")) == {True}
    assert runs("sample:bert-tiny") == {True}
    assert runs("sample:gpt2-tiny") == {False}  # stored (in, out)
    double = llama(tmp_path / "b", np.float64)
    assert runs(double, "float64") == {True}
    assert runs(double) == {False}  # float32 does not hold them
    checkpoint = open_checkpoint(tmp_path / "a")
    assert checkpoint.source is not None
    turned = replace(checkpoint.plans[0], orientation="conv1d")  # W_O alone stored (in, out)
    assert not comes_in_runs(turned, checkpoint.source.store, "float32")
    scaled = replace(checkpoint.plans[0], value_scale=0.5)
    assert not comes_in_runs(scaled, checkpoint.source.store, "float32")
    with pytest.raises(OptionError, match="is in memory"):
        open_checkpoint((np.eye(2), np.eye(2))).circuits().grouped(0, "float64")


@pytest.mark.parametrize("blocks", [True, False])
def test_a_kept_layer_is_known_however_it_was_read(
    blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of the content is the same by blocks and of whole tensors, and tells a change."""
    folder, cache = llama(tmp_path / "m"), Cache(tmp_path / "cache")
    monkeypatch.setattr(LayerCost, "by_blocks", lambda self, waits: blocks)
    first = eigenlens.spectrum(folder, cache=cache)
    monkeypatch.setattr(analyse, "analyse", lambda *args: pytest.fail("computed again"))
    again = eigenlens.spectrum(folder, cache=cache, verify_cache=True)
    for a, b in zip(first.layers, again.layers, strict=True):
        assert np.array_equal(a.eigenvalues, b.eigenvalues)


def test_a_layer_that_waits_takes_the_form_that_is_less(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama(tmp_path / "m"))
    grouped = layer_costs(checkpoint, SpectrumOptions(dtype="float32"))[0]
    wide = layer_costs(checkpoint, SpectrumOptions(dtype="float64"))[0]
    # 2 bytes for 8 + 24 columns as stored, 4 or 8 for 8 + 8 of the factors
    assert grouped.read_bytes == 2 * (32 * D + D)
    assert (grouped.factor_bytes, wide.factor_bytes) == (4 * 16 * D, 8 * 16 * D)
    assert grouped.by_blocks(waits=True)
    assert wide.by_blocks(waits=False)
    assert not wide.by_blocks(waits=True)
    heads = layer_costs(checkpoint, SpectrumOptions(per_head=True))[0]
    assert not heads.by_blocks(waits=False)
