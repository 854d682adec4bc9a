"""Requests and responses of a plant's services. The module's name is part of their types."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Three = tuple[float, float, float]
Values = list[float] | dict[str, float | dict[str, float]]
"""By joint (and its part if it has several), or in order."""

MAX_PUSH_S = 60.0
MAX_STEPS = 10_000


class SetStateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets the state of a simulated robot. position: rad | m; velocity: rad/s | m/s: by joint (and its part if it has
    several) or in order. A joint that is left out keeps its position, at rest.
    """

    position: Values = {}
    velocity: Values = {}


class ResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resets a simulated robot to its first position, at rest, without pushes and with its parameters' payload."""


class PushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Applies a force (N) and a torque (N m) to a link for `duration` s of plant time.

    point: m, where the force acts, in the link's frame. frame: axes of both: `world`, or the name of a link.
    """

    link: str
    duration: Annotated[float, Meta(gt=0.0, le=MAX_PUSH_S)]
    force: Three = (0.0, 0.0, 0.0)
    torque: Three = (0.0, 0.0, 0.0)
    point: Three = (0.0, 0.0, 0.0)
    frame: str = "world"


class SetPayloadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets the payload of a link; it replaces that of earlier requests, not that of the parameters' overlay.

    mass: kg, 0 removes the payload. com: m, its centre of mass in the link's frame. inertia: kg m^2, about the centre
    of mass, in the link's axes.
    """

    link: str
    mass: Annotated[float, Meta(ge=0.0)]
    com: Three = (0.0, 0.0, 0.0)
    inertia: tuple[Three, Three, Three] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


class StepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In lockstep, does steps without commands."""

    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] = 1


class PlantTimeResponse(msgspec.Struct, frozen=True):
    """Time (s) and mode of the plant: braked, arming, active or stopped."""

    time: float
    mode: str
