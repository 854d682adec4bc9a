"""What a plant tells its launcher: its motion step by step, what it measured of it, and its counts by joint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from dyn_service.control.command import INTERFACES
from dyn_service.control.plant.actuators import Actuators
from dyn_service.control.plant.plant import Plant
from dyn_service.control.plant.safety import MODES
from dyn_service.control.plant.simulated import SimulatedRobot
from dyn_service.graph.middleware.telemetry import Recorder, Telemetry

CHANNEL, MEASURED, SENSOR, COMMANDED = "plant", "measured", "sensor.", "commanded"
"""Channels: what it did; what its encoders say, where it has any; each other sensor's readings, by its name; what it
was commanded, a row for each command that it took, as it came."""

BY_JOINT = ("saturated", "held_back", "beyond", "too_far", "motor_saturated", "out_of_range")
"""Counts of steps by joint: efforts beyond their limit; efforts held back by their rate; commanded positions or
velocities beyond their limits; commanded positions too far away to be reached within the velocity limit; a motor at its
own limit; a position beyond its limits. In the numbers of a plant, as in `saturated.elbow`, where they are not 0."""

_AXES = {
    "force_torque": ("fx", "fy", "fz", "tx", "ty", "tz"),
    "imus": ("ax", "ay", "az", "wx", "wy", "wz"),
}


class PlantRecording:
    """The recording of one plant. Rows are of the robot's real motion; what was measured has channels of its own."""

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
        """Takes the present state down."""
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
        """Sends what is kept."""
        for recorder in (self._motion, self._commanded, self._measured, *(each for each, _ in self._sensors.values())):
            if recorder is not None:
                recorder.flush()


def counts(plant: Plant) -> dict[str, float | int | str]:
    """What a plant has counted, as numbers of the moment."""
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
