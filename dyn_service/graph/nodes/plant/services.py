"""A simulated plant's services: set_state, reset, push, set_payload, step.

    dyn service call /plant/push '{link: panda_hand, force: [0, 20, 0], duration: 0.1}'

Pushes and payloads also act on a robot under command. `set_state` and `reset` are refused while the robot is under
command, because a controller would see the jump as a motion. Requests are checked against the robot before any change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.queries import Overlay, Payload, Wrench
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import RUNNING
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.nodes.plant import srvs
from dyn_service.graph.nodes.plant.factory import PlantParameters, initial_position, make_engine, values_by_joint
from dyn_service.graph.nodes.plant.loop import PlantLoop
from dyn_service.graph.nodes.plant.srvs import MAX_PUSH_S, Values
from dyn_service.service.protocol.inputs import unpack_overlay

MAX_PUSHES = 32
"""Largest number of simultaneous pushes."""


class PlantChanges:
    """Changes of a simulated plant at runtime. payloads: those that were set, by link. model: the robot of its
    parameters p.
    """

    def __init__(self, plant: Plant, model: Robot, p: PlantParameters) -> None:
        if not isinstance(plant.robot, SimulatedRobot):
            raise FailedPreconditionError("the plant's robot is a real one: its state and payload cannot be set")
        self.plant, self._robot, self._model, self._p = plant, plant.robot, model, p
        self._overlay = unpack_overlay(p.overlay, "overlay")
        self.payloads: dict[str, Payload] = {}

    def prepare(self) -> None:
        """Compiles the queries of pushes and payloads, because compiling in the loop would miss its deadlines."""
        model, still = self._model, np.zeros(self._model.nv)
        q = self._robot.q
        model.inverse_dynamics(q, still, still, wrenches=[Wrench(model.link_names[-1])])
        if self._p.engine == "own":
            model.overlaid(Overlay(gravity=model.gravity)).forward_dynamics(q, still, still)

    def set_state(self, position: Values, velocity: Values) -> None:
        """Sets the robot's state; joints that are left out keep their position, at rest.

        Raises:
            FailedPreconditionError: The robot is under command.
            InvalidArgumentError: A joint does not exist, or a value is beyond its limit or not finite.
        """
        self._check_idle("set_state")
        at, limits = self._model.configuration, self._model.limits
        q = values_by_joint(position, at.position_names, self._robot.q, "position")
        v = values_by_joint(velocity, at.velocity_names, np.zeros(at.nv), "velocity")
        at.check_unit(q, "position", "position")
        for name, values, lower, upper, names in (
            ("position", q, limits.lower, limits.upper, at.position_names),
            ("velocity", v, -limits.speeds, limits.speeds, at.velocity_names),
        ):
            # NaN is outside; limits may be infinite
            outside = ~((values >= lower) & (values <= upper) & np.isfinite(values))
            if outside.any():
                k = int(np.argmax(outside))
                raise InvalidArgumentError(
                    f"{name} of '{names[k]}' is {values[k]:g}: expected a number, {lower[k]:g} to {upper[k]:g}",
                    path=name,
                )
        self._robot.set_state(q, v)
        self.plant.look()

    def reset(self) -> None:
        """Resets the robot to its first position, at rest, without pushes and with its parameters' payload."""
        self._check_idle("reset")
        if self.payloads:
            self._carry({})
        self._robot.end_pushes()
        at = self._model.configuration
        self._robot.set_state(initial_position(self._p.initial_position, at, self._model.limits), np.zeros(at.nv))
        self.plant.look()

    def push(self, wrench: Wrench, duration_s: float) -> None:
        """Applies a wrench for `duration_s`.

        Raises:
            NotFoundError: The robot has no such link.
            InvalidArgumentError: A number is not finite, the wrench is a batch, or the duration is out of range.
            ResourceExhaustedError: `MAX_PUSHES` act already.
        """
        if not 0.0 < duration_s <= MAX_PUSH_S:
            raise InvalidArgumentError(
                f"duration is {duration_s:g}: expected more than 0 and at most {MAX_PUSH_S:g} s", path="duration"
            )
        if len(self._robot.pushes) >= MAX_PUSHES:
            raise ResourceExhaustedError(f"{MAX_PUSHES} pushes act already")
        for name in ("force", "torque", "point"):
            values = np.asarray(getattr(wrench, name))
            if values.shape != (3,) or not np.isfinite(values).all():
                raise InvalidArgumentError(f"{name} is {values.tolist()}: expected 3 finite numbers", path=name)
        still = np.zeros(self._model.nv)
        # checks the wrench and compiles its kernel
        self._model.inverse_dynamics(self._robot.q, still, still, wrenches=[wrench])
        self._robot.push(wrench, max(1, round(duration_s / self.plant.dt_s)))

    def set_payload(self, payload: Payload) -> None:
        """Sets the payload of a link; a mass of 0 removes it.

        Raises:
            NotFoundError: The robot has no such link.
            InvalidArgumentError: The payload is physically impossible, or the plant's robot is of an MJCF file or FMU.
        """
        shapes = [np.shape(part) for part in (payload.mass, payload.com, payload.inertia)]
        if shapes != [(), (3,), (3, 3)]:
            raise InvalidArgumentError(
                f"mass, com and inertia are of the shapes {', '.join(map(str, shapes))}: expected those of one payload",
                path="mass",
            )
        # checks the payload
        self._model.overlaid(Overlay(payloads=payload if payload.mass else replace(payload, mass=1.0)))
        payloads = {link: each for link, each in self.payloads.items() if link != payload.link}
        self._carry({**payloads, payload.link: payload} if payload.mass else payloads)

    def _carry(self, payloads: dict[str, Payload]) -> None:
        if self._p.mjcf or self._p.fmu:
            raise InvalidArgumentError("payloads cannot be set for a robot of an MJCF file or FMU: specify them there")
        own = self._overlay.payloads
        carried = [*([own] if isinstance(own, Payload) else own), *payloads.values()]
        overlay = replace(self._overlay, payloads=carried)
        plain = not (carried or overlay.links or overlay.joints or overlay.locked or overlay.gravity is not None)
        real = self._model if plain else self._model.overlaid(overlay)
        self._robot.change_engine(make_engine(real, self._p, self._robot.q))
        if self._robot.measuring is not None:
            self._robot.measuring.sensors.of(real)
        self.payloads = payloads

    def _check_idle(self, what: str) -> None:
        mode = self.plant.safety.mode
        if mode in RUNNING:
            raise FailedPreconditionError(f"{what}: the robot is under command ({mode}): stop its controller first")


def create_services(node: Node[Any], loop: PlantLoop, changes: PlantChanges) -> None:
    """Creates the services of a plant's node."""

    def serve(name: str, kind: type[msgspec.Struct], change: Callable[[Any], None]) -> None:
        def handle(request: Any) -> srvs.PlantTimeResponse:
            change(request)
            return srvs.PlantTimeResponse(round(changes.plant.time_s, 9), changes.plant.safety.mode)

        node.create_service(f"~/{name}", kind, handle)

    def push(request: srvs.PushRequest) -> None:
        wrench = msgspec.structs.asdict(request)
        duration_s = wrench.pop("duration")
        changes.push(Wrench(**wrench), duration_s)

    serve("set_state", srvs.SetStateRequest, lambda request: changes.set_state(request.position, request.velocity))
    serve("reset", srvs.ResetRequest, lambda request: changes.reset())
    serve("push", srvs.PushRequest, push)
    serve("set_payload", srvs.SetPayloadRequest, lambda r: changes.set_payload(Payload(**msgspec.structs.asdict(r))))
    serve("step", srvs.StepRequest, lambda request: loop.step_unanswered(request.steps))
