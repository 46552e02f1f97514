"""`eigenlens cache` tells what is kept and removes that and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from eigenlens.cache import Cache
from eigenlens.cli.app import app
from eigenlens.tensors.kept import folder_of, forget, kept_repositories


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two results, and ranges of two repositories."""
    monkeypatch.setenv("EIGENLENS_CACHE", str(tmp_path / "results"))
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    for k in (1, 2):
        Cache().put({"k": k}, {}, {})
    for name, size in (("org/a--b", 1000), ("plain", 300)):
        place = folder_of(name) / "0123"
        place.mkdir(parents=True)
        (place / f"0-{size}").write_bytes(bytes(size))
    (tmp_path / "assets" / "other").write_text("not ours")
    return tmp_path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["cache", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_what_is_kept_is_listed(kept: Path) -> None:
    rows = json.loads(run("--format", "json"))["kept"]
    assert [(r["kind"], r["of"], r["files"]) for r in rows] == [
        ("results", None, 2),
        ("weights", "org/a--b", 1),
        ("weights", "plain", 1),
    ]
    assert [r["bytes"] for r in rows[1:]] == [1000, 300]
    assert "org/a--b" in run()


@pytest.mark.parametrize(
    ("what", "results", "weights"),
    [
        ("results", 0, ["org/a--b", "plain"]),
        ("weights", 2, []),
        ("plain", 2, ["org/a--b"]),
        ("all", 0, []),
    ],
)
def test_only_what_is_named_is_removed(
    kept: Path, what: str, results: int, weights: list[str]
) -> None:
    run("clear", what)
    assert len(list(Cache().entries())) == results
    assert [x.repo_id for x in kept_repositories()] == weights
    assert (kept / "assets" / "other").read_text() == "not ours"


def test_a_name_that_is_not_kept_is_an_error(kept: Path) -> None:
    for name in ("nobody/knows", "..", "../other"):
        result = CliRunner().invoke(app, ["cache", "clear", name])
        assert result.exit_code == 2
        assert "plain" in result.output
        forget(name)
    assert len(list(kept_repositories())) == 2
    assert (kept / "assets" / "other").exists()
