"""Steps too long for damping, friction or springs: the limit is where a motion begins to grow, the default stays within
it, and what is beyond is refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from dyn_service import Client, JointNumbers, Overlay, PDLaw, Robot, Server
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.steps import STEPS
from dyn_service.parsing.urdf.reader import read_text
from dyn_service.simulation import stability
from dyn_service.simulation.stability import LIMITS, check_step, chosen, slopes_of
from tests.conftest import URDF
from tests.counting import calls_of

TWO = """<robot name="two"><link name="base"/><link name="arm"><inertial><origin xyz="0.1 0 0"/><mass value="2"/>
<inertia ixx="0.01" iyy="0.02" izz="0.03" ixy="0" ixz="0" iyz="0"/></inertial></link><link name="tool"><inertial>
<origin xyz="0.05 0 0"/><mass value="0.3"/><inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" iyz="0"/>
</inertial></link><joint name="shoulder" type="revolute"><parent link="base"/><child link="arm"/><axis xyz="0 0 1"/>
<limit lower="-1" upper="1" effort="9" velocity="9"/></joint><joint name="wrist" type="revolute"><parent link="arm"/>
<child link="tool"/><origin xyz="0.2 0 0"/><axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="9" velocity="9"/>
</joint></robot>"""
REST = {"gravity": (0.0, 0.0, 0.0)}


def two(*joints: dict[str, float]) -> Robot:
    """Two joints in the plane, with passive properties."""
    described = read_text(TWO)
    return Robot(
        replace(described, joints=tuple(replace(x, **y) for x, y in zip(described.joints, joints, strict=True)))
    )


def test_each_explicit_step_has_its_limit() -> None:
    assert {*LIMITS} == {*STEPS}


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "explicit_euler"])
@pytest.mark.parametrize("kind", ["damping", "friction"])
def test_a_motion_grows_beyond_the_limit_and_not_within(integrator: Any, kind: str) -> None:
    """Two coupled joints near rest, a percent within the limit and a percent beyond it."""
    numbers = {"damping": 3.0} if kind == "damping" else {"friction": 0.3, "friction_width": 0.1}
    robot = two({"damping": 1.0}, numbers)
    slope = np.array([1.0, 3.0])
    rate = np.linalg.eigvals(np.linalg.solve(robot.mass_matrix([0.0, 0.0]), np.diag(slope))).real.max()
    for share in (0.99, 1.01):
        dt = share * LIMITS[integrator].damping / rate
        q, v = np.zeros(2), np.array([0.0, 1e-6])
        for _ in range(400):
            q, v = (np.asarray(x) for x in vars_of(robot.step(q, v, np.zeros(2), [dt], integrator=integrator, **REST)))
        assert (np.abs(v).max() > 1e-6) == (share > 1.0)
        options: dict[str, Any] = {"dt": dt, "steps": 5, "integrator": integrator, **REST}
        if share < 1.0:
            robot.simulate(np.zeros(2), np.zeros(2), **options)
        else:
            with pytest.raises(FailedPreconditionError, match="joint 'wrist' is too light for its damping"):
                robot.simulate(np.zeros(2), np.zeros(2), **options)


def vars_of(state: Any) -> tuple[Any, Any]:
    return state.q, state.v


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler"])
@pytest.mark.parametrize("damping", [0.0, 0.02])
def test_springs_have_a_limit_too(integrator: Any, damping: float) -> None:
    """Of RK4 that of oscillations, of semi-implicit Euler that of oscillations and damping together."""
    robot = two({"stiffness": 30.0}, {"stiffness": 200.0, "damping": damping})
    M, K, D = robot.mass_matrix([0.0, 0.0]), np.diag([30.0, 200.0]), np.diag([0.0, damping])
    rate = float(np.linalg.eigvals(np.linalg.solve(M, K)).real.max() ** 0.5)
    limit = 8.0**0.5 / rate if integrator == "rk4" else 2.0 / rate
    if integrator != "rk4":  # h such that h M^-1 (D + h K / 2) has the eigenvalue 2

        def beyond(h: float) -> float:
            return h * float(np.linalg.eigvals(np.linalg.solve(M, D + h * K / 2.0)).real.max()) - 2.0

        limit = brentq(beyond, 0.1 * limit, 2.0 * limit)
    for share in (0.99, 1.01):
        q, v = np.array([0.0, 1e-6]), np.zeros(2)
        for _ in range(3000):
            state = robot.step(q, v, np.zeros(2), [share * limit], integrator=integrator, **REST)
            q, v = state.q, state.v
        grows = not np.abs(q).max() < 1e-5  # not a number either
        if share < 1.0 or integrator != "rk4" or not damping:  # rk4's limit is that of springs without damping
            assert grows == (share > 1.0)
        options: dict[str, Any] = {"dt": share * limit, "steps": 5, "integrator": integrator, **REST}
        if share < 1.0:
            robot.simulate(np.zeros(2), np.zeros(2), **options)
        else:
            with pytest.raises(FailedPreconditionError, match="joint 'wrist' is too light for its spring"):
                robot.simulate(np.zeros(2), np.zeros(2), **options)
    motion = robot.simulate([0.0, 0.01], np.zeros(2), dt=20 * limit, steps=2000, integrator="stick_slip", **REST)
    # Two oscillations whose amplitudes stay: with a light joint on a heavy one, at most ten times what one began with.
    assert np.abs(motion.q).max() < 0.1


def test_damping_and_springs_near_their_limits_together_are_beyond_those_of_rk4() -> None:
    """One joint at 0.95 of both: each alone is stable; together the motion grows by a fifth in a step."""
    inertia = 1.0 / float(np.linalg.inv(two({}, {}).mass_matrix([0.0, 0.0]))[1, 1])
    h, share = 1e-3, 0.95
    damping, stiffness = share * 2.785 * inertia / h, (share * 8.0**0.5 / h) ** 2 * inertia
    for numbers, stable in (
        ({"damping": damping}, True),
        ({"stiffness": stiffness}, True),
        ({"damping": damping, "stiffness": stiffness}, False),
    ):
        q, v = np.array([0.0, 1e-6]), np.zeros(2)
        stiff = two({}, numbers)
        for _ in range(60):
            state = stiff.step(q, v, np.zeros(2), [h], integrator="rk4", **REST)
            q, v = state.q, state.v
        assert (np.abs(q).max() < 1e-5) == stable
        if stable:
            stiff.simulate(np.zeros(2), np.zeros(2), dt=h, steps=5, integrator="rk4", **REST)
        else:
            with pytest.raises(FailedPreconditionError, match="joint 'wrist'"):
                stiff.simulate(np.zeros(2), np.zeros(2), dt=h, steps=5, integrator="rk4", **REST)


def test_the_default_makes_parts_of_a_step_and_agrees_with_adaptive_steps() -> None:
    """Friction as large as the motor: rk4 in one part would chatter with 1.3 rad/s. The joint creeps as it should."""
    robot = two({"friction": 56.0}, {"friction": 5.0})
    pulled: dict[str, Any] = {"gravity": (0.0, -9.81, 0.0), "dt": 1e-3, "steps": 300, "every": 100}
    motion = robot.simulate([0.0, 0.0], [0.0, 0.0], **pulled)
    exact = robot.simulate([0.0, 0.0], [0.0, 0.0], integrator="adaptive", **pulled)
    assert motion.integrator == "rk4"
    slopes, M = slopes_of(robot) or pytest.fail("there is friction")
    share = slopes.share(M, 1e-3, "rk4").max()
    assert share > 10.0
    assert motion.substeps == np.ceil(1.25 * share)
    # 1e-3 of the creep: of order 4 with a part of a step at 0.8 of the limit, where transients decay at other rates.
    np.testing.assert_allclose(motion.v[1:], exact.v[1:], rtol=1e-3, atol=0)
    sticking = two({"friction": 56.0}, {"friction": 500.0}).simulate([0.0, 0.0], [0.0, 0.0], **pulled)
    assert (sticking.integrator, sticking.substeps) == ("stick_slip", 2)
    assert not sticking.v.any()


@pytest.mark.parametrize("kind", [{"damping": 3e4}, {"stiffness": 1e8}, {"friction": 300.0, "friction_width": 1e-3}])
def test_the_default_for_stiff_joints_is_of_order_two(kind: dict[str, float]) -> None:
    """The wrist is far too stiff for rk4 and moves by less than 1e-5 rad, while the shoulder swings as with a locked
    wrist. Half of the step leaves a quarter of the error; steps of order 1 would leave half of a larger one.
    """
    options: dict[str, Any] = {"gravity": (0.0, -9.81, 0.0)}
    q, v = np.array([1.0, 0.0]), np.zeros(2)
    rigid = two({}, {}).overlaid(Overlay(locked=["wrist"]))
    exact = rigid.simulate(q, v, dt=1e-3, steps=600, every=600, integrator="rk4", **options).q[-1]
    errors, first = [], []
    for dt in (5e-3, 2.5e-3):
        motion = two({}, kind).simulate(q, v, dt=dt, steps=round(0.6 / dt), **options)
        assert (motion.integrator, motion.substeps) == ("stick_slip", 2)
        errors.append(float(np.abs(motion.q[-1] - exact).max()))
        steps = two({}, kind).simulate(q, v, dt=dt, steps=round(0.6 / dt), integrator="stick_slip", **options)
        first.append(float(np.abs(steps.q[-1] - exact).max()))
    assert errors[1] == pytest.approx(errors[0] / 4.0, rel=0.2)
    assert errors[1] < 0.1 * first[1]
    assert first[1] == pytest.approx(first[0] / 2.0, rel=0.2)


def test_a_default_step_is_in_as_many_parts_as_the_configurations_drawn_need(monkeypatch: pytest.MonkeyPatch) -> None:
    robot = two({"damping": 1.0}, {"damping": 3.0})
    slopes, M = slopes_of(robot) or pytest.fail("there is damping")
    longest = 1.0 / float(slopes.share(M, 1.0, "rk4").max())  # the longest step that is stable in all of them
    assert chosen(robot, 0.79 * longest) == ("rk4", 1)
    assert chosen(robot, 0.81 * longest) == ("rk4", 2)
    assert chosen(robot, 0.79 * 64 * longest) == ("rk4", 64)
    assert chosen(robot, 0.81 * 64 * longest) == ("stick_slip", 1)
    assert chosen(robot, 3.5 * longest, 4) == ("stick_slip", 1)
    check_step(robot, 0.999 * longest, "rk4")
    check_step(robot, 1e9, "stick_slip")
    with pytest.raises(
        FailedPreconditionError, match=f"use integrator='stick_slip', or steps of at most {0.99 * longest:.2g} s"
    ):
        check_step(robot, 1.001 * longest, "rk4")


def test_parts_hold_efforts_and_records_of_the_whole_step(ipc_endpoint: str) -> None:
    """The same bits step by step, in blocks, over the wire and continued; functions and laws are asked once a step."""
    robot = two({"friction": 0.5}, {"friction": 0.3})
    rng = np.random.default_rng(1)
    q, v, tau = rng.uniform(-0.5, 0.5, (3, 2)), np.zeros((3, 2)), rng.normal(size=(3, 420, 2))
    options: dict[str, Any] = {"dt": 1e-3, "steps": 420, "every": 7}
    motion = robot.simulate(q, v, tau, **options)
    assert (motion.integrator, motion.substeps > 1) == ("rk4", True)
    times: list[float] = []

    def held(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        times.append(t)
        return tau[:, len(times) - 1]

    one_by_one = robot.simulate(q, v, held, **options)
    np.testing.assert_array_equal(one_by_one.q, motion.q)
    np.testing.assert_array_equal(one_by_one.v, motion.v)
    assert len(times) == 420
    inner = {**options, "dt": 1e-3 / motion.substeps, "steps": 420 * motion.substeps, "every": 7 * motion.substeps}
    by_hand = robot.simulate(q, v, np.repeat(tau, motion.substeps, axis=1), integrator="rk4", **inner)
    np.testing.assert_array_equal(by_hand.q, motion.q)
    continued = robot.simulate(
        motion.q[:, 30], motion.v[:, 30], tau[:, 210:], **{**options, "steps": 210}, first_step=210
    )
    np.testing.assert_array_equal(continued.q, motion.q[:, 30:])
    law = PDLaw(kp=3.0, kd=0.1, q_ref=np.zeros(2))
    by_law, by_function = (robot.simulate(q, v, x, **options) for x in (law, law.function(robot, 1e-3)))
    np.testing.assert_array_equal(by_law.q, by_function.q)
    with Server([robot], endpoints=[ipc_endpoint]), Client(ipc_endpoint, timeout_s=60.0) as client:
        remote = client.robot("two").simulate(q, v, tau, **options)
        np.testing.assert_array_equal(remote.q, motion.q)
        assert (remote.integrator, remote.substeps) == (motion.integrator, motion.substeps)
        stiff = Overlay(joints={"wrist": JointNumbers(friction=500.0)})
        sticking = client.robot("two").simulate(q[0], v[0], overlay=stiff, **options)
        assert (sticking.integrator, sticking.substeps) == ("stick_slip", 2)
        np.testing.assert_array_equal(sticking.q, robot.simulate(q[0], v[0], overlay=stiff, **options).q)
        with pytest.raises(FailedPreconditionError, match=r"steps of 0.001 s of rk4 are unstable in step 1"):
            client.robot("two").simulate(q, v, tau, integrator="rk4", **options)


@pytest.mark.parametrize("stride", [1, 500])
@pytest.mark.parametrize("by_function", [False, True])
def test_a_configuration_on_the_way_is_checked(stride: int, by_function: bool) -> None:
    """Stretched, the shoulder's effective inertia is small, bent it is large: a motion that begins where steps are
    stable is refused where they are not, also between records and in a block.
    """
    robot = two({"damping": 0.0}, {"damping": 0.0})
    light, heavy = (1.0 / np.linalg.inv(robot.mass_matrix([0.0, x]))[0, 0] for x in (0.0, 1.0))
    assert light < 0.95 * heavy
    damping = 2.785 * np.sqrt(light * heavy) / 1e-3
    robot = two({"damping": float(damping)}, {})
    start: tuple[Any, ...] = ([0.0, 1.0], [0.0, -4.0], (lambda t, q, v: np.zeros(2)) if by_function else None)
    options: dict[str, Any] = {"dt": 1e-3, "every": stride, "integrator": "rk4", **REST}
    robot.simulate(*start, steps=500, **{**options, "dt": 1e-5})
    with pytest.raises(FailedPreconditionError, match=r"in step \d+ \(t = 0\.\d+ s\): joint 'shoulder'") as error:
        robot.simulate(*start, steps=500, **options)
    step = int(str(error.value).partition("in step ")[2].split()[0])
    folded = robot.simulate(*start, **{**options, "dt": 1e-5, "every": 100 * step}, steps=100 * step).q[-1, 1]
    first = 1.0 / np.linalg.inv(robot.mass_matrix([0.0, folded]))[0, 0]
    assert first < np.sqrt(light * heavy)  # it was beyond the limit there, and was within it 0.1 rad before
    previous = 1.0 / np.linalg.inv(robot.mass_matrix([0.0, folded + 0.1 + 4.0 * 0.032]))[0, 0]
    assert previous > np.sqrt(light * heavy)


@pytest.mark.parametrize("stride", [1, 100])
def test_the_last_state_is_checked_also_after_a_short_way(stride: int) -> None:
    """The wrist moves by 0.03 rad, less than lies between two checks, to where the shoulder is too light."""
    robot = two({}, {})
    begin, end = (1.0 / np.linalg.inv(robot.mass_matrix([0.0, x]))[0, 0] for x in (0.4, 0.37))
    robot = two({"damping": float(2.785 * np.sqrt(begin * end) / 1e-3)}, {})
    options: dict[str, Any] = {"dt": 1e-3, "every": stride, "integrator": "rk4", **REST}
    with pytest.raises(FailedPreconditionError, match=r"in step 101 \(t = 0.1 s\): joint 'shoulder'"):
        robot.simulate([0.0, 0.4], [0.0, -0.3], steps=100, **options)
    robot.simulate([0.0, 0.43], [0.0, -0.3], steps=100, **options)


def test_a_member_of_a_batch_is_named() -> None:
    robot = two({}, {})
    wide = Overlay(joints={"wrist": JointNumbers(damping=[0.0, 9.0, 0.1])})
    with pytest.raises(FailedPreconditionError, match="joint 'wrist' is too light"):
        robot.simulate([0.0, 0.0], [0.0, 0.0], dt=1e-3, steps=5, integrator="rk4", overlay=wide)
    assert robot.simulate([0.0, 0.0], [0.0, 0.0], dt=1e-3, steps=5, overlay=wide).substeps > 1


def test_robots_without_damping_and_springs_are_not_checked() -> None:
    """Not one more call for each step, and no query of the passive forces at all."""
    robot = Robot.from_urdf(URDF / "ur5e.urdf").without_passive
    q, v = np.zeros(6), np.zeros(6)

    def calls(steps: int) -> int:
        return calls_of(lambda: robot.simulate(q, v, dt=1e-3, steps=steps))

    calls(4000)
    assert calls(4000) == calls(3000)
    assert slopes_of(robot) is None
    assert chosen(robot, 1e9) == ("rk4", 1)
    assert stability._SLOPES[robot] is None


@pytest.mark.parametrize("stride", [1, 300])
@pytest.mark.parametrize("by_function", [False, True])
def test_a_motion_too_fast_for_the_default_step_is_refused(stride: int, by_function: bool) -> None:
    """A double pendulum that is thrown; RK4 is stable for it, and off by more than 0.01 rad after 0.3 s."""
    robot, v = two({}, {}), [200.0, -300.0]
    efforts = (lambda t, q, v: np.zeros(2)) if by_function else None
    options: dict[str, Any] = {"dt": 1e-3, "steps": 300, "every": stride}
    exact = robot.simulate(np.zeros(2), v, **options, integrator="adaptive")
    coarse = robot.simulate(np.zeros(2), v, **options, integrator="rk4")
    assert np.abs(coarse.q - exact.q).max() > 0.01
    with pytest.raises(FailedPreconditionError, match=r"too long for the motion in step \d+ .* of at most") as refusal:
        robot.simulate(np.zeros(2), v, efforts, **options)
    dt = 0.5 * float(re.search(r"at most (\S+) s", str(refusal.value))[1])
    parts = math.ceil(1e-3 / dt)
    fine = robot.simulate(np.zeros(2), v, dt=1e-3 / parts, steps=300 * parts, every=stride * parts)
    np.testing.assert_allclose(fine.q, exact.q, rtol=0, atol=1e-3 * np.abs(exact.q).max())  # as `RESOLVED` says


def test_one_fast_member_of_a_batch_is_noticed() -> None:
    robot = two({}, {})
    v = np.zeros((20, 2))
    robot.simulate(np.zeros(2), v, dt=1e-3, steps=100)
    v[13] = [200.0, -300.0]
    with pytest.raises(FailedPreconditionError):
        robot.simulate(np.zeros(2), v, dt=1e-3, steps=100)


def test_prescribed_joints_leave_the_others_to_be_checked() -> None:
    """The wrist on a shoulder that is moved: there is no other integrator, so a shorter step is the remedy."""
    robot = two({"damping": 1e6}, {"damping": 3.0})
    inertia = 1.0 / robot.mass_matrix([0.0, 0.0])[1, 1]
    prescribed = {"shoulder": lambda t: (0.0, 0.0, 0.0)}
    for share, raises in ((0.99, False), (1.01, True)):
        options: dict[str, Any] = {"dt": share * 2.785 / (3.0 * inertia), "steps": 3}
        if raises:
            with pytest.raises(FailedPreconditionError, match=r"joint 'wrist' is too light .*; use steps of at most"):
                robot.simulate_rheonomic(prescribed, [0.0], [0.0], **options)
            robot.simulate_rheonomic(prescribed, [0.0], [0.0], passive=False, **options)
        else:
            robot.simulate_rheonomic(prescribed, [0.0], [0.0], **options)
