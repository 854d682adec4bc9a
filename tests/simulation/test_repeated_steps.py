"""Steps that are computed several at a time, in compiled code: the bits of steps computed one by one."""

from __future__ import annotations

import resource
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

from dyn_service import FailedPreconditionError, Robot
from dyn_service.api.queries import Overlay, Payload
from dyn_service.engine import rollouts
from dyn_service.kernels.rollout import run_stages
from dyn_service.support import buffers
from tests.conftest import URDF
from tests.counting import calls_of

INTEGRATORS = ("rk4", "semi_implicit_euler", "explicit_euler")
_ROBOTS: dict[tuple[str, Any], Robot] = {}


def robot_of(name: str, root: Any = "fixed") -> Robot:
    if (name, root) not in _ROBOTS:
        _ROBOTS[name, root] = Robot.from_urdf(URDF / f"{name}.urdf", root=root)
    return _ROBOTS[name, root]


def one_by_one(robot: Robot, q: Any, v: Any, tau: Any, steps: int, stride: int, **options: Any) -> list[np.ndarray]:
    """Returns positions and velocities of the records, by calls of `step`. tau: (..., steps, nv)."""
    integrator = options.pop("integrator")
    records = [(np.asarray(q), np.asarray(v))]
    for k in range(steps):
        state = robot.step(q, v, tau[..., k, :], 1e-3, integrator=integrator, **options)
        q, v = state.q, state.v
        if not (k + 1) % stride:
            records.append((q, v))
    shape = np.broadcast_shapes(*(x.shape for x, _ in records))
    return [np.stack([np.broadcast_to(r[i], (*shape[:-1], r[i].shape[-1])) for r in records], axis=-2) for i in (0, 1)]


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize(("name", "root"), [("panda", "fixed"), ("solo12", "floating")])
@pytest.mark.parametrize("lead", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("stride", [1, 7])
def test_the_bits_of_single_steps(name: str, root: str, integrator: Any, lead: tuple[int, ...], stride: int) -> None:
    robot, rng = robot_of(name, root), np.random.default_rng(0)
    v = 0.3 * rng.normal(size=(*lead, robot.nv))
    q = robot.integrate(robot.neutral(), v, 1.0)
    constant, sampled = 0.1 * rng.normal(size=robot.nv), 0.1 * rng.normal(size=(*lead, 300, robot.nv))
    for tau in (constant, sampled):
        motion = robot.simulate(q, v, tau, dt=1e-3, steps=300, integrator=integrator, every=stride)
        efforts = np.broadcast_to(tau, (*lead, 300, robot.nv))
        expected = one_by_one(robot, q, v, efforts, 300, stride, integrator=integrator)
        assert motion.q.tobytes() == expected[0].tobytes()
        assert motion.v.tobytes() == expected[1].tobytes()


def test_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are at the same steps however many are computed at a time."""
    robot, rng = robot_of("panda"), np.random.default_rng(2)
    q, v, tau = robot.neutral(), np.zeros(robot.nv), 0.1 * rng.normal(size=(300, robot.nv))
    expected = one_by_one(robot, q, v, tau, 300, 7, integrator="rk4")
    for max_steps in (2, 7, 8, 100):
        monkeypatch.setattr(sys.modules["dyn_service.simulation.simulate"], "_MAX_STEPS", max_steps)
        motion = robot.simulate(q, v, tau, dt=1e-3, steps=300, every=7)
        assert motion.q.tobytes() == expected[0].tobytes()
        assert motion.v.tobytes() == expected[1].tobytes()


def test_overlays_gravity_and_lone_axes() -> None:
    """The leading axes of an overlay and of the gravity are those of the states; efforts without them are for all."""
    robot, rng = robot_of("scara"), np.random.default_rng(1)
    masses = np.array([[0.5], [1.0]])
    view = robot.overlaid(Overlay(Payload("tool0", masses)))
    gravity = rng.normal(size=(3, 3))
    tau = rng.normal(size=(40, robot.nv))
    q, v = robot.neutral(), np.zeros(robot.nv)
    for gravity_ in (None, gravity):
        motion = view.simulate(q, v, tau, dt=1e-3, steps=40, gravity=gravity_)
        lead = (2, 1) if gravity_ is None else (2, 3)
        start = [np.broadcast_to(x, (*lead, x.size)) for x in (q, v)]
        efforts = np.broadcast_to(tau, (*lead, *tau.shape))
        expected = one_by_one(view, *start, efforts, 40, 1, integrator="rk4", gravity=gravity_)
        assert motion.q.tobytes() == expected[0].tobytes()
        assert motion.v.tobytes() == expected[1].tobytes()


def test_locked_joints_stay() -> None:
    robot = robot_of("scara").overlaid(Overlay(locked=["outer_joint"]))
    tau = np.full((50, robot.nv), 0.2)
    motion = robot.simulate(robot.neutral(), np.zeros(robot.nv), tau, dt=1e-3, steps=50)
    assert not motion.v[:, 1].any()
    assert motion.v[-1].any()


@pytest.mark.parametrize("steps", [20, 1500])
def test_divergence_names_the_step(steps: int) -> None:
    """In the first block and after it: the step, its time and the joint are those found step by step."""
    robot = robot_of("panda")
    tau = np.zeros((steps, robot.nv))
    tau[-15, 3] = 1e300
    with pytest.raises(FailedPreconditionError, match=rf"step {steps - 14} .*'panda_joint4'"):
        robot.simulate(robot.neutral(), np.zeros(robot.nv), tau, dt=1e-3, steps=steps)
    tau[0, 3] = 1e300
    with pytest.raises(FailedPreconditionError, match=r"step 1 .*'panda_joint4'"):
        robot.simulate(robot.neutral(), np.zeros(robot.nv), tau, dt=1e-3, steps=steps)


def test_python_runs_for_the_first_step_and_for_blocks() -> None:
    robot = robot_of("panda")
    q, v = robot.neutral(), np.zeros(robot.nv)

    def calls(steps: int) -> int:
        return calls_of(lambda: robot.simulate(q, v, dt=1e-3, steps=steps, every=10))

    calls(300)
    assert calls(9000) - calls(1000) < 8000 // 2


def test_python_runs_often_enough_for_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers computed in between are bounded for any robot and batch, up to a vector of states and some steps."""
    robot, numbers = robot_of("panda"), list[int]()
    robot.step(robot.neutral(), np.zeros(robot.nv), np.zeros(robot.nv), 1e-3)

    def noted(stages: Any, state: Any, records: Any, stride: int) -> None:
        numbers.append(records["v"].size * stride)
        run_stages(stages, state, records, stride)

    monkeypatch.setattr(rollouts, "run_stages", noted)
    monkeypatch.setattr(rollouts, "MAX_VELOCITIES", 64 * 256 * robot.nv)
    for lead in ((), (16,), (300,)):
        q, v = np.broadcast_to(robot.neutral(), (*lead, robot.nq)), np.zeros((*lead, robot.nv))
        robot.simulate(q, v, dt=1e-3, steps=257)
    assert sum(numbers) >= 256 * 317 * robot.nv
    assert max(numbers) <= 64 * 256 * robot.nv


class _Noted(np.ndarray):
    """Records that note the bytes of memory between the first and the last entry of each assignment."""

    spans: ClassVar[list[int]] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.spans.append(len(self[key[0]]) * self[0].nbytes)
        super().__setitem__(key, value)


def test_an_interrupt_waits_for_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first assignment to records makes the system provide their memory, which takes seconds for several GB."""
    robot, module = robot_of("scara"), sys.modules["dyn_service.simulation.simulate"]
    q, v = np.broadcast_to(robot.neutral(), (2, 150, robot.nq)), np.zeros((150, robot.nv))
    options: Any = {"dt": 1e-3, "steps": 40, "every": 4, "integrator": "semi_implicit_euler"}
    expected = robot.simulate(q, v, lambda t, q, v: 0.01 * np.ones(4), **options)
    monkeypatch.setattr(module, "_MAX_SPREAD", 1 << 14)
    empty = buffers.empty
    monkeypatch.setattr(buffers, "empty", lambda shape: empty(shape).view(_Noted))
    motion = robot.simulate(q, v, lambda t, q, v: 0.01 * np.ones(4), **options)
    assert sum(_Noted.spans) == 11 * (motion.q.nbytes + motion.v.nbytes)
    assert max(_Noted.spans) <= 1 << 14
    assert motion.q.tobytes() == expected.q.tobytes()
    assert motion.v.tobytes() == expected.v.tobytes()


def test_memory_of_large_motions_is_reused() -> None:
    """Only the first motions fault the pages of their records in."""
    robot, steps = robot_of("panda"), 500
    q, v = np.broadcast_to(robot.neutral(), (40, robot.nq)), np.zeros(robot.nv)
    for _ in range(3):
        motion = robot.simulate(q, v, dt=1e-3, steps=steps, integrator="semi_implicit_euler")
    faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        motion = robot.simulate(q, v, dt=1e-3, steps=steps, integrator="semi_implicit_euler")
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before < (motion.q.nbytes + motion.v.nbytes) // 4096
    )
