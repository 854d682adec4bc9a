"""Compiled answers of robots with closed loops against those by singular values, at regular and singular states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dyn_service import QUERIES, Inertial, Overlay, Robot, Wrench
from dyn_service.engine.loops.answers import ANSWERS
from dyn_service.engine.loops.call import Call
from dyn_service.engine.loops.joints import CLOSED
from dyn_service.errors import InvalidArgumentError
from dyn_service.support.shipped import find_robot
from tests.loops import Array, Mechanism, four_bar, random_mechanism, with_drives
from tests.wide import one_in, wide

SEEDS = [seed for seed in range(16) if seed not in (5, 12)]
"""Mechanisms without screws that close loops."""

STATES = 16


def by_singular_values(robot: Robot, query: str, **arguments: Any) -> Array:
    row, loops = QUERIES[query], robot.evaluator.closed_loops
    assert loops is not None
    defaults = dict(zip(row.optional_arguments, row.argument_defaults, strict=True))
    answer: Array = loops._by_singular_values(Call(loops, row, defaults | arguments), 1)
    return answer


def regular(robot: Robot, query: str, **arguments: Any) -> Array:
    """Which states compiled kernels answer."""
    row, loops = QUERIES[query], robot.evaluator.closed_loops
    assert loops is not None
    assert loops.compiled is not None
    defaults = dict(zip(row.optional_arguments, row.argument_defaults, strict=True))
    regular_answer = ANSWERS[query].regular
    assert regular_answer is not None
    with np.errstate(all="ignore"):
        return regular_answer(Call(loops, row, defaults | arguments), loops.compiled)[1]


def relative(x: Array, y: Array) -> float:
    return float((np.abs(x - y).max(axis=-1) / np.abs(y).max(axis=-1)).max())


@cache
def driven(seed: int) -> Mechanism:
    """A random mechanism whose independent joints are driven, if all of them may be."""
    m = random_mechanism(seed)
    loops = m.robot.evaluator.closed_loops
    assert loops is not None
    assert loops.freedom is not None
    names = [loops.configuration.velocity_joints[k] for k in loops.freedom.independent]
    robot = Robot(with_drives(m.description, names))
    assert robot.evaluator.closed_loops is not None
    return Mechanism(robot, m.q) if robot.evaluator.closed_loops.drives_determine_motion else m


def parallelogram() -> Robot:
    m = four_bar()
    joints = tuple(
        replace(joint, xyz=np.array([0.5, 0.0, 0.0])) if joint.name == "pin_2" else joint
        for joint in m.description.joints
    )
    (pin,) = m.description.loop_joints
    pin = replace(pin, child_xyz=np.array([0.2, 0.0, 0.0]))
    return Robot(with_drives(replace(m.description, joints=joints, loop_joints=(pin,)), ["pin_0"]))


@cache
def delta() -> tuple[Robot, Array, Array, Array]:
    robot = Robot.from_urdf(find_robot("delta"))
    rng = np.random.default_rng(0)
    start = robot.neutral() + rng.normal(size=(STATES, robot.nq)) * 0.1
    q = robot.assemble(robot.configuration.normalised(start))
    motion = robot.independent_motion(q, np.zeros(robot.nv))
    v = np.einsum("...ij,...j->...i", motion.jacobian, rng.normal(size=(STATES, 3)))
    motion = robot.independent_motion(q, v)
    a = motion.bias_accelerations + np.einsum("...ij,...j->...i", motion.jacobian, rng.normal(size=(STATES, 3)))
    return robot, q, v, a


def queries_of(robot: Robot, q: Array, v: Array, a: Array) -> dict[str, dict[str, Any]]:
    """Arguments of the queries that have compiled kernels."""
    loops = robot.evaluator.closed_loops
    assert loops is not None
    tau = np.random.default_rng(1).normal(size=robot.nv)
    tau *= 1.0 if loops.driven is None else loops.driven
    queries: dict[str, dict[str, Any]] = {"forward_dynamics": {"q": q, "v": v, "tau": tau}}
    if loops.drives_determine_motion:
        gains = {"kp": np.full(robot.nv, 9.0), "kd": np.full(robot.nv, 4.0)}
        queries |= {
            "inverse_dynamics": {"q": q, "v": v, "a": a},
            "bias_forces": {"q": q, "v": v},
            "gravity_forces": {"q": q},
            "computed_torque": {"q": q, "v": v, "q_ref": q, "v_ref": 0.5 * v, "a_ref": 2.0 * a, **gains},
        }
    return queries


@pytest.mark.parametrize("seed", SEEDS)
def test_random_mechanisms(seed: int) -> None:
    m = driven(seed)
    for query, arguments in queries_of(m.robot, m.q, *m.motion(seed)).items():
        assert regular(m.robot, query, **arguments)
        answer = getattr(m.robot, query)(**arguments)
        assert relative(answer, by_singular_values(m.robot, query, **arguments)) < 1e-11, query


@pytest.mark.parametrize("name", ["delta", "four_bar", "linkage_gripper", "parallel_ankle_leg"])
def test_shipped_mechanisms(name: str) -> None:
    robot = Robot.from_urdf(find_robot(name))
    m = Mechanism(robot, robot.assemble(robot.neutral()))
    for query, arguments in queries_of(robot, m.q, *m.motion(1)).items():
        assert regular(robot, query, **arguments)
        answer = getattr(robot, query)(**arguments)
        assert relative(answer, by_singular_values(robot, query, **arguments)) < 1e-11, query


def test_prepared_robots() -> None:
    robot = Robot.from_urdf(find_robot("four_bar"))
    row = QUERIES["inverse_dynamics"]
    method = next(iter(row.kernels))
    assert not robot.evaluator.has_kernel(row, method)
    robot.prepare(["inverse_dynamics"])
    assert robot.evaluator.has_kernel(row, method)
    other = Robot.from_urdf(find_robot("four_bar"))
    assert other.evaluator.load_kernel(row, method)  # from the store
    assert other.evaluator.has_kernel(row, method)


def test_certificates() -> None:
    robot, q, v, a = delta()
    robot.inverse_dynamics(q, v, a)
    robot.forward_dynamics(q, v, np.zeros(robot.nv))
    assert robot.closed_motion is not None
    robot.closed_motion.closed_state(q, v)
    loops = robot.evaluator.closed_loops
    assert loops is not None
    assert loops.compiled is not None
    certificates = loops.compiled._library.certificates
    names = ("efforts", "independent_motion", "accelerations", "closing")
    assert certificates.keys() == {f"loops-{name}" for name in names}
    assert all(certificate.holds for certificate in certificates.values())


@pytest.mark.parametrize("seed", wide(SEEDS, one_in(4)))
def test_the_nearest_closed_state(seed: int) -> None:
    """The changes of q and v are orthogonal to all motions that keep the loops closed; then the loops are closed."""
    m = driven(seed)
    motion, loops = m.robot.closed_motion, m.robot.evaluator.closed_loops
    assert motion is not None
    assert loops is not None
    configuration, unit = m.robot.configuration, loops.unit
    rng = np.random.default_rng(seed)
    shift, v = 1e-3 * unit * rng.normal(size=m.robot.nv), rng.normal(size=m.robot.nv) * unit
    q = configuration.integrate(m.q, shift)
    closed, kept = motion.closed_state(q, v)
    assert loops.gaps(loops.joints.state(closed, None)).max() < 1e-13  # rounding of poses with lengths of 1
    m.robot.independent_motion(closed, kept)  # refuses open states
    basis = np.swapaxes(motion.basis(closed), -1, -2) / unit
    change = configuration.difference(closed, q) / unit
    # Newton's steps are orthogonal each at its own position, which turn by as much as the gap
    assert np.abs(basis @ change).max() < 20.0 * np.square(change).sum()
    assert np.abs(basis @ ((v - kept) / unit)).max() < 1e-12 * np.abs(v).max()
    same, still = motion.closed_state(closed, kept)
    # Quotients of the elimination, at most 1000, magnify the rounding of J_c v and of the gap.
    assert np.abs(same - closed).max() < 1e-12
    assert np.abs(still - kept).max() < 1e-12 * np.abs(v).max()


def test_options() -> None:
    robot, q, v, a = delta()
    optional = {
        "gravity": np.array([0.3, -9.0, 2.0]),
        "wrenches": [Wrench("platform", torque=(0.1, 0.2, 0.0), force=(1.0, -2.0, 3.0))],
        "overlay": Overlay(links={"platform": Inertial(mass=2.0, com=(0.0, 0.0, 0.01))}),
    }
    for query, arguments in queries_of(robot, q, v, a).items():
        accepted = {name: x for name, x in optional.items() if name in QUERIES[query].optional_arguments}
        answer = getattr(robot, query)(**arguments, **accepted)
        assert relative(answer, getattr(robot, query)(**arguments)) > 1e-2
        assert relative(answer, by_singular_values(robot, query, **arguments, **accepted)) < 1e-11, query


def test_near_singular_states() -> None:
    """A parallelogram is singular where it is flat; there singular values decide."""
    robot = parallelogram()
    angles = np.array([1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 0.0])
    direction = np.array([1.0, -1.0, 1.0])
    q, v = angles[:, None] * direction, 0.7 * direction
    arguments = {"q": q, "v": v, "tau": np.array([0.3, 0.0, 0.0])}
    compiled = regular(robot, "forward_dynamics", **arguments)
    assert compiled[0]
    assert not compiled[-4:].any()
    slow = by_singular_values(robot, "forward_dynamics", **arguments)
    answer = robot.forward_dynamics(**arguments)
    assert relative(answer[compiled], slow[compiled]) < 1e-11
    assert np.array_equal(answer[~compiled], slow[~compiled])
    for k in range(len(q)):  # no answer depends on the other states
        assert np.array_equal(answer[k], robot.forward_dynamics(q[k], v, arguments["tau"]))
    motion = robot.independent_motion(q, v)
    assert motion.freedom.tolist() == [1.0] * 7 + [2.0]
    assert np.allclose(motion.jacobian[:-1, :, 0], direction, atol=1e-7)


def test_states_that_are_not_closed() -> None:
    robot, q, v, a = delta()
    loops = robot.evaluator.closed_loops
    assert loops is not None
    queries: list[tuple[str, Callable[[], Any]]] = []
    for scale, query in ((0.9, "answered"), (1.1, "refused")):
        shift = np.zeros(robot.nq)
        shift[loops.configuration.q_slices[-1].start] = scale * CLOSED * loops.joints.sizes.min()
        opened = q.copy()
        opened[3] += shift
        queries.append((query, lambda opened=opened: robot.gravity_forces(opened)))
    (_, answered), (_, refused) = queries
    assert relative(answered(), robot.gravity_forces(q)) < 1e-4
    with pytest.raises(InvalidArgumentError, match=r"open at state \[3\]"):
        refused()
    other = v.copy()
    other[5, 0] += 1e-4
    with pytest.raises(InvalidArgumentError, match=r"^v opens .* at state \[5\]"):
        robot.inverse_dynamics(q, other, a)
    other = a.copy()
    other[6, -1] += 1e-4
    with pytest.raises(InvalidArgumentError, match=r"^a opens .* at state \[6\]"):
        robot.inverse_dynamics(q, v, other)
    efforts = np.zeros(robot.nv)
    efforts[0] = np.nan
    assert np.isnan(robot.forward_dynamics(q, v, efforts)).all()


def test_no_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    robot, q, v, a = delta()
    calls = queries_of(robot, q, v, a)
    for query, arguments in calls.items():
        getattr(robot, query)(**arguments)
    counts: list[str] = []
    for name in ("svd", "pinv", "solve", "qr"):
        real = getattr(np.linalg, name)
        monkeypatch.setattr(
            np.linalg,
            name,
            lambda *args, name=name, real=real, **options: counts.append(name) or real(*args, **options),
        )
    by_singular_values(robot, "forward_dynamics", **calls["forward_dynamics"])
    assert counts
    counts.clear()
    for query, arguments in calls.items():
        getattr(robot, query)(**arguments)
    assert not counts
