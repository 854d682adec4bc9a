"""Where the joints of a robot stand, as arrays: sizes, names of entries, and motion on the manifold of positions.

Positions q (..., nq) and velocities v (..., nv) hold the joints' entries one joint after the other. Where every joint
has as many positions as velocities and they just add up, so do the arrays; else each joint does its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import broadcast, numbers
from dyn_service.api.arrays import found as described
from dyn_service.api.description import RobotDescription
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.joints import JOINT_TYPES, NUMBERS, SINGLE, Arithmetic, Joint
from dyn_service.model.joints.rotations import shorter

Array = NDArray[np.float64]

_FEW = 2
"""Up to so many states are faster one by one, in Python's numbers."""

UNIT = 1e-6
"""How far from 1 a quaternion's length may be where data come in from outside: that of numbers in single precision."""

_ROUNDED = 16 * float(np.finfo(np.float64).eps)
"""A quaternion that was brought to unit length is within this of it: the quotients, the squares and the root round."""


@dataclass(frozen=True, eq=False)
class Limits:
    """lower, upper: (nq,) rad | m. velocity: (nv,) rad/s | m/s. effort: (nv,) N m | N. Infinite where absent."""

    lower: Array
    upper: Array
    velocity: Array
    effort: Array

    @property
    def speeds(self) -> Array:
        """(nv,), the most that each velocity may be; infinite where that is 0: exporters write it for none."""
        return np.where(self.velocity > 0.0, self.velocity, np.inf)

    @property
    def efforts(self) -> Array:
        """(nv,), the most that each effort may be. A limit of 0 is taken at its word: the joint has no motor."""
        return np.maximum(self.effort, 0.0)

    def middle(self, otherwise: Array) -> Array:
        """(nq,), the middle of the limits of positions; where not both are finite, that of `otherwise` (nq,)."""
        with np.errstate(invalid="ignore"):
            middle = 0.5 * (self.lower + self.upper)
        return np.where(np.isfinite(middle), middle, otherwise)


@dataclass(frozen=True, eq=False)
class Configuration:
    """names, joints: of the movable joints, in the order of q."""

    names: tuple[str, ...]
    joints: tuple[Joint, ...]

    @classmethod
    def of_description(cls, description: RobotDescription) -> Configuration:
        """From what a server says of a robot.

        Raises:
            KeyError: There is no such type of joint.
        """
        joints = {joint.name: joint for joint in description.joints}
        found = (joints[name] for name in description.joint_names)
        return cls(description.joint_names, tuple(_made(joint.type, joint.axis, joint.pitch) for joint in found))

    def to_wire(self) -> list[dict[str, Any]]:
        """The joints in order as maps of plain values: `name`, `type`, and `axis` and `pitch` where they have them."""
        joints = zip(self.names, self.joints, strict=True)
        return [{"name": name, "type": joint.type, **joint.figures} for name, joint in joints]

    @classmethod
    def from_wire(cls, joints: Sequence[Mapping[str, Any]]) -> Configuration:
        """From what `to_wire` returned.

        Raises:
            KeyError: A joint has no name or type, or there is no such type.
        """
        made = (_made(joint["type"], joint.get("axis"), joint.get("pitch")) for joint in joints)
        return cls(tuple(joint["name"] for joint in joints), tuple(made))

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
        """Where each joint's positions stand in q."""
        return _slices(joint.nq for joint in self.joints)

    @cached_property
    def v_slices(self) -> tuple[slice, ...]:
        """Where each joint's velocities stand in v."""
        return _slices(joint.nv for joint in self.joints)

    @cached_property
    def position_names(self) -> tuple[str, ...]:
        """What each entry of q is called: the joint's name, with a dot and its part where the joint has several."""
        return _entry_names(self.names, [joint.positions for joint in self.joints])

    @cached_property
    def velocity_names(self) -> tuple[str, ...]:
        """What each entry of v, a, tau is called."""
        return _entry_names(self.names, [joint.velocities for joint in self.joints])

    @cached_property
    def velocity_joints(self) -> tuple[str, ...]:
        """The joint that each entry of v belongs to."""
        return tuple(name for name, joint in zip(self.names, self.joints, strict=True) for _ in range(joint.nv))

    @cached_property
    def flat(self) -> bool:
        """Whether q-dot is v and positions add up."""
        return all(joint.adds_up for joint in self.joints)

    @cached_property
    def neutral(self) -> Array:
        """(nq,): every body coincides with its joint's frame."""
        return _kept(np.concatenate([np.zeros(0), *(joint.neutral for joint in self.joints)]))

    @cached_property
    def angles(self) -> NDArray[np.bool_]:
        """(nq,): which positions are angles, in rad."""
        return _kept(np.array([angle for joint in self.joints for angle in joint.angles], dtype=bool))

    @cached_property
    def shifts(self) -> NDArray[np.bool_]:
        """(nq,): which positions are lengths, in m: neither angles nor parts of quaternions."""
        return _kept(np.array([shift for joint in self.joints for shift in joint.shifts], dtype=bool))

    @cached_property
    def turns(self) -> NDArray[np.bool_]:
        """(nv,): which velocities turn the body, in rad/s; the others are in m/s."""
        return np.concatenate([np.zeros(0, dtype=bool), *(joint.subspace[:3].any(axis=0) for joint in self.joints)])

    @cached_property
    def wraps(self) -> NDArray[np.intp]:
        """Places in v of the joints whose positions count turns that change no pose."""
        return np.flatnonzero([joint.wraps for joint in self.joints for _ in range(joint.nv)])

    def integrate(self, q: ArrayLike, v: ArrayLike, dt: ArrayLike = 1.0) -> Array:
        """The position (..., nq) after dt s with constant v (..., nv); leading axes broadcast.

        Args:
            q: (..., nq) positions.
            v: (..., nv) velocities.
            dt: s, a number or (..., 1), as `Robot.integrate` takes it.

        Raises:
            InvalidArgumentError: An argument of another shape.
        """
        at, rate = _entries_of("q", q, self.nq), _entries_of("v", v, self.nv)
        time = numbers(dt)
        if time is None or (time.ndim and time.shape[-1] != 1):
            raise InvalidArgumentError(f"dt must be a number or (..., 1) numbers, found {described(dt)}", path="dt")
        if time.ndim or at.shape[:-1] != rate.shape[:-1]:
            broadcast({"q": at.shape[:-1], "v": rate.shape[:-1], "dt": time.shape[:-1]})
        return self._each("qv->q", at, rate * time, np.add, lambda joint, q, step, m: joint.integrate(q, step, m))

    def difference(self, q: ArrayLike, to: ArrayLike) -> Array:
        """The v (..., nv) that moves q (..., nq) to `to` (..., nq) in 1 s; leading axes broadcast.

        Raises:
            InvalidArgumentError: An argument of another shape.
        """
        here, there = _entries_of("q", q, self.nq), _entries_of("to", to, self.nq)
        if here.shape[:-1] != there.shape[:-1]:
            broadcast({"q": here.shape[:-1], "to": there.shape[:-1]})
        return self._each(
            "qq->v", here, there, lambda q, to: to - q, lambda joint, q, to, m: joint.difference(q, to, m)
        )

    def error(self, q: ArrayLike, to: ArrayLike) -> Array:
        """Returns the error of a control law, (..., nv): `difference`, less the whole turns of continuous joints.

        Raises:
            InvalidArgumentError: An argument of another shape.
        """
        found = self.difference(q, to)
        if self.wraps.size:
            found[..., self.wraps] = shorter(found[..., self.wraps], NUMBERS)
        return found

    def rate(self, q: Array, v: Array) -> Array:
        """q-dot, (..., nq)."""
        return self._each("qv->q", q, v, _second, lambda joint, q, v, m: joint.rate(q, v, m))

    def normalised(self, q: Array) -> Array:
        """The same positions, quaternions of unit length."""
        return self._each("qq->q", q, q, _second, lambda joint, q, _, m: joint.normalised(q, m))

    def unit(self, q: Array, name: str) -> Array:
        """The same positions (..., nq), quaternions brought to unit length; to the last bit those that have it already.

        A motion that goes on from where another one ended is then the one that had not ended there: to divide once more
        by a length that is 1 but for rounding would change the last bits.

        Raises:
            InvalidArgumentError: A quaternion is zero, which stands for no rotation; names the joint.
        """
        found = q
        for of, joint, part in zip(self.names, self.joints, self.q_slices, strict=True):
            inner = joint.quaternion
            if not inner.stop:
                continue
            length = np.linalg.norm(q[..., part.start + inner.start : part.start + inner.stop], axis=-1)
            if not length.all():
                raise InvalidArgumentError(
                    f"{name} of joint '{of}' has a quaternion of length 0, expected one of length 1", path=name
                )
            off = np.abs(length - 1.0) > _ROUNDED
            if off.any():
                found = found.copy() if found is q else found
                scaled = np.stack(joint.normalised(_entries(q, part), NUMBERS), axis=-1)
                found[..., part] = np.where(off[..., None], scaled, q[..., part])
        return found

    def momentum_on_parent(self, q: Array, p: Array) -> Array:
        """(..., nv), `Joint.momentum_on_parent` of each joint."""
        return self._each("qv->v", q, p, _second, lambda joint, q, p, m: joint.momentum_on_parent(q, p, m))

    def momentum_on_body(self, q: Array, p: Array) -> Array:
        """(..., nv), `Joint.momentum_on_body` of each joint."""
        return self._each("qv->v", q, p, _second, lambda joint, q, p, m: joint.momentum_on_body(q, p, m))

    def turning(self, v: Array, p: Array) -> Array:
        """(..., nv), v x* p of each joint."""
        return self._each("vv->v", v, p, lambda v, p: 0.0 * p, lambda joint, v, p, _: joint.turning(v, p))

    def carried(self, x: Array, v: Array) -> Array:
        """(..., nv): a velocity v before a further motion by x (..., nv), as it is after it, in axes turned along."""
        return self._each(
            "vv->v", x, v, _second, lambda joint, x, v, m: joint.carried(joint.integrate([*joint.neutral], x, m), v)
        )

    def bracket(self, v: Array, w: Array) -> Array:
        """(..., nv), v x w of each joint, the Lie bracket."""
        return self._each("vv->v", v, w, lambda v, w: 0.0 * w, lambda joint, v, w, _: joint.bracket(v, w))

    def _each(
        self,
        places: str,
        x: Array,
        y: Array,
        single: Callable[[Array, Array], Array],
        several: Callable[[Joint, list[Any], list[Any], Arithmetic], list[Any]],
    ) -> Array:
        """A function of two arrays, joint by joint.

        Args:
            places: Whether x, y and the result have the entries of q or of v, such as "qv->q".
            x: Its first argument.
            y: Its second.
            single: What it is for joints with one entry, all of them at once.
            several: What it is for any other, entry by entry.
        """
        if self.flat:
            return np.asarray(single(x, y))
        if x.ndim == y.ndim == 1:
            with suppress(ZeroDivisionError):  # a quaternion of no length: not a number below
                return self._of_one_state(places, x, y, single, several)
        of_x, of_y, of_result = places[0], places[1], places[-1]
        lead = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
        if math.prod(lead) <= _FEW:
            whole = (z if z.shape[:-1] == lead else np.broadcast_to(z, (*lead, z.shape[-1])) for z in (x, y))
            all_x, all_y = (z.reshape(-1, z.shape[-1]) for z in whole)
            try:
                rows = [self._of_one_state(places, a, b, single, several) for a, b in zip(all_x, all_y, strict=True)]
            except ZeroDivisionError:  # a quaternion of no length: not a number below
                pass
            else:
                return np.array(rows).reshape(*lead, self.nq if of_result == "q" else self.nv)
        found = np.empty((*lead, self.nq if of_result == "q" else self.nv))
        at, joints = self._entries
        found[..., at[of_result]] = single(x[..., at[of_x]], y[..., at[of_y]])
        for joint, part in joints:
            entries = several(joint, _entries(x, part[of_x]), _entries(y, part[of_y]), NUMBERS)
            for k, entry in enumerate(entries, start=part[of_result].start):
                found[..., k] = entry
        return found

    def _of_one_state(
        self,
        places: str,
        x: Array,
        y: Array,
        single: Callable[[Array, Array], Array],
        several: Callable[[Joint, list[Any], list[Any], Arithmetic], list[Any]],
    ) -> Array:
        """`_each` where there are no leading axes, in Python's numbers.

        Raises:
            ZeroDivisionError: A quaternion has no length.
        """
        of_x, of_y, of_result = places[0], places[1], places[-1]
        found = np.empty(self.nq if of_result == "q" else self.nv)
        at, joints = self._entries
        found[at[of_result]] = single(x[at[of_x]], y[at[of_y]])
        all_x, all_y = x.tolist(), y.tolist()
        for joint, part in joints:
            found[part[of_result]] = several(joint, all_x[part[of_x]], all_y[part[of_y]], SINGLE)
        return found

    @cached_property
    def _entries(self) -> tuple[dict[str, list[int]], list[tuple[Joint, dict[str, slice]]]]:
        """Where joints with one entry stand in q and in v, and where each of the others does."""
        at: dict[str, list[int]] = {"q": [], "v": []}
        others: list[tuple[Joint, dict[str, slice]]] = []
        for joint, in_q, in_v in zip(self.joints, self.q_slices, self.v_slices, strict=True):
            if joint.adds_up:
                at["q"].append(in_q.start)
                at["v"].append(in_v.start)
            else:
                others.append((joint, {"q": in_q, "v": in_v}))
        return at, others

    def finite(self, q: Array, v: Array) -> NDArray[np.bool_]:
        """(..., nv): whether the state of the joint that each entry of v belongs to is finite."""
        if self.flat:
            return np.isfinite(q) & np.isfinite(v)
        parts = [
            np.repeat(
                np.isfinite(np.concatenate([q[..., in_q], v[..., in_v]], axis=-1)).all(axis=-1, keepdims=True),
                joint.nv,
                axis=-1,
            )
            for joint, in_q, in_v in zip(self.joints, self.q_slices, self.v_slices, strict=True)
        ]
        return np.concatenate(parts, axis=-1)

    def check_unit(self, q: Array, name: str, path: str) -> None:
        """Refuses quaternions whose length is not 1 within UNIT: they are a mistake rather than a rotation.

        Raises:
            InvalidArgumentError: One is; names the joint.
        """
        for of, joint, part in zip(self.names, self.joints, self.q_slices, strict=True):
            inner = joint.quaternion
            if inner.stop:
                length = np.linalg.norm(q[..., part.start + inner.start : part.start + inner.stop], axis=-1)
                wrong = np.abs(length - 1.0) > UNIT
                if wrong.any():
                    raise InvalidArgumentError(
                        f"{name} of joint '{of}' has a quaternion of length {length[wrong].flat[0]:g}, expected 1 "
                        f"within {UNIT:g}",
                        path=path,
                    )

    def chosen(self, names: Sequence[str]) -> tuple[Configuration, list[int], list[int]]:
        """The joints of these names, in this order, and where their entries stand in q and in v."""
        places = [self.names.index(name) for name in names]
        of = Configuration(tuple(names), tuple(self.joints[k] for k in places))
        in_q = [n for k in places for n in range(self.q_slices[k].start, self.q_slices[k].stop)]
        in_v = [n for k in places for n in range(self.v_slices[k].start, self.v_slices[k].stop)]
        return of, in_q, in_v

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        """(nq,), at random within limits (nq,)."""
        parts = (
            joint.random(rng, lower[part], upper[part]) for joint, part in zip(self.joints, self.q_slices, strict=True)
        )
        return np.concatenate([np.zeros(0), *parts])


def _entries_of(name: str, value: ArrayLike, length: int) -> Array:
    array = numbers(value)
    if array is None or array.ndim < 1 or array.shape[-1] != length:
        raise InvalidArgumentError(f"{name} must be (..., {length}) numbers, found {described(value)}", path=name)
    return array


def _kept(array: NDArray[Any]) -> NDArray[Any]:
    """The array, read-only: all who ask share it."""
    array.flags.writeable = False
    return array


def _made(kind: str, axis: Sequence[float] | None, pitch: float | None) -> Joint:
    return JOINT_TYPES[kind](np.array(axis or (0.0, 0.0, 1.0)), pitch or 0.0)


def _slices(sizes: Iterable[int]) -> tuple[slice, ...]:
    ends = tuple(accumulate(sizes))
    return tuple(slice(start, end) for start, end in zip((0, *ends), ends, strict=False))


def _entry_names(names: Sequence[str], parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(
        name if len(of) == 1 else f"{name}.{part}" for name, of in zip(names, parts, strict=True) for part in of
    )


def _entries(x: Array, part: slice) -> list[Array]:
    return [x[..., k] for k in range(part.start, part.stop)]


def _second(_: Array, y: Array) -> Array:
    return y
