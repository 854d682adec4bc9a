"""Joint files and transmissions: what they make of a robot's joints, and every way in which they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dyn_service.api.queries import JointNumbers, Overlay
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError, UrdfError
from dyn_service.model.building import tree_of
from dyn_service.model.description import Note
from dyn_service.model.motors import Motor
from dyn_service.model.passive import MIN_WIDTH, PRISMATIC_WIDTH, REVOLUTE_WIDTH
from dyn_service.model.tree import Tree
from dyn_service.parsing.conversion import write_files
from dyn_service.parsing.joint_files import robot_of, with_joint_file, written
from dyn_service.parsing.urdf.reader import read_text
from dyn_service.support.documents import ConfigurationError
from tests.conftest import URDF
from tests.phrases import naming, unnamed

ARM = """<robot name="arm"><link name="a"/><link name="b"/><link name="c"/><link name="d"/><link name="e"/>
<joint name="hinge" type="continuous"><parent link="a"/><child link="b"/><dynamics damping="0.5" friction="2"/></joint>
<joint name="rail" type="prismatic"><parent link="b"/><child link="c"/><axis xyz="0 0 1"/></joint>
<joint name="ball" type="spherical"><parent link="c"/><child link="d"/></joint>
<joint name="glue" type="fixed"><parent link="d"/><child link="e"/></joint>
{more}</robot>"""


def file(folder: Path, text: str) -> Path:
    path = folder / "joints.yaml"
    path.write_text(text)
    return path


def arm(folder: Path, text: str, elements: str = "") -> Tree:
    described = read_text(ARM.format(more=elements))
    return tree_of(with_joint_file(described, file(folder, f"robot: arm\njoints:\n{text}")))


def test_numbers_stand_where_they_belong(tmp_path: Path) -> None:
    """What is left out stays as the robot's file has it; a joint with several ways to move does the same in each."""
    text = """\
  rail: {damping: 3, friction: 4, friction_width: 0.5, armature: 6, stiffness: 7, rest: -8}
  hinge: {friction: 0.25}
  ball: {damping: 9, rotor_inertia: 2.0e-3, gear_ratio: -10}
"""
    tree = arm(tmp_path, text)
    index_of = {name: tree.configuration.velocity_joints.index(name) for name in ("hinge", "rail", "ball")}
    h, r, b = index_of["hinge"], index_of["rail"], slice(index_of["ball"], index_of["ball"] + 3)
    passive = tree.passive
    assert [array[h] for array in passive.arrays] == [0.5, 0.25, REVOLUTE_WIDTH, 0, 0, 0]
    assert [array[r] for array in passive.arrays] == [3, 4, 0.5, 6, 7, -8]
    assert passive.damping[b].tolist() == [9, 9, 9]
    assert np.allclose(passive.armature[b], 0.2, rtol=1e-15)
    assert PRISMATIC_WIDTH < REVOLUTE_WIDTH


TRANSMISSION = (
    '<transmission name="t"><type>transmission_interface/SimpleTransmission</type><joint name="hinge"/>'
    '<actuator name="m"><mechanicalReduction> 50 </mechanicalReduction></actuator></transmission>'
)
RIGHT = "torque_constant: 1, gear_ratio: 1, resistance: 1"
THERMAL = "thermal_resistance: 2, thermal_time_constant_s: 30"


def test_a_rotor_takes_the_reduction_of_the_robots_file(tmp_path: Path) -> None:
    tree = arm(tmp_path, "  hinge: {rotor_inertia: 2.0e-4}", TRANSMISSION)
    assert tree.passive.armature[0] == 2e-4 * 50**2
    tree = arm(tmp_path, "  hinge: {rotor_inertia: 2.0e-4, gear_ratio: 10}", TRANSMISSION)
    assert tree.passive.armature[0] == 2e-4 * 10**2


def test_the_least_width_of_friction_is_a_step(tmp_path: Path) -> None:
    """At rest nothing rubs, and whatever moves has all of it against it."""
    assert MIN_WIDTH in arm(tmp_path, f"  hinge: {{friction_width: {MIN_WIDTH}}}").passive.width
    described = read_text(ARM.format(more=""))
    joints = [replace(joint, friction_width=MIN_WIDTH) for joint in described.joints if joint.name == "hinge"]
    robot = Robot(replace(described, joints=(*joints, *described.joints[1:])))
    for rate, rubs in ((0.0, 0.0), (1e-9, 2.0), (-1.0, -2.0)):
        v = np.zeros(robot.nv)
        v[robot.configuration.velocity_joints.index("hinge")] = rate
        friction = robot.passive_forces(robot.neutral(), v).friction
        assert sorted(friction) == sorted([rubs, *np.zeros(robot.nv - 1)])


def test_the_receipt_says_what_acts_and_where_it_is_from(tmp_path: Path) -> None:
    path = file(tmp_path, "robot: arm\njoints:\n  rail: {stiffness: 7, rest: 0.5}\n")
    robot = Robot.from_urdf(ARM.format(more=""), joints=path)
    assert robot.receipt.of_kind("acting") == (
        Note("acting", "joint 'hinge'", "damping 0.5 N m s/rad; friction 2 N m, smoothed over 0.1 rad/s", 2),
        Note("acting", "joint 'rail'", "a spring of 7 N/m to 0.5 m", 3),
    )
    assert Note("changed", "joint 'rail'", f"stiffness, rest of {path}:3", 3) in robot.receipt.notes
    assert robot.without_passive.receipt.of_kind("acting") == ()


def test_a_rotor_of_a_motor_is_the_joints_armature(tmp_path: Path) -> None:
    """By the gear of the motor, or by that of the robot's file; both survive a written file."""
    described = read_text(ARM.format(more=TRANSMISSION))
    text = """robot: arm
motors:
  hinge: {torque_constant: 0.1, rotor_inertia: 2.0e-4, resistance: 0.5, current_limit: 8}
  rail: {torque_constant: 0.2, gear_ratio: -300, rotor_inertia: 1.0e-5, gear_stiffness: 4.0e+5, backlash: 1.0e-4}
"""
    arm = with_joint_file(described, file(tmp_path, text))
    rail, hinge = (next(joint for joint in arm.joints if joint.name == name) for name in ("rail", "hinge"))
    assert (hinge.armature, rail.armature) == (2e-4 * 50**2, pytest.approx(1e-5 * 300**2, rel=1e-15))
    assert hinge.motor == Motor(
        torque_constant=0.1, gear_ratio=50.0, rotor_inertia=2e-4, resistance=0.5, current_limit=8.0
    )
    assert (hinge.motor.gain, rail.motor.gain) == (5.0, -60.0)
    text = f"motor of {tmp_path / 'joints.yaml'}:3: {hinge.motor}"
    assert Note("changed", "joint 'hinge'", text, 2) in arm.notes
    copy = with_joint_file(described, file(tmp_path, written(arm, passive=True)))
    assert [joint.armature for joint in copy.joints] == [joint.armature for joint in arm.joints]
    copied = next(joint for joint in copy.joints if joint.name == "rail").motor
    assert (copied.gain, copied.gear_stiffness, copied.gear_damping, copied.backlash) == (-60.0, 4e5, 0.0, 1e-4)


@pytest.mark.parametrize(("target", "joint_file"), [("c.urdf", False), ("c.xml", False), ("c.urdf", True)])
def test_a_motor_that_is_not_written_is_reported(tmp_path: Path, target: str, joint_file: bool) -> None:
    """A written joint file has it; no robot format does."""
    described = read_text(ARM.format(more=""))
    path = file(tmp_path, "robot: arm\nmotors:\n  hinge: {torque_constant: 0.1, gear_ratio: 50}\n")
    notes = write_files(with_joint_file(described, path), tmp_path / target, source=None, joint_file=joint_file)
    lost = Note("dropped", "joint 'hinge'", "its motor is not written: use a joint file")
    assert (lost in notes) is not joint_file
    assert (tmp_path / "c.joints.yaml").exists() is joint_file


MOTOR_FAULTS = [
    ("  hing: {torque_constant: 1}", "hing", ["'hing'", "'hinge'"]),
    ("  glue: {torque_constant: 1}", "glue", ["'glue'", "fixed"]),
    ("  ball: {torque_constant: 1, gear_ratio: 1}", "ball", ["freedom"]),
    ("  hinge: {gear_ratio: 1}", "hinge", ["torque_constant"]),
    ("  hinge: {torque_constant: 1}", "hinge", ["gear_ratio", "<transmission>"]),
    ("  hinge: {torque_constant: 0, gear_ratio: 1}", "hinge.torque_constant", ["positive", "0"]),
    ("  hinge: {torque_constant: 1, gear_ratio: 0}", "hinge.gear_ratio", ["0"]),
    ("  hinge: {torque_constant: 1, gear_ratio: 1, current_limit: -2}", "hinge.current_limit", ["positive", "-2"]),
    ("  hinge: {torque_constant: 1, gear_ratio: 1, voltage_limit: 4}", "hinge.voltage_limit", ["resistance"]),
    ("  hinge: {torque_constant: 1, gear_ratio: 1, ambient_celsius: .nan}", "hinge.ambient_celsius", ["nan"]),
    (f"  hinge: {{{RIGHT}, thermal_resistance: 2}}", "hinge", ["thermal_time_constant_s"]),
    (
        f"  hinge: {{{RIGHT}, {THERMAL}, temperature_limit_celsius: 20}}",
        "hinge.temperature_limit_celsius",
        ["25", "20"],
    ),
    ("  hinge: {torque_constant: 1, gear_ratio: 1.0e+200, rotor_inertia: 1}", "hinge.rotor_inertia", ["1e+200", "inf"]),
    (f"  hinge: {{{RIGHT}, gear_stiffness: 1}}", "hinge.gear_stiffness", ["rotor_inertia", "armature", "none"]),
    ("  rail: {torque_constant: 1, gear_ratio: 1, rotor_inertia: 1}", "rail.rotor_inertia", ["joints"]),
]


@pytest.mark.parametrize(("text", "path", "values"), MOTOR_FAULTS)
def test_faults_of_motors_name_the_key(tmp_path: Path, text: str, path: str, values: list[str]) -> None:
    source = file(tmp_path, f"robot: arm\njoints:\n  rail: {{armature: 2}}\nmotors:\n{text}\n")
    with pytest.raises(ConfigurationError) as excinfo:
        with_joint_file(read_text(ARM.format(more="")), source)
    fault = excinfo.value
    assert unnamed(fault.message, *values) == []
    assert (fault.line, fault.path) == (5, f"motors.{path}")


FAULTS = [
    ("no joint of that name", "  hing: {damping: 1}", 3, "joints.hing",
     ["'hing'", "'hinge'"]),
    ("a fixed joint", "  glue: {damping: 1}", 3, "joints.glue", ["'glue'"]),
    ("another key", "  hinge: {dampin: 1}", 3, "joints.hinge.dampin", ["'dampin'", "'damping'"]),
    ("a word", "  hinge: {damping: much}", 3, "joints.hinge.damping", ["number", "nothing"]),
    ("negative", "  rail: {}\n  hinge: {friction: -1}", 4, "joints.hinge.friction",
     ["0", "-1"]),
    ("not a number", "  hinge: {armature: .nan}", 3, "joints.hinge.armature",
     ["0", "nan"]),
    ("endless", "  hinge: {rest: .inf}", 3, "joints.hinge.rest", ["inf"]),
    ("no width", "  hinge: {friction_width: 0}", 3, "joints.hinge.friction_width",
     ["1e-300", "0"]),
    ("next to no width", "  hinge: {friction_width: 1.0e-310}", 3, "joints.hinge.friction_width",
     ["1e-300", "1e-310"]),
    ("a spring in a ball", "  ball:\n    stiffness: 2", 4, "joints.ball.stiffness",
     ["3", "freedom", "spherical"]),
    ("a gear alone", "  hinge: {gear_ratio: 5}", 3, "joints.hinge.gear_ratio",
     ["rotor_inertia", "gear_ratio"]),
    ("a rotor alone", "  hinge: {rotor_inertia: 5}", 3, "joints.hinge.rotor_inertia",
     ["gear_ratio", "<transmission>"]),
    ("both", "  hinge: {rotor_inertia: 5, gear_ratio: 1, armature: 5}", 3, "joints.hinge.rotor_inertia",
     ["rotor_inertia"]),
    ("beyond all", "  hinge: {rotor_inertia: 1, gear_ratio: 1.0e+200}", 3, "joints.hinge.rotor_inertia",
     ["1e+200", "inf"]),
    ("twice", "  hinge: {}\n  hinge: {}", 4, "joints", ["'hinge'"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "path", "values"), [pytest.param(*f[1:], id=f[0]) for f in FAULTS])
def test_faults_name_file_line_and_joint(tmp_path: Path, text: str, line: int, path: str, values: list[str]) -> None:
    with pytest.raises(ConfigurationError) as excinfo:
        arm(tmp_path, text)
    fault = excinfo.value
    assert (unnamed(fault.message, *values), fault.path, fault.line) == ([], path, line)
    assert fault.file == str(tmp_path / "joints.yaml")
    assert str(fault).startswith(f"{fault.file}:{line}: {path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("robot: leg\njoints: {}\n", "the file is for robot 'leg', the robot is 'arm'"),
        ("joints: {}\n", "missing key 'robot'"),
        ("- robot\n", "expected a map, found a list"),
        ("robot: [\n", "not YAML"),
        ("robot: arm\njoints:\n  \0: {}\n", "not YAML: character U\\+0000 is not allowed"),
        ("robot: 2001-06-31\n", "not YAML: no timestamp can be made of it: day is out of range"),
        ("? 0b_\n: arm\n", "not YAML: no int can be made of it"),
        ("robot: !!bool maybe\n", "not YAML: no bool can be made of it"),
        ("robot: !!int ''\n", "not YAML: no int can be made of it"),
        ("robot: !!timestamp x\n", "not YAML: no timestamp can be made of it"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_joint_file(read_text(ARM.format(more="")), file(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nowhere\.yaml"):
        Robot.from_urdf(ARM.format(more=""), joints=tmp_path / "nowhere.yaml")


def test_the_example_fits_its_robot() -> None:
    """Every joint of the arm rubs and turns a rotor, as published; the gripper does not."""
    path = URDF.parent / "config" / "panda_joints.yaml"
    assert robot_of(path) == "panda"
    robot = Robot.from_urdf(URDF / "panda.urdf", joints=path)
    passive = robot.tree.passive
    assert passive.acts == {"friction", "armature"}
    arms = [name.startswith("panda_joint") for name in robot.tree.moving_joints]
    assert (passive.friction > 0).tolist() == (passive.armature > 0).tolist() == arms
    phi_1 = [0.54615, 0.87224, 0.64068, 1.2794, 0.83904, 0.30301, 0.56489]
    phi_2 = [5.1181, 9.0657, 10.136, 5.5903, 8.3469, 17.133, 10.336]
    assert np.allclose(passive.friction[arms], np.array(phi_1) / 2, rtol=1e-12)
    assert np.allclose(passive.width[arms], 2 / np.array(phi_2), rtol=1e-5)


def test_springs_of_balls_are_refused_without_a_file() -> None:
    described = read_text(ARM.format(more=""))
    joints = tuple(replace(joint, stiffness=1.0) if joint.name == "ball" else joint for joint in described.joints)
    with pytest.raises(UrdfError, match=naming("spring", "spherical", "3")) as excinfo:
        tree_of(replace(described, joints=joints))
    assert (excinfo.value.element, excinfo.value.line) == ("joint 'ball'", 4)


def actuated(inner: str, joints: str = '<joint name="hinge"/>') -> str:
    return f'<transmission name="t">{joints}<actuator name="m">{inner}</actuator></transmission>'


ROTOR = '<drake:rotor_inertia value="0.02"/>'


@pytest.mark.parametrize(
    ("elements", "armature"),
    [
        (actuated(f'{ROTOR}<drake:gear_ratio value="10"/>'), 0.02 * 10**2),
        (actuated(f"{ROTOR}<mechanicalReduction>10</mechanicalReduction>"), 0.02 * 10**2),
        (actuated(f'{ROTOR}<drake:gear_ratio value="10"/><mechanicalReduction>3</mechanicalReduction>'), 0.02 * 10**2),
        (actuated(ROTOR, '<joint name="hinge"><mechanicalReduction>-4</mechanicalReduction></joint>'), 0.02 * 4**2),
        (actuated(ROTOR), 0.02),
        (actuated(ROTOR) * 2, 0.04),
    ],
    ids=["Drake's", "ROS's", "both", "in the joint", "no gear", "two motors"],
)
def test_rotors_of_transmissions(elements: str, armature: float) -> None:
    robot = Robot.from_urdf(ARM.format(more=elements))
    assert robot.tree.passive.armature.tolist() == [armature, *[0.0] * (robot.nv - 1)]
    assert [note.element for note in robot.receipt.notes if note.text.startswith("rotor inertia 0.02")] == [
        "transmission 't'"
    ] * elements.count("<transmission")
    assert "armature" in robot.receipt.of_kind("acting")[0].text


def test_a_transmission_without_a_gear_takes_away_none() -> None:
    gear = actuated("<mechanicalReduction>10</mechanicalReduction>")
    (joint,) = (
        candidate for candidate in read_text(ARM.format(more=gear + actuated(""))).joints if candidate.name == "hinge"
    )
    assert joint.reduction == 10.0
    robot = Robot.from_urdf(ARM.format(more=gear + actuated("<mechanicalReduction>-3</mechanicalReduction>")))
    (note,) = [note for note in robot.receipt.of_kind("warning") if note.element == "transmission 't'"]
    assert unnamed(note.text, "gear of -3", "'hinge'", "10") == []


def controlled(inner: str) -> str:
    return f'<ros2_control name="s" type="system">{inner}</ros2_control>'


CONSTANT = "<motorTorqueConstant>0.06</motorTorqueConstant>"
PARAMETER = '<joint name="hinge"><param name="torque_constant">0.06</param>{}</joint>'
REDUCED = '<joint name="hinge"><mechanical_reduction>30</mechanical_reduction></joint>'
GEARED = f'<transmission name="c">{{}}{REDUCED}</transmission>'


@pytest.mark.parametrize(
    ("elements", "gain"),
    [
        (actuated(f"<mechanicalReduction>-50</mechanicalReduction>{CONSTANT}"), -3.0),
        (actuated("").replace("</transmission>", f"{CONSTANT}</transmission>"), 0.06),
        (actuated('<drake:gear_ratio value="20"/>' + CONSTANT), 1.2),
        (controlled(PARAMETER.format("")), 0.06),
        (controlled(PARAMETER.format('<param name="gear_ratio">20</param>')), 1.2),
        (controlled(PARAMETER.format("") + GEARED.format('<actuator name="m"/>')), 1.8),
        (controlled(GEARED.format("") + PARAMETER.format('<param name="gear_ratio">20</param>')), 1.8),
        (actuated("<mechanicalReduction>10</mechanicalReduction>") + controlled(PARAMETER.format("")), 0.6),
    ],
    ids=["in the actuator", "no gear", "Drake's gear", "parameter", "both parameters", "reduction", "first", "both"],
)
def test_torque_constants_of_transmissions(elements: str, gain: float) -> None:
    """The joint's motor has no limits, and the robot's dynamics do not change."""
    described = read_text(ARM.format(more=elements))
    (motor,) = (joint.motor for joint in described.joints if joint.motor is not None)
    assert motor == Motor(torque_constant=0.06, gear_ratio=pytest.approx(gain / 0.06))
    assert motor.gain == pytest.approx(gain, rel=1e-15)
    (note,) = [note for note in described.notes if note.text.startswith("motor of joint 'hinge'")]
    assert (note.kind, note.text) == ("changed", f"motor of joint 'hinge': {motor}")
    assert not tree_of(described).passive.armature.any()


def test_the_reduction_of_a_controlled_joint_is_that_of_its_rotor(tmp_path: Path) -> None:
    described = read_text(ARM.format(more=controlled(GEARED.format('<actuator name="m"/>'))))
    rotor = file(tmp_path, "robot: arm\njoints:\n  hinge: {rotor_inertia: 2.0e-4}")
    (hinge,) = (joint for joint in with_joint_file(described, rotor).joints if joint.name == "hinge")
    assert (hinge.reduction, hinge.armature) == (30.0, pytest.approx(2e-4 * 30.0**2, rel=1e-15))


@pytest.mark.parametrize(
    ("elements", "kind", "note"),
    [
        (
            actuated("<motorTorqueConstant>1</motorTorqueConstant>"),
            "dropped",
            "motorTorqueConstant 1: not used, because templates have it for every motor",
        ),
        (
            actuated("<motorTorqueConstant>-2</motorTorqueConstant>"),
            "reported",
            "torque_constant: expected a positive, finite number, found -2: its torque constant is not used",
        ),
        (
            actuated(f"{ROTOR}<motorTorqueConstant>${{k}}</motorTorqueConstant>"),
            "reported",
            "<motorTorqueConstant>: '${k}' is a xacro expression, expected URDF: run xacro first: "
            "its torque constant is not used",
        ),
        (
            actuated(CONSTANT, '<joint name="ball"/>'),
            "reported",
            "expected a joint with one degree of freedom: its torque constant is not used",
        ),
        (
            controlled(PARAMETER.format('<param name="gear_ratio">0</param>')),
            "reported",
            "gear_ratio: expected a finite number other than 0, found 0: its torque constant is not used",
        ),
        (
            controlled('<joint name="hinge"><param name="torque_constant">k</param></joint>'),
            "reported",
            "<param>: expected a plain decimal number, found 'k': not used",
        ),
        (
            actuated("<offset>0.25</offset>"),
            "reported",
            "offset '0.25': ignored, positions are those of the joint",
        ),
    ],
    ids=["placeholder", "negative", "xacro", "a ball", "no gear", "no number", "offset"],
)
def test_torque_constants_that_are_not_used(elements: str, kind: str, note: str) -> None:
    described = read_text(ARM.format(more=elements))
    assert (kind, note) in [(x.kind, x.text) for x in described.notes]
    assert not [joint for joint in described.joints if joint.motor is not None]
    # a rotor next to a wrong constant acts
    assert tree_of(described).passive.armature.any() == (ROTOR in elements)


def test_second_motors_and_those_of_followers_are_not_used() -> None:
    twice = actuated(CONSTANT) + actuated("<motorTorqueConstant>0.09</motorTorqueConstant>")
    described = read_text(ARM.format(more=twice))
    assert [joint.motor.torque_constant for joint in described.joints if joint.motor is not None] == [0.06]
    assert "joint 'hinge' has a motor already: its torque constant is not used" in [x.text for x in described.notes]
    follower = ARM.format(more=actuated(CONSTANT, '<joint name="rail"/>')).replace(
        '<joint name="rail" type="prismatic">', '<joint name="rail" type="prismatic"><mimic joint="hinge"/>'
    )
    described = read_text(follower)
    assert not [joint for joint in described.joints if joint.motor is not None]
    assert "joint 'rail' follows 'hinge': its torque constant is not used" in [x.text for x in described.notes]


def test_the_receipt_says_both_units_of_what_turns_and_shifts(tmp_path: Path) -> None:
    joint_file = file(tmp_path, "robot: plate\njoints:\n  slide: {damping: 1, friction: 2}")
    (note,) = Robot.from_urdf(PLATE.format(more=""), joints=joint_file).receipt.of_kind("acting")
    assert unnamed(note.text, "damping 1 N s/m and N m s/rad", "friction 2 N and N m", "0.01 m/s", "0.1 rad/s") == []


PLATE = """<robot name="plate"><link name="a"/><link name="b"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="slide" type="planar"><parent link="a"/><child link="b"/></joint>{more}</robot>"""


def test_what_turns_and_shifts_has_no_armature(tmp_path: Path) -> None:
    """In no file, and no overlay; with one, p = M v would not be kept where nothing acts."""
    why = "an armature needs one degree of freedom or a rotation only, and a joint of type planar has more"
    gear = actuated(ROTOR, '<joint name="slide"/>')
    robot = Robot.from_urdf(PLATE.format(more=gear))
    assert f"{why}: its rotor inertia is not used" in [note.text for note in robot.receipt.of_kind("warning")]
    with pytest.raises(ConfigurationError, match=why):
        Robot.from_urdf(PLATE.format(more=""), joints=file(tmp_path, "robot: plate\njoints:\n  slide: {armature: 1}"))
    with pytest.raises(InvalidArgumentError, match=why) as excinfo:
        robot.mass_matrix(np.zeros(3), overlay=Overlay(joints={"slide": JointNumbers(armature=1.0)}))
    assert excinfo.value.path == "inputs.overlay.joints.slide.armature"


NO_ROTOR = "of 1 <transmission> element in <robot> only the joints with motors are used: no rotor inertia"


@pytest.mark.parametrize(
    ("elements", "note"),
    [
        (actuated("<mechanicalReduction>10</mechanicalReduction>"), ("dropped", "robot 'arm'", NO_ROTOR)),
        (actuated("", ""), ("dropped", "robot 'arm'", NO_ROTOR)),
        (
            actuated("<mechanicalReduction>${r}</mechanicalReduction>"),
            ("warning", "transmission 't'",
             "<mechanicalReduction>: '${r}' is a xacro expression, expected URDF: run xacro first: not used"),
        ),
        (
            actuated("<mechanicalReduction/>"),
            ("warning", "transmission 't'",
             "<mechanicalReduction>: expected a plain decimal number, found '': not used"),
        ),
        (
            actuated('<drake:rotor_inertia value="-1"/>'),
            ("warning", "transmission 't'", "the rotor inertia is -1 kg m^2, expected zero or more: not used"),
        ),
        (
            actuated(f"{ROTOR}<mechanicalReduction>-1e200</mechanicalReduction>"),
            ("warning", "transmission 't'",
             "rotor inertia 0.02 kg m^2 behind a gear of -1e+200: armature inf, expected a finite one: not used"),
        ),
        (
            actuated(ROTOR, '<joint name="hinge"/><joint name="rail"/>'),
            ("warning", "transmission 't'",
             "it drives 'hinge', 'rail', expected one joint that moves, by one actuator: its rotor inertia "
             "is not used"),
        ),
        (
            actuated(ROTOR, '<joint name="elbow"/>'),
            ("warning", "transmission 't'",
             "it drives 'elbow', expected one joint that moves, by one actuator: its rotor inertia is not used"),
        ),
        (
            actuated(ROTOR, '<joint name="glue"/>'),
            ("warning", "transmission 't'",
             "it drives 'glue', expected one joint that moves, by one actuator: its rotor inertia is not used"),
        ),
    ],
    ids=[
        "a gear alone", "no joint", "xacro", "empty", "negative", "beyond all", "a differential", "another joint",
        "a fixed joint",
    ],
)  # fmt: skip
def test_what_of_transmissions_is_not_used(elements: str, note: tuple[str, str, str]) -> None:
    """None refuses the robot, and none acts."""
    described = read_text(ARM.format(more=elements))
    notes = [(read_note.kind, read_note.element, read_note.text) for read_note in described.notes]
    assert note in notes
    assert not tree_of(described).passive.armature.any()
