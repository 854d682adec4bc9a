"""The checked arguments of a simulation, for a local robot and for a client, and its grid of times.

Efforts and external wrenches are constants, samples (one per step) or functions of (t, q, v); each value is held
through its step. A motion may be a part of a longer one: `first_step` is the number of its first step, and times are
those of the whole motion. No engine is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import all_finite, broadcast, found, numbers, vector, vectors
from dyn_service.api.queries import (
    STOP_DAMPING,
    Array,
    Contact,
    EffortFunction,
    Integrator,
    Method,
    Wrench,
    WrenchFunction,
)
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.contact_points import listed as listed_contacts
from dyn_service.simulation.divergence import diverged
from dyn_service.support.suggestions import did_you_mean

Wrenches = Wrench | Sequence[Wrench] | WrenchFunction | None
_VECTORS = ("torque", "force", "point")

SUPPORTED: tuple[Integrator, ...] = ("rk4", "semi_implicit_euler", "explicit_euler", "stick_slip")
"""The integrators that support limits and contacts."""


@dataclass(eq=False)
class Task:
    """The checked arguments of a simulation; the initial state is broadcast to all leading axes.

    at: the movable joints. q: (..., nq). v: (..., nv). p: (..., nv), the initial momenta if given, or None. gravity:
    (..., 3) or None. contacts: from `contact_points.listed`. Other fields as for `simulate`.
    """

    at: Configuration
    q: Array
    v: Array
    p: Array | None
    efforts: Efforts
    wrenches: Loads
    gravity: Array | None
    grid: Grid
    method: Method
    integrator: Integrator
    contacts: tuple[Contact, ...]
    position_limits: bool
    effort_limits: bool
    velocity_limits: bool
    stop_time: float
    stop_damping: float

    @property
    def supported(self) -> bool:
        """Whether there are limits or contacts."""
        return bool(self.contacts or self.position_limits or self.effort_limits or self.velocity_limits)

    @property
    def dt(self) -> float:
        """The length of a step, s."""
        return self.grid.dt

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.grid.steps

    @property
    def every(self) -> int:
        """The number of steps between records."""
        return self.grid.every

    @property
    def first_step(self) -> int:
        """The number of steps before this part."""
        return self.grid.first_step

    @property
    def last(self) -> int:
        """The number of steps up to the last record; later steps are not computed."""
        return self.steps // self.every * self.every

    @property
    def by_function(self) -> bool:
        """Whether loads are given by a function that is called at each step."""
        return self.efforts.function is not None or self.wrenches.function is not None

    @property
    def steady(self) -> bool:
        """Whether the loads are the same in all steps."""
        return self.efforts.constant and self.wrenches.constant

    def time(self, step: int) -> float:
        """s, at the beginning of that step of this part."""
        return self.grid.time(step)

    def times(self) -> Array:
        """(K,) s, of the records."""
        return self.grid.times()


def checked(
    at: Configuration,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    dt: float,
    steps: int,
    method: Method = "articulated",
    integrator: Integrator = "rk4",
    gravity: ArrayLike | None = None,
    wrenches: Wrenches = None,
    every: int = 1,
    p0: ArrayLike | None = None,
    first_step: int = 0,
    contacts: Contact | Sequence[Contact] | None = None,
    position_limits: bool = False,
    effort_limits: bool = False,
    velocity_limits: bool = False,
    stop_time: float = 0.0,
    stop_damping: float = STOP_DAMPING,
) -> Task:
    """Checks the arguments of `simulate`.

    Raises:
        InvalidArgumentError: An argument has the wrong type, shape or value; `path` names it.
    """
    grid = check_grid(dt, steps, every=every, first_step=first_step)
    for name, value, known in (("integrator", integrator, get_args(Integrator)), ("method", method, get_args(Method))):
        if value not in known:
            near = did_you_mean(value, known)
            raise InvalidArgumentError(f"{name} must be one of {', '.join(known)}, found {value!r}{near}", path=name)
    if p0 is not None and integrator != "implicit_midpoint":
        raise InvalidArgumentError(f"p0 needs the integrator implicit_midpoint, found {integrator}", path="p0")
    flags = {
        "position_limits": position_limits,
        "effort_limits": effort_limits,
        "velocity_limits": velocity_limits,
    }
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} must be true or false, found {found(flag)}", path=name)
    touching = listed_contacts(contacts)
    for name, asked in {**flags, "contacts": touching}.items():
        if asked and integrator not in SUPPORTED:
            raise InvalidArgumentError(
                f"{name} needs one of the integrators {', '.join(SUPPORTED)}, found {integrator}", path=name
            )
    stop_time, stop_damping = _amount("stop_time", stop_time), _amount("stop_damping", stop_damping)
    given: dict[str, tuple[ArrayLike, int]] = {"q0": (q0, at.nq), "v0": (v0, at.nv)}
    if p0 is not None:
        given["p0"] = (p0, at.nv)
    states = {name: finite(name, vectors(name, value, length)) for name, (value, length) in given.items()}
    g = None if gravity is None else finite("gravity", vectors("gravity", gravity, 3))
    efforts = Efforts(at.velocity_joints, tau, grid.steps)
    loads = Loads(wrenches, grid.steps)
    leads = {name: array.shape[:-1] for name, array in states.items()}
    spread = {name: np.broadcast_to(x, (*broadcast(leads), x.shape[-1])) for name, x in states.items()}
    q, v = spread["q0"], spread["v0"]
    step, t = grid.first_step + 1, grid.time(0)
    leads |= {"tau": efforts.begin(step, t, q, v)} | loads.begin(step, t, q, v)
    if g is not None and g.ndim > 1:
        leads["gravity"] = g.shape[:-1]
    efforts.lead = loads.lead = lead = broadcast(leads)
    q, v, *p = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in spread.values())
    of_state = (at, q, v, p[0] if p else None, efforts, loads, g, grid, method, integrator)
    return Task(*of_state, touching, position_limits, effort_limits, velocity_limits, stop_time, stop_damping)


class Efforts:
    """Joint efforts, held through each step.

    Args:
        names: The joint of each entry.
        tau: None (zero), (n,) constant, (..., steps, n) samples, or a function of (t, q, v).
        steps: The required number of samples.

    Raises:
        InvalidArgumentError: `tau` is none of these, or not finite.
    """

    def __init__(self, names: tuple[str, ...], tau: ArrayLike | EffortFunction | None, steps: int) -> None:
        self._names = names
        self.lead: tuple[int, ...] | None = None
        self.function = tau if callable(tau) else None
        self._first: Array | None = None
        n = len(names)
        array = np.zeros(n) if tau is None or callable(tau) else numbers(tau)
        if array is None or array.ndim < 1 or array.shape[-1] != n or not _per_step(array, steps):
            raise InvalidArgumentError(
                f"tau has {_shape(tau)}, expected ({n},), (..., {steps}, {n}) or a function of (t, q, v)", path="tau"
            )
        self._array = finite("tau", array)
        self._sent = None if tau is None else array
        self.constant = self.function is None and (array.ndim == 1 or array.shape[-2] == 1)

    def begin(self, step: int, t: float, q: Array, v: Array) -> tuple[int, ...]:
        """Calls a function for the efforts of the first step; returns the leading axes of the efforts."""
        if self.function is None:
            return self._array.shape[:-2]
        self._first = self._asked(step, t, q, v)
        return self._first.shape[:-1]

    def at(self, index: int, step: int, t: float, q: Array, v: Array) -> Array:
        """Returns the efforts (..., n) of a step.

        Args:
            index: The index of the sample.
            step: The number of the step in the whole motion, from 1, for errors.
            t: s, at its start.
            q: (..., n) positions at its start.
            v: (..., n) velocities at its start.

        Raises:
            InvalidArgumentError: A function's value has the wrong shape.
            FailedPreconditionError: A function's value is not finite; names the joint.
        """
        if self.function is None:
            return _sample(self._array, index)
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._asked(step, t, q, v)

    def part(self, start: int, count: int) -> Array | None:
        """Returns the loads of `count` steps from `start` on, as an argument for these steps; None: no load."""
        return None if self._sent is None else _slice(self._sent, start, count)

    def _asked(self, step: int, t: float, q: Array, v: Array) -> Array:
        value = self.function(t, q, v)  # type: ignore[misc]  # called where there is one
        tau = numbers(value)
        n = len(self._names)
        if tau is None or tau.ndim < 1 or tau.shape[-1] != n:
            raise InvalidArgumentError(f"tau(t, q, v) must be (..., {n}) numbers, found {found(value)}", path="tau")
        _fits("tau(t, q, v)", tau.shape[:-1], self.lead, "tau")
        if not all_finite(tau):
            wild = ~np.isfinite(tau).all(axis=tuple(range(tau.ndim - 1)))
            raise diverged(step, t, f"the effort of joint '{self._names[int(np.argmax(wild))]}' is not finite")
        return tau


class Loads:
    """External wrenches, held through each step in the axes in which they are given.

    Args:
        wrenches: None, one `Wrench` or several, or a function of (t, q, v) that returns them. Torque, force and point
        are
            (3,) constants or (..., steps, 3) samples; those of a function are (..., 3).
        steps: The required number of samples.

    Raises:
        InvalidArgumentError: `wrenches` is none of these, or not finite.
    """

    def __init__(self, wrenches: Wrenches, steps: int) -> None:
        self.lead: tuple[int, ...] | None = None
        self.function = wrenches if callable(wrenches) else None
        self._first: list[Wrench] | None = None
        self._samples = [] if wrenches is None or callable(wrenches) else listed(wrenches)
        self.none = wrenches is None
        self.constant = self.function is None and all(array.ndim == 1 for _, array in vectors_of(self._samples))
        for name, array in vectors_of(self._samples):
            if not _per_step(array, steps):
                raise InvalidArgumentError(
                    f"{name} has shape {array.shape}, expected (3,) or (..., {steps}, 3)", path=name
                )
            finite(name, array)

    def begin(self, step: int, t: float, q: Array, v: Array) -> dict[str, tuple[int, ...]]:
        """Calls a function for the wrenches of the first step; returns the leading axes by name."""
        if self.function is None:
            return {name: array.shape[:-2] for name, array in vectors_of(self._samples) if array.ndim > 1}
        self._first = self._asked(step, t, q, v)
        return {name: array.shape[:-1] for name, array in vectors_of(self._first) if array.ndim > 1}

    def at(self, index: int, step: int, t: float, q: Array, v: Array) -> list[Wrench] | None:
        """Returns the wrenches of a step in the form that queries take; arguments and errors as in `Efforts.at`."""
        if self.none:
            return None
        if self.function is None:
            return self._samples if self.constant else _changed(self._samples, lambda array: _sample(array, index))
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._asked(step, t, q, v)

    def part(self, start: int, count: int) -> list[Wrench] | None:
        """Returns the loads of `count` steps from `start` on, as an argument for these steps; None: no load."""
        return None if self.none else _changed(self._samples, lambda array: _slice(array, start, count))

    def _asked(self, step: int, t: float, q: Array, v: Array) -> list[Wrench]:
        value = self.function(t, q, v)  # type: ignore[misc]  # called where there is one
        acting = [] if value is None else listed(value)
        for name, array in vectors_of(acting):
            _fits(name, array.shape[:-1], self.lead, "wrenches")
            if not np.isfinite(array).all():
                raise diverged(step, t, f"{name} is not finite")
        return acting


def _amount(name: str, value: Any) -> float:
    """Returns a finite number that is at least 0."""
    array = numbers(value)
    if array is None or array.ndim or not 0.0 <= float(array) < np.inf:
        raise InvalidArgumentError(f"{name} must be a number, at least 0, found {found(value)}", path=name)
    return float(array)


def one_step(tau: Array | None, wrenches: list[Wrench] | None) -> tuple[Array | None, list[Wrench] | None]:
    """Converts efforts (..., n) and wrenches (..., 3) at one time to arguments of a simulation of one step."""
    efforts = None if tau is None else _as_sample(tau)
    return efforts, None if wrenches is None else _changed(wrenches, _as_sample)


def _as_sample(array: Array) -> Array:
    return array if array.ndim == 1 else array[..., None, :]


def _per_step(array: Array, steps: int) -> bool:
    return array.ndim == 1 or array.shape[-2] in (1, steps)


def _sample(array: Array, index: int) -> Array:
    return array if array.ndim == 1 else array[..., min(index, array.shape[-2] - 1), :]


def _slice(array: Array, start: int, count: int) -> Array:
    return array if array.ndim == 1 or array.shape[-2] == 1 else array[..., start : start + count, :]


def listed(wrenches: Wrench | Sequence[Wrench]) -> list[Wrench]:
    """Returns the wrenches with their vectors as arrays.

    Raises:
        InvalidArgumentError: An item is not a `Wrench`, or its vectors are not (..., 3) numbers.
    """
    given = [wrenches] if isinstance(wrenches, Wrench) else wrenches
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidArgumentError(
            f"wrenches must be a Wrench, a list of them or a function of (t, q, v), found {found(given)}",
            path="wrenches",
        )
    for k, wrench in enumerate(given):
        if not isinstance(wrench, Wrench):
            raise InvalidArgumentError(f"wrenches[{k}] must be a Wrench, found {found(wrench)}", path=f"wrenches[{k}]")
    return [
        _with(wrench, {part: vector(getattr(wrench, part), f"wrenches[{k}].{part}") for part in _VECTORS})
        for k, wrench in enumerate(given)
    ]


def vectors_of(wrenches: list[Wrench]) -> list[tuple[str, Array]]:
    """Returns the arrays of wrenches with their names for errors."""
    return [
        (f"wrenches[{k}].{part}", np.asarray(getattr(wrench, part)))
        for k, wrench in enumerate(wrenches)
        for part in _VECTORS
    ]


def _changed(wrenches: list[Wrench], change: Callable[[Any], Array]) -> list[Wrench]:
    return [_with(wrench, {part: change(getattr(wrench, part)) for part in _VECTORS}) for wrench in wrenches]


def _with(wrench: Wrench, vectors: Mapping[str, Any]) -> Wrench:
    return msgspec.structs.replace(wrench, **vectors)


def finite(name: str, array: Array) -> Array:
    """Returns the array if all its numbers are finite.

    Raises:
        InvalidArgumentError: A number is not finite; names the number and its index.
    """
    if not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InvalidArgumentError(f"{name} must be finite, found {array[tuple(index)]} at {index}", path=name)
    return array


def _fits(name: str, lead: tuple[int, ...], whole: tuple[int, ...] | None, path: str) -> None:
    """Checks that a function's value has the same leading axes as its first value."""
    if whole is None or not lead:
        return
    leads: Mapping[str, tuple[int, ...]] = {"the motion": whole, name: lead}
    if broadcast(leads) != whole:
        raise InvalidArgumentError(f"{name} has leading axes {lead}, the motion began with {whole}", path=path)


def _shape(value: Any) -> str:
    array = numbers(value)
    return f"shape {array.shape}" if array is not None else found(value)


class Grid(NamedTuple):
    """The times of a motion: step k of this part, from 0, starts at t0 + (first_step + k) dt; every `every` steps are
    recorded.
    """

    dt: float
    steps: int
    every: int
    first_step: int
    t0: float

    def time(self, step: int) -> float:
        """s, at the beginning of that step of this part."""
        return self.t0 + (self.first_step + step) * self.dt

    def times(self) -> Array:
        """(K,) s, of the records."""
        steps: Array = self.first_step + self.every * np.arange(self.steps // self.every + 1, dtype=np.float64)
        return self.t0 + steps * self.dt


def check_grid(dt: Any, steps: Any, *, every: Any = 1, first_step: Any = 0, t0: Any = 0.0) -> Grid:
    """Returns the grid of a simulation; accepts Python and NumPy numbers.

    Raises:
        InvalidArgumentError: dt is not a positive time, t0 is not finite, or another argument is not a whole number;
            `path` names it.
    """
    length, begin = _number(dt), _number(t0)
    if length is None or not length > 0.0:
        raise InvalidArgumentError(f"dt must be a positive time in s, found {dt!r}", path="dt")
    if begin is None:
        raise InvalidArgumentError(f"t0 must be a finite time in s, found {t0!r}", path="t0")
    counts = _whole("steps", steps, 1), _whole("every", every, 1), _whole("first_step", first_step, 0)
    return Grid(length, *counts, begin)


def _number(value: Any) -> float | None:
    """Returns the value as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if isfinite(number) else None


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidArgumentError(f"{name} must be a whole number, at least {least}, found {value!r}", path=name)
    return int(value)
