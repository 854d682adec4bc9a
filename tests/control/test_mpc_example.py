"""The law of examples/mpc: it tracks a motion, keeps to the limits that the motion exceeds, and repeats its bits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.control.dry_runs import DryRun, dry_run
from dyn_service.graph.nodes.registry import run_file
from tests.conftest import ROOT, URDF

ROBOT = Robot.from_urdf(URDF / "scara.urdf")


def followed(move_s: float, **parameters: float) -> tuple[DryRun, int]:
    """A move of the first joints by 1.2 and -0.4 rad, and the solver's failures."""
    example = run_file(ROOT / "examples" / "mpc" / "mpc.py")
    q = ROBOT.limits.middle(np.zeros(4))
    motion = {"points": [(q + np.array([1.2, -0.4, 0.0, 0.0])).tolist()], "move_s": move_s}
    settings = {"trajectory": "point_to_point", "point_to_point": motion, **parameters}
    law = example.Mpc(msgspec.convert(settings, example.MpcParameters), ROBOT)
    run = dry_run(law, ROBOT, 0.7, motion=law.make, q=q, rate_hz=100.0)
    return run, law.failures


def test_it_tracks_what_it_can() -> None:
    run, failures = followed(0.5)
    assert failures == 0
    assert np.abs(run.error).max() < 2e-3, "a thousandth of the way; the efforts' weight leaves as much"
    assert run.signals["at_limits"].max() == 0.0
    repeated, _ = followed(0.5)
    assert repeated.effort.tobytes() == run.effort.tobytes()


def test_it_keeps_to_the_velocity_limit() -> None:
    limit = 0.5 * ROBOT.limits.speeds[0]  # 3.4 rad/s; the reference needs 4.5
    run, failures = followed(0.5, velocity_share=0.5)
    assert failures == 0
    assert np.abs(run.v[:, 0]).max() == pytest.approx(limit, rel=5e-3), "at it, and not beyond"
    assert np.abs(run.error[:, 0]).max() > 0.05, "the reference runs ahead"
    assert np.abs(run.error[:, 1]).max() < 0.03, "the other joint nearly keeps its way"
    assert run.signals["at_limits"].max() >= 5.0
    assert np.abs(run.error[-1]).max() < 0.02, "it arrives"
