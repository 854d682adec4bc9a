"""The sensors of a robot: the robot, local or remote, computes the ideal values and the devices the readings."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import RobotQueries, Wrench
from dyn_service.api.results import Array
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.sensors.devices import Device, Encoder, Reading, Record, force_torque, imu
from dyn_service.sensors.settings import SensorSettings, checked, read_settings
from dyn_service.support.suggestions import did_you_mean

Pushes = Wrench | Sequence[Wrench] | None


class Sensors:
    """The sensors of one robot.

    settings: what they are. devices: by name.

    Args:
        robot: A robot in this process, or one of a `Client`.
        settings: Of this robot.
        seed: In place of that of the settings.

    Raises:
        InvalidArgumentError: The settings are for another robot, or for none.
        NotFoundError: The robot has no such joint or link.
    """

    def __init__(self, robot: RobotQueries, settings: SensorSettings, *, seed: int | None = None) -> None:
        self._robot, self.settings = robot, checked(settings)
        fault = misfit(robot, self.settings)
        if fault is not None:
            place, message = fault
            kind = InvalidArgumentError if place == ("robot",) else NotFoundError
            raise kind(message, path=".".join(place))
        said = self.settings
        self._seed = seed = said.seed if seed is None else seed
        self.devices: dict[str, Device] = {
            **{name: force_torque(name, one, seed=seed) for name, one in said.force_torque.items()},
            **{name: imu(name, one, seed=seed) for name, one in said.imus.items()},
            **{name: Encoder(name, one, seed=seed) for name, one in said.encoders.items()},
        }
        slices = dict(zip(robot.configuration.names, robot.configuration.q_slices, strict=True))
        self._entry = {joint: slices[joint].start for joint in said.encoders}

    @classmethod
    def from_file(cls, robot: RobotQueries, path: str | os.PathLike[str], *, seed: int | None = None) -> Sensors:
        """Those that a sensor file says, see `sensors/settings.py`.

        Raises:
            NotFoundError: There is no such file.
            ConfigurationError: It is no sensor file, or none of this robot; names file, line and key.
        """
        settings, document = read_settings(path)
        fault = misfit(robot, settings)
        if fault is not None:
            raise document.fault(fault[1], fault[0])
        return cls(robot, settings, seed=seed)

    def of(self, robot: RobotQueries) -> None:
        """Replaces the robot that computes the ideal values by one of the same links and joints, say with a payload."""
        self._robot = robot

    def reset(self, seed: int | None = None) -> None:
        """Switches all off and on again, with the seed that they were made with or another: the same gives the same
        bits.
        """
        self._seed = self._seed if seed is None else seed
        for device in self.devices.values():
            device.reset(self._seed)

    def read(
        self,
        t: float,
        q: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        *,
        gravity: ArrayLike | None = None,
        wrenches: Pushes = None,
    ) -> dict[str, Reading]:
        """The newest reading that has come from each sensor by `t`, s, in the state q (nq,), v, a (nv,).

        Those that are due sample this state: ask at least as often as they do. Sensors without a
        reading yet are omitted. The robot is not queried for sensors that are not due.

        Raises:
            DynError: What the robot raises; or time went back, and there was no `reset`.
        """
        due = [name for name, device in self.devices.items() if device.due(t)]
        for name, truth in self._truths(due, q, v, a, gravity, wrenches):
            self.devices[name].offer(t, truth)
        found = {name: device.read(t) for name, device in self.devices.items()}
        return {name: reading for name, reading in found.items() if reading is not None}

    def record(
        self,
        t: ArrayLike,
        q: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        *,
        gravity: ArrayLike | None = None,
        wrenches: Pushes = None,
    ) -> dict[str, Record]:
        """All samples of a motion, such as one of `simulate`: t (K,), q (K, nq), v, a (K, nv); K to be at least as
        dense as the fastest sensor. They go on from those before; latency has no bearing on what is recorded.

        Raises:
            DynError: What the robot raises; or time goes back.
        """
        truths = self._truths(self.devices, q, v, a, gravity, wrenches)
        return {name: self.devices[name].record(t, truth) for name, truth in truths}

    def tare(self, samples: int = 1) -> None:
        """Tares all force/torque sensors with the mean of their next samples; `devices[name].tare` does one."""
        for name in self.settings.force_torque:
            self.devices[name].tare(samples)

    def _truths(
        self,
        names: Collection[str],
        q: ArrayLike,
        v: ArrayLike,
        a: ArrayLike,
        gravity: ArrayLike | None,
        pushes: Pushes,
    ) -> list[tuple[str, Array]]:
        """What ideal sensors of these names read, (..., channels), in their order; force/torque sensors that are
        mounted alike are asked for at once. All rows are asked for: without a selection and without offsets the robot
        takes the fast path for one state.
        """
        said, robot = self.settings, self._robot
        found: dict[str, Array] = {}
        mounts: dict[tuple[Any, ...], list[str]] = {}
        for name in names:
            if name in said.encoders:
                k = self._entry[name]
                found[name] = np.asarray(q, dtype=np.float64)[..., k : k + 1]
            elif name in said.imus:
                unit = said.imus[name]
                k = robot.link_names.index(unit.link)
                measured = robot.imu(q, v, a, xyz=_offset(unit.xyz), rpy=_offset(unit.rpy), gravity=gravity)
                parts = measured.specific_force, measured.angular_velocity
                found[name] = np.concatenate([part[..., k, :] for part in parts], axis=-1)
            else:
                one = said.force_torque[name]
                mounts.setdefault((one.xyz, one.rpy, one.direction), []).append(name)
        for (xyz, rpy, direction), alike in mounts.items():
            mounted: dict[str, Any] = {"xyz": _offset(xyz), "rpy": _offset(rpy), "direction": direction}
            load = robot.force_torque(q, v, a, **mounted, gravity=gravity, wrenches=pushes)
            truth = np.concatenate([load.force, load.torque], axis=-1)
            joints = robot.all_joint_names
            found |= {name: truth[..., joints.index(said.force_torque[name].joint), :] for name in alike}
        return [(name, found[name]) for name in names]


def _offset(offset: tuple[float, float, float]) -> tuple[float, float, float] | None:
    """The offset as an argument of queries: None if it is zero."""
    return offset if any(offset) else None


def misfit(robot: RobotQueries, settings: SensorSettings) -> tuple[tuple[str, ...], str] | None:
    """Place and reason of the first setting that does not fit the robot; None if all fit."""
    if settings.robot != robot.name:
        return ("robot",), f"the sensors are for robot '{settings.robot}', the robot is '{robot.name}'"
    single = {
        n for n, joint in zip(robot.configuration.names, robot.configuration.joints, strict=True) if joint.nq == 1
    }
    asked: list[tuple[tuple[str, ...], str]] = [
        (("force_torque", name, "joint"), one.joint) for name, one in settings.force_torque.items()
    ]
    asked += [(("encoders", joint), joint) for joint in settings.encoders]
    for place, joint in asked:
        if joint not in robot.all_joint_names:
            return place, f"the robot has no joint '{joint}'{did_you_mean(joint, robot.all_joint_names)}"
        followed = next((each.mimic for each in robot.description.joints if each.name == joint), None)
        if place[0] == "encoders" and followed is not None:
            return place, f"joint '{joint}' follows '{followed.joint}' and has no entry in q: name that one"
        if place[0] == "encoders" and joint not in single:
            return place, f"joint '{joint}' has no encoder, expected one that turns about or slides along one axis"
    for name, unit in settings.imus.items():
        if unit.link not in robot.link_names:
            place = ("imus", name, "link")
            return place, f"the robot has no link '{unit.link}'{did_you_mean(unit.link, robot.link_names)}"
    return None
