"""A few mechanisms of each part of `python -m qa.mechanisms`, within its bounds, and checks that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service import Robot
from qa.mechanisms import cuts, exactness
from qa.mechanisms.__main__ import RANDOM
from qa.mechanisms.hours import SWINGS, Swing, drift
from tests.loops import four_bar

pytestmark = pytest.mark.wide


@pytest.mark.parametrize(("part", "seed"), [("exact", 10), ("exact", 13), ("cuts", 13), ("cuts", 19)])
def test_random_mechanisms_agree(part: str, seed: int) -> None:
    errors_of, _, largest_error = RANDOM[part]
    _, errors = errors_of(seed)
    assert errors, "no query was compared"
    assert {query: error for query, error in errors.items() if not error <= largest_error} == {}


def test_redundant_loads_depend_on_the_child_of_a_slide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from their zero, slides that turn round change the least squares of loads, and nothing else."""
    monkeypatch.setattr(cuts, "slides_zeroed", lambda mechanism, names: mechanism)
    _, errors = cuts.errors_of(13)
    assert errors.pop("constraint_forces") > 1e-2  # 9.4e-2: the slides are some 0.1 m from their zero
    assert max(errors.values()) <= RANDOM["cuts"][2]


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


@pytest.mark.parametrize("swing", SWINGS[:3:2], ids=lambda swing: swing.integrator)
def test_a_swing_keeps_loops_closed(swing: Swing) -> None:
    result = drift(swing, 30.0)
    assert result.gap < 1e-9  # the bound of the hour
    assert result.swings >= 2
