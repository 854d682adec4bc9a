"""`dyn bag`, as it is called and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dyn_service.cli.bag import app
from dyn_service.errors import FailedPreconditionError, NotFoundError
from tests.graph.bags.test_bags import write


def run_bag(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bag") / "leg.mcap")


def test_info(bag: Path) -> None:
    summary_lines = run_bag("info", str(bag)).splitlines()
    assert [line.split()[0] for line in summary_lines[3:]] == ["topic", "/leg/joint_states", "/foot/wrench"]
    content = json.loads(run_bag("info", str(bag), "--json"))
    assert [(topic["name"], topic["count"]) for topic in content["topics"]] == [
        ("/leg/joint_states", 300), ("/foot/wrench", 30),
    ]  # fmt: skip
    assert (content["whole"], content["attached"]) == (True, ["leg.urdf"])


def test_plot(bag: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    output = run_bag("plot", str(bag), "/leg/joint_states", "--field", "effort", "-o", str(picture))
    assert output.splitlines() == ["/leg/joint_states  effort", f"drawn: {picture}"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(NotFoundError, match="did you mean '/leg/joint_states'"):
        run_bag("plot", str(bag), "/leg/joint_stats")


def test_mend(bag: Path, tmp_path: Path) -> None:
    truncated = tmp_path / "cut.mcap"
    truncated.write_bytes(bag.read_bytes()[:-100])
    assert "not ended" in run_bag("info", str(truncated))
    assert run_bag("repair", str(truncated)).startswith("repaired: ")
    assert "not ended" not in run_bag("info", str(truncated))


def test_without_the_extra(bag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rosbags", None)
    sentence = r"a bag needs 'rosbags', which is not installed: pip install 'dyn_service\[bags\]'"
    with pytest.raises(FailedPreconditionError, match=sentence):
        run_bag("info", str(bag))
