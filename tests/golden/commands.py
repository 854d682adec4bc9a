"""`dyn` with wrong arguments: its one line of error output."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from dyn_service.cli import main
from tests.cli import test_command_line
from tests.conftest import ROOT
from tests.golden.collecting import Case, rows


def cases(folder: Path) -> Iterator[Case]:
    for arguments, *_ in rows(test_command_line.test_one_clear_line_and_a_status):
        yield from said(*arguments)
    for text, _ in rows(test_command_line.test_faults_in_the_file_are_named):
        config = folder / "server.yaml"
        config.write_text(text)
        yield from said("serve", "--config", str(config), of=f"a server's file: {text}")


def said(*arguments: str, of: str = "") -> Iterator[Case]:
    """Yields the error line of a command; the boxes of typer, which are as wide as the terminal, are left out."""
    argv, output = sys.argv, io.StringIO()
    sys.argv = ["dyn", *arguments]
    with contextlib.chdir(ROOT), contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
        try:
            main.main()
        except SystemExit as end:
            status = end.code
        finally:
            sys.argv = argv
    if "Usage:" not in output.getvalue():
        yield Case(of or f"dyn {' '.join(arguments)}", f"status {status}", None, output.getvalue())
