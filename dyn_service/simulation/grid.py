"""The times of a motion: steps of one length from a first one on, of which some are recorded."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.results import Array
from dyn_service.errors import InvalidArgumentError


class Grid(NamedTuple):
    """Step k of this part, from 0, begins at t0 + (first_step + k) dt; after `every` steps each a state is recorded."""

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
    """The grid that these arguments of a simulation ask for, in plain numbers; NumPy's are taken too.

    Raises:
        InvalidArgumentError: dt is no positive time, t0 none at all, or another no whole number; `path` names it.
    """
    length, begin = _number(dt), _number(t0)
    if length is None or not length > 0.0:
        raise InvalidArgumentError(f"dt must be a positive time in s, found {dt!r}", path="dt")
    if begin is None:
        raise InvalidArgumentError(f"t0 must be a finite time in s, found {t0!r}", path="t0")
    counts = _whole("steps", steps, 1), _whole("every", every, 1), _whole("first_step", first_step, 0)
    return Grid(length, *counts, begin)


def _number(value: Any) -> float | None:
    """The value as a double; None if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than three hundred digits
        return None
    return number if isfinite(number) else None


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidArgumentError(f"{name} must be a whole number, at least {least}, found {value!r}", path=name)
    return int(value)
