"""What closed loops leave free: known before the first call, in receipts, in `dyn check` and `dyn bench`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Client, Overlay, Robot, Server
from dyn_service.cli import bench
from dyn_service.cli import main as cli
from dyn_service.engine.loops import closed_loops
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.support import shipped
from dyn_service.support.documents import ConfigurationError
from tests.loops import slider_crank, with_drives
from tests.service.conftest import WAIT_MS

OPEN = """<sdf version="1.10"><model name="open_bar"><link name="base"/>
  <link name="a"><inertial><mass>1</mass></inertial></link><link name="b"><inertial><mass>1</mass></inertial></link>
  <joint name="fix" type="fixed"><parent>world</parent><child>base</child></joint>
  <joint name="ja" type="revolute"><parent>base</parent><child>a</child><axis><xyz>0 0 1</xyz></axis></joint>
  <joint name="jb" type="revolute"><parent>base</parent><child>b</child><axis><xyz>0 0 1</xyz></axis></joint>
</model></sdf>"""
TIE = """robot: open_bar
loops:
  tie: {type: spherical, parent: a, child: b, parent_origin: {xyz: [0.2, 0, 0]}, child_origin: {xyz: [0.3, 0, 0]}}
"""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The searches for the freedom of a robot in this process."""
    loops_searched: list[Any] = []
    search = closed_loops.random_freedom

    def counted(loops: Any) -> Any:
        loops_searched.append(loops)
        return search(loops)

    monkeypatch.setattr(closed_loops, "random_freedom", counted)
    return loops_searched


@pytest.fixture
def dyn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    def run(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr("sys.argv", ["dyn", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output = capsys.readouterr()
        return end.value.code, output.out, output.err

    return run


def test_prepare_finds_it_once_and_copies_get_it(searches: list[Any]) -> None:
    m = slider_crank()
    robot = Robot(replace(m.description, joints=tuple(replace(x, damping=0.5) for x in m.description.joints)))
    assert robot.description.freedom is None
    robot.prepare(["forward_dynamics"])
    freedom = robot.description.freedom
    assert freedom is not None
    assert (freedom.freedom, freedom.independent, freedom.undetermined) == (1, ("crank_joint",), ())
    tau = np.array([1.0, 0.0, 0.0])
    for copy in (robot, pickle.loads(pickle.dumps(robot)), robot.overlaid(Overlay(gravity=(0.0, 0.0, 0.0)))):
        assert copy.description.freedom == freedom
        copy.forward_dynamics(m.q, np.zeros(3), tau)
        copy.forward_dynamics(m.q, np.zeros(3), tau, passive=False)
    assert len(searches) == 1


def test_servers_know_it_before_the_first_request(searches: list[Any]) -> None:
    m = slider_crank()
    robot, v = Robot(m.description), np.zeros(3)
    with Server([robot], endpoints=["tcp://127.0.0.1:0"], workers=1, allow_load=True) as server:
        assert len(searches) == 1
        with Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client:
            remote = client.robot("slider_crank")
            assert remote.description.freedom == robot.description.freedom is not None
            remote.inverse_dynamics(m.q, v, v)
            overlaid = client.overlay_robot("slider_crank", Overlay(gravity=(0.0, 0.0, -1.6)), name="on_the_moon")
            assert overlaid.description.freedom == robot.description.freedom
            overlaid.inverse_dynamics(m.q, v, v)
            loaded = client.load_robot(OPEN, joints=TIE.replace("0.2", "0.3"))
            assert loaded.description.freedom is not None
            assert loaded.description.loop_joints[0].name == "tie"
            loaded.forward_dynamics(loaded.neutral(), np.zeros(2), np.ones(2))
            for text, words in ((TIE.replace("tie: {type", "tie: {kind"), "loops.tie"), ("a: [", "not YAML")):
                with pytest.raises(InvalidArgumentError, match=words) as fault:
                    client.load_robot(OPEN, joints=f"{text}\n")
                assert fault.value.path == "inputs.joints"
    # The worker searches for the robot that it loads, which the server gets with the freedom.
    assert len(searches) == 1


def test_loops_that_do_not_close_and_joints_that_nothing_determines(
    tmp_path: Path, dyn: Callable[..., tuple[Any, str, str]]
) -> None:
    robot, joints = tmp_path / "open.sdf", tmp_path / "open.yaml"

    robot.write_text(OPEN)
    for tie, expected in ((TIE, 1), (TIE.replace("0.2", "0.3"), 0)):
        joints.write_text(tie)
        words = ("check", str(robot), "--joints", str(joints), "--no-kernels")
        notes = json.loads(dyn(*words, "--json")[1])["notes"]
        texts = [note["text"] for note in notes if note.get("name") == "open-loop" and note["element"] == "joint 'tie'"]
        assert len(texts) == expected
        assert all("closes in none of 24" in text and "smallest gap is 0.1 m and 0 rad" in text for text in texts)
        if expected:
            assert dyn(*words, "--strict")[0] == 1
            with pytest.raises(FailedPreconditionError, match=r"no states to time: joint 'tie'.*gap is 0.1 m"):
                bench._inputs(Robot.from_file(robot, joints=joints), 2)
    driven = Robot(with_drives(slider_crank().description, ["crank_joint"]))
    driven.prepare(["forward_dynamics"])
    assert "1 degree of freedom: 'crank_joint'" in driven.receipt.render()
    two = Robot.from_text(OPEN, joints=joints)
    loose = Robot(with_drives(two.as_described, ["ja"]))
    cut = Robot(replace(loose.as_described, loop_joints=(replace(two.as_described.loop_joints[0], child="base"),)))
    for robot_, undetermined in ((loose, ()), (cut, ("jb",))):
        robot_.prepare(["forward_dynamics"])
        freedom = robot_.description.freedom
        assert freedom is not None
        assert freedom.undetermined == undetermined
        assert ("move while motors stand still" in robot_.receipt.render()) == bool(undetermined)
        assert robot_.receipt.to_dict()["freedom"]["undetermined"] == undetermined


def test_check_names_what_the_loops_of_shipped_robots_leave_free(dyn: Callable[..., tuple[Any, str, str]]) -> None:
    code, text, _ = dyn("check", "delta", "--no-kernels")
    assert code == 0
    assert "3 degrees of freedom: 'motor_1', 'motor_2', 'motor_3'" in text
    assert "rank 18 of 18 rows, 0 redundant" in text
    freedom = json.loads(dyn("check", "four_bar", "--no-kernels", "--json", "--strict")[1])["freedom"]
    assert (freedom["freedom"], freedom["rank"], freedom["redundant"]) == (1, 2, 3)


def test_check_dynamics_and_bench_of_loops(
    dyn: Callable[..., tuple[Any, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "SINGLE_CALLS", 2)
    code, text, _ = dyn("check", "four_bar", "--dynamics", "--states", "3")
    assert code == 0
    assert "constraint_forces" in text
    assert "of 3 states" in text
    code, text, errors = dyn("bench", "four_bar", "linkage_gripper", "--batch", "8", "--json")
    assert code == 0, errors
    queries = {(row["robot"], row["query"]) for row in json.loads(text)["rows"]}
    assert len(queries) == 6


def test_errors_name_loop_joints_lists_and_motors(tmp_path: Path) -> None:
    robot = Robot.from_file(shipped.robots()["four_bar"])
    q = robot.assemble(robot.neutral())
    v = 0.0 * q
    for call in (lambda x: robot.assemble(q, fixed=x), lambda x: robot.independent_motion(q, v, independent=x)):
        with pytest.raises(InvalidArgumentError, match="must be a list of names, found str 'crank_joint'"):
            call("crank_joint")
        with pytest.raises(NotFoundError, match=r"joint 'pin' of robot 'four_bar' closes a loop.*crank_joint"):
            call(["pin"])
        with pytest.raises(NotFoundError, match="no movable joint 'crank_jont'; did you mean 'crank_joint'"):
            call(["crank_jont"])
    with pytest.raises(FailedPreconditionError, match=r'hessian has no answer.*loops="cut" takes the tree'):
        robot.inverse_dynamics_hessian(q, v, v, v)
    joints = tmp_path / "joints.yaml"
    joints.write_text(TIE.replace("0.2", "0.3"))
    motorless = Robot.from_text(OPEN, joints=joints)
    with pytest.raises(FailedPreconditionError, match=r"driven: true.*<transmission>.*actuator in MJCF"):
        motorless.inverse_dynamics([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    joints.write_text(TIE.replace("spherical", "hinge"))
    with pytest.raises(ConfigurationError) as fault:
        Robot.from_text(OPEN, joints=joints)
    assert "floating" not in str(fault.value)
    assert "revolute" in str(fault.value)
