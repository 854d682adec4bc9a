"""A driver in the plant's loop: the UDP example over loopback, its losses and faults, and the drivers that are refused.

Plant and robot are stepped in turns in one thread: what is lost is what was not stepped, and no time is measured.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dyn_service.control.command import SetPoint
from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, UnavailableError
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, DriveParameters, PlantParameters, make_plant
from dyn_service.graph.nodes.registry import run_file
from dyn_service.messages.dyn_service_msgs import JointCommand
from tests.conftest import ROOT, URDF
from tests.phrases import naming

EXAMPLE = ROOT / "examples" / "udp_robot" / "udp_robot.py"
udp = run_file(EXAMPLE)


class Rig:
    """The pendulum behind UDP, a plant whose driver has opened it, and a controller that holds it up."""

    command = None
    """(state) -> what a command says; left out, efforts that hold it."""

    def __init__(self, robot: Robot, body, **changes) -> None:
        self.model, self.far = robot, udp.UdpRobot(body.robot, body.safety.servo, body.limits.effort)
        settings = {"port": self.far.address[1], "timeout_s": 30.0}
        p = PlantParameters(robot="-", driver=str(EXAMPLE), driver_settings=settings, **changes)
        ending = threading.Event()
        answering = threading.Thread(target=lambda: [self.far.cycle() for _ in iter(lambda: ending.wait(0.001), True)])
        answering.start()
        try:
            self.plant = make_plant(robot, p, session=1)
        finally:
            ending.set()
            answering.join()
        self.plant.robot.write(np.zeros(robot.nv), brakes=True)
        self.far.cycle()  # so that each cycle of the plant finds the answer to the one before

    def turn(self, count: int = 1, *, is_lost: bool = False) -> None:
        """Cycles of the plant, each answered by one of the robot, or lost."""
        for _ in range(count):
            state = self.plant.publish()
            effort = self.model.gravity_forces(np.array(state.position)) - 0.5 * np.array(state.velocity)
            fields = {"effort": effort.tolist()} if self.command is None else self.command(state)
            arm = state.mode not in RUNNING and self.plant.safety.cause == "start"
            seen = state.session, state.seq, state.epoch, state.fingerprint
            self.plant.offer(JointCommand(*seen, 1, state.name, arm=arm, **fields))
            self.plant.advance(1)
            if not is_lost:
                self.far.cycle()

    @property
    def mode(self) -> tuple[str, str]:
        return self.plant.safety.mode, self.plant.safety.cause


@contextmanager
def rig(robot: Robot, start: float = 0.5, **changes) -> Iterator[Rig]:
    body = make_plant(robot, PlantParameters(robot="-", initial_position=[start]), session=1)
    rig = Rig(robot, body, **changes)
    try:
        yield rig
    finally:
        rig.plant.robot.close()
        rig.far.socket.close()


def test_a_robot_behind_udp_is_held_up(pendulum: Robot) -> None:
    """By the loop and the safety that the simulated robot has."""
    with rig(pendulum) as lab:
        lab.turn(300)
        assert lab.mode == ("active", "")
        assert not lab.far.braked
        assert lab.plant.q[0] == pytest.approx(0.5, abs=1e-3)
        assert lab.plant.counters.stale_readings == 0
        assert lab.plant.state().effort == lab.far.reading.effort.tolist()  # as measured, by the robot itself


@pytest.mark.parametrize("interface", ["position", "velocity"])
def test_positions_and_velocities_go_to_the_robots_own_drives(pendulum: Robot, interface: str) -> None:
    """Tracks the commanded positions or velocities with its own drives, whose efforts it measures."""
    w, cycles = 60.0, 300
    positions = []

    def command(state):
        position = np.array(state.position)
        positions.append((position[0], state.velocity[0], state.mode))
        value = {"position": [0.51] if state.mode == "active" else position.tolist(), "velocity": [0.2]}[interface]
        return {"effort": [0.0], "interface": interface, interface: value}

    with rig(pendulum) as lab:
        lab.command = command
        lab.turn(cycles)
        assert lab.mode == ("active", "")
        q, v, _ = positions[-1]
        active = sum(mode == "active" for _, _, mode in positions) * 1e-3
        if interface == "position":
            # of a step of s, which is not far: s (1 + w t) exp(-w t) is left
            assert abs(q - 0.51) < 0.01 * (1.0 + w * active) * np.exp(-w * active) + 1e-6
        else:
            assert v == pytest.approx(0.2, abs=1e-4)
        holding = pendulum.gravity_forces(lab.plant.q)
        assert lab.plant.state().effort == pytest.approx(holding, abs=0.01 * abs(holding[0]))
        assert lab.far._interface == interface
        lab.command = None
        lab.turn(1, is_lost=True)
        lab.plant.safety.stop()
        lab.turn(3)
        assert lab.mode == ("stopped", "driver")
        assert lab.far._interface == "effort"


def test_the_robots_drives_keep_to_its_limits_of_effort(pendulum: Robot) -> None:
    limit = pendulum.limits.effort
    body = make_plant(pendulum, PlantParameters(robot="-"), session=1)
    driver = udp.UdpRobot(body.robot, body.safety.servo, limit)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            target = np.array([5.0, 0.0, 0.0])
            sender.sendto(udp.packed(udp.COMMANDS["position"], 1, False, target), driver.address)
            driver.cycle()
        assert driver.reading.effort.tolist() == limit.tolist()
    finally:
        driver.socket.close()


@pytest.mark.parametrize("borne", [0, 2])
def test_lost_datagrams_beyond_those_that_are_borne_stop_it_safely(pendulum: Robot, borne: int) -> None:
    with rig(pendulum, stale_cycles=borne) as lab:
        lab.turn(100)
        lab.turn(borne, is_lost=True)
        lab.turn(10)  # what the last lost one would have said is read by now
        assert lab.mode == ("active", "")
        lab.turn(borne + 1, is_lost=True)
        lab.turn(1)
        assert lab.mode == ("stopped", "driver")
        assert lab.plant.safety.counters.stops["driver"] == 1
        lab.turn(5)
        assert lab.far.braked
        assert lab.plant.counters.stale_readings == 2 * borne + 1


def test_a_robot_whose_computer_fell_silent_brakes_by_itself(pendulum: Robot) -> None:
    with rig(pendulum) as lab:
        lab.turn(100)
        for k in range(udp.PATIENCE + 1):
            assert lab.far.braked is (k >= udp.PATIENCE)
            lab.far.cycle()
        for _ in range(200):
            lab.far.cycle()
        assert lab.far.reading.v.tolist() == [0.0]


def test_a_fault_of_the_drive_stops_it(pendulum: Robot) -> None:
    """Far beyond its velocity limit the body says `velocity`; the datagram has one flag for all."""
    with rig(pendulum) as lab:
        lab.turn(100)
        lab.far.body.v = np.array([25.0])
        lab.turn(3)
        assert lab.mode == ("stopped", "driver")
        assert lab.plant.safety.brakes


def test_invalid_datagrams_are_ignored(pendulum: Robot) -> None:
    """Another sender's, a short one, one of NaN, an older number: none of them moves or feeds anything."""
    with rig(pendulum) as lab:
        lab.turn(50)
        driver, udp_robot = lab.plant.robot.hardware, lab.far
        port = driver._socket.getsockname()[1]
        state = udp.packed(udp.STATE, 10**6, False, np.array([3.0, 0.0, 0.0]))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(state, ("127.0.0.1", port))
            stranger.sendto(udp.packed(udp.COMMANDS["effort"], 10**6, False, np.array([9.0])), udp_robot.address)
        for data in (
            b"",
            state[:-1],
            b"DYNX" + state[4:],
            udp.packed(udp.STATE, 10**6, False, np.array([np.nan, 0.0, 0.0])),
        ):
            udp_robot.socket.sendto(data, ("127.0.0.1", port))
        udp_robot.socket.sendto(udp.packed(udp.STATE, 3, False, np.array([3.0, 0.0, 0.0])), ("127.0.0.1", port))
        lab.turn(50)
        assert lab.mode == ("active", "")
        assert lab.plant.q[0] == pytest.approx(0.5, abs=1e-3)
        assert (driver._heard_number, lab.plant.counters.stale_readings) == (udp_robot._number - 1, 0)


def test_closing_applies_the_brakes(pendulum: Robot) -> None:
    with rig(pendulum) as lab:
        lab.turn(100)
        lab.plant.robot.close()
        lab.far.cycle()
        assert lab.far.braked


def test_a_plant_that_comes_late_writes_a_real_robot_once(pendulum: Robot) -> None:
    """Four periods have passed, and they are over: the watchdog counts them, and one datagram goes out."""
    with rig(pendulum) as lab:
        lab.turn(100)
        driver, counters = lab.plant.robot.hardware, lab.plant.counters
        sent_before, steps_before = driver._sent_number, counters.steps
        lab.plant.advance(4)
        assert (driver._sent_number - sent_before, counters.steps - steps_before) == (1, 4)
        lab.plant.advance(20)
        assert lab.mode == ("stopped", "missed")


def test_a_robot_that_does_not_answer_is_named(pendulum: Robot) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        settings = {"port": port, "timeout_s": 0.05}
        with pytest.raises(UnavailableError, match=naming(f"127.0.0.1:{port}", "0.05 s")):
            make_plant(pendulum, PlantParameters(robot="-", driver=str(EXAMPLE), driver_settings=settings), session=1)


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (None, {}, "driver: there is no file"),
        ("x = 1", {}, "has no function 'connect'"),
        ("def connect(at, limits, cycle_s, settings): return 1 / 0", {}, "cannot be used: ZeroDivisionError"),
        ("import nowhere_at_all", {}, "cannot be used: ModuleNotFoundError"),
        ("def connect(at, limits, cycle_s, settings): pass", {}, "gave NoneType without configuration, simul"),
        (EXAMPLE.read_text(), {}, "driver_settings are {}: expected a port"),
        (EXAMPLE.read_text(), {"overlay": {"gravity": [0, 0, 0]}}, "overlay: for simulated robots only"),
        (EXAMPLE.read_text(), {"initial_position": [0.1]}, "initial_position: for simulated robots only"),
        (EXAMPLE.read_text(), {"clock": "lockstep"}, "clock, engine, actuators, drive: for simulated robots only"),
        (EXAMPLE.read_text(), {"actuators": ActuatorParameters(delay_steps=1)}, "engine, actuators, drive: for"),
        (EXAMPLE.read_text(), {"drive": DriveParameters(damping_ratio=0.7)}, "engine, actuators, drive: for"),
        (EXAMPLE.read_text(), {"stale_cycles": -1}, "parameter 'stale_cycles': expected a whole number of at least 0"),
        (
            "class Mine:\n    simulated = open = write = read = close = None\n"
            "def connect(at, limits, cycle_s, settings):\n"
            "    Mine.configuration = at.chosen([])[0]\n    return Mine()",
            {},
            "the driver's joints are , the model's hinge",
        ),
    ],
)  # fmt: skip
def test_drivers_that_are_refused(
    pendulum: Robot, tmp_path: Path, text: str | None, changes: dict, message: str
) -> None:
    path = tmp_path / "driver.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DynError) as excinfo:
        make_plant(pendulum, PlantParameters(robot="-", driver=str(path), **changes), session=1)
    assert message in str(excinfo.value)


CURRENTS = """
from dyn_service.control import Reading
import numpy as np


class Amplifier:
    simulated, interfaces = False, ("effort", "position", "velocity")

    def __init__(self, joints):
        self.configuration, self.currents = joints, np.zeros(joints.nv)

    def open(self):
        return self.read()

    def write(self, effort, *, brakes):
        self.currents = effort

    def write_set_point(self, to, *, brakes):
        self.currents = to.effort

    def read(self):
        return Reading(np.zeros(self.configuration.nq), np.zeros(self.configuration.nv), self.currents)

    def close(self):
        pass


def connect(joints, limits, cycle_s, settings):
    return Amplifier(joints)
"""


def test_a_driver_that_takes_currents_gets_and_gives_them_by_the_gains_of_the_joint_file(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(CURRENTS)
    settings = {"driver": str(tmp_path / "driver.py"), "driver_effort": "current"}
    joints = tmp_path / "joints.yaml"
    joints.write_text("robot: pendulum\nmotors:\n  hinge: {torque_constant: 0.08, gear_ratio: -50}\n")
    robot = Robot.from_urdf(URDF / "pendulum.urdf", joints=joints)
    hardware = make_plant(robot, PlantParameters(robot="-", **settings), session=1).robot
    hardware.write(np.array([3.0]), brakes=False)
    assert hardware.hardware.currents.tolist() == [-0.75]
    assert hardware.read().effort.tolist() == [3.0]
    hardware.write_set_point(SetPoint("position", np.zeros(1), np.zeros(1), np.array([-2.0])), brakes=False)
    assert hardware.hardware.currents.tolist() == [0.5]
    assert hardware.read().effort.tolist() == [-2.0]
    with pytest.raises(DynError, match=r"driver_effort is current: expected a motor of each driven joint .* of hinge"):
        make_plant(Robot.from_urdf(URDF / "pendulum.urdf"), PlantParameters(robot="-", **settings), session=1)
    with pytest.raises(DynError, match="driver_effort: expected a driver"):
        make_plant(robot, PlantParameters(robot="-", driver_effort="current"), session=1)
    # Joints without a drive have no motor: those that loops move, and the root of a floating robot.
    for name, root, drive in (("four_bar", "fixed", "crank_joint"), ("pendulum", "floating", "hinge")):
        joints.write_text(f"robot: {name}\nmotors:\n  {drive}: {{torque_constant: 0.1, gear_ratio: 20}}\n")
        robot = Robot.from_urdf(URDF / f"{name}.urdf", joints=joints, root=root)
        hardware = make_plant(robot, PlantParameters(robot="-", **settings), session=1).robot
        has_drive = np.array([joint == drive for joint in robot.configuration.velocity_joints])
        hardware.write(np.where(has_drive, 3.0, 0.0), brakes=False)
        assert hardware.hardware.currents.tolist() == np.where(has_drive, 1.5, 0.0).tolist()
        assert hardware.read().effort.tolist() == np.where(has_drive, 3.0, 0.0).tolist()
