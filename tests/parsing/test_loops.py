"""Joints that close loops, and motors, as each format describes them, compared with frames by hand and by MuJoCo."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError, UrdfError
from dyn_service.model.description import Description, LoopJoint, outward, rooted, with_loops
from dyn_service.parsing.files import completed, read_text
from dyn_service.parsing.joint_files import with_joint_file
from dyn_service.parsing.pose import Pose, about
from dyn_service.parsing.quantities import rotation_of_rpy
from dyn_service.support.documents import ConfigurationError
from tests.phrases import naming, unnamed

TURN = np.eye(3)
QUARTER = about(np.array([0.0, 0.0, 1.0]), np.pi / 2.0)

FOUR_BAR = """<robot name="four_bar" xmlns:drake="drake.mit.edu">
<link name="base"/><link name="crank"/><link name="coupler"/><link name="rocker"/>
<joint name="crank" type="continuous"><parent link="base"/><child link="crank"/><axis xyz="0 0 1"/></joint>
<joint name="elbow" type="continuous"><parent link="crank"/><child link="coupler"/>
  <origin xyz="0.2 0 0" rpy="0 0 1.5707963267948966"/><axis xyz="0 0 1"/></joint>
<joint name="rock" type="continuous"><parent link="base"/><child link="rocker"/>
  <origin xyz="0.6 0 0"/><axis xyz="0 0 1"/></joint>
{}</robot>"""

PIN = """robot: four_bar
loops:
  pin:
    type: revolute
    parent: coupler
    child: rocker
    parent_origin: {xyz: [0.5, 0, 0], rpy: [0, 0, 1.5]}
    child_origin: {xyz: [0.3, 0, 0]}
    axis: [0, 0, 2]
"""


def four_bar(folder: Path, text: str = PIN, elements: str = "") -> Description:
    file = folder / "joints.yaml"
    file.write_text(text)
    return with_joint_file(read_text(FOUR_BAR.format(elements)), file)


def assert_joint(joint: LoopJoint, kind: str, ends: tuple[str, str], parent: Pose, child: Pose) -> None:
    assert (joint.type, joint.parent, joint.child) == (kind, *ends)
    np.testing.assert_allclose(joint.parent_xyz, parent.origin, atol=1e-15)
    np.testing.assert_allclose(joint.child_xyz, child.origin, atol=1e-15)
    np.testing.assert_allclose(joint.parent_rotation, parent.rotation, atol=1e-15)
    np.testing.assert_allclose(joint.child_rotation, child.rotation, atol=1e-15)


def at(*xyz: float, rotation: np.ndarray = TURN) -> Pose:
    return Pose(rotation, np.array(xyz))


# Joint files.


def test_a_joint_file(tmp_path: Path) -> None:
    description = four_bar(tmp_path)
    (pin,) = description.loop_joints
    parent = at(0.5, 0, 0, rotation=rotation_of_rpy(np.array([0.0, 0.0, 1.5])))
    assert_joint(pin, "revolute", ("coupler", "rocker"), parent, at(0.3, 0, 0))
    assert (pin.name, pin.axis.tolist(), pin.pitch) == ("pin", [0, 0, 1], 0.0)
    assert [joint.driven for joint in description.joints] == [None] * 3
    assert (pin.moves.type, pin.moves.nv) == ("revolute", 1)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("type: fixed", "fixed"),
        ("type: spherical", "spherical"),
        ("type: ball", "spherical"),
        ("type: prismatic\n    axis: [1, 0, 0]", "prismatic"),
        ("type: cylindrical\n    axis: [1, 0, 0]", "cylindrical"),
        ("type: planar\n    axis: [1, 0, 0]", "planar"),
        ("type: screw\n    axis: [1, 0, 0]\n    pitch: 0.01", "screw"),
    ],
)
def test_every_type_that_blocks_something(tmp_path: Path, change: str, kind: str) -> None:
    text = PIN.replace("    axis: [0, 0, 2]\n", "").replace("type: revolute", change)
    (pin,) = four_bar(tmp_path, text).loop_joints
    assert pin.moves.type == kind
    assert pin.pitch == (0.01 if kind == "screw" else 0.0)


def test_origins_are_zero_by_default_and_joints_need_no_entry(tmp_path: Path) -> None:
    (weld,) = four_bar(
        tmp_path, "robot: four_bar\nloops:\n  w: {type: fixed, parent: base, child: rocker}\n"
    ).loop_joints
    assert_joint(weld, "fixed", ("base", "rocker"), Pose(), Pose())


FAULTS = [
    ("type: revolute", "type: revolut", 4, "loops.pin.type", ["'revolut'", "'revolute'", "screw"]),
    ("type: revolute", "typ: revolute", 4, "loops.pin.typ", ["'typ'", "'type'"]),
    ("    type: revolute\n", "", 3, "loops.pin", ["'type'"]),
    ("type: revolute", "type: floating", 9, "loops.pin.axis", ["floating"]),
    ("type: revolute", "type: fixed", 9, "loops.pin.axis", ["fixed"]),
    ("type: revolute", "type: screw", 3, "loops.pin.pitch", ["turn"]),
    ("type: revolute", "type: revolute\n    pitch: 1", 5, "loops.pin.pitch", ["revolute", "1"]),
    ("child: rocker", "child: rockr", 3, "loops.pin", ["'rockr'", "'rocker'", "child"]),
    ("parent: coupler", "parent: world", 3, "loops.pin", ["'world'", "parent"]),
    ("child: rocker", "child: coupler", 3, "loops.pin", ["'coupler'"]),
    ("  pin:", "  elbow:", 3, "loops.elbow", ["4"]),
    ("  pin:", "  ' ':", 3, "loops. ", ["' '"]),
    ("[0.5, 0, 0]", "[0.5, .nan, 0]", 7, "loops.pin.parent_origin.xyz", ["nan"]),
    ("[0.5, 0, 0]", "[0.5, 0]", 7, "loops.pin.parent_origin.xyz", ["3", "2"]),
    ("[0, 0, 1.5]", "[0, 0, .inf]", 7, "loops.pin.parent_origin.rpy", ["inf"]),
    ("[0, 0, 2]", "[0, 0, 0]", 9, "loops.pin.axis", ["(0, 0, 0)"]),
    ("[0, 0, 2]", "[0, 0, .nan]", 9, "loops.pin.axis", ["nan"]),
    ("    axis: [0, 0, 2]\n", "", 3, "loops.pin.axis", ["revolute"]),
]


@pytest.mark.parametrize(("old", "new", "line", "path", "values"), FAULTS)
def test_faults_of_a_joint_file(tmp_path: Path, old: str, new: str, line: int, path: str, values: list[str]) -> None:
    with pytest.raises(ConfigurationError) as excinfo:
        four_bar(tmp_path, PIN.replace(old, new, 1))
    fault = excinfo.value
    assert (unnamed(fault.message, *values), fault.path, fault.line) == ([], path, line)
    assert fault.file == str(tmp_path / "joints.yaml")


def test_a_floating_joint_closes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=naming("floating")):
        four_bar(tmp_path, "robot: four_bar\nloops:\n  f: {type: floating, parent: base, child: rocker}\n")


def test_the_loop_of_a_joint_file_has_no_name_of_the_robots_loops(tmp_path: Path) -> None:
    element = '<constraint name="pin" type="spherical"><parent link="base"/><child link="rocker"/></constraint>'
    with pytest.raises(ConfigurationError, match=naming("name", "8")):
        four_bar(tmp_path, PIN, element)


# Motors.

CONTROLLED = """<ros2_control name="s" type="system"><joint name="crank"><command_interface name="effort"/></joint>
<joint name="rock"><state_interface name="position"/></joint></ros2_control>"""
TRANSMITTED = '<transmission name="t"><joint name="elbow"/><actuator name="m"/></transmission>'


@pytest.mark.parametrize(
    ("elements", "driven"),
    [
        ("", [None, None, None]),
        (CONTROLLED, [True, False, False]),
        (TRANSMITTED, [False, True, False]),
        (CONTROLLED + TRANSMITTED, [True, True, False]),
        ('<transmission name="t"><joint name="elbow"/></transmission>', [None, None, None]),
        (CONTROLLED.replace('"crank"', '"other"'), [None, None, None]),
        (CONTROLLED.replace("command_interface", "state_interface"), [None, None, None]),
    ],
)
def test_driven_joints_of_urdf(elements: str, driven: list[bool | None]) -> None:
    description = read_text(FOUR_BAR.format(elements))
    assert [joint.driven for joint in description.joints] == driven
    assert not any("ros2_control" in note.text for note in description.notes)


@pytest.mark.parametrize(
    ("joints", "driven"),
    [
        ("rock: {driven: true}", [False, False, True]),
        ("crank: {driven: false}", [False, False, False]),
        ("elbow: {damping: 1}", [True, False, False]),
        ("elbow: {driven: true, damping: 1}", [False, True, False]),
    ],
)
def test_a_joint_file_overrides_the_robots_motors(tmp_path: Path, joints: str, driven: list[bool | None]) -> None:
    description = four_bar(tmp_path, f"{PIN}joints:\n  {joints}\n", CONTROLLED)
    assert [joint.driven for joint in description.joints] == driven


def test_one_passive_joint_leaves_the_others_unknown(tmp_path: Path) -> None:
    description = four_bar(tmp_path, f"{PIN}joints:\n  elbow: {{driven: false}}\n")
    assert [joint.driven for joint in description.joints] == [None, False, None]


def test_fixed_joints_have_no_motor() -> None:
    fixed = '<link name="pad"/><joint name="glue" type="fixed"><parent link="rocker"/><child link="pad"/></joint>'
    description = read_text(FOUR_BAR.format(fixed + CONTROLLED))
    assert [joint.driven for joint in description.joints] == [True, False, False, None]


# SDFormat.

DENSE = "<inertial><mass>{}</mass><inertia><ixx>0.01</ixx><iyy>0.01</iyy><izz>0.01</izz></inertia></inertial>"
LINKS = f"""<link name="crank">{DENSE.format(1)}</link>
<link name="rod"><pose>0.2 0 0 0 0 1.5707963267948966</pose>{DENSE.format(0.8)}</link>
<link name="slider"><pose>0.2 0.5 0 0 0 0</pose>{DENSE.format(0.5)}</link>"""
JOINTS = """<joint name="turn" type="revolute"><parent>world</parent><child>crank</child>
<axis><xyz>0 0 1</xyz>{turn}</axis></joint>
<joint name="pin" type="revolute"><parent>crank</parent><child>rod</child><axis><xyz>0 0 1</xyz>{pin}</axis></joint>
<joint name="slide" type="prismatic"><parent>world</parent><child>slider</child>
<axis><xyz>0 1 0</xyz>{slide}</axis></joint>"""
WRIST = '<joint name="wrist" type="{kind}">{pose}<parent>rod</parent><child>slider</child>{axis}</joint>'
Z = "<axis><xyz>0 0 1</xyz></axis>"
EFFORT = "<limit><effort>{}</effort></limit>"


def slider_crank(closing: str = WRIST.format(kind="revolute", pose="", axis=Z), extra: str = "", **axes: str) -> str:
    joints = JOINTS.format(**{"turn": "", "pin": "", "slide": "", **axes})
    return f'<sdf version="1.11"><model name="slider_crank">{LINKS}{joints}\n{closing}{extra}</model></sdf>'


def loop_notes(description: Description) -> list[str]:
    assert description.unread_loops == tuple(note for note in description.notes if note.kind == "loop")
    return [f"{note.element}: {note.text}" for note in description.unread_loops]


def gap(description: Description, joint: LoopJoint) -> Pose:
    """Returns the pose of the child's joint frame in the parent's with all joints at zero."""
    poses: dict[str, Pose] = {}
    inboard = {tree_joint.child: tree_joint for tree_joint in description.joints}
    for name in outward(description):
        step = inboard.get(name)
        poses[name] = Pose() if step is None else poses[step.parent] @ Pose(step.rotation, step.xyz)
    parent = poses[joint.parent] @ Pose(joint.parent_rotation, joint.parent_xyz)
    return parent.inverse @ poses[joint.child] @ Pose(joint.child_rotation, joint.child_xyz)


def assert_closed(description: Description) -> None:
    for joint in description.loop_joints:
        pose = gap(description, joint)
        np.testing.assert_allclose(pose.origin, 0.0, atol=1e-14)
        np.testing.assert_allclose(pose.rotation, TURN, atol=1e-14)


def test_a_second_parent_in_sdformat() -> None:
    description = read_text(slider_crank())
    (wrist,) = description.loop_joints
    # The rod is turned by 90 degrees, and the slider is 0.5 m from it in the model's y.
    assert_joint(wrist, "continuous", ("rod", "slider"), at(0.5, 0, 0, rotation=QUARTER.T), Pose())
    assert wrist.axis.tolist() == [0, 0, 1]
    assert [joint.name for joint in description.joints] == ["turn", "pin", "slide"]
    assert loop_notes(description) == []
    assert wrist.line == 8
    assert_closed(description)


@pytest.mark.parametrize(
    ("pose", "axis", "parent", "child", "expected"),
    [
        ("<pose>0 0.1 0 0 0 0</pose>", "<xyz>1 0 0</xyz>", at(0.6, 0, 0, rotation=QUARTER.T), at(0, 0.1, 0), (1, 0, 0)),
        ('<pose relative_to="rod">0.5 0 0.2 0 0 0</pose>', "<xyz>1 0 0</xyz>", at(0.5, 0, 0.2),
         at(0, 0, 0.2, rotation=QUARTER), (1, 0, 0)),
        ("", '<xyz expressed_in="rod">1 0 0</xyz>', at(0.5, 0, 0, rotation=QUARTER.T), Pose(), (0, 1, 0)),
        ('<pose relative_to="__model__">0 0 1 0 0 0</pose>', '<xyz expressed_in="__model__">0 0 2</xyz>',
         at(0, 0.2, 1, rotation=QUARTER.T), at(-0.2, -0.5, 1), (0, 0, 1)),
    ],
)  # fmt: skip
def test_frames_of_sdformat(pose: str, axis: str, parent: Pose, child: Pose, expected: tuple[float, ...]) -> None:
    text = slider_crank(WRIST.format(kind="revolute", pose=pose, axis=f"<axis>{axis}</axis>"))
    description = read_text(text)
    (wrist,) = description.loop_joints
    assert_joint(wrist, "continuous", ("rod", "slider"), parent, child)
    np.testing.assert_allclose(wrist.axis, expected, atol=1e-15)
    assert_closed(description)


@pytest.mark.parametrize(
    ("kind", "axis", "expected", "note_text"),
    [
        ("fixed", "", "fixed", ""),
        ("ball", "", "spherical", ""),
        ("prismatic", Z, "prismatic", ""),
        ("screw", Z + "<screw_thread_pitch>0.02</screw_thread_pitch>", "screw", ""),
        ("revolute", "<axis><xyz>0 0 1</xyz><limit><lower>-1</lower><upper>1</upper></limit></axis>", "revolute",
         "limits: ignored"),
        ("revolute", "<axis><xyz>0 0 1</xyz><dynamics><damping>1</damping><friction>2</friction></dynamics></axis>",
         "continuous", "damping, friction: ignored"),
    ],
)  # fmt: skip
def test_types_of_sdformat(kind: str, axis: str, expected: str, note_text: str) -> None:
    description = read_text(slider_crank(WRIST.format(kind=kind, pose="", axis=axis)))
    (wrist,) = description.loop_joints
    assert (wrist.type, wrist.pitch) == (expected, 0.02 if kind == "screw" else 0.0)
    reported = [note.text for note in description.notes if note.kind == "reported"]
    assert [note_text in text for text in reported] == ([True] if note_text else [])
    assert loop_notes(description) == []


MIMIC = "<mimic joint='{}'><multiplier>2</multiplier><offset>0</offset><reference>0</reference></mimic>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (slider_crank(WRIST.format(kind="universal", pose="", axis=Z + Z.replace("axis", "axis2"))), ["'wrist'",
         "universal", "'rod'", "'slider'"]),
        (slider_crank(WRIST.format(kind="gearbox", pose="", axis="")), ["'wrist'", "gearbox"]),
        (slider_crank(WRIST.format(kind="revolute", pose="",
         axis=f"<axis><xyz>0 0 1</xyz>{MIMIC.format('turn')}</axis>")), ["'wrist'", "mimics", "'turn'"]),
        (slider_crank(WRIST.format(kind="revolute", pose="",
         axis="<axis><xyz>0 0 1</xyz><dynamics><spring_stiffness>9</spring_stiffness></dynamics></axis>")),
         ["'wrist'", "spring"]),
        (slider_crank(turn=MIMIC.format("wrist")), ["'turn'", "'wrist'", "loop"]),
        (slider_crank("", "<drake:tendon_constraint/>"), ["<drake:tendon_constraint>"]),
    ],
)  # fmt: skip
def test_loops_of_sdformat_that_are_no_loop_joints(text: str, words: list[str]) -> None:
    (note,) = loop_notes(read_text(text))
    assert unnamed(note, *words) == []
    assert Robot.from_text(text).as_described.loop_refusal
    assert not read_text(text).loop_joints or "'turn'" in words


def test_followers_of_loop_joints_may_be_independent() -> None:
    description = read_text(slider_crank(turn=MIMIC.format("wrist")))
    independent = completed(description, "fixed", None, mimic=False)
    assert (independent.unread_loops, len(independent.loop_joints)) == ((), 1)
    assert [note.kind for note in independent.notes if "follows 'wrist'" in note.text] == ["reported"]


def test_a_follower_of_a_loop_of_a_joint_file(tmp_path: Path) -> None:
    text = FOUR_BAR.format("").replace('"rocker"/>\n  <origin', '"rocker"/><mimic joint="pin"/>\n  <origin')
    file = tmp_path / "joints.yaml"
    file.write_text(PIN)
    (note,) = loop_notes(with_joint_file(read_text(text), file))
    assert unnamed(note, "'rock'", "'pin'") == []


def test_loops_with_the_world() -> None:
    """The world is a link of the tree if another joint holds the robot to it."""
    rail = '<joint name="rail" type="ball"><pose>0 0 0.3 0 0 0</pose><parent>{}</parent><child>{}</child></joint>'
    for ends in (("world", "rod"), ("rod", "world")):
        description = read_text(slider_crank("", rail.format(*ends)))
        (joint,) = description.loop_joints
        assert (joint.parent, joint.child) == ends
        assert_closed(description)
    free = slider_crank("", rail.format("rod", "world")).replace("<parent>world</parent>", "<parent>slider</parent>", 1)
    rolling = read_text(free.replace('"prismatic"><parent>world', '"prismatic"><parent>rod'))
    assert unnamed(loop_notes(rolling)[0], "'rail'", "'rod'", "'world'") == []
    assert [joint.name for joint in rolling.loop_joints] == ["slide"]


BALLS = """<drake:ball_constraint><drake:ball_constraint_body_A>rod</drake:ball_constraint_body_A>
<drake:ball_constraint_body_B>slider</drake:ball_constraint_body_B>
<drake:ball_constraint_p_AP>0.5 0 1</drake:ball_constraint_p_AP>
<drake:ball_constraint_p_BQ>0 0 1</drake:ball_constraint_p_BQ></drake:ball_constraint>"""


def test_ball_constraints_of_drake_in_sdformat() -> None:
    description = read_text(slider_crank("", BALLS * 2))
    assert [joint.name for joint in description.loop_joints] == ["ball_constraint", "ball_constraint_2"]
    for joint in description.loop_joints:
        assert_joint(joint, "spherical", ("rod", "slider"), at(0.5, 0, 1), at(0, 0, 1))
    with pytest.raises(UrdfError, match=naming("<drake:ball_constraint>", "'rode'")):
        read_text(slider_crank("", BALLS.replace(">rod<", ">rode<")))
    in_world = BALLS.replace(">rod<", ">world<")
    assert [x.parent for x in read_text(slider_crank("", in_world)).loop_joints] == ["world"]


def test_loops_in_nested_models() -> None:
    inner = slider_crank().removeprefix('<sdf version="1.11">').removesuffix("</sdf>")
    outer = f'<sdf version="1.11"><model name="line"><pose>1 0 0 0 0 0</pose>{inner}</model></sdf>'
    (wrist,) = read_text(outer).loop_joints
    assert (wrist.name, wrist.parent, wrist.child) == (
        "slider_crank::wrist", "slider_crank::rod", "slider_crank::slider",
    )  # fmt: skip
    np.testing.assert_allclose(wrist.parent_xyz, [0.5, 0, 0], atol=1e-15)


@pytest.mark.parametrize(
    ("extra", "axes", "driven"),
    [
        ("", {}, [None, None, None]),
        ("", {"pin": EFFORT.format(0), "slide": EFFORT.format(0)}, [True, False, False]),
        ("", {"pin": EFFORT.format(3)}, [None, None, None]),
        ('<plugin filename="f" name="gz::systems::JointPositionController"><joint_name>slide</joint_name></plugin>',
         {}, [False, False, True]),
        ('<plugin filename="f" name="gz::systems::JointStatePublisher"><joint_name>slide</joint_name></plugin>',
         {}, [None, None, None]),
    ],
)  # fmt: skip
def test_driven_joints_of_sdformat(extra: str, axes: dict[str, str], driven: list[bool | None]) -> None:
    description = read_text(slider_crank(extra=extra, **axes))
    assert [joint.driven for joint in description.joints] == driven


# MJCF.

MJCF = """<mujoco model="bars"><compiler angle="degree"/><default><default class="at"><site pos="1 2 3"/></default>
<equality solref="0.01 1"/></default><worldbody><site name="w" pos="3 0 0" euler="0 30 0"/>
<body name="a" pos="0 0 1" euler="10 0 0"><joint name="j" axis="0 1 0"/><geom size="0.1"/>
  <site name="s" pos="0.1 0 0.5" euler="0 90 0"/><site name="of_class" class="at" quat="1 0 1 0"/>
  <frame pos="1 0 0" euler="0 0 90"><site name="in_frame" pos="1 0 0"/>
    <body name="b" pos="0.5 0 0" euler="0 0 45"><joint name="k" pos="0.1 0.2 0" axis="0 0 1" ref="30"/>
    <geom size="0.1"/><site name="t" type="capsule" size="0.1" fromto="0 0 0 1 1 0"/></body></frame></body>
<body name="c" pos="1 2 3" euler="20 40 0"><freejoint name="f"/><geom size="0.1"/><site name="u"/></body>
</worldbody>{}<equality>{}</equality></mujoco>"""
EQUALITIES = (
    '<connect body1="a" body2="b" anchor="0.1 0.2 0.3"/>',
    '<connect body1="b" body2="a" anchor="0.1 0.2 0.3"/>',
    '<connect body1="b" body2="c" anchor="0.1 0.2 0.3"/>',
    '<connect body1="c" anchor="0.1 0.2 0.3"/>',
    '<weld body1="b" body2="c"/>',
    '<weld body1="b" body2="c" anchor="0.1 0.2 0.3"/>',
    '<weld body1="a" body2="b" relpose="0.5 0.6 0.7 2 0 2 0"/>',
    '<weld body1="a" body2="b" relpose="0.5 0.6 0.7 2 0 2 0" anchor="0.1 0.2 0.3"/>',
    '<weld body1="a" body2="b" relpose="0.5 0.6 0.7 0 0 0 0"/>',
    '<weld body1="c"/>',
    '<connect site1="s" site2="t"/>',
    '<connect site1="of_class" site2="t"/>',
    '<weld site1="in_frame" site2="t"/>',
    '<weld site1="s" site2="t"/>',
    '<weld site1="t" site2="u"/>',
    '<weld site1="of_class" site2="w"/>',
)


@pytest.mark.parametrize("equality", EQUALITIES)
def test_equalities_have_the_frames_of_mujoco(equality: str) -> None:
    text = MJCF.format("", equality)
    description = read_text(text)
    (joint,) = description.loop_joints
    model = mujoco.MjModel.from_xml_string(text)
    of_sites = model.eq_objtype[0] == mujoco.mjtObj.mjOBJ_SITE
    ends = [int(model.eq_obj1id[0]), int(model.eq_obj2id[0])]
    bodies = [int(model.site_bodyid[end]) for end in ends] if of_sites else ends
    assert [joint.parent, joint.child] == [model.body(body).name for body in bodies]
    connects = model.eq_type[0] == mujoco.mjtEq.mjEQ_CONNECT
    assert joint.type == ("spherical" if connects else "fixed")
    data = model.eq_data[0]
    points = model.site_pos[ends] if of_sites else (data[:3], data[3:6]) if connects else (data[3:6], data[:3])
    np.testing.assert_allclose([joint.parent_xyz, joint.child_xyz], points, atol=1e-14)
    if not connects:
        quats = model.site_quat[ends] if of_sites else (data[6:10], (1.0, 0.0, 0.0, 0.0))
        for rotation, quat in zip((joint.parent_rotation, joint.child_rotation), quats, strict=True):
            expected = np.zeros(9)
            mujoco.mju_quat2Mat(expected, np.array(quat) / np.linalg.norm(quat))
            np.testing.assert_allclose(rotation.ravel(), expected, atol=1e-14)
    assert [note.kind for note in description.notes if note.element.startswith("equality")] == ["changed"]


@pytest.mark.parametrize("equality", EQUALITIES[:3] + EQUALITIES[4:6])
def test_loops_of_bodies_are_closed_where_mujoco_starts(equality: str) -> None:
    text = MJCF.format("", equality).replace('<freejoint name="f"/>', "")
    description = read_text(text)
    robot, (joint,) = Robot.from_text(text, loops="cut"), description.loop_joints
    poses = robot.link_poses(mujoco.MjModel.from_xml_string(text).qpos0)
    points = []
    for link, xyz in ((joint.parent, joint.parent_xyz), (joint.child, joint.child_xyz)):
        k = robot.link_names.index(link)
        points.append(poses.position[k] + poses.rotation[k] @ xyz)
    np.testing.assert_allclose(points[0], points[1], atol=1e-14)


def test_names_of_equalities() -> None:
    equalities = (
        '<connect name="own" site1="s" site2="t"/><connect site1="s" site2="u"/><connect site1="s" site2="w"/>'
        '<connect name="j" body1="c" anchor="0 0 0"/>'
    )
    description = read_text(MJCF.format("", equalities))
    assert [joint.name for joint in description.loop_joints] == ["own", "connect", "connect_2", "j_2"]
    assert any("is renamed to 'j_2'" in note.text for note in description.notes)


def test_a_weld_without_torque_is_a_ball() -> None:
    (joint,) = read_text(MJCF.format("", '<weld body1="c" torquescale="0"/>')).loop_joints
    assert joint.type == "spherical"


def test_inactive_equalities_close_nothing() -> None:
    description = read_text(MJCF.format("", '<connect body1="c" anchor="0 0 0" active="false"/>'))
    assert description.loop_joints == ()
    assert [note.text for note in description.notes if note.element == "equality <connect>"] == ["ignored: not active"]


MALFORMED = {
    '<connect body1="a"/>': ["body1", "anchor", "site1"],
    '<connect site1="s"/>': ["site1", "site2", "anchor"],
    "<connect/>": ["body1", "none"],
    '<connect body1="a" site1="s" site2="t"/>': ["body1", "site1"],
    '<weld site1="s" site2="t" relpose="1 0 0 1 0 0 0"/>': ["relpose"],
    '<weld site1="s" site2="x"/>': ["'x'", "site"],
    '<weld body1="A"/>': ["'A'", "body"],
    '<connect body1="a" anchor="0 0"/>': ["'anchor'", "3", "2"],
    '<weld body1="a" relpose="1 2 3"/>': ["'relpose'", "7", "3"],
    '<connect body1="a" anchor="1e999 0 0"/>': ["'anchor'", "'1e999'"],
}


@pytest.mark.parametrize("equality", MALFORMED)
def test_malformed_equalities(equality: str) -> None:
    text = MJCF.format("", equality)
    with pytest.raises(UrdfError) as excinfo:
        read_text(text)
    assert unnamed(excinfo.value, "<text>:9", *MALFORMED[equality]) == []
    with pytest.raises(ValueError, match=r"(?i)violation|error|attribute|problem"):
        mujoco.MjModel.from_xml_string(text)


def test_a_body_is_not_joined_to_itself() -> None:
    with pytest.raises(UrdfError, match=naming("'weld'", "'a'", "two links")):
        read_text(MJCF.format("", '<weld body1="a" body2="a"/>'))


def test_large_anchors_are_no_frames() -> None:
    text = MJCF.format("", '<weld body1="a" body2="c" anchor="1.7e308 1.7e308 1.7e308"/>')
    with pytest.raises(UrdfError, match=naming("'weld'", "large")):
        read_text(text)


@pytest.mark.parametrize(
    "equality",
    [
        '<connect name="c" body1="a" body2="b" anchor="0 0 .5"/>',
        '<connect name="c" body1="a" anchor="0 0 .5"/>',
        '<connect name="c" body1="a" body2="base" anchor="0 0 .5"/>',
        '<connect name="c" site1="s" site2="t"/>',
        '<weld name="c" site1="s" site2="bs"/>',
        '<weld name="c" body1="base"/>',
    ],
)
def test_replicated_equalities(equality: str) -> None:
    """There is one for each copy of its ends; MuJoCo drops those with an end that is not copied."""
    text = f"""<mujoco><worldbody><body name="base"><joint name="q"/><geom size=".1"/><site name="bs"/></body>
      <replicate count="2" euler="0 0 90"><body name="a" pos="1 0 0"><joint name="j"/><geom size=".1"/>
      <site name="s" pos=".1 0 0"/><body name="b" pos="0 0 1"><joint name="k"/><geom size=".1"/><site name="t"/></body>
      </body></replicate></worldbody><equality>{equality}</equality></mujoco>"""
    model, description = mujoco.MjModel.from_xml_string(text), read_text(text)
    assert [joint.name for joint in description.loop_joints] == [model.equality(k).name for k in range(model.neq)]
    ends = [] if "site" in equality else [(int(model.eq_obj1id[k]), int(model.eq_obj2id[k])) for k in range(model.neq)]
    if ends:
        links = [(joint.parent, joint.child) for joint in description.loop_joints]
        assert links == [(model.body(first).name, model.body(second).name) for first, second in ends]


def test_chains_of_equalities_are_limited() -> None:
    depth, count = 900, 200
    body = "".join(f'<body name="b{k}"><joint/><geom size="0.1"/>' for k in range(depth)) + "</body>" * depth
    welds = f'<connect body1="b{depth - 1}" anchor="0 0 0"/>' * count
    text = f"<mujoco><worldbody>{body}</worldbody><equality>{welds}</equality></mujoco>"
    assert len(read_text(text).loop_joints) == count
    with pytest.raises(ResourceExhaustedError, match="chains"):
        read_text(text.replace(welds, welds * 2))


@pytest.mark.parametrize(
    ("actuators", "driven"),
    [
        ("", [None, None, None]),
        ('<motor joint="k"/>', [False, True, False]),
        ('<position jointinparent="j"/>', [True, False, False]),
        ('<general tendon="t"/>', [True, True, False]),
        ('<general tendon="wire"/>', [None, None, None]),
        ('<general site="s"/>', [None, None, None]),
    ],
)
def test_driven_joints_of_mjcf(actuators: str, driven: list[bool | None]) -> None:
    tendons = (
        '<tendon><fixed name="t"><joint joint="j" coef="1"/><joint joint="k" coef="1"/></fixed>'
        '<spatial name="wire"><site site="s"/><site site="t"/></spatial></tendon>'
    )
    description = read_text(MJCF.format(f"{tendons}<actuator>{actuators}</actuator>", ""))
    assert [joint.driven for joint in description.joints if joint.moves.nv] == driven


# URDF.

CONSTRAINT = """<constraint name="pin" type="{kind}"><parent link="coupler"/><parent_origin xyz="0.5 0 0" rpy="0 0 1"/>
{axes}<child link="rocker"/><child_origin xyz="0.3 0 0"/></constraint>"""
AXES = '<parent_axis xyz="0 0 1"/><child_axis xyz="0 0 {}"/>'
LOOP_JOINT = """<loop_joint name="pin" type="{}"><link1 link="coupler" xyz="0.5 0 0" rpy="0 0 1"/>
<link2 link="rocker" xyz="0.3 0 0" rpy="0 0 0"/>{}</loop_joint>"""
TILTED = at(0.5, 0, 0, rotation=rotation_of_rpy(np.array([0.0, 0.0, 1.0])))


@pytest.mark.parametrize(
    ("element", "kind", "axis"),
    [
        (CONSTRAINT.format(kind="revolute", axes=AXES.format(1)), "revolute", (0, 0, 1)),
        (CONSTRAINT.format(kind="prismatic", axes='<parent_axis xyz="0 2 0"/>'), "prismatic", (0, 1, 0)),
        (CONSTRAINT.format(kind="revolute", axes=""), "revolute", (1, 0, 0)),
        (CONSTRAINT.format(kind="Spherical", axes=AXES.format(1)), "spherical", (1, 0, 0)),
        (LOOP_JOINT.format("spherical", ""), "spherical", (1, 0, 0)),
        (LOOP_JOINT.format("continuous", '<axis xyz="0 0 1"/>'), "continuous", (0, 0, 1)),
        (LOOP_JOINT.format("fixed", ""), "fixed", (1, 0, 0)),
    ],
)
def test_elements_of_urdf(element: str, kind: str, axis: tuple[float, ...]) -> None:
    description = read_text(FOUR_BAR.format(element))
    (pin,) = description.loop_joints
    assert_joint(pin, kind, ("coupler", "rocker"), TILTED, at(0.3, 0, 0))
    assert (pin.name, tuple(pin.axis), pin.line) == ("pin", axis, 8)
    assert loop_notes(description) == []


@pytest.mark.parametrize(
    ("element", "words"),
    [
        (CONSTRAINT.format(kind="universal", axes=AXES.format(1)), ["constraint 'pin'", "'universal'"]),
        (CONSTRAINT.format(kind="link", axes=""), ["constraint 'pin'", "'link'"]),
        (CONSTRAINT.format(kind="screw", axes=AXES.format(1)), ["constraint 'pin'", "pitch"]),
        (CONSTRAINT.format(kind="revolute", axes=AXES.format(-1)), ["constraint 'pin'", "axes"]),
        ("<constraint/>", ["<constraint>"]),
        ('<constraint name="c"><predecessor link="a"/></constraint>', ["<constraint>"]),
        ("<loop_joint/>", ["<loop_joint>"]),
        ("<drake:ball_constraint/>", ["<drake:ball_constraint>"]),
        ("<drake:tendon_constraint/>", ["<drake:tendon_constraint>"]),
    ],
)
def test_elements_of_urdf_that_are_no_loop_joints(element: str, words: list[str]) -> None:
    description = read_text(FOUR_BAR.format(element))
    assert description.loop_joints == ()
    assert unnamed(loop_notes(description)[0], *words) == []


BALL = """<drake:ball_constraint><drake:ball_constraint_body_A name="coupler"/>
<drake:ball_constraint_body_B name="rocker"/><drake:ball_constraint_p_AP value="0.5 0 0"/>
<drake:ball_constraint_p_BQ value="0.3 0 0"/></drake:ball_constraint>"""


def test_ball_constraints_of_drake_in_urdf() -> None:
    (ball,) = read_text(FOUR_BAR.format(BALL)).loop_joints
    assert_joint(ball, "spherical", ("coupler", "rocker"), at(0.5, 0, 0), at(0.3, 0, 0))
    assert ball.name == "ball_constraint"


GAZEBO = '<gazebo><joint name="pin" type="{}"><parent>coupler</parent><child>rocker</child>{}</joint></gazebo>'


def test_joints_in_gazebo_elements_are_those_of_sdformat() -> None:
    """The joint frame is relative to the child; at zero the coupler is at (0.2, 0), turned by 90 degrees."""
    axis = "<axis><xyz>0 0 1</xyz></axis>"
    description = read_text(FOUR_BAR.format(GAZEBO.format("revolute", f"<pose>-0.4 0.5 0 0 0 0</pose>{axis}")))
    (pin,) = description.loop_joints
    parent = at(0.5, 0, 0, rotation=QUARTER.T)
    assert_joint(pin, "continuous", ("coupler", "rocker"), parent, at(-0.4, 0.5, 0))
    assert_closed(description)
    in_model = "<axis><xyz>1 0 0</xyz><use_parent_model_frame>true</use_parent_model_frame></axis>"
    element = GAZEBO.format("prismatic", f"<pose>0 0 0 0 0 1.5707963267948966</pose>{in_model}")
    (slide,) = read_text(FOUR_BAR.format(element)).loop_joints
    np.testing.assert_allclose(slide.axis, (0, -1, 0), atol=1e-15)
    for element in (GAZEBO.format("gearbox", ""), GAZEBO.format("", ""), GAZEBO.format("universal", "")):
        assert len(loop_notes(read_text(FOUR_BAR.format(element)))) == 1
    world = GAZEBO.format("ball", "").replace("rocker", "world")
    assert len(loop_notes(read_text(FOUR_BAR.format(world)))) == 1


@pytest.mark.parametrize(
    ("element", "words"),
    [
        (CONSTRAINT.format(kind="revolut", axes=""), ["constraint 'pin'", "'revolut'", "'revolute'"]),
        (CONSTRAINT.format(kind="fixed", axes="").replace("rocker", "rockr"), ["joint 'pin'", "'rockr'", "'rocker'"]),
        (CONSTRAINT.format(kind="fixed", axes="").replace("rocker", "coupler"), ["joint 'pin'", "'coupler'"]),
        (CONSTRAINT.format(kind="fixed", axes="").replace('"pin"', '"rock"'), ["joint 'rock'", "6"]),
        (CONSTRAINT.format(kind="fixed", axes="") * 2, ["joint 'pin'", "name", "8"]),
        (CONSTRAINT.format(kind="floating", axes=""), ["joint 'pin'", "floating"]),
        (CONSTRAINT.format(kind="fixed", axes="").replace("0.5 0 0", "0.5 nan 0"), ["'xyz'", "'0.5 nan 0'"]),
        (CONSTRAINT.format(kind="revolute", axes='<parent_axis xyz="0 0 0"/>'), ["(0, 0, 0)"]),
        (GAZEBO.format("ball", "").replace("rocker", "rockr"), ["joint 'pin'", "'rockr'"]),
        (GAZEBO.format("bal", ""), ["joint 'pin'", "'bal'", "ball"]),
        (GAZEBO.format("revolute", ""), ["joint 'pin'", "<axis>"]),
        (BALL.replace("0.5 0 0", "0.5 0"), ["<drake:ball_constraint>", "'value'", "3", "2"]),
    ],
)
def test_malformed_elements_of_urdf(element: str, words: list[str]) -> None:
    with pytest.raises(UrdfError) as excinfo:
        read_text(FOUR_BAR.format(element))
    assert unnamed(excinfo.value, *words) == []
    assert excinfo.value.line


# What becomes of them.


def test_cut_loops_are_reported() -> None:
    tree = with_loops(read_text(slider_crank()), "cut")
    assert (tree.loop_joints, tree.loops, tree.loop_refusal) == ((), (), "")
    (note,) = [note for note in tree.notes if note.kind == "reported"]
    assert (note.element, note.line) == ("joint 'wrist'", 8)
    assert unnamed(note.text, "'rod'", "'slider'", "loop") == []


def test_roots_that_move(tmp_path: Path) -> None:
    """Loop joints keep their links; a loop with the world that an importer added conflicts with a moving root."""
    assert len(rooted(four_bar(tmp_path), "floating").loop_joints) == 1
    text = slider_crank().replace('"slider_crank">', '"slider_crank"><pose>0 0 1 0 0 0</pose>')
    text = text.replace('"turn" type="revolute"><parent>world', '"turn" type="revolute"><parent>slider')
    text = text.replace('"slide" type="prismatic"><parent>world</parent><child>slider', '"slide" type="fixed">'
        '<parent>slider</parent><child>end').replace("<joint", '<link name="end"/><joint', 1)  # fmt: skip
    description = read_text(text)
    assert [link.name for link in description.links if link.added] == ["world"]
    file = tmp_path / "joints.yaml"
    file.write_text("robot: slider_crank\nloops:\n  hold: {type: ball, parent: world, child: crank}\n")
    hooked = completed(description, "fixed", file, mimic=True)
    assert [joint.name for joint in hooked.loop_joints] == ["wrist", "hold"]
    with pytest.raises(InvalidArgumentError, match=naming("'hold'", "'floating'", "world")):
        completed(description, "floating", file, mimic=True)
    file.write_text("robot: slider_crank\nloops:\n  root_joint: {type: ball, parent: rod, child: end}\n")
    with pytest.raises(UrdfError, match=naming("'root_joint'", "reserved")):
        completed(description, "floating", file, mimic=True)


def test_the_receipt_lists_loops_and_motors(tmp_path: Path) -> None:
    file = tmp_path / "joints.yaml"
    file.write_text(f"{PIN}joints:\n  crank: {{driven: true}}\n")
    receipt = Robot.from_text(FOUR_BAR.format(BALL), joints=file).receipt
    lines = receipt.render().splitlines()
    assert "  driven         1 joint: 'crank'" in lines
    index = lines.index("loops (2): closed by joints without entries in q, v and tau")
    assert [line.split() for line in lines[index + 1 : index + 3]] == [
        ["line", "8", "joint", "'ball_constraint'", "spherical,", "from", "'coupler'", "to", "'rocker'"],
        ["joint", "'pin'", "revolute,", "from", "'coupler'", "to", "'rocker'"],
    ]
    plain = receipt.to_dict()
    assert plain["driven"] == ["crank"]
    pin = {"joint": "pin", "type": "revolute", "parent": "coupler", "child": "rocker", "line": None}
    assert plain["loops"][1] == pin
    assert receipt.movable == ("crank", "elbow", "rock")


def test_fingerprints_depend_on_loops_and_motors(tmp_path: Path) -> None:
    """Without loops, motors change nothing: no answer depends on them."""
    plain = Robot.from_text(FOUR_BAR.format(""))
    assert Robot.from_text(FOUR_BAR.format(CONTROLLED)).fingerprint == plain.fingerprint
    changes = [
        ("", ""), ("revolute", "prismatic"), ("0.5", "0.6"), ("0.3", "0.4"), ("1.5", "1.6"), ("0, 0, 2", "0, 2, 0"),
        ("parent: coupler", "parent: crank"), ("pin:", "bolt:"),
    ]  # fmt: skip
    robots = [Robot(four_bar(tmp_path, PIN.replace(old, new) if old else PIN)) for old, new in changes]
    robots += [Robot(four_bar(tmp_path, PIN, CONTROLLED)), plain]
    assert len({robot.fingerprint for robot in robots}) == len(robots)
    assert robots[0].fingerprint == Robot(four_bar(tmp_path)).fingerprint
    tree = completed(four_bar(tmp_path), "fixed", None, mimic=True, loops="cut")
    assert Robot(tree).fingerprint == plain.fingerprint


def test_descriptions_carry_loops_and_motors(tmp_path: Path) -> None:
    description = Robot(four_bar(tmp_path, PIN, CONTROLLED)).description
    (pin,) = description.loop_joints
    assert (pin.name, pin.type, pin.parent, pin.child) == ("pin", "revolute", "coupler", "rocker")
    assert (pin.parent_xyz, pin.child_xyz, pin.axis) == ((0.5, 0, 0), (0.3, 0, 0), (0, 0, 1))
    np.testing.assert_allclose(pin.parent_rotation, rotation_of_rpy(np.array([0.0, 0.0, 1.5])), atol=0)
    assert {joint.name: joint.driven for joint in description.joints} == {"crank": True, "elbow": False, "rock": False}
    assert description.joint_names == ("crank", "elbow", "rock")
