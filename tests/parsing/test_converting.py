"""From one sort of file to another and back: the same robot, and in MuJoCo's hands its numbers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.model.description import Description, Limit, rooted
from dyn_service.parsing.conversion import convert, format_of, urdf_of, written
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.joint_files import with_joint_file
from tests.comparing import relative_error
from tests.conftest import ROBOTS, URDF
from tests.oracle.example_robots import path_of
from tests.oracle.mujoco_models import errors
from tests.oracle.test_pinocchio import TOLERANCE
from tests.terms.interpreting import interpreted_robot
from tests.wide import wide

REAL = (
    "anymal_b_simple_description/robots/anymal.urdf",
    "iris_description/robots/iris.urdf",
    "kinova_description/robots/kinova.urdf",
    "panda_description/urdf/panda.urdf",
    "solo_description/robots/solo12.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "tiago_description/robots/tiago.urdf",
    "z1_description/urdf/z1.urdf",
)
OWN = [path.stem for path in ROBOTS]
HINGE = '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>'
HELD = '<link name="world"/><joint name="j" type="fixed"><parent link="world"/><child link="a"/></joint>'
TO_THE_BIT = {"cart_pendulum", "double_pendulum", "panda", "pendulum", "scara", "upper_body", "ur5e"}
"""Our robots whose frames are rotated by quarter turns, which no format rounds."""


def described(name: str) -> Description:
    if name == "panda":
        return with_joint_file(read_file(URDF / "panda.urdf"), URDF.parent / "config" / "panda_joints.yaml")
    return read_file(URDF / f"{name}.urdf" if name in OWN else path_of(name))


def sized(robot: Robot) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    limits = robot.limits
    q = np.array([robot.configuration.random(rng, limits.lower, limits.upper) for _ in range(3)])
    return q, *rng.normal(size=(2, 3, robot.nv))


@pytest.mark.parametrize("way", ["sdf", "mjcf"])
def test_any_file_is_urdf_for_who_reads_no_other(way: str, tmp_path: Path) -> None:
    """A URDF file as it stands, with what it looks like; of others what is written of them."""
    urdf_file = URDF / "ur5e.urdf"
    assert urdf_of(urdf_file) == urdf_file.read_text(encoding="utf-8")
    other = tmp_path / f"ur5e.{way}"
    other.write_text(written(read_file(urdf_file), way)[0], encoding="utf-8")
    assert [link.name for link in read_text(urdf_of(other)).links] == [link.name for link in read_file(other).links]
    assert urdf_of(other).count("<robot ") == 1


def test_the_format_is_the_named_one_or_else_that_of_the_name() -> None:
    assert [format_of(f"a.{end}") for end in ("urdf", "mjcf", "xml", "SDF")] == ["urdf", "mjcf", "mjcf", "sdf"]
    assert [format_of(path, "mjcf") for path in ("a.step", "a.sdf")] == ["mjcf", "mjcf"]
    for path, format in (("a.step", None), ("sdf", None), ("a.sdf", "step")):
        with pytest.raises(InvalidArgumentError):
            format_of(path, format)


def test_a_file_is_written_once_with_its_joint_file_and_root(tmp_path: Path) -> None:
    out = tmp_path / "panda.mjcf"
    options = {"root": "floating", "joints": URDF.parent / "config" / "panda_joints.yaml"}
    convert(URDF / "panda.urdf", out, **options)  # type: ignore[arg-type]
    back = {joint.name: joint for joint in read_file(out).joints}
    assert sum(joint.type == "floating" for joint in back.values()) == 1
    expected = [joint for joint in described("panda").joints if joint.moves.nv]
    assert [back[joint.name].armature for joint in expected] == [joint.armature for joint in expected]
    assert any(joint.armature for joint in expected)
    text = out.read_text(encoding="utf-8")
    with pytest.raises(InvalidArgumentError) as excinfo:
        convert(URDF / "ur5e.urdf", out)
    assert (excinfo.value.path, out.read_text(encoding="utf-8")) == ("target", text)
    convert(URDF / "ur5e.urdf", out, force=True)
    assert read_file(out).name == read_file(URDF / "ur5e.urdf").name


@pytest.mark.parametrize(("elements", "name"), [("", "a_fixed"), (HELD, "j")], ids=["by nothing", "by a joint"])
def test_a_fixed_root_is_held_in_sdf(elements: str, name: str) -> None:
    """A model without a joint to the world floats there; the reader warns about one."""
    text, notes = written(read_text(f'<robot name="r"><link name="a"/>{elements}</robot>'), "sdf")
    assert [note.text for note in notes if name in note.text and note.kind == "changed"] == (
        []
        if elements
        else ["its fixed root is written as joint 'a_fixed' between the link 'world', which is new, and 'a'"]
    )
    back = read_text(text)
    assert [(joint.name, joint.type, joint.parent, joint.child) for joint in back.joints] == [
        (name, "fixed", "world", "a")
    ]
    assert not any("floats" in note.text for note in back.notes)


FLAT = '<inertia ixx="{0}" ixy="0" ixz="0" iyy="{1}" iyz="0" izz="{2}"/>'
SMALL = '<inertia ixx="3e-9" ixy="1e-9" ixz="0" iyy="3e-9" iyz="0" izz="3e-9"/>'


@pytest.mark.parametrize(
    ("inertia", "is_possible"),
    [(FLAT.format(0.125, 0.25, 0.375), True), (FLAT.format(0.125, 0.25, 0.376), False), (SMALL, True)],
)
def test_inertias_that_mujoco_takes(inertia: str, is_possible: bool) -> None:
    """A lamina has the largest moment that MuJoCo takes; small parts have moments of 1e-9 kg m^2."""
    inertial = f'<inertial><mass value="1"/>{inertia}</inertial>'
    robot = read_text(f'<robot name="r"><link name="a"/><link name="b">{inertial}</link>{HINGE}</robot>')
    text, notes = written(robot, "mjcf")
    assert any("principal moments" in note.text for note in notes) != is_possible
    with nullcontext() if is_possible else pytest.raises(ValueError, match="inertia"):
        mujoco.MjModel.from_xml_string(text)


@pytest.mark.parametrize("way", ["urdf", "sdf", "mjcf"])
def test_gravity_goes_along(way: str) -> None:
    """URDF cannot say it, and a note says so."""
    description = replace(described("ur5e"), gravity=(0.1, 0.0, -1.62))
    text, notes = written(description, way)
    has_note = any("gravity" in note.text for note in notes)
    assert (has_note, read_text(text).gravity) == (
        (True, (0.0, 0.0, -9.81)) if way == "urdf" else (False, (0.1, 0.0, -1.62))
    )


@pytest.mark.parametrize("name", wide([*OWN, *REAL], {*OWN, *REAL[::3]}.__contains__))
@pytest.mark.parametrize("way", ["urdf", "sdf", "mjcf"])
def test_there_and_back(way: str, name: str) -> None:
    """What the format cannot say has a note; left out on both sides, the robots are the same."""
    description = described(name)
    text, notes = written(description, way)
    back = read_text(text)
    losses = {
        (note.element, word)
        for note in notes
        for word in ("spring", "armature", "width", "velocity")
        if word in note.text
    }
    for joint in description.joints:
        element = f"joint '{joint.name}'"
        other = (
            next(candidate for candidate in back.joints if candidate.name in (joint.name, f"{joint.name}_joint"))
            if joint.moves.nv
            else joint
        )
        for word, is_lost in {
            "armature": joint.armature != other.armature,
            "spring": (joint.stiffness, joint.rest) != (other.stiffness, other.rest),
            "width": bool(joint.friction) and joint.friction_width != other.friction_width,
        }.items():
            assert is_lost <= ((element, word) in losses or (way == "mjcf" and word == "width")), (element, word)
        assert joint.damping == other.damping
        assert joint.friction == other.friction
    bare = tuple(
        replace(joint, armature=0.0, stiffness=0.0, rest=0.0, friction_width=None) for joint in description.joints
    )
    bare_back = tuple(
        replace(joint, armature=0.0, stiffness=0.0, rest=0.0, friction_width=None) for joint in back.joints
    )
    robot = interpreted_robot(Robot(replace(description, joints=bare)))
    other_robot = interpreted_robot(Robot(replace(back, joints=bare_back)))
    new_names = {note.element for note in notes if "is called" in note.text}
    assert len(robot.joint_names) == len(other_robot.joint_names)
    assert new_names or robot.joint_names == other_robot.joint_names
    q, v, a = sized(robot)
    tau, tau_back = robot.inverse_dynamics(q, v, a), other_robot.inverse_dynamics(q, v, a)
    assert relative_error(tau_back, tau) < 1e-13
    if name in TO_THE_BIT and way != "mjcf":
        assert np.array_equal(tau, tau_back)
        assert (robot.fingerprint == other_robot.fingerprint) == (way == "urdf")  # in SDFormat a joint holds the root
    assert {link for link in other_robot.link_names if not link.endswith("_link")} <= set(robot.link_names) | {"world"}


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_in_the_hands_of_mujoco(name: str) -> None:
    description = described(name)
    text, _ = written(description, "mjcf")
    try:
        model = mujoco.MjModel.from_xml_string(text)
    except ValueError as fault:
        if "inertia" not in str(fault) and "mass" not in str(fault):
            raise
        pytest.skip(f"MuJoCo takes no such inertia: {fault}")
    assert max(errors(text, model).values()) <= TOLERANCE
    # And what MuJoCo says of it is what we say of the first file.
    robot = interpreted_robot(
        Robot(replace(description, joints=tuple(replace(j, friction=0.0) for j in description.joints)))
    )
    other = interpreted_robot(
        Robot(replace(read_text(text), joints=tuple(replace(j, friction=0.0) for j in read_text(text).joints)))
    )
    q, v, a = sized(robot)
    assert relative_error(other.inverse_dynamics(q, v, a), robot.inverse_dynamics(q, v, a)) < TOLERANCE


def test_enough_of_them_are_taken() -> None:
    count = 0
    for name in [*OWN, *REAL]:
        try:
            mujoco.MjModel.from_xml_string(written(described(name), "mjcf")[0])
        except ValueError:
            continue
        count += 1
    assert count >= 12


def test_a_floating_root() -> None:
    description = rooted(described("z1_description/urdf/z1.urdf"), "floating")
    text, _ = written(description, "mjcf")
    model = mujoco.MjModel.from_xml_string(text)
    assert max(errors(text, model).values()) <= TOLERANCE
    # SDFormat has no floating joint: a model without a joint to the world floats.
    sdf_text, notes = written(read_text(text), "sdf")
    assert "without a joint to the world floats" in notes[0].text
    robot = interpreted_robot(Robot.from_text(text)).without_passive
    other = interpreted_robot(Robot.from_text(sdf_text, root="floating")).without_passive
    q, v, a = sized(other)
    assert relative_error(robot.inverse_dynamics(q, v, a), other.inverse_dynamics(q, v, a)) < 1e-12


def test_joints_of_one_body_stay_so() -> None:
    text = """<mujoco model="m"><worldbody><body name="b" pos="1 0 0" euler="10 20 30"><joint name="x" type="slide"
      axis="1 0 0"/><joint name="y" axis="0 1 0" pos="0 0 0.3" ref="20"/><geom size="0.1" pos="0.2 0
      0"/></body></worldbody> </mujoco>"""
    written_text, _ = written(read_text(text), "mjcf")
    model = mujoco.MjModel.from_xml_string(written_text)
    assert (model.nbody, model.nv) == (2, 2)
    assert max(errors(written_text, model).values()) <= TOLERANCE


def test_a_link_without_mass_between_joints_that_stand_askew() -> None:
    """In MuJoCo it is no body: both joints are the outer link's, in its axes."""
    robot = read_text(
        '<robot name="r"><link name="a"/><link name="b"/><link name="c"><inertial>'
        '<origin xyz="0.1 0.2 0.3" rpy="1 2 3"/>'
        '<mass value="1"/><inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0.004" ixz="-0.002" iyz="0.001"/>'
        "</inertial></link>"
        '<joint name="j" type="revolute"><origin xyz="1 0 0" rpy="0.3 0.2 0.1"/><parent link="a"/><child link="b"/>'
        '<axis xyz="0 1 0"/></joint><joint name="k" type="prismatic"><origin xyz="0.1 0.2 0.3" rpy="1 2 3"/>'
        '<parent link="b"/><child link="c"/><axis xyz="0 0.6 0.8"/></joint></robot>'
    )
    text, notes = written(robot, "mjcf")
    assert any("link 'b' is not a body" in note.text for note in notes)
    model = mujoco.MjModel.from_xml_string(text)
    assert model.nbody == 3
    assert max(errors(text, model).values()) <= TOLERANCE
    urdf_robot, other = (interpreted_robot(Robot(source)) for source in (robot, read_text(text)))
    q, v, a = sized(urdf_robot)
    assert relative_error(other.inverse_dynamics(q, v, a), urdf_robot.inverse_dynamics(q, v, a)) < 1e-13


def test_springs_are_missed_in_urdf() -> None:
    robot = read_text(
        '<mujoco model="m"><worldbody><body><joint name="j" stiffness="3" springref="90"/><geom size="0.1"/></body>'
        "</worldbody></mujoco>"
    )
    assert [note.text for note in written(robot, "urdf")[1]] == [
        "its spring, stiffness 3, rest position 1.5708, is not written: use a joint file"
    ]
    assert read_text(written(robot, "sdf")[0]).joints[0].rest == robot.joints[0].rest


UNWRITTEN = [
    ("mjcf", "screw"),
    *(("sdf", kind) for kind in ("planar", "floating", "cylindrical")),
    ("urdf", "cylindrical"),
]


@pytest.mark.parametrize(("way", "kind"), UNWRITTEN)
def test_what_a_format_has_not(way: str, kind: str) -> None:
    pitch = '<drake:screw_thread_pitch value="0.1"/>' if kind == "screw" else ""
    robot = read_text(
        f'<robot name="r"><link name="a"/><link name="b"/><link name="c"/><joint name="f" type="fixed"><parent '
        f'link="a"/>'
        f'<child link="b"/></joint><joint name="j" type="{kind}"><parent link="b"/><child link="c"/>'
        f'<axis xyz="0 0 1"/>{pitch}</joint></robot>'
    )
    with pytest.raises(UnimplementedError, match=r"^joint 'j': "):
        written(robot, way)
    if ("urdf", kind) not in UNWRITTEN:
        assert "<" in written(robot, "urdf")[0]


def test_a_cylindrical_joint_is_a_hinge_and_a_slide_in_mjcf() -> None:
    """Of one body, along one axis, in the order of its entries: read back as two joints with the same dynamics."""
    inertial = (
        '<inertial><origin xyz="0.1 -0.05 0.2"/><mass value="1.5"/>'
        '<inertia ixx="0.02" ixy="0.001" ixz="0" iyy="0.025" iyz="0" izz="0.012"/></inertial>'
    )
    robot = read_text(
        f'<robot name="r"><link name="a"/><link name="b">{inertial}</link><joint name="j" type="cylindrical">'
        '<parent link="a"/><child link="b"/><origin xyz="0.1 0.2 0.3" rpy="0.3 -0.2 1.0"/>'
        '<axis xyz="0.36 0.48 0.8"/><dynamics damping="0.7"/></joint></robot>'
    )
    text, notes = written(robot, "mjcf")
    assert ["hinge, slide" in note.text for note in notes] == [True]
    original, read_back = (interpreted_robot(Robot(description)) for description in (robot, read_text(text)))
    assert read_back.joint_names == ("j.angle", "j.distance")
    q, v, a = sized(original)
    assert relative_error(read_back.inverse_dynamics(q, v, a), original.inverse_dynamics(q, v, a)) < 1e-13


def test_rotors_stay_in_sdf() -> None:
    description = described("ur5e")
    rotors = [0.1 * k if joint.moves.nv else 0.0 for k, joint in enumerate(description.joints)]
    joints = [replace(joint, armature=rotor) for joint, rotor in zip(description.joints, rotors, strict=True)]
    text, notes = written(replace(description, joints=tuple(joints)), "sdf")
    assert [joint.armature for joint in read_text(text).joints if joint.moves.nv] == [
        joint.armature for joint in joints if joint.moves.nv
    ]
    assert not any("armature" in note.text for note in notes)
    idle = [replace(joint, limit=Limit(effort=0.0)) for joint in joints]
    _, notes = written(replace(description, joints=tuple(idle)), "sdf")
    assert sum("its armature" in note.text for note in notes) == sum(map(bool, rotors))


def test_screws_and_balls_of_sdf() -> None:
    robot = read_text(
        '<robot name="r"><link name="a"/><link name="b"><inertial><mass value="1"/></inertial></link><link name="c">'
        '<inertial><origin xyz="1 0 0"/><mass value="1"/></inertial></link><drake:joint name="s" type="screw">'
        '<parent link="a"/><child link="b"/><axis xyz="0 0 1"/><drake:screw_thread_pitch value="0.25"/></drake:joint>'
        '<drake:joint name="t" type="ball"><parent link="b"/><child link="c"/></drake:joint></robot>'
    )
    for way in ("sdf", "urdf"):
        back = read_text(written(robot, way)[0])
        assert Robot(back).fingerprint == Robot(robot).fingerprint or way == "sdf"
        assert next(joint.pitch for joint in back.joints if joint.name == "s") == 0.25


@pytest.mark.parametrize(
    "moments", ['ixx="1" iyy="1" izz="3" ixy="0" ixz="0" iyz="0"', 'ixx="1" iyy="1" izz="1" ixy="1" ixz="1" iyz="1"']
)
@pytest.mark.parametrize("odd", ["a", "b"])
def test_moments_that_no_body_has(moments: str, odd: str) -> None:
    """MuJoCo refuses them: where the link stands still they are left out, else a note says so."""
    sane = 'ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"'
    links = "".join(
        f'<link name="{name}"><inertial><mass value="1"/><inertia {link_moments}/></inertial></link>'
        for name, link_moments in {"a": sane, "b": sane, odd: moments}.items()
    )
    joint = '<joint name="j" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint>'
    text, notes = written(read_text(f'<robot name="r">{links}{joint}</robot>'), "mjcf")
    (note,) = (note for note in notes if "principal moments" in note.text)
    assert (note.kind, note.element) == ("dropped" if odd == "a" else "warning", f"link '{odd}'")
    if odd == "a":
        assert mujoco.MjModel.from_xml_string(text).nv == 1
    else:
        with pytest.raises(ValueError, match="inertia"):
            mujoco.MjModel.from_xml_string(text)
