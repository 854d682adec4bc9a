"""What a period of the plant and of a controller costs, in calls of functions, which do not depend on the machine.

`python -m qa.load.period_cost` measures the same in a launch, with system calls and CPU time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from dyn_service.control.joint_states import JointStates
from dyn_service.engine.robot import Robot
from dyn_service.graph.middleware import pubsub
from dyn_service.graph.nodes.controllers import computed_torque
from dyn_service.graph.nodes.controllers.controller_kind import ControlLoop
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.sensor_msgs import JointState
from tests.counting import calls_of
from tests.graph.in_process import Nodes, nodes_in
from tests.graph.nodes.test_plant_clock import Commanding, loop_of

MAX_PLANT_CALLS = 215
"""In the two periods between states, one of them with a command; 411 when each check was a function of NumPy and the
step was a loop over stages.
"""
MAX_CONTROL_CALLS = 100
"""From a state to its command, with the query in this process; 248 when a multi-sine was a sum of three motions."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path) as group:
        yield group


class Clock:
    """Time that passes only while the loop sleeps."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(1e9 * seconds) + 1


def test_a_period_of_the_plant(panda: Robot, tmp_path: Path) -> None:
    context: zmq.Context = zmq.Context()
    node, loop = loop_of(panda, tmp_path, context, state_rate_hz=500.0, control_rate_hz=500.0)
    commanding, clock = Commanding(context, tmp_path), Clock()
    loop.pacer.now_ns, loop.pacer.sleep = clock.now_ns, clock.sleep
    loop.pacer.restart()
    rest = np.zeros(panda.nv)
    weight = panda.inverse_dynamics(loop.plant.q, rest, rest).tolist()

    def period() -> None:
        loop._period()
        node.spin_once()
        node.beat()

    try:
        while not any(loop.plant.safety.counters.refused.values()):
            commanding.commands.publish(JointCommand(0, 0, 0, "", 1, (), []))
            commanding.node.spin_once(0.01)
            period()
        costs = []
        for _ in range(60):
            costs.append(calls_of(period) + calls_of(period))
            newest = loop.plant.counters.steps // 2 * 2
            state = commanding.state(lambda state, newest=newest: state.seq == newest)
            commanding.answer(state, effort=weight)
            assert loop.topics._commands.socket.poll(10_000)
        assert loop.plant.safety.counters.commands == 59  # all but the last one, which comes after the last period
        assert statistics.median(costs[20:]) <= MAX_PLANT_CALLS
    finally:
        loop.plant.robot.close()
        commanding.node.close()
        node.close()
        context.destroy(linger=0)


def test_an_update_of_the_controller(nodes: Nodes, panda: Robot) -> None:
    p = computed_torque.ControllerParameters(record=False, loads_rate_hz=0.0)
    loop: ControlLoop[Any] = ControlLoop(nodes.make("/controller", p), panda, computed_torque.NODE.spec)
    plant = make_plant(panda, PlantParameters(robot="-", control_rate_hz=500.0), session=1)
    commands: list[JointCommand] = []
    loop._send = commands.append
    costs = []
    for _ in range(1500):  # beyond the ramp of the motion
        state = plant.publish()
        assert loop.following.due(state)
        costs.append(calls_of(lambda state=state: loop._control(state)))
        assert plant.offer(commands[-1])
        plant.advance(2)
    assert statistics.median(costs[-200:]) <= MAX_CONTROL_CALLS
    assert statistics.median(costs[200:800]) <= MAX_CONTROL_CALLS + 30  # while the motion is faded in


def test_ros_messages_without_subscribers_are_not_made(
    nodes: Nodes, panda: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, loop = loop_of(panda, nodes.folder, nodes.context)
    nodes.all.append(node)
    converted: list[PlantState] = []
    original = JointStates.of_state
    monkeypatch.setattr(JointStates, "of_state", lambda self, state: converted.append(state) or original(self, state))
    loop.topics.send(loop.plant.publish())
    assert (converted, loop.topics.published) == ([], 1)
    received: list[JointState] = []
    nodes.make("/listener").create_subscription(JointState, "joint_states", received.append, queue=10)

    def publish() -> bool:
        loop.topics.send(loop.plant.publish())
        return bool(received)

    nodes.until(publish)
    assert received[0].position == converted[0].position


def test_a_message_that_a_poll_reported_is_received_without_another_look(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = nodes.make("/plant").create_publisher(JointState, "joint_states")
    subscription = nodes.make("/controller").create_subscription(JointState, "joint_states")
    nodes.until(lambda: out.subscribers)
    out.publish(JointState(name=["a"]))
    assert subscription.socket.poll(10_000)
    monkeypatch.setattr(pubsub, "is_readable", lambda socket: pytest.fail("it looked again"))
    message = subscription.take(is_ready=True)
    assert message is not None
    assert message.name == ["a"]


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "explicit_euler"])
def test_the_step_of_the_plant_is_one_kernel_of_its_formula(panda: Robot, integrator: Any) -> None:
    """Equal up to rounding, because a kernel may add in another order."""
    plant = make_plant(panda, PlantParameters(robot="-", integrator=integrator, substeps=2), session=1)
    engine: Any = plant.robot.engine
    whole_step, rng = engine.whole_step, np.random.default_rng(0)
    assert whole_step is not None
    for _ in range(20):
        q, v, tau = rng.uniform(-1.0, 1.0, (3, panda.nv))
        engine.whole_step = whole_step
        assert calls_of(lambda q=q, v=v, tau=tau: engine.step(q, v, tau, 1e-3)) <= 60
        by_kernel = engine.step(q, v, tau, 1e-3)
        engine.whole_step = None
        by_formula = engine.step(q, v, tau, 1e-3)
        for kernel, formula in zip(by_kernel, by_formula, strict=True):
            np.testing.assert_allclose(kernel, formula, rtol=1e-12, atol=1e-12)
