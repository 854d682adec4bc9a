"""A few mechanisms of each part of `python -m qa.mechanisms`, within its bounds, and checks that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service import Robot
from qa.mechanisms import cuts, exactness
from qa.mechanisms.__main__ import RANDOM
from qa.mechanisms.hours import SWINGS, drift
from tests.loops import Mechanism, four_bar

pytestmark = pytest.mark.wide


@pytest.mark.parametrize(("part", "seed"), [("exact", 10), ("exact", 13), ("cuts", 13), ("cuts", 19)])
def test_random_mechanisms_agree(part: str, seed: int) -> None:
    errors_of, _, largest_error = RANDOM[part]
    _, errors = errors_of(seed)
    assert errors, "no query was compared"
    assert {query: error for query, error in errors.items() if not error <= largest_error} == {}


def test_an_error_of_a_query_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Robot.forward_dynamics
    monkeypatch.setattr(Robot, "forward_dynamics", lambda *a, **options: forward(*a, **options) * (1.0 + 1e-8))
    _, errors = exactness.errors_of(10)
    assert errors["forward_dynamics"] > RANDOM["exact"][2]


def test_a_four_bar_cut_elsewhere_stands_at_the_same_place() -> None:
    m = cuts.zeroed(four_bar(), "pin_3")
    other = cuts.recut(m, "pin_3", "pin_1")
    assert [joint.name for joint in other.mechanism.description.loop_joints] == ["pin_1"]
    # Positions are closed to rounding: some 1e-16 of lengths below 1 m.
    assert np.abs(other.mechanism.robot.loop_error(other.mechanism.q)).max() < 1e-14
    assert isinstance(other.mechanism, Mechanism)


@pytest.mark.parametrize("swing", SWINGS[:3:2], ids=lambda swing: swing.integrator)
def test_a_swing_keeps_loops_closed(swing: object) -> None:
    result = drift(swing, 30.0)  # type: ignore[arg-type]
    assert result.gap < 1e-9  # the bound of the hour
    assert result.swings >= 2
