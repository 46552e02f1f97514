"""What users of an edit are told: before the work, in the folder, in every table."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.cli.app import app
from eigenlens.errors import OptionError, SourceError
from eigenlens.live.session import session_of
from eigenlens.report.forms_tables import form_sentence
from eigenlens.report.steer_words import on_top, repetition_text
from eigenlens.samples import sample_path
from eigenlens.steering.continuations import Continuation, Said, continued
from eigenlens.steering.edit import Edit
from eigenlens.steering.forms import FORMS, Destination
from eigenlens.steering.notes import noted, without
from eigenlens.steering.opening import open_subject
from eigenlens.steering.written import Written
from families import BY_NAME
from steering_models import hashes

GPT2 = "sample:gpt2-tiny"
EDIT = ("--token", " the", "--weights-only", "--strength", "9")


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, (result.stderr, result.exception)
    return result


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    run("steer", GPT2, *EDIT, "--write", tmp_path / "edited")
    return tmp_path / "edited"


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to load weights, or to compute an edit, fails loudly."""

    def load(*args: Any, **options: Any) -> Any:
        raise AssertionError("a model was loaded")

    for place in ("live.session.load_model", "steering.opening.load_model"):
        monkeypatch.setattr(f"eigenlens.{place}", load)
    monkeypatch.setattr("eigenlens.steering.steer.from_weights", load)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("steer", "--token", " the", "--as", "delta", "--write", "@dl"), "give it that ending"),
        (("steer", *EDIT, "--as", "delta", "--write", "@none/x.safetensors"), "no folder"),
        (("steer", "--token", " the", "--as", "lora", "--write", "@x.safetensors"), "as delta"),
        (("steer", "--token", " the", "--write", "@x.safetensors"), "--as delta"),
        (("steer", "--token", " the", "--write", "@there"), "is there already"),
        (("steer", "--token", " the", "--write", "@there", "--force"), "no folder of this kind"),
        (("steer", "--token", " the", "--write", "@file/x"), "is a file"),
        (("steer", "--token", " the", "--evaluate", "@nofile"), "no such file"),
        (("steer", "--token", " the", "--calibrate", "@nofile"), "no such file"),
        (("steer", "--contrast", "@nofile", "@nofile"), "no such file"),
        (("steer", "--direction", "@nofile.npy"), "no such file"),
        (("steer", "--token", "xqzz9"), "is 5 tokens of this model"),
        (("trace", "--prompts", "@nofile"), "no such file"),
        (("trace", "--token-ids", "@nofile"), "no such file"),
        (("simulate", "--prompts", "@nofile"), "no such file"),
        (("simulate", "--token-ids", "@nofile"), "no such file"),
        (("report", "--prompts", "@nofile", "--out", "@x.html"), "no such file"),
    ],
)
@pytest.mark.usefixtures("nothing_loads")
def test_what_cannot_work_is_refused_before_the_work(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    placed = [str(tmp_path / a[1:]) if a.startswith("@") else a for a in args[1:]]
    code = 1 if words == "no such file" else 2  # another file, or another option
    lines = run(args[0], GPT2, *placed, code=code).stderr.strip().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "there"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_checks_its_place(tmp_path: Path, form: str) -> None:
    checkpoint = open_checkpoint(GPT2)
    name = "x.safetensors" if form == "delta" else "x"
    there = Destination(tmp_path / name, form)
    there.check(checkpoint)
    (tmp_path / name).mkdir()
    with pytest.raises(OptionError, match="is there already"):
        there.check(checkpoint)


@pytest.mark.parametrize("form", FORMS)
def test_a_place_that_is_not_ones_own_is_refused(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system is asked, whose answer is put on here: to root it always says yes."""
    asked: list[Path] = []

    def access(path: Path, mode: int) -> bool:
        asked.append(Path(path))
        return mode != os.W_OK

    monkeypatch.setattr(os, "access", access)
    place = tmp_path / f"y{'.safetensors' * (form == 'delta')}"
    with pytest.raises(OptionError, match="not yours to write in"):
        Destination(place, form).check(open_checkpoint(GPT2))
    assert asked[-1] == tmp_path


def test_an_edited_folder_says_so_wherever_it_is_shown(edited: Path) -> None:
    for args in (
        ("spectrum", edited, "--no-cache"),
        ("inspect", edited),
        ("compare", GPT2, edited),
        ("trace", edited, "--no-nulls", "--text", "Return the name."),
        ("simulate", edited, "--steps", "2"),
    ):
        shown = " ".join(run(*args).stdout.split())
        assert shown.count("edited by eigenlens (1 edit)") == 1, args
    assert "edited by" not in run("spectrum", GPT2).stdout
    assert eigenlens.inspect(edited).model["edits"] == 1
    assert eigenlens.inspect(GPT2).model["edits"] == 0
    (edited / "eigenlens.json").write_text("{")
    assert eigenlens.inspect(edited).model["edits"] == 0


def test_cards_say_that_their_figures_are_the_originals(edited: Path) -> None:
    original = sample_path("gpt2-tiny")
    text = (edited / "CARD.md").read_text("utf-8")
    assert text.splitlines()[0].startswith("> **Edited by eigenlens")
    assert text.endswith((original / "CARD.md").read_text("utf-8"))
    card = json.loads((edited / "card.json").read_text("utf-8"))
    assert next(iter(card)) == "edited"
    del card["edited"]
    assert card == json.loads((original / "card.json").read_text("utf-8"))


def test_undo_takes_the_notes_out_with_the_first_edit(edited: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice"
    told = run("steer", edited, "--token", " return", *EDIT[2:], "--write", twice, "--link").stdout
    assert "A note in" not in told
    assert (twice / "CARD.md").read_bytes() == (edited / "CARD.md").read_bytes()
    eigenlens.unsteer(twice)
    assert "Edited by" in (twice / "CARD.md").read_text("utf-8")
    eigenlens.unsteer(twice)
    assert hashes(twice) == hashes(sample_path("gpt2-tiny"))
    assert "Edited by" in (edited / "CARD.md").read_text("utf-8"), "a linked card was changed"
    (edited / "CARD.md").write_text("mine")
    eigenlens.unsteer(edited)
    assert (edited / "CARD.md").read_text("utf-8") == "mine"


def test_an_untied_folder_comes_back_with_its_card(tmp_path: Path) -> None:
    out = tmp_path / "untied"
    run("steer", "sample:albert-tiny", "--token", "name", *EDIT[2:], "--write", out)
    assert "Edited by" in (out / "CARD.md").read_text("utf-8")
    eigenlens.unsteer(out)
    assert hashes(out) == hashes(sample_path("albert-tiny"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("README.md", b"---\nlicense: mit\n---\n# A model\n"),
        ("README.md", b"---\r\nlicense: mit\r\n---\r\n# A model\r\n"),
        ("README.md", b"# A model --- \n---\n"),
        ("README.md", b"---\ntitle: x\n----- a\n---b: c\nlicense: mit\n---\n# A model\n"),
        ("README.md", b"---  \nlicense: mit\n--- \r\n# A model\n"),
        ("README.md", b"---\n---\n# A model\n"),
        ("README.md", b"\xef\xbb\xbf---\nlicense: mit\n---\n# A model\n"),
        ("README.md", b"\xef\xbb\xbf# A model\n"),
        ("README.md", b"----- a\n# A model\n"),
        ("README.md", b""),
        ("card.json", b'{"loss": 2.5}'),
        ("card.json", b' {\n "a": {"b": 1}\n}\n'),
        ("card.json", b'\xef\xbb\xbf{"loss": 2.5}'),
    ],
)
def test_a_note_goes_in_and_comes_out(name: str, data: bytes) -> None:
    made = noted(name, data)
    assert made is not None
    assert made != data
    assert without(name, made) == data
    assert noted(name, made) is None, "one note is enough"
    if name == "card.json":
        assert json.loads(made) == {"edited": json.loads(made)["edited"], **json.loads(data)}
    elif data.startswith((b"---\n", b"---\r", b"--- ", b"\xef\xbb\xbf")):
        head = data[: data.index(b"# A model")]
        assert made.startswith(head + b"> **Edited")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("card.json", b"{}"),
        ("card.json", b"[1"),
        ("card.json", '{"loss": 2.5}'.encode("utf-16")),
        ("card.json", '{"loss": 2.5}'.encode("utf-16-le")),
        ("README.md", b"---\nopen"),
        ("README.md", b"---\nopen\n----\n"),
        ("README.md", b"\xef\xbb\xbf---\nopen\n"),
        ("README.md", b"---\nclosed: at the end\n---"),
        ("x.md", b"a"),
    ],
)
def test_what_takes_no_note(name: str, data: bytes) -> None:
    assert noted(name, data) is None


def test_an_edit_that_is_there_already_is_told(edited: Path, tmp_path: Path) -> None:
    delta, other = tmp_path / "dl.safetensors", tmp_path / "other.safetensors"
    run("steer", GPT2, *EDIT, "--write", delta, "--as", "delta")
    run("steer", GPT2, *EDIT[:-1], "5", "--write", other, "--as", "delta")
    for form, place in (("checkpoint", "two"), ("lora", "adapter")):
        told = run("apply", delta, edited, "--write", tmp_path / place, "--as", form).stderr
        assert "holds this very edit already" in told
        assert ("unsteer" in told) == (form == "checkpoint")
    fine = tmp_path / "fine"
    for pair in ((delta, GPT2), (other, edited)):
        assert "already" not in run("apply", *pair, "--write", fine).stderr
        shutil.rmtree(fine)


@pytest.mark.parametrize("form", ["checkpoint", "delta"])
def test_a_command_that_is_told_can_be_typed(tmp_path: Path, form: str) -> None:
    """Also where the place has spaces in its name."""
    place = tmp_path / "it's a place" / f"new one{'.safetensors' * (form == 'delta')}"
    edit = cast(Edit, None)
    told = form_sentence(Written(edit, form, place, (), "tensor"))
    words = shlex.split(told[told.index("eigenlens ") :])
    assert words[2] == str(place)


def test_legends_explain_rows_that_are_shown(tmp_path: Path) -> None:
    delta = tmp_path / "dl.safetensors"
    run("steer", GPT2, *EDIT, "--write", delta, "--as", "delta")
    whole = run("apply", delta, GPT2, "--write", tmp_path / "whole").stdout
    for words in ("arrived: share", "SHA-256: of the", "|dW|: norm"):
        assert words in whole
    adapter = run("apply", delta, GPT2, "--write", tmp_path / "a", "--as", "lora").stdout
    assert "|dW|: norm" in adapter
    assert "arrived" not in adapter
    assert "SHA-256" not in adapter
    texts = tmp_path / "texts.txt"
    texts.write_text("Return the name of the first open file.\nIf x is zero, go on.\n")
    few = ("--strength", "4", "--evaluate", texts)
    token = " ".join(run("steer", GPT2, "--token", " return", *few).stdout.split())
    assert "probability: mean over all places; rank: median" in token
    layer = " ".join(run("steer", GPT2, "--from-layer", "1", *few).stdout.split())
    assert "KL per token: mean" in layer
    assert "probability: mean" not in layer
    assert "rank: median" not in layer


def test_a_missing_library_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_loads: None
) -> None:
    """An adapter of weights alone needs torch only at its end, when all was computed."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    args = ("--from-layer", "0", "--weights-only", "--write", tmp_path / "x", "--as", "lora")
    (line,) = run("steer", GPT2, *args, code=1).stderr.strip().splitlines()
    assert "transformers is not installed" in line
    assert "pip install 'eigenlens[models]'" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "words"),
    [("bert", "has no output head"), ("t5", "is an encoder-decoder")],
)
def test_a_strength_that_nothing_bounds_is_refused_by_the_headers(
    tmp_path: Path, model: str, words: str, monkeypatch: pytest.MonkeyPatch, nothing_loads: None
) -> None:
    """Not even a tokenizer is read, and a model that is given nothing to search goes on."""
    from test_live_capture import encoder_decoder

    def read(*args: Any, **options: Any) -> Any:
        raise AssertionError("a tokenizer was read")

    def opened(*args: Any, **options: Any) -> Any:
        raise SourceError("went on")

    made = encoder_decoder(model) if model == "t5" else BY_NAME[model].build(head=False)
    made.save_pretrained(tmp_path)
    monkeypatch.setattr("eigenlens.steering.opening.load_tokenizer", read)
    (line,) = run("steer", tmp_path, "--from-layer", "1", code=2).stderr.strip().splitlines()
    assert words in line
    assert "no KL bounds the strength: give --strength or --target-cosine" in line
    monkeypatch.setattr("eigenlens.steering.opening.load_tokenizer", lambda *a, **o: None)
    monkeypatch.setattr("eigenlens.steering.opening.open_session", opened)
    for given in (("--strength", "4"), ("--target-cosine", "0.5")):
        assert "went on" in run("steer", tmp_path, "--from-layer", "1", *given, code=1).stderr


def test_a_model_in_memory_without_a_head_is_refused_before_texts_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*args: Any, **options: Any) -> Any:
        raise AssertionError("texts were read")

    monkeypatch.setattr("eigenlens.steering.live_run.read_sets", read)
    subject = open_subject(BY_NAME["gpt2"].build(head=False))
    with pytest.raises(OptionError, match="has no output head, so that no KL bounds"):
        eigenlens.steer(subject, from_layer=1)
    with pytest.raises(AssertionError, match="texts were read"):
        eigenlens.steer(subject, from_layer=1, strength=4.0)


def words_of(*args: str | Path) -> str:
    return " ".join(run("steer", *args, "--weights-only").stdout.split())


def test_a_plane_that_led_is_not_told_as_a_direction_that_led() -> None:
    """The layer is led by a complex pair, the edited one by an eigenvector."""
    text = words_of("sample:albert-tiny-rotating", "--from-layer", "0", "--strength", "20")
    assert "The direction now leads the spectrum" in text
    assert "as it did before" not in text
    assert "(before 1.0000 with the leading plane)" in text
    assert "cosine of what leads with the direction 1.0000 (plane) 1.0000 (eigenvector)" in text
    weak = words_of("sample:albert-tiny-rotating", "--from-layer", "0", "--strength", ".001")
    assert "The direction lies, as it did before, in the leading plane of layer 0" in weak
    assert "eigenvector has" not in weak
    real = words_of(GPT2, "--from-layer", "3", "--strength", "9")
    assert "leads, as it did before, the spectrum" in real
    assert "cosine of its eigenvector with the direction" in real
    assert "plane" not in real


def test_the_exact_formula_says_of_what_it_is() -> None:
    """And is not called the source of a leading eigenvalue that the edit's term did not make."""
    words = "which is what the exact formula gives for F plus the edit's rank-one term"
    text = words_of(GPT2, *EDIT[:2], "--strength", "9")
    told = re.search(re.escape(words) + r" \(strength x q.u, ([\d.]+), is that of the term", text)
    assert told is not None, text
    edit = eigenlens.steer(GPT2, " the", weights_only=True, strength=9.0)
    circuit = open_checkpoint(GPT2).circuits()[-1]
    q = np.asarray(circuit.W_V, dtype=float).T @ edit.edit.w
    term = np.linalg.eigvals(9.0 * np.outer(edit.edit.direction, q))
    assert float(told[1]) == pytest.approx(abs(term).max(), rel=6e-3)
    assert edit.spectrum is not None
    other = replace(edit.spectrum.after, eigenvalue=edit.spectrum.after.eigenvalue + 1)
    assert words in on_top(edit, edit.spectrum)
    assert "formula" not in on_top(edit, replace(edit.spectrum, after=other))


def test_a_layer_is_called_as_tables_call_it() -> None:
    text = words_of(GPT2, *EDIT, "--layer", "3")
    assert "edit of W_O in layer 3: " in text
    assert "decoder" not in text
    plain = eigenlens.steer(GPT2, token=[" the"], weights_only=True, strength=9.0)
    plans = [SimpleNamespace(stack=s, kind=k) for s, k in TWO_STACKS]
    several = replace(plain, checkpoint=cast(Any, SimpleNamespace(plans=plans)))
    assert (plain.where, several.where) == ("layer 3", "decoder.3")


TWO_STACKS = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))


def test_a_text_that_repeats_itself_is_told() -> None:
    said = {"before": (1, 2, 3, 4, 5), "after": (7, 7, 7, 7, 7)}
    shares = {name: Said("", ids).distinct or 0.0 for name, ids in said.items()}
    assert shares == {"before": 1.0, "after": 0.2}
    assert Said("", ()).distinct is None
    stuck = Continuation("A start", {"before": "", "after": ""}, shares)
    sound = replace(stuck, distinct={"before": 1.0, "after": 0.8})
    text = repetition_text([sound, stuck])
    assert text.startswith("In 1 of 2 texts the edited model repeats itself: behind 'A start' 20 %")
    assert "100 % in the unedited one" in text
    assert repetition_text([sound]) == (
        "In the text of the edited model 80 % of the tokens are distinct."
    )
    nearly = replace(stuck, distinct={"before": 1.0, "after": 0.4996})
    assert "49 % of the tokens" in repetition_text([nearly])
    both = replace(stuck, distinct={"before": 0.2, "after": 0.2})
    assert repetition_text([both]).endswith("The unedited model does so there as well.")
    assert repetition_text([both, stuck]).endswith("does so in 1 of these 2 as well.")
    assert repetition_text([replace(stuck, distinct={})]) == ""


@pytest.mark.parametrize("pad", [None, 0, 59])
def test_what_stands_behind_the_end_of_a_text_is_no_text(pad: int | None) -> None:
    """Where the config names no pad, the rows that end early are filled with an ordinary token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "vocab_size": 60}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, eos_token_id=59, bos_token_id=None, pad_token_id=pad)
    )

    def generate(input_ids: Any, **options: Any) -> Any:
        import torch

        fill = options["pad_token_id"]
        rows = [[10, 11, 59, *[fill] * 7], [10, 11, 12, 10, 11, 12, 59, *[fill] * 3]]
        return torch.cat([input_ids, torch.tensor(rows)], dim=1)

    model.generate = generate
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)), special=frozenset())
    session = replace(session_of(model), tokenizer=cast(Any, tokenizer))
    found, why = continued(session, [[1, 2], [3, 4]], nullcontext())
    assert why == ""
    assert found is not None
    assert [x.text for x in found] == ["10 11", "10 11 12 10 11 12"]
    assert [x.distinct for x in found] == [1.0, 0.5]


def test_a_written_checkpoint_is_told_to_be_rounded(tmp_path: Path) -> None:
    words = "the file holds it rounded to its own type"
    assert words in words_of(GPT2, *EDIT[:2], "--strength", "9", "--write", tmp_path / "x")
    delta = tmp_path / "x.safetensors"
    asked = (*EDIT[:2], "--strength", "9", "--write", delta, "--as", "delta")
    assert words not in words_of(GPT2, *asked)
