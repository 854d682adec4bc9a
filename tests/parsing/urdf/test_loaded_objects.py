"""URDF objects of urchin (and so urdfpy) and yourdfpy: the same robot as from the file, and the traps of each noted."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.api.description import RobotDescription
from dyn_service.errors import InvalidArgumentError, UrdfError
from dyn_service.model.description import Description, Limit, Note
from dyn_service.parsing.urdf.reader import read
from dyn_service.support import shipped
from tests.conftest import LOOPED, ROBOTS
from tests.phrases import naming, unnamed
from tests.terms.interpreting import interpreting

urchin = pytest.importorskip("urchin")
yourdfpy = pytest.importorskip("yourdfpy")

# What the two packages do with NumPy and lxml is theirs.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SHARE = importlib.metadata.distribution("example-robot-data").locate_file(
    "cmeel.prefix/share/example-robot-data/robots"
)
FILES = sorted(Path(str(SHARE)).rglob("*.urdf"))
NAMED = {file.name: file for file in FILES}
# fmt: off
MANY = [
    "panda.urdf", "talos_reduced.urdf", "tiago_dual.urdf", "romeo.urdf", "pr2.urdf", "human.urdf", "baxter.urdf",
    "g1_29dof_rev_1_0.urdf", "ur5_robot.urdf", "kinova.urdf", "solo12.urdf", "hyq_no_sensors.urdf",
    "double_pendulum_continuous.urdf", "allegro_left_hand.urdf",
]
# fmt: on
FILE_ONLY = ("commented-floating-joint", "unknown-reference")
STAND_IN = "1 kg and unit inertia at the link's origin, which urchin gives a link without <inertial>"


def by_urchin(path: Path) -> Any:
    return urchin.URDF.load(str(path), lazy_load_meshes=True)


def by_yourdfpy(path: Path) -> Any:
    return yourdfpy.URDF.load(str(path), build_scene_graph=False, load_meshes=False)


def assert_same(text: Description, objects: Description) -> None:
    """Equal to the last few bits: the packages multiply the same three rotations in another order."""
    assert (text.name, text.root, text.gravity) == (objects.name, objects.root, objects.gravity)
    assert [link.name for link in text.links] == [link.name for link in objects.links]
    for text_link, object_link in zip(text.links, objects.links, strict=True):
        assert (text_link.inertial is None) == (object_link.inertial is None)
        if text_link.inertial is not None and object_link.inertial is not None:
            assert text_link.inertial.mass == object_link.inertial.mass
            assert np.array_equal(text_link.inertial.com, object_link.inertial.com)
            assert np.array_equal(text_link.inertial.inertia, object_link.inertial.inertia)
            assert np.abs(text_link.inertial.rotation - object_link.inertial.rotation).max() < 1e-15
    for one_joint, other_joint in zip(text.joints, objects.joints, strict=True):
        fields = ("name", "type", "parent", "child", "limit", "damping", "friction", "mimic", "pitch", "armature")
        for field in (*fields, "stiffness", "rest", "friction_width"):
            assert getattr(one_joint, field) == getattr(other_joint, field), (one_joint.name, field)
        assert np.array_equal(one_joint.xyz, other_joint.xyz)
        assert np.abs(one_joint.rotation - other_joint.rotation).max() < 1e-15
        assert np.abs(one_joint.axis - other_joint.axis).max() < 1e-15


@pytest.mark.parametrize("name", MANY)
def test_same_robot_by_yourdfpy(name: str) -> None:
    text, objects = read(NAMED[name]), read(by_yourdfpy(NAMED[name]))
    assert_same(text, objects)
    assert objects.source == "<yourdfpy URDF>"
    assert not any(note.line for note in objects.notes)
    # Warnings are about the robot, so they are the same, except those about comments and about <gazebo> and
    # <transmission>, which the objects do not have.
    doubts = [(note.element, note.text) for note in text.notes if note.kind == "warning" and note.rule not in FILE_ONLY]
    assert doubts == [(note.element, note.text) for note in objects.notes if note.kind == "warning"]
    reports = [[note.text for note in robot.notes if "not act yet" in note.text] for robot in (text, objects)]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("name", MANY)
def test_same_robot_by_urchin(name: str) -> None:
    text, objects = read(NAMED[name]), read(by_urchin(NAMED[name]))
    assert_same(text, objects)
    assert objects.source == "<urchin URDF>"


@pytest.mark.parametrize("load", [by_urchin, by_yourdfpy])
@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_shipped_robots_have_the_same_answers(path: Path, load: Any) -> None:
    by_file, by_object = interpreting(path), interpreting(load(path))
    assert by_file.joint_names == by_object.joint_names
    for field in ("lower", "upper", "speeds", "efforts"):
        np.testing.assert_array_equal(getattr(by_file.limits, field), getattr(by_object.limits, field))
    rng = np.random.default_rng(1)
    q = by_file.configuration.random(rng, by_file.limits.lower, by_file.limits.upper)
    v, a = rng.normal(size=(2, by_file.nv))
    for answer in (
        lambda robot: robot.inverse_dynamics(q, v, a),
        lambda robot: robot.mass_matrix(q),
        lambda robot: robot.constraint_forces(q, v, a).wrench,
    ):
        expected = answer(by_file)
        # The rotations differ by 1e-15, and the arms are ten times longer than the links' own offsets.
        np.testing.assert_allclose(answer(by_object), expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("path", LOOPED, ids=lambda path: path.stem)
def test_objects_of_urchin_keep_loops_and_motors(path: Path) -> None:
    by_file, by_object = Robot.from_file(path), Robot.from_urdf(by_urchin(path))
    closing = [[joint.name for joint in robot.as_described.loop_joints] for robot in (by_file, by_object)]
    assert closing[0] == closing[1]
    q = by_file.neutral()
    tau = by_file.gravity_forces(q)
    np.testing.assert_allclose(by_object.gravity_forces(q), tau, rtol=0, atol=1e-12 * np.abs(tau).max())


def test_links_without_inertial_are_named() -> None:
    robot = read(by_urchin(NAMED["romeo_small.urdf"]))
    warning = [note.element for note in robot.notes if note.kind == "changed" and note.text.startswith(STAND_IN)]
    massless_links = [
        f"link '{link.name}' inertial" for link in read(NAMED["romeo_small.urdf"]).links if link.inertial is None
    ]
    assert warning == massless_links
    assert len(massless_links) > 5


def test_removed_stand_ins_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    robot = Robot.from_urdf(by_urchin(shipped.robots()["ur5e"]))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "<urchin URDF>: 2 values changed, all are in robot.receipt.notes: link '" in record.message
    assert record.message.count(STAND_IN) == 2
    assert sum(note.text.startswith(STAND_IN) for note in robot.description.notes) == 2
    assert msgspec.convert(robot.description.to_dict(), RobotDescription).notes == robot.description.notes  # a client's
    assert {(note.kind, note.text) for note in robot.description.notes} <= {
        (note.kind, note.text) for note in robot.receipt.notes
    }
    caplog.clear()
    Robot.from_urdf(shipped.robots()["ur5e"])
    assert not caplog.records


@pytest.mark.parametrize(
    ("origin", "has_inertia"),
    [("", False), ('<origin xyz="0 0 0" rpy="0 0 0"/>', True), ('<origin xyz="0 0 1"/>', True)],
)
def test_written_numbers_of_a_stand_in(origin: str, has_inertia: bool, tmp_path: Path) -> None:
    """urchin gives a pose with rpy="0 0 0" a sine of -0.0; yourdfpy invents nothing."""
    unit = '<mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/>'
    path = tmp_path / "unit.urdf"
    path.write_text(f'<robot name="r"><link name="a"><inertial>{origin}{unit}</inertial></link></robot>')
    assert (read(by_urchin(path)).links[0].inertial is not None) == has_inertia
    for whole in (read(path), read(by_yourdfpy(path))):
        assert whole.links[0].inertial is not None
        assert any("what urdfpy and urchin write" in note.text for note in whole.notes) == ('1"' not in origin)


AXIS = """<robot name="r"><link name="a"/><link name="b"><inertial><mass value="2"/>
<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial><visual><geometry><sphere radius="1"/>
</geometry></visual></link><joint name="j" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 3 4"/>
<limit effort="5" velocity="6" lower="-1" upper="1"/><dynamics damping="0.25" friction="0.5"/>
<safety_controller k_velocity="1"/></joint></robot>"""


@pytest.fixture
def axis_file(tmp_path: Path) -> Path:
    path = tmp_path / "axis.urdf"
    path.write_text(AXIS)
    return path


def test_yourdfpy_axes_and_dynamics(axis_file: Path) -> None:
    """yourdfpy keeps the axis as long as it was, damping as text, and None where there is no origin."""
    loaded = by_yourdfpy(axis_file)
    assert isinstance(loaded.robot.joints[0].dynamics.damping, str)
    assert loaded.robot.joints[0].origin is None
    robot = read(loaded)
    (joint,) = robot.joints
    assert joint.axis.tolist() == [0, 0.6, 0.8]
    assert (joint.damping, joint.friction, joint.limit) == (0.25, 0.5, Limit(-1, 1, 5, 6))
    assert robot.notes == (
        Note("defaulted", "link 'b' inertial", "no <origin>: the centre of mass is the link's origin"),
        Note("defaulted", "joint 'j'", "no <origin>: the child link's frame is the parent link's"),
        Note("changed", "joint 'j' axis", "(0, 3, 4) has length 5; normalized"),
        Note("dropped", "robot 'r'", "geometry of 1 link is not used in dynamics"),
        Note("dropped", "robot 'r'", "1 <safety_controller> element in <joint> is not used"),
    )
    assert Counter(note.kind for note in read(axis_file).notes) == Counter(note.kind for note in robot.notes)


ODD = """<robot name="r"><link name="a"><inertial><mass value="9"/><inertia ixx="0.5" ixy="0" ixz="0" iyy="0.5" iyz="0"
izz="0.5"/></inertial></link>{legs}</robot>"""
LEG = """<link name="thigh{n}"><inertial><origin xyz="0 0 -0.2"/><mass value="2"/><inertia ixx="{i}" ixy="0" ixz="0"
iyy="{i}" iyz="0" izz="{i}"/></inertial></link><link name="foot{n}"><inertial><origin xyz="0 0 -0.2"/><mass value="1"/>
<inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/></inertial></link>
<joint name="hip{n}" type="revolute"><origin xyz="{n} 0 0"/><parent link="a"/><child link="thigh{n}"/>
<axis xyz="0 1 0"/><limit effort="5" velocity="6" lower="-90" upper="90"/></joint>
<joint name="knee{n}" type="revolute"><origin xyz="0 0 -0.4"/><parent link="thigh{n}"/><child link="foot{n}"/>
<axis xyz="0 1 0"/><limit effort="0" velocity="0" lower="-1" upper="1"/></joint>"""


@pytest.mark.parametrize("load", [by_urchin, by_yourdfpy])
def test_doubts_do_not_depend_on_the_way(load: Any, tmp_path: Path) -> None:
    """A walking robot with limits in degrees, one thigh's moments in kg cm^2, and limits of 0."""
    path = tmp_path / "odd.urdf"
    path.write_text(ODD.format(legs=LEG.format(n=0, i=0.03) + LEG.format(n=1, i=300.0)))
    expected = {
        (note.kind, note.element, note.text) for note in read(path).notes if note.kind in ("warning", "reported")
    }
    words = (" legs (", "degrees", "too much inertia", "velocity limit 0")
    assert all(any(word in text for _, _, text in expected) for word in words)
    objects = read(load(path))
    same = {(note.kind, note.element, note.text) for note in objects.notes if note.kind in ("warning", "reported")}
    assert same == expected


def test_bare_robot_of_yourdfpy(axis_file: Path) -> None:
    assert read(by_yourdfpy(axis_file).robot).source == "<yourdfpy Robot>"


def test_urchin_axes(axis_file: Path) -> None:
    (joint,) = read(by_urchin(axis_file)).joints
    assert np.allclose(joint.axis, [0, 0.6, 0.8], atol=1e-16)
    assert (joint.damping, joint.friction) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (None, "builtins.NoneType"),
        (42, "builtins.int"),
        ({"links": []}, "builtins.dict"),
        (["panda.urdf"], "builtins.list"),
        (SimpleNamespace(robot=None), "types.SimpleNamespace"),
        (SimpleNamespace(links=[], joints=3), "types.SimpleNamespace"),
    ],
)
def test_other_kinds_of_sources(source: object, kind: str) -> None:
    with pytest.raises(InvalidArgumentError) as excinfo:
        read(source)
    expected = "the path of a URDF file, its XML text, or a URDF object of urdfpy, urchin or yourdfpy"
    assert str(excinfo.value) == f"source is of type {kind}; expected {expected}"


def fake(**changes: Any) -> SimpleNamespace:
    """An object of urdfpy's shape, two links and a joint, with one thing changed: `joint_axis=...`, `link=...`."""
    inertial = {"mass": 2.0, "inertia": np.eye(3) * 0.1, "origin": np.eye(4)}
    joint = {"name": "j", "joint_type": "revolute", "parent": "a", "child": "b", "origin": np.eye(4), "limit": None}
    joint |= {"axis": np.array([1.0, 0, 0]), "dynamics": None, "mimic": None}
    link = {"name": "b", "inertial": None}
    for key, value in changes.items():
        part, _, field = key.partition("_")
        {"inertial": inertial, "joint": joint, "link": link}[part][field] = value
    link["inertial"] = SimpleNamespace(**inertial)
    links = [SimpleNamespace(name="a", inertial=None), SimpleNamespace(**link)]
    return SimpleNamespace(name="r", links=links, joints=[SimpleNamespace(**joint)])


FLIP = np.diag([1.0, 1.0, -1.0, 1.0])
SHEAR = np.array([[1.0, 0.1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
PROJECTIVE = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])
RIGID = "the pose is not a rigid motion, expected a rotation matrix above the row 0 0 0 1"

# fmt: off
FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("mass as a word", {"inertial_mass": "heavy"}, "link 'b' inertial mass",
     ["'mass'", "'heavy'"]),
    ("mass NaN", {"inertial_mass": float("nan")}, "link 'b' inertial mass",
     ["'mass'", "'nan'"]),
    ("mass None", {"inertial_mass": None}, "link 'b' inertial mass", ["None"]),
    ("mass True", {"inertial_mass": True}, "link 'b' inertial mass", ["'mass'", "True"]),
    ("mass an array", {"inertial_mass": np.ones(2)}, "link 'b' inertial mass",
     ["'mass'", "2"]),
    ("mass negative", {"inertial_mass": -1}, "link 'b' inertial mass", ["-1"]),
    ("inertia infinite", {"inertial_inertia": np.diag([1, np.inf, 1])}, "link 'b' inertial inertia",
     ["'inertia'", "'array([[ 1., 0., 0.], [ 0., inf, 0.], [ 0., 0., 1.]])'"]),
    ("inertia of six numbers", {"inertial_inertia": [1, 0, 0, 1, 0, 1]}, "link 'b' inertial inertia",
     ["'inertia'", "3", "6"]),
    ("inertia not symmetric", {"inertial_inertia": np.eye(3) + np.eye(3, k=1)}, "link 'b' inertial inertia",
     ["inertia", "symmetric"]),
    ("inertia an object", {"inertial_inertia": SimpleNamespace(ixx=1)}, "link 'b' inertial inertia",
     ["'inertia'", "3", "'namespace(ixx=1)'"]),
    ("pose a reflection", {"inertial_origin": FLIP}, "link 'b' inertial origin", [RIGID]),
    ("pose sheared", {"joint_origin": SHEAR}, "joint 'j' origin", [RIGID]),
    ("pose projective", {"joint_origin": PROJECTIVE}, "joint 'j' origin", [RIGID]),
    ("pose huge", {"joint_origin": np.eye(4) * 1e200}, "joint 'j' origin", [RIGID]),
    ("pose of six numbers", {"joint_origin": np.zeros(6)}, "joint 'j' origin",
     ["'origin'", "4", "6"]),
    ("axis zero", {"joint_axis": np.zeros(3)}, "joint 'j' axis",
     ["(0, 0, 0)"]),
    ("axis of two numbers", {"joint_axis": [1, 0]}, "joint 'j' axis",
     ["'axis'", "3", "2"]),
    ("parent None", {"joint_parent": None}, "joint 'j' parent", ["NoneType"]),
    ("child None", {"joint_child": None}, "joint 'j' child", ["NoneType"]),
    ("unknown child", {"joint_child": "c"}, "joint 'j'", ["'c'"]),
    ("own parent", {"joint_child": "a"}, "joint 'j'",
     ["'a'"]),
    ("name blank", {"link_name": " "}, "link", ["' '"]),
    ("duplicate link", {"link_name": "a"}, "link 'a'", ["already", "defined"]),
    ("unknown type", {"joint_joint_type": "hinge"}, "joint 'j'",
     ["'hinge'"]),
    ("damping as a word", {"joint_dynamics": SimpleNamespace(damping="nan", friction=None)}, "joint 'j' dynamics",
     ["'damping'", "'nan'"]),
    ("mimic of no name", {"joint_mimic": SimpleNamespace(joint=None, multiplier=None, offset=None)}, "joint 'j' mimic",
     ["NoneType"]),
    ("mimic without an offset", {"joint_mimic": SimpleNamespace(joint="k", multiplier=None)}, "joint 'j' mimic",
     ["SimpleNamespace", "'offset'", "URDF", "XML"]),
    ("limit as a word", {"joint_limit": SimpleNamespace(lower="low", upper=1.0, effort=None, velocity=None)},
     "joint 'j' limit", ["'lower'", "'low'"]),
    ("mimic of itself", {"joint_mimic": SimpleNamespace(joint="j", multiplier=None, offset=None)}, "joint 'j' mimic",
     ["follows", "itself"]),
]
# fmt: on


@pytest.mark.parametrize(("changes", "element", "values"), [pytest.param(*fault[1:], id=fault[0]) for fault in FAULTS])
def test_malformed_objects(changes: dict[str, Any], element: str, values: list[str]) -> None:
    with pytest.raises(UrdfError) as excinfo:
        read(fake(**changes))
    assert str(excinfo.value).startswith(f"<types SimpleNamespace>: {element}: ")
    assert unnamed(excinfo.value, *values) == []
    assert (excinfo.value.line, excinfo.value.element) == (None, element)


@pytest.mark.parametrize("kind", ["planar", "spherical", "floating"])
def test_joint_with_several_ways_to_move(kind: str) -> None:
    (joint,) = read(fake(joint_joint_type=kind)).joints
    assert (joint.type, joint.name, joint.parent, joint.child) == (kind, "j", "a", "b")


def test_missing_attribute() -> None:
    robot = fake()
    del robot.joints[0].limit
    with pytest.raises(UrdfError, match=naming("'j'", "SimpleNamespace", "'limit'")):
        read(robot)


def test_loop_of_objects() -> None:
    robot = fake()
    robot.joints.append(SimpleNamespace(**{**vars(robot.joints[0]), "name": "k", "parent": "b", "child": "a"}))
    with pytest.raises(UrdfError, match=naming("'a' -> 'b' -> 'a'")):
        read(robot)


def test_undeclared_world_of_objects() -> None:
    robot = fake(joint_parent="world")
    del robot.links[0]
    described = read(robot)
    assert [link.name for link in described.links] == ["b", "world"]
    assert [note.element for note in described.notes if "not declared" in note.text] == ["link 'world'"]


def test_object_is_not_changed_nor_shared() -> None:
    robot = fake()
    pose, axis = robot.joints[0].origin, robot.joints[0].axis
    description = read(robot)
    pose[0, 3] = axis[1] = 9.0
    (joint,) = description.joints
    assert joint.xyz.tolist() == [0, 0, 0]
    assert joint.axis.tolist() == [1, 0, 0]


def test_arrays_of_objects_hold_no_negative_zero() -> None:
    pose = np.eye(4)
    pose[0, 3] = pose[0, 1] = -0.0
    (joint,) = read(fake(joint_origin=pose, joint_axis=[-0.0, 1, 0])).joints
    for values in (joint.xyz, joint.rotation, joint.axis):
        assert not np.signbit(values).any()


@pytest.mark.parametrize(
    ("multiplier", "offset", "expected"),
    [(None, None, (1.0, 0.0)), (2.0, None, (2.0, 0.0)), (0.0, 0.5, (0.0, 0.5)), (-1, -0.25, (-1.0, -0.25))],
)
def test_mimic_numbers(multiplier: float | None, offset: float | None, expected: tuple[float, float]) -> None:
    robot = fake(joint_mimic=SimpleNamespace(joint="leader", multiplier=multiplier, offset=offset))
    mimic = read(robot).joints[0].mimic
    assert mimic is not None
    assert (mimic.joint, mimic.multiplier, mimic.offset) == ("leader", *expected)


def test_inertial_numbers_without_an_inertia_are_kept() -> None:
    pose = np.eye(4)
    pose[:3, 3] = [0.1, 0.2, 0.3]
    inertial = read(fake(inertial_inertia=None, inertial_origin=pose)).links[1].inertial
    assert inertial is not None
    assert (inertial.mass, inertial.com.tolist()) == (2.0, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(inertial.rotation, np.eye(3))
    np.testing.assert_array_equal(inertial.inertia, np.zeros((3, 3)))


def test_an_axis_that_is_not_given_is_x_and_noted() -> None:
    robot = read(fake(joint_axis=None))
    assert robot.joints[0].axis.tolist() == [1, 0, 0]
    assert Note("defaulted", "joint 'j'", "no <axis>: the x axis (1, 0, 0) is used") in robot.notes
    fixed = read(fake(joint_axis=None, joint_joint_type="fixed"))
    assert not any("axis" in note.text for note in fixed.notes)


@pytest.mark.parametrize("shapes", [("visuals",), ("collisions",), ("visuals", "collisions")])
def test_geometry_of_either_kind_is_noted_once_a_link(shapes: tuple[str, ...]) -> None:
    robot = fake()
    vars(robot.links[0]).update({shape: [object(), object()] for shape in shapes})
    vars(robot.links[1]).update({"visuals": [], "collisions": []})
    notes = [note for note in read(robot).notes if note.kind == "dropped"]
    assert notes == [Note("dropped", "robot 'r'", "geometry of 1 link is not used in dynamics")]


def test_limits_and_followers_are_noted_as_of_a_file() -> None:
    free = read(fake(joint_limit=None))
    unlimited_note = Note("defaulted", "joint 'j'", "no <limit>, which URDF requires: the joint is unlimited")
    assert unlimited_note in free.notes
    half = read(fake(joint_limit=SimpleNamespace(lower=0.5, upper=None, effort=1.0, velocity=2.0)))
    assert half.joints[0].limit == Limit(0.5, None, 1.0, 2.0)
    assert Note("defaulted", "joint 'j'", "the <limit> has no upper: unlimited there") in half.notes
    follower = read(fake(joint_mimic=SimpleNamespace(joint="k", multiplier=2.0, offset=None)))
    text = "mimics joint 'k', which the robot does not have: the mimic is ignored"
    assert Note("warning", "joint 'j'", text) in follower.notes
    assert not any("follows" in note.text for note in half.notes)


def test_an_object_without_links_is_refused() -> None:
    with pytest.raises(UrdfError, match=naming("'r'", "links")):
        read(SimpleNamespace(name="r", links=[], joints=[]))
