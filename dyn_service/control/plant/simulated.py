"""A simulated robot: an engine that moves it, its brakes, its motors, its sensors. No sockets, no clock.

Brakes are modelled as strong ones: once shut they bring every joint to rest within `brake_s`, at a deceleration that
is constant and the same share of each joint's speed, whatever pulls at it, and hold it there. Motors that work
against them move nothing. A base has no brake: it falls, and the ground carries it with its legs held. A joint that
would pass its velocity limit within a step is braked from that step's beginning, as by a drive whose own loop is
quicker than its commands; the reading then has the fault `velocity`.

Sensors are given the mean acceleration of the step behind them, which every engine and the brakes have, and what
contacts did to the links in it, mean over it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, Wrench
from dyn_service.control.plant.actuators import Actuators
from dyn_service.control.plant.encoders import Measuring
from dyn_service.control.plant.hardware import Fault, Motion, Reading
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.divergence import no_longer_finite
from dyn_service.simulation.stepping import Engine


@dataclass
class SimulatedRobot:
    """A simulated robot at its present state: `hardware.Hardware`.

    q: (nq,) where it stands at first. dt_s: a step. brake_s: in which the brakes bring it to rest. velocity_limit:
    (nv,), infinite where there is none. actuators, measuring: None are motors and sensors that do all they are told.
    free: (nv,) which entries of v have no brake; None is no one.

    Raises:
        InvalidArgumentError: A time is not positive and finite.
    """

    engine: Engine
    configuration: Configuration
    q: Array
    dt_s: float
    brake_s: float
    velocity_limit: Array
    actuators: Actuators | None = None
    measuring: Measuring | None = None
    free: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name, time_s in (("dt_s", self.dt_s), ("brake_s", self.brake_s)):
            if not 0.0 < time_s < math.inf:
                raise InvalidArgumentError(f"{name} is {time_s:g}: expected a positive number of seconds", path=name)
        self.v: Array = np.zeros(self.configuration.nv)
        self.steps = 0
        self.simulated = True
        self._acting: Array = np.zeros(self.configuration.nv)
        self._fault: Fault = ""
        self._deceleration: Array | None = None
        self._pushes: list[tuple[Wrench, int]] = []
        self._feels = self.measuring is not None and self.measuring.feels
        if self._feels:
            self.engine.feel()

    def open(self) -> Reading:
        """As `Hardware.open`."""
        self._sample(np.zeros_like(self.v), braked=True)
        return self.read()

    def close(self) -> None:
        """As `Hardware.close`."""

    def write(self, effort: Array, *, brakes: bool) -> None:
        """One step under these efforts.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the step, its time and the joint.
        """
        self._end_pushes()
        told = effort if self.actuators is None else self.actuators.act(effort)
        before = self.q, self.v
        self.steps += 1
        self._acting, self._fault = told, ""
        braked = brakes
        if brakes:
            self._brake(told)
        else:
            self._deceleration = None
            self.q, self.v = self.engine.step(*before, told, self.dt_s)
            if np.isfinite(self.v).all() and not (np.abs(self.v) < self.velocity_limit).all():
                self.q, self.v = before
                self._brake(told)
                braked, self._fault = True, "velocity"
        if not math.isfinite(self.q.sum() + self.v.sum()):  # or the sum alone has overflowed
            finite = self.configuration.finite(self.q, self.v)
            if not finite.all():
                motion = (*before, self.engine.acceleration(*before, told))
                inner = self.dt_s / self.engine.substeps
                raise no_longer_finite(self.configuration, self.steps, self.time_s, inner, motion, finite)
        self._sample((self.v - before[1]) / self.dt_s, braked=braked)

    def read(self) -> Reading:
        """As `Hardware.read`."""
        if self.measuring is None:
            return Reading(self.q, self.v, self._acting, fault=self._fault)
        q, v = self.measuring.measured(self.q, self.v)
        return Reading(q, v, self._acting, fault=self._fault, truth=Motion(self.q, self.v))

    @property
    def time_s(self) -> float:
        """Simulated time since it was made."""
        return self.steps * self.dt_s

    def push(self, wrench: Wrench, steps: int) -> None:
        """Lets a wrench act for the coming steps, beside those that act already.

        Raises:
            UnimplementedError: The engine takes none.
        """
        self.engine.push([*(each for each, _ in self._pushes), wrench])
        self._pushes.append((wrench, self.steps + steps))

    @property
    def pushes(self) -> Sequence[Wrench]:
        """The wrenches that act."""
        return [wrench for wrench, _ in self._pushes]

    def end_pushes(self) -> None:
        """Nothing pushes any more."""
        if self._pushes:
            self._pushes = []
            self.engine.push([])

    def change_engine(self, engine: Engine) -> None:
        """Lets another engine go on from here, pushed as the one before."""
        if self._pushes:
            engine.push(self.pushes)
        if self._feels:
            engine.feel()
        self.engine = engine

    def set_state(self, q: Array, v: Array) -> None:
        """Puts it at q (nq,), v (nv,): motors and brakes begin anew. Sensors go on from there."""
        self.q, self.v = q, v
        self._deceleration = None
        self._acting = np.zeros_like(v)
        if self.actuators is not None:
            self.actuators.reset()

    def _end_pushes(self) -> None:
        if self._pushes and any(end <= self.steps for _, end in self._pushes):
            self._pushes = [(wrench, end) for wrench, end in self._pushes if end > self.steps]
            self.engine.push(self.pushes)

    def _sample(self, a: Array, *, braked: bool) -> None:
        if self.measuring is None:
            return
        acting = self.pushes
        if self._feels:
            engine = self.engine
            held = braked and (self.free is None or not self.steps)
            acting = [*acting, *(engine.felt_at(self.q, self.v, a) if held else engine.felt())]
        self.measuring.sample(self.time_s, self.q, self.v, a, acting)

    def _brake(self, told: Array) -> None:
        """One step towards rest, at the deceleration that was due when the brakes were shut."""
        if not self.v.any() and self.free is None:
            return
        if self._deceleration is None:
            self._deceleration = np.abs(self.v) / self.brake_s
        slower = np.maximum(np.abs(self.v) - self._deceleration * self.dt_s, 0.0) * np.sign(self.v)
        if self.free is not None:
            slower[self.free] = np.nan
            self.q, self.v = self.engine.step(self.q, self.v, np.where(self.free, told, 0.0), self.dt_s, slower)
            return
        self.q = self.configuration.integrate(self.q, 0.5 * (self.v + slower), self.dt_s)
        self.v = slower
