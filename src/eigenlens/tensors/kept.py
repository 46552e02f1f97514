"""The byte ranges of hub files that are kept on disk: how much of which repository, and removal.

They lie in the assets folder of huggingface_hub, one folder a repository, written by
`eigenlens.tensors.segments`. As with that library's own cache nothing is removed unless asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def pieces_folder() -> Path:
    """Where the pieces of all repositories lie (``HF_ASSETS_CACHE``, or the library's default)."""
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE) / "eigenlens"


def folder_of(repo_id: str) -> Path:
    """Where the pieces of one repository lie."""
    return pieces_folder() / repo_id.replace("/", "--")


@dataclass(frozen=True)
class KeptRepository:
    """What is kept of one repository.

    Attributes
    ----------
    repo_id
        ``org/name``.
    size
        Bytes on disk, records included.
    files
        Pieces and records.
    """

    repo_id: str
    size: int
    files: int


def kept_repositories() -> Iterator[KeptRepository]:
    """Every repository of which something is kept, by name."""
    folder = pieces_folder()
    if not folder.is_dir() or folder.is_symlink():
        return
    for place in sorted(folder.iterdir()):
        if place.is_dir() and not place.is_symlink():
            sizes = []
            for path in place.rglob("*"):
                with suppress(OSError):
                    if path.is_file() and not path.is_symlink():
                        sizes.append(path.stat().st_size)
            yield KeptRepository(place.name.replace("--", "/", 1), sum(sizes), len(sizes))


def forget(repo_id: str) -> None:
    """Remove what is kept of one repository; nothing outside its folder is touched."""
    known = {kept.repo_id for kept in kept_repositories()}
    if repo_id in known:
        shutil.rmtree(folder_of(repo_id))
