"""A law against a simulated robot in simulated time, for tests and a first look at a new law.

In `dry_run`, `ReferenceTracker` calls the law as in a controller node, with the same due times, reference and
prediction. Commands act one step of the plant after the state they answer, from the first state on. There is no safety
supervisor and no limit: the law's efforts act unchanged. The robot may be moving at first, and pushes are functions of
the state.

    loop = ClosedLoop(plant, answer)                 # answer: a state -> its command, or None
    loop.run(4.0)

is the lockstep of the plant node: the plant, which begins at rest behind brakes and must be armed, publishes a state,
receives the command, then advances. A state without a command is a missed cycle: the plant holds its last effort until
its watchdog stops it. The result does not depend on the machine's speed, so equal runs give equal bits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.controller import ReferenceTracker, hold_maker
from dyn_service.control.law import Law
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import ACTIVE, ARMING
from dyn_service.control.trajectory import ReferenceTrajectory, TrajectoryMaker
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import STEPS
from dyn_service.simulation.engines import advance
from dyn_service.simulation.integrators.stick_slip import ExtrapolatedSticking
from dyn_service.simulation.stability import chosen
from dyn_service.simulation.task import checked

Push = Callable[[float, Array, Array], ArrayLike]
"""(t, q, v) -> (nv,) N m | N: external torques on the joints."""
PlantStep = Callable[[int, Array, Array, Array], tuple[Array, Array]]
"""(number of the step, q, v, effort) -> (q, v) at its end."""


@dataclass(frozen=True, eq=False)
class DryRun:
    """Result of a dry run, one row per state of the plant.

    t: (k,) s. q, reference: (k, nq) rad | m. v, effort, error: (k, nv); effort acts from this state on, error is
    `Configuration.error` from q to the reference. updated: (u,) rows of t at which the law was called. signals: the
    law's signals then, by name, (u, ..).
    """

    t: Array
    q: Array
    v: Array
    effort: Array
    reference: Array
    error: Array
    updated: Array
    signals: dict[str, Array]


def dry_run(
    law: Law,
    model: RobotQueries,
    seconds: float,
    *,
    motion: ReferenceTrajectory | TrajectoryMaker | None = None,
    plant: RobotQueries | None = None,
    q: ArrayLike | None = None,
    v: ArrayLike | None = None,
    rate_hz: float = 500.0,
    plant_rate_hz: float = 1000.0,
    delay_compensation: bool = True,
    push: Push | None = None,
) -> DryRun:
    """Runs the law against a simulated robot for some seconds of simulated time.

    model: that with which the law was made. motion: the reference, or a function that begins it at the first state;
    None holds the first position. plant: the simulated robot, with the same joints; None is the model. q, v: (nq,) and
    (nv,), the first state; None is neutral, at rest. rate_hz: updates of the law per second. plant_rate_hz: steps of
    the plant per second, by the integrator `auto` of `simulate`. delay_compensation: as in a controller. push: external
    torques.

    Raises:
        InvalidArgumentError: A state or push has another length, there are fewer steps than updates, a time is not
            finite, or the law's commands are not efforts: there is no drive here, use `ClosedLoop` with a plant.
        LawError: The law failed, or returned an invalid command.
    """
    configuration, simulated = model.configuration, model if plant is None else plant
    if model.description.loop_joints:
        raise FailedPreconditionError(
            f"robot '{model.name}' has closed loops, which a dry run does not close: use a plant with `ClosedLoop`"
        )
    position, speed = _start(configuration, q, v)
    _check(law, seconds, rate_hz, plant_rate_hz)
    make = (lambda q, v: motion) if isinstance(motion, ReferenceTrajectory) else motion or hold_maker(configuration)
    following = ReferenceTracker(configuration, model.description.fingerprint, make, rate_hz, delay_compensation)
    dt = 1.0 / plant_rate_hz
    step = _plant_step(simulated, configuration, position, speed, dt)
    effort = next_effort = acting_effort = np.zeros(configuration.nv)
    rows: list[tuple[float, Array, Array, Array, Array, Array]] = []
    signal_rows: list[dict[str, Array]] = []
    updated: list[int] = []
    for count in range(round(seconds * plant_rate_hz) + 1):
        t = count * dt
        # As a plant would publish it, so that a law sees no difference between a dry run and a node.
        state = PlantState(
            1, count, t, configuration.velocity_names, position.tolist(), speed.tolist(), acting_effort.tolist(),
            ACTIVE if count else ARMING, "", 0.0, 0, True, count - 1, dt, following.fingerprint,
        )  # fmt: skip
        if following.due(state):
            if not count:  # arming: the brakes hold the robot, and each state begins the reference again
                effort = following.answer(law, following.moment(state)).value
            next_effort = following.answer(law, following.moment(state)).value
            updated.append(count)
            signal_rows.append({name: np.array(value, dtype=np.float64) for name, value in law.signals().items()})
        reference = following.trajectory.sample(t - following.begin_s).q if following.trajectory else position
        rows.append((t, position, speed, effort, reference, configuration.error(position, reference)))
        pushed = effort if push is None else effort + _push_effort(push(t, position, speed), configuration.nv)
        position, speed = step(count, position, speed, pushed)
        # A command acts one step after the state it answers, as in a plant that computes while the robot moves.
        acting_effort, effort = effort, next_effort
    t_, q_, v_, effort_, reference_, error_ = (np.array(column) for column in zip(*rows, strict=True))
    signals = {name: np.array([row[name] for row in signal_rows]) for name in signal_rows[0]}
    return DryRun(t_, q_, v_, effort_, reference_, error_, np.array(updated), signals)


def _start(configuration: Configuration, q: ArrayLike | None, v: ArrayLike | None) -> tuple[Array, Array]:
    """Returns the first position and velocity; by default neutral, at rest."""
    position = np.array(configuration.neutral if q is None else q, dtype=np.float64)
    speed = np.array(np.zeros(configuration.nv) if v is None else v, dtype=np.float64)
    for name, entries, size in (("q", position, configuration.nq), ("v", speed, configuration.nv)):
        if entries.shape != (size,):
            raise InvalidArgumentError(f"{name} must have shape ({size},), found {entries.shape}", path=name)
    return position, speed


def _check(law: Law, seconds: float, rate_hz: float, plant_rate_hz: float) -> None:
    if law.interface != "effort":
        raise InvalidArgumentError(f"law '{law.name}' commands by {law.interface}: without drives, use `ClosedLoop`")
    if not 0.0 < rate_hz <= plant_rate_hz:
        text = f"rate_hz must be positive and at most plant_rate_hz, {plant_rate_hz:g}, found {rate_hz:g}"
        raise InvalidArgumentError(text, path="rate_hz")
    if not 0.0 <= seconds < np.inf or not plant_rate_hz < np.inf:
        values = f"seconds is {seconds:g}, plant_rate_hz {plant_rate_hz:g}"
        raise InvalidArgumentError(f"{values}: expected finite numbers, seconds not negative")


def _plant_step(robot: RobotQueries, configuration: Configuration, q: Array, v: Array, dt: float) -> PlantStep:
    """Returns the step of a plant that begins at q, v, by the integrator `auto` of `simulate`."""
    kind, parts = chosen(robot, dt)
    if kind not in STEPS:
        sticking = ExtrapolatedSticking.of(robot, checked(configuration, q, v, None, dt=dt, steps=1))
        return lambda count, q, v, effort: sticking.step(count, q, v, effort, None)
    return lambda count, q, v, effort: advance(
        STEPS[kind], partial(robot.forward_dynamics, tau=effort), q, v, dt, parts, on=configuration
    )


def _push_effort(push: ArrayLike, n: int) -> Array:
    values = np.asarray(push, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise InvalidArgumentError(f"push returned shape {values.shape}: expected {n} numbers, one per entry of v")
    return values


Answer = Callable[[PlantState], JointCommand | None]
Callback = Callable[[Plant, PlantState], None]


@dataclass
class ClosedLoop:
    """A plant and its controller. answer: called with every published state. every: plant steps between published
    states. delay_steps: plant steps after which a command arrives.

    Raises:
        InvalidArgumentError: A number of steps is out of its range.
    """

    plant: Plant
    answer: Answer
    every: int = 1
    delay_steps: int = 0
    _pending: deque[tuple[int, JointCommand]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        whole = isinstance(self.every, int) and isinstance(self.delay_steps, int)
        if not whole or self.every < 1 or self.delay_steps < 0:
            values = f"every is {self.every}, delay_steps {self.delay_steps}"
            raise InvalidArgumentError(f"{values}: expected whole numbers, from 1 and from 0 on")

    def cycle(self) -> PlantState:
        """Publishes a state, passes its command to the plant, advances, and returns the state.

        Raises:
            DynError: Raised by the plant or its controller.
        """
        plant = self.plant
        state = plant.publish()
        command = self.answer(state)
        if command is not None:
            self._pending.append((plant.counters.steps + self.delay_steps, command))
        for _ in range(self.every):
            # Before the step and not after it, so that a delay of 0 steps means the command acts at once.
            while self._pending and self._pending[0][0] <= plant.counters.steps:
                plant.offer(self._pending.popleft()[1])
            plant.advance(1)
        return state

    def run(self, seconds: float, callback: Callback | None = None) -> None:
        """Runs for `seconds` of plant time. callback: called after each cycle with the state at its beginning.

        Raises:
            InvalidArgumentError: `seconds` is negative or not finite.
            DynError: Raised by the plant or its controller.
        """
        if not 0.0 <= seconds < math.inf:
            raise InvalidArgumentError(f"seconds is {seconds:g}: expected a finite number that is not negative")
        end = self.plant.counters.steps + round(seconds / self.plant.dt_s)
        while self.plant.counters.steps < end:
            state = self.cycle()
            if callback is not None:
                callback(self.plant, state)
