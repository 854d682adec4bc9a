"""What acts on a simulated robot, and when: efforts, gravity, external wrenches and payloads, step by step.

Each integrator is held against its formula written out a second time here, over the robot's own accelerations or
Hamilton's equations, with every term that acts put in by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from dyn_service.api.queries import Payload, Wrench
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.simulation.integrators import adaptive
from dyn_service.simulation.simulate import simulate
from tests.conftest import URDF
from tests.phrases import naming, unnamed

EXPLICIT = ["rk4", "semi_implicit_euler", "explicit_euler"]
FIXED = [*EXPLICIT, "implicit_midpoint"]
ALL = [*FIXED, "adaptive"]
METHODS = ["articulated", "mass_matrix"]
GRAVITY = (1.5, -2.0, -4.0)
DT, STEPS = 2e-3, 6
TAU = np.random.default_rng(7).normal(size=(STEPS, 4)) * [20.0, 10.0, 40.0, 0.5]
FORCE = np.random.default_rng(8).normal(size=(STEPS, 3)) * 20.0
LINK = "quill"


@pytest.fixture(scope="module")
def arm() -> Robot:
    return Robot.from_urdf(URDF / "scara.urdf")


def start(robot: Robot, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    q, v = 0.5 * np.random.default_rng(0).normal(size=(2, *lead, robot.nv))
    return q, v


def push(force: Any, **other: Any) -> Wrench:
    """At a point off the link's origin, in world axes, with a torque."""
    return Wrench(LINK, force=force, torque=(0.3, -0.2, 1.0), point=(0.05, 0.02, -0.1), **other)


def by_hand(robot: Robot, integrator: str, method: str, loads: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """The states after each step; loads: what acts through each one, as keywords of a query."""
    q, v = start(robot)
    p = robot.momentum(q, v)
    states = [(q, v)]
    for loads_of_step in loads:
        tau = loads_of_step["tau"]
        rest = {name: x for name, x in loads_of_step.items() if name != "tau"}

        def a(q: np.ndarray, v: np.ndarray, tau: Any = tau, rest: Any = rest) -> np.ndarray:
            return robot.forward_dynamics(q, v, tau, method=method, **rest)  # type: ignore[arg-type]

        def f(x: np.ndarray, a: Any = a) -> np.ndarray:
            return np.concatenate([x[4:], a(x[:4], x[4:])])

        x = np.concatenate([q, v])
        if integrator == "explicit_euler":
            x = x + DT * f(x)
        elif integrator == "semi_implicit_euler":
            x[4:] += DT * a(q, v)
            x[:4] += DT * x[4:]
        elif integrator == "rk4":
            slopes: list[np.ndarray] = []
            for share in (0.0, 0.5, 0.5, 1.0):
                slopes.append(f(x + DT * share * slopes[-1] if slopes else x))
            x = x + DT * np.array([1, 2, 2, 1]) / 6 @ slopes
        elif integrator == "implicit_midpoint":
            y, middle = np.concatenate([q, p]), np.concatenate([q, p])
            for _ in range(60):
                flow = robot.hamiltonian_flow(middle[:4], middle[4:], tau, method=method, **rest)  # type: ignore[arg-type]
                middle = y + DT / 2 * np.concatenate([flow.v, flow.p_dot])
            q, p = np.split(2 * middle - y, 2)
            x = np.concatenate([q, robot.velocity_from_momentum(q, p, method=method)])  # type: ignore[arg-type]
        else:
            x = solve_ivp(lambda t, x, f=f: f(x), (0.0, DT), x, method="DOP853", rtol=1e-13, atol=1e-15).y[:, -1]
        q, v = x[:4], x[4:]
        states.append((q, v))
    return tuple(np.array(column) for column in zip(*states, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ALL)
def test_everything_that_acts_acts_in_its_step(arm: Robot, integrator: Any, method: Any) -> None:
    """Sampled efforts and forces, gravity that is not the default: against the formulas, sample by sample.

    A term that is dropped, or a sample that comes a step early or late, is 1e-3 to 1e-1 in the velocities.
    """
    loads = [{"tau": TAU[k], "gravity": GRAVITY, "wrenches": push(FORCE[k])} for k in range(STEPS)]
    q, v = by_hand(arm, integrator, method, loads)
    motion = arm.simulate(
        *start(arm),
        TAU,
        dt=DT,
        steps=STEPS,
        integrator=integrator,
        method=method,
        gravity=GRAVITY,
        wrenches=push(FORCE),
    )
    # Another order of the same sums, six steps of it; adaptive: SciPy's tolerance and ours, 1e-12 each.
    np.testing.assert_allclose(motion.q, q, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(motion.v, v, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ALL)
def test_gravity_and_efforts_and_wrenches_each_count(arm: Robot, integrator: Any, method: Any) -> None:
    """Left out, each has its default: against the formulas again, one at a time."""
    single_loads: list[dict[str, Any]] = [{"gravity": GRAVITY}, {"wrenches": push(FORCE[0])}, {"tau": TAU[0]}, {}]
    for load in single_loads:
        q, v = by_hand(arm, integrator, method, [{"tau": np.zeros(4), **load}] * STEPS)
        motion = arm.simulate(*start(arm), dt=DT, steps=STEPS, integrator=integrator, method=method, **load)
        np.testing.assert_allclose(motion.q, q, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(motion.v, v, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ALL)
def test_every_acceleration_is_by_the_method_asked_for(
    monkeypatch: pytest.MonkeyPatch, integrator: Any, method: Any
) -> None:
    """The two methods differ by roundings alone: what is asked of the robot tells them apart."""
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    calls: list[tuple[str, str]] = []

    def watched(name: str) -> Any:
        ask = getattr(robot, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append((name, options.get("method", "articulated")))
            return ask(*arguments, **options)

        return call

    for name in ("step", "forward_dynamics", "hamiltonian_flow", "velocity_from_momentum"):
        monkeypatch.setattr(robot, name, watched(name))
    robot.simulate([0.3], [0.1], dt=1e-3, steps=2, integrator=integrator, method=method)
    assert {used_method for _, used_method in calls} == {method}
    names = {"adaptive": {"forward_dynamics"}, "implicit_midpoint": {"hamiltonian_flow", "velocity_from_momentum"}}
    assert {name for name, _ in calls} == names.get(
        integrator, {"step" if method == "articulated" else "forward_dynamics"}
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", FIXED)
def test_functions_are_asked_once_a_step_at_its_beginning(arm: Robot, integrator: Any, method: Any) -> None:
    """They see the time and the very state that is recorded there, and what they give acts through that step."""
    seen: dict[str, list[tuple[float, np.ndarray, np.ndarray]]] = {"tau": [], "wrenches": []}

    def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        seen["tau"].append((t, q.copy(), v.copy()))
        return TAU[len(seen["tau"]) - 1]

    def wrenches(t: float, q: np.ndarray, v: np.ndarray) -> Wrench:
        seen["wrenches"].append((t, q.copy(), v.copy()))
        return push(FORCE[len(seen["wrenches"]) - 1])

    options: dict[str, Any] = {"dt": DT, "steps": STEPS, "integrator": integrator, "method": method}
    motion = arm.simulate(*start(arm), tau, wrenches=wrenches, **options)
    sampled = arm.simulate(*start(arm), TAU, wrenches=push(FORCE), **options)
    np.testing.assert_array_equal(motion.q, sampled.q)
    np.testing.assert_array_equal(motion.v, sampled.v)
    for calls in seen.values():
        t, q, v = (np.array(column) for column in zip(*calls, strict=True))
        np.testing.assert_array_equal(t, DT * np.arange(STEPS))
        np.testing.assert_array_equal(q, motion.q[:-1])
        np.testing.assert_array_equal(v, motion.v[:-1])


def test_adaptive_steps_ask_functions_at_every_stage(arm: Robot) -> None:
    def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.array([30.0, -10.0, 40.0, 1e-3]) * np.cos(200 * t + q) - [0.1, 0.1, 0.1, 1e-5] * v

    def wrenches(t: float, q: np.ndarray, v: np.ndarray) -> list[Wrench]:
        force = 20.0 * np.sin([300 * t, q[0], v[1]])
        return [
            Wrench("outer_link", force=force, point=(0.1, 0.2, 0.0)),
            Wrench("inner_link", torque=(0, 0, 5 * v[0]), frame="inner_link"),
        ]

    def f(t: float, x: np.ndarray) -> np.ndarray:
        state = t, x[:4], x[4:]
        return np.concatenate([x[4:], arm.forward_dynamics(*state[1:], tau(*state), wrenches=wrenches(*state))])

    q, v = start(arm)
    exact = solve_ivp(f, (0.0, 0.1), np.concatenate([q, v]), method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    motion = arm.simulate(q, v, tau, dt=0.05, steps=2, integrator="adaptive", wrenches=wrenches)
    # Two tolerances of 1e-12, some ten steps.
    np.testing.assert_allclose(motion.q[-1], exact[:4], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(motion.v[-1], exact[4:], rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_rk4_under_a_wrench_in_world_axes_stays_of_order_4(arm: Robot, method: Any) -> None:
    """The wrench stays as it is in the world while the link turns under it, stage by stage."""
    q, v = start(arm)
    wrench = Wrench("outer_link", force=(60.0, -40.0, 5.0), point=(0.3, 0.1, 0.0))
    exact = arm.simulate(q, v, dt=0.2, steps=1, integrator="adaptive", wrenches=wrench).q[-1]
    errors = [
        np.abs(arm.simulate(q, v, dt=0.2 / n, steps=n, method=method, wrenches=wrench).q[-1] - exact).max()
        for n in (16, 32, 64)
    ]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 4.0, atol=0.35)


def test_forms_of_a_wrench_are_one_wrench(arm: Robot) -> None:
    samples = np.tile(FORCE[0], (50, 1))
    forms: list[Any] = [push(FORCE[0]), [push(samples)], push(samples[:1]), lambda t, q, v: [push(FORCE[0])]]
    runs = [arm.simulate(*start(arm), dt=DT, steps=50, wrenches=form) for form in forms]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.q, runs[0].q)
    unloaded = [arm.simulate(*start(arm), dt=DT, steps=50, wrenches=w).q for w in (None, [], lambda t, q, v: None)]
    np.testing.assert_allclose(unloaded[1], unloaded[0], rtol=0, atol=1e-13)  # another kernel, the same sums
    np.testing.assert_array_equal(unloaded[2], unloaded[1])


@pytest.mark.parametrize("integrator", ALL)
def test_leading_axes_of_everything_spread(arm: Robot, integrator: Any) -> None:
    """A batch of states, of samples, of wrenches and of gravities: each member as if alone."""
    q, v = start(arm, 3)
    tau = np.random.default_rng(1).normal(size=(2, 1, 5, 4))
    force = np.random.default_rng(2).normal(size=(3, 5, 3))
    g = np.random.default_rng(3).normal(size=(2, 1, 3))
    options: dict[str, Any] = {"dt": DT, "steps": 5, "integrator": integrator}
    batch = arm.simulate(q, v, tau, wrenches=push(force), gravity=g, **options)
    assert batch.q.shape == (2, 3, 6, 4)
    single = arm.simulate(q[2], v[2], tau[1, 0], wrenches=push(force[2]), gravity=g[1, 0], **options)
    if integrator == "adaptive":  # a batch shares its steps
        np.testing.assert_allclose(batch.q[1, 2], single.q, rtol=0, atol=1e-12)
    else:
        np.testing.assert_array_equal(batch.q[1, 2], single.q)
        np.testing.assert_array_equal(batch.v[1, 2], single.v)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", ALL)
@pytest.mark.parametrize("form", ["constant", "samples", "function"])
def test_a_motion_goes_on_to_the_last_bit(arm: Robot, integrator: Any, method: Any, form: str) -> None:
    """Cut after 3 of 9 steps: from the record there, and the number of the step, it is the motion in one piece."""
    samples = np.random.default_rng(4).normal(size=(9, 4))

    def feedback(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return [5.0, 5.0, 20.0, 1e-3] * np.cos(100 * t + q) - [1.0, 1.0, 1.0, 1e-5] * v

    tau: Any = {"constant": samples[0], "samples": samples, "function": feedback}[form]
    rest: Any = samples[3:] if form == "samples" else tau
    options: dict[str, Any] = {"dt": 1.3e-3, "integrator": integrator, "method": method, "wrenches": push(FORCE[0])}
    whole = arm.simulate(*start(arm), tau, steps=9, **options)
    p0 = None if whole.p is None else whole.p[3]
    part = arm.simulate(whole.q[3], whole.v[3], rest, steps=6, p0=p0, first_step=3, **options)
    for name in ("t", "q", "v", "p")[: 4 if whole.p is not None else 3]:
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[3:])


def test_nothing_is_done_after_the_last_record(arm: Robot) -> None:
    calls: list[float] = []

    def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        calls.append(t)
        return np.zeros(4)

    motion = arm.simulate(*start(arm), tau, dt=DT, steps=11, every=4)
    assert motion.q.shape == (3, 4)
    assert len(calls) == 8


BRICK = Payload(
    LINK, 2.5, com=(0.1, -0.05, -0.2), inertia=((0.02, 0.003, 0.0), (0.003, 0.03, -0.001), (0, -0.001, 0.04))
)
BRICK_XML = f"""<link name="brick"><inertial><origin xyz="0.1 -0.05 -0.2"/><mass value="2.5"/>
<inertia ixx="0.02" ixy="0.003" ixz="0" iyy="0.03" iyz="-0.001" izz="0.04"/></inertial></link>
<joint name="grip" type="fixed"><parent link="{LINK}"/><child link="brick"/></joint></robot>"""


@pytest.mark.parametrize("integrator", ALL)
def test_payload_is_a_welded_link(arm: Robot, integrator: Any) -> None:
    """The same motion as of a URDF that has the body, and not that of the bare arm."""
    text = (URDF / "scara.urdf").read_text().replace("</robot>", BRICK_XML)
    options: dict[str, Any] = {"dt": DT, "steps": 5, "integrator": integrator, "wrenches": push(FORCE[0])}
    loaded = arm.simulate(*start(arm), TAU[0], payload=BRICK, **options)
    welded = Robot.from_urdf(text).simulate(*start(arm), TAU[0], **options)
    bare = arm.simulate(*start(arm), TAU[0], **options)
    # By another kernel, which takes the numbers that are constants in the other.
    np.testing.assert_allclose(loaded.q, welded.q, rtol=0, atol=1e-9 if integrator == "adaptive" else 1e-13)
    np.testing.assert_allclose(loaded.v, welded.v, rtol=0, atol=1e-7 if integrator == "adaptive" else 1e-11)
    assert np.abs(loaded.v[-1] - bare.v[-1]).max() > 1e-2


def test_what_is_carried_belongs_to_its_link(arm: Robot) -> None:
    loaded = arm.with_payload(BRICK)
    assert (loaded.joint_names, loaded.link_names) == (arm.joint_names, arm.link_names)
    link = arm.link_names.index(LINK)
    assert loaded.tree.inertia[link].mass == arm.tree.inertia[link].mass + 2.5
    twice = loaded.with_payload(BRICK).tree.inertia[link].mass
    assert twice == pytest.approx(arm.tree.inertia[link].mass + 5.0, rel=1e-15)


FAULTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("tau", {"tau": [0, 0, np.nan, 0]}, ["tau", "nan", "[2]"]),
    ("q0", {"q0": [0, np.inf, 0, 0]}, ["q0", "inf", "[1]"]),
    ("gravity", {"gravity": [0, 0]}, ["gravity", "(..., 3)", "[0, 0]"]),
    ("first_step", {"first_step": -1}, ["first_step", "0", "-1"]),
    ("first_step", {"first_step": True}, ["first_step", "0", "True"]),
    ("p0", {"p0": np.zeros(4)}, ["p0", "implicit_midpoint"]),
    ("wrenches", {"wrenches": "push"}, ["wrenches", "'push'"]),
    ("wrenches[1]", {"wrenches": [push(FORCE[0]), 3]}, ["wrenches[1]", "3"]),
    ("wrenches[0].force", {"wrenches": push(FORCE[:2])}, ["wrenches[0].force", "(2, 3)", "(3,)", "(..., 6, 3)"]),
    ("wrenches[0].force", {"wrenches": push([0, np.nan, 0])}, ["wrenches[0].force", "nan", "[1]"]),
    ("tau", {"tau": lambda t, q, v: [0.0]}, ["(..., 4)", "[0.0]"]),
    ("tau", {"tau": lambda t, q, v: np.zeros(4) if t == 0 else np.zeros((2, 4))}, ["axes (2,)", "with ()"]),
    ("payload", {"payload": 2.0}, ["payload", "2.0"]),
    ("payload.mass", {"payload": Payload(LINK, -1.0)}, ["payload.mass", "-1"]),
    ("payload.inertia", {"payload": Payload(LINK, 1.0, inertia=np.triu(np.ones((3, 3))))},
     ["payload.inertia", "asymmetric"]),
    ("payload.inertia", {"payload": Payload(LINK, 1.0, inertia=np.diag([1.0, 1.0, -0.5]))},
     ["payload.inertia", "-0.5", "1"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "arguments", "values"), FAULTS, ids=range(len(FAULTS)))
def test_faults(arm: Robot, path: str, arguments: dict[str, Any], values: list[str]) -> None:
    q, v = start(arm)
    with pytest.raises(InvalidArgumentError) as refusal:
        arm.simulate(**{"q0": q, "v0": v, "dt": DT, "steps": STEPS, **arguments})
    assert (refusal.value.path, unnamed(refusal.value, *values)) == (path, [])


def test_unknown_links(arm: Robot) -> None:
    with pytest.raises(NotFoundError, match=naming("'scara'", "'hand'")):
        arm.simulate(*start(arm), dt=DT, steps=2, wrenches=Wrench("hand"))
    with pytest.raises(NotFoundError, match=naming("'scara'", "'hand'")) as refusal:
        arm.simulate(*start(arm), dt=DT, steps=2, payload=Payload("hand", 1.0))
    assert refusal.value.path == "payload.link"


def first_bad(robot: Robot, tau: Any, **options: Any) -> int:
    """The first step after which the state is not finite, found by making ever more steps."""
    for steps in range(1, 200):
        try:
            robot.simulate(*start(robot), tau, steps=steps, **options)
        except FailedPreconditionError:
            return steps
    raise AssertionError("it does not diverge")


@pytest.mark.parametrize("joint", [0, 1, 3])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("integrator", EXPLICIT)
def test_divergence_names_joint_step_and_time(arm: Robot, integrator: Any, method: Any, joint: int) -> None:
    """One joint is pushed beyond all bounds and takes the others with it, between two looks at the state.

    Named is the joint that was fastest as the step began, its acceleration counted; all are coupled, so that need not
    be the one that was pushed.
    """
    tau = np.zeros(4)
    tau[joint] = 1e130
    options: dict[str, Any] = {"dt": 1e-3, "integrator": integrator, "method": method}
    step = first_bad(arm, tau, **options)
    assert step < 32, "before the first look"
    with pytest.raises(FailedPreconditionError) as refusal:
        arm.simulate(*start(arm), tau, steps=100, first_step=500, **options)
    last = arm.simulate(*start(arm), tau, steps=step - 1, **options) if step > 1 else None
    q, v = start(arm) if last is None else (last.q[-1], last.v[-1])
    with np.errstate(all="ignore"):
        a = arm.forward_dynamics(q, v, tau, method=method)
    fastest = np.abs(v) + np.where(np.isfinite(a), 1e-3 * np.abs(a), 0.0)
    name = arm.joint_names[int(np.argmax(fastest))]
    assert (
        unnamed(refusal.value, f"step {500 + step}", f"t = {(500 + step) * 1e-3:g} s", f"'{name}'", "dt = 0.001 s")
        == []
    )


@pytest.mark.parametrize("integrator", FIXED)
def test_divergence_in_a_batch_names_the_member(arm: Robot, integrator: Any) -> None:
    tau = np.zeros((2, 3, 1, 4))
    tau[1, 2, 0, 1] = 1e160
    with pytest.raises(FailedPreconditionError, match=naming(f"'{arm.joint_names[1]}'", "[1, 2]")):
        arm.simulate(*start(arm, 3), tau, dt=1e-3, steps=50, integrator=integrator)


@pytest.mark.parametrize("integrator", ALL)
def test_a_function_that_gives_no_number_is_named(arm: Robot, integrator: Any) -> None:
    def broken(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.array([0.0, 0.0, np.nan if t > 0.0055 else 0.0, 0.0])

    with pytest.raises(FailedPreconditionError) as refusal:
        arm.simulate(*start(arm), broken, dt=1e-3, steps=50, integrator=integrator)
    step = 6 if integrator == "adaptive" else 7  # at a stage, or at the next step's beginning
    assert f"diverged in step {step} (t = " in str(refusal.value)
    assert str(refusal.value).endswith(f"the effort of joint '{arm.joint_names[2]}' is not finite")
    with pytest.raises(FailedPreconditionError, match=r"wrenches\[0\].force is not finite"):
        arm.simulate(
            *start(arm), dt=1e-3, steps=50, integrator=integrator, wrenches=lambda t, q, v: push([np.inf, 0, 0])
        )


def test_functions_never_see_what_is_not_finite(arm: Robot) -> None:
    def tau(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        assert np.isfinite(q).all()
        assert np.isfinite(v).all()
        return np.clip(1e9 * v, -1e200, 1e200)

    for integrator in ALL:
        with pytest.raises(FailedPreconditionError):
            arm.simulate(*start(arm), tau, dt=1e-2, steps=3000, integrator=integrator)  # type: ignore[arg-type]


def test_adaptive_steps_are_limited(arm: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "MAX_EVALUATIONS", 300)
    with pytest.raises(FailedPreconditionError) as refusal:
        arm.simulate(*start(arm), dt=20.0, steps=2, integrator="adaptive")
    assert str(refusal.value).startswith("the simulation diverged in step 1 (t = ")
    assert unnamed(refusal.value, "300 evaluations") == []
    assert "or dt = 20 s is too long for" in str(refusal.value)


@pytest.mark.parametrize(("tau", "text"), [("fast", "str 'fast'"), (1.0, "shape ()"), ([[["x"]]], "list")])
def test_efforts_that_are_none_are_refused(arm: Robot, tau: object, text: str) -> None:
    q, v = start(arm)
    with pytest.raises(InvalidArgumentError, match=r"tau has .*expected \(") as refusal:
        arm.simulate(q, v, tau, dt=1e-3, steps=2)
    assert text in str(refusal.value)


def test_adaptive_steps_tell_their_progress(arm: Robot) -> None:
    shares: list[float] = []
    arm.simulate(*start(arm), dt=1e-3, steps=4, integrator="adaptive", progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_every_step_is_recorded_where_nothing_is_said(arm: Robot) -> None:
    assert len(arm.simulate(*start(arm), dt=1e-3, steps=5).t) == 6
    assert len(simulate(arm, *start(arm), dt=1e-3, steps=5).t) == 6
