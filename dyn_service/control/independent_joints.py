"""The joints of a robot with closed loops that references move and laws command; the loops move the others.

With v = G u for their velocities u, generalised forces f on them are efforts f of their motors: G^T tau = f, because
the rows of G at these joints are those of the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.law import RobotState
from dyn_service.control.trajectory import Reference, TrajectoryMaker
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration, Limits


class AlongReference(NamedTuple):
    """The motion of independent joints at a position: G (nv, nu), G^T M G (nu, nu), and efforts (nv,) along a
    reference.
    """

    jacobian: Array
    mass_matrix: Array
    effort: Array


@dataclass(frozen=True, eq=False)
class IndependentJoints:
    """The independent joints of a robot with closed loops.

    configuration: these joints. in_q, in_v: their entries. rest: (nq,) a closed position. undriven: those of them
    without a motor.
    """

    configuration: Configuration
    in_q: list[int]
    in_v: list[int]
    rest: Array
    undriven: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: RobotQueries) -> IndependentJoints | None:
        """Returns those of a robot; None if it has no loops.

        Raises:
            FailedPreconditionError: The loops do not close near the middle of the limits, or leave a part of a joint
                with several degrees of freedom independent.
        """
        if not model.description.loop_joints:
            return None
        # Laws are made again while they run, when a parameter is set: closing the loops would make them late.
        if model not in _OF_MODELS:
            _OF_MODELS[model] = cls._found(model)
        return _OF_MODELS[model]

    @classmethod
    def _found(cls, model: RobotQueries) -> IndependentJoints:
        rest = model.assemble(model.limits.middle(otherwise=model.configuration.neutral))
        selection = model.independent_motion(rest, np.zeros(model.nv)).selection
        entries = np.argmax(selection, axis=-1).tolist()
        names = list(dict.fromkeys(model.configuration.velocity_joints[k] for k in entries))
        configuration, in_q, in_v = model.configuration.chosen(names)
        dependent = [model.configuration.velocity_joints[k] for k in in_v if k not in entries]
        if dependent:
            raise FailedPreconditionError(
                f"the loops of robot '{model.name}' leave parts of joint '{dependent[0]}' independent: a controller "
                "needs whole joints"
            )
        motors = {joint.name for joint in model.description.joints if joint.driven is not False}
        return cls(configuration, in_q, in_v, rest, tuple(name for name in names if name not in motors))

    @classmethod
    def driven_ones(cls, model: RobotQueries, law: str) -> IndependentJoints | None:
        """Returns those of a robot, for a law that adds forces on them to efforts; None if it has no loops.

        Raises:
            FailedPreconditionError: An independent joint has no motor.
        """
        joints = cls.of(model)
        if joints is not None and joints.undriven:
            raise FailedPreconditionError(
                f"law '{law}' needs a motor at each independent joint of robot '{model.name}': joint "
                f"'{joints.undriven[0]}' has none; add 'driven: true' in a joint file if it has"
            )
        return joints

    def maker(self, make: TrajectoryMaker) -> TrajectoryMaker:
        """Returns the function that begins a motion of these joints at a state of all."""
        return lambda q, v: make(q[self.in_q], v[self.in_v])

    def limits(self, limits: Limits) -> Limits:
        """Returns the limits of these joints."""
        by_entry = {name: getattr(limits, name) for name in ("velocity", "effort", "acceleration", "jerk")}
        numbers = {name: x[self.in_v] if np.ndim(x) else x for name, x in by_entry.items()}
        return Limits(limits.lower[self.in_q], limits.upper[self.in_q], **numbers)

    def complete(self, reference: Reference, q: Array, v: Array) -> Reference:
        """Returns a reference of all joints: of the others their measured motion, so that they have no error."""
        lead = reference.q.shape[:-1]
        q, v = (np.broadcast_to(x, (*lead, len(x))).copy() for x in (q, v))
        a = np.zeros_like(v)
        q[..., self.in_q], v[..., self.in_v], a[..., self.in_v] = reference
        return Reference(q, v, a)

    def closed(self, model: RobotQueries, q: Array, v: Array) -> tuple[Array, Array]:
        """Returns q (nq,) and v (nv,) with closed loops that have these joints' entries: of measurements, whose errors
        open loops. Queries: `assemble`, `independent_motion`.
        """
        q = model.assemble(q, fixed=self.configuration.names)
        return q, model.independent_motion(q, np.zeros_like(v)).jacobian @ v[self.in_v]

    def state(self, state: RobotState) -> RobotState:
        """Returns the measured state of these joints."""
        t, q, v, effort = state.measured.t, state.measured.q, state.measured.v, state.measured.effort
        return RobotState(t, q[self.in_q], v[self.in_v], effort[self.in_v])

    def expanded(self, x: Array, nv: int, other: float = 0.0) -> Array:
        """Returns numbers (nv,) of all joints: x (nu,) of these joints, `other` of the others."""
        numbers = np.full(nv, other)
        numbers[self.in_v] = x
        return numbers

    def along(self, model: RobotQueries, q: Array, reference: Reference) -> AlongReference:
        """Returns the motion at q (nq,), and the efforts that accelerate these joints as a reference of all joints
        does, at its velocity. Queries: `independent_motion`, `computed_torque`.
        """
        motion = model.independent_motion(q, np.zeros(model.configuration.nv))
        # The reference's own velocities of the other joints are measured ones, which would open the loops.
        v = motion.jacobian @ reference.v[self.in_v]
        effort = np.array(model.computed_torque(q, v, q, v, reference.a, kp=0.0, kd=0.0))
        return AlongReference(motion.jacobian, motion.mass_matrix, effort)


_OF_MODELS: WeakKeyDictionary[RobotQueries, IndependentJoints] = WeakKeyDictionary()


def commanded_count(model: RobotQueries) -> int:
    """Returns the number of velocities that a law commands: all, or those of independent joints."""
    joints = IndependentJoints.of(model)
    return model.configuration.nv if joints is None else len(joints.in_v)


def of_all_joints(model: RobotQueries, x: Array, other: float) -> Array:
    """Returns numbers (nv,) from one per commanded velocity; `other` for joints that loops move."""
    joints = IndependentJoints.of(model)
    return x if joints is None else joints.expanded(x, model.configuration.nv, other)
