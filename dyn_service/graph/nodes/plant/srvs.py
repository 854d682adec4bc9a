"""Requests and responses of a plant's own services; see `plant_services`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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
