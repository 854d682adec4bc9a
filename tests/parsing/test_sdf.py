"""SDFormat: the same robot, said in every way that the format has, is the robot of one URDF."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from dyn_service.api.queries import Overlay
from dyn_service.engine.robot import Robot
from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, rooted
from dyn_service.parsing.files import read_file, read_text
from tests.comparing import relative_error
from tests.oracle.example_robots import path_of
from tests.terms.interpreting import interpreted_robot

URDF = """
<robot name="arm">
  <link name="base"><inertial><mass value="3"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0"
  iyz="0"/></inertial></link> <link name="upper"><inertial><origin xyz="0.1 0.2 0.3" rpy="0.3 0.2 0.1"/><mass
    value="2"/> <inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0.001" ixz="-0.002" iyz="0.003"/></inertial></link>
  <link name="lower"><inertial><origin xyz="0.1 0 0.2"/><mass value="1.5"/>
    <inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="shoulder" type="revolute"><origin xyz="0.1 0.2 0.3" rpy="0.4 -0.3 0.2"/><parent link="base"/>
    <child link="upper"/><axis xyz="0 0.6 0.8"/><limit lower="-1" upper="2" effort="30" velocity="4"/>
    <dynamics damping="0.7" friction="0.2"/></joint>
  <joint name="elbow" type="{elbow}"><origin xyz="-0.1 0.3 0.2" rpy="-0.5 0.1 0.7"/><parent link="upper"/>
    <child link="lower"/><axis xyz="1 0 0"/></joint>
</robot>"""

BASE = """<link
name="base"><inertial><mass>3</mass><inertia><ixx>1</ixx><iyy>1</iyy><izz>1</izz></inertia></inertial>{}</link>"""
UPPER = """<link name="upper"><inertial><pose>0.1 0.2 0.3 0.3 0.2 0.1</pose><mass>2</mass><inertia><ixx>0.02</ixx>
  <iyy>0.03</iyy><izz>0.04</izz><ixy>0.001</ixy><ixz>-0.002</ixz><iyz>0.003</iyz></inertia></inertial>{}</link>"""
LOWER = """<link name="lower"><inertial><pose>0.1 0 0.2 0 0 0</pose><mass>1.5</mass><inertia><ixx>0.02</ixx>
  <iyy>0.03</iyy><izz>0.04</izz></inertia></inertial>{}</link>"""
DOES = """<limit><lower>-1</lower><upper>2</upper><effort>30</effort><velocity>4</velocity></limit>
  <dynamics><damping>0.7</damping><friction>0.2</friction></dynamics>"""
SHOULDER = (
    """<joint name="shoulder" type="revolute">{}<parent>base</parent><child>upper</child><axis><xyz{}>0 0.6 0.8</xyz>
  """
    + DOES
    + "</axis></joint>"
)
ELBOW = """<joint name="elbow"
type="{kind}">{pose}<parent>{parent}</parent><child>{child}</child><axis>{axis}</axis></joint>"""
X = "<xyz>1 0 0</xyz>"
AT_UPPER, AT_LOWER = "0.1 0.2 0.3 0.4 -0.3 0.2", "-0.1 0.3 0.2 -0.5 0.1 0.7"


def elbow(kind: str = "continuous", pose: str = "", parent: str = "upper", child: str = "lower", axis: str = X) -> str:
    return ELBOW.format(kind=kind, pose=pose, parent=parent, child=child, axis=axis)


def model(*parts: str, version: str = "1.11", attributes: str = "") -> str:
    return f'<sdf version="{version}"><model name="arm" {attributes}>{"".join(parts)}</model></sdf>'


def pose_xml(pose: str, reference: str = "", attributes: str = "") -> str:
    return f'<pose {f"""relative_to="{reference}" """ if reference else ""}{attributes}>{pose}</pose>'


def rotation_matrix(rpy: tuple[float, float, float]) -> np.ndarray:
    from dyn_service.parsing.quantities import rotation_of_rpy

    return rotation_of_rpy(np.array(rpy))


R_UPPER, R_LOWER = rotation_matrix((0.4, -0.3, 0.2)), rotation_matrix((-0.5, 0.1, 0.7))


def digits(values: object) -> str:
    return " ".join(repr(float(x)) for x in np.ravel(values))


def in_model(pose: tuple[float, ...]) -> str:
    """The pose of a frame of the upper link in the model."""
    from dyn_service.parsing.pose import rpy_of

    R = R_UPPER @ rotation_matrix(pose[3:])  # type: ignore[arg-type]
    return digits([*(np.array([0.1, 0.2, 0.3]) + R_UPPER @ pose[:3]), *rpy_of(R)])


LOWER_IN_MODEL = in_model((-0.1, 0.3, 0.2, -0.5, 0.1, 0.7))
PLAIN = (BASE.format(""), UPPER.format(pose_xml(AT_UPPER)), SHOULDER.format("", ""))

IN_DEGREES = digits([-0.1, 0.3, 0.2, *np.degrees([-0.5, 0.1, 0.7])])

WAYS = {
    "in the model": model(*PLAIN, LOWER.format(pose_xml(LOWER_IN_MODEL)), elbow()),
    "in the parent": model(*PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow()),
    "in the joint": model(
        BASE.format(""), UPPER.format(pose_xml("", "shoulder")), SHOULDER.format(pose_xml(AT_UPPER, "base"), ""),
        LOWER.format(pose_xml("", "elbow")), elbow(pose=pose_xml(AT_LOWER, "upper")),
    ),
    "in a frame": model(
        *PLAIN, LOWER.format(pose_xml("", "there")), elbow(),
        f'<frame name="there" attached_to="upper">{pose_xml(AT_LOWER)}</frame>',
    ),
    "in a frame of a joint": model(
        *PLAIN, LOWER.format(pose_xml("", "there")), elbow(),
        f'<frame name="there" attached_to="shoulder">{pose_xml(AT_LOWER)}</frame>',
    ),
    "in another frame": model(
        *PLAIN, LOWER.format(pose_xml("", "there")), elbow(),
        f'<frame name="there" attached_to="upper">{pose_xml("0 0 -1 0 0 0", "further")}</frame>'
        f'<frame name="further" '
        'attached_to="base">'
        f"{pose_xml(in_model((*(np.array([-0.1, 0.3, 0.2]) + R_LOWER[:, 2]), -0.5, 0.1, 0.7)))}</frame>",
    ),
    "joined to a frame": model(
        *PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow(parent="there"),
        '<frame name="there" attached_to="upper"/>',
    ),
    "expressed in": model(
        *PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")),
        elbow(axis=f'<xyz expressed_in="upper">{digits(R_LOWER[:, 0])}</xyz>'),
    ),
    "expressed in the model": model(
        *PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")),
        elbow(axis=f'<xyz expressed_in="__model__">{digits((R_UPPER @ R_LOWER)[:, 0])}</xyz>'),
    ),
    "use_parent_model_frame": model(
        *PLAIN, LOWER.format(pose_xml(LOWER_IN_MODEL)),
        elbow(axis=f"<xyz>{digits((R_UPPER @ R_LOWER)[:, 0])}</xyz><use_parent_model_frame>1</use_parent_model_frame>"),
        version="1.6",
    ),
    "axes of old": model(
        BASE.format(""), UPPER.format(pose_xml(AT_UPPER)),
        SHOULDER.format("", "").replace("0 0.6 0.8", digits(R_UPPER @ [0, 0.6, 0.8])),
        LOWER.format(pose_xml(LOWER_IN_MODEL)), elbow(axis=f"<xyz>{digits((R_UPPER @ R_LOWER)[:, 0])}</xyz>"),
        version="1.4",
    ),
    "the first version with axes in the joint": model(
        *PLAIN, LOWER.format(pose_xml(LOWER_IN_MODEL)), elbow(), version="1.5",
    ),
    "a turned joint": model(
        *PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")),
        elbow(pose=pose_xml("0 0 0 0 0 1.2"), axis=f"<xyz>{digits(rotation_matrix((0, 0, -1.2))[:, 0])}</xyz>"),
    ),
    "degrees": model(
        *PLAIN, LOWER.format(pose_xml(IN_DEGREES, "upper", 'degrees="true"')), elbow(),
    ),
    "quaternions": model(
        *PLAIN, LOWER.format(pose_xml("{QUAT}", "upper", 'rotation_format="quat_xyzw"')), elbow(),
    ),
    "a model in it": model(
        *PLAIN,
        f'<model name="fore">{pose_xml(AT_LOWER, "upper")}{LOWER.format("")}</model>',
        elbow(child="fore::lower"),
    ).replace("lower</child>", "lower</child>"),
    "a model placed by a frame of it": model(
        *PLAIN,
        f'<model name="fore" '
        f'placement_frame="lower">{pose_xml(AT_LOWER, "upper")}{LOWER.format(pose_xml("1 2 3 0.1 0.2 0.3"))}</model>',
        elbow(child="fore::lower"),
    ),
    "a world": model(*PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow())
    .replace("<model", '<world name="w"><gravity>0 0 -9.81</gravity><model').replace("</model>", "</model></world>"),
}  # fmt: skip


def numbers_of(description: Description) -> tuple[np.ndarray, np.ndarray]:
    robot = interpreted_robot(Robot(description))
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, 4, robot.nv))
    return robot.inverse_dynamics(q, v, a), robot.mass_matrix(q)


@pytest.mark.parametrize("name", WAYS)
def test_ways(name: str) -> None:
    from dyn_service.parsing.pose import quaternion_of

    w, x, y, z = quaternion_of(R_LOWER)
    text = WAYS[name].replace("{QUAT}", digits([-0.1, 0.3, 0.2, x, y, z, w]))
    description = read_text(text)
    urdf = read_text(URDF.format(elbow="continuous"))
    for actual, expected in zip(numbers_of(description), numbers_of(urdf), strict=True):
        assert relative_error(actual, expected) < 1e-13
    shoulder = description.joints[0]
    limit = shoulder.limit
    assert limit is not None
    assert (shoulder.name, shoulder.damping, shoulder.friction) == ("shoulder", 0.7, 0.2)
    assert (limit.lower, limit.upper, limit.effort, limit.velocity) == (-1.0, 2.0, 30.0, 4.0)


def test_a_joint_beside_its_child() -> None:
    """Its axis does not meet the link's origin: a link without mass is added."""
    text = model(*PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow(pose=pose_xml("0.3 -0.2 0.1 0 0 0")))
    place = np.array([-0.1, 0.3, 0.2]) + R_LOWER @ [0.3, -0.2, 0.1]
    urdf = (
        URDF.format(elbow="continuous")
        .replace('<child link="lower"/>', '<child link="mid"/>')
        .replace('<origin xyz="-0.1 0.3 0.2" rpy', f'<origin xyz="{digits(place)}" rpy')
        .replace("</robot>", '<link name="mid"/><joint name="f" type="fixed"><origin xyz="-0.3 0.2 -0.1"/><parent '
                 'link="mid"/><child link="lower"/></joint></robot>')
    )  # fmt: skip
    for actual, expected in zip(numbers_of(read_text(text)), numbers_of(read_text(urdf)), strict=True):
        assert relative_error(actual, expected) < 1e-13
    assert not [note for note in read_text(text).notes if "elbow_link" in note.element]


@pytest.mark.parametrize("kind", ["universal", "revolute2"])
def test_two_axes(kind: str) -> None:
    text = model(
        *PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")),
        elbow(kind, axis=X).replace("</joint>", "<axis2><xyz>0 1 "
                                                "0</xyz><dynamics><damping>2</damping></dynamics></axis2></joint>"),
    )  # fmt: skip
    urdf = URDF.format(elbow="continuous").replace('<child link="lower"/>', '<child link="mid"/>').replace(
        "</robot>", '<link name="mid"/><joint name="elbow_axis2" type="continuous"><parent link="mid"/><child '
                    'link="lower"/>'
        '<axis xyz="0 1 0"/><dynamics damping="2"/></joint></robot>'
    )  # fmt: skip
    description = read_text(text)
    assert [joint.name for joint in description.joints] == ["shoulder", "elbow", "elbow_axis2"]
    for actual, expected in zip(numbers_of(description), numbers_of(read_text(urdf)), strict=True):
        assert relative_error(actual, expected) < 1e-13


@pytest.mark.parametrize(("kind", "urdf"), [("prismatic", "prismatic"), ("ball", "spherical"), ("fixed", "fixed")])
def test_types(kind: str, urdf: str) -> None:
    text = model(*PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow(kind))
    robot, other = Robot.from_text(text), Robot.from_urdf(URDF.format(elbow=urdf))
    assert robot.joint_names == other.joint_names
    assert [j.type for j in robot.description.joints] == [j.type for j in other.description.joints]
    q, v, a = other.random_configuration(seed=1), np.ones(other.nv), np.ones(other.nv)
    tau, expected = (interpreted_robot(x).inverse_dynamics(q, v, a)[None] for x in (robot, other))
    assert relative_error(tau, expected) < 1e-13


def test_a_fixed_joint_is_one_wherever_it_stands() -> None:
    """Nothing depends on its position, so no link is added."""
    description = read_text(model(*PLAIN, LOWER.format(""), elbow("fixed", pose=pose_xml("0.3 -0.2 0.1 0 0 0"))))
    assert [link.name for link in description.links] == ["base", "upper", "lower"]
    assert [joint.type for joint in description.joints] == ["revolute", "fixed"]
    assert not [note for note in description.notes if "axis" in note.text]


def test_screws() -> None:
    pitched = read_text(
        model(
            *PLAIN,
            LOWER.format(""),
            elbow("screw").replace("</joint>", "<screw_thread_pitch>0.3</screw_thread_pitch></joint>"),
        )
    )
    old = read_text(
        model(*PLAIN, LOWER.format(""), elbow("screw").replace("</joint>", "<thread_pitch>-4</thread_pitch></joint>"))
    )
    assert pitched.joints[1].pitch == 0.3
    assert old.joints[1].pitch == pytest.approx(np.pi / 2)


def test_defaults_are_those_of_the_format() -> None:
    description = read_text(model('<link name="a"/><link name="b"><inertial><mass>2</mass></inertial></link>',
                                  '<joint name="j" '
                                  'type="revolute"><parent>a</parent><child>b</child><axis/></joint>'))  # fmt: skip
    first, second = (link.inertial for link in description.links)
    assert first is not None
    assert second is not None
    assert (first.mass, second.mass) == (1.0, 2.0)
    assert np.array_equal(first.inertia, np.eye(3))
    assert np.array_equal(first.rotation, np.eye(3))
    assert np.array_equal(second.inertia, np.eye(3))
    (joint,) = description.joints
    assert (joint.type, joint.limit) == ("continuous", None)
    assert joint.axis.tolist() == [0.0, 0.0, 1.0]
    assert sum(note.kind == "defaulted" for note in description.notes) == 2


def test_limits_that_are_none() -> None:
    axis = X + "<limit><lower>-1e16</lower><upper>inf</upper><effort>-1</effort><velocity>-1</velocity></limit>"
    joint = read_text(model(*PLAIN, LOWER.format(""), elbow("revolute", axis=axis))).joints[1]
    assert joint.type == "continuous"
    assert joint.limit is not None
    assert (joint.limit.lower, joint.limit.upper, joint.limit.effort, joint.limit.velocity) == (None,) * 4


def test_springs_and_mimics() -> None:
    axis = X + (
        "<dynamics><spring_stiffness>3</spring_stiffness><spring_reference>0.5</spring_reference></dynamics>"
        '<mimic joint="shoulder"><multiplier>2</multiplier><offset>0.1</offset><reference>0.3</reference></mimic>'
    )
    joint = read_text(model(*PLAIN, LOWER.format(""), elbow(axis=axis))).joints[1]
    assert (joint.stiffness, joint.rest) == (3.0, 0.5)
    assert joint.mimic is not None
    assert (joint.mimic.joint, joint.mimic.multiplier) == ("shoulder", 2.0)
    assert joint.mimic.offset == pytest.approx(0.1 - 2.0 * 0.3)


@pytest.mark.parametrize(
    ("axis", "rotor", "armature"),
    [
        (X, "<drake:rotor_inertia>0.5</drake:rotor_inertia><drake:gear_ratio>3</drake:gear_ratio>", 4.5),
        (X, "<drake:rotor_inertia>0.5</drake:rotor_inertia>", 0.5),
        (X, "<drake:gear_ratio>3</drake:gear_ratio>", 0.0),
        (X + "<limit><effort>3</effort></limit>", "<drake:rotor_inertia>0.5</drake:rotor_inertia>", 0.5),
        (X + "<limit><effort>0</effort></limit>", "<drake:rotor_inertia>0.5</drake:rotor_inertia>", 0.0),
    ],
)
def test_rotors_as_drake_has_them(axis: str, rotor: str, armature: float) -> None:
    """These are Drake's own numbers, by its reflected inertia in the mass matrix."""
    text = model('<link name="upper"/><link name="lower"/>', elbow(axis=axis).replace("</joint>", f"{rotor}</joint>"))
    (joint,) = read_text(text.replace("<sdf", '<sdf xmlns:drake="drake.mit.edu"')).joints
    assert joint.armature == armature


def test_frames_of_poses_before_1_7() -> None:
    """Drake and Gazebo read them; a note says that their version has none."""
    text = model(*PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow(), version="1.6")
    old, new = read_text(text.replace("relative_to", "frame")), read_text(text.replace("1.6", "1.11"))
    for actual, expected in zip(numbers_of(old), numbers_of(new), strict=True):
        assert np.array_equal(actual, expected)
    (note,) = (note for note in old.notes if "1.7" in note.text)
    assert (note.kind, note.element) == ("changed", "link 'lower'")
    assert not [note for note in new.notes if "1.7" in note.text]


def test_a_mimic_of_a_second_axis_follows_it_also_if_another_joint_has_its_name() -> None:
    def joint(name: str, kind: str, child: str, axis_elements: str) -> str:
        axis = f"<axis><xyz>1 0 0</xyz>{axis_elements}"
        return f'<joint name="{name}" type="{kind}"><parent>a</parent><child>{child}</child>{axis}</joint>'

    joints = (
        joint("F", "revolute", "d", '<mimic joint="U" axis="axis2"/></axis>'),
        joint("U", "universal", "b", "</axis><axis2><xyz>0 1 0</xyz></axis2>"),
        joint("U_axis2", "revolute", "c", "</axis>"),
    )
    links = "".join(f'<link name="{name}"/>' for name in "abcd")
    text = f'<sdf version="1.11"><model name="m">{links}{"".join(joints)}</model></sdf>'
    robot = Robot.from_text(text)
    assert set(robot.joint_names) == {"U", "U_axis2", "U_axis2_2"}
    assert [joint.mimic.joint for joint in robot.description.joints if joint.mimic] == ["U_axis2_2"]


def test_a_mimic_of_a_second_axis() -> None:
    """The leader is the second of the two joints that a universal joint becomes."""
    universal = elbow("universal", axis=X).replace("</joint>", "<axis2><xyz>0 1 0</xyz></axis2></joint>")
    axis = X + '<mimic joint="elbow"{}><multiplier>2</multiplier><offset>0.1</offset></mimic>'
    follower = elbow("revolute", parent="lower", child="tip", axis=axis).replace('"elbow"', '"tip_joint"', 1)
    leaders = {}
    for leader, attribute in (("elbow", ""), ("elbow", ' axis="axis"'), ("elbow_axis2", ' axis="axis2"')):
        text = model(*PLAIN, LOWER.format(""), '<link name="tip"/>', universal, follower.format(attribute))
        robot = Robot.from_text(text)
        assert robot.joint_names == ("shoulder", "elbow", "elbow_axis2")
        mimic = next(joint for joint in robot.description.joints if joint.name == "tip_joint").mimic
        assert mimic is not None
        leaders[attribute] = (mimic.joint, mimic.multiplier, mimic.offset)
        assert leaders[attribute] == (leader, 2.0, 0.1)
    assert len(set(leaders.values())) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_inertia_of_turned_collisions(count: int) -> None:
    """A collision's moments are along its own axes: R diag(I) R^T, which differs from R^T diag(I) R."""
    size, pose = np.array([0.2, 0.4, 0.6]), (0.0, 0.0, 0.0, 0.5, -0.3, 0.7)
    box = f"<geometry><box><size>{digits(size)}</size></box></geometry>"
    collisions = "".join(f'<collision name="c{k}">{pose_xml(digits(pose))}{box}</collision>' for k in range(count))
    inertial = read_text(model(f'<link name="a"><inertial auto="true"/>{collisions}</link>')).links[0].inertial
    assert inertial is not None
    R, squares = rotation_matrix(pose[3:]), size**2  # type: ignore[arg-type]
    moments = count * 1000 * size.prod() / 12 * np.diag(squares.sum() - squares)
    total = inertial.rotation @ inertial.inertia @ inertial.rotation.T
    np.testing.assert_allclose(total, R @ moments @ R.T, rtol=1e-13)
    assert np.abs(R @ moments @ R.T - R.T @ moments @ R).max() > 0.1


def test_inertia_of_collisions() -> None:
    link = """<link name="a"><inertial auto="true"><density>500</density></inertial>
      <collision name="c"><pose>0.1 0 0 0 0 0.3</pose><geometry><box><size>0.2 0.4
      0.6</size></box></geometry></collision> <collision
      name="d"><density>100</density><geometry><cylinder><radius>0.1</radius><length>0.4</length></cylinder>
      </geometry></collision></link>"""
    inertial = read_text(model(link)).links[0].inertial
    assert inertial is not None
    box, rod = 500 * 0.2 * 0.4 * 0.6, 100 * np.pi * 0.1**2 * 0.4
    assert inertial.mass == pytest.approx(box + rod)
    assert inertial.com == pytest.approx([0.1 * box / (box + rod), 0, 0])
    about_z = box / 12 * (0.2**2 + 0.4**2) + rod / 2 * 0.1**2 + box * rod / (box + rod) * 0.1**2
    assert inertial.inertia[2, 2] == pytest.approx(about_z)


@pytest.mark.parametrize(
    ("shape", "volume"),
    [
        ("box", 1.0),
        ("ellipsoid", 4.0 * np.pi / 3.0),
        ("sphere", 4.0 * np.pi / 3.0),
        ("cylinder", np.pi),
        ("capsule", np.pi * (1.0 + 4.0 / 3.0)),
    ],
)
def test_sizes_that_are_not_said_are_1_m(shape: str, volume: float) -> None:
    link = f"""<link name="a"><inertial auto="true"><density>3</density></inertial>
      <collision name="c"><geometry><{shape}/></geometry></collision></link>"""
    inertial = read_text(model(link)).links[0].inertial
    assert inertial is not None
    assert inertial.mass == pytest.approx(3.0 * volume, rel=1e-14)


def test_a_second_parent_closes_a_loop() -> None:
    text = model(*PLAIN, LOWER.format(""), elbow(), elbow().replace("elbow", "again").replace("upper", "base", 1))
    description = read_text(text)
    assert [joint.name for joint in description.joints] == ["shoulder", "elbow"]
    assert [(joint.name, joint.parent, joint.child) for joint in description.loop_joints] == [
        ("again", "base", "lower")
    ]
    assert description.unread_loops == ()


def test_what_it_stands_on() -> None:
    free = read_text(model(*PLAIN, LOWER.format(""), elbow()))
    assert any("floats" in note.text for note in free.notes)
    assert not any("floats" in note.text for note in rooted(free, "floating").notes)
    fixed = read_text(
        model(pose_xml("0 0 1 0 0 0.5"), *PLAIN, LOWER.format(""), elbow(),
              '<joint name="w" type="fixed"><parent>world</parent><child>base</child></joint>')
    )  # fmt: skip
    assert fixed.links[0].name == "world"
    assert fixed.joints[0].xyz.tolist() == [0.0, 0.0, 1.0]
    assert not any("floats" in note.text for note in fixed.notes)


def test_a_root_stands_where_its_pose_places_it() -> None:
    """On its side, gravity pulls along the axes of the world, not of the model; a root that floats is placed by q."""
    text = model(pose_xml("0.1 0 1 1.57 0.2 0"), *PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow())
    robot, other = Robot.from_text(text), Robot.from_urdf(URDF.format(elbow="continuous"))
    R = rotation_matrix((1.57, 0.2, 0.0))
    assert robot.link_names == ("world", *other.link_names)
    q = other.random_configuration(seed=1)
    own_form, urdf_form = (interpreted_robot(robot) for robot in (robot, other))
    turned_back = urdf_form.gravity_forces(q, gravity=R.T @ robot.gravity)
    assert relative_error(own_form.gravity_forces(q)[None], turned_back[None]) < 1e-13
    at_base, at_lower = own_form.link_poses(q).position[[1, 3]]
    np.testing.assert_allclose(at_base, [0.1, 0.0, 1.0], atol=1e-15)
    np.testing.assert_allclose(at_lower, at_base + R @ urdf_form.link_poses(q).position[2], atol=1e-14)
    (note_text,) = (note.text for note in robot.receipt.of_kind("changed") if "pose" in note.text)
    assert "(0.1, 0, 1) m" in note_text
    floating = Robot.from_text(text, root="floating")
    assert floating.link_names == other.link_names
    assert not any("is fixed in the world" in note.text for note in floating.receipt.notes)
    assert (
        floating.tree.fingerprint == Robot.from_urdf(URDF.format(elbow="continuous"), root="floating").tree.fingerprint
    )


def test_the_worlds_gravity_is_the_robots() -> None:
    text = model(*PLAIN, LOWER.format(pose_xml(AT_LOWER, "upper")), elbow())
    moon = text.replace("<model", '<world name="moon"><gravity>0 0.1 -1.62</gravity><model').replace(
        "</model>", "</model></world>"
    )
    moon_robot, other = interpreted_robot(Robot.from_text(moon)), interpreted_robot(Robot.from_text(text))
    q, zero = np.array([0.3, 0.7]), np.zeros(2)
    moon_weight = moon_robot.gravity_forces(q)
    assert np.array_equal(moon_weight, other.gravity_forces(q, gravity=[0.0, 0.1, -1.62]))
    assert not np.array_equal(moon_weight, other.gravity_forces(q))
    assert np.array_equal(moon_robot.inverse_dynamics(q, zero, zero), moon_weight)
    assert moon_robot.description.gravity == (0.0, 0.1, -1.62)
    assert moon_robot.fingerprint == moon_robot.receipt.fingerprint != other.fingerprint
    assert moon_robot.receipt.to_dict()["gravity"] == [0.0, 0.1, -1.62]
    assert "(0, 0.1, -1.62) m/s^2" in moon_robot.receipt.render()
    assert "m/s^2" not in other.receipt.render()
    assert pickle.loads(pickle.dumps(moon_robot)).gravity.tolist() == [0.0, 0.1, -1.62]
    mars_robot = moon_robot.overlaid(Overlay(gravity=[0.0, 0.0, -3.7]))
    assert mars_robot.as_described.gravity == (0.0, 0.0, -3.7)
    assert moon_robot.overlaid(Overlay()).gravity.tolist() == [0.0, 0.1, -1.62]


def test_the_gravity_of_a_world_that_gives_none() -> None:
    """SDFormat's default is 9.8 m/s^2; without a <world> the robot's default, 9.81, acts."""
    model_text = '<model name="m"><link name="a"/></model>'
    assert read_text(f'<sdf version="1.9"><world name="w">{model_text}</world></sdf>').gravity == (0.0, 0.0, -9.8)
    assert read_text(f'<sdf version="1.9">{model_text}</sdf>').gravity == (0.0, 0.0, -9.81)


ELSEWHERE = """<sdf version="1.6"><model name="m">
<link name="a"><pose>0 0.2 1 0 0 0.5</pose></link>
<joint name="j" type="{kind}"><pose>0 0 0.3 0 0 0</pose><parent>c</parent><child>a</child>
<axis><xyz>0 1 0</xyz></axis></joint>
<link name="c"><pose>0 0 {height} 0 0 0</pose></link></model></sdf>"""


@pytest.mark.parametrize("kind", ["revolute", "ball"])
@pytest.mark.parametrize("height", [0.0, 0.4])
def test_a_child_before_its_parent_by_a_joint_that_stands_elsewhere(kind: str, height: float) -> None:
    """The first link is the one that importers put between, which no file names."""
    description = read_text(ELSEWHERE.format(kind=kind, height=height))
    assert [link.name for link in description.links if not link.added] == ["a", "c"]
    robot = interpreted_robot(Robot(description))
    q = robot.configuration.neutral
    poses = robot.link_poses(q)
    assert poses.position[poses.links.index("c")].tolist() == [0.0, 0.0, height]
    np.testing.assert_allclose(poses.position[poses.links.index("a")], [0.0, 0.2, 1.0], atol=1e-15)


def test_static_models_beside_it_are_left_out() -> None:
    ground = '<model name="ground"><static>true</static><link name="plane"/></model>'
    text = model(*PLAIN, LOWER.format(""), elbow()).replace("<model", f"{ground}<model", 1)
    description = read_text(text)
    assert description.name == "arm"
    assert [note.text for note in description.notes if "static" in note.text] == ["1 other static model is not read"]


@pytest.mark.parametrize("pose", ["", "1 2 3 4 5 6"])
def test_files_beside_it(tmp_path: Path, pose: str) -> None:
    """Where the file says a place too, that of the include counts."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "fore.sdf").write_text(
        f'<sdf version="1.11"><model name="x">{pose and pose_xml(pose)}{LOWER.format("")}</model></sdf>'
    )
    main = model(
        *PLAIN, f'<include><uri>parts/fore.sdf</uri><name>fore</name>{pose_xml(AT_LOWER, "upper")}</include>',
        elbow(child="fore::lower"),
    )  # fmt: skip
    path = tmp_path / "arm.sdf"
    path.write_text(main)
    for actual, expected in zip(
        numbers_of(read_file(path)), numbers_of(read_text(URDF.format(elbow="continuous"))), strict=True
    ):
        assert relative_error(actual, expected) < 1e-13


OLD = model(
    BASE.format(""), UPPER.format(pose_xml(AT_UPPER)),
    SHOULDER.format("", "").replace("0 0.6 0.8", digits(R_UPPER @ [0, 0.6, 0.8])), version="1.4",
)  # fmt: skip
FIRST_IN_JOINT = model(BASE.format(""), UPPER.format(pose_xml(AT_UPPER)), SHOULDER.format("", ""), version="1.5")
NEW = model(
    BASE.format(""), '<frame name="f"><pose>0 0 0.1 0 0 0</pose></frame>',
    UPPER.format(pose_xml("0.1 0.2 0.2 0.4 -0.3 0.2", "f")), SHOULDER.format("", ' expressed_in="__model__"').replace(
        "0 0.6 0.8", digits(R_UPPER @ [0, 0.6, 0.8])),
)  # fmt: skip


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("placement", ["", "upper"])
@pytest.mark.parametrize("text", [OLD, FIRST_IN_JOINT, NEW])
def test_models_of_other_versions_and_merged(text: str, placement: str, merge: bool, tmp_path: Path) -> None:
    """The axes of a file before 1.5 are in its model's frame, whichever file includes it; `merge` adds no scope."""
    (tmp_path / "old.sdf").write_text(text)
    scope = "" if merge else "k::"
    main = model(
        f'<include merge="{str(merge).lower()}"><uri>old.sdf</uri><name>k</name>',
        pose_xml("1 2 3 0.4 0.5 0.6") + f"<placement_frame>{placement}</placement_frame>" if placement else "",
        "</include>",
        LOWER.format(pose_xml(AT_LOWER, f"{scope}upper")), elbow(parent=f"{scope}upper"),
    )  # fmt: skip
    path = tmp_path / "arm.sdf"
    path.write_text(main)
    description, plain = read_file(path), read_text(URDF.format(elbow="continuous"))
    assert {f"{scope}base", f"{scope}upper", "lower"} == {link.name for link in description.links} - {"world"}
    if placement:
        np.testing.assert_allclose(interpreted_robot(Robot(description)).link_poses(np.zeros(2)).position[2], [1, 2, 3])
    robot, other = (interpreted_robot(Robot(rooted(source, "floating"))) for source in (description, plain))
    q = other.random_configuration(seed=1)
    assert relative_error(robot.mass_matrix(q)[None], other.mass_matrix(q)[None]) < 1e-13


def test_the_light_and_the_ground_of_a_world_are_left_out(tmp_path: Path) -> None:
    """They are in nearly every world and in few installations; another model that is not found is an error."""
    scenery = "".join(f"<include><uri>model://{name}</uri></include>" for name in ("sun", "ground_plane"))
    path = tmp_path / "a.world"
    path.write_text(WAYS["a world"].replace("<model", f"{scenery}<model"))
    description = read_file(path)
    assert [link.name for link in description.links] == ["base", "upper", "lower"]
    assert sum("model://" in note.text for note in description.notes) == 2


MODEL_CONFIG = """<model><name>fore</name><sdf version="1.4">old.sdf</sdf><sdf version="1.11">new.sdf</sdf>
<sdf version="1.99">../away.sdf</sdf></model>"""


@pytest.mark.parametrize("way", ["GZ_SIM_RESOURCE_PATH", "SDF_PATH", "above", "model.config", "file", "folder"])
def test_models_by_name(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders of an environment variable, or in one above the file; by a model.config, or as model.sdf."""
    robots = tmp_path / "models" / "arm"
    holder = tmp_path / "models" if way in ("above", "model.config", "file", "folder") else tmp_path / "elsewhere"
    (holder / "fore").mkdir(parents=True)
    robots.mkdir(parents=True)
    fore = f'<sdf version="1.11"><model name="x">{LOWER.format("")}</model></sdf>'
    (holder / "fore" / ("new.sdf" if way == "model.config" else "model.sdf")).write_text(fore)
    if way == "model.config":
        (holder / "fore" / "model.config").write_text(MODEL_CONFIG)
        (holder / "fore" / "old.sdf").write_text("<sdf/>")
    if way.isupper():
        monkeypatch.setenv(way, f"{tmp_path / 'none'}:{holder}")
    uri = {"file": "model://fore/model.sdf", "folder": "../fore"}.get(way, "model://fore")
    main = model(
        *PLAIN, f'<include><uri>{uri}</uri><name>fore</name>{pose_xml(AT_LOWER, "upper")}</include>',
        elbow(child="fore::lower"),
    )  # fmt: skip
    (robots / "arm.sdf").write_text(main)
    description = read_file(robots / "arm.sdf")
    for actual, expected in zip(numbers_of(description), numbers_of(read_text(WAYS["in the parent"])), strict=True):
        assert relative_error(actual, expected) < 1e-13


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("model://none", "there is no model 'model://none' in the folders of GZ_SIM_RESOURCE_PATH"),
        ("model://../secret", "is absolute or has '..' in it, expected the name of a model"),
        ("model:///tmp", "is absolute or has '..' in it"),
        ("model://a/../../secret", "has '..' in it"),
        ("model://%2e%2e/secret", "has '..' in it"),
        ("https://fuel.gazebosim.org/a", "is not supported, expected a path"),
        ("model://https://a", "is not supported, expected a path"),
        ("model://", "is not supported, expected a path"),
    ],
)
def test_models_that_are_not_there(uri: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "in" / "arm.sdf"
    path.parent.mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "model.sdf").write_text('<sdf version="1.9"><model name="s"><link name="s"/></model></sdf>')
    path.write_text(model('<link name="a"/>', f"<include><uri>{uri}</uri></include>"))
    with pytest.raises(UrdfError, match=re.escape(words)):
        read_file(path)


def test_one_file_twice(tmp_path: Path) -> None:
    """Two hands are one model, included under two names."""
    wheel = '<link name="hub"><inertial><mass>3</mass></inertial></link>'
    (tmp_path / "wheel.sdf").write_text(f'<sdf version="1.11"><model name="wheel">{wheel}</model></sdf>')
    sides = ("left", "right")
    twice = "".join(
        f"<include><uri>wheel.sdf</uri><name>{side}</name></include>"
        + elbow(child=f"{side}::hub").replace("elbow", f"{side}_axle")
        for side in sides
    )
    path = tmp_path / "cart.sdf"
    path.write_text(model('<link name="upper"/>', twice))
    description = read_file(path)
    assert [link.name for link in description.links] == ["upper", "left::hub", "right::hub"]
    assert [link.inertial.mass for link in description.links if link.inertial] == [1.0, 3.0, 3.0]


@pytest.mark.parametrize("name", ["cassie", "cassie_reduced", "cassie_simple", "cassie_v2", "cassie_wo_gearbox_spring"])
def test_a_real_one(name: str) -> None:
    path = path_of("panda_description/urdf/panda.urdf").parents[2] / "cassie_description" / "robots" / f"{name}.sdf"
    robot, text = Robot.from_file(path), path.read_text()
    assert robot.receipt.after.mass == pytest.approx(robot.receipt.before.mass)
    loop_notes = robot.receipt.of_kind("loop")
    joint_count = text.count("<joint ") - sum("loop" in note.text or "gearbox" in note.text for note in loop_notes)
    assert joint_count == len([joint for joint in robot.all_joint_names if not joint.endswith(("_fixed", "_axis2"))])
