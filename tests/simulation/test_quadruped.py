"""A quadruped stands, is pushed and stands, falls when it is pushed harder, and every joule is accounted for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from dyn_service import Contact, Robot, Wrench
from dyn_service.api.results import Trajectory
from tests.conftest import URDF
from tests.simulation.test_contact import balance

LEGS = ("FL", "FR", "HL", "HR")
CROUCH = np.tile([0.0, 0.8, -1.6], 4)
GROUND = [
    *(Contact(f"{leg}_foot", radius=0.016) for leg in LEGS),
    *(Contact(f"{leg}_lower_leg", radius=0.01) for leg in LEGS),
    *(Contact("base_link", (x, y, z)) for x in (-0.195, 0.195) for y in (-0.075, 0.075) for z in (-0.025, 0.025)),
]
SECONDS = 1.0
LIMITS = {"position_limits": True, "effort_limits": True, "velocity_limits": True}


@pytest.fixture(scope="module")
def solo() -> Robot:
    return Robot.from_urdf(URDF / "solo12.urdf", root="floating")


def stand(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(6), 8.0 * (CROUCH - q[7:]) - 0.25 * v[6:]])


@cache
def pushed(robot: Robot, push: float, integrator: Any, dt: float, seconds: float) -> Trajectory:
    """The motion, pushed aside for a tenth of a second."""
    steps = round(seconds / dt)
    sideways = np.zeros((steps, 3))
    sideways[round(0.2 / dt) : round(0.3 / dt), 1] = push
    return robot.simulate(
        np.concatenate([[0.0, 0.0, 0.235, 0.0, 0.0, 0.0, 1.0], CROUCH]),
        np.zeros(robot.nv),
        stand,
        dt=dt,
        steps=steps,
        every=10,
        integrator=integrator,
        contacts=GROUND,
        wrenches=Wrench("base_link", force=sideways),
        **LIMITS,  # type: ignore[arg-type]
    )


def upright(robot: Robot, motion: Trajectory) -> np.ndarray:
    """(K,), 1 where its back is up, -1 where it lies on it."""
    cosine: np.ndarray = robot.link_poses(motion.q).rotation[:, 0, 2, 2]
    return cosine


def turned_over(motion: Trajectory) -> float:
    """J that went anywhere at all."""
    assert motion.work is not None
    assert motion.dissipated is not None
    return float(np.abs(motion.work).sum() + motion.dissipated.sum())


def test_it_stands(solo: Robot) -> None:
    motion = pushed(solo, 0.0, "stick_slip", 2e-3, SECONDS)
    assert upright(solo, motion).min() > 0.99
    late = motion.t > SECONDS - 0.15
    assert np.abs(motion.v[late]).max() < 0.1
    assert np.ptp(motion.q[late, 2]) < 2e-3
    assert np.ptp(motion.q[late, :2], axis=0).max() < 2e-3
    assert motion.contact_forces is not None
    weight = 9.81 * sum(body.mass for body in solo.tree.inertia)
    assert motion.contact_forces[-1].sum(axis=0) == pytest.approx([0.0, 0.0, weight], abs=0.02 * weight)
    assert np.all(motion.contact_forces[-1, :4, 2] > 0.15 * weight)  # all four
    assert not motion.contact_forces[-1, 4:].any()  # and nothing else
    assert motion.clamped is not None
    assert not motion.clamped.any()


def test_it_stands_when_it_is_pushed(solo: Robot) -> None:
    motion = pushed(solo, 20.0, "stick_slip", 2e-3, SECONDS)
    assert upright(solo, motion).min() > 0.9
    assert motion.q[-1, 2] == pytest.approx(pushed(solo, 0.0, "stick_slip", 2e-3, SECONDS).q[-1, 2], abs=0.01)
    assert motion.work is not None
    assert motion.work[:, 1].sum() > 0.3  # J that the push gave it


def test_it_falls_when_it_is_pushed_harder(solo: Robot) -> None:
    motion = pushed(solo, 45.0, "stick_slip", 1e-3, SECONDS)
    assert upright(solo, motion)[-1] < 0.2
    assert motion.q[-1, 2] < 0.12
    assert motion.contact_forces is not None
    assert motion.contact_forces[:, 8:].any()  # on its trunk
    lowest = min(float(gap.min()) for gap in gaps(solo, motion))
    assert lowest > -0.01  # and not through the ground


def gaps(robot: Robot, motion: Trajectory) -> list[np.ndarray]:
    from dyn_service.simulation.contact_points import Points, listed

    return [Points(robot, listed(GROUND)).at(q).gap for q in motion.q]


@pytest.mark.parametrize(("push", "dt", "share"), [(0.0, 2e-3, 3e-3), (20.0, 2e-3, 5e-3), (45.0, 1e-3, 1e-2)])
def test_every_joule_is_accounted_for(solo: Robot, push: float, dt: float, share: float) -> None:
    """To the first order of stick_slip's steps, its own loss among what it says."""
    motion = pushed(solo, push, "stick_slip", dt, SECONDS)
    assert np.abs(balance(solo, motion)).max() < share * turned_over(motion)
    assert motion.dissipated is not None
    assert np.all(motion.dissipated >= -1e-12)


@pytest.mark.parametrize(("push", "seconds", "share"), [(20.0, 0.35, 1e-5), (45.0, 0.65, 1e-3)])
def test_every_joule_is_accounted_for_by_steps_of_fourth_order(
    solo: Robot, push: float, seconds: float, share: float
) -> None:
    """It stands: microjoules are open; it falls: what a step misses in which something strikes the ground."""
    motion = pushed(solo, push, "rk4", 1e-3, seconds)
    assert np.abs(balance(solo, motion)).max() < share * turned_over(motion)
    assert motion.dissipated is not None
    assert np.all(motion.dissipated >= -1e-12)
