"""Axes, quaternions and poses at the edges of what they may be, in numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dyn_service.errors import UrdfError
from dyn_service.model.description import Note
from dyn_service.parsing import quantities
from dyn_service.parsing.quantities import Place

HERE = Place("robot.urdf", "joint 'j' axis", 7)
EXACT = 4e-16
"""Two roundings of numbers up to one."""


@pytest.mark.parametrize("scale", [1.0, 1e-8, 3.0, 1e150, -1.0, -1e200])
def test_axis_of_any_length_and_sign(scale: float) -> None:
    notes: list[Note] = []
    long_axis = scale * np.array([2.0, -3.0, 6.0]) / 7.0
    axis = quantities.unit_axis(long_axis, HERE, notes)
    np.testing.assert_allclose(axis, np.sign(scale) * np.array([2.0, -3.0, 6.0]) / 7.0, rtol=0, atol=EXACT)
    assert [note.kind for note in notes] == ([] if abs(scale) == 1.0 else ["changed"])


@pytest.mark.parametrize("axis", [(0.0, 0.0, -1.0), (-1.0, 0.0, 0.0), (0.0, -1.0, 0.0)])
def test_negative_axes_are_kept(axis: tuple[float, ...]) -> None:
    notes: list[Note] = []
    np.testing.assert_array_equal(quantities.unit_axis(np.array(axis), HERE, notes), axis)
    assert notes == []


@pytest.mark.parametrize(("excess", "has_note"), [(9e-7, False), (-9e-7, False), (1.1e-6, True), (-1.1e-6, True)])
def test_a_length_that_is_one_but_for_six_digits_is_not_noted(excess: float, has_note: bool) -> None:
    notes: list[Note] = []
    quantities.unit_axis(np.array([0.0, 0.0, 1.0 + excess]), HERE, notes)
    assert bool(notes) is has_note
    notes.clear()
    quantities.rotation_of_quaternion(np.array([0.0, 0.0, 0.0, 1.0 + excess]), HERE, notes)
    assert bool(notes) is has_note


@pytest.mark.parametrize(("length", "raises"), [(0.0, True), (9e-10, True), (1e-9, False)])
def test_shortest_axis_and_quaternion(length: float, raises: bool) -> None:
    for make, values in (
        (quantities.unit_axis, [0.0, 0.0, length]),
        (quantities.rotation_of_quaternion, [length, 0, 0, 0]),
    ):
        if raises:
            with pytest.raises(UrdfError, match="zero"):
                make(np.array(values), HERE, [])
        else:
            assert np.isfinite(make(np.array(values), HERE, [])).all()


@pytest.mark.parametrize(
    "xyzw",
    [
        (0.1, -0.2, 0.3, 0.9),
        (-1.0, 0.0, 0.0, 0.0),
        (0.0, -2.0, 0.0, 0.0),
        (-0.5, -0.5, -0.5, -0.5),
        (0.0, 0.0, 0.0, -3.0),
        (-0.4, 0.3, -0.2, 0.1),
    ],
)
def test_quaternion_of_any_length_and_sign(xyzw: tuple[float, ...]) -> None:
    notes: list[Note] = []
    R = quantities.rotation_of_quaternion(np.array(xyzw), HERE, notes)
    np.testing.assert_allclose(R, Rotation.from_quat(xyzw).as_matrix(), rtol=0, atol=EXACT)
    assert [note.kind for note in notes] == ([] if abs(np.linalg.norm(xyzw) - 1.0) < 1e-6 else ["changed"])


@pytest.mark.parametrize("seed", range(5))
def test_rpy_turns_about_fixed_axes(seed: int) -> None:
    rpy = np.random.default_rng(seed).uniform(-4.0, 4.0, 3)
    np.testing.assert_allclose(
        quantities.rotation_of_rpy(rpy), Rotation.from_euler("xyz", rpy).as_matrix(), rtol=0, atol=EXACT
    )


def pose(**changes: float) -> np.ndarray:
    """A rigid motion with single entries off: `r01=0.1` adds to row 0, column 1."""
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_rotvec([0.3, -0.5, 0.7]).as_matrix()
    matrix[:3, 3] = [1.0, -2.0, 3.0]
    for place, value in changes.items():
        matrix[int(place[1]), int(place[2])] += value
    return matrix


def test_pose_of_a_rigid_motion() -> None:
    xyz, R = quantities.pose_of_matrix(pose(), HERE)
    np.testing.assert_array_equal(xyz, [1.0, -2.0, 3.0])
    np.testing.assert_array_equal(R, pose()[:3, :3])
    xyz, R = quantities.pose_of_matrix(None, HERE)
    np.testing.assert_array_equal(xyz, np.zeros(3))
    np.testing.assert_array_equal(R, np.eye(3))
    quantities.pose_of_matrix(pose(r00=4e-7), HERE)  # printed with seven digits


@pytest.mark.parametrize(
    "changes", [{"r00": 2e-6}, {"r00": 3.0}, {"r21": -1e200}, {"r30": 1e-9}, {"r33": 1e-9}, {"r33": -1.0}]
)
def test_pose_that_is_none(changes: dict[str, float]) -> None:
    with pytest.raises(UrdfError, match="the pose is not a rigid motion"):
        quantities.pose_of_matrix(pose(**changes), HERE)


def test_mirrored_pose_is_none() -> None:
    mirrored = pose() @ np.diag([1.0, 1.0, -1.0, 1.0])
    with pytest.raises(UrdfError, match="the pose is not a rigid motion"):
        quantities.pose_of_matrix(mirrored, HERE)


def test_inertia_takes_its_moments_in_the_order_of_urdf() -> None:
    matrix = quantities.inertia_of_moments([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    np.testing.assert_array_equal(matrix, [[1, 2, 3], [2, 4, 5], [3, 5, 6]])


def test_inertia_matrix_is_symmetric_to_a_billionth() -> None:
    matrix = np.array([[4.0, 1.0, 2.0], [1.0, 5.0, 3.0], [2.0, 3.0, 6.0]])
    np.testing.assert_array_equal(quantities.inertia_of_matrix(matrix, HERE), matrix)
    skewed = np.zeros((3, 3))
    skewed[0, 1], skewed[1, 0] = 4e-9, -4e-9
    # Half the difference counts: 4e-9 of 6 is below 1e-9, twelve times that is not.
    np.testing.assert_allclose(quantities.inertia_of_matrix(matrix + skewed, HERE), matrix, rtol=1e-15)
    for sign in (12.0, -12.0):
        with pytest.raises(UrdfError, match="not symmetric"):
            quantities.inertia_of_matrix(matrix + sign * skewed, HERE)


@pytest.mark.parametrize(("value", "raises"), [(0.0, False), (1e-300, False), (-1e-300, True), (-1.0, True)])
def test_mass_is_not_negative(value: float, raises: bool) -> None:
    if raises:
        with pytest.raises(UrdfError, match="expected zero or more"):
            quantities.mass(value, HERE)
    else:
        assert quantities.mass(value, HERE) == value


def test_no_number_is_a_negative_zero() -> None:
    for numbers in (
        quantities.decimals("-0 -0.0 0", 3, "xyz", HERE),
        quantities.array([-0.0, 1.0], (2,), "xyz", HERE),
        quantities.unit_axis(np.array([-0.0, -0.0, 1.0]), HERE, []),
    ):
        assert not np.signbit(numbers).any()


def test_lengths_of_names_and_numbers() -> None:
    assert quantities.name("n" * 256, HERE) == "n" * 256
    with pytest.raises(UrdfError, match="257 characters, expected at most 256"):
        quantities.name("n" * 257, HERE)
    text = "1 2 " + "3" + " " * 995
    assert quantities.decimals(text, 3, "xyz", HERE).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(UrdfError, match="found 1001 characters"):
        quantities.decimals(text + " ", 3, "xyz", HERE)


def test_a_quarter_turn_by_a_quaternion_is_exact() -> None:
    """Its rounded sine and cosine are replaced by 0 and 1, which make kernels shorter."""
    root = np.sqrt(0.5)
    for scale in (1.0, -1.0, 3.0):
        R = quantities.rotation_of_quaternion(scale * np.array([0.0, 0.0, root, root]), HERE, [])
        np.testing.assert_array_equal(R, [[0, -1, 0], [1, 0, 0], [0, 0, 1]])
