"""What a worker computes: the rows of eigenlens.spectrum, cut by cost, told when it fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.cache import Cache
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.dynamics.maps import Form
from eigenlens.dynamics.masks import Mask
from eigenlens.dynamics.predict import predict
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.surveys import tasks
from eigenlens.surveys.members import member
from eigenlens.surveys.opened import open_member
from eigenlens.surveys.options import Question
from eigenlens.surveys.rates import rates_of
from eigenlens.surveys.rows import COLUMNS
from survey_models import hybrid, write

QUESTION = Question(lookup=False)


def begin(folder: Path | str, question: Question = QUESTION, known: Any = None) -> Any:
    return tasks.begin(member(str(folder)), question, known or {})


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "WHOLE_SECONDS", -1.0)


def test_a_small_checkpoint_is_one_task_with_the_rows_of_spectrum(tmp_path: Path) -> None:
    folder = write(tmp_path / "step-7", 0, layers=3)
    plan = begin(folder, Question(SpectrumOptions(4), lookup=False))
    assert (plan.parts, plan.todo) == (1, ())
    whole = eigenlens.spectrum(folder, 4)
    for row, layer in zip(plan.rows[0], whole.layers, strict=True):
        assert list(row) == list(COLUMNS)
        assert row["eigenvalues_re"] == pytest.approx(layer.eigenvalues.real, abs=1e-12)
        assert row["eigenvalues_im"] == pytest.approx(layer.eigenvalues.imag, abs=1e-12)
        for name in ("layer", "stack", "regime", "target", "order", "solver", "steps"):
            assert row[name] == getattr(layer, name)
        assert row["gap"] == pytest.approx(layer.gap)
        assert (row["d_model"], row["n_layers"], row["model_type"]) == (16, 3, "llama")
        assert (row["series"], row["train_step"]) == (str(tmp_path), 7)


def test_a_large_one_is_a_task_a_layer_with_the_same_rows(tmp_path: Path, in_parts: None) -> None:
    folder = write(tmp_path / "a", 0, layers=3)
    plan = begin(folder)
    assert (plan.parts, plan.rows) == (3, {})
    rows = [tasks.solve(member(str(folder)), QUESTION, t)[0] for t in plan.todo]
    assert [t.memory > 80_000_000 for t in plan.todo] == [True] * 3
    tasks.WHOLE_SECONDS = 2.0
    assert rows == begin(folder).rows[0]


def test_what_is_on_disk_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "a", 0)
    plan = begin(folder)
    again = begin(folder, known={(plan.key, 1): frozenset({0})})
    assert (again.key, again.rows, again.todo) == (plan.key, {}, ())
    monkeypatch.setattr(tasks, "WHOLE_SECONDS", -1.0)
    # A file that was cut in another number of parts is no part of these.
    other = begin(folder, known={(plan.key, 1): frozenset({0}), (plan.key, 2): frozenset({1})})
    assert [t.part for t in other.todo] == [0]


def test_the_key_changes_with_the_files_and_the_options(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0)
    key = begin(folder).key
    assert begin(folder).key == key
    questions = [
        Question(SpectrumOptions(k=3), lookup=False),
        Question(SpectrumOptions(seed=1), lookup=False),
        Question(SpectrumOptions(operator="folded"), lookup=False),
        replace(QUESTION, layers=(0,)),
    ]
    keys = [begin(folder, q).key for q in questions]
    write(tmp_path / "a", 1)
    keys.append(begin(folder).key)
    assert len({key, *keys}) == 6
    assert begin(folder, replace(QUESTION, lookup=True)).key == begin(folder).key


def test_files_that_change_in_between_are_told(tmp_path: Path, in_parts: None) -> None:
    folder = write(tmp_path / "a", 0)
    todo = begin(folder).todo[0]
    assert isinstance(tasks.solve(member(str(folder)), QUESTION, todo), list)
    write(tmp_path / "a", 1)
    found = tasks.solve(member(str(folder)), QUESTION, todo)
    assert isinstance(found, tasks.Failed)
    assert "changed while it was surveyed" in found.reason


@pytest.mark.parametrize("parts", [False, True])
def test_layers_without_attention_have_rows_that_say_why(
    parts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hybrid(write(tmp_path, 0))
    if parts:
        monkeypatch.setattr(tasks, "WHOLE_SECONDS", -1.0)
        monkeypatch.setattr(tasks, "WHOLE_BYTES", 0)
    plan = begin(tmp_path)
    assert plan.parts == 1 + parts
    (skipped,) = [r for rows in plan.rows.values() for r in rows if r["skipped"] is not None]
    assert skipped["layer"] == 0
    assert skipped["regime"] is None
    done = begin(tmp_path, known={(plan.key, plan.parts): frozenset(range(plan.parts))})
    assert (done.rows, done.todo) == ({}, ())


def test_every_failure_is_one_inert_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty\x1b[31m"
    empty.mkdir()
    wrong = write(tmp_path / "wrong", 0)
    (wrong / "config.json").write_text('{"model_type": "nonsense"}')
    nan = write(tmp_path / "nan", 0)
    raw = bytearray((nan / "model.safetensors").read_bytes())
    raw[-8:] = b"\xff" * 8
    (nan / "model.safetensors").write_bytes(raw)
    for folder, message in (
        (empty, "has no config.json"),
        (wrong, "nonsense"),
        (nan, "NaN"),
        ("no/such/thing/here", "no such folder or file"),
        (write(tmp_path / "a", 0), "has no layer 9"),
    ):
        question = replace(QUESTION, layers=(9,)) if "layer 9" in message else QUESTION
        found = begin(folder, question)
        assert isinstance(found, tasks.Failed), message
        assert message in found.reason
        assert found.reason.isprintable()

    for error, message in (
        (MemoryError(), "not enough memory"),
        (RuntimeError("what\nis\x1b this"), "RuntimeError: what is\\x1b this; this is a fault"),
        (PermissionError(13, "Permission denied", "/a\nb"), r"/a\nb: Permission denied"),
    ):

        def broken(*_: Any, error: BaseException = error) -> Any:
            raise error

        monkeypatch.setattr(tasks, "open_member", broken)
        found = begin("a")
        assert message in found.reason
        assert found.reason.isprintable()


def test_kept_results_are_looked_up_and_none_added(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0)
    cache = Cache()
    begin(folder, Question())
    assert list(cache.entries()) == []
    eigenlens.spectrum(folder, cache=cache)
    opened = open_member(member(str(folder)), Question())
    kept = opened.spectrum(0)
    assert kept.eigenvalues.tobytes() == eigenlens.spectrum(folder).layers[0].eigenvalues.tobytes()
    assert len(list(cache.entries())) == 2


def circuit(F: np.ndarray, placement: Any) -> OVCircuit:
    n = len(F)
    return OVCircuit(
        F, np.eye(n), n_heads=1, n_kv_heads=1, head_dim=n, placement=placement, stack="encoder"
    )


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("seed", range(6))
def test_rates_are_those_that_the_dynamics_predict(placement: str, seed: int) -> None:
    F = np.random.default_rng(seed).normal(0, 0.4, (8, 8)) + 0.5 * np.eye(8)
    layer = analyse(circuit(F, placement), SpectrumOptions())
    found = rates_of(layer)
    form: Form = "stream" if placement == "pre" else "normalised"
    values = np.linalg.eigvals(F)
    said = predict(values.astype(complex), form, Mask(), 5)
    if placement == "pre":
        assert found.exponent == pytest.approx(said.exponent)
        assert found.alignment_rate is found.disagreement_rate is None
    else:
        assert found.disagreement_rate == pytest.approx(said.disagreement_rate)
        assert found.alignment_rate == pytest.approx(said.alignment_rate)
        assert found.exponent is None


def test_nothing_is_foretold_where_nothing_leads() -> None:
    layer = analyse(circuit(-0.5 * np.eye(4) + 0.1 * np.eye(4, k=1), "post"), SpectrumOptions())
    assert layer.regime == "no_consensus"
    assert set(vars(rates_of(layer)).values()) == {None}


def test_a_worker_of_spectra_never_imports_torch(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0)
    code = (
        "import sys; from eigenlens.surveys import tasks; from eigenlens.surveys.members import "
        "member; from eigenlens.surveys.options import Question; "
        f"plan = tasks.begin(member({str(folder)!r}), Question(), {{}}); "
        "assert len(plan.rows[0]) == 2; "
        "print([m for m in ('torch', 'transformers', 'dask', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
