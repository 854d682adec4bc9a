"""Gains that are set while a controller runs: the law is made again, the reference and the plant go on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dyn_service.api.queries import Array
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.control.law import Law, RobotState
from dyn_service.control.trajectory import Reference
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.nodes.controllers.computed_torque import NODE, ControllerParameters
from dyn_service.graph.nodes.controllers.controller_kind import ControlLoop
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from tests.graph.in_process import nodes_in
from tests.phrases import naming

At = tuple[Node[ControllerParameters], ControlLoop]


@pytest.fixture
def at_work(pendulum: Robot, tmp_path: Path) -> Iterator[tuple[Node[ControllerParameters], ControlLoop]]:
    """A controller's loop, less its waiting: what it asks is the robot itself."""
    with nodes_in(tmp_path) as nodes:
        node = nodes.make("/controller", ControllerParameters(trajectory="hold"))
        yield node, ControlLoop(node, pendulum, NODE.spec)


def test_gains_change_and_nothing_else(pendulum: Robot, at_work: At) -> None:
    """A plant that bears more than the model, held: at rest it sags as the inverse square of the natural frequency."""
    node, loop = at_work
    changes = {
        "overlay": {"payloads": [{"link": pendulum.link_names[-1], "mass": 0.05, "com": [0.0, 0.0, -0.3]}]},
        "initial_position": [0.5],
        "control_rate_hz": 500.0,
    }
    plant = make_plant(pendulum, PlantParameters(robot="-", **changes), session=1)
    following = loop.commander.following
    closed = ClosedLoop(plant, loop.commander.answer, every=2)
    sags, motions = [], []
    for w in (30.0, 60.0):
        node.set_parameters({"natural_frequency": w})
        closed.run(1.0)  # exp(-30) of what was before is left
        sags.append(abs(float(plant.q[0]) - 0.5))
        motions.append(following.trajectory)
    assert motions[0] is motions[1]
    assert following.restarts == 0
    assert (plant.safety.mode, sum(plant.safety.counters.stops.values())) == ("active", 0)
    assert sags[0] / sags[1] == pytest.approx(4.0, rel=0.01)  # the weight's lever changes by less with the sag
    assert 1e-4 < sags[0] < 0.01


def test_values_that_the_law_refuses_change_nothing(at_work: At) -> None:
    node, loop = at_work
    law, parameters = loop.commander.law, node.parameters
    with pytest.raises(InvalidArgumentError, match="natural_frequency must be positive"):
        node.set_parameters({"damping_ratio": 0.5, "natural_frequency": -3.0})
    with pytest.raises(FailedPreconditionError, match=naming("'rate_hz'", "'/controller'", "read-only")):
        node.set_parameters({"natural_frequency": 20.0, "rate_hz": 100.0})
    assert (loop.commander.law, node.parameters) == (law, parameters)
    node.set_parameters({"natural_frequency": [20.0], "damping_ratio": 0.5})
    assert loop.commander.law is not law
    assert node.parameters.natural_frequency == [20.0]


def test_the_law_is_reset_before_it_is_asked(pendulum: Robot, at_work: At) -> None:
    _, loop = at_work
    plant = make_plant(pendulum, PlantParameters(robot="-", control_rate_hz=500.0), session=1)
    closed = ClosedLoop(plant, loop.commander.answer, every=2)
    closed.run(0.5)

    class Counting(Law):
        name = "counting"
        resets = updates = 0

        def reset(self, state: RobotState) -> None:
            self.resets += 1
            assert self.updates == 0

        def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
            self.updates += 1
            return np.zeros(1)

    law = Counting()
    loop.commander.exchange(law)
    closed.run(0.1)
    assert (law.resets, law.updates) == (1, 50)
