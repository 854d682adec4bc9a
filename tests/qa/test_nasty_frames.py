"""The frames and lumps that kernels are traced in: bounded slides, the same robot, no digit lost in choosing them."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dyn_service.engine.robot import Robot
from dyn_service.kernels import frames
from dyn_service.model import composite
from qa.nasty.reference import ExactRobot, double
from qa.nasty.robots import nasty_urdf, pair_urdf
from tests.conftest import URDF
from tests.random_robots import random_urdf
from tests.trees import motions


@pytest.mark.parametrize("seed", range(30))
def test_frames_slide_no_further_than_bodies_reach(seed: int) -> None:
    links = Robot.from_urdf(nasty_urdf(seed, max_joints=40)).tree
    welded, cheapest = frames.welded(links).tree, frames.cheapest_frames(links)
    reach = []
    for i, body in enumerate(welded.inertia):
        gyration = np.sqrt(abs(np.trace(body.about_com)) / body.mass) + 1e-7 * np.linalg.norm(body.com)  # its rounding
        reach.append(
            max([gyration, *(np.linalg.norm(p) for p in (body.com, *(welded.origin[k] for k in welded.children[i])))])
        )
    for i, parent in enumerate(welded.parent):
        reach_of_pair = 2.0 * reach[i] + (2.0 * reach[parent] if parent >= 0 else 0.0)
        # The last digits are the lengths' rounding.
        assert np.linalg.norm(cheapest.tree.origin[i]) <= (np.linalg.norm(welded.origin[i]) + reach_of_pair) * (
            1.0 + 1e-12
        )


@pytest.mark.parametrize("seed", range(30))
def test_frames_and_lumps_change_no_number(seed: int) -> None:
    """The chosen form in fifty digits has the mass matrix of the tree as given: what moved came from somewhere."""
    links = Robot.from_urdf(nasty_urdf(seed, max_joints=8)).tree
    exact = ExactRobot(nasty_urdf(seed, max_joints=8))
    q = np.random.default_rng(seed).uniform(-3, 3, links.nv)
    M = double(exact.at(q).mass_matrix)
    d = np.sqrt(np.diag(M))
    tree = frames.cheapest_frames(links).tree
    # The angle of the turn as a double, and sums of some ten bodies: thin ones turned out of their axes are the worst.
    assert np.abs((composite.mass_matrix(tree, q) - M) / np.outer(d, d)).max() < 1e-9


def test_a_frame_stands_level_where_the_common_normal_is_far() -> None:
    """The axes pass each other 5,000 km away; the frame stays level with its parent."""
    tree = frames.cheapest_frames(Robot.from_urdf(pair_urdf(2e-7)).tree).tree
    assert np.abs(tree.origin[2]).max() < 1.2
    assert tree.origin[2][2] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("height", [0.25, -0.25])
def test_a_frame_on_a_parallel_axis_stands_level_with_its_parent(height: float) -> None:
    """Parallel axes pass each other everywhere alike: of their offset only what lies across them is left."""
    raised = pair_urdf(0.0).replace('xyz="0.5 1 0"', f'xyz="0.5 1 {height}"')
    tree = frames.cheapest_frames(Robot.from_urdf(raised).tree).tree
    assert tree.origin[2][2] == 0.0
    assert np.linalg.norm(tree.origin[2]) == pytest.approx(np.hypot(0.5, 1.0), rel=1e-15)
    distant = pair_urdf(0.0).replace('xyz="0.5 1 0"', 'xyz="0.5 1 90"')
    tree = frames.cheapest_frames(Robot.from_urdf(distant).tree).tree
    assert tree.origin[2][2] == 90.0, "no further than its body reaches"


@pytest.mark.parametrize("tilt", [0.0, 3e-9])
def test_x_points_at_the_child_where_axes_are_parallel_or_nearly(tilt: float) -> None:
    """To where the child's frame stands after its slide, so that its place has one component across, not two."""
    raised = pair_urdf(tilt).replace('xyz="0.5 1 0"', 'xyz="0.5 1 0.25"')
    tree = frames.cheapest_frames(Robot.from_urdf(raised).tree).tree
    x, y, _ = tree.origin[2]
    assert (x, y) == (pytest.approx(np.hypot(0.5, 1.0), rel=1e-8), 0.0)


@pytest.mark.parametrize("name", ["ur5e", "panda", "scara", "upper_body", "ten_body_tree"])
def test_zeros_are_zeros(name: str) -> None:
    """What the choice of frames cancels is nothing, and not the decimals' rounding: it folds away in the kernels."""
    tree = frames.cheapest_frames(Robot.from_urdf(URDF / f"{name}.urdf").tree).tree
    arrays = [*tree.rotation, *tree.origin]
    arrays += [array for body in tree.inertia for array in (body.moment, body.about_origin)]
    entries = np.abs(np.concatenate([array.ravel() for array in arrays]))
    # Doubles of files cancel to 1e-16 of themselves, or to the rounding of fifty digits.
    assert (entries[entries > 0.0] > 1e-22).all()
    assert (entries == 0.0).sum() > 5 * len(tree)


def test_a_small_tilt_keeps_its_digits() -> None:
    """In doubles sin(t) of a product of rotations is good to 1e-16; here to 1e-16 of itself."""
    for tilt in (1e-12, 3e-9, 2e-7):
        tree = frames.cheapest_frames(Robot.from_urdf(pair_urdf(tilt)).tree).tree
        tilt_of_x = np.hypot(*tree.rotation[2][:2, 2])
        assert tilt_of_x == pytest.approx(np.sin(tilt), rel=1e-15)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rounding", [0.0, 1e-7])
def test_the_nearest_rotation_is_one_to_all_digits(seed: int, rounding: float) -> None:
    """Of a rotation in doubles, or one printed with seven digits: orthonormal, and what is left of it is symmetric, as
    of the nearest one (its polar form). A tilt far below the rounding of its neighbours keeps its digits.
    """
    rotation = Rotation.random(random_state=seed).as_matrix()
    rotation += rounding * np.random.default_rng(seed).uniform(-1.0, 1.0, (3, 3))
    with localcontext(Context(50)):
        exact = frames._decimal(rotation)
        orthonormal = frames._orthonormal(exact)
        left = orthonormal.T @ exact
        # Fifty digits, less what some products of three lose; the iteration ends at 1e-30.
        assert max(map(abs, (orthonormal.T @ orthonormal - np.eye(3, dtype=object)).flat)) < Decimal("1e-30")
        assert max(map(abs, (left - left.T).flat)) < Decimal("1e-30")
        tilted = frames._orthonormal(frames._decimal(np.array([[1, 0, 0], [0, 1, -3e-40], [0, 3e-40, 1]])))
    assert np.abs(orthonormal.astype(float) - rotation).max() < 1e-15 + 3.0 * rounding
    assert float(tilted[2, 1]) == -float(tilted[1, 2]) == 3e-40


def test_small_angles_keep_their_digits() -> None:
    """q enters as it is given: a frame that is turned about its axis does not add its angle to it."""
    robot = Robot.from_urdf(random_urdf(3, movable=6))
    turning = [joint for joint in frames.cheapest_frames(robot.tree).tree.inboard if joint.accepts_rotation]
    assert sum(bool(np.all(joint.turn)) for joint in turning) > 2
    q, q_ref, v = np.full(6, 1e-9), np.full(6, 2e-9), np.zeros(6)
    tau = robot.computed_torque(q, v, q_ref, v, v, kp=1e9, kd=1.0)
    expected = robot.inverse_dynamics(q, v, 1e9 * (q_ref - q))
    # Roundings of some hundred terms; angles of the frames' own, added to q, would leave 1e-7 of the error.
    np.testing.assert_allclose(tau, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_lumps_leave_nothing_negative_across() -> None:
    """What stays with a turning body has no negative moment: it could only cancel what its parent got."""
    for seed in range(20):
        tree = frames.cheapest_frames(Robot.from_urdf(nasty_urdf(seed, max_joints=12)).tree).tree
        for motion, body in zip(motions(tree), tree.inertia, strict=True):
            if body.mass and body.moment[2]:
                continue  # too heavy for its parent: it keeps what it has
            if motion == "revolute":
                assert min(body.about_origin[0, 0], body.about_origin[1, 1]) == 0.0
                assert body.mass == body.moment[2] == 0.0
            else:
                assert not body.about_origin.any()
