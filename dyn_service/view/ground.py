"""What planes push a recorded robot with: worked out again from its state, by the plant's own laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.service.protocol.contacts import unpack_contacts
from dyn_service.simulation.contact.supports import SupportedDynamics
from dyn_service.simulation.task import checked


class Ground:
    """The planes that a plant stood on.

    Args:
        robot: As the plant has it.
        parameters: The plant's, with `contacts`.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: A contact is none.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, parameters: Mapping[str, Any]) -> None:
        self.contacts = unpack_contacts(parameters["contacts"], "contacts")
        dt = 1.0 / (float(parameters.get("rate_hz", 1000.0)) * int(parameters.get("substeps", 1)))
        at = robot.configuration
        integrator = parameters.get("integrator", "rk4")
        task = checked(
            at, at.neutral, np.zeros(at.nv), None, dt=dt, steps=1, integrator=integrator, contacts=self.contacts
        )
        self._dynamics = SupportedDynamics(robot, task)
        self._links = [robot.link_names.index(contact.link) for contact in self.contacts]
        self._points = np.array([contact.point for contact in self.contacts], dtype=np.float64)
        self._radii = np.array([[contact.radius] for contact in self.contacts])
        normal = np.array([contact.normal for contact in self.contacts], dtype=np.float64)
        self._normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)

    @property
    def height(self) -> float:
        """Of the lowest plane's point, m: where the floor is drawn."""
        return min(float(np.asarray(contact.plane, dtype=np.float64)[2]) for contact in self.contacts)

    def forces(self, q: Array, v: Array, tau: Array) -> Array:
        """(nc, 3) N, on the robot, world axes, at q (nq,), v (nv,) while the efforts tau (nv,) act."""
        return self._dynamics.moved(q, v, tau)[1]

    def points(self, rotation: Array, position: Array) -> Array:
        """(nc, 3) m, where it does so, towards the plane: of links at rotation (nl, 3, 3), position (nl, 3)."""
        turned = (rotation[self._links] @ self._points[..., None])[..., 0]
        found: Array = position[self._links] + turned - self._radii * self._normal
        return found

    def wrenches(self, points: Array, rotation: Array, position: Array, forces: Array) -> list[Wrench]:
        """The same as what acts on the links."""
        return [
            Wrench(link=contact.link, force=force, point=rotation[k].T @ (point - position[k]), frame="world")
            for contact, k, point, force in zip(self.contacts, self._links, points, forces, strict=True)
        ]
