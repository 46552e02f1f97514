"""Which checkpoints a survey is of: lists, patterns, ranges of revisions, training steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.errors import OptionError, SourceError
from eigenlens.surveys.members import member, read_members
from eigenlens.surveys.revisions import between, counting, hub_range, is_range
from hub_server import COMMIT, SECRET, Hub, serving
from survey_models import write

OTHER = COMMIT[::-1]


def names(source: object) -> list[str]:
    return [m.name for m in read_members(source).found]  # type: ignore[arg-type]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path, monkeypatch) as found:
        yield found


def test_a_list_has_comments_empty_lines_patterns_and_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run/checkpoint-2", "run/checkpoint-10", "other#1"):
        write(tmp_path / name, 0)
    (tmp_path / "run" / "logs").mkdir()
    text = "\ufeff# models\n\n  other#1  # the # other\norg/name@v1\n\t\nrun/*\nsample:minilm\n"
    (tmp_path / "list.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = read_members("list.txt")
    assert [m.name for m in found.found] == [
        "other#1",
        "org/name@v1",
        "run/checkpoint-2",
        "run/checkpoint-10",
        "sample:minilm",
    ]
    assert found.found[0].model == str(tmp_path / "other#1")
    assert found.found[1].model == "org/name@v1"
    assert found.warnings == ("run/*: 1 folder has no config.json and left out",)


def test_one_model_is_a_list_of_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0)
    assert names(folder) == names(str(folder)) == [str(folder)]
    assert names(folder / "model.safetensors") == [str(folder / "model.safetensors")]
    assert names("sample:minilm") == ["sample:minilm"]
    assert names(["org/name", folder]) == ["org/name", str(folder)]


def test_what_is_named_twice_is_surveyed_once() -> None:
    found = read_members(["org/a", "org/b", "org/a"])
    assert [m.name for m in found.found] == ["org/a", "org/b"]
    assert found.warnings == ("org/a is named more than once; it is surveyed once",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# nothing\n\n", "names no checkpoint"),
        (b"\xff\xfe\x00", "not a text file in UTF-8"),
        (b"org/name@step1..main\n", r"list.txt line 1: .* no range"),
        (b"\nnone-*\n", r"list.txt line 2: none-\*: matches nothing"),
        (b"list.txt\n", "a list cannot name another list"),
        (b".\n", r"folder of models, not a model; write './\*'"),
    ],
)
def test_a_wrong_list_is_told_with_its_line(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", 0)
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises((SourceError, OptionError), match=message):
        read_members("list.txt")


@pytest.mark.parametrize("text", ["nowhere.txt", "", "no where", "a/b/c"])
def test_a_list_that_is_not_there_is_no_model_that_fails(text: str) -> None:
    with pytest.raises(SourceError, match="no such list, folder or file"):
        read_members(text)


@pytest.mark.parametrize(
    ("name", "series", "step"),
    [
        ("EleutherAI/pythia-70m@step1000", "EleutherAI/pythia-70m", 1000),
        ("org/olmo@stage1-step7000-tokens29B", "org/olmo", 7000),
        ("org/name@main", "org/name", None),
        ("org/name@step4b", "org/name", 4),
        ("runs/a/checkpoint-200", "runs/a", 200),
        ("runs/global_step50/model", "runs", 50),
        ("runs/misstep9", "runs/misstep9", None),
        ("sample:minilm", "sample:minilm", None),
    ],
)
def test_training_steps_are_read_from_names(name: str, series: str, step: int | None) -> None:
    found = member(name)
    assert (found.series, found.train_step) == (series, step)


def refs(*found: str) -> list[tuple[str, str]]:
    return [(name, COMMIT) for name in found]


def ranged(first: str, last: str, there: list[tuple[str, str]]) -> list[str]:
    return between("org/name", counting("x", first, last), first, last, there)


def test_a_range_is_the_refs_with_the_same_texts_by_number() -> None:
    there = refs("main", "step1", "step9", "step10", "step200", "step3000", "xstep10", "step10b")
    assert ranged("step9", "step200", there) == ["step9", "step10", "step200"]
    assert ranged("step1", "step3000", there[::-1]) == [
        *("step1", "step9", "step10", "step200", "step3000"),
    ]


def test_only_the_first_number_that_differs_counts() -> None:
    there = refs("s1-step10-t4", "s1-step20-t8", "s1-step30-t12", "s2-step20-t8")
    assert ranged("s1-step10-t4", "s1-step30-t12", there) == [
        *("s1-step10-t4", "s1-step20-t8", "s1-step30-t12"),
    ]


def test_a_number_twice_is_ambiguous_one_commit_under_two_kinds_is_not() -> None:
    with pytest.raises(OptionError, match=r"ambiguous.*'step1-a5' and 'step1-a6'.* number 1"):
        ranged("step1-a5", "step2-a7", refs("step1-a5", "step1-a6", "step2-a7"))
    with pytest.raises(OptionError, match="'step2' and 'step002'"):
        ranged("step1", "step3", refs("step1", "step2", "step002", "step3"))
    both = [*refs("step1", "step2"), ("step2", COMMIT)]
    assert ranged("step1", "step2", both) == ["step1", "step2"]
    with pytest.raises(OptionError, match="two different revisions, 'step2' and 'step2'"):
        ranged("step1", "step2", [*refs("step1", "step2"), ("step2", OTHER)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("org/name@main..dev", "are no range: they must be the same but for a number"),
        ("org/name@step1..v2", "are no range"),
        ("org/name@step5..step5", "the same number"),
        ("org/name@step05..step5", "the same number"),
        ("org/name@step9..step2", "goes down from 9 to 2; write step2..step9"),
        ("org/name@..step2", "is no range of revisions"),
        ("org/name@step1..step2..step3", "is no range of revisions"),
        (f"org/name@{COMMIT}..{OTHER}", "are no range"),
    ],
)
def test_what_is_no_range_is_refused_before_the_hub_is_asked(
    text: str, message: str, hub: Hub
) -> None:
    assert is_range(text)
    with pytest.raises(OptionError, match=message):
        hub_range(text)
    assert hub.asked == []


def test_a_range_asks_the_hub_for_branches_and_tags(hub: Hub) -> None:
    hub.branches = {"main": COMMIT, "step1": COMMIT, "step20": OTHER}
    hub.tags = {"step3": COMMIT, "step4": OTHER, "v1.0": COMMIT}
    assert names("org/name@step1..step20") == [
        *("org/name@step1", "org/name@step3", "org/name@step4", "org/name@step20"),
    ]
    (asked,) = hub.asked
    assert asked.token == f"Bearer {SECRET}"
    found = read_members("org/name@step3..step4").found
    assert [(m.series, m.train_step, m.model) for m in found] == [
        ("org/name", 3, "org/name@step3"),
        ("org/name", 4, "org/name@step4"),
    ]
    with pytest.raises(SourceError, match=r"no branch or tag 'step21' \(nearest: .*both ends"):
        names("org/name@step1..step21")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "no such model on 127.0.0.1"),
        (403, "GatedRepo", "access is gated"),
        (500, "", "answered 500 for the list of its revisions"),
    ],
)
def test_a_hub_that_refuses_the_list_of_refs(
    status: int, code: str, message: str, hub: Hub
) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(SourceError, match=message) as caught:
        hub_range("org/name@step1..step2")
    assert SECRET not in str(caught.value)


@given(st.lists(st.integers(0, 10**6), min_size=2, unique=True), st.data())
def test_ranges_are_sorted_and_inside_their_ends(numbers: list[int], data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.lists(st.sampled_from(numbers), min_size=2, max_size=2)))
    if low == high:
        return
    found = ranged(f"a{low}z", f"a{high}z", refs(*(f"a{n}z" for n in numbers)))
    assert [int(name[1:-1]) for name in found] == sorted(n for n in numbers if low <= n <= high)


def test_links_that_lead_round_give_each_checkpoint_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
    (tmp_path / "runs/around").symlink_to(tmp_path / "runs")
    found = read_members(f"{tmp_path}/runs/**")
    assert [Path(m.name).relative_to(tmp_path).as_posix() for m in found.found] == [
        "runs/a",
        "runs/b",
    ]
    assert any("through a symbolic link" in text for text in found.warnings)
