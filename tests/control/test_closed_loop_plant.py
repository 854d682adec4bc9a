"""A plant of a robot with closed loops, and what its controllers refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.control.dry_runs import dry_run
from dyn_service.control.independent_joints import IndependentJoints
from dyn_service.control.laws.computed_torque import GravityCompensation
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.graph.nodes.controllers import computed_torque, gravity_compensation
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.graph.nodes.plant.node import PlantChanges
from dyn_service.messages.dyn_service_msgs import JointCommand
from tests.conftest import URDF
from tests.loops import with_drives

CRANK = {"crank_joint": 0.5}


@pytest.fixture(scope="module")
def four_bar() -> Robot:
    return Robot.from_file(URDF / "four_bar.urdf")


def plant_of(robot: Robot, **changes: Any) -> tuple[Plant, SimulatedRobot]:
    p = PlantParameters(robot="-", **{"initial_position": CRANK, "rate_hz": 250.0, "control_rate_hz": 20.0, **changes})
    plant = make_plant(robot, p, session=1)
    assert isinstance(plant.robot, SimulatedRobot)
    return plant, plant.robot


def commanded(plant: Plant, effort: list[float]) -> bool:
    state = plant.publish()
    command = JointCommand(1, state.seq, state.epoch, state.fingerprint, 1, state.name, effort, arm=True)
    return plant.offer(command)


@pytest.mark.parametrize("integrator", ["auto", "stick_slip"])
def test_it_is_assembled_commanded_and_braked(four_bar: Robot, integrator: str) -> None:
    """Brakes hold the crank, and so the passive joints; efforts of these are ignored, and the loop stays closed."""
    plant, simulated = plant_of(four_bar, integrator=integrator, brake_s=0.04)
    begin = simulated.q
    assert begin[0] == 0.5
    assert np.abs(four_bar.loop_error(begin)).max() < 1e-9
    assert plant.safety.interfaces == ("effort",)
    plant.advance(3)
    np.testing.assert_array_equal(simulated.q, begin)
    assert commanded(plant, [0.02, 5.0, -5.0])
    plant.advance(20)
    assert simulated.v[0] > 0.1
    assert np.abs(plant.effort[1:]).max() == 0.0
    assert np.abs(four_bar.loop_error(simulated.q)).max() < 1e-12
    v = four_bar.independent_motion(simulated.q, np.zeros(3)).jacobian[:, 0] * simulated.v[0]
    np.testing.assert_allclose(simulated.v, v, rtol=0, atol=1e-9)
    plant.safety.shut("driver")
    plant.advance(15)
    assert np.abs(simulated.v).max() < 1e-12
    assert np.abs(four_bar.loop_error(simulated.q)).max() < 1e-12


@pytest.mark.parametrize("integrator", ["auto", "stick_slip"])
@pytest.mark.parametrize("driven", [("crank_joint",), ("crank_joint", "rocker_joint")])
def test_braked_motions_keep_the_loops_closed(four_bar: Robot, driven: tuple[str, ...], integrator: str) -> None:
    """A controller may ask for any state, and arm after the stop: also with brakes at more joints than are free, whose
    equal decelerations no motion has. At the end the robot is at rest, without a rounding that opens the loop.
    """
    robot = Robot(with_drives(four_bar.evaluator.model.description, driven))
    plant, simulated = plant_of(robot, integrator=integrator, brake_s=0.04)
    assert commanded(plant, [0.02, 0.0, 0.0])
    plant.advance(20)
    plant.safety.shut("driver")
    first = simulated.v[0]
    while simulated.v.any():
        plant.advance(1)
        robot.independent_motion(simulated.q, simulated.v)  # refuses velocities that open the loop
        if len(driven) == 1:  # within 10 steps at a constant deceleration
            speed = first * max(0.0, 1.0 - (plant.counters.steps - 20) / 10.0)
            assert simulated.v[0] == pytest.approx(speed, rel=1e-12, abs=1e-12)
        assert plant.counters.steps < 35  # 20 steps of motion, 10 of the brakes, the rest for their contradictions


def test_brakes_that_hold_all_joints_need_no_steps(four_bar: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """At rest, if the loops leave nothing free; a pendulum beside the linkage swings on."""
    steps: list[int] = []
    for robot, hanging in ((four_bar, False), (beside_a_pendulum(), True)):
        plant, simulated = plant_of(robot)
        step = simulated.engine.step
        monkeypatch.setattr(simulated.engine, "step", lambda *x, step=step: steps.append(1) or step(*x))
        begin = simulated.q
        plant.advance(5)
        assert len(steps) == (5 if hanging else 0)
        assert np.array_equal(simulated.q, begin) is not hanging


def beside_a_pendulum() -> Robot:
    """The four-bar with a passive pendulum on its ground."""
    link = (
        '<link name="bob"><inertial><origin xyz="0.1 0 0"/><mass value="1"/>'
        '<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )
    joint = '<joint name="free" type="continuous"><parent link="ground"/><child link="bob"/><axis xyz="0 1 0"/></joint>'
    text = (URDF / "four_bar.urdf").read_text("utf-8")
    return Robot.from_text(text.replace("</robot>", f"{link}{joint}</robot>"))


def test_a_stop_by_damping_takes_energy_from_all_motions(four_bar: Robot, caplog: pytest.LogCaptureFixture) -> None:
    plant, simulated = plant_of(four_bar, safe_stop="damping", damping_s=0.02, effort_ramp_s=1e-3)
    v = four_bar.independent_motion(simulated.q, np.zeros(3)).jacobian[:, 0] * 2.0
    changes = PlantChanges(plant, four_bar, PlantParameters(robot="-", initial_position=CRANK))
    changes.set_state({}, dict(zip(four_bar.joint_names, v.tolist(), strict=True)))
    with pytest.raises(DynError, match="v opens the loop"):
        changes.set_state({}, {"crank_joint": 1.0})
    effort = -(plant.safety.damping() @ v) if plant.safety.damping is not None else np.zeros(3)
    kinetic = float(four_bar.energy(simulated.q, v).kinetic)
    assert effort @ v == pytest.approx(-2.0 * kinetic / 0.02)
    assert not effort[1:].any()
    with caplog.at_level("INFO"):
        changes.set_state({"crank_joint": 1.0}, {})
    assert "set_state: the loops were closed at the nearest position; 'coupler_joint' moved most, by" in caplog.text
    assert simulated.q[0] == 1.0
    assert np.abs(four_bar.loop_error(simulated.q)).max() < 1e-9
    changes.reset()
    assert simulated.q[0] == 0.5


def test_other_engines_and_interfaces_are_refused(four_bar: Robot) -> None:
    for name in ("mujoco", "fmu"):
        with pytest.raises(UnimplementedError, match="has closed loops"):
            plant_of(four_bar, engine=name, **({"fmu": "-"} if name == "fmu" else {}))
    with pytest.raises(InvalidArgumentError, match="position cannot be commanded"):
        plant_of(four_bar, command_interfaces=["position"])
    for integrator in ("auto", "stick_slip"):
        with pytest.raises(FailedPreconditionError, match=r"^overlay: it locks joints .* fixed in the robot's file"):
            plant_of(four_bar, integrator=integrator, overlay={"locked": ["crank_joint"]})


def test_controllers_move_the_independent_joints(four_bar: Robot) -> None:
    """Weight with damping needs no reference. Laws: test_laws_in_loops.py."""
    independent = IndependentJoints.of(four_bar)
    assert independent is not None
    assert independent.configuration.names == ("crank_joint",)
    assert IndependentJoints.of(Robot.from_file(URDF / "pendulum.urdf")) is None

    def made(node: Any, **changes: Any) -> Any:
        kind = node.NODE
        p = kind.parameters(**{"rate_hz": 250.0, "delay_compensation": False, **changes})
        return commander(kind.spec, p, four_bar, number=1, restarted=False)

    following = made(computed_torque).following
    state = plant_of(four_bar)[0].publish()
    assert following.due(state)
    moment = following.moment(state)
    assert moment.reference.q[0] == pytest.approx(0.5)
    assert not moment.error[1:].any()
    effort = GravityCompensation(four_bar, 0.0).update(moment.state, moment.reference, 0.004)
    np.testing.assert_array_equal(effort, four_bar.gravity_forces(moment.state.q))
    made(gravity_compensation)
    with pytest.raises(FailedPreconditionError, match="which a dry run does not close"):
        dry_run(GravityCompensation(four_bar, 0.0), four_bar, 0.1)
