"""Positions found for targets that a robot can reach, and what is said of those that it cannot."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dyn_service import Client, Overlay, Robot, find_robot
from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.model.rotations import rotation_vector
from dyn_service.simulation.inverse_kinematics import (
    MAX_STEP,
    Goal,
    InverseKinematics,
    Target,
    _Best,
    _random,
    _rotation_between,
    _Solver,
    inverse_kinematics,
)
from tests.conftest import URDF
from tests.phrases import naming
from tests.service.conftest import WAIT_S
from tests.service.server.pools import serving

TURN = np.pi


def positions(robot: Robot, count: int) -> Array:
    rng, limits = np.random.default_rng(3), robot.limits
    lower, upper = np.maximum(limits.lower, -TURN), np.minimum(limits.upper, TURN)
    return np.array([robot.configuration.random(rng, lower, upper) for _ in range(count)])


def motion(robot: Robot, q: Array, link: str, point: Array | None = None) -> tuple[Array, Array]:
    pose = robot.point_motion(q, np.zeros((*q.shape[:-1], robot.nv)), link, point=point)
    return pose.position, pose.rotation


def reached_poses(robot: Robot, q: Array, target: Target) -> None:
    position, rotation = motion(robot, q, target.link, np.array(target.point))
    if target.position is not None:
        assert np.linalg.norm(position - np.asarray(target.position), axis=-1).max() <= 1e-6
    if target.rotation is not None:
        difference = Rotation.from_matrix(rotation).inv() * Rotation.from_matrix(np.asarray(target.rotation))
        assert difference.magnitude().max() <= 1.1e-6  # and its rounding


@pytest.mark.parametrize(("name", "link"), [("panda", "panda_hand"), ("ur5e", "tool0")])
def test_reachable_poses_are_reached_within_the_limits(name: str, link: str) -> None:
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    point = np.array([0.02, -0.01, 0.1])
    position, rotation = motion(robot, positions(robot, 300), link, point)
    target = Target(link=link, position=position, rotation=rotation, point=point)
    solution = inverse_kinematics(robot, target)
    assert solution.reached.mean() >= 0.99  # 0.999 of 5,000
    assert ((solution.q >= robot.limits.lower) & (solution.q <= robot.limits.upper)).all()
    is_reached = solution.reached
    reached_targets = Target(link=link, position=position[is_reached], rotation=rotation[is_reached], point=point)
    reached_poses(robot, solution.q[is_reached], reached_targets)
    assert (solution.reason[is_reached] == "").all()
    assert (solution.reason[~is_reached] != "").all()


def test_several_links_reach_their_targets_together() -> None:
    robot = Robot.from_urdf(URDF / "upper_body.urdf")
    ends = [name for name in robot.link_names if name.endswith("hand")] or list(robot.link_names[-2:])
    q = positions(robot, 50)
    targets = [Target(link=link, position=motion(robot, q, link)[0]) for link in ends]
    solution = inverse_kinematics(robot, targets)
    assert solution.position_error.shape == (50, len(ends))
    assert solution.reached.all()
    for target in targets:
        reached_poses(robot, solution.q, target)


def test_the_answer_of_a_problem_does_not_depend_on_the_others() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    position, rotation = motion(robot, positions(robot, 6), "tool0")
    batch = inverse_kinematics(robot, Target(link="tool0", position=position, rotation=rotation), attempts=1)
    for k in range(6):
        target = Target(link="tool0", position=position[k], rotation=rotation[k])
        single = inverse_kinematics(robot, target, attempts=1)
        assert single.q.tobytes() == batch.q[k].tobytes()
        assert single.reached == batch.reached[k]


def test_a_direction_leaves_the_rotation_about_it_free() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    target = Target(link="panda_hand", direction=(0.0, 0.0, -2.0), axis=(0.0, 0.0, 3.0), position=(0.5, 0.1, 0.4))
    solution = inverse_kinematics(robot, target, seed=positions(robot, 20))
    assert solution.reached.all()
    _, rotation = motion(robot, solution.q, "panda_hand")
    # The angle is read from the cosine, so its square is 1e-12.
    np.testing.assert_allclose(rotation[..., 2], np.broadcast_to([0.0, 0.0, -1.0], (20, 3)), atol=1e-6)
    assert np.ptp(rotation[..., 0, 0]) > 0.1


def test_an_opposite_direction_is_reached() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    _, rotation = motion(robot, robot.configuration.neutral, "tool0")
    solution = inverse_kinematics(
        robot, Target(link="tool0", direction=-rotation[:, 2]), seed=robot.configuration.neutral
    )
    assert solution.reached
    assert solution.attempts == 1


def test_weights_are_per_metre_and_per_radian() -> None:
    """Two places for one point: it comes to rest where w1^2 (x - x1) + w2^2 (x - x2) = 0."""
    robot = Robot.from_urdf(URDF / "panda.urdf")
    place, _ = motion(robot, robot.limits.middle(robot.configuration.neutral), "panda_hand")
    offset = np.array([0.0, 0.03, 0.0])
    targets = [
        Target(link="panda_hand", position=place, position_weight=2.0),
        Target(link="panda_hand", position=place + offset, position_weight=1.0),
    ]
    solution = inverse_kinematics(robot, targets, iterations=200, attempts=1)
    assert not solution.reached
    np.testing.assert_allclose(motion(robot, solution.q, "panda_hand")[0], place + 0.2 * offset, atol=1e-5)
    np.testing.assert_allclose(solution.position_error, [0.006, 0.024], atol=1e-5)
    assert solution.reason == "singular"  # no motion decreases the error


def limited(lower: float, upper: float) -> Robot:
    """The double pendulum with these position limits."""
    text = (URDF / "double_pendulum.urdf").read_text()
    limit = f'<limit lower="{lower}" upper="{upper}" effort="10" velocity="10"/>'
    return Robot.from_urdf(re.sub(r"<limit [^>]*/>", limit, text))


def reason(solution: InverseKinematics) -> str:
    assert not solution.reached
    return str(solution.reason)


def test_each_reason_is_what_was_checked() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    unreachable = inverse_kinematics(robot, Target(link="panda_hand", position=(3.0, 0.0, 0.5)), attempts=2)
    assert reason(unreachable) == "out_of_reach"
    reach = np.linalg.norm(motion(robot, unreachable.q, "panda_hand")[0] - (3.0, 0.0, 0.5))
    assert unreachable.position_error[0] == pytest.approx(reach, rel=1e-12)
    scara = Robot.from_urdf(URDF / "scara.urdf")
    link = scara.link_names[-1]
    _, rotation = motion(scara, scara.configuration.neutral, link)
    tilted = Rotation.from_euler("x", 0.5).as_matrix() @ rotation
    assert reason(inverse_kinematics(scara, Target(link=link, rotation=tilted), attempts=3)) == "singular"
    free, tight = limited(-3.0, 3.0), limited(-0.2, 0.2)
    end = free.link_names[-1]
    place, _ = motion(free, np.array([1.0, 1.0]), end, np.array([0.0, 0.0, -0.5]))
    target = Target(link=end, position=place, point=(0.0, 0.0, -0.5))
    assert inverse_kinematics(free, target).reached
    assert reason(inverse_kinematics(tight, target)) == "limit"
    # a link that keeps its distance from the shoulder, and a target that is nearer
    inside_base = inverse_kinematics(robot, Target(link="panda_link4", position=(0.0, 0.0, 0.2)), attempts=3)
    assert reason(inside_base) == "singular"
    folded = inverse_kinematics(limited(-1.0, 1.0), Target(link=end, position=(0.0, 0.0, 0.5)), attempts=3)
    assert reason(folded) in ("singular", "limit", "out_of_reach")


def test_a_remote_robot_takes_one_request_for_each_link_and_iteration() -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    link = robot.link_names[-1]
    q = positions(robot, 40)
    seed = np.clip(q + 0.02, robot.limits.lower, robot.limits.upper)
    target = Target(link=link, position=motion(robot, q, link)[0])
    with serving(name="scara") as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        remote = client.robot("scara")
        remote_solution = inverse_kinematics(remote, target, seed=seed, iterations=10, attempts=1)
        answer_count = server.service.metrics.to_dict()["requests"]["point_motion"]["answered"]
        remote_locked = client.overlay_robot("scara", Overlay(locked=["inner_joint"]), name="held")
        locked_solution = inverse_kinematics(
            remote_locked, Target(link=link, position=(0.3, 0.3, 0.3)), seed=seed[0], attempts=5
        )
    assert answer_count <= 11
    assert remote_solution.reached.all()
    assert locked_solution.q[0] == seed[0, 0]
    local_solution = inverse_kinematics(robot, target, seed=seed, iterations=10, attempts=1)
    assert remote_solution.q.tobytes() == local_solution.q.tobytes()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "needs a position, a rotation or a direction"),
        ({"position": (0, 0)}, r"target\.position .*3"),
        ({"position": (0, 0, np.nan)}, "finite"),
        ({"rotation": 2.0 * np.eye(3)}, "rotation matrix"),
        ({"rotation": np.diag([1.0, 1.0, -1.0])}, "reflection"),
        ({"direction": (0, 0, 0)}, "length 0"),
        ({"rotation": np.eye(3), "direction": (0, 0, 1)}, "both"),
        ({"position": (0, 0, 0), "position_weight": 0.0}, "weight"),
    ],
)
def test_wrong_targets_are_refused_when_they_are_made(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Target(link="tool0", **parts)


def test_a_target_of_an_unknown_link_is_refused() -> None:
    with pytest.raises(NotFoundError, match="no link 'tool1'; did you mean 'tool0'") as refusal:
        inverse_kinematics(Robot.from_urdf(URDF / "ur5e.urdf"), Target(link="tool1", position=(0, 0, 0)))
    assert refusal.value.path == "targets[0].link"


def test_rotation_vectors_are_those_of_scipy_also_near_half_a_turn() -> None:
    rng = np.random.default_rng(5)
    axis = rng.standard_normal((2000, 3))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    small = 10.0 ** rng.uniform(-12, 0, 500)
    angle = np.concatenate([rng.uniform(0, np.pi, 1000), np.pi - small, small])
    rotation_vectors = axis * angle[:, None]
    vectors = rotation_vector(Rotation.from_rotvec(rotation_vectors).as_matrix())
    error = np.minimum(
        np.linalg.norm(vectors - rotation_vectors, axis=1),
        np.linalg.norm(vectors + rotation_vectors, axis=1) + (angle < 3.1) * 9,
    )
    assert error.max() < 1e-7  # half a rounding in a matrix is the square root of it in an axis near half a turn
    assert np.abs(rotation_vector(np.eye(3))).max() == 0.0


def chain(*joints: str) -> Robot:
    """A chain of links along x: each of `joints` is the type of a joint and what is in its element."""
    links = "".join(
        f'<link name="l{k}"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
        "</inertial></link>"
        for k in range(len(joints) + 1)
    )
    joint_elements = "".join(
        f'<joint name="j{k}" type="{joint.split(" ", 1)[0]}"><parent link="l{k}"/><child link="l{k + 1}"/>'
        f"{joint.split(' ', 1)[1]}</joint>"
        for k, joint in enumerate(joints)
    )
    return Robot.from_urdf(f'<robot name="chain">{links}{joint_elements}</robot>')


def turning(x: float, lower: float = -3.0, upper: float = 3.0, kind: str = "revolute", axis: str = "0 0 1") -> str:
    limit = f'<limit lower="{lower}" upper="{upper}" effort="9" velocity="9"/>'
    return f'{kind} <origin xyz="{x} 0 0"/><axis xyz="{axis}"/>{limit}'


ARM = (turning(0.0), turning(1.0), turning(1.0))
TIP = (1.0, 0.0, 0.0)


def test_locked_joints_keep_the_position_of_the_seed() -> None:
    robot = chain(*ARM).overlaid(Overlay(locked=["j1"]))
    goal = motion(robot, np.array([0.3, 0.5, -1.0]), "l3")[0]  # reached with j1 = 0.5 or -0.5 only
    unreached = inverse_kinematics(robot, Target(link="l3", position=goal), seed=[2.0, 1.2, 0.0])
    assert reason(unreached) in ("singular", "out_of_reach")
    assert unreached.q[1] == 1.2
    beyond_limit = inverse_kinematics(robot, Target(link="l3", position=goal), seed=[2.0, 4.0, 0.0], attempts=3)
    assert beyond_limit.q[1] == 4.0
    solution = inverse_kinematics(robot, Target(link="l3", position=goal), seed=[2.0, 0.5, 0.0])
    assert solution.reached
    assert solution.q[1] == 0.5


def test_lengths_of_directions_may_be_huge_or_tiny() -> None:
    robot = chain(*ARM)
    for length in (1e300, 5e-324):
        target = Target(link="l3", direction=(0.0, length, 0.0), axis=(length, 0.0, 0.0))
        solution = inverse_kinematics(robot, target, attempts=3)
        assert solution.reached
        np.testing.assert_allclose(motion(robot, solution.q, "l3")[1][:, 0], [0.0, 1.0, 0.0], atol=1e-6)


PLACE = Target(link="l3", position=(1.0, 1.0, 0.0))


NO_TARGETS: list[Any] = [None, {"link": "l3"}, [], 3]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        *(({name: wrong}, name) for name in ("iterations", "attempts") for wrong in (0, True, 2.0, "3", None)),
        *(
            ({name: wrong}, name)
            for name in ("position_tolerance", "rotation_tolerance")
            for wrong in (0.0, -1.0, np.inf, np.nan, "1", None, True, 10**400)
        ),
        *(({"rng": wrong}, "rng") for wrong in (-1, True, 1.0, "0", None)),
        *(({"targets": wrong}, "targets") for wrong in NO_TARGETS),
        *(({"targets": wrong}, "targets[0]") for wrong in ("l3", [None], [{"link": "l3"}])),
        ({"seed": [0.0, np.inf, 0.0]}, "seed"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        inverse_kinematics(chain(*ARM), **{"targets": PLACE, **arguments})
    assert error.value.path == path


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"link": 3}, "target.link"),
        *(
            ({name: wrong}, f"target.{name}")
            for name in ("position_weight", "rotation_weight")
            for wrong in (0.0, -1.0, 1e-200, 1e200, np.inf, np.nan, "1", None, True)
        ),
        *(
            ({name: wrong}, f"target.{name}")
            for name in ("axis", "point")
            for wrong in ([[1.0, 0.0, 0.0]], (1.0, 0.0), (1.0, 0.0, np.inf), "x", None, 1.0)
        ),
        ({"rotation": 1e200 * np.eye(3)}, "target"),
    ],
)
def test_wrong_parts_of_a_target_are_refused(parts: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        replace(PLACE, **parts)
    assert error.value.path == path


FLOATING = chain("floating ", turning(1.0))


@pytest.mark.parametrize("length", [0.0, 1e-300, 1e200])
def test_seeds_without_a_rotation_are_refused(length: float) -> None:
    seed = FLOATING.configuration.neutral * np.where(FLOATING.configuration.neutral == 1.0, length, 1.0)
    with pytest.raises(InvalidArgumentError, match="quaternion") as error:
        inverse_kinematics(FLOATING, Target(link="l2", position=(5.0, 0.0, 0.0)), seed=seed)
    assert error.value.path == "seed"


@pytest.mark.filterwarnings("error")
def test_positions_whose_square_is_no_number() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    solution = inverse_kinematics(robot, Target(link=robot.link_names[-1], position=(1e160, 0.0, -1e160)), attempts=2)
    assert reason(solution) == "out_of_reach"
    assert float(solution.position_error[0]) == pytest.approx(2**0.5 * 1e160)


def test_quaternions_of_the_answer_are_unit_and_a_moving_base_is_never_out_of_reach() -> None:
    seed = 1.5 * FLOATING.configuration.neutral
    solution = inverse_kinematics(FLOATING, Target(link="l2", position=(0.0, 3.0, 0.0)), seed=seed, attempts=1)
    assert solution.reached
    at_once = inverse_kinematics(FLOATING, Target(link="l1", position=(0.0, 0.0, 0.0)), seed=seed, attempts=1)
    assert at_once.reached
    for q in (solution.q, at_once.q):
        FLOATING.configuration.check_unit(q, "q", "q")
    distant_target = Target(link="l2", position=(0.0, 90.0, 0.0))
    for robot in (FLOATING, chain('planar <axis xyz="0 0 1"/>', turning(1.0))):
        assert reason(inverse_kinematics(robot, distant_target, iterations=1, attempts=1)) == "not_converged"


def test_huge_limits_are_no_limits_for_starting_positions() -> None:
    robot = chain(turning(0.0, -1e308, 1e308), turning(1.0, 1e307, 1e308, "prismatic"), turning(1.0, -1e308, 1e308))
    target = Target(link="l3", rotation=Rotation.from_euler("x", 1.0).as_matrix())
    solution = inverse_kinematics(robot, target, attempts=3)
    assert reason(solution) == "singular"
    assert np.abs(solution.q[[0, 2]]).max() < 100.0
    wide = chain(turning(0.0, -1e307, 1e308))
    assert inverse_kinematics(wide, Target(link="l1", rotation=np.eye(3))).q == 0.0


def test_random_starts_fill_the_limits_or_half_a_turn_about_the_seed() -> None:
    robot = chain(turning(0.0, -0.5, 2.0), turning(1.0, 0.0, 0.0, "continuous"), turning(1.0))
    center = np.tile([0.1, 7.0, 0.2], (4000, 1))
    q = _random(robot, center, np.array([True, True, False]), np.random.default_rng(1))
    np.testing.assert_allclose([q[:, 0].min(), q[:, 0].max()], [-0.5, 2.0], atol=0.01)
    np.testing.assert_allclose([q[:, 1].min(), q[:, 1].max()], [7.0 - np.pi, 7.0 + np.pi], atol=0.02)
    assert (q[:, 2] == 0.2).all()
    for column in (0, 1):
        middle = 0.5 * (q[:, column].min() + q[:, column].max())
        assert q[:, column].mean() == pytest.approx(middle, abs=0.1)


def test_the_middle_of_the_limits_is_the_first_start() -> None:
    robot = chain(turning(0.0, 0.4, 1.0), turning(1.0, -1.0, 0.2), turning(1.0, 0.0, 0.0, "continuous"))
    middle = np.array([0.7, -0.4, 0.0])
    solution = inverse_kinematics(robot, Target(link="l3", position=motion(robot, middle, "l3")[0]))
    np.testing.assert_array_equal(solution.q, robot.limits.middle(robot.configuration.neutral))
    np.testing.assert_allclose(solution.q, middle, atol=1e-15)


def test_an_answer_replaces_one_with_a_smaller_error() -> None:
    """A target without an error in metres can have a smaller cost and still not be within the tolerance."""
    is_reached = np.ones(1, bool)
    best = _Best(np.zeros((1, 1)), np.ones((1, 1, 2)), np.array([1.0]), ~is_reached)
    best.keep_better(np.arange(1), _Best(np.ones((1, 1)), np.ones((1, 1, 2)), np.array([2.0]), is_reached))
    assert best.reached.all()
    assert best.q == 1.0
    best = _Best(np.zeros((1, 1)), np.ones((1, 1, 2)), np.array([1.0]), ~is_reached)
    best.keep_better(np.arange(1), _Best(np.ones((1, 1)), np.ones((1, 1, 2)), np.array([2.0]), ~is_reached))
    assert best.q == 0.0


def solver(robot: Robot, goal: Target) -> _Solver:
    goals = [Goal.read(goal, "targets[0]").broadcast_to((1,))]
    return _Solver(robot, goals, np.full(2, 1e-6), 60, robot.limits.lower, robot.limits.upper)


def test_joints_that_would_leave_a_limit_one_after_the_other_are_held() -> None:
    """Two of three joints at limits: with one held, the step of the other turns round and leaves its limit too."""
    robot, rng, twice = chain(*ARM), np.random.default_rng(2), 0
    for _ in range(300):
        ik_solver = solver(robot, Target(link="l3", position=rng.normal(size=3) * [1.5, 1.5, 0.0], point=TIP))
        q = rng.uniform(-3.0, 3.0, (1, 3))
        e, J, _ = ik_solver.errors(q, np.arange(1))
        H, g, mu = J[0].T @ J[0], J[0].T @ e[0], 0.5 * float(e[0] @ e[0])
        step = np.linalg.solve(H + mu * np.eye(3), g)
        ik_solver.lower, ik_solver.upper = ik_solver.lower.copy(), ik_solver.upper.copy()
        sign = np.where(rng.uniform(size=3) < 0.5, -1.0, 1.0)
        at_limit = np.array([True, True, False])
        ik_solver.lower[at_limit & (sign < 0)] = q[0][at_limit & (sign < 0)]
        ik_solver.upper[at_limit & (sign > 0)] = q[0][at_limit & (sign > 0)]
        first = at_limit & (sign * step > 0)
        limited_step = ik_solver._step(q, e, J, np.array([2.0 * mu]))
        assert not ik_solver.leaves(q, limited_step).any()
        rest = ~first
        next_step = np.linalg.solve(H[np.ix_(rest, rest)] + mu * np.eye(rest.sum()), g[rest])
        twice += bool(first.any() and (at_limit[rest] & (sign[rest] * next_step > 0)).any())
    assert twice >= 5


def test_steps_are_at_most_one_radian() -> None:
    robot = chain(*ARM)
    ik_solver = solver(robot, Target(link="l3", position=(1.0, 0.5, 0.0), point=TIP))
    e, J = np.array([[3.0, 0.0, 0.0]]), np.array([[[0.1, 0.2, 0.05], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    step = ik_solver._step(np.zeros((1, 3)), e, J, np.zeros(1))
    assert np.abs(step).max() == pytest.approx(MAX_STEP, rel=1e-12)
    np.testing.assert_allclose(step[0] / step[0, 1], [0.5, 1.0, 0.25], rtol=1e-3)


def test_axes_near_half_a_turn_are_those_of_the_symmetric_part() -> None:
    noise = 1e-10 * np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]])  # in the other part only
    for cosine in (-0.91, -0.999, -0.9999):
        rotation = Rotation.from_rotvec(np.array([0.6, 0.0, 0.8]) * np.arccos(cosine)).as_matrix()
        vector = rotation_vector(rotation + noise)
        np.testing.assert_allclose(vector / np.linalg.norm(vector), [0.6, 0.0, 0.8], atol=1e-12)


def test_rotations_between_directions_have_the_length_of_the_angle() -> None:
    rng = np.random.default_rng(4)
    now, axis = rng.standard_normal((2, 100, 3))
    now /= np.linalg.norm(now, axis=1, keepdims=True)
    axis = np.cross(axis, now)
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    angle = np.concatenate([rng.uniform(0.0, np.pi, 80), 10.0 ** rng.uniform(-12, 0, 20)])
    rotation_vectors = axis * angle[:, None]
    vectors = _rotation_between(now, Rotation.from_rotvec(rotation_vectors).apply(now))
    np.testing.assert_allclose(vectors, rotation_vectors, atol=1e-8)


def test_the_jacobian_of_a_direction_has_no_part_about_it() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    q = positions(robot, 1)
    ik_solver = solver(robot, Target(link="tool0", direction=(0.3, 0.2, 1.0)))
    _, J, _ = ik_solver.errors(q, np.arange(1))
    _, rotation = motion(robot, q, "tool0")
    np.testing.assert_allclose(rotation[0, :, 2] @ J[0], np.zeros(6), atol=1e-14)
    turning = robot.point_motion(q[0], np.zeros(6), "tool0").jacobian[:3]
    tangents = rotation[0, :, :2].T
    np.testing.assert_allclose(tangents @ J[0], tangents @ turning, atol=1e-14)


def test_a_run_of_one_iteration_is_not_converged() -> None:
    free = limited(-3.0, 3.0)
    end = free.link_names[-1]
    place, _ = motion(free, np.array([2.5, -2.9]), end, np.array([0.0, 0.0, -0.5]))
    target = Target(link=end, position=place, point=(0.0, 0.0, -0.5), rotation=np.eye(3))
    hurried = inverse_kinematics(free, target, iterations=1, attempts=1, seed=[-0.5, 0.1])
    assert reason(hurried) == "not_converged"


def test_out_of_reach_considers_all_targets_and_prismatic_travel() -> None:
    robot = chain(*ARM)
    near_target, far_target = Target(link="l3", position=(0.5, 0.5, 1.0)), Target(link="l3", position=(2.1, 0.0, 0.0))
    for targets in ([near_target, far_target], [far_target, near_target]):
        assert reason(inverse_kinematics(robot, targets, attempts=1)) == "out_of_reach"
    assert reason(inverse_kinematics(robot, near_target, attempts=1)) == "singular"
    # 1 m from the first joint, and at most 0.5 m of travel
    sliding = chain(turning(0.3), turning(1.0, -0.1, 0.5, "prismatic", "1 0 0"))
    for x, is_unreachable in ((1.81, True), (1.79, False)):
        solution = inverse_kinematics(sliding, Target(link="l2", position=(x, 0.0, 0.01)), attempts=1)
        assert (reason(solution) == "out_of_reach") == is_unreachable
    assert inverse_kinematics(sliding, Target(link="l2", position=(1.79, 0.0, 0.0))).reached
    scara = Robot.from_urdf(URDF / "scara.urdf")
    for y, is_unreachable in ((1.0, True), (0.6, False)):
        solution = inverse_kinematics(scara, Target(link="quill", position=(0.0, y, 0.0)), attempts=1)
        assert (reason(solution) == "out_of_reach") == is_unreachable
    # a link that does not move
    fixed = chain('fixed <origin xyz="1 0 0"/>', turning(1.0))
    assert reason(inverse_kinematics(fixed, Target(link="l1", position=(0.0, 0.0, 0.0)), attempts=1)) == "out_of_reach"
    followed = chain(turning(0.0), turning(1.0, -2.0, 2.0, "prismatic", "1 0 0") + '<mimic joint="j0" multiplier="2"/>')
    # the follower's limits leave its leader +-1 rad, so that it travels 2 m from 1 m
    for x, is_unreachable in ((50.0, True), (3.01, True), (2.99, False)):
        solution = inverse_kinematics(followed, Target(link="l2", position=(x, 0.0, 0.01)), attempts=1)
        assert (reason(solution) == "out_of_reach") == is_unreachable
    gripper = Robot.from_urdf(URDF / "panda.urdf")  # whose second finger follows the first
    finger = Target(link="panda_rightfinger", position=(50.0, 0.0, 0.0))
    assert reason(inverse_kinematics(gripper, finger, attempts=1)) == "out_of_reach"
    ball = chain(turning(0.0), 'ball <origin xyz="1 0 0"/>', turning(1.0))
    assert reason(inverse_kinematics(ball, Target(link="l3", position=(2.1, 0.0, 0.0)), attempts=1)) == "out_of_reach"


def test_a_target_that_limits_exclude_is_limit_also_where_no_motion_helps() -> None:
    robot = chain(turning(0.0, -0.2, 0.2), turning(1.0, -0.2, 0.2))
    solution = inverse_kinematics(robot, Target(link="l2", position=motion(robot, np.array([1.5, 0.0]), "l2")[0]))
    assert reason(solution) == "limit"
    assert solution.q[0] == 0.2  # the only joint that moves l2: no motion within the limits decreases the error


def test_values_without_a_name_are_refused() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    goal = Target(link="panda_hand", position=(0.5, 0.1, 0.4))
    for call, path, words in (
        (lambda: Target("panda_hand", (0.5, 0.1, 0.4)), "target", ("'panda_hand'", "link=", "position=")),  # type: ignore[misc]
        (lambda: inverse_kinematics(robot, goal, goal), "targets", ("targets=[..]", "Target")),  # type: ignore[arg-type]
        (lambda: inverse_kinematics(robot, goal, robot.neutral()), "seed", ("seed=..",)),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=naming(*words)) as refusal:
            call()
        assert refusal.value.path == path
    assert replace(goal, link="panda_link7") == Target(link="panda_link7", position=(0.5, 0.1, 0.4))
    assert pickle.loads(pickle.dumps(goal)) == goal


def test_robots_with_loops_are_refused() -> None:
    """Their links with a joint to the base reach a position by `assemble`, as the error says."""
    delta = Robot.from_file(find_robot("delta"))
    with pytest.raises(UnimplementedError, match=naming("'delta'", "'ball_1a'", "assemble", "cut")):
        inverse_kinematics(delta, Target(link="platform", position=[0.1, 0.05, -1.1]))
    q = delta.configuration.neutral.copy()
    part = delta.configuration.q_slices[delta.joint_names.index("platform_joint")]
    q[part.start : part.start + 3] = [0.1, 0.05, -0.1]
    poses = delta.link_poses(delta.assemble(q, fixed=["platform_joint"]))
    reached = poses.position[poses.links.index("platform")]
    np.testing.assert_allclose(reached, [0.1, 0.05, -1.16445166], atol=1e-9)
