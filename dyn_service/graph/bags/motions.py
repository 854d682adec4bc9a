"""Recorded motions as arrays of a robot: q, v, a and tau, from reports of launches, bags and files of NumPy.

A report's `recording.npz` has the channel `plant`: rows of the plant's time t, q and v, and tau, the effort that acted
in the cycle of the drive that ended at t. So it was held from the time of the previous row on, if each cycle has a row.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dyn_service.api.arrays import read_npz
from dyn_service.api.queries import Array
from dyn_service.control.plant.safety import ACTIVE, MODES
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, InvalidArgumentError, NotFoundError
from dyn_service.graph.report.charts import running_time
from dyn_service.messages.builtin_interfaces import NANOSECONDS, Time
from dyn_service.model.configuration import Configuration
from dyn_service.support.suggestions import did_you_mean

_LOG = logging.getLogger(__name__)
RECORDING, REPORT = "recording.npz", "report.json"
_PLANT = ".plant"
"""Suffix of the arrays of a plant's motion."""


@dataclass(frozen=True, eq=False)
class Motion:
    """A motion. t (k,) s, increasing; q (k, nq); v, tau (k, nv), zero if unknown; reference (k, nq), NaN if missing."""

    t: Array
    q: Array
    v: Array
    tau: Array
    reference: Array

    def at(self, time_s: float) -> int:
        """Returns the last row not later than a time, or the first row."""
        return max(0, int(np.searchsorted(self.t, time_s, side="right")) - 1)


@dataclass(frozen=True)
class Recorded:
    """A plant of a launch's report. node: its name. parameters: its parameters, including the robot. fingerprint: of
    its model; None if the report has several plants.
    """

    node: str
    parameters: Mapping[str, Any]
    tables: Mapping[str, tuple[tuple[str, ...], Array]]
    fingerprint: str | None = None

    def motion(self, configuration: Configuration) -> Motion:
        """Returns the motion for a robot with these joints."""
        positions = [f"q.{name}" for name in configuration.position_names]
        q = self.columns("plant", positions)
        names = configuration.velocity_names
        v, tau = (self.columns("plant", [f"{kind}.{name}" for name in names]) for kind in ("v", "tau"))
        reference = self.columns("reference", positions) if "reference" in self.tables else np.full_like(q, np.nan)
        return Motion(running_time(self.columns("plant", ["t"])[:, 0]), q, v, tau, reference)

    def columns(self, channel: str, names: Sequence[str]) -> Array:
        """Returns columns (k, names) of a channel; raises `InvalidArgumentError` for one that it does not have."""
        existing, table = self.tables[channel]
        if missing := [name for name in names if name not in existing]:
            raise InvalidArgumentError(f"the recording of {self.node!r} has no column {missing[0]!r}: another robot's")
        return np.ascontiguousarray(table[:, [existing.index(name) for name in names]])


def of_report(folder: Path, node: str | None = None) -> Recorded:
    """Returns a plant of a launch's report: the one with the given name, or the first.

    Raises:
        NotFoundError: The folder has no report, or no such plant.
        InvalidArgumentError: The report cannot be read.
    """
    try:
        report = json.loads((folder / REPORT).read_text("utf-8"))
        plants = {str(process["name"]): process for process in report["processes"]}
        arrays = read_npz(folder / RECORDING)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise NotFoundError(f"{str(folder)!r} is no report of a launch: it has no {name}") from None
    except (OSError, ValueError, LookupError, TypeError, EOFError, RecursionError, MemoryError, BadZipFile) as error:
        cause = str(error) if isinstance(error, OSError | ValueError | BadZipFile) else "it is not a report of a launch"
        raise InvalidArgumentError(f"the report in {str(folder)!r} cannot be read: {cause}") from None
    recorded = [name for name in plants if f"{name.replace('/', '.')}{_PLANT}" in arrays]
    if not recorded:
        raise NotFoundError(f"the report in {str(folder)!r} has no plant that recorded its motion")
    plant = recorded[0] if node is None else node.lstrip("/")
    if plant not in recorded:
        hint = did_you_mean(plant, recorded) or f"; it has {', '.join(recorded)}"
        raise NotFoundError(f"the report in {str(folder)!r} has no plant {plant!r} that recorded its motion{hint}")
    key = plant.replace("/", ".")
    tables = {
        channel: (tuple(arrays[f"{key}.{channel}.columns"].tolist()), arrays[f"{key}.{channel}"])
        for channel in ("plant", "reference")
        if f"{key}.{channel}" in arrays
    }
    fingerprint = (report.get("robot") or {}).get("fingerprint") if len(recorded) == 1 else None
    return Recorded(plant, plants[plant]["parameters"], tables, fingerprint)


def recording(
    robot: Robot, path: str | Path, topic: str = "/joint_states", node: str | None = None
) -> dict[str, Array]:
    """Returns a recorded motion as far as the file has it, in the order of the robot's joints.

    t (n,) s, from the first row; q (n, nq) rad | m; v (n, nv) rad/s | m/s; a (n, nv) rad/s^2 | m/s^2; tau (n, nv)
    N m | N. All are those at the times t. Accelerations are never recorded by this package: unless a file of NumPy has
    them, they are central differences of v, at both ends one-sided ones.

    Args:
        robot: The robot that the recording names by its joints.
        path: A launch's report, the folder or its `recording.npz`: q and v are the true motion of a simulated plant,
            and tau jumps from cycle to cycle, so it is the mean of the effort of the cycle that ends at t and of the
            next one. Only the longest time under command is returned: brakes act before and after.
            Or a bag with joint states: t is their stamp. If it also has the plant's `plant_state`, rows and tau
            are as from a report; if not, all rows are returned, tau is `effort` as received, and a warning is logged;
            so too if all stamps are zero, where t is the time of arrival. Or a file of `numpy.savez` with these names.
        topic: Of the bag.
        node: The plant of a report with several; None: the first.

    Raises:
        NotFoundError: There is no such file, plant or topic, or a joint is missing.
        InvalidArgumentError: The file is none of these, stamps do not increase, or no three rows are under command.
    """
    path = Path(path)
    if path.is_dir() or path.name == RECORDING:
        motion = _from_report(robot, path if path.is_dir() else path.parent, node)
    elif path.suffix == ".npz":
        try:
            motion = {name: np.asarray(x, dtype=np.float64) for name, x in read_npz(path).items()}
        except OSError as error:
            raise NotFoundError(f"recording {str(path)!r} cannot be read: {error.strerror}") from None
        except DynError:
            raise
        except (BadZipFile, ValueError, TypeError, EOFError, KeyError):
            raise InvalidArgumentError(f"recording {str(path)!r} is no file of `numpy.savez` with numbers") from None
    else:
        motion = _from_bag(robot, path, topic)
    if "a" not in motion and "v" in motion and motion.get("t", np.zeros(0)).size > 1:
        if motion["t"].shape != motion["v"].shape[:1]:
            shapes = f"{motion['t'].shape} and {motion['v'].shape}"
            raise InvalidArgumentError(f"recording {str(path)!r}: v needs a row for each time t, found {shapes}")
        with np.errstate(all="ignore"):  # states that fail are counted
            motion["a"] = np.gradient(motion["v"], motion["t"], axis=0)
    return motion


def _from_report(robot: Robot, folder: Path, node: str | None) -> dict[str, Array]:
    recorded = of_report(folder, node)
    if recorded.fingerprint not in (None, robot.fingerprint):
        text = "the report in '%s' is of a model with fingerprint %s, this robot has %s: its masses or joints differ"
        _LOG.warning(text, folder, recorded.fingerprint, robot.fingerprint)
    motion = recorded.motion(robot.configuration)
    arrays = {name: getattr(motion, name) for name in ("t", "q", "v", "tau")}
    commanded = recorded.columns("plant", ["mode"]) == MODES.index(ACTIVE)
    return _under_command(arrays, commanded, f"the report in {str(folder)!r}")


def _under_command(motion: Mapping[str, Array], commanded: Array, source: str) -> dict[str, Array]:
    """Returns the longest time under command of a plant's motion, with tau as `recording` gives it."""
    active = np.flatnonzero(commanded)
    rows = max(np.split(active, np.flatnonzero(np.diff(active) > 1) + 1), key=len)
    if len(rows) < 3:
        raise InvalidArgumentError(f"{source} has {len(rows)} rows under command, expected 3 or more")
    span = {name: x[rows] for name, x in motion.items()}
    span["t"] = span["t"] - span["t"][0]
    if "tau" in motion:
        # in the cycle after the last row brakes may act
        following = np.minimum(rows + 1, rows[-1])
        span["tau"] = (motion["tau"][rows] + motion["tau"][following]) / 2
        span["tau"][0] = motion["tau"][following[0]]  # before the first row they acted
    return span


def _from_bag(robot: Robot, path: Path, topic: str) -> dict[str, Array]:
    from dyn_service.graph.bags.reader import BagReader  # mcap, an extra of its own

    plant_topic = f"{topic.rpartition('/')[0]}/plant_state"
    with BagReader(path) as bag:
        bag.check([topic])
        received = _without_repeats(list(bag.messages([topic])))
        states = list(bag.messages([plant_topic])) if plant_topic in bag.names() else []
    messages = [record.message for record in received]
    rows: dict[str, list[list[float]]] = {"q": [], "v": [], "tau": []}
    for number, message in enumerate(messages):
        names, place = list(message.name), f"message {number} of topic '{topic}' in {str(path)!r}"
        if missing := [name for name in robot.joint_names if name not in names]:
            raise NotFoundError(f"{place} has no joint '{missing[0]}'")
        order = [names.index(name) for name in robot.joint_names]
        for name, field in (("q", "position"), ("v", "velocity"), ("tau", "effort")):
            values = getattr(message, field)
            if len(values) not in (0, len(names)) or (number and bool(len(values)) != bool(rows[name])):
                raise InvalidArgumentError(f"{place} has {len(values)} numbers in `{field}` for {len(names)} joints")
            if len(values):
                rows[name].append([values[k] for k in order])
    source = f"topic '{topic}' of {str(path)!r}"
    stamps = np.array([m.header.stamp.sec * NANOSECONDS + m.header.stamp.nanosec for m in messages], dtype=np.int64)
    if stamped := bool(stamps.any()):
        late = np.flatnonzero(np.diff(stamps) <= 0)
        if late.size:
            first, second = stamps[late[0] : late[0] + 2] / NANOSECONDS
            raise InvalidArgumentError(
                f"message {late[0] + 1} of {source} has the stamp {second:.6f} s after {first:.6f} s, expected a later "
                "one: record each run of a robot in a bag of its own"
            )
    elif messages:
        _LOG.warning("%s has no stamps: t is the time of arrival, which jitters", source)
        stamps = np.array([record.log_time_ns for record in received], dtype=np.int64)
    t = (stamps - stamps[:1]) / NANOSECONDS
    motion = {"t": t, **{name: np.array(x) for name, x in rows.items() if x}}
    if states and stamped:
        begins = [Time.from_seconds(state.message.stamp).nanoseconds() for state in states]
        latest = np.searchsorted(begins, stamps, side="right") - 1
        active = np.array([state.message.mode == ACTIVE for state in states])
        return _under_command(motion, (latest >= 0) & active[latest], source)
    text = "%s is returned whole, also rows in which brakes act: '%s' has no modes for its stamps"
    _LOG.warning(text, source, plant_topic)
    return motion


def _without_repeats(received: list[Any]) -> list[Any]:
    """Returns the joint states without those equal to the one before, also in their stamp.

    A plant in lockstep publishes its state again while its time stands still, before and after a run.
    """
    messages = [record.message for record in received]
    states = [(m.header.stamp, *map(list, (m.name, m.position, m.velocity, m.effort))) for m in messages]
    # without stamps, messages of a robot that stands still differ in nothing
    if not any(m.header.stamp.sec or m.header.stamp.nanosec for m in messages):
        return received
    return [record for k, record in enumerate(received) if not k or states[k] != states[k - 1]]
