"""The checked arguments of a simulation, for a local robot and for a client, and its grid of times.

Efforts and external wrenches are constants, samples (one per step) or functions of (t, q, v), efforts also laws given
as data; each value is held through its step. A motion may be a part of a longer one: `first_step` is the number of its
first step, and times are those of the whole motion. No engine is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from dyn_service.api.arrays import broadcast, finite, found, numbers, vectors
from dyn_service.api.laws import SimulationLaw
from dyn_service.api.queries import STOP_DAMPING, Array, Contact, Integrator, Method, Wrench
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.contact_points import listed as listed_contacts
from dyn_service.simulation.laws import LawEfforts
from dyn_service.simulation.loads import HeldEfforts, Lead, Loads
from dyn_service.support.suggestions import did_you_mean

Acting = tuple[Array, list[Wrench] | None]
"""Efforts and external wrenches at one time."""

LIMITS = ("position_limits", "effort_limits", "velocity_limits")

SUPPORTED: tuple[Integrator, ...] = ("auto", "rk4", "semi_implicit_euler", "explicit_euler", "stick_slip")
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
        for name, minimum in (("steps", 1), ("every", 1), ("first_step", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
                raise InvalidArgumentError(f"{name} must be a whole number >= {minimum}, found {value!r}", path=name)
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

    configuration: the joints that are integrated. q: (..., nq). v: (..., nv). efforts, wrenches: as the arguments of
    `HeldEfforts` and `Loads`. gravity: (..., 3) or None.
    """

    configuration: Configuration
    q: Array
    v: Array
    efforts: HeldEfforts
    wrenches: Loads
    gravity: Array | None = None

    @property
    def by_function(self) -> bool:
        """Whether loads depend on the state: given by a function, or a law, that is evaluated at each step."""
        return self.efforts.by_state or self.wrenches.by_state

    @property
    def steady(self) -> bool:
        """Whether the loads are the same in all steps."""
        return self.efforts.constant and self.wrenches.constant

    def loads_at(self, k: int, q: Array, v: Array, t: float | None = None) -> Acting:
        """Returns the loads of step k of this part at a state, at t, s, by default the start of the step.

        Raises:
            InvalidArgumentError: A function's value has the wrong shape.
            FailedPreconditionError: A function's value is not finite; names the step and the joint or wrench.
        """
        moment = (k, self.first_step + k + 1, self.time(k) if t is None else t, q, v)
        return self.efforts.at(*moment), self.wrenches.at(*moment)

    def _broadcast(self, states: Mapping[str, Array], first: dict[str, Lead], rest: dict[str, Lead]) -> list[Array]:
        """Broadcasts the states, q and v first, to all leading axes. Functions of the loads get states with the axes of
        the states and of `first`.
        """
        leads = {name: x.shape[:-1] for name, x in states.items()} | first
        q, v, *_ = (np.broadcast_to(x, (*broadcast(leads), x.shape[-1])) for x in states.values())
        start = (self.first_step + 1, self.time(0), q, v)
        leads = leads | self.efforts.begin(*start) | self.wrenches.begin(*start) | rest
        self.efforts.lead = self.wrenches.lead = lead = broadcast(leads)
        return [np.broadcast_to(x, (*lead, x.shape[-1])) for x in states.values()]


@dataclass(eq=False, kw_only=True)
class Task(Motion):
    """The arguments of `RobotQueries.simulate`, checked.

    substeps: parts of a step, of the integrator that `auto` becomes. p: (..., nv), the initial momenta, or None.
    contacts: given as for `contact_points.listed`. closed_loops: whether the robot has any, of tasks that are divided.
    closed_state: closes these loops before functions are called between two times of the grid.

    Raises:
        InvalidArgumentError: An argument has the wrong type, shape or value; `path` names it.
    """

    wrenches: Loads = None  # type: ignore[assignment]  # made from the argument
    p: Array | None = None
    method: Method = "articulated"
    integrator: Integrator = "auto"
    substeps: int = 1
    contacts: tuple[Contact, ...] = ()
    position_limits: bool = False
    effort_limits: bool = False
    velocity_limits: bool = False
    stop_time: float = 0.0
    stop_damping: float = STOP_DAMPING
    closed_loops: bool = False
    closed_state: Callable[[Array, Array], tuple[Array, Array]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("integrator", get_args(Integrator)), ("method", get_args(Method))):
            value = getattr(self, name)
            if value not in choices:
                values = f"{', '.join(choices)}, found {value!r}{did_you_mean(value, choices)}"
                raise InvalidArgumentError(f"{name} must be one of {values}", path=name)
        if self.p is not None and self.integrator != "implicit_midpoint":
            raise InvalidArgumentError(f"p0 needs the integrator implicit_midpoint, found {self.integrator}", path="p0")
        for name in LIMITS:
            if not isinstance(flag := getattr(self, name), bool):
                raise InvalidArgumentError(f"{name} must be true or false, found {found(flag)}", path=name)
        self.contacts = listed_contacts(self.contacts)
        for name in (*LIMITS, "contacts"):
            if getattr(self, name) and self.integrator not in SUPPORTED:
                text = f"needs one of the integrators {', '.join(SUPPORTED)}, found {self.integrator}"
                raise InvalidArgumentError(f"{name} {text}", path=name)
        for name in ("stop_time", "stop_damping"):
            array = numbers(value := getattr(self, name))
            if array is None or array.ndim or not 0.0 <= float(array) < np.inf:
                raise InvalidArgumentError(f"{name} must be a number, at least 0, found {found(value)}", path=name)
            setattr(self, name, float(array))
        lengths = {"q0": (self.q, self.configuration.nq), "v0": (self.v, self.configuration.nv)}
        if self.p is not None:
            lengths["p0"] = (self.p, self.configuration.nv)
        states = {name: finite(name, vectors(name, value, length)) for name, (value, length) in lengths.items()}
        g = None if self.gravity is None else finite("gravity", vectors("gravity", self.gravity, 3))
        arguments: Any = self
        if isinstance(arguments.efforts, SimulationLaw):
            self.efforts = LawEfforts(self.configuration, arguments.efforts, self.steps)
        else:
            self.efforts = HeldEfforts(self.configuration.velocity_joints, arguments.efforts, self.steps)
        self.wrenches, self.gravity = Loads(arguments.wrenches, self.steps), g
        more_leads = {} if g is None or g.ndim == 1 else {"gravity": g.shape[:-1]}
        self.q, self.v, *p = self._broadcast(states, {}, more_leads)
        self.p = p[0] if p else None

    @property
    def supported(self) -> bool:
        """Whether there are limits or contacts."""
        return any(getattr(self, name) for name in (*LIMITS, "contacts"))


def checked(configuration: Configuration, q0: Any, v0: Any, tau: Any, *, p0: Any = None, **arguments: Any) -> Task:
    """Returns the checked arguments of `simulate`; errors as `Task`."""
    return Task(configuration=configuration, q=q0, v=v0, efforts=tau, p=p0, **arguments)


def _number(value: Any) -> float | None:
    """Returns the value as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if isfinite(number) else None
