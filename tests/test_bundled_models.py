"""The bundled models are models: transformers opens them, and they predict unseen text."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eigenlens.samples import SAMPLES, sample_path

EXAMPLES = Path(__file__).parents[1] / "examples"
BUNDLED = [s.name for s in SAMPLES.values() if s.kind == "bundled"]
SHORT = 24_000  # characters of held-out text: some 6,000 tokens


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`training.measures`, from the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("training.measures")


@pytest.fixture(scope="module")
def corpus() -> Any:
    """The documentation of the Python that runs the tests, split as for the training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module("training.corpus").read_corpus()


def card(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((sample_path(name) / "card.json").read_text("utf-8"))
    return record


def enough(name: str, loss: dict[str, float]) -> bool:
    """Causal models beat the bigram; masked ones, which see fewer targets, the unigram clearly."""
    if card(name)["objective"] == "causal":
        return loss["held_out"] < loss["bigram"]
    return loss["held_out"] < loss["unigram"] - 0.3


@pytest.mark.parametrize("name", BUNDLED)
def test_transformers_opens_the_folder(name: str) -> None:
    import torch
    import transformers

    folder = sample_path(name)
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == SAMPLES[name].family
    assert next(model.parameters()).dtype == torch.float16
    whole = getattr(transformers, card(name)["class"]).from_pretrained(folder)
    assert whole.num_parameters() == card(name)["parameters"] <= 1_100_000
    text = "Return a list of the names of the files."
    batch = tokenizer(text, return_tensors="pt")
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in batch["input_ids"]
    shown = tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True)
    assert shown.replace(" ", "").lower() == text.replace(" ", "").lower()
    assert len(tokenizer) == whole.config.vocab_size == 2048
    with torch.no_grad():
        states = model.float()(**batch).last_hidden_state
    assert torch.isfinite(states).all()


@pytest.mark.parametrize("name", ["gpt2-tiny", "albert-tiny-rotating"])
def test_held_out_loss_of_the_shipped_weights(name: str, training: Any, corpus: Any) -> None:
    part = dataclasses.replace(corpus, held_out=corpus.held_out[:SHORT])
    loss = training.measure(sample_path(name), part)
    assert enough(name, loss), loss
    assert loss["bigram"] < loss["unigram"]


def test_an_untrained_model_does_not_pass(training: Any, corpus: Any, tmp_path: Path) -> None:
    name = "gpt2-tiny"
    import torch
    import transformers

    folder = tmp_path / name
    shutil.copytree(sample_path(name), folder)
    torch.manual_seed(0)
    kind = getattr(transformers, card(name)["class"])
    kind(kind.config_class.from_pretrained(folder)).half().save_pretrained(folder)
    part = dataclasses.replace(corpus, held_out=corpus.held_out[: SHORT // 3])
    assert not enough(name, training.measure(folder, part))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_the_card_says_what_is_measured(name: str, training: Any, corpus: Any) -> None:
    """On all held-out text; to the digits of the card where this Python has the card's text."""
    said = card(name)
    loss = training.measure(sample_path(name), corpus)
    assert enough(name, loss), loss
    if corpus.sha256 == said["corpus"]["sha256"]:
        assert loss == pytest.approx(said["loss"], abs=5e-4)
        assert corpus.characters == said["corpus"]["characters"]


@pytest.mark.parametrize("name", BUNDLED)
def test_cards_show_losses_data_and_licence(name: str) -> None:
    said = card(name)
    text = (sample_path(name) / "CARD.md").read_text("utf-8")
    assert enough(name, said["loss"])
    for key in ("held_out", "bigram", "unigram"):
        assert f"| {said['loss'][key]:.3f} |" in text
    assert f"Licence: {said['licence']}" in text
    assert said["licence"] == SAMPLES[name].licence
    assert said["corpus"]["sha256"] in text
    assert f"Python {said['corpus']['python']}" in text
    assert f"{said['training']['steps']:,} steps" in text
