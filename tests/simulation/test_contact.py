"""Limits and contacts in simulation: closed solutions, forces at rest, and where every joule went."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dyn_service import Contact, Overlay, Robot, Wrench
from dyn_service.api.queries import DEFAULT_FRICTION
from dyn_service.api.results import Trajectory
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.parsing.urdf.reader import read_text
from dyn_service.simulation.contact.supports import ConstrainedMotion, hold
from dyn_service.simulation.contact_points import Points, listed
from tests.conftest import URDF
from tests.passive import restless
from tests.phrases import naming
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted_robot
from tests.wide import one_in, wide

INTEGRATORS = ("rk4", "semi_implicit_euler", "explicit_euler", "stick_slip")
G = 9.81
MASS = 2.0
BRICK = f"""<robot name="brick"><link name="body"><inertial><mass value="{MASS}"/>
<inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial></link></robot>"""
CORNERS = [(x, y, -0.05) for x in (-0.1, 0.1) for y in (-0.1, 0.1)]
RISE = """<robot name="rise"><link name="a"/><link name="b"><inertial><mass value="2"/>
<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link><joint name="j" type="prismatic">
<parent link="a"/><child link="b"/><axis xyz="0 0 1"/>
<limit lower="-1" upper="2" effort="30" velocity="3"/></joint></robot>"""


@pytest.fixture(scope="module")
def brick() -> Robot:
    return Robot.from_urdf(BRICK, root="floating")


@pytest.fixture(scope="module")
def rise() -> Robot:
    """A block that slides up and down, between stops."""
    return Robot.from_urdf(RISE)


def standing(height: float) -> np.ndarray:
    return np.array([0, 0, height, 0, 0, 0, 1.0])


def balance(robot: Robot, motion: Trajectory, **options: Any) -> np.ndarray:
    """What the account leaves open at each record, J."""
    assert motion.work is not None
    assert motion.stored is not None
    assert motion.dissipated is not None
    stored_energy = robot.energy(motion.q, motion.v, **options).total + motion.stored.sum(axis=-1)
    spent = np.cumsum(motion.dissipated.sum(axis=-1) - motion.work.sum(axis=-1), axis=-1)
    imbalance: np.ndarray = stored_energy + spent - stored_energy[..., :1]
    return imbalance


# Points


@pytest.mark.parametrize("seed", range(12))
def test_points_move_as_their_jacobians_say(seed: int) -> None:
    """J v is the rate of where they are, and its rate at zero accelerations is the bias; of spheres too."""
    robot = interpreted_robot(Robot.from_urdf(random_urdf(seed, movable=4, types=MANY_TYPES)))
    rng = np.random.default_rng(seed)
    contacts = listed(
        [
            Contact(link, rng.normal(size=3), rng.uniform(), plane=rng.normal(size=3), normal=rng.normal(size=3))
            for link in robot.link_names
        ]
    )
    points, q, v = Points(robot, contacts), robot.random_configuration(seed=seed), rng.normal(size=robot.nv)
    h = 1e-5
    later_points, earlier = (points.at(robot.integrate(q, v, [dt])) for dt in (h, -h))
    gap, J = points.at(q)
    gap_rate = np.einsum("ci,cin,n->c", points.normal, J, v)
    assert np.allclose(
        (later_points.gap - earlier.gap) / (2 * h), gap_rate, rtol=0, atol=1e-7 * (1 + np.abs(gap_rate).max())
    )
    rate = (later_points.J @ v - earlier.J @ v) / (2 * h)
    bias = points.bias(q, v)
    assert np.allclose(rate, bias, rtol=0, atol=1e-6 * (1 + np.abs(bias).max()))
    poses = robot.link_poses(q)
    positions = poses.position + np.einsum("lij,lj->li", poses.rotation, [c.point for c in contacts])
    gaps = [c.normal @ (positions[k] - c.plane) - c.radius for k, c in enumerate(contacts)]
    assert np.allclose(gap, gaps, rtol=0, atol=1e-12)
    batch = points.at(np.stack([robot.neutral(), q]))
    assert np.allclose(batch.gap[1], gap, rtol=0, atol=1e-12)
    assert np.allclose(batch.J[1], J, rtol=0, atol=1e-12)


@pytest.mark.parametrize("radius", [0.0, 0.3])
def test_a_sphere_touches_with_what_lies_lowest(brick: Robot, radius: float) -> None:
    normal = np.array([1.0, 2.0, 3.0]) / np.sqrt(14.0)
    points = Points(brick, listed(Contact("body", (0.1, 0.2, 0.3), radius=radius, normal=2.0 * normal)))
    q, v = brick.random_configuration(seed=1), np.random.default_rng(1).normal(size=6)
    R = brick.link_poses(q).rotation[0]
    lever = R @ (0.1, 0.2, 0.3) - radius * normal
    gap, J = points.at(q)
    assert np.allclose(J[0] @ v, R @ v[:3] + np.cross(R @ v[3:], lever), rtol=0, atol=1e-12)
    assert gap[0] == pytest.approx(normal @ (q[:3] + lever), abs=1e-12)


# At rest


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_brick_at_rest_is_pushed_with_its_weight(brick: Robot, integrator: Any) -> None:
    motion = brick.simulate(
        standing(0.05),
        np.zeros(6),
        dt=1e-3,
        steps=480,
        every=480,
        integrator=integrator,
        contacts=[Contact("body", point) for point in CORNERS],
    )
    assert motion.contact_forces is not None
    assert motion.contact_forces[-1] == pytest.approx(np.tile([0.0, 0.0, MASS * G / 4], (4, 1)), rel=1e-9, abs=1e-9)
    assert np.abs(motion.v[-1]).max() < 1e-9


def test_how_far_it_gives_way_is_its_stiffness_or_its_time(rise: Robot) -> None:
    """k = m / T^2 where no stiffness is given, T five steps where no time is."""
    dt = 1e-3
    for options, contact, stiffness in (
        ({}, {}, MASS / (5 * dt) ** 2),
        ({"stop_time": 0.02}, {}, MASS / 0.02**2),
        ({}, {"stiffness": 3e4}, 3e4),
    ):
        depth = MASS * G / stiffness  # where it begins, since there it stays
        motion = rise.simulate([-depth], [0.0], dt=dt, steps=60, every=20, contacts=Contact("b", **contact), **options)
        assert -motion.q[:, 0] == pytest.approx(depth, rel=1e-6)
        assert motion.stored is not None
        assert motion.stored[-1] == pytest.approx([0.0, (MASS * G) ** 2 / stiffness / 2], rel=1e-6)


def at_rest_s(integrator: str, dt: float) -> float:
    """T where nobody says another."""
    return dt if integrator == "stick_slip" else 5 * dt


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_stop_holds_gravity(rise: Robot, integrator: Any) -> None:
    """The lower one, and, with gravity turned over, the upper one."""
    motion = rise.simulate(
        [[-1.0], [2.0]],
        [0.0],
        dt=1e-3,
        steps=600,
        every=600,
        integrator=integrator,
        gravity=[(0, 0, -G), (0, 0, G)],
        position_limits=True,
    )
    assert motion.stop_efforts is not None
    assert motion.stop_efforts[:, -1, 0] == pytest.approx([MASS * G, -MASS * G], rel=1e-8)
    depth = G * at_rest_s(integrator, 1e-3) ** 2
    assert motion.q[:, -1, 0] == pytest.approx([-1.0 - depth, 2.0 + depth], rel=1e-9)
    assert motion.contact_forces is None
    assert motion.clamped is None


def test_without_the_option_there_is_no_stop(rise: Robot) -> None:
    motion = rise.simulate([-0.99], [0.0], dt=1e-3, steps=500)
    assert motion.q[-1, 0] < -2.0
    assert [motion.stop_efforts, motion.work, motion.stored, motion.dissipated] == [None] * 4


# Bounces


def left_with(speed: float, damping: float) -> float:
    """Of Hunt's and Crossley's law: G(u) = u / d - log(1 + d u) / d^2 is the same going in and coming out."""
    travel = lambda u: u / damping - np.log1p(damping * u) / damping**2
    low, high = 0.0, min(speed, (1 - 1e-12) / damping)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if travel(-middle) < travel(speed) else (low, middle)
    return low


@pytest.mark.parametrize("damping", [0.1, 0.5, 3.0])
def test_what_meets_a_plane_leaves_it_as_the_law_says(rise: Robot, damping: float) -> None:
    motion = rise.simulate(
        [1e-4],
        [-1.4],
        dt=5e-5,
        steps=240,
        every=10,
        gravity=(0, 0, 0),
        contacts=Contact("b", stiffness=1e6, damping=damping),
    )
    assert motion.v[-1, 0] == pytest.approx(left_with(1.4, damping), rel=1e-4)
    # What is left open arises in the step in which it meets the plane.
    assert np.abs(balance(rise, motion, gravity=(0, 0, 0))).max() < 1e-4 * MASS * 1.4**2 / 2


LEFT = [(0.01, 0.94), (0.05, 0.75), (0.2, 0.41), (0.5, 0.20), (1.0, 0.13), (3.0, 0.11), (10.0, 0.11)]
"""Of a speed, the share that is left with defaults: the table of docs/contacts.md."""


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "stick_slip"])
@pytest.mark.parametrize("dt", [1e-3, 1e-4])
def test_what_is_left_of_a_speed_with_defaults(rise: Robot, integrator: Any, dt: float) -> None:
    """By planes and by stops, whatever the step."""
    speeds, shares = np.array(LEFT).T
    for start, holds in ((0.0, {"contacts": Contact("b")}), (-1.0, {"position_limits": True})):
        motion = rise.simulate(
            [start + 1e-7],
            -speeds[:, None],
            dt=dt,
            steps=60,
            every=60,
            integrator=integrator,
            gravity=(0, 0, 0),
            **holds,  # type: ignore[arg-type]
        )
        left = motion.v[:, -1, 0] / speeds
        if integrator == "stick_slip":
            assert np.all((left > 0.17) & (left < 0.26))
        else:
            assert left == pytest.approx(shares, abs=0.015)


def test_what_loses_nothing_comes_up_as_high_as_it_was(rise: Robot) -> None:
    contact = Contact("b", stiffness=2.5e5, damping=0.0)
    height = 0.01  # m, down and up again in 0.1 s
    motion = rise.simulate([height], [0.0], dt=2e-4, steps=520, every=10, contacts=contact)
    lands = int(np.argmax(motion.q[:, 0] < 0.0))
    assert motion.q[lands:, 0].max() == pytest.approx(height, rel=1e-3)
    assert np.abs(balance(rise, motion)).max() < 1e-3 * MASS * G * height


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "stick_slip"])
def test_no_bounce_is_higher_than_the_one_before(rise: Robot, integrator: Any) -> None:
    """But of explicit Euler's steps, which add to every swing."""
    motion = rise.simulate(
        [0.03], [0.0], dt=1e-3, steps=400, integrator=integrator, contacts=Contact("b", damping=0.05)
    )
    q = motion.q[:, 0]
    tops = [q[k] for k in range(1, len(q) - 1) if q[k - 1] < q[k] >= q[k + 1] and q[k] > 0.0]
    assert len(tops) >= (1 if integrator == "stick_slip" else 2)  # which loses on its own, and says so
    assert all(next_height <= height * (1 + 1e-6) for height, next_height in pairwise([0.03, *tops]))


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler"])
def test_no_damper_is_stiffer_than_the_step_follows(rise: Robot, integrator: Any) -> None:
    """One that is asked for too strong would push back more than came."""
    motion = rise.simulate(
        [0.05], [-2.0], dt=1e-3, steps=120, integrator=integrator, contacts=Contact("b", stiffness=2e5, damping=1e6)
    )
    lands = int(np.argmax(motion.q[:, 0] < 0.0))
    assert motion.q[lands:, 0].max() < 0.02  # of 0.25 m from which it came


def test_many_points_of_one_body_share_what_the_step_bears(brick: Robot) -> None:
    """Sixty-four that each were as stiff as one alone would throw it up."""
    crowd = [Contact("body", point, damping=1e6, width=1e-9) for point in CORNERS for _ in range(16)]
    motion = brick.simulate(standing(0.051), [0.2, 0, -0.5, 0, 0, 0], dt=1e-3, steps=150, contacts=crowd)
    assert motion.q[:, 2].max() < 0.0511
    assert np.abs(motion.v[-1]).max() < 1e-3
    assert motion.contact_forces is not None
    assert motion.contact_forces[-1].sum(axis=0)[2] == pytest.approx(MASS * G, rel=1e-3)


# Friction


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_brick_on_a_slope_stays_below_the_friction_angle(brick: Robot, share: float) -> None:
    """And slides above it with g (sin - mu cos). It stands, to nanometres; smoothed friction lets it creep."""
    angle, dt, steps = 0.4, 1e-3, 400
    friction = np.tan(angle) / share
    motion = brick.simulate(
        standing(0.0495),
        np.zeros(6),
        dt=dt,
        steps=steps,
        integrator="stick_slip",
        contacts=[Contact("body", point, friction=friction) for point in CORNERS],
        gravity=(G * np.sin(angle), 0.0, -G * np.cos(angle)),
    )
    late = motion.v[steps // 2 :, 0]
    if share < 1.0:
        assert np.abs(late[-100:]).max() < 1e-8
        assert abs(motion.q[-1, 0] - motion.q[-100, 0]) < 1e-9
    else:
        slides = G * (np.sin(angle) - friction * np.cos(angle))
        assert (late[-1] - late[0]) / (dt * (len(late) - 1)) == pytest.approx(slides, rel=1e-5)


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
@pytest.mark.parametrize("friction", [0.05, 0.8])
def test_a_ball_rolls_or_slips_down_a_slope(brick: Robot, integrator: Any, friction: float) -> None:
    """With g sin / (1 + I / m r^2) where friction can turn it so, else it slips with g (sin - mu cos)."""
    angle, radius, steps = 0.3, 0.08, 300
    inertia = 0.01 / (MASS * radius**2)
    rolls = friction > np.tan(angle) * inertia / (1 + inertia)
    expected = G * np.sin(angle) / (1 + inertia) if rolls else G * (np.sin(angle) - friction * np.cos(angle))
    motion = brick.simulate(
        standing(radius - 2e-4),
        np.zeros(6),
        dt=1e-3,
        steps=steps,
        every=steps // 2,
        integrator=integrator,
        contacts=Contact("body", radius=radius, friction=friction),
        gravity=(G * np.sin(angle), 0.0, -G * np.cos(angle)),
    )
    speed = np.einsum("kij,kj->ki", brick.link_poses(motion.q).rotation[:, 0], motion.v[:, :3])[:, 0]
    assert (speed[2] - speed[1]) / (1e-3 * steps / 2) == pytest.approx(expected, rel=1e-4)
    assert (
        motion.v[-1, 4] * radius == pytest.approx(speed[2], rel=0.02) if rolls else motion.v[-1, 4] * radius < speed[2]
    )


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("fields", [{}, {"stiffness": 8e4}, {"stiffness": 8e4, "damping": 0.0}], ids=repr)
def test_what_strikes_a_plane_aslant_is_rubbed_within_the_cone(brick: Robot, integrator: Any, fields: Any) -> None:
    """In every record, with as much as the plane pushes in that step; of a slope, and one that leaves it again."""
    normal = np.array([0.3, -0.2, 1.0])
    normal /= np.linalg.norm(normal)
    tangent = np.cross(normal, [0.0, 1.0, 0.0])
    contact = Contact("body", radius=0.08, normal=normal, friction=0.5, **fields)
    start = standing(0.0)
    start[:3] = 0.0801 * normal
    v = np.concatenate([5.0 * tangent - normal, np.zeros(3)])
    motion = brick.simulate(start, v, dt=1e-3, steps=60, integrator=integrator, contacts=contact, gravity=(0, 0, 0))
    assert motion.contact_forces is not None
    f = motion.contact_forces[:, 0]
    pushed = f @ normal
    rubbed = np.linalg.norm(f - pushed[:, None] * normal, axis=-1)
    assert pushed.max() > 100.0
    assert np.all(rubbed <= 0.5 * pushed * (1 + 1e-3) + 1e-9 * pushed.max())
    smoothed = integrator != "stick_slip"  # over 2 h mu f_n / m at least
    assert rubbed.sum() == pytest.approx(0.5 * pushed.sum(), rel=0.05 if smoothed else 1e-3)  # it slides all the time


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
@pytest.mark.parametrize("friction", [0.05, 0.3, 0.8])
def test_a_ball_that_strikes_a_plane_turns_as_much_as_friction_can(
    brick: Robot, integrator: Any, friction: float
) -> None:
    """The impulse along the plane is mu times that of the plane, or what lets it roll, if that is less."""
    radius, inertia, speed = 0.08, 0.01, 2.0
    motion = brick.simulate(
        standing(radius + 1e-5),
        [speed, 0.0, -1.5, 0.0, 0.0, 0.0],
        dt=1e-4,
        steps=150,
        every=150,
        integrator=integrator,
        contacts=Contact("body", radius=radius, friction=friction, width=1e-4),
        gravity=(0, 0, 0),
    )
    v = np.concatenate([brick.link_poses(motion.q[-1]).rotation[0] @ motion.v[-1, :3], motion.v[-1, 3:]])
    pushed = MASS * (v[2] + 1.5)
    rolls = speed / (1 / MASS + radius**2 / inertia)
    expected, tolerance = min(rolls, friction * pushed), 2e-2 if integrator == "rk4" else 1e-3  # smoothed, and not
    assert MASS * (speed - v[0]) == pytest.approx(expected, rel=tolerance)
    assert inertia * v[4] == pytest.approx(radius * expected, rel=tolerance)


def test_a_quadruped_that_lands_rubs_within_the_cone() -> None:
    """Thrown forwards onto its feet, where legs turn what rubs into what pushes: no foot, in no step, but by 1e-3."""
    robot = Robot.from_urdf(URDF / "solo12.urdf", root="floating")
    bent = np.tile([0.0, 0.8, -1.6], 4)
    q, v = np.concatenate([[0, 0, 0.26, 0, 0, 0, 1], bent]), np.zeros(18)
    v[0] = 1.0
    motion = robot.simulate(
        q,
        v,
        lambda t, q, v: np.concatenate([np.zeros(6), 8.0 * (bent - q[7:]) - 0.25 * v[6:]]),
        dt=1e-3,
        steps=200,
        integrator="stick_slip",
        contacts=[Contact(f"{leg}_foot", radius=0.016, friction=0.8) for leg in ("FL", "FR", "HL", "HR")],
    )
    assert motion.contact_forces is not None
    rubbed, pushed = np.linalg.norm(motion.contact_forces[..., :2], axis=-1), motion.contact_forces[..., 2]
    assert np.count_nonzero(rubbed > 0.79 * pushed) > 50
    assert np.all(rubbed <= 0.8 * pushed * (1 + 1e-3) + 1e-9 * pushed.max())


def test_friction_is_smoothed_no_finer_than_the_step_follows(brick: Robot) -> None:
    """The width asked for would need steps of microseconds: a brick on the plane comes to rest all the same."""
    motion = brick.simulate(
        standing(0.0498),
        [1.0, 0.3, 0, 0, 0, 0],
        dt=1e-3,
        steps=300,
        contacts=[Contact("body", point, width=1e-9) for point in CORNERS],
    )
    kinetic = brick.energy(motion.q, motion.v).kinetic
    assert kinetic[-1] < 1e-7 * kinetic[0]
    assert motion.dissipated is not None
    assert np.all(motion.dissipated >= -1e-12)


def test_smoothed_friction_creeps_by_its_width() -> None:
    """mu f_n X / sqrt(X^2 + w^2) = m g sin: X of a point mass on a slope, with w = 2 h mu f_n / m, wider than asked."""
    slide = """<robot name="sled"><link name="world"/><link name="cart"/><link name="body"><inertial><mass value="2"/>
    <inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>{}</robot>"""
    joint = """<joint name="{0}" type="prismatic"><parent link="{1}"/><child link="{2}"/><axis xyz="{3}"/>
    <limit lower="-9" upper="9" effort="30" velocity="30"/></joint>"""
    joints = joint.format("x", "world", "cart", "1 0 0") + joint.format("z", "cart", "body", "0 0 1")
    sled = Robot.from_urdf(slide.format(joints))
    angle, friction, dt = 0.3, 0.6, 2e-3
    motion = sled.simulate(
        np.zeros(2),
        np.zeros(2),
        dt=dt,
        steps=300,
        contacts=[Contact("body", friction=friction, width=1e-3)],
        gravity=(G * np.sin(angle), 0.0, -G * np.cos(angle)),
    )
    share, width = np.tan(angle) / friction, 2.0 * dt * friction * G * np.cos(angle)
    assert width > 10 * 1e-3
    assert motion.v[-1, 0] == pytest.approx(width * share / np.sqrt(1.0 - share**2), rel=1e-6)


def test_joints_that_stick_beside_contacts_stand_to_the_last_bit() -> None:
    described = read_text(RISE)
    robot = Robot(replace(described, joints=(replace(described.joints[0], friction=1.1 * MASS * G),)))
    motion = robot.simulate(
        [0.1], [0.0], dt=1e-3, steps=50, integrator="stick_slip", contacts=Contact("b"), position_limits=True
    )
    assert np.all(motion.q == 0.1)
    assert np.all(motion.v == 0.0)


def test_stick_slip_bears_any_stiffness(rise: Robot) -> None:
    """Forces of the step's end: one that would swing thirty times in a step is at rest after it."""
    contact = Contact("b", stiffness=1e11)
    motion = rise.simulate([0.01], [0.0], dt=1e-3, steps=100, integrator="stick_slip", contacts=contact)
    assert motion.contact_forces is not None
    assert motion.contact_forces[-1, 0, 2] == pytest.approx(MASS * G, rel=1e-6)
    assert np.abs(motion.v[-20:]).max() < 1e-9
    assert motion.q.min() > -1e-6


def test_what_joints_take_under_stick_slip_is_in_the_account() -> None:
    described = read_text(RISE)
    joint = replace(described.joints[0], friction=0.3 * MASS * G, damping=2.0)
    robot = Robot(replace(described, joints=(joint,)))
    motion = robot.simulate([1.5], [1.0], dt=1e-3, steps=300, integrator="stick_slip", position_limits=True)
    assert np.abs(balance(robot, motion)).max() < 1e-9
    assert motion.dissipated is not None
    assert motion.dissipated[:, 0].sum() > 1.0


# Efforts and velocities


def test_efforts_are_cut_at_their_limits_and_it_is_said_where(rise: Robot) -> None:
    tau = np.array([[10.0], [40.0], [-31.0], [30.0], [0.0], [35.0]])
    motion = rise.simulate([0.0], [0.0], tau, dt=1e-3, steps=6, every=2, effort_limits=True)
    clipped_motion = rise.simulate([0.0], [0.0], np.clip(tau, -30, 30), dt=1e-3, steps=6, every=2)
    assert motion.clamped is not None
    assert np.array_equal(motion.clamped[:, 0], [0, 1, 1, 1])
    assert np.allclose(motion.q, clipped_motion.q, rtol=1e-13, atol=0)
    assert motion.stop_efforts is None
    assert np.abs(balance(rise, motion)).max() < 1e-12


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("way", [1.0, -1.0])
def test_joints_are_braked_beyond_their_velocity_limit(rise: Robot, integrator: Any, way: float) -> None:
    """They go faster by what holds the push: a T."""
    excess = 50.0 * at_rest_s(integrator, 1e-3)
    motion = rise.simulate(
        [0.0], [0.0], [MASS * G + way * MASS * 50.0], dt=1e-3, steps=200, integrator=integrator, velocity_limits=True
    )
    assert np.abs(motion.v).max() <= 3.0 + excess * 1.001
    assert motion.v[-1, 0] == pytest.approx(way * (3.0 + excess), rel=1e-6)
    assert motion.stop_efforts is not None
    assert motion.stop_efforts[-1] == pytest.approx([-way * MASS * 50.0], rel=1e-6)
    assert motion.dissipated is not None
    assert motion.dissipated[-1, 1] == pytest.approx(MASS * 50.0 * (3.0 + excess) * 1e-3, rel=1e-3)


# Energy


@pytest.mark.parametrize("seed", wide(range(6), one_in(6)))
def test_stops_and_brakes_only_take_energy(seed: int) -> None:
    """Random trees thrown at their stops, without weight: what they have and what the stops keep never grows."""
    robot = Robot.from_urdf(random_urdf(seed, movable=4)).without_passive
    rng = np.random.default_rng(seed)
    q, v = robot.random_configuration(seed=seed), 4.0 * rng.normal(size=robot.nv)
    options: dict[str, Any] = {
        "gravity": (0, 0, 0),
        "position_limits": True,
        "velocity_limits": True,
        "stop_time": 0.01,
    }
    left_open = {}
    for dt, integrator in ((4e-4, "rk4"), (8e-4, "stick_slip"), (4e-4, "stick_slip")):
        motion = robot.simulate(q, v, dt=dt, steps=round(0.28 / dt), integrator=integrator, **options)  # type: ignore[arg-type]
        assert motion.stored is not None
        assert motion.dissipated is not None
        assert np.all(motion.dissipated >= 0.0)
        total = robot.energy(motion.q, motion.v, gravity=(0, 0, 0)).total + motion.stored.sum(axis=-1)
        left_open[integrator, dt] = np.abs(balance(robot, motion, gravity=(0, 0, 0))).max() / total[0]
        if integrator == "rk4":
            assert np.all(np.diff(total) <= 1e-6 * total[0])
    assert left_open["rk4", 4e-4] < 1e-3
    long, short = left_open["stick_slip", 8e-4], left_open["stick_slip", 4e-4]
    assert short < 0.6 * long < 3e-3  # of first order, and 2e-3 at most on these


def test_everything_at_once_is_accounted_for() -> None:
    """Damping, friction, springs, rotors, efforts, wrenches, stops and a plane: RK4 leaves open what it misses."""
    robot = restless(URDF / "scara.urdf")
    link, q = robot.link_names[-1], np.array([1.7, -2.5, 0.01, 0.0])
    height = float(robot.link_poses(q).position[-1, 2]) - 1e-4  # which the quill sinks onto
    open_ones = []
    for dt in (4e-4, 1e-4):
        steps = round(0.06 / dt)
        tau = np.array([30.0, -20.0, 5.0, 1.0])
        motion = robot.simulate(
            q,
            np.array([2.0, -1.0, 0.5, 3.0]),
            tau,
            dt=dt,
            steps=steps,
            wrenches=Wrench(link, force=(3.0, -2.0, 1.0), torque=(0.1, 0.2, 0.3), point=(0.1, 0.0, 0.0)),
            contacts=Contact(link, plane=(0.0, 0.0, height)),
            position_limits=True,
            effort_limits=True,
            velocity_limits=True,
            stop_time=4e-3,
        )
        assert motion.dissipated is not None
        assert motion.work is not None
        turned_over = float(np.abs(motion.work).sum() + motion.dissipated.sum())
        assert np.all(motion.dissipated[:, :3].sum(axis=0) > 1e-3 * turned_over)
        assert np.all(np.abs(motion.work).sum(axis=0) > 0.0)
        open_ones.append(np.abs(balance(robot, motion)).max() / turned_over)
    assert open_ones[0] < 1e-4
    assert open_ones[1] < 1e-6


# Rigid contacts


def test_a_rigid_foot_stays_where_it_is_and_is_pulled(rise: Robot) -> None:
    rigid_contact = Contact("b", rigid=True)
    for integrator in ("rk4", "stick_slip"):
        motion = rise.simulate([1e-3], [0.0], [50.0], dt=1e-3, steps=150, integrator=integrator, contacts=rigid_contact)  # type: ignore[arg-type]
        assert abs(motion.q[-1, 0]) < 1e-9  # it began a millimetre off its plane
        assert motion.contact_forces is not None
        assert motion.contact_forces[-1, 0] == pytest.approx([0, 0, MASS * G - 50.0], rel=1e-5, abs=1e-9)
        # What brings it back does work: 1e-3 m of 30 N, and what it gains on the way and loses.
        assert np.abs(balance(rise, motion)).max() < 2e-5


def test_a_simulation_holds_with_the_forces_of_the_query(brick: Robot) -> None:
    """Spinning, off its plane and sliding: with T five steps."""
    rigid_contacts = [Contact("body", (0.1, 0.2, 0.3), radius=0.05, normal=(0.1, 0.2, 1.0), rigid=True)]
    q, v = brick.random_configuration(seed=2), 3.0 * np.random.default_rng(2).normal(size=6)
    motion = brick.simulate(q, v, np.ones(6), dt=1e-3, steps=1, contacts=rigid_contacts)
    query = brick.contact_dynamics(q, v, np.ones(6), rigid_contacts, settle=5e-3)
    assert motion.contact_forces is not None
    assert motion.contact_forces[0] == pytest.approx(query.forces, rel=1e-12)


def test_a_leg_swings_over_its_rigid_foot(brick: Robot) -> None:
    """A body held at a point off its centre is a pendulum: its frequency, and its energy."""
    length = 0.5
    inertia = 0.01 + MASS * length**2
    q = standing(length)
    q[3:] = [0.0, np.sin(0.005), 0.0, np.cos(0.005)]
    q[:3] = [-length * np.sin(0.01), 0.0, -length * np.cos(0.01)]
    foot = Contact("body", (0.0, 0.0, length), rigid=True)
    period = 2 * np.pi * np.sqrt(inertia / (MASS * G * length))
    steps = 200
    motion = brick.simulate(q, np.zeros(6), dt=period / steps, steps=steps, contacts=foot)
    assert np.abs(motion.q[-1] - q).max() < 1e-5
    assert np.abs(motion.q[steps // 2, 0] + q[0]) < 1e-5
    assert np.abs(balance(brick, motion)).max() < 1e-9


def test_rigid_and_soft_contacts_keep_the_callers_order(brick: Robot) -> None:
    mixed = [Contact("body", point, rigid=k != 1) for k, point in enumerate(CORNERS)]
    motion = brick.simulate(standing(0.05), np.zeros(6), dt=1e-3, steps=2, contacts=mixed)
    assert motion.contact_forces is not None
    normal_forces = motion.contact_forces[-1, :, 2]
    assert normal_forces == pytest.approx([MASS * G / 2, 0.0, 0.0, MASS * G / 2], abs=1e-6)  # that one is not yet in it


def test_held_points_that_depend_on_each_other_share_the_least_forces(brick: Robot) -> None:
    """Four corners of a body at rest: twelve directions, six of them independent."""
    corners = [Contact("body", point) for point in CORNERS]
    dynamics = brick.contact_dynamics(standing(0.05), np.zeros(6), np.zeros(6), corners)
    assert dynamics.rank == 6
    assert dynamics.violation < 1e-12
    assert dynamics.forces == pytest.approx(np.tile([0, 0, MASS * G / 4], (4, 1)), abs=1e-12)
    pressed = Wrench("body", force=(0.0, 0.0, -3.0))
    moon = brick.contact_dynamics(
        standing(0.05), np.zeros(6), np.zeros(6), corners, settle=1, gravity=(0.0, 0.0, -1.6), wrenches=pressed
    )
    assert moon.forces == pytest.approx(np.tile([0, 0, (MASS * 1.6 + 3.0) / 4], (4, 1)), abs=1e-12)
    # Two points of one body that fly apart cannot both be held.
    spinning = brick.contact_dynamics(standing(0.05), [0, 0, 0, 0, 0, 2.0], np.zeros(6), corners)
    assert spinning.violation == pytest.approx(0.1 * 2.0**2, rel=1e-9)


def test_held_points_off_their_planes_are_brought_back(brick: Robot) -> None:
    """J a = -J-dot v - (2/T) J v - (gap / T^2) n."""
    contact, v = Contact("body", (0.1, 0.2, 0.3)), np.random.default_rng(0).normal(size=6)
    q, T = brick.random_configuration(seed=3), 0.05
    points = Points(brick, listed(contact))
    gap, J = points.at(q)
    dynamics = brick.contact_dynamics(q, v, np.zeros(6), contact, settle=T)
    expected = -points.bias(q, v) - (2 / T) * (J @ v) - gap[:, None] / T**2 * points.normal
    assert J @ dynamics.a == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("wild", [np.nan, np.inf])
def test_one_state_that_is_not_finite_leaves_the_others_as_they_are(brick: Robot, wild: float) -> None:
    """To the last bit: in what is given, and in what overflows on the way."""
    rng = np.random.default_rng(0)
    M = np.array([A @ A.T for A in rng.normal(size=(4, 6, 6))])
    free, target, J = rng.normal(size=(4, 6)), rng.normal(size=(4, 5)), rng.normal(size=(4, 5, 6))
    singles = [hold(M[k], free[k], J[k], target[k]) for k in range(4)]
    for place in range(5):
        arguments = [M.copy(), free.copy(), J.copy(), target.copy()]
        if place < len(arguments):
            arguments[place][2].flat[1] = wild
        else:
            arguments[2][2] = 1e200  # finite, and J M^-1 J^T is not
        with np.errstate(over="ignore", invalid="ignore"):
            batch = hold(*arguments)
        for name in ConstrainedMotion._fields:
            assert np.isnan(getattr(batch, name)[2]).all()
            for k in (0, 1, 3):
                assert np.array_equal(getattr(batch, name)[k], getattr(singles[k], name)), name
    q, v = np.array([standing(0.05)] * 3), rng.normal(size=(3, 6))
    v[1, 3] = np.nan
    with np.errstate(invalid="ignore"):
        of_robot = brick.contact_dynamics(q, v, np.zeros(6), Contact("body", CORNERS[0]))
    assert np.array_equal(np.isnan(of_robot.a).any(axis=-1), [False, True, False])


def test_the_first_singular_state_is_named() -> None:
    M = np.array([[np.eye(2), np.eye(2)], [np.diag([1.0, 0.0]), np.zeros((2, 2))]])
    with pytest.raises(FailedPreconditionError, match=naming("[1, 0]", "singular")):
        hold(M, np.zeros(2), np.eye(2), np.zeros(2))
    with pytest.raises(FailedPreconditionError, match=naming("mass matrix", "massless")):
        hold(M[1, 1], np.zeros(2), np.eye(2), np.zeros(2))


# Batches, parts of a motion, refusals


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_state_is_the_same_alone_and_in_a_batch(brick: Robot, integrator: Any) -> None:
    """To the last bit."""
    rng = np.random.default_rng(0)
    q = np.array([standing(0.05 + 0.01 * k) for k in range(3)])
    v = 0.3 * rng.normal(size=(3, 6))
    contacts = [Contact("body", point) for point in CORNERS[:3]] + [
        Contact("body", CORNERS[3], rigid=integrator == "rk4")
    ]
    options: dict[str, Any] = {"dt": 1e-3, "steps": 40, "every": 20, "integrator": integrator, "contacts": contacts}
    batch = brick.simulate(q, v, **options)
    for k in range(3):
        single = brick.simulate(q[k], v[k], **options)
        for name in ("q", "v", "contact_forces", "work", "stored", "dissipated"):
            assert np.array_equal(getattr(batch, name)[k], getattr(single, name)), name


def test_a_motion_goes_on_from_a_record_as_if_it_had_not_ended(brick: Robot) -> None:
    options: dict[str, Any] = {
        "dt": 1e-3,
        "integrator": "stick_slip",
        "contacts": [Contact("body", p) for p in CORNERS],
    }
    whole = brick.simulate(standing(0.06), np.zeros(6), steps=100, **options)
    first = brick.simulate(standing(0.06), np.zeros(6), steps=60, **options)
    second = brick.simulate(first.q[-1], first.v[-1], steps=40, first_step=60, **options)
    assert np.array_equal(second.q, whole.q[60:])
    assert whole.contact_forces is not None
    assert second.contact_forces is not None
    assert np.array_equal(second.contact_forces[1:], whole.contact_forces[61:])


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_friction_where_nobody_says_one(brick: Robot, integrator: Any) -> None:
    options: dict[str, Any] = {"dt": 1e-3, "steps": 30, "integrator": integrator}
    slides = np.array([2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    motions = [
        brick.simulate(standing(0.05), slides, contacts=[Contact("body", p, friction=mu) for p in CORNERS], **options)
        for mu in (None, DEFAULT_FRICTION, 0.7)
    ]
    assert motions[0].q.tobytes() == motions[1].q.tobytes()
    assert np.abs(motions[0].q - motions[2].q).max() > 1e-5


def test_friction_that_is_said_stays() -> None:
    contacts = listed([Contact("body"), Contact("body", friction=0.0), Contact("body", friction=2.0)])
    assert [contact.friction for contact in contacts] == [DEFAULT_FRICTION, 0.0, 2.0]


@pytest.mark.parametrize("length", [1e-8, 1.0, 3.0, 1e200])
def test_normals_have_length_1_and_stay_as_they_are(length: float) -> None:
    """One by one and several; twice is once, to the last bit; a motion in parts is listed in each of them."""
    vectors = length * np.random.default_rng(0).uniform(-1.0, 1.0, (50, 3))
    (batch,) = listed(Contact("body", normal=vectors), batches=True)
    assert np.allclose(np.linalg.norm(batch.normal, axis=-1), 1.0, rtol=1e-15)
    assert np.allclose(np.cross(batch.normal, vectors / length), 0.0, atol=1e-15)
    for vector, normal in zip(vectors, np.asarray(batch.normal), strict=True):
        (single,) = listed(Contact("body", normal=vector))
        (normalised_twice,) = listed(single)
        assert np.asarray(single.normal).tobytes() == np.asarray(normalised_twice.normal).tobytes() == normal.tobytes()


REFUSED: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("contacts", {"contacts": 3}, InvalidArgumentError),
    ("contacts[0]", {"contacts": ["body"]}, InvalidArgumentError),
    ("contacts[0].link", {"contacts": Contact("foot")}, NotFoundError),
    ("contacts[1].link", {"contacts": [Contact("body"), Contact("foot", rigid=True)]}, NotFoundError),
    ("contacts[0].normal", {"contacts": Contact("body", normal=(0, 0, 0))}, InvalidArgumentError),
    ("contacts[0].point", {"contacts": Contact("body", (0, 0))}, InvalidArgumentError),
    ("contacts[0].point", {"contacts": Contact("body", np.ones((2, 3)))}, InvalidArgumentError),
    ("contacts[0].normal", {"contacts": Contact("body", normal=np.ones((2, 3)))}, InvalidArgumentError),
    ("contacts[0].plane", {"contacts": Contact("body", plane=(0, 0, np.nan))}, InvalidArgumentError),
    ("contacts[0].friction", {"contacts": Contact("body", friction=-0.1)}, InvalidArgumentError),
    ("contacts[0].stiffness", {"contacts": Contact("body", stiffness=0.0)}, InvalidArgumentError),
    ("contacts[0].damping", {"contacts": Contact("body", damping=np.inf)}, InvalidArgumentError),
    ("contacts[0].width", {"contacts": Contact("body", width="1")}, InvalidArgumentError),  # type: ignore[arg-type]
    ("contacts[0].radius", {"contacts": Contact("body", radius=True)}, InvalidArgumentError),
    ("contacts[0].rigid", {"contacts": Contact("body", rigid=1)}, InvalidArgumentError),  # type: ignore[arg-type]
    ("position_limits", {"position_limits": 1}, InvalidArgumentError),
    ("velocity_limits", {"velocity_limits": True, "integrator": "adaptive"}, InvalidArgumentError),
    ("contacts", {"contacts": Contact("body"), "integrator": "implicit_midpoint"}, InvalidArgumentError),
    ("stop_time", {"stop_time": -1.0}, InvalidArgumentError),
    ("stop_damping", {"stop_damping": "much"}, InvalidArgumentError),
]


@pytest.mark.parametrize(
    ("path", "arguments", "kind"), REFUSED, ids=[f"{k}: {row[0]}" for k, row in enumerate(REFUSED)]
)
def test_what_is_wrong_is_named(brick: Robot, path: str, arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as refusal:
        brick.simulate(standing(0.1), np.zeros(6), dt=1e-3, steps=2, **arguments)
    assert refusal.value.path == path  # type: ignore[attr-defined]


def test_a_link_that_does_not_move_cannot_meet_a_plane(rise: Robot) -> None:
    with pytest.raises(InvalidArgumentError, match="no joint moves link 'a'"):
        rise.simulate([0.0], [0.0], dt=1e-3, steps=2, contacts=Contact("a"))


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_motion_that_diverges_says_so(rise: Robot, integrator: Any) -> None:
    """Depths and speeds whose forces overflow."""
    depth, stiffness = (-1e200, 1e30) if integrator == "stick_slip" else (-1e305, 1e6)
    plane = Contact("b", stiffness=stiffness)
    with pytest.raises(FailedPreconditionError, match="diverged in step"):
        rise.simulate([depth], [-1e250], dt=1e-3, steps=500, integrator=integrator, contacts=plane)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_brake_with_a_short_stop_time_is_stable(rise: Robot, integrator: Any) -> None:
    """The damping of velocity limits is at most m / 2h in explicit steps, as that of stops."""
    options: dict[str, Any] = {"dt": 1e-3, "steps": 100, "velocity_limits": True, "stop_time": 1e-5}
    motion = rise.simulate([0.0], [9.0], [MASS * G], integrator=integrator, **options)
    assert (np.diff(motion.v[:, 0]) <= 0.0).all()
    assert motion.v[-1, 0] == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(("integrator", "largest"), [("rk4", 7e6), ("semi_implicit_euler", 3e6), ("stick_slip", None)])
def test_contacts_too_stiff_for_a_step_are_refused(integrator: Any, largest: float | None) -> None:
    """A ball of 1 kg dropped from 0.3 m on planes of up to the largest stiffness never bounces back to that height;
    with ten times the stiffness it would jump by metres.
    """
    ball = Robot.from_urdf(
        '<robot name="ball"><link name="ball"><inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" '
        'ixy="0" ixz="0" iyz="0"/></inertial></link></robot>',
        root="floating",
    )
    q, options = ball.neutral(), {"dt": 1e-3, "steps": 1000, "integrator": integrator}
    q[2] = 0.3
    for stiffness in (1e5, 0.99 * (largest or 1e9)):
        motion = ball.simulate(q, np.zeros(6), contacts=Contact("ball", stiffness=stiffness), **options)
        assert motion.q[300:, 2].max() < 0.3
    if largest is not None:
        with pytest.raises(
            FailedPreconditionError, match=r"contacts\[0\] of link 'ball' has a stiffness of .*; use integrator='st"
        ):
            ball.simulate(q, np.zeros(6), contacts=Contact("ball", stiffness=1.01 * largest), **options)
        with pytest.raises(FailedPreconditionError, match="a longer stop_time"):
            ball.simulate(
                q, np.zeros(6), contacts=Contact("ball"), stop_time=0.99e-3 / (largest * 1e-6) ** 0.5, **options
            )
        arm = Robot.from_urdf(URDF / "ur5e.urdf")
        with pytest.raises(FailedPreconditionError, match="the stop of joint '"):
            arm.simulate(np.zeros(6), np.zeros(6), position_limits=True, stop_time=1e-4, **options)


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
def test_locked_joints_have_neither_stops_nor_brakes(integrator: Any) -> None:
    """A joint that is locked beyond its range has no effort and stores nothing; the other joint's stop acts."""
    arm = Robot.from_urdf(URDF / "scara.urdf")
    lower, upper = arm.limits.lower, arm.limits.upper
    name = arm.joint_names[1]
    q = (lower + upper) / 2.0
    q[0], q[1] = upper[0] + 0.01, upper[1] + 0.5
    motion = arm.overlaid(Overlay(locked=[name])).simulate(
        q, np.zeros(arm.nv), dt=1e-3, steps=20, integrator=integrator, position_limits=True, velocity_limits=True
    )
    assert motion.stop_efforts is not None
    assert motion.stored is not None
    assert (motion.stop_efforts[1:, 0] < 0.0).any()
    assert not motion.stop_efforts[:, 1].any()
    assert (motion.q[:, 1] == q[1]).all()
    unlocked = arm.simulate(q, np.zeros(arm.nv), dt=1e-3, steps=1, integrator=integrator, position_limits=True)
    assert unlocked.stored is not None
    assert unlocked.stored[0, 0] > 10.0 * motion.stored[0, 0] > 0.0
