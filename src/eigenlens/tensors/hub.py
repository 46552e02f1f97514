"""Files of a model on the Hugging Face hub: whole where small, byte ranges where large.

`huggingface_hub` does the work and keeps its promises: HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and
the cache folder mean what they always mean. All files come from the commit of the first one, so a
push in between cannot mix two versions. Of a large .safetensors file only the header and the
tensors that are read are fetched; they are kept in ``eigenlens/`` of the library's assets folder
(``HF_ASSETS_CACHE``, in ``HF_HOME``), which may be deleted at any time. Messages are written here
from what kind of failure it was; the library's own texts (with addresses and request ids) stay out
of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from eigenlens.errors import SourceError
from eigenlens.inert import inert
from eigenlens.tensors.folder import OPENERS, WEIGHT_FILES, read_index
from eigenlens.tensors.http_ranges import broken_connection
from eigenlens.tensors.kept import folder_of
from eigenlens.tensors.remote import RemoteFile, RemotePlace, RemoteSafetensors, RemoteShards
from eigenlens.tensors.store import TensorStore
from eigenlens.tensors.transfers import Transfers, current, megabytes

SMALL = 4 * 1024 * 1024
"""Files up to this many bytes are fetched whole: several requests would take longer."""

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_][A-Za-z0-9_./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def parse_hub_id(text: str) -> tuple[str, str | None] | None:
    """``("org/name", revision or None)`` when `text` looks like a hub id, else None."""
    match = _HUB_ID.fullmatch(text)
    if match is None or ".." in text or "--" in match[1]:
        return None
    return match[1], match[2]


class HubModel:
    """One repository at one revision.

    Parameters
    ----------
    repo_id
        ``org/name``.
    revision
        Branch, tag or commit; None for the default branch.
    """

    def __init__(self, repo_id: str, revision: str | None = None) -> None:
        self.repo_id = repo_id
        self._asked = revision
        self._revision = revision
        self._cache_only = False
        self._watcher = current()
        self._transfers = self._watcher or Transfers()

    @property
    def label(self) -> str:
        """The id as the user wrote it."""
        return inert(self.repo_id + (f"@{self._asked}" if self._asked else ""))

    def fetch(self, file: str) -> Path | None:
        """Local path of `file`, downloaded if need be; None when the repository does not have it.

        Without a connection, a file that is not in the cache counts as one that is not there.

        Raises
        ------
        SourceError
            No such repository or revision, no access, or no way to get the file; one line with the
            remedy.
        """
        if self._cached(file) is False:
            return None
        options = {} if self._watcher is None else {"tqdm_class": partial(_Bar, self._watcher)}
        found = self._ask(file, **options)
        if found is None:
            return None
        path = Path(found)
        if _COMMIT.fullmatch(path.parent.name):
            self._revision = path.parent.name
        return path

    def _cached(self, file: str) -> Path | bool | None:
        """Path in the library's cache; False if it knows that the commit has no such file."""
        from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

        if self._commit is None:
            return None
        found = try_to_load_from_cache(self.repo_id, file, revision=self._commit)
        if isinstance(found, str):
            return Path(found)
        return False if found is _CACHED_NO_EXIST else None

    @property
    def _commit(self) -> str | None:
        return self._revision if _COMMIT.fullmatch(self._revision or "") else None

    def _ask(self, file: str, **options: Any) -> Any:
        """What hf_hub_download says; None when the file is not there."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
        )

        try:
            with self._told(inert(file)):
                return hf_hub_download(self.repo_id, file, revision=self._revision, **options)
        except LocalEntryNotFoundError as error:
            if isinstance(error.__cause__, HfHubHTTPError):
                raise self._refused(inert(file), error.__cause__) from error
            self._cache_only = True
            return None
        except EntryNotFoundError:
            return None

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn what the library raises while it fetches `what` into one line with the remedy.

        That an entry is not there passes: the caller knows what it means.
        """
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        network: tuple[type[BaseException], ...] = (RuntimeError, *broken_connection())
        try:
            with _QUIET:
                yield
        except EntryNotFoundError:
            raise
        except GatedRepoError as error:
            raise SourceError(
                f"{self.label}: access is gated; accept its terms on the model's page, then log "
                "in with 'hf auth login' or set HF_TOKEN"
            ) from error
        except RepositoryNotFoundError as error:
            raise SourceError(
                f"{self.label}: no such model on {_host()}, or it is private; check the spelling, "
                "or log in with 'hf auth login' or HF_TOKEN"
            ) from error
        except RevisionNotFoundError as error:
            raise SourceError(
                f"{self.label}: the model has no revision '{inert(self._asked or 'main')}'; give "
                "a branch, tag or commit that exists after the @"
            ) from error
        except HFValidationError as error:
            raise SourceError(
                f"{self.label}: is not a valid hub id; it looks like org/name"
            ) from error
        except OfflineModeIsEnabled as error:
            raise self._offline(what) from error
        except HfHubHTTPError as error:
            raise self._refused(what, error) from error
        except network as error:
            raise SourceError(
                f"{self.label}: {what} could not be fetched from {_host()} "
                f"({type(error).__name__}); check the connection and the disk, and try again"
            ) from error

    @contextmanager
    def _ranges(self, what: str) -> Iterator[None]:
        """As `_told`, for ranges of a file that was there."""
        from huggingface_hub.errors import EntryNotFoundError

        try:
            with self._told(what):
                yield
        except EntryNotFoundError as error:
            raise self.absent(what) from error

    def _refused(self, what: str, error: Exception) -> SourceError:
        status = getattr(getattr(error, "response", None), "status_code", None)
        remedy = "try again later"
        if status in (401, 403):
            remedy = "log in with 'hf auth login' or set HF_TOKEN to a token that may read it"
        return SourceError(
            f"{self.label}: {_host()} answered {status or 'with an error'} for {what}; {remedy}"
        )

    def revisions(self) -> list[tuple[str, str]]:
        """Name and commit of every branch and tag, as the hub lists them now.

        Raises
        ------
        SourceError
            No such repository, no access, or the hub cannot be asked; one line with the remedy.
        """
        from huggingface_hub import HfApi

        what = "the list of its revisions"
        with self._ranges(what):
            found = HfApi(endpoint=_endpoint()).list_repo_refs(self.repo_id)
        return [(ref.name, ref.target_commit) for ref in (*found.branches, *found.tags)]

    def need(self, file: str) -> Path:
        """As `fetch`, but a file that is not there raises SourceError."""
        self._cache_only = False
        path = self.fetch(file)
        if path is None:
            raise self.absent(inert(file))
        return path

    def absent(self, what: str) -> SourceError:
        """The error for a file that could not be had, by whether the hub could be asked at all."""
        from huggingface_hub import constants

        if not self._cache_only:
            return SourceError(
                f"{self.label}: has no {what}; only models with transformers' files are read"
            )
        if constants.HF_HUB_OFFLINE:
            return self._offline(what)
        return SourceError(
            f"{self.label}: {_host()} cannot be reached and {what} is not in the cache; check the "
            "connection (and HF_ENDPOINT), or give a local folder"
        )

    def _offline(self, what: str) -> SourceError:
        return SourceError(
            f"{self.label}: HF_HUB_OFFLINE is set and {what} is not in the cache; unset it, "
            "or download the model first"
        )

    def _shard(self, kind: str, file: str) -> TensorStore:
        self._cache_only = False
        store = self._open(kind, file)
        if store is None:
            raise self.absent(inert(file))
        return store

    def _open(self, kind: str, file: str) -> TensorStore | None:
        """The store of one weight file, by ranges where that saves something; None without it."""
        if kind == "safetensors":
            place = self._remote(file)
            if place is not None:
                owner = f"{_endpoint()}\0{self.repo_id}"
                whole = partial(self._whole, file)
                return RemoteSafetensors(
                    RemoteFile(place, owner, self._transfers, self._ranges, whole)
                )
        path = self.fetch(file)
        return None if path is None else OPENERS[kind](path)

    def _remote(self, file: str) -> RemotePlace | None:
        """Where `file` is read range by range; None where it is better had as a whole."""
        from huggingface_hub import hf_hub_url

        commit = self._commit
        if commit is None or self._cached(file) is not None or not _can_range():
            return None
        place = RemotePlace(
            hf_hub_url(self.repo_id, file, revision=commit),
            f"{self.label}/{inert(file)}",
            f"{_endpoint()}\0{self.repo_id}\0{commit}\0{file}",
            folder_of(self.repo_id),
        )
        if place.known() is None:
            found = self._ask(file, dry_run=True)
            if found is None or found.is_cached or 0 < (found.file_size or 0) <= SMALL:
                return None
        return place

    def _whole(self, file: str, size: int | None) -> Path:
        """Download `file` although only parts of it are needed, and say so."""
        self._transfers.note(
            f"{self.label}: {_host()} sends no byte ranges, so {inert(file)} is fetched whole"
            f"{f' ({megabytes(size)})' if size else ''}"
        )
        return self.need(file)

    def open_weights(self) -> tuple[TensorStore, str]:
        """The store and its format; of a shard, what is read is fetched when it is read."""
        self._cache_only = False
        for kind, index, single in WEIGHT_FILES:
            path = self.fetch(index)
            if path is not None:
                return RemoteShards(path, read_index(path), partial(self._shard, kind)), kind
            store = self._open(kind, single)
            if store is not None:
                return store, kind
        raise self.absent("model.safetensors or pytorch_model.bin (or an index of shards)")


class _Bar:
    """What huggingface_hub takes for a progress bar of a whole file; it tells `transfers`."""

    def __init__(
        self,
        transfers: Transfers,
        *,
        desc: str = "",
        total: float | None = None,
        initial: float = 0,
        **_: Any,
    ) -> None:
        self._transfers = transfers
        self._file = inert(desc)
        self.total, self.n = total, initial

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, n: float | None = 1) -> None:
        self.n += n or 0
        self._transfers.progress(int(self.n), int(max(self.total or 0, self.n)), self._file)

    def close(self) -> None:
        """Nothing is open."""

    def set_postfix_str(self, *_: Any, **__: Any) -> None:
        """Speed is shown by who watches."""


def _can_range() -> bool:
    """Whether the installed huggingface_hub streams with retries and can ask without fetching."""
    import huggingface_hub

    streams = hasattr(huggingface_hub.utils, "http_stream_backoff")
    return streams and hasattr(huggingface_hub, "DryRunFileInfo")


class _Quiet:
    """Hold back the library's warnings: its notes on retries print addresses with passwords.

    Threads may overlap; the last one to leave restores the level.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._level = logging.NOTSET

    def __enter__(self) -> None:
        logger = logging.getLogger("huggingface_hub")
        with self._lock:
            if self._inside == 0:
                self._level = logger.level
                logger.setLevel(logging.ERROR)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                logging.getLogger("huggingface_hub").setLevel(self._level)


_QUIET = _Quiet()


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _host() -> str:
    """Host of the endpoint in use, without user name or password."""
    parts = urlsplit(_endpoint())
    port = f":{parts.port}" if parts.port else ""
    return inert(f"{parts.hostname or 'the hub'}{port}")
