"""Positions found for targets that a robot can reach, and what is said of those that it cannot."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dyn_service import Client, Robot
from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.simulation.inverse_kinematics import InverseKinematics, Target, inverse_kinematics, rotation_vector
from tests.conftest import URDF
from tests.service.server.test_pool import WAIT_S, serving

TURN = np.pi


def positions(robot: Robot, count: int) -> Array:
    rng, limits = np.random.default_rng(3), robot.limits
    lower, upper = np.maximum(limits.lower, -TURN), np.minimum(limits.upper, TURN)
    return np.array([robot.configuration.random(rng, lower, upper) for _ in range(count)])


def motion(robot: Robot, q: Array, link: str, point: Array | None = None) -> tuple[Array, Array]:
    found = robot.point_motion(q, np.zeros((*q.shape[:-1], robot.nv)), link, point=point)
    return found.position, found.rotation


def reached_poses(robot: Robot, q: Array, target: Target) -> None:
    position, rotation = motion(robot, q, target.link, np.array(target.point))
    if target.position is not None:
        assert np.linalg.norm(position - target.position, axis=-1).max() <= 1e-6
    if target.rotation is not None:
        between = Rotation.from_matrix(rotation).inv() * Rotation.from_matrix(np.asarray(target.rotation))
        assert between.magnitude().max() <= 1.1e-6  # and its rounding


@pytest.mark.parametrize(("name", "link"), [("panda", "panda_hand"), ("ur5e", "tool0")])
def test_reachable_poses_are_reached_within_the_limits(name: str, link: str) -> None:
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    point = np.array([0.02, -0.01, 0.1])
    position, rotation = motion(robot, positions(robot, 300), link, point)
    target = Target(link=link, position=position, rotation=rotation, point=point)
    found = inverse_kinematics(robot, target)
    assert found.reached.mean() >= 0.99  # 0.999 of 5,000
    assert ((found.q >= robot.limits.lower) & (found.q <= robot.limits.upper)).all()
    some = found.reached
    of_some = Target(link=link, position=position[some], rotation=rotation[some], point=point)
    reached_poses(robot, found.q[some], of_some)
    assert (found.reason[some] == "").all()
    assert (found.reason[~some] != "").all()


def test_several_links_reach_their_targets_together() -> None:
    robot = Robot.from_urdf(URDF / "upper_body.urdf")
    ends = [name for name in robot.link_names if name.endswith("hand")] or list(robot.link_names[-2:])
    q = positions(robot, 50)
    targets = [Target(link=link, position=motion(robot, q, link)[0]) for link in ends]
    found = inverse_kinematics(robot, targets)
    assert found.position_error.shape == (50, len(ends))
    assert found.reached.all()
    for target in targets:
        reached_poses(robot, found.q, target)


def test_the_answer_of_a_problem_does_not_depend_on_the_others() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    position, rotation = motion(robot, positions(robot, 6), "tool0")
    together = inverse_kinematics(robot, Target(link="tool0", position=position, rotation=rotation), attempts=1)
    for k in range(6):
        target = Target(link="tool0", position=position[k], rotation=rotation[k])
        alone = inverse_kinematics(robot, target, attempts=1)
        assert alone.q.tobytes() == together.q[k].tobytes()
        assert alone.reached == together.reached[k]


def test_a_direction_leaves_the_rotation_about_it_free() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    down = Target(link="panda_hand", direction=(0.0, 0.0, -2.0), axis=(0.0, 0.0, 3.0), position=(0.5, 0.1, 0.4))
    found = inverse_kinematics(robot, down, seed=positions(robot, 20))
    assert found.reached.all()
    _, rotation = motion(robot, found.q, "panda_hand")
    # The angle is read from the cosine, so its square is 1e-12.
    np.testing.assert_allclose(rotation[..., 2], np.broadcast_to([0.0, 0.0, -1.0], (20, 3)), atol=1e-6)
    assert np.ptp(rotation[..., 0, 0]) > 0.1


def test_an_opposite_direction_is_reached() -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    _, rotation = motion(robot, robot.configuration.neutral, "tool0")
    found = inverse_kinematics(robot, Target(link="tool0", direction=-rotation[:, 2]), seed=robot.configuration.neutral)
    assert found.reached
    assert found.attempts == 1


def test_weights_are_per_metre_and_per_radian() -> None:
    """Two places for one point: it comes to rest where w1^2 (x - x1) + w2^2 (x - x2) = 0."""
    robot = Robot.from_urdf(URDF / "panda.urdf")
    place, _ = motion(robot, robot.limits.middle(robot.configuration.neutral), "panda_hand")
    apart = np.array([0.0, 0.03, 0.0])
    targets = [
        Target(link="panda_hand", position=place, position_weight=2.0),
        Target(link="panda_hand", position=place + apart, position_weight=1.0),
    ]
    found = inverse_kinematics(robot, targets, iterations=200, attempts=1)
    assert not found.reached
    np.testing.assert_allclose(motion(robot, found.q, "panda_hand")[0], place + 0.2 * apart, atol=1e-5)
    np.testing.assert_allclose(found.position_error, [0.006, 0.024], atol=1e-5)
    assert found.reason == "singular"  # no motion decreases the error


def limited(lower: float, upper: float) -> Robot:
    """The double pendulum with these position limits."""
    text = (URDF / "double_pendulum.urdf").read_text()
    limit = f'<limit lower="{lower}" upper="{upper}" effort="10" velocity="10"/>'
    return Robot.from_urdf(re.sub(r"<limit [^>]*/>", limit, text))


def reason(found: InverseKinematics) -> str:
    assert not found.reached
    return str(found.reason)


def test_each_reason_is_what_was_checked() -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    far = inverse_kinematics(robot, Target(link="panda_hand", position=(3.0, 0.0, 0.5)), attempts=2)
    assert reason(far) == "out_of_reach"
    reach = np.linalg.norm(motion(robot, far.q, "panda_hand")[0] - (3.0, 0.0, 0.5))
    assert far.position_error[0] == pytest.approx(reach, rel=1e-12)
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
    near = inverse_kinematics(robot, Target(link="panda_link4", position=(0.0, 0.0, 0.2)), attempts=3)
    assert reason(near) == "singular"
    folded = inverse_kinematics(limited(-1.0, 1.0), Target(link=end, position=(0.0, 0.0, 0.5)), attempts=3)
    assert reason(folded) in ("singular", "limit", "out_of_reach")
    hurried = inverse_kinematics(free, target, iterations=1, attempts=1, seed=[-0.5, 0.1])
    assert reason(hurried) in ("not_converged", "limit")


def test_a_remote_robot_takes_one_request_for_each_link_and_iteration() -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    link = robot.link_names[-1]
    q = positions(robot, 40)
    near = np.clip(q + 0.02, robot.limits.lower, robot.limits.upper)
    target = Target(link=link, position=motion(robot, q, link)[0])
    with serving(name="scara") as server, Client(server.endpoints[0], timeout_s=WAIT_S) as client:
        remote = client.robot("scara")
        there = inverse_kinematics(remote, target, seed=near, iterations=10, attempts=1)
        answered = server.service.metrics.to_dict()["requests"]["point_motion"]["answered"]
    assert answered <= 11
    assert there.reached.all()
    here = inverse_kinematics(robot, target, seed=near, iterations=10, attempts=1)
    assert there.q.tobytes() == here.q.tobytes()


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        (Target(link="nowhere", position=(0, 0, 0)), NotFoundError, "no link 'nowhere'"),
        (Target(link="tool0"), InvalidArgumentError, "needs a position, a rotation or a direction"),
        (Target(link="tool0", position=(0, 0)), InvalidArgumentError, "3"),
        (Target(link="tool0", position=(0, 0, np.nan)), InvalidArgumentError, "finite"),
        (Target(link="tool0", rotation=2.0 * np.eye(3)), InvalidArgumentError, "rotation matrix"),
        (Target(link="tool0", rotation=np.diag([1.0, 1.0, -1.0])), InvalidArgumentError, "reflection"),
        (Target(link="tool0", direction=(0, 0, 0)), InvalidArgumentError, "length 0"),
        (Target(link="tool0", rotation=np.eye(3), direction=(0, 0, 1)), InvalidArgumentError, "both"),
        (Target(link="tool0", position=(0, 0, 0), position_weight=0.0), InvalidArgumentError, "weights"),
    ],
)
def test_wrong_targets_are_refused(target: Target, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        inverse_kinematics(Robot.from_urdf(URDF / "ur5e.urdf"), target)


def test_rotation_vectors_are_those_of_scipy_also_near_half_a_turn() -> None:
    rng = np.random.default_rng(5)
    axis = rng.standard_normal((2000, 3))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    small = 10.0 ** rng.uniform(-12, 0, 500)
    angle = np.concatenate([rng.uniform(0, np.pi, 1000), np.pi - small, small])
    given = axis * angle[:, None]
    found = rotation_vector(Rotation.from_rotvec(given).as_matrix())
    near = np.minimum(np.linalg.norm(found - given, axis=1), np.linalg.norm(found + given, axis=1) + (angle < 3.1) * 9)
    assert near.max() < 1e-7  # half a rounding in a matrix is the square root of it in an axis near half a turn
    assert np.abs(rotation_vector(np.eye(3))).max() == 0.0
