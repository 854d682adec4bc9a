"""Overlays on random trees: the edited robot, and the robot with joints fixed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dyn_service.api.queries import Overlay
from dyn_service.engine.robot import Robot
from dyn_service.model.description import RootType, rooted
from dyn_service.parsing.urdf.reader import read
from tests.mimics import drawn as led
from tests.overlays import GRAVITY, State, apart, drawn, fixed
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted_robot


@settings(deadline=None, max_examples=7)
@given(seed=st.integers(0, 10**6), root=st.sampled_from(["fixed", "floating", "planar"]), follow=st.booleans())
def test_random_robots(seed: int, root: RootType, follow: bool) -> None:
    described = read(random_urdf(seed, movable=2 + seed % 5, types=MANY_TYPES))
    described = led(described, seed, 0.5) if follow else described
    robot = interpreted_robot(Robot(rooted(described, root)))
    edit = drawn(robot, seed)
    other = interpreted_robot(Robot(edit.description))
    state = State(robot, seed)
    q, v, a = state.q, state.v, state.a
    tau = robot.inverse_dynamics(q, v, a, wrenches=state.push, overlay=edit.overlay)
    expected = other.inverse_dynamics(q, v, a, wrenches=state.push, gravity=GRAVITY)
    assert apart(tau, expected) < 1e-12
    M = robot.mass_matrix(q, overlay=edit.overlay)
    assert apart(M, other.mass_matrix(q)) < 1e-12
    if robot.overlaid(edit.overlay).massless_joint is None:
        for method in ("articulated", "mass_matrix"):
            acceleration = robot.forward_dynamics(q, v, tau, wrenches=state.push, overlay=edit.overlay, method=method)  # type: ignore[arg-type]
            assert np.abs(M @ (acceleration - a)).max() < 1e-9 * max(np.abs(tau).max(), np.abs(M).max())


@settings(deadline=None, max_examples=7)
@given(seed=st.integers(0, 10**6), follow=st.booleans())
def test_random_locks(seed: int, follow: bool) -> None:
    described = read(random_urdf(seed, movable=3 + seed % 5, types=MANY_TYPES))
    robot = interpreted_robot(Robot(led(described, seed, 0.5) if follow else described))
    names = robot.joint_names
    locked = [name for k, name in enumerate(names) if (seed >> k) & 1] or [names[0]]
    state = State(robot, seed, locked)
    other = interpreted_robot(Robot(fixed(robot, state.q, locked)))
    overlay, free = Overlay(locked=locked), state.free
    tau = robot.inverse_dynamics(state.q, state.v, state.a, overlay=overlay)
    assert (tau[~free] == 0.0).all()
    rest = state.q[state.moves]
    assert apart(tau[free], other.inverse_dynamics(rest, state.v[free], state.a[free])) < 1e-12
    if other.nv and other.massless_joint is None:
        M = other.mass_matrix(rest)
        for method in ("articulated", "mass_matrix"):
            acceleration = robot.forward_dynamics(state.q, state.v, tau, overlay=overlay, method=method)  # type: ignore[arg-type]
            assert (acceleration[~free] == 0.0).all()
            assert np.abs(M @ (acceleration - state.a)[free]).max() < 1e-9 * max(np.abs(tau).max(), np.abs(M).max())
