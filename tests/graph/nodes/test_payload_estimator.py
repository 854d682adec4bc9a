"""The payload estimator with real sockets in one process, and in a launch whose controller uses it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dyn_service import Overlay, Payload, Robot
from dyn_service.graph.nodes.payload_estimator import PayloadEstimatorNode, PayloadEstimatorParameters
from dyn_service.messages.dyn_service_msgs import LinkPayload, PlantState
from dyn_service.support.shipped import find_robot
from tests.conftest import ROOT
from tests.graph.in_process import nodes_in

BALL = Overlay(Payload("pendulum", 0.5, (0.0, 0.0, -1.0)))


def states(robot: Robot, count: int) -> list[PlantState]:
    """A pendulum with a ball at its tip swings by 1 rad, 200 states a second."""
    t = np.arange(count) / 200.0
    q, v, a = 0.3 + np.sin(3.0 * t), 3.0 * np.cos(3.0 * t), -9.0 * np.sin(3.0 * t)
    tau = robot.inverse_dynamics(q[:, None], v[:, None], a[:, None], overlay=BALL)[:, 0]
    tau[1:] = (tau[1:] + tau[:-1]) / 2.0
    state = PlantState(1, 0, 0.0, ("hinge",), [], [], [], "active", "", 0.0, 1, False, 0, 0.0, robot.fingerprint)
    return [
        msgspec.structs.replace(state, seq=k, stamp=float(t[k]), position=[q[k]], velocity=[v[k]], effort=[tau[k]])
        for k in range(count)
    ]


def test_states_in_payloads_out(tmp_path: Path) -> None:
    robot = Robot.from_file(find_robot("pendulum"))
    with nodes_in(tmp_path) as nodes:
        parameters = PayloadEstimatorParameters(robot="pendulum", link="pendulum", rate_hz=100.0, extent_m=1.0)
        estimator = nodes.make("/arm/payload_estimator", parameters, PayloadEstimatorNode)
        plant, listener = nodes.make("/arm/plant"), nodes.make("/arm/listener")
        for transition in ("configure", "activate"):
            estimator.change_state(transition)
        publisher = plant.create_publisher(PlantState, "plant_state")
        payloads: list[LinkPayload] = []
        listener.create_subscription(LinkPayload, "payload", payloads.append, queue=100)
        nodes.until(publisher.has_subscribers)
        for state in states(robot, 400):
            publisher.publish(state)
        publisher.publish(state)  # as a plant that is released
        nodes.until(lambda: payloads and payloads[-1].header.stamp.seconds() >= 1.8)
        # As a bag that is played again from its begin: no window contains states of both times.
        for state in states(robot, 30):
            publisher.publish(state)
        nodes.until(lambda: estimator.states.received == 431)
    payload = payloads[-1]
    assert (payload.header.frame_id, payload.fingerprint) == ("pendulum", robot.fingerprint)
    assert (estimator.estimator.windows, estimator.estimator.changes) == (18, 0)
    # One hinge knows the first moment and the inertia about it, not the mass. 18 windows beside a noise of 0.2 N m.
    assert payload.mass * payload.com[2] == pytest.approx(-0.5, abs=0.01)
    assert payload.errors[0] > 0.1 * payload.mass


@pytest.mark.slow
def test_a_launch_tracks_better_with_the_estimate(tmp_path: Path) -> None:
    """The shipped Panda in lockstep, with 0.3 kg that the controller's model lacks."""
    rms = {}
    for name, error in (("without", "0.0"), ("with", "0.02")):
        report = tmp_path / name
        options = f"payload_of:=panda_hand payload_error:={error} clock:=lockstep --duration 12 --report {report}"
        command = f"launch panda_computed_torque plant_too:={ROOT}/config/panda_payload.yaml {options}"
        subprocess.run([sys.executable, "-m", "dyn_service", *command.split()], check=True, cwd=ROOT)
        with np.load(report / "recording.npz") as recording:
            reference, columns = recording["plant.reference"], list(recording["plant.plant.columns"])
            motion = recording["plant.plant"][:, [columns.index(f"q.panda_joint{k}") for k in range(1, 8)]]
        late = (motion - reference[:, 1:8])[reference[:, 0] > 8.0]
        rms[name] = float(np.sqrt((late**2).mean()))
    assert rms["without"] > 1e-3
    # The plant has neither noise nor friction: what remains is the step of the last update, here a factor of 2,000.
    assert rms["with"] < rms["without"] / 100.0
