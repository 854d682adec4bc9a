"""Elastic gears with backlash in the plant, compared with closed forms and precise event-driven solutions."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from dyn_service.api.arguments import JointNumbers, Overlay, Payload
from dyn_service.control.plant.gears import PHASE
from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.graph.nodes.plant import report
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, PlantParameters, make_plant
from dyn_service.graph.nodes.plant.motors import gear_facts
from dyn_service.graph.nodes.plant.node import PlantChanges
from dyn_service.messages.dyn_service_msgs import JointCommand
from dyn_service.support.documents import ConfigurationError
from tests.conftest import ROOT
from tests.phrases import naming

TABLE = """<robot name="table"><link name="base"/><link name="table"><inertial><mass value="1"/>
<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="turn" type="continuous"><parent link="base"/><child link="table"/><axis xyz="0 0 1"/>
<limit effort="1000" velocity="1000"/></joint></robot>"""
"""Vertical axis, so that no weight acts."""
ARM = """<robot name="arm"><link name="base"/>
<link name="upper"><inertial><origin xyz="0.2 0 0"/><mass value="2"/>
<inertia ixx="0.01" iyy="0.03" izz="0.03" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="lower"><inertial><origin xyz="0.15 0 0"/><mass value="1"/>
<inertia ixx="0.005" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
<limit effort="200" velocity="50" lower="-9" upper="9"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="0.4 0 0"/>
<axis xyz="0 1 0"/><limit effort="100" velocity="50" lower="-9" upper="9"/></joint></robot>"""
"""In a vertical plane."""
N, J, I, K = 20.0, 0.04, 0.02, 400.0
"""J: rotor at the joint. I: link. K: of the gear."""
W = np.sqrt(K * (1.0 / J + 1.0 / I))
MU = J * I / (J + I)
DT = 1e-3
PUSH = np.array([3.0, 0.0])


def motor(rotor: float = J, **gear: float) -> dict[str, float]:
    return {"torque_constant": 0.05, "gear_ratio": N, "rotor_inertia": rotor / N**2, **gear}


def robot_of(folder: Path, urdf: str = TABLE, **motors: dict[str, float]) -> Robot:
    name = urdf.split('"')[1]
    (folder / f"{name}.urdf").write_text(urdf)
    (folder / "joints.yaml").write_bytes(msgspec.yaml.encode({"robot": name, "motors": motors}))
    return Robot.from_urdf(folder / f"{name}.urdf", joints=folder / "joints.yaml")


def plant_of(robot: Robot, **changes):
    return make_plant(robot, PlantParameters(robot="-", effort_ramp_s=1e-6, **changes), session=1)


def table(folder: Path, *, deflection: float = 0.0, speed: float = 0.0, v: float = 0.0, changes=None, **gear: float):
    """Returns the simulated turntable behind an elastic gear, in this state."""
    robot = plant_of(robot_of(folder, turn=motor(gear_stiffness=K, **gear)), **(changes or {})).robot
    robot.set_state(np.zeros(1), np.array([v]))
    robot.gears.state = np.array([deflection]), np.array([speed]), np.zeros(1)
    return robot


def run(robot, steps: int, effort=0.0, *, brakes: bool = False):
    """Returns link position and velocity, deflection and rotor velocity (steps + 1, ..) of all steps."""
    rows = [(robot.q, robot.v, *robot.gears.state[:2])]
    for _ in range(steps):
        robot.write(np.broadcast_to(effort, robot.v.shape), brakes=brakes)
        rows.append((robot.q, robot.v, *robot.gears.state[:2]))
    return [np.squeeze(column) for column in zip(*rows, strict=True)]


def energy(v, deflection, speed, backlash: float = 0.0):
    pressed = np.maximum(np.abs(deflection) - backlash / 2.0, 0.0)
    return 0.5 * (J * speed**2 + I * v**2 + K * pressed**2)


@pytest.mark.parametrize("brakes", [False, True])
def test_natural_frequencies_with_a_free_and_with_a_held_rotor(tmp_path: Path, *, brakes: bool) -> None:
    """w^2 = K (1/J + 1/I), and K / I behind shut brakes. The trapezoidal rule has 2 / h atan(w h / 2)."""
    w = np.sqrt(K / I) if brakes else W
    robot = table(tmp_path, deflection=0.01)
    q, _, deflection, speed = run(robot, 200, brakes=brakes)
    h = DT / robot.gears.parts
    discrete = 2.0 / h * np.arctan(w * h / 2.0)
    assert discrete == pytest.approx(w, rel=PHASE**2 / 12.0)
    # 200 steps of at most 4 iterations, each to 1e-10
    np.testing.assert_allclose(deflection, 0.01 * np.cos(discrete * DT * np.arange(201)), atol=1e-10)
    # a held rotor stays; a free one moves about the common centre
    centre = 0.01 if brakes else 0.01 * J / (I + J) + I / (I + J) * deflection
    np.testing.assert_allclose(q + deflection, centre, atol=1e-10)
    assert speed.any() != brakes
    free, locked = gear_facts(robot)["frequency_hz"]["turn"]
    assert 2.0 * np.pi * (locked if brakes else free) == pytest.approx(w, rel=1e-14)


def test_a_step_of_effort_against_the_matrix_exponential(tmp_path: Path) -> None:
    """x = (delta, w, v) under an effort of the motor; half of the step has a quarter of the error."""
    damping, effort, duration = 0.4, 3.0, 0.1
    A = np.array(
        [
            [0, 1, -1, 0],
            [-K / J, -damping / J, damping / J, effort / J],
            [K / I, damping / I, -damping / I, 0],
            [0, 0, 0, 0],
        ]
    )
    expected = expm(A * duration) @ [0, 0, 0, 1]
    errors = []
    for rate_hz in (2000.0, 4000.0):
        robot = table(tmp_path, gear_damping=damping, changes={"rate_hz": rate_hz})
        assert robot.gears.parts == 1
        _, v, deflection, speed = run(robot, round(duration * rate_hz), effort)
        difference = np.array([deflection[-1], speed[-1], v[-1]]) - expected[:3]
        errors.append(np.linalg.norm(difference * [W, 1.0, 1.0]) / np.linalg.norm(expected[:3] * [W, 1.0, 1.0]))
    assert errors[0] < W * duration * (W / 2000.0) ** 2 / 12.0  # the phase error of the frequency
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.02)  # the next order


def two_gears(folder: Path, stiffness: tuple[float, float] | None, **changes):
    """Returns the model of the arm and its plant."""
    gears = [{} if stiffness is None else {"gear_stiffness": K, "gear_damping": 0.5} for K in stiffness or (0, 0)]
    robot = robot_of(folder, ARM, shoulder=motor(0.3, **gears[0]), elbow=motor(0.1, **gears[1]))
    return robot, plant_of(robot, initial_position=[0.4, -0.9], **changes).robot


def test_coupled_gears_under_gravity_against_an_integrator_of_high_order(tmp_path: Path) -> None:
    """Links by this package's forward dynamics without armature, rotors next to them, DOP853 at 1e-11."""
    stiffness, rotors, D, effort = (900.0, 400.0), np.array([0.3, 0.1]), 0.5, np.array([-9.0, -2.0])
    errors = []
    for rate_hz in (1000.0, 2000.0):
        model, robot = two_gears(tmp_path, stiffness, rate_hz=rate_hz)
        links = model.overlaid(Overlay(joints={name: JointNumbers(armature=0.0) for name in model.joint_names}))
        parts = robot.gears.parts
        start = np.concatenate([robot.q, robot.gears.deflection, robot.v, robot.gears.speed])

        def rate(t, x, links=links):
            q, delta, v, w = x.reshape(4, 2)
            tau = np.array(stiffness) * delta + D * (w - v)
            return np.concatenate([v, w - v, links.forward_dynamics(q, v, tau), (effort - tau) / rotors])

        expected = solve_ivp(rate, (0.0, 0.3), start, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
        q, v, deflection, speed = run(robot, round(0.3 * rate_hz), effort)
        end = np.concatenate([q[-1], deflection[-1], v[-1], speed[-1]])
        errors.append((np.abs(end - expected).max() / np.abs(expected).max(), rate_hz * parts))
    (coarse, coarse_rate), (fine, fine_rate) = errors
    assert coarse < 1e-3
    assert coarse / fine == pytest.approx((fine_rate / coarse_rate) ** 2, rel=0.05)


def test_a_stiff_gear_is_a_rigid_one(tmp_path: Path) -> None:
    """What is left is the wind-up of the rotor, tau / K with the rings of a step of effort."""
    effort, q_rigid, differences = np.array([-12.0, -2.5]), [], []
    _, rigid = two_gears(tmp_path, None)
    for _ in range(100):
        rigid.write(effort, brakes=False)
        q_rigid.append(rigid.q)
    for stiffness in (3e3, 3e4):
        _, robot = two_gears(tmp_path, (stiffness, stiffness))
        q, _, deflection, _ = run(robot, 100, effort)
        assert np.abs(q[1:] - q_rigid).max() < np.abs(deflection).max() < 2.0 * 12.0 / stiffness
        differences.append(np.abs(q[1:] + deflection[1:] - q_rigid).max())
    assert differences[0] / differences[1] == pytest.approx(10.0, rel=0.2)  # 1 / K


def test_motion_in_the_gap_is_free_and_impacts_keep_momentum_and_energy(tmp_path: Path) -> None:
    """The rotor reaches the flank after b / (2 w_0); a contact takes pi / W and exchanges the speeds of an elastic
    impact. Momentum to rounding, energy to the tolerance of the iterations.
    """
    backlash, w_0 = 0.021, 1.0
    robot = table(tmp_path, speed=w_0, backlash=backlash)
    q, v, deflection, speed = run(robot, 150)
    free = int(backlash / 2.0 / w_0 / DT)
    np.testing.assert_allclose(deflection[: free + 1], w_0 * DT * np.arange(free + 1), rtol=1e-13)
    assert not v[: free + 1].any()
    end = free + int(np.pi / W / DT) + 2
    elastic = (J - I) / (J + I) * w_0, 2.0 * J / (J + I) * w_0
    assert (speed[end], v[end]) == pytest.approx(elastic, rel=1e-9)
    np.testing.assert_allclose(J * speed + I * v, J * w_0, rtol=1e-12)
    np.testing.assert_allclose(energy(v, deflection, speed, backlash), 0.5 * J * w_0**2, rtol=1e-9)
    assert np.abs(deflection).max() > backlash / 2.0
    assert deflection.min() < -backlash / 2.0  # the other flank, too
    np.testing.assert_allclose(J * (q + deflection) + I * q, J * w_0 * DT * np.arange(151), rtol=1e-11)


def test_the_rebound_of_a_damped_flank_that_does_not_pull(tmp_path: Path) -> None:
    """T. Schwager, T. Poeschel, Granular Matter 9 (2007), 465: e = exp(-beta / w (pi - atan(2 beta w / (w^2 -
    beta^2)))) with beta = D / (2 mu), w^2 = K / mu - beta^2. With pulling flanks it is exp(-pi beta / w).
    """
    backlash, w_0 = 0.01, 1.0
    beta = 0.3 * W
    w = np.sqrt(W**2 - beta**2)
    expected = np.exp(-beta / w * (np.pi - np.arctan2(2.0 * beta * w, w**2 - beta**2)))
    rebounds = []
    for rate_hz in (4000.0, 8000.0):
        changes = {"rate_hz": rate_hz}
        robot = table(tmp_path, speed=w_0, backlash=backlash, gear_damping=float(2.0 * beta * MU), changes=changes)
        assert robot.gears.parts == 1
        _, v, deflection, speed = run(robot, round(0.025 * rate_hz))
        assert abs(deflection[-1]) < backlash / 2.0
        rebounds.append((v[-1] - speed[-1]) / w_0)
    errors = np.abs(np.array(rebounds) / expected - 1.0)
    assert errors[0] < 2e-3  # w h is 0.04, and the flank is met within a step
    assert errors[1] < 0.6 * errors[0]
    assert expected > 1.2 * np.exp(-np.pi * beta / w)


@pytest.mark.parametrize("backlash", [0.0, 0.004])
def test_energy_never_grows_without_a_motor(tmp_path: Path, backlash: float) -> None:
    """Also where a contact lasts few parts of a step, with strong damping, and from any state."""
    random = np.random.default_rng(1)
    for damping in (0.0, 0.05, 1.0):
        robot = table(tmp_path, gear_damping=damping, backlash=backlash)
        robot.gears.parts = 1  # W h is 0.17
        for _ in range(3):
            robot.set_state(np.zeros(1), random.normal(size=1))
            robot.gears.state = 0.005 * random.normal(size=1), random.normal(size=1), np.zeros(1)
            _, v, deflection, speed = run(robot, 60)
            E = energy(v, deflection, speed, backlash)
            assert np.diff(E).max() < 1e-9 * E[0]  # 10 iterations' tolerance
            if damping:
                assert E[-1] < 0.999 * E[0] or not (np.abs(deflection) > backlash / 2.0).any()


BACKLASH, DAMPING, CYCLE_S = 0.02, 1.0, 5e-3


def law(x) -> float:
    """Stiffness of the link's position, damping of the rotor's speed; x = (q, v, delta, w)."""
    return -8.0 * x[0] - 0.6 * x[3]


def event_driven(x, cycles: int):
    """Returns the states at the begins of control cycles, by pieces between contacts and separations at 1e-10."""

    def push(side: int, x):
        p = side * x[2] - BACKLASH / 2.0
        return p, K * p + DAMPING * side * (x[3] - x[1])

    def change(side: int, *, ends: bool):
        def event(t, x):
            p, force = push(side, x)
            return force if ends else min(p, force)

        event.terminal, event.direction = True, -1 if ends else 1
        return event

    side, rows = 0, [x]
    for _ in range(cycles):
        effort, t = law(x), 0.0
        while t < CYCLE_S:

            def rate(t, x, side=side, effort=effort):
                tau = side * push(side, x)[1] if side else 0.0
                return [x[1], tau / I, x[3] - x[1], (effort - tau) / J]

            events = [change(side, ends=True)] if side else [change(1, ends=False), change(-1, ends=False)]
            solution = solve_ivp(rate, (t, CYCLE_S), x, "DOP853", events=events, rtol=1e-10, atol=1e-13)
            x, t = solution.y[:, -1], solution.t[-1]
            if solution.status == 1:
                side = 0 if side else (1 if len(solution.t_events[0]) else -1)
        rows.append(x)
    return np.array(rows)


def cycle_of(q) -> tuple[float, float]:
    """Returns period and amplitude after 0.7 s of positions at the begins of control cycles."""
    t = CYCLE_S * np.arange(len(q))
    k = np.flatnonzero((q[:-1] < 0.0) & (q[1:] >= 0.0) & (t[1:] > 0.7))
    crossings = t[k] - q[k] * CYCLE_S / (q[k + 1] - q[k])
    assert len(crossings) > 1
    return float(np.diff(crossings).mean()), float(np.abs(q[t > 1.0]).max())


def test_the_limit_cycle_of_a_position_loop_around_backlash(tmp_path: Path) -> None:
    """Period and amplitude of event-driven pieces; half of the step has less error. Without backlash the same loop
    comes to rest.
    """
    start = np.array([0.02, 0.0, -0.01, 0.0])
    expected, deviations = event_driven(start, 300), []
    period, amplitude = cycle_of(expected[:, 0])
    for rate_hz, backlash, cycles in ((1000.0, BACKLASH, 300), (4000.0, BACKLASH, 150), (1000.0, 0.0, 240)):
        changes = {"rate_hz": rate_hz}
        robot = table(tmp_path, deflection=start[2], gear_damping=DAMPING, backlash=backlash, changes=changes)
        robot.q, rows = start[:1], [start]
        for _ in range(cycles):
            for _ in range(round(CYCLE_S * rate_hz)):
                robot.write(np.array([law(rows[-1])]), brakes=False)
            rows.append(np.concatenate([robot.q, robot.v, *robot.gears.state[:2]]))
        q = np.array(rows)[:, 0]
        if cycles == 300:
            assert cycle_of(q) == pytest.approx((period, amplitude), rel=1e-3)  # 4e-4 and 1e-6
        if backlash:
            deviations.append(np.abs(q - expected[: len(q), 0])[:150].max())
    assert amplitude > 0.5 * BACKLASH
    assert np.abs(q[-40:]).max() < 1e-2 * amplitude
    # 2 parts at 1000 Hz: the step is halved, so 4 in the mean; where in a step contacts begin scatters it, from 3 up
    assert deviations[0] > 2.5 * deviations[1]
    assert deviations[0] < 2e-3 * amplitude


def sagged(folder: Path, **changes):
    """Returns the model of the arm, its plant with an elastic gear with backlash at the shoulder, and q."""
    shoulder = motor(0.3, gear_stiffness=3600.0, gear_damping=5.0, backlash=0.01)
    robot = robot_of(folder, ARM, shoulder=shoulder, elbow=motor(0.1))
    return robot, plant_of(robot, initial_position=[0.4, -0.9], **changes).robot, np.array([0.4, -0.9])


@pytest.mark.parametrize("side", ["motor", "link"])
def test_encoders_show_the_motor_or_the_link(tmp_path: Path, side: str) -> None:
    """At rest the rotor is ahead by the wind-up, weight / K + b / 2; brakes hold it there."""
    model, robot, q = sagged(tmp_path, actuators=ActuatorParameters(encoder_side=side))
    weight = model.gravity_forces(q)
    wind_up = weight[0] / 3600.0 + np.sign(weight[0]) * 0.005
    for _ in range(50):
        robot.write(np.zeros(2), brakes=True)
    reading = robot.read()
    np.testing.assert_allclose(robot.q, q, atol=1e-14)
    difference = wind_up if side == "motor" else 0.0
    np.testing.assert_allclose(reading.q, [q[0] + difference, q[1]], atol=1e-13)
    assert np.array_equal(reading.truth.q, robot.q)
    for _ in range(30):
        robot.write(weight + PUSH, brakes=False)
    reading = robot.read()
    rotor = [q + robot.gears.deflection[0] for q in robot.q[:1]], robot.gears.speed
    expected = rotor if side == "motor" else (robot.q[:1], robot.v[:1])
    assert (reading.q[0], reading.v[0]) == (expected[0][0], expected[1][0])
    assert (reading.q[1], reading.v[1]) == (robot.q[1], robot.v[1])
    assert abs(robot.gears.speed[0] - robot.v[0]) > 0.01
    assert np.array_equal(reading.truth.v, robot.v)
    assert np.array_equal(reading.effort, weight + PUSH)


def test_a_sensor_files_encoder_is_at_the_rotor_and_its_imu_at_the_link(tmp_path: Path) -> None:
    sensors = {
        "robot": "arm",
        "encoders": {name: {"rate_hz": 1000.0, "step": 1e-9, "latency_s": 2e-3} for name in ("shoulder", "elbow")},
        "imus": {"unit": {"rate_hz": 1000.0, "link": "upper"}},
    }
    (tmp_path / "sensors.yaml").write_bytes(msgspec.yaml.encode(sensors))
    model, robot, q = sagged(tmp_path, sensors=str(tmp_path / "sensors.yaml"))
    robot.open()
    assert robot.read().q[0] == q[0] + robot.gears.deflection[0]  # before its first reading
    motions = []
    for _ in range(30):
        v = robot.v
        robot.write(model.gravity_forces(q) + PUSH, brakes=False)
        motions.append([robot.q[0] + robot.gears.deflection[0], robot.q[1]])
    np.testing.assert_allclose(robot.read().q, motions[-3], atol=1e-9)
    expected = model.imu(robot.q, robot.v, (robot.v - v) / DT)
    upper = model.link_names.index("upper")
    np.testing.assert_allclose(robot.measuring.readings["unit"].value[3:], expected.angular_velocity[upper], atol=1e-15)


def test_brakes_stop_the_rotor_and_the_link_swings_behind_it(tmp_path: Path) -> None:
    """All speeds that brakes see fall evenly to 0 in 0.05 s; then the link oscillates about its wind-up."""
    _, robot, q = sagged(tmp_path, brake_s=0.05)
    robot.set_state(q, np.array([0.8, -0.5]))
    speeds = []
    for _ in range(120):
        robot.write(np.full(2, 50.0), brakes=True)
        speeds.append([robot.gears.speed[0], robot.v[1]])
    ramp = np.maximum(1.0 - np.arange(1, 121) * DT / 0.05, 0.0)
    np.testing.assert_allclose(speeds, ramp[:, None] * [0.8, -0.5], atol=1e-14)
    assert robot.q[1] == pytest.approx(q[1] - 0.5 * 0.05 / 2.0, abs=1e-14)
    link = [robot.q[0] for _ in range(60) if robot.write(np.zeros(2), brakes=True) is None]
    assert 1e-6 < np.ptp(link) < 0.03  # it still swings, less and less
    assert robot.read().v[0] == 0.0


def test_a_rotor_at_its_velocity_limit_is_braked_from_the_begin_of_the_step(tmp_path: Path) -> None:
    """A step that is done again begins with the state of gear and rotor before it."""
    _, robot, q = sagged(tmp_path)
    robot.set_state(q, np.array([49.9, 0.0]))
    initial = robot.gears.state
    robot.write(np.array([200.0, 0.0]), brakes=False)
    assert robot.read().fault == "velocity"
    assert "shoulder" in robot.read().reason
    assert robot.gears.speed[0] == pytest.approx(49.9 * (1.0 - DT / robot.brake_s), rel=1e-14)
    _, other, _ = sagged(tmp_path)
    other.set_state(q, np.array([49.9, 0.0]))
    assert all(map(np.array_equal, initial, other.gears.state))
    other.write(np.zeros(2), brakes=True)
    assert np.array_equal(other.q, robot.q)
    assert all(map(np.array_equal, other.gears.state, robot.gears.state))


def test_reset_of_state_returns_rotors_and_gears(tmp_path: Path) -> None:
    _, robot, q = sagged(tmp_path)
    initial = robot.gears.state
    run(robot, 20, np.array([30.0, 0.0]))
    assert robot.gears.deflection != initial[0]
    robot.set_state(q, np.array([0.3, 0.1]))
    assert all(map(np.array_equal, robot.gears.state[::2], initial[::2]))
    assert robot.gears.speed.tolist() == [0.3]
    no_load = robot_of(tmp_path, turn=motor(gear_stiffness=K, backlash=0.1))
    assert plant_of(no_load).robot.gears.deflection.tolist() == [0.0]  # the middle of the gap


def test_the_back_emf_is_that_of_the_rotor(tmp_path: Path) -> None:
    """tau = N K_t (U - N K_t w) / R with w at the begin of the step, while the link is at rest in its gap."""
    gear = motor(gear_stiffness=K, backlash=1.0, resistance=0.8, voltage_limit=24.0)
    robot = plant_of(robot_of(tmp_path, turn=gear)).robot
    gain, w = N * 0.05, 0.0
    for _ in range(30):
        robot.write(np.array([900.0]), brakes=False)
        assert robot.read().effort[0] == pytest.approx(gain * (24.0 - gain * w) / 0.8, rel=1e-12)
        assert robot.gears.speed[0] == pytest.approx(w + DT * robot.read().effort[0] / J, rel=1e-12)
        w = robot.gears.speed[0]
    assert (w > 10.0, robot.v[0]) == (True, 0.0)


def test_a_payload_slows_the_oscillation_of_a_running_plant(tmp_path: Path) -> None:
    """K (1/J + 1/(I + m r^2)); the rotor is in none of the two robots' links."""
    model = robot_of(tmp_path, turn=motor(gear_stiffness=K))
    p = PlantParameters(robot="-")
    plant = make_plant(model, p, session=1)
    changes = PlantChanges(plant, model, p)
    changes.set_payload(Payload("table", 2.0, np.array([0.1, 0.0, 0.0])))
    robot = plant.robot
    locked = np.sqrt(K / (I + 0.02)) / (2.0 * np.pi)
    assert gear_facts(robot)["frequency_hz"]["turn"][1] == pytest.approx(locked, rel=1e-14)
    robot.gears.state = np.array([0.01]), np.zeros(1), np.zeros(1)
    _, _, deflection, _ = run(robot, 100)
    w, h = np.sqrt(K * (1.0 / J + 1.0 / (I + 0.02))), DT / robot.gears.parts
    discrete = 2.0 / h * np.arctan(w * h / 2.0)
    np.testing.assert_allclose(deflection, 0.01 * np.cos(discrete * DT * np.arange(101)), atol=1e-10)
    changes.reset()
    assert gear_facts(robot)["frequency_hz"]["turn"][0] == pytest.approx(W / (2.0 * np.pi), rel=1e-14)


@pytest.mark.parametrize(
    "engine",
    [{"integrator": "semi_implicit_euler"}, {"integrator": "stick_slip"}, {"engine": "mujoco"}, {"substeps": 3}],
)
def test_gears_move_links_of_every_engine(tmp_path: Path, engine: dict) -> None:
    """Links of first order move by h v' in a part: the work of the gear beyond their energy is a decay of the
    oscillation with W^2 h / 4 (1/I) / (1/J + 1/I).
    """
    robot = table(tmp_path, deflection=0.01, changes=engine)
    _, v, deflection, speed = run(robot, 40)
    h, t = DT / robot.gears.parts, DT * np.arange(41)
    decay = W**2 * h / 4.0 * J / (I + J) if "integrator" in engine else 0.0
    error = W * t[-1] * (W * h) ** 2 / 12.0 + decay / W  # of the frequency, and of the phase of a damped cosine
    np.testing.assert_allclose(deflection, 0.01 * np.exp(-decay * t) * np.cos(W * t), atol=0.01 * error)
    np.testing.assert_allclose(J * speed + I * v, 0.0, atol=1e-12)


def test_a_gear_drives_a_leader_and_none_a_locked_joint(tmp_path: Path) -> None:
    """A follower with the factor 2 adds 4 times its inertia to the leader's link, and its own armature stays there."""
    lid = TABLE[TABLE.index('<link name="table">') : TABLE.index("<joint")].replace("table", "lid")
    lid += """<joint name="lift" type="continuous"><parent link="base"/><child link="lid"/><axis xyz="0 0 1"/>
<limit effort="1" velocity="1000"/><mimic joint="turn" multiplier="2"/></joint></robot>"""
    robot = robot_of(tmp_path, TABLE.replace("</robot>", lid), turn=motor(gear_stiffness=K))
    overlay = {"joints": {"lift": {"armature": 0.01}}}
    simulated = plant_of(robot, overlay=overlay).robot
    simulated.gears.state = np.array([0.01]), np.zeros(1), np.zeros(1)
    _, _, deflection, _ = run(simulated, 60)
    w, h = np.sqrt(K * (1.0 / J + 1.0 / (5.0 * I + 0.04))), DT / simulated.gears.parts
    expected = 0.01 * np.cos(2.0 / h * np.arctan(w * h / 2.0) * DT * np.arange(61))
    np.testing.assert_allclose(deflection, expected, atol=1e-10)
    assert plant_of(robot, overlay={"locked": ["turn"]}).robot.gears is None


def test_a_step_has_the_parts_that_the_fastest_gear_needs(tmp_path: Path) -> None:
    """By its oscillation, W dt, or its decay, D (1/J + 1/I) dt."""
    for damping in (0.0, 10.0):
        robot = plant_of(robot_of(tmp_path, turn=motor(gear_stiffness=K, gear_damping=damping))).robot
        fastest = max(W, damping * (1.0 / J + 1.0 / I))
        assert robot.gears.parts == np.ceil(fastest * DT / PHASE)
    two = two_gears(tmp_path, (900.0, 400.0))[1].gears
    fastest = 0.0
    for elbow in np.linspace(0.0, np.pi, 50):
        mobility = np.linalg.inv(two.links.mass_matrix(np.array([0.0, elbow])))
        inverse = mobility + np.diag([1.0 / 0.3, 1.0 / 0.1])
        w = np.sqrt(np.linalg.eigvals(inverse @ np.diag([900.0, 400.0])).max())
        assert two.rates(mobility)[0] == pytest.approx(w, rel=1e-12)
        fastest = max(fastest, w)
    assert two.parts == np.ceil(fastest * DT / PHASE)


def test_a_recording_has_motor_link_and_gear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {}

    class Rows:
        def __init__(self, telemetry, channel: str, columns: list[str]) -> None:
            self.columns, self.rows = columns, []
            tables[channel] = self

        def row(self):
            self.rows.append(np.zeros(len(self.columns)))
            return self.rows[-1]

        def flush(self) -> None:
            self.rows = np.array(self.rows)

    monkeypatch.setattr(report, "Recorder", Rows)
    for side in ("motor", "link"):
        tables.clear()
        shoulder = motor(0.3, gear_stiffness=900.0)
        robot = robot_of(tmp_path, ARM, shoulder=shoulder, elbow=motor(0.1))
        plant = plant_of(robot, actuators=ActuatorParameters(encoder_side=side))
        recording = report.PlantRecording(None, plant)
        for _ in range(3):
            plant.advance(1)
            recording.row()
        recording.flush()
        gears = plant.robot.gears
        assert tables["gears"].columns == ["t", "deflection.shoulder", "speed.shoulder", "effort.shoulder"]
        expected = [plant.time_s, gears.deflection[0], gears.speed[0], gears.effort[0]]
        assert tables["gears"].rows[-1].tolist() == expected
        assert tables["plant"].rows[-1][3:5].tolist() == plant.robot.q.tolist()
        assert ("measured" in tables) == (side == "motor")
    assert len(tables["gears"].rows) == 3


def test_friction_acts_at_the_link(tmp_path: Path) -> None:
    """A rotor in its gap is free of the joint's damping; a link there is braked by it."""
    robot = robot_of(tmp_path, turn=motor(gear_stiffness=K, backlash=1.0))
    damped = plant_of(robot, overlay={"joints": {"turn": {"damping": 0.1}}}).robot
    damped.set_state(np.zeros(1), np.array([2.0]))
    _, v, _, speed = run(damped, 50)
    assert (speed == 2.0).all()
    np.testing.assert_allclose(v, 2.0 * np.exp(-0.1 / I * DT * np.arange(51)), rtol=1e-11)


def test_contact_forces_on_a_sensor_are_means_over_the_whole_step(tmp_path: Path) -> None:
    """A cart falls to the ground behind its gear, from step 75 on with a held rotor. Its sensor reads m a + m g less
    the ground's force, which is what the gear transmits.
    """
    urdf = """<robot name="cart"><link name="base"/><link name="slider"/><link name="cart"><inertial><mass value="2"/>
<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="slide" type="prismatic"><parent link="base"/><child link="slider"/><axis xyz="0 0 1"/>
<limit effort="100" velocity="100" lower="-1" upper="1"/></joint>
<joint name="mount" type="fixed"><parent link="slider"/><child link="cart"/></joint></robot>"""
    robot = robot_of(tmp_path, urdf, slide=motor(1.0, gear_stiffness=2e4, gear_damping=20.0))
    sensors = {"robot": "cart", "force_torque": {"wrist": {"rate_hz": 1000.0, "joint": "slide"}}}
    (tmp_path / "sensors.yaml").write_bytes(msgspec.yaml.encode(sensors))
    contacts = [{"link": "cart", "radius": 0.01}]
    p = {"sensors": str(tmp_path / "sensors.yaml"), "contacts": contacts, "initial_position": [0.03]}
    cart = plant_of(robot, **p).robot
    assert cart.gears.parts > 1
    cart.open()
    forces = []
    for step in range(90):
        cart.write(np.array([-5.0]), brakes=step > 75)
        reading = cart.measuring.readings["wrist"].value[2]
        assert reading == pytest.approx(cart.gears.effort[0], rel=1e-9, abs=1e-9)  # 600 N less 600 N
        forces.append(sum(wrench.force[2] for wrench in cart.gears.contact_wrenches()))
    assert max(forces[76:]) > 10.0


@pytest.mark.parametrize(
    ("gear", "values"),
    [
        ({"gear_stiffness": 0.0}, ["gear_stiffness", "positive", "0"]),
        ({"gear_stiffness": -3.0}, ["gear_stiffness", "positive", "-3"]),
        ({"gear_stiffness": float("inf")}, ["gear_stiffness", "finite", "inf"]),
        ({"gear_stiffness": K, "gear_damping": -1.0}, ["gear_damping", "at least 0", "-1"]),
        ({"gear_stiffness": K, "backlash": float("nan")}, ["backlash", "at least 0", "nan"]),
        ({"backlash": 0.01}, ["backlash", "gear_stiffness", "none"]),
        ({"gear_damping": 0.01}, ["gear_damping", "gear_stiffness", "none"]),
        ({"gear_stiffness": K, "rotor_inertia": None}, ["gear_stiffness", "rotor_inertia", "armature", "none"]),
    ],
)
def test_impossible_gears_of_joint_files(tmp_path: Path, gear: dict, values: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=naming("joints.yaml", *values)):
        robot_of(tmp_path, turn={**motor(), **gear})


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"rate_hz": 15.0, "control_rate_hz": 15.0}, ["rate_hz", "15", "173.2 rad/s", "'turn'", "gear_stiffness"]),
        ({"actuators": ActuatorParameters(backlash={"turm": 0.1})}, ["actuators.backlash", "'turm'", "turn"]),
        ({"actuators": ActuatorParameters(backlash={"turn": -0.1})}, ["actuators.backlash", "at least 0"]),
        ({"actuators": ActuatorParameters(backlash={"turn": float("inf")})}, ["actuators.backlash", "inf"]),
        ({"overlay": {"joints": {"turn": {"armature": 0.0}}}}, ["'turn'", "armature", "overlay"]),
        ({"safe_stop": "damping", "damping_s": 0.0021, "rate_hz": 960.0}, []),
    ],
)
def test_gears_that_do_not_fit_the_plant(tmp_path: Path, changes: dict, values: list[str]) -> None:
    robot = robot_of(tmp_path, turn=motor(gear_stiffness=K))
    if not values:  # (J + I) / J / rate_hz = 1.6 ms is within two steps
        assert plant_of(robot, **changes).robot.gears is not None
        return
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        plant_of(robot, **changes)


def test_a_damping_stop_that_would_turn_light_rotors_around(tmp_path: Path) -> None:
    robot = robot_of(tmp_path, turn=motor(0.001, gear_stiffness=10.0))
    plant_of(robot, safe_stop="damping", damping_s=0.03)
    with pytest.raises(InvalidArgumentError, match=naming("damping_s", "0.021 s", "rotors")):  # 1 ms (J + I) / J
        plant_of(robot, safe_stop="damping", damping_s=0.01)


def test_a_back_emf_that_would_turn_a_rotor_around(tmp_path: Path) -> None:
    """(N K_t)^2 / R / J of the rotor alone: 1250 Hz, and 833 Hz with its link."""
    gear = {"resistance": 0.02, "voltage_limit": 24.0}
    plant_of(robot_of(tmp_path, turn=motor(**gear)))
    with pytest.raises(InvalidArgumentError, match=naming("rate_hz", "1250 Hz", "'turn'")):
        plant_of(robot_of(tmp_path, turn=motor(gear_stiffness=K, **gear)))


def test_robots_and_engines_without_elastic_gears(tmp_path: Path) -> None:
    robot = robot_of(tmp_path, turn=motor(gear_stiffness=K))
    with pytest.raises(InvalidArgumentError, match=naming("explicit_euler", "gear_stiffness", "rk4")):
        plant_of(robot, integrator="explicit_euler")
    (tmp_path / "table.mjcf").write_text("<mujoco/>")
    for changes in ({"engine": "fmu", "fmu": "table.fmu"}, {"engine": "mujoco", "mjcf": str(tmp_path / "table.mjcf")}):
        with pytest.raises(UnimplementedError, match=naming("gear_stiffness", "turn", "rotors")):
            plant_of(robot, **changes)
    rigid = robot_of(tmp_path, turn=motor())
    assert plant_of(rigid).robot.gears is None
    with pytest.raises(InvalidArgumentError, match=naming("actuators.backlash", "none")):
        plant_of(rigid, actuators=ActuatorParameters(backlash={"turn": 0.1}))
    path = ROOT / "urdf" / "four_bar.urdf"
    joints = {"robot": "four_bar", "motors": {"crank_joint": motor(gear_stiffness=K)}}
    (tmp_path / "loops.yaml").write_bytes(msgspec.yaml.encode(joints))
    with pytest.raises(UnimplementedError, match=naming("crank_joint", "closed loops")):
        plant_of(Robot.from_urdf(path, joints=tmp_path / "loops.yaml"))


def test_an_effort_that_does_not_converge_is_an_error(tmp_path: Path) -> None:
    robot, signs = table(tmp_path, deflection=0.01), cycle([1e-3, -1e-3])
    step = robot.engine.step

    def jumping(*state):
        q, v = step(*state)
        return q + next(signs), v

    robot.engine.step = jumping
    with pytest.raises(FailedPreconditionError, match=naming("'turn'", "60 iterations", "rate_hz")):
        run(robot, 1)


def test_a_joint_files_gear_reaches_the_plant_its_states_and_its_report(tmp_path: Path) -> None:
    """Through commands: the state shows the rotor; a backlash of the plant's parameters replaces that of the file."""
    robot = robot_of(tmp_path, turn=motor(gear_stiffness=K, backlash=0.01))
    plant = plant_of(robot, actuators=ActuatorParameters(backlash={"turn": 0.2}))
    for _ in range(12):
        state = plant.publish()
        arm = state.mode not in RUNNING
        assert plant.offer(
            JointCommand(state.session, state.seq, state.epoch, state.fingerprint, 1, state.name, [20.0], arm=arm)
        )
        plant.advance(1)
    assert plant.state().position[0] == plant.robot.gears.deflection[0] > 0.0  # the link has not moved
    assert plant.motion.q.tolist() == [0.0]
    (line,) = report.gear_lines({"gears": gear_facts(plant.robot)})
    assert "turn 27.6 (22.5)" in line
    assert "parts of a step: 2" in line
    assert report.gear_lines({}) == []
