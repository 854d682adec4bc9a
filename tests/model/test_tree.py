"""The tree: order, topological relations, welding, fingerprint. Figures of the Newton-Euler document's Fig. 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from dyn_service.errors import UrdfError
from dyn_service.formulations.world_equations import WorldEquations
from dyn_service.model import composite
from dyn_service.model.building import SNAP, snapped, tree_of
from dyn_service.model.composite import weld, welding_notes
from dyn_service.model.description import Mimic, Note
from dyn_service.model.inertia import BodyInertia, combine, principal_moments
from dyn_service.model.joints import JOINT_TYPES, Joint
from dyn_service.model.passive import PRISMATIC_WIDTH, REVOLUTE_WIDTH, Passive
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_file, read_text
from tests.conftest import URDF
from tests.random_robots import MANY_TYPES, random_urdf


@pytest.fixture(scope="module")
def fig_2() -> Tree:
    return weld(tree_of(read_file(URDF / "ten_body_tree.urdf"))).tree


def number(tree: Tree, i: int) -> int:
    """The document's index of our body i."""
    return int(tree.links[i].removeprefix("body_"))


def index(tree: Tree, body: int) -> int:
    return tree.links.index(f"body_{body}")


@pytest.mark.parametrize(("body", "chain"), [(2, {2, 1}), (6, {6, 5, 3, 1}), (10, {10, 9, 1}), (5, {5, 3, 1})])
def test_ancestors_of_fig_2(fig_2: Tree, body: int, chain: set[int]) -> None:
    assert {number(fig_2, i) for i in fig_2.ancestors(index(fig_2, body))} == chain


@pytest.mark.parametrize(
    ("body", "branch"), [(1, set(range(1, 11))), (2, {2}), (3, {3, 4, 5, 6, 7, 8}), (4, {4, 7, 8})]
)
def test_branches_of_fig_2(fig_2: Tree, body: int, branch: set[int]) -> None:
    assert {number(fig_2, i) for i in fig_2.branch(index(fig_2, body))} == branch


@pytest.mark.parametrize(
    ("body", "children"), [(1, {2, 3, 9}), (2, set()), (6, set()), (8, set()), (10, set()), (3, {4, 5}), (4, {7})]
)
def test_children_of_fig_2(fig_2: Tree, body: int, children: set[int]) -> None:
    assert {number(fig_2, i) for i in fig_2.children[index(fig_2, body)]} == children


@pytest.mark.parametrize("seed", range(20))
def test_invariants(seed: int) -> None:
    full = tree_of(read_text(random_urdf(seed, shuffle=seed)))
    for i in range(len(full)):
        names = [full.joints[child] for child in full.children[i]]
        assert names == sorted(names)
    for tree in (full, weld(full).tree):
        for i, parent in enumerate(tree.parent):
            assert parent < i
            assert tree.branch(i) == tuple(range(i, i + len(tree.branch(i))))
            assert all(i in tree.ancestors(j) for j in tree.branch(i))
    assert list(full.movable_joints) == list(weld(full).tree.joints)


@pytest.mark.parametrize("seed", range(20))
def test_welding_keeps_every_link_its_place_and_its_inertia(seed: int) -> None:
    full = tree_of(read_text(random_urdf(seed)))
    welded = weld(full)
    moving, at_zero = composite.poses_at_zero(welded.tree), composite.poses_at_zero(full)
    for i, (R_WL, p_WL) in enumerate(at_zero):
        body = welded.body[i]
        R_WB, p_WB = (np.eye(3), np.zeros(3)) if body < 0 else moving[body]
        np.testing.assert_allclose(R_WB @ welded.rotation[i], R_WL, atol=1e-13)
        np.testing.assert_allclose(p_WB + R_WB @ welded.origin[i], p_WL, atol=1e-13)
    fixed_inertias = [full.inertia[i].transformed(*at_zero[i]) for i, body in enumerate(welded.body) if body < 0]
    welded_inertia = combine(
        [*fixed_inertias, *(body.transformed(*pose) for body, pose in zip(welded.tree.inertia, moving, strict=True))]
    )
    full_inertia = composite.total_inertia(full)
    assert welded_inertia.mass == pytest.approx(full_inertia.mass, rel=1e-14)
    np.testing.assert_allclose(welded_inertia.com, full_inertia.com, atol=1e-13)
    np.testing.assert_allclose(welded_inertia.about_com, full_inertia.about_com, rtol=1e-11, atol=1e-11)


def test_welding_is_noted_link_by_link() -> None:
    """Every link behind a fixed joint, in the order of the tree, with where it went; no other, the root neither."""
    joints = (
        ("j1", "fixed", "a", "b"),
        ("j2", "revolute", "b", "c"),
        ("j3", "fixed", "c", "d"),
        ("j4", "fixed", "d", "e"),
    )
    text = "".join(f'<link name="{name}"/>' for name in "abcde") + "".join(
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/></joint>'
        for name, kind, parent, child in joints
    )
    full = tree_of(read_text(f'<robot name="r">{text}</robot>'))
    assert welding_notes(full, weld(full)) == (
        Note("merged", "link 'b'", "welded by fixed joint 'j1' to the world"),
        Note("merged", "link 'd'", "welded by fixed joint 'j3' to the body of link 'c'"),
        Note("merged", "link 'e'", "welded by fixed joint 'j4' to the body of link 'c'"),
    )


def one_link(mass: float, com: float, ixx: float) -> str:
    return (
        f'<robot name="r"><link name="a"><inertial><origin xyz="{com} 0 0"/><mass value="{mass}"/>'
        f'<inertia ixx="{ixx}" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>'
    )


@pytest.mark.parametrize(
    ("mass", "com", "ixx", "refusal"),
    [
        (1.0, 1e49, 0.0, None),
        (1.0, 1e51, 0.0, "inertia about the link's origin is 1e+102 kg m^2"),
        (1.0, -1e200, 0.0, "inertia about the link's origin is inf kg m^2"),
        (0.0, 0.0, -1e101, "inertia about the link's origin is 1e+101 kg m^2"),
        (1e102, 0.1, 0.0, "inertia about the link's origin is 1e+100 kg m^2"),
        (1e150, 1e-45, 0.0, "first moment about the link's origin is 1e+105 kg m"),
        (1e150, -1e-45, 0.0, "first moment about the link's origin is 1e+105 kg m"),
        (1e150, 1e-60, 0.0, None),
    ],
)
def test_inertia_beyond_the_range_of_doubles_is_refused(
    mass: float, com: float, ixx: float, refusal: str | None
) -> None:
    text = one_link(mass, com, ixx)
    if refusal is None:
        assert tree_of(read_text(text)).inertia[0].mass == mass
        return
    with pytest.raises(UrdfError) as excinfo:
        tree_of(read_text(text))
    assert excinfo.value.message == f"the {refusal}, expected less than 1e+100"
    assert excinfo.value.element == "link 'a' inertial"


def test_snapped_entries() -> None:
    """Numbers within rounding of 0 and 1 become exact; all others, and larger integers, are unchanged."""
    within_snap, beyond_snap = 0.9 * SNAP, 1.1 * SNAP
    exact = snapped(
        np.array(
            [
                within_snap,
                -within_snap,
                1.0 + within_snap,
                1.0 - within_snap,
                -1.0 + within_snap,
                -1.0 - within_snap,
                -0.0,
            ]
        )
    )
    assert exact.tolist() == [0.0, 0.0, 1.0, 1.0, -1.0, -1.0, 0.0]
    assert not np.signbit(exact[[0, 1, 6]]).any()
    unchanged = np.array(
        [beyond_snap, -beyond_snap, 1.0 + beyond_snap, 1.0 - beyond_snap, 0.5, 2.0 + 4e-16, -3.0 - 4e-16, 1e300]
    )
    np.testing.assert_array_equal(snapped(unchanged), unchanged)


def test_the_root_stands_in_the_world() -> None:
    tree = tree_of(read_text(random_urdf(3)))
    assert (tree.joints[0], tree.parent[0], tree.inboard[0].type) == ("", -1, "fixed")
    assert (tree.inboard[0].nv, tree.inboard[0].subspace.shape) == (0, (6, 0))
    assert 0 not in tree.movable
    np.testing.assert_array_equal(tree.rotation[0], np.eye(3))
    np.testing.assert_array_equal(tree.origin[0], np.zeros(3))


def test_rotated_inertia() -> None:
    """The vector that other importers have failed: diag(1, 2, 2.5) turned 90 degrees about z is diag(2, 1, 2.5)."""
    robot = (
        '<robot name="r"><link name="a"><inertial><origin xyz="0 0 0" rpy="0 0 1.5707963267948966"/><mass value="1"/>'
        '<inertia ixx="1" iyy="2" izz="2.5" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>'
    )
    tree = tree_of(read_text(robot))
    np.testing.assert_array_equal(tree.inertia[0].about_com, np.diag([2.0, 1.0, 2.5]))


def test_two_point_masses() -> None:
    whole = combine(
        [
            BodyInertia.from_com(1.0, np.array([2.0, 0, 0]), np.zeros((3, 3))),
            BodyInertia(3.0, np.zeros(3), np.zeros((3, 3))),
        ]
    )
    assert whole.mass == 4.0
    np.testing.assert_allclose(whole.com, [0.5, 0, 0])
    # m1 m2 / (m1 + m2) d^2 about the two axes across
    np.testing.assert_allclose(principal_moments(whole.about_com), [0.0, 3.0, 3.0], atol=1e-15)


def test_fingerprint_follows_the_robot_not_the_file() -> None:
    text = random_urdf(3)
    fingerprint = tree_of(read_text(text)).fingerprint
    assert len(fingerprint) == 32
    for same in (random_urdf(3, shuffle=1), text.replace("/>", " />"), "<!-- a comment -->" + text):
        assert tree_of(read_text(same)).fingerprint == fingerprint
    changes = [('name="link_1"', 'name="link_x"'), ('link="link_1"', 'link="link_x"')]
    with_new_names = text
    for old, new in changes:
        with_new_names = with_new_names.replace(old, new)
    for other in (
        with_new_names,
        text.replace('effort="100"', 'effort="101"', 1),
        text.replace('mass value="', 'mass value="1', 1),
    ):
        assert other != text
        assert tree_of(read_text(other)).fingerprint != fingerprint


UPRIGHT = np.array([0.0, 0.0, 1.0])
AXIS = '<axis xyz="0 3 4"/>'


def changed_by_a_little(value: object) -> Iterator[object]:
    """The value with each of its numbers, names or entries changed in turn, and nothing else.

    A joint may also become one of another type on the same axis, with as many ways to move.
    """
    if isinstance(value, np.ndarray):
        for index in np.ndindex(value.shape):
            other = value.copy()
            # One part in 1e12, or 1e-12 where it is zero; an absent limit becomes a huge one.
            other[index] = 1e300 if np.isinf(value[index]) else value[index] * (1 + 1e-12) or 1e-12
            yield other
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, Joint):
            joints = (
                joint_class(getattr(value, "axis", UPRIGHT), 0.1)
                for kind, joint_class in JOINT_TYPES.items()
                if kind != "ball"
            )
            yield from (other for other in joints if other.nv == value.nv and other.type != value.type)
        for field in dataclasses.fields(value):
            for other in changed_by_a_little(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: other})
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            for other in changed_by_a_little(entry):
                yield (*value[:index], other, *value[index + 1 :])
    elif isinstance(value, frozenset):
        yield from (value - {entry} for entry in value)
        yield value | {"another"}
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, float):
        yield value * (1 + 1e-12) or 1e-12
    elif isinstance(value, int):
        yield value + 7
    elif value is None:
        yield Mimic("another")
    else:
        raise TypeError(f"no way to change a {type(value).__name__}")


def test_fingerprint_changes_with_every_number_and_name() -> None:
    """Every field of the tree, those it may get one day too: answers must not come from another robot's kernels."""
    joint = f'<joint name="{{}}" type="{{}}"><parent link="link_0"/><child link="{{}}"/>{AXIS}</joint>'
    thread = f'{AXIS}<drake:screw_thread_pitch value="0.01"/>'
    elements = [f'<link name="{kind}"/>{joint.format(kind, kind, kind)}' for kind in MANY_TYPES]
    elements = [text.replace(AXIS, thread) for text in elements]
    tree = tree_of(read_text(random_urdf(3).replace("</robot>", "".join(elements) + "</robot>")))
    mimic = (Mimic("joint_1", 2.0, 0.1), *[None] * (len(tree.movable) - 1))
    passive = Passive(*(np.arange(tree.nv) / 4 + k for k in range(1, 7)))
    tree = dataclasses.replace(tree, passive=passive, mimic=mimic, free=np.linspace(0.1, 1.0, tree.nv))
    assert tree.nv > 3
    assert {joint.type for joint in tree.inboard} == set(JOINT_TYPES) - {"ball"}
    seen = {tree.fingerprint: "as it is"}
    for field in dataclasses.fields(Tree):
        value = getattr(tree, field.name)
        changed_values = list(changed_by_a_little(value))
        assert changed_values, field.name
        for number, other in enumerate(changed_values):
            fingerprint = dataclasses.replace(tree, **{field.name: other}).fingerprint
            assert fingerprint not in seen, (
                f"{field.name}, change {number}: the fingerprint is that of {seen[fingerprint]}"
            )
            seen[fingerprint] = f"{field.name}, change {number}"


def test_fingerprint_knows_no_negative_zero() -> None:
    tree = tree_of(read_text(random_urdf(3)))
    zero = tuple(0.0 * origin for origin in tree.origin)
    negative = tuple(-origin for origin in zero)
    assert np.signbit(negative[0]).all()
    assert dataclasses.replace(tree, origin=negative).fingerprint == dataclasses.replace(tree, origin=zero).fingerprint
    numbers = [np.ones(tree.nv)] * 5
    springs = [
        dataclasses.replace(tree, passive=Passive(*numbers, rest)) for rest in (np.zeros(tree.nv), -np.zeros(tree.nv))
    ]
    assert springs[0].fingerprint == springs[1].fingerprint != tree.fingerprint
    no_forces, other = Passive.none(tree.nv), -np.zeros(tree.nv)
    assert np.signbit(other).all()
    for name in ("damping", "friction", "armature", "stiffness", "rest"):
        signed = dataclasses.replace(no_forces, **{name: other})
        assert list(signed.identity) == list(no_forces.identity), name
        damped = dataclasses.replace(
            no_forces, damping=np.ones(tree.nv), **({} if name == "damping" else {name: other})
        )
        assert list(damped.identity) != list(no_forces.identity)


def test_some_joints_do_nothing_and_the_others_stay() -> None:
    numbers = Passive(*(np.arange(4) + k for k in range(1, 7)))
    reduced = numbers.without([1, 3])
    for part in ("damping", "friction", "armature", "stiffness"):
        assert getattr(reduced, part).tolist() == [getattr(numbers, part)[0], 0, getattr(numbers, part)[2], 0]
    assert (reduced.width > 0).all()


@pytest.mark.parametrize("kind", ["revolute", "prismatic", "continuous"])
def test_limits_are_those_of_the_file_and_a_continuous_joint_has_no_range(kind: str) -> None:
    """Files write a range on continuous joints too; it means nothing there. Rates and efforts keep their limits."""
    limits = '<limit lower="-1" upper="2" velocity="3" effort="4"/>'
    robot = (
        '<robot name="r"><link name="a"/><link name="b"/><link name="c"/>'
        f'<joint name="j" type="{kind}"><parent link="a"/><child link="b"/>{limits}</joint>'
        '<joint name="k" type="revolute"><parent link="b"/><child link="c"/></joint></robot>'
    )
    revolute = read_text(robot.replace(kind, "revolute"))  # its range stays if only the type is changed afterwards
    joints = dataclasses.replace(revolute.joints[0], type=kind), *revolute.joints[1:]
    low, high = (-np.inf, np.inf) if kind == "continuous" else (-1.0, 2.0)
    for description in (read_text(robot), dataclasses.replace(revolute, joints=joints)):
        limits_read = tree_of(description).limits
        assert limits_read.lower.tolist() == [low, -np.inf]
        assert limits_read.upper.tolist() == [high, np.inf]
        assert limits_read.velocity.tolist() == [3.0, np.inf]
        assert limits_read.effort.tolist() == [4.0, np.inf]


@pytest.mark.parametrize(("kind", "nq", "nv"), [("planar", 3, 3), ("spherical", 4, 3), ("floating", 7, 6)])
def test_a_joint_with_several_ways_to_move_has_no_limits(kind: str, nq: int, nv: int) -> None:
    robot = (
        '<robot name="r"><link name="a"/><link name="b"/><joint name="j" type="{}"><parent link="a"/><child link="b"/>'
        '<limit lower="-1" upper="2" velocity="3" effort="4"/></joint></robot>'
    )
    limits = tree_of(read_text(robot.format(kind))).limits
    assert (limits.lower.tolist(), limits.upper.tolist()) == ([-np.inf] * nq, [np.inf] * nq)
    assert (limits.velocity.tolist(), limits.effort.tolist()) == ([np.inf] * nv, [np.inf] * nv)


def test_arrays_are_read_only() -> None:
    tree = tree_of(read_file(URDF / "panda.urdf"))
    for array in (tree.limits.upper, tree.origin[1], tree.inertia[1].moment, tree.rotation[1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_damping_and_friction_stand_with_the_entries_of_v() -> None:
    """In the order of v, not of the file; a joint of several entries has its own at each."""
    links = "".join(f'<link name="{name}"/>' for name in "abcd")
    joints = "".join(
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<dynamics damping="{damping}" friction="{friction}"/></joint>'
        for name, kind, parent, child, damping, friction in (
            ("z", "continuous", "a", "b", 0.5, 3.0),
            ("y", "planar", "b", "c", 0.25, 0.75),
            ("x", "prismatic", "a", "d", 4.0, 0.125),
        )
    )
    tree = tree_of(read_text(f'<robot name="r">{links}{joints}</robot>'))
    by_joint = {"x": (4.0, 0.125), "y": (0.25, 0.75), "z": (0.5, 3.0)}
    expected = [by_joint[name] for name in tree.configuration.velocity_joints]
    passive = tree.passive
    assert list(zip(passive.damping.tolist(), passive.friction.tolist(), strict=True)) == expected
    assert passive.width.tolist() == [PRISMATIC_WIDTH, REVOLUTE_WIDTH, PRISMATIC_WIDTH, PRISMATIC_WIDTH, REVOLUTE_WIDTH]
    assert {array.dtype for array in passive.arrays} == {np.dtype(np.float64)}
    assert passive.acts == {"damping", "friction"}


@pytest.mark.parametrize("seed", range(6))
def test_poses_and_mass_matrix_of_a_batch(seed: int) -> None:
    """Of each member as if alone, fixed joints too; M as (18c) has it, which is another way to it."""
    full = tree_of(read_text(random_urdf(seed, movable=5, types=MANY_TYPES)))
    rng = np.random.default_rng(seed)
    for tree in (full, weld(full).tree):
        free = np.full(tree.nq, np.inf)
        q = np.array([[tree.configuration.random(rng, -free, free) for _ in range(3)] for _ in range(2)])
        M = composite.mass_matrix(tree, q)
        assert M.shape == (2, 3, tree.nv, tree.nv)
        for index in np.ndindex(2, 3):
            expected = WorldEquations(tree, q[index], np.zeros(tree.nv), np.zeros(3)).mass_matrix
            # Roundings of sums over some ten bodies.
            np.testing.assert_allclose(M[index], expected, rtol=0, atol=1e-12 * np.abs(expected).max())
        for i in range(len(tree)):
            R, p = composite.pose(tree, i, q)
            assert (R.shape, p.shape) == ((2, 3, 3, 3), (2, 3, 3))
            for index in np.ndindex(2, 3):
                one_R, one_p = composite.pose(tree, i, q[index])
                assert (one_R.shape, one_p.shape) == ((3, 3), (3,))
                np.testing.assert_allclose(R[index], one_R, rtol=0, atol=1e-15)
                np.testing.assert_allclose(p[index], one_p, rtol=0, atol=1e-15)
                of_joint, shift = tree.inboard[i].pose(q[index][tree.in_q[i]])
                np.testing.assert_allclose(one_R, tree.rotation[i] @ of_joint, rtol=0, atol=1e-15)
                np.testing.assert_allclose(one_p, tree.origin[i] + tree.rotation[i] @ shift, rtol=0, atol=1e-14)


def test_trees_in_chosen_lumps_have_fingerprints_too(fig_2: Tree) -> None:
    """Their bodies know no centre of mass of their own: another digest, and the same one each time."""
    lumped = dataclasses.replace(
        fig_2, inertia=tuple(BodyInertia(body.mass, body.moment, body.about_origin) for body in fig_2.inertia)
    )
    assert len(lumped.fingerprint) == 32
    assert lumped.fingerprint == dataclasses.replace(lumped).fingerprint != fig_2.fingerprint


def test_only_what_rounding_leaves_of_right_angles_is_taken_for_one() -> None:
    """Half a unit in the last place of 1 is no angle that somebody wrote; some of them are."""
    for deviation, is_one in ((0.0, True), (1e-16, True), (9e-16, True), (1.5e-15, False), (1e-12, False)):
        rotation = snapped(
            np.array([[1.0 - deviation, deviation, 0.0], [-deviation, 1.0 - deviation, 0.0], [0.0, 0.0, 1.0]])
        )
        assert (rotation == np.eye(3)).all() == is_one
