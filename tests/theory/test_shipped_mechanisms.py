"""The four shipped mechanisms against closed forms: positions, motions, efforts and the loads of pins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dyn_service import Robot
from tests.conftest import LOOPED, URDF

Array = NDArray[np.float64]

CRANK, COUPLER, ROCKER, GROUND = 0.04, 0.12, 0.08, 0.1
"""Lengths of the four-bar in m."""
I = 1j
"""Vectors of the plane are complex numbers x + i z; times i they are turned by a quarter."""


@pytest.mark.parametrize("path", LOOPED, ids=lambda path: path.stem)
def test_zero_closes_the_loops(path: Any) -> None:
    robot = Robot.from_file(path)
    assert np.abs(robot.loop_error(robot.neutral())).max() < 1e-8  # figures of nine digits
    assert not robot.description.loops
    warnings = [note for note in robot.description.notes if note.kind in ("warning", "loop")]
    assert not warnings


def four_bar_motion(theta: float, rate: float, acceleration: float) -> tuple[Array, Array, Array]:
    """Angles of crank, coupler and rocker from x, their rates and accelerations; the open branch."""
    tip = CRANK * np.exp(I * theta)
    diagonal = GROUND - tip
    # The triangle of coupler, rocker and the diagonal between their outer pins.
    angle = np.arccos((COUPLER**2 + abs(diagonal) ** 2 - ROCKER**2) / (2 * COUPLER * abs(diagonal)))
    coupler = np.angle(diagonal) + angle
    rocker = np.angle(tip + COUPLER * np.exp(I * coupler) - GROUND)
    angles = np.array([theta, coupler, rocker])
    arms = np.array([CRANK, COUPLER, -ROCKER]) * np.exp(I * angles)  # their sum is the ground, a constant

    def solved(value: complex) -> Array:
        A = np.array([[arms[1].real, arms[2].real], [arms[1].imag, arms[2].imag]])
        return np.linalg.solve(A, [value.real, value.imag])

    rates = np.array([rate, *solved(-arms[0] * rate)])
    accelerations = np.array([acceleration, *solved(-arms[0] * acceleration - I * (arms * rates**2).sum())])
    return angles, rates, accelerations


def joint_values(angles: Array) -> Array:
    """Joint angles from the angles of the bars: the coupler's is relative to the crank. Likewise rates."""
    return np.array([angles[0], angles[1] - angles[0], angles[2]])


def pin_forces(angles: Array, rates: Array, accelerations: Array) -> tuple[Array, float]:
    """Forces (4,) complex N on the crank at the ground, on the coupler at the crank, on the rocker at the coupler and
    at the ground; and the crank's torque. Newton's and Euler's equations of the three bars.
    """
    lengths, grounded = np.array([CRANK, COUPLER, ROCKER]), np.array([0.0, 0.0, GROUND])
    mass = 7850 * 0.01 * 0.005 * lengths
    inertia = mass / 12 * (lengths**2 + 0.01**2)  # about y: length along x, 10 mm along z
    arms = lengths * np.exp(I * angles)
    spin = I * accelerations - rates**2  # times a vector that turns with the bar: its second derivative
    start = grounded + np.array([0.0, arms[0], 0.0])
    start_acceleration = np.array([0.0, spin[0] * arms[0], 0.0])
    resultant = mass * (start_acceleration + spin * arms / 2 + 9.81j)
    # Of each pin: the bar that it pushes, the bar that it pushes back, and where it is.
    pins = [(0, None, 0.0), (1, 0, arms[0]), (2, 1, arms[0] + arms[1]), (2, None, GROUND)]
    A, b = np.zeros((9, 9)), np.zeros(9)
    for k, (pushed, pushing, place) in enumerate(pins):
        for bar, sign in ((pushed, 1.0), (pushing, -1.0)):
            if bar is None:
                continue
            lever = place - start[bar] - arms[bar] / 2
            A[3 * bar, 2 * k] = A[3 * bar + 1, 2 * k + 1] = sign
            A[3 * bar + 2, 2 * k : 2 * k + 2] = -sign * lever.imag, sign * lever.real
    A[2, 8] = 1.0
    b[0::3], b[1::3], b[2::3] = resultant.real, resultant.imag, inertia * accelerations
    x = np.linalg.solve(A, b)
    return x[0:8:2] + I * x[1:8:2], float(x[8])


@pytest.fixture(scope="module")
def four_bar() -> Robot:
    return Robot.from_file(URDF / "four_bar.urdf")


def test_four_bar_of_the_book(four_bar: Robot) -> None:
    """Norton's example, whose angles are printed with five digits; the closed form has them too."""
    angles, _, _ = four_bar_motion(np.deg2rad(40.0), 0.0, 0.0)
    assert np.rad2deg(angles[1:]) == pytest.approx([20.298, 57.325], abs=6e-4)


@pytest.mark.parametrize("theta", [0.3, 2.0, 4.5])
def test_four_bar_against_its_closed_form(four_bar: Robot, theta: float) -> None:
    zero = four_bar_motion(0.0, 0.0, 0.0)[0]
    angles, rates, accelerations = four_bar_motion(theta, 25.0, -40.0)
    q = four_bar.assemble(np.array([theta, *joint_values(angles - zero)[1:]]), fixed=["crank_joint"])
    assert q == pytest.approx(joint_values(angles - zero), abs=1e-8)  # nine digits of the file's angles
    moving = four_bar.independent_motion(q, joint_values(rates))
    # By the robot's own G, so that they keep its loop closed to rounding; the closed form does so to nine digits.
    v, a = moving.jacobian @ [25.0], moving.bias_accelerations + moving.jacobian @ [-40.0]
    assert v == pytest.approx(joint_values(rates), rel=1e-7)
    assert a == pytest.approx(joint_values(accelerations), rel=1e-6)
    forces, torque = pin_forces(angles, rates, accelerations)
    assert four_bar.inverse_dynamics(q, v, a) == pytest.approx([torque, 0.0, 0.0], rel=1e-7, abs=1e-12)
    tau = np.array([torque, 0.0, 0.0])
    loads = four_bar.constraint_forces(q, v, tau)
    places = {name: k for k, name in enumerate(("crank_joint", "coupler_joint", "pin", "rocker_joint"))}
    for name, wrench in zip(loads.joints, loads.wrench, strict=True):
        assert np.linalg.norm(wrench[3:]) == pytest.approx(abs(forces[places[name]]), rel=1e-6), name
        assert abs(wrench[4]) < 1e-12  # across the plane
    assert four_bar.forward_dynamics(q, v, tau) == pytest.approx(a, rel=1e-6)


def arm_angles(p: Array) -> Array:
    """Angles of the delta's arms with the platform's middle at p: Williams (2016), inverse pose kinematics."""
    side, arm, rod = 0.567, 0.524, 1.244
    outward = np.sqrt(3.0) / 6.0 * side - np.sqrt(3.0) / 3.0 * 0.076
    angles = []
    for phi in (-np.pi / 2, np.pi / 6, 5 * np.pi / 6):
        # From the platform's pivot to the motor: x in the plane in which the arm turns, y out of it.
        radial, normal = np.array([np.cos(phi), np.sin(phi), 0.0]), np.array([-np.sin(phi), np.cos(phi), 0.0])
        offset = outward * radial - p
        x, y, z = offset @ radial, offset @ normal, offset[2]
        E, F = 2 * arm * x, -2 * arm * z
        G = x**2 + y**2 + z**2 + arm**2 - rod**2
        angles.append(np.arctan2(F, E) + np.arccos(-G / np.hypot(E, F)))
    return np.array(angles)


@pytest.mark.parametrize("motors", [(0.0, 0.0, 0.0), (0.3, -0.2, 0.5), (0.9, 0.7, 0.8)])
def test_delta_against_its_closed_form(motors: tuple[float, float, float]) -> None:
    robot = Robot.from_file(URDF / "delta.urdf")
    names = [f"motor_{k}" for k in (1, 2, 3)]
    entries = [robot.configuration.q_slices[robot.joint_names.index(name)].start for name in names]
    start = robot.neutral()
    start[entries] = motors
    q = robot.assemble(start, fixed=names)
    poses = robot.link_poses(q)
    rotation, p = (x[poses.links.index("platform")] for x in (poses.rotation, poses.position))
    assert rotation == pytest.approx(np.eye(3), abs=1e-7)  # the parallelograms keep it level
    closed_form = arm_angles(p)
    assert closed_form == pytest.approx(motors, abs=1e-7)
    # The velocity of the platform is that of the closed form's derivative.
    motion = robot.independent_motion(q, np.zeros(robot.nv))
    assert motion.jacobian.shape == (robot.nv, 3)
    step = 1e-6
    slopes = np.array([(arm_angles(p + d) - arm_angles(p - d)) / (2 * step) for d in step * np.eye(3)]).T
    velocity = robot.point_motion(q, motion.jacobian.T, "platform").velocity
    assert slopes @ np.asarray(velocity)[..., 3:].T == pytest.approx(np.eye(3), abs=1e-6)


def test_gripper_fingers_stay_parallel_and_meet() -> None:
    robot = Robot.from_file(URDF / "linkage_gripper.urdf")
    start = robot.neutral()
    start[robot.joint_names.index("left_knuckle_joint")] = 0.8
    closed_poses = robot.link_poses(robot.assemble(start, fixed=["left_knuckle_joint"]))
    open_poses = robot.link_poses(robot.neutral())
    for side, sign in (("left", 1.0), ("right", -1.0)):
        finger = open_poses.links.index(f"{side}_finger")
        assert closed_poses.rotation[finger] == pytest.approx(open_poses.rotation[finger], abs=1e-8)
        travel = open_poses.position[finger, 0] - closed_poses.position[finger, 0]
        assert travel == pytest.approx(sign * 0.0425, abs=1e-9)  # half of the stroke


def test_ankle_pitches_with_equal_cranks_and_rolls_with_opposite_ones() -> None:
    robot = Robot.from_file(URDF / "parallel_ankle_leg.urdf")
    names = list(robot.joint_names)
    for left, right, turning_axis, other_axis in ((0.2, 0.2, "pitch", "roll"), (0.2, -0.2, "roll", "pitch")):
        start = robot.neutral()
        start[names.index("left_crank_joint")], start[names.index("right_crank_joint")] = left, right
        q = robot.assemble(start, fixed=["left_crank_joint", "right_crank_joint"])
        angle = {kind: q[names.index(f"ankle_{kind}_joint")] for kind in ("pitch", "roll")}
        assert abs(angle[other_axis]) < 0.03 < abs(angle[turning_axis])
    # Cranks and foot form a parallelogram, so that equal cranks turn the foot as far as themselves.
    start = robot.neutral()
    start[names.index("left_crank_joint")] = start[names.index("right_crank_joint")] = 0.3
    q = robot.assemble(start, fixed=["left_crank_joint", "right_crank_joint"])
    assert q[names.index("ankle_pitch_joint")] == pytest.approx(0.3, abs=1e-9)


@pytest.mark.parametrize(
    ("link", "length", "share", "radii"),
    [
        ("thigh", 0.4222, 0.1416, (0.329, 0.329, 0.149)),
        ("shank", 0.4340, 0.0433, (0.255, 0.249, 0.103)),
        # Its long axis is x and its sagittal axis z: de Leva's columns are sagittal, transverse, longitudinal.
        ("foot", 0.2581, 0.0137, (0.124, 0.245, 0.257)),
    ],
)
def test_segments_of_the_leg_are_those_of_de_leva(
    link: str, length: float, share: float, radii: tuple[float, float, float]
) -> None:
    description = Robot.from_file(URDF / "parallel_ankle_leg.urdf").evaluator.model.description
    inertial = next(x.inertial for x in description.links if x.name == link)
    assert inertial is not None
    assert inertial.mass == pytest.approx(73.0 * share, rel=1e-9)
    expected = inertial.mass * (np.array(radii) * length) ** 2
    assert inertial.inertia == pytest.approx(np.diag(expected), rel=1e-8, abs=1e-12)  # nine digits
