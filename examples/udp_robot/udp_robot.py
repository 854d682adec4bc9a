"""A robot behind UDP, and its driver, the interface of `control/plant/plant.py`: a pattern for a driver of your own.

    python examples/udp_robot/udp_robot.py urdf/pendulum.urdf --port 5800    # the robot: its own process, its own 1 kHz
    dyn launch examples/udp_robot/udp_robot.launch.yaml --duration 10

One datagram each way in every cycle, little-endian:

    to the robot     "DYNE", number u32, brakes u8, efforts nv f64
      or             "DYNP" or "DYNV", number u32, brakes u8, positions nv f64, velocities nv f64, efforts nv f64
    from the robot   "DYNS", number u32 of the last command it took, fault u8, q nq f64, v nv f64, efforts nv f64

The second form is a set point: positions, velocities, and efforts to add to those of the robot's own drives. For
commanded velocities the positions are their integral (`control/plant/drives.py`).

Datagrams are never sent again, since the next one is newer. Each side tolerates lost datagrams, and stops if too many
are lost. The robot shuts its brakes after `PATIENCE` cycles without a command, because the computer with the driver may
hang. The driver reports a reading as not fresh if nothing arrived since the previous one: the plant tolerates
`stale_cycles` of these in a row, and then stops safely. Datagrams that are late, out of order or from another sender
are ignored.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dyn_service import Configuration, InvalidArgumentError, Limits, UnavailableError
from dyn_service.control import INTERFACES, Reading, SetPoint

COMMANDS = {"effort": b"DYNE", "position": b"DYNP", "velocity": b"DYNV"}
STATE = b"DYNS"
HEAD = struct.Struct("<4sIB")
"""Kind, number, brakes or fault."""
PATIENCE = 20
"""Cycles of the robot without a command."""
LARGEST = 1 << 16


def packed(kind: bytes, number: int, flag: bool, values: np.ndarray) -> bytes:
    """A datagram."""
    return HEAD.pack(kind, number, flag) + np.ascontiguousarray(values, dtype="<f8").tobytes()


def unpacked(kind: bytes, data: bytes, count: int) -> tuple[int, bool, np.ndarray] | None:
    """Number, flag and so many numbers; None of what is no datagram of that kind."""
    if len(data) != HEAD.size + 8 * count or data[:4] != kind:
        return None
    values = np.frombuffer(data, dtype="<f8", offset=HEAD.size)
    _, number, flag = HEAD.unpack_from(data)
    return (number, bool(flag), values.astype(np.float64)) if np.isfinite(values).all() else None


class UdpDriver:
    """The plant's side. interfaces: the robot has drives of its own."""

    simulated = False
    interfaces = INTERFACES

    def __init__(self, configuration: Configuration, address: tuple[str, int], timeout_s: float) -> None:
        self.configuration, self._address, self._timeout_s = configuration, address, timeout_s
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._sent_number = self._heard_number = 0
        self._last = Reading(configuration.neutral, np.zeros(configuration.nv), fresh=False)

    def open(self) -> Reading:
        """Asks, with the brakes shut, until the robot answers."""
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            self.write(np.zeros(self.configuration.nv), brakes=True)
            select.select([self._socket], [], [], 0.05)
            if (reading := self.read()).fresh:
                return reading
        host, port = self._address
        raise UnavailableError(f"no robot answers at {host}:{port} within {self._timeout_s:g} s")

    def write(self, effort: np.ndarray, *, brakes: bool) -> None:
        """Sends efforts without waiting."""
        self._send("effort", effort, brakes)

    def write_set_point(self, set_point: SetPoint, *, brakes: bool) -> None:
        """Sends positions, velocities, and additional efforts."""
        self._send(
            set_point.interface, np.concatenate([set_point.position, set_point.velocity, set_point.effort]), brakes
        )

    def _send(self, interface: str, values: np.ndarray, brakes: bool) -> None:
        self._sent_number += 1
        with contextlib.suppress(OSError):  # counts as lost: the robot's watchdog acts
            self._socket.sendto(packed(COMMANDS[interface], self._sent_number, brakes, values), self._address)

    def read(self) -> Reading:
        """The newest state that has come."""
        configuration, newest = self.configuration, None
        while True:
            try:
                data, sender = self._socket.recvfrom(LARGEST)
            except OSError:  # nothing more; or nobody listens at the robot's port, which is no other thing here
                break
            state = unpacked(STATE, data, configuration.nq + 2 * configuration.nv) if sender == self._address else None
            if state is not None and state[0] > self._heard_number:
                self._heard_number, newest = state[0], state
        if newest is None:
            self._last = Reading(self._last.q, self._last.v, self._last.effort, fresh=False)
        else:
            _, fault, values = newest
            q, v, effort = np.split(values, [configuration.nq, configuration.nq + configuration.nv])
            self._last = Reading(q, v, effort, fault="driver" if fault else "")
        return self._last

    def close(self) -> None:
        """Shuts the brakes, as far as one datagram can; the robot's watchdog does the rest."""
        self.write(np.zeros(self.configuration.nv), brakes=True)
        self._socket.close()


def connect(configuration: Configuration, limits: Limits, cycle_s: float, settings: Mapping[str, Any]) -> UdpDriver:
    """What the plant's parameter `driver` calls. settings: `host`, `port`, `timeout_s`."""
    unknown = set(settings) - {"host", "port", "timeout_s"}
    if unknown or not isinstance(settings.get("port"), int):
        raise InvalidArgumentError(
            f"driver_settings are {dict(settings)}: expected a port, and host and timeout_s or not",
            path="driver_settings",
        )
    address = socket.gethostbyname(str(settings.get("host", "127.0.0.1"))), settings["port"]
    return UdpDriver(configuration, address, float(settings.get("timeout_s", 5.0)))


class UdpRobot:
    """The robot's side. body: what moves, as the plant's own loop would have it: write, then read. drives: (set point,
    q, v) -> efforts. limit: (nv,) of these.
    """

    def __init__(self, body: Any, drives: Any, limit: np.ndarray, host: str = "127.0.0.1", port: int = 0) -> None:
        self.body, self._nv = body, body.configuration.nv
        self._drives, self._limit = drives, limit
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((host, port))
        self.socket.setblocking(False)
        self.address: tuple[str, int] = self.socket.getsockname()
        self._peer: tuple[str, int] | None = None
        self._number, self._silent = 0, PATIENCE
        self._interface, self._brakes = "effort", True
        self._values = np.zeros(self._nv)
        self.reading = body.open()

    @property
    def braked(self) -> bool:
        """Whether the brakes are shut: by command, or because commands are missing."""
        return self._brakes or self._silent >= PATIENCE

    def cycle(self) -> None:
        """One cycle of the drives: takes the newest command, advances one step, sends the state to the driver."""
        self._silent += 1
        while True:
            try:
                data, sender = self.socket.recvfrom(LARGEST)
            except OSError:
                break
            interface = next((name for name, kind in COMMANDS.items() if data[:4] == kind), "effort")
            command = unpacked(COMMANDS[interface], data, self._nv if interface == "effort" else 3 * self._nv)
            if command is None or (sender == self._peer and command[0] <= self._number):
                continue
            if sender != self._peer and not self.braked:
                continue  # it obeys one computer at a time
            self._peer, self._silent = sender, 0
            self._interface = interface
            self._number, self._brakes, self._values = command
        self.body.write(self._effort(), brakes=self.braked)
        self.reading = self.body.read()
        if self._peer is not None and self._silent == 0:
            values = np.concatenate([self.reading.q, self.reading.v, self.reading.effort])
            self.socket.sendto(packed(STATE, self._number, bool(self.reading.fault), values), self._peer)

    def _effort(self) -> np.ndarray:
        """Efforts of the motors: those commanded, or those of the drives."""
        if self.braked:
            return np.zeros(self._nv)
        if self._interface == "effort":
            return self._values
        position, velocity, effort = np.split(self._values, 3)
        drive_efforts = self._drives(
            SetPoint(self._interface, position, velocity, effort), self.reading.q, self.reading.v
        )
        return np.clip(drive_efforts, -self._limit, self._limit)


def main() -> None:
    """Runs the robot, in wall time."""
    parser = argparse.ArgumentParser(description="A simulated robot behind UDP.")
    parser.add_argument("robot")
    parser.add_argument("--port", type=int, default=5800)
    options = parser.parse_args()

    from dyn_service import Robot
    from dyn_service.graph import PlantParameters, make_plant

    plant = make_plant(Robot.from_file(options.robot), PlantParameters(robot=options.robot), session=1)
    robot = UdpRobot(plant.robot, plant.safety.servo, plant.limits.effort, port=options.port)
    next_s = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            next_s += 1e-3
            time.sleep(max(0.0, next_s - time.monotonic()))
            robot.cycle()


if __name__ == "__main__":
    main()
