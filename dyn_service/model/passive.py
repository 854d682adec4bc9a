"""Passive parameters of joints: damping, Coulomb friction, armature, springs. Equations: `dynamics/passive.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from dyn_service.api.spec import PassivePart
from dyn_service.model.arrays import Vector
from dyn_service.model.joints import Joint

REVOLUTE_WIDTH = 0.1
"""rad/s, default friction width of revolute joints. Identified values for the Panda are 0.12 to 0.39 rad/s (Gaz et al.,
IEEE RA-L 4(4), 2019; `config/panda_joints.yaml`). At 0.3 rad/s, 99.5 % of the friction acts. Near zero, a friction of 1
N m acts like a damping of 10 N m s/rad, which steps of 1 ms resolve for all but the lightest links.
"""

PRISMATIC_WIDTH = 0.01
"""m/s, default friction width of prismatic joints: `REVOLUTE_WIDTH` at a radius of 0.1 m."""

MIN_WIDTH = 1e-300
"""rad/s | m/s, smallest friction width: kernels multiply by 1 / width, which overflows for smaller ones."""


@dataclass(frozen=True, eq=False)
class Passive:
    """Passive parameters, each (nv,) or with leading axes for many robots.

    damping: N m s/rad | N s/m. friction: N m | N, at velocities well above `width`, rad/s | m/s, > 0. armature: kg m^2
    | kg, rotor inertia times the square of the gear ratio. stiffness: N m/rad | N/m, of a spring with the rest position
    `rest`, rad | m; for joints with one degree of freedom.
    """

    damping: Vector
    friction: Vector
    width: Vector
    armature: Vector
    stiffness: Vector
    rest: Vector

    @classmethod
    def none(cls, nv: int) -> Passive:
        """Returns the parameters of joints without passive forces."""
        zero = np.zeros(nv)
        # The width is 1, because kernels divide by it.
        return cls(zero, zero, np.ones(nv), zero, zero, zero)

    @property
    def arrays(self) -> tuple[Vector, ...]:
        """The arrays by name."""
        return tuple(getattr(self, parameter.name) for parameter in fields(self))

    @cached_property
    def acts(self) -> frozenset[PassivePart]:
        """Names of the parameters that have an effect."""
        parts: dict[PassivePart, Vector] = {"damping": self.damping, "friction": self.friction}
        parts |= {"armature": self.armature, "springs": self.stiffness}
        return frozenset(part for part, numbers in parts.items() if numbers.any())

    @property
    def identity(self) -> Iterator[bytes]:
        """The bytes for fingerprints; parameters without effect are left out."""
        yield (self.damping + 0.0).astype("<f8").tobytes()
        yield (self.friction + 0.0).astype("<f8").tobytes()
        for part, numbers in (
            ("friction", (np.where(self.friction, self.width, 0.0),)),
            ("armature", (self.armature,)),
            ("springs", (self.stiffness, np.where(self.stiffness, self.rest, 0.0))),
        ):
            if part in self.acts:
                yield part.encode()
                yield from ((array + 0.0).astype("<f8").tobytes() for array in numbers)

    def without(self, entries: Sequence[int]) -> Passive:
        """Returns the parameters with those of the given entries of v set to zero."""
        factors = np.ones(self.damping.shape[-1])
        factors[list(entries)] = 0.0
        # Not the width, by which kernels divide.
        damping, friction, armature = self.damping * factors, self.friction * factors, self.armature * factors
        return Passive(damping, friction, self.width, armature, self.stiffness * factors, self.rest)

    def at(self, entries: Sequence[int]) -> Passive:
        """Returns the parameters of the given entries of v."""
        return Passive(*(array[..., list(entries)] for array in self.arrays))


def reflected(rotor: float, ratio: float) -> float:
    """Returns a rotor's inertia (kg m^2) or damping as seen at the joint; infinite on overflow."""
    return rotor * (ratio * ratio)  # ** would raise OverflowError


def widths(joint: Joint) -> Sequence[float]:
    """Returns the default friction width of each velocity of a joint."""
    return [REVOLUTE_WIDTH if column[:3].any() else PRISMATIC_WIDTH for column in joint.subspace.T]
