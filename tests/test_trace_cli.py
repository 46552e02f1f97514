"""`eigenlens trace`: the interface, what is printed, and one clear line for what cannot be done."""

from __future__ import annotations

import copy
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.cli.choices import LiveDtype
from eigenlens.cli.trace import ModeName, SpecialName, TooLongName
from eigenlens.errors import ArchitectureError, NumericsError, OptionError, SourceError
from eigenlens.live.batches import TRUNCATIONS
from eigenlens.live.capture import capture_each
from eigenlens.live.precision import TOLERANCES
from eigenlens.live.replay import LADDER
from eigenlens.live.session import session_of
from eigenlens.measure.sinks import SPECIAL
from eigenlens.report.trace_words import trace_sentences
from eigenlens.tracing.feed import Feed
from eigenlens.tracing.ladder import RUNGS
from eigenlens.tracing.moves import MOVES
from eigenlens.tracing.nulls import NULLS
from eigenlens.tracing.options import MODES, MOST_STEPS, TraceOptions
from eigenlens.tracing.run import run as run_trace

GPT2 = "sample:gpt2-tiny"
LAYER = {
    *("stack", "layer", "step", "gamma", "gain", "signed_gain", "rho", "rho_ci", "p_value"),
    *("p_half", "nulls", "collapse", "n_tokens", "n_prompts", "sinks"),
}
COLLAPSE = {
    *("cosine", "rank_residual", "frobenius_residual", "high_low_ratio", "effective_rank"),
    *("stable_rank", "participation_ratio"),
}
IDS = tuple((5, 9, 31, 7, 12, 3 + i) for i in range(16))
FEED = Feed(IDS, "token ids", 16)


def invoke(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["trace", *(str(a) for a in args)])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def refused(*args: str | Path, code: int = 2) -> str:
    """The one line on stderr of a run with an option that has to change, or one that failed (1)."""
    lines: list[str] = invoke(*args, code=code).stderr.strip().splitlines()
    errors = [line for line in lines if "warning:" not in line]
    assert len(errors) == 1, lines
    assert errors[0].startswith("eigenlens: ")
    return errors[0]


def test_json_has_the_fields_of_the_interface() -> None:
    text = invoke(GPT2, "--format", "json", "--ladder").stdout
    found = json.loads(text)
    assert found["schema"] == "eigenlens.trace/1"
    assert set(found) >= {"eigenlens_version", "model", "options", "warnings", "layers", "verdict"}
    assert len(found["layers"]) == 4
    for x in found["layers"]:
        assert set(x) >= LAYER
        assert set(x["nulls"]) == set(NULLS)
        for name, null in x["nulls"].items():
            assert {"gamma", "gain", "rho"} <= set(null), name
        assert len(x["nulls"]["random_direction"]["quantiles"]["rho"]) == 3
        assert set(x["collapse"]) >= COLLAPSE
        assert set(x["ladder"]) == set(RUNGS)
        assert x["n_prompts"] == 64
        assert (x["signed_gain"] is None) == (x["target"] != "v1")


def test_the_table_is_narrow_and_ends_in_the_answer() -> None:
    asked = (GPT2, "--quiet", "--ladder", "--collapse", "--directions", "200", "--layers", "1,3")
    out = invoke(*asked).stdout
    lines = out.rstrip().splitlines()
    assert max(map(len, lines)) <= 100
    paragraph = " ".join(line.strip() for line in lines[-6:])
    question = "Do tokens tilt towards the principal eigenvector?"
    assert question in paragraph
    assert paragraph.endswith(".")
    assert invoke(*asked).stdout == out


def test_csv_has_one_row_a_layer() -> None:
    text = invoke(GPT2, "--format", "csv", "--no-nulls", "--layers", "1,3").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [r["layer"] for r in rows] == ["1", "3"]
    assert float(rows[0]["rho_ci_low"]) <= float(rows[0]["rho"])


def test_without_nulls_nothing_is_claimed() -> None:
    out = invoke(GPT2, "--no-nulls", "--text", "Return the name.", "--mode", "block").stdout
    assert "only the nulls say" in " ".join(out.split())
    assert " p " not in out.splitlines()[3]


def test_a_free_run_is_judged_by_its_end() -> None:
    drawn = ("--random-tokens", "16", "--length", "8", "--directions", "200")
    out = invoke("sample:albert-tiny", "--mode", "free", "--steps", "14", *drawn).stdout
    last = " ".join(out.split()).partition("eigenvector? ")[2]
    assert "after 14 steps their alignment is" in last


def test_a_free_run_without_end_is_refused() -> None:
    TraceOptions(mode="free", steps=MOST_STEPS)
    with pytest.raises(OptionError, match="at most 1000 are traced"):
        TraceOptions(mode="free", steps=MOST_STEPS + 1)
    told = refused(GPT2, "--mode", "free", "--steps", "100000")
    assert "100000 steps: at most 1000" in told
    assert "eigenlens simulate" in told


def test_token_ids_random_tokens_and_files(tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(json.dumps(list(row)) for row in IDS))
    options = (GPT2, "--no-nulls", "--format", "json")
    assert json.loads(invoke(*options, "--token-ids", ids).stdout)["options"]["n_prompts"] == 16
    drawn = json.loads(invoke(*options, "--random-tokens", "3", "--length", "7").stdout)
    assert drawn["layers"][0]["n_tokens"] == 21
    texts = tmp_path / "p.jsonl"
    texts.write_text('{"text": "Return the name."}\n{"text": "Raise an error."}\n')
    assert json.loads(invoke(*options, "--prompts", texts).stdout)["options"]["prompts"] == "file"


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    empty, long = tmp_path / "empty.txt", tmp_path / "long.txt"
    empty.write_text("")
    long.write_text("name " * 600)
    assert "holds no prompt" in refused(GPT2, "--prompts", empty, code=1)
    assert "128 positions" in refused(GPT2, "--prompts", long, "--too-long", "error")
    assert "take one source" in refused(GPT2, "--text", "a", "--random-tokens", "3")
    assert "layers are 0 to 3" in refused(GPT2, "--layers", "9")
    assert "200 to" in refused(GPT2, "--directions", "5")
    assert "not SMILES" in refused("sample:albert-rxn", "--text", "hello")
    assert "positive number" in refused(GPT2, "--mode", "free", "--radius", "-1")
    assert "no stack" in refused(GPT2, "--stack", "vision")
    assert "at least 1" in refused(GPT2, "--bootstrap", "0")
    assert invoke(GPT2, "--radius", "big", code=2).stdout == ""
    cut = invoke(GPT2, "--prompts", long, "--no-nulls")
    assert "has more tokens than the model has positions (128): the rest is not used" in cut.stderr


def test_no_tokenizer(saved: Any) -> None:
    folder = saved("gpt2")
    assert "tokenizer" in refused(folder, "--text", "a", code=1)
    result = invoke(folder, "--format", "json", "--no-nulls")
    assert "random tokens are used" in result.stderr
    assert json.loads(result.stdout)["options"]["prompts"] == "random tokens"


def test_unknown_tokens_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown to this model's vocabulary"):
        eigenlens.trace("sample:albert-rxn", ["[Xx]" * 9 + "C"], nulls=False)


def test_states_that_are_not_finite_name_the_layer(tiny: Any) -> None:
    import torch

    model = copy.deepcopy(tiny("gpt2"))
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    with pytest.raises(NumericsError, match=r"decoder layer 0.*NaN"):
        run_trace(session_of(model), FEED, TraceOptions(nulls=False))


def test_layers_without_attention_are_refused() -> None:
    import transformers

    config = transformers.MambaConfig(
        hidden_size=16, num_hidden_layers=2, vocab_size=40, state_size=4
    )
    with pytest.raises((ArchitectureError, SourceError)) as caught:
        eigenlens.trace(transformers.MambaModel(config), token_ids=[[1, 2, 3]])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_that_adds_nothing_is_left_out(mode: str, tiny: Any) -> None:
    """The other layers are traced, against every null, as if it were not there."""
    import torch

    model = copy.deepcopy(tiny("gpt2"))
    with torch.no_grad():
        model.base_model.h[0].attn.c_proj.weight.zero_()
    session = session_of(model)
    result = run_trace(session, FEED, TraceOptions(mode=mode, ladder=True))
    assert [x.layer for x in result.layers] == [
        p.plan.layer for p in session.places if p.plan.layer
    ]
    assert [(s.layer, s.reason[:9]) for s in result.skipped] == [(0, "F is zero")]
    assert result.stacks[0].layers == tuple(x.layer for x in result.layers)
    for x in result.layers:
        assert x.nulls is not None
        assert np.isfinite([x.gamma, x.gain, x.rho, x.nulls["random_direction"]["rho"]]).all()
    with pytest.raises(ArchitectureError, match="F is zero in every layer"):
        run_trace(session, FEED, TraceOptions(), layers=[0])


def test_prompts_of_which_no_token_counts_are_an_error() -> None:
    with pytest.raises(OptionError, match="no token is left to measure"):
        eigenlens.trace("sample:bert-tiny", [""], special_tokens="drop", nulls=False)


def test_threads_do_not_disturb_each_other(tiny: Any) -> None:
    """The untrained model is drawn from torch's one generator."""
    from concurrent.futures import ThreadPoolExecutor

    def rho(seed: int) -> list[float]:
        session = session_of(copy.deepcopy(tiny("gpt2")))
        found = run_trace(session, FEED, TraceOptions(seed=seed, directions=200))
        return [x.nulls["random_init"]["rho"] for x in found.layers if x.nulls]

    alone = [rho(seed) for seed in (0, 1, 2)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            assert list(pool.map(rho, (0, 1, 2))) == alone


def test_attention_that_returns_no_weights_loses_one_null(tiny: Any) -> None:
    model = copy.deepcopy(tiny("gpt2"))
    model.set_attn_implementation("sdpa")
    result = run_trace(session_of(model), FEED, TraceOptions())
    assert any("matched_spectrum is left out" in w for w in result.warnings)
    for x in result.layers:
        assert x.nulls is not None
        assert x.nulls["matched_spectrum"] is None
        assert x.nulls["random_init"] is not None
    assert "rotated" not in " ".join(trace_sentences(result))


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_kept_between_batches(threads: int, tiny: Any) -> None:
    """States of a batch are gone when it is read: memory does not grow with prompts."""
    import gc
    import weakref

    import torch

    session = session_of(tiny("gpt2"))
    seen: list[Any] = []
    alive: list[int] = []

    def progress(done: int, total: int, name: str) -> None:
        gc.collect()
        alive.append(sum(ref() is not None for ref in seen))

    def watched(session: Any, batches: Any, work: Any, **kwargs: Any) -> Any:
        def read(captured: Any) -> Any:
            seen.append(weakref.ref(captured))
            return work(captured)

        return capture_each(session, batches, read, **kwargs)

    usual = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eigenlens.tracing.run.capture_each", watched)
        torch.set_num_threads(threads)
        try:
            options = TraceOptions(nulls=False, batch_size=2)
            run_trace(session, FEED, options, progress=progress)
        finally:
            torch.set_num_threads(usual)
    assert len(seen) == 8
    assert max(alive) <= threads


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "gpt_neo", "gpt_neox", "t5", "bart", "albert-groups"]
)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_runs_on_every_kind_of_block(name: str, mode: str, tiny: Any) -> None:
    import zoo

    model = zoo.build(name).double().eval() if name in ("t5", "bart") else tiny(name)
    session = session_of(model)
    result = run_trace(session, FEED, TraceOptions(mode=mode, ladder=True))
    assert len(result.layers) == sum(place.plan.steps for place in session.places)
    for x in result.layers:
        assert 0 <= x.rho <= 1
        assert 0 <= x.gamma <= 1
        assert x.nulls is not None
        assert (x.nulls["matched_spectrum"] is None) == (mode == "block")
    sentences = trace_sentences(result)
    assert len(sentences) == 3


def test_choices_are_the_tables() -> None:
    assert set(ModeName) == set(MODES) == set(MOVES)
    assert set(SpecialName) == set(SPECIAL)
    assert set(TooLongName) == set(TRUNCATIONS)
    assert set(LiveDtype) == set(TOLERANCES)
    assert set(RUNGS) == set(LADDER)


def test_overlaps_of_leaders_are_told_under_the_table() -> None:
    result = eigenlens.trace(GPT2, ["a b c", "the old cat"], nulls=False)
    note = " ".join(
        invoke(GPT2, "--text", "a b c", "--text", "the old cat", "--no-nulls").stdout.split()
    )
    table = np.array(result.to_dict()["stacks"][0]["overlaps"])
    pairs = table[np.tril_indices(len(table), -1)]
    assert f"of two layers {pairs.mean():.3f} on average, at most {pairs.max():.3f}" in note
    i, j = np.argwhere(np.tril(table, -1) == pairs.max())[0]
    assert f"(layers {j} and {i})" in note
    most = max(result.layers, key=lambda x: x.overlap_mean or 0.0)
    assert f"at most {most.overlap_mean:.3f} (layer {most.layer})" in note
