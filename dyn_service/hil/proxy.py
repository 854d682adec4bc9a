"""The proxy between the processes of a plant and its controller: it logs all messages and injects faults into them.

The controller listens and speaks to topics of this proxy, the proxy to those of the plant. It is a node in a thread of
the test's process; nothing reaches the controller before `open`, so that a run begins when all are ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from dyn_service.errors import DynError
from dyn_service.graph.middleware.node import Node
from dyn_service.hil.channel import Channel
from dyn_service.hil.faults import Fault
from dyn_service.hil.message_log import MessageLog, Seen
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.support.parameters import NoParameters

STATES, COMMANDS = "/hil/plant_state", "/hil/joint_commands"
"""The controller's topics."""
_QUEUE = 10_000
_TURN_S = 0.05


@dataclass(frozen=True)
class PlantTopics:
    """The plant's topics, by their full names or as endpoints."""

    states: str
    commands: str


class Proxy:
    """The proxy of one run.

    Args:
        folder: Where the launch's nodes find each other.
        topics: The plant's topics.
        log: Where it writes messages while `writes`; times are from when the run began.
        faults: What goes wrong.
        seed: Of all chance.
    """

    def __init__(self, folder: Path, topics: PlantTopics, log: MessageLog, faults: Sequence[Fault], seed: int) -> None:
        self._folder, self._topics, self._log = folder, topics, log
        self._states: Channel[PlantState] = Channel(faults, "states", seed, log.at)
        self._commands: Channel[JointCommand] = Channel(faults, "commands", seed, log.at)
        self.changed = threading.Condition()
        self.begin_s: float | None = None
        self.state: PlantState | None = None
        self.fault = ""
        self.writes = True
        self._open = self._ended = False
        self._thread = threading.Thread(target=self._run, name="hil", daemon=True)
        self._thread.start()

    @property
    def now_s(self) -> float:
        """The plant's time since the run began."""
        return 0.0 if self.state is None or self.begin_s is None else self.state.stamp - self.begin_s

    def open(self) -> None:
        """Lets the run begin, with the next state."""
        self._open = True

    def inject(self, fault: Fault) -> None:
        """From now on this goes wrong too."""
        with self.changed:
            self._states.add(fault)
            self._commands.add(fault)

    def close(self) -> None:
        """Ends it."""
        self._ended = True
        self._thread.join()

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            node = Node.alone("/hil/proxy", NoParameters(), self._folder, context)
            try:
                node.create_subscription(PlantState, self._topics.states, self._on_state, name=STATES, queue=_QUEUE)
                node.create_subscription(JointCommand, COMMANDS, self._on_command, queue=_QUEUE)
                states = node.create_publisher(PlantState, STATES)
                commands = node.create_publisher(JointCommand, self._topics.commands, name=COMMANDS, binds=False)
                while not self._ended:
                    waits = min(self._states.next_s, self._commands.next_s) - time.monotonic()
                    node.spin_once(min(max(waits, 0.0), _TURN_S))
                    now = time.monotonic()
                    with self.changed:
                        arrived, sent = self._states.due(now), self._commands.due(now)
                    for state in arrived:
                        if self.writes:
                            self._log.seen.append(Seen(max(0, len(self._log.states) - 1), self._shifted(state)))
                        states.publish(state)
                    for command in sent:
                        commands.publish(command)
            finally:
                node.close()
        except DynError as error:
            self.fault = str(error)
        finally:
            context.destroy(linger=0)
            with self.changed:
                self.changed.notify_all()

    def _on_state(self, state: PlantState) -> None:
        with self.changed:
            if self._open and self.begin_s is None:
                self.begin_s = state.stamp
            if self.begin_s is not None and self.writes:
                self._log.states.append(self._shifted(state))
            if self.begin_s is not None:
                self._states.send(state, time.monotonic(), state.stamp - self.begin_s)
            self.state = state
            self.changed.notify_all()

    def _on_command(self, command: JointCommand) -> None:
        with self.changed:
            if self.writes:
                self._log.commands.append((self.now_s, command))
            self._commands.send(command, time.monotonic(), self.now_s)

    def _shifted(self, state: PlantState) -> PlantState:
        """The state with the run's times."""
        begin_s = self.begin_s or 0.0
        return msgspec.structs.replace(state, stamp=state.stamp - begin_s, since=state.since - begin_s)
