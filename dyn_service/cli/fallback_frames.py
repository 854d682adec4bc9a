"""Frames (tf) of plants without a tf publisher, for `dyn foxglove`."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import zmq

from dyn_service.errors import DynError
from dyn_service.graph.middleware.discovery import Discovery, RunningNode
from dyn_service.graph.middleware.dyn_service_srvs import GetParametersRequest, GetParametersResponse
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.graph.middleware.zmq_sockets import Context, close_context
from dyn_service.graph.nodes.robot_state_publisher import RobotStatePublisher, RobotStatePublisherParameters
from dyn_service.messages import ros_type
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.tf2_msgs import TFMessage
from dyn_service.support.threads import join_within

NAME = "frames_along"
"""Name of the nodes, in the plants' namespaces."""
GRACE_S = 3.0
"""Time for a starting launch to publish frames itself, s."""
_LOOK_S = 0.5
_ANSWER_S = 2.0
_CLOSE_S = 10.0
_TURN_S = 0.005
_PARAMETERS = ("robot", "root", "mimic", "sensors", "joint_states", "multi_dof_joint_states")


class _Key(NamedTuple):
    folder: Path
    plant: str

    @property
    def namespace(self) -> str:
        return self.plant.rpartition("/")[0]


class FallbackFrames:
    """Publishes tf, from a thread, for plants without a tf publisher, until `close`.

    topics: full names or patterns; frames are published only if a tf topic matches. say: called with a line for each
    plant whose frames are published or cannot be. grace_s: how long a plant may be without frames before they are
    published.
    """

    def __init__(self, topics: Sequence[str], say: Callable[[str], None], grace_s: float = GRACE_S) -> None:
        self._topics, self._say, self._grace_s = tuple(topics), say, grace_s
        self._context: Context = zmq.Context()
        self._discovery = Discovery()
        self._since: dict[_Key, float] = {}
        self._publishers: dict[_Key, RobotStatePublisher | None] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops publishing; raises `DeadlineExceededError` if the thread does not end."""
        self._ending.set()
        join_within(self._thread, _CLOSE_S, "the publisher of frames")

    def _run(self) -> None:
        next_look = 0.0
        while not self._ending.is_set():
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + _LOOK_S
            nodes = [node for node in self._publishers.values() if node is not None]
            for node in nodes:
                node.spin_once(_TURN_S)
            if not nodes:
                self._ending.wait(_LOOK_S)
        for key in list(self._publishers):
            self._drop(key)
        close_context(self._context)

    def _look(self) -> None:
        try:
            nodes = self._discovery.nodes()
        except DynError as error:
            self._say(str(error))
            return
        plants = {}
        for running in nodes:
            key = _Key(running.folder, running.entry.name)
            is_plant = any(end.type == ros_type(PlantState) for end in running.entry.publishers)
            is_requested = any(fnmatch.fnmatchcase(f"{key.namespace}/tf", pattern) for pattern in self._topics)
            if is_plant and is_requested and not _has_frames(key, nodes):
                plants[key] = running
        for key in [key for key in self._publishers if key not in plants]:
            self._drop(key)
        now = time.monotonic()
        self._since = {key: self._since.get(key, now) for key in plants}
        for key, running in plants.items():
            if self._ending.is_set():
                return
            if key not in self._publishers and now - self._since[key] >= self._grace_s:
                parameters = self._parameters(key, running)
                if parameters is not None:
                    self._publishers[key] = self._start_publisher(key, parameters)

    def _parameters(self, key: _Key, running: RunningNode) -> RobotStatePublisherParameters | None:
        """Returns the plant's parameters; None if it does not answer yet or has no such parameters."""
        service = f"{key.plant}/get_parameters"
        try:
            # other launches may have a plant of this name
            launch = Discovery({RUNTIME_DIR: str(key.folder)})
            answer = launch.call(service, GetParametersRequest(list(_PARAMETERS)), GetParametersResponse, _ANSWER_S)
        except DynError:
            return None
        parameters = {name: answer.values[name] for name in _PARAMETERS}
        files = {name: _as_seen_by(str(parameters[name]), running.entry.pid) for name in ("robot", "sensors")}
        return RobotStatePublisherParameters(**{**parameters, **files})

    def _start_publisher(self, key: _Key, parameters: RobotStatePublisherParameters) -> RobotStatePublisher | None:
        """Returns a started publisher for this plant; None if it cannot start, which is not retried."""
        node = RobotStatePublisher.alone(f"{key.namespace}/{NAME}", parameters, key.folder, self._context)
        node.services()
        try:
            node.change_state("configure")
            node.change_state("activate")
        except DynError as error:
            node.close()
            self._say(f"no frames of {key.plant}: {error}")
            return None
        self._say(f"nobody publishes {key.namespace}/tf: the frames of {key.plant} are published along")
        return node

    def _drop(self, key: _Key) -> None:
        node = self._publishers.pop(key)
        if node is not None:
            node.close()


def _has_frames(key: _Key, nodes: Sequence[RunningNode]) -> bool:
    """Returns whether another node publishes frames for the plant."""
    names = {f"{key.namespace}/tf", "/tf"}
    return any(
        end.name in names and end.type == ros_type(TFMessage)
        for running in nodes
        if running.folder == key.folder and running.entry.name != f"{key.namespace}/{NAME}"
        for end in running.entry.publishers
    )


def _as_seen_by(file: str, pid: int) -> str:
    """Returns a path as seen by the process that has it as a parameter; names of shipped robots are unchanged."""
    path = Path(f"/proc/{pid}/cwd") / file
    return str(path.resolve()) if file and path.is_file() else file
