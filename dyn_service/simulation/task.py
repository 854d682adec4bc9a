"""The checked arguments of a simulation, for a local robot and for a client, and its grid of times.

Efforts and external wrenches are constants, samples (one per step) or functions of (t, q, v); each value is held
through its step. A motion may be a part of a longer one: `first_step` is the number of its first step, and times are
those of the whole motion. No engine is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, Generic, TypeVar, get_args

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
Acting = tuple[Array, list[Wrench] | None]
"""Efforts and external wrenches at one time."""
Lead = tuple[int, ...]
T = TypeVar("T")

_VECTORS = ("torque", "force", "point")

LIMITS = ("position_limits", "effort_limits", "velocity_limits")

SUPPORTED: tuple[Integrator, ...] = ("rk4", "semi_implicit_euler", "explicit_euler", "stick_slip")
"""The integrators that support limits and contacts."""


@dataclass(eq=False, kw_only=True)
class Grid:
    """The times of a motion: step k of this part, from 0, starts at t0 + (first_step + k) dt; every `every` steps are
    recorded. Accepts Python and NumPy numbers.

    Raises:
        InvalidArgumentError: dt is not a positive time, t0 is not finite, or another argument is not a whole number;
            `path` names it.
    """

    dt: float
    steps: int
    every: int = 1
    first_step: int = 0
    t0: float = 0.0

    def __post_init__(self) -> None:
        dt, t0 = _number(self.dt), _number(self.t0)
        if dt is None or not dt > 0.0:
            raise InvalidArgumentError(f"dt must be a positive time in s, found {self.dt!r}", path="dt")
        if t0 is None:
            raise InvalidArgumentError(f"t0 must be a finite time in s, found {self.t0!r}", path="t0")
        self.dt, self.t0 = dt, t0
        for name, least in (("steps", 1), ("every", 1), ("first_step", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise InvalidArgumentError(
                    f"{name} must be a whole number, at least {least}, found {value!r}", path=name
                )
            setattr(self, name, int(value))

    @property
    def last(self) -> int:
        """The number of steps up to the last record."""
        return self.steps // self.every * self.every

    def time(self, step: int) -> float:
        """s, at the beginning of that step of this part."""
        return self.t0 + (self.first_step + step) * self.dt

    def times(self) -> Array:
        """(K,) s, of the records."""
        steps: Array = self.first_step + self.every * np.arange(self.steps // self.every + 1, dtype=np.float64)
        return self.t0 + steps * self.dt


@dataclass(eq=False, kw_only=True)
class Motion(Grid):
    """A grid of times, an initial state, broadcast to all leading axes, and the loads.

    at: the joints that are integrated. q: (..., nq). v: (..., nv). efforts, wrenches: given as the arguments of
    `Efforts` and `Loads`. gravity: (..., 3) or None.
    """

    at: Configuration
    q: Array
    v: Array
    efforts: Efforts
    wrenches: Loads
    gravity: Array | None = None

    @property
    def by_function(self) -> bool:
        """Whether loads are given by a function that is called at each step."""
        return self.efforts.function is not None or self.wrenches.function is not None

    @property
    def steady(self) -> bool:
        """Whether the loads are the same in all steps."""
        return self.efforts.constant and self.wrenches.constant

    def acting(self, k: int, q: Array, v: Array, t: float | None = None) -> Acting:
        """Returns the loads of step k of this part at a state, at t, s, by default the start of the step.

        Raises:
            InvalidArgumentError: A function's value has the wrong shape.
            FailedPreconditionError: A function's value is not finite; names the step and the joint or wrench.
        """
        at = (k, self.first_step + k + 1, self.time(k) if t is None else t, q, v)
        return self.efforts.at(*at), self.wrenches.at(*at)

    def _spread(self, states: Mapping[str, Array], before: dict[str, Lead], later: dict[str, Lead]) -> list[Array]:
        """Broadcasts the states, q and v first, to all leading axes. Functions of the loads get states with the axes of
        the states and of `before`.
        """
        leads = {name: x.shape[:-1] for name, x in states.items()} | before
        q, v, *_ = (np.broadcast_to(x, (*broadcast(leads), x.shape[-1])) for x in states.values())
        start = (self.first_step + 1, self.time(0), q, v)
        leads = leads | self.efforts.begin(*start) | self.wrenches.begin(*start) | later
        self.efforts.lead = self.wrenches.lead = lead = broadcast(leads)
        return [np.broadcast_to(x, (*lead, x.shape[-1])) for x in states.values()]


@dataclass(eq=False, kw_only=True)
class Task(Motion):
    """The arguments of `RobotQueries.simulate`, checked.

    p: (..., nv), the initial momenta, or None. contacts: given as for `contact_points.listed`.

    Raises:
        InvalidArgumentError: An argument has the wrong type, shape or value; `path` names it.
    """

    wrenches: Loads = None  # type: ignore[assignment]  # made from the argument
    p: Array | None = None
    method: Method = "articulated"
    integrator: Integrator = "rk4"
    contacts: tuple[Contact, ...] = ()
    position_limits: bool = False
    effort_limits: bool = False
    velocity_limits: bool = False
    stop_time: float = 0.0
    stop_damping: float = STOP_DAMPING

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("integrator", get_args(Integrator)), ("method", get_args(Method))):
            value = getattr(self, name)
            if value not in known:
                near = did_you_mean(value, known)
                raise InvalidArgumentError(
                    f"{name} must be one of {', '.join(known)}, found {value!r}{near}", path=name
                )
        if self.p is not None and self.integrator != "implicit_midpoint":
            raise InvalidArgumentError(f"p0 needs the integrator implicit_midpoint, found {self.integrator}", path="p0")
        for name in LIMITS:
            if not isinstance(flag := getattr(self, name), bool):
                raise InvalidArgumentError(f"{name} must be true or false, found {found(flag)}", path=name)
        self.contacts = listed_contacts(self.contacts)
        for name in (*LIMITS, "contacts"):
            if getattr(self, name) and self.integrator not in SUPPORTED:
                raise InvalidArgumentError(
                    f"{name} needs one of the integrators {', '.join(SUPPORTED)}, found {self.integrator}", path=name
                )
        for name in ("stop_time", "stop_damping"):
            array = numbers(value := getattr(self, name))
            if array is None or array.ndim or not 0.0 <= float(array) < np.inf:
                raise InvalidArgumentError(f"{name} must be a number, at least 0, found {found(value)}", path=name)
            setattr(self, name, float(array))
        lengths = {"q0": (self.q, self.at.nq), "v0": (self.v, self.at.nv)}
        if self.p is not None:
            lengths["p0"] = (self.p, self.at.nv)
        states = {name: finite(name, vectors(name, value, length)) for name, (value, length) in lengths.items()}
        g = None if self.gravity is None else finite("gravity", vectors("gravity", self.gravity, 3))
        given: Any = self
        self.efforts = Efforts(self.at.velocity_joints, given.efforts, self.steps)
        self.wrenches, self.gravity = Loads(given.wrenches, self.steps), g
        later = {} if g is None or g.ndim == 1 else {"gravity": g.shape[:-1]}
        self.q, self.v, *p = self._spread(states, {}, later)
        self.p = p[0] if p else None

    @property
    def supported(self) -> bool:
        """Whether there are limits or contacts."""
        return any(getattr(self, name) for name in (*LIMITS, "contacts"))


def checked(at: Configuration, q0: Any, v0: Any, tau: Any, *, p0: Any = None, **arguments: Any) -> Task:
    """Returns the checked arguments of `simulate`; errors as `Task`."""
    return Task(at=at, q=q0, v=v0, efforts=tau, p=p0, **arguments)


class _Held(ABC, Generic[T]):
    """Values that are held through each step: constants, samples or those of a function of (t, q, v).

    function: or None. constant: whether all steps have the same value. lead: the leading axes of the motion, once
    known.
    """

    function: Callable[..., Any] | None
    constant: bool
    lead: Lead | None = None
    _first: T | None = None

    def begin(self, step: int, t: float, q: Array, v: Array) -> dict[str, Lead]:
        """Calls a function for the first step; returns the leading axes of the values by name."""
        if self.function is not None:
            self._first = self._called(step, t, q, v)
        return self._leads(self._first)

    def at(self, index: int, step: int, t: float, q: Array, v: Array) -> T:
        """Returns the value in a step; errors as `Motion.acting`.

        index: of the sample. step: its number in the whole motion, from 1, for errors. t, q, v: at its start.
        """
        if self.function is None:
            return self._sample(index)
        first, self._first = self._first, None
        return self._called(step, t, q, v) if first is None else first

    @abstractmethod
    def _leads(self, first: T | None) -> dict[str, Lead]: ...

    @abstractmethod
    def _sample(self, index: int) -> T: ...

    @abstractmethod
    def _called(self, step: int, t: float, q: Array, v: Array) -> T: ...


class Efforts(_Held[Array]):
    """Joint efforts (..., n).

    Args:
        names: The joint of each entry.
        tau: None (zero), (n,) constant, (..., steps, n) samples, or a function of (t, q, v).
        steps: The required number of samples.

    Raises:
        InvalidArgumentError: `tau` is none of these, or not finite.
    """

    def __init__(self, names: tuple[str, ...], tau: ArrayLike | EffortFunction | None, steps: int) -> None:
        self._names = names
        self.function = tau if callable(tau) else None
        n = len(names)
        array = np.zeros(n) if tau is None or callable(tau) else numbers(tau)
        if array is None or array.ndim < 1 or array.shape[-1] != n or not _per_step(array, steps):
            shape = found(tau) if array is None else f"shape {array.shape}"
            raise InvalidArgumentError(
                f"tau has {shape}, expected ({n},), (..., {steps}, {n}) or a function of (t, q, v)", path="tau"
            )
        self._array, self._zero = finite("tau", array), tau is None
        self.constant = self.function is None and (array.ndim == 1 or array.shape[-2] == 1)

    def part(self, start: int, count: int) -> Array | None:
        """Returns the efforts of `count` steps from `start` on, as an argument for these steps; None: zero."""
        return None if self._zero else _slice(self._array, start, count)

    def _leads(self, first: Array | None) -> dict[str, Lead]:
        return {"tau": self._array.shape[:-2] if first is None else first.shape[:-1]}

    def _sample(self, index: int) -> Array:
        return _sample(self._array, index)

    def _called(self, step: int, t: float, q: Array, v: Array) -> Array:
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


class Loads(_Held[list[Wrench] | None]):
    """External wrenches, in the axes in which they are given and the form that queries take; None: no wrenches.

    Args:
        wrenches: None, one `Wrench` or several, or a function of (t, q, v) that returns them. Torque, force and point
            are (3,) constants or (..., steps, 3) samples; those of a function are (..., 3).
        steps: The required number of samples.

    Raises:
        InvalidArgumentError: `wrenches` is none of these, or not finite.
    """

    def __init__(self, wrenches: Wrenches, steps: int) -> None:
        self.function = wrenches if callable(wrenches) else None
        self._samples = [] if wrenches is None or callable(wrenches) else listed(wrenches)
        self.none = wrenches is None
        self.constant = self.function is None and all(array.ndim == 1 for _, array in vectors_of(self._samples))
        for name, array in vectors_of(self._samples):
            if not _per_step(array, steps):
                raise InvalidArgumentError(
                    f"{name} has shape {array.shape}, expected (3,) or (..., {steps}, 3)", path=name
                )
            finite(name, array)

    def part(self, start: int, count: int) -> list[Wrench] | None:
        """Returns the wrenches of `count` steps from `start` on, as an argument for these steps."""
        return None if self.none else _changed(self._samples, lambda array: _slice(array, start, count))

    def _leads(self, first: list[Wrench] | None) -> dict[str, Lead]:
        axes, given = (-2, self._samples) if first is None else (-1, first)
        return {name: array.shape[:axes] for name, array in vectors_of(given) if array.ndim > 1}

    def _sample(self, index: int) -> list[Wrench] | None:
        if self.none or self.constant:
            return None if self.none else self._samples
        return _changed(self._samples, lambda array: _sample(array, index))

    def _called(self, step: int, t: float, q: Array, v: Array) -> list[Wrench]:
        value = self.function(t, q, v)  # type: ignore[misc]  # called where there is one
        acting = [] if value is None else listed(value)
        for name, array in vectors_of(acting):
            _fits(name, array.shape[:-1], self.lead, "wrenches")
            if not np.isfinite(array).all():
                raise diverged(step, t, f"{name} is not finite")
        return acting


def as_samples(value: Any) -> Any:
    """Returns an array (..., n), or wrenches with such vectors, as one sample; without leading axes unchanged."""
    if isinstance(value, list):
        return _changed(value, as_samples)
    return value if value is None or np.ndim(value) < 2 else np.asarray(value)[..., None, :]


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


def _fits(name: str, lead: Lead, whole: Lead | None, path: str) -> None:
    """Checks that a function's value has the same leading axes as its first value."""
    if whole is None or not lead:
        return
    leads: Mapping[str, Lead] = {"the motion": whole, name: lead}
    if broadcast(leads) != whole:
        raise InvalidArgumentError(f"{name} has leading axes {lead}, the motion began with {whole}", path=path)


def _number(value: Any) -> float | None:
    """Returns the value as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if isfinite(number) else None
