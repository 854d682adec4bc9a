"""How a long motion is asked for: requests that a server answers in some milliseconds, replies of half a mebibyte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dyn_service.simulation import parts
from tests.trees import configuration


def first(q: np.ndarray, **arguments: Any) -> dict[str, Any]:
    """The options of the first request."""
    joints = configuration([f"j{k}" for k in range(q.shape[-1])], ["revolute"] * q.shape[-1])
    _, options = next(parts.simulate(joints, q, q, None, dt=1e-3, **{"integrator": "rk4", **arguments}))
    return options


@pytest.mark.parametrize("every", [1, 7, parts.PART_STEPS])
def test_few_states_go_as_far_as_a_request_may(every: int) -> None:
    steps = first(np.zeros(2), steps=10 * parts.PART_STEPS, every=every)["steps"]
    assert parts.PART_STEPS - every < steps <= parts.PART_STEPS
    assert steps % every == 0


@pytest.mark.parametrize("states", [100, 1000])
def test_many_states_fill_a_reply(states: int) -> None:
    """Their q and v at all recorded steps are about as many numbers as a reply holds, and never more."""
    steps = first(np.zeros((states, 2)), steps=10_000)["steps"]
    numbers = 2 * 2 * states
    assert parts.PART_NUMBERS - numbers < steps * numbers <= parts.PART_NUMBERS


def test_more_states_than_a_reply_holds_go_step_by_step() -> None:
    assert first(np.zeros((parts.PART_NUMBERS, 2)), steps=5)["steps"] == 1


def test_a_robot_without_joints_has_parts_too() -> None:
    assert first(np.zeros(0), steps=10)["steps"] == 10


def test_later_requests_are_shorter_for_steps_in_parts() -> None:
    """The first reply names the integrator; so many moves as a request may have are those of parts of steps."""
    joints, q = configuration(["a", "b"], ["revolute"] * 2), np.zeros((2000, 2))
    longest = {}
    for substeps in (1.0, 16.0, -2.0):
        asking = parts.simulate(joints, q, q, None, dt=1e-3, steps=100_000, every=10_000)
        _, options = next(asking)
        assert "integrator" not in options
        records = np.zeros((2000, 2, 2))
        reply = {"t": np.zeros(2), "q": records, "v": records, "substeps": np.full(2000, substeps)}
        _, options = asking.send(reply)
        longest[substeps] = options["steps"]
    assert longest == {1.0: parts.PART_MOVES // 4000, 16.0: parts.PART_MOVES // 16 // 4000, -2.0: 1}
