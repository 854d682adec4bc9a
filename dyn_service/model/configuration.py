"""Positions and velocities of a robot as arrays: sizes, names of entries, integration on the manifold of positions.

Positions q (..., nq) and velocities v (..., nv) contain the joints' entries joint by joint. The entries of joints with
q-dot = v are added as arrays; each other joint type integrates its own entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import broadcast, numbers, vectors
from dyn_service.api.arrays import found as described
from dyn_service.api.description import RobotDescription
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.joints import NUMBERS, SINGLE, Arithmetic, Joint, joint_of
from dyn_service.model.joints.rotations import shorter

Array = NDArray[np.float64]

_FEW = 2
"""Up to this many states are faster one by one, with Python's floats."""

UNIT = 1e-6
"""Allowed deviation of a quaternion's length from 1 in input data, which may have been in single precision."""

_ROUNDED = 16 * float(np.finfo(np.float64).eps)
"""Rounding error of the length of a quaternion after normalisation."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Joint limits. lower, upper: (nq,) rad | m. velocity: (nv,) rad/s | m/s. effort: (nv,) N m | N. acceleration, also
    of decelerations, and jerk: (nv,) per s^2 and s^3, or one number. Infinite if absent.
    """

    lower: Array
    upper: Array
    velocity: Array
    effort: Array
    acceleration: Array = field(default_factory=lambda: np.array(np.inf))
    jerk: Array = field(default_factory=lambda: np.array(np.inf))

    @property
    def speeds(self) -> Array:
        """(nv,) velocity limits. A limit of 0 counts as absent, because exporters write it for absent limits."""
        return np.where(self.velocity > 0.0, self.velocity, np.inf)

    @property
    def efforts(self) -> Array:
        """(nv,) effort limits. A limit of 0 means that the joint has no motor."""
        return np.maximum(self.effort, 0.0)

    def middle(self, otherwise: Array) -> Array:
        """Returns (nq,), the middle of the position limits, or the entry of `otherwise` (nq,) if a limit is
        infinite.
        """
        with np.errstate(invalid="ignore"):
            middle = 0.5 * (self.lower + self.upper)
        return np.where(np.isfinite(middle), middle, otherwise)


@dataclass(frozen=True, eq=False)
class Configuration:
    """The movable joints of a robot. names, joints: in the order of q."""

    names: tuple[str, ...]
    joints: tuple[Joint, ...]

    @classmethod
    def of_description(cls, description: RobotDescription) -> Configuration:
        """Creates it from a robot's description as a server sends it.

        Raises:
            KeyError: Unknown joint type.
        """
        joints = {joint.name: joint for joint in description.joints}
        movable = (joints[name] for name in description.joint_names)
        return cls(description.joint_names, tuple(joint_of(joint.type, joint.axis, joint.pitch) for joint in movable))

    def to_wire(self) -> list[dict[str, Any]]:
        """Returns the joints in order as maps of plain values: `name`, `type`, and, if they have one, `axis` and
        `pitch`.
        """
        joints = zip(self.names, self.joints, strict=True)
        return [{"name": name, "type": joint.type, **joint.parameters} for name, joint in joints]

    @classmethod
    def from_wire(cls, joints: Sequence[Mapping[str, Any]]) -> Configuration:
        """Inverse of `to_wire`.

        Raises:
            KeyError: A joint has no name or no type, or the type is unknown.
        """
        types = (joint_of(joint["type"], joint.get("axis"), joint.get("pitch")) for joint in joints)
        return cls(tuple(joint["name"] for joint in joints), tuple(types))

    @cached_property
    def nq(self) -> int:
        """Length of q."""
        return sum(joint.nq for joint in self.joints)

    @cached_property
    def nv(self) -> int:
        """Length of v."""
        return sum(joint.nv for joint in self.joints)

    @cached_property
    def q_slices(self) -> tuple[slice, ...]:
        """The slice of each joint's positions in q."""
        return _slices(joint.nq for joint in self.joints)

    @cached_property
    def v_slices(self) -> tuple[slice, ...]:
        """The slice of each joint's velocities in v."""
        return _slices(joint.nv for joint in self.joints)

    @cached_property
    def several(self) -> tuple[tuple[str, slice], ...]:
        """Name and slice in v of each joint with several degrees of freedom."""
        joints = zip(self.names, self.joints, self.v_slices, strict=True)
        return tuple((name, part) for name, joint, part in joints if not joint.single_dof)

    @cached_property
    def position_names(self) -> tuple[str, ...]:
        """Names of the entries of q: the joint's name, followed by a dot and the component if the joint has several."""
        return _entry_names(self.names, [joint.positions for joint in self.joints])

    @cached_property
    def velocity_names(self) -> tuple[str, ...]:
        """Names of the entries of v, a and tau."""
        return _entry_names(self.names, [joint.velocities for joint in self.joints])

    @cached_property
    def velocity_joints(self) -> tuple[str, ...]:
        """The joint that each entry of v belongs to."""
        return tuple(name for name, joint in zip(self.names, self.joints, strict=True) for _ in range(joint.nv))

    @cached_property
    def flat(self) -> bool:
        """Whether q-dot = v for all joints, so that positions are added as numbers."""
        return all(joint.rate_is_velocity for joint in self.joints)

    @cached_property
    def neutral(self) -> Array:
        """(nq,), the position in which every body frame coincides with its joint frame."""
        return _read_only(np.concatenate([np.zeros(0), *(joint.neutral for joint in self.joints)]))

    @cached_property
    def angles(self) -> NDArray[np.bool_]:
        """(nq,), whether each position is an angle, in rad."""
        return _read_only(np.array([angle for joint in self.joints for angle in joint.angles], dtype=bool))

    @cached_property
    def shifts(self) -> NDArray[np.bool_]:
        """(nq,), whether each position is a length, in m."""
        return _read_only(np.array([shift for joint in self.joints for shift in joint.shifts], dtype=bool))

    @cached_property
    def turns(self) -> NDArray[np.bool_]:
        """(nv,), whether each velocity is angular, in rad/s; the others are in m/s."""
        return np.concatenate([np.zeros(0, dtype=bool), *(joint.subspace[:3].any(axis=0) for joint in self.joints)])

    @cached_property
    def wraps(self) -> NDArray[np.intp]:
        """Indices in v of the angles whose pose repeats after each turn, such as those of continuous joints."""
        return np.flatnonzero(self.turns & [joint.wraps for joint in self.joints for _ in range(joint.nv)])

    def integrate(self, q: ArrayLike, v: ArrayLike, dt: ArrayLike = 1.0) -> Array:
        """Returns the position (..., nq) after moving with constant v for dt; leading axes broadcast.

        Args:
            q: (..., nq) positions.
            v: (..., nv) velocities.
            dt: s, a number or (..., 1).

        Raises:
            InvalidArgumentError: An argument has the wrong shape.
        """
        start, rate = vectors("q", q, self.nq), vectors("v", v, self.nv)
        # A step of a simulation is a float, for which the check takes longer than the rest.
        time: Any = np.float64(dt) if isinstance(dt, float) else numbers(dt)
        if time is None or (time.ndim and time.shape[-1] != 1):
            raise InvalidArgumentError(f"dt must be a number or (..., 1) numbers, found {described(dt)}", path="dt")
        if time.ndim or (start.ndim > 1 < rate.ndim and start.shape[:-1] != rate.shape[:-1]):
            broadcast({"q": start.shape[:-1], "v": rate.shape[:-1], "dt": time.shape[:-1]})
        return self._each("qv->q", start, rate * time, np.add, lambda joint, q, step, m: joint.integrate(q, step, m))

    def difference(self, q: ArrayLike, to: ArrayLike) -> Array:
        """Returns the v (..., nv) that moves q (..., nq) to `to` (..., nq) in 1 s; leading axes broadcast.

        Raises:
            InvalidArgumentError: An argument has the wrong shape.
        """
        start, end = vectors("q", q, self.nq), vectors("to", to, self.nq)
        if start.ndim > 1 < end.ndim and start.shape[:-1] != end.shape[:-1]:
            broadcast({"q": start.shape[:-1], "to": end.shape[:-1]})
        return self._each(
            "qq->v", start, end, lambda q, q_to: q_to - q, lambda joint, q, q_to, m: joint.difference(q, q_to, m)
        )

    def error(self, q: ArrayLike, to: ArrayLike) -> Array:
        """Returns the position error for a control law, (..., nv): `difference` without whole turns of continuous
        joints.

        Raises:
            InvalidArgumentError: An argument has the wrong shape.
        """
        error = self.difference(q, to)
        # Not in `difference`, by which trajectories may command several turns.
        if self.wraps.size:
            error[..., self.wraps] = shorter(error[..., self.wraps], NUMBERS)
        return error

    def rate(self, q: Array, v: Array) -> Array:
        """Returns q-dot, (..., nq)."""
        return self._each("qv->q", q, v, _second, lambda joint, q, v, m: joint.rate(q, v, m))

    def normalised(self, q: Array) -> Array:
        """Returns the positions with normalised quaternions."""
        return self._each("qq->q", q, q, _second, lambda joint, q, _, m: joint.normalised(q, m))

    def unit(self, q: Array, name: str) -> Array:
        """Returns the positions (..., nq) with normalised quaternions; those of unit length are unchanged to the last
        bit.

        A simulation that is continued from its last state therefore gives the same bits as one run without a break.

        Raises:
            InvalidArgumentError: A quaternion is zero; names the joint.
        """
        unit_q = q
        for joint_name, joint, part, length in self._quaternions(q):
            if not length.all():
                raise InvalidArgumentError(
                    f"{name} of joint '{joint_name}' has a quaternion of length 0, expected one of length 1", path=name
                )
            is_off = np.abs(length - 1.0) > _ROUNDED
            if is_off.any():
                unit_q = unit_q.copy() if unit_q is q else unit_q
                scaled_q = np.stack(joint.normalised(_entries(q, part), NUMBERS), axis=-1)
                unit_q[..., part] = np.where(is_off[..., None], scaled_q, q[..., part])
        return unit_q

    def momentum_on_parent(self, q: Array, p: Array) -> Array:
        """Applies `Joint.momentum_on_parent` of each joint, (..., nv)."""
        return self._each("qv->v", q, p, _second, lambda joint, q, p, m: joint.momentum_on_parent(q, p, m))

    def momentum_on_body(self, q: Array, p: Array) -> Array:
        """Applies `Joint.momentum_on_body` of each joint, (..., nv)."""
        return self._each("qv->v", q, p, _second, lambda joint, q, p, m: joint.momentum_on_body(q, p, m))

    def turning(self, v: Array, p: Array) -> Array:
        """Returns v x* p of each joint, (..., nv)."""
        return self._each("vv->v", v, p, lambda v, p: 0.0 * p, lambda joint, v, p, _: joint.turning(v, p))

    def carried(self, x: Array, v: Array) -> Array:
        """Returns v (..., nv) in the body axes after a further motion by x (..., nv)."""
        return self._each(
            "vv->v", x, v, _second, lambda joint, x, v, m: joint.carried(joint.integrate([*joint.neutral], x, m), v)
        )

    def bracket(self, v: Array, w: Array) -> Array:
        """Returns the Lie bracket v x w of each joint, (..., nv)."""
        return self._each("vv->v", v, w, lambda v, w: 0.0 * w, lambda joint, v, w, _: joint.bracket(v, w))

    def _each(
        self,
        places: str,
        x: Array,
        y: Array,
        additive: Callable[[Array, Array], Array],
        of_joint: Callable[[Joint, list[Any], list[Any], Arithmetic], list[Any]],
    ) -> Array:
        """Applies a function of two arrays joint by joint.

        places: whether x, y and the result have the entries of q or of v, such as "qv->q". additive: the function for
        the entries of all joints with q-dot = v at once. of_joint: the function for one other joint.
        """
        if self.flat:
            return np.asarray(additive(x, y))
        of_x, of_y, of_result = places[0], places[1], places[-1]
        size = self.nq if of_result == "q" else self.nv
        indices, joints = self._entries

        def single_state(x: Array, y: Array) -> Array:
            """Returns the result for one state, with Python's floats."""
            result = np.empty(size)
            result[indices[of_result]] = additive(x[indices[of_x]], y[indices[of_y]])
            x_floats, y_floats = x.tolist(), y.tolist()
            for joint, slices in joints:
                result[slices[of_result]] = of_joint(joint, x_floats[slices[of_x]], y_floats[slices[of_y]], SINGLE)
            return result

        with suppress(ZeroDivisionError):  # a zero quaternion gives NaN below
            if x.ndim == y.ndim == 1:
                return single_state(x, y)
            lead = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
            if math.prod(lead) <= _FEW:
                x_rows, y_rows = (np.broadcast_to(z, (*lead, z.shape[-1])).reshape(-1, z.shape[-1]) for z in (x, y))
                return np.array([*map(single_state, x_rows, y_rows)]).reshape(*lead, size)
        result = np.empty((*np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), size))
        result[..., indices[of_result]] = additive(x[..., indices[of_x]], y[..., indices[of_y]])
        for joint, slices in joints:
            entries = of_joint(joint, _entries(x, slices[of_x]), _entries(y, slices[of_y]), NUMBERS)
            for k, entry in enumerate(entries, start=slices[of_result].start):
                result[..., k] = entry
        return result

    @cached_property
    def _entries(self) -> tuple[dict[str, list[int]], list[tuple[Joint, dict[str, slice]]]]:
        """Indices in q and v of all entries of joints with q-dot = v, and the slices of each other joint."""
        indices: dict[str, list[int]] = {"q": [], "v": []}
        joints: list[tuple[Joint, dict[str, slice]]] = []
        for joint, in_q, in_v in zip(self.joints, self.q_slices, self.v_slices, strict=True):
            if joint.rate_is_velocity:
                # All entries, not the first: arrays of `np.empty` are filled from these indices.
                indices["q"] += range(in_q.start, in_q.stop)
                indices["v"] += range(in_v.start, in_v.stop)
            else:
                joints.append((joint, {"q": in_q, "v": in_v}))
        return indices, joints

    def finite(self, q: Array, v: Array) -> NDArray[np.bool_]:
        """Returns (..., nv): for each entry of v, whether the state of its joint is finite."""
        if self.flat:
            return np.isfinite(q) & np.isfinite(v)
        places = zip(self.q_slices, self.v_slices, strict=True)
        states = (np.concatenate([q[..., in_q], v[..., in_v]], axis=-1) for in_q, in_v in places)
        finite = np.stack([np.isfinite(state).all(axis=-1) for state in states], axis=-1)
        return np.repeat(finite, [joint.nv for joint in self.joints], axis=-1)

    def check_unit(self, q: Array, name: str, path: str) -> None:
        """Checks that all quaternions have length 1 within UNIT.

        Raises:
            InvalidArgumentError: One has not; names the joint.
        """
        for joint_name, _, _, length in self._quaternions(q):
            wrong = np.abs(length - 1.0) > UNIT
            if wrong.any():
                raise InvalidArgumentError(
                    f"{name} of joint '{joint_name}' has a quaternion of length {length[wrong].flat[0]:g}, expected 1 "
                    f"within {UNIT:g}",
                    path=path,
                )

    def _quaternions(self, q: Array) -> Iterator[tuple[str, Joint, slice, Array]]:
        """Yields name, joint and slice of q of each joint with a quaternion, and the quaternion's length (...,)."""
        for name, joint, part in zip(self.names, self.joints, self.q_slices, strict=True):
            inner = joint.quaternion
            if inner.stop:
                length = np.linalg.norm(q[..., part.start + inner.start : part.start + inner.stop], axis=-1)
                yield name, joint, part, length

    def chosen(self, names: Sequence[str]) -> tuple[Configuration, list[int], list[int]]:
        """Returns the joints with these names, in this order, and the indices of their entries in q and v."""
        places = [self.names.index(name) for name in names]
        configuration = Configuration(tuple(names), tuple(self.joints[k] for k in places))
        in_q, in_v = (
            [n for k in places for n in range(slices[k].start, slices[k].stop)]
            for slices in (self.q_slices, self.v_slices)
        )
        return configuration, in_q, in_v

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        """Returns a random position (nq,) within limits (nq,)."""
        joints = zip(self.joints, self.q_slices, strict=True)
        return np.concatenate([np.zeros(0), *(joint.random(rng, lower[part], upper[part]) for joint, part in joints)])


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Makes an array read-only, because all callers share it."""
    array.flags.writeable = False
    return array


def _slices(sizes: Iterable[int]) -> tuple[slice, ...]:
    ends = tuple(accumulate(sizes))
    return tuple(slice(start, end) for start, end in zip((0, *ends), ends, strict=False))


def _entry_names(names: Sequence[str], parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(
        name if len(components) == 1 else f"{name}.{component}"
        for name, components in zip(names, parts, strict=True)
        for component in components
    )


def _entries(x: Array, part: slice) -> list[Array]:
    return [x[..., k] for k in range(part.start, part.stop)]


def _second(_: Array, y: Array) -> Array:
    return y
