"""Simulations over a wire, part by part, both ends: what to ask next, and the answer to one such request. No sockets.

The server simulates a limited number of steps a request; a longer motion is a series of requests, each from the last
state of the one before and with the number of its first step, so that nothing of it stays on the server in between and
its bits are those of a motion in one piece. A function for efforts or wrenches is asked at the client, and its value
sent with each step; with adaptive steps, which ask it at every stage, the integration itself is done there, from
accelerations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import spread
from dyn_service.api.cost import overlay_lead
from dyn_service.api.queries import COMPUTATIONS, EffortFunction, Overlay, Payload, RobotQueries
from dyn_service.api.results import Array, Trajectory
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.integrators.adaptive import between
from dyn_service.simulation.task import Task, checked, one_step

PART_STEPS = 2000
"""Steps of one request at most: some milliseconds of the server's time."""

PART_NUMBERS = 1 << 16
"""Numbers in one reply, about: half a mebibyte."""

PART_MOVES = 1 << 22
"""Joint velocities that one request moves on at most, of all states and steps: some tenths of a second."""

SUPPORTED_MOVES, STICK_SLIP_MOVES = 1 << 17, 1 << 12
"""The same with limits or contacts, and with `stick_slip`, which minimises for each state: some seconds at most."""

SEARCHING_STEPS = 200
"""Steps of one request at most, of those that search: each evaluates the equation of motion tens of times."""

LIMITS = ("position_limits", "effort_limits", "velocity_limits")

LATER = ("first_step", *LIMITS, "stop_time", "stop_damping")
"""Options that servers did not have from the first."""

SUMS = ("clamped", "work", "dissipated")
"""Outputs that say of each record what went on since the one before."""

Asking = tuple[dict[str, Any], dict[str, Any]]
"""Inputs and options of one request."""

Motion = Generator[Asking, Mapping[str, Array], Trajectory]
"""The requests of one simulation, in turn: send each one's outputs back in; the motion is what comes back."""


def simulate(
    at: Configuration,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    payload: Payload | None = None,
    overlay: Overlay | None = None,
    passive: bool = True,
    progress: Callable[[float], None] | None = None,
    **arguments: Any,
) -> Motion:
    """The requests of one simulation.

    Args:
        at: The robot's movable joints.
        q0: As for `Robot.simulate`, like all that follow. Functions are called here.
        v0: First velocities.
        tau: Efforts.
        payload: Goes with every request.
        overlay: So does this; there is a state for each of the robots that it speaks of.
        passive: So does this.
        progress: Called after each part with the share that is done.
        **arguments: The others of `Robot.simulate`.

    Raises:
        InvalidArgumentError: An argument of the wrong shape or value; `path` names it.
        FailedPreconditionError: The motion diverges.
    """
    task = checked(at, spread(q0, overlay_lead(overlay)), v0, tau, **arguments)
    always = {"gravity": task.gravity, "payload": payload, "overlay": overlay, "contacts": task.contacts or None}
    said = {} if passive is True else {"passive": passive}
    told = progress or (lambda share: None)
    if task.integrator == "adaptive" and task.by_function:
        return _adaptive(task, always, said, told)
    return _fixed(task, always, said, told)


def simulated(
    robot: RobotQueries,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    progress: Callable[[float], None] | None = None,
) -> dict[str, Array]:
    """The answer to one request: the motion, or, of no steps, the accelerations for a client that does the steps.

    Args:
        robot: The robot, with its payload.
        inputs: `q`, `v` and, where they are given, `p`, `tau`, `gravity`, `wrenches`, `contacts`.
        options: Those of the row.
        progress: Called now and then with the share that is done; what it raises ends the motion.

    Raises:
        DynError: As `RobotQueries.simulate`.
    """
    from dyn_service.simulation.simulate import simulate as run  # not at a client

    q, v, tau = inputs["q"], inputs["v"], inputs.get("tau")
    acting: dict[str, Any] = {name: inputs.get(name) for name in ("gravity", "wrenches")}
    if options["steps"] == 0:
        if inputs.get("contacts") or any(options.get(name) for name in LIMITS):
            raise InvalidArgumentError("of no steps there are no contacts and no limits", path="options.steps")
        tau = np.zeros(robot.nv) if tau is None else tau
        a = robot.forward_dynamics(q, v, tau, **acting, method=options.get("method", "articulated"))
        # A stage may overflow: that is for the client to tell, who knows the step and its time.
        finite = np.isfinite(a)
        return {"a": np.where(finite, a, 0.0), "finite": finite.astype(np.float64)}
    acting["contacts"] = inputs.get("contacts")
    motion = run(robot, q, v, tau, p0=inputs.get("p"), **acting, **options, progress=progress)
    found = ((each.name, getattr(motion, each.name)) for each in fields(motion))
    return {name: array for name, array in found if array is not None}


def _fixed(task: Task, always: dict[str, Any], said: dict[str, Any], told: Callable[[float], None]) -> Motion:
    """All but the first states of each part, joined. Parts of less than a record's steps give their last state."""
    every = task.every
    q, v, p = task.q, task.v, task.p
    searching = task.supported or task.integrator in ("adaptive", "implicit_midpoint", "stick_slip")
    most = SEARCHING_STEPS if searching else PART_STEPS
    moves = SUPPORTED_MOVES if task.supported else PART_MOVES
    moves = STICK_SLIP_MOVES if task.integrator == "stick_slip" else moves
    most = max(1, min(most, moves // max(v.size, 1)))
    records = max(1, min(most // every, PART_NUMBERS // (2 * max(q.size, 1))))
    aligned = every <= most and not task.by_function  # then parts end where a state is recorded
    found: dict[str, list[Array]] = {}
    since: dict[str, Array] = {}  # the last record, where a part ends between two
    done = 0
    while not found or done < task.last:
        per_part = 1 if task.by_function else records * every if aligned else min(most, every - done % every)
        # Where not even one state is recorded after the first, a step is made for the first one's sake.
        count = max(1, min(per_part, task.last - done))
        tau, wrenches = task.efforts.part(done, count), task.wrenches.part(done, count)
        if task.by_function:
            at = (done, task.first_step + done + 1, task.time(done), q, v)
            tau, wrenches = one_step(task.efforts.at(*at), task.wrenches.at(*at))
        inputs = {"q": q, "v": v, "p": p, "tau": tau, "wrenches": wrenches, **always}
        outputs = yield inputs, {**_options(task, count, done, every=every if aligned else count), **said}
        q, v = outputs["q"][..., -1, :], outputs["v"][..., -1, :]
        p = outputs["p"][..., -1, :] if "p" in outputs else None
        if not done:
            found = {name: [_records(name, array, slice(1))] for name, array in outputs.items() if name != "t"}
        done += count
        since = {name: outputs[name] + since.get(name, 0.0) for name in SUMS if name in outputs}
        if done <= task.last and (aligned or not done % every):
            for name, kept in found.items():
                kept.append(_records(name, since.get(name, outputs[name]), slice(1, None)))
            since = {}
        told(done / max(task.last, 1))
    return Trajectory(task.times(), **{name: np.concatenate(kept, axis=_axis(name)) for name, kept in found.items()})


def _axis(name: str) -> int:
    """Where the records of an output stand."""
    return -len(COMPUTATIONS["simulate"].outputs[name].shape)


def _records(name: str, array: Array, wanted: slice) -> Array:
    """Some of the records of an output."""
    place: Any = (..., wanted, *(slice(None),) * (-_axis(name) - 1))
    found: Array = array[place]
    return found


def _adaptive(task: Task, always: dict[str, Any], said: dict[str, Any], told: Callable[[float], None]) -> Motion:
    """Adaptive steps done here: every request asks for the accelerations at one stage."""
    q, v = task.at.unit(task.q, "q0"), task.v
    q_all, v_all = [q], [v]
    for k in range(task.last):
        stages = between(task, k, q, v)
        try:
            stage = next(stages)
            while True:
                inputs = {"q": stage.q, "v": stage.v, "tau": stage.tau, "wrenches": stage.wrenches, **always}
                outputs = yield inputs, {"dt": task.dt, "steps": 0, "method": task.method, **said}
                stage = stages.send(np.where(outputs["finite"] > 0.0, outputs["a"], np.nan))
        except StopIteration as ended:
            q, v = ended.value
        if not (k + 1) % task.every:
            q_all.append(q)
            v_all.append(v)
        told((k + 1) / task.last)
    return Trajectory(task.times(), np.stack(q_all, axis=-2), np.stack(v_all, axis=-2))


def _options(task: Task, count: int, done: int, every: int) -> dict[str, Any]:
    options = {
        "dt": task.dt,
        "steps": count,
        "every": every,
        "method": task.method,
        "integrator": task.integrator,
        "first_step": task.first_step + done,
        **{name: getattr(task, name) for name in LIMITS},
        "stop_time": task.stop_time,
        "stop_damping": task.stop_damping,
    }
    # Servers that do not know an option yet refuse it: those that came later go only where they say something.
    known = COMPUTATIONS["simulate"].options
    return {name: value for name, value in options.items() if name not in LATER or value != known[name].default}
