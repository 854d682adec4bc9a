"""Remote simulations as a series of requests: client side and server side. No sockets.

The server limits the number of steps per request. A longer motion is a series of requests; each contains the last state
of the previous one and the number of its first step. The server keeps no state between them, and the bits are those of
a motion in one request. The client evaluates functions for efforts or wrenches and sends their values with each step;
with adaptive steps, which evaluate them at every stage, the client integrates and requests accelerations. Prescribed
motions are sent as samples on the half grid, so that the server computes no times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import with_leading_axes
from dyn_service.api.cost import overlay_lead
from dyn_service.api.laws import SimulationLaw
from dyn_service.api.queries import (
    COMPUTATIONS,
    EffortFunction,
    GivenMotion,
    Integrator,
    Overlay,
    Payload,
    RobotQueries,
)
from dyn_service.api.results import Array, RheonomicTrajectory, Trajectory
from dyn_service.errors import DynError, InvalidArgumentError, UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation import rheonomic
from dyn_service.simulation.integrators.adaptive import between
from dyn_service.simulation.loads import as_samples
from dyn_service.simulation.simulate import simulate as simulate_here
from dyn_service.simulation.task import LIMITS, Task, checked

PART_STEPS = 2000
"""Maximum number of steps per request: some milliseconds of the server's time."""

RHEONOMIC_STEPS = 250
"""Maximum number of steps with prescribed joints per request: some tens of milliseconds of the server's time."""

PART_NUMBERS = 1 << 16
"""Approximate number of values per reply: 0.5 MiB."""

PART_MOVES = 1 << 22
"""Maximum of states x steps x joints per request: some tenths of a second."""

SUPPORTED_MOVES, STICK_SLIP_MOVES = 1 << 17, 1 << 12
"""The same with limits or contacts, and with `stick_slip`, which minimises for each state: some seconds."""

SEARCHING_STEPS = 200
"""Maximum number of iterative steps per request: each evaluates the equation of motion tens of times."""

LATER = ("integrator", "first_step", *LIMITS, "stop_time", "stop_damping", "passive")
"""Options that early servers do not have."""

SUMS = ("clamped", "work", "dissipated")
"""Outputs that sum over the interval before each record."""

T = TypeVar("T")
Outputs = Mapping[str, Array]
Requests = Generator[tuple[dict[str, Any], dict[str, Any]], Outputs, T]
"""Yields the inputs and options of each request and is sent its outputs; returns the motion."""

Progress = Callable[[float], None] | None
"""Called with the completed fraction after each part; on the server repeatedly, and its exceptions end the motion."""


def simulate(
    at: Configuration,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    payload: Payload | None = None,
    overlay: Overlay | None = None,
    passive: bool = True,
    progress: Progress = None,
    **arguments: Any,
) -> Requests[Trajectory]:
    """Yields the requests of `RobotQueries.simulate`, whose arguments and errors it has. Functions are called in this
    process; payload, overlay and passive are sent with each request.
    """
    _refuse_law(tau)
    task = checked(at, with_leading_axes(q0, overlay_lead(overlay)), v0, tau, **arguments)
    always = {"gravity": task.gravity, "payload": payload, "overlay": overlay, "contacts": task.contacts or None}
    integrate = _adaptive if task.integrator == "adaptive" and task.by_function else _fixed
    return integrate(task, always, _unless_default(passive=passive), progress or (lambda share: None))


def simulate_rheonomic(
    at: Configuration,
    prescribed: GivenMotion,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    overlay: Overlay | None = None,
    passive: bool = True,
    progress: Progress = None,
    **arguments: Any,
) -> Requests[RheonomicTrajectory]:
    """Yields the requests of `RobotQueries.simulate_rheonomic`, as `simulate`."""
    task = rheonomic.checked(at, prescribed, with_leading_axes(q0, overlay_lead(overlay)), v0, tau, **arguments)
    q, v, every, by_function = task.q, task.v, task.every, task.by_function
    states = max(1, q.size // max(task.at.nq, 1), v.size // max(task.at.nv, 1))
    most = max(1, min(RHEONOMIC_STEPS, PART_NUMBERS // ((at.nq + 3 * at.nv) * states or 1)))
    aligned = every <= most and not by_function  # parts end at records
    per_part = 1 if by_function else most // every * every if aligned else most
    found: dict[str, list[Array]] = {name: [] for name in RheonomicTrajectory._fields if name != "t"}
    free = (("q", task.parts.free_q), ("v", task.parts.free_v))
    done = 0
    while done < task.steps:
        count = min(per_part, task.steps - done)
        tau, wrenches = task.acting(done, q, v)
        inputs = {
            "q": q,
            "v": v,
            "tau": as_samples(tau) if by_function else task.efforts.part(done, count),
            "wrenches": wrenches,
            "prescribed": task.rows[..., 2 * done : 2 * (done + count) + 1, :, :],
            "gravity": task.gravity,
            "overlay": overlay,
        }
        # The next part starts at the last state, so it is returned even if it is not recorded.
        stride = every if aligned and not count % every else 1
        grid = {"dt": task.dt, "steps": count, "t0": task.t0, "first_step": task.first_step + done, "every": stride}
        outputs = yield inputs, {"joints": list(task.names), **grid, **_unless_default(passive=passive)}
        q, v = (outputs[name][..., -1, :][..., places] for name, places in free)
        # The last row of a part is the first of the next one, which has the efforts from there on.
        end = None if done + count == task.steps else -1
        for name, records in found.items():
            each = outputs[name][..., :end, :]
            records.append(each if stride == every else each[..., -done % every :: every, :])
        done += count
        if progress is not None:
            progress(done / task.steps)
    joined = {name: np.concatenate(records, axis=-2) for name, records in found.items()}
    return RheonomicTrajectory(task.times(), **joined)


def _refuse_law(tau: Any) -> None:
    if isinstance(tau, SimulationLaw):
        raise UnimplementedError(
            f"tau is a {type(tau).__name__}, which is not sent to a server: simulate a robot in this process, or give "
            "the law as a function of (t, q, v)",
            path="tau",
        )


def _unless_default(**options: Any) -> dict[str, Any]:
    """The options of a request: older servers refuse options they do not know, so newer ones are sent only if they
    differ from the default.
    """
    known = COMPUTATIONS["simulate"].options
    return {name: value for name, value in options.items() if name not in LATER or value != known[name].default}


def simulated(
    robot: RobotQueries, inputs: Mapping[str, Any], options: Mapping[str, Any], progress: Progress = None
) -> dict[str, Array]:
    """Answers one request of `simulate` with the motion of the robot, which has the request's payload; for zero steps,
    with the accelerations, for a client that integrates.
    """
    q, v, tau = inputs["q"], inputs["v"], inputs.get("tau")
    acting: dict[str, Any] = {name: inputs.get(name) for name in ("gravity", "wrenches")}
    if options["steps"] == 0:
        if inputs.get("contacts") or any(options.get(name) for name in LIMITS):
            raise InvalidArgumentError("contacts and limits need at least one step", path="options.steps")
        tau = np.zeros(robot.nv) if tau is None else tau
        a = robot.forward_dynamics(q, v, tau, **acting, method=options.get("method", "articulated"))
        # A stage may overflow: the client reports it, because it knows the step and its time.
        finite = np.isfinite(a)
        return {"a": np.where(finite, a, 0.0), "finite": finite.astype(np.float64)}
    acting["contacts"] = inputs.get("contacts")
    motion = simulate_here(robot, q, v, tau, p0=inputs.get("p"), **acting, **options, progress=progress)
    outputs = {name: array for name in COMPUTATIONS["simulate"].outputs if (array := getattr(motion, name)) is not None}
    if options.get("integrator", "auto") == "auto":
        substeps = motion.substeps if motion.integrator == "rk4" else -motion.substeps
        outputs["substeps"] = np.full(motion.q.shape[:-2], float(substeps))
    return outputs


def steps_of(outputs: Mapping[str, Any]) -> tuple[Integrator, int]:
    """Returns what `auto` became, by the outputs of `simulated`: an integrator, and the number of parts of a step."""
    substeps = next(iter(np.ravel(outputs.get("substeps", 1.0)).tolist()), 1.0)  # an empty batch has none
    return "rk4" if substeps > 0.0 else "stick_slip", int(abs(substeps))


def simulated_rheonomic(
    robot: RobotQueries, inputs: Mapping[str, Any], options: Mapping[str, Any], progress: Progress = None
) -> dict[str, Array]:
    """Answers one request of `simulate_rheonomic`. prescribed: (.., rows, np, 3) of the np joints in `joints`."""
    given = dict(options)
    joints, samples, q = given.pop("joints"), inputs["prescribed"], inputs["q"]
    if len(set(joints)) < len(joints):
        raise InvalidArgumentError(f"joints must be a list of different names, found {joints!r}", path="options.joints")
    try:
        free = rheonomic.partition(robot.configuration, joints).free
    except DynError as fault:
        raise type(fault)(fault.message, path="options.joints") from None
    if q.shape[-1:] == (free.nq,):
        free.check_unit(q, "q", "inputs.q")
    if samples.ndim < 3 or samples.shape[-2:] != (len(joints), 3):
        raise InvalidArgumentError(
            f"prescribed has shape {samples.shape}, expected (.., rows, {len(joints)}, 3): position, velocity, "
            "acceleration of each joint in `joints`",
            path="inputs.prescribed",
        )
    rows = {name: samples[..., k, :] for k, name in enumerate(joints)}
    acting = {name: inputs.get(name) for name in ("tau", "gravity", "wrenches")}
    motion = rheonomic.simulate_rheonomic(robot, rows, q, inputs["v"], **acting, **given, progress=progress)
    return motion._asdict()


def _fixed(
    task: Task, always: dict[str, Any], said: dict[str, Any], told: Callable[[float], None]
) -> Requests[Trajectory]:
    """Joins the states of all parts, without the first state of each. Parts shorter than a record interval give their
    last.
    """
    every = task.every
    q, v, p = task.q, task.v, task.p
    integrator = task.integrator  # "auto" until the first reply
    found: dict[str, list[Array]] = {}
    since: dict[str, Array] = {}  # the last record, if a part ends between two
    done = 0
    while not found or done < task.last:
        # The server chooses the default integrator in the first part, which may be the slowest one.
        searching = task.supported or integrator in ("auto", "adaptive", "implicit_midpoint", "stick_slip")
        most = SEARCHING_STEPS if searching else PART_STEPS
        moves = SUPPORTED_MOVES if task.supported else PART_MOVES
        moves = STICK_SLIP_MOVES if integrator in ("auto", "stick_slip") else moves
        most = max(1, min(most, moves // task.substeps // max(v.size, 1)))
        records = max(1, min(most // every, PART_NUMBERS // (2 * max(q.size, 1))))
        aligned = every <= most and not task.by_function and not done % every  # parts end at records
        per_part = 1 if task.by_function else records * every if aligned else min(most, every - done % every)
        # If only the initial state is recorded, one step is made to get it.
        count = max(1, min(per_part, task.last - done))
        options = {
            "dt": task.dt,
            "steps": count,
            "every": every if aligned else count,
            "method": task.method,
            "integrator": task.integrator,
            "first_step": task.first_step + done,
            **{name: getattr(task, name) for name in (*LIMITS, "stop_time", "stop_damping")},
        }
        if task.by_function:
            tau, wrenches = (as_samples(load) for load in task.acting(done, q, v))
        else:
            tau, wrenches = task.efforts.part(done, count), task.wrenches.part(done, count)
        inputs = {"q": q, "v": v, "p": p, "tau": tau, "wrenches": wrenches, **always}
        outputs = yield inputs, {**_unless_default(**options), **said}
        q, v = outputs["q"][..., -1, :], outputs["v"][..., -1, :]
        p = outputs["p"][..., -1, :] if "p" in outputs else None
        if integrator == "auto":  # servers that do not report it have one default
            integrator, task.substeps = steps_of(outputs)
        if not done:
            recorded = (name for name in COMPUTATIONS["simulate"].outputs if name in outputs and name != "t")
            found = {name: [_records(name, outputs[name], slice(1))] for name in recorded}
        done += count
        since = {name: outputs[name] + since.get(name, 0.0) for name in SUMS if name in outputs}
        if done <= task.last and (aligned or not done % every):
            for name, kept in found.items():
                kept.append(_records(name, since.get(name, outputs[name]), slice(1, None)))
            since = {}
        told(done / max(task.last, 1))
    motion: dict[str, Any] = {name: np.concatenate(kept, axis=_axis(name)) for name, kept in found.items()}
    return Trajectory(task.times(), **motion, integrator=integrator, substeps=task.substeps)


def _axis(name: str) -> int:
    """Returns the axis of an output's records."""
    return -len(COMPUTATIONS["simulate"].outputs[name].shape)


def _records(name: str, array: Array, wanted: slice) -> Array:
    """Returns a slice of the records of an output."""
    place: Any = (..., wanted, *(slice(None),) * (-_axis(name) - 1))
    found: Array = array[place]
    return found


def _adaptive(
    task: Task, always: dict[str, Any], said: dict[str, Any], told: Callable[[float], None]
) -> Requests[Trajectory]:
    """Integrates adaptive steps in this process; each request asks for the accelerations of one stage."""
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
    return Trajectory(task.times(), np.stack(q_all, axis=-2), np.stack(v_all, axis=-2), integrator=task.integrator)
