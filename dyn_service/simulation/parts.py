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

CLOSED_MOVES = 1 << 10
"""The same for robots with closed loops, of which a step takes milliseconds."""

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
    configuration: Configuration,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    payload: Payload | None = None,
    overlay: Overlay | None = None,
    passive: bool = True,
    progress: Progress = None,
    closed_loops: bool = False,
    **arguments: Any,
) -> Requests[Trajectory]:
    """Yields the requests of `RobotQueries.simulate`, whose arguments and errors it has. Functions are called in this
    process; payload, overlay and passive are sent with each request. closed_loops: whether the robot has any.
    """
    _refuse_law(tau)
    task = checked(configuration, with_leading_axes(q0, overlay_lead(overlay)), v0, tau, **arguments)
    shared_inputs = {"gravity": task.gravity, "payload": payload, "overlay": overlay, "contacts": task.contacts or None}
    task.closed_loops = closed_loops
    if closed_loops and task.integrator == "adaptive" and task.by_function:
        raise UnimplementedError(
            "integrator='adaptive' evaluates functions at states that a server's robot with closed loops refuses: "
            "simulate a robot in this process, give samples, or use another integrator",
            path="integrator",
        )
    integrate = _adaptive_steps if task.integrator == "adaptive" and task.by_function else _fixed_steps
    return integrate(task, shared_inputs, _without_defaults(passive=passive), progress or (lambda share: None))


def simulate_rheonomic(
    configuration: Configuration,
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
    q0 = with_leading_axes(q0, overlay_lead(overlay))
    task = rheonomic.checked(configuration, prescribed, q0, v0, tau, **arguments)
    q, v, record_every, by_function = task.q, task.v, task.every, task.by_function
    states = max(1, q.size // max(task.configuration.nq, 1), v.size // max(task.configuration.nv, 1))
    longest = max(1, min(RHEONOMIC_STEPS, PART_NUMBERS // ((configuration.nq + 3 * configuration.nv) * states or 1)))
    # If parts end at records, only records are sent.
    aligned = record_every <= longest and not by_function
    per_part = 1 if by_function else longest // record_every * record_every if aligned else longest
    records_by_name: dict[str, list[Array]] = {name: [] for name in RheonomicTrajectory._fields if name != "t"}
    free = (("q", task.parts.free_q), ("v", task.parts.free_v))
    done = 0
    while done < task.steps:
        count = min(per_part, task.steps - done)
        tau, wrenches = task.loads_at(done, q, v)
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
        stride = record_every if aligned and not count % record_every else 1
        grid = {"dt": task.dt, "steps": count, "t0": task.t0, "first_step": task.first_step + done, "every": stride}
        outputs = yield inputs, {"joints": list(task.names), **grid, **_without_defaults(passive=passive)}
        q, v = (outputs[name][..., -1, :][..., places] for name, places in free)
        # The last row of a part is the first of the next one, which has the efforts from there on.
        stop = None if done + count == task.steps else -1
        for name, records in records_by_name.items():
            rows = outputs[name][..., :stop, :]
            records.append(rows if stride == record_every else rows[..., -done % record_every :: record_every, :])
        done += count
        if progress is not None:
            progress(done / task.steps)
    outputs_by_name = {name: np.concatenate(records, axis=-2) for name, records in records_by_name.items()}
    return RheonomicTrajectory(task.times(), **outputs_by_name)


def _refuse_law(tau: Any) -> None:
    if isinstance(tau, SimulationLaw):
        remedy = "simulate a robot in this process, or give the law as a function of (t, q, v)"
        text = f"tau is a {type(tau).__name__}, which is not sent to a server: {remedy}"
        raise UnimplementedError(text, path="tau")


def _without_defaults(**options: Any) -> dict[str, Any]:
    """The options of a request: newer ones only if they differ from the default, as older servers refuse them."""
    table = COMPUTATIONS["simulate"].options
    return {name: x for name, x in options.items() if name not in LATER or x != table[name].default}


def simulated(
    robot: RobotQueries, inputs: Mapping[str, Any], options: Mapping[str, Any], progress: Progress = None
) -> dict[str, Array]:
    """Answers one request of `simulate` with the motion of the robot, which has the request's payload; for zero steps,
    with the accelerations, for a client that integrates.
    """
    q, v, tau = inputs["q"], inputs["v"], inputs.get("tau")
    loads: dict[str, Any] = {name: inputs.get(name) for name in ("gravity", "wrenches")}
    if options["steps"] == 0:
        if inputs.get("contacts") or any(options.get(name) for name in LIMITS):
            raise InvalidArgumentError("contacts and limits need at least one step", path="options.steps")
        tau = np.zeros(robot.nv) if tau is None else tau
        a = robot.forward_dynamics(q, v, tau, **loads, method=options.get("method", "articulated"))
        # A stage may overflow: the client reports it, because it knows the step and its time.
        finite = np.isfinite(a)
        return {"a": np.where(finite, a, 0.0), "finite": finite.astype(np.float64)}
    loads["contacts"] = inputs.get("contacts")
    motion = simulate_here(robot, q, v, tau, p0=inputs.get("p"), **loads, **options, progress=progress)
    outputs = {name: array for name in COMPUTATIONS["simulate"].outputs if (array := getattr(motion, name)) is not None}
    if options.get("integrator", "auto") == "auto":
        substeps = motion.substeps if motion.integrator == "rk4" else -motion.substeps
        outputs["substeps"] = np.full(motion.q.shape[:-2], float(substeps))
    return outputs


DIVISIONS: Mapping[str, Callable[..., Requests[Any]]] = {"simulate": simulate, "simulate_rheonomic": simulate_rheonomic}
"""By computation, the generator that divides a call into requests.

It yields the inputs and options of a request, receives its outputs, and returns the result of the call.
"""


def steps_of(outputs: Mapping[str, Any]) -> tuple[Integrator, int]:
    """Returns what `auto` became, by the outputs of `simulated`: an integrator, and the number of parts of a step."""
    # An empty batch has no number, and early servers do not send it.
    substeps = next(iter(np.ravel(outputs.get("substeps", 1.0)).tolist()), 1.0)
    return "rk4" if substeps > 0.0 else "stick_slip", int(abs(substeps))


def simulated_rheonomic(
    robot: RobotQueries, inputs: Mapping[str, Any], options: Mapping[str, Any], progress: Progress = None
) -> dict[str, Array]:
    """Answers one request of `simulate_rheonomic`. prescribed: (.., rows, np, 3) of the np joints in `joints`."""
    options_of_motion = dict(options)
    joints, samples, q = options_of_motion.pop("joints"), inputs["prescribed"], inputs["q"]
    if len(set(joints)) < len(joints):
        raise InvalidArgumentError(f"joints must be a list of different names, found {joints!r}", path="options.joints")
    try:
        free = rheonomic.partition(robot.configuration, joints).free
    except DynError as fault:
        raise type(fault)(fault.message, path="options.joints") from None
    if q.shape[-1:] == (free.nq,):
        free.check_unit(q, "q", "inputs.q")
    if samples.ndim < 3 or samples.shape[-2:] != (len(joints), 3):
        form = f"(.., rows, {len(joints)}, 3): position, velocity, acceleration of each joint in `joints`"
        text = f"prescribed has shape {samples.shape}, expected {form}"
        raise InvalidArgumentError(text, path="inputs.prescribed")
    rows = {name: samples[..., k, :] for k, name in enumerate(joints)}
    loads = {name: inputs.get(name) for name in ("tau", "gravity", "wrenches")}
    motion = rheonomic.simulate_rheonomic(robot, rows, q, inputs["v"], **loads, **options_of_motion, progress=progress)
    return motion._asdict()


def _fixed_steps(
    task: Task, shared_inputs: dict[str, Any], shared_options: dict[str, Any], progress: Callable[[float], None]
) -> Requests[Trajectory]:
    """Joins the states of all parts, without the first of each; parts shorter than a record interval give the last."""
    q, v, p = task.q, task.v, task.p
    integrator = task.integrator  # "auto" until the first reply
    records: dict[str, list[Array]] = {}
    sums_since_record: dict[str, Array] = {}  # if a part ends between two records
    done = 0
    while not records or done < task.last:
        count, aligned = _next_part(task, integrator, done, q.size, v.size)
        options = {
            "dt": task.dt,
            "steps": count,
            "every": task.every if aligned else count,
            "method": task.method,
            "integrator": task.integrator,
            "first_step": task.first_step + done,
            **{name: getattr(task, name) for name in (*LIMITS, "stop_time", "stop_damping")},
        }
        if task.by_function:
            tau, wrenches = (as_samples(load) for load in task.loads_at(done, q, v))
        else:
            tau, wrenches = task.efforts.part(done, count), task.wrenches.part(done, count)
        inputs = {"q": q, "v": v, "p": p, "tau": tau, "wrenches": wrenches, **shared_inputs}
        outputs = yield inputs, {**_without_defaults(**options), **shared_options}
        q, v = outputs["q"][..., -1, :], outputs["v"][..., -1, :]
        p = outputs["p"][..., -1, :] if "p" in outputs else None
        # Servers that do not report it have one default.
        if integrator == "auto":
            integrator, task.substeps = steps_of(outputs)
        if not done:
            recorded = (name for name in COMPUTATIONS["simulate"].outputs if name in outputs and name != "t")
            records = {name: [_records(name, outputs[name], slice(1))] for name in recorded}
        done += count
        sums_since_record = {name: outputs[name] + sums_since_record.get(name, 0.0) for name in SUMS if name in outputs}
        if done <= task.last and (aligned or not done % task.every):
            for name, arrays in records.items():
                arrays.append(_records(name, sums_since_record.get(name, outputs[name]), slice(1, None)))
            sums_since_record = {}
        progress(done / max(task.last, 1))
    motion: dict[str, Any] = {name: np.concatenate(arrays, axis=_axis(name)) for name, arrays in records.items()}
    return Trajectory(task.times(), **motion, integrator=integrator, substeps=task.substeps)


def _next_part(task: Task, integrator: Integrator, done: int, q_size: int, v_size: int) -> tuple[int, bool]:
    """Returns the number of steps of the part after `done` steps, and whether it begins and ends at records."""
    # The server chooses the default integrator in the first part, which may be the slowest one.
    is_slow = task.supported or integrator in ("auto", "adaptive", "implicit_midpoint", "stick_slip")
    state_steps = SUPPORTED_MOVES if task.supported else PART_MOVES
    state_steps = STICK_SLIP_MOVES if integrator in ("auto", "stick_slip") else state_steps
    state_steps = CLOSED_MOVES if task.closed_loops else state_steps
    longest = min(SEARCHING_STEPS if is_slow else PART_STEPS, state_steps // task.substeps // max(v_size, 1))
    longest = max(1, longest)
    aligned = task.every <= longest and not task.by_function and not done % task.every
    if task.by_function:
        count = 1
    elif aligned:
        count = task.every * max(1, min(longest // task.every, PART_NUMBERS // (2 * max(q_size, 1))))
    else:
        count = min(longest, task.every - done % task.every)
    # If only the initial state is recorded, one step is made to get it.
    return max(1, min(count, task.last - done)), aligned


def _axis(name: str) -> int:
    """Returns the axis of an output's records."""
    return -len(COMPUTATIONS["simulate"].outputs[name].shape)


def _records(name: str, array: Array, rows: slice) -> Array:
    """Returns a slice of the records of an output."""
    selection: Any = (..., rows, *(slice(None),) * (-_axis(name) - 1))
    selected: Array = array[selection]
    return selected


def _adaptive_steps(
    task: Task, shared_inputs: dict[str, Any], shared_options: dict[str, Any], progress: Callable[[float], None]
) -> Requests[Trajectory]:
    """Integrates adaptive steps in this process; each request asks for the accelerations of one stage."""
    q, v = task.configuration.unit(task.q, "q0"), task.v
    q_all, v_all = [q], [v]
    for k in range(task.last):
        stages = between(task, k, q, v)
        try:
            stage = next(stages)
            while True:
                inputs = {"q": stage.q, "v": stage.v, "tau": stage.tau, "wrenches": stage.wrenches, **shared_inputs}
                outputs = yield inputs, {"dt": task.dt, "steps": 0, "method": task.method, **shared_options}
                stage = stages.send(np.where(outputs["finite"] > 0.0, outputs["a"], np.nan))
        except StopIteration as end_of_step:
            q, v = end_of_step.value
        if not (k + 1) % task.every:
            q_all.append(q)
            v_all.append(v)
        progress((k + 1) / task.last)
    return Trajectory(task.times(), np.stack(q_all, axis=-2), np.stack(v_all, axis=-2), integrator=task.integrator)
