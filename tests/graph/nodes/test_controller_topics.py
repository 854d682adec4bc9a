"""A controller's reference, error and signals as topics: content, rate, and cost without subscribers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dyn_service.control.controller import ReferenceTracker, controller_state, hold_maker
from dyn_service.control.dry_run import ClosedLoop
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
    with nodes_in(tmp_path) as made:
        yield made


class AtWork:
    """A controller's loop and a plant, in simulated time: each state that is due goes through the whole turn."""

    def __init__(self, nodes: Nodes, robot: Robot, kind: ControllerKind[Any], **given: Any) -> None:
        self.node = nodes.make("/controller", kind.parameters(**{"record": False, "loads_rate_hz": 0.0, **given}))
        self.loop = ControlLoop(self.node, robot, kind.spec)
        self.loop._send = self._sent  # what the plant would get over its socket
        plant = make_plant(robot, PlantParameters(robot=PENDULUM, control_rate_hz=500.0), session=1)
        self.closed = ClosedLoop(plant, self._answer, every=2)
        self.after: Any = lambda state, command: None

    def _sent(self, command: JointCommand) -> None:
        self.command = command

    def _answer(self, state: PlantState) -> JointCommand | None:
        assert self.loop.following.due(state)
        self.command = None
        self.loop._control(state)
        self.after(state, self.command)
        return self.command


def listening(nodes: Nodes, kind: Any, topic: str) -> list[Any]:
    """What comes, as it comes."""
    got: list[Any] = []
    nodes.make("/listener" + topic.replace("/", "_")).create_subscription(kind, topic, got.append, queue=1000)
    return got


def test_reference_error_and_command_are_those_of_the_loop(nodes: Nodes, pendulum: Robot) -> None:
    """Fifty times a second of the plant's time; reference - feedback = error."""
    at_work = AtWork(nodes, pendulum, controller.NODE)
    loop, expected = at_work.loop, {}

    def seen(state: PlantState, command: JointCommand) -> None:
        now = loop.following.trajectory.sample(state.stamp - loop.following.begin_s)
        expected[round(1e9 * state.stamp)] = (state, command, now)

    at_work.after = seen
    states = listening(nodes, JointTrajectoryControllerState, "/controller/controller_state")
    shown = listening(nodes, DynamicJointState, "/controller/signals")
    nodes.until(lambda: loop._tracked.subscribers and loop._shown.subscribers)
    at_work.closed.run(1.0)
    got = nodes.until(lambda: len(states) == loop._tracked.sent >= 49 and states)
    stamps = [one.header.stamp.nanoseconds() for one in got]
    assert set(np.diff(stamps)) == {20_000_000}
    for one in got:
        state, command, now = expected[one.header.stamp.nanoseconds()]
        assert one.joint_names == ["hinge"]
        assert (one.feedback.positions, one.feedback.velocities) == (state.position, state.velocity)
        assert one.feedback.effort == state.effort
        assert (one.reference.positions, one.reference.velocities) == (now.q.tolist(), now.v.tolist())
        assert one.reference.accelerations == now.a.tolist()
        assert one.reference.time_from_start.seconds() == pytest.approx(state.stamp - loop.following.begin_s, abs=1e-9)
        np.testing.assert_allclose(one.error.positions, now.q - state.position, atol=1e-12)
        np.testing.assert_allclose(one.error.velocities, now.v - state.velocity, atol=1e-12)
        assert one.output.effort == command.effort
    assert np.ptp([one.reference.positions[0] for one in got]) > 0.05  # it moves
    assert (loop._shown.sent, shown) == (0, [])  # computed torque has no signals: nothing to say


def test_topics_without_subscribers_cost_nothing(nodes: Nodes, pendulum: Robot) -> None:
    """In calls: a turn that could publish costs what one costs that never does."""
    cost = {}
    for rate_hz in (0.0, 500.0):
        at_work = AtWork(nodes, pendulum, controller.NODE, state_rate_hz=rate_hz)
        at_work.closed.run(0.1)
        found: list[int] = []
        plain = at_work.loop._control
        at_work.loop._control = lambda state, plain=plain, found=found: found.append(calls_of(lambda: plain(state)))
        at_work.closed.run(0.1)
        cost[rate_hz] = found
        assert (at_work.loop._shown.sent, at_work.loop._tracked.sent) == (0, 0)
        nodes.end(at_work.node)
    assert cost[0.0] == cost[500.0]
    assert len(cost[0.0]) == 50


def test_listening_can_be_switched_off_and_a_plant_may_begin_anew(nodes: Nodes, pendulum: Robot) -> None:
    """Its time then begins at 0 again."""
    never = AtWork(nodes, pendulum, controller.NODE, state_rate_hz=0.0)
    states = listening(nodes, JointTrajectoryControllerState, "/controller/controller_state")
    nodes.until(lambda: never.loop._tracked.subscribers)
    never.closed.run(0.1)
    assert never.loop._tracked.sent == 0
    nodes.end(never.node)
    at_work, loads = AtWork(nodes, pendulum, controller.NODE, loads_rate_hz=50.0), []
    at_work.loop._record_loads = loads.append
    nodes.until(lambda: at_work.loop._tracked.subscribers)
    at_work.closed.run(0.4)
    loads_before = len(loads)
    first = at_work.loop._tracked.sent
    plant = make_plant(pendulum, PlantParameters(robot=PENDULUM, control_rate_hz=500.0), session=2)
    at_work.loop.commander.arming.rearm = True
    ClosedLoop(plant, at_work._answer, every=2).run(0.4)
    assert first >= 19
    assert at_work.loop._tracked.sent >= 2 * first - 1
    assert len(loads) >= 2 * loads_before - 1 >= 37
    assert nodes.until(lambda: states)[0].joint_names == ["hinge"]


def test_a_law_without_a_reference_publishes_none(nodes: Nodes, pendulum: Robot) -> None:
    at_work = AtWork(nodes, pendulum, gravity_compensation.NODE)
    assert at_work.loop._tracked is None
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
    shown = listening(nodes, DynamicJointState, "/controller/signals")
    nodes.until(lambda: at_work.loop._tracked.subscribers and at_work.loop._shown.subscribers)
    at_work.closed.run(0.6)
    motion, begun_s = at_work.loop.commander.law.motion()
    got = nodes.until(lambda: len(states) == at_work.loop._tracked.sent > 250 and states)
    for one in got[-50:]:
        elapsed = one.header.stamp.seconds() - begun_s
        np.testing.assert_allclose(one.reference.positions, motion.sample(elapsed).q, atol=1e-9)
        assert one.reference.time_from_start.seconds() == pytest.approx(elapsed, abs=2e-9)
    assert 0.05 < got[-1].reference.positions[0] < 0.3
    one = nodes.until(lambda: len(shown) == at_work.loop._shown.sent > 250 and shown)[-1]
    parts = dict(zip(one.joint_names, one.interface_values, strict=True))
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
    at = hull.configuration
    following = ReferenceTracker(at, "f", hold_maker(at), 500.0)
    q, v = hull.random_configuration(seed=1), np.linspace(-1.0, 1.0, at.nv)
    state = PlantState(
        session=1, seq=0, stamp=0.5, name=at.velocity_names, position=q.tolist(), velocity=v.tolist(),
        effort=[0.0] * at.nv, mode="active", cause="", since=0.0, epoch=0, armable=True, command_seq=-1,
        command_delay=0.0, fingerprint="f",
    )  # fmt: skip
    following.due(state)
    following.moment(state)
    tangent = np.linspace(0.01, 0.02, at.nv)
    there = msgspec.structs.replace(state, position=at.integrate(q, -tangent).tolist(), velocity=[0.0] * at.nv)
    command = JointCommand(1, 0, 0, "f", 1, at.velocity_names, [3.0] * at.nv)
    found = controller_state(there, following, command)
    assert found.joint_names == list(at.velocity_names)
    assert found.feedback.positions == found.reference.positions == []
    now = following.trajectory.sample(0.0)
    np.testing.assert_allclose(found.error.positions, at.difference(np.array(there.position), now.q), atol=1e-12)
    np.testing.assert_allclose(found.error.positions, tangent, atol=1e-3)  # to first order in the angle, 0.02
    assert len(found.error.velocities) == at.nv
    assert found.output.effort == [3.0] * at.nv
