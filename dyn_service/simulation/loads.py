"""Loads that are held through each step: constants, samples or functions of the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import with_vectors
from dyn_service.api.arrays import all_finite, broadcast, finite, found, numbers, vector
from dyn_service.api.queries import Array, EffortFunction, Wrench, WrenchFunction
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.simulation.divergence import diverged

Wrenches = Wrench | Sequence[Wrench] | WrenchFunction | None
Lead = tuple[int, ...]
T = TypeVar("T")

_VECTORS = ("torque", "force", "point")


class Held(ABC, Generic[T]):
    """Values that are held through each step: constants, samples or those of a function of (t, q, v).

    function: or None. constant: whether all steps have the same value. by_state: whether values depend on the state.
    lead: the leading axes of the motion, once known.
    """

    function: Callable[..., Any] | None
    constant: bool
    by_state: bool
    lead: Lead | None = None
    _first: T | None = None

    def begin(self, step: int, t: float, q: Array, v: Array) -> dict[str, Lead]:
        """Calls a function for the first step; returns the leading axes of the values by name."""
        if self.function is not None:
            self._first = self._evaluate(step, t, q, v)
        return self._leads(self._first)

    def at(self, index: int, step: int, t: float, q: Array, v: Array) -> T:
        """Returns the value in a step; errors as `Motion.acting`.

        index: of the sample. step: its number in the whole motion, from 1, for errors. t, q, v: at its start.
        """
        if self.function is None:
            return self._sample(index)
        first, self._first = self._first, None
        return self._evaluate(step, t, q, v) if first is None else first

    @abstractmethod
    def _leads(self, first: T | None) -> dict[str, Lead]: ...

    @abstractmethod
    def _sample(self, index: int) -> T: ...

    @abstractmethod
    def _evaluate(self, step: int, t: float, q: Array, v: Array) -> T: ...


class HeldEfforts(Held[Array]):
    """Joint efforts (..., n).

    names: the joint of each entry. tau: None (zero), (n,) constant, (..., steps, n) samples, or a function of (t, q,
    v). steps: the required number of samples.

    Raises:
        InvalidArgumentError: `tau` is none of these, or not finite.
    """

    def __init__(self, names: tuple[str, ...], tau: ArrayLike | EffortFunction | None, steps: int) -> None:
        self._names = names
        self.function = tau if callable(tau) else None
        self.by_state = self.function is not None
        n = len(names)
        array = np.zeros(n) if tau is None or callable(tau) else numbers(tau)
        if array is None or array.ndim < 1 or array.shape[-1] != n or not fits_steps(array, steps):
            shape = found(tau) if array is None else f"shape {array.shape}"
            text = f"tau has {shape}, expected ({n},), (..., {steps}, {n}) or a function of (t, q, v)"
            raise InvalidArgumentError(text, path="tau")
        self._array, self._zero = finite("tau", array), tau is None
        self.constant = self.function is None and (array.ndim == 1 or array.shape[-2] == 1)

    def part(self, start: int, count: int) -> Array | None:
        """Returns the efforts of `count` steps from `start` on, as an argument for these steps; None: zero."""
        return None if self._zero else _slice(self._array, start, count)

    def samples(self, start: int, count: int) -> Array:
        """Returns the efforts of `count` steps from `start` on, (count, ..., n), or (1, ..., n) if all are the same."""
        return by_step(_slice(self._array, start, count), 1)

    def _leads(self, first: Array | None) -> dict[str, Lead]:
        return {"tau": self._array.shape[:-2] if first is None else first.shape[:-1]}

    def _sample(self, index: int) -> Array:
        return _sample(self._array, index)

    def _evaluate(self, step: int, t: float, q: Array, v: Array) -> Array:
        value = self.function(t, q, v)  # type: ignore[misc]  # called where there is one
        tau = numbers(value)
        n = len(self._names)
        if tau is None or tau.ndim < 1 or tau.shape[-1] != n:
            raise InvalidArgumentError(f"tau(t, q, v) must be (..., {n}) numbers, found {found(value)}", path="tau")
        _fits("tau(t, q, v)", tau.shape[:-1], self.lead, "tau")
        if not all_finite(tau):
            raise not_finite(tau, self._names, step, t)
        return tau


def not_finite(tau: Array, names: Sequence[str], step: int, t: float) -> FailedPreconditionError:
    """Returns the error for efforts (..., n) of which one is not finite. names: the joint of each entry."""
    diverging = ~np.isfinite(tau).all(axis=tuple(range(tau.ndim - 1)))
    return diverged(step, t, f"the effort of joint '{names[int(np.argmax(diverging))]}' is not finite")


class Loads(Held[list[Wrench] | None]):
    """External wrenches, in the axes in which they are given and the form that queries take; None: no wrenches.

    wrenches: None, one `Wrench` or several, or a function of (t, q, v) that returns them. Torque, force and point are
    (3,) constants or (..., steps, 3) samples; those of a function are (..., 3). steps: the required number of samples.

    Raises:
        InvalidArgumentError: `wrenches` is none of these, or not finite.
    """

    def __init__(self, wrenches: Wrenches, steps: int) -> None:
        self.function = wrenches if callable(wrenches) else None
        self.by_state = self.function is not None
        self._samples = [] if wrenches is None or callable(wrenches) else listed(wrenches)
        self.is_none = wrenches is None
        self.constant = self.function is None and all(array.ndim == 1 for _, array in vectors_of(self._samples))
        for name, x in vectors_of(self._samples):
            if not fits_steps(x, steps):
                raise InvalidArgumentError(f"{name} has shape {x.shape}, expected (3,) or (..., {steps}, 3)", path=name)
            finite(name, x)

    def part(self, start: int, count: int) -> list[Wrench] | None:
        """Returns the wrenches of `count` steps from `start` on, as an argument for these steps."""
        return None if self.is_none else with_vectors(self._samples, lambda array: _slice(array, start, count))

    def _leads(self, first: list[Wrench] | None) -> dict[str, Lead]:
        axes, wrenches = (-2, self._samples) if first is None else (-1, first)
        return {name: array.shape[:axes] for name, array in vectors_of(wrenches) if array.ndim > 1}

    def _sample(self, index: int) -> list[Wrench] | None:
        if self.is_none or self.constant:
            return None if self.is_none else self._samples
        return with_vectors(self._samples, lambda array: _sample(array, index))

    def _evaluate(self, step: int, t: float, q: Array, v: Array) -> list[Wrench]:
        value = self.function(t, q, v)  # type: ignore[misc]  # called where there is one
        wrenches = [] if value is None else listed(value)
        for name, array in vectors_of(wrenches):
            _fits(name, array.shape[:-1], self.lead, "wrenches")
            if not np.isfinite(array).all():
                raise diverged(step, t, f"{name} is not finite")
        return wrenches


def as_samples(value: Any) -> Any:
    """Returns an array (..., n), or wrenches with such vectors, as one sample; without leading axes unchanged."""
    if isinstance(value, list):
        return with_vectors(value, as_samples)
    return value if value is None or np.ndim(value) < 2 else np.asarray(value)[..., None, :]


def fits_steps(array: Array, steps: int, core: int = 1) -> bool:
    """Whether an array is constant, with `core` axes, or has one sample or `steps` before these."""
    return array.ndim == core or array.shape[-core - 1] in (1, steps)


def by_step(array: Array, core: int) -> Array:
    """Returns an array (..., steps, *core) as (steps, ..., *core), and one without steps as one sample."""
    return array[None] if array.ndim == core else np.moveaxis(array, -core - 1, 0)


def _sample(array: Array, index: int) -> Array:
    return array if array.ndim == 1 else array[..., min(index, array.shape[-2] - 1), :]


def _slice(array: Array, start: int, count: int) -> Array:
    return array if array.ndim == 1 or array.shape[-2] == 1 else array[..., start : start + count, :]


def listed(wrenches: Wrench | Sequence[Wrench]) -> list[Wrench]:
    """Returns the wrenches with their vectors as arrays.

    Raises:
        InvalidArgumentError: An item is not a `Wrench`, or its vectors are not (..., 3) numbers.
    """
    items = [wrenches] if isinstance(wrenches, Wrench) else wrenches
    if isinstance(items, str) or not isinstance(items, Sequence):
        text = f"wrenches must be a Wrench, a list of them or a function of (t, q, v), found {found(items)}"
        raise InvalidArgumentError(text, path="wrenches")
    for k, wrench in enumerate(items):
        if not isinstance(wrench, Wrench):
            raise InvalidArgumentError(f"wrenches[{k}] must be a Wrench, found {found(wrench)}", path=f"wrenches[{k}]")
    return [
        msgspec.structs.replace(w, **{part: vector(getattr(w, part), f"wrenches[{k}].{part}") for part in _VECTORS})
        for k, w in enumerate(items)
    ]


def vectors_of(wrenches: list[Wrench]) -> list[tuple[str, Array]]:
    """Returns the arrays of wrenches with their names for errors."""
    parts = [(k, part) for k in range(len(wrenches)) for part in _VECTORS]
    return [(f"wrenches[{k}].{part}", np.asarray(getattr(wrenches[k], part))) for k, part in parts]


def _fits(name: str, lead: Lead, motion_lead: Lead | None, path: str) -> None:
    """Checks that a function's value has the same leading axes as its first value."""
    if motion_lead is None or not lead:
        return
    leads: Mapping[str, Lead] = {"the motion": motion_lead, name: lead}
    if broadcast(leads) != motion_lead:
        raise InvalidArgumentError(f"{name} has leading axes {lead}, the motion began with {motion_lead}", path=path)
