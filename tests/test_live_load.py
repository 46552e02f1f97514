"""Loading: the dtype asked for, every weight of the body, adapters and tokenizers."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenlens.errors import (
    ArchitectureError,
    MissingDependencyError,
    NumericsError,
    OptionError,
    SourceError,
)
from eigenlens.live.batches import make_batches
from eigenlens.live.capture import capture
from eigenlens.live.gguf_once import gguf_once
from eigenlens.live.load import load_model, split_adapter
from eigenlens.live.session import initialised_like, open_session, session_of
from eigenlens.samples import sample_path
from families import BY_NAME

PROMPTS = [[5, 9, 31, 7, 12], [8, 3, 22]]


def last_state(session: Any) -> Any:
    found = next(capture(session, make_batches(session, PROMPTS)))
    return found.batch.flat(found.calls[-1].block)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint stored in float16."""
    folder = tmp_path_factory.mktemp("half")
    BY_NAME["gpt2"].build(head=True).half().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_dtype_is_the_one_asked_for(dtype: str, half: Path) -> None:
    session = open_session(half, dtype=dtype)
    assert str(session.dtype) == f"torch.{dtype}"
    assert {str(p.dtype) for p in session.model.parameters()} == {f"torch.{dtype}"}
    wide = last_state(open_session(half, dtype="float64"))
    assert np.abs(last_state(session) - wide).max() <= {"float32": 1e-5, "float64": 0}.get(
        dtype, 0.2
    )


def test_single_precision_unless_asked(half: Path) -> None:
    assert str(open_session(half).dtype) == "torch.float32"
    assert open_session(half).checkpoint.source.format == "safetensors"


def test_a_live_model_stays_as_it_is(half: Path) -> None:
    model = BY_NAME["bert"].build(head=True).bfloat16()
    model.train()
    session = open_session(model)
    assert session.model is model
    assert str(session.dtype) == "torch.bfloat16"
    assert session.tokenizer is None
    assert session.warnings == ("BertForMaskedLM (live) has no tokenizer: give token ids",)
    last_state(session)
    assert model.training


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def store(folder: Path, arrays: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "lost",
    [
        "encoder.layer.1.output.dense.weight",
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.attention.self.query.bias",
    ],
)
def test_missing_weights_of_the_body_are_an_error(lost: str, saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved("bert", head=False), tmp_path, dirs_exist_ok=True)
    arrays = weights(tmp_path)
    del arrays[lost]
    store(tmp_path, arrays)
    with pytest.raises(SourceError, match=f"1 weights of the model are not in .*'{lost}'"):
        load_model(tmp_path)


def test_a_missing_pooler_or_head_is_none(saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved("bert", head=False), tmp_path, dirs_exist_ok=True)
    arrays = {k: v for k, v in weights(tmp_path).items() if not k.startswith("pooler")}
    store(tmp_path, arrays)
    assert type(load_model(tmp_path)).__name__ == "BertModel"
    assert type(load_model(tmp_path, head=True)).__name__.startswith("Bert")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "int8"}, OptionError, "dtype 'int8' is none for a live model"),
        ({"dtype": "floaat32"}, OptionError, "nearest: 'float32'"),
        ({"device": "cuda:99"}, OptionError, "device 'cuda:99' cannot be used here"),
        ({"device": "gpu"}, OptionError, "device 'gpu' cannot be used here"),
        ({"adapter": "."}, SourceError, r"has no adapter_config.json"),
    ],
)
def test_bad_options_are_one_line(
    options: Any, error: Any, message: str, half: Path, tmp_path: Path
) -> None:
    if "adapter" in options:
        options = {"adapter": tmp_path}
    with pytest.raises(error, match=message) as caught:
        load_model(half, **options)
    assert "\n" not in str(caught.value)


def test_a_session_is_given_back_as_it_is(half: Path) -> None:
    session = open_session(half)
    assert open_session(session, dtype="float64", tokenizer=False) is session


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(SourceError, match="a list has no model to run"):
        open_session([1, 2])


def test_accelerate_places_the_model(half: Path) -> None:
    session = open_session(half, device_map={"": "cpu"}, dtype="float64")
    plain = open_session(half, dtype="float64")
    np.testing.assert_array_equal(last_state(session), last_state(plain))


def test_a_model_in_parts_is_traced(half: Path, tmp_path: Path) -> None:
    """Half of the layers wait on disk, as in a model that is larger than its device."""
    parts = {"wte": "cpu", "wpe": "cpu", "drop": "cpu", "h.0": "cpu", "h.1": "disk", "ln_f": "cpu"}
    import transformers

    model = transformers.AutoModel.from_pretrained(
        half,
        device_map=parts,
        offload_folder=tmp_path,
        dtype="float64",
        attn_implementation="eager",
        local_files_only=True,
    )
    session = session_of(model, half)
    assert next(model.h[1].parameters()).device.type == "meta"
    np.testing.assert_allclose(
        last_state(session), last_state(open_session(half, dtype="float64")), atol=1e-12
    )


def test_without_accelerate_the_remedy_is_named(half: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingDependencyError, match="pip install accelerate"):
        load_model(half, device_map="auto")


@pytest.fixture(scope="module")
def adapted(half: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A LoRA of the GPT-2 with its head, and the state that the merged model has."""
    import peft
    import torch

    torch.manual_seed(0)
    base = load_model(half, "float64", head=True)
    config = peft.LoraConfig(r=2, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an old name
        model = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.3)
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    config_file = folder / "adapter_config.json"
    written = json.loads(config_file.read_text())
    config_file.write_text(json.dumps(written | {"base_model_name_or_path": str(half)}))
    return folder, model.eval()


def test_adapters_are_merged(adapted: Any, half: Path) -> None:
    folder, live = adapted
    plain = last_state(open_session(half, dtype="float64"))
    named = open_session(folder, dtype="float64")
    given = open_session(half, adapter=folder, dtype="float64")
    from_live = open_session(live)
    expected = last_state(from_live)
    assert np.abs(expected - plain).max() > 0.1
    for session in (named, given):
        # peft keeps its factors in float32
        np.testing.assert_allclose(last_state(session), expected, atol=1e-5)
        circuit = session.circuit(session.places[0])
        other = from_live.circuit(from_live.places[0])
        np.testing.assert_allclose(circuit.dense(), other.dense(), atol=1e-5)
    assert any("lora_" in name for name, _ in live.named_parameters())  # left as it was


def test_an_adapter_for_another_model_is_refused(adapted: Any, saved: Any) -> None:
    folder, _ = adapted
    with pytest.raises(SourceError, match=r"peft cannot load|does not fit this base"):
        load_model(saved("llama"), adapter=folder)


def test_an_adapter_that_names_no_base(adapted: Any, tmp_path: Path) -> None:
    shutil.copytree(adapted[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SourceError, match="does not name its base model"):
        open_session(tmp_path)


def test_weights_of_another_model_stop_the_run(saved: Any, tmp_path: Path) -> None:
    model = BY_NAME["gpt2"].build(head=True, seed=5)
    session = session_of(model, saved("gpt2"))
    with pytest.raises(NumericsError, match="decoder layer 0: the model does not apply the F"):
        last_state(session)
    with pytest.raises(ArchitectureError, match=r"encoder layer 2 .* only in the files"):
        session_of(BY_NAME["bert"].build(head=True), saved("bert-deep"))


def test_repository_code_is_not_run(tmp_path: Path, saved: Any) -> None:
    shutil.copytree(saved("bert"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    session = open_session(tmp_path)
    assert type(session.model).__module__.startswith("transformers.models.bert")


# -- tokenizers --------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer_takes_ids_only(half: Path) -> None:
    session = open_session(half)
    assert session.tokenizer is None
    assert len(session.warnings) == 1
    with pytest.raises(SourceError, match="token"):
        session.encode(["text"])
    assert open_session(half, tokenizer=False).warnings == ()


def test_a_tokenizer_json_alone_is_enough(half: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    shutil.copytree(half, tmp_path, dirs_exist_ok=True)
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2} | {f"w{i}": i for i in range(3, 40)}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.add_special_tokens(["[UNK]"])
    fast.save(str(tmp_path / "tokenizer.json"))
    session = open_session(tmp_path)
    assert session.encode(["a b w7"]) == [[1, 2, 7]]
    assert last_state(session).shape == (8, 16)
    (tmp_path / "tokenizer.json").write_text("{}")
    broken = open_session(tmp_path)
    assert broken.tokenizer is None
    assert "tokenizer" in broken.warnings[0]


@pytest.mark.parametrize("sample", ["bert-tiny", "gpt2-tiny", "llama-tiny", "albert-tiny"])
def test_bundled_samples_have_their_tokenizers(sample: str) -> None:
    session = open_session(f"sample:{sample}")
    ids = session.encode(["Return a list of all the names.", "x = 1"])
    batches = make_batches(session, ids)
    found = next(capture(session, batches))
    assert found.unchecked == ()
    assert session.tokenizer is not None
    assert session.tokenizer.unknown_share(ids) == 0
    edges = found.batch.special.sum(axis=1).tolist()
    assert edges == ([2, 2] if "bert" in sample else [0, 0])


def test_chemistry_needs_its_split() -> None:
    import re

    session = open_session(sample_path("albert-rxn"))  # not known as the sample there
    assert session.tokenizer is None
    assert "knows 5 of 591 tokens" in session.warnings[0]
    with pytest.raises(SourceError, match="pass a function that splits"):
        session.encode(["CC(=O)O"])
    atom = re.compile(r"\[[^]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|[()=#\-+\\/.>]|[0-9]")
    split = open_session(sample_path("albert-rxn"), split=atom.findall)
    ids = split.encode(["CC(=O)Oc1ccccc1C(=O)O", "CCO"])
    assert ids == open_session("sample:albert-rxn").encode(["CC(=O)Oc1ccccc1C(=O)O", "CCO"])
    assert split.tokenizer is not None
    assert split.tokenizer.unknown_share(ids) == 0
    assert [len(i) for i in ids] == [23, 5]
    with pytest.raises(OptionError, match="% of the tokens are unknown"):
        open_session("sample:albert-rxn", split=str.split).encode(["a text in English"])


S8 = [
    "The quick brown fox jumps over the lazy dog.",
    "Transformers are deep networks that mix tokens by attention.",
    "The power method finds the dominant eigenvector of a matrix.",
    "In 1969 two people walked on the moon for the first time.",
    "She sold her old bicycle and bought a small boat.",
    "The court ruled that the contract was void from the beginning.",
    "Add two cups of flour and stir until the dough is smooth.",
    "Rain is expected in the north while the south stays dry.",
]


def test_minilm_tilts_as_it_is_known_to() -> None:
    """The known answer of a trained model, from captured states and plain numpy."""
    session = open_session("sample:minilm")
    batches = make_batches(session, session.encode(S8))
    found = next(capture(session, batches))
    rho = []
    for call in found.calls:
        F = session.circuit(call.place).dense()
        values, vectors = np.linalg.eig(F)
        v = vectors[:, np.argmax(np.abs(1 + values))]
        B, _ = np.linalg.qr(np.stack([v.real, v.imag], axis=1) if v.imag.any() else v.real[:, None])
        X = found.batch.flat(call.before).astype(float)
        bias = session.constants(call.place).bias
        Y = found.batch.flat(call.after - bias).astype(float)
        a, b = (np.linalg.norm(Z @ B, axis=1) / np.linalg.norm(Z, axis=1) for Z in (X, Y))
        rho.append(np.mean(b > a))
        assert np.mean(b - a) > 0
    np.testing.assert_allclose(rho, [0.62, 0.72, 0.52, 0.71, 0.80, 0.68], atol=0.02)


@pytest.mark.slow
def test_a_gguf_file_is_traced_with_its_own_tokenizer() -> None:
    session = open_session("sample:smollm2")
    assert session.warnings == ()
    ids = session.encode(S8[:2])
    assert last_state(session).shape == (8, 576)
    found = next(capture(session, make_batches(session, ids)))
    assert len(found.calls) == 30
    assert found.unchecked == ()


def test_the_base_of_an_adapter_is_taken_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    cases = [
        ({}, "org/name", "org/name"),
        ({"revision": None}, "org/name", "org/name"),
        ({"revision": "v1.2"}, "org/name", "org/name@v1.2"),
        ({"revision": "v1.2"}, "org/name@main", "org/name@main"),
        ({}, "here/other", "here/other@main"),  # the folder here/ is a chance
        ({"revision": "v1"}, "here/model", "here/model"),  # this one is meant
        ({"revision": "v1"}, str(tmp_path / "here"), str(tmp_path / "here")),
        ({"revision": ["v1"]}, "org/name", "org/name"),
    ]
    for settings, base, expected in cases:
        config = {"base_model_name_or_path": base, **settings}
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        assert split_adapter(adapter) == (expected, adapter), base


def test_a_gguf_file_is_parsed_once_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf")
    made: list[Any] = []

    def reader(path: str) -> list[str]:
        made.append(path)
        return [path]

    def names(arch: int, blocks: int) -> tuple[int, int]:
        made.append(arch)
        return arch, blocks

    monkeypatch.setattr(gguf, "GGUFReader", reader)
    monkeypatch.setattr(gguf, "get_tensor_name_map", names)
    with gguf_once(True):
        first = gguf.GGUFReader("a")
        assert gguf.GGUFReader("a") is first
        assert gguf.GGUFReader("b") == ["b"]
        assert [gguf.get_tensor_name_map(1, 2) for _ in range(3)] == [(1, 2)] * 3
    assert made == ["a", "b", 1]
    assert gguf.GGUFReader is reader
    with pytest.raises(ValueError, match="stops"), gguf_once(True):
        raise ValueError("it stops")
    assert gguf.get_tensor_name_map is names
    with gguf_once(False):
        assert gguf.GGUFReader is reader


def test_other_threads_are_answered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf")
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: [path])
    with gguf_once(True), ThreadPoolExecutor(1) as pool:
        first = gguf.GGUFReader("a")
        there = [pool.submit(gguf.GGUFReader, "a").result() for _ in range(2)]
        assert there == [first, first]
        assert there[0] is not first
        assert there[1] is not there[0]
        assert gguf.GGUFReader("a") is first


def test_the_untrained_model_is_not_the_one_that_its_seed_makes(tiny: Any) -> None:
    """A model that has just been made with seed 0 would else be its own null."""
    import torch

    usual = type(tiny("gpt2"))
    config = tiny("gpt2").config
    torch.manual_seed(0)
    session = session_of(usual(config))
    found = [initialised_like(session, seed) for seed in (0, 0, 1)]
    own, one, again, other = (
        next(p for p in x.model.parameters() if p.ndim == 2 and p.std() > 0)
        for x in (session, *found)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, own)
