"""Opening checkpoints: lazy reading, choosing layers, and faults in the weights."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.checkpoint import Circuits, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import NumericsError, OptionError, ShapeError, SourceError
from eigenlens.tensors.source import Source
from eigenlens.tensors.store import ArrayStore


def state(model: Any) -> dict[str, Any]:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


class Recording(ArrayStore):
    """Remembers what was read."""

    def __init__(self, arrays: Any) -> None:
        super().__init__(arrays)
        self.seen: list[tuple[str, Any]] = []

    def read(self, name: str, rows: slice | None = None) -> Any:
        self.seen.append((name, rows))
        return super().read(name, rows)


def recorded(model: Any) -> tuple[Any, Recording]:
    store = Recording(state(model))
    source = Source("x", model.config.to_dict(), store, None, "arrays", list)
    return open_checkpoint(source), store


def test_nothing_is_read_before_a_layer_is_asked_for(tiny: Any) -> None:
    checkpoint, store = recorded(tiny("phi3"))
    circuits = checkpoint.circuits()
    assert len(circuits) == 2
    assert len(circuits[1:]) == 1
    assert store.seen == []
    c = circuits[1]
    assert all(".1." in name for name, _ in store.seen)
    rows = dict(store.seen)["model.layers.1.self_attn.qkv_proj.weight"]
    assert rows is not None
    assert rows.stop - rows.start == c.W_V.shape[0]  # the value rows alone


def test_layers_are_chosen_by_their_real_index(saved: Any) -> None:
    checkpoint = open_checkpoint(saved("bert-deep"))
    assert [c.layer for c in checkpoint.circuits(layers=[10, 2])] == [10, 2]
    with pytest.raises(OptionError, match="no layer 11: layers are 0 to 10"):
        checkpoint.circuits(layers=[11])
    with pytest.raises(OptionError, match="no stack 'decoder': it has encoder"):
        checkpoint.circuits(stack="decoder")
    assert len(checkpoint.circuits(stack="encoder")) == 11
    assert checkpoint.skipped == ()


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.1.attention.self.value.weight",
        "bert.encoder.layer.1.attention.self.value.bias",
        "bert.encoder.layer.1.attention.output.dense.weight",
        "bert.encoder.layer.1.attention.output.dense.bias",
        "bert.encoder.layer.1.attention.output.LayerNorm.weight",
        "bert.encoder.layer.1.attention.output.LayerNorm.bias",
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_tensor_that_is_not_finite_is_named(name: str, bad: float, tiny: Any) -> None:
    model = tiny("bert")
    tensors = state(model)
    tensors[name].flat[-1] = bad
    circuits = open_checkpoint((tensors, model.config)).circuits()
    assert circuits[0].layer == 0
    with pytest.raises(NumericsError, match=name):
        circuits[1]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
        ("gpt2", "transformer.h.1.attn.c_proj.weight"),
        ("llama", "model.layers.0.self_attn.v_proj.weight"),
        ("llama", "model.layers.0.self_attn.o_proj.weight"),
        ("phi3", "model.layers.0.self_attn.qkv_proj.weight"),
        ("gpt_neox", "gpt_neox.layers.1.attention.query_key_value.weight"),
        ("gemma", "model.layers.0.input_layernorm.weight"),
    ],
)
def test_a_shape_that_contradicts_the_config_is_named(family: str, name: str, tiny: Any) -> None:
    model = tiny(family)
    tensors = state(model)
    tensors[name] = np.concatenate([tensors[name]] * 2)
    with pytest.raises(ShapeError, match=rf"'{name}' has shape .*expected .*n_heads|num_att"):
        open_checkpoint((tensors, model.config))


def test_a_wrong_number_of_value_heads_is_refused(tiny: Any) -> None:
    model = tiny("phi3")
    config = {**model.config.to_dict(), "num_key_value_heads": 4}
    with pytest.raises(ShapeError, match="num_key_value_heads=4"):
        open_checkpoint((state(model), config))


def test_plain_arrays_and_circuits() -> None:
    V, W = np.diag([1.0, 2.0]), np.diag([3.0, 4.0])
    for source in ((V, W), [V, W], (V.astype(int), W)):
        c = open_checkpoint(source).circuits()[0]
        np.testing.assert_array_equal(c.dense(), W @ V)
    one = OVCircuit(V, W, 1, 1, 2, layer=3)
    assert open_checkpoint(one).circuits()[0] is one
    many = open_checkpoint([one, one])
    assert [c.layer for c in many.circuits()] == [3, 3]
    assert many.plans == []
    assert many.geometry.d_model == 2
    assert many.architecture is None
    assert open_checkpoint(many) is many
    with pytest.raises(OptionError, match="no token embedding"):
        _ = many.readout


@pytest.mark.parametrize("source", [3, None, [], "", ({}, 3), (np.eye(2),)])
def test_what_is_no_source(source: Any) -> None:
    from eigenlens.errors import EigenlensError

    with pytest.raises(EigenlensError):
        open_checkpoint(source)


def test_an_unknown_object_lists_what_is_allowed() -> None:
    with pytest.raises(SourceError, match="give a path, hub id or sample:NAME"):
        open_checkpoint(3)


def leading(values: Any, key: Any) -> complex:
    best = values[np.argmax(key(values))]
    return complex(best.real, abs(best.imag))


def test_known_values_of_the_trained_samples() -> None:
    c = open_checkpoint("sample:albert-rxn").circuits()[0]
    values = np.linalg.eigvals(c.dense())
    assert c.steps == 12
    assert leading(values, np.abs) == pytest.approx(-1.728 + 2.116j, abs=1e-3)
    assert leading(values, lambda z: np.abs(1 + z)) == pytest.approx(-0.133 + 2.169j, abs=1e-3)
    assert leading(values, np.real) == pytest.approx(0.802 + 0.264j, abs=1e-3)
    assert np.linalg.norm(c.dense(), 2) == pytest.approx(5.0588, abs=1e-4)
    circuits = open_checkpoint("sample:minilm").circuits()
    assert leading(np.linalg.eigvals(circuits[0].dense()), np.abs) == pytest.approx(1.238, abs=1e-3)
    last = leading(np.linalg.eigvals(circuits[5].dense()), np.abs)
    assert last == pytest.approx(1.532 + 0.131j, abs=1e-3)


def test_circuits_need_neither_torch_nor_transformers(saved: Any) -> None:
    code = (
        "import sys; from eigenlens.circuit.checkpoint import Circuits, open_checkpoint; "
        "print(len([c.dense() for c in open_checkpoint(sys.argv[1]).circuits()])); "
        "print(sorted({'torch', 'transformers', 'scipy', 'pandas', 'gguf'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(saved("gpt2"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["2", "[]"]


def test_a_checkpoint_and_its_circuits_are_told_in_a_line() -> None:
    checkpoint = open_checkpoint("sample:bert-tiny")
    assert repr(checkpoint) == (
        "<eigenlens Checkpoint sample:bert-tiny: bert, d 128, layers: encoder 4>"
    )
    circuits = checkpoint.circuits()
    assert repr(circuits).endswith(
        "4, read when taken: encoder.0, encoder.1, encoder.2, encoder.3>"
    )
    assert "encoder.1>" in repr(circuits[:2])
    many = Circuits([c for c in circuits for _ in range(3)], None)
    assert repr(many).endswith(
        "12, read when taken: encoder.0, encoder.0, encoder.0, ..., encoder.3>"
    )
