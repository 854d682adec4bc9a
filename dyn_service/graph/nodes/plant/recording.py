"""A plant's recordings and counters, and the motion that reports read from them, with the reference it followed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array
from dyn_service.control.command import INTERFACES, Interface
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import ACTIVE, MODES, RUNNING
from dyn_service.control.plant.simulated import Actuators, SimulatedRobot
from dyn_service.control.trajectory import ReferenceTrajectory, from_wire
from dyn_service.graph.middleware.telemetry import NodeTelemetry, Recorder, Recording, Telemetry, TelemetryStore
from dyn_service.graph.report.series import running_time
from dyn_service.model.configuration import Configuration

CHANNEL, MEASURED, SENSOR, COMMANDED = "plant", "measured", "sensor.", "commanded"
"""Channels: the true motion; the encoders' measurements, if any; the readings of each other sensor, by its name; the
accepted commands, unclipped."""

BY_JOINT = ("saturated", "held_back", "beyond", "too_far", "motor_saturated", "out_of_range")
"""Counts of steps by joint: efforts beyond their limit; efforts limited by their rate; commanded positions or
velocities beyond their limits; commanded positions out of reach within the velocity limit; a motor at its own limit; a
position beyond its limits. Counts that are not 0 are in the plant's stats, for example as `saturated.elbow`.
"""

_AXES = {
    "force_torque": ("fx", "fy", "fz", "tx", "ty", "tz"),
    "imus": ("ax", "ay", "az", "wx", "wy", "wz"),
}


class PlantRecording:
    """Records one plant: its true motion, its measurements, its commands."""

    def __init__(self, telemetry: Telemetry, plant: Plant) -> None:
        at = plant.configuration
        self._plant, self._nq, self._nv = plant, at.nq, at.nv
        positions = [f"q.{name}" for name in at.position_names]
        velocities, efforts = ([f"{kind}.{name}" for name in at.velocity_names] for kind in ("v", "tau"))
        self._motion = Recorder(telemetry, CHANNEL, ["t", "session", "mode", *positions, *velocities, *efforts])
        self._measuring = plant.robot.measuring if isinstance(plant.robot, SimulatedRobot) else None
        self._measured: Recorder | None = None
        commands = [f"command.{name}" for name in at.velocity_names]
        self._commanded = Recorder(telemetry, COMMANDED, ["t", "session", "interface", *commands])
        self._answered = -1
        self._sensors: dict[str, tuple[Recorder, int]] = {}
        if self._measuring is not None:
            said = self._measuring.sensors.settings
            if said.encoders:
                self._measured = Recorder(telemetry, MEASURED, ["t", *positions, *velocities])
            for kind, axes in _AXES.items():
                for name in getattr(said, kind):
                    self._sensors[name] = Recorder(telemetry, f"{SENSOR}{name}", ["t", "stamp", *axes]), -1

    def row(self) -> None:
        """Records the present state."""
        plant, nq, nv = self._plant, self._nq, self._nv
        motion = plant.motion
        row = self._motion.row()
        row[0], row[1], row[2] = plant.time_s, plant.safety.session, MODES.index(plant.safety.mode)
        row[3 : 3 + nq], row[3 + nq : 3 + nq + nv], row[3 + nq + nv :] = motion.q, motion.v, plant.effort
        safety = plant.safety
        if safety.command_seq != self._answered:
            self._answered = safety.command_seq
            row = self._commanded.row()
            row[0], row[1], row[2] = plant.time_s, safety.session, INTERFACES.index(safety.interface)
            row[3:] = safety.value
        if self._measured is not None:
            row = self._measured.row()
            row[0], row[1 : 1 + nq], row[1 + nq :] = plant.time_s, plant.q, plant.v
        for name, (recorder, last) in self._sensors.items():
            assert self._measuring is not None
            reading = self._measuring.readings.get(name)
            if reading is not None and reading.seq != last:
                self._sensors[name] = recorder, reading.seq
                recorder.row()[:] = (plant.time_s, reading.stamp, *reading.value)

    def flush(self) -> None:
        """Sends the rows kept so far."""
        for recorder in (self._motion, self._commanded, self._measured, *(each for each, _ in self._sensors.values())):
            if recorder is not None:
                recorder.flush()


def counts(plant: Plant) -> dict[str, float | int | str]:
    """Returns the plant's counters, for its stats."""
    safety = plant.safety
    counters = asdict(safety.counters)
    refused, stops = counters.pop("refused"), counters.pop("stops")
    return {
        **asdict(plant.counters),
        **counters,
        "refused": sum(refused.values()),
        "last_refusal": safety.refusal.sentence if safety.refusal else "",
        **{f"refused_{reason}": count for reason, count in refused.items()},
        "stops": sum(stops.values()),
        **{f"stops_{cause}": count for cause, count in stops.items()},
        **_by_joint(plant),
    }


def _by_joint(plant: Plant) -> dict[str, int]:
    at, safety = plant.configuration, plant.safety
    motors = plant.robot.actuators if isinstance(plant.robot, SimulatedRobot) else None
    tables: Mapping[str, tuple[Iterable[str], Any]] = {
        "saturated": (at.velocity_names, safety.saturated),
        "held_back": (at.velocity_names, safety.held_back),
        "beyond": (at.velocity_names, safety.beyond),
        "too_far": (at.velocity_names, safety.too_far),
        "motor_saturated": (at.velocity_names, _saturated(motors, at.nv)),
        "out_of_range": (at.position_names, plant.out_of_range),
    }
    return {
        f"{kind}.{name}": int(count) for kind in BY_JOINT for name, count in zip(*tables[kind], strict=True) if count
    }


def _saturated(motors: Actuators | None, nv: int) -> Any:
    return np.zeros(nv, dtype=np.int64) if motors is None else motors.saturated


class Followed(NamedTuple):
    """A reference that a controller began: run and time (s) of the plant, joints and motion."""

    session: int
    begin_s: float
    joints: tuple[str, ...]
    motion: ReferenceTrajectory

    @classmethod
    def of_fact(cls, fact: Mapping[str, Any]) -> Self:
        """Reads the fact `reference` of a controller."""
        return cls(fact["session"], float(fact["begin_s"]), tuple(fact["joints"]), from_wire(fact["motion"]))


@dataclass
class Motion:
    """Motion of a plant in the order of its joints, with the rows of all its runs in sequence.

    t: (k,) s since the first row, without pauses between runs. q, reference: (k, nq). v, effort, error: (k, nv).
    active: (k,) whether the plant was under command and its reference is known. mode: (k,) index of its mode in
    `MODES`. stride: rows of the node per recorded row. commanded: (k, nv) the commands in force, unclipped, by
    interface; NaN without a command. effort_limit: (nv,) N m | N. velocity_limit: (nv,) rad/s | m/s. lower, upper:
    (nq,) rad | m.
    """

    configuration: Configuration
    t: Array
    q: Array
    v: Array
    effort: Array
    reference: Array
    error: Array
    active: np.ndarray[Any, np.dtype[np.bool_]]
    mode: Array
    stride: int
    commanded: dict[Interface, Array]
    effort_limit: Array
    velocity_limit: Array
    lower: Array
    upper: Array

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each entry of the error: `rad` or `m`."""
        return tuple("rad" if turns else "m" for turns in self.configuration.turns)


@dataclass(frozen=True)
class Part:
    """A joint's translation or rotation, shown in one panel.

    title: of the panel. position: label of its positions, with their unit. error_unit, effort_unit: of its errors and
    efforts. in_q, in_v: indices of its entries. positions, velocities: names of the entries within the joint.
    """

    title: str
    position: str
    error_unit: str
    effort_unit: str
    in_q: tuple[int, ...]
    in_v: tuple[int, ...]
    positions: tuple[str, ...]
    velocities: tuple[str, ...]


def parts_of(at: Configuration) -> list[Part]:
    """Returns the panels of all joints."""
    parts: list[Part] = []
    for name, joint, in_q, in_v in zip(at.names, at.joints, at.q_slices, at.v_slices, strict=True):
        for turns in (False, True):
            of_q = [k for k in range(joint.nq) if joint.shifts[k] != turns]
            of_v = [k for k in range(joint.nv) if at.turns[in_v][k] == turns]
            if not of_v:
                continue
            unit = "rad" if turns else "m"
            parts.append(
                Part(
                    title=name if joint.nv == 1 else f"{name}, {'rotation' if turns else 'translation'}",
                    position="quaternion" if len(of_q) > len(of_v) else f"position [{unit}]",
                    error_unit=unit,
                    effort_unit="N m" if turns else "N",
                    in_q=tuple(in_q.start + k for k in of_q),
                    in_v=tuple(in_v.start + k for k in of_v),
                    positions=tuple(joint.positions[k] for k in of_q),
                    velocities=tuple(joint.velocities[k] for k in of_v),
                )
            )
    return parts


def followed_at(at: Configuration, t: Array, session: Array, followed: Sequence[Followed]) -> tuple[Array, Array]:
    """Returns the reference's positions (k, nq) and velocities (k, nv) at the plant's times t (k,) s of its runs
    session (k,), or NaN where no reference was followed. Within a run each reference lasts until the next begins.
    """
    q, v = np.full((len(t), at.nq), np.nan), np.full((len(t), at.nv), np.nan)
    for k, one in enumerate(followed):
        later = [other.begin_s for other in followed[k + 1 :] if other.session == one.session]
        rows = (session == one.session) & (t >= one.begin_s) & (t < min(later, default=math.inf))
        sample = one.motion.sample(t[rows] - one.begin_s)
        _, in_q, in_v = at.chosen(list(one.joints))
        q[np.ix_(rows, in_q)], v[np.ix_(rows, in_v)] = sample.q, sample.v
    return q, v


def commanded_at(
    recording: Recording | None, t: Array, session: Array, running: NDArray[np.bool_]
) -> dict[Interface, Array]:
    """Returns the commands in force at the plant's times t (k,) s, for each interface that was used.

    Args:
        recording: Of the accepted commands, or None.
        t: Not decreasing within a run.
        session: The run of each time, (k,).
        running: (k,) whether the plant was under command.
    """
    found: dict[Interface, Array] = {}
    if recording is None or not len(recording.table):
        return found
    names, values = recording.group("command")
    times, runs, kinds = (recording.column(name) for name in ("t", "session", "interface"))
    for run in dict.fromkeys(runs.tolist()):
        of, rows = np.flatnonzero(runs == run), np.flatnonzero((session == run) & running)
        last = np.searchsorted(times[of], t[rows], side="right") - 1
        rows, last = rows[last >= 0], of[last[last >= 0]]
        for k, kind in enumerate(INTERFACES):
            mine = kinds[last] == k
            if mine.any():
                table = found.setdefault(kind, np.full((len(t), len(names)), np.nan))
                table[rows[mine]] = values[last[mine]]
    return found


def motion_of(plant: NodeTelemetry, store: TelemetryStore) -> Motion | None:
    """Returns the plant's recording with its reference, or None if nothing was recorded.

    Any node may report a reference by a fact; those with this plant's session count.
    """
    recording = plant.recordings.get("plant")
    if recording is None or not len(recording.table):
        return None
    entries, q = recording.group("q")
    _, v = recording.group("v")
    _, effort = recording.group("tau")
    joints = plant.fact("configuration") or [{"name": name, "type": "continuous"} for name in entries]
    at = Configuration.from_wire(joints)
    time, session = recording.column("t"), recording.column("session")
    sessions = set(session.tolist())
    references = (facts["reference"] for node in store.nodes.values() for facts in node.facts if "reference" in facts)
    followed = [Followed.of_fact(one) for one in references if one["session"] in sessions]
    reference, _ = followed_at(at, time, session, followed)
    mode = recording.column("mode")
    active = (mode == MODES.index(ACTIVE)) & np.isfinite(reference).all(axis=1)
    error = at.error(q, reference)
    if not at.flat or at.wraps.size:
        # removes full turns and quaternion signs: the reference nearest to the measured position
        reference = at.integrate(q, error)

    def fact(name: str, default: float, size: int) -> Array:
        value = plant.fact(name)
        return np.array(value, dtype=np.float64) if value is not None else np.full(size, default)

    return Motion(
        configuration=at,
        t=running_time(time),
        q=q,
        v=v,
        effort=effort,
        reference=reference,
        error=error,
        active=active,
        mode=mode,
        stride=recording.stride,
        commanded=commanded_at(
            plant.recordings.get("commanded"), time, session, np.isin(mode, [MODES.index(one) for one in RUNNING])
        ),
        effort_limit=fact("effort_limit", math.inf, at.nv),
        velocity_limit=fact("velocity_limit", math.inf, at.nv),
        lower=fact("lower", -math.inf, at.nq),
        upper=fact("upper", math.inf, at.nq),
    )
