"""What joints do by themselves, in numbers: damping, Coulomb friction, rotors behind gears, springs.

`dynamics/passive.py` has the equations; here are the numbers of one robot, one of each for every entry of v.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from dyn_service.api.spec import PassivePart
from dyn_service.model.arrays import Vector
from dyn_service.model.joints import Joint

TURNING_WIDTH = 0.1
"""rad/s, the width of a turning joint's friction where nobody says another. Of an arm's joints 0.12 to 0.39 rad/s were
identified (Gaz et al., IEEE RA-L 4(4), 2019, for the Panda: `config/panda_joints.yaml`): at a working speed of 0.3
rad/s 99.5 % of the friction acts. And a friction of 1 N m then changes within a width as a damping of 10 N m s/rad
does, which steps of a millisecond follow on all but the lightest links.
"""

SHIFTING_WIDTH = 0.01
"""m/s, the same of a sliding joint: what `TURNING_WIDTH` is at a radius of a decimetre."""

LEAST_WIDTH = 1e-300
"""rad/s | m/s, of friction: kernels multiply by 1 / width, and below that there is none, nor 0 times it at rest."""


@dataclass(frozen=True, eq=False)
class Passive:
    """Each (nv,), in the units of the joint's effort; an entry that is 0 does nothing.

    damping: N m s/rad | N s/m. friction: N m | N, of a joint that moves much faster than `width`, rad/s | m/s, which is
    more than 0. armature: kg m^2 | kg, the inertia along the joint of what turns with it behind its gear: rotor inertia
    times gear ratio squared. stiffness: N m/rad | N/m, of a spring that pulls to `rest`, rad | m; only of joints with
    one way to move. Leading axes are those of many robots.
    """

    damping: Vector
    friction: Vector
    width: Vector
    armature: Vector
    stiffness: Vector
    rest: Vector

    @classmethod
    def none(cls, nv: int) -> Passive:
        """Of joints that do nothing by themselves."""
        nothing = np.zeros(nv)
        return cls(nothing, nothing, np.ones(nv), nothing, nothing, nothing)

    @property
    def arrays(self) -> tuple[Vector, ...]:
        """All of them."""
        return tuple(getattr(self, each.name) for each in fields(self))

    @cached_property
    def acts(self) -> frozenset[PassivePart]:
        """What there is of it."""
        parts: dict[PassivePart, Vector] = {
            "damping": self.damping,
            "friction": self.friction,
            "armature": self.armature,
            "springs": self.stiffness,
        }
        return frozenset(part for part, numbers in parts.items() if numbers.any())

    @property
    def identity(self) -> Iterator[bytes]:
        """What fingerprints hold of it: what does nothing says nothing, and what has no say is left out."""
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
        """Those whose entries of v are named do nothing."""
        still = np.ones(self.damping.shape[-1])
        still[list(entries)] = 0.0
        return Passive(
            self.damping * still,
            self.friction * still,
            self.width,
            self.armature * still,
            self.stiffness * still,
            self.rest,
        )

    def first(self, nv: int) -> Passive:
        """Those of the first entries of v."""
        return Passive(*(array[..., :nv] for array in self.arrays))


def reflected(rotor: float, ratio: float) -> float:
    """What a rotor's inertia, kg m^2, or its damping is at a joint behind a gear; infinite where no double holds it."""
    return rotor * (ratio * ratio)  # not **, which raises there


def widths(joint: Joint) -> Sequence[float]:
    """Of each of a joint's velocities, the width of its friction where nobody says another."""
    return [TURNING_WIDTH if column[:3].any() else SHIFTING_WIDTH for column in joint.subspace.T]
