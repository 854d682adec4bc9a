"""Robots with closed loops from one format to another: the same loop joints, or a refusal."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from dyn_service import Robot, find_robot
from dyn_service.cli import main as cli
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.model.description import Description, LoopJoint
from dyn_service.parsing.conversion import convert, urdf_of, written
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.joint_files import with_joint_file
from dyn_service.parsing.pose import Pose, about
from tests.parsing.test_loops import CONTROLLED, FOUR_BAR, MJCF, PIN, WRIST, Z, four_bar, slider_crank
from tests.phrases import naming

TILTED = '<pose relative_to="rod">0.5 0 0.1 0.3 -0.2 0.7</pose>'
AXIS = "<axis><xyz>0.6 0 0.8</xyz></axis>"
KINDS = {
    "fixed": WRIST.format(kind="fixed", pose=TILTED, axis=""),
    "ball": WRIST.format(kind="ball", pose=TILTED, axis=""),
    "revolute": WRIST.format(kind="revolute", pose=TILTED, axis=AXIS),
    "prismatic": WRIST.format(kind="prismatic", pose=TILTED, axis=AXIS),
    "screw": WRIST.format(kind="screw", pose=TILTED, axis=AXIS + "<screw_thread_pitch>0.02</screw_thread_pitch>"),
}


def assert_same(first: Description, second: Description) -> None:
    for joint, other in zip(first.loop_joints, second.loop_joints, strict=True):
        assert (joint.name, joint.moves.type, joint.parent, joint.child, joint.pitch) == (
            other.name, other.moves.type, other.parent, other.child, other.pitch,
        )  # fmt: skip
        for field in ("parent_xyz", "parent_rotation", "child_xyz", "child_rotation", "axis"):
            np.testing.assert_allclose(getattr(joint, field), getattr(other, field), atol=1e-14)
    assert [joint.name for joint in first.joints] == [joint.name for joint in second.joints]


@pytest.mark.parametrize("kind", KINDS)
def test_sdformat_and_back(kind: str) -> None:
    description = read_text(slider_crank(KINDS[kind]))
    text, notes = written(description, "sdf")
    assert notes == []
    assert_same(read_text(text), description)


@pytest.mark.parametrize("kind", KINDS)
def test_urdf_with_a_joint_file_and_back(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "crank.sdf"
    source.write_text(slider_crank(KINDS[kind], pin="<limit><effort>0</effort></limit>"))
    notes = convert(source, tmp_path / "out.urdf")
    assert [note.element for note in notes] == [f"joint file '{tmp_path / 'out.loops.yaml'}'"]
    plain, description = read_file(tmp_path / "out.urdf"), read_file(source)
    assert plain.loop_joints == ()
    closed = with_joint_file(plain, tmp_path / "out.loops.yaml")
    assert_same(closed, description)
    assert [joint.driven for joint in closed.joints] == [True, False, True]


def test_files_beside_each_other_are_not_overwritten(tmp_path: Path) -> None:
    source, target, loops = (tmp_path / name for name in ("crank.sdf", "out.urdf", "out.loops.yaml"))
    source.write_text(slider_crank())
    loops.write_text("precious")
    with pytest.raises(InvalidArgumentError, match=naming(str(loops), "--force")):
        convert(source, target)
    assert (target.exists(), loops.read_text()) == (False, "precious")
    convert(source, target, force=True)
    assert loops.read_text().startswith("robot: slider_crank\nloops:\n")
    for path in (target, loops):
        path.unlink()
    convert(source, target, loops="cut")
    assert (target.exists(), loops.exists()) == (True, False)


def test_the_command_names_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "crank.sdf"
    source.write_text(slider_crank())
    monkeypatch.setattr("sys.argv", ["dyn", "convert", str(source), str(tmp_path / "out.urdf")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert f"{tmp_path / 'out.urdf'} is written" in text
    assert str(tmp_path / "out.loops.yaml") in text


def test_urdf_alone_has_no_loops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FailedPreconditionError, match=naming("'wrist'", "URDF", "cut")):
        written(read_text(slider_crank()), "urdf")
    source = tmp_path / "crank.sdf"
    source.write_text(slider_crank())
    assert "wrist" not in urdf_of(source)
    assert "'wrist'" in caplog.text


def site_frames(model: Any, name: str) -> tuple[tuple[str, ...], list[Pose]]:
    """Returns the bodies and frames that an equality between sites joins."""
    k = model.equality(name).id
    sites = [int(model.eq_obj1id[k]), int(model.eq_obj2id[k])]
    assert model.eq_objtype[k] == mujoco.mjtObj.mjOBJ_SITE
    rotations = []
    for site in sites:
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, model.site_quat[site])
        rotations.append(rotation.reshape(3, 3))
    bodies = tuple(model.body(model.site_bodyid[site]).name for site in sites)
    return bodies, [Pose(R, model.site_pos[site]) for R, site in zip(rotations, sites, strict=True)]


@pytest.mark.parametrize("kind", ["fixed", "ball"])
def test_mjcf_and_back(kind: str) -> None:
    description = read_text(slider_crank(KINDS[kind]))
    text, notes = written(description, "mjcf")
    assert [(note.element, "soft" in note.text) for note in notes] == [("joint 'wrist'", True)]
    assert_same(read_text(text), description)
    (wrist,) = description.loop_joints
    bodies, frames = site_frames(mujoco.MjModel.from_xml_string(text), "wrist")
    assert bodies == ("rod", "slider")
    np.testing.assert_allclose(frames[0].origin, wrist.parent_xyz, atol=1e-15)
    np.testing.assert_allclose(frames[1].rotation, wrist.child_rotation, atol=1e-15)


def test_a_hinge_is_two_points_in_mujoco() -> None:
    """They block what the hinge blocks: five directions, as many as MuJoCo's two equalities have of rank."""
    description = read_text(slider_crank(KINDS["revolute"]))
    text, _ = written(description, "mjcf")
    model = mujoco.MjModel.from_xml_string(text)
    (wrist,) = description.loop_joints
    points = {name: site_frames(model, name)[1] for name in ("wrist", "wrist_axis")}
    for k, rotation in enumerate((wrist.parent_rotation, wrist.child_rotation)):
        step = points["wrist_axis"][k].origin - points["wrist"][k].origin
        np.testing.assert_allclose(step, 0.1 * rotation @ wrist.axis, atol=1e-15)
    # Both bodies free in MuJoCo, so that the rank is that of the equalities alone.
    free = """<mujoco><worldbody>{}</worldbody><equality>{}</equality></mujoco>"""
    bodies = "".join(
        f'<body name="{k}"><freejoint/><geom size="0.1" contype="0" conaffinity="0"/>'
        f'<site name="p{k}" pos="{" ".join(map(str, points["wrist"][k].origin))}"/>'
        f'<site name="a{k}" pos="{" ".join(map(str, points["wrist_axis"][k].origin))}"/></body>'
        for k in range(2)
    )
    equalities = '<connect site1="p0" site2="p1"/><connect site1="a0" site2="a1"/>'
    model = mujoco.MjModel.from_xml_string(free.format(bodies, equalities))
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert np.linalg.matrix_rank(data.efc_J.reshape(data.nefc, model.nv), tol=1e-9) == 6
    # Moved to where the points of both bodies coincide, one of the six rows depends on the others.
    pose = Pose(wrist.parent_rotation, wrist.parent_xyz) @ Pose(wrist.child_rotation, wrist.child_xyz).inverse
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, pose.rotation.ravel())
    data.qpos[7:] = [*pose.origin, *quat]
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.efc_pos, 0.0, atol=1e-12)
    assert np.linalg.matrix_rank(data.efc_J.reshape(data.nefc, model.nv), tol=1e-9) == 5


def test_motors_of_robots_with_loops_are_actuators(tmp_path: Path) -> None:
    description = four_bar(tmp_path, PIN, CONTROLLED)
    text, _ = written(description, "mjcf")
    copy = read_text(text)
    assert [(joint.name, joint.driven) for joint in copy.joints if joint.moves.nv] == [
        ("crank", True), ("elbow", False), ("rock", False),
    ]  # fmt: skip
    assert "<actuator>" not in written(read_text(FOUR_BAR.format(CONTROLLED)), "mjcf")[0]


def test_sdformat_keeps_no_motors() -> None:
    notes = written(read_text(slider_crank(pin="<limit><effort>0</effort></limit>")), "sdf")[1]
    assert [note.text for note in notes if "driven" in note.text] == [
        "which joints are driven is not written: use a joint file"
    ]


def test_links_of_loops_are_bodies_in_mjcf() -> None:
    """A link without mass that only separates joints is no body of its own, unless a loop joint holds on to it."""
    text = """<robot name="r"><link name="a"/><link name="b"/>
      <link name="c"><inertial><mass value="1"/></inertial></link>
      <joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>
      <joint name="k" type="continuous"><parent link="b"/><child link="c"/></joint>{}</robot>"""
    ball = """<loop_joint name="l" type="spherical"><link1 link="a" xyz="0 0 0"/><link2 link="b" xyz="0 0 0"/>
      </loop_joint>"""
    assert '<body name="b"' not in written(read_text(text.format("")), "mjcf")[0]
    (joint,) = read_text(written(read_text(text.format(ball)), "mjcf")[0]).loop_joints
    assert (joint.parent, joint.child) == ("a", "b")


@pytest.mark.parametrize("kind", ["prismatic", "screw"])
def test_mujoco_has_no_equality_of_other_types(kind: str) -> None:
    with pytest.raises(UnimplementedError, match=naming("'wrist'", "MuJoCo", kind)):
        written(read_text(slider_crank(KINDS[kind])), "mjcf")


@pytest.mark.parametrize("kind", ["cylindrical", "planar"])
def test_sdformat_has_no_loops_of_other_types(kind: str, tmp_path: Path) -> None:
    description = four_bar(tmp_path, PIN.replace("revolute", kind))
    with pytest.raises(UnimplementedError, match=naming("'pin'", "SDFormat", kind)):
        written(description, "sdf")


def test_loops_that_are_open_at_zero_are_not_written_to_sdformat(tmp_path: Path) -> None:
    """SDFormat has one frame for a joint, so a loop is closed where all joints are at zero."""
    description = four_bar(tmp_path)
    with pytest.raises(UnimplementedError, match=naming("'pin'", "SDFormat", "zero", "URDF")):
        written(description, "sdf")
    (joint,) = read_text(written(description, "mjcf")[0]).loop_joints[:1]
    np.testing.assert_allclose(joint.parent_xyz, description.loop_joints[0].parent_xyz)


def closed_at_zero(kind: str, child: Pose) -> Description:
    """Returns a slider crank whose wrist has another child frame."""
    description = read_text(slider_crank(KINDS[kind]))
    (wrist,) = description.loop_joints
    pose = Pose(wrist.child_rotation, wrist.child_xyz) @ child
    return replace(description, loop_joints=(replace(wrist, child_xyz=pose.origin, child_rotation=pose.rotation),))


TURNED, SHIFTED = 0.4, 0.3
AXIS_6_8 = np.array([0.6, 0.0, 0.8])


@pytest.mark.parametrize(
    ("kind", "turn", "shift", "fits"),
    [
        ("revolute", TURNED, 0.0, True),
        ("revolute", 0.0, SHIFTED, False),
        ("prismatic", 0.0, SHIFTED, True),
        ("prismatic", TURNED, 0.0, False),
        ("screw", TURNED, 0.02 * TURNED / (2.0 * np.pi), True),
        ("screw", TURNED, 0.0, False),
        ("ball", TURNED, 0.0, True),
        ("ball", 0.0, SHIFTED, False),
        ("fixed", TURNED, 0.0, False),
        ("fixed", 0.0, SHIFTED, False),
    ],
)
def test_a_loop_joint_may_be_displaced_at_zero(kind: str, turn: float, shift: float, fits: bool) -> None:
    """What the joint lets move is no gap: written, it is at zero there, and blocks the same."""
    displaced = closed_at_zero(kind, Pose(about(AXIS_6_8, turn), shift * AXIS_6_8))
    if not fits:
        with pytest.raises(UnimplementedError, match=naming("'wrist'", "SDFormat")):
            written(displaced, "sdf")
        return
    (wrist,) = read_text(written(displaced, "sdf")[0]).loop_joints
    np.testing.assert_allclose(wrist.parent_rotation, displaced.loop_joints[0].parent_rotation, atol=1e-14)


def test_loops_of_a_floating_robot_with_the_world() -> None:
    """In SDFormat a model floats if no joint holds it to the world."""
    hooked = read_text(MJCF.format("", '<connect body1="c" anchor="0 0 0"/>'))
    assert written(hooked, "mjcf")[0].count("<connect") == 1
    text = (
        '<mujoco model="m"><worldbody><body name="c"><freejoint/><geom size="0.1"/></body></worldbody>'
        '<equality><connect name="hook" body1="c" anchor="0 0 1"/></equality></mujoco>'
    )
    with pytest.raises(UnimplementedError, match=naming("'hook'", "world", "SDFormat")):
        written(read_text(text), "sdf")


def test_names_of_loop_joints_and_links_differ_in_sdformat(tmp_path: Path) -> None:
    text = slider_crank().replace('"wrist"', '"rod_pin"')
    description = read_text(text)
    (wrist,) = description.loop_joints
    namesake: LoopJoint = replace(wrist, name="rod")
    copy = read_text(written(replace(description, loop_joints=(namesake,)), "sdf")[0])
    assert [joint.name for joint in copy.loop_joints] == ["rod_joint"]


def test_loops_that_are_no_loop_joints_are_not_written() -> None:
    gearbox = slider_crank(WRIST.format(kind="gearbox", pose="", axis=Z))
    for format in ("urdf", "mjcf", "sdf"):
        with pytest.raises(FailedPreconditionError, match=naming("'wrist'", "gearbox")):
            written(read_text(gearbox), format)


POSITIONS = {"motor_1": 0.2, "motor_2": 0.5, "motor_3": -0.1}


@pytest.mark.parametrize("format", ["sdf", "mjcf"])
def test_a_floating_link_that_loops_hold(format: str) -> None:
    """The platform of a delta robot: a link without a joint in SDFormat, a free body of the world in MJCF."""
    description = read_file(find_robot("delta"))
    text, notes = written(description, format)
    assert [note.kind for note in notes if note.element == "joint 'platform_joint'"] == ["changed"]
    robot, copy = Robot(description), Robot.from_text(text)
    assert ("platform_joint" in copy.joint_names) == (format == "mjcf")
    q = _closed(robot, dict.fromkeys(robot.joint_names, 0.0) | POSITIONS)
    passive = {name: float(q[part.start]) for name, part in _scalars(robot)}
    free = {"platform_joint": [*robot.link_poses(q).position[robot.link_names.index("platform")], *_quaternion(q)]}
    q_copy = _closed(copy, {**passive, **(free if format == "mjcf" else {})})
    for name in ("platform", "tool0"):
        poses = [model.link_poses(x) for model, x in ((robot, q), (copy, q_copy))]
        places = [pose.position[pose.links.index(name)] for pose in poses]
        np.testing.assert_allclose(places[1], places[0], atol=1e-9)
    efforts = [model.gravity_forces(x) for model, x in ((robot, q), (copy, q_copy))]
    by_joint = [
        {name: tau[model.configuration.v_slices[model.joint_names.index(name)].start] for name in POSITIONS}
        for model, tau in zip((robot, copy), efforts, strict=True)
    ]
    assert min(map(abs, by_joint[0].values())) > 1.0
    for name in POSITIONS:
        assert by_joint[1][name] == pytest.approx(by_joint[0][name], rel=1e-8)


def _scalars(robot: Robot) -> list[tuple[str, slice]]:
    parts = zip(robot.joint_names, robot.configuration.q_slices, strict=True)
    return [(name, part) for name, part in parts if part.stop - part.start == 1]


def _closed(robot: Robot, values: dict[str, Any]) -> Any:
    q = robot.configuration.neutral.copy()
    for name, part in zip(robot.joint_names, robot.configuration.q_slices, strict=True):
        if part.stop - part.start == 1 or np.ndim(values.get(name, 0.0)):
            q[part] = values[name]
    return robot.assemble(q, fixed=list(POSITIONS))


def _quaternion(q: Any) -> Any:
    """Returns the platform's quaternion; its frame and the world's have the same axes at zero."""
    return q[-4:]


def test_floating_links_that_cannot_be_written() -> None:
    """No loop joint holds the link, or its parent moves."""
    text = """<robot name="r"><link name="a"/>
      <link name="b"><inertial><mass value="1"/></inertial></link>
      <link name="c"><inertial><mass value="1"/></inertial></link>
      <joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>
      <joint name="f" type="floating"><parent link="b"/><child link="c"/></joint></robot>"""
    description = read_text(text)
    with pytest.raises(UnimplementedError, match=naming("'f'", "'c'", "SDFormat", "write MJCF")):
        written(description, "sdf")
    with pytest.raises(UnimplementedError, match=naming("'f'", "'b'", "moves", "MuJoCo")):
        written(description, "mjcf")


def test_a_hinge_of_mjcf_is_read_as_a_hinge() -> None:
    description = read_text(slider_crank(KINDS["revolute"]))
    text, _ = written(description, "mjcf")
    # A revolute joint without limits is continuous in SDFormat; limits of loop joints are ignored.
    (wrist,) = description.loop_joints
    assert_same(read_text(text), replace(description, loop_joints=(replace(wrist, type="revolute"),)))
    # Other names, or anchors that are farther apart on one body, are two balls.
    renamed = text.replace("wrist_axis", "second")
    moved = re.sub(r'(name="wrist_axis_child" pos=")\S+', r"\g<1>1.0", text)
    for other in (renamed, moved):
        assert [joint.type for joint in read_text(other).loop_joints] == ["spherical", "spherical"]


def test_a_hinge_of_mjcf_carries_the_load_of_a_hinge(tmp_path: Path) -> None:
    """A pin of a planar linkage in one piece: its load is that of the original."""
    description = read_file(find_robot("four_bar"))
    robot, copy = Robot(description), Robot.from_text(written(description, "mjcf")[0])
    q = robot.assemble([0.7, 0.0, 0.0], fixed=["crank_joint"])
    zero = np.zeros(3)
    loads = [
        dict(zip(model.description.all_joint_names, model.constraint_forces(q, zero, zero).constraint, strict=True))
        for model in (robot, copy)
    ]
    assert np.linalg.norm(loads[0]["pin"][3:]) > 0.01
    np.testing.assert_allclose(loads[1]["pin"], loads[0]["pin"], atol=1e-9)


def test_a_file_of_loops_beside_a_robot_is_reported(tmp_path: Path) -> None:
    source, target = tmp_path / "crank.sdf", tmp_path / "crank.urdf"
    source.write_text(slider_crank())
    convert(source, target)
    loops = tmp_path / "crank.loops.yaml"
    texts = [
        [note.text for note in robot.receipt.of_kind("warning") if loops.name in note.text]
        for robot in (
            Robot.from_file(target), Robot.from_file(target, joints=loops), Robot.from_file(target, loops="cut"),
        )
    ]  # fmt: skip
    assert [len(text) for text in texts] == [1, 0, 0]
    assert "--joints" in texts[0][0]
