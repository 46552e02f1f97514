"""The data set of a survey: safe folders for any name, whole files, a fixed schema."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eigenlens.errors import FormatError, SourceError
from eigenlens.inert import inert
from eigenlens.surveys import dataset
from eigenlens.surveys.dataset import RECORD, Dataset, folder_name, schema
from eigenlens.surveys.rows import COLUMNS
from eigenlens.surveys.summary import summary

KEY = "0" * 32
OTHER = "1" * 32
HOSTILE = [
    *("..", ".", "../../etc/passwd", "/etc/passwd", "a/b\\c", "C:\\x", "a\0b", "\x1b[31mred"),
    *("model=x", "%2e%2e", "a+b c", "ü" * 300, "x" * 5000, "\ud800", "__HIVE_DEFAULT_PARTITION__"),
    *("=1+1", "<script>", "\u202e", "~", " ", "a\nb", "org/name@step1"),
]


def row(**values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "layer": 0, "stack": "decoder", "kind": "self", **values}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_one_folder_inside_and_comes_back(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = Dataset(out)
    data.prepare()
    data.write(name, KEY, 0, 1, [row(source=inert(name), regime="flip")])
    (file,) = (p for p in tmp_path.rglob("*") if p.is_file())
    assert file.parent.parent == out
    assert file.parent.name == folder_name(name)
    (part,) = data.parts(name)
    assert (part.key, part.part, part.parts) == (KEY, 0, 1)
    found = pd.read_parquet(out)
    assert found["source"].tolist() == [inert(name)]
    if len(name) < 100 and not name.startswith("__HIVE"):
        assert found["model"].tolist() == [inert(name)]


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
@example("a", "A")
@example("x" * 500, "x" * 499 + "y")
def test_folder_names_are_short_plain_and_different(a: str, b: str) -> None:
    for name in (a, b):
        folder = folder_name(name)
        assert folder.isascii()
        assert folder.isprintable()
        assert len(folder) <= 210
        assert not set(folder.removeprefix("model=")) & set('/\\:*?"<>|= ')
    if inert(a) != inert(b):
        assert folder_name(a) != folder_name(b)


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(tmp_path)
    data.write("a", KEY, 0, 2, [row(source="a")])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SourceError, match="No space left"):
        data.write("a", KEY, 1, 2, [row(source="a")])
    assert [p.name for p in (tmp_path / "model=a").iterdir()] == [f"{KEY}-0000-of-0002.parquet"]


def test_damaged_and_abandoned_files_count_as_absent_and_go(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    for part in range(3):
        data.write("a", KEY, part, 3, [row(source="a")])
    place = tmp_path / "model=a"
    cut = place / f"{KEY}-0001-of-0003.parquet"
    cut.write_bytes(cut.read_bytes()[:-9])
    old, young = place / ".eigenlens-old", place / ".eigenlens-young"
    for path in (old, young):
        path.write_bytes(b"half")
    past = time.time() - dataset.STALE_SECONDS - 10
    os.utime(old, (past, past))
    (place / "notes.txt").write_text("mine")
    assert [p.part for p in data.parts("a")] == [0, 2]
    assert sorted(p.name for p in place.iterdir()) == [
        young.name,
        f"{KEY}-0000-of-0003.parquet",
        f"{KEY}-0002-of-0003.parquet",
        "notes.txt",
    ]


def test_other_keys_are_replaced_of_that_model_alone(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    for name, key, parts in (("a", KEY, 1), ("a", OTHER, 1), ("a", KEY, 2), ("b", OTHER, 1)):
        data.write(name, key, 0, parts, [row(source=name)])
    data.drop_others("a", KEY, 2)
    assert [(p.key, p.parts) for p in data.parts("a")] == [(KEY, 2)]
    assert [(p.key, p.parts) for p in data.parts("b")] == [(OTHER, 1)]


def test_every_file_has_the_one_schema_also_when_all_is_null(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    data.write("a", KEY, 0, 1, [row(source="a")])
    full = row(source="b", gap=0.5, eigenvalues_re=[1.0], train_step=3, beyond_random=True)
    data.write("b", KEY, 0, 1, [full])
    for path in tmp_path.rglob("*.parquet"):
        assert pq.read_schema(path).remove_metadata() == schema()
    assert schema().names == list(COLUMNS)
    with pytest.raises(pa.ArrowException):  # a row of another make is no row
        data.write("c", KEY, 0, 1, [row(source="c", gap="wide")])


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(SourceError, match=r"holds other files \(thesis.tex\)"):
        Dataset(tmp_path).prepare()
    with pytest.raises(SourceError, match="is a file"):
        Dataset(tmp_path / "thesis.tex").prepare()
    Dataset(tmp_path / "a" / "b").prepare()
    assert (tmp_path / "a" / "b").is_dir()


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    with data.locked(), pytest.raises(SourceError, match="another survey"), data.locked():
        pass
    with data.locked():  # let go of
        data.prepare()


def test_a_record_that_does_not_read_is_none(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    assert data.record() == {}
    data.write_record({"options": {"k": 8}, "members": {"a": None, "b\x1b": "why"}})
    assert data.record()["members"] == {"a": None, "b\x1b": "why"}
    for text in ("{", "[]", '{"schema": "other"}', '{"schema": "eigenlens.survey-record/1"}'):
        (tmp_path / RECORD).write_text(text)
        assert data.record() == {}


def test_a_summary_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        summary(tmp_path / "none")
    with pytest.raises(SourceError, match="holds no survey"):
        summary(tmp_path)
    Dataset(tmp_path).write("a", KEY, 0, 1, [row(source="a", regime="flip")])
    assert [m.model for m in summary(tmp_path).models] == ["a"]
    (tmp_path / "model=a" / f"{OTHER}-0000-of-0001.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(FormatError, match="cannot be read"):
        summary(tmp_path)


def test_a_summary_counts_layers_once_and_knows_what_is_missing(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    facts = {"source": "a", "model_type": "albert", "d_model": 4, "n_layers": 12}
    calls = [
        row(**facts, regime="flip", gap=0.25, step=s, gamma=g, rho=0.5, beyond_random=s > 0)
        for s, g in enumerate((0.25, 0.5, 1.0))
    ]
    data.write("a", KEY, 0, 2, calls)
    layers = [
        row(**facts, regime="real_dominant", layer=1, gap=0.75),
        row(**facts, skipped="no attention", layer=2),
    ]
    data.write("a", KEY, 1, 2, layers)
    data.write("b", KEY, 0, 2, [row(source="b", regime="flip", gap=None)])
    members = {"c": None, "a": None, "d": "d: it broke"}
    data.write_record({"options": {}, "members": members})
    found = summary(tmp_path)
    assert [(m.model, m.status) for m in found.models] == [
        *(("c", "missing"), ("a", "complete"), ("d", "failed"), ("b", "partial")),
    ]
    a = found.models[1]
    assert (a.layers, a.skipped, a.gap) == (2, 1, 0.5)
    assert a.regimes["flip"] == a.regimes["real_dominant"] == 0.5
    assert a.gamma == pytest.approx(1.75 / 3)
    assert a.beyond_random == pytest.approx(2 / 3)
    assert found.models[2].why == "it broke"
    assert [m.model for m in found.failed] == ["d"]


def test_bits_that_flip_in_the_numbers_are_seen(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    rows = [row(source="m", gap=0.1 * i, regime="flip", layer=i) for i in range(40)]
    data.write("m", KEY, 0, 1, rows)
    (part,) = data.parts("m")
    raw = bytearray(part.path.read_bytes())
    meta = pq.read_metadata(part.path)
    names = [meta.schema.column(i).path for i in range(meta.num_columns)]
    column = meta.row_group(0).column(names.index("gap"))
    raw[column.dictionary_page_offset + column.total_compressed_size // 2] ^= 0x10
    part.path.write_bytes(raw)
    with pytest.raises(FormatError, match=part.path.name):
        list(data.batches(["source", "gap"]))
    assert data.parts("m") == []


def test_foreign_parquet_files_are_passed_over_with_a_warning(tmp_path: Path) -> None:
    data = Dataset(tmp_path)
    data.write("m", KEY, 0, 1, [row(source="m", regime="flip")])
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "model=m/foreign.parquet")
    (tmp_path / "model=m/folder.parquet").mkdir()
    found = summary(tmp_path)
    assert [(m.model, m.layers, m.status) for m in found.models] == [("m", 1, "complete")]
    assert any("foreign.parquet" in text or "folder.parquet" in text for text in found.warnings)
    (tmp_path / "model=m/foreign.parquet").rename(
        tmp_path / f"model=m/{OTHER}-0000-of-0001.parquet"
    )
    with pytest.raises(FormatError, match="not of a survey"):
        summary(tmp_path)
    assert [part.key for part in data.parts("m")] == [KEY]


@pytest.mark.parametrize(
    "changed", [{"members": {"a": 5}}, {"options": 3}, {"members": []}, {"members": {"a": ["x"]}}]
)
def test_a_record_of_other_kinds_is_none(changed: dict[str, Any], tmp_path: Path) -> None:
    whole = {"schema": dataset.RECORD_SCHEMA, "options": {}, "members": {"a": None}}
    (tmp_path / RECORD).write_text(json.dumps(whole))
    assert Dataset(tmp_path).record()["members"] == {"a": None}
    (tmp_path / RECORD).write_text(json.dumps(whole | changed))
    assert Dataset(tmp_path).record() == {}


def test_one_thing_is_not_told_as_many(tmp_path: Path) -> None:
    """And a name out of the record is inert."""
    name = "a\x1b[2J"
    data = Dataset(tmp_path)
    data.write(name, KEY, 0, 1, [row(source=name, regime="flip")])
    data.write_record({"options": {}, "members": {name: None}, "other_options": [name]})
    there = tmp_path / folder_name(name)
    (there / "f.parquet").mkdir()
    foreign, others = summary(tmp_path).warnings
    assert "f.parquet: a parquet file that no survey wrote; it is passed over here" in foreign
    assert foreign.endswith("take it in: delete it")
    assert "\x1b" not in others
    assert "the rows of 1 checkpoint are" in others
    assert ": survey it again" in others
    (there / "g.parquet").mkdir()
    many = summary(tmp_path).warnings[0]
    assert "one of 2 parquet files that no survey wrote; they are passed over" in many
