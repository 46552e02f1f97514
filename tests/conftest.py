"""Shapes are checked in tests, nothing goes to the network, hypothesis is reproducible."""
# ruff: noqa: E402 - the import hook comes before what it checks

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# Models in tests are tiny: torch's threads cost more than they give, most of all beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


from jaxtyping import install_import_hook

CHECKED = [f"eigenlens.{room}" for room in ("circuit", "spectra", "measure", "arrays", "prompts")]
install_import_hook(CHECKED, "beartype.beartype")

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import scipy.linalg  # noqa: F401 - brings a BLAS of its own
import threadpoolctl
from hypothesis import settings

from families import BY_NAME

# Matrices in tests are small: BLAS threads cost more than they give, most of all on a busy machine.
threadpoolctl.threadpool_limits(1, user_api="blas")

_COUNT = count()

settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("reproducible")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every test has a cache of results of its own, which does not exist before it is used."""
    folder = tmp_path_factory.getbasetemp() / f"cache-{next(_COUNT)}"
    monkeypatch.setenv("EIGENLENS_CACHE", str(folder))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not checked: what a user's process does with wrong arguments."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """`tiny(name, head=...)` is the live tiny model, built once a session; do not change it."""
    built: dict[tuple[str, bool], Any] = {}

    def build(name: str, *, head: bool = True) -> Any:
        if (name, head) not in built:
            built[name, head] = BY_NAME[name].build(head=head)
        return built[name, head]

    return build


@pytest.fixture(scope="session")
def saved(
    tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`saved(name, head=...)` is a folder that transformers wrote; do not change it."""
    folders: dict[tuple[str, bool], Path] = {}

    def save(name: str, *, head: bool = True) -> Path:
        if (name, head) not in folders:
            folder = tmp_path_factory.mktemp(f"{name}-{head}")
            tiny(name, head=head).save_pretrained(folder)
            folders[name, head] = folder
        return folders[name, head]

    return save
