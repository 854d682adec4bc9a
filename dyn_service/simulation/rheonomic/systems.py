"""Rheonomic systems: robots with joints that move as given functions of time (driven joints, moving bases).

With p the prescribed joints and f the free ones, M a + b = tau splits into

    M_ff a_f = tau_f - b_f - M_fp a_p           accelerations of the free joints
    tau_p    = M_pf a_f + M_pp a_p + b_p        efforts of the prescribed joints

with b the inverse dynamics at a = 0, including gravity and external wrenches. The state is that of the free joints, and
its equation depends on time, gamma-dot = fct(gamma, t). A moving base is a prescribed base joint (or several) of the
URDF.

No engine is needed: a remote robot takes two requests per evaluation. `simulate_rheonomic` of a robot takes the
prescribed motion as samples instead, and a server computes the whole motion.

Cost: O(N^2) for M, O(F^3) for F free joints; any leading axes. Source: Multi Body Dynamics document, 5.2, 5.5, 5.6.
Checked by tests/theory/test_particles.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import Prescription
from dyn_service.api.arrays import broadcast, numbers
from dyn_service.api.arrays import found as described
from dyn_service.api.queries import Array, RobotQueries, Wrench, WrenchFunction
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import rk4_step
from dyn_service.simulation.task import check_grid, finite, listed, vectors_of
from dyn_service.support.suggestions import did_you_mean

FreeEfforts = Callable[[float, Array, Array], ArrayLike]
"""A function (t, q, v) of the free joints -> their efforts, (..., nf)."""


class PartlyPrescribed(NamedTuple):
    """a: (..., nv) accelerations of all joints. tau: (..., nv) efforts of all joints, computed for the prescribed
    ones.
    """

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
    passive: bool = True,
) -> PartlyPrescribed:
    """Returns the accelerations of the free joints and the efforts of the prescribed ones.

    Args:
        robot: A local or remote robot.
        q: (..., nq) positions of all joints.
        v: (..., nv) velocities of all joints.
        tau: (..., nv) efforts; entries of prescribed joints are ignored.
        prescribed: Joint name to its acceleration, (...).
        gravity: (..., 3) m/s^2, world axes; None is the default.
        wrenches: External wrenches on links, their vectors (..., 3).
        passive: Whether passive joint forces act.

    Raises:
        NotFoundError: A prescribed joint is not a movable joint.
        InvalidArgumentError: The last axis of q, v, tau or gravity is wrong, or leading axes do not broadcast.
        FailedPreconditionError: The free joints' mass matrix is singular: a massless branch moves.
    """
    parts = partition(robot.configuration, prescribed)
    given, free = parts.given_v, parts.free_v
    full = {"q": entries("q", q, robot.nq), "v": entries("v", v, robot.nv), "tau": entries("tau", tau, robot.nv)}
    rates = {name: _rate(name, x) for name, x in prescribed.items()}
    acting = None if wrenches is None else listed(wrenches)
    lead = broadcast(
        {name: x.shape[:-1] for name, x in full.items()}
        | {f"prescribed.{name}": x.shape for name, x in rates.items()}
        | ({} if gravity is None else {"gravity": entries("gravity", gravity, 3).shape[:-1]})
        | {name: x.shape[:-1] for name, x in vectors_of(acting or [])}
    )
    a = np.zeros((*lead, robot.nv))
    for name, k in zip(prescribed, given, strict=True):
        a[..., k] = rates[name]
    efforts = np.array(np.broadcast_to(full["tau"], (*lead, robot.nv)))
    M = robot.mass_matrix(full["q"], passive=passive)
    # Inverse dynamics of a with its free entries zero: b + M_.p a_p.
    held = robot.inverse_dynamics(full["q"], full["v"], a, gravity=gravity, wrenches=acting, passive=passive)
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
    """A robot with joints that move as functions of time; its state is that of the other joints.

    Args:
        robot: A local or remote robot.
        prescribed: Joint name to t -> (q, v, a). The caller ensures that v and a are the derivatives of q.

    Raises:
        NotFoundError: There is no movable joint of that name.
    """

    def __init__(self, robot: RobotQueries, prescribed: Mapping[str, Prescription]) -> None:
        self.robot = robot
        self.prescribed = dict(prescribed)
        self._parts = partition(robot.configuration, prescribed)

    @property
    def free_joints(self) -> tuple[str, ...]:
        """The free joints, in the robot's order."""
        return self._parts.free.names

    def state(self, t: float, q: ArrayLike, v: ArrayLike) -> tuple[Array, Array]:
        """Returns positions (..., nq) and velocities (..., nv) of all joints, from those of the free joints at t."""
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
        passive: bool = True,
    ) -> PartlyPrescribed:
        """Returns accelerations and efforts of all joints at t, for free joints at q, v (..., nf) under tau (..., nf).

        Raises:
            InvalidArgumentError: The last axis of q, v or tau does not have one entry per free joint.
        """
        q_all, v_all = self.state(t, q, v)
        accelerations = {name: self.prescribed[name](t)[2] for name in self.prescribed}
        number = numbers(tau)
        spread = np.broadcast_to(number, (self._parts.free.nv,)) if number is not None and not number.ndim else tau
        efforts = self._parts.velocities("tau", spread, [0.0] * len(self._parts.given_v))
        acting: dict[str, Any] = {"gravity": gravity, "wrenches": wrenches, "passive": passive}
        return forward_dynamics(self.robot, q_all, v_all, efforts, accelerations, **acting)

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
        passive: bool = True,
    ) -> RheonomicTrajectory:
        """Simulates from the free joints' state `q0`, `v0` at `t0`, by `steps` RK4 steps of `dt`.

        Args:
            q0: (..., nf) initial positions of the free joints; leading axes are simulated together.
            v0: (..., nf) initial velocities.
            tau: Efforts of the free joints, held through each step: a number, (..., nf), or a function of (t, q, v) at
                the start of the step, as in `Robot.simulate`.
            dt: s.
            steps: The number of steps.
            t0: s.
            gravity: (..., 3) m/s^2, world axes; None is the default.
            wrenches: External wrenches on links, or a function of (t, q, v) of the free joints that returns them; held
                through each step.
            passive: Whether passive joint forces act.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the step and the time.
            InvalidArgumentError: An argument has the wrong shape or value.
        """
        grid = check_grid(dt, steps, t0=t0)
        parts = self._parts
        q, v = (finite(name, parts.checked(name, x)) for name, x in (("q0", q0), ("v0", v0)))
        free = parts.free_v

        def acting(t: float, q: Array, v: Array) -> tuple[Any, Any]:
            return tau(t, q, v) if callable(tau) else tau, wrenches(t, q, v) if callable(wrenches) else wrenches

        def found(t: float, q: Array, v: Array, held: tuple[Any, Any]) -> PartlyPrescribed:
            return self.forward_dynamics(t, q, v, held[0], gravity=gravity, wrenches=held[1], passive=passive)

        with np.errstate(over="ignore", invalid="ignore"):  # divergence raises an error instead
            held = acting(grid.t0, q, v)
            lead = found(grid.t0, q, v, held).a.shape[
                :-1
            ]  # including the leading axes of efforts, gravity and wrenches
            q, v = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in (q, v))
            records = []
            for k in range(grid.steps + 1):
                t = grid.time(k)
                held = (
                    acting(t, q, v) if 0 < k < grid.steps else held
                )  # the last state is recorded under the efforts of the last step
                here = found(t, q, v, held)
                records.append((*self.state(t, q, v), here.a, here.tau))
                if not np.isfinite(here.a).all():
                    raise FailedPreconditionError(
                        f"the simulation diverged before step {k} (t = {t:g} s): the accelerations are no longer "
                        f"finite; try a step shorter than dt = {grid.dt:g} s"
                    )
                if k == grid.steps:
                    break

                def acceleration(
                    at: float, q: Array, v: Array, begun: Array = q, known: PartlyPrescribed = here, held: Any = held
                ) -> Array:
                    stage = known if q is begun else found(at, q, v, held)  # the first stage is the recorded state
                    return stage.a[..., free]

                q, v = rk4_step(acceleration, q, v, grid.dt, t, on=parts.free)
        return RheonomicTrajectory(grid.times(), *(np.stack(column, axis=-2) for column in zip(*records, strict=True)))


@dataclass(frozen=True, eq=False)
class Partition:
    """The free and the prescribed joints of a robot.

    at: all joints. free: the free ones. free_q, free_v, given_q, given_v: their indices in q and v.
    """

    at: Configuration
    free: Configuration
    free_q: list[int]
    free_v: list[int]
    given_q: list[int]
    given_v: list[int]

    def positions(self, free: ArrayLike, given: ArrayLike) -> Array:
        """Returns positions (..., nq) of all joints from those of the free (..., nqf) and the prescribed ones (...,
        np).
        """
        return self._whole("q", free, given, self.at.nq, self.free_q, self.given_q)

    def velocities(self, name: str, free: ArrayLike, given: ArrayLike) -> Array:
        """Returns velocities, accelerations or efforts (..., nv) of all joints; `name` is used in errors."""
        return self._whole(name, free, given, self.at.nv, self.free_v, self.given_v)

    def checked(self, name: str, value: ArrayLike) -> Array:
        """Checks the free joints' part of q (`q`, `q0`) or of an array with the length of v.

        Raises:
            InvalidArgumentError: Its last axis has the wrong length.
        """
        return self._checked(name, value, self.free.nq if name.startswith("q") else self.free.nv)

    def _checked(self, name: str, value: ArrayLike, length: int) -> Array:
        array = numbers(value)
        if array is None or array.ndim < 1 or array.shape[-1] != length:
            is_none = f"must be numbers, found {described(value)}" if array is None else f"has shape {array.shape}"
            one_each = "one entry per free joint " if self.free.flat else "those of the free joints "
            raise InvalidArgumentError(
                f"{name} {is_none}, expected (..., {length}): {one_each}({', '.join(self.free.names)})", path=name
            )
        return array

    def _whole(
        self, name: str, free: ArrayLike, given: ArrayLike, size: int, free_at: list[int], given_at: list[int]
    ) -> Array:
        of_free, of_given = self._checked(name, free, len(free_at)), np.asarray(given, dtype=np.float64)
        leads = {name: of_free.shape[:-1], "prescribed": of_given.shape[:-1]}
        full = np.zeros((*broadcast(leads), size))
        full[..., free_at], full[..., given_at] = of_free, of_given
        return full


def partition(at: Configuration, prescribed: Iterable[str]) -> Partition:
    """Returns the partition of a robot's joints, the prescribed ones in the order of their names.

    Raises:
        NotFoundError: A prescribed joint is not a movable joint.
        InvalidArgumentError: A prescribed joint has more than one degree of freedom.
    """
    names = list(prescribed)
    for name in names:
        if name not in at.names:
            raise NotFoundError(
                f"the robot has no movable joint '{name}'; they are {', '.join(at.names)}"
                f"{did_you_mean(name, at.names)}",
                path="prescribed",
            )
        joint = at.joints[at.names.index(name)]
        if joint.nv != 1:
            raise InvalidArgumentError(
                f"joint '{name}' is {joint.type}, and a prescribed one must have one degree of freedom",
                path="prescribed",
            )
    free, free_q, free_v = at.chosen([name for name in at.names if name not in names])
    _, given_q, given_v = at.chosen(names)
    return Partition(at, free, free_q, free_v, given_q, given_v)


def entries(name: str, value: ArrayLike, length: int) -> Array:
    """Returns the value as (..., length) numbers.

    Raises:
        InvalidArgumentError: It is not; names it.
    """
    array = numbers(value)
    if array is None or array.ndim < 1 or array.shape[-1] != length:
        shape = described(value) if array is None else f"shape {array.shape}"
        raise InvalidArgumentError(f"{name} has {shape}, expected (..., {length})", path=name)
    return array


def _rate(name: str, value: ArrayLike) -> Array:
    array = numbers(value)
    if array is None:
        raise InvalidArgumentError(
            f"the acceleration of joint '{name}' must be (...) numbers, found {described(value)}",
            path=f"prescribed.{name}",
        )
    return array
