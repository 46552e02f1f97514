"""Tensors of a .safetensors file that lies on the hub: only their bytes are fetched, once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.files import file_size, read_bytes
from eigenlens.tensors.http_ranges import Identity, NotRangedError, RangeReader
from eigenlens.tensors.safetensors_file import SafetensorsFile
from eigenlens.tensors.segments import Segments, Span, merge, read_record, write_record
from eigenlens.tensors.store import ShardedStore, TensorStore
from eigenlens.tensors.transfers import Transfers

GAP = 128 * 1024
"""Bytes between two tensors that are fetched along with them instead of by a second request."""
PROBE = 64 * 1024
"""Bytes of the first request; the header of most shards is shorter."""

Want = tuple[str, slice | None]
"""A tensor's name and the rows of it, None for all."""


@runtime_checkable
class Prefetching(Protocol):
    """A store that gains from hearing at once what will be read next."""

    def prefetch(self, wants: Iterable[Want]) -> None:
        """Fetch the bytes of these tensors, adjacent ones in one request."""


def prefetch(store: TensorStore, wants: Iterable[Want]) -> None:
    """Tell the store what will be read next; for files on disk nothing happens."""
    if isinstance(store, Prefetching):
        store.prefetch(wants)


@dataclass(frozen=True)
class RemotePlace:
    """Where a remote file is and where its pieces are kept.

    Parameters
    ----------
    url
        Address at a fixed commit.
    label
        For messages: model and file, inert.
    key
        Says the same file at the same commit, endpoint included.
    cache
        Folder for pieces and records; None keeps nothing.
    """

    url: str
    label: str
    key: str
    cache: Path | None

    def _hashed(self, text: str) -> str:
        return hashlib.sha256(f"{self.key}\0{text}".encode()).hexdigest()[:40]

    @property
    def record(self) -> Path | None:
        """Record of the file's identity: what a commit holds never changes."""
        return self.cache and self.cache / f"{self._hashed('record')}.json"

    def known(self) -> Identity | None:
        """What the file is, if a run before asked."""
        return _identity(read_record(self.record)) if self.record else None

    def pieces(self, identity: Identity, owner: str) -> Path | None:
        """Folder of the pieces, by their tag: a shard that a later commit kept is not read anew."""
        if self.cache is None:
            return None
        tag = f"{owner}\0{identity.etag}" if identity.etag else self.key
        digest = hashlib.sha256(f"{tag}\0{identity.size}".encode()).hexdigest()
        return self.cache / digest[:40]


class RemoteFile:
    """One file on the hub, read range by range through the pieces that are kept.

    Parameters
    ----------
    place
        Where it is.
    owner
        Endpoint and repository: pieces are shared between their commits only.
    transfers
        Who is told of downloads.
    guard
        Wraps every use of the network and turns its failures into SourceError; it is told what is
        being fetched.
    whole
        Downloads the file as a whole, for a server that does no ranges; it is told the size if
        that is known.

    Attributes
    ----------
    identity, size
        What the file is: its size in bytes, and its entity tag if the server gives one.
    """

    def __init__(
        self,
        place: RemotePlace,
        owner: str,
        transfers: Transfers,
        guard: Callable[[str], AbstractContextManager[None]],
        whole: Callable[[int | None], Path],
    ) -> None:
        self.place = place
        self._transfers = transfers
        self._guard = guard
        self._whole = whole
        self._local: Path | None = None  # once the server turned out to do no ranges
        self._lock = Lock()
        self._head = b""
        identity = place.known()
        self._reader = RangeReader(place.url, place.label, identity)
        if identity is None:
            identity = self._probe()
        self.identity, self.size = identity, identity.size
        self._segments = Segments(place.pieces(identity, owner), self._refused)
        if self._segments.missing(0, len(self._head)):
            with self._segments.writer(0) as writer:
                writer.write(self._head)

    def _probe(self) -> Identity:
        """Learn what the file is from its first bytes, and note it for the next run."""
        place = self.place
        try:
            with self._guard(place.label):
                self._head = b"".join(self._reader.chunks(0, PROBE))
        except NotRangedError as answer:
            return Identity(file_size(self._fetch_whole(answer)), None)
        identity = self._reader.identity or Identity(len(self._head), None)
        if place.record:
            record = {"file": place.label, "size": identity.size, "etag": identity.etag}
            write_record(place.record, record)
        return identity

    def _fetch_whole(self, answer: NotRangedError) -> Path:
        self._local = self._whole(answer.size)
        return self._local

    def _refused(self, reason: str) -> None:
        self._transfers.note(
            f"{self.place.label}: what is fetched cannot be kept in {inert(str(self.place.cache))} "
            f"({reason}); the next run fetches it again"
        )

    def read(self, offset: int, length: int, what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """`length` bytes at `offset`; what is not kept yet is fetched first."""
        if not 0 <= offset <= offset + length <= self.size:
            raise FormatError(
                f"{self.place.label}: {what} needs bytes {offset} to {offset + length} but the "
                f"file has {self.size}; it is damaged"
            )
        with self._lock:
            local = self._local
            if local is None:
                try:
                    return self._assemble(offset, length, what)
                except NotRangedError as answer:
                    local = self._fetch_whole(answer)
            return read_bytes(local, offset, length, what)

    def _assemble(self, offset: int, length: int, what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if offset + length <= len(self._head):
            return np.frombuffer(self._head, np.uint8)[offset : offset + length].copy()
        out = np.empty(length, dtype=np.uint8)
        self._fill(offset, out.data, what)
        return out

    def _fill(self, start: int, out: memoryview, what: str) -> None:
        stop = start + len(out)
        gaps = self._segments.missing(start, stop)
        counted = self._counter(gaps)
        at = start
        for gap in (*gaps, (stop, stop)):
            kept = out[at - start : gap[0] - start]
            if len(kept) and not self._segments.read_into(at, kept):
                self._fill(at, kept, what)  # the damaged piece is forgotten by now
            self._download(gap, out[gap[0] - start : gap[1] - start], what, counted)
            at = gap[1]

    def _download(
        self, span: Span, out: memoryview | None, what: str, counted: Callable[[int], None]
    ) -> None:
        at = span[0]
        if at == span[1]:
            return
        with self._guard(f"{what} of {self.place.label}"), self._segments.writer(at) as writer:
            for piece in self._reader.chunks(*span):
                if out is not None:
                    out[at - span[0] : at - span[0] + len(piece)] = piece
                writer.write(piece)
                at += len(piece)
                counted(len(piece))

    def _counter(self, gaps: Sequence[Span]) -> Callable[[int], None]:
        done, total = 0, sum(stop - start for start, stop in gaps)

        def counted(more: int) -> None:
            nonlocal done
            done += more
            self._transfers.progress(done, total, self.place.label)

        return counted

    def prefetch(self, spans: Iterable[Span]) -> None:
        """Fetch what is not kept of the spans, with few requests; nothing if nothing is kept."""
        with self._lock:
            if self._local is not None:
                return
            gaps = merge((g for span in spans for g in self._segments.missing(*span)), GAP)
            counted = self._counter(gaps)
            try:
                for gap in gaps:
                    if self._segments.keeps:
                        self._download(gap, None, "tensors", counted)
            except NotRangedError as answer:
                self._fetch_whole(answer)


class RemoteSafetensors(SafetensorsFile):
    """A store over a .safetensors file on the hub; its header is fetched when it is opened."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        super().__init__(Path(file.place.label))

    def _size(self) -> int:
        return self._file.size

    def _known_as(self) -> str | None:
        found = self._file.identity
        return f"blob {found.etag} {found.size}" if found.etag else None

    def _bytes(self, start: int, length: int, what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._file.read(start, length, what)

    def reads_runs(self, name: str) -> bool:
        """Each reading may be a request of its own."""
        return False

    def prefetch(self, wants: Iterable[Want]) -> None:
        """Fetch the bytes of these tensors, adjacent ones in one request."""
        spans = (self.span(name, rows) for name, rows in wants)
        self._file.prefetch((start, start + length) for start, length, _ in spans)


class RemoteShards(ShardedStore):
    """Shards of which some are remote."""

    def prefetch(self, wants: Iterable[Want]) -> None:
        """Tell every shard what will be read of it."""
        by_shard: dict[int, tuple[TensorStore, list[Want]]] = {}
        for want in wants:
            shard = self._shard(want[0])
            by_shard.setdefault(id(shard), (shard, []))[1].append(want)
        for shard, wanted in by_shard.values():
            prefetch(shard, wanted)


def _identity(record: dict[str, Any]) -> Identity | None:
    size, etag = record.get("size"), record.get("etag")
    if type(size) is not int or size <= 0 or not isinstance(etag, str | None):
        return None
    return Identity(size, etag)
