"""A plant on legs: its base has neither motor nor brake, its feet hold, and a shipped Solo12 stands and walks."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dyn_service.control.plant.plant import Plant
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant, steps_of
from dyn_service.messages.dyn_service_msgs import JointCommand
from tests.conftest import URDF
from tests.counting import calls_of
from tests.service.conftest import floating

G = 9.81
BENT = np.array([0.0, 0.8, -1.6] * 2 + [0.0, -0.8, 1.6] * 2)
FEET = [{"link": f"{leg}_foot", "radius": 0.016} for leg in ("FL", "FR", "HL", "HR")]


@pytest.fixture(scope="module")
def solo() -> Robot:
    return Robot.from_urdf(URDF / "solo12.urdf", root="floating")


def standing_plant(robot: Robot, height: float, **changes: object) -> Plant:
    q = [0.0, 0.0, height, 0.0, 0.0, 0.0, 1.0, *BENT.tolist()]
    return make_plant(robot, PlantParameters(robot="-", initial_position=q, **changes), session=1)  # type: ignore[arg-type]


def sink_speed(robot: Robot, plant: Plant) -> float:
    """m/s, of the centre of mass."""
    momentum = robot.system_momentum(plant.q, plant.v, frame="world")
    return float(-momentum.momentum[0, 5] / momentum.mass[0])


def floating_plant(**changes: object) -> Plant:
    """A pendulum on a cart, on a base that floats."""
    q = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.3, -0.8]
    return make_plant(floating(), PlantParameters(robot="-", initial_position=q, **changes), session=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("integrator", "order"), [("rk4", 0.0), ("semi_implicit_euler", 1.0), ("stick_slip", 1.0)])
def test_brakes_hold_the_joints_and_the_base_falls(integrator: str, order: float) -> None:
    robot, plant = floating(), floating_plant(integrator=integrator)
    plant.robot.set_state(plant.q, np.where(np.arange(8) == 7, 2.0, 0.0))
    plant.look()
    began = sink_speed(robot, plant)  # the pendulum moves
    plant.advance(200)
    fall = G * 0.2**2 / 2 + order * G * 0.2 * 1e-3 / 2  # Euler's steps are half a step ahead
    assert sink_speed(robot, plant) - began == pytest.approx(G * 0.2, rel=2e-4)
    assert plant.q[8] == pytest.approx(-0.8 + 2.0 * 0.05, abs=2e-3)  # from 2 rad/s to rest within 0.1 s
    assert plant.q[7] == 0.3
    assert not plant.v[6:].any()
    resting = floating_plant(integrator=integrator)
    resting.advance(200)
    assert resting.q[2] == pytest.approx(1.0 - fall, abs=1e-9)
    assert resting.safety.armable(resting.v)  # nothing could slow the base: its speed keeps no one from taking it over


def test_in_its_brakes_it_stands_on_its_feet(solo: Robot) -> None:
    plant = standing_plant(solo, 0.2389, contacts=FEET)
    plant.advance(250)
    assert plant.q[2] == pytest.approx(0.2389, abs=2e-3)
    assert np.abs(plant.v).max() < 1e-3
    assert np.array_equal(plant.q[7:], BENT)


def test_efforts_on_the_base_are_ignored_and_not_counted_as_cut() -> None:
    plant = floating_plant(control_rate_hz=20.0)
    state = plant.publish()
    effort = [0.0, 0.0, 100.0] + [0.0] * 5
    command = JointCommand(1, state.seq, state.epoch, state.fingerprint, 1, state.name, effort, arm=True)
    assert plant.offer(command)
    plant.advance(100)
    assert sink_speed(floating(), plant) == pytest.approx(G * 0.1, rel=2e-4)
    assert (plant.safety.counters.clipped, plant.safety.saturated.any()) == (0, np.False_)
    assert plant.effort[2] == 0.0


def test_sensors_in_all_feet_cost_less_than_the_step(solo: Robot, tmp_path: Path) -> None:
    """Four force/torque sensors and an IMU, each sampled in each step of 1 ms: 1100 calls before the fast path."""
    legs = "".join(f"  {leg}: {{joint: {leg}_ankle, rate_hz: 1000.0}}\n" for leg in ("FL", "FR", "HL", "HR"))
    path = tmp_path / "sensors.yaml"
    path.write_text(f"robot: solo12\nforce_torque:\n{legs}imus:\n  trunk: {{link: base_link, rate_hz: 1000.0}}\n")
    steps = {}
    for sensors in ("", str(path)):
        plant = standing_plant(solo, 0.2389, contacts=FEET, sensors=sensors)
        plant.advance(160)  # on its feet; kernels are there
        steps[sensors] = calls_of(partial(plant.advance, 1))
    assert steps[str(path)] - steps[""] <= 300
    readings = plant.robot.measuring.readings  # type: ignore[attr-defined]
    forces = [readings[leg].value[:3] for leg in ("FL", "FR", "HL", "HR")]
    assert np.linalg.norm(forces, axis=1) == pytest.approx(np.full(4, 6.0), abs=0.2)  # N: they carry 2.5 kg


def test_a_base_that_is_driven_is_held_by_its_brakes() -> None:
    plant = floating_plant(undriven=[])
    plant.advance(100)
    assert plant.q[2] == 1.0
    with pytest.raises(InvalidArgumentError, match="undriven: no joint 'root'"):
        floating_plant(undriven=["root"])


def test_with_contacts_steps_are_those_whose_feet_hold() -> None:
    """On a slope that should hold: a brick in steps of stick_slip stays, to a micrometre; rk4's friction creeps."""
    brick = Robot.from_urdf(
        '<robot name="brick"><link name="body"><inertial><mass value="2"/><inertia ixx="0.01" ixy="0" ixz="0" '
        'iyy="0.01" iyz="0" izz="0.01"/></inertial></link></robot>',
        root="floating",
    )
    normal = [-math.sin(0.3), 0.0, math.cos(0.3)]
    c, s = math.cos(-0.15), math.sin(-0.15)
    corners = [
        {"link": "body", "point": [x, y, -0.05], "normal": normal, "friction": 0.6}
        for x in (-0.1, 0.1)
        for y in (-0.1, 0.1)
    ]
    strays = {}
    for integrator in ("auto", "rk4"):
        q = [0.0499 * x for x in normal] + [0.0, s, 0.0, c]
        p = PlantParameters(robot="-", contacts=corners, integrator=integrator, initial_position=q)  # type: ignore[arg-type]
        plant = make_plant(brick, p, session=1)
        plant.advance(100)
        began = plant.q[0]
        plant.advance(250)
        strays[steps_of(brick, p)[0]] = abs(plant.q[0] - began)
    assert strays["stick_slip"] < 1e-6
    assert strays["rk4"] > 3e-4
