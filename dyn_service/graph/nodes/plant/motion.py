"""What a plant did, read from what it recorded, beside the reference that it was to follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array
from dyn_service.control.command import INTERFACES, Interface
from dyn_service.control.plant.safety import ACTIVE, MODES, RUNNING
from dyn_service.control.references.trajectory import ReferenceTrajectory, from_wire
from dyn_service.graph.middleware.telemetry_store import Board, NodeBoard, Recording
from dyn_service.graph.report.series import running_time
from dyn_service.model.configuration import Configuration


class Followed(NamedTuple):
    """A reference that a controller began: in which run of the plant, at which of its times (s), in which joints."""

    session: int
    begin_s: float
    joints: tuple[str, ...]
    motion: ReferenceTrajectory

    @classmethod
    def of_fact(cls, told: Mapping[str, Any]) -> Self:
        """From the fact `reference` of a controller."""
        return cls(told["session"], float(told["begin_s"]), tuple(told["joints"]), from_wire(told["motion"]))


@dataclass
class Motion:
    """What the plant did, in the order of its joints. Rows of all runs of the plant, one after the other.

    t (k,) s since the first row, pauses between runs left out; q, reference (k, nq); v, effort, error (k, nv); active
    (k,) whether the plant was under command and a reference is known; mode (k,) its mode's place in `MODES`. stride:
    rows of the node per row that is kept. commanded: (k, nv) the commands in force, as they came, by interface; NaN
    where there were none. effort_limit (nv,) N m | N; velocity_limit (nv,) rad/s | m/s; lower, upper (nq,) rad | m.
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
        """Of each entry of the error: `rad` or `m`."""
        return tuple("rad" if turns else "m" for turns in self.configuration.turns)


@dataclass(frozen=True)
class Part:
    """What one panel shows of a joint: its translation or its rotation.

    title: of the panel. position: what its positions are, with their unit. error_unit, effort_unit: of its errors and
    efforts. in_q, in_v: where its entries stand. positions, velocities: what these are called within the joint.
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
    """The panels of a plot of all joints."""
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
    """The reference's positions (k, nq) and velocities (k, nv) at the plant's times t (k,) s of its runs session (k,);
    NaN where none was followed. Of those of one run, in the order in which they began, each goes to the next.
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
    """What was commanded at the plant's times t (k,) s of its runs session (k,), by interface: of those that were.

    Args:
        recording: Of the commands that were taken; None is none.
        t: Not falling within a run.
        session: The run of each.
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


def motion_of(plant: NodeBoard, board: Board) -> Motion | None:
    """The plant's recording beside the reference, or None where nothing was recorded.

    Any node may tell of a reference: those of this plant are the ones that name its session.
    """
    recording = plant.recordings.get("plant")
    if recording is None or not len(recording.table):
        return None
    entries, q = recording.group("q")
    _, v = recording.group("v")
    _, effort = recording.group("tau")
    told = plant.fact("configuration") or [{"name": name, "type": "continuous"} for name in entries]
    at = Configuration.from_wire(told)
    time, session = recording.column("t"), recording.column("session")
    sessions = set(session.tolist())
    told_of = (facts["reference"] for node in board.nodes.values() for facts in node.facts if "reference" in facts)
    followed = [Followed.of_fact(one) for one in told_of if one["session"] in sessions]
    reference, _ = followed_at(at, time, session, followed)
    mode = recording.column("mode")
    active = (mode == MODES.index(ACTIVE)) & np.isfinite(reference).all(axis=1)
    error = at.error(q, reference)
    if not at.flat or at.wraps.size:
        # A quaternion's sign and full turns say nothing: of the reference's those that are nearest the measured ones.
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
