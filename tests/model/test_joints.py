"""Joint types by themselves: poses, motion subspaces, motion on the manifold, momenta."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dyn_service
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, UrdfError
from dyn_service.model.configuration import Configuration
from dyn_service.model.joints import JOINT_TYPES, NUMBERS, Joint, Planar
from dyn_service.model.joints.rotations import matrix
from tests.conftest import URDF
from tests.phrases import naming
from tests.random_robots import MANY_TYPES as TYPES
from tests.trees import configuration

TURNING = """<robot name="r"><link name="world"/>
<link name="a"><inertial><mass value="2"/><origin xyz="0.1 0 0.3"/>
<inertia ixx="1" iyy="2" izz="1.5" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="b"><inertial><mass value="1"/><origin xyz="0 0.2 0"/>
<inertia ixx="0.1" iyy="0.2" izz="0.2" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="wheel" type="continuous"><parent link="world"/><child link="a"/><axis xyz="0 1 0"/></joint>
<joint name="arm" type="revolute"><parent link="a"/><child link="b"/><origin xyz="0 0 0.4"/><axis xyz="1 0 0"/>
<limit lower="-9" upper="9" velocity="9" effort="9"/></joint></robot>"""
"""A joint whose turns change no pose, and one whose turns do."""

AXES = [(0.0, 0.0, 1.0), (0.0, 0.0, -1.0), (1.0, 0.0, 0.0), (0.48, -0.6, 0.64)]
UNLIMITED = np.full(7, np.inf)


def joint_of(kind: str, axis: tuple[float, ...] = AXES[3]) -> Joint:
    return JOINT_TYPES[kind](np.array(axis), 0.3)


def random_joint_state(joint: Joint, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return joint.random(rng, -UNLIMITED[: joint.nq], UNLIMITED[: joint.nq]), rng.normal(size=joint.nv)


def spin(R: np.ndarray) -> np.ndarray:
    """The vector of a skew matrix."""
    return np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kind", TYPES)
def test_the_pose_moves_as_the_subspace_says(kind: str, axis: tuple[float, ...]) -> None:
    """[omega; v] of the body in its axes, from the pose's derivative along q-dot = N(q) v, is G v."""
    joint = joint_of(kind, axis)
    for seed in range(4):
        q, v = random_joint_state(joint, seed)
        rate, h = np.array(joint.rate(q, v, NUMBERS)), 1e-6
        (R, _), (R_after, p_after), (R_before, p_before) = (joint.pose(q + s * h * rate) for s in (0, 1, -1))
        omega, linear = spin(R.T @ (R_after - R_before) / (2 * h)), R.T @ (p_after - p_before) / (2 * h)
        np.testing.assert_allclose(np.concatenate([omega, linear]), joint.subspace @ v, atol=1e-9)
        np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-14)


@pytest.mark.parametrize("kind", TYPES)
def test_rate_is_velocity_where_the_class_says_so(kind: str) -> None:
    joint = joint_of(kind)
    q, v = random_joint_state(joint, 3)
    assert (joint.nq == joint.nv and np.array_equal(joint.rate(q, v, NUMBERS), v)) == joint.rate_is_velocity
    assert joint.single_dof == (joint.nq == joint.nv == 1)


@pytest.mark.parametrize("kind", TYPES)
def test_every_entry_is_that_of_the_joint_alone(kind: str) -> None:
    """Behind a joint whose positions do not add up, for one state and for many: no entry is left out."""
    single, chain = configuration(["j"], [kind]), configuration(["base", "j"], ["floating", kind])
    rng = np.random.default_rng(9)
    in_q, in_v = chain.q_slices[1], chain.v_slices[1]
    q, q_end = (np.stack([chain.random(rng, *np.full((2, chain.nq), np.inf)) for _ in range(9)]) for _ in range(2))
    v, p = rng.normal(size=(2, 9, chain.nv))
    for name, x, y, of_x, of_y, of_result in (
        ("integrate", q, v, in_q, in_v, in_q), ("rate", q, v, in_q, in_v, in_q),
        ("difference", q, q_end, in_q, in_q, in_v),
        ("momentum_on_parent", q, p, in_q, in_v, in_v), ("momentum_on_body", q, p, in_q, in_v, in_v),
        ("turning", v, p, in_v, in_v, in_v), ("carried", v, p, in_v, in_v, in_v), ("bracket", v, p, in_v, in_v, in_v),
        ("error", q, q_end, in_q, in_q, in_v),
    ):  # fmt: skip
        for rows in (slice(9), 0):
            whole = getattr(chain, name)(x[rows], y[rows])[..., of_result]
            np.testing.assert_array_equal(whole, getattr(single, name)(x[rows][..., of_x], y[rows][..., of_y]), name)
    np.testing.assert_array_equal(chain.normalised(q)[..., in_q], single.normalised(q[..., in_q]))


@pytest.mark.parametrize("kind", TYPES)
def test_a_pose_and_back(kind: str) -> None:
    """Of joints with several degrees of freedom, which messages describe by a pose."""
    joint = joint_of(kind)
    if joint.single_dof:
        pytest.skip("described by its position")
    for seed in range(4):
        q, _ = random_joint_state(joint, seed)
        rotation, p = joint.to_pose(q.tolist())
        R, shift = joint.pose(q)
        np.testing.assert_allclose(np.reshape(matrix(rotation), (3, 3)), R, atol=1e-15)
        np.testing.assert_allclose(p, shift, atol=1e-15)
        np.testing.assert_allclose(joint.of_pose(rotation, p), q, atol=1e-14)


OWN_WORDS = {
    "engine/export/fmu.py": {"continuous", "fixed"},  # FMI: variability and initial
    "engine/loops/computations.py": {"fixed"},  # the option of `assemble`
    "parsing/mjcf/joints.py": {"ball", "fixed"},  # the tendon <fixed>
    "parsing/sdf/reader.py": {"revolute"},
    "parsing/writing/mjcf.py": {"ball"},
}
"""Modules of formats whose own vocabulary has words that are names of joint types, and these words."""


def test_no_other_module_knows_a_joint_type_by_name() -> None:
    """Strings that are names in `JOINT_TYPES`, outside `model/joints`, except values of the option `root`."""
    package = Path(dyn_service.__file__).parent
    words: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        place, lines = path.relative_to(package).as_posix(), path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            is_name = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in JOINT_TYPES
            if is_name and not place.startswith("model/joints/") and "root" not in lines[node.lineno - 1].lower():
                words.setdefault(place, set()).add(node.value)
    assert words == OWN_WORDS, "make what differs an attribute of the joint's class (model/joints/base.py)"


@pytest.mark.parametrize("kind", TYPES)
def test_at_neutral_the_body_stands_in_the_joint_frame(kind: str) -> None:
    joint = joint_of(kind)
    R, p = joint.pose(joint.neutral)
    assert (np.eye(3) == R).all()
    assert (p == 0.0).all()


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-160, 1e-9, 1e-4, 0.1, 0.499, 0.501, 1.0, 3.0])
@pytest.mark.parametrize("kind", TYPES)
def test_difference_undoes_integrate(kind: str, size: float) -> None:
    """At every size of turn, on both sides of where the series take over."""
    joint = joint_of(kind)
    for seed in range(4):
        q, v = random_joint_state(joint, seed)
        v = size * v / np.linalg.norm(v)
        q_next = joint.integrate(q, v, NUMBERS)
        np.testing.assert_allclose(joint.difference(q, q_next, NUMBERS), v, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", TYPES)
def test_integrate_is_the_flow_of_its_rate(kind: str) -> None:
    """Constant v, in a thousand small steps or in one."""
    joint = joint_of(kind)
    q, v = random_joint_state(joint, 3)
    steps = 1000
    q_next = np.array(q)
    for _ in range(steps):
        half = q_next + np.array(joint.rate(q_next, v, NUMBERS)) / (2 * steps)
        q_next = q_next + np.array(joint.rate(half, v, NUMBERS)) / steps
    R, p = joint.pose(np.array(joint.normalised(q_next, NUMBERS)))
    R_one, p_one = joint.pose(np.array(joint.integrate(q, v, NUMBERS)))
    np.testing.assert_allclose(R, R_one, atol=1e-5)
    np.testing.assert_allclose(p, p_one, atol=1e-5)


@pytest.mark.parametrize("kind", TYPES)
def test_momenta_in_the_joint_frame(kind: str) -> None:
    """They do the same work, come back as they were, and their rate is that of a body's and what it turns."""
    joint = joint_of(kind)
    (q, v), p = random_joint_state(joint, 5), np.random.default_rng(6).normal(size=joint.nv)
    on_parent = np.array(joint.momentum_on_parent(q, p, NUMBERS))
    np.testing.assert_allclose(joint.momentum_on_body(q, on_parent, NUMBERS), p, atol=1e-14)
    h, rate = 1e-6, np.array(joint.rate(q, v, NUMBERS))
    on_parent_later = [np.array(joint.momentum_on_parent(q + s * h * rate, p, NUMBERS)) for s in (1, -1)]
    rate_on_parent = np.array(joint.momentum_on_parent(q, joint.turning(v, p), NUMBERS))
    np.testing.assert_allclose((on_parent_later[0] - on_parent_later[1]) / (2 * h), rate_on_parent, atol=1e-8)


@pytest.mark.parametrize("kind", TYPES)
def test_a_velocity_carried_along(kind: str) -> None:
    """w before a motion x is log(exp(-x) exp(w) exp(x)) after it; along x it changes by minus the bracket."""
    joints = configuration(["j"], [kind])
    rng = np.random.default_rng(11)
    x, w = rng.normal(size=(2, joints.nv))
    w /= 2.0
    q_after = joints.integrate(joints.neutral, x)
    expected = joints.difference(q_after, joints.integrate(joints.integrate(joints.neutral, w), x))
    np.testing.assert_allclose(joints.carried(x, w), expected, atol=1e-14)
    h = 1e-6
    rate = (joints.carried(h * x, w) - joints.carried(-h * x, w)) / (2 * h)
    np.testing.assert_allclose(rate, -joints.bracket(x, w), atol=1e-9)
    velocities = np.stack([w, 2 * w, -w])
    assert np.array_equal(joints.carried(np.stack([x, x, 0 * x]), velocities)[0], joints.carried(x, w))
    np.testing.assert_allclose(joints.carried(np.stack([x, x, 0 * x]), velocities)[2], -w, atol=1e-15)


def test_a_state_alone_has_the_bits_that_it_has_among_others() -> None:
    """Few are taken one by one, in Python's numbers: whatever broadcasts, and where a quaternion has no length."""
    joints = configuration([f"j{k}" for k in range(len(TYPES))], TYPES)
    rng = np.random.default_rng(4)
    q, q_end = (np.stack([joints.random(rng, *np.full((2, joints.nq), np.inf)) for _ in range(9)]) for _ in range(2))
    q[1, :] *= 1.7
    v, p = rng.normal(size=(2, 9, joints.nv)) * np.logspace(-200, 0.5, 9)[:, None]
    for f, x, y in (
        (joints.integrate, q, v), (joints.rate, q, v), (joints.difference, q, q_end), (joints.momentum_on_parent, q, p),
        (joints.momentum_on_body, q, p), (joints.turning, v, p), (joints.carried, v, p), (joints.bracket, v, p),
    ):  # fmt: skip
        batch = f(x, y)
        for k in range(9):
            assert f(x[k], y[k]).tobytes() == f(x[k], y[k : k + 1])[0].tobytes() == batch[k].tobytes()
        assert f(x[3:5], y[4]).shape == f(x[4], y[3:5]).shape == (2, batch.shape[-1])
        assert f(x[3:5], y[4])[1].tobytes() == f(x[4], y[3:5])[1].tobytes() == batch[4].tobytes()
        assert f(x, y[4])[4].tobytes() == f(x[4], y)[4].tobytes() == batch[4].tobytes()
        assert f(x[:0], y[:0]).shape == (0, batch.shape[-1])
    assert all(joints.normalised(q[k]).tobytes() == joints.normalised(q)[k].tobytes() for k in range(9))
    ball = configuration(["b"], ["spherical"])
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(ball.integrate(np.zeros(4), np.ones(3))).all()


FLAT = configuration(["hinge", "slide"], ["revolute", "prismatic"])
MANY = configuration([f"j{k}" for k in range(3)], ["floating", "prismatic", "spherical"])


def positions(joints: Configuration, seed: int, count: int) -> np.ndarray:
    rng, free = np.random.default_rng(seed), np.full(joints.nq, np.inf)
    return np.array([joints.random(rng, -free, free) for _ in range(count)])


@pytest.mark.parametrize("joints", [FLAT, MANY], ids=["flat", "many"])
def test_a_duration_for_each_state(joints: Configuration) -> None:
    """(..., 1), also where there are as many states as entries of v."""
    q, v = positions(joints, 1, joints.nv), np.random.default_rng(2).normal(size=(joints.nv, joints.nv))
    dt = np.linspace(0.1, 0.9, joints.nv)
    batch = joints.integrate(q, v, dt[:, None])
    for k in range(joints.nv):
        np.testing.assert_array_equal(batch[k], joints.integrate(q[k], v[k], dt[k]))
    np.testing.assert_array_equal(
        joints.integrate(q[0], v[0], dt[:, None])[3 % joints.nv], joints.integrate(q[0], v[0], dt[3 % joints.nv])
    )
    np.testing.assert_array_equal(joints.integrate(q, v, [0.3]), joints.integrate(q, v, 0.3))
    np.testing.assert_array_equal(joints.integrate(q, v), joints.integrate(q, v, 1.0))


@pytest.mark.parametrize("joints", [FLAT, MANY], ids=["flat", "many"])
def test_motions_of_another_shape_are_refused_by_name(joints: Configuration) -> None:
    q, v = joints.neutral, np.ones(joints.nv)
    refusals: list[tuple[Any, str]] = [
        (
            lambda: joints.integrate(q[1:], v),
            rf"q must be \(..., {joints.nq}\) numbers, found shape \({joints.nq - 1},\)",
        ),
        (lambda: joints.integrate(q, np.ones(joints.nv + 1)), rf"v must be \(..., {joints.nv}\) numbers, found shape"),
        (lambda: joints.integrate(q, 1.0), rf"v must be \(..., {joints.nv}\) numbers, found float 1.0"),
        (lambda: joints.integrate(q, "fast"), rf"v must be \(..., {joints.nv}\) numbers, found str 'fast'"),
        (
            lambda: joints.integrate(q, v, v),
            rf"dt must be a number or \(..., 1\) numbers, found shape \({joints.nv},\)",
        ),
        (lambda: joints.integrate(q, v, "long"), r"dt must be a number or \(..., 1\) numbers, found str 'long'"),
        (lambda: joints.integrate(np.tile(q, (2, 1)), np.tile(v, (3, 1))), r"q \(2,\) and v \(3,\) do not broadcast"),
        (
            lambda: joints.difference(q, q[:-1]),
            rf"to must be \(..., {joints.nq}\) numbers, found shape \({joints.nq - 1},\)",
        ),
        (lambda: joints.difference(0.0, q), rf"q must be \(..., {joints.nq}\) numbers, found float 0.0"),
        (lambda: joints.difference(np.tile(q, (2, 1)), np.tile(q, (3, 1))), r"q \(2,\) and to \(3,\) do not broadcast"),
    ]
    if joints.nq != joints.nv:
        refusals.append(
            (lambda: joints.integrate(q, q), rf"v must be \(..., {joints.nv}\) numbers, found shape \({joints.nq},\)")
        )
    for call, pattern in refusals:
        with pytest.raises(InvalidArgumentError, match=pattern):
            call()


def test_quaternions_of_a_batch_are_all_looked_at() -> None:
    q = positions(MANY, 3, 4)
    MANY.check_unit(q, "q", "inputs.q")
    q[2, MANY.nq - 1] += 3.0
    with pytest.raises(InvalidArgumentError, match=naming("q", "'j2'", "quaternion")) as excinfo:
        MANY.check_unit(q, "q", "inputs.q")
    assert excinfo.value.path == "inputs.q"


def test_positions_are_brought_to_unit_length_where_they_are_not_there() -> None:
    q = positions(MANY, 4, 3)
    assert MANY.unit(q, "q0") is q
    for _ in range(3):  # what is there already stays, to the last bit
        q_next = MANY.integrate(q, np.ones(MANY.nv), 0.3)
        assert MANY.unit(q_next, "q0") is q_next
        q = q_next
    longer = q.copy()
    longer[1, 3:7] *= 2.0
    longer[2, 8:] *= 1.0 + 1e-9
    copy = longer.copy()
    q_unit = MANY.unit(longer, "q0")
    np.testing.assert_array_equal(longer, copy)
    np.testing.assert_allclose(q_unit, q, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(q_unit[0], q[0])
    np.testing.assert_array_equal(MANY.unit(longer[1], "q0"), q_unit[1])
    longer[0, 3:7] = 0.0
    with pytest.raises(InvalidArgumentError, match=naming("q0", "'j0'", "quaternion", "0")):
        MANY.unit(longer, "q0")


def test_joints_on_the_wire() -> None:
    joints = configuration([f"j{k}" for k in range(len(TYPES))], TYPES)
    wire = joints.to_wire()
    assert wire[0] == {"name": "j0", "type": "revolute", "axis": (0.0, 0.0, 1.0)}
    assert [joint["pitch"] for joint in wire if "pitch" in joint] == [0.0]
    from_wire = Configuration.from_wire(wire)
    assert from_wire.to_wire() == wire
    assert from_wire.velocity_names == joints.velocity_names
    press = Configuration.from_wire([{"name": "j", "type": "screw", "axis": [1, 0, 0], "pitch": 0.3}])
    assert press.joints[0].parameters == {"axis": (1.0, 0.0, 0.0), "pitch": 0.3}
    with pytest.raises(KeyError, match="worm"):
        Configuration.from_wire([{"name": "j", "type": "worm"}])


def test_which_velocities_turn() -> None:
    joints = configuration(["a", "b", "c", "d", "e"], ["floating", "prismatic", "planar", "screw", "spherical"])
    expected = [False] * 3 + [True] * 3 + [False] + [False, False, True] + [True] + [True] * 3
    assert joints.turns.tolist() == expected


@pytest.mark.parametrize("kind", ["spherical", "floating"])
def test_quaternions(kind: str) -> None:
    joint = joint_of(kind)
    q, v = random_joint_state(joint, 7)
    longer = q.copy()
    longer[joint.quaternion] *= 3.0
    np.testing.assert_allclose(joint.pose(longer)[0], joint.pose(q)[0], atol=1e-15)
    other = q.copy()
    other[joint.quaternion] *= -1.0
    np.testing.assert_allclose(joint.difference(q, other, NUMBERS), np.zeros(joint.nv), atol=1e-15)
    q_next = np.array(joint.integrate(longer, v, NUMBERS))
    assert abs(np.linalg.norm(q_next[joint.quaternion]) - 1.0) < 1e-15


SCREW = """<robot name="press"><link name="frame"/>
  <link name="ram"><inertial><mass value="2"/>
    <inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <drake:joint name="spindle" type="screw"><parent link="frame"/><child link="ram"/>
    <axis xyz="0 0 1"/>{pitch}</drake:joint>
</robot>"""


def test_a_screw_is_read_as_drake_writes_it() -> None:
    robot = Robot.from_urdf(SCREW.format(pitch='<drake:screw_thread_pitch value="0.005"/>'))
    lead = 0.005 / (2 * np.pi)
    assert robot.link_poses([2 * np.pi]).position[1] == pytest.approx([0, 0, 0.005], abs=1e-15)
    assert robot.mass_matrix([0.3])[0, 0] == pytest.approx(0.1 + 2 * lead**2, rel=1e-14)
    assert robot.gravity_forces([0.3])[0] == pytest.approx(2 * 9.81 * lead, rel=1e-14)
    assert robot.constraint_bases().directions.tolist() == [5.0]
    basis = robot.constraint_bases().basis[0, :, :5]
    np.testing.assert_allclose(basis.T @ basis, np.eye(5), atol=1e-15)
    assert np.abs(basis.T @ [0, 0, 1, 0, 0, lead]).max() < 1e-15
    with pytest.raises(UrdfError, match=naming("<drake:screw_thread_pitch>")):
        Robot.from_urdf(SCREW.format(pitch=""))


def test_entries_have_names() -> None:
    joints = configuration(["a", "b", "c"], ["floating", "revolute", "planar"])
    assert joints.position_names[:8] == ("a.x", "a.y", "a.z", "a.qx", "a.qy", "a.qz", "a.qw", "b")
    assert joints.velocity_names == ("a.vx", "a.vy", "a.vz", "a.wx", "a.wy", "a.wz", "b", "c.vx", "c.vy", "c.omega")
    assert (joints.nq, joints.nv, joints.flat) == (11, 10, False)
    assert joints.velocity_joints[5:8] == ("a", "b", "c")
    assert joints.angles.tolist() == [False] * 7 + [True] + [False, False, True]
    assert joints.shifts.tolist() == [True] * 3 + [False] * 5 + [True, True, False]


def test_a_length_that_is_not_one_is_refused() -> None:
    joints = configuration(["root_joint"], ["floating"])
    joints.check_unit(joints.neutral, "q", "inputs.q")
    joints.check_unit(joints.neutral * (1 + 5e-7), "q", "inputs.q")
    with pytest.raises(InvalidArgumentError, match=naming("q", "'root_joint'", "quaternion", "2", "1")):
        joints.check_unit(2 * joints.neutral, "q", "inputs.q")


def test_roots() -> None:
    path = URDF / "ur5e.urdf"
    floating, planar = (Robot.from_urdf(path, root=root) for root in ("floating", "planar"))
    assert floating.joint_names[0] == floating.all_joint_names[0] == planar.joint_names[0] == "root_joint"
    assert (floating.nq, floating.nv, planar.nq, planar.nv) == (13, 12, 9, 9)
    assert floating.fingerprint != planar.fingerprint != Robot.from_urdf(path).fingerprint
    with pytest.raises(InvalidArgumentError, match=naming("root", "fixed, planar, floating", "'free'")):
        Robot.from_urdf(path, root="free")  # type: ignore[arg-type]
    text = path.read_text().replace("elbow_joint", "root_joint")
    with pytest.raises(UrdfError, match="a floating root"):
        Robot.from_urdf(text, root="floating")
    assert "root_joint" in Robot.from_urdf(text).joint_names


def test_a_root_that_moves_is_told_and_doubts_of_a_fixed_one_are_not() -> None:
    text = (
        (URDF / "ur5e.urdf").read_text().replace("<robot", '<!-- <joint name="base" type="floating"/> -->\n<robot', 1)
    )
    fixed, floating = (Robot.from_urdf(text, root=root).receipt for root in ("fixed", "floating"))
    assert [note.text for note in fixed.of_kind("warning")] == [
        "joint 'base' of type floating is commented out, so the robot's root is fixed in the world; "
        'if it moves freely, read the robot with root="floating"'
    ]
    assert floating.of_kind("warning") == ()
    assert (fixed.to_dict()["root"], floating.to_dict()["root"]) == ("fixed", "floating")
    assert "floating, by joint 'root_joint'" in floating.render()
    assert "root_joint" not in fixed.render()


def test_limits_are_of_joints_with_one_way_to_move() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf", root="floating")
    limits = robot.limits
    assert (limits.lower.shape, limits.upper.shape) == ((13,), (13,))
    assert (limits.velocity.shape, limits.effort.shape) == ((12,), (12,))
    assert np.isinf(limits.lower[:7]).all()
    assert np.isinf(limits.effort[:6]).all()
    assert np.isfinite(limits.effort[6:]).all()


def test_finite_is_told_joint_by_joint() -> None:
    joints = configuration(["a", "b", "c"], ["floating", "revolute", "planar"])
    q, v = joints.neutral, np.ones(joints.nv)
    assert joints.finite(q, v).tolist() == [True] * 10
    for entry, part in ((5, slice(0, 6)), (7, slice(6, 7)), (9, slice(7, 10))):
        wild = q.copy()
        wild[entry] = np.nan
        expected = np.ones(10, dtype=bool)
        expected[part] = False
        assert joints.finite(wild, v).tolist() == expected.tolist()
        assert joints.finite(np.stack([q, wild]), v[None] * np.ones((2, 1))).tolist() == [
            [True] * 10,
            expected.tolist(),
        ]
    wild_v = v.copy()
    wild_v[8] = np.inf
    assert joints.finite(q, wild_v).tolist() == [True] * 7 + [False] * 3


def test_random_positions_stand_within_limits_that_are_ranges() -> None:
    joints = configuration(["a", "b"], ["revolute", "prismatic"])
    rng = np.random.default_rng(0)
    lower, upper = np.array([0.5, 0.1]), np.array([0.6, 0.2])
    samples = np.array([joints.random(rng, lower, upper) for _ in range(50)])
    assert (samples >= lower).all()
    assert (samples <= upper).all()
    assert np.ptp(samples, axis=0) == pytest.approx([0.1, 0.1], rel=0.2)
    half = np.array([joints.random(rng, np.array([0.5, -np.inf]), np.array([np.inf, 0.1])) for _ in range(50)])
    assert (half >= [0.5, 0.1 - 2.0]).all()
    assert (half <= [0.5 + 2 * np.pi, 0.1]).all()
    assert np.ptp(half, axis=0) == pytest.approx([2 * np.pi, 2.0], rel=0.2)
    samples_of_placeholders = np.array([joints.random(rng, np.full(2, -1e16), np.full(2, 1e16)) for _ in range(50)])
    assert np.abs(samples_of_placeholders).max(axis=0) == pytest.approx([np.pi, 1.0], rel=0.2)


@pytest.mark.parametrize("kind", ["fixed", *TYPES])
def test_a_joint_is_mapped_with_every_unit_vector_that_it_is_made_of(kind: str) -> None:
    """Numbers of another arithmetic become doubles so: what is left out would stay behind in that arithmetic."""
    joint = joint_of(kind)
    if joint.accepts_rotation:
        joint = joint.along_z(np.array([0.6, 0.8]))
    mapped = joint.mapped(lambda unit: 2.0 * unit)
    units = [np.array([0.3]) if kind == "screw" and array.size == 1 else 2.0 * array for array in joint.numbers]
    assert type(mapped) is type(joint)
    assert [array.tolist() for array in mapped.numbers] == [array.tolist() for array in units]


@pytest.mark.parametrize("kind", TYPES)
def test_random_positions_lie_on_all_sides(kind: str) -> None:
    """Without limits: places within a metre, angles within a turn, quaternions of unit length."""
    joint = joint_of(kind)
    rng = np.random.default_rng(0)
    places = np.array([joint.random(rng, -UNLIMITED[: joint.nq], UNLIMITED[: joint.nq]) for _ in range(300)])
    unit = joint.quaternion
    np.testing.assert_allclose(np.linalg.norm(places[:, unit], axis=1), 1.0 if unit.stop else 0.0, atol=1e-15)
    reach = np.array([np.pi if angle else 1.0 for angle in joint.angles])
    assert (np.abs(places) <= reach).all()
    # Of 300 draws some come within an eighth of each end, entries of quaternions too.
    assert (places.max(axis=0) > 0.87 * reach).all()
    assert (places.min(axis=0) < -0.87 * reach).all()
    # The mean of 300 is within 0.58 / sqrt(300) = 0.033, three times over.
    assert np.abs(places.mean(axis=0) / reach).max() < 0.1


TILTS = [1.0, 0.1, 1e-2, 1e-3, 1e-5, 1e-7, 2e-8, 1.1e-8, 1e-8, 1e-12, 1e-170, 0.0]
"""Of an axis of a plane from straight down, rad."""


@pytest.mark.parametrize("tilt", TILTS)
@pytest.mark.parametrize("azimuth", [0.0, 1.0, 3.0])
def test_the_axes_of_a_plane_are_orthonormal(tilt: float, azimuth: float) -> None:
    """To some roundings, however near the axis is to -z: there 1 + z has no digits left."""
    axis = np.array([np.sin(tilt) * np.cos(azimuth), np.sin(tilt) * np.sin(azimuth), -np.cos(tilt)])
    axes = np.column_stack([*Planar(axis).subspace[3:, :2].T, axis])
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=2e-15)
    assert np.linalg.det(axes) > 0.0


PLANE = """<robot name="p"><link name="w"/><link name="b"><inertial><origin xyz="0.1 0.2 0.3"/><mass value="2"/>
<inertia ixx="0.3" iyy="0.2" izz="0.15" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="j" type="planar"><parent link="w"/><child link="b"/><axis xyz="0 {tilt} -1"/></joint></robot>"""


@pytest.mark.parametrize("tilt", ["1e-5", "1e-7", "1.1e-8"])
def test_a_plane_that_looks_down_keeps_its_masses(tilt: str) -> None:
    M = Robot.from_urdf(PLANE.format(tilt=tilt)).mass_matrix([0.3, 0.4, 0.5])
    np.testing.assert_allclose(np.diag(M)[:2], 2.0, rtol=1e-14)  # rounding


def test_the_error_of_a_continuous_joint_is_the_shorter_way_round() -> None:
    robot = Robot.from_urdf(TURNING)
    rng = np.random.default_rng(0)
    q, q_ref, v, v_ref, a_ref = rng.uniform(-20.0, 20.0, (5, 40, 2))
    q[0], q_ref[0] = (3.1, 3.1), (-3.1, -3.1)
    difference = q_ref - q
    expected = np.stack([np.angle(np.exp(1j * difference[:, 0])), difference[:, 1]], axis=-1)
    np.testing.assert_allclose(expected[0], [2 * np.pi - 6.2, -6.2], rtol=1e-12, atol=0)
    joints = robot.configuration
    # Angles of 40 rad have roundings of 7e-15.
    np.testing.assert_allclose(joints.error(q, q_ref), expected, rtol=0, atol=2e-14)
    np.testing.assert_array_equal(joints.difference(q, q_ref), difference)
    kp, kd = np.array([50.0, 30.0]), np.array([7.0, 5.0])
    tau = robot.inverse_dynamics(q, v, a_ref + kd * (v_ref - v) + kp * expected)
    torque = robot.computed_torque(q, v, q_ref, v_ref, a_ref, kp=kp, kd=kd)
    np.testing.assert_allclose(
        torque, tau, rtol=0, atol=1e-9
    )  # 50 times those roundings, times 3 kg m^2, and of torques
    single_torque = robot.computed_torque(q[0], v[0], q_ref[0], v_ref[0], a_ref[0], kp=kp, kd=kd)
    np.testing.assert_allclose(single_torque, tau[0], rtol=0, atol=1e-9)


def test_a_loop_turns_a_continuous_joint_the_shorter_way() -> None:
    robot = Robot.from_urdf(TURNING)

    def tau(t: float, q: Any, v: Any) -> Any:
        return robot.computed_torque(q, v, [-3.1, 0.0], [0.0, 0.0], [0.0, 0.0], kp=100.0, kd=20.0)

    motion = robot.simulate([3.1, 0.0], [0.0, 0.0], tau, dt=1e-2, steps=300)
    assert abs(motion.q[-1, 0] - (2 * np.pi - 3.1)) < 1e-6  # e^-30 of the way, and some for the steps
    assert np.ptp(motion.q[:, 0]) < 0.084
