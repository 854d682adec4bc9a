"""Ground reactions: what identities say of them, within friction cones and without, and what they cannot do."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from typer.testing import CliRunner

from dyn_service import AsyncClient, Client, Contact, DynError, Robot, Server, Wrench
from dyn_service.api.queries import DEFAULT_FRICTION
from dyn_service.cli.main import app
from dyn_service.simulation.contact import ground_reactions
from tests.passive import restless
from tests.phrases import naming

WALKER = """<robot name="walker"><link name="trunk">{body}</link>{legs}</robot>"""
LEG = """
<link name="{n}_thigh">{light}</link><link name="{n}_foot">{light}</link>
<joint name="{n}_hip" type="revolute"><parent link="trunk"/><child link="{n}_thigh"/><origin xyz="{x} {y} 0"/>
  <axis xyz="0 1 0.1"/><limit lower="-2" upper="2" effort="50" velocity="9"/>
  <dynamics damping="0.3" friction="0.2"/></joint>
<joint name="{n}_knee" type="revolute"><parent link="{n}_thigh"/><child link="{n}_foot"/><origin xyz="0 0 -0.3"/>
  <axis xyz="0.1 1 0"/><limit lower="-2" upper="2" effort="50" velocity="9"/></joint>
"""
BODY = """<inertial><origin xyz="{c} 0 {c}"/><mass value="{m}"/>
  <inertia ixx="{i}" iyy="{i}" izz="{i}" ixy="0" ixz="0" iyz="0"/></inertial>"""


def description(legs: int = 4) -> str:
    places = [(0.3, 0.2), (0.3, -0.2), (-0.3, 0.2), (-0.3, -0.2)][:legs]
    light = BODY.format(c=-0.05, m=0.5, i=0.002)
    parts = "".join(LEG.format(n=f"leg{k}", x=x, y=y, light=light) for k, (x, y) in enumerate(places))
    return WALKER.format(body=BODY.format(c=0.02, m=12.0, i=0.3), legs=parts)


def walker(root: Any = "floating") -> Robot:
    return Robot.from_urdf(description(), root=root)


@pytest.fixture(scope="module")
def robot() -> Robot:
    return walker()


def standing(robot: Robot, seed: int = 0, speed: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q = robot.neutral()
    q[7:] = np.tile([0.4, -0.8], (len(q) - 7) // 2) + 0.1 * rng.normal(size=len(q) - 7)
    v, a = speed * rng.normal(size=(2, robot.nv))
    return q, v, a


def feet(count: int = 4, friction: float | None = None, **fields: Any) -> list[Contact]:
    """Of this friction; where none is said rigid, pushed and pulled any way."""
    fields = {"rigid": friction is None, "friction": friction, **fields}
    return [Contact(f"leg{k}_foot", point=(0.0, 0.0, -0.3), **fields) for k in range(count)]


def pushes(contacts: list[Contact], forces: np.ndarray) -> list[Wrench]:
    return [Wrench(contact.link, force=forces[..., k, :], point=contact.point) for k, contact in enumerate(contacts)]


def matrix(robot: Robot, q: np.ndarray, contacts: list[Contact]) -> np.ndarray:
    """J^T (nv, 3 nc): by inverse dynamics at rest without weight, one unit force at a time."""
    zeros = np.zeros(robot.nv)
    columns = []
    for contact in contacts:
        for force in np.eye(3):
            push = Wrench(contact.link, force=force, point=contact.point)
            columns.append(-robot.inverse_dynamics(q, zeros, zeros, gravity=np.zeros(3), wrenches=push, passive=False))
    return np.array(columns).T


def within(forces: np.ndarray, mu: float, normal: Any = (0.0, 0.0, 1.0)) -> float:
    """How far the worst force is out of its cone, over the largest force."""
    n = np.asarray(normal) / np.linalg.norm(normal)
    normal_part = forces @ n
    tangential = np.linalg.norm(forces - normal_part[..., None] * n, axis=-1)
    return float(np.max(np.maximum(tangential - mu * normal_part, -normal_part)) / np.abs(forces).max())


# Identities.


@pytest.mark.parametrize("friction", [None, 0.8, 0.03])
@pytest.mark.parametrize("objective", ["forces", "efforts"])
@pytest.mark.parametrize("passive", [True, False])
def test_inverse_dynamics_with_these_forces_needs_these_efforts(
    robot: Robot, friction: float | None, objective: Any, passive: bool
) -> None:
    contacts = feet(friction=friction)
    for seed in range(3):
        q, v, a = standing(robot, seed)
        reactions = robot.ground_reactions(q, v, a, contacts, least=objective, passive=passive)
        tau = robot.inverse_dynamics(q, v, a, wrenches=pushes(contacts, reactions.forces), passive=passive)
        assert np.abs(tau - reactions.tau).max() < 1e-12 * np.abs(reactions.forces).max()
        if reactions.supported:
            assert np.abs(tau[:6]).max() < 1e-11 * np.abs(reactions.forces).max()
        if friction is not None:
            assert within(reactions.forces, friction) < 1e-9


def test_what_else_acts_counts(robot: Robot) -> None:
    """Gravity, external wrenches, and what joints do by themselves."""
    q, v, a = standing(robot)
    contacts, push, moon = feet(), Wrench("trunk", force=(5.0, 1.0, -20.0), point=(0.1, 0.2, 0.3)), (0.0, 0.1, -1.6)
    reactions = robot.ground_reactions(q, v, a, contacts, gravity=moon, wrenches=push)
    wrenches = [push, *pushes(contacts, reactions.forces)]
    tau = robot.inverse_dynamics(q, v, a, gravity=moon, wrenches=wrenches)
    assert np.abs(tau - reactions.tau).max() < 1e-12 * np.abs(reactions.forces).max()
    assert np.abs(tau[:6]).max() < 1e-12 * np.abs(reactions.forces).max()
    bare = robot.ground_reactions(q, v, a, contacts, gravity=moon, wrenches=push, passive=False)
    assert np.abs(bare.tau - reactions.tau).max() > 1e-3


def test_least_forces_and_least_efforts(robot: Robot) -> None:
    """Whatever is added inside the robot makes them larger; and one is not the other."""
    q, v, a = standing(robot)
    J = matrix(robot, q, feet())
    _, s, Vt = np.linalg.svd(J[:6])
    internal = Vt[6:]
    assert s[5] > 1e-3
    forces = robot.ground_reactions(q, v, a, feet())
    efforts = robot.ground_reactions(q, v, a, feet(), least="efforts")
    assert np.abs(internal @ forces.forces.ravel()).max() < 1e-11
    assert np.abs(internal @ (J[6:].T @ efforts.tau[6:])).max() < 1e-10
    assert np.linalg.norm(efforts.tau[6:]) < 0.999 * np.linalg.norm(forces.tau[6:])
    assert np.linalg.norm(forces.forces) < 0.999 * np.linalg.norm(efforts.forces)


def test_forces_that_no_effort_feels_stay_least(robot: Robot) -> None:
    """Four points of one link push against each other inside it: what efforts feel of that is rounding."""
    corners = [(x, y, -0.3) for x in (-0.05, 0.05) for y in (-0.03, 0.03)]
    foot = [Contact("leg0_foot", point=corner, rigid=True) for corner in corners]
    state = standing(robot)
    by_forces, by_efforts = (
        robot.ground_reactions(*state, foot, least=objective) for objective in ("forces", "efforts")
    )
    assert by_efforts.supported == 1.0
    assert np.allclose(by_efforts.forces, by_forces.forces, rtol=0, atol=1e-9 * np.abs(by_forces.forces).max())
    assert np.allclose(by_efforts.tau, by_forces.tau, rtol=0, atol=1e-9 * np.abs(by_forces.tau).max())
    # Within cones that bind, and at the trunk, where efforts feel nothing at all.
    slipping = np.zeros(robot.nv)
    slipping[0] = 3.8
    trunk = [Contact("trunk", point=(5 * x, 5 * y, -0.1), friction=0.4) for x, y, _ in corners]
    sliding_state = robot.neutral(), np.zeros(robot.nv), slipping
    by_forces, by_efforts = (
        robot.ground_reactions(*sliding_state, trunk, least=objective) for objective in ("forces", "efforts")
    )
    free = robot.ground_reactions(*sliding_state, [replace(contact, rigid=True) for contact in trunk])
    assert by_forces.supported == by_efforts.supported == 1.0
    assert np.abs(by_forces.forces - free.forces).max() > 0.1
    assert np.allclose(by_efforts.forces, by_forces.forces, rtol=0, atol=1e-6 * np.abs(by_forces.forces).max())


@pytest.mark.parametrize("objective", ["forces", "efforts"])
@pytest.mark.parametrize("friction", [0.0275, 0.5])
def test_within_cones_none_is_less(robot: Robot, objective: Any, friction: float) -> None:
    """Held against another method; the ground is not level, and the cones bind."""
    q, v, a = standing(robot, speed=0.1)
    a[0] += 0.5
    normal = np.array([0.04, 0.02, 2.0])
    contacts = feet(friction=friction, normal=normal)
    normal /= np.linalg.norm(normal)
    free = robot.ground_reactions(q, v, a, feet(), least=objective)
    assert (within(free.forces, friction, normal) > 1e-5) == (friction < 0.1 or objective == "efforts")
    reactions = robot.ground_reactions(q, v, a, contacts, least=objective)
    assert reactions.supported
    assert (
        reactions.residual < 1e-14
    )  # what the solver leaves, some 1e-9, is put right to rounding: sums of tens of terms
    as_small_as_another_finds(
        reactions, robot.inverse_dynamics(q, v, a), matrix(robot, q, contacts), contacts, objective
    )


@pytest.mark.parametrize("objective", ["forces", "efforts"])
def test_one_foot_held_and_the_others_in_cones(robot: Robot, objective: Any) -> None:
    """The trunk is tipped over by more than its weight holds down: the rigid foot pulls, whatever its friction."""
    q, zeros = standing(robot)[0], np.zeros(robot.nv)
    push = Wrench("trunk", torque=(0.0, -90.0, 0.0))
    contacts = [replace(foot, rigid=k == 0) for k, foot in enumerate(feet(friction=0.3))]
    reactions = robot.ground_reactions(q, zeros, zeros, contacts, least=objective, wrenches=push)
    assert reactions.supported
    assert reactions.forces[0, 2] < -10.0
    assert reactions.forces[1:, 2].max() > 10.0
    assert within(reactions.forces[1:], 0.3) < 1e-9
    assert (
        within(robot.ground_reactions(q, zeros, zeros, feet(), least=objective, wrenches=push).forces[1:], 0.3) > 1e-2
    )
    in_cones = robot.ground_reactions(q, zeros, zeros, feet(friction=0.3), least=objective, wrenches=push)
    assert not in_cones.supported
    push = Wrench("trunk", force=(70.0, 0.0, 0.0), point=(0.0, 0.0, -0.5))  # and now it would slide
    reactions = robot.ground_reactions(q, zeros, zeros, contacts, least=objective, wrenches=push)
    assert reactions.supported
    assert within(reactions.forces[:1], 0.3) > 1e-2
    assert within(reactions.forces[1:], 0.3) < 1e-9
    required = robot.inverse_dynamics(q, zeros, zeros, wrenches=push)
    as_small_as_another_finds(reactions, required, matrix(robot, q, contacts), contacts, objective)


def as_small_as_another_finds(
    reactions: Any, required: np.ndarray, J: np.ndarray, contacts: list[Contact], objective: Any
) -> None:
    """Compared with SLSQP. required: efforts without contacts. J: J^T, (nv, 3 nc). One normal and friction for all."""
    normal, friction = np.asarray(contacts[0].normal), contacts[0].friction
    normal = normal / np.linalg.norm(normal)
    coned = [k for k, contact in enumerate(contacts) if not contact.rigid]
    assert friction is not None

    def size(f: np.ndarray) -> float:
        return float(np.sum((required[6:] - J[6:] @ f) ** 2) if objective == "efforts" else np.sum(f**2)) / 100.0

    def cones(f: np.ndarray) -> np.ndarray:
        coned_forces = f.reshape(-1, 3)[coned]
        normal_part = coned_forces @ normal
        return friction**2 * normal_part**2 - np.sum((coned_forces - normal_part[:, None] * normal) ** 2, axis=1)

    equalities = [
        {"type": "eq", "fun": lambda f: J[:6] @ f - required[:6]},
        {"type": "ineq", "fun": cones},
        {"type": "ineq", "fun": lambda f: f.reshape(-1, 3)[coned] @ normal},
    ]
    start = np.tile(40.0 * normal, len(contacts))
    peer = minimize(size, start, constraints=equalities, method="SLSQP", options={"maxiter": 500, "ftol": 1e-12})
    assert peer.success
    least_size = size(reactions.forces.ravel())
    assert least_size < peer.fun * (1 + 1e-5) + 1e-9
    assert least_size > peer.fun * (1 - 1e-3)


BRICK = f"""<robot name="brick"><link name="body">{BODY.format(c=0, m=2.0, i=0.01)}</link></robot>"""
CORNERS = [(x, y, 0.0) for x in (-0.2, 0.2) for y in (-0.1, 0.1)]


def test_a_contact_is_what_it_is_in_motions() -> None:
    """One list: pulled off the ground it lets go, in both; pushed along it, it holds up to the same friction, and
    slides beyond. Rigid ones hold, in both, by the same forces.
    """
    brick = Robot.from_urdf(BRICK, root="floating")
    q, zeros, weight = brick.neutral(), np.zeros(6), 2.0 * 9.81
    loose = [Contact("body", point) for point in CORNERS]
    rigid = [Contact("body", point, friction=0.1, rigid=True) for point in CORNERS]
    slip_force = DEFAULT_FRICTION * weight
    for force, holds in (
        ((0.0, 0.0, 2.0 * weight), False),
        ((0.99 * slip_force, 0.0, 0.0), True),
        ((1.01 * slip_force, 0.0, 0.0), False),
    ):
        push = Wrench("body", force=force)
        reactions = brick.ground_reactions(q, zeros, zeros, loose, wrenches=push)
        motion = brick.simulate(
            q, zeros, dt=1e-3, steps=200, every=200, integrator="stick_slip", contacts=loose, wrenches=push
        )
        assert bool(reactions.supported) == holds
        assert (float(np.abs(motion.v[-1]).max()) < 1e-3) == holds
        rigid_reactions = brick.ground_reactions(q, zeros, zeros, rigid, wrenches=push)
        assert rigid_reactions.supported
        assert np.abs(rigid_reactions.forces.sum(axis=0) + np.array(force) - (0.0, 0.0, weight)).max() < 1e-12
        of_motion = brick.simulate(q, zeros, dt=1e-3, steps=1, contacts=rigid, wrenches=push).contact_forces
        assert of_motion is not None
        assert np.abs(of_motion[0] - rigid_reactions.forces).max() < 1e-9


def test_a_solver_is_foretold_where_one_cone_may_bind(robot: Robot) -> None:
    q, v, a = standing(robot)
    mixed = [*feet(3), Contact("leg3_foot")]
    all_rigid, one_loose, all_loose = (
        ground_reactions.cost(robot.sizes, {"q": q, "v": v, "a": a, "contacts": contacts}, {}).work_s
        for contacts in (feet(), mixed, feet(friction=0.5))
    )
    assert one_loose == all_loose > 2.0 * all_rigid


@pytest.mark.parametrize("count", [1, 4])
def test_the_foretold_reply_holds_the_answer(robot: Robot, count: int) -> None:
    """Efforts and forces, their arrays one double each; `supported` and the residual are four more at most."""
    q, v, a = standing(robot)
    reactions = robot.ground_reactions(q, v, a, feet(count))
    cost = ground_reactions.cost(robot.sizes, {"q": q, "v": v, "a": a, "contacts": feet(count)}, {})
    assert 0 <= cost.reply_bytes - reactions.tau.nbytes - reactions.forces.nbytes <= 32


@pytest.mark.parametrize(
    ("friction", "force", "expected"),
    [
        (0.5, (0.0, 0.0, 2.0), -1.0),
        (0.5, (3.0, 4.0, 2.0), 4.0),
        (0.5, (0.0, 0.0, -2.0), 2.0),
        (0.0, (0.0, 0.0, 2.0), 0.0),
        (0.0, (0.0, 0.0, -2.0), 2.0),
        (2.0, (0.0, 1.0, -1.0), 3.0),
    ],
)
def test_how_far_a_force_is_out_of_its_cone(friction: float, force: Any, expected: float) -> None:
    distance = ground_reactions.Cone(0, friction).distance(np.array(force), np.array([0.0, 0.0, 1.0]))
    assert distance == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(("size", "share"), [(1.0, 0.9), (1e-5, 0.9), (4e-10, 0.5)])
def test_efforts_of_any_size_above_rounding_are_least(size: float, share: float) -> None:
    """The effort of the second foot counts nine times. An effort below 1e-9 of the forces is rounding: equal shares."""
    A, b, normals = np.hstack([np.eye(3), np.eye(3)]), np.array([1.0, 0.0, 20.0]), np.tile([0.0, 0.0, 1.0], (2, 1))
    B = size * np.diag([1.0, 1.0, 1.0, 3.0, 3.0, 3.0])
    cones = [ground_reactions.Cone(0, 0.5), ground_reactions.Cone(1, 0.2)]
    forces = ground_reactions.least_in_cones(A, b, normals, cones, (B, np.zeros(6)))
    # The solver stops at 1e-12 to 1e-9 of the sum of squares, which is flat: the root of it in the forces, of 20 N.
    np.testing.assert_allclose(forces, np.concatenate([share * b, (1.0 - share) * b]), rtol=0, atol=1e-3)


def test_feet_without_friction_that_would_have_to_pull(robot: Robot) -> None:
    """Straight along the normal: the trunk is tipped over by more than its weight holds down."""
    q, zeros = robot.neutral(), np.zeros(robot.nv)
    push = Wrench("trunk", torque=(0.0, 90.0, 0.0))
    reactions = robot.ground_reactions(q, zeros, zeros, feet(friction=0.0), wrenches=push)
    assert robot.ground_reactions(q, zeros, zeros, feet(), wrenches=push).forces[:, 2].min() < -1.0
    assert reactions.forces[:, 2].min() > -1e-6
    assert np.abs(reactions.forces[:, :2]).max() < 1e-6
    assert reactions.supported == 0.0


def test_cones_that_bind_not_change_nothing(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, and without a solver."""

    def never(*_: Any) -> Any:
        raise AssertionError("the solver was asked")

    q, v, a = standing(robot)
    free = robot.ground_reactions(q, v, a, feet())
    monkeypatch.setattr(ground_reactions, "least_in_cones", never)
    in_cones = robot.ground_reactions(q, v, a, feet(friction=0.9))
    assert in_cones.forces.tobytes() == free.forces.tobytes()
    with pytest.raises(AssertionError, match="was asked"):
        robot.ground_reactions(q, v, a, feet(friction=0.001))


def test_the_ground_pushes_where_the_sphere_is_lowest(robot: Robot) -> None:
    """At point - radius n, n of length 1 in world axes, whatever the plane; and at the point without a radius."""
    q, v, a = standing(robot)
    normal = np.array([0.3, -0.2, 2.0])
    n = normal / np.linalg.norm(normal)
    round_feet = feet(radius=0.07, normal=normal, plane=(0.0, 0.0, 5.0))
    poses = robot.link_poses(q)
    lowest = []
    for foot in round_feet:
        R = poses.rotation[robot.link_names.index(foot.link)]
        lowest.append(Contact(foot.link, point=np.array(foot.point) - 0.07 * R.T @ n, rigid=True))
    reactions, expected = (robot.ground_reactions(q, v, a, contacts) for contacts in (round_feet, lowest))
    for output, expected_output in zip(reactions, expected, strict=True):
        assert np.allclose(output, expected_output, rtol=1e-10, atol=1e-10)
    tau = robot.inverse_dynamics(q, v, a, wrenches=pushes(lowest, reactions.forces))
    assert np.abs(tau - reactions.tau).max() < 1e-11
    assert np.abs(reactions.tau - robot.ground_reactions(q, v, a, feet()).tau).max() > 1e-2


# What it says of what is not determined, or cannot be.


@pytest.mark.parametrize(("count", "rank"), [(0, 0), (1, 3), (2, 5), (3, 6), (4, 6)])
def test_rank_and_what_is_left_open(robot: Robot, count: int, rank: int) -> None:
    q, v, a = standing(robot)
    reactions = robot.ground_reactions(q, v, a, feet(count))
    assert (reactions.rank, reactions.indeterminate) == (rank, 3 * count - rank)
    assert reactions.supported == (rank == 6)
    assert reactions.forces.shape == (count, 3)
    tau = robot.inverse_dynamics(q, v, a, wrenches=pushes(feet(count), reactions.forces))
    assert np.abs(tau - reactions.tau).max() < 1e-11
    required = robot.inverse_dynamics(q, v, a)
    assert reactions.residual == pytest.approx(np.linalg.norm(tau[:6]) / np.linalg.norm(required[:6]), abs=1e-14)
    if count == 0:
        assert reactions.residual == pytest.approx(1.0, abs=1e-14)
        assert np.array_equal(reactions.tau, required)


def test_contacts_in_a_row_leave_one_turn(robot: Robot) -> None:
    q, v, a = standing(robot)
    row = [Contact("trunk", point=(x, 0.1, -0.2), rigid=True) for x in (-0.2, 0.0, 0.3, 0.5)]
    assert robot.ground_reactions(q, v, a, row).rank == 5
    assert robot.ground_reactions(q, v, a, row).indeterminate == 7


@pytest.mark.parametrize("objective", ["forces", "efforts"])
def test_a_foot_that_would_have_to_pull(robot: Robot, objective: Any) -> None:
    """The nearest to the motion that pushing feet can do; nothing is no number."""
    q, v, a = standing(robot)
    a[2] = -30.0  # down, faster than it falls
    reactions = robot.ground_reactions(q, v, a, feet(friction=0.6), least=objective)
    assert reactions.supported == 0.0
    assert 0.1 < reactions.residual < 1.0 + 1e-9
    assert within(reactions.forces, 0.6) < 1e-6 or np.abs(reactions.forces).max() < 1e-3
    free = robot.ground_reactions(q, v, a, feet())
    assert free.supported == 1.0
    assert free.forces[:, 2].sum() < 0.0
    tau = robot.inverse_dynamics(q, v, a, wrenches=pushes(feet(), reactions.forces))
    assert np.abs(tau - reactions.tau).max() < 1e-10


def test_the_nearest_is_the_nearest(robot: Robot) -> None:
    """On ice a push from the side cannot be met: what is left is its share, and no more."""
    q = robot.neutral()
    zeros = np.zeros(robot.nv)
    push = Wrench("trunk", force=(10.0, 0.0, 0.0), point=(0.0, 0.0, -0.6))  # on the height of the feet
    reactions = robot.ground_reactions(q, zeros, zeros, feet(friction=0.0), wrenches=push)
    required = robot.inverse_dynamics(q, zeros, zeros, wrenches=push)
    assert reactions.supported == 0.0
    assert np.abs(reactions.forces[:, :2]).max() < 1e-6
    assert np.linalg.norm(reactions.tau[:6]) == pytest.approx(10.0, rel=1e-6)
    assert reactions.residual == pytest.approx(10.0 / np.linalg.norm(required[:6]), rel=1e-6)


def test_nothing_needed_nothing_found(robot: Robot) -> None:
    zeros, weightless = np.zeros(robot.nv), np.zeros(3)
    for friction in (None, 0.5):
        reactions = robot.ground_reactions(robot.neutral(), zeros, zeros, feet(friction=friction), gravity=weightless)
        assert not reactions.forces.any()
        assert (reactions.residual, reactions.supported) == (0.0, 1.0)


def test_a_base_that_is_bolted_down(robot: Robot) -> None:
    """With all joints driven, the least force is zero, and the least effort uses the supports."""
    bolted = walker(root="fixed")
    q, zeros = np.full(bolted.nv, 0.3), np.zeros(bolted.nv)
    unloaded = bolted.ground_reactions(q, zeros, zeros, feet())
    assert not unloaded.forces.any()
    assert (unloaded.rank, unloaded.indeterminate, unloaded.residual, unloaded.supported) == (0.0, 12.0, 0.0, 1.0)
    assert np.array_equal(unloaded.tau, bolted.inverse_dynamics(q, zeros, zeros))
    leaning = bolted.ground_reactions(q, zeros, zeros, feet(), least="efforts")
    assert np.linalg.norm(leaning.tau) < 1e-10
    hips = bolted.ground_reactions(q, zeros, zeros, feet(), undriven=[f"leg{k}_hip" for k in range(4)])
    entries = [bolted.joint_names.index(f"leg{k}_hip") for k in range(4)]
    assert np.abs(hips.tau[entries]).max() < 1e-12
    assert hips.rank == 4.0


def test_a_bolted_arm_leans_in_the_ways_in_which_its_joints_feel_a_push() -> None:
    """Three parallel axes react to two of a point's three forces; with a fixed base, the third is rounding of these."""
    joint = """<joint name="j{k}" type="continuous"><parent link="l{k}"/><child link="l{n}"/><origin xyz="0.3 0.1 {k}"/>
      <axis xyz="0.1 1 0.2"/></joint><link name="l{n}">{body}</link>"""
    body = BODY.format(c=0.1, m=1.0, i=0.01)
    joints = "".join(joint.format(k=k, n=k + 1, body=body) for k in range(3))
    arm = Robot.from_urdf(f'<robot name="arm"><link name="l0"/>{joints}</robot>')
    tip = [Contact("l3", point=(0.2, 0.3, 0.1), rigid=True)]
    q, zeros = np.array([0.3, 0.4, 0.5]), np.zeros(3)
    reactions = arm.ground_reactions(q, zeros, zeros, tip, least="efforts")
    jacobian = matrix(arm, q, tip)
    assert np.linalg.matrix_rank(jacobian, 1e-9) == 2
    least_forces = np.linalg.pinv(jacobian, rcond=1e-9) @ arm.inverse_dynamics(q, zeros, zeros)
    np.testing.assert_allclose(reactions.forces.ravel(), least_forces, rtol=0, atol=1e-10 * np.abs(least_forces).max())


def test_never_not_a_number(robot: Robot) -> None:
    """Random states, upside down and in all directions, with cones and without."""
    count = 60
    rng = np.random.default_rng(7)
    q = np.stack([robot.random_configuration(seed=k) for k in range(count)])
    v, a = rng.uniform(-5.0, 5.0, (2, count, robot.nv))
    for friction in (None, 0.0, 0.7):
        for objective in ("forces", "efforts"):
            reactions = robot.ground_reactions(q, v, a, feet(friction=friction), least=objective)
            for part in reactions:
                assert np.isfinite(part).all()
            if friction is not None:
                assert max(within(f, friction) for f in reactions.forces if np.abs(f).max() > 1e-3) < 1e-6


# Batches.


@pytest.mark.parametrize("friction", [None, 0.2])
@pytest.mark.parametrize("objective", ["forces", "efforts"])
def test_alone_and_in_a_batch(robot: Robot, friction: float | None, objective: Any) -> None:
    states = [standing(robot, seed, 0.5) for seed in range(6)]
    q, v, a = (np.stack(x) for x in zip(*states, strict=True))
    batch = [x.reshape(2, 3, -1) for x in (q, v, a)]
    reactions = robot.ground_reactions(*batch, feet(friction=friction), least=objective)
    assert reactions.forces.shape == (2, 3, 4, 3)
    assert reactions.tau.shape == (2, 3, robot.nv)
    for k, state in enumerate(states):
        single = robot.ground_reactions(*state, feet(friction=friction), least=objective)
        for output, single_output in zip(reactions, single, strict=True):
            assert output.reshape(6, *single_output.shape)[k].tobytes() == np.asarray(single_output).tobytes()


def test_points_and_normals_of_a_batch(robot: Robot) -> None:
    q, v, a = standing(robot)
    points = np.random.default_rng(3).normal(size=(4, 5, 3)) * 0.1
    normals = np.array([[0.0, 0.0, 1.0], [0.0, 0.3, 1.0], [0.2, 0.0, 1.0], [0.1, 0.1, 3.0], [0.0, 0.0, 7.0]])
    contacts = [Contact(f"leg{k}_foot", points[k], 0.02, normal=normals, friction=0.05) for k in range(4)]
    reactions = robot.ground_reactions(q, v, a, contacts)
    assert reactions.forces.shape == (5, 4, 3)
    for s in range(5):
        single_contacts = [
            Contact(c.link, points[k, s], 0.02, normal=normals[s], friction=0.05) for k, c in enumerate(contacts)
        ]
        assert robot.ground_reactions(q, v, a, single_contacts).forces.tobytes() == reactions.forces[s].tobytes()


# What is wrong.

WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no link": ({"contacts": [Contact("leg0_fot")]}, "NOT_FOUND", "contacts[0].link", "did you mean 'leg0_foot'"),
    "no contact": ({"contacts": ["leg0_foot"]}, "INVALID_ARGUMENT", "contacts[0]", "must be a Contact"),
    "a text": ({"contacts": "leg0_foot"}, "INVALID_ARGUMENT", "contacts", "a Contact or a list"),
    "a point of two": ({"contacts": Contact("trunk", (1.0, 2.0))}, "INVALID_ARGUMENT", "contacts[0].point", "(..., 3)"),
    "no normal": (
        {"contacts": Contact("trunk", normal=(0.0, 0.0, 0.0))},
        "INVALID_ARGUMENT",
        "contacts[0].normal",
        "must have a direction",
    ),
    "negative friction": (
        {"contacts": Contact("trunk", friction=-0.1)},
        "INVALID_ARGUMENT",
        "contacts[0].friction",
        "at least 0",
    ),
    "no number": (
        {"contacts": Contact("trunk", friction="ice")},  # type: ignore[arg-type]
        "INVALID_ARGUMENT",
        "contacts[0].friction",
        "at least 0",
    ),
    "no joint": ({"undriven": ["root_joit"]}, "NOT_FOUND", "undriven[0]", "did you mean 'root_joint'"),
    "a plane of a batch": (
        {"contacts": Contact("trunk", plane=np.ones((2, 3)))},
        "INVALID_ARGUMENT",
        "contacts[0].plane",
        "3 finite numbers",
    ),
    "points that do not fit": (
        {"contacts": [Contact("trunk", np.ones((k, 3))) for k in (2, 3)]},
        "INVALID_ARGUMENT",
        "inputs",
        "contacts[1].point (3,)",
    ),
    "an invalid point": (
        {"contacts": Contact("trunk", (np.nan, 0.0, 0.0))},
        "INVALID_ARGUMENT",
        "contacts[0].point",
        "finite",
    ),
}


@pytest.mark.parametrize(("arguments", "code", "path", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(robot: Robot, arguments: dict[str, Any], code: str, path: str, words: str) -> None:
    q, v, a = standing(robot)
    with pytest.raises(DynError) as refusal:
        robot.ground_reactions(q, v, a, **{"contacts": feet(), **arguments})
    assert (refusal.value.code, refusal.value.path) == (code, path)
    assert words in str(refusal.value)


def test_numbers_that_overflow(robot: Robot) -> None:
    q, v, a = standing(robot)
    with np.errstate(all="ignore"), pytest.raises(DynError, match="not finite"):
        robot.ground_reactions(q, 1e200 * v, a, feet())


def test_without_the_solver(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)
    q, v, a = standing(robot)
    with pytest.raises(DynError, match=naming("'dyn_service[contacts]'")) as refusal:
        robot.ground_reactions(q, v, a, feet(friction=0.001))
    assert refusal.value.code == "FAILED_PRECONDITION"
    assert robot.ground_reactions(q, v, a, feet()).supported


def test_a_solver_that_finds_nothing(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground_reactions, "_minimum", lambda *_: None)
    q, v, a = standing(robot)
    with pytest.raises(DynError, match="finds no forces"):
        robot.ground_reactions(q, v, a, feet(friction=0.001))


# Over the wire.


def test_clients_and_the_command_line_say_the_same(robot: Robot) -> None:
    q, v, a = standing(robot)
    contacts = [*feet(friction=0.05), Contact("trunk", (0.1, 0.0, -0.1), 0.03, normal=(0.0, 0.1, 1.0), rigid=True)]
    push = Wrench("trunk", force=(1.0, 2.0, 3.0))
    options: dict[str, Any] = {"least": "efforts", "undriven": ["root_joint"], "wrenches": [push], "passive": False}
    expected = robot.ground_reactions(q, v, a, contacts, **options)
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, timeout_s=240.0) as client:
            remote = client.robot("walker")
            assert_same(remote.ground_reactions(q, v, a, contacts, **options), expected)
            names = list(robot.joint_names)[::-1]
            selection = robot.configuration.chosen(names)
            other = client.robot("walker", names=names)
            reordered = other.ground_reactions(q[selection[1]], v[selection[2]], a[selection[2]], contacts, **options)
            assert_same(reordered._replace(tau=expected.tau), expected)
            assert reordered.tau.tobytes() == expected.tau[selection[2]].tobytes()
            with pytest.raises(DynError) as refusal:
                remote.ground_reactions(q, v, a, [Contact("trunk"), Contact("none")])
            assert refusal.value.path == "inputs.contacts[1].link"
            with pytest.raises(DynError) as refusal:
                remote.ground_reactions(q, v, a, contacts, undriven=["none"])
            assert refusal.value.path == "options.undriven[0]"

        async def awaited() -> Any:
            async with AsyncClient(endpoint, timeout_s=240.0) as client:
                return await (await client.robot("walker")).ground_reactions(q, v, a, contacts, **options)

        assert_same(asyncio.run(awaited()), expected)
        inputs = json.dumps(
            {
                "q": q.tolist(),
                "v": v.tolist(),
                "a": a.tolist(),
                "contacts": [
                    {"link": c.link, "point": list(c.point), "radius": c.radius, "normal": list(c.normal)}  # type: ignore[call-overload]
                    | ({"rigid": True} if c.rigid else {"friction": c.friction})
                    for c in contacts
                ],
                "wrenches": {"link": "trunk", "force": [1, 2, 3]},
                "least": "efforts",
                "undriven": ["root_joint"],
                "passive": False,
            }
        )
        done = CliRunner().invoke(app, ["call", "ground_reactions", "--server", endpoint, "--inputs", inputs])
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert np.array_equal(answer["forces"], expected.forces)
        assert np.array_equal(answer["tau"], expected.tau)


def assert_same(reactions: Any, expected: Any) -> None:
    for output, expected_output in zip(reactions, expected, strict=True):
        assert np.asarray(output).tobytes() == np.asarray(expected_output).tobytes()


def test_restless_joints_too() -> None:
    """Damping, friction, armature and springs at every joint."""
    restless_one = restless(description(), 3, root="floating")
    q, v, a = standing(restless_one)
    reactions = restless_one.ground_reactions(q, v, a, feet())
    tau = restless_one.inverse_dynamics(q, v, a, wrenches=pushes(feet(), reactions.forces))
    assert np.abs(tau - reactions.tau).max() < 1e-11
    assert np.abs(tau[:6]).max() < 1e-11
