"""acados solves an optimal control problem with exported functions, which CasADi's code calls.

Needs acados and its Python interface, as `import acados_template`, with ACADOS_SOURCE_DIR; see docs/export.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

needs_acados = pytest.mark.skipif(
    find_spec("acados_template") is None or "ACADOS_SOURCE_DIR" not in os.environ,
    reason="acados and acados_template are not installed",
)


@needs_acados
def test_acados_plans_a_motion_of_the_panda(tmp_path: Path) -> None:
    """In another process, since acados works in the current folder and ends the process after an error."""
    command = [sys.executable, str(ROOT / "examples" / "acados_panda.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SQP iterations" in done.stdout
