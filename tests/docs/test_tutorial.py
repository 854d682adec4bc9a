"""The tutorial, followed word by word: its files are written, its commands run, what it says they print is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.pages import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?(?: replace="(?P<replace>[^\n]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)

pytestmark = pytest.mark.slow  # it launches processes, in wall time


class Step(NamedTuple):
    """A file to write (or a line of it to replace), or a command and the lines that it prints, among others."""

    file: str
    replace: str
    text: str
    prints: list[str]


def steps() -> Iterator[Step]:
    for block in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["title"]:
            yield Step(block["title"], block["replace"] or "", block["text"], [])
        elif block["kind"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, *prints = part.splitlines()
                yield Step("", "", command, [line for line in prints if line.strip()])


def test_word_by_word(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"python": [sys.executable], "dyn": [sys.executable, "-m", "dyn_service"]}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment["PYTEST_ADDOPTS"] = "-p dyn_service.hil.plugin"  # as where the package is installed
    followed = list(steps())
    assert len(followed) >= 8
    for step in followed:
        if step.file and step.replace:
            path = folder / step.file
            text = path.read_text()
            assert text.count(step.replace) == 1, f"{step.file}: {step.replace!r} is to be replaced"
            path.write_text(text.replace(step.replace, step.text.rstrip("\n")))
        elif step.file:
            path = folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
        else:
            ran = subprocess.run(
                step.text, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
            )
            said = ran.stdout + ran.stderr
            failing = any("failed" in line for line in step.prints)  # the page says so
            assert (ran.returncode != 0) is failing, f"$ {step.text}\n{said}"
            for line in step.prints:
                assert line in said, f"$ {step.text}\nprints no {line!r} but\n{said}"
