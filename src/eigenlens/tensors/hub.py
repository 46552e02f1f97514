"""Files of a model on the Hugging Face hub, fetched one by one when they are needed.

`huggingface_hub` does the work and keeps its promises: HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and
the cache folder mean what they always mean. All files come from the commit of the first one, so a
push in between cannot mix two versions. Messages are written here from what kind of failure it
was; the library's own texts (with addresses and request ids) stay out of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from eigenlens.errors import SourceError
from eigenlens.inert import inert
from eigenlens.tensors.folder import OPENERS, WEIGHT_FILES, read_index
from eigenlens.tensors.store import ShardedStore, TensorStore

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
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        # The HTTP library's errors differ between versions of huggingface_hub; the base classes
        # tell which.
        network: tuple[type[BaseException], ...] = (
            OSError,
            RuntimeError,
            *HfHubHTTPError.__bases__,
        )
        try:
            with _quiet():
                path = Path(hf_hub_download(self.repo_id, file, revision=self._revision))
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
        except LocalEntryNotFoundError as error:
            if isinstance(error.__cause__, HfHubHTTPError):
                raise self._refused(file, error.__cause__) from error
            self._cache_only = True
            return None
        except EntryNotFoundError:
            return None
        except HFValidationError as error:
            raise SourceError(
                f"{self.label}: is not a valid hub id; it looks like org/name"
            ) from error
        except HfHubHTTPError as error:
            raise self._refused(file, error) from error
        except network as error:
            raise SourceError(
                f"{self.label}: {inert(file)} could not be fetched from {_host()} "
                f"({type(error).__name__}); check the connection and the disk, and try again"
            ) from error
        if _COMMIT.fullmatch(path.parent.name):
            self._revision = path.parent.name
        return path

    def _refused(self, file: str, error: Exception) -> SourceError:
        status = getattr(getattr(error, "response", None), "status_code", None)
        remedy = "try again later"
        if status in (401, 403):
            remedy = "log in with 'hf auth login' or set HF_TOKEN to a token that may read it"
        return SourceError(
            f"{self.label}: {_host()} answered {status or 'with an error'} for {inert(file)}; "
            f"{remedy}"
        )

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
            return SourceError(
                f"{self.label}: HF_HUB_OFFLINE is set and {what} is not in the cache; unset it, "
                "or download the model first"
            )
        return SourceError(
            f"{self.label}: {_host()} cannot be reached and {what} is not in the cache; check the "
            "connection (and HF_ENDPOINT), or give a local folder"
        )

    def _shard(self, kind: str, file: str) -> TensorStore:
        return OPENERS[kind](self.need(file))

    def open_weights(self) -> tuple[TensorStore, str]:
        """The store and its format; a shard is fetched when one of its tensors is read."""
        self._cache_only = False
        for kind, index, single in WEIGHT_FILES:
            path = self.fetch(index)
            if path is not None:
                return ShardedStore(path, read_index(path), partial(self._shard, kind)), kind
            path = self.fetch(single)
            if path is not None:
                return OPENERS[kind](path), kind
        raise self.absent("model.safetensors or pytorch_model.bin (or an index of shards)")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the library's warnings: its notes on retries print addresses with passwords."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _host() -> str:
    """Host of the endpoint in use, without user name or password."""
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    port = f":{parts.port}" if parts.port else ""
    return inert(f"{parts.hostname or 'the hub'}{port}")
