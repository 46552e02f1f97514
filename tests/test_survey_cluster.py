"""Surveys on a real cluster: deaths of workers and clients, resuming, bindings, memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.errors import OptionError, SourceError
from eigenlens.surveys import running
from eigenlens.surveys.clusters import Workers, connected
from eigenlens.surveys.members import member
from eigenlens.surveys.running import State
from eigenlens.surveys.summary import summary as survey_summary
from eigenlens.surveys.survey import _Record
from hub_server import COMMIT, SECRET, llama, publish, servers
from survey_models import deadly, write
from terminals import terminal, written_to

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Workers]:
    """Two local workers for the whole file; each survey comes to them by their address."""
    with connected(workers=2) as found:
        yield found


@pytest.fixture
def address(cluster: Workers) -> str:
    return str(cluster.client.scheduler.address)


def pids(cluster: Workers) -> list[int]:
    return list(cluster.client.run(os.getpid).values())


def table(out: Path) -> pd.DataFrame:
    found = pd.read_parquet(out)
    return found.sort_values(["source", "stack", "layer"]).reset_index(drop=True)


def files(out: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in out.glob("model=*/*.parquet")}


def listening(pid: int) -> set[tuple[str, int]]:
    """Address and port of every socket on which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = set()
    for kind, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
                host, port = cells[1].split(":")
                words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
                packed = struct.pack(f"={len(words)}I", *words)
                found.add((socket.inet_ntop(family, packed), int(port, 16)))
    return found


@LINUX
def test_everything_listens_on_this_machine_alone(cluster: Workers) -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_to_all:
        assert open_to_all.getsockname() in listening(os.getpid())  # it would be seen
    found = listening(os.getpid()).union(*map(listening, pids(cluster)))
    ours = {int(str(a).rpartition(":")[2]) for a in cluster.client.scheduler_info()["workers"]}
    assert ours <= {port for _, port in found}
    assert int(cluster.dashboard.rpartition(":")[2].partition("/")[0]) in {p for _, p in found}
    assert {host for host, _ in found} == {"127.0.0.1"}


def blas() -> Any:
    import threadpoolctl

    used = [x["num_threads"] for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]
    return used, "torch" in sys.modules, os.environ["OMP_NUM_THREADS"]


def test_rows_are_those_of_spectrum_and_workers_have_no_torch_and_one_thread(
    cluster: Workers, address: str, tmp_path: Path
) -> None:
    models = [write(tmp_path / f"run/step{i}", i) for i in (2, 10)]
    out = tmp_path / "out"
    found = eigenlens.survey(tmp_path / "run/step*", out, scheduler=address)
    assert [m.train_step for m in found.models] == [2, 10]
    assert (found.run.computed, found.run.kept, found.run.failed) == (2, 0, 0)  # type: ignore[union-attr]
    rows = table(out).groupby("source")
    for model in models:
        there = rows.get_group(str(model))
        for (_, row), layer in zip(there.iterrows(), eigenlens.spectrum(model).layers, strict=True):
            assert row["regime"] == layer.regime
            np.testing.assert_allclose(row["eigenvalues_re"], layer.eigenvalues.real, atol=1e-12)
    for used, torch, threads in cluster.client.run(blas).values():
        assert set(used) == {1}
        assert (torch, threads) == (False, "1")
    before = files(out)
    again = eigenlens.survey(tmp_path / "run/step*", out, scheduler=address)
    assert (again.run.computed, again.run.kept) == (0, 2)  # type: ignore[union-attr]
    assert files(out) == before
    assert again.models == found.models


@pytest.mark.slow
def test_the_rows_of_one_worker_are_those_of_two(address: str, tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"run/step{i}", i, d=320, layers=3 * (i + 1))  # the last ones in parts
    out = tmp_path / "out"
    eigenlens.survey(tmp_path / "run/step*", out, all=True, scheduler=address)
    second = tmp_path / "one"
    eigenlens.survey(tmp_path / "run/step*", second, all=True, workers=1)
    a, b = table(out), table(second)
    assert sorted(Path(p).name for p in files(out)) == sorted(Path(p).name for p in files(second))
    for name in a:
        if name.startswith(("eigenvalues", "error_bars")):
            for x, y in zip(a[name], b[name], strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
        elif a[name].dtype.kind == "f":
            np.testing.assert_allclose(a[name], b[name], rtol=1e-9)
        else:
            assert a[name].tolist() == b[name].tolist(), name


def test_a_worker_killed_in_the_middle_costs_its_task_alone(
    cluster: Workers, address: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "a", 0, d=384, layers=5)
    out = tmp_path / "out"
    victims = pids(cluster)[:1]
    kept: dict[str, int] = {}
    told = []

    def kill(done: int, total: int, name: str) -> None:
        told.append(done)
        if done == 1 and victims:
            kept.update(files(out))
            os.kill(victims.pop(), signal.SIGKILL)

    found = eigenlens.survey(folder, out, all=True, scheduler=address, progress=kill)
    assert not victims
    assert [(m.status, m.layers) for m in found.models] == [("complete", 5)]
    after = files(out)
    assert len(after) == 5
    assert len(kept) == 1
    assert kept.items() <= after.items()  # what was done is not done again
    assert max(told) == 5  # and nothing else twice
    whole = eigenlens.spectrum(folder, all=True).layers
    values = [v for row in table(out)["eigenvalues_re"] for v in row[:3]]
    assert values == pytest.approx([v for x in whole for v in x.eigenvalues.real[:3]], abs=1e-9)


def test_failures_are_listed_and_the_others_complete(address: str, tmp_path: Path) -> None:
    good = [str(write(tmp_path / name, i)) for i, name in enumerate(("=1+1", "b [red]x"))]
    (tmp_path / "bad\x1b[31m").mkdir()
    models = [good[0], str(tmp_path / "bad\x1b[31m"), "org/none", good[1]]
    (tmp_path / "list").write_text("\n".join(models))
    out = tmp_path / "out"
    args = ["survey", str(tmp_path / "list"), "--out", str(out), "--scheduler", address]
    result = CliRunner().invoke(app, [*args, "--format", "json"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("eigenlens: 2 of 4 checkpoints failed, the ")
    record = json.loads(result.stdout)
    assert record["schema"] == "eigenlens.survey/1"
    assert [m["status"] for m in record["models"]] == ["complete", "failed", "failed", "complete"]
    assert "has no config.json" in record["failed"][0]["reason"]
    for format in ("table", "csv", "json"):
        shown = CliRunner().invoke(app, ["survey", "summary", str(out), "--format", format])
        assert shown.exit_code == 0, shown.stderr
        assert "\x1b" not in shown.stdout
        assert "bad\\x1b[31m" in shown.stdout.replace("\\\\", "\\").replace("\n", "")
        assert max(map(len, shown.stdout.splitlines())) <= 100 or format != "table"
    csv = CliRunner().invoke(app, ["survey", "summary", str(out), "--format", "csv"]).stdout
    assert len(csv.splitlines()) == 5
    (tmp_path / "bad\x1b[31m").rmdir()
    write(tmp_path / "bad\x1b[31m", 3)
    result = CliRunner().invoke(app, [*args, "--quiet", "--format", "json"])
    assert [m["status"] for m in json.loads(result.stdout)["models"]].count("failed") == 1
    (line,) = result.stderr.splitlines()  # which --quiet does not leave out
    assert line.startswith("eigenlens: 1 of 4 checkpoints failed: org/none: ")


def command(
    out: Path, model: Path | str, *args: str, stderr: int = subprocess.PIPE, **env: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eigenlens", "survey", str(model), "--out", str(out), *args],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        env={**os.environ, **env},
    )


def alive(group: int) -> list[int]:
    """Processes of a group that still run; zombies do not."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(after[2]) == group and after[0] != "Z":
                    found.append(int(entry.name))
    return found


@LINUX
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_client_that_ends_leaves_what_is_done_and_no_process(
    number: signal.Signals, address: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "a", 0, d=640, layers=9)  # of which two workers see no end at once
    out = tmp_path / "out"
    process = command(out, folder, "--all", "--workers", "2")
    deadline = time.monotonic() + 90
    while not files(out):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number is signal.SIGKILL:
        os.kill(process.pid, number)
    else:
        os.killpg(process.pid, number)  # as a terminal does it
    _, err = process.communicate(timeout=60)
    before = files(out)
    assert 1 <= len(before) < 9
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in err
        assert err.splitlines()[-2:] == [
            f"eigenlens: what is done stays in {out}; the same command goes on from there",
            "eigenlens: interrupted",
        ]
    while alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (partial,) = eigenlens.surveys.summary.summary(out).models  # type: ignore[attr-defined]
    assert (partial.status, partial.layers) == ("partial", len(before))
    found = eigenlens.survey(folder, out, all=True, scheduler=address)
    assert [(m.status, m.layers) for m in found.models] == [("complete", 9)]
    assert before.items() <= files(out).items()


@LINUX
@pytest.mark.slow
def test_a_range_of_revisions_on_a_hub_with_progress_on_a_terminal(tmp_path: Path) -> None:
    with servers() as hub:
        publish(hub, llama(d=256, layers=4))
        hub.branches = {"main": COMMIT, "step1": COMMIT}
        hub.tags = {"step2": COMMIT, "step30": COMMIT}
        hub.revisions |= {*hub.branches, *hub.tags}
        out = tmp_path / "out"
        master, slave = terminal()
        process = command(
            *(out, "org/name@step1..step2", "--workers", "1", "--format", "json", "-k", "2"),
            stderr=slave,
            HF_HOME=str(tmp_path / "home"),
            HF_ENDPOINT=f"http://127.0.0.1:{hub.port}",
            HF_TOKEN=SECRET,
            HF_HUB_OFFLINE="0",
            HF_HUB_DISABLE_TELEMETRY="1",
            TERM="xterm",
            COLUMNS="150",
        )
        err = written_to(master, slave)
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 0, err
    record = json.loads(text)
    assert [(m["model"], m["train_step"]) for m in record["models"]] == [
        *(("org/name@step1", 1), ("org/name@step2", 2)),
    ]
    assert re.search(r"2/2.*[0-9.]+ tasks/s", err)
    kept = b"".join(p.read_bytes() for p in out.rglob("*") if p.is_file())
    assert SECRET not in text + err
    assert SECRET.encode() not in kept
    assert table(out)["layer"].tolist() == [0, 1, 2, 3] * 2


@pytest.mark.slow
def test_a_traced_survey_has_the_numbers_of_trace(address: str, tmp_path: Path) -> None:
    texts = ["one two three", "the cat sat on the mat", "to be or not to be"]
    out = tmp_path / "out"
    asked = {"nulls": False, "seed": 3}
    found = eigenlens.survey(
        ["sample:albert-tiny", "sample:gpt2-tiny"],
        out,
        trace=True,
        prompts=texts,
        scheduler=address,
        **asked,  # type: ignore[arg-type]
    )
    assert [m.status for m in found.models] == ["complete"] * 2
    rows = table(out)
    for name, entry in zip(("sample:albert-tiny", "sample:gpt2-tiny"), found.models, strict=True):
        own = rows[rows["source"] == name].sort_values("step")
        whole = eigenlens.trace(name, texts, **asked)  # type: ignore[arg-type]
        assert own["step"].tolist() == [x.step for x in whole.layers]
        for measure in ("gamma", "gain", "rho"):
            values = [getattr(x, measure) for x in whole.layers]
            assert own[measure].tolist() == pytest.approx(values, abs=1e-5)
            assert getattr(entry, measure) == pytest.approx(np.mean(values), abs=1e-5)
        assert own["n_prompts"].tolist() == [3] * len(own)
    assert found.models[0].layers == 1  # of twelve calls
    again = eigenlens.survey(
        ["sample:albert-tiny"],
        out,
        trace=True,
        prompts=texts,
        scheduler=address,
        **asked,  # type: ignore[arg-type]
    )
    assert again.run.kept == 1  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_a_cluster_with_tls_takes_only_who_has_a_certificate(tmp_path: Path) -> None:
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=survey", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    own = {"cert": cert, "key": key}
    config = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": cert,
        "distributed.comm.tls.scheduler": own,
        "distributed.comm.tls.worker": own,
        "distributed.comm.tls.client": own,
    }
    folder = write(tmp_path / "a", 0)
    with dask.config.set(config):
        security = Security()
    local = {"host": "127.0.0.1", "protocol": "tls", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=1, security=security, **local) as cluster:
        address = cluster.scheduler.address
        assert address.startswith("tls://")
        with pytest.raises(SourceError, match="no dask scheduler answers"):
            eigenlens.survey(folder, tmp_path / "out", scheduler=address)
        with dask.config.set(config):
            found = eigenlens.survey(folder, tmp_path / "out", scheduler=address)
    assert found.models[0].status == "complete"
    assert any("declare no memory" in text for text in found.warnings)


@pytest.mark.slow
def test_a_checkpoint_that_kills_its_workers_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "deadly", "b", "c", "d"]
    models = [str(write(tmp_path / name, i)) for i, name in enumerate(names)]
    monkeypatch.setattr(running, "begin", deadly)
    found = eigenlens.survey(models, tmp_path / "out", workers=2)
    assert [m.status for m in found.models] == ["complete", "failed", *["complete"] * 3]
    assert "its worker died each time" in found.models[1].why


def test_a_layer_that_fits_no_worker_is_told(address: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0, d=384, layers=5)

    class Small(Workers):
        def resources(self) -> list[dict[str, float]]:
            return [{"MEMORY": 1e6, "threads": 1.0}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workers, "resources", Small.resources)
        found = eigenlens.survey(folder, tmp_path / "out", all=True, scheduler=address)
    assert "needs 0.1 GB of memory and the largest worker declares 0.0 GB" in found.models[0].why


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": 2, "scheduler": "tcp://x:1"}, OptionError, "both given"),
        ({"workers": 0}, OptionError, "at least 1"),
        ({"scheduler": "tcp://127.0.0.1:1"}, SourceError, "no dask scheduler answers"),
        ({"scheduler": "nonsense://x"}, SourceError, "no dask scheduler answers"),
        ({"device": "cuda"}, OptionError, "give --trace as well"),
        ({"k": 0}, OptionError, "k is 0"),
    ],
)
def test_what_cannot_run_is_told_before(
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eigenlens.surveys.clusters.CONNECT_SECONDS", 0.5)
    with pytest.raises(error, match=message):
        eigenlens.survey("org/name", tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, "missing: a file of MODEL lines"),
        (["x"], 2, "missing: the folder for the results"),
        (["x", "--out", "out", "--workers", "0"], 2, "--workers"),
        (["x", "--out", "out"], 1, "no such list, folder or file"),
        (["summary"], 2, "Missing argument 'DIR'"),
        (["summary", "nowhere"], 1, "no such folder"),
        (["summary", "nowhere", "--out", "x.txt"], 2, "cannot tell the format"),
    ],
)
def test_wrong_usage(
    args: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["survey", *args])
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@LINUX
@pytest.mark.slow
def test_200_checkpoints_in_flat_memory(cluster: Workers, address: str, tmp_path: Path) -> None:
    for i in range(200):
        write(tmp_path / f"run/step{i}", i, d=32, layers=3)
    watched = [os.getpid(), *pids(cluster)]
    seen: dict[int, list[int]] = {}

    def watch(done: int, total: int, name: str) -> None:
        seen[done] = [rss(pid) for pid in watched]

    found = eigenlens.survey(
        tmp_path / "run/step*", tmp_path / "out", scheduler=address, progress=watch
    )
    assert [m.status for m in found.models] == ["complete"] * 200
    assert [m.train_step for m in found.models] == list(range(200))
    assert len(table(tmp_path / "out")) == 600
    # Layers are counted, and not every one is told of.
    early, late = (np.array(seen[n]) for n in (min(n for n in seen if n >= 60), max(seen)))
    assert (late - early < 12_000_000).all(), (late - early) / 1e6


@pytest.mark.parametrize(
    ("address", "message"),
    [("nonsense", "missing port"), ("", "missing port"), ("http://127.0.0.1:1", "unknown address")],
)
def test_what_is_no_address_is_told_at_once(address: str, message: str, tmp_path: Path) -> None:
    model = write(tmp_path / "m", 0)
    words = ["-m", "eigenlens", "survey", str(model), "--scheduler", address]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *words, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert time.monotonic() - begun < 25  # a client that did not connect goes away after 30 s
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out/_survey.json").exists()


def test_rows_of_other_options_are_told_until_they_are_made_anew(
    address: str, tmp_path: Path
) -> None:
    models = [write(tmp_path / f"m{i}", i) for i in range(2)]
    out = tmp_path / "out"
    first = eigenlens.survey(models, out, scheduler=address)
    assert not any("other options" in text for text in first.warnings)
    mixed = eigenlens.survey(models[:1], out, scheduler=address, order="modulus")
    assert any("other options" in text and "m1" in text for text in mixed.warnings)
    assert any("other options" in text for text in survey_summary(out).warnings)
    whole = eigenlens.survey(models, out, scheduler=address, order="modulus")
    assert not any("other options" in text for text in whole.warnings)


def test_a_long_record_is_written_seldom(tmp_path: Path) -> None:
    class Slow:
        writes = 0

        def write_record(self, content: Any) -> None:
            self.writes += 1
            self.last = dict(content["members"])
            time.sleep(0.01)

    slow = Slow()
    states = [State(member(f"/none/{i}"), reason="x") for i in range(1000)]
    told = _Record(cast(Any, slow), {}, {}, set())
    with told:
        for state in states:
            told.failed(state)
    assert slow.writes < 10
    assert len(slow.last) == 1000


def test_a_run_that_is_killed_has_told_whose_rows_it_made_anew() -> None:
    class Record:
        others: ClassVar[list[list[str]]] = []

        def write_record(self, content: Any) -> None:
            self.others.append(content["other_options"])

    states = [State(member(f"/none/{i}")) for i in range(3)]
    names = [state.member.name for state in states]
    told = _Record(cast(Any, Record()), {}, {}, set(names[:2]))
    told._write()
    for state in states:
        told._next = 0.0  # time enough has passed
        told.planned(state)
    assert Record.others == [sorted(names[:2]), [names[1]], []]
    told.planned(states[0])  # nothing new, nothing written
    assert len(Record.others) == 3
