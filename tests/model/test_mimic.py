"""Joints that follow others: whom, with which limits, what the receipt and the description say, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.api.cost import of_query
from dyn_service.api.description import MimicDescription, RobotDescription
from dyn_service.api.queries import QUERIES, JointNumbers, Overlay, Payload
from dyn_service.cli.main import main
from dyn_service.engine.robot import Robot
from dyn_service.errors import UrdfError
from dyn_service.kernels.frames import kernel_tree
from dyn_service.model import composite
from dyn_service.model.building import tree_of
from dyn_service.model.composite import weld
from dyn_service.model.configuration import Configuration
from dyn_service.model.description import Note
from dyn_service.model.mimic import Bounds, narrowed_limits, resolved_mimics, without_mimics
from dyn_service.parsing.conversion import WRITERS, written
from dyn_service.parsing.urdf.reader import read, read_text
from tests.conftest import URDF
from tests.mimics import drawn, pair
from tests.passive import restless
from tests.phrases import unnamed
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted_robot

BODY = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'


def hand(*joints: str) -> str:
    """A palm with a finger on each joint: `type` and what is in the element; the first joint is on line 2."""
    joint_elements = "".join(
        f'\n<joint name="{name}" type="{kind}"><parent link="palm"/><child link="{name}_link"/>{inner}</joint>'
        for name, kind, inner in (joint.split("|") for joint in joints)
    )
    links = "".join(f'<link name="{joint.split("|")[0]}_link">{BODY}</link>' for joint in joints)
    return f'<robot name="hand"><link name="palm"/>{links}{joint_elements}</robot>'


def limit(lower: float, upper: float, effort: float = 5.0, velocity: float = 2.0) -> str:
    return f'<limit lower="{lower}" upper="{upper}" effort="{effort}" velocity="{velocity}"/>'


def mimic(joint: str, multiplier: float = 1.0, offset: float = 0.0) -> str:
    return f'<mimic joint="{joint}" multiplier="{multiplier}" offset="{offset}"/>'


def test_chains_end_at_who_leads() -> None:
    text = hand(
        f"a|revolute|{mimic('b', 2, 0.5)}",
        f"b|revolute|{mimic('c', -3, 0.25)}",
        "c|revolute|",
        f"d|prismatic|{mimic('a')}",
    )
    mimics = resolved_mimics(read_text(text).joints)
    assert {name: (m.joint, m.multiplier, m.offset) for name, m in mimics.items()} == {
        "a": ("c", -6.0, 1.0),
        "b": ("c", -3.0, 0.25),
        "d": ("c", -6.0, 1.0),
    }
    robot = Robot.from_urdf(text)
    assert (robot.joint_names, robot.nq, robot.nv, robot.tree.nr) == (("c",), 1, 1, 4)
    assert robot.tree.coupling_matrix[:, 0].tolist() == [-6.0, -3.0, 1.0, -6.0]
    assert robot.tree.moving_joints == ("a", "b", "c", "d")
    assert robot.sizes.nm == robot.sizes.nr == 4


def test_who_leads_may_stand_behind_and_above() -> None:
    """In the order of q, before and after its followers; and a follower on its leader's branch."""
    text = """<robot name="r"><link name="a"/><link name="b"/><link name="c"/><link name="d"/>
    <joint name="x" type="revolute"><parent link="a"/><child link="b"/><mimic joint="z"/></joint>
    <joint name="y" type="continuous"><parent link="b"/><child link="c"/></joint>
    <joint name="z" type="revolute"><parent link="c"/><child link="d"/></joint></robot>"""
    tree = tree_of(read_text(text))
    assert tree.movable_joints == ("y", "z")
    assert tree.mimicked_body == (0, 3, 2, 3)
    assert [(part.start, part.stop) for part in tree.in_v] == [(0, 0), (1, 2), (0, 1), (1, 2)]
    assert [(part.start, part.stop) for part in tree.in_rates] == [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert tree.driven_bodies == ((2,), (3, 1))
    assert tree.parent_first_entries == (1, 0)  # x, the first of its bodies, carries y


@pytest.mark.parametrize(
    ("text", "line", "element", "values"),
    [
        (hand("a|ball|", f"b|revolute|{mimic('a')}"), 3, "joint 'b' mimic", ["'a'", "3", "1"]),
        (hand("a|revolute|", f"b|floating|{mimic('a')}"), 3, "joint 'b' mimic", ["6", "1"]),
        (
            hand("a|revolute|", f"b|revolute|{mimic('a', 1e5)}", f"c|revolute|{mimic('b', 1e5)}"),
            4,
            "joint 'c' mimic",
            ["1e+10", "'a'", "0", "1e+09"],
        ),
    ],
)
def test_impossible_chains(text: str, line: int, element: str, values: list[str]) -> None:
    with pytest.raises(UrdfError) as excinfo:
        Robot.from_urdf(text)
    fault = excinfo.value
    assert (fault.line, fault.element) == (line, element)
    assert unnamed(fault.message, *values, "remove the mimic") == []
    assert Robot.from_urdf(text, mimic=False).nv > 1


@pytest.mark.parametrize(("leader", "why"), [("nobody", "which the robot does not have"), ("glue", "which is fixed")])
def test_with_nobody_to_follow_a_joint_moves_by_itself(leader: str, why: str) -> None:
    text = hand("glue|fixed|", f"a|continuous|{mimic(leader)}", f"b|continuous|{mimic('a', 2)}")
    robot = Robot.from_urdf(text)
    assert robot.joint_names == ("a",)
    assert (
        Note("warning", "joint 'a'", f"mimics joint '{leader}', {why}: the mimic is ignored", 3) in robot.receipt.notes
    )


def test_a_fixed_joint_follows_nobody() -> None:
    robot = Robot.from_urdf(hand("a|continuous|", f"glue|fixed|{mimic('a')}"))
    assert robot.joint_names == ("a",)
    assert Note("dropped", "joint 'glue'", "the mimic of 'a' is ignored: the joint is fixed", 3) in robot.receipt.notes
    assert Robot.from_urdf(hand("a|continuous|", "glue|fixed|")).fingerprint == robot.fingerprint


def test_multiplier_0_stands_still_at_its_offset() -> None:
    robot = Robot.from_urdf(
        hand("a|continuous|<axis xyz='0 0 1'/>", f"b|continuous|<axis xyz='0 0 1'/>{mimic('a', 0, 0.3)}")
    )
    text = "mimics joint 'a' with multiplier 0: it does not move"
    assert Note("warning", "joint 'b'", text, 3) in robot.receipt.notes
    rotation = robot.link_poses([[0.7], [-0.2]]).rotation[:, robot.link_names.index("b_link")]
    assert np.allclose(rotation, [[np.cos(0.3), -np.sin(0.3), 0], [np.sin(0.3), np.cos(0.3), 0], [0, 0, 1]])
    assert np.allclose(robot.mass_matrix([0.1]), 1.0)
    assert np.allclose(robot.constraint_basis("b"), robot.constraint_basis("a"))
    assert np.allclose(robot.forward_dynamics([0.1], [0.2], [3.0]), 3.0)


LEADER = Bounds(-1.0, 1.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("follower", "relation", "expected"),
    [
        (limit(-9, 9), mimic("a"), LEADER),  # wider ones say nothing
        (limit(-0.5, 0.75, 4, 1), mimic("a"), Bounds(-0.5, 0.75, 1.0, 4.0)),
        (limit(-0.5, 0.75, 4, 1), mimic("a", -1), Bounds(-0.75, 0.5, 1.0, 4.0)),
        (limit(-1.0, 1.0, 4, 1), mimic("a", 2, 0.5), Bounds(-0.75, 0.25, 0.5, 5.0)),
        (limit(-1.0, 1.0, 4, 1), mimic("a", -0.5, 0.75), Bounds(-0.5, 1.0, 2.0, 2.0)),
        (limit(-0.5, 0.75, 0, 0), mimic("a"), Bounds(-0.5, 0.75, 2.0, 5.0)),  # no motor
        (limit(0.5, 0.5), mimic("a"), LEADER),  # no room, which exporters write
        (limit(3, 4), mimic("a"), LEADER),  # nothing in common
        (limit(-0.5, 0.75, 4, 1), mimic("a", 0), LEADER),
        ("", mimic("a"), LEADER),
    ],
)
def test_leaders_keep_their_followers_limits(follower: str, relation: str, expected: Bounds) -> None:
    described = read_text(hand(f"a|revolute|{limit(-1, 1)}", f"b|revolute|{follower}{relation}"))
    limits = tree_of(described).limits
    assert {name: getattr(limits, name).tolist() for name in Bounds._fields} == {
        name: [value] for name, value in expected._asdict().items()
    }


@pytest.mark.parametrize(("leader_range", "follower"), [((0, 0), (0.5, 1)), ((0, 0), (-1, -0.5)), ((0, 0), (-1, 1))])
def test_a_leader_without_room_keeps_its_range(
    leader_range: tuple[float, float], follower: tuple[float, float]
) -> None:
    """Were it narrowed to what both have, its lower limit would be above its upper one."""
    described = read_text(hand(f"a|revolute|{limit(*leader_range)}", f"b|revolute|{limit(*follower)}{mimic('a')}"))
    limits = tree_of(described).limits
    assert (limits.lower.tolist(), limits.upper.tolist()) == ([leader_range[0]], [leader_range[1]])


def test_a_continuous_leader_gets_a_range_from_its_follower() -> None:
    robot = Robot.from_urdf(hand("a|continuous|", f"b|prismatic|{limit(0, 0.1)}{mimic('a', 0.05)}"))
    assert (robot.limits.lower.tolist(), robot.limits.upper.tolist()) == ([0.0], [2.0])
    assert 0.0 <= robot.random_configuration(seed=1)[0] <= 2.0


@pytest.mark.parametrize(
    ("followers", "moved_follower"),
    [
        ((f"b|revolute|{mimic('a', -1)}", f"c|continuous|{mimic('a', 2)}"), ""),
        ((f"b|prismatic|{mimic('a', 0)}",), ""),
        ((f"b|continuous|{mimic('a', 3)}", f"c|revolute|{mimic('b', 1 / 3)}"), ""),
        ((f"b|prismatic|{mimic('a', 1)}", f"c|continuous|{mimic('a', 2)}"), "'b'"),
        ((f"b|continuous|{mimic('a', 0.5)}", f"c|revolute|{mimic('b', 2)}"), "'b'"),
        ((f"b|revolute|{mimic('a', 2)}", f"c|revolute|{mimic('b', 0.25)}"), "'c'"),
    ],
)
def test_the_error_of_a_continuous_leader_keeps_turns_that_move_a_follower(
    followers: tuple[str, ...], moved_follower: str
) -> None:
    described = read_text(hand("a|continuous|", *followers))
    turn, expected_error = np.array([2 * np.pi]), 2 * np.pi if moved_follower else 0.0
    for text in (hand("a|continuous|", *followers), *(written(described, format)[0] for format in WRITERS)):
        robot = interpreted_robot(Robot.from_text(text))
        poses = robot.link_poses([[0.0], turn])
        assert np.allclose(poses.position[0], poses.position[1]) & np.allclose(*poses.rotation) == (not moved_follower)
        for joints in (robot.configuration, Configuration.of_description(robot.description)):
            assert joints.error([0.0], turn) == pytest.approx([expected_error], abs=1e-15)  # rounding of 2 pi
        notes = [x.text for x in robot.receipt.of_kind("changed") if "continuous" in x.text]
        assert notes == [
            f"is revolute instead of continuous, because a whole turn changes the pose of {moved_follower}"
        ] * bool(moved_follower)
        free = Robot.from_text(text, mimic=False).configuration
        assert free.error(np.zeros(free.nq), np.full(free.nq, 2 * np.pi))[free.names.index("a")] == pytest.approx(
            0.0, abs=1e-15
        )


def test_computed_torque_moves_a_rack_by_whole_turns() -> None:
    rack = Robot.from_urdf(hand("motor|continuous|", f"rack|prismatic|{mimic('motor', 0.05)}"))
    zero, turn = np.zeros(1), np.array([2 * np.pi])
    tau = interpreted_robot(rack).computed_torque(zero, zero, turn, zero, zero, kp=1.0, kd=1.0, gravity=(0, 0, 0))
    assert tau == pytest.approx(rack.tree.inertia[1].about_origin[0, 0] * turn + 0.05**2 * turn, rel=1e-14)


def test_the_receipt_says_what_follows_and_what_is_kept() -> None:
    text = hand(
        f"a|revolute|{limit(-1, 1)}",
        f"b|revolute|{limit(-0.5, 2, 4, 1)}{mimic('a', 2)}",
        f"c|revolute|{limit(3, 4)}{mimic('b', -1, 0.5)}",
    )
    notes = Robot.from_urdf(text).receipt.notes
    for expected in (
        Note("following", "joint 'b'", "follows 2 * 'a' + 0", 3),
        Note("following", "joint 'c'", "follows -1 * 'b' + 0.5: -2 * 'a' + 0.5", 4),
        Note("changed", "joint 'a'", "keeps the limits of 'b' too: lower -1 -> -0.25, velocity 2 -> 0.5", 2),
        Note(
            "warning",
            "joint 'a'",
            "its range does not overlap that of 'c', which follows it: the range of 'c' is ignored",
            2,
        ),
    ):
        assert expected in notes
    assert not any(note.kind == "reported" for note in notes)
    assert "  following      2 joints, without entries in q, v and tau\n" in Robot.from_urdf(text).receipt.render()
    free = Robot.from_urdf(text, mimic=False)
    text_of_note = "mimics 2 * 'a' + 0 in the source; here it is independent, with its own q and tau"
    assert Note("reported", "joint 'b'", text_of_note, 3) in free.receipt.notes
    assert not free.receipt.of_kind("following")
    assert free.limits.lower.tolist() == [-1.0, -0.5, 3.0]


def test_kept_names_those_that_narrow() -> None:
    a, b, c = read_text(
        hand(
            f"a|revolute|{limit(-1, 1)}",
            f"b|revolute|{limit(-2, 2)}{mimic('a')}",
            f"c|revolute|{limit(0, 2)}{mimic('a')}",
        )
    ).joints
    assert b.mimic
    assert c.mimic
    narrowed = narrowed_limits(a, [(b, b.mimic), (c, c.mimic)])
    assert (narrowed.own_bounds, narrowed.bounds.lower, narrowed.narrowed_by, narrowed.disjoint) == (
        LEADER,
        0.0,
        ("c",),
        (),
    )


def test_who_asks_is_told_whom_each_joint_follows() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    description = RobotDescription(
        **{name: getattr(robot.description, name) for name in robot.description.__struct_fields__}
    )
    finger = next(joint for joint in description.joints if joint.name == "panda_finger_joint2")
    assert finger.mimic == MimicDescription(joint="panda_finger_joint1", multiplier=1.0, offset=0.0)
    assert [joint.name for joint in description.joints if joint.mimic is not None] == ["panda_finger_joint2"]
    assert description.joint_names == (*(f"panda_joint{k}" for k in range(1, 8)), "panda_finger_joint1")
    assert "panda_finger_joint2" in description.all_joint_names
    assert description.to_dict()["joints"][-2]["mimic"] == {
        "joint": "panda_finger_joint1",
        "multiplier": 1.0,
        "offset": 0.0,
    }
    assert "mimic" not in description.to_dict()["joints"][0]


def test_another_relation_is_another_robot() -> None:
    text = hand("a|revolute|", "b|revolute|RULE")
    rules = (mimic("a"), mimic("a", 1 + 1e-12), mimic("a", 1, 1e-12), mimic("a", -1), "")
    robots = [Robot.from_urdf(text.replace("RULE", rule)) for rule in rules]
    assert len({robot.fingerprint for robot in robots}) == len(rules)
    free = Robot.from_urdf(text.replace("RULE", mimic("a")), mimic=False)
    assert free.fingerprint == robots[-1].fingerprint
    unpickled = pickle.loads(pickle.dumps(robots[0]))
    assert (unpickled.fingerprint, unpickled.nv) == (robots[0].fingerprint, 1)
    assert pickle.loads(pickle.dumps(free)).nv == 2


def test_what_a_follower_does_by_itself_stands_with_its_own_rate() -> None:
    inner = '<axis xyz="0 0 1"/><dynamics damping="3" friction="0.5"/>'
    robot = Robot.from_urdf(hand("a|revolute|", f"b|revolute|{inner}{mimic('a', -2)}"))
    assert robot.tree.passive.damping.tolist() == [0.0, 3.0]
    forces = robot.passive_forces([0.4], [0.05])
    assert np.allclose([forces.damping, forces.friction], [[4 * 3 * 0.05], [2 * 0.5 * np.tanh(0.1 / 0.1)]], rtol=1e-14)
    assert np.isclose(forces.dissipated, 3 * 0.1**2 + 0.5 * np.tanh(1.0) * 0.1)


@pytest.mark.parametrize("overlaid", [False, True])
def test_a_followers_spring_damper_and_rotor_by_value(overlaid: bool) -> None:
    """y = -2 x: an effort on y is -2 times it on x, and what is in proportion to y's rate counts four times."""
    text = hand("a|revolute|", f'b|revolute|<axis xyz="0 0 1"/>{mimic("a", -2)}')
    robot = Robot.from_urdf(text)
    numbers: dict[str, Any] = {"damping": 3.0, "armature": 0.25, "stiffness": 5.0, "rest": 0.3}
    overlay = Overlay(joints={"b": JointNumbers(**numbers)}) if overlaid else None
    if not overlaid:
        description = read_text(text)
        joints = tuple(
            dataclasses.replace(joint, **numbers) if joint.name == "b" else joint for joint in description.joints
        )
        robot = Robot(dataclasses.replace(description, joints=joints))
    forces = robot.passive_forces([0.4], [0.05], overlay=overlay)
    assert np.allclose([forces.damping, forces.springs], [[4 * 3 * 0.05], [-2 * 5 * (-2 * 0.4 - 0.3)]], rtol=1e-14)
    assert np.allclose([forces.stored, forces.dissipated], [5 * 1.1**2 / 2, 3 * 0.1**2], rtol=1e-14)
    armature_part = robot.mass_matrix([0.4], overlay=overlay) - robot.mass_matrix([0.4], passive=False)
    assert np.allclose(armature_part, 4 * 0.25, rtol=1e-12)


def test_payloads_and_bare_trees_keep_the_relations() -> None:
    robot = interpreted_robot(Robot.from_urdf(URDF / "panda.urdf", joints=URDF.parent / "config" / "panda_joints.yaml"))
    assert robot.without_passive.joint_names == robot.joint_names
    payload = Payload("panda_rightfinger", mass=0.3)
    loaded = robot.with_payload(payload)
    assert loaded.joint_names == robot.joint_names
    k = robot.nv - 1
    q = robot.neutral()
    assert np.isclose((loaded.mass_matrix(q) - robot.mass_matrix(q))[k, k], 0.3)


def test_one_rule_for_all_weldings_and_first_bodies() -> None:
    """The tree of what moves is tied as the full one, and so are its first bodies, whoever of those that move together
    is among them.
    """
    for seed in range(12):
        tied = pair(drawn(read_text(random_urdf(seed, movable=8, types=MANY_TYPES)), seed, share=0.7))
        full = tied.coupled.tree
        moving = weld(full).tree
        assert np.array_equal(full.coupling_matrix, moving.coupling_matrix)
        assert np.allclose(full.coupling_matrix, tied.S)
        assert moving.without_mimics.nv == tied.free.nv
        assert moving.without_mimics.without_mimics is moving.without_mimics
        kernel_bodies = kernel_tree(full, "chosen")
        for bodies in range(1, len(kernel_bodies.tree) + 1):
            first = kernel_bodies.first(bodies).tree
            assert (first.nr, len(first.mimicked_body)) == (sum(joint.nv for joint in first.inboard), bodies)
            assert first.nv <= full.nv
        assert np.array_equal(first.coupling_matrix != 0.0, moving.coupling_matrix != 0.0)


def test_the_matrix_in_plain_numbers() -> None:
    """`composite.mass_matrix`, by which certificates weigh, is S^T M S too."""
    tied = pair(drawn(read_text(random_urdf(5, movable=9, types=MANY_TYPES)), 5, share=0.7))
    q = np.array([tied.coupled.random_configuration(seed=k) for k in range(4)])
    expected = tied.S.T @ composite.mass_matrix(tied.free.tree, tied.positions(q)) @ tied.S
    M = composite.mass_matrix(tied.coupled.tree, q)
    assert np.allclose(M, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_rotors_are_in_the_matrix_in_plain_numbers() -> None:
    robot = restless(URDF / "panda.urdf", 1, {"armature"})
    q = robot.neutral()
    armature_part = composite.mass_matrix(robot.tree, q) - composite.mass_matrix(robot.tree.without_passive, q)
    assert np.allclose(np.diag(armature_part), robot.tree.reflected(robot.tree.passive.armature), rtol=1e-9)


def test_a_sliding_follower_stands_off_by_its_offset() -> None:
    """Along its own axis, in a joint frame that is turned."""
    inner = '<origin xyz="1 0 0" rpy="0 0 1.5707963267948966"/><axis xyz="1 0 0"/>'
    robot = Robot.from_urdf(hand("a|prismatic|", f"b|prismatic|{inner}{mimic('a', 2, 0.25)}"))
    position = robot.link_poses([[0.0], [0.1]]).position[:, robot.link_names.index("b_link")]
    assert np.allclose(position, [[1.0, 0.25, 0.0], [1.0, 0.45, 0.0]], atol=1e-15)


def test_what_factors_the_mass_matrix_is_foretold_so() -> None:
    row, options = QUERIES["forward_dynamics"], {"method": "articulated"}
    with_mimic, free = (Robot.from_urdf(URDF / "panda.urdf", mimic=mimic) for mimic in (True, False))
    inputs = {name: np.zeros((100_000, with_mimic.nv)) for name in ("q", "v", "tau")}
    assert (
        of_query(row, with_mimic.sizes, inputs, options).work_s > 2 * of_query(row, free.sizes, inputs, options).work_s
    )


def test_long_chains_are_resolved_once() -> None:
    count = 3000
    joints = read_text(
        hand(*(f"j{i}|continuous|{mimic(f'j{i + 1}') if i < count else ''}" for i in range(count + 1)))
    ).joints
    mimics = resolved_mimics(joints)
    assert len(mimics) == count
    assert {mimic.joint for mimic in mimics.values()} == {f"j{count}"}


def test_a_description_of_a_robot_that_nobody_leads_is_left_as_it_is() -> None:
    described = read(URDF / "ur5e.urdf")
    assert without_mimics(described).notes == described.notes
    assert not tree_of(described).has_mimics
    tree = tree_of(described)
    assert tree.without_mimics is tree
    assert tree.reflected(tree.passive.damping) is tree.passive.damping
    assert dataclasses.replace(tree).parent_first_entries == tuple(range(tree.nv))


def test_dyn_check_says_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "hand.urdf"
    file.write_text(hand(f"a|revolute|{limit(-1, 1)}", f"b|revolute|{limit(-1, 1)}{mimic('a')}"))
    outputs = []
    for option in ((), ("--no-mimic",)):
        monkeypatch.setattr(sys, "argv", ["dyn", "check", str(file), "--no-kernels", *option])
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert not exit_info.value.code
        outputs.append(capsys.readouterr().out)
    assert "following (1)" in outputs[0]
    assert "follows 1 * 'a' + 0" in outputs[0]
    assert "following" not in outputs[1]
    assert "reported (1)" in outputs[1]
