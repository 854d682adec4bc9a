"""Requests and responses of a plant's own services; see `plant_services`.

What a simulated plant can be asked to suffer: another state, a push, a payload. In process, and as services.

    dyn service call /plant/push '{link: panda_hand, force: [0, 20, 0], duration: 0.1}'

Pushes and payloads come to a robot that is under command as well: that is what they are for. To be put elsewhere is
nothing that a robot can do, and a controller would take it for a motion: that is refused while the robot is under
command. All of it is checked against the robot before any of it is done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from dyn_service.api.queries import Overlay, Payload, Wrench
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import RUNNING
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.nodes.plant.factory import make_engine
from dyn_service.graph.nodes.plant.loop import PlantLoop
from dyn_service.graph.nodes.plant.parameters import PlantParameters, initial_position, values_by_joint
from dyn_service.service.protocol.overlays import unpack_overlay

Three = tuple[float, float, float]
Values = list[float] | dict[str, float | dict[str, float]]
"""By joint (and its part where it has several), or in order."""

MAX_PUSH_S = 60.0
MAX_STEPS = 10_000


class SetStateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Puts a simulated robot somewhere else. position: rad | m; velocity: rad/s | m/s: by joint (and its part where it
    has several) or in order. A joint that is left out stays where it is, at rest.
    """

    position: Values = {}
    velocity: Values = {}


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Puts a simulated robot where it began, at rest, without pushes and with the payload of its parameters."""


class PushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lets a force (N) and a torque (N m) act on a link for so many s of the plant's time.

    point: m, where the force acts, in the link's frame. frame: the axes of both: `world`, or the name of a link.
    """

    link: str
    duration: Annotated[float, Meta(gt=0.0, le=MAX_PUSH_S)]
    force: Three = (0.0, 0.0, 0.0)
    torque: Three = (0.0, 0.0, 0.0)
    point: Three = (0.0, 0.0, 0.0)
    frame: str = "world"


class SetPayloadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lets a link carry something from now on, in place of what a request before let it carry; the parameters' overlay
    stays.

    mass: kg, 0 for nothing. com: m, its centre of mass in the link's frame. inertia: kg m^2, about that, in the link's
    axes.
    """

    link: str
    mass: Annotated[float, Meta(ge=0.0)]
    com: Three = (0.0, 0.0, 0.0)
    inertia: tuple[Three, Three, Three] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


class StepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In lockstep, lets so many steps pass as if nobody answered."""

    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] = 1


class PlantTimeResponse(msgspec.Struct, frozen=True):
    """Where the plant stands. time: s, its own. mode: braked, arming, active or stopped."""

    time: float
    mode: str


MAX_PUSHES = 32
"""That act at once."""


class PlantChanges:
    """What can be done to a plant. payloads: those that were set, by link.

    Args:
        plant: Of a simulated robot.
        model: What its parameters call the robot.
        p: Its parameters.

    Raises:
        FailedPreconditionError: Its robot is a real one.
    """

    def __init__(self, plant: Plant, model: Robot, p: PlantParameters) -> None:
        if not isinstance(plant.robot, SimulatedRobot):
            raise FailedPreconditionError("the plant's robot is a real one, and suffers nothing by a request")
        self.plant, self._robot, self._model, self._p = plant, plant.robot, model, p
        self._overlay = unpack_overlay(p.overlay, "overlay")
        self.payloads: dict[str, Payload] = {}

    def prepare(self) -> None:
        """Makes now what a push and a payload need: who waits for a compiler in the loop misses its time."""
        model, still = self._model, np.zeros(self._model.nv)
        q = self._robot.q
        model.inverse_dynamics(q, still, still, wrenches=[Wrench(model.link_names[-1])])
        if self._p.engine == "own":
            model.overlaid(Overlay(gravity=model.gravity)).forward_dynamics(q, still, still)

    def set_state(self, position: Values, velocity: Values) -> None:
        """Puts the robot there; joints that are left out stay where they are, at rest.

        Raises:
            FailedPreconditionError: It is under command.
            InvalidArgumentError: There is no such joint, or a value is beyond its limit or not finite.
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
            outside = ~((values >= lower) & (values <= upper) & np.isfinite(values))  # a joint may be without limits
            if outside.any():
                k = int(np.argmax(outside))
                raise InvalidArgumentError(
                    f"{name} of '{names[k]}' is {values[k]:g}: expected a number, {lower[k]:g} to {upper[k]:g}",
                    path=name,
                )
        self._robot.set_state(q, v)
        self.plant.look()

    def reset(self) -> None:
        """Puts the robot where it began, at rest, without pushes and with the payload of its parameters.

        Raises:
            FailedPreconditionError: It is under command.
        """
        self._check_idle("reset")
        if self.payloads:
            self._carry({})
        self._robot.end_pushes()
        at = self._model.configuration
        self._robot.set_state(initial_position(self._p.initial_position, at, self._model.limits), np.zeros(at.nv))
        self.plant.look()

    def push(self, wrench: Wrench, duration_s: float) -> None:
        """Lets a wrench act for so many s.

        Raises:
            NotFoundError: The robot has no such link.
            InvalidArgumentError: A number is not finite, the wrench is of many states, or the time is none.
            ResourceExhaustedError: Too many act already.
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
        self._model.inverse_dynamics(self._robot.q, still, still, wrenches=[wrench])  # checks it, makes its kernel
        self._robot.push(wrench, max(1, round(duration_s / self.plant.dt_s)))

    def set_payload(self, payload: Payload) -> None:
        """Lets a link carry this in place of what it was let carry before; a mass of 0 is nothing.

        Raises:
            NotFoundError: The robot has no such link.
            InvalidArgumentError: It is no payload that a body can be; or the plant's robot is that of an MJCF file.
        """
        shapes = [np.shape(part) for part in (payload.mass, payload.com, payload.inertia)]
        if shapes != [(), (3,), (3, 3)]:
            raise InvalidArgumentError(
                f"mass, com and inertia are of the shapes {', '.join(map(str, shapes))}: expected those of one payload",
                path="mass",
            )
        self._model.overlaid(Overlay(payloads=payload if payload.mass else replace(payload, mass=1.0)))  # checks it
        payloads = {link: each for link, each in self.payloads.items() if link != payload.link}
        self._carry({**payloads, payload.link: payload} if payload.mass else payloads)

    def _carry(self, payloads: dict[str, Payload]) -> None:
        if self._p.mjcf:
            raise InvalidArgumentError("the robot that moves is that of an MJCF file, which says what it carries")
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
            raise FailedPreconditionError(f"{what}: the robot is under command ({mode}): end its controller first")


class PlantServices:
    """The services of a plant's node, below its name."""

    def __init__(self, node: Node[Any], loop: PlantLoop, changes: PlantChanges) -> None:
        self._loop, self._changes = loop, changes
        node.create_service("~/set_state", SetStateRequest, self._set_state)
        node.create_service("~/reset", ResetRequest, self._reset)
        node.create_service("~/push", PushRequest, self._push)
        node.create_service("~/set_payload", SetPayloadRequest, self._set_payload)
        node.create_service("~/step", StepRequest, self._step)

    def _set_state(self, request: SetStateRequest) -> PlantTimeResponse:
        self._changes.set_state(request.position, request.velocity)
        return self._now()

    def _reset(self, request: ResetRequest) -> PlantTimeResponse:
        self._changes.reset()
        return self._now()

    def _push(self, request: PushRequest) -> PlantTimeResponse:
        said = {name: getattr(request, name) for name in ("link", "force", "torque", "point", "frame")}
        self._changes.push(Wrench(**said), request.duration)
        return self._now()

    def _set_payload(self, request: SetPayloadRequest) -> PlantTimeResponse:
        self._changes.set_payload(Payload(**msgspec.structs.asdict(request)))
        return self._now()

    def _step(self, request: StepRequest) -> PlantTimeResponse:
        self._loop.step_unanswered(request.steps)
        return self._now()

    def _now(self) -> PlantTimeResponse:
        plant = self._changes.plant
        return PlantTimeResponse(round(plant.time_s, 9), plant.safety.mode)
