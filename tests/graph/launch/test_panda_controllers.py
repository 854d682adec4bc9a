"""The controllers of the Panda's launch files with the Panda's plant, in lockstep, in one process."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dyn_service.control.controller import Commander
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.control.laws.collision_stop import CollisionError
from dyn_service.control.plant.plant import Plant
from dyn_service.engine.robot import Robot
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.nodes.controllers.controller_kind import ControllerKind, commander
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from tests.conftest import ROOT, URDF
from tests.phrases import naming

LAUNCH = ROOT / "launch" / "panda.launch.yaml"
CHOICES = [
    choice["value"]
    for action in read_launch_file(LAUNCH).document.value["launch"]
    if action.get("arg", {}).get("name") == "controller"
    for choice in action["arg"]["choice"]
]
TRACKS = {"collision_stop", "trajectory_following"}


@pytest.fixture(scope="module")
def panda() -> Robot:
    return Robot.from_urdf(URDF / "panda.urdf")


def plant_and_commander(name: str, panda: Robot, folder: Path, of_plant=(), **changes) -> tuple[Plant, Commander]:
    """Returns the plant and the controller of the launch file, with changed parameters."""
    _, plant, controller = make_plan(read_launch_file(LAUNCH), {"controller": name}, folder=folder).processes
    assert isinstance(controller.kind, ControllerKind)
    parameters = msgspec.convert({**controller.parameters, **changes}, controller.kind.parameters)
    panda_commander = commander(controller.kind.spec, parameters, panda, number=5, restarted=False)
    return make_plant(
        panda, msgspec.convert({**plant.parameters, **dict(of_plant)}, PlantParameters), session=1
    ), panda_commander


def test_there_is_one_for_each() -> None:
    assert len(CHOICES) >= 6


@pytest.mark.parametrize("file", ["panda", "panda_computed_torque"])
def test_engine_and_clock_are_arguments(file: str, tmp_path: Path) -> None:
    launch = read_launch_file(ROOT / "launch" / f"{file}.launch.yaml")
    for rate_hz, clock, engine in (("500.0", "lockstep", "mujoco"), ("250.0", "real_time", "own")):
        arguments = {"rate_hz": rate_hz, "clock": clock, "engine": engine}
        _, plant, controller = make_plan(launch, arguments, folder=tmp_path).processes
        plant_parameters = msgspec.convert(plant.parameters, PlantParameters)
        assert (plant_parameters.clock, plant_parameters.engine) == (clock, engine)
        # in lockstep each state that is sent out has to be answered
        assert plant_parameters.state_rate_hz == controller.parameters["rate_hz"] == float(rate_hz)


@pytest.mark.parametrize("name", CHOICES)
def test_it_takes_the_plant_over_and_keeps_it(name: str, panda: Robot, tmp_path: Path) -> None:
    """No stop, no refused or clipped command; tracking errors and drift are within their bounds."""
    plant, panda_commander = plant_and_commander(name, panda, tmp_path)
    begin = plant.q.copy()

    def answer(state):
        return panda_commander.answer(state) if panda_commander.following.due(state) else None

    ClosedLoop(plant, answer).run(0.3)
    counters = plant.safety.counters
    assert plant.safety.mode == "active"
    assert (sum(counters.stops.values()), sum(counters.refused.values()), counters.clipped) == (0, 0, 0)
    if name in TRACKS:
        assert panda_commander.following.tracking.maximum < 1e-4  # rad and m: efforts held through 2 ms
        assert np.abs(plant.q - begin).max() > 1e-5
    else:  # weightless, or held by a reference at rest; to admittance, what grew last while it was armed is a push
        assert np.abs(plant.q - begin).max() < (1e-3 if name == "admittance" else 1e-6)


@pytest.mark.parametrize(("mass", "action"), [(3.0, "hold"), (3.0, "float"), (3.0, "stop"), (0.8, "stop")])
def test_it_notices_a_weight_above_the_threshold_alone(panda: Robot, tmp_path: Path, mass: float, action: str) -> None:
    """An unmodelled payload of 3 kg gives some 15 N m at the second joint, whose threshold is 8.7 N m."""
    payload = {"payloads": [{"link": "panda_hand", "mass": mass}]}
    plant, panda_commander = plant_and_commander(
        "collision_stop", panda, tmp_path, {"overlay": payload}, action=action, trajectory="hold"
    )
    begin = plant.q.copy()
    run = ClosedLoop(
        plant, lambda state: panda_commander.answer(state) if panda_commander.following.due(state) else None
    )
    if action == "stop" and mass > 1.0:
        with pytest.raises(CollisionError, match=naming(re.compile("'panda_joint[26]'"), "external torque")):
            run.run(0.3)
        return
    run.run(0.9)
    assert plant.safety.mode == "active"
    assert panda_commander.law.signals()["collision"] == float(mass > 1.0)
    displacement = np.abs(plant.q - begin).max()
    # springs of 200 N m/rad bear 15 N m within some 0.1 rad; what floats goes on sinking
    assert displacement > 0.4 if action == "float" else displacement < 0.15
