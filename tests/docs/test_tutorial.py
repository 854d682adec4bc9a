"""The tutorials, followed word by word: its files are written, its commands run, what it says they print is printed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.pages import ROOT

PAGES = ("tutorial.md", "identified-controller.md")
_BLOCK = re.compile(
    r"^(?:<!-- in place of: (?P<replace>[^\n]+) -->\n\n)?(?:<!-- beside: (?P<beside>[^\n]+) -->\n\n)?"
    r'```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)

pytestmark = pytest.mark.slow  # it launches processes, in wall time


class Step(NamedTuple):
    """A file to write (or a line of it to replace), or a command and the lines that it prints, among others.

    beside: What runs in another terminal meanwhile.
    """

    file: str
    replace: str
    text: str
    prints: list[str]
    beside: str = ""


def steps(page: str) -> Iterator[Step]:
    for block in _BLOCK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")):
        if block["title"]:
            yield Step(block["title"], block["replace"] or "", block["text"], [])
        elif block["kind"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, *prints = part.splitlines()
                yield Step("", "", command, [line for line in prints if line.strip()], block["beside"] or "")


@contextmanager
def another_terminal(command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs a launch beside, from when it is ready until Ctrl-C."""
    words = shlex.split(command)
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launch:
        assert launch.stdout is not None
        try:
            outputs = []
            for line in launch.stdout:
                outputs.append(line)
                if "ready: " in line:
                    break
            else:
                pytest.fail("".join(outputs))
            yield
        finally:
            launch.send_signal(signal.SIGINT)
            launch.stdout.read()
    assert launch.returncode in (0, 1)  # 1 where a machine was too busy for the plant's watchdog


@pytest.mark.parametrize("page", PAGES)
def test_word_by_word(page: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"python": [sys.executable], "dyn": [sys.executable, "-m", "dyn_service"]}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    folder, runtime = tmp_path / "work", tmp_path / "run"
    folder.mkdir()
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment["XDG_RUNTIME_DIR"] = str(runtime)  # this user's other launches are not to be seen
    environment["PYTEST_ADDOPTS"] = "-p dyn_service.hil.plugin"  # as where the package is installed
    followed = list(steps(page))
    assert len(followed) >= 8
    for parallel, group in groupby(followed, key=lambda step: step.beside):
        with ExitStack() as stack:
            if parallel:
                stack.enter_context(another_terminal(parallel, folder, environment))
            for step in group:
                follow(step, folder, environment)


def follow(step: Step, folder: Path, environment: dict[str, str]) -> None:
    path = folder / step.file
    if step.file and step.replace:
        text = path.read_text()
        assert text.count(step.replace) == 1, f"{step.file}: {step.replace!r} is to be replaced"
        path.write_text(text.replace(step.replace, step.text.rstrip("\n")))
    elif step.file:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text)
    else:
        ran = subprocess.run(
            step.text, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
        )
        output = ran.stdout + ran.stderr
        failing = any("failed" in line for line in step.prints)  # the page says so
        assert (ran.returncode != 0) is failing, f"$ {step.text}\n{output}"
        for line in step.prints:
            assert line in output, f"$ {step.text}\nprints no {line!r} but\n{output}"
