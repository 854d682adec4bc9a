"""Identification of simulated robots whose numbers are known and differ from their files'."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.identification import Recording, effort_gains, filter_motion, identify, inertial_model
from dyn_service.identification.fit import _blocks
from dyn_service.identification.regression import gram, inflation, product, remover, solve
from dyn_service.identification.terms import FrictionTerm, effort_rows, friction_columns, friction_rows
from tests.conftest import URDF
from tests.identification.simulated import Errors, Experiment, multi_sine, part_of, theta_of, true_numbers

LEG = ("base_link", "FL_shoulder", "FL_upper_leg", "FL_lower_leg", "FL_foot")


@cache
def leg(**errors: float) -> Experiment:
    return Experiment.of(part_of("solo12", LEG), seed=0, errors=Errors(**errors))


def ratios(experiment: Experiment, draws: int) -> np.ndarray:
    """Errors of base parameters divided by their standard errors, (draws, nb)."""
    found = [identify(experiment.robot, experiment.recording(seed), check=0.0) for seed in range(draws)]
    return np.array([(one.estimate - experiment.truth) / one.standard_errors for one in found])


def test_parameters_friction_and_delay_are_within_their_standard_errors() -> None:
    experiment = leg()
    found = identify(experiment.robot, experiment.recording(0))
    # Of 18 normal ratios the largest is beyond 4.5 once in 8,000 seeds; the file is off by hundreds.
    assert np.abs((found.estimate - experiment.truth) / found.standard_errors).max() < 4.5
    assert np.abs((found.model.file_values - experiment.truth) / found.standard_errors).max() > 100.0
    assert abs(found.delay_s - experiment.errors.delay_s) < 4.0 * found.delay_error_s < 1e-3
    for name, numbers in experiment.numbers.joints.items():
        joint = found.friction[name]
        for kind, true in (("viscous", numbers.damping), ("coulomb", numbers.friction)):
            assert abs(joint.values[kind] - float(true)) < 4.5 * joint.standard_errors[kind]
    file, fitted = (found.comparison.rms(model, "check") for model in ("file", "fitted"))
    # What remains is the noise of the efforts, a fiftieth, filtered.
    assert (fitted < 0.02 * file).all()
    assert not found.unknown
    assert all(name in str(found) for name in (*experiment.robot.joint_names, "delay of efforts", "fit: file"))


def test_ratios_of_errors_to_standard_errors() -> None:
    ratio = ratios(leg(), 4)
    # 72 ratios, of which those of one draw are correlated: 1.07 in 100 draws (qa.identification).
    assert 0.7 < np.sqrt(np.mean(ratio**2)) < 1.4


@pytest.mark.wide
def test_ratios_of_errors_to_standard_errors_of_an_arm() -> None:
    experiment = Experiment.of(Robot.from_file(URDF / "scara.urdf"), seed=1)
    ratio = ratios(experiment, 40)
    assert 0.85 < np.sqrt(np.mean(ratio**2)) < 1.2
    assert 0.91 < np.mean(np.abs(ratio) < 1.96) < 0.98


def test_outliers_hardly_matter() -> None:
    experiment = leg(outliers=0.002)
    recording = experiment.recording(0)
    found = identify(experiment.robot, recording)
    assert np.abs((found.estimate - experiment.truth) / found.standard_errors).max() < 5.0


@pytest.mark.parametrize("form", ["momentum", "energy"])
def test_forms_without_accelerations(form: str) -> None:
    experiment = leg()
    recording = experiment.recording(0)
    found, by_effort = (identify(experiment.robot, recording, form=name) for name in (form, "effort"))
    errors = np.abs(found.estimate - experiment.truth)
    # Of 18 normal ratios the largest is beyond 4.5 once in 8,000 seeds.
    assert (errors < 4.5 * found.standard_errors).all()
    # Energy has a third of the rows, so its errors are larger; its noise is of power, but that of efforts is reported.
    assert np.median(found.standard_errors / by_effort.standard_errors) < (1.5 if form == "momentum" else 6.0)
    np.testing.assert_allclose(found.noise, by_effort.noise, rtol=0.4)


def test_momentum_and_energy_columns_are_those_of_efforts() -> None:
    """With the true motion, the three forms are one equation: filtered Y theta = filtered tau, and its power."""
    robot = Robot.from_file(URDF / "scara.urdf")
    t = np.arange(0.0, 8.0, 0.002)
    q = multi_sine(robot, np.random.default_rng(3))(t)[0]
    motion = filter_motion(Recording(t, q, np.zeros_like(q), robot.joint_names), cutoff_hz=20.0)
    model = inertial_model(robot)
    theta = np.random.default_rng(0).standard_normal(len(model.names))
    effort = model.rows(motion, "effort") @ theta
    momentum = model.rows(motion, "momentum") @ theta
    inside = slice(10, -10)  # at the ends of the motion filters differ
    # Positions are filtered at 40 Hz, so that a and dp/dt agree to the spline's error.
    np.testing.assert_allclose(momentum[inside], effort[inside], atol=1e-4 * np.abs(effort).max())
    energy = model.rows(motion, "energy") @ theta
    raw = model.effort_columns(motion.q, motion.v, motion.a) @ theta
    power = effort_rows(motion, raw, "energy")
    np.testing.assert_allclose(energy[inside], power[inside], atol=1e-4 * np.abs(power).max())
    term = FrictionTerm(robot.joint_names[1], 1, "viscous", 0.1)
    dissipated = friction_rows(motion, lambda v: friction_columns([term], v), "energy")[:, 0, 0]
    expected = effort_rows(motion, motion.v * (np.arange(robot.nv) == 1), "energy")[:, 0]
    np.testing.assert_allclose(dissipated, expected, atol=1e-9 * np.abs(expected).max())


def test_asymmetric_and_stribeck_friction_and_width_are_found_where_they_are() -> None:
    experiment = leg()
    v = np.gradient(experiment.q, experiment.t, axis=0)
    rms = np.sqrt(np.mean(experiment.effort**2, axis=0))
    sign = np.tanh(v / 0.1)
    late = experiment.effort.copy()  # no delay
    late[:, 0] += 0.05 * rms[0] * v[:, 0] * sign[:, 0] + 0.2 * rms[0]
    late[:, 1] += 0.5 * rms[1] * sign[:, 1] * np.exp(-((v[:, 1] / 0.3) ** 2))
    coulomb = float(experiment.numbers.joints[experiment.robot.joint_names[2]].friction)
    late[:, 2] += coulomb * (np.tanh(v[:, 2] / 0.5) - sign[:, 2])
    changed = replace(experiment, late_effort=late)
    found = identify(changed.robot, changed.recording(0), check=0.0)
    kinds = {name: set(joint.values) for name, joint in found.friction.items()}
    first, second, third = changed.robot.joint_names
    assert {"asymmetric", "offset"} <= kinds[first]
    assert found.friction[first].values["offset"] == pytest.approx(0.2 * rms[0], rel=0.05)
    assert found.friction[first].values["asymmetric"] == pytest.approx(0.05 * rms[0], rel=0.3)
    assert "stribeck" in kinds[second]
    assert "stribeck" not in kinds[first]
    assert 0.1 < found.friction[second].stribeck_speed < 0.9  # the grid has a factor of 1.5 between speeds
    assert "asymmetric" not in kinds[second] | kinds[third]
    for name, width in ((first, 0.1), (third, 0.5)):
        joint = found.friction[name]
        assert abs(joint.width - width) < 4.5 * joint.standard_errors["width"] < 0.1 * width


@pytest.mark.parametrize("noise", [0.0, 0.01], ids=["exact", "low noise"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("robot", ["leg", "scara"])
def test_widths_that_differ_from_the_file_are_no_other_friction(robot: str, seed: int, noise: float) -> None:
    """With widths on a grid there was Stribeck friction, and errors were 10 to 60 standard errors."""
    model = part_of("solo12", LEG) if robot == "leg" else Robot.from_file(URDF / "scara.urdf")
    errors = Errors().scaled(noise)
    experiment = Experiment.of(model, seed, duration_s=8.0, rate_hz=250.0, errors=errors, widths=(0.02, 0.3))
    result = identify(model, experiment.recording(0), check=0.0)
    ratio = list((result.estimate - experiment.truth) / result.standard_errors)
    for name, numbers in experiment.numbers.joints.items():
        joint = result.friction[name]
        assert set(joint.values) == {"viscous", "coulomb"}, joint
        truth = {"viscous": numbers.damping, "coulomb": numbers.friction, "width": numbers.friction_width}
        for kind, value in {**joint.values, "width": joint.width}.items():
            ratio.append((value - float(truth[kind])) / joint.standard_errors[kind])
    # Of some 25 normal ratios, of which many are correlated, one is beyond 4.5 in 6,000 seeds.
    assert np.abs(ratio).max() < 4.5


def test_standard_errors_contain_what_filters_change() -> None:
    """Exact positions and efforts, so that errors are those of filters: some are 3 standard errors of the residual."""
    experiment = Experiment.of(part_of("solo12", LEG), 1, 20.0, 125.0, Errors().scaled(0.0))
    result = identify(experiment.robot, experiment.recording(0), check=0.0)
    assert np.abs((result.estimate - experiment.truth) / result.standard_errors).max() < 1.5


def test_an_error_of_efforts_moves_the_estimate_by_its_standard_error() -> None:
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((200, 2, 3)), 0.1 * rng.standard_normal((200, 2))
    mask, move = rng.random((200, 2)) < 0.9, np.array([0.02, -0.01, 0.005])
    whole = solve(X, noise, mask, 1e-9 * np.eye(3), np.zeros(3))
    increase = whole.with_error(X, mask, X @ move).covariance - whole.covariance
    np.testing.assert_allclose(increase, np.outer(move, move), rtol=1e-6)


def test_friction_in_a_thinned_motion_is_that_of_the_recording() -> None:
    """At 2 Hz of 500, 15 samples are one; computed at these alone, jumps of friction fold 4e-4 of it into the band."""
    experiment = Experiment.of(part_of("solo12", LEG), 0, errors=Errors().scaled(0.0))
    name = experiment.robot.joint_names[1]
    v = np.gradient(experiment.q, experiment.t, axis=0, edge_order=2)
    recording = replace(experiment.recording(0), effort=np.tanh(v / 0.1))
    motion = filter_motion(recording, cutoff_hz=2.0)
    assert motion.thinning == 15
    column = friction_rows(motion, lambda v: friction_columns([FrictionTerm(name, 1, "coulomb", 0.1)], v), "effort")
    expected = effort_rows(motion, motion.effort, "effort")
    # Differences of positions are wrong by h^2 / 6 times the rate of accelerations.
    np.testing.assert_allclose(column[3:-3, 1, 0], expected[3:-3, 1], atol=2e-5)


@pytest.mark.parametrize("name", ["width", "stribeck_speed"])
@pytest.mark.parametrize("kind", ["viscous", "coulomb", "offset", "asymmetric", "stribeck"])
def test_slopes_of_friction_are_those_of_differences(kind: str, name: str) -> None:
    v, term, step = np.linspace(-2.0, 2.0, 41)[:, None], FrictionTerm("a", 0, kind, 0.3, 0.7), 1e-6
    high, low = (replace(term, **{name: getattr(term, name) * np.exp(x)}).column(v) for x in (step, -step))
    np.testing.assert_allclose(term.slope(v, name), (high - low) / (2.0 * step), atol=1e-8)


def test_products_without_threads_are_products() -> None:
    rng = np.random.default_rng(0)
    X, Z, y = rng.standard_normal((700, 40)), rng.standard_normal((700, 40)), rng.standard_normal((700, 2))
    np.testing.assert_allclose(gram(X, Z), X.T @ Z, atol=1e-11)
    np.testing.assert_allclose(gram(X), X.T @ X, atol=1e-11)
    np.testing.assert_allclose(product(X, Z[:40]), X @ Z[:40], atol=1e-11)
    X[:, 3], X[:, 4] = 0.0, 1e6 * X[:, 5]  # a column of zeros, and one that depends on another
    rest = remover(X)(y)
    np.testing.assert_allclose(rest, y - X @ np.linalg.lstsq(X, y, rcond=1e-12)[0], atol=1e-9)
    np.testing.assert_allclose(remover(X)(y[:, 0]), rest[:, 0], atol=1e-12)


def test_what_a_recording_does_not_show_is_named_and_stays_at_the_file() -> None:
    experiment = leg()
    q = multi_sine(experiment.robot, np.random.default_rng(0))(experiment.t)
    q[0][:, 1:], q[1][:, 1:], q[2][:, 1:] = q[0][0, 1:], 0.0, 0.0
    effort = experiment.robot.inverse_dynamics(*q, overlay=experiment.numbers)
    still = replace(experiment, q=q[0], effort=effort, late_effort=effort, errors=Errors(delay_s=0.0))
    found = identify(still.robot, still.recording(0), check=0.0)
    assert found.unknown
    assert any("accelerations of FL_" in str(direction) for direction in found.unknown)
    # FL_KFE did not move: its armature is not shown, and its standard error says so.
    armature = found.names.index("FL_KFE.armature")
    moved = identify(experiment.robot, experiment.recording(0), check=0.0)
    assert found.standard_errors[armature] > 20.0 * moved.standard_errors[armature]


def test_check_blocks_are_not_fitted() -> None:
    recording = leg().recording(0)
    motion = filter_motion(recording)
    for share in (0.0, 1.0 / 3.0, 0.5):
        fit, check = _blocks(motion, share)
        assert not (fit & check).any()
        assert check.mean() == pytest.approx(share, abs=0.05)
        # Each row of the check is apart from fitted ones by the width of the filter.
        near = check[1:] & fit[:-1] | fit[1:] & check[:-1]
        assert not near.any()


def test_check_recording_and_unmeasured_joints() -> None:
    experiment = leg()
    fit, check = experiment.recording(0), experiment.recording(1)
    effort = fit.effort.copy()
    effort[:, 0] = np.nan
    found = identify(experiment.robot, replace(fit, effort=effort), check=check)
    assert np.isnan(found.comparison.rms("fitted", "fit")[0])
    assert not found.friction[experiment.robot.joint_names[0]].values
    assert (found.comparison.rms("fitted", "check")[1:] < 0.05 * found.comparison.rms("file", "check")[1:]).all()


def test_identified_efforts_are_those_of_the_true_robot() -> None:
    experiment = leg()
    found = identify(experiment.robot, experiment.recording(0))
    q, v, a = multi_sine(experiment.robot, np.random.default_rng(9))(np.linspace(0.0, 5.0, 50))
    true = experiment.robot.inverse_dynamics(q, v, a, overlay=experiment.numbers)
    file = experiment.robot.inverse_dynamics(q, v, a)
    assert np.abs(found.effort(q, v, a) - true).max() < 0.02 * np.abs(file - true).max()


def test_gains_of_currents() -> None:
    robot = part_of("solo12", LEG)
    numbers = replace(true_numbers(robot, 0), links={})
    t, gains = np.arange(0.0, 20.0, 0.002), np.array([0.5, 2.0, 0.1])
    q, v, a = multi_sine(robot, np.random.default_rng(0))(t)
    current = robot.inverse_dynamics(q, v, a, overlay=numbers) / gains
    noise = 0.02 * current.std(axis=0) * np.random.default_rng(1).standard_normal(current.shape)
    recording = Recording(t, q, current + noise, robot.joint_names)
    found = effort_gains(robot, recording)
    for name, gain in zip(robot.joint_names, gains, strict=True):
        assert abs(found[name].value - gain) < 4.5 * found[name].standard_error < 0.05 * gain
    efforts = recording.with_gains({name: gain.value for name, gain in found.items()})
    np.testing.assert_allclose(efforts.effort, recording.effort * gains, rtol=0.02)
    noise[:, 1] *= 1000.0
    unclear = effort_gains(robot, Recording(t, q, current + noise, robot.joint_names))
    assert [bool(np.isfinite(gain.value)) for gain in unclear.values()] == [True, False, True]
    assert unclear[robot.joint_names[1]].standard_error == np.inf
    rest = Recording(t, np.zeros_like(q) + q[0], current * 0.0 + noise, robot.joint_names)
    with pytest.raises(FailedPreconditionError, match="the gain of none of the joints FL_HAA, FL_HFE, FL_KFE"):
        effort_gains(robot, rest)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [({"check": 0.7}, "check"), ({"form": "efort"}, "form"), ({"friction": ["viscus"]}, "friction"),
     ({"friction": "viscous"}, "friction"), ({"delay_s": 1.0}, "delay_s"), ({"cutoff_hz": 300.0}, "cutoff_hz")],
)  # fmt: skip
def test_arguments_out_of_range(arguments: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        identify(leg().robot, leg().recording(0), **arguments)
    assert caught.value.path == path


def test_a_recording_that_is_too_short_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=r"rows for .* parameters"):
        identify(leg().robot, leg().recording(0).between(0.0, 2.0), cutoff_hz=4.0)


def test_regression_of_correlated_noise_with_outliers() -> None:
    """Ratios of errors and standard errors, with noise of a first-order process that two joints share in part."""
    rng, draws, rows, truth = np.random.default_rng(0), 60, 400, np.array([1.0, -2.0, 0.5])
    X = np.cumsum(rng.standard_normal((rows, 2, 3)), axis=0) / 10.0
    used = rng.random((rows, 2)) < 0.95
    ratio = []
    for _ in range(draws):
        noise = rng.standard_normal((rows, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
        for k in range(1, rows):
            noise[k] += 0.5 * noise[k - 1]
        noise[rng.random((rows, 2)) < 0.01] += 100.0
        found = solve(X, X @ truth + noise, used, 1e-9 * np.eye(3), np.zeros(3))
        ratio.append((found.estimate - truth) / np.sqrt(np.diag(found.covariance)))
    # 180 ratios; plain least squares without correlation would have 1.7, and with the outliers' variance 0.2.
    assert 0.8 < np.sqrt(np.mean(np.square(ratio))) < 1.25


def test_inflation_is_that_of_a_first_order_process() -> None:
    """(1 + rho) / (1 - rho); Bartlett's window of 4,000 rows lacks about a tenth of it, in all rows or in 9 of 10."""
    rng, rho, count = np.random.default_rng(0), np.array([0.0, 0.5, 0.8]), 4000
    noise = rng.standard_normal((count, 3))
    for k in range(1, count):
        noise[k] += rho * noise[k - 1]
    expected = (1.0 + rho) / (1.0 - rho)
    assert inflation(noise, np.ones((count, 3), dtype=bool)) == pytest.approx(expected, rel=0.2)
    mask = rng.random((count, 3)) < 0.9
    # A row that does not count has no residual at all, such as NaN.
    assert inflation(np.where(mask, noise, np.nan), mask) == pytest.approx(expected, rel=0.3)


def test_true_parameters_of_the_simulation_are_those_of_the_regressor() -> None:
    experiment = leg()
    q, v, a = multi_sine(experiment.robot, np.random.default_rng(0))(np.linspace(0.0, 3.0, 7))
    Y = experiment.robot.inverse_dynamics_regressor(q, v, a).regressor
    tau = experiment.robot.inverse_dynamics(q, v, a, overlay=experiment.numbers)
    np.testing.assert_allclose(Y @ theta_of(experiment.robot, experiment.numbers), tau, atol=1e-12)
