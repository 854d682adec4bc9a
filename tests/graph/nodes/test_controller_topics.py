"""A controller's reference, error and signals as topics: content, rate, and cost without subscribers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dyn_service.control.controller import ReferenceTracker, controller_state, hold_maker
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.control.law import Law
from dyn_service.engine.robot import Robot
from dyn_service.graph.nodes.controllers import computed_torque as controller
from dyn_service.graph.nodes.controllers import gravity_compensation, trajectory_following
from dyn_service.graph.nodes.controllers.controller_kind import ControllerKind, ControlLoop
from dyn_service.graph.nodes.controllers.report import LawSignals
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.messages.control_msgs import DynamicJointState, InterfaceValue, JointTrajectoryControllerState
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from tests.conftest import URDF
from tests.counting import calls_of
from tests.graph.in_process import Nodes, nodes_in
from tests.graph.many_ways import MANY_WAYS
from tests.terms.interpreting import interpreting

PENDULUM = str(URDF / "pendulum.urdf")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path) as nodes:
        yield nodes


class AtWork:
    """A controller's loop and a plant, in simulated time: each state that is due goes through the whole turn."""

    def __init__(self, nodes: Nodes, robot: Robot, kind: ControllerKind[Any], **parameters: Any) -> None:
        self.node = nodes.make("/controller", kind.parameters(**{"record": False, "loads_rate_hz": 0.0, **parameters}))
        self.loop = ControlLoop(self.node, robot, kind.spec)
        self.loop._send = self._sent  # what the plant would get over its socket
        self.states, self.signals = self.loop._state_publisher, self.loop._signals_publisher
        plant = make_plant(robot, PlantParameters(robot=PENDULUM, control_rate_hz=500.0), session=1)
        self.closed = ClosedLoop(plant, self.answer, every=2)
        self.after: Any = lambda state, command: None

    def _sent(self, command: JointCommand) -> None:
        self.command = command

    def answer(self, state: PlantState) -> JointCommand | None:
        assert self.loop.following.due(state)
        self.command = None
        self.loop._control(state)
        self.after(state, self.command)
        return self.command


def listening(nodes: Nodes, kind: Any, topic: str) -> list[Any]:
    """What comes, as it comes."""
    messages: list[Any] = []
    nodes.make("/listener" + topic.replace("/", "_")).create_subscription(kind, topic, messages.append, queue=1000)
    return messages


def test_reference_error_and_command_are_those_of_the_loop(nodes: Nodes, pendulum: Robot) -> None:
    """Fifty times a second of the plant's time; reference - feedback = error."""
    at_work = AtWork(nodes, pendulum, controller.NODE)
    loop, expected = at_work.loop, {}

    def seen(state: PlantState, command: JointCommand) -> None:
        now = loop.following.trajectory.sample(state.stamp - loop.following.begin_s)
        expected[round(1e9 * state.stamp)] = (state, command, now)

    at_work.after = seen
    states = listening(nodes, JointTrajectoryControllerState, "/controller/controller_state")
    signals = listening(nodes, DynamicJointState, "/controller/signals")
    nodes.until(lambda: at_work.states.subscribers and at_work.signals.subscribers)
    at_work.closed.run(1.0)
    received = nodes.until(lambda: len(states) == at_work.states.sent >= 49 and states)
    stamps = [message.header.stamp.nanoseconds() for message in received]
    assert set(np.diff(stamps)) == {20_000_000}
    for message in received:
        state, command, now = expected[message.header.stamp.nanoseconds()]
        assert message.joint_names == ["hinge"]
        assert (message.feedback.positions, message.feedback.velocities) == (state.position, state.velocity)
        assert message.feedback.effort == state.effort
        assert (message.reference.positions, message.reference.velocities) == (now.q.tolist(), now.v.tolist())
        assert message.reference.accelerations == now.a.tolist()
        assert message.reference.time_from_start.seconds() == pytest.approx(
            state.stamp - loop.following.begin_s, abs=1e-9
        )
        np.testing.assert_allclose(message.error.positions, now.q - state.position, atol=1e-12)
        np.testing.assert_allclose(message.error.velocities, now.v - state.velocity, atol=1e-12)
        assert message.output.effort == command.effort
    assert np.ptp([message.reference.positions[0] for message in received]) > 0.05  # it moves
    assert (at_work.signals.sent, signals) == (0, [])  # computed torque has no signals: nothing to say


def test_loads_of_all_joints(nodes: Nodes, pendulum: Robot) -> None:
    """As `constraint_forces` returns them at the plant's states."""
    at_work = AtWork(nodes, pendulum, controller.NODE, loads_rate_hz=50.0)
    answers = {}
    at_work.after = lambda state, command: answers.update(
        {round(1e9 * state.stamp): pendulum.constraint_forces(state.position, state.velocity, state.effort)}
    )
    loads = listening(nodes, DynamicJointState, "/controller/loads")
    nodes.until(lambda: at_work.loop._loads_publisher.subscribers)
    at_work.closed.run(0.5)
    received = nodes.until(lambda: len(loads) == at_work.loop._loads_publisher.sent >= 24 and loads)
    assert {len(message.joint_names) for message in received} == {len(pendulum.all_joint_names)}
    for message in received:
        expected = answers[message.header.stamp.nanoseconds()]
        assert tuple(message.joint_names) == expected.joints
        for row, values in zip(expected.constraint, message.interface_values, strict=True):
            assert values.interface_names == [f"{kind}.{axis}" for kind in ("torque", "force") for axis in "xyz"]
            assert values.values == row.tolist()


def test_topics_without_subscribers_cost_nothing(nodes: Nodes, pendulum: Robot) -> None:
    """In calls: a turn that could publish costs what one costs that never does."""
    cost = {}
    for rate_hz in (0.0, 500.0):
        at_work = AtWork(nodes, pendulum, controller.NODE, state_rate_hz=rate_hz)
        at_work.closed.run(0.1)
        call_counts: list[int] = []
        plain = at_work.loop._control
        at_work.loop._control = lambda state, plain=plain, call_counts=call_counts: call_counts.append(
            calls_of(lambda: plain(state))
        )
        at_work.closed.run(0.1)
        cost[rate_hz] = call_counts
        assert (at_work.signals.sent, at_work.states.sent) == (0, 0)
        nodes.end(at_work.node)
    assert cost[0.0] == cost[500.0]
    assert len(cost[0.0]) == 50


def test_listening_can_be_switched_off_and_a_plant_may_begin_anew(nodes: Nodes, pendulum: Robot) -> None:
    """Its time then begins at 0 again."""
    silent = AtWork(nodes, pendulum, controller.NODE, state_rate_hz=0.0)
    states = listening(nodes, JointTrajectoryControllerState, "/controller/controller_state")
    nodes.until(lambda: silent.states.subscribers)
    silent.closed.run(0.1)
    assert silent.states.sent == 0
    nodes.end(silent.node)
    at_work, loads = AtWork(nodes, pendulum, controller.NODE, loads_rate_hz=50.0), []
    at_work.loop._record_loads = loads.append
    nodes.until(lambda: at_work.states.subscribers)
    at_work.closed.run(0.4)
    loads_before = len(loads)
    first = at_work.states.sent
    plant = make_plant(pendulum, PlantParameters(robot=PENDULUM, control_rate_hz=500.0), session=2)
    at_work.loop.commander.arming.rearm = True
    ClosedLoop(plant, at_work.answer, every=2).run(0.4)
    assert first >= 19
    assert at_work.states.sent >= 2 * first - 1
    assert len(loads) >= 2 * loads_before - 1 >= 37
    assert nodes.until(lambda: states)[0].joint_names == ["hinge"]


def test_the_last_rate_is_that_of_the_run(nodes: Nodes, pendulum: Robot) -> None:
    """Not of the time since the stats before, in which the controller waited for its end and sent nothing."""
    at_work = AtWork(nodes, pendulum, controller.NODE)
    loop, send = at_work.loop, ControlLoop._send.__get__(at_work.loop)
    at_work.closed.run(0.01)
    begin_s = time.monotonic()
    for _ in range(50):
        time.sleep(2e-3)
        send(at_work.command)
    span_s = time.monotonic() - begin_s
    time.sleep(span_s)
    loop._stats(time.monotonic())
    # with the wait, and with the time before the first command
    assert at_work.node.telemetry.latest["rate_hz"] < 26.0 / span_s
    time.sleep(0.05)
    loop._stats(time.monotonic(), has_ended=True)
    last = at_work.node.telemetry.latest
    assert 49.0 / span_s <= last["rate_hz"] == last["mean_rate_hz"] <= 1.0 / 2e-3


def test_a_law_without_a_reference_publishes_none(nodes: Nodes, pendulum: Robot) -> None:
    at_work = AtWork(nodes, pendulum, gravity_compensation.NODE)
    assert at_work.states is None
    names = [end.name for entry in at_work.node.graph.nodes() for end in entry.publishers]
    assert "/controller/signals" in names
    assert "/controller/controller_state" not in names


def test_a_follower_of_goals_is_where_its_goal_is(nodes: Nodes, pendulum: Robot, tmp_path: Path) -> None:
    """The reference is the goal's motion, whose own time it has; the law's signals have no number per joint alone."""
    goals = tmp_path / "goals.yaml"
    goals.write_text(
        "- joint_names: [hinge]\n  points:\n    - {positions: [0.3], velocities: [0], time_from_start: {sec: 1}}\n",
        "utf-8",
    )
    at_work = AtWork(nodes, pendulum, trajectory_following.NODE, goals=str(goals), state_rate_hz=500.0)
    states = listening(nodes, JointTrajectoryControllerState, "/controller/controller_state")
    signals = listening(nodes, DynamicJointState, "/controller/signals")
    nodes.until(lambda: at_work.states.subscribers and at_work.signals.subscribers)
    at_work.closed.run(0.6)
    motion, begun_s = at_work.loop.commander.law.motion()
    received = nodes.until(lambda: len(states) == at_work.states.sent > 250 and states)
    for message in received[-50:]:
        elapsed = message.header.stamp.seconds() - begun_s
        np.testing.assert_allclose(message.reference.positions, motion.sample(elapsed).q, atol=1e-9)
        assert message.reference.time_from_start.seconds() == pytest.approx(elapsed, abs=2e-9)
    assert 0.05 < received[-1].reference.positions[0] < 0.3
    last_signals = nodes.until(lambda: len(signals) == at_work.signals.sent > 250 and signals)[-1]
    parts = dict(zip(last_signals.joint_names, last_signals.interface_values, strict=True))
    assert parts["hinge"].interface_names[-1] == "error"
    assert parts["goal"] == InterfaceValue(["goal"], [1.0])
    assert 0.4 < parts["progress"].values[0] < 0.7


def test_signals_of_each_shape() -> None:
    """A number per joint stands with its joint, all else by its own name."""

    class Showing(Law):
        name = "showing"

        def update(self, state, reference, dt):
            return np.zeros(2)

        def signals(self):
            return {"residual": np.array([1.0, -2.0]), "share": 0.5, "wrench": np.arange(3.0), "none": np.zeros(0)}

    signals = LawSignals(("shoulder", "elbow"), None)
    assert signals.message(0.0).joint_names == []  # before the first update
    signals.take(0.25, Showing())
    message = signals.message(0.25)
    assert message.header.stamp.seconds() == 0.25
    assert dict(zip(message.joint_names, message.interface_values, strict=True)) == {
        "shoulder": InterfaceValue(["residual"], [1.0]),
        "elbow": InterfaceValue(["residual"], [-2.0]),
        "share": InterfaceValue(["share"], [0.5]),
        "wrench": InterfaceValue(["0", "1", "2"], [0.0, 1.0, 2.0]),
    }


def test_joints_with_several_ways_to_move_have_an_error_per_way() -> None:
    """Positions of such joints are not one per name; the message leaves them out rather than misplace them."""
    hull = interpreting(MANY_WAYS, root="floating")
    configuration = hull.configuration
    following = ReferenceTracker(configuration, "f", hold_maker(configuration), 500.0)
    q, v = hull.random_configuration(seed=1), np.linspace(-1.0, 1.0, configuration.nv)
    state = PlantState(
        session=1, seq=0, stamp=0.5, name=configuration.velocity_names, position=q.tolist(), velocity=v.tolist(),
        effort=[0.0] * configuration.nv, mode="active", cause="", since=0.0, epoch=0, armable=True, command_seq=-1,
        command_delay=0.0, fingerprint="f",
    )  # fmt: skip
    following.due(state)
    following.moment(state)
    tangent = np.linspace(0.01, 0.02, configuration.nv)
    shifted = msgspec.structs.replace(
        state, position=configuration.integrate(q, -tangent).tolist(), velocity=[0.0] * configuration.nv
    )
    command = JointCommand(1, 0, 0, "f", 1, configuration.velocity_names, [3.0] * configuration.nv)
    message = controller_state(shifted, following, command)
    assert message.joint_names == list(configuration.velocity_names)
    assert message.feedback.positions == message.reference.positions == []
    now = following.trajectory.sample(0.0)
    np.testing.assert_allclose(
        message.error.positions, configuration.difference(np.array(shifted.position), now.q), atol=1e-12
    )
    np.testing.assert_allclose(message.error.positions, tangent, atol=1e-3)  # to first order in the angle, 0.02
    assert len(message.error.velocities) == configuration.nv
    assert message.output.effort == [3.0] * configuration.nv
