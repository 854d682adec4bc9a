"""Every example block of the pages runs, and prints what stands below it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from docs.pages import PAGES, ROOT, difference, examples, fenced, run, updated
from dyn_service import Robot, Server
from dyn_service.cli.main import app
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT

WITH_PYTHON = [page for page in PAGES if examples(page.read_text(encoding="utf-8"))]
WITH_SHELL = [page for page in PAGES if fenced(page.read_text(encoding="utf-8"), "sh")]
name_of = lambda page: str(page.relative_to(ROOT))


def named(page: Path, starts: str) -> Any:
    """The page as a parameter; one with this word starts processes, for which a busy machine has no minute."""
    is_slow = starts in page.read_text(encoding="utf-8")
    return pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if is_slow else [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an example runs: nothing but the robots."""
    for folder in ("urdf", "config"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server like the one that `docs/usage.md` starts."""
    robots = [Robot.from_urdf(ROOT / "urdf" / f"{name}.urdf") for name in ("panda", "ur5e")]
    # Compiled before a client waits for it: the page's calls have the default time limit.
    robots[0].computed_torque(*np.zeros((5, 8)), kp=100.0, kd=20.0)
    with Server(robots, endpoints=["tcp://127.0.0.1:0"]) as server:
        yield server.endpoints[0]


@pytest.mark.parametrize("page", [named(page, "import subprocess") for page in WITH_PYTHON])
def test_python_blocks_run_in_order_and_print_what_they_say(
    page: Path, folder: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text(encoding="utf-8")
    if "import xarray" in text:
        pytest.importorskip("xarray", reason="the extra `studies` is not installed: pip install '.[studies]'")
    asks = any(DEFAULT_ENDPOINT in example.code for example in examples(text))
    outputs, space = run(text, page.name, {DEFAULT_ENDPOINT: request.getfixturevalue("endpoint")} if asks else {})
    for value in space.values():
        if hasattr(value, "close") and not isinstance(value, type):
            value.close()  # a robot over the wire that the page leaves open
    for k, (example, output) in enumerate(zip(examples(text), outputs, strict=True)):
        if example.text is not None:
            fault = difference(example.text, output)
            assert fault is None, f"{page.name}, block {k + 1}: {fault}; run python -m docs.pages"


def test_the_first_block_of_usage_has_certificates(folder: Path) -> None:
    """Every kernel that it makes of the shipped Panda is certified, without a warning."""
    text = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    first = "```python" + text.split("```python")[1]
    (output,), space = run(first, "usage.md", {})
    robot = space["robot"]
    assert len(robot.certificates) >= 20
    assert {name: certificate for name, certificate in robot.certificates.items() if not certificate.holds} == {}
    assert robot.receipt.of_kind("warning") == ()
    assert "warning" not in output


def test_there_are_pages_to_run() -> None:
    """Moving or renaming pages must not empty the tests above."""
    names = {name_of(page) for page in WITH_PYTHON}
    assert {
        "README.md",
        "docs/usage.md",
        "docs/protocol.md",
        "docs/theory/README.md",
        "docs/theory/problems.md",
    } <= names
    theory = {page for page in PAGES if page.parent == ROOT / "docs" / "theory"}
    assert theory <= set(WITH_PYTHON)
    assert {name_of(page) for page in WITH_SHELL} == {"README.md", "CONTRIBUTING.md", "docs/usage.md"}


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a 1.23 b", "a  1.24\nb", True),  # the last digit
        ("a 1.23 b", "a 1.25 b", False),
        ("a 1.23", "b 1.23", False),
        ("2e-15 away", "7e-13 away", True),  # rounding
        ("2e-15 away", "7e-5 away", False),
        ("[0. 1.5]", "[0.4 1.5]", False),  # NumPy's 0. is no whole number
        ("[-0. 1.5]", "[0. 1.5]", True),
        ("3 of them", "4 of them", True),  # cannot be distinguished from a rounded one
        ("3 of them", "5 of them", False),
        ("True", "False", False),
    ],
)
def test_comparison(expected: str, output: str, same: bool) -> None:
    assert (difference(expected, output) is None) is same


def test_update_rewrites_only_what_changed() -> None:
    block = "```python\n{}\n```\n"
    page = block.format("print(1)") + "```text\n5\n```\n\n" + block.format("x = 2")
    page += "\n" + block.format("print(x)") + "```text\n2\n```\n"
    outputs, _ = run(page, "page")
    assert outputs == ["1\n", "", "2\n"]
    assert updated(page, outputs) == page.replace("```text\n5\n", "```text\n1\n")


def commands(page: Path) -> list[str]:
    blocks = fenced(page.read_text(encoding="utf-8"), "sh")
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("page", [named(page, "\ndyn serve") for page in WITH_SHELL])
def test_shell_blocks_are_run_somewhere(page: Path, folder: Path) -> None:
    """Installing, the launch and the tools are the gate's work, which takes them from the README or names them. A
    server is started here, and says what the page's comment says."""
    gate = "".join((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("run", "lint"))
    for line in commands(page):
        command, _, comment = (part.strip() for part in line.partition("#"))
        if command.startswith("python3 -m venv"):
            continue  # checked below
        if command in ("bash .ci/run", "bash .ci/lint"):
            continue  # the gate itself
        if command.startswith(".venv/bin/"):
            for tool in command.split("&&"):
                words = tool.split()
                assert words[0] in gate, f"{page.name}: the gate does not run {tool.strip()}"
            continue
        words = shlex.split(command)
        assert words[:2] == ["dyn", "serve"], f"{page.name}: nothing runs {line!r}"
        program = [sys.executable, "-m", "dyn_service", "serve", *words[2:], "--bind", "tcp://127.0.0.1:0"]
        process = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            ready_line = process.stdout.readline().strip()
        finally:
            process.terminate()
            process.communicate(timeout=240)
        port = re.compile(r":\d+ ")
        assert port.sub(": ", ready_line) == port.sub(": ", comment)


def test_the_gate_runs_the_readmes_installing_blocks() -> None:
    gate = "".join((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("run", "lint"))
    for line in commands(ROOT / "README.md"):
        if line.startswith("python3 -m venv"):
            heading = "Run" if "dyn launch" in line else "Test"
            assert f"(block {heading}" in gate


def test_commands_exist_with_their_flags() -> None:
    """The table of commands: each line's subcommand and flags are in the program's own help."""
    text = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(dyn \w+[^`]*)` \|", text, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        name, flags = line.split()[1], re.findall(r"--[\w-]+", line)
        done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0, line
        missing = [flag for flag in flags if flag not in done.stdout]
        assert not missing, f"{line}: {missing}"
