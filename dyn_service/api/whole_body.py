"""The constants of a whole-body problem: everything but the terms of a state, see `spec.LISTS`.

    M a + h = S^T tau + sum_k J_k^T f_k,    C_k f_k <= 0,    tau within the limits

With `c = robot.whole_body_constants(..)`, M, h, J_k and the J-dot v of each contact point are those of
`robot.evaluate("whole_body_terms", q=q, v=v, link=c.links, point=c.points)`; of a batch, q and v are (.., 1, nq) and
(.., 1, nv). J_k and J-dot v are the last three rows of `point_motion.jacobian[k]` and `.bias[k]`, in world axes. S, C_k
and the limits are here; they need no kernel and no request. C_k is a pyramid inside the cone |f_t| <= mu f_n: n
directions d_i across the normal, and

    (d_i - mu cos(pi / n) normal) . f <= 0,    -normal . f <= 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.arguments import DEFAULT_FRICTION, Contact
from dyn_service.api.arrays import found, vectors
from dyn_service.api.results import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import known_instead

if TYPE_CHECKING:
    from dyn_service.model.configuration import Configuration, Limits


@dataclass(frozen=True, eq=False)
class WholeBodyConstants:
    """S, C and limits of a whole-body problem.

    links, points: link and point (nc, 3) m of each contact, the inputs `link` and `point` of `evaluate`. selection: S,
    (nd, nv), the rows of the identity at the driven entries of v. lower, upper: (nq,) rad | m. velocity: (nv,) rad/s |
    m/s. effort: (nd,) N m | N, of the driven entries of v. Limits are infinite if absent. cones: C, (nc, facets + 1, 3)
    1, world axes; zero for rigid contacts, which can also pull.
    """

    links: tuple[str, ...]
    points: Array
    selection: Array
    lower: Array
    upper: Array
    velocity: Array
    effort: Array
    cones: Array


def whole_body_constants(
    configuration: Configuration,
    limits: Limits,
    links: Sequence[str],
    contacts: Contact | Sequence[Contact],
    undriven: Sequence[str] | None,
    facets: int,
) -> WholeBodyConstants:
    """Returns the constants; see `RobotProperties.whole_body_constants`."""
    if isinstance(facets, bool) or not isinstance(facets, int) or not 3 <= facets <= 64:
        raise InvalidArgumentError(f"facets must be a whole number from 3 to 64, found {facets!r}", path="facets")
    driven_rates = driven_entries(configuration, undriven)
    contact_list = [contacts] if isinstance(contacts, Contact) else list(contacts)
    cones = [_cone(links, contact, f"contacts[{k}]", facets) for k, contact in enumerate(contact_list)]
    return WholeBodyConstants(
        tuple(contact.link for contact in contact_list),
        # Reshaped, so that the arrays have their axes without contacts too.
        np.array([contact.point for contact in contact_list], dtype=np.float64).reshape(-1, 3),
        np.eye(configuration.nv)[driven_rates],
        limits.lower,
        limits.upper,
        limits.speeds,
        limits.efforts[driven_rates],
        np.array(cones).reshape(-1, facets + 1, 3),
    )


def driven_entries(configuration: Configuration, undriven: Sequence[str] | None) -> list[int]:
    """Returns the entries of v of the joints with an actuator.

    Args:
        configuration: The movable joints.
        undriven: The joints without an actuator; None: planar and floating joints.

    Raises:
        NotFoundError: The robot has no movable joint of that name.
    """
    if undriven is None:
        # A floating base has no motor, but is a joint of the tree.
        joints = zip(configuration.names, configuration.joints, strict=True)
        undriven = [name for name, joint in joints if not joint.has_motor]
    for k, name in enumerate(undriven):
        _check("movable joint", name, configuration.names, f"undriven[{k}]")
    return [k for k, name in enumerate(configuration.velocity_joints) if name not in undriven]


def _check(kind: str, name: Any, known_names: Sequence[str], path: str) -> None:
    if name not in known_names:
        raise NotFoundError(f"the robot has no {kind} '{name}'{known_instead(name, known_names)}", path=path)


def _cone(links: Sequence[str], contact: Any, path: str, facets: int) -> Array:
    """Returns the rows C of one contact."""
    if not isinstance(contact, Contact):
        raise InvalidArgumentError(f"{path} must be a Contact, found {found(contact)}", path=path)
    _check("link", contact.link, links, f"{path}.link")
    point, normal = (vectors(f"{path}.{part}", getattr(contact, part), 3) for part in ("point", "normal"))
    friction = DEFAULT_FRICTION if contact.friction is None else contact.friction
    size = float(np.linalg.norm(normal))
    if point.shape != (3,) or normal.shape != (3,) or not (np.isfinite(point).all() and 0.0 < size < np.inf):
        raise InvalidArgumentError(
            f"{path}: point and normal must be three finite numbers each, the normal not zero", path=path
        )
    if not isinstance(friction, int | float) or not 0.0 <= friction < np.inf:
        raise InvalidArgumentError(f"{path}.friction must be at least 0, found {friction!r}", path=f"{path}.friction")
    # Rows of zeros, not fewer rows, so that all contacts have matrices of one size.
    if contact.rigid:
        return np.zeros((facets + 1, 3))
    normal = normal / size
    # The further right singular vectors are orthonormal and perpendicular to the normal.
    tangents = np.linalg.svd(normal[None, :])[2][1:]
    angles = 2.0 * np.pi / facets * np.arange(facets)
    # Times cos(pi / facets) below, so that the pyramid is inside the cone: a force that it allows does not slip.
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ tangents
    return np.vstack([directions - friction * np.cos(np.pi / facets) * normal, -normal])
