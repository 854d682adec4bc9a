"""Positions or velocities along the reference, for a robot whose drives do the rest.

| commanded | command | with the drives of `drive.py` |
|---|---|---|
| positions | q_ref, which goes on with v_ref | e = a_ref / w^2: what the drive does not know of the reference |
| velocities | v_ref + k (q_ref - q) | e = a_ref / (k w), for k below w / 4 without overshoot |

Beside them may go, as efforts, M(q) a_ref, to drives that know their robot's model: then no error is left but what the
model lacks; or all of inverse dynamics, to drives without a model, which else lag by K^-1 times the efforts that they
miss.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.command import Command, Interface
from dyn_service.control.gains import per_joint
from dyn_service.control.law import Law, RobotState
from dyn_service.control.references.trajectory import Reference
from dyn_service.errors import InvalidArgumentError

FeedForward = Literal["none", "acceleration", "inverse_dynamics"]


class ReferenceCommand(Law):
    """The reference, as a command. position_gain: k, 1/s, where velocities are commanded. feed_forward: the efforts.

    Raises:
        InvalidArgumentError: The interface is that of efforts, or the gain negative or no number.
    """

    name = "reference_command"

    def __init__(
        self, model: RobotQueries, interface: Interface, position_gain: float, feed_forward: FeedForward = "none"
    ) -> None:
        if interface == "effort":
            raise InvalidArgumentError("command_interface: expected position or velocity, found effort")
        self.model, self.interface, self.feed_forward = model, interface, feed_forward
        self.position_gain = float(per_joint("position_gain", position_gain, 1)[0])
        self._rest = np.zeros(model.configuration.nv)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Command:
        """One question, `mass_matrix` or `inverse_dynamics`, or none."""
        effort = self._efforts(state, reference)
        if self.interface == "position":
            return Command(reference.q, reference.v, effort)
        away = self.model.configuration.error(state.q, reference.q)
        return Command(reference.v + self.position_gain * away, effort=effort)

    def _efforts(self, state: RobotState, reference: Reference) -> Array | None:
        if self.feed_forward == "none":
            return None
        if self.feed_forward == "acceleration":
            return self.model.mass_matrix(state.q) @ reference.a
        return self.model.inverse_dynamics(state.q, state.v, reference.a)
