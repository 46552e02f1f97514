"""What `steering_kills` runs and checks: writing a folder, replacing one, undoing an edit."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.steering import checkpoint as checkpoint_module
from eigenlens.steering.checkpoint import write_checkpoint
from eigenlens.steering.delta import read_delta
from eigenlens.steering.undo import unsteer
from steering_models import hashes


def clear(root: str, *kept: str) -> Path:
    """The folder with `source` and what is `kept` alone, no leftover of an earlier kill."""
    for path in Path(root).iterdir():
        if path.name not in ("source", "expected", "expected.safetensors", "old", *kept):
            shutil.rmtree(path)
    return Path(root)


def steer_to(root: str, name: str, **options: Any) -> None:
    here = Path(root)
    edit = read_delta(here / "expected.safetensors")
    write_checkpoint(open_checkpoint(here / "source"), edit, here / name, **options)


def there(root: str) -> set[str]:
    return {p.name for p in Path(root).iterdir()} - {
        *("source", "expected", "expected.safetensors", "old")
    }


# -- a new folder


def write_prepare(root: str) -> None:
    clear(root)


def write(root: str) -> None:
    steer_to(root, "steered")


def write_check(root: str, point: int | None) -> None:
    here = Path(root)
    if (here / "steered").exists():
        assert hashes(here / "steered") == hashes(here / "expected"), f"half a folder at {point}"
    if point is None:
        assert there(root) == {"steered"}
        return
    left = there(root) - {"steered"}
    assert all(name.startswith(".steered.eigenlens-") for name in left), left
    shutil.rmtree(here / "steered", ignore_errors=True)
    steer_to(root, "steered")  # the next write removes what the killed one left
    assert there(root) == {"steered"}, f"leftovers at {point}"


# -- a folder that takes an old one's place


def replace_prepare(root: str) -> None:
    here = clear(root)
    shutil.copytree(here / "old", here / "steered")


def replace(root: str) -> None:
    steer_to(root, "steered", force=True)


def replace_check(root: str, point: int | None) -> None:
    here = Path(root)
    assert (here / "steered").is_dir(), f"neither old nor new at {point}"
    found = hashes(here / "steered")
    assert found in (hashes(here / "old"), hashes(here / "expected")), f"a mixture at {point}"
    assert point is not None or found == hashes(here / "expected")
    steer_to(root, "steered", force=True)
    assert there(root) == {"steered"}, f"leftovers at {point}"


# -- the same where the system cannot exchange two folders


def replace_in_two_prepare(root: str) -> None:
    replace_prepare(root)


def replace_in_two(root: str) -> None:
    from eigenlens.steering import folders

    folders._rename = lambda *_: False
    steer_to(root, "steered", force=True)


def replace_in_two_check(root: str, point: int | None) -> None:
    here = Path(root)
    found = hashes(here / "steered") if (here / "steered").exists() else None
    assert found in (None, hashes(here / "old"), hashes(here / "expected")), f"mixed at {point}"
    from eigenlens.steering.folders import clean

    clean(here / "steered")  # what every write begins with
    assert hashes(here / "steered") in (hashes(here / "old"), hashes(here / "expected"))
    assert there(root) == {"steered"}, f"leftovers at {point}"


# -- undoing


def undo_prepare(root: str) -> None:
    here = clear(root)
    shutil.copytree(here / "expected", here / "steered")


def undo(root: str) -> None:
    unsteer(Path(root) / "steered")


def undo_check(root: str, point: int | None) -> None:
    here = Path(root)
    before, after = hashes(here / "source"), hashes(here / "expected")
    weights = hashes(here / "steered")["model.safetensors"]
    assert weights in (before["model.safetensors"], after["model.safetensors"]), point
    if (here / "steered/eigenlens.json").exists():
        unsteer(here / "steered")  # a second call ends what the killed one began
    found = hashes(here / "steered")
    assert {n: h for n, h in found.items() if ".eigenlens-" not in n} == before, point
    assert point is not None or found == before


# -- a planted bug: the folder is filled where it shall be


def bare_prepare(root: str) -> None:
    clear(root)


def bare(root: str) -> None:
    @contextmanager
    def straight(folder: Path, **_: Any) -> Any:
        folder.mkdir()
        yield folder

    checkpoint_module.new_folder = straight
    steer_to(root, "steered")


def bare_check(root: str, point: int | None) -> None:
    here = Path(root)
    if (here / "steered").exists():
        assert hashes(here / "steered") == hashes(here / "expected"), f"half a folder at {point}"
