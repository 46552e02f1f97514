"""Groups of options: what typer sees of them, what a command gets, and what they check."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from eigenlens.cli.app import app
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.output import Output

ALBERT = "sample:albert-tiny"


class Colour(StrEnum):
    """Two colours."""

    red = "red"
    blue = "blue"


@dataclass(frozen=True)
class Paint(Group):
    """What it looks like."""

    colour: Annotated[Colour, typer.Option(help="Which.")] = Colour.red
    all_: Annotated[bool, typer.Option("--all", help="All of it.")] = False


@dataclass(frozen=True)
class BluePaint(Paint):
    """The same options with another default, and one more."""

    colour: Annotated[Colour, typer.Option(help="Which, then.")] = Colour.blue
    coats: Annotated[int, typer.Option(help="How many.")] = 1


@dataclass(frozen=True)
class Place(Group):
    """Where; one of its options has no default."""

    room: Annotated[str, typer.Option(help="Of the house.")]


def commanded() -> tuple[Any, list[tuple[Any, ...]]]:
    """A command with two groups between options of its own, and what it was called with."""
    calls: list[tuple[Any, ...]] = []

    @grouped
    def paint(
        wall: Annotated[str, typer.Argument()],
        *,
        paint: BluePaint,
        fast: Annotated[bool, typer.Option("--fast")] = False,
        place: Place,
    ) -> None:
        """Paint a wall."""
        calls.append((wall, paint, fast, place))

    return paint, calls


def test_the_signature_has_the_options_where_the_group_stands() -> None:
    command, _ = commanded()
    shown = inspect.signature(command).parameters
    assert list(shown) == ["wall", "colour", "all_", "coats", "fast", "room"]
    assert command.__annotations__ == {name: p.annotation for name, p in shown.items()}
    assert (command.__name__, command.__doc__) == ("paint", "Paint a wall.")


def test_defaults_and_annotations_are_those_of_the_fields() -> None:
    shown = inspect.signature(commanded()[0]).parameters
    defaults = {name: p.default for name, p in shown.items()}
    nothing = inspect.Parameter.empty
    assert defaults == {
        "wall": nothing,
        "colour": Colour.blue,
        "all_": False,
        "coats": 1,
        "fast": False,
        "room": nothing,
    }
    kind, option = shown["colour"].annotation.__origin__, shown["colour"].annotation.__metadata__[0]
    assert (kind, option.help) == (Colour, "Which, then.")


def test_what_is_typed_arrives_in_its_group() -> None:
    command, calls = commanded()
    small = typer.Typer()
    small.command()(command)
    words = ["north", "--room", "hall", "--colour", "red", "--coats", "3", "--fast"]
    done = CliRunner().invoke(small, words)
    assert done.exit_code == 0, done.output
    assert calls == [("north", BluePaint(Colour.red, False, 3), True, Place("hall"))]
    assert CliRunner().invoke(small, ["north"]).exit_code == 2, "--room has no default"


def test_a_call_from_python_leaves_the_defaults_to_the_group() -> None:
    command, calls = commanded()
    command(wall="north", room="hall", all_=True)
    assert calls[0][1] == BluePaint(all_=True)
    with pytest.raises(TypeError, match="paint"):
        command(wall="north", paint=BluePaint(), room="hall")
    with pytest.raises(FrozenInstanceError):
        calls[0][1].coats = 2


def test_a_group_may_be_called_like_an_option_of_its_own_or_another() -> None:
    calls = []

    @grouped
    def walk(*, colour: Paint, room: Place) -> None:
        calls.append((colour, room))

    walk(room="hall", colour=Colour.blue)
    assert calls == [(Paint(Colour.blue), Place("hall"))]


def test_two_options_of_one_name_are_an_error_when_the_command_is_defined() -> None:
    with pytest.raises(TypeError, match="twice has two options called colour"):

        @grouped
        def twice(*, one: Paint, other: BluePaint) -> None: ...

    with pytest.raises(TypeError, match="own has two options called room"):

        @grouped
        def own(*, place: Place, room: str = "") -> None: ...


def test_arguments_are_words_and_names_of_the_library() -> None:
    asked = arguments(Paint(Colour.blue, True), Place("hall"))
    assert asked == {"colour": "blue", "all": True, "room": "hall"}
    assert type(asked["colour"]) is str


def every_command(command: Any, *name: str) -> list[tuple[str, Any]]:
    below = getattr(command, "commands", {}).items()
    return [(" ".join(name), command), *(x for n, c in below for x in every_command(c, *name, n))]


COMMANDS = dict(every_command(get_command(app)))
PLAIN = ("", "cache clear", "samples path")


def test_no_command_has_two_options_of_one_spelling() -> None:
    assert len(COMMANDS) == 17
    for name, command in COMMANDS.items():
        spelled = [word for p in command.params for word in (*p.opts, *p.secondary_opts)]
        assert len(spelled) == len(set(spelled)), name


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in PLAIN])
def test_every_command_ends_in_the_options_of_output(name: str) -> None:
    names = [p.name for p in COMMANDS[name].params]
    assert names[-5:] == [field.name for field in fields(Output)]


def paths() -> list[tuple[str, str]]:
    """The options and arguments that are paths, each with its command."""
    found = []
    for name, command in COMMANDS.items():
        typed = inspect.signature(command.callback).parameters if command.callback else {}
        found += [
            (name, parameter.opts[0])
            for parameter in command.params
            if parameter.name in typed and "Path" in str(typed[parameter.name].annotation)
        ]
    return found


NEEDED = {
    "apply": ["x", ALBERT, "--write", "x"],
    "compare": [ALBERT, ALBERT],
    "unsteer": ["x"],
    "survey summary": ["x"],
    "reproduce": [],
    "samples": [],
    "cache": [],
}


@pytest.mark.parametrize(("name", "option"), paths())
def test_an_empty_path_is_refused(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be the working folder, which nobody asked to be written to."""
    monkeypatch.chdir(tmp_path)
    needed = NEEDED.get(name, [ALBERT])
    if option.startswith("--"):
        typed = [*needed, option, "", *(["x"] if option == "--contrast" else [])]
    else:
        typed = ["", *needed[1:]]
    done = CliRunner().invoke(app, [*name.split(), *typed])
    assert done.exit_code == 2, done.output
    assert "the path is empty; name a file or folder" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_the_paths_that_are_tried_are_all_kinds() -> None:
    assert {("unsteer", "folder"), ("apply", "delta"), ("steer", "--contrast")} <= set(paths())
    assert len(paths()) > 40


def test_the_working_folder_is_still_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["spectrum", ALBERT, "-k", "2", "--no-cache", "--figures", "."]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert any(tmp_path.glob("*.csv"))
