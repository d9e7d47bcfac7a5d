"""README.md and docs/ tell the truth: their Python runs, their commands exist, their links lead somewhere.

The Python blocks of a page run one after another in one namespace, in an empty directory, against a stand-in
for a provider on loopback. A block marked `python no-run` must only compile.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from docs_provider import answer

from agentor import Agentor
from agentor.cli import main
from agentor.testing.server import FakeServer

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
COMMAND_PAGE = ROOT / "docs" / "command-line.md"

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^ *```\s*$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    page: Path
    info: str  # what stands after the fence: "python", "python no-run", "console" ...
    code: str
    line: int  # of the first line of code

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] or "\n" for line in match["code"].splitlines(True))
        yield Block(page, match["info"].strip(), code, text.count("\n", 0, match.start()) + 2)


def pages_with(language: str) -> list[Any]:
    """The pages that have such blocks, as parameters of a test."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(block.info.split()[:1] == [language] for block in blocks(page))
    ]


def compiled(block: Block) -> types.CodeType:
    padded = "\n" * (block.line - 1) + block.code  # so that tracebacks name the line of the page
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(padded, str(block.page), "exec", flags=flags, dont_inherit=True)


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with FakeServer(answer) as server:
        yield server.base_url


@pytest.mark.parametrize("page", pages_with("python"))
def test_every_python_block_runs(
    page: Path,
    provider: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", provider)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # pydantic looks classes up there
    try:
        for block in blocks(page):
            match block.info.split():
                case ["python", "no-run"]:
                    compiled(block)
                case ["python", *_]:
                    run(block, module, {"tmp_path": tmp_path, "monkeypatch": monkeypatch})
                    check_output(block, capsys.readouterr().out)
    finally:
        for agent in [value for value in vars(module).values() if isinstance(value, Agentor)]:
            agent.close()


def run(block: Block, module: types.ModuleType, fixtures: dict[str, Any]) -> None:
    """Execute a block, and call the tests it defines."""
    before = dict(vars(module))
    finish(eval(compiled(block), module.__dict__))
    for name, value in list(vars(module).items()):
        if name.startswith("test_") and before.get(name) is not value:
            wanted = inspect.signature(value).parameters
            finish(value(**{parameter: fixtures[parameter] for parameter in wanted}))


def finish(value: Any) -> None:
    if inspect.iscoroutine(value):  # the block awaits
        asyncio.run(value)


def check_output(block: Block, printed: str) -> None:
    """Lines that say what they print, as in `print(1 + 1)  # -> 2`, print it, in that order; ... is any text."""
    lines = iter(printed.splitlines())
    for promised in re.findall(r"print\(.*\) +# -> (.*)$", block.code, re.M):
        pattern = ".*".join(re.escape(part) for part in promised.split("..."))
        assert any(re.fullmatch(pattern, line) for line in lines), (
            f"{block.where} should print {promised!r}, and prints:\n{printed}"
        )


@dataclass(frozen=True)
class Command:
    block: Block
    words: list[str]

    def __str__(self) -> str:
        return f"{self.block.where}: {shlex.join(self.words)}"


def commands(page: Path, program: str) -> Iterator[Command]:
    """Each call of `program` in the page's shell blocks, with or without a prompt, up to a pipe or a redirect."""
    for block in blocks(page):
        if block.info.split()[:1] not in (["console"], ["bash"], ["sh"], ["shell"]):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            for words in simple_commands(line.removeprefix("$ ")):
                if words[0] == program:
                    yield Command(block, words)


def simple_commands(line: str) -> Iterator[list[str]]:
    if not re.match(r"[\w./-]", line):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError:  # a line of output with an apostrophe
        return
    for token in [*tokens, ";"]:
        if not set(token) <= set("();<>|&"):
            words.append(token)
            continue
        while words and re.fullmatch(r"\w+=.*", words[0]):  # NAME=value before the program
            words.pop(0)
        if words:
            yield words
        words = []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_shown_is_one_the_program_takes(page: Path) -> None:
    for command in commands(page, "agentor"):
        try:
            parse(main, command.words[1:])
        except click.ClickException as error:
            pytest.fail(f"{command}\n{error.format_message()}")


def parse(group: click.Group, words: list[str]) -> None:
    """Parse without running anything."""
    try:
        with group.make_context("agentor", list(words)) as context:
            if rest := [*context._protected_args, *context.args]:
                name, command, arguments = group.resolve_command(context, rest)
                assert command is not None
                command.make_context(name, arguments, parent=context)
    except click.exceptions.Exit:
        return  # --help, --version


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_shown_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(page, "make"):
        for target in (word for word in command.words[1:] if "=" not in word):
            assert re.search(rf"^{re.escape(target)}:", makefile, re.M), command


def command_of(verb: str) -> click.Command:
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    return command


@pytest.mark.parametrize("verb", main.list_commands(click.Context(main)))
def test_every_verb_is_documented(verb: str) -> None:
    """Its name is a heading, and every one of its own options is on the page."""
    text = COMMAND_PAGE.read_text()
    assert re.search(rf"^#+ .*`agentor {verb}\b", text, re.M), f"no heading for `agentor {verb}`"
    missing = [
        option
        for parameter in command_of(verb).params
        for option in parameter.opts
        if option.startswith("--") and f"`{option}" not in text
    ]
    assert not missing, f"`agentor {verb}` takes {missing}, which the page does not tell"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    for match in LINK.finditer(prose):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        goal = (page.parent / target).resolve() if target else page
        assert goal.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and goal.suffix == ".md":
            assert anchor in anchors(goal), f"{goal.name} has no heading #{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text()), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }
