"""The properties of any robot, local or remote, blocking or awaited: `RobotProperties`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.description import RobotDescription
from dyn_service.api.whole_body import WholeBodyConstants, whole_body_constants

if TYPE_CHECKING:
    from dyn_service.api.arguments import Contact
    from dyn_service.model.configuration import Configuration, Limits


class RobotProperties:
    """A robot's names, sizes, joints and limits.

    Args:
        description: The robot's properties other than its dynamics.
        configuration: Its movable joints.
        limits: Theirs.
    """

    def __init__(self, description: RobotDescription, configuration: Configuration, limits: Limits) -> None:
        self._about = description
        self._configuration = configuration
        self._limits = limits

    def __repr__(self) -> str:
        mimic = sum(joint.mimic is not None for joint in self.description.joints)
        joints = f"{len(self.joint_names) + mimic} movable joints" + (f", {mimic} mimic" if mimic else "")
        return f"<{type(self).__name__} '{self.name}': {len(self.link_names)} links, {joints}>"

    @property
    def description(self) -> RobotDescription:
        """Properties of the robot other than its dynamics: sizes, joints, topology, limits, conventions."""
        return self._about

    @property
    def name(self) -> str:
        """The robot's name in its file."""
        return self._about.name

    @property
    def fingerprint(self) -> str:
        """Hash of the robot, 32 hexadecimal digits; changes with any of its numbers."""
        return self._about.fingerprint

    @property
    def nq(self) -> int:
        """Length of `q`."""
        return self._about.nq

    @property
    def nv(self) -> int:
        """Length of `v`, `a`, `tau`."""
        return self._about.nv

    @property
    def configuration(self) -> Configuration:
        """The joints' entries in q and v, and functions of positions: `integrate`, `difference`, `neutral`."""
        return self._configuration

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Movable joints in the order of `q`: depth first, siblings by joint name, as in Pinocchio."""
        return self._about.joint_names

    @property
    def free(self) -> NDArray[np.float64]:
        """(nv,): 0 where a joint is locked by an overlay, else 1."""
        return np.ones(self.nv)

    @property
    def gravity(self) -> NDArray[np.float64]:
        """(3,) m/s^2 in world axes, used by calls without a gravity."""
        return np.array(self._about.gravity)

    @property
    def all_joint_names(self) -> tuple[str, ...]:
        """Every URDF joint, including fixed ones, then those that close loops: the rows of `constraint_forces`."""
        return self._about.all_joint_names

    @property
    def link_names(self) -> tuple[str, ...]:
        """Every link, parent before child: the rows of `link_poses`."""
        return self._about.link_names

    @property
    def limits(self) -> Limits:
        """Limits of the movable joints: lower, upper (nq,), velocity, effort (nv,); infinite if absent."""
        return self._limits

    def whole_body_constants(
        self, contacts: Contact | Sequence[Contact] = (), *, undriven: Sequence[str] | None = None, facets: int = 4
    ) -> WholeBodyConstants:
        """Returns S, the limits and the friction cones of a whole-body problem, without a request.

        Args:
            contacts: The contact points; `link`, `point`, `normal`, `friction` and `rigid` are used.
            undriven: The joints without an actuator; None: planar and floating joints.
            facets: Sides of the friction pyramid inside each friction cone, 3 to 64.

        Raises:
            NotFoundError: The robot has no link or movable joint of that name.
            InvalidArgumentError: A contact or `facets` is invalid; `path` names it.
        """
        return whole_body_constants(self._configuration, self._limits, self.link_names, contacts, undriven, facets)
