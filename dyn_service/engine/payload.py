"""A robot that carries something: the description with one more link, welded to the one that carries it.

Nothing else needs to know of payloads: the welded tree adds the inertias, as for any fixed joint.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dyn_service.api.arrays import found, numbers
from dyn_service.api.queries import Payload
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.description import Description, Inertial, Joint, Link
from dyn_service.model.joints import FIXED
from dyn_service.suggestions import did_you_mean

_ROUNDING = 1e-12
"""Share of the largest moment up to which an inertia is symmetric and no moment negative: what typing and turning one
leave."""


def carrying(description: Description, link: str, inertial: Inertial) -> Description:
    """The description with a body of that inertia, a link of its own, welded to the link of that name.

    Raises:
        NotFoundError: There is no link of that name.
    """
    links, joints = ({part.name for part in parts} for parts in (description.links, description.joints))
    if link not in links:
        raise NotFoundError(
            f"robot '{description.name}' has no link '{link}'; its links are "
            f"{', '.join(link.name for link in description.links)}"
            f"{did_you_mean(link, [link.name for link in description.links])}",
            path="payload.link",
        )
    name = "payload"
    while name in links or name in joints:
        name += "_"
    joint = Joint(name, FIXED.type, link, name, np.zeros(3), np.eye(3), np.array([1.0, 0.0, 0.0]))
    return replace(description, links=(*description.links, Link(name, inertial)), joints=(*description.joints, joint))


def inertial_of(payload: Payload) -> Inertial:
    """The payload's mass, centre of mass and inertia, checked.

    Raises:
        InvalidArgumentError: The mass is not positive, or the inertia is none that a body can have.
    """
    if not isinstance(payload, Payload):
        raise InvalidArgumentError(f"payload must be a Payload, found {found(payload)}", path="payload")
    if not isinstance(payload.link, str):
        raise InvalidArgumentError(
            f"payload.link must be the name of a link, found {found(payload.link)}", path="payload.link"
        )
    mass = payload.mass
    if isinstance(mass, bool) or not isinstance(mass, int | float) or not (math.isfinite(mass) and mass > 0.0):
        raise InvalidArgumentError(f"payload.mass must be a positive mass in kg, found {mass!r}", path="payload.mass")
    parts = {}
    for part, shape in (("com", (3,)), ("inertia", (3, 3))):
        value = getattr(payload, part)
        array = numbers(value)
        if array is None or array.shape != shape or not np.isfinite(array).all():
            raise InvalidArgumentError(
                f"payload.{part} must be finite numbers of shape {shape}, found {found(value)}", path=f"payload.{part}"
            )
        parts[part] = array
    inertia = parts["inertia"]
    allowed = _ROUNDING * np.abs(inertia).max()
    if np.abs(inertia - inertia.T).max() > allowed:
        raise InvalidArgumentError("payload.inertia must be symmetric, found one that is not", path="payload.inertia")
    least = float(np.linalg.eigvalsh(inertia)[0])
    if least < -allowed:
        raise InvalidArgumentError(
            f"payload.inertia must have no negative moment, found one of {least:g} kg m^2", path="payload.inertia"
        )
    return Inertial(float(mass), parts["com"], np.eye(3), inertia)
