"""Contact points: points of links that can touch planes, their gaps and Jacobians.

    gap = n . (p - p_0) - r                       m, negative for penetration
    x   = J v,   J = R (J_S - s~ J_R) + r n~ R J_R    m/s, velocity of the material point in contact

n is the plane's normal and p_0 a point of the plane; p is the contact point, s the vector from the link's centre of
mass to it, R the link's rotation, J_S and J_R the link's Jacobians (Projected Newton-Euler, 5.2). A sphere of radius r
around the point touches at its lowest point, p - r n, so that x = 0 for a rolling sphere. All arrays may have leading
axes.
Cost: all Jacobians, O(N^2), and a product per point. Checked by tests/simulation/test_contact.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dyn_service.api.arrays import found, found_instead, numbers, vector
from dyn_service.api.queries import DEFAULT_FRICTION, Array, Contact, RobotQueries
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.model.inertia import skew
from dyn_service.support.suggestions import known_instead

if TYPE_CHECKING:
    from dyn_service.model.tree import Tree

_MIN_NORMAL = 1e-9
"""Shorter normals have no direction."""

_ROUNDED = 16 * float(np.finfo(np.float64).eps)
"""Rounding error of the squared length of a normalised vector."""

_NUMBERS = ("radius", "friction", "stiffness", "damping", "width")
_POSITIVE = ("stiffness", "width")
_CHOSEN = ("friction", "stiffness", "damping", "width")


def listed(contacts: Contact | Sequence[Contact] | None, *, batches: bool = False) -> tuple[Contact, ...]:
    """Returns the contacts with their vectors as arrays, normals of length 1, and friction.

    batches: whether points and normals may have leading axes.

    Raises:
        InvalidArgumentError: An item is not a `Contact` or has an invalid field; `path` names it.
    """
    items = () if contacts is None else [contacts] if isinstance(contacts, Contact) else contacts
    if isinstance(items, str) or not isinstance(items, Sequence):
        value = found_instead("Contact", items)
        raise InvalidArgumentError(f"contacts must be a Contact or a list of them, found {value}", path="contacts")
    checked = (_checked(contact, f"contacts[{k}]", batches=batches) for k, contact in enumerate(items))
    return tuple(replace(c, friction=DEFAULT_FRICTION) if c.friction is None else c for c in checked)


def check_links(robot: RobotQueries, contacts: Sequence[Contact]) -> None:
    """Raises `NotFoundError` unless the robot has the contacts' links."""
    for k, contact in enumerate(contacts):
        if contact.link not in robot.link_names:
            hint = known_instead(contact.link, robot.link_names, "its links are")
            text = f"contacts[{k}]: robot '{robot.name}' has no link '{contact.link}'{hint}"
            raise NotFoundError(text, path=f"contacts[{k}].link")


def check_joint(configuration: Configuration, name: str, path: str) -> None:
    """Raises `NotFoundError` unless the robot has a movable joint of this name."""
    if name not in configuration.names:
        hint = known_instead(name, configuration.names)
        raise NotFoundError(f"the robot has no movable joint '{name}'{hint}", path=path)


def _checked(contact: Any, path: str, *, batches: bool) -> Contact:
    if not isinstance(contact, Contact):
        raise InvalidArgumentError(f"{path} must be a Contact, found {found_instead('Contact', contact)}", path=path)
    for name, kind, expected in (("link", str, "a name"), ("rigid", bool, "true or false")):
        if not isinstance(getattr(contact, name), kind):
            value = found(getattr(contact, name))
            raise InvalidArgumentError(f"{path}.{name} must be {expected}, found {value}", path=f"{path}.{name}")
    fields: dict[str, Any] = {
        name: _vector(getattr(contact, name), f"{path}.{name}", batches=batches and name != "plane")
        for name in ("point", "plane", "normal")
    }
    normal = fields["normal"]
    largest = np.abs(normal).max(axis=-1, keepdims=True)
    if not (largest > _MIN_NORMAL).all():
        text = f"must have a direction, away from the plane, found {found(contact.normal)}"
        raise InvalidArgumentError(f"{path}.normal {text}", path=f"{path}.normal")
    # Scaled, so that the square cannot overflow.
    direction = normal / largest
    unit = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    square = np.sum(np.clip(normal, -2.0, 2.0) ** 2, axis=-1, keepdims=True)
    # Only if its length is not 1: normalising a unit vector again would change its last bits.
    fields["normal"] = np.where(np.abs(square - 1.0) > _ROUNDED, unit, normal)
    fields |= {name: _number(getattr(contact, name), name, f"{path}.{name}") for name in _NUMBERS}
    return replace(contact, **fields)


def _vector(value: Any, path: str, *, batches: bool) -> Array:
    array = vector(value, path) if batches else numbers(value)
    if array is None or (array.shape != (3,) and not batches) or not np.isfinite(array).all():
        raise InvalidArgumentError(f"{path} must be 3 finite numbers, found {found(value)}", path=path)
    return array


def _number(value: Any, name: str, path: str) -> float | None:
    if value is None and name in _CHOSEN:
        return None
    array = numbers(value)
    number = np.nan if array is None or array.ndim else float(array)
    if not isfinite(number) or number < 0.0 or (name in _POSITIVE and number == 0.0):
        bound_text = "above 0" if name in _POSITIVE else "at least 0"
        raise InvalidArgumentError(f"{path} must be a number {bound_text}, found {found(value)}", path=path)
    return number


class Placed(NamedTuple):
    """gap: (..., nc) m. J: (..., nc, 3, nv), world axes."""

    gap: Array
    J: Array


class Points:
    """The contact points of a local robot. contacts: from `listed`, checked by `check_links`. normal: (..., nc, 3)."""

    def __init__(self, robot: RobotQueries, contacts: Sequence[Contact]) -> None:
        self._robot = robot
        tree: Tree = robot.tree  # type: ignore[attr-defined]  # motions of a remote robot are computed by the server
        self._links = np.array([robot.link_names.index(contact.link) for contact in contacts], dtype=np.intp)
        self.normal = _rows([contact.normal for contact in contacts])
        self._point = _rows([contact.point for contact in contacts])
        self._lever = self._point - _rows([tree.inertia[i].com for i in self._links])
        self._radius = np.array([contact.radius for contact in contacts])
        # Of the plane, only its distance along the normal matters.
        self._height = np.sum(self.normal * _rows([contact.plane for contact in contacts]), axis=-1) + self._radius
        self._across, self._rolling = skew(self._lever), skew(self.normal) * self._radius[:, None, None]

    def __len__(self) -> int:
        return len(self._links)

    def at(self, q: Array) -> Placed:
        """Returns gaps and Jacobians at positions (..., nq)."""
        R, p = self._poses(q)
        J_S, J_R = self._jacobians(q)
        J = R @ (J_S - self._across @ J_R) + self._rolling @ (R @ J_R)
        gap = np.sum(self.normal * (p + (R @ self._point[..., None])[..., 0]), axis=-1) - self._height
        return Placed(gap, J)

    def bias(self, q: Array, v: Array) -> Array:
        """Returns J-dot v, (..., nc, 3) m/s^2: the rate of J v at zero joint accelerations."""
        R, _ = self._poses(q)
        _, J_R = self._jacobians(q)
        acceleration = self._robot.bias_accelerations(q, v)
        sigma_S, sigma_R = (np.take(x, self._links, axis=-2) for x in (acceleration.translation, acceleration.rotation))
        omega = np.einsum("...cin,...n->...ci", J_R, v)
        rotational = np.cross(sigma_R, self._lever) + np.cross(omega, np.cross(omega, self._lever))
        point_bias = (R @ (sigma_S + rotational)[..., None])[..., 0]
        rolling: Array = (self._rolling @ (R @ sigma_R[..., None]))[..., 0]
        return point_bias + rolling

    def _poses(self, q: Array) -> tuple[Array, Array]:
        poses = self._robot.link_poses(q)
        return np.take(poses.rotation, self._links, axis=-3), np.take(poses.position, self._links, axis=-2)

    def _jacobians(self, q: Array) -> tuple[Array, Array]:
        jacobians = self._robot.jacobians(q)
        return np.take(jacobians.translation, self._links, axis=-3), np.take(jacobians.rotation, self._links, axis=-3)


def _rows(vectors: Sequence[Any]) -> Array:
    """Stacks n arrays (..., 3) to (..., n, 3)."""
    return np.stack(np.broadcast_arrays(*vectors), axis=-2) if vectors else np.zeros((0, 3))
