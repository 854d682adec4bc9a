"""Motors of joint files: the torque-speed line and the heat of windings beside their closed forms, in the plant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service.control.plant.motors import Motors, SupplySag
from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, PlantParameters, make_plant
from dyn_service.graph.nodes.plant.report import counts
from dyn_service.messages.dyn_service_msgs import JointCommand
from dyn_service.model.motors import Motor
from tests.phrases import naming

TURNTABLE = """<robot name="turntable"><link name="base"/><link name="table"><inertial><mass value="1"/>
<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="turn" type="continuous"><parent link="base"/><child link="table"/><axis xyz="0 0 1"/>
<limit effort="1000" velocity="1000"/></joint></robot>"""
"""Vertical axis, so that no weight acts."""
N, K, J, R, U, I = 20.0, 0.05, 1e-4, 0.8, 24.0, 25.0
R_TH, T, HOTTEST, AMBIENT = 2.0, 0.05, 80.0, 20.0
"""T is short, so that tests need few steps."""
INERTIA = 0.02 + N**2 * J
ELECTRIC = f"torque_constant: {K}, gear_ratio: {N}, rotor_inertia: {J}, resistance: {R}"
HEAT = (
    f"thermal_resistance: {R_TH}, thermal_time_constant_s: {T}, temperature_limit_celsius: {HOTTEST}, "
    f"ambient_celsius: {AMBIENT}"
)
DT = 1e-3


def turntable(folder: Path, motor: str) -> Robot:
    (folder / "turntable.urdf").write_text(TURNTABLE)
    (folder / "joints.yaml").write_text(f"robot: turntable\nmotors:\n  turn: {{{motor}}}\n")
    return Robot.from_urdf(folder / "turntable.urdf", joints=folder / "joints.yaml")


def plant_of(robot: Robot, **changes):
    return make_plant(robot, PlantParameters(robot="-", effort_ramp_s=1e-6, **changes), session=1)


def drive(plant, effort: float, steps: int):
    """Returns velocity, acting effort, current and temperature after each step under this commanded effort."""
    rows = []
    for _ in range(steps):
        state = plant.publish()
        command = JointCommand(
            state.session, state.seq, state.epoch, state.fingerprint, 1, state.name, [effort],
            arm=state.mode not in RUNNING,
        )  # fmt: skip
        assert plant.offer(command)
        plant.advance(1)
        motors = plant.robot.motors
        rows.append((plant.v[0], plant.effort[0], motors.current[0], motors.celsius[0]))
    return np.array(rows).T


def test_a_motor_runs_up_along_its_torque_speed_line(tmp_path: Path) -> None:
    """From rest by M dv/dt = N K (U - N K v) / R, efforts held through steps: v_k = v_0 (1 - (1 - dt / tau)^k), with
    v_0 = U / (N K) and tau = M R / (N K)^2.
    """
    plant = plant_of(turntable(tmp_path, f"{ELECTRIC}, voltage_limit: {U}"))
    v, effort, *_ = drive(plant, 900.0, 400)
    tau, v_0 = INERTIA * R / (N * K) ** 2, U / (N * K)
    k = np.arange(1, 401)
    np.testing.assert_allclose(v, v_0 * (1.0 - (1.0 - DT / tau) ** k), rtol=1e-12)  # 400 roundings
    v_before = np.append(0.0, v[:-1])
    np.testing.assert_allclose(effort, N * K * (U - N * K * v_before) / R, rtol=1e-11)
    assert counts(plant)["voltage_limited.turn"] == 400


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_limits_of_current_and_voltage_in_all_quadrants(sign: float) -> None:
    """|i| up to the limit of current where the line is above it; beyond the no-load speed the motor brakes, also with
    more current than its limit. The sign of the gear turns the current, not the effort.
    """
    motor = Motor(torque_constant=K, gear_ratio=sign * N, resistance=R, current_limit=I, voltage_limit=U)
    no_load = U / (N * K)
    for v in np.linspace(-4.0, 4.0, 41) * no_load:
        for commanded in (-1e3, -5.0, 0.0, 5.0, 1e3):
            motors = Motors({0: motor}, 2, DT)
            effort = motors.act(np.array([commanded, commanded]), np.array([v, v]), 0.0)
            limit = np.clip(commanded, -I * N * K, I * N * K)
            expected = np.clip(limit, N * K * (-U - N * K * v) / R, N * K * (U - N * K * v) / R)
            assert effort[0] == pytest.approx(expected, rel=1e-14)
            assert motors.current[0] == pytest.approx(sign * expected / (N * K), rel=1e-14)
            assert effort[1] == commanded  # a joint without a motor has no limit
            assert motors.current_limited.tolist() == [int(abs(commanded) > I * N * K), 0]
            assert motors.voltage_limited.tolist() == [int(expected != limit), 0]
            assert np.isnan([motors.current[1], motors.celsius[0]]).all()


def test_a_winding_heats_and_cools_by_the_exponential(tmp_path: Path) -> None:
    """theta = theta_0 + R_th R i^2 (1 - exp(-t / T)) with a constant current, then back by exp(-t / T)."""
    current = 5.0
    plant = plant_of(turntable(tmp_path, f"{ELECTRIC}, {HEAT}"))
    *_, i, celsius = drive(plant, current * N * K, 100)
    np.testing.assert_allclose(i, current, rtol=1e-15)
    end, t = R_TH * R * current**2, DT * np.arange(1, 101)
    np.testing.assert_allclose(celsius, AMBIENT + end * (1.0 - np.exp(-t / T)), rtol=1e-13)  # 100 roundings
    *_, cooling = drive(plant, 0.0, 100)
    np.testing.assert_allclose(cooling - AMBIENT, (celsius[-1] - AMBIENT) * np.exp(-t / T), rtol=1e-11)
    assert not [name for name in counts(plant) if "_limited" in name]


def test_a_hot_motor_ends_at_its_limit_with_its_continuous_current(tmp_path: Path) -> None:
    """The limit is reached after -T ln(1 - rise / (R_th R i^2)) and never passed; then i^2 = rise / (R_th R)."""
    current, rise = 10.0, HOTTEST - AMBIENT
    plant = plant_of(turntable(tmp_path, f"{ELECTRIC}, {HEAT}"))
    _, effort, i, celsius = drive(plant, current * N * K, 200)
    limit_s = -T * np.log(1.0 - rise / (R_TH * R * current**2))
    free = int(limit_s / DT)
    assert (i[:free] == current).all()
    assert celsius.max() <= HOTTEST * (1.0 + 1e-14)  # two roundings
    np.testing.assert_allclose(i[free + 1 :], np.sqrt(rise / (R_TH * R)), rtol=1e-12)
    plant.robot.motors.reset()
    assert (plant.robot.motors.current[0], plant.robot.motors.celsius[0]) == (0.0, AMBIENT)
    np.testing.assert_allclose(effort, N * K * i, rtol=1e-15)
    assert counts(plant)["heat_limited.turn"] == 200 - free
    plant.robot.set_state(plant.q, np.zeros(1))
    assert plant.robot.motors.celsius.tolist() == [AMBIENT]


def test_a_winding_above_its_limit_has_no_current_until_it_is_cool(tmp_path: Path) -> None:
    robot = turntable(tmp_path, f"{ELECTRIC}, {HEAT}")
    plant = plant_of(robot, actuators=ActuatorParameters(winding_celsius={"turn": 90.0}))
    *_, i, celsius = drive(plant, 5.0, 40)
    cool = int(T * np.log((90.0 - AMBIENT) / (HOTTEST - AMBIENT)) / DT)
    assert (i[:cool] == 0.0).all()
    assert (i[cool:] > 0.0).all()
    np.testing.assert_allclose(celsius[:cool] - AMBIENT, 70.0 * np.exp(-DT * np.arange(1, cool + 1) / T), rtol=1e-13)


def test_a_sagging_supply_lowers_the_line_while_it_lasts() -> None:
    motor = Motor(torque_constant=K, gear_ratio=N, resistance=R, voltage_limit=U)
    sags = [
        SupplySag(share=0.5, from_s=0.2, until_s=0.4),
        SupplySag(share=0.0, from_s=0.3, until_s=0.35),
        SupplySag(share=0.7, from_s=0.3),
    ]
    motors = Motors({0: motor, 1: Motor(torque_constant=K, gear_ratio=N)}, 2, DT, sags)
    v = 3.0
    for t, share in ((0.0, 1.0), (0.2, 0.5), (0.3, 0.0), (0.35, 0.5), (0.4, 0.7), (9.0, 0.7)):
        expected = N * K * (share * U - N * K * v) / R
        effort = motors.act(np.array([900.0, 900.0]), np.array([v, v]), t)
        assert effort == pytest.approx([expected, 900.0], rel=1e-14)


@pytest.mark.parametrize(
    ("motor", "settings", "values"),
    [
        (f"{ELECTRIC}, {HEAT}", {"winding_celsius": {"turm": 90.0}}, ["winding_celsius", "'turm'", "turn"]),
        (ELECTRIC, {"winding_celsius": {"turn": 90.0}}, ["winding_celsius", "thermal_resistance", "none"]),
        (f"{ELECTRIC}, {HEAT}", {"winding_celsius": {"turn": np.inf}}, ["winding_celsius", "'turn' is inf", "-273.15"]),
        (f"{ELECTRIC}, {HEAT}", {"winding_celsius": {"turn": -300.0}}, ["winding_celsius", "-300", "-273.15"]),
        (ELECTRIC, {"supply_sags": [SupplySag(share=0.5)]}, ["supply_sags", "voltage_limit"]),
        (
            f"{ELECTRIC}, voltage_limit: {U}",
            {"supply_sags": [SupplySag(share=1.0), SupplySag(share=0.5, from_s=2.0, until_s=1.0)]},
            ["supply_sags[1]", "from_s is 2", "until_s 1", "from_s < until_s"],
        ),
        (
            f"torque_constant: 0.5, gear_ratio: {N}, resistance: {R}, voltage_limit: {U}",
            {},
            ["rate_hz", "1000", "rotor_inertia", "'turn'"],  # (N K)^2 / R / M = 6250 Hz
        ),
    ],
)
def test_motors_that_do_not_fit_the_plant(tmp_path: Path, motor: str, settings: dict, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        plant_of(turntable(tmp_path, motor), actuators=ActuatorParameters(**settings))


def test_motors_at_joints_that_none_can_drive(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("'turn'", "undriven")):
        plant_of(turntable(tmp_path, ELECTRIC), undriven=["turn"])
    lid = """<link name="lid"/><joint name="second" type="continuous"><parent link="base"/><child link="lid"/>
<limit effort="1" velocity="1"/><mimic joint="turn"/></joint></robot>"""
    (tmp_path / "two.urdf").write_text(TURNTABLE.replace("</robot>", lid))
    (tmp_path / "two.yaml").write_text("robot: turntable\nmotors:\n  second: {torque_constant: 1, gear_ratio: 1}\n")
    with pytest.raises(InvalidArgumentError, match=naming("'second'", "follows", "mimic")):
        plant_of(Robot.from_urdf(tmp_path / "two.urdf", joints=tmp_path / "two.yaml"))
