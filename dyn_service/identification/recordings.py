"""Recordings of a robot's motion: times, positions, efforts; from bags, reports, CSV and NumPy files.

A CSV file has a header: `t`, and for each joint `q.JOINT`, `tau.JOINT` and perhaps `v.JOINT`; `time`, `position.JOINT`,
`effort.JOINT`, `velocity.JOINT` and brackets, as in `position[JOINT]`, are read too. A file of `numpy.savez` has `t`,
`q`, `tau` and perhaps `v` and `joints`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dyn_service.api.arrays import found as described
from dyn_service.api.arrays import numbers, read_npz
from dyn_service.api.queries import Array, RobotQueries
from dyn_service.errors import DynError, InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.support.optional import load
from dyn_service.support.suggestions import known_instead
from dyn_service.support.upward import upward

GAP_PERIODS = 10.0
"""A pause longer than this many median periods separates two segments, because the motion within it is unknown."""

LONGEST_PERIOD_S = 0.25
"""Median time between rows of a motion, at most: joints of robots reverse within less, so slower rows miss motion."""

BEYOND_LIMITS = 0.5
"""A position may be outside the limits by this share of their span: files' limits and a sensor's zero are inexact."""

LEAST_JUMP, FASTEST_JUMP = 0.1, 10.0
"""A jump between two rows is of at least this size (rad, m), so that no encoder's step is one, and this many times as
fast as the velocity limit."""

FASTEST_SHARE, SHARE_PERCENTILE, SPEED_S = 3.0, 90.0, 0.05
"""No motion is faster than this many velocity limits in a tenth of the time, by differences over this time."""

UNLIMITED_SPEED = 50.0
"""rad/s, m/s: in place of a velocity limit that the file does not have."""

REST_SPEED = 0.05
"""rad/s, m/s: faster joints are not at rest; velocities of sensors at rest have less noise."""

_COLUMN = re.compile(r"(?P<kind>\w+?)(?:\.(?P<joint>.+)|\[(?P<bracketed>.+)\])")
_KINDS = {"q": "q", "position": "q", "v": "v", "velocity": "v", "tau": "effort", "effort": "effort"}


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded motion of joints with one number of position each.

    t: (n,) s, increasing. q: (n, nj) rad | m. effort: (n, nj) N m | N; a column of NaN is a joint whose effort was not
    measured. joints: the joint of each column. v: (n, nj) rad/s | m/s, or None. notes: what was changed, one sentence
    each.

    Raises:
        InvalidArgumentError: A shape is wrong, a number is missing or infinite, or times do not increase.
    """

    t: Array
    q: Array
    effort: Array
    joints: tuple[str, ...]
    v: Array | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "joints", tuple(self.joints))
        repeated = [name for name in self.joints if self.joints.count(name) > 1]
        if repeated:
            raise InvalidArgumentError(f"joint '{repeated[0]}' of the recording is named twice", path="joints")
        shape = (len(np.atleast_1d(self.t)), len(self.joints))
        for name, expected in (("t", shape[:1]), ("q", shape), ("effort", shape), ("v", shape)):
            value = getattr(self, name)
            if value is None and name == "v":
                continue
            array = numbers(value)
            if array is None:
                text = f"{name} of the recording must be real numbers of shape {expected}, found {described(value)}"
                raise InvalidArgumentError(text, path=name)
            if array.shape != expected:
                text = f"{name} of the recording must be numbers of shape {expected}, found {array.shape}"
                raise InvalidArgumentError(text, path=name)
            object.__setattr__(self, name, array)
            self._check_finite(name, array)
        late = np.flatnonzero(np.diff(self.t) <= 0.0)
        if late.size:
            k = int(late[0]) + 1
            text = f"row {k} of the recording has t = {self.t[k]:g} s after {self.t[k - 1]:g} s, expected a later time"
            raise InvalidArgumentError(text, path="t")

    def _check_finite(self, name: str, array: Array) -> None:
        finite = np.isfinite(array)
        if name == "effort":
            finite |= np.isnan(array).all(axis=0)
        if finite.all():
            return
        row, *column = np.argwhere(~finite)[0]
        joint = f" of joint '{self.joints[column[0]]}'" if column else ""
        text = f"row {row} of the recording: {name}{joint} must be a finite number, found {array[(row, *column)]}"
        raise InvalidArgumentError(text, path=name)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def period_s(self) -> float:
        """The median time between two rows."""
        return float(np.median(np.diff(self.t)))

    def segments(self) -> list[slice]:
        """Rows between pauses of more than `GAP_PERIODS` median periods."""
        ends = np.flatnonzero(np.diff(self.t) > GAP_PERIODS * self.period_s) + 1 if len(self) > 1 else np.zeros(0, int)
        edges = [0, *ends.tolist(), len(self)]
        return [slice(first, last) for first, last in pairwise(edges)]

    def between(self, begin_s: float, end_s: float) -> Recording:
        """Returns the rows with begin_s <= t < end_s."""
        rows = (self.t >= begin_s) & (self.t < end_s)
        if not rows.any():
            span = f"from {self.t[0]:g} s to {self.t[-1]:g} s"
            raise InvalidArgumentError(f"the recording, {span}, has no row from {begin_s:g} s to {end_s:g} s")
        v = None if self.v is None else self.v[rows]
        return replace(self, t=self.t[rows], q=self.q[rows], effort=self.effort[rows], v=v)

    def with_gains(self, gains: Mapping[str, float]) -> Recording:
        """Returns the recording with `effort` multiplied by each joint's gain: of currents (A) by N m/A, N/A."""
        missing = [name for name in self.joints if name not in gains]
        if missing:
            text = (
                f"joint '{missing[0]}' of the recording has no gain{known_instead(missing[0], gains)}; give one, or a "
            )
            text += "motor in the joint file"
            raise NotFoundError(text, path="gains")
        for name in self.joints:
            gain = numbers(gains[name])
            if gain is None or gain.shape or not np.isfinite(gain) or not gain:
                text = f"gain of joint '{name}' must be a finite number other than 0, found {gains[name]!r}"
                raise InvalidArgumentError(text, path="gains")
        return replace(self, effort=self.effort * [float(gains[name]) for name in self.joints])

    def for_robot(self, robot: RobotQueries, rest_positions: Mapping[str, float] | None = None) -> Recording:
        """Returns the columns in the order of the robot's joints; other joints are dropped.

        rest_positions: positions (rad, m) of joints that are not in the recording because they stood still; their
        efforts count as not measured.

        Raises:
            NotFoundError: A joint of the robot is not in the recording.
            UnimplementedError: The robot has closed loops, or joints whose position is no number, such as a floating
                base.
        """
        names = _single_joints(robot)
        rest_positions = rest_positions or {}
        for name, position in rest_positions.items():
            if name not in names:
                text = f"rest_positions: robot '{robot.name}' has no joint '{name}'{known_instead(name, names)}"
                raise NotFoundError(text, path="rest_positions")
            if (number := numbers(position)) is None or number.shape or not np.isfinite(number):
                text = f"rest position of joint '{name}' must be a finite number, found {position!r}"
                raise InvalidArgumentError(text, path="rest_positions")
        missing = [name for name in names if name not in self.joints and name not in rest_positions]
        if missing:
            hint = known_instead(
                missing[0], [name for name in self.joints if name not in names], "its other joints are"
            )
            text = f"joint '{missing[0]}' of robot '{robot.name}' is not in the recording{hint}; if it stood still, "
            raise NotFoundError(f"{text}give its position: rest_positions={{'{missing[0]}': 0.0}}", path="joints")
        index = {name: k for k, name in enumerate(self.joints)}
        q, v, effort = (np.empty((len(self), len(names))) for _ in range(3))
        for k, name in enumerate(names):
            if name in index:
                q[:, k], effort[:, k] = self.q[:, index[name]], self.effort[:, index[name]]
                v[:, k] = 0.0 if self.v is None else self.v[:, index[name]]
            else:
                q[:, k], v[:, k], effort[:, k] = float(rest_positions[name]), 0.0, np.nan
        return Recording(self.t, q, effort, names, None if self.v is None else v, self.notes)

    def motion_of(self, robot: RobotQueries, rest_positions: Mapping[str, float] | None = None) -> Recording:
        """Returns the recording of `for_robot` with continuous positions; `notes` names joints that were unwrapped.

        Raises:
            InvalidArgumentError: It has less than two rows, or `continuous_positions` finds no motion of the robot.
        """
        whole = self.for_robot(robot, rest_positions)
        q, notes = continuous_positions(robot, whole.t, whole.q)
        return replace(whole, q=q, notes=(*whole.notes, *notes))


def continuous_positions(robot: RobotQueries, t: Array, q: Array) -> tuple[Array, tuple[str, ...]]:
    """Returns q (n, nq) at times t (n,) of a motion, with angles of continuous joints unwrapped, and notes of these.

    Raises:
        InvalidArgumentError: The motion has less than two rows, the median time between them is longer than
            `LONGEST_PERIOD_S`, or positions or speeds are so far outside the limits that units are wrong or rows jump.
    """
    if len(t) < 2:
        raise InvalidArgumentError(f"a motion must have at least two rows, found {len(t)}", path="t")
    if (period := float(np.median(np.diff(t)))) > LONGEST_PERIOD_S:
        text = f"the median time between the {len(t)} rows in {t[-1] - t[0]:g} s is {period:g} s, expected at most "
        text += f"{LONGEST_PERIOD_S:g} s of a motion: are these milliseconds? Give t in s, and poses at rest without t"
        raise InvalidArgumentError(f"{text}, or with --payload and --poses", path="t")
    check_positions(robot, q)
    q, notes = q.copy(), []
    configuration, speeds = robot.configuration, robot.limits.speeds
    for name, joint, q_part, v_part in _joint_parts(robot):
        column, (index,) = q[:, q_part.start], range(v_part.start, v_part.stop)
        if index in configuration.wraps:
            unwrapped = np.unwrap(column)
            turns = int(np.count_nonzero(np.abs(np.diff(unwrapped - column)) > np.pi))
            if turns:
                notes.append(f"joint '{name}' is continuous and its positions jump by a turn {turns} times: unwrapped")
            column = q[:, q_part.start] = unwrapped
        _check_speed(name, bool(joint.angles[0]), t, column, float(min(speeds[index], np.inf)))
    return q, tuple(notes)


def check_positions(robot: RobotQueries, q: Array) -> None:
    """Checks that positions q (n, nq) are not so far outside the limits that their unit is wrong.

    Raises:
        InvalidArgumentError: More than half of a joint's rows are outside its limits, or one is by half their span.
    """
    lower, upper = robot.limits.lower, robot.limits.upper
    for name, joint, part, _ in _joint_parts(robot):
        k = part.start
        span, column = upper[k] - lower[k], q[:, k]
        if not np.isfinite(span):
            continue
        excess = np.maximum(lower[k] - column, column - upper[k])
        row = int(np.argmax(excess))
        allowance = max(BEYOND_LIMITS * span, LEAST_JUMP)
        if excess[row] > allowance or np.count_nonzero(excess > 1e-3 + 1e-3 * span) > len(q) / 2:
            text = f"joint '{name}': position {column[row]:g} in row {row} is outside its limits, {lower[k]:g} to "
            raise InvalidArgumentError(f"{text}{upper[k]:g}{_unit_question(bool(joint.angles[0]))}", path="q")


def _joint_parts(robot: RobotQueries) -> list[tuple[str, Any, slice, slice]]:
    """Returns the joints with one position: name, joint, slice in q, slice in v."""
    parts = robot.configuration
    joints = zip(parts.names, parts.joints, parts.q_slices, parts.v_slices, strict=True)
    return [entry for entry in joints if entry[1].nq == entry[1].nv == 1]


def _unit_question(angle: bool) -> str:
    unit, other = ("rad", "degrees") if angle else ("m", "millimetres")
    return f" {unit}: are these {other}? Otherwise correct the recording, or the limits of the robot's file"


def _check_speed(name: str, angle: bool, t: Array, q: Array, limit: float) -> None:
    """Raises InvalidArgumentError if positions (n,) of a joint are much faster than its limit, or jump."""
    speed = limit if np.isfinite(limit) else UNLIMITED_SPEED
    period = float(np.median(np.diff(t)))
    lag = min(max(1, int(np.ceil(SPEED_S / period))), len(t) - 1)
    speeds = np.abs(q[lag:] - q[:-lag]) / (t[lag:] - t[:-lag])
    typical = float(np.percentile(speeds, SHARE_PERCENTILE))
    origin = "its velocity limit" if np.isfinite(limit) else "a joint without velocity limit"
    if typical > FASTEST_SHARE * speed:
        text = f"joint '{name}' moves with {typical:.3g} {'rad' if angle else 'm'}/s in a tenth of the recording, more "
        text += f"than {FASTEST_SHARE:g} times the {speed:g} of {origin}: q is expected in"
        raise InvalidArgumentError(f"{text}{_unit_question(angle)}", path="q")
    # A driver's time stamps may be late or early by most of a period.
    steps = np.maximum(np.diff(t), period)
    jumps = np.abs(np.diff(q))
    too_large = np.flatnonzero(jumps > np.maximum(FASTEST_JUMP * speed * steps, LEAST_JUMP))
    if too_large.size:
        k = int(too_large[0])
        text = f"joint '{name}' jumps by {jumps[k]:.4g} {'rad' if angle else 'm'} between rows {k} and {k + 1} (t = "
        text += f"{t[k + 1]:g} s), more than {FASTEST_JUMP:g} times the {speed:g} per s of {origin}"
        cause = (
            "its encoder's angle is wrapped: unwrap it, as by np.unwrap"
            if angle and abs(jumps[k] - 2 * np.pi) < 1
            else ("remove the wrong rows, or correct the limit in the robot's file")
        )
        raise InvalidArgumentError(f"{text}; {cause}", path="q")


def read_recording(
    path: str | Path,
    robot: RobotQueries,
    *,
    joints: Sequence[str] | None = None,
    rest_positions: Mapping[str, float] | None = None,
    topic: str = "/joint_states",
    poses: bool = False,
) -> Recording:
    """Returns the recording in a file, in the order of the robot's joints.

    path: a CSV file, a file of `numpy.savez`, a launch's report, a bag of this package or of ROS 2 (MCAP), or, by
    rosbags, a bag of ROS 1 or a folder of SQLite. joints: of the columns of an NPZ file without `joints`; None: the
    robot's. rest_positions: as for `Recording.for_robot`. topic: joint states of a bag.
    poses: the rows are at rest, in any order; `t` of the result is then the row's number, and the file may have none.

    Raises:
        NotFoundError: The file, the topic or a joint does not exist.
        InvalidArgumentError: The file is none of these, or has no efforts, or numbers are missing.
    """
    path = Path(path)
    if not path.exists():
        raise NotFoundError(f"recording {str(path)!r} does not exist")
    if path.suffix == ".csv":
        recording = _from_csv(path, poses)
    elif path.suffix == ".npz" and path.name != "recording.npz":
        recording = _from_npz(path, tuple(joints or _single_joints(robot)), poses)
    elif path.suffix == ".bag" or (path.is_dir() and any(path.glob("*.db3"))):
        recording = _from_rosbag(path, topic)
    else:
        motion = upward("recording")(robot, path, topic)
        motion = _without_times(motion) if poses else motion
        recording = _from_arrays(motion, tuple(robot.joint_names), path)
    return recording.for_robot(robot, rest_positions)


def _single_joints(robot: RobotQueries) -> tuple[str, ...]:
    configuration = robot.configuration
    if configuration.several or not configuration.flat or robot.description.loop_joints:
        multi_dof = [name for name, _ in configuration.several]
        cause = f"joint '{multi_dof[0]}' has several degrees of freedom" if multi_dof else "it has closed loops"
        text = f"robot '{robot.name}' cannot be identified from recordings: {cause}; use inverse_dynamics_regressor"
        raise UnimplementedError(text, path="robot")
    return configuration.velocity_names


def _from_arrays(arrays: Mapping[str, Any], joints: tuple[str, ...], path: Path) -> Recording:
    missing = [name for name in ("t", "q", "tau") if name not in arrays]
    if missing:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise InvalidArgumentError(f"recording {str(path)!r} has no {missing[0]!r}, only {names}", path=missing[0])
    return Recording(arrays["t"], arrays["q"], arrays["tau"], joints, arrays.get("v"))


def _without_times(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of poses, with the number of the row as `t`.

    Raises:
        InvalidArgumentError: The rows are a motion.
    """
    q, t = numbers(arrays.get("q", ())), numbers(arrays.get("t"))
    if q is not None and q.ndim == 2 and t is not None and t.shape == (len(q),) and len(t) > 1:
        steps = np.diff(t)
        if (steps > 0.0).all() and np.median(steps) <= LONGEST_PERIOD_S:
            speed = float(np.median(np.abs(np.diff(q, axis=0)).max(axis=1) / steps))
            if speed > REST_SPEED:
                text = f"{len(t)} rows in {t[-1] - t[0]:.3g} s are a motion of {speed:.2g} rad/s or m/s, expected poses"
                raise InvalidArgumentError(f"{text} at rest: leave out --poses (poses=True)", path="poses")
    return {**arrays, "t": np.arange(float(len(np.atleast_1d(arrays.get("q", ())))))}


def _from_npz(path: Path, joints: tuple[str, ...], poses: bool) -> Recording:
    try:
        arrays = read_npz(path)
    except DynError:
        raise
    except (OSError, BadZipFile, ValueError, TypeError, EOFError, KeyError):
        raise InvalidArgumentError(f"recording {str(path)!r} is no file of `numpy.savez` with numbers") from None
    if "joints" in arrays:
        joints = tuple(str(name) for name in np.ravel(arrays["joints"]))
    for name in ("q", "tau", "v"):
        if len(joints) == 1 and name in arrays and arrays[name].ndim == 1:
            arrays[name] = arrays[name][:, None]  # of a robot with one joint, a column is often saved as a vector
    columns = np.shape(arrays.get("q", np.zeros((0, len(joints)))))[-1:]
    if columns != (len(joints),):
        text = f"q of recording {str(path)!r} has {columns[0] if columns else 0} columns for {len(joints)} joints"
        raise InvalidArgumentError(f"{text} ({', '.join(joints)}); name its joints: joints=[..]", path="joints")
    return _from_arrays(_without_times(arrays) if poses else arrays, joints, path)


def _from_csv(path: Path, poses: bool) -> Recording:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, table = _csv_table(path, csv.reader(file))
    except IsADirectoryError:
        raise InvalidArgumentError(f"{str(path)!r} is a folder, expected a CSV file") from None
    except UnicodeDecodeError as error:
        text = f"{str(path)!r} is not in UTF-8: byte {error.start} is {error.object[error.start]:#x}"
        raise InvalidArgumentError(f"{text}; save it in UTF-8") from None
    columns: dict[str, dict[str, Array]] = {"t": {}, "q": {}, "v": {}, "effort": {}}
    first_names: dict[tuple[str, str], str] = {}
    for k, name in enumerate(header):
        match = _COLUMN.fullmatch(name)
        if name in ("t", "time"):
            kind, joint = "t", ""
        elif match and match["kind"] in _KINDS:
            kind, joint = _KINDS[match["kind"]], match["joint"] or match["bracketed"]
        else:
            continue
        if joint in columns[kind]:
            text = f"{str(path)!r} has the same numbers twice, in the columns {first_names[kind, joint]!r} and {name!r}"
            raise InvalidArgumentError(f"{text}: leave one out")
        columns[kind][joint], first_names[kind, joint] = table[:, k], name
    joints = tuple(name for name in columns["q"] if name in columns["effort"])
    if not (columns["t"] or poses) or not joints:
        text = (
            f"{str(path)!r} needs the columns t and, for each joint, q.JOINT and tau.JOINT, found {', '.join(header)}"
        )
        raise InvalidArgumentError(text)
    q, effort = (np.column_stack([columns[kind][name] for name in joints]) for kind in ("q", "effort"))
    has_v = all(name in columns["v"] for name in joints)
    v = np.column_stack([columns["v"][name] for name in joints]) if has_v else None
    arrays = {"q": q, "tau": effort, "v": v, "t": columns["t"].get("")}
    return _from_arrays(_without_times(arrays) if poses else arrays, joints, path)


def _csv_table(path: Path, rows: Any) -> tuple[list[str], Array]:
    """Returns the header and the numbers (n, columns) of a CSV reader's rows."""
    header = [name.strip() for name in next(rows, [])]
    numbers_of_rows = []
    for row in filter(None, rows):
        place = f"{str(path)!r}, line {rows.line_num}"
        if len(row) != len(header):
            raise InvalidArgumentError(f"{place}: expected {len(header)} numbers as in the header, found {len(row)}")
        try:
            numbers_of_rows.append([float(x) for x in row])
        except ValueError as error:
            raise InvalidArgumentError(f"{place}: {error}") from None
    if not numbers_of_rows:
        raise InvalidArgumentError(f"{str(path)!r} has no rows of numbers below its header")
    return header, np.array(numbers_of_rows)


def _from_rosbag(path: Path, topic: str) -> Recording:
    reader = load("a recording in a bag of ROS 1 or SQLite", "rosbags.highlevel").AnyReader
    typestore = load("a recording in a bag of ROS 1 or SQLite", "rosbags.typesys")
    rows: list[tuple[float, Any, Any, Any]] = []
    names: list[str] = []
    store = typestore.get_typestore(typestore.Stores.LATEST)
    with reader([path], default_typestore=store) as bag:
        connections = [connection for connection in bag.connections if connection.topic == topic]
        if not connections:
            hint = known_instead(topic, {connection.topic for connection in bag.connections}, "it has")
            raise NotFoundError(f"bag {str(path)!r} has no topic {topic!r}{hint}")
        for connection, _, data in bag.messages(connections=connections):
            message = bag.deserialize(data, connection.msgtype)
            names = names or list(message.name)
            if set(message.name) != set(names) or not len(message.position) == len(message.effort) == len(names):
                text = f"message {len(rows)} of topic {topic!r} in {str(path)!r} has other joints, or no efforts"
                raise InvalidArgumentError(text)
            order = [list(message.name).index(name) for name in names]
            stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
            v = message.velocity[order] if len(message.velocity) == len(names) else None
            rows.append((stamp, message.position[order], message.effort[order], v))
    t, q, effort, v = zip(*rows, strict=True) if rows else ((), (), (), ())
    velocity = None if any(x is None for x in v) else np.array(v)
    return Recording(np.array(t) - t[0] if t else np.zeros(0), np.array(q), np.array(effort), tuple(names), velocity)
