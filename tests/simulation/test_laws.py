"""Laws given as data: the bits of the law as a function, and their formulas."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

from dyn_service import (
    ComputedTorqueLaw,
    Contact,
    FailedPreconditionError,
    InvalidArgumentError,
    PDLaw,
    Robot,
    StateFeedbackLaw,
    UnimplementedError,
    Wrench,
)
from dyn_service.api.laws import SimulationLaw
from dyn_service.api.queries import QUERIES, Inertial, JointNumbers, Overlay, Payload
from dyn_service.engine.rollouts import evaluated, signature_of_term
from dyn_service.kernels import budget
from dyn_service.kernels.frames import kernel_tree
from dyn_service.simulation import laws as evaluation
from dyn_service.simulation import parts
from tests.conftest import URDF
from tests.counting import calls_of
from tests.kernels.test_rolled import chain

DT = 1e-3
_ROBOTS: dict[tuple[str, Any], Robot] = {}


def robot_of(name: str, root: Any = "fixed") -> Robot:
    if (name, root) not in _ROBOTS:
        _ROBOTS[name, root] = Robot.from_urdf(URDF / f"{name}.urdf", root=root)
    return _ROBOTS[name, root]


def same(robot: Robot, law: Any, q: Any, v: Any, steps: int = 40, **options: Any) -> Any:
    """Simulates with a law as data and as a function, compares the bits, and returns the motion."""
    options = {"dt": DT, "steps": steps, "integrator": "semi_implicit_euler"} | options
    plant = {name: options.pop(name) for name in ("overlay", "payload") if name in options}
    seen = robot.overlaid(plant["overlay"]) if "overlay" in plant else robot
    seen = seen.with_payload(plant["payload"]) if "payload" in plant else seen
    seen = seen if options.get("passive", True) else seen.without_passive
    results: list[Any] = []
    for law_form in (law, law.function(seen, DT)):
        try:
            results.append(robot.simulate(q, v, law_form, **options, **plant))
        except FailedPreconditionError as fault:
            results.append(str(fault))
    motion, expected = results
    if isinstance(motion, str):
        assert motion == expected
        return motion
    assert motion.q.tobytes() == expected.q.tobytes()
    assert motion.v.tobytes() == expected.v.tobytes()
    return motion


def state_of(robot: Robot, lead: tuple[int, ...] = (), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    v = 0.3 * rng.normal(size=(*lead, robot.nv))
    return robot.integrate(robot.neutral(), v, 1.0), v


def laws_of(robot: Robot, lead: tuple[int, ...], steps: int = 40) -> list[Any]:
    """Each kind of law, with constants and samples, for one robot or each member."""
    rng = np.random.default_rng(1)
    n = robot.nv
    reach = 0.3 * rng.normal(size=(*lead, steps, n))
    q_ref = robot.integrate(robot.neutral(), reach, 1.0)
    v_ref, a_ref = rng.normal(size=(2, *lead, steps, n))
    members = (*lead, 1, n)
    return [
        PDLaw(kp=20.0, kd=rng.uniform(1.0, 2.0, n), q_ref=q_ref[..., 0, :] if not lead else q_ref),
        PDLaw(
            kp=rng.uniform(5.0, 20.0, members),
            kd=2.0,
            q_ref=q_ref,
            v_ref=v_ref,
            a_ref=a_ref,
            feedforward=rng.normal(size=n),
            limit=rng.uniform(1.0, 9.0, members),
            compensation="reference",
        ),
        PDLaw(kp=20.0, kd=2.0, q_ref=q_ref, compensation="gravity"),
        ComputedTorqueLaw(kp=rng.uniform(5.0, 20.0, (steps, n)), kd=9.0, q_ref=q_ref, v_ref=v_ref, a_ref=a_ref),
        ComputedTorqueLaw(kp=30.0, kd=9.0, q_ref=q_ref, feedforward=rng.normal(size=members), limit=4.0),
        StateFeedbackLaw(gain=rng.normal(size=(n, 2 * n)), q_ref=q_ref, v_ref=v_ref),
        StateFeedbackLaw(
            gain=rng.normal(size=(*lead, steps, n, 2 * n)), q_ref=q_ref, feedforward=v_ref, limit=np.full(n, 3.0)
        ),
    ]


@pytest.mark.parametrize(
    ("name", "root", "lead", "integrator"),
    [
        ("panda", "fixed", (), "rk4"),
        ("panda", "fixed", (11,), "semi_implicit_euler"),
        ("panda", "fixed", (2, 9), "explicit_euler"),
        ("solo12", "floating", (2, 3), "semi_implicit_euler"),
    ],
)
def test_the_bits_of_the_law_as_a_function(name: str, root: str, lead: tuple[int, ...], integrator: Any) -> None:
    robot = robot_of(name, root)
    q, v = state_of(robot, lead)
    for law in laws_of(robot, lead):
        motion = same(robot, law, q, v, integrator=integrator)
        assert isinstance(motion, str) or np.isfinite(motion.q).all()


def test_records_blocks_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However steps are grouped: the interval of records, steps computed together, a motion in two parts."""
    robot = robot_of("panda")
    q, v = state_of(robot, (9,))
    law = laws_of(robot, (9,))[1]
    whole = same(robot, law, q, v)
    for stride, max_steps in ((1, 7), (3, 2), (3, 8192), (7, 5), (40, 8192), (40, 11)):
        monkeypatch.setattr(sys.modules["dyn_service.simulation.simulate"], "_MAX_STEPS", max_steps)
        monkeypatch.setattr(sys.modules["dyn_service.simulation.simulate"], "_MIN_STEPS", 1)
        motion = same(robot, law, q, v, every=stride)
        assert motion.q.tobytes() == whole.q[:, ::stride].tobytes()
    for first in (1, 17):
        arrays = {name: value for name, value in vars(law).items() if name in law.numbers}
        rest = {name: x[..., first:, :] for name, x in arrays.items() if np.ndim(x) > 1 and x.shape[-2] == 40}
        rest_of_law = PDLaw(**{**arrays, **rest}, compensation=law.compensation)
        motion = robot.simulate(
            whole.q[:, first], whole.v[:, first], rest_of_law, dt=DT, steps=40 - first, integrator="semi_implicit_euler"
        )
        assert motion.q.tobytes() == whole.q[:, first:].tobytes()


def test_members_are_as_alone() -> None:
    robot = robot_of("panda")
    q, v = state_of(robot, (11,))
    law = laws_of(robot, (11,))[1]
    batch = same(robot, law, q, v)
    for k in (0, 7, 10):
        numbers = {name: np.asarray(x)[k] if np.ndim(x) == 3 else x for name, x in law.numbers.items()}
        single = same(robot, PDLaw(**numbers, compensation="reference"), q[k], v[k])
        assert single.q.tobytes() == batch.q[k].tobytes()


def test_overlays_locks_gravity_payload_and_passive_forces() -> None:
    """The law knows the simulated robot, with all changes."""
    robot = robot_of("panda")
    q, v = state_of(robot)
    q, at_rest = np.broadcast_to(q, (2, 8)), np.zeros(8)
    masses = np.array([0.5, 1.0])
    overlay = Overlay(
        Payload("panda_hand", masses),
        {"panda_link3": Inertial(mass=masses)},
        {"panda_joint4": JointNumbers(damping=3.0, stiffness=masses)},
        locked=["panda_joint2"],
    )
    for law in laws_of(robot, (2,)):
        heavy = same(robot, law, q, at_rest, overlay=overlay)
        assert not heavy.v[..., 1].any()
        assert (heavy.q[0, -1] != heavy.q[1, -1]).any()
    law = laws_of(robot, ())[2]
    plain = same(robot, law, q[0], v)
    for change in ({"payload": Payload("panda_hand", 3.0)}, {"overlay": Overlay(gravity=(1.0, 2.0, -3.0))}):
        assert (same(robot, law, q[0], v, **change).q != plain.q).any()
    damped = robot.overlaid(Overlay(joints={"panda_joint1": JointNumbers(damping=50.0)}))
    assert (same(damped, law, q[0], v).q != same(damped, law, q[0], v, passive=False).q).any()


def test_gravity_of_each_member() -> None:
    """The law compensates the gravity of the simulation: with compensation alone, arms at rest stay so."""
    robot = robot_of("panda")
    q, _ = state_of(robot)
    gravity = np.random.default_rng(2).normal(size=(5, 3))
    law = PDLaw(kp=0.0, kd=0.0, q_ref=q, compensation="gravity")
    motion = robot.simulate(q, np.zeros(8), law, dt=DT, steps=40, gravity=gravity, integrator="semi_implicit_euler")
    assert motion.q.shape == (5, 41, 8)
    assert np.abs(motion.q - q).max() < 1e-12
    for k in range(5):
        single = robot.simulate(
            q, np.zeros(8), law, dt=DT, steps=40, gravity=gravity[k], integrator="semi_implicit_euler"
        )
        assert single.q.tobytes() == motion.q[k].tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"integrator": "implicit_midpoint"},
        {"integrator": "adaptive", "dt": 1e-2, "steps": 4},
        {"integrator": "stick_slip"},
        {"method": "mass_matrix"},
        {"contacts": Contact("panda_hand", plane=(0.0, 0.0, 0.4))},
        {"effort_limits": True},
        {"wrenches": Wrench("panda_hand", force=(10.0, 0.0, 0.0))},
        {"wrenches": lambda t, q, v: Wrench("panda_hand", force=(t, 0.0, q[0]))},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_is_not_compiled(options: dict[str, Any]) -> None:
    robot = robot_of("panda")
    law = PDLaw(kp=20.0, kd=2.0, q_ref=state_of(robot, seed=1)[0], compensation="gravity", limit=robot.limits.efforts)
    q, v = state_of(robot)
    options = {"dt": DT, "steps": 12} | options
    as_function = law.function(robot, options["dt"])
    motion, expected = (robot.simulate(q, v, law_form, **options) for law_form in (law, as_function))
    assert motion.q.tobytes() == expected.q.tobytes()
    assert motion.q[-1].tobytes() != robot.simulate(q, v, **options).q[-1].tobytes()


def test_formulas() -> None:
    """Each law at a state, by NumPy. A law that loses a term differs."""
    robot = robot_of("solo12", "floating")
    n, rng = robot.nv, np.random.default_rng(3)
    q, v = state_of(robot, (4,))
    q_ref = robot.integrate(q, rng.normal(size=n), 1.0)
    v_ref, a_ref, feedforward, kp, kd = rng.normal(size=(5, n))
    error, rate = robot.configuration.error(q, q_ref), v_ref - v
    common: dict[str, Any] = {"q_ref": q_ref[:, None], "v_ref": v_ref, "feedforward": feedforward}
    gain = rng.normal(size=(n, 2 * n))
    weight = robot.inverse_dynamics(q, np.zeros(n), np.zeros(n))
    reference_efforts = robot.inverse_dynamics(q, v_ref, a_ref)
    pd = kp * error + kd * rate + feedforward
    feedback = np.concatenate([error, rate], axis=-1) @ gain.T + feedforward
    shaped = robot.inverse_dynamics(q, v, a_ref + kp * error + kd * rate) + feedforward
    gains = {"kp": kp, "kd": kd}
    expected = [
        (PDLaw(**common, **gains), pd),
        (PDLaw(**common, **gains, compensation="gravity"), pd + weight),
        (PDLaw(**common, **gains, a_ref=a_ref, compensation="reference"), pd + reference_efforts),
        (ComputedTorqueLaw(**common, **gains, a_ref=a_ref), shaped),
        (StateFeedbackLaw(**common, gain=gain), feedback),
        (StateFeedbackLaw(**common, gain=gain, limit=0.7), np.clip(feedback, -0.7, 0.7)),
        (ComputedTorqueLaw(**common, **gains, a_ref=a_ref, limit=0.7), np.clip(shaped, -0.7, 0.7)),
    ]
    for law, tau in expected:
        efforts = law.function(robot, DT)(0.0, q, v)
        np.testing.assert_allclose(efforts, tau, rtol=1e-12, atol=1e-12 * np.abs(tau).max())


def test_continuous_joints_take_the_shorter_way() -> None:
    robot = robot_of("double_pendulum")
    turns = np.array([2.0 * np.pi, -4.0 * np.pi])
    law = PDLaw(kp=3.0, kd=0.0, q_ref=np.array([0.1, -0.2]) + turns)
    wraps = robot.configuration.wraps
    tau = law.function(robot, DT)(0.0, np.zeros(2), np.zeros(2))
    expected = np.array([0.1, -0.2]) + turns
    expected[wraps] -= turns[wraps]
    np.testing.assert_allclose(tau, 3.0 * expected, rtol=1e-12)


def test_samples_are_those_of_their_step() -> None:
    """Also between two times of the grid, and beyond the last."""
    robot = robot_of("panda")
    feedforward = np.arange(4.0)[:, None] * np.ones(8)
    q = robot.neutral()
    efforts_at = PDLaw(kp=0.0, kd=0.0, q_ref=q, feedforward=feedforward).function(robot, 0.1, 2.0)
    for t, k in ((2.0, 0), (2.1, 1), (2.1 - 1e-9, 1), (2.19, 1), (2.3, 3), (9.0, 3), (1.0, 0)):
        assert (efforts_at(t, q, q) == k).all(), t


def test_another_model() -> None:
    """A law that knows another robot than the simulated one."""
    robot = robot_of("panda")
    heavy = robot.with_payload(Payload("panda_hand", np.array([1.0, 2.0])))
    q, v = state_of(robot)
    law = PDLaw(kp=0.0, kd=0.0, q_ref=q, compensation="gravity", model=heavy)
    motion = same(robot, law, q, v)
    assert motion.q.shape == (2, 41, 8)
    free = same(robot, PDLaw(kp=0.0, kd=0.0, q_ref=q, compensation="gravity"), q, v)
    assert (motion.q[0, -1] != free.q[-1]).any()
    locked = robot.overlaid(Overlay(locked=["panda_joint2"]))
    with pytest.raises(InvalidArgumentError, match=r"joint 'panda_joint2' is locked in tau\.model"):
        robot.simulate(q, v, PDLaw(kp=0.0, kd=0.0, q_ref=q, model=locked), dt=DT, steps=3)
    with pytest.raises(InvalidArgumentError, match=r"tau\.model is robot 'ur5e"):
        robot.simulate(q, v, PDLaw(kp=0.0, kd=0.0, q_ref=q, model=robot_of("ur5e")), dt=DT, steps=3)


def test_divergence_names_the_step() -> None:
    """Within and after steps that are computed together: the error of the law as a function."""
    robot = robot_of("panda")
    q, v = state_of(robot)
    force = np.zeros((300, 8))
    for k in (0, 1, 150):
        force[:] = 0.0
        force[k, 3] = 1e300
        fault = same(robot, PDLaw(kp=9.0, kd=1.0, q_ref=q, feedforward=force), q, v, steps=300)
        assert f"step {k + 2} " in fault
        assert "'panda_joint4'" in fault
    unstable = same(robot, PDLaw(kp=1e9, kd=-1e5, q_ref=q), q, v, steps=300)
    assert "diverged" in unstable


def test_python_runs_for_blocks_only() -> None:
    """Its calls do not grow with the number of steps."""
    robot = robot_of("panda")
    q, v = state_of(robot, (3,))

    def calls(steps: int) -> int:
        law = PDLaw(kp=20.0, kd=2.0, q_ref=np.broadcast_to(q[:, None], (3, steps, 8)), limit=80.0)
        return calls_of(lambda: robot.simulate(q, v, law, dt=DT, steps=steps))

    calls(8000)
    assert calls(8000) - calls(4000) < 100
    assert calls(400) < 4000


def test_a_large_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as loops, which have a workspace."""
    monkeypatch.setattr(budget, "MAX_UNROLLED", 1000)
    robot = Robot.from_text(chain(17))
    q, v = state_of(robot, (2,))
    gain = np.random.default_rng(4).normal(size=(17, 34))
    for law in (
        PDLaw(kp=20.0, kd=2.0, q_ref=q[:, None], compensation="gravity", limit=9.0),
        ComputedTorqueLaw(kp=20.0, kd=2.0, q_ref=q[:, None]),
        StateFeedbackLaw(gain=gain, q_ref=q[:, None], limit=9.0),
        StateFeedbackLaw(gain=np.stack([gain, 2.0 * gain])[:, None], q_ref=q[:, None]),
    ):
        same(robot, law, q, v, steps=10)
    for kernel in (
        robot.signature(QUERIES["step"], "semi_implicit_euler"),
        signature_of_term(robot.evaluator, "state_feedback"),
    ):
        assert budget.rolled_if_large(kernel_tree(robot.tree, kernel.bodies), kernel) is not None


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"kp": np.ones(7)}, r"tau\.kp has shape \(7,\), expected \(8,\) or \(\.\.\., 5, 8\)"),
        ({"kd": np.ones((4, 8))}, r"tau\.kd has shape \(4, 8\), expected \(8,\) or \(\.\.\., 5, 8\)"),
        ({"q_ref": 1.0}, r"tau\.q_ref has shape \(\), expected"),
        ({"q_ref": "home"}, "^q_ref must be numbers, found str 'home'"),
        ({"v_ref": np.full(8, np.nan)}, r"^v_ref must be finite, found nan at \[0\]"),
        ({"limit": -1.0}, r"tau\.limit must be at least 0, found -1"),
        ({"limit": np.nan}, r"tau\.limit must be at least 0, found nan"),
        ({"compensation": "gravitation"}, r"tau\.compensation must be one of none, gravity, reference"),
        ({"feedforward": np.zeros((3, 1, 8))}, r"leading axes of .*tau\.feedforward \(3,\)"),
    ],
)
def test_invalid_laws(numbers: dict[str, Any], message: str) -> None:
    robot = robot_of("panda")
    q, v = state_of(robot, (2,))
    with pytest.raises(InvalidArgumentError, match=message):
        robot.simulate(q, v, PDLaw(**({"kp": 1.0, "kd": 1.0, "q_ref": q[0]} | numbers)), dt=DT, steps=5)


def test_gains_of_the_state() -> None:
    robot = robot_of("panda")
    law = StateFeedbackLaw(gain=np.ones((8, 8)), q_ref=robot.neutral())
    with pytest.raises(InvalidArgumentError, match=r"tau\.gain has shape \(8, 8\), expected \(8, 16\) or"):
        robot.simulate(robot.neutral(), np.zeros(8), law, dt=DT, steps=5)


def test_laws_are_not_sent_and_not_for_prescribed_motions() -> None:
    robot = robot_of("panda")
    q = robot.neutral()
    law = PDLaw(kp=1.0, kd=1.0, q_ref=q)
    with pytest.raises(UnimplementedError, match="PDLaw, which is not sent to a server"):
        next(parts.simulate(robot.configuration, q, np.zeros(8), law, dt=DT, steps=5))
    rows = {"panda_joint1": np.zeros((6, 3))}
    with pytest.raises(InvalidArgumentError, match="tau has PDLaw"):
        robot.simulate_rheonomic(rows, q[1:], np.zeros(7), law, dt=DT, steps=5)  # type: ignore[arg-type]


def test_laws_are_immutable() -> None:
    q = np.zeros(8)
    law = PDLaw(kp=1.0, kd=1.0, q_ref=q)
    q[0] = 1.0
    assert not np.asarray(law.q_ref).any()
    with pytest.raises(AttributeError):
        law.kp = 2.0  # type: ignore[misc]
    copied = pickle.loads(pickle.dumps(law))
    assert type(copied) is PDLaw
    assert (copied.kp, copied.compensation) == (1.0, "none")
    with pytest.raises(TypeError, match="base class: use PDLaw"):
        SimulationLaw(q_ref=q)


def test_every_term_is_evaluated_in_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one term or added number dropped from the compiled steps only, the bits differ."""
    robot = robot_of("panda")
    q, v = state_of(robot)
    law = laws_of(robot, ())[1]
    original = evaluation.LawEfforts.terms_from
    expected = robot.simulate(q, v, law, dt=DT, steps=40)
    names = [(k, name) for k, term in enumerate(original(*_bound(robot, law), 0, 40)) for name in term.inputs]
    for k, name in names:
        if name in ("q", "v", "free"):
            continue

        def dropped(self: Any, first: int, steps: int, k: int = k, name: str = name) -> Any:
            terms = original(self, first, steps)
            term_input = terms[k].inputs[name]
            altered = np.zeros((1, robot.nv)) if isinstance(term_input, str) or name != "q_ref" else term_input + 0.1
            terms[k] = terms[k]._replace(inputs={**terms[k].inputs, name: altered})
            return terms

        with monkeypatch.context() as patch:
            patch.setattr(evaluation.LawEfforts, "terms_from", dropped)
            assert robot.simulate(q, v, law, dt=DT, steps=40).q.tobytes() != expected.q.tobytes(), name


def _bound(robot: Robot, law: Any) -> tuple[Any]:
    efforts = evaluation.LawEfforts(robot.configuration, law, 40)
    efforts.bind(robot, None)
    return (efforts,)


def test_an_effort_that_is_no_number_is_not_clipped() -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    for tau, expected in ((np.nan, np.nan), (9.0, 2.0), (-9.0, -2.0), (1.0, 1.0)):
        inputs = {"tau": [tau], "added": [0.0], "limit": [2.0], "free": [1.0]}
        with np.errstate(invalid="ignore"):
            clipped = evaluated(robot.evaluator, "limited", {name: np.array(x) for name, x in inputs.items()})
        np.testing.assert_array_equal(clipped, [expected])
