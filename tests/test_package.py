"""What users install: built from a clean copy, the wheel works without anything that only developers have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The program of a user with a model of their own: it runs in the clean environment.
ONE_RUN = '''
import agentor
from agentor import Agentor, SQLiteStore, function_tool
from agentor.engine.models import ModelResponse, ToolCall


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Model:
    async def complete(self, messages, tools=None, response_format=None):
        if messages[-1]["role"] == "tool":
            return ModelResponse(content=f"It is {messages[-1]['content']}.")
        return ModelResponse(tool_calls=[ToolCall("call_1", "add", '{"a": 2, "b": 3}')])


with SQLiteStore("runs.db") as store:
    agent = Agentor("Adder", model=Model(), tools=[add], store=store)
    result = agent.run("What is 2 + 3?")
    print(agentor.__file__)
    print(result.final_output)
    print([event.type for event in store.load(result.run_id)])
'''

FIND_SCHEMA = """
from importlib.resources import files
print(files("agentor").joinpath("schema.sql").read_text())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_built_and_installed_in_a_clean_place_works(tmp_path: Path) -> None:
    """One test, for its costly steps build on each other: sdist, wheel, clean environment, programs in it."""
    dist = build(tmp_path)
    check_the_sdist_holds_the_schema_at_its_top_and_inside_the_package(dist)
    clean_bin = install(dist, tmp_path / "clean")
    check_a_run_with_a_model_of_ones_own_is_saved(clean_bin, tmp_path)
    check_the_program_helps(clean_bin, tmp_path)
    check_the_schema_is_inside_the_package(clean_bin, tmp_path)


def build(tmp_path: Path) -> Path:
    """The sdist, and the wheel made from it: what is missing in the one is missing in the other."""
    source, dist = tmp_path / "source", tmp_path / "dist"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    run(*command, cwd=source)
    return dist


def install(dist: Path, home: Path) -> Path:
    """The programs of an environment that has the wheel and what it asks for, nothing else."""
    venv.create(home, with_pip=True)
    (wheel,) = dist.glob("*.whl")
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    run(*pip, str(wheel), cwd=home)
    return home / "bin"


def run(*command: str, cwd: Path) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OPENAI_"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_the_sdist_holds_the_schema_at_its_top_and_inside_the_package(dist: Path) -> None:
    """Inside the package it is a link to the one at the top, as in the repository; the wheel has it whole."""
    (archive,) = dist.glob("*.tar.gz")
    top = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as tar:
        assert tar.getmember(f"{top}/schema.sql").isfile()
        inner, outer = (tar.extractfile(f"{top}/{p}schema.sql") for p in ("agentor/", ""))
        assert inner is not None
        assert outer is not None
        assert inner.read() == outer.read() == (ROOT / "schema.sql").read_bytes()


def check_a_run_with_a_model_of_ones_own_is_saved(clean_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ONE_RUN)
    where, answer, types = run(str(clean_bin / "python"), "app.py", cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(clean_bin.parent)
    assert answer == "It is 5."
    assert types == str(
        ["run_start", "generation", "tool_call", "tool_result", "generation", "message", "run_end"]
    )


def check_the_program_helps(clean_bin: Path, tmp_path: Path) -> None:
    assert "resume" in run(str(clean_bin / "agentor"), "--help", cwd=tmp_path)


def check_the_schema_is_inside_the_package(clean_bin: Path, tmp_path: Path) -> None:
    found = run(str(clean_bin / "python"), "-c", FIND_SCHEMA, cwd=tmp_path)
    assert found.strip() == (ROOT / "schema.sql").read_text().strip()
