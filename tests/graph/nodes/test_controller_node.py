"""The controller with a real plant and a real server: models, errors that end it, and arming."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from dyn_service import Client
from dyn_service.engine.robot import Robot
from dyn_service.graph.launch import launch_file
from dyn_service.graph.middleware.pubsub import split_trailer
from dyn_service.messages import decode
from dyn_service.messages.dyn_service_msgs import PlantState
from tests.conftest import ROOT, URDF
from tests.graph.launches import PATIENCE_S
from tests.phrases import unnamed

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

PENDULUM = URDF / "pendulum.urdf"
PATIENT = "clock:=lockstep"
"""A plant that waits for each command, so that a busy machine neither stops it nor makes it deviate."""
WATCHFUL = (PATIENT, "lockstep_timeout_s:=3.0")
"""Then it misses a controller that does nothing for so long: 20 cycles of its own time after the last command."""


def heavier(text: str) -> str:
    """The same joints, other masses."""
    return re.sub(r'mass value="([^"]+)"', lambda mass: f'mass value="{5.0 * float(mass[1])!r}"', text)


class Lab:
    """Processes on the sockets of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.endpoint = folder, f"ipc://{folder}/server"
        self.processes: list[subprocess.Popen[str]] = []
        self.context = zmq.Context()
        self.states = self.context.socket(zmq.SUB)
        self.states.setsockopt(zmq.SUBSCRIBE, b"")
        self.states.setsockopt(zmq.CONFLATE, 1)
        self.states.connect(f"ipc://{folder}/seen")

    def start(self, *command: str) -> subprocess.Popen[str]:
        return self.run("-m", *command)

    def run(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "DYN_RUNTIME_DIR": str(self.folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def serve(self, robot: Path = PENDULUM) -> None:
        self.start("dyn_service", "serve", str(robot), "--bind", self.endpoint, "--allow-load", "--no-prepare")

    def plant(self, *parameters: str) -> subprocess.Popen[str]:
        seen = f"plant_state:=ipc://{self.folder}/seen"  # in addition to the one that the controller finds
        return self.node("plant.node", f"robot:={PENDULUM}", "control_rate_hz:=100.0", seen, *parameters)

    def controller(self, *parameters: str, kind: str = "computed_torque") -> subprocess.Popen[str]:
        # the kernels may be compiled on a busy machine
        waits = (f"connect_timeout_s:={PATIENCE_S}", f"state_timeout_s:={PATIENCE_S}", "loads_rate_hz:=0.0")
        return self.node(f"controllers.{kind}", f"endpoint:={self.endpoint}", *waits, *parameters)

    def node(self, name: str, *parameters: str) -> subprocess.Popen[str]:
        words = [word for parameter in parameters for word in ("-p", parameter)]
        return self.start(f"dyn_service.graph.nodes.{name}", "--ros-args", *words)

    def wait_for(self, condition: Callable[[PlantState], bool]) -> PlantState:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.states.poll(200) and condition(state := decode(PlantState, split_trailer(self.states.recv())[0])):
                return state
        raise AssertionError(f"no such state came; {[process.poll() for process in self.processes]}")

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()
        self.context.destroy(linger=0)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


def exit_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


def failed(process: subprocess.Popen[str]) -> str:
    """Returns the last line of a process that failed; a busy machine adds warnings of uneven states before it."""
    status, errors = exit_of(process)
    assert status == 1, errors
    return errors.splitlines()[-1]


def test_a_server_with_another_model_commands_nothing(lab: Lab, tmp_path: Path) -> None:
    """The same name and joints: only the fingerprints tell, and the plant's decides."""
    other = tmp_path / "pendulum.urdf"
    other.write_text(heavier(PENDULUM.read_text("utf-8")), "utf-8")
    lab.serve(other)
    lab.plant()
    fingerprint, other_fingerprint = (Robot.from_urdf(file).fingerprint for file in (PENDULUM, other))
    assert failed(lab.controller()) == (
        f"ERROR /controller: the plant's robot has fingerprint {fingerprint}, the server's {other_fingerprint}: "
        "both must be the same model"
    )
    state = lab.wait_for(lambda state: True)
    assert (state.mode, state.command_seq) == ("braked", -1)


def test_a_robot_changed_under_its_name_ends_the_controller_and_the_next_one_too(lab: Lab) -> None:
    lab.serve()
    lab.plant(PATIENT)
    controller = lab.controller()
    lab.wait_for(lambda state: state.mode == "active")
    with Client(lab.endpoint, timeout_s=240.0) as client:
        client.unload_robot("pendulum")
        client.load_robot(heavier(PENDULUM.read_text("utf-8")))
    status, errors = exit_of(controller)
    assert status == 1
    assert re.search(r"robot 'pendulum' has fingerprint \w+, the request was made for \w+|no robot 'pendulum'", errors)
    state = lab.wait_for(lambda state: state.mode != "active")
    assert (state.mode, state.cause) == ("braked", "released")
    status, errors = exit_of(lab.controller())
    assert (status, "both must be the same model" in errors) == (1, True), errors
    next_state = lab.wait_for(lambda state: True)
    assert (next_state.mode, next_state.epoch, next_state.command_seq) == (state.mode, state.epoch, state.command_seq)


@pytest.mark.parametrize("rearm", [False, True])
def test_a_stop_under_its_command(lab: Lab, rearm: bool) -> None:
    """Suspended for a while, it arms the plant again only with `rearm`; a new controller does so without."""
    lab.serve()
    lab.plant(*WATCHFUL)
    controller = lab.controller(f"rearm:={str(rearm).lower()}")
    state_before = lab.wait_for(lambda state: state.mode == "active" and state.stamp > state.since + 0.3)  # it goes on
    controller.send_signal(signal.SIGSTOP)
    stopped = lab.wait_for(lambda state: state.mode == "stopped")
    assert (stopped.cause, stopped.epoch) == ("missed", state_before.epoch + 1)
    assert stopped.since == pytest.approx(1e-3 * stopped.command_seq + stopped.command_delay + 0.2)
    controller.send_signal(signal.SIGCONT)
    if not rearm:
        assert failed(controller) == (
            f"ERROR /controller: the plant stopped (missed: no command was accepted for 0.2 s) at "
            f"{stopped.since:g} s, and rearm is off: restart the controller"
        )
        controller = lab.controller()
    state_after = lab.wait_for(lambda state: state.mode == "active")
    assert state_after.epoch == stopped.epoch
    assert controller.poll() is None


def test_after_a_kill_the_next_one_takes_over_from_low_speed(lab: Lab) -> None:
    lab.serve()
    lab.plant(*WATCHFUL)
    first = lab.controller()
    lab.wait_for(lambda state: state.mode == "active" and state.stamp > state.since + 0.3)
    first.kill()
    stopped = lab.wait_for(lambda state: state.mode == "stopped")
    assert stopped.cause == "missed"
    lab.controller()
    armed_state = lab.wait_for(lambda state: state.mode in ("arming", "active"))
    limit = Robot.from_urdf(PENDULUM).limits.velocity
    # while it is armed the brakes are shut; the state may be some cycles old when it is seen
    assert (abs(np.array(armed_state.velocity)) <= 0.11 * limit).all()
    assert armed_state.epoch == stopped.epoch


def test_a_plant_that_falls_silent_ends_the_controller(lab: Lab) -> None:
    lab.serve()
    plant = lab.plant(PATIENT)
    controller = lab.controller("state_timeout_s:=1.0")
    lab.wait_for(lambda state: state.mode == "active")
    plant.send_signal(signal.SIGSTOP)
    assert failed(controller) == "ERROR /controller: no joint state arrived for 1 s: is the plant running?"


def test_a_controller_without_a_plant_ends(lab: Lab) -> None:
    lab.serve()
    with Client(lab.endpoint, timeout_s=PATIENCE_S) as client:  # its time to connect does not include the compiler's
        robot = client.robot("pendulum")
        robot.constraint_forces([0.0], [0.0], [0.0])
        robot.computed_torque(*[[0.0]] * 5, kp=[1.0], kd=[1.0])
    errors = failed(lab.controller("connect_timeout_s:=10.0"))
    assert errors == "ERROR /controller: no joint state arrived for 10 s: is the plant running?"


def test_one_that_is_stopped_in_good_order_releases_the_plant(lab: Lab) -> None:
    lab.serve()
    lab.plant(PATIENT)
    controller = lab.controller()
    lab.wait_for(lambda state: state.mode == "active")
    controller.send_signal(signal.SIGINT)
    status, errors = exit_of(controller)
    assert status == 0
    assert "ERROR" not in errors  # a busy machine adds warnings of uneven states
    state = lab.wait_for(lambda state: state.mode != "active")
    assert (state.mode, state.cause) == ("braked", "released")


BROKEN = """
import numpy as np
from dyn_service.control.law import Law
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import LoopParameters


class Broken(Law):
    name = "broken"
    asked = 0

    def update(self, state, reference, dt):
        self.asked += 1
        return np.array([np.nan if self.asked > 150 else 0.0])


NODE = controller_kind("broken", LoopParameters, lambda p, model: Broken())
if __name__ == "__main__":
    raise SystemExit(NODE.run())
"""


def test_a_law_that_returns_no_number_ends_with_its_name_and_the_plant_is_released(lab: Lab, tmp_path: Path) -> None:
    lab.serve()
    lab.plant(PATIENT)
    file = tmp_path / "broken.py"
    file.write_text(BROKEN, "utf-8")
    waits = ("-p", f"connect_timeout_s:={PATIENCE_S}")
    errors = failed(lab.run(str(file), "--ros-args", "-p", f"endpoint:={lab.endpoint}", *waits))
    assert errors == "ERROR /broken: law 'broken' returned nan for joint 'hinge': expected finite efforts"
    state = lab.wait_for(lambda state: state.mode != "active")
    assert (state.mode, state.cause) == ("braked", "released")


def test_a_goal_on_the_topic_is_followed_and_one_that_is_none_refused(lab: Lab) -> None:
    lab.serve()
    lab.plant(PATIENT)
    node = lab.controller(kind="trajectory_following")
    lab.wait_for(lambda state: state.mode == "active")
    topic = ("/joint_trajectory", "trajectory_msgs/msg/JointTrajectory")
    for joint in ("elbow", "hinge"):
        goal = f"{{joint_names: [{joint}], points: [{{positions: [0.4]}}]}}"
        done = lab.start("dyn_service", "topic", "pub", "--once", *topic, goal)
        assert exit_of(done)[0] == 0
    end_state = lab.wait_for(lambda state: abs(state.position[0] - 0.4) < 1e-3 and abs(state.velocity[0]) < 1e-3)
    lab.wait_for(lambda state: state.stamp > end_state.stamp + 0.1)  # its motion ends some updates later
    goal = "trajectory: {joint_names: [hinge], points: [{positions: [0.3]}]}, goal_tolerance: [{name: hinge}]"
    done = lab.start("dyn_service", "service", "call", "/trajectory_following/follow_joint_trajectory", f"{{{goal}}}")
    assert exit_of(done)[0] == 0
    lab.wait_for(lambda state: abs(state.position[0] - 0.3) < 1e-3)
    node.send_signal(signal.SIGINT)
    status, errors = exit_of(node)
    assert status == 0
    assert unnamed(errors, "joint_trajectory", "hinge", "found elbow") == []
    assert "goal 1 succeeded" in errors


DIVERGING = """launch:
  - node:
      {{pkg: dyn_service, exec: server, param: [{{name: robots, value: [{robot}]}},
        {{name: endpoints, value: ["ipc://{folder}/server"]}}, {{name: prepare, value: false}}]}}
  - node:
      {{pkg: dyn_service, exec: plant, param: [{{name: robot, value: {robot}}}]}}
  - node:
      {{pkg: dyn_service, exec: controller, param: [{{name: endpoint, value: "ipc://{folder}/server"}},
        {{name: natural_frequency, value: 1.0e+100}}, {{name: loads_rate_hz, value: 0.0}},
        {{name: connect_timeout_s, value: 240.0}}]}}
"""


def test_a_simulation_that_diverges_ends_the_launch_with_its_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """Gains that make efforts of 1e180 of roundings, joints without limits: nothing but the numbers' end stops it."""
    robot, file = tmp_path / "wild.urdf", tmp_path / "wild.launch.yaml"
    text = (URDF / "double_pendulum.urdf").read_text("utf-8")
    robot.write_text(re.sub(r"<limit [^>]*/>", "", text).replace('type="revolute"', 'type="continuous"'), "utf-8")
    file.write_text(DIVERGING.format(robot=robot, folder=tmp_path), "utf-8")
    report = tmp_path / "report"
    status = launch_file(file, {}, duration_s=PATIENCE_S, report_dir=report)
    output = capfd.readouterr().out
    assert status == 1, output
    assert re.search(r"the simulation diverged in step \d+ \(t = [0-9.]+ s\): the state of joint", output), output
    assert "[launch] plant: exited with status 1" in output
