"""Robots of which some joints move as given functions of time: driven joints, moving bases.

With p the prescribed joints and f the free ones, M a + b = tau splits into

    M_ff a_f = tau_f - b_f - M_fp a_p           accelerations of the free joints
    tau_p    = M_pf a_f + M_pp a_p + b_p        efforts that make the prescribed joints move so

b being inverse dynamics at a = 0, weight and external wrenches included. The state is that of the free joints alone,
and its equation depends on time, gamma-dot = fct(gamma, t): a rheonomic system. A base that moves is a base joint (or
several, in the URDF) that is prescribed.

Nothing here needs an engine: with a remote robot, a client's install is enough, at two requests per evaluation.
`simulate_rheonomic` of a robot takes the given motion as samples instead, and a server then does the whole motion.

Cost: O(N^2) for M, O(F^3) for F free joints; any leading axes. Source: Multi Body Dynamics document, 5.2, 5.5, 5.6.
Checked by tests/theory/test_particles.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import Prescription
from dyn_service.api.queries import Array, RobotQueries, Wrench, WrenchFunction
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import rk4_step
from dyn_service.suggestions import did_you_mean

FreeEfforts = Callable[[float, Array, Array], ArrayLike]
"""(t, q, v) of the free joints -> their efforts, (..., nf)."""


class PartlyPrescribed(NamedTuple):
    """a: (..., nv) accelerations of all joints. tau: (..., nv) efforts of all joints, those of the prescribed found."""

    a: Array
    tau: Array


def forward_dynamics(
    robot: RobotQueries,
    q: ArrayLike,
    v: ArrayLike,
    tau: ArrayLike,
    prescribed: Mapping[str, ArrayLike],
    *,
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
) -> PartlyPrescribed:
    """Accelerations of the free joints and efforts of the prescribed ones.

    Args:
        robot: In this process or remote.
        q: (..., nq) positions of all joints.
        v: (..., nv) velocities of all joints.
        tau: (..., nv) efforts; entries of prescribed joints are ignored.
        prescribed: Joint name to its acceleration, (...).
        gravity: (..., 3) m/s^2, world axes; None is the default.
        wrenches: External wrenches on links.

    Raises:
        NotFoundError: There is no movable joint of that name.
        InvalidArgumentError: The last axis of q, v or tau does not fit, or leading axes do not broadcast.
        FailedPreconditionError: The free joints' mass matrix is singular: a massless branch moves.
    """
    parts = partition(robot, prescribed)
    given, free = parts.given_v, parts.free_v
    full = {name: np.asarray(x, dtype=np.float64) for name, x in (("q", q), ("v", v), ("tau", tau))}
    for name, array in full.items():
        length = robot.nq if name == "q" else robot.nv
        if array.ndim < 1 or array.shape[-1] != length:
            raise InvalidArgumentError(f"{name} has shape {array.shape}, expected (..., {length})", path=name)
    rates = {name: np.asarray(x, dtype=np.float64) for name, x in prescribed.items()}
    try:
        lead = np.broadcast_shapes(*(x.shape[:-1] for x in full.values()), *(x.shape for x in rates.values()))
    except ValueError:
        raise InvalidArgumentError("the leading axes of q, v, tau and the prescribed ones do not broadcast") from None
    a = np.zeros((*lead, robot.nv))
    for name, k in zip(prescribed, given, strict=True):
        a[..., k] = rates[name]
    M = robot.mass_matrix(full["q"])
    # Inverse dynamics of a with its free entries zero: b + M_.p a_p.
    held = robot.inverse_dynamics(full["q"], full["v"], a, gravity=gravity, wrenches=wrenches)
    # Its leading axes are those of gravity and wrenches too.
    a, efforts = (np.array(np.broadcast_to(x, held.shape)) for x in (a, full["tau"]))
    M_ff = M[..., free, :][..., :, free]
    try:
        a[..., free] = np.linalg.solve(M_ff, (efforts - held)[..., free][..., None])[..., 0]
    except np.linalg.LinAlgError:
        raise FailedPreconditionError(
            f"the mass matrix of the free joints of robot '{robot.name}' is singular: a massless branch moves"
        ) from None
    efforts[..., given] = held[..., given] + np.einsum("...pf,...f->...p", M[..., given, :][..., :, free], a[..., free])
    return PartlyPrescribed(a, efforts)


class RheonomicRobot:
    """A robot with joints that move as functions of time; its state is that of the others.

    Args:
        robot: In this process or remote.
        prescribed: Joint name to t -> (q, v, a). That v and a are q's derivatives is up to the caller.

    Raises:
        NotFoundError: There is no movable joint of that name.
    """

    def __init__(self, robot: RobotQueries, prescribed: Mapping[str, Prescription]) -> None:
        self.robot = robot
        self.prescribed = dict(prescribed)
        self._parts = partition(robot, prescribed)

    @property
    def free_joints(self) -> tuple[str, ...]:
        """The joints whose motion is found, in the order of the robot's."""
        return self._parts.free.names

    def state(self, t: float, q: ArrayLike, v: ArrayLike) -> tuple[Array, Array]:
        """Positions (..., nq) and velocities (..., nv) of all joints, from those of the free ones at t."""
        moved = [self.prescribed[name](t) for name in self.prescribed]
        parts = self._parts
        return parts.positions(q, [x[0] for x in moved]), parts.velocities("v", v, [x[1] for x in moved])

    def forward_dynamics(
        self,
        t: float,
        q: ArrayLike,
        v: ArrayLike,
        tau: ArrayLike = 0.0,
        *,
        gravity: ArrayLike | None = None,
        wrenches: Wrench | Sequence[Wrench] | None = None,
    ) -> PartlyPrescribed:
        """Accelerations and efforts of all joints at t, for free joints at q, v (..., nf) under tau (..., nf).

        Raises:
            InvalidArgumentError: The last axis of q, v or tau is not one entry per free joint.
        """
        q_all, v_all = self.state(t, q, v)
        accelerations = {name: self.prescribed[name](t)[2] for name in self.prescribed}
        spread = np.broadcast_to(tau, (self._parts.free.nv,)) if np.ndim(tau) == 0 else tau
        efforts = self._parts.velocities("tau", spread, [0.0] * len(self._parts.given_v))
        return forward_dynamics(self.robot, q_all, v_all, efforts, accelerations, gravity=gravity, wrenches=wrenches)

    def simulate(
        self,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | FreeEfforts = 0.0,
        *,
        dt: float,
        steps: int,
        t0: float = 0.0,
        gravity: ArrayLike | None = None,
        wrenches: Wrench | Sequence[Wrench] | WrenchFunction | None = None,
    ) -> RheonomicTrajectory:
        """The motion from the free joints' state `q0`, `v0` at `t0`, by `steps` RK4 steps of `dt`.

        Args:
            q0: (..., nf) first positions of the free joints; leading axes are simulated together.
            v0: (..., nf) first velocities.
            tau: Efforts of the free joints: a number, (..., nf), or a function of (t, q, v), evaluated at every stage.
            dt: s.
            steps: How many.
            t0: s.
            gravity: (3,) m/s^2, world axes; None is the default.
            wrenches: External wrenches on links, or a function of (t, q, v) of the free joints that gives them,
                evaluated at every stage.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the step and the time.
            InvalidArgumentError: An argument of the wrong shape or value.
        """
        if not (np.isfinite(dt) and dt > 0.0):
            raise InvalidArgumentError(f"dt must be a positive time in s, found {dt!r}", path="dt")
        if steps < 1:
            raise InvalidArgumentError(f"steps must be at least 1, found {steps}", path="steps")
        q, v = np.asarray(q0, dtype=np.float64), np.asarray(v0, dtype=np.float64)
        free = self._parts.free_v

        def found(t: float, q: Array, v: Array) -> PartlyPrescribed:
            efforts = tau(t, q, v) if callable(tau) else tau
            acting = wrenches(t, q, v) if callable(wrenches) else wrenches
            return self.forward_dynamics(t, q, v, efforts, gravity=gravity, wrenches=acting)

        with np.errstate(over="ignore", invalid="ignore"):  # divergence is told in words
            lead = found(t0, q, v).a.shape[:-1]  # the efforts' leading axes too
            q, v = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in (q, v))
            records = []
            for k in range(steps + 1):
                t = t0 + k * dt
                here = found(t, q, v)
                records.append((*self.state(t, q, v), here.a, here.tau))
                if not np.isfinite(here.a).all():
                    raise FailedPreconditionError(
                        f"the simulation diverged before step {k} (t = {t:g} s): the accelerations are no longer "
                        f"finite; try a step shorter than dt = {dt:g} s"
                    )
                if k == steps:
                    break

                def acceleration(
                    at: float, q: Array, v: Array, begun: Array = q, known: PartlyPrescribed = here
                ) -> Array:
                    stage = known if q is begun else found(at, q, v)  # the first stage is what was recorded
                    return stage.a[..., free]

                q, v = rk4_step(acceleration, q, v, dt, t, on=self._parts.free)
        times: Array = t0 + dt * np.arange(steps + 1, dtype=np.float64)
        return RheonomicTrajectory(times, *(np.stack(column, axis=-2) for column in zip(*records, strict=True)))


@dataclass(frozen=True, eq=False)
class Partition:
    """The joints of a robot that are free, and where their entries and those of the prescribed ones stand.

    at: all joints. free: the free ones. free_q, free_v, given_q, given_v: places in q and in v.
    """

    at: Configuration
    free: Configuration
    free_q: list[int]
    free_v: list[int]
    given_q: list[int]
    given_v: list[int]

    def positions(self, free: ArrayLike, given: ArrayLike) -> Array:
        """(..., nq) of all joints from those of the free (..., nqf) and of the prescribed ones (..., np)."""
        return self._whole("q", free, given, self.at.nq, self.free_q, self.given_q)

    def velocities(self, name: str, free: ArrayLike, given: ArrayLike) -> Array:
        """(..., nv) of all joints: velocities, accelerations or efforts, as `name` says in an error."""
        return self._whole(name, free, given, self.at.nv, self.free_v, self.given_v)

    def checked(self, name: str, value: ArrayLike) -> Array:
        """The free joints' part of q (`q`, `q0`) or of what has the length of v.

        Raises:
            InvalidArgumentError: Its last axis does not fit.
        """
        return self._checked(name, value, self.free.nq if name.startswith("q") else self.free.nv)

    def _checked(self, name: str, value: ArrayLike, length: int) -> Array:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim < 1 or array.shape[-1] != length:
            one_each = "one entry per free joint " if self.free.flat else "those of the free joints "
            raise InvalidArgumentError(
                f"{name} has shape {array.shape}, expected (..., {length}): {one_each}({', '.join(self.free.names)})",
                path=name,
            )
        return array

    def _whole(
        self, name: str, free: ArrayLike, given: ArrayLike, size: int, free_at: list[int], given_at: list[int]
    ) -> Array:
        of_free, of_given = self._checked(name, free, len(free_at)), np.asarray(given, dtype=np.float64)
        full = np.zeros((*np.broadcast_shapes(of_free.shape[:-1], of_given.shape[:-1]), size))
        full[..., free_at], full[..., given_at] = of_free, of_given
        return full


def partition(robot: RobotQueries, prescribed: Iterable[str]) -> Partition:
    """The robot's joints, the prescribed ones in the order of their names.

    Raises:
        NotFoundError: There is no movable joint of that name.
        InvalidArgumentError: A prescribed joint has more than one way to move.
    """
    at, names = robot.configuration, list(prescribed)
    for name in names:
        if name not in at.names:
            raise NotFoundError(
                f"robot '{robot.name}' has no movable joint '{name}'; they are {', '.join(at.names)}"
                f"{did_you_mean(name, at.names)}",
                path="prescribed",
            )
        joint = at.joints[at.names.index(name)]
        if joint.nv != 1:
            raise InvalidArgumentError(
                f"joint '{name}' is {joint.type}, and a prescribed one must have one way to move", path="prescribed"
            )
    free, free_q, free_v = at.chosen([name for name in at.names if name not in names])
    _, given_q, given_v = at.chosen(names)
    return Partition(at, free, free_q, free_v, given_q, given_v)
