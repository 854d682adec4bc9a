"""Margins of motors in design loads and duty cycles: one pendulum compared with its closed forms."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.motors import Motor, motor_arrays
from dyn_service.studies.joint_loads import Loads, design_loads, duty_cycle
from tests.phrases import naming

for _module in ("xarray", "dask.array", "zarr"):
    pytest.importorskip(_module, reason="the extra `studies` is not installed: pip install '.[studies]'")

G = 9.81
MASS, LENGTH = 2.0, 0.5
N, K, J, R, U, I = 40.0, 0.05, 1e-4, 0.8, 24.0, 10.0
R_TH, T, HOTTEST, AMBIENT = 2.0, 30.0, 80.0, 20.0
GAIN, WEIGHT = N * K, MASS * G * LENGTH
INERTIA = MASS * LENGTH**2 + N**2 * J
CONTINUOUS = np.sqrt((HOTTEST - AMBIENT) / (R_TH * R))
ELECTRIC = f"gear_ratio: {N}, torque_constant: {K}, rotor_inertia: {J}"
LIMITED = f"{ELECTRIC}, resistance: {R}, current_limit: {I}, voltage_limit: {U}"
HEAT = (
    f"thermal_resistance: {R_TH}, thermal_time_constant_s: {T}, temperature_limit_celsius: {HOTTEST}, "
    f"ambient_celsius: {AMBIENT}"
)
POINT = '<inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/>'
PENDULUM = f"""<robot name="pendulum"><link name="base"/><link name="rod"><inertial><origin xyz="0 0 {-LENGTH}"/>
<mass value="{MASS}"/>{POINT}</inertial></link>
<joint name="swing" type="continuous"><parent link="base"/><child link="rod"/><axis xyz="0 1 0"/></joint>
{{more}}</robot>"""
TURNTABLE = PENDULUM.replace(f"0 0 {-LENGTH}", f"{LENGTH} 0 0").replace("0 1 0", "0 0 1")
"""About a vertical axis, without weight."""
SECOND = f"""<link name="tip"><inertial><origin xyz="1 0 0"/><mass value="1e-9"/>{POINT}</inertial></link>
<joint name="wrist" type="continuous"><parent link="rod"/><child link="tip"/><axis xyz="0 1 0"/></joint>"""


def pendulum(folder: Path, motor: str, elements: str = "", text: str = PENDULUM) -> Robot:
    (folder / "joints.yaml").write_text(f"robot: pendulum\nmotors:\n  swing: {{{motor}}}\n")
    return Robot.from_text(text.format(more=elements), joints=folder / "joints.yaml")


def test_current_and_voltage_of_states(tmp_path: Path) -> None:
    """i = (m g l sin q + (m l^2 + N^2 J) a) / (N K), u = R i + N K v; a joint without motor has neither."""
    robot = pendulum(tmp_path, f"{LIMITED}, {HEAT}", SECOND)
    q, v, a = (np.column_stack([x, 0.0 * x]) for x in np.random.default_rng(1).uniform(-3.0, 3.0, (3, 50)))
    motors = {"swing": {"torque_constant": K, "gear_ratio": N, "resistance": R}}
    motor = Loads(robot, {"motors": motors})({"q": q, "v": v, "a": a})["motor"]
    current = (WEIGHT * np.sin(q[:, 0]) + INERTIA * a[:, 0]) / GAIN
    np.testing.assert_allclose(motor[:, 0, 0], current, rtol=0.0, atol=1e-7)  # A, of the tip of 1e-9 kg
    np.testing.assert_allclose(motor[:, 0, 1], R * motor[:, 0, 0] + GAIN * v[:, 0], rtol=1e-13, atol=1e-13)
    assert not motor[:, 1].any()
    unknown = Loads(robot, {"motors": {"swing": {"torque_constant": K, "gear_ratio": N}}})
    assert not unknown({"q": q, "v": v, "a": a})["motor"][..., 1].any()


@pytest.mark.parametrize(
    ("motor", "speed", "limit"),
    [
        (f"{LIMITED}, {HEAT}", 0.1, "heat"),
        (LIMITED, 0.1, "current"),
        (LIMITED, 9.0, "voltage"),
        (ELECTRIC, 9.0, ""),
    ],
)
def test_the_margin_is_that_of_the_worst_limit(tmp_path: Path, motor: str, speed: float, limit: str) -> None:
    """q over a whole turn with constant velocity: i = I_1 sin q, so rms I_1 / sqrt 2, and u = R i + N K v."""
    robot = pendulum(tmp_path, motor)
    angles = (2 * np.pi * np.arange(64) / 64)[:, None]
    vary = {"q": {"values": angles.tolist(), "dim": "pose"}, "v": {"constant": speed}, "a": {"constant": 0.0}}
    report = design_loads(robot, vary)
    (row,) = report.margins
    largest = WEIGHT / GAIN
    voltage = R * largest + GAIN * speed if "resistance" in motor else 0.0
    shares = {
        "current": largest / (I if "current_limit" in motor else np.inf),
        "voltage": voltage / (U if "voltage_limit" in motor else np.inf),
        "heat": largest / np.sqrt(2.0) / (CONTINUOUS if HEAT in motor else np.inf),
    }
    assert (row["joint"], row["limit"]) == ("swing", limit)
    assert row["margin"] == pytest.approx(1.0 - max(shares.values()), rel=1e-12)
    for name, share in shares.items():
        assert row[f"{name} share"] == pytest.approx(share, rel=1e-12, abs=1e-15)
    assert row["current"] == pytest.approx(largest, rel=1e-13)
    assert row["voltage"] == pytest.approx(voltage, rel=1e-13)
    assert row["rms current"] == pytest.approx(largest / np.sqrt(2.0), rel=1e-13)
    if limit == "voltage":  # the state of the largest sum, not of the largest current
        assert row["state"] == 16
        assert np.sin(report.study.state(row["state"])["q"][0]) == pytest.approx(1.0)
    elif limit == "heat":
        assert row["state"] == -1
    page = report.write(tmp_path / "page")
    (cells,) = csv.DictReader((page.parent / "motors.csv").read_text("utf-8").splitlines())
    assert float(cells["margin"]) == pytest.approx(row["margin"], rel=1e-5)  # 6 digits
    text = page.read_text("utf-8")
    assert "motors.csv" in text
    assert f"{row['margin']:.6g}"[:6] in text


def test_each_limit_has_its_own_worst_state(tmp_path: Path) -> None:
    """The first state has the largest current, the second, without acceleration, the largest voltage."""
    robot = pendulum(tmp_path, LIMITED)
    vary = {"v": {"values": [[0.0], [9.0]], "dim": "pose"}, "a": {"values": [[5.0], [0.0]], "dim": "pose"}}
    (row,) = design_loads(robot, {"q": {"constant": 0.0}, **vary}).margins
    assert (row["limit"], row["state"]) == ("voltage", 1)
    assert row["current"] == pytest.approx(INERTIA * 5.0 / GAIN, rel=1e-13)


def test_robots_without_motors_have_no_margins(tmp_path: Path) -> None:
    robot = Robot.from_text(PENDULUM.format(more=""))
    vary = {"q": {"constant": 0.3}, "v": {"constant": 0.0}, "a": {"constant": 0.0}}
    report = design_loads(robot, vary)
    assert report.margins == []
    page = report.write(tmp_path)
    assert "motors.csv" not in page.read_text("utf-8")
    (row,) = duty_cycle(robot, {"t": np.arange(3.0), **dict.fromkeys(("q", "v", "a"), np.zeros((3, 1)))})
    assert "margin" not in row


def test_a_constant_duty_cycle_heats_by_the_exponential(tmp_path: Path) -> None:
    """Held at q with the current i: theta = R_th R i^2 (1 - exp(-t / T)), repeated without end R_th R i^2."""
    robot = pendulum(tmp_path, f"{LIMITED}, {HEAT}")
    t, angle = np.linspace(0.0, 45.0, 91), 0.7
    zeros = np.zeros((len(t), 1))
    (row,) = duty_cycle(robot, {"t": t, "q": zeros + angle, "v": zeros, "a": zeros})
    current = WEIGHT * np.sin(angle) / GAIN
    rise = R_TH * R * current**2
    assert row["celsius"] == pytest.approx(AMBIENT + rise * -np.expm1(-45.0 / T), rel=1e-12)
    assert row["celsius repeated"] == pytest.approx(AMBIENT + rise, rel=1e-12)
    # for a constant current the share of heat is that of the continuous current
    assert row["heat share"] == pytest.approx(current / CONTINUOUS, rel=1e-12)
    assert row["current share"] == pytest.approx(current / I, rel=1e-12)
    assert row["voltage share"] == pytest.approx(R * current / U, rel=1e-12)
    assert (row["limit"], row["margin"]) == ("heat", pytest.approx(1.0 - current / CONTINUOUS, rel=1e-12))


def test_a_sinusoid_ripples_about_its_mean_heat(tmp_path: Path) -> None:
    """With i = I_1 sin w t, theta tends to R_th R I_1^2 / 2 (1 - cos(2 w t - phi) / sqrt(1 + (2 w T)^2)).

    q = A sin w t without weight: i = -A w^2 inertia sin w t / (N K), u = R i + N K A w cos w t, so its amplitude is the
    hypotenuse.
    """
    robot = pendulum(tmp_path, f"{LIMITED}, {HEAT}", text=TURNTABLE)
    period, amplitude, steps = 20.0, 1.5, 4000
    w, t = 2 * np.pi / period, np.linspace(0.0, period, steps + 1)
    sine, cosine = np.sin(w * t)[:, None], np.cos(w * t)[:, None]
    q, v, a = amplitude * sine, amplitude * w * cosine, -amplitude * w**2 * sine
    (row,) = duty_cycle(robot, {"t": t, "q": q, "v": v, "a": a})
    largest = amplitude * w**2 * INERTIA / GAIN
    rise = R_TH * R * largest**2 / 2
    peak = rise * (1.0 + 1.0 / np.sqrt(1.0 + (2 * w * T) ** 2))
    # heat is constant in each of 4000 steps: its relative error is (2 w dt)^2 / 12 of the ripple
    assert row["celsius repeated"] - AMBIENT == pytest.approx(peak, rel=1e-6)
    assert row["heat share"] == pytest.approx(np.sqrt(peak / (HOTTEST - AMBIENT)), rel=1e-6)
    assert row["current"] == pytest.approx(largest, rel=1e-12)
    assert row["voltage"] == pytest.approx(np.hypot(R * largest, GAIN * amplitude * w), rel=1e-6)  # of 4000 samples
    assert row["celsius"] < row["celsius repeated"]
    assert row["limit"] == "voltage"
    assert abs(v[row["sample"], 0]) == pytest.approx(amplitude * w, rel=1e-2)


def test_heat_limits_a_fast_cycle_by_its_worst_moment() -> None:
    """A motion that ends hot and repeats is hottest at its end; times need not be even."""
    arrays = motor_arrays(
        {0: Motor(torque_constant=K, gear_ratio=N, resistance=R, thermal_resistance=R_TH, thermal_time_constant_s=T)}, 2
    )
    t = np.array([0.0, 1.0, 1.5, 4.0])
    current = np.array([[0.0, 9.0], [2.0, 9.0], [4.0, 9.0], [4.0, 9.0]])
    rises = arrays.rises(t, current, np.array([3.0, 0.0]))
    expected = 3.0
    for dt, squares in zip(np.diff(t), (2.0, 10.0, 16.0), strict=True):
        end = R_TH * R * squares
        expected = end + (expected - end) * np.exp(-dt / T)
    assert rises[-1] == pytest.approx([expected, 0.0], rel=1e-14)
    assert np.isinf(arrays.continuous_current).all()


@pytest.mark.parametrize(
    ("motors", "error", "values"),
    [
        ({"swung": {"torque_constant": 1.0, "gear_ratio": 1.0}}, NotFoundError, ["options.motors", "swung", "swing"]),
        ({"swing": {"gear_ratio": 1.0}}, InvalidArgumentError, ["options.motors", "torque_constant"]),
    ],
)
def test_motors_of_options_are_checked(motors: dict, error: type[Exception], values: list[str]) -> None:
    with pytest.raises(error, match=naming(*values)):
        Loads(Robot.from_text(PENDULUM.format(more="")), {"motors": motors})
