"""The last line of a launch that failed repeats the last error of the node that ended it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from dyn_service.graph.launch import launch_file

CRASHING = """from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.support.parameters import NoParameters


def main(node):
    node.telemetry.ready()
    pul


NODE = NodeKind("crashing", NoParameters, main)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
"""


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("{exec: crashing.py}", "crashing exited with status 1: NameError: name 'pul' is not defined"),
        (
            "{pkg: dyn_service, exec: plant, param: [{name: robot, value: FOLDER/empty.urdf}]}",
            "plant exited with status 2 before it was ready: FOLDER/empty.urdf:1: robot: there are no <link>",
        ),
    ],
)
def test_the_last_line_has_the_node_s_last_error(tmp_path: Path, node: str, reason: str) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING, "utf-8")
    (tmp_path / "empty.urdf").write_text("<robot name='empty'/>", "utf-8")
    file, screen = tmp_path / "c.launch.yaml", io.StringIO()
    file.write_text(f"launch: [{{node: {node.replace('FOLDER', str(tmp_path))}}}]", "utf-8")
    assert launch_file(file, {}, duration_s=60.0, console=Console(file=screen, width=300)) == 1
    last = screen.getvalue().splitlines()[-1]
    assert last.startswith(f"[launch] status 1: {reason.replace('FOLDER', str(tmp_path))}")
