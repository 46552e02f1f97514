"""Ranges of a file over HTTP, through the session of `huggingface_hub`.

The library brings the token, the proxy, the retries with their waits and the redirects (it sends
the token to no other host). What is added here: the answer must be the bytes that were asked for,
of the file that was asked for, and a body that breaks off is taken up where it stopped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eigenlens.errors import SourceError

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_STALLS = 5  # broken connections in a row that brought nothing


@dataclass(frozen=True)
class Identity:
    """Which bytes a remote file holds: its size, and the entity tag (a hash on the hub) if known.

    The tag is the one of the file in the repository (``X-Linked-Etag``), which a redirect to a
    storage host does not change.
    """

    size: int
    etag: str | None


class NotRangedError(Exception):
    """The server sends the whole file instead of a range; `size` in bytes where it says it."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self.size = size


def broken_connection() -> tuple[type[BaseException], ...]:
    """What a connection that fails raises, whichever HTTP library huggingface_hub is built on."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *HfHubHTTPError.__bases__)


def _utilities() -> Any:
    """The public helpers of huggingface_hub for requests of one's own."""
    from huggingface_hub import utils

    return utils


class RangeReader:
    """Reads one remote file range by range.

    Parameters
    ----------
    url
        Address of the file at a fixed commit.
    label
        What to call it in messages (inert).
    identity
        What the file must be; None until the first answer says it.
    """

    def __init__(self, url: str, label: str, identity: Identity | None = None) -> None:
        self._url = url
        self._label = label
        self.identity = identity

    def chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes `start` to `stop` (or to the end of the file), in order, as they come.

        Raises
        ------
        NotRangedError
            The server does not do ranges.
        SourceError
            The server sent other bytes than asked for, or the file changed meanwhile.
        Exception
            What `huggingface_hub` raises for a refusal or a connection that stays broken.
        """
        from huggingface_hub import constants

        library = _utilities()
        broken = broken_connection()
        at, stalls = start, 0
        while at < min(stop, self.identity.size if self.identity else stop):
            before, failure = at, None
            headers = {"Range": f"bytes={at}-{stop - 1}", "Accept-Encoding": "identity"}
            with library.http_stream_backoff(
                "GET",
                self._url,
                headers=library.build_hf_headers(library_name="eigenlens", headers=headers),
                timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
                follow_redirects=True,
            ) as response:
                end = self._check(response, at, stop)
                # An error that leaves this block would be retried by the library from the start.
                try:
                    for piece in response.iter_raw():
                        piece = piece[: end - at]
                        at += len(piece)
                        yield piece
                        if at == end:
                            break
                except broken as error:
                    failure = error
            stalls = 0 if at > before else stalls + 1
            if stalls >= _STALLS:
                raise failure or ConnectionError("the connection closes before any byte")
            if failure is not None:
                time.sleep(min(2**stalls, 8))

    def _check(self, response: Any, at: int, stop: int) -> int:
        """Where the body ends, once it is sure that it begins at `at` and is of our file."""
        status = response.status_code
        if status == 416:  # nothing there: an empty file, or one that became shorter
            if self.identity is None and at == 0:
                raise NotRangedError(0)
            raise self._changed()
        _utilities().hf_raise_for_status(response)
        headers = response.headers
        if status == 200 or headers.get("Content-Encoding", "identity") != "identity":
            length = headers.get("Content-Length", "")
            raise NotRangedError(int(length) if length.isdecimal() and status == 200 else None)
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if status != 206 or match is None or match[3] == "*":
            raise self._confused(f"status {status} and no usable Content-Range")
        first, last, size = int(match[1]), int(match[2]), int(match[3])
        if first != at or not first <= last < min(stop, size):
            raise self._confused(f"bytes {first} to {last} of {size}")
        found = Identity(size, _etag(response))
        known = self.identity
        if known is None:
            self.identity = known = found
        if found.size != known.size or (found.etag and known.etag and found.etag != known.etag):
            raise self._changed()
        return last + 1

    def _changed(self) -> SourceError:
        return SourceError(
            f"{self._label}: changed on the server while it was read; nothing of the two versions "
            "was mixed, run the command again"
        )

    def _confused(self, answer: str) -> SourceError:
        return SourceError(
            f"{self._label}: asked for a range, the server answered with {answer}; check "
            "HF_ENDPOINT and the proxy, or download the model and give its folder"
        )


def _etag(response: Any) -> str | None:
    """The repository's tag of the file, from whichever answer in the chain of redirects has it.

    The plain tag of a storage host is of another kind and says nothing.
    """
    for answer in (*response.history, response):
        linked = answer.headers.get("X-Linked-Etag")
        if linked:
            return _plain(linked)
    return None if response.history else _plain(response.headers.get("ETag"))


def _plain(etag: str | None) -> str | None:
    return etag.removeprefix("W/").strip('"')[:200] or None if etag else None
