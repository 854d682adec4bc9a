"""The proxy between a plant and its controller, both in the test's own thread: what passes, what is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.control.joint_states import JointStates
from dyn_service.errors import DeadlineExceededError
from dyn_service.hil import real_time
from dyn_service.hil.faults import Bias, Delay, Fault, Loss
from dyn_service.hil.real_time import COMMANDS, STATES, Proxy
from dyn_service.hil.signals import MessageLog
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration, Limits
from tests.graph.in_process import Nodes, nodes_in

AT = Configuration.from_wire([{"name": "a", "type": "continuous", "axis": [0, 0, 1]}])
WAYS = {"plant_state": "/plant_state", "joint_commands": "/joint_commands"}


def state(seq: int, stamp: float) -> PlantState:
    """The seq-th."""
    end = ("active", "", 99.0, 0, True, -1, 0.0, "f00")
    return PlantState(1, seq, stamp, ("a",), [float(seq)], [1.0], [0.0], *end)


class Rig:
    """A plant that sends one state after the other, a controller that sends commands, and the proxy.

    The plant has run for 100 s already; its time all but stands until `step_s` is set, so that no run is over before
    those who take part in it have found each other. Steps are powers of two: sums of them are exact.
    """

    def __init__(self, nodes: Nodes, *faults: Fault, topics: dict[str, str] = WAYS) -> None:
        self.nodes, self.taken, self.got = nodes, list[PlantState](), list[JointCommand]()
        self.stamps, self.step_s = [100.0], 2.0**-20
        plant, controller = nodes.make("/plant"), nodes.make("/controller")
        self._states = plant.create_publisher(PlantState, WAYS["plant_state"])
        plant.create_subscription(JointCommand, WAYS["joint_commands"], self.got.append, queue=1000)
        controller.create_subscription(PlantState, STATES, self.taken.append, queue=1000)
        self.commands = controller.create_publisher(JointCommand, COMMANDS)
        self.log = MessageLog(AT, JointStates(AT), Limits(*[np.ones(1)] * 4), 0.1, 0.1, "arm")
        self.proxy = Proxy(nodes.folder, topics, self.log, faults, 0)

    def until(self, condition: Callable[[], Any], *, commands: bool = False) -> None:
        """Sends states and commands until a condition holds, because the first are lost before discovery completes."""

        def turned() -> Any:
            self._states.publish(state(len(self.stamps) - 1, self.stamps[-1]))
            self.stamps.append(self.stamps[-1] + self.step_s)
            if commands:
                n = self.commands.sent
                self.commands.publish(JointCommand(1, n, 0, "f00", 5, ("a",), [10.0 + n]))
            return condition()

        self.nodes.until(turned)

    def more(self, messages: list[Any], **how: bool) -> None:
        """Until there are five more of them."""
        count = len(messages)
        self.until(lambda: len(messages) >= count + 5, **how)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path) as node_pair:
        yield node_pair


def test_nothing_passes_before_it_is_open_and_faults_are_for_who_listens(nodes: Nodes) -> None:
    rig = Rig(nodes, Bias(0.5, channel="states", from_s=2.0), Bias(-2.0, from_s=5.0))
    proxy, log = rig.proxy, rig.log
    try:
        rig.until(lambda: proxy.state is not None and proxy.state.seq > 20)
        assert (rig.taken, log.states, log.received, proxy.begin_s, proxy.now_s) == ([], [], [], None, 0.0)
        proxy.open()
        rig.until(lambda: rig.got and rig.taken, commands=True)
        rig.step_s = 0.125
        rig.until(lambda: proxy.now_s > 10.0, commands=True)
        assert proxy.begin_s is not None
        # on the log times begin with the run, and the plant is as it is; the controller gets its times as they are
        assert log.states[0].stamp == 0.0
        for message in log.states:
            assert (message.stamp, message.since) == (rig.stamps[message.seq] - proxy.begin_s, 99.0 - proxy.begin_s)
            assert message.position == [float(message.seq)]
        offset = lambda message: 0.5 if rig.stamps[message.seq] - proxy.begin_s >= 2.0 else 0.0  # of the run's time
        assert {offset(message) for message in rig.taken} == {0.0, 0.5}
        for message in rig.taken:
            assert (message.stamp, message.since, message.position) == (
                rig.stamps[message.seq],
                99.0,
                [message.seq + offset(message)],
            )
        for row, message in list(log.received):
            assert (message.stamp, message.position) == (
                rig.stamps[message.seq] - proxy.begin_s,
                [message.seq + offset(message)],
            )
            assert log.states[row].seq >= message.seq  # no row before the state itself
        assert proxy.now_s >= log.received[-1].state.stamp
        rig.more(rig.got, commands=True)
        sent_s = {message.state_seq: t for t, message in log.commands}
        assert all(
            message.effort == [10.0 + message.state_seq - 2.0 * (sent_s[message.state_seq] >= 5.0)]
            for message in rig.got
        )
        assert rig.got[-1].effort == [8.0 + rig.got[-1].state_seq]
        assert all(message.effort == [10.0 + message.state_seq] for _, message in log.commands)
        times = [t for t, _ in log.commands]
        assert times == sorted(times)
        assert 0.0 <= times[0] < times[-1] <= proxy.now_s
    finally:
        proxy.close()
    assert proxy.fault == ""


def test_a_fault_that_comes_later_and_what_is_not_written_down(nodes: Nodes) -> None:
    rig = Rig(nodes)
    proxy, log = rig.proxy, rig.log
    try:
        proxy.open()
        rig.more(rig.taken)
        rig.more(rig.got, commands=True)
        proxy.writes = False
        rig.more(rig.taken)  # what was under way as it ended is through
        counts = len(log.states), len(log.received), len(log.commands)
        rig.more(rig.taken)
        rig.more(rig.got, commands=True)
        assert (len(log.states), len(log.received), len(log.commands)) == counts
        proxy.inject(Loss(1.0, channel="states"))
        state = proxy.state
        assert state is not None
        rig.until(lambda: proxy.state.seq > state.seq + 50)
        assert rig.taken[-1].seq <= state.seq + 1  # the one that came in just then
        proxy.inject(Delay(0.05))
        count, begin_s = rig.commands.sent, time.monotonic()
        rig.until(lambda: rig.got[-1].state_seq > count, commands=True)
        assert time.monotonic() - begin_s >= 0.05
    finally:
        proxy.close()


def test_a_proxy_that_does_not_end_is_an_error(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_time, "_PROXY_CLOSE_S", 0.1)
    proxy = Rig(nodes).proxy
    with (
        proxy.condition,
        pytest.raises(DeadlineExceededError, match="the proxy between plant and controller still runs"),
    ):
        proxy.close()
    monkeypatch.undo()
    proxy.close()


def test_a_plant_that_cannot_be_reached_ends_it_in_a_sentence(nodes: Nodes) -> None:
    proxy = Rig(nodes, topics=WAYS | {"plant_state": "tcp://nowhere"}).proxy
    with proxy.condition:
        assert proxy.condition.wait_for(lambda: proxy.fault, 30.0)
    assert "tcp://nowhere" in proxy.fault
    proxy.close()
