"""What a hub, a proxy or a line can do wrong: what has come is kept, nothing false is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from eigenlens.errors import EigenlensError, FormatError, SourceError
from eigenlens.tensors.remote import PROBE
from eigenlens.tensors.source import Source, resolve
from hub_server import SECRET, Fault, Hub, llama, publish, serving

ARRAYS = llama(layers=1)
FILE = "model.safetensors"
NAME = "model.embed_tokens.weight"
# The tensor comes first in the file; the first request brought its beginning along.
CONTENT = save(ARRAYS)
REST = 8 + int.from_bytes(CONTENT[:8], "little") + ARRAYS[NAME].nbytes - PROBE


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path, monkeypatch) as found:
        publish(found, ARRAYS)
        yield found


@pytest.fixture
def source(hub: Hub) -> Source:
    found = resolve("org/name")
    hub.forget()
    return found


def holds(source: Source) -> None:
    np.testing.assert_array_equal(source.store.read(NAME), ARRAYS[NAME])


def refused(source: Source, pattern: str, kind: type[EigenlensError] = SourceError) -> None:
    """The tensor cannot be read, which is one line without addresses and secrets."""
    with pytest.raises(kind, match=pattern) as caught:
        source.store.read(NAME)
    text = str(caught.value)
    assert text.startswith("org/name")
    assert "\n" not in text
    assert "http" not in text
    assert SECRET not in text


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_breaks_goes_on_where_it_stopped(
    hub: Hub, source: Source, reset: bool
) -> None:
    hub.faults[FILE] = [Fault(cut=1_000_000, reset=reset), Fault(cut=2_000_000, reset=reset)]
    holds(source)
    starts = [int((a.range or "=0-").split("=")[1].split("-")[0]) for a in hub.gets(FILE)]
    assert len(starts) == 3
    assert starts == sorted(starts)
    if reset:  # what the peer had not read is lost
        assert starts[0] <= starts[1] <= starts[0] + 1_000_000
    else:
        assert starts[1:] == [starts[0] + 1_000_000, starts[0] + 3_000_000]
        assert hub.sent(FILE) == REST


def test_what_has_come_of_a_run_that_failed_is_kept(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(cut=3_000_000), *(Fault(cut=0) for _ in range(9))]
    refused(source, rf"tensor '{NAME}' of org/name/{FILE} could not be fetched from 127\.0\.0\.1")
    hub.faults.clear()
    before = hub.sent(FILE)
    assert before == 3_000_000
    holds(resolve("org/name"))
    assert hub.sent(FILE) == REST


def test_an_interrupt_keeps_what_has_come(hub: Hub, source: Source) -> None:
    """Ctrl-C in the middle of a transfer; the callback is where it is simplest to press."""

    def press(done: int, total: int, file: str) -> None:
        if done > 2_000_000:
            raise KeyboardInterrupt

    from eigenlens.tensors.transfers import Transfers, watching

    with watching(Transfers(press)):
        watched = resolve("org/name")
    with pytest.raises(KeyboardInterrupt):
        watched.store.read(NAME)
    hub.forget()
    holds(resolve("org/name"))
    assert hub.sent(FILE) < REST - 1_900_000


def test_no_progress_ends(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(cut=0) for _ in range(99)]
    refused(source, r"\(\w+\); check the connection and the disk")
    assert 3 <= 99 - len(hub.faults[FILE]) <= 10
    assert sum(hub.slept) < 60


def test_a_body_that_ends_early_without_an_error(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(cut=1_000, chunked=True), Fault(cut=0, chunked=True)]
    holds(source)


def test_an_answer_shorter_than_asked_is_continued(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(short=5_000_000)]
    holds(source)
    assert hub.sent(FILE) == REST


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408])
def test_an_error_that_recovers(hub: Hub, source: Source, status: int) -> None:
    hub.faults[FILE] = [Fault(status=status), Fault(status=status)]
    holds(source)
    assert hub.slept == [1, 2]


def test_too_many_requests_waits_as_told(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(status=429, headers={"Retry-After": "7"})]
    holds(source)
    assert len(hub.slept) == 1
    assert 7 <= hub.slept[0] <= 9


def test_an_error_that_stays(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(status=500) for _ in range(20)]
    refused(source, rf"127\.0\.0\.1:{hub.port} answered 500 for tensor .*; try again later")


@pytest.mark.parametrize(
    ("status", "headers", "pattern"),
    [
        (401, {}, "no such model on 127|answered 401 for tensor .*; log in with"),
        (403, {}, "answered 403 for tensor .*; log in with"),
        (403, {"X-Error-Code": "GatedRepo"}, "access is gated; accept its terms"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no such model on 127"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "no revision 'main'"),
        (404, {"X-Error-Code": "EntryNotFound"}, "has no tensor"),
        (410, {}, "answered 410"),
        (204, {}, "status 204 and no usable Content-Range"),
        (303, {"Location": "ftp://example.invalid/x"}, "could not be fetched"),
        (302, {"Location": "/storage/model.safetensors"}, "could not be fetched"),
    ],
)
def test_refusals_of_a_range(
    hub: Hub, source: Source, status: int, headers: dict[str, str], pattern: str
) -> None:
    hostile = b'{"error": "\x1b[31m\\nhttp://evil.invalid ' + SECRET.encode() + b'"}'
    body = b"" if status == 204 else hostile
    hub.faults[FILE] = [Fault(status=status, headers=headers, body=body) for _ in range(30)]
    refused(source, pattern)


@pytest.mark.parametrize(
    ("fault", "pattern"),
    [
        (Fault(skew=1), r"answered with bytes \d+ to \d+ of \d+; check HF_ENDPOINT"),
        (Fault(skew=-4096), r"answered with bytes \d+ to \d+"),
        (Fault(whole_size="*"), "no usable Content-Range"),
        (Fault(whole_size="12"), "answered with bytes"),
        (Fault(whole_size="99999999999"), "changed on the server while it was read"),
        (Fault(short=-4096), "answered with bytes"),
        (Fault(content=b"short now"), "changed on the server"),
    ],
)
def test_other_bytes_than_asked_for_are_never_taken(
    hub: Hub, source: Source, fault: Fault, pattern: str
) -> None:
    hub.faults[FILE] = [fault]
    refused(source, pattern)
    holds(source)
    holds(resolve("org/name"))


def test_a_file_that_changes_between_two_requests_is_not_mixed(hub: Hub, source: Source) -> None:
    """The same commit, the same size, other bytes: only the entity tag tells."""
    hub.faults[FILE] = [Fault(cut=1_000_000)]
    genuine = hub.files[FILE]
    first = source.store.read(NAME, slice(0, 100))
    hub.files[FILE] = genuine[:-8] + bytes(8)
    refused(source, "changed on the server while it was read; nothing of the two versions")
    np.testing.assert_array_equal(first, ARRAYS[NAME][:100])
    hub.files[FILE] = genuine
    holds(source)


def test_a_change_in_the_middle_of_a_tensor_is_not_mixed(hub: Hub, source: Source) -> None:
    class Changing(Fault):
        """After this answer the file is another one."""

        @property
        def chunked(self) -> bool:
            hub.files[FILE] = bytes(len(hub.files[FILE]))
            return False

        @chunked.setter
        def chunked(self, value: bool) -> None:
            """The dataclass sets its default."""

    hub.faults[FILE] = [Changing(cut=1_000_000)]
    refused(source, "changed on the server while it was read")


def test_compressed_answers_are_not_taken_for_the_bytes(hub: Hub, source: Source) -> None:
    hub.faults[FILE] = [Fault(headers={"Content-Encoding": "gzip"})]
    holds(source)
    assert hub.gets(FILE)[-1].range is None


def test_a_redirect_to_another_host_carries_no_token(hub: Hub, source: Source) -> None:
    """Also when the endpoint itself redirects, not only to the storage that it announces."""
    hub.stored.clear()
    where = f"http://localhost:{hub.storage_port}/storage/{FILE}"
    hub.faults[FILE] = [Fault(status=307, headers={"Location": where})]
    holds(source)
    elsewhere = [a for a in hub.asked if a.host.startswith("localhost")]
    assert len(elsewhere) == 1
    assert elsewhere[0].token is None
    assert {a.token for a in hub.asked if a not in elsewhere} == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("status", "code", "pattern"),
    [
        (401, "", "no such model on 127|answered 401"),
        (401, "RepoNotFound", "no such model on 127"),
        (403, "GatedRepo", "access is gated"),
        (404, "RepoNotFound", "no such model"),
        (404, "RevisionNotFound", "no revision 'main'"),
        (404, "EntryNotFound", "has no model-00001"),
    ],
)
def test_refusals_of_a_shard(hub: Hub, status: int, code: str, pattern: str) -> None:
    hub.files.clear()
    publish(hub, ARRAYS, shards=2)
    source = resolve("org/name")
    hub.status, hub.code = status, code
    refused(source, pattern)
    hub.status, hub.code = 200, ""
    if code != "EntryNotFound":  # which is noted: a commit never gains a file
        holds(source)


def test_the_first_request_of_a_shard_recovers(hub: Hub) -> None:
    hub.faults[FILE] = [
        Fault(status=500),
        Fault(cut=100),
        Fault(status=429, headers={"Retry-After": "1"}),
    ]
    holds(resolve("org/name"))


def test_an_empty_file_and_one_that_is_no_safetensors(hub: Hub) -> None:
    hub.files[FILE] = b""
    with pytest.raises(FormatError, match=r"model\.safetensors: has 0 bytes"):
        resolve("org/name")


@pytest.mark.parametrize(
    ("start", "pattern"),
    [
        (b"\xff" * 64, "says that its header has"),
        ((10**8 + 1).to_bytes(8, "little"), "header at most"),
        ((50).to_bytes(8, "little") + b'{"a": [' + b" " * 43, "header"),
        (b"<!DOCTYPE html>" + b" " * 100, "says that its header has"),
    ],
)
def test_large_files_that_are_no_safetensors(hub: Hub, start: bytes, pattern: str) -> None:
    hub.files[FILE] = start + bytes(6_000_000)
    with pytest.raises(FormatError, match=rf"^org/name/model\.safetensors: .*{pattern}") as caught:
        resolve("org/name")
    assert "\n" not in str(caught.value)
    assert hub.sent(FILE) < 200_000


def test_a_header_longer_than_the_first_request(hub: Hub) -> None:
    arrays = {f"a rather long name of a tensor, number {i}": np.ones(1) for i in range(2000)}
    publish(hub, arrays | ARRAYS)
    source = resolve("org/name")
    assert len(source.store.names()) == 2000 + len(ARRAYS)
    holds(source)


@pytest.mark.parametrize(
    "file", ["sub folder/m.safetensors", "é?a=b#c.safetensors", "%2e%2e%2fx", "a b;c&d", "x" * 200]
)
def test_names_of_shards_are_quoted(hub: Hub, file: str) -> None:
    index = json.dumps({"weight_map": dict.fromkeys(ARRAYS, file)})
    hub.files["model.safetensors.index.json"] = index.encode()
    hub.files[file] = hub.files.pop(FILE)
    hub.stored.add(file)
    holds(resolve("org/name"))
    assert hub.sent(file) < len(hub.files[file])
    assert {a.file for a in hub.gets()} == {"config.json", "model.safetensors.index.json", file}


@pytest.mark.parametrize("file", ["x" * 5000, "a//", "~", "-rf", " "])
def test_names_that_no_shard_has(hub: Hub, file: str) -> None:
    index = json.dumps({"weight_map": dict.fromkeys(ARRAYS, file)})
    hub.files["model.safetensors.index.json"] = index.encode()
    refused(resolve("org/name"), "org/name")
