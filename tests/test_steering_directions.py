"""Directions: what each is by an independent calculation, and one clear line for what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import EigenlensError, FormatError, NumericsError, OptionError
from eigenlens.live.batches import make_batches
from eigenlens.live.session import session_of
from eigenlens.steering.directions import of_contrast, of_layer, says, unit
from eigenlens.steering.opening import Subject
from eigenlens.steering.stage import find_stage
from eigenlens.steering.token_directions import (
    from_vocabulary,
    of_masked_tokens,
    of_tokens,
    token_ids,
    token_vector,
)
from eigenlens.steering.vector_files import of_file

D = 16
NAMES = str


def draw(seed: int, n: int = D) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n)


# -- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "gemma", "albert", "gpt_neox", "bert"])
def test_a_tokens_direction_is_what_its_logit_reads(name: str, tiny: Any) -> None:
    readout = open_checkpoint(tiny(name)).readout
    for token in (0, 7, 31):
        u = token_vector(readout, token)
        for seed in range(3):
            v = draw(seed)
            # The embedding of a masked head that is not linear is its reading as well.
            assert float(u @ v) == pytest.approx(float(readout.write_logits(v)[token]), rel=1e-5)
    other = token_vector(readout, 8) @ draw(0)
    assert other != pytest.approx(float(readout.write_logits(draw(0))[7]), rel=1e-3)


def test_several_tokens_are_the_mean_of_their_unit_directions(tiny: Any) -> None:
    readout = open_checkpoint(tiny("llama")).readout
    found = of_tokens(readout, (3, 9), NAMES, D)
    parts = [token_vector(readout, t) for t in (3, 9)]
    expected = sum(p / np.linalg.norm(p) for p in parts)
    np.testing.assert_allclose(found.vector, expected / np.linalg.norm(expected), atol=1e-12)
    assert np.linalg.norm(found.vector) == pytest.approx(1.0)
    assert found.targets == (3, 9)
    assert found.label == "tokens '3', '9'"


def test_a_text_that_is_no_single_token_shows_its_tokens() -> None:
    words = {"Par": 1, "is": 2, " Paris": 3}

    def encode(text: str) -> list[int]:
        return [words[text]] if text in words else [1, 2] if text == "Paris" else []

    names = {v: k for k, v in words.items()}.__getitem__
    assert token_ids([" Paris", 2, " Paris"], encode, names, 9) == (3, 2)
    with pytest.raises(OptionError, match=r"2 tokens .* 'Par' \+ 'is'.*' Paris' is one, with the"):
        token_ids(["Paris"], encode, names, 9)
    with pytest.raises(OptionError, match="has no tokens"):
        token_ids([""], encode, names, 9)
    with pytest.raises(OptionError, match="ids are 0 to 8"):
        token_ids([9], encode, names, 9)


def test_tokens_by_the_vocabulary_alone() -> None:
    checkpoint = eigenlens.open_checkpoint("sample:gpt2-tiny")
    ids = from_vocabulary(checkpoint, [" return"])
    assert checkpoint.source.tokens()[ids[0]] == " return"
    with pytest.raises(OptionError, match=r"no single token.*nearest"):
        from_vocabulary(checkpoint, [" retturn"])
    vector = of_tokens(checkpoint.readout, ids, NAMES, 128).vector
    assert says(checkpoint, vector)[0] == " return"
    assert says(checkpoint, -vector)[0] != " return"


def test_a_masked_heads_direction_is_the_mean_gradient(tiny: Any) -> None:
    import torch

    model = tiny("bert")
    session = session_of(model)
    prompts = [[5, 9, 31, 7], [8, 3, 22, 14]]
    found = of_masked_tokens(Subject(session, "masked"), prompts, (6,), NAMES, D)
    batch = next(iter(make_batches(session, prompts)))
    with torch.no_grad():
        h = model.bert(**batch.inputs).last_hidden_state

    def logit(step: np.ndarray) -> float:
        with torch.no_grad():
            return float(model.cls(h + torch.as_tensor(step))[..., 6].sum())

    slopes = [(logit(1e-5 * draw(seed)) - logit(-1e-5 * draw(seed))) / 2e-5 for seed in range(4)]
    along = [float(found.vector @ draw(seed)) for seed in range(4)]
    np.testing.assert_allclose(np.array(slopes) / slopes[0], np.array(along) / along[0], rtol=1e-5)
    assert slopes[0] * along[0] > 0
    assert all(p.grad is None for p in model.parameters())


# -- files ---------------------------------------------------------------------------------------


def save(path: Path, vector: np.ndarray, name: str = "direction") -> Path:
    from safetensors.numpy import save_file

    if path.suffix == ".npy":
        np.save(path, vector)
    elif path.suffix == ".safetensors":
        save_file({name: np.ascontiguousarray(vector)}, path)
    else:
        import gguf

        writer = gguf.GGUFWriter(path, "controlvector")
        writer.add_tensor(name, vector)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("v.npy", ""),
        ("v.safetensors", "direction"),
        ("v.safetensors", "anything"),
        ("v.safetensors", "direction.3"),
        ("v.gguf", "direction.3"),
    ],
)
def test_vector_files(file: str, name: str, tmp_path: Path) -> None:
    v = draw(1).astype(np.float32)
    found = of_file(save(tmp_path / file, v, name), D, 3)
    np.testing.assert_allclose(found.vector, v / np.linalg.norm(v), atol=1e-7)
    assert found.kind == "file"


def test_vector_files_that_hold_none(tmp_path: Path) -> None:
    def refused(error: type[EigenlensError], match: str, path: Path, layer: int = 3) -> None:
        with pytest.raises(error, match=match):
            of_file(path, D, layer)

    good = draw(1).astype(np.float32)
    refused(FormatError, "no such file", tmp_path / "none.npy")
    refused(FormatError, "are read from", save(tmp_path / "v.npy", good).rename(tmp_path / "v.txt"))
    refused(OptionError, "has 7 numbers.*has 16", save(tmp_path / "a.npy", draw(1, 7)))
    refused(OptionError, "is zero", save(tmp_path / "b.npy", np.zeros(D)))
    refused(OptionError, "one real vector", save(tmp_path / "c.npy", np.ones((4, 4))))
    refused(OptionError, "complex128", save(tmp_path / "d.npy", good.astype(complex)))
    refused(
        NumericsError, "NaN or infinity", save(tmp_path / "e.npy", np.where(good > 0, good, np.nan))
    )
    refused(
        FormatError, "no tensor 'direction.2'", save(tmp_path / "f.gguf", good, "direction.3"), 2
    )
    refused(
        FormatError,
        "no tensor 'direction.2'",
        save(tmp_path / "f.safetensors", good, "direction.3"),
        2,
    )
    np.save(tmp_path / "g.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused(FormatError, "no .npy file of plain numbers", tmp_path / "g.npy")
    (tmp_path / "h.npy").write_bytes(b"")
    refused(FormatError, "no .npy file", tmp_path / "h.npy")


def test_a_column_or_huge_numbers_are_a_vector_all_the_same() -> None:
    v = draw(2)
    np.testing.assert_allclose(unit(1e200 * v[:, None], D, "v"), v / np.linalg.norm(v), atol=1e-12)
    np.testing.assert_allclose(unit(np.arange(1, 17), D, "v")[-1], 16 / np.sqrt(1496))


# -- texts and layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_contrast_is_the_difference_of_mean_states(name: str, tiny: Any) -> None:
    import torch

    model = tiny(name)
    session = session_of(model)
    place = session.places[0]
    first = next(iter(make_batches(session, [[5, 9]])))
    stage = find_stage(session, place, "attention", "last", first.inputs)
    positive, negative = [[5, 9, 31, 7], [8, 3]], [[11, 25, 4], [6]]
    found = of_contrast(stage, positive, negative, ("a.txt", "b.txt"))

    def mean(prompts: list[list[int]]) -> np.ndarray:
        rows = []
        for ids in prompts:
            with torch.no_grad():
                states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[1][0]
            rows += list(states[1:] if len(ids) > 1 else states)
        return np.mean([r.numpy() for r in rows], axis=0)

    expected = mean(positive) - mean(negative)
    np.testing.assert_allclose(found.vector, expected / np.linalg.norm(expected), atol=1e-6)
    assert found.label == "contrast a.txt - b.txt"
    with pytest.raises(OptionError, match="is zero"):
        of_contrast(stage, positive, positive, ("a", "a"))


def test_another_layers_leader() -> None:
    checkpoint = eigenlens.open_checkpoint("sample:llama-tiny")
    found = of_layer(checkpoint, "decoder", 1, 128)
    layer = eigenlens.spectrum(checkpoint, layers=[1]).layers[0]
    assert abs(found.vector @ layer.right_vectors[:, 0].real) == pytest.approx(1.0)
    assert found.label == "v1 of decoder.1"
    with pytest.raises(OptionError, match="layers are 0 to 4"):
        of_layer(checkpoint, "decoder", 9, 128)


def test_of_a_plane_one_direction_is_taken_and_told() -> None:
    turn = np.array([[0.9, -0.5, 0], [0.5, 0.9, 0], [0, 0, 0.1]])
    found = of_layer(open_checkpoint((np.eye(3), turn)), "decoder", 0, 3)
    assert abs(found.vector[2]) < 1e-9
    assert "complex pair" in found.warnings[0]
    with pytest.raises(OptionError, match="kernel leads"):
        of_layer(open_checkpoint((np.diag([1.0, 0, 0]), -np.eye(3))), "decoder", 0, 3)


@pytest.mark.parametrize("text", ["\ud800", "a\udcff"])
def test_a_token_that_is_no_unicode(text: str) -> None:
    """What a shell hands over that is no UTF-8."""
    with pytest.raises(OptionError, match="no Unicode text"):
        token_ids([text], lambda text: [len(text)], NAMES, 40)


def test_a_long_text_is_cut_in_messages() -> None:
    with pytest.raises(OptionError) as found:
        token_ids(["x" * 10_000], lambda text: range(10_000), NAMES, 40)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(D, dtype="V8"),
        np.zeros(D, dtype=[("a", "f4"), ("b", "f4")]),
        [[1.0, 2.0], [3.0]],
        np.ones(D, dtype=complex),
        np.ones(D, dtype=bool),
    ],
    ids=["bytes", "records", "ragged", "complex", "bool"],
)
def test_what_is_no_vector_of_numbers(vector: Any) -> None:
    with pytest.raises(OptionError, match="real vector"):
        unit(vector, D, "it")


def test_a_vector_in_bfloat16_is_one() -> None:
    import ml_dtypes

    found = unit(np.ones(D, dtype=ml_dtypes.bfloat16), D, "it")
    np.testing.assert_allclose(found, np.full(D, D**-0.5))


def test_a_header_that_lies_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, draw(0))
    np.testing.assert_allclose(of_file(path, D, 0).vector, unit(draw(0), D, "it"))
    plain = path.read_bytes()
    path.write_bytes(plain.replace(b"(16,), }" + b" " * 12, b"(99999999999999,), }"))
    assert path.stat().st_size == len(plain)
    with pytest.raises(FormatError, match=r"is no \.npy file of plain numbers"):
        of_file(path, D, 0)


@pytest.mark.parametrize("name", ["gpt2", "bert", "albert", "llama"])
def test_a_direction_that_a_layer_norm_removes(name: str, tiny: Any) -> None:
    """Behind a norm that centres, nothing of it is left but rounding; another norm keeps it."""
    texts = {"calibrate": [[5, 9, 31, 7]], "evaluate": [[8, 3, 12, 20]], "strength": 1.0}
    if name == "llama":
        found = eigenlens.steer(tiny(name), direction=np.ones(D), **texts)
        assert found.after is not None
        return
    with pytest.raises(OptionError, match="removes the direction"):
        eigenlens.steer(tiny(name), direction=np.ones(D), **texts)
