"""Motors in FMUs, called by fmpy, compared with the plant step by step and with closed forms."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.messages.dyn_service_msgs import JointCommand
from tests.phrases import naming

fmpy = pytest.importorskip("fmpy", reason="the extra `fmu` is not installed: pip install '.[fmu]'")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed: cc, gcc or clang")

LINK = """<link name="{}"><inertial><origin xyz="0 0 -0.3"/><mass value="2"/>
<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
JOINT = """<joint name="{0}" type="continuous"><parent link="{1}"/><child link="{2}"/><axis xyz="{3}"/>
<limit effort="60" velocity="99"/></joint>"""
ARM = (
    '<robot name="arm"><link name="base"/>' + "".join(map(LINK.format, ("first", "second", "third")))
    + JOINT.format("one", "base", "first", "0 0 1") + JOINT.format("two", "first", "second", "0 1 0")
    + JOINT.format("three", "second", "third", "0 1 0") + "</robot>"
)  # fmt: skip
N, K, J, R, U, I = 20.0, 0.05, 1e-4, 0.8, 24.0, 25.0
R_TH, T, HOTTEST, AMBIENT = 2.0, 0.05, 80.0, 20.0
"""T is short, so that tests need few steps."""
ELECTRIC = f"torque_constant: {K}, gear_ratio: {N}, rotor_inertia: {J}, resistance: {R}"
HEAT = (
    f"thermal_resistance: {R_TH}, thermal_time_constant_s: {T}, temperature_limit_celsius: {HOTTEST}, "
    f"ambient_celsius: {AMBIENT}"
)
MOTORS = {
    "one": f"{ELECTRIC}, voltage_limit: {U}",
    "two": f"{ELECTRIC.replace(str(N), str(-2 * N))}, current_limit: {I}, {HEAT}",
}
"""Of three joints; the motor with heat is not the first one."""
DT = 1e-3


def arm(folder: Path, motors: Mapping[str, str]) -> Robot:
    (folder / "arm.urdf").write_text(ARM)
    text = "".join(f"  {name}: {{{motor}}}\n" for name, motor in motors.items())
    (folder / "joints.yaml").write_text(f"robot: arm\nmotors:\n{text}")
    return Robot.from_urdf(folder / "arm.urdf", joints=folder / "joints.yaml")


class Unit:
    """An instance of a unit, in step mode, from rest at the neutral position."""

    def __init__(self, file: Path, folder: Path, **initial: float) -> None:
        fmpy.extract(str(file), str(folder))
        self.model = fmpy.read_model_description(str(folder))
        self.references = {x.name: int(x.valueReference) for x in self.model.modelVariables}
        self.messages: list[str] = []
        log = lambda *parts: self.messages.append(str(parts[-1]))
        self.unit = fmpy.instantiate_fmu(str(folder), self.model, "CoSimulation", logger=log)
        for name, value in initial.items():
            self.set([name], [value])
        self.is_fmi2 = self.model.fmiVersion.startswith("2")
        if self.is_fmi2:
            self.unit.setupExperiment(startTime=0.0)
        self.unit.enterInitializationMode()
        self.unit.exitInitializationMode()
        self.t = 0.0

    def set(self, names: Sequence[str], values: Sequence[float]) -> None:
        references = [self.references[name] for name in names]
        setter: Any = getattr(self.unit, "setReal", None) or self.unit.setFloat64
        setter(references, [float(x) for x in values])

    def get(self, quantity: str) -> np.ndarray:
        references = [n for name, n in self.references.items() if name.startswith(f"{quantity}.")]
        getter: Any = getattr(self.unit, "getReal", None) or self.unit.getFloat64
        return np.array(getter(references))

    def step(self, length: float = DT) -> None:
        self.unit.doStep(self.t, length)
        self.t += length


@pytest.mark.parametrize("version", [2, 3])
def test_a_unit_is_the_plant_step_by_step(tmp_path: Path, version: int) -> None:
    """Random commands, each for three steps, meet all limits: of effort, current, heat and voltage."""
    robot = arm(tmp_path, MOTORS)
    file = robot.export_fmu(
        tmp_path / "arm.fmu", version=version, integrator="rk4", dt=DT, motors=True, effort_limits=True
    )
    unit = Unit(file, tmp_path / "unit")
    p = PlantParameters(robot="-", effort_ramp_s=1e-6)
    plant = make_plant(robot, p, session=1)
    names = [f"effort.{name}" for name in robot.joint_names]
    assert unit.get("winding_temperature").tolist() == [AMBIENT]
    for commanded in np.random.default_rng(3).uniform(-70.0, 70.0, (100, robot.nv)):
        for _ in range(3):
            state = plant.publish()
            command = JointCommand(
                state.session, state.seq, state.epoch, state.fingerprint, 1, state.name, commanded.tolist(),
                arm=state.mode not in RUNNING,
            )  # fmt: skip
            assert plant.offer(command)
            plant.advance(1)
            unit.set(names, commanded)
            unit.step()
            motors = plant.robot.motors
            # the unit's exp, and its sums of RK4, may differ in the last bit, which 300 steps of a pendulum enlarge
            np.testing.assert_allclose(unit.get("velocity"), plant.v, rtol=1e-9, atol=1e-9)
            second, first = unit.get("current")  # those with heat first
            np.testing.assert_allclose([first, second], motors.current[:2], rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(unit.get("winding_temperature"), motors.celsius[1:2], rtol=1e-10)
    counts = {"current": motors.current_limited, "heat": motors.heat_limited, "voltage": motors.voltage_limited}
    assert {name: (n > 10).tolist()[:2] for name, n in counts.items()} == {
        "current": [False, True], "heat": [False, True], "voltage": [True, False],
    }  # fmt: skip
    assert np.isnan(motors.current[2])  # a joint without a motor


def test_the_closed_forms_of_one_motor(tmp_path: Path) -> None:
    """v_k = v_0 (1 - (1 - dt / tau)^k) along the torque-speed line, and the exponential of the heat of a held current.

    One communication step is 10 steps: the motor sees the velocity of each.
    """
    robot = arm(tmp_path, {"one": f"{ELECTRIC}, voltage_limit: {U}"})
    file = robot.export_fmu(tmp_path / "arm.fmu", integrator="semi_implicit_euler", dt=DT, motors=True)
    unit = Unit(file, tmp_path / "unit")
    inertia = float(robot.mass_matrix(robot.configuration.neutral)[0, 0])
    tau, v_0 = inertia * R / (N * K) ** 2, U / (N * K)
    unit.set(["effort.one"], [900.0])
    assert unit.get("acceleration")[0] == pytest.approx(N * K * U / R / inertia, rel=1e-12)  # the acting effort
    for k in range(1, 21):
        unit.step(10 * DT)
        # the links hang on the vertical axis, so nothing else moves; 200 roundings
        assert unit.get("velocity")[0] == pytest.approx(v_0 * (1.0 - (1.0 - DT / tau) ** (10 * k)), rel=1e-11)
    assert "winding_temperature.one" not in unit.references
    (tmp_path / "hot").mkdir()
    robot = arm(tmp_path / "hot", {"one": f"{ELECTRIC}, {HEAT}"})
    unit = Unit(robot.export_fmu(tmp_path / "hot.fmu", dt=DT, motors=True), tmp_path / "hot" / "unit")
    unit.set(["effort.one"], [5.0 * N * K])
    for _ in range(10):
        unit.step(10 * DT)
    assert unit.get("current").tolist() == [5.0]
    rise = R_TH * R * 5.0**2 * -np.expm1(-0.1 / T)
    assert unit.get("winding_temperature")[0] == pytest.approx(AMBIENT + rise, rel=1e-13)
    saved = unit.unit.getFMUState()
    unit.set(["effort.one"], [15.0 * N * K])
    for _ in range(20):
        unit.step(10 * DT)
    assert unit.get("winding_temperature")[0] == pytest.approx(HOTTEST, rel=1e-12)
    assert unit.get("current")[0] == pytest.approx(np.sqrt((HOTTEST - AMBIENT) / (R_TH * R)), rel=1e-12)
    unit.unit.setFMUState(saved)
    assert unit.get("winding_temperature")[0] == pytest.approx(AMBIENT + rise, rel=1e-13)
    unit.unit.reset()
    assert unit.get("winding_temperature").tolist() == [AMBIENT]


def test_a_unit_without_motors_does_not_change(tmp_path: Path) -> None:
    robot = arm(tmp_path, MOTORS)
    unit = Unit(robot.export_fmu(tmp_path / "arm.fmu", integrator="semi_implicit_euler", dt=DT), tmp_path / "unit")
    unit.set(["effort.one"], [900.0])
    unit.step()
    expected = robot.simulate(
        robot.configuration.neutral, np.zeros(3), np.array([900.0, 0.0, 0.0]), dt=DT, steps=1,
        integrator="semi_implicit_euler",
    )  # fmt: skip
    assert np.array_equal(unit.get("velocity"), expected.v[-1])
    assert not [name for name in unit.references if name.startswith(("current", "winding"))]


def test_units_of_motors_are_described_with_their_units(tmp_path: Path) -> None:
    file = arm(tmp_path, MOTORS).export_fmu(tmp_path / "arm.fmu", motors=True)
    model = fmpy.read_model_description(str(file), validate=True)
    units = {x.name: x.unit for x in model.modelVariables if x.name.startswith(("current", "winding"))}
    assert units == {"current.two": "A", "current.one": "A", "winding_temperature.two": "degC"}
    bases = {unit.name: unit.baseUnit for unit in model.unitDefinitions}
    assert (bases["degC"].K, bases["degC"].offset, bases["A"].A) == (1, 273.15, 1)


def test_units_with_motors_that_cannot_be(tmp_path: Path) -> None:
    plain = Robot.from_text(ARM)
    with pytest.raises(FailedPreconditionError, match=naming("'arm'", "no motor", "joint file")):
        plain.export_fmu(tmp_path / "a.fmu", motors=True)
    fast = arm(tmp_path, {"three": f"torque_constant: 5, gear_ratio: {N}, resistance: {R}, voltage_limit: {U}"})
    with pytest.raises(FailedPreconditionError, match=naming("dt is 0.001", "rotor_inertia", "'three'")):
        fast.export_fmu(tmp_path / "a.fmu", motors=True)
    robot = arm(tmp_path, MOTORS)
    file = robot.export_fmu(tmp_path / "a.fmu", motors=True)
    unit = Unit(file, tmp_path / "unit")
    unit.unit.reset()
    with pytest.raises(Exception, match="SetFloat64 failed"):
        unit.set(["dt"], [1.0])
    assert "back EMF" in " ".join(unit.messages)
    with pytest.raises(InvalidArgumentError, match=naming("fmu", "--motors")):
        make_plant(robot, PlantParameters(robot="-", engine="fmu", fmu=str(file)), session=1)


def test_elastic_gears_are_refused(tmp_path: Path) -> None:
    robot = arm(tmp_path, {**MOTORS, "two": f"{ELECTRIC}, gear_stiffness: 2000"})
    with pytest.raises(UnimplementedError, match="gear_stiffness of joint two: use the plant, or leave out"):
        robot.export_fmu(tmp_path / "arm.fmu", motors=True)
    robot.export_fmu(tmp_path / "arm.fmu")
