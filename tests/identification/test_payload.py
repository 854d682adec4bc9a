"""Payloads, held against bodies that a simulated robot carries; the estimate in a control loop."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from dyn_service import JointNumbers, Overlay, Payload, Robot
from dyn_service.control import ClosedLoop
from dyn_service.control.laws.computed_torque import ComputedTorque
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph import PlantParameters, Registry, commander, make_plant
from dyn_service.identification import PayloadEstimate, PayloadEstimator, identify_payload
from dyn_service.messages.dyn_service_msgs import LinkPayload
from dyn_service.messages.std_msgs import Header
from tests.conftest import URDF

ENTRIES = np.triu_indices(3)
BRICK = Payload("panda_hand", 1.0, (0.01, -0.02, 0.08), np.diag([2e-3, 3e-3, 2.5e-3]))
TRUE = np.array([1.0, 0.01, -0.02, 0.08, 2e-3, 0.0, 0.0, 3e-3, 0.0, 2.5e-3])


@cache
def panda() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf")


def values(estimate: PayloadEstimate) -> np.ndarray:
    return np.array([estimate.mass, *estimate.com, *estimate.inertia[ENTRIES]])


def motion(seed: int, seconds: float = 10.0, rate_hz: float = 250.0, size: float = 0.4) -> dict[str, np.ndarray]:
    """Five harmonics per joint of the arm."""
    rng, t = np.random.default_rng(seed), np.arange(0.0, seconds, 1.0 / rate_hz)
    w = 2.0 * np.pi / 5.0 * np.arange(1, 6)
    amplitude, phase = rng.normal(size=(8, 5)) * size / np.arange(1, 6), rng.uniform(0.0, 6.0, (8, 5))
    amplitude[7] = 0.0
    angle = t[:, None, None] * w + phase
    q = np.array([0.0, -0.3, 0.0, -1.8, 0.0, 1.6, 0.5, 0.02]) + (amplitude * np.sin(angle)).sum(axis=2)
    return {
        "t": t,
        "q": q,
        "v": (amplitude * w * np.cos(angle)).sum(axis=2),
        "a": -(amplitude * w * w * np.sin(angle)).sum(axis=2),
    }


def carried(seed: int, overlay: Overlay, noise: float = 0.0, **settings: float) -> dict[str, np.ndarray]:
    """The recording of a robot with this overlay. noise: N m of the efforts; velocities have 6e-3 rad/s of it each."""
    m, rng = motion(seed, **settings), np.random.default_rng(1000 + seed)
    tau = panda().inverse_dynamics(m["q"], m["v"], m["a"], overlay=overlay)
    v = m["v"] + 6e-3 * noise * rng.normal(size=m["v"].shape)
    return {"t": m["t"], "q": m["q"], "v": v, "tau": tau + noise * rng.normal(size=tau.shape)}


def rubbing() -> Overlay:
    """Friction that the model lacks, with a width that is not the model's."""
    joints = {f"panda_joint{k}": JointNumbers(friction=0.5, damping=0.3, friction_width=0.01) for k in range(1, 8)}
    return Overlay(BRICK, joints=joints)


def test_exact_data_give_the_body() -> None:
    """All ten numbers, so that no term of the window's equation can be missing. The trapezoidal rule over windows of 50
    samples, in which nothing is faster than 2 Hz, leaves some 1e-7 of the efforts.
    """
    estimate = identify_payload(panda(), carried(1, Overlay(BRICK)), "panda_hand")
    np.testing.assert_allclose(values(estimate), TRUE, atol=2e-5)
    assert estimate.unknown == ()
    assert estimate.windows == 98  # of 0.2 s in 9.996 s, which overlap by half
    loaded = panda().overlaid(estimate.overlay).mass_matrix(np.zeros(8))
    np.testing.assert_allclose(loaded, panda().overlaid(Overlay(BRICK)).mass_matrix(np.zeros(8)), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_kilogram_within_two_percent_in_ten_seconds_with_noise_and_friction(seed: int) -> None:
    """5 standard errors: a seed in a million has more in one of four numbers."""
    estimate = identify_payload(panda(), carried(seed, rubbing(), noise=0.5), "panda_hand")
    assert abs(estimate.mass - 1.0) < 0.02
    assert (np.abs(values(estimate) - TRUE)[:4] < 5.0 * estimate.standard_errors[:4]).all()
    # White noise of 0.5 N m in a window of 50 samples leaves 0.087 N m, 0.098 with the overlap of windows; at the wrist
    # little is added by the velocities.
    assert 0.07 < np.median(estimate.noise[4:7]) < 0.14
    assert (estimate.standard_errors[:4] < [0.01, 0.005, 0.005, 0.005]).all()
    assert np.linalg.eigvalsh(np.trace(estimate.inertia) / 2.0 * np.eye(3) - estimate.inertia)[0] > -1e-12
    modelled_friction = identify_payload(panda(), carried(seed, rubbing(), noise=0.5), "panda_hand", friction=False)
    assert abs(modelled_friction.mass - 1.0) > abs(estimate.mass - 1.0)


@pytest.mark.wide
def test_standard_errors_are_those_of_a_hundred_draws() -> None:
    """Bounds of the rms of 100 ratios: a factor of 1.5, since noise and its correlation are estimated, too."""
    draws = [identify_payload(panda(), carried(s, rubbing(), noise=0.5), "panda_hand") for s in range(100)]
    ratios = np.array([(values(estimate) - TRUE)[:4] / estimate.standard_errors[:4] for estimate in draws])
    rms = np.sqrt((ratios**2).mean(axis=0))
    assert ((rms > 1 / 1.5) & (rms < 1.5)).all(), rms


def poses(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    turn = rng.uniform(-0.8, 0.8, (count, 8)) * np.array([1, 1, 1, 1, 1, 1, 1, 0])
    q = np.array([0.0, -0.3, 0.0, -1.8, 0.0, 1.6, 0.5, 0.02]) + turn
    return {"q": q, "tau": panda().gravity_forces(q, overlay=Overlay(BRICK)) + 0.05 * rng.normal(size=q.shape)}


def test_poses_at_rest_give_mass_and_centre_alone() -> None:
    estimate = identify_payload(panda(), poses(20, 2), "panda_hand")
    assert abs(estimate.mass - 1.0) < 0.02
    assert (np.abs(values(estimate) - TRUE)[:4] < 4.0 * estimate.standard_errors[:4]).all()
    np.testing.assert_allclose(estimate.inertia, 0.0, atol=1e-4)
    assert [sentence.split(" about")[0] for sentence in estimate.unknown] == ["6 of 6 second moments"]


def test_one_pose_does_not_know_the_centre_along_gravity() -> None:
    recording = poses(1, 3)
    estimate = identify_payload(panda(), recording, "panda_hand")
    hand = panda().link_names.index("panda_hand")
    gravity_axis = panda().link_poses(recording["q"][0]).rotation[hand].T @ np.array([0.0, 0.0, -1.0])
    covariance = estimate.covariance[1:4, 1:4]
    # the prior is 0.3 m
    assert np.sqrt(gravity_axis @ covariance @ gravity_axis) > 0.29
    variances = np.linalg.eigvalsh(covariance)[:2]
    assert np.sqrt(variances[1]) < 0.05
    assert estimate.unknown[0].startswith("the centre of mass along")


def test_few_poses_do_not_trust_the_joint_that_fits_by_chance() -> None:
    """Three poses with errors of one joint: the noise of the other is that of ten windows in common, at most sqrt(2.6)
    less (squares S of one joint alone: (S + 10 S / 6) / (10 S / 6)), and not the rounding of its exact efforts.
    """
    q = poses(3, 4)["q"]
    tau = panda().gravity_forces(q, overlay=Overlay(BRICK))
    tau[:, 1] += [1.0, -1.0, 1.0]
    tau[:, [0, 2, 4, 5, 6, 7]] = np.nan
    noise = identify_payload(panda(), {"q": q, "tau": tau}, "panda_hand", friction=False).noise[[1, 3]]
    assert 1.0 <= noise[0] / noise[1] < 1.7


def test_nothing_on_the_hand() -> None:
    estimate = identify_payload(panda(), carried(1, Overlay(), noise=0.3), "panda_hand")
    assert 0.0 <= estimate.mass < 3.0 * estimate.standard_errors[0] + 0.01
    panda().mass_matrix(np.zeros(8), overlay=estimate.overlay)


def test_a_joint_without_measured_efforts() -> None:
    recording = carried(2, Overlay(BRICK), noise=0.3)
    recording["tau"][:, [0, 7]] = np.nan
    assert abs(identify_payload(panda(), recording, "panda_hand").mass - 1.0) < 0.02


def feed(estimator: PayloadEstimator, recording: dict[str, np.ndarray]) -> None:
    """The recording as a stream, whose efforts are means over the time since the previous state."""
    tau = recording["tau"].copy()
    tau[1:] = (tau[1:] + tau[:-1]) / 2.0
    for q, v, effort in zip(recording["q"], recording["v"], tau, strict=True):
        estimator.update(q, v, effort, 1.0 / 250.0)


def test_recursive_estimate_and_its_memory() -> None:
    estimator = PayloadEstimator(panda(), "panda_hand", forgetting_s=2.0)
    feed(estimator, carried(3, rubbing(), noise=0.5))
    moving = estimator.estimate
    assert abs(moving.mass - 1.0) < 0.02
    assert (np.abs(values(moving) - TRUE)[:4] < 5.0 * moving.standard_errors[:4]).all()
    # At rest for ten times the memory: what it does not show is kept.
    estimator.interrupt()
    q = carried(3, rubbing())["q"][-1]
    weight = panda().gravity_forces(q, overlay=Overlay(BRICK))
    for _ in range(20 * 50):
        estimator.update(q, 0 * q, weight, 0.02)
    rest = estimator.estimate
    assert (rest.standard_errors <= 1.01 * moving.standard_errors).all()
    assert abs(rest.mass - 1.0) < 0.02
    # Another payload in the same hand, without a reset.
    heavier = Overlay(Payload("panda_hand", 2.0, (0.0, 0.0, 0.1)), joints=rubbing().joints)
    estimator.interrupt()
    feed(estimator, carried(4, heavier, noise=0.5, seconds=8.0))
    assert abs(estimator.estimate.mass - 2.0) < 0.04
    assert estimator.changes == 1
    # A push of 0.1 s is left out.
    estimator.interrupt()
    pushed = carried(5, heavier, noise=0.5, seconds=4.0)
    pushed["tau"][500:525] += 30.0
    feed(estimator, pushed)
    assert abs(estimator.estimate.mass - 2.0) < 0.04
    assert estimator.changes == 1
    estimator.reset()
    assert estimator.windows == 0
    assert estimator.estimate.unknown[0].startswith("the mass")
    # The prior: c within s = 0.3 m; S within m (s / 3)^2 of at least 1 g, of which diagonal moments are sums of two.
    prior = estimator.estimate.standard_errors
    np.testing.assert_allclose(prior[1:4], 0.3, rtol=1e-6)
    np.testing.assert_allclose(prior[4:], 1e-3 * 0.1**2 * np.sqrt([2, 1, 1, 2, 1, 2]), rtol=1e-6)


def message(estimate: PayloadEstimate, robot: Robot, **changes: Any) -> LinkPayload:
    x = values(estimate).tolist()
    fields = {"mass": x[0], "com": x[1:4], "inertia": x[4:], "errors": estimate.standard_errors.tolist()}
    fields |= {"header": Header(frame_id=estimate.link), "fingerprint": robot.fingerprint}
    return LinkPayload(**{**fields, **changes})


def test_computed_torque_with_the_estimate_tracks_better() -> None:
    """One process, one clock: the estimator sees what a node would, and the law takes its message at 3 s."""
    robot, kind = panda(), Registry().find("dyn_service", "controller")
    assert kind is not None
    overlay = {"payloads": [{"link": "panda_hand", "mass": 1.0, "com": [0.01, -0.02, 0.08]}]}
    parameters = PlantParameters(
        robot="panda",
        overlay=overlay,
        control_rate_hz=500.0,
        initial_position={"panda_joint4": -1.2, "panda_joint6": 1.6},
    )
    plant = make_plant(robot, parameters, session=1)
    controller = commander(kind.spec, kind.parameters(payload_error=0.05), robot, number=1, restarted=False)
    law, estimator, last = controller.law, PayloadEstimator(robot, "panda_hand"), [0.0]
    assert isinstance(law, ComputedTorque)

    def answer(state: Any) -> Any:
        if state.mode == "active" and state.stamp > last[0]:
            estimator.update(state.position, state.velocity, state.effort, state.stamp - last[0])
        last[0] = state.stamp
        return controller.answer(state)

    loop, tracking = ClosedLoop(plant, answer, every=2), controller.following.tracking
    loop.run(3.0)
    rms_unloaded = tracking.rms
    law.take_payload(message(estimator.estimate, robot, errors=[0.06] * 10))
    assert law.signals() == {"payload_mass": 0.0}
    law.take_payload(message(estimator.estimate, robot))
    assert law.signals()["payload_mass"] == pytest.approx(1.0, abs=0.02)
    loop.run(0.5)  # the step of the efforts dies out within some 1 / (30 rad/s)
    squares, count = tracking.rms**2 * tracking.count, tracking.count
    loop.run(2.0)
    rms_loaded = np.sqrt((tracking.rms**2 * tracking.count - squares) / (tracking.count - count))
    assert rms_loaded < rms_unloaded / 50.0
    with pytest.raises(FailedPreconditionError, match="fingerprint"):
        law.take_payload(message(estimator.estimate, robot, fingerprint="other"))
    with pytest.raises(InvalidArgumentError, match="inertia"):
        law.take_payload(message(estimator.estimate, robot, inertia=[0.0]))
    # What the model would refuse in the next update, which would end the controller, is refused here.
    for changes, error, words in (
        ({"mass": -1.0}, InvalidArgumentError, "mass of at least 0 kg, found -1"),
        ({"inertia": [1.0, 0.0, 0.0, 1e-3, 0.0, 1e-3]}, InvalidArgumentError, "physically possible"),
        ({"errors": [0.01, *[np.nan] * 9]}, InvalidArgumentError, "errors must be at least 0"),
        ({"errors": [-1.0] * 10}, InvalidArgumentError, "errors must be at least 0"),
        ({"header": Header(frame_id="panda_link5")}, FailedPreconditionError, "'panda_hand', found one of 'panda_link"),
    ):
        with pytest.raises(error, match=words):
            law.take_payload(message(estimator.estimate, robot, **changes))
    fresh = ComputedTorque.of_frequency(robot, 30.0, 1.0, payload_error=0.05)
    with pytest.raises(NotFoundError, match="'gripper'"):
        fresh.take_payload(message(estimator.estimate, robot, header=Header(frame_id="gripper")))
    assert law.signals()["payload_mass"] == pytest.approx(1.0, abs=0.02)
    loop.run(0.01)


def test_pauses_begin_new_windows() -> None:
    """States are lost for longer than a window, and for half of one: neither ends the estimate, nor is one used."""
    recording = carried(1, Overlay(BRICK), seconds=3.0)
    tau = recording["tau"].copy()
    tau[1:] = (tau[1:] + tau[:-1]) / 2.0
    estimator, previous, windows = PayloadEstimator(panda(), "panda_hand"), -1, 0
    for k in (*range(2), *range(102, 400), *range(425, 750)):  # pauses of 0.4 s and 0.1 s, a window has 0.2 s
        dt = (k - previous) / 250.0
        windows += estimator.update(recording["q"][k], recording["v"][k], tau[previous + 1 : k + 1].mean(axis=0), dt)
        previous = k
    # 298 and 325 states: a window ends at the 51st, and every 25 states from then on
    assert windows == estimator.windows == 10 + 11
    assert (estimator.estimate.mass, estimator.changes) == (pytest.approx(1.0, abs=0.01), 0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tau": None}, InvalidArgumentError, "tau"),
        ({"q": np.zeros((5, 3))}, InvalidArgumentError, "shape"),
        ({"t": np.zeros(2500)}, InvalidArgumentError, "increase"),
        ({"v": np.full((2500, 8), np.nan)}, InvalidArgumentError, "finite"),
    ],
)
def test_invalid_recordings(change: dict[str, Any], error: type[DynError], words: str) -> None:
    recording = {**carried(1, Overlay()), **change}
    recording = {name: array for name, array in recording.items() if array is not None}
    with pytest.raises(error, match=words):
        identify_payload(panda(), recording, "panda_hand")


def test_refusals() -> None:
    recording = carried(1, Overlay())
    with pytest.raises(NotFoundError, match="gripper"):
        identify_payload(panda(), recording, "gripper")
    for estimate in (
        lambda: identify_payload(panda(), recording, "panda_link0"),
        lambda: PayloadEstimator(panda(), "panda_link0"),
    ):
        with pytest.raises(InvalidArgumentError, match="link 'panda_link0' never moves"):
            estimate()
    with pytest.raises(InvalidArgumentError, match="two windows"):
        identify_payload(panda(), recording, "panda_hand", window_s=8.0)
    with pytest.raises(InvalidArgumentError, match="window_s"):
        identify_payload(panda(), recording, "panda_hand", window_s=0.0)
    with pytest.raises(InvalidArgumentError, match="8 updates"):
        feed(PayloadEstimator(panda(), "panda_hand", window_s=0.01), recording)
    with pytest.raises(InvalidArgumentError, match="dt"):
        PayloadEstimator(panda(), "panda_hand").update(*np.zeros((3, 8)), 0.0)
    delta = Robot.from_urdf(URDF / "delta.urdf")
    with pytest.raises(FailedPreconditionError, match="closed loops"):
        identify_payload(delta, {}, delta.link_names[-1])
