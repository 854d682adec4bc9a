"""Motors and effort limits of MJCF compared with MuJoCo: its compiled model, and its actuator force."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from dyn_service.control.plant.motors import Motors
from dyn_service.engine.robot import Robot
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.messages.dyn_service_msgs import JointCommand
from dyn_service.model.description import Joint
from dyn_service.model.motors import Motor
from dyn_service.parsing.files import read_text
from dyn_service.parsing.joint_files import with_joint_file
from tests.phrases import unnamed

CLASS = """<dcmotor motorconst="0.05 0.06" resistance="2" saturation="0 5 0" thermal="2 10 0 0.004 25 22"
damping="1e-4"/>
<default class="b"><dcmotor resistance="3"/></default>"""
MODEL = """<mujoco model="arm"><compiler autolimits="true"/><option gravity="0 0 0" timestep="1e-3"/>
<default><default class="a">{of_class}</default></default>
<worldbody><body><joint name="hinge" axis="0 0 1"/><geom size="0.1" mass="1"/>
<body pos="1 0 0"><joint name="slide" type="slide" axis="0 0 1" {slide}/><geom size="0.1" mass="1"/></body></body>
</worldbody>
<actuator>{actuators}</actuator></mujoco>"""


def mjcf(actuators: str, of_class: str = CLASS, slide: str = "") -> str:
    return MODEL.format(actuators=actuators, of_class=of_class, slide=slide)


def joint_of(text: str, name: str = "hinge") -> Joint:
    return next(joint for joint in read_text(text).joints if joint.name == name)


def notes_of(text: str) -> list[str]:
    return [note.text for note in read_text(text).notes if note.element.startswith("actuator")]


CONSTANTS = 'motorconst="0.05" resistance="2"'
COMPILED = {
    "both constants": 'motorconst="0.05 0.06" resistance="2"',
    "torque constant": CONSTANTS,
    "back EMF constant": 'motorconst="0 0.06" resistance="2"',
    "nominal point": 'nominal="24 1.5 400"',
    "nominal point of a known resistance under damping": 'nominal="24 0 400" resistance="2" damping="1e-4"',
    "nominal point under more damping than it can have": 'nominal="24 0 400" resistance="2" damping="1"',
    "nominal point under damping": 'nominal="24 1.5 400" damping="1e-4"',
    "nominal point under damping beyond the stall torque": 'nominal="24 1e-3 400" damping="1"',
    "nominal point and torque constant": 'nominal="24 1.5 400" motorconst="0.07"',
    "current": f'{CONSTANTS} saturation="0 5"',
    "torque": f'{CONSTANTS} saturation="0.3 5 0"',
    "heat": f'{CONSTANTS} thermal="2 10 0 0 0 22"',
    "time constant and resistance": f'{CONSTANTS} thermal="2 0 20"',
    "time constant and capacitance": f'{CONSTANTS} thermal="0 10 20 0 25 22"',
    "all of the class": 'class="a"',
    "class and a constant": 'class="a" motorconst="0.1"',
    "class and a nominal point": 'class="a" nominal="24 1 200"',
    "class and a saturation": 'class="a" saturation="0.7"',
    "class and a part of its heat": 'class="a" thermal="3"',
    "class in a class": 'class="b"',
}
"""Attributes of a `<dcmotor>`."""


@pytest.mark.parametrize("attributes", COMPILED.values(), ids=COMPILED)
def test_dc_motors_are_those_of_the_compiler(attributes: str) -> None:
    text = mjcf(f'<dcmotor joint="hinge" gear="-50" {attributes}/>')
    model = mujoco.MjModel.from_xml_string(text)
    R, K = model.actuator_gainprm[0, :2]
    thermal_resistance, capacitance, ambient = model.actuator_dynprm[0, 2:5]
    motor, limit = joint_of(text).motor, joint_of(text).limit
    assert motor is not None
    assert (motor.gear_ratio, joint_of(text).reduction) == (-50.0, -50.0)
    # a few roundings of other orders of the operations
    assert (motor.torque_constant, motor.resistance) == pytest.approx((K, R), rel=1e-14)
    if model.actuator_forcelimited[0]:
        torque = model.actuator_forcerange[0, 1]
        assert motor.torque_constant * motor.current_limit == pytest.approx(torque, rel=1e-14)
        assert limit.effort == pytest.approx(50.0 * torque, rel=1e-14)
    else:
        assert (motor.current_limit, limit) == (math.inf, None)
    if thermal_resistance:
        assert motor.thermal_resistance == pytest.approx(thermal_resistance, rel=1e-14)
        assert motor.thermal_time_constant_s == pytest.approx(thermal_resistance * capacitance, rel=1e-14)
        assert motor.ambient_celsius == ambient
    else:
        assert (motor.thermal_resistance, motor.thermal_time_constant_s) == (None, None)
    assert motor.temperature_limit_celsius is None  # MJCF has none


VOLTAGES = {
    f'{CONSTANTS} ctrlrange="-24 24"': (24.0, ""),
    f'{CONSTANTS} ctrlrange="-24 24" ctrllimited="false"': (math.inf, ""),
    f'{CONSTANTS} ctrlrange="0 24"': (math.inf, "ctrlrange 0 to 24"),
    f'{CONSTANTS} input="pos" controller="1 0 0 0 0 48" ctrlrange="-2 2"': (48.0, ""),
    f'{CONSTANTS} input="vel ff"': (math.inf, ""),
    f'{CONSTANTS} input="pos voltage" controller="1 0 0 0 0 48"': (math.inf, "Vmax 48"),
}


@pytest.mark.parametrize(("attributes", "voltage", "note"), [(x, *rest) for x, rest in VOLTAGES.items()])
def test_the_voltage_limit_is_that_of_the_input(attributes: str, voltage: float, note: str) -> None:
    text = mjcf(f'<dcmotor joint="hinge" {attributes}/>')
    mujoco.MjModel.from_xml_string(text)  # MuJoCo accepts it
    assert joint_of(text).motor.voltage_limit == voltage
    assert not note or any(note in line for line in notes_of(text))


UNUSED = {
    f'{CONSTANTS} inductance="1e-3"': "ignored of its motor: inductance",
    f'{CONSTANTS} inductance="0 1e-3" saturation="0 0 9"': "inductance, the limit of the current's rate",
    f'{CONSTANTS} cogging="0.1 7 0"': "ignored of its motor: cogging",
    f'{CONSTANTS} lugre="100 1 0.1 0.2 0.1"': "ignored of its motor: LuGre friction",
    f'{CONSTANTS} thermal="2 10 0 0.004 25 22"': "ignored of its motor: the resistance's change with temperature",
    f'{CONSTANTS} input="none"': "its motor is ignored: without an input it is a brake",
    'motorconst="0" input="none" resistance="2"': "its motor is ignored: motor constant 0 N m/A, resistance 2 ohm",
    f'{CONSTANTS} gear="0"': "its motor is ignored: motor constant 0.05 N m/A, resistance 2 ohm and gear 0",
}


@pytest.mark.parametrize(("attributes", "note"), UNUSED.items())
def test_what_a_motor_does_not_have_is_reported(attributes: str, note: str) -> None:
    text = mjcf(f'<dcmotor joint="hinge" {attributes}/>')
    mujoco.MjModel.from_xml_string(text)
    (line,) = [line for line in notes_of(text) if "motor" in line and "force is not applied" not in line
               and not line.startswith("motor of joint")]  # fmt: skip
    assert note in line
    assert (joint_of(text).motor is None) is note.startswith("its motor is ignored")


OWN = 30.0
"""N, the limit of the joint itself."""
LIMITS = {
    '<motor joint="slide" gear="-10" ctrlrange="-2 2"/>': 20.0,
    '<motor joint="slide" gear="10" ctrlrange="-2 2" forcerange="-1 1"/>': 10.0,
    '<motor joint="slide" gear="10" ctrlrange="-2 2" forcerange="-3 3"/>': 20.0,
    '<motor jointinparent="slide" ctrlrange="-2 2"/>': 2.0,
    '<motor joint="slide" class="a"/>': 12.0,
    '<motor joint="slide" gear="10" ctrlrange="-9 9"/>': OWN,
    '<position joint="slide" kp="5" ctrlrange="-2 2" forcerange="-4 4"/>': 4.0,
}
NO_LIMITS = {
    '<position joint="slide" kp="5" ctrlrange="-2 2"/>': "",
    '<motor joint="slide" ctrlrange="0 2"/>': "ctrlrange 0 to 2: no limit; only symmetric ranges are supported",
    '<motor joint="slide" gear="0" ctrlrange="-2 2"/>': "",
    '<motor joint="slide" ctrlrange="-2 2"/><velocity joint="slide" kv="1"/>':
        "its effort limit: ignored, because joint 'slide' has 2 actuators",
    f'<dcmotor joint="slide" {CONSTANTS} saturation="0 5"/><velocity joint="slide" kv="1"/>':
        "its motor and its effort limit: ignored, because joint 'slide' has 2 actuators",
}  # fmt: skip
SLIDE = f'actuatorfrcrange="{-OWN} {OWN}"'
LIMITED_CLASS = '<motor gear="3" ctrlrange="-4 4"/>'


@pytest.mark.parametrize(("actuator", "effort"), LIMITS.items(), ids=LIMITS)
def test_effort_limits_are_the_largest_forces_on_the_joint(actuator: str, effort: float) -> None:
    text = mjcf(actuator, LIMITED_CLASS, SLIDE)
    joint = joint_of(text, "slide")
    assert (joint.limit.effort, joint.motor) == (effort, None)
    notes = [note for note in notes_of(text) if note.startswith("effort limit")]
    assert notes == ([f"effort limit of joint 'slide': {effort:g}"] if effort < OWN else [])
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    data.ctrl[:] = 1e6
    mujoco.mj_forward(model, data)
    assert abs(data.qfrc_actuator[1]) == pytest.approx(effort, rel=1e-14)


@pytest.mark.parametrize(("actuators", "note"), NO_LIMITS.items(), ids=NO_LIMITS)
def test_other_ranges_are_no_effort_limits(actuators: str, note: str) -> None:
    text = mjcf(actuators, slide=SLIDE)
    mujoco.MjModel.from_xml_string(text)
    joint = joint_of(text, "slide")
    assert (joint.limit.effort, joint.motor) == (OWN, None)
    assert not note or note in notes_of(text)


def test_a_joint_that_follows_has_no_motor() -> None:
    equality = '</actuator><equality><joint joint1="slide" joint2="hinge"/></equality>'
    text = mjcf(f'<dcmotor joint="slide" {CONSTANTS}/>').replace("</actuator>", equality)
    assert joint_of(text, "slide").motor is None
    assert "its motor: ignored, because joint 'slide' follows 'hinge'" in notes_of(text)


N, U, I = 50.0, 24.0, 5.0
DRIVEN = mjcf(
    f'<dcmotor joint="hinge" gear="{N}" {CONSTANTS} saturation="0 {I}" ctrlrange="{-U} {U}"/>'
    f'<dcmotor joint="slide" gear="{-N}" {CONSTANTS} ctrlrange="{-U} {U}" armature="1e-4"/>'
)


def plant_effort(plant, v: np.ndarray, commanded: list[float]) -> np.ndarray:
    """Returns the efforts that act in the first step from this velocity, under commanded efforts."""
    plant.robot.set_state(np.zeros(2), v)
    return plant.robot.motors.act(np.array(commanded), v, 0.0)


def test_the_plant_has_the_forces_of_mujoco() -> None:
    """At full voltage both ways, where the limits of current and voltage do not exclude each other.

    Beyond the no-load speed MuJoCo limits the braking current and the plant does not.
    """
    robot = Robot.from_text(DRIVEN)
    plant = make_plant(robot, PlantParameters(robot="-", effort_ramp_s=1e-6), session=1)
    model = mujoco.MjModel.from_xml_string(DRIVEN)
    data = mujoco.MjData(model)
    no_load = U / (N * 0.05)
    for v in np.linspace(-0.9, 0.9, 13) * no_load:
        for share in (-1.0, -0.4, 0.0, 0.3, 1.0):
            data.qvel[:], data.ctrl[:] = v, share * U
            mujoco.mj_forward(model, data)
            # a command of the current that this voltage drives through a winding without limits
            commanded = N * 0.05 * (share * U * np.array([1.0, -1.0]) - N * 0.05 * v) / 2.0
            effort = plant_effort(plant, np.full(2, v), commanded.tolist())
            # opposite voltages of a motor with a negative gear; a few roundings
            np.testing.assert_allclose(effort, data.qfrc_actuator, rtol=1e-13, atol=1e-13)
        for sign in (-1.0, 1.0):  # beyond all limits
            data.ctrl[:] = sign * U, -sign * U
            mujoco.mj_forward(model, data)
            effort = plant_effort(plant, np.full(2, v), [sign * 1e4, sign * 1e4])
            np.testing.assert_allclose(effort, data.qfrc_actuator, rtol=1e-13, atol=1e-13)


def test_the_plant_steps_with_the_motor_of_the_file() -> None:
    """From rest under more effort than the voltage allows: the stall current of 24 V through 2 ohm, limited to 5 A."""
    robot = Robot.from_text(DRIVEN)
    plant = make_plant(robot, PlantParameters(robot="-", effort_ramp_s=1e-6), session=1)
    state = plant.publish()
    command = JointCommand(
        state.session, state.seq, state.epoch, state.fingerprint, 1, state.name, [1e3, 1e3], arm=True
    )
    assert plant.offer(command)
    plant.advance(1)
    assert plant.robot.motors.current.tolist() == [I, -U / 2.0]
    np.testing.assert_allclose(plant.effort, [N * 0.05 * I, N * 0.05 * U / 2.0], rtol=1e-15)


def test_the_winding_has_the_temperature_of_mujoco() -> None:
    """A held current of the driver's torque; MuJoCo integrates the heat by Euler, so its rises are those of the
    exponential within dt / (2 T) of the steady one.
    """
    dt, current, steps = 1e-3, 3.0, 2000
    text = mjcf(f'<dcmotor joint="hinge" gear="{N}" {CONSTANTS} thermal="2 0.5 0 0 0 22" input="ff"/>')
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    motors = Motors({0: joint_of(text).motor}, 2, dt)
    rises, celsius = [], []
    for _ in range(steps):
        data.ctrl[:] = 0.05 * current
        data.qvel[:] = 0.0
        mujoco.mj_step(model, data)
        motors.act(np.array([N * 0.05 * current, 0.0]), np.zeros(2), 0.0)
        rises.append(data.act[0])
        celsius.append(motors.celsius[0])
    steady, T = 2.0 * 2.0 * current**2, 2.0 * 0.5
    np.testing.assert_allclose(np.array(celsius) - 22.0, rises, rtol=0.0, atol=steady * dt / (2.0 * T))
    assert celsius[-1] - 22.0 == pytest.approx(steady * -np.expm1(-steps * dt / T), rel=1e-12)


def test_the_joint_file_wins_field_by_field(tmp_path: Path) -> None:
    """Both motors are in the notes; the file's armature stays."""
    text = mjcf(f'<dcmotor joint="hinge" gear="{N}" class="a" armature="1e-4"/>')
    (tmp_path / "joints.yaml").write_text("robot: arm\nmotors:\n  hinge: {torque_constant: 0.07, voltage_limit: 48}\n")
    described = with_joint_file(read_text(text), tmp_path / "joints.yaml")
    (joint,) = (joint for joint in described.joints if joint.name == "hinge")
    of_file = joint_of(text).motor
    assert joint.motor == Motor(
        torque_constant=0.07,
        gear_ratio=N,
        resistance=2.0,
        current_limit=of_file.current_limit,
        voltage_limit=48.0,
        thermal_resistance=2.0,
        thermal_time_constant_s=20.0,
        ambient_celsius=22.0,
    )
    assert joint.armature == joint_of(text).armature == N**2 * 1e-4
    of_robot, of_joint_file = (note.text for note in described.notes if note.text.startswith("motor of"))
    assert unnamed(of_robot, "joint 'hinge'", f"torque_constant {of_file.torque_constant:g}", "current_limit 5") == []
    assert unnamed(of_joint_file, "joints.yaml:3", f"of the robot's file ({of_file}): {joint.motor}") == []


def test_an_actuator_of_an_unknown_joint_is_a_finding() -> None:
    description = read_text(mjcf('<motor name="m" joint="hnge"/><motor name="n" joint="slide"/>'))
    (finding,) = (note for note in description.notes if note.rule == "unknown-reference")
    assert "names 'hnge', which is no joint of the robot; did you mean 'hinge'?" in finding.text
