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
from dyn_service.graph.middleware.discovery import Discovery, Found
from dyn_service.graph.middleware.dyn_service_srvs import GetParametersRequest, GetParametersResponse
from dyn_service.graph.middleware.topics import RUNTIME_DIR
from dyn_service.graph.nodes.robot_state_publisher import RobotStatePublisher, RobotStatePublisherParameters
from dyn_service.messages import ros_type
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.messages.tf2_msgs import TFMessage

NAME = "frames_along"
"""Name of the nodes, in the plants' namespaces."""
GRACE_S = 3.0
"""Time for a starting launch to publish frames itself, s."""
_LOOK_S = 0.5
_ANSWER_S = 2.0
_TURN_S = 0.005
_TAKEN = ("robot", "root", "mimic", "sensors", "joint_states", "multi_dof_joint_states")


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
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._discovery = Discovery()
        self._since: dict[_Key, float] = {}
        self._made: dict[_Key, RobotStatePublisher | None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops publishing and joins the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        next_look = 0.0
        while not self._ended.is_set():
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + _LOOK_S
            nodes = [node for node in self._made.values() if node is not None]
            for node in nodes:
                node.spin_once(_TURN_S)
            if not nodes:
                self._ended.wait(_LOOK_S)
        for key in list(self._made):
            self._drop(key)
        self._context.destroy(linger=0)

    def _look(self) -> None:
        try:
            nodes = self._discovery.nodes()
        except DynError as error:
            self._say(str(error))
            return
        wanted = {}
        for found in nodes:
            key = _Key(found.folder, found.entry.name)
            is_plant = any(end.type == ros_type(PlantState) for end in found.entry.publishers)
            asked = any(fnmatch.fnmatchcase(f"{key.namespace}/tf", each) for each in self._topics)
            if is_plant and asked and not _has_frames(key, nodes):
                wanted[key] = found
        for key in [key for key in self._made if key not in wanted]:
            self._drop(key)
        now = time.monotonic()
        self._since = {key: self._since.get(key, now) for key in wanted}
        for key, found in wanted.items():
            if key not in self._made and now - self._since[key] >= self._grace_s:
                parameters = self._parameters(key, found)
                if parameters is not None:
                    self._made[key] = self._begun(key, parameters)

    def _parameters(self, key: _Key, found: Found) -> RobotStatePublisherParameters | None:
        """Returns the plant's parameters; None if it does not answer yet or has no such parameters."""
        service = f"{key.plant}/get_parameters"
        try:
            launch = Discovery({RUNTIME_DIR: str(key.folder)})  # other launches may have a plant of this name
            answer = launch.call(service, GetParametersRequest(list(_TAKEN)), GetParametersResponse, _ANSWER_S)
        except DynError:
            return None
        said = {name: answer.values[name] for name in _TAKEN}
        files = {name: _from_its_folder(str(said[name]), found.entry.pid) for name in ("robot", "sensors")}
        return RobotStatePublisherParameters(**{**said, **files})

    def _begun(self, key: _Key, parameters: RobotStatePublisherParameters) -> RobotStatePublisher | None:
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
        node = self._made.pop(key)
        if node is not None:
            node.close()


def _has_frames(key: _Key, nodes: Sequence[Found]) -> bool:
    """Returns whether another node publishes frames for the plant."""
    names = {f"{key.namespace}/tf", "/tf"}
    return any(
        end.name in names and end.type == ros_type(TFMessage)
        for found in nodes
        if found.folder == key.folder and found.entry.name != f"{key.namespace}/{NAME}"
        for end in found.entry.publishers
    )


def _from_its_folder(file: str, pid: int) -> str:
    """Returns a path as seen by the process that has it as a parameter; names of shipped robots are unchanged."""
    there = Path(f"/proc/{pid}/cwd") / file
    return str(there.resolve()) if file and there.is_file() else file
