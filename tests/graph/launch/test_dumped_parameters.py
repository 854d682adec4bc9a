"""A launch accepts the output of `dyn param dump` as `params:=FILE`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from tests.conftest import ROOT
from tests.graph.launches import Launched
from tests.phrases import naming

PLANT = "launch: [{node: {pkg: dyn_service, exec: plant, name: arm, param: [{name: robot, value: panda}, RATE]}}]"

NODES = ("server", "plant", "controller")


def plan(folder: Path, params: str):
    file, parameter_file = folder / "a.launch.yaml", folder / "given.yaml"
    file.write_text(PLANT.replace("RATE", "{name: rate_hz, value: 250.0}"), "utf-8")
    parameter_file.write_text(params, "utf-8")
    return make_plan(read_launch_file(file), {"params": str(parameter_file)}, folder=folder).processes[0]


def test_a_parameter_file_is_taken_last(tmp_path: Path) -> None:
    """Empty paths in a dump stay empty; they were read as the folder of the file."""
    process_plan = plan(
        tmp_path, "/arm: {ros__parameters: {rate_hz: 125.0, sensors: '', joints: '', mjcf: '', driver: ''}}"
    )
    assert (
        process_plan.parameters["rate_hz"],
        process_plan.parameters["robot"],
        process_plan.parameters["sensors"],
    ) == (125.0, "panda", "")
    # shipped robots are known by their names in parameter files too: they were taken for files of its folder
    assert plan(tmp_path, "arm: {ros__parameters: {robot: ur5e}}").parameters["robot"] == "ur5e"
    assert process_plan.command.index("--params-file") > process_plan.command.index("rate_hz:=250.0")


def test_one_for_no_node_of_the_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("'leg'", "/arm")):
        plan(tmp_path, "leg: {ros__parameters: {rate_hz: 125.0}}")
    with pytest.raises(InvalidArgumentError, match="rate_hz"):
        plan(tmp_path, "arm: {ros__parameters: {rate_hz: fast}}")


def test_a_file_that_declares_such_an_argument_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "a.launch.yaml"
    plant = "{node: {pkg: dyn_service, exec: plant, param: [{name: robot, value: $(var params)}]}}"
    file.write_text(f"launch: [{{arg: {{name: params}}}}, {plant}]", "utf-8")
    (process_plan,) = make_plan(read_launch_file(file), {"params": "panda"}, folder=tmp_path).processes
    assert process_plan.parameters["robot"] == "panda"


@pytest.mark.slow
def test_a_whole_launch_is_dumped_and_started_again(tmp_path: Path) -> None:
    words = ("robot:=pendulum", "controller:=joint_impedance", "clock:=lockstep", "rate_hz:=100.0")
    with tempfile.TemporaryDirectory() as runtime:
        environment = {"XDG_RUNTIME_DIR": runtime}

        def dyn(*words: str) -> str:
            return subprocess.run(
                [sys.executable, "-P", "-m", "dyn_service", *words],
                env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
                capture_output=True, text=True, timeout=120, check=True,
            ).stdout  # fmt: skip

        def dumped(*arguments: str) -> dict[str, str]:
            with Launched(Path("robot"), *words, *arguments, env=environment) as launch:
                launch.wait_line("ready: 3 processes")
                if not arguments:
                    dyn("param", "set", "/controller", "stiffness", "33.5", "--timeout", "60")
                with ThreadPoolExecutor() as pool:  # at once, since the launch meanwhile takes all free processor time
                    dumps = pool.map(lambda node: dyn("param", "dump", f"/{node}", "--timeout", "60"), NODES)
                    parameters_of = dict(zip(NODES, dumps, strict=True))
                assert launch.stop() == 0, launch.text
            return parameters_of

        first = dumped()
        assert re.match(rf"# .*: endpoint: ipc://{re.escape(str(runtime))}", first["controller"])
        assert "stiffness: 33.5\n" in first["controller"]
        file = tmp_path / "all.yaml"
        file.write_text("".join(first.values()), "utf-8")
        relaunched = dumped(f"params:={file}")

    def values(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert {node: values(text) for node, text in relaunched.items()} == {
        node: values(text) for node, text in first.items()
    }
