"""The documentation keeps to what is there: formulas name their tests, commands and links work."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import eigenlens
from eigenlens.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "concepts").glob("*.md"))
FORMULA = re.compile(r"^```\n(?P<formula>.*?)^```\n(?P<after>[^\n]*)", re.M | re.S)
TESTED = re.compile(r"<!-- tested: (tests/\w+\.py)::(\w+) -->")


def faults(text: str) -> list[str]:
    """Formulas without a test, or with one that is not there."""
    found = []
    for block in FORMULA.finditer(text):
        named = TESTED.fullmatch(block["after"])
        first = block["formula"].splitlines()[0]
        if named is None:
            found.append(f"{first}: names no test")
            continue
        path = ROOT / named[1]
        tree = ast.parse(path.read_text()) if path.is_file() else ast.parse("")
        if named[2] not in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}:
            found.append(f"{first}: {named[1]} has no {named[2]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_formula_names_its_test(page: Path) -> None:
    text = page.read_text()
    assert FORMULA.search(text)
    assert faults(text) == []


def test_a_formula_without_a_test_is_seen() -> None:
    assert faults("```\nx = 1\n```\n\ntext") == ["x = 1: names no test"]
    gone = "```\nx = 1\n```\n<!-- tested: tests/test_docs.py::test_gone -->\n"
    assert faults(gone) == ["x = 1: tests/test_docs.py has no test_gone"]
    here = "<!-- tested: tests/test_docs.py::test_a_formula_without_a_test_is_seen -->"
    assert faults(f"```\nx = 1\n```\n{here}\n") == []


TEXTS = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`(eigenlens [a-z][^`]*)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ROOT_COMMAND: Any = typer.main.get_command(app)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that a line calls, and its arguments."""
    command: Any = ROOT_COMMAND
    rest = words
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def commands_in(text: str) -> Iterator[str]:
    """The eigenlens commands of fenced blocks, without prompt, comment and redirection."""
    for _, block in FENCED.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            found = re.match(r"(?:\$ )?eigenlens ((?!:).*)", line)
            if found:
                yield re.split(r" (?:>|\||&&|#) ?", f"{found[1]} ")[0].strip()


def usage_fault(line: str) -> str | None:
    """What is wrong with a line, which is parsed and not run."""
    command, rest = command_of(shlex.split(line))
    if command is ROOT_COMMAND:
        return None if rest in ([], ["--help"], ["--version"]) else f"no command: {line}"
    if {"--help", "--version"} & set(rest):
        return None
    try:
        command.make_context(command.name, list(rest))
    except Exception as error:  # typer's own copy of click has its own classes
        if not hasattr(error, "format_message"):
            raise
        return f"{line}: {error.format_message()}"
    return None


def unknown_options(line: str) -> list[str]:
    """Options in a piece of prose that its command does not have."""
    command, rest = command_of(line.split())
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    return [w for w in rest if re.match(r"--[a-z]", w) and re.split("[=,]", w)[0] not in known]


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_options_links_and_code_are_right(page: Path) -> None:
    text = page.read_text()
    assert [f for line in commands_in(text) if (f := usage_fault(line))] == []
    assert {
        line: f
        for line in INLINE.findall(text)
        if (f := unknown_options(line.removeprefix("eigenlens ")))
    } == {}
    assert dead_links(page, text) == []
    for kind, block in FENCED.findall(text):
        if kind == "python":
            ast.parse(block)


def dead_links(page: Path, text: str) -> list[str]:
    """Relative links to what is not there, and to headings that are not there."""
    found = []
    for link in LINK.findall(FENCED.sub("", text)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.M)
    plain = (re.sub(r"[^\w\- ]", "", head.replace("`", "")).strip().lower() for head in heads)
    return {re.sub(r"[\s-]+", "-", head) for head in plain}


def test_commands_are_found_in_the_pages() -> None:
    lines = [line for page in TEXTS for line in commands_in(page.read_text())]
    assert len(lines) > 60
    assert {line.split()[0] for line in lines} == set(ROOT_COMMAND.commands)


def test_a_wrong_command_an_option_and_a_link_are_seen() -> None:
    text = "```\n$ eigenlens spectrum M --modee step   # x\neigenlens survey summary > f\n```\n"
    assert list(commands_in(text)) == ["spectrum M --modee step", "survey summary"]
    assert "No such option" in (usage_fault("spectrum M --modee step") or "")
    assert "no command" in (usage_fault("spectra M") or "")
    assert "issing" in (usage_fault("survey summary") or "")
    assert "--mode" in (usage_fault("trace M --mode stop") or "")
    assert usage_fault("trace M --mode step --text 'a b'") is None
    assert unknown_options("eigenlens trace MODEL --modee"[10:]) == ["--modee"]
    assert unknown_options("trace MODEL --no-nulls") == []
    page = ROOT / "docs" / "index.md"
    assert dead_links(page, "[a](gone.md) [b](tutorial.md#gone) [c](https://x.y)") == [
        "gone.md",
        "tutorial.md#gone",
    ]


def test_the_pages_of_the_site_are_all_in_its_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"([\w/-]+\.md)", menu)) == pages


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(
        build,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "schemas" / "spectrum.json").is_file()
    assert 'href="schemas/spectrum.json"' in (tmp_path / "reference" / "schemas.html").read_text()
    assert (tmp_path / "assets" / "javascripts" / "site_worker.js").is_file()
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "tools" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    for page in tmp_path.rglob("*.html"):
        assert hooks.FOREIGN.search(page.read_text()) is None, page
    for bad in (
        '<script async src="https://a.b/c.js"></script>',
        "<link rel=stylesheet href=//fonts.b/c>",
        '<img alt="x" src="http://a.b/c.png">',
    ):
        assert hooks.FOREIGN.search(bad)
    api = (tmp_path / "reference" / "api.html").read_text()
    for name in set(eigenlens.__all__) - {"EigenlensError", "__version__"}:
        assert f'id="eigenlens.{name}"' in api
    assert 'id="eigenlens.errors.EigenlensError"' in api
