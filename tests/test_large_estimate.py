"""What a run will cost: bytes from the headers, memory and time from counts, nothing read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens import open_checkpoint
from eigenlens.cli.app import app
from eigenlens.report.estimate import bytes_text, seconds_text
from eigenlens.spectra.estimate import (
    Rates,
    calibrate,
    dense_warning,
    estimate,
    layer_costs,
    peak_bytes,
    total_seconds,
)
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.tensors.safetensors_file import SafetensorsFile
from large import peak, write

RATES = Rates(product=5e10, eig=1e10, stream=1e10)


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["spectrum", *map(str, args)])
    assert result.exit_code == code, (result.stderr, result.exception)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("estimate") / "m", 3, 512, 8, 2)


def test_bytes_are_those_of_the_tensors_and_nothing_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("tensor data was read")

    monkeypatch.setattr(SafetensorsFile, "read", refuse)
    found = estimate(open_checkpoint(folder), SpectrumOptions(), rates=RATES)
    assert found.read_bytes == 3 * 2 * (256 * 512 + 512 * 1024 + 512)
    assert [c.solved for c in found.layers] == [256] * 3
    record = json.loads(run(folder, "--dry-run", "--format", "json").stdout)
    assert record["schema"] == "eigenlens.estimate/1"
    assert record["read_bytes"] == found.read_bytes
    assert len(record["layers"]) == 3
    assert run(folder, "--dry-run", "--layers", "1", "--format", "csv").stdout.count("\n") == 2
    with pytest.raises(AssertionError, match="was read"):
        eigenlens.spectrum(folder)


def test_the_table_says_it_in_a_sentence(folder: Path) -> None:
    text = " ".join(run(folder, "--dry-run").stdout.split())
    assert " 0 to 2 (3)" in text
    assert "256 x 256" in text
    assert "solver read a layer memory a layer" in text
    assert "in all 3.94 MB to read (or to fetch)" in text
    assert "Nothing was read but the config and the headers." in text


def test_rows_of_a_fused_projection_count_alone() -> None:
    """Of a quantised or fused tensor only what is read counts; samples of both kinds."""
    for name in ("sample:smollm2", "sample:minilm"):
        found = estimate(open_checkpoint(name), SpectrumOptions(), rates=RATES)
        assert 1e6 < found.read_bytes < 1e8
        assert found.memory_bytes > 80e6


def test_peak_memory_is_close(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", 2, 2048, 32, 4)
    costs = layer_costs(open_checkpoint(folder), SpectrumOptions())
    assert peak(folder)["peak"] / 1.35 <= peak_bytes(costs) <= 1.6 * peak(folder)["peak"]


def test_more_work_takes_longer(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    few, every = (
        layer_costs(checkpoint, SpectrumOptions(all=a, solver=s))
        for a, s in ((False, "krylov"), (True, "dense"))
    )
    assert few[0].solver == "krylov"
    assert every[0].solver == "dense"
    assert total_seconds(few, RATES) < total_seconds(every, RATES)
    assert total_seconds(every[:1], RATES) < total_seconds(every, RATES)
    slower = replace(RATES, eig=RATES.eig / 10)
    assert total_seconds(every, slower) > 2 * total_seconds(every, RATES)


def test_a_long_dense_decomposition_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    d = 4096
    W = np.asarray(rng.standard_normal((d, 16)), dtype=np.float32)
    circuit = eigenlens.OVCircuit(
        np.repeat(W.T, d // 16, axis=0), np.repeat(W, d // 16, axis=1), 32, 32, 128
    )
    checkpoint = open_checkpoint(circuit)
    every = layer_costs(checkpoint, SpectrumOptions(all=True))
    assert every[0].solved == d
    text = dense_warning(every, lambda: RATES)
    assert text is not None
    assert "4096 x 4096 matrix take about 172 s" in text
    assert dense_warning(every, lambda: replace(RATES, eig=1e15)) is None

    def never() -> Rates:
        raise AssertionError("measured for nothing")

    few = layer_costs(checkpoint, SpectrumOptions())
    assert few[0].solver == "krylov"
    assert dense_warning(few, never) is None
    # On the command line it goes to stderr, before the start.
    monkeypatch.setattr("eigenlens.spectra.estimate.dense_warning", lambda *_: "that takes long")
    found = run("sample:albert-rxn", "--format", "json")
    assert "warning: that takes long" in found.stderr
    assert "takes long" not in found.stdout


def test_rates_are_measured_in_a_moment() -> None:
    for rate in vars(calibrate(budget=0.01)).values():
        assert 1e6 < rate < 1e15


def test_sizes_and_times_in_words() -> None:
    assert [bytes_text(x) for x in (0, 999.6e3, 150994944, 2.5e9)] == [
        *("0 B", "1000 kB", "151 MB", "2.5 GB")
    ]
    assert [seconds_text(x) for x in (0.31, 45.2, 600.0, 9000.0)] == [
        *("0.3 s", "45 s", "10 min", "2.5 h")
    ]
