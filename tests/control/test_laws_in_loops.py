"""All shipped laws on robots with closed loops: what each does there, or why it does nothing."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.api.queries import Array, Wrench
from dyn_service.control.controller import Commander
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.law import Law, RobotState
from dyn_service.control.laws.collision_stop import CollisionError
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.control.trajectory import Reference
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.nodes.controllers.controller_kind import ControllerKind, commander, controller_kind
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.graph.nodes.registry import SHIPPED, Registry
from tests.conftest import URDF
from tests.wide import wide

RATE_HZ = 250.0
STARTS = {"four_bar": {"crank_joint": 0.5}, "delta": {"motor_1": 0.2, "motor_2": 0.3, "motor_3": 0.4}}
PUSHES = {"four_bar": Wrench("coupler", force=(0.02, 0.0, -0.05)), "delta": Wrench("platform", force=(3.0, 1.0, -4.0))}
SINES = {"period_s": 1.0, "harmonics": 2, "max_amplitude": 0.2, "ramp_s": 0.1}
SCALES = {"four_bar": 1.0, "delta": 200.0}
"""The delta robot's independent joints are some 200 times as heavy."""


def settings_of(law: str, scale: float) -> dict[str, Any]:
    """Parameters of a law whose modes are slower than a tenth of its rate."""
    stiffness, inertia, damping = scale * np.array([0.5, 2e-3, 4e-2])
    return {
        "controller": {},
        "gravity_compensation": {"damping": 3.0},
        "joint_impedance": {"stiffness": float(stiffness)},
        "cartesian_impedance": {
            "stiffness": [0.0, 0.0, 0.0, *[float(120.0 * stiffness)] * 3],
            "posture_frequency": 0.0,
        },
        "collision_stop": {"threshold_share": 0.5},
        "admittance": {"inertia": float(inertia), "damping": float(damping), "stiffness": float(stiffness)},
        "trajectory_following": {},
    }[law]


@cache
def robot_of(name: str) -> Robot:
    return Robot.from_file(URDF / f"{name}.urdf")


class Run(NamedTuple):
    """A plant and its controller in lockstep. joints: the independent ones."""

    name: str
    robot: Robot
    plant: Plant
    commander: Commander
    joints: IndependentJoints

    def run(self, seconds: float) -> None:
        ClosedLoop(self.plant, self.commander.answer).run(seconds)

    @property
    def simulated(self) -> SimulatedRobot:
        assert isinstance(self.plant.robot, SimulatedRobot)
        return self.plant.robot

    def along(self, efforts: Array) -> Array:
        """Efforts (nv,) as forces on the independent joints."""
        G = self.robot.independent_motion(self.simulated.q, np.zeros(self.robot.nv)).jacobian
        return np.asarray(G.T @ efforts)

    def pushed(self) -> Array:
        """The push as forces on the independent joints, at the origin of its link."""
        push, rest = PUSHES[self.name], np.zeros(self.robot.nv)
        motion = self.robot.point_motion(self.simulated.q, rest, push.link, point=np.zeros(3))
        return self.along(motion.jacobian[3:].T @ np.asarray(push.force))


def kind_of(law: str) -> ControllerKind[Any]:
    kind = Registry().find("dyn_service", law)
    assert isinstance(kind, ControllerKind)
    return kind


def made(name: str, law: str, **changes: Any) -> Run:
    robot, kind, settings = robot_of(name), kind_of(law), settings_of(law, SCALES[name])
    if law == "cartesian_impedance":
        settings["link"] = PUSHES[name].link
    p = kind.parameters(rate_hz=RATE_HZ, **{**settings, **changes})
    if hasattr(p, "multi_sine"):
        for k, x in SINES.items():
            setattr(p.multi_sine, k, x)
    plant = make_plant(robot, PlantParameters(robot="-", initial_position=STARTS[name], rate_hz=RATE_HZ), session=1)
    joints = IndependentJoints.of(robot)
    assert joints is not None
    return Run(name, robot, plant, commander(kind.spec, p, robot, number=1, restarted=False), joints)


def test_all_shipped_laws_are_tested() -> None:
    controllers = {name for name, module in SHIPPED.items() if ".controllers." in module}
    assert controllers == {*FOLLOWING, "gravity_compensation", "trajectory_following"}


FOLLOWING = ["controller", "joint_impedance", "cartesian_impedance", "collision_stop", "admittance"]
ON_BOTH = pytest.mark.parametrize("name", list(STARTS))
ON_DELTA = pytest.mark.parametrize("name", wide(STARTS, lambda name: name == "delta"))


@ON_BOTH
def test_efforts_along_a_reference(name: str) -> None:
    """Numbers of the other joints have no effect."""
    run, rng = made(name, "controller"), np.random.default_rng(2)
    robot, joints, q = run.robot, run.joints, run.simulated.q
    reference = Reference(q, *rng.normal(size=(2, robot.nv)))
    v = robot.independent_motion(q, np.zeros(robot.nv)).jacobian @ reference.v[joints.in_v]
    motion = robot.independent_motion(q, v)
    a = motion.jacobian @ reference.a[joints.in_v] + motion.bias_accelerations
    answer = joints.along(robot, q, reference)
    np.testing.assert_allclose(answer.effort, robot.inverse_dynamics(q, v, a), rtol=1e-10)
    np.testing.assert_allclose(answer.mass_matrix, motion.mass_matrix, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "law"),
    wide(itertools.product(STARTS, FOLLOWING), lambda case: case[0] == "delta" or case[1] == "controller"),
)
def test_it_follows_a_motion(name: str, law: str) -> None:
    """The independent joints follow, moved by their motors alone. Efforts that act 6 ms late on average cause errors:
    6e-3 j / w^2 = 4e-3 rad for a reference whose acceleration changes by j = 600 rad/s^3, and w = 30 rad/s.
    """
    run = made(name, law, trajectory="multi_sine")
    run.run(0.25)
    assert run.plant.safety.mode == "active"
    begin = np.array(list(STARTS[name].values()))
    assert np.abs(run.simulated.q[run.joints.in_q] - begin).max() > 0.02
    assert run.commander.following.tracking.maximum < 4e-3
    assert not np.delete(run.plant.effort, run.joints.in_v).any()
    assert run.plant.effort[run.joints.in_v].all()


@ON_DELTA
def test_a_spring_at_the_joints_balances_a_push(name: str) -> None:
    run = made(name, "joint_impedance", trajectory="hold")
    run.simulated.push(PUSHES[name], 10**6)
    run.run(0.8)
    spring = np.asarray(run.commander.law.signals()["spring"])
    np.testing.assert_allclose(spring[run.joints.in_v], -run.pushed(), rtol=1e-3)  # it still creeps
    assert not np.delete(spring, run.joints.in_v).any()


@ON_DELTA
def test_a_spring_at_a_point_balances_a_push(name: str) -> None:
    """In the directions in which the loops let the point move; the delta robot's platform shifts by W / K."""
    run = made(name, "cartesian_impedance", trajectory="hold")
    run.simulated.push(PUSHES[name], 10**6)
    run.run(0.8)
    signals, link = run.commander.law.signals(), PUSHES[name].link
    motion = run.robot.point_motion(run.simulated.q, np.zeros(run.robot.nv), link, point=np.zeros(3))
    np.testing.assert_allclose(run.along(motion.jacobian.T @ signals["wrench"]), -run.pushed(), rtol=1e-9)
    if name == "delta":
        shift = -np.asarray(PUSHES[name].force) / 12000.0
        np.testing.assert_allclose(np.asarray(signals["off"])[3:], shift, rtol=1e-9)


@ON_DELTA
def test_an_admittance_gives_way_to_a_push(name: str) -> None:
    run = made(name, "admittance")
    run.simulated.push(PUSHES[name], 10**6)
    run.run(0.8)
    entries, signals = run.joints.in_v, run.commander.law.signals()
    stiffness = settings_of("admittance", SCALES[name])["stiffness"]
    np.testing.assert_allclose(np.asarray(signals["residual"])[entries], run.pushed(), rtol=1e-5)
    np.testing.assert_allclose(stiffness * np.asarray(signals["given_way"])[entries], run.pushed(), rtol=1e-3)


@ON_BOTH
def test_a_collision_is_estimated_and_ends_the_controller(name: str) -> None:
    """During a motion the residual is small; a push's is that of a first-order lag, 1 - exp(-K t)."""
    run = made(name, "collision_stop", trajectory="multi_sine", threshold=[100.0] * len(STARTS[name]))
    run.run(0.3)
    assert np.abs(run.simulated.v).max() > 0.1
    assert np.abs(run.commander.law.signals()["residual"]).max() < 2e-3 * np.abs(run.pushed()).max()
    run = made(name, "collision_stop", trajectory="hold", threshold=[100.0] * len(STARTS[name]))
    run.simulated.push(PUSHES[name], 10**6)
    run.run(0.1)
    residual, share = np.asarray(run.commander.law.signals()["residual"]), 1.0 - np.exp(-50.0 * 0.1)
    # The plant is armed after one cycle, and its last cycle is not measured yet: exp(-50 * 8e-3) of 0.7 %.
    np.testing.assert_allclose(residual[run.joints.in_v], share * run.pushed(), rtol=5e-3)
    assert not np.delete(residual, run.joints.in_v).any()
    threshold = [float(0.5 * np.abs(residual).max())] * len(STARTS[name])
    run = made(name, "collision_stop", trajectory="hold", threshold=threshold)
    run.simulated.push(PUSHES[name], 10**6)
    with pytest.raises(CollisionError, match="external torque"):
        run.run(0.1)


@ON_BOTH
def test_gravity_compensation_takes_energy_from_all_motions(name: str) -> None:
    """Besides the weight's, the power of the efforts is -2 c K."""
    run = made(name, "gravity_compensation")
    q, zeros, rng = run.simulated.q, np.zeros(run.robot.nv), np.random.default_rng(1)
    G = run.robot.independent_motion(q, zeros).jacobian
    v = G @ rng.normal(size=G.shape[1])
    effort = np.asarray(run.commander.law.update(RobotState(0.0, q, v, zeros), Reference(q, zeros, zeros), 0.004))
    assert not np.delete(effort, run.joints.in_v).any()
    power = (effort - run.robot.gravity_forces(q)) @ v
    assert power == pytest.approx(-2.0 * 3.0 * float(run.robot.energy(q, v).kinetic), rel=1e-11)
    run.run(0.1)
    assert np.abs(run.simulated.q - q).max() < 1e-12  # in balance, to rounding


@ON_BOTH
def test_goals_have_the_independent_joints(name: str, tmp_path: Path) -> None:
    joints = STARTS[name]
    goals = tmp_path / "goals.yaml"
    ends = [position + 0.1 for position in joints.values()]
    goals.write_text(
        f"- joint_names: [{', '.join(joints)}]\n  points:\n"
        f"    - {{positions: {ends}, time_from_start: {{sec: 0, nanosec: 300000000}}}}\n"
    )
    run = made(name, "trajectory_following", goals=str(goals), goal_tolerance=5e-3)
    run.run(0.5)
    assert run.commander.law.counters()["goals_succeeded"] == 1
    np.testing.assert_allclose(run.simulated.q[run.joints.in_q], ends, atol=1e-3)
    passive = next(joint for joint in run.robot.joint_names if joint not in joints)
    goals.write_text(f"- joint_names: [{passive}]\n  points:\n    - {{positions: [0.0]}}\n")
    with pytest.raises(InvalidArgumentError, match=passive):
        made(name, "trajectory_following", goals=str(goals))


@ON_BOTH
def test_what_is_refused(name: str) -> None:
    for interface in ("position", "velocity"):
        with pytest.raises(FailedPreconditionError, match=f"commands by {interface}"):
            made(name, "trajectory_following", command_interface=interface)
    with pytest.raises(InvalidArgumentError, match="delay_compensation"):
        made(name, "controller", delay_compensation=True)
    with pytest.raises(InvalidArgumentError, match=f"one number or {len(STARTS[name])}"):
        made(name, "joint_impedance", stiffness=[1.0] * robot_of(name).nv)

    class Spring(Law):
        name = "spring"

        def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
            return -state.q

    spec = controller_kind("spring", LoopParameters, lambda p, model: Spring()).spec
    with pytest.raises(FailedPreconditionError, match="law 'spring' commands all joints"):
        commander(spec, LoopParameters(), robot_of(name), number=1, restarted=False)


def test_a_law_that_adds_forces_needs_motors() -> None:
    """A wheel without a motor beside the linkage is independent too."""
    text = (URDF / "four_bar.urdf").read_text("utf-8")
    joint = (
        '<joint name="free" type="continuous"><parent link="ground"/><child link="wheel"/><axis xyz="0 1 0"/></joint>'
    )
    inertial = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    text = text.replace("</robot>", f'<link name="wheel">{inertial}</link>{joint}</robot>')
    robot = Robot.from_text(text)
    spec = kind_of("joint_impedance").spec
    with pytest.raises(FailedPreconditionError, match="joint 'free' has none"):
        commander(spec, kind_of("joint_impedance").parameters(), robot, number=1, restarted=False)
