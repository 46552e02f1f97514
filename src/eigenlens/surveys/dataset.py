"""The data set on disk: a folder a model, a parquet file a task, every file whole or absent."""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eigenlens.errors import FormatError, MissingDependencyError, SourceError
from eigenlens.inert import inert
from eigenlens.surveys.rows import COLUMNS, Row
from eigenlens.writing import write_atomically

RECORD = "_survey.json"
"""What was asked, and what failed; readers of parquet pass over names with an underscore."""

RECORD_SCHEMA = "eigenlens.survey-record/1"
STALE_SECONDS = 3600.0
"""Age from which an unfinished file of a killed run is removed."""

_LOCK = ".lock"
_FILE = re.compile(r"([0-9a-f]{32})-(\d{1,6})-of-(\d{1,6})\.parquet")
_NEVER_NULL = ("source", "key", "part", "parts")
_LONGEST = 200  # bytes of a folder's name; file systems allow 255


def missing() -> MissingDependencyError:
    """The error where pyarrow is not installed."""
    return MissingDependencyError("a survey needs pyarrow: pip install 'eigenlens[cluster]'")


def folder_name(name: str) -> str:
    """The partition folder of a model: ``model=`` and its name with all but plain signs quoted.

    The result is one path component for any name: separators, dots alone and control characters
    are quoted as in URLs (which readers of parquet undo). A long name is cut and a hash of the
    whole one is put behind it.

    Examples
    --------
    >>> folder_name("org/name@step1000"), folder_name("../x y")
    ('model=org%2Fname%40step1000', 'model=..%2Fx%20y')
    """
    quoted = quote(inert(name), safe="")
    if len(quoted) > _LONGEST or quoted.startswith("__HIVE"):
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        cut = re.sub(r"%[0-9A-F]?$", "", quoted[: _LONGEST - 20])
        # A letter of several bytes must not be cut: the reader would find no UTF-8.
        cut = re.sub(r"(?:%[89A-F][0-9A-F])+$", "", cut)
        quoted = f"{cut.replace('__HIVE', 'HIVE')}~{digest}"
    return f"model={quoted}"


@dataclass(frozen=True)
class Part:
    """A file that is there: the rows of one task."""

    path: Path
    key: str
    part: int
    parts: int


@dataclass(frozen=True)
class Dataset:
    """The data set in a folder.

    Parameters
    ----------
    folder
        Its place; made when the first file is written.
    """

    folder: Path

    def prepare(self) -> None:
        """Make the folder, or see that it is one that a survey may write to.

        Raises
        ------
        SourceError
            It cannot be made, or holds other files than a survey's.
        """
        shown = inert(str(self.folder))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            foreign = [p.name for p in self.folder.iterdir() if not _is_ours(p.name)]
        except FileExistsError:
            raise SourceError(f"{shown}: is a file; give a folder for the survey") from None
        except OSError as error:
            raise SourceError(f"{shown}: cannot be used ({error.strerror})") from None
        if foreign:
            raise SourceError(
                f"{shown}: holds other files ({inert(min(foreign))}); give a new folder, or that "
                "of a survey"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The folder for one run alone; the system lets go of it when the process ends.

        Raises
        ------
        SourceError
            Another run writes to it.
        """
        try:
            import fcntl
        except ImportError:  # Windows: two runs at once are the user's care there
            yield
            return
        with (self.folder / _LOCK).open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SourceError(
                    f"{inert(str(self.folder))}: another survey is writing to it; wait for its "
                    "end, or give another folder"
                ) from None
            except OSError:  # a file system without locks
                yield
                return
            yield

    def parts(self, name: str) -> list[Part]:
        """The files of a model that read back whole; damaged and abandoned ones are removed."""
        found = []
        place = self.folder / folder_name(name)
        with suppress(FileNotFoundError):
            for path in sorted(place.iterdir()):
                match = _FILE.fullmatch(path.name)
                if match is None:
                    if path.name.startswith(".eigenlens-") and _age(path) > STALE_SECONDS:
                        path.unlink(missing_ok=True)
                    continue
                if not _reads(path):
                    path.unlink(missing_ok=True)
                    continue
                found.append(Part(path, match[1], int(match[2]), int(match[3])))
        return found

    def write(self, name: str, key: str, part: int, parts: int, rows: Sequence[Row]) -> None:
        """Write the rows of one task as one file.

        Raises
        ------
        SourceError
            The file cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        from eigenlens import __version__

        made_by = {"key": key, "part": part, "parts": parts, "eigenlens_version": __version__}
        table = pa.Table.from_pylist([{**row, **made_by} for row in rows], schema=schema())
        sink = io.BytesIO()
        pq.write_table(table, sink, write_page_checksum=True)
        place = self.folder / folder_name(name)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(f"cannot write {inert(str(place))!r}: {error.strerror}") from None
        write_atomically(place / f"{key}-{part:04}-of-{parts:04}.parquet", sink.getvalue())

    def drop_others(self, name: str, key: str, parts: int) -> None:
        """Remove a model's files of another key: other weights, options or version."""
        for part in self.parts(name):
            if (part.key, part.parts) != (key, parts):
                part.path.unlink(missing_ok=True)

    def batches(self, columns: Sequence[str]) -> Iterator[list[Row]]:
        """The rows, some thousands at a time, with these columns and the partition's ``model``.

        Raises
        ------
        SourceError
            There is no such folder.
        FormatError
            A file is damaged or of another make.
        """
        try:
            import pyarrow as pa
            import pyarrow.dataset as ds
        except ImportError:
            raise missing() from None
        shown = inert(str(self.folder))
        if not self.folder.is_dir():
            raise SourceError(f"{shown}: no such folder; give the --out of a survey")
        files = sorted(str(p) for p in self.folder.glob("model=*/*.parquet") if _is_part(p))
        if not files:
            return
        try:
            checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
            form = ds.ParquetFileFormat(default_fragment_scan_options=checked)
            data = ds.dataset(files, schema=schema(), format=form)
            for batch in data.to_batches(columns=list(columns), batch_size=4096):
                rows = batch.to_pylist()
                if any(None in (row.get(name, "") for name in _NEVER_NULL) for row in rows):
                    raise FormatError(
                        f"{shown}: a parquet file in it is not of a survey (rows without "
                        f"{', '.join(_NEVER_NULL)}); delete it and run the survey again"
                    )
                yield rows
        except (pa.ArrowException, OSError) as error:
            text = " ".join(str(error).split())[:200]
            bad = next((name for name in files if not _reads(Path(name))), shown)
            raise FormatError(
                f"{inert(bad)}: a file of the survey cannot be read ({inert(text)}); run the "
                "survey again, which computes it anew, or delete it"
            ) from None

    def foreign(self) -> list[str]:
        """Parquet files in the folders of models that no survey wrote; they are passed over."""
        found = self.folder.glob("model=*/*.parquet")
        return sorted(f"{p.parent.name}/{p.name}" for p in found if not _is_part(p))

    def record(self) -> dict[str, Any]:
        """What the last runs wrote down; empty where nothing is, or nothing that reads.

        Keys are ``options``, ``members`` (by name: None, or why it failed) and ``other_options``
        (names of checkpoints whose rows a run with other options left behind).
        """
        try:
            found = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
            members, options = found["members"], found["options"]
            texts = all(v is None or isinstance(v, str) for v in members.values())
            if found["schema"] == RECORD_SCHEMA and isinstance(options, dict) and texts:
                other = [x for x in found.get("other_options", []) if isinstance(x, str)]
                return {"options": options, "members": members, "other_options": other}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        return {}

    def write_record(self, content: Mapping[str, Any]) -> None:
        """Write what was asked and what failed.

        Raises
        ------
        SourceError
            The file cannot be written.
        """
        text = json.dumps({"schema": RECORD_SCHEMA, **content}, indent=1, ensure_ascii=True)
        write_atomically(self.folder / RECORD, text.encode())


def schema() -> Any:
    """The fixed schema of every file (`eigenlens.surveys.rows.COLUMNS`)."""
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "numbers": pa.list_(pa.float64()),
        "flag": pa.bool_(),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])


def _is_ours(name: str) -> bool:
    return name.startswith(("model=", ".")) or name == RECORD


def _is_part(path: Path) -> bool:
    return _FILE.fullmatch(path.name) is not None and path.is_file()


def _reads(path: Path) -> bool:
    """Whether a file reads back whole, by the checksums of its pages, and has our columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return bool(file.read().schema.names == list(COLUMNS))
    except (pa.ArrowException, OSError):
        return False


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
