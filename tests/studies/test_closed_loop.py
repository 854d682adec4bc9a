"""Closed loops with sampled robots: replayed states have the same bits; diverging rollouts are counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.studies.closed_loop import ClosedLoop
from tests.phrases import naming

for _module in ("xarray", "dask.array", "zarr"):
    pytest.importorskip(_module, reason="the extra `studies` is not installed: pip install '.[studies]'")

OPTIONS = {
    "law": "computed_torque",
    "q_ref": [0.5, -0.5],
    "kp": 100.0,
    "kd": 20.0,
    "dt": 1e-3,
    "steps": 1500,
    "tolerance": 0.02,
}


def test_masses_that_a_controller_tolerates() -> None:
    robot = Robot.from_urdf("urdf/double_pendulum.urdf")
    vary = {"q": {"uniform": [-1, 1]}, "v": {"constant": 0.0}}
    vary |= {f"payload.{robot.link_names[-1]}.mass": {"uniform": [0.001, 1.0]}}
    outputs = {
        name: {"query": "closed_loop", "output": name, "options": OPTIONS} for name in ("success", "final_error")
    } | {"rate": {"query": "closed_loop", "output": "success", "options": OPTIONS, "reduce": ["mean"]}}
    study = robot.study(vary, outputs, samples={"sample": {"count": 300}})
    outputs = study.run(workers=2)
    success, error = outputs.success.values, outputs.final_error.values
    assert 0.05 < success.mean() < 0.95
    assert outputs.rate_mean == success.mean()
    assert np.array_equal(success, error <= 0.02)
    worst = int(np.argmax(error))
    state = study.state(worst)
    motion = ClosedLoop(robot, OPTIONS).replay(state)
    assert np.abs(motion.q[-1] - [0.5, -0.5]).max() == error[worst]
    masses = np.array([float(study.state(k)["overlay"].payloads[0].mass) for k in range(300)])
    assert masses[success == 1].max() < masses[success == 0].min() + 0.3  # heavy payloads fail


def test_a_rollout_that_diverges_does_not_end_the_others() -> None:
    robot = Robot.from_urdf("urdf/pendulum.urdf")
    options = {"law": "pd", "q_ref": [0.0], "kp": 0.0, "kd": -3e3, "dt": 0.01, "steps": 200}
    vary = {
        "q": {"constant": [0.0]},
        "v": {"values": [0.0, 1.0, 0.0], "dim": "start"},
        "gravity": {"constant": [0, 0, 0]},
    }
    outputs = robot.study(vary, {"e": {"query": "closed_loop", "output": "final_error", "options": options}}).run()
    assert np.isfinite(outputs.e.values).tolist() == [True, False, True]
    assert json.loads(outputs.attrs["failures"]) == {"not finite": 1}
    with pytest.raises(InvalidArgumentError, match=naming("options.law", "'pid'", "computed_torque")):
        ClosedLoop(robot, {"law": "pid"})
    with pytest.raises(InvalidArgumentError, match="steps"):
        ClosedLoop(robot, {"law": "pd", "q_ref": 0, "kp": 0, "kd": 0, "dt": 1e-3})


@pytest.mark.parametrize("steps", [67, 190, 1000])
def test_a_rollout_ends_at_its_last_step(steps: int) -> None:
    robot = Robot.from_urdf("urdf/double_pendulum.urdf")
    loop = ClosedLoop(robot, {**OPTIONS, "kp": 10.0, "kd": 1.0, "steps": steps})
    state = {"q": np.array([0.3, 0.1]), "v": np.array([0.2, -0.4])}
    motion = robot.simulate(state["q"], state["v"], loop.law, dt=1e-3, steps=steps)
    outputs = loop(state)
    assert outputs["final_error"] == np.abs(motion.q[-1] - [0.5, -0.5]).max()
    assert outputs["final_speed"] == np.abs(motion.v[-1]).max()
    assert len(loop.replay(state).q) <= 2 * 64 + 1


def test_errors_that_are_no_divergence_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    robot = Robot.from_urdf("urdf/double_pendulum.urdf")
    loop = ClosedLoop(robot, OPTIONS)
    calls = []

    def fails(*_: object, **__: object) -> None:
        calls.append(0)
        raise FailedPreconditionError("forward_dynamics: joint 'j' moves no mass")

    monkeypatch.setattr(robot, "simulate", fails)
    with pytest.raises(FailedPreconditionError, match="moves no mass"):
        loop({"q": np.zeros((8, 2)), "v": np.zeros((8, 2))})
    assert len(calls) == 1


def test_errors_are_those_from_the_set_point_of_each_time() -> None:
    robot = Robot.from_urdf("urdf/double_pendulum.urdf")
    steps = 640
    ramp = np.linspace(0.0, 1.0, steps)
    q_ref = np.stack([ramp, -ramp], axis=1)
    options = {**OPTIONS, "q_ref": q_ref.tolist(), "v_ref": (np.array([1.0, -1.0]) / (steps * 1e-3)).tolist()}
    outputs = ClosedLoop(robot, {**options, "steps": steps})({"q": np.zeros(2), "v": np.zeros(2)})
    # It follows with a small error; from the last set point it would be half of the way.
    assert outputs["largest_error"] < 0.05
    motion = ClosedLoop(robot, {**options, "steps": steps}).replay({"q": np.zeros(2), "v": np.zeros(2)})
    assert outputs["final_error"] == np.abs(motion.q[-1] - q_ref[-1]).max()
