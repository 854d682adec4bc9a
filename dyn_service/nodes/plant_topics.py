"""What a plant sends and takes: its states, the time where it is not that of the wall, commands."""

from __future__ import annotations

from typing import Any

import zmq

from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import decode, encode
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.rosgraph_msgs import Clock
from dyn_service.nodes.plant_parameters import PlantParameters
from dyn_service.nodes.runtime import Node

CLOCK = "/clock"
"""Everybody's topic, whatever the namespace, as in ROS."""


class PlantTopics:
    """The topics of one plant. published: states sent out. malformed: commands that were none."""

    def __init__(self, node: Node[Any], p: PlantParameters) -> None:
        self._states = node.socket(zmq.PUB, p.joint_states, bind=True)
        self._commands = node.socket(zmq.PULL, p.joint_commands, bind=True)
        self._clock = node.socket(zmq.PUB, CLOCK, bind=True) if p.clock != "real_time" else None
        self.published = self.malformed = 0

    def send(self, state: PlantState) -> None:
        """Sends a state out, and the time."""
        if self._clock is not None:
            self._clock.send(encode(Clock(Time.from_seconds(state.stamp))), zmq.NOBLOCK)
        self._states.send(encode(state), zmq.NOBLOCK)
        self.published += 1

    def take(self, wait_ms: int = 0) -> JointCommand | None:
        """The newest command, or None where there is none within that time; one that is none is counted."""
        if wait_ms and not self._commands.poll(wait_ms, zmq.POLLIN):
            return None
        try:
            return decode(JointCommand, self._commands.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None
        except InvalidArgumentError:
            self.malformed += 1
            return None
