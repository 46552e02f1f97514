"""Sentences say only what was found: whose p it is, whose names they are, what was tried."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.plans import Skipped
from eigenlens.claims.table import power_step
from eigenlens.cli import main as command
from eigenlens.cli.app import app
from eigenlens.comparing.layers import Key, _lonely
from eigenlens.dynamics.outcome import Tolerance
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.errors import OptionError
from eigenlens.live.batches import make_batches
from eigenlens.live.session import session_of
from eigenlens.report.forms_tables import _left_sentence
from eigenlens.report.model_words import FULL, SHORT, sizes_text
from eigenlens.report.names import left_out_texts
from eigenlens.report.page.gather import Options
from eigenlens.report.page.record import _command
from eigenlens.report.page.sections import SECTIONS
from eigenlens.report.panels.traces import MEASURES, alignment
from eigenlens.report.simulate_tables import _none
from eigenlens.report.steer_words import window_text
from eigenlens.report.trace_words import _beyond_rotated
from eigenlens.shown import short
from eigenlens.steering.measures import Cosines, Measure
from eigenlens.steering.opening import place_of
from eigenlens.steering.stage import find_stage
from eigenlens.steering.texts import read_sets
from eigenlens.steering.token_directions import token_ids
from eigenlens.surveys.rows import skipped_row

# -- alignment -----------------------------------------------------------------------------------


def test_a_p_value_stands_beside_the_measure_that_it_tests() -> None:
    found = eigenlens.trace("sample:gpt2-tiny", texts=[f"text {i} of many" for i in range(20)])
    assert all(x.p_holm is not None for x in found.layers)
    data = alignment(found)
    for i, measure in enumerate(data["measure"]):
        layer = found.layers[data["position"][i]]
        assert data["p_holm"][i] == (layer.p_holm if measure == "rho" else None)
    assert set(data["measure"]) == set(MEASURES)
    assert "p_value" not in data  # which in the JSON is the one without a correction


def test_of_a_mean_over_rotations_nothing_is_said_of_every_matrix() -> None:
    nulls = {"matched_spectrum": {"rho": 0.7}, "random_direction": {}}
    layer = SimpleNamespace(
        nulls=nulls, rho=0.6, rho_ci=(0.5, 0.65), stack="decoder", kind="self", layer=0, step=0
    )
    layers = [cast(Any, x) for x in (layer, SimpleNamespace(**{**vars(layer), "layer": 1}))]
    text = _beyond_rotated(cast(Any, SimpleNamespace(layers=layers)), layers)
    assert text.endswith("0 of these 2; in the others F rotated at random does as much.")
    assert "any matrix" not in text


# -- steering ------------------------------------------------------------------------------------


def swept(kl: float, *, label: str, says: tuple[str, ...]) -> str:
    """What is said of a sweep whose strongest edit aligns tokens at this KL."""

    def measure(strength: float, kl: float, chance: float, cosine: float) -> Measure:
        tokens = {"after_sublayer": (Cosines(cosine, cosine, 1.0, 9), None)}
        return Measure(strength, kl, None, chance, None, cast(Any, tokens))

    points = [measure(1.0, 0.01, 0.5, 0.3), measure(9.0, kl, 0.1, 0.95)]
    result = SimpleNamespace(
        options={"max_kl": 0.5},
        window=None,
        edit=SimpleNamespace(strength=1.0),
        direction=SimpleNamespace(label=label, targets=(1, 2)),
        says=says,
    )
    return window_text(cast(Any, result), points)


def test_wanted_tokens_are_not_among_the_others() -> None:
    text = swept(9.0, label="tokens ' Paris', ' Rome'", says=(" Paris", " Rome", " Berlin"))
    assert "since logits of others (' Berlin') grow faster" in text
    alone = swept(9.0, label="token ' Paris'", says=(" Paris", " Rome"))
    assert "since logits of others (' Rome') grow faster" in alone
    assert "others" not in swept(9.0, label="tokens ' Paris', ' Rome'", says=(" Rome", " Paris"))


@pytest.mark.parametrize(("kl", "breaks"), [(0.01, False), (0.5, False), (0.6, True)])
def test_a_model_breaks_only_beyond_the_bound(kl: float, breaks: bool) -> None:
    text = swept(kl, label="token ' a'", says=())
    assert "from strength 9.00 on, where the KL is" in text
    assert ("breaks the model" in text) is breaks


# -- names ---------------------------------------------------------------------------------------


def test_a_cross_attention_layer_left_out_has_its_own_name() -> None:
    assert left_out_texts([("decoder", "self")], [("decoder", "cross", 0, "x")]) == [
        "decoder.cross.0 left out: x"
    ]
    groups = [("encoder", "self"), ("decoder", "self")]
    assert left_out_texts(groups, [("decoder", "cross", 3, "x")]) == ["decoder.cross.3 left out: x"]


def test_what_is_left_out_knows_its_kind() -> None:
    """In a row of rules, in what has no spectrum, and in a survey."""
    rng = np.random.default_rng(0)
    tensors = {
        "layers.0.self_attn.v_proj.weight": rng.normal(size=(4, 6)),
        "layers.0.self_attn.o_proj.weight": rng.normal(size=(8, 4)),
        "layers.0.input_layernorm.weight": np.ones(6),
        "layers.1.mamba.A": np.ones(3),
    }
    config = {"model_type": "new", "hidden_size": 8, "num_hidden_layers": 2, "width": 6}
    config |= {"num_attention_heads": 2, "head_dim": 2}
    row = ARCHITECTURES["llama"]
    others = {"layers.{layer}.mamba.": "a Mamba layer"}
    stack = replace(row.stacks[0], keys={"d_in": ("width",)}, others=others, kind="cross")
    checkpoint = open_checkpoint((tensors, config), replace(row, stacks=(stack,)))
    found = eigenlens.spectrum(checkpoint).skipped
    assert [(s.kind, s.layer) for s in found] == [("cross", 1), ("cross", 0)]
    assert [skipped_row({}, s)["kind"] for s in found] == ["cross", "cross"]


def test_a_reason_is_that_of_the_layer_it_was_given_for() -> None:
    lost = (
        Skipped("decoder", 0, "its cross part", "cross"),
        Skipped("text", -1, "all cross parts", "cross"),
        Skipped("vision", -1, "a tower", None),
    )
    other = Checkpoint("m", {}, skipped=lost)
    reasons = [
        _lonely(Key(stack, kind, 0), other)["reason"]
        for stack, kind in (
            *(("decoder", "cross"), ("decoder", "self")),
            *(("text", "cross"), ("text", "self")),
            *(("vision", "self"), ("vision", "cross")),
        )
    ]
    no = "the other one has no such layer"
    assert reasons == ["its cross part", no, "all cross parts", no, "a tower", "a tower"]


def test_two_sides_are_no_interval() -> None:
    rng = np.random.default_rng(0)
    one = OVCircuit(rng.normal(size=(4, 8)), rng.normal(size=(8, 4)), 1, 1, 4, placement="pre")
    other = replace(one, W_O=one.W_O + 0.1 * rng.normal(size=(8, 4)))
    layer = eigenlens.compare([one], [other]).layers[0]
    text = str(layer)
    assert "[" not in text
    assert layer.a is not None
    assert layer.b is not None
    lines = {
        line[: line.index("  ")]: line.split("  ")[-1].strip() for line in text.split("\n")[1:]
    }
    assert lines["leading of A"] == short(layer.a.eigenvalue)
    assert lines["leading of B"] == short(layer.b.eigenvalue)
    assert lines["regime of A"] == layer.a.regime


# -- simulations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [1e-6, 1e-3])
def test_the_tolerance_that_is_told_is_the_one_that_was_used(angle: float) -> None:
    F = 0.3 * np.eye(3) + np.diag([0.02, 0.0, 0.0])
    found = simulate_matrices(F, n_tokens=4, steps=6, tolerance=Tolerance(angle=angle))
    assert found.options["angle_tolerance"] == angle
    assert found.outcome.label == "unsettled"
    text = _none(found, "")
    told = re.search(rf"they count as one within {angle:g} rad, a cosine of 1 - (\S+)\)", text)
    assert told is not None
    assert float(told[1]) == pytest.approx(angle**2 / 2, rel=0.05)


@pytest.mark.parametrize("cosine", [1 + 1e-7, 1.0, 1 - 1e-17])
def test_a_cosine_of_one_is_told_as_nearly_one(cosine: float) -> None:
    found = simulate_matrices(0.3 * np.eye(3), n_tokens=4, steps=2)
    last = {**found.trajectory[-1], "cosine": cosine}
    text = _none(replace(found, trajectory=(*found.trajectory[:-1], last)), "")
    told = re.search(r"mean cosine 1 - ([^;]*);", text)
    assert told is not None, text
    assert 0 < float(told[1]) < 1e-15


# -- the page ------------------------------------------------------------------------------------


def test_the_command_of_a_page_has_all_that_was_asked_for() -> None:
    asked = Options(
        texts=["mine", "yours too"],
        device="cuda",
        trust_remote_code=True,
        architecture="private/r.toml",
    )
    command = _command(SECTIONS, asked, {"source": "m"}, "x.html")
    for part in (
        *("--text mine", "--text 'yours too'", "--device cuda", "--trust-remote-code"),
        "--architecture r.toml",
    ):
        assert part in command
    usual = _command(SECTIONS, Options(), {"source": "m"}, "x.html")
    assert usual == "eigenlens report m --out x.html"


# -- numbers of one ------------------------------------------------------------------------------


def test_one_head_and_one_layer_are_no_plural() -> None:
    rng = np.random.default_rng(0)
    one = OVCircuit(rng.normal(size=(4, 8)), rng.normal(size=(8, 4)), 1, 1, 4, placement="pre")
    assert "1 head of 4" in sizes_text(eigenlens.spectrum([one]).model, *FULL)
    assert sizes_text({"d_model": 8, "n_heads": 1, "placement": None}, *SHORT) == "d 8, 1 head"
    assert sizes_text({"d_model": 8, "n_heads": 2, "placement": None}, *SHORT) == "d 8, 2 heads"
    row = SimpleNamespace(error_one=1e-7, error_four=1e-7, error_heads=None, ok=True)
    judged = power_step(cast(Any, SimpleNamespace(identity=[row], identity_tolerance=1e-4)))
    assert "over 1 layer (" in judged.measured


@pytest.mark.parametrize(
    ("shared", "told"),
    [
        (1, "1 prompt that is calibrated on is not evaluated on"),
        (2, "2 prompts that are calibrated on are not evaluated on"),
    ],
)
def test_prompts_of_both_sets_are_counted(shared: int, told: str, tiny: Any) -> None:
    a, b = [[3, 4], [5, 6], [7, 8]], [[9, 10], [11, 12]]
    session = session_of(tiny("gpt2"))
    assert read_sets(session, a, [*a[:shared], *b]).warnings == (told,)
    assert read_sets(session, a, b).warnings == ()


def test_files_and_edits_of_a_form_are_counted() -> None:
    edit = {"stack": "decoder", "layer": 0, "site": "attention", "label": "x", "tensor": "t"}
    undone = SimpleNamespace(
        edit={**edit, "sha256_before": "0" * 64}, folder=Path("m"), remaining=1, notes=()
    )
    for n, told in ((1, "1 older edit is left"), (2, "2 older edits are left")):
        undone.remaining = n
        assert _left_sentence(cast(Any, undone)).startswith(told)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "allowed"), [(-1, "ids are not negative"), (7, "0 to 5")])
def test_a_range_of_ids_is_told_where_it_is_known(token: int, allowed: str) -> None:
    size = None if token < 0 else 6
    with pytest.raises(OptionError, match=allowed):
        token_ids([token], lambda text: [0], str, size)
    assert token_ids([1 << 40], lambda text: [0], str, None) == (1 << 40,)


def test_a_dry_run_refuses_files_that_it_would_not_write(tmp_path: Path) -> None:
    words = ["spectrum", "sample:gpt2-tiny", "--dry-run"]
    for option, name in (("--vectors", "v.npz"), ("--figures", "d")):
        done = CliRunner().invoke(app, [*words, option, str(tmp_path / name)])
        assert done.exit_code == 2
        assert f"--dry-run computes nothing that {option} could be made of" in done.stderr
    assert not list(tmp_path.iterdir())
    assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.parametrize("flat", [True, False])
def test_why_a_norm_removes_a_direction(flat: bool, tiny: Any) -> None:
    import torch

    session = session_of(tiny("llama"))
    place = place_of(session, -1)
    first = next(iter(make_batches(session, [[5, 6, 7]])))
    stage = find_stage(session, place, "attention", "last", first.inputs)
    u = np.ones(16) / 4 if flat else np.eye(16)[3]
    norm: Any = torch.nn.LayerNorm(16) if flat else torch.nn.RMSNorm(16)
    with torch.no_grad():
        norm.weight[3] = 1.0 if flat else 0.0
    words = "a layer norm subtracts" if flat else "its gain is 0 there"
    with pytest.raises(OptionError, match=words):
        stage.image(norm.double(), u)


def test_an_interrupt_without_stderr_says_nothing_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eigenlens.cli.app.main", interrupted)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as left:
        command()
    assert left.value.code == 130
    assert capsys.readouterr().out == ""
