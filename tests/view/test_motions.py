"""Motions as launches and bags recorded them."""

import io
import json
import math
import re
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from dyn_service.api import arrays
from dyn_service.cli.view import _report
from dyn_service.control.trajectory import PointToPoint
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.motions import of_report
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.report import write_report
from dyn_service.graph.launch.supervisor import Hooks, ManagedProcess, Outcome
from dyn_service.graph.middleware.telemetry import Facts, TelemetryStore
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.geometry_msgs import Quaternion, Transform, Twist, Vector3, Wrench
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import Header
from dyn_service.view.playing import companion, of_joint_states
from tests.graph.report.test_page import JOINTS, take_plant
from tests.phrases import naming
from tests.trees import configuration

AT = configuration(JOINTS, ["prismatic", "revolute"])
MOTION = PointToPoint(np.zeros(2), np.zeros(2), np.array([[1.0, -2.0]]), move_s=1.0, dwell_s=1.0)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launch of two plants; the second one has a reference from 1 s on."""
    folder, store, ignore = tmp_path_factory.mktemp("report"), TelemetryStore(), lambda *words: None
    outcome = Outcome("done")
    for node, session in (("left/plant", 9), ("right/plant", 10)):
        take_plant(store, node, session)
        plan = ProcessPlan(node, (), "", parameters={"robot": f"{node}.urdf"})
        outcome.processes.append(ManagedProcess(plan, {}, Hooks(ignore, ignore, ignore, ignore)))
    reference = {"session": 10, "begin_s": 1.0, "joints": JOINTS, "motion": MOTION.to_wire()}
    store.take(Facts("right/controller", 2, {"role": "controller", "reference": reference}))
    write_report(folder, LaunchPlan(folder / "x.launch.yaml", {}, ()), store, outcome)
    return folder


def test_of_a_report(report: Path) -> None:
    recorded = of_report(report, "/right/plant")
    assert (recorded.node, recorded.parameters) == ("right/plant", {"robot": "right/plant.urdf"})
    motion = recorded.motion(AT)
    assert motion.q.shape == motion.v.shape == motion.tau.shape == (3000, 2)
    assert motion.tau[1600].tolist() == [1.0, -20.0]
    assert np.isnan(motion.reference[:1000]).all()  # not under command
    np.testing.assert_allclose(motion.reference[1500], MOTION.sample(0.5).q, rtol=1e-12)
    assert [motion.at(time) for time in (-1.0, 0.0, 1.0004, 99.0)] == [0, 0, 1000, 2999]
    assert of_report(report).node == "left/plant"
    assert np.isnan(of_report(report).motion(AT).reference).all()


def test_reports_that_are_none(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match=naming("'plant'", "'left/plant'")):
        of_report(report, "plant")
    with pytest.raises(NotFoundError, match=naming("report.json")):
        of_report(tmp_path)
    monkeypatch.setattr(arrays, "MAX_NPZ_BYTES", 1000)
    with pytest.raises(InvalidArgumentError, match=naming("recording.npz'", re.compile(r"\d+ bytes"), "1000")):
        of_report(report)
    monkeypatch.undo()
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "recording.npz").write_text("damaged")
    with pytest.raises(InvalidArgumentError, match=r"the report in '.*' cannot be read"):
        of_report(tmp_path)
    for text in ("[]", '{"processes": 1}', '{"processes": [{}]}', "[" * 100_000):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(InvalidArgumentError, match="cannot be read: it is not a report"):
            of_report(tmp_path)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with ZipFile(tmp_path / "recording.npz", "w") as archive:
        archive.writestr("plant.plant.npy", head.getvalue())
    (tmp_path / "report.json").write_text('{"processes": []}')
    with pytest.raises(InvalidArgumentError, match="cannot be read: it is not a report"):
        of_report(tmp_path)
    other = configuration(["other"], ["revolute"])
    with pytest.raises(InvalidArgumentError, match=naming("'left/plant'", "'q.other'")):
        of_report(report).motion(other)


LOOP = """<mujoco model="m"><worldbody><body name="a"><joint name="j"/><geom size="0.1"/>
  <body name="b" pos="1 0 0"><joint name="k"/><geom size="0.1"/></body></body></worldbody>
  <equality><connect body1="b" anchor="0 0 0"/></equality></mujoco>"""


def test_loops_of_a_plant_are_cut_in_its_report_too(tmp_path: Path) -> None:
    file = tmp_path / "loop.xml"
    file.write_text(LOOP)
    plant = {"name": "plant", "parameters": {"robot": str(file), "loops": "cut"}}
    (tmp_path / "report.json").write_text(json.dumps({"processes": [plant]}))
    columns = ["t", "mode", *(f"{kind}.{joint}" for kind in ("q", "v", "tau") for joint in ("j", "k"))]
    np.savez(tmp_path / "recording.npz", **{"plant.plant": np.zeros((2, 8)), "plant.plant.columns": np.array(columns)})
    model, _, motion, _ = _report(tmp_path, None, None, None)
    assert model.gravity_forces(motion.q[0]).shape == (2,)  # refused for closed loops, and needed for what is shown


def state(sec: int, nanosec: int, **fields: list) -> JointState:
    return JointState(Header(Time(sec, nanosec), ""), **fields)


def test_of_joint_states() -> None:
    states = [
        state(5, 0, name=["turn", "lift"], position=[1.0, 2.0], effort=[3.0, 4.0]),
        state(5, 0, name=["turn"]),  # of nothing is nothing known
        state(5, 500_000_000, name=["turn", "stranger"], position=[1.5, 9.0], velocity=[0.5, 9.0]),
    ]
    motion = of_joint_states(states, AT, "topic '/joint_states'")
    assert motion.t.tolist() == [0.0, 0.5]
    assert motion.q.tolist() == [[2.0, 1.0], [2.0, 1.5]]  # a joint that is not named keeps its position
    assert motion.v.tolist() == [[0.0, 0.0], [0.0, 0.5]]
    assert motion.tau.tolist() == [[4.0, 3.0], [4.0, 0.0]]
    assert math.isnan(motion.reference[0, 0])
    with pytest.raises(InvalidArgumentError, match=naming("'x'", "lift, turn")):
        of_joint_states([state(0, 0, name=["stranger"], position=[1.0])], AT, "topic 'x'")
    with pytest.raises(InvalidArgumentError, match=r"topic 'x' names no joint"):
        of_joint_states([], AT, "topic 'x'")


def test_joints_with_several_ways_to_move_are_told_beside_the_others() -> None:
    """Whichever of two messages of one time came first, also after the next time's; and a second run from the start."""
    robot_configuration = configuration(["hull", "lift"], ["floating", "prismatic"])

    def both(sec: int, x: float, lift: float) -> tuple[MultiDOFJointState, JointState]:
        header = Header(Time(sec), "world")
        transform = Transform(Vector3(x, 2.0, 3.0), Quaternion(0.0, 0.0, 0.6, 0.8))
        return (
            MultiDOFJointState(header, ["hull"], [transform], [Twist(Vector3(z=x))], [Wrench(Vector3(y=x))]),
            JointState(header, ["lift"], [lift], [0.5], [0.25]),
        )

    (hull_1, lift_1), (hull_2, lift_2), (hull_3, lift_3) = both(1, 0.1, 1.0), both(2, 0.2, 2.0), both(3, 0.3, 3.0)
    second_run = both(1, 0.4, 4.0)
    motion = of_joint_states(
        [lift_1, hull_1, lift_2, lift_3, hull_2, hull_3, *second_run], robot_configuration, "topic 'x'"
    )
    rest_of_pose = [2.0, 3.0, 0.0, 0.0, 0.6, 0.8]
    assert motion.q.tolist() == [
        [0.1, *rest_of_pose, 1.0],
        [0.2, *rest_of_pose, 2.0],
        [0.3, *rest_of_pose, 3.0],
        [0.4, *rest_of_pose, 4.0],
    ]
    assert motion.t.tolist() == [0.0, 1.0, 2.0, 2.0]
    assert motion.v[0].tolist() == [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.5]
    assert motion.tau[1].tolist() == [0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.25]
    (q,) = of_joint_states([second_run[1]], robot_configuration, "topic 'x'").q  # no message has the hull
    assert q.tolist() == [*robot_configuration.neutral[:7], 4.0]


def test_the_topic_beside() -> None:
    assert companion("/joint_states") == "/multi_dof_joint_states"
    assert companion("/left/arm/js") == "/left/arm/multi_dof_joint_states"
    assert companion("tcp://127.0.0.1:7001") is None
