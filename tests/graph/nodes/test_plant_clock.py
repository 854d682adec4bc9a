"""What makes the plant's time pass: commands in lockstep, a multiple of the wall's clock. With its real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from dyn_service.control.joint_states import JointStates
from dyn_service.control.plant.safety import RUNNING
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.pacing import Pacer
from dyn_service.graph.middleware.stop import Stop
from dyn_service.graph.middleware.telemetry import Telemetry
from dyn_service.graph.nodes.controllers.computed_torque import NODE, ControllerParameters
from dyn_service.graph.nodes.controllers.controller_kind import run_controller
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
from dyn_service.graph.nodes.plant.node import PlantLoop, PlantTopics, steps_between_states
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.messages.rosgraph_msgs import Clock
from dyn_service.service.protocol import zmtp
from dyn_service.service.server.answering.service import Service
from dyn_service.support.arguments import NodeArguments, parse_arguments
from dyn_service.support.parameters import NoParameters
from tests.graph.launches import PATIENCE_S
from tests.phrases import naming
from tests.service.client.plain_server import PlainServer


class Commanding:
    """Who commands a plant."""

    def __init__(self, context: zmq.Context, folder: Path) -> None:
        self.node = Node.alone("/commanding", NoParameters(), folder, context)
        self.states = self.node.create_subscription(PlantState, "plant_state", queue=10_000)
        self.clock = self.node.create_subscription(Clock, "/clock", queue=10_000)
        self.commands = self.node.create_publisher(JointCommand, "joint_commands")

    def until_heard(self, loop: PlantLoop) -> None:
        """Until the plant hears the commands: one of no session is refused, and answers no state."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(loop.plant.safety.counters.refused.values()):
            assert time.monotonic() < deadline
            self.commands.publish(JointCommand(0, 0, 0, "", 1, (), []))
            self.node.spin_once(0.01)

    def state(self, condition=lambda state: True) -> PlantState:
        """The next state that is wanted."""
        return self.next(self.states, condition)

    def next(self, messages, condition=lambda message: True):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.node.spin_once()
            message = messages.take()
            if message is not None and condition(message):
                return message
            if message is None:
                messages.socket.poll(5)
        raise AssertionError("nothing came")

    def answer(self, state: PlantState, **changes) -> None:
        fields = {
            "session": state.session, "state_seq": state.seq, "epoch": state.epoch, "fingerprint": state.fingerprint,
            "controller": 1, "name": state.name, "effort": [0.0], "arm": state.mode not in RUNNING,
        }  # fmt: skip
        self.commands.publish(JointCommand(**{**fields, **changes}))


def loop_of(robot: Robot, folder: Path, context: zmq.Context, **changes) -> tuple[Node, PlantLoop]:
    """A plant's node and its loop, not yet running."""
    folder.chmod(0o700)
    p = PlantParameters(robot="-", **changes)
    node = Node(NodeArguments("plant"), p, Telemetry("/plant", context, None), context, Stop(), folder)
    return node, PlantLoop(node, make_plant(robot, p, session=7), PlantTopics(node, p, JointStates.of(robot)))


@contextmanager
def at_work(robot: Robot, folder: Path, **changes) -> Iterator[tuple[Commanding, PlantLoop]]:
    """A plant at work in a thread."""
    context: zmq.Context = zmq.Context()
    node, loop = loop_of(robot, folder, context, **changes)
    thread = threading.Thread(target=loop.run)
    thread.start()
    commanding = Commanding(context, folder)
    try:
        commanding.until_heard(loop)
        yield commanding, loop
    finally:
        node.stop.requested = True
        thread.join()
        commanding.node.close()
        node.close()
        context.destroy(linger=0)


def test_after_an_overrun_states_are_published_on_their_grid_again(pendulum: Robot, tmp_path: Path) -> None:
    """Every fourth step; a loop that came three steps late publishes once, and then at the next multiple of four. Of 30
    missed steps ten are made up for, the others are slipped.
    """
    context: zmq.Context = zmq.Context()
    node, loop = loop_of(pendulum, tmp_path, context, state_rate_hz=250.0)
    now_ns, published = [0], []

    def sleep(seconds: float) -> None:
        now_ns[0] += round(1e9 * seconds)

    try:
        loop.pacer = Pacer(1e-3, now_ns=lambda: now_ns[0], sleep=sleep)
        for late_ms in (0, 0, 3, *[0] * 8, 30, *[0] * 4):
            now_ns[0] += late_ms * 1_000_000
            previous_count = loop.topics.published
            loop._period()
            published += [loop.plant.counters.steps] * (loop.topics.published - previous_count)
        assert published == [1, 5, 8, 12, 23, 24]
        assert loop.slipped == 20
    finally:
        node.close()
        context.destroy(linger=0)


LOCKSTEP = {"clock": "lockstep", "control_rate_hz": 500.0, "initial_position": [0.3]}


def test_in_lockstep_time_stands_until_the_newest_state_is_answered(pendulum: Robot, tmp_path: Path) -> None:
    """Two steps for each answer; a state is sent again until it has one; an answer to an older one moves nothing."""
    with at_work(pendulum, tmp_path, **LOCKSTEP) as (controller, loop):
        first = controller.state()
        assert first.answer_timeout == 10.0
        assert [controller.state() == first for _ in range(3)] == [True] * 3
        seen = []
        for _ in range(20):
            state = controller.state(lambda state: state.seq == 2 * len(seen))
            seen.append(state.stamp)
            controller.answer(state)
        np.testing.assert_allclose(seen, 0.002 * np.arange(20), rtol=1e-12)
        last = controller.state(lambda state: state.seq == 40)
        controller.answer(state)  # once more
        assert controller.state() == last
        controller.answer(last, effort=[np.inf])  # an answer, though none that is taken
        assert controller.state(lambda state: state.seq > 40).seq == 42
        assert loop.plant.safety.counters.refused["not_finite"] == 1
        assert controller.next(controller.clock).clock.nanoseconds() % 2_000_000 == 0


def test_in_lockstep_a_controller_that_falls_silent_is_missed_at_the_same_step(pendulum: Robot, tmp_path: Path) -> None:
    """However long the wall waits: twenty cycles of 2 ms after the command that was taken last. Then time stands."""
    with at_work(pendulum, tmp_path, **LOCKSTEP, lockstep_timeout_s=0.0) as (controller, loop):
        for k in range(10):
            controller.answer(state := controller.state(lambda state, k=k: state.seq == 2 * k))
        assert state.answer_timeout == np.inf
        loop._answer_timeout_s = 0.1  # only now: on a busy machine the start may take longer
        stopped = controller.state(lambda state: state.mode == "stopped" and state.armable)
        assert (stopped.cause, stopped.since) == ("missed", pytest.approx(0.018 + 0.040))
        assert controller.state() == stopped
        assert loop.unanswered == 1
        controller.answer(stopped)
        assert controller.state(lambda state: state.seq > stopped.seq).mode in RUNNING


@pytest.mark.parametrize("clock", ["lockstep", "real_time"])
def test_a_late_answer_is_lost_except_in_lockstep(
    pendulum: Robot, tmp_path: Path, socket_folder: Path, clock: str
) -> None:
    """A server takes a second for one update, four times `request_timeout_s`."""
    service, was_slow = Service([pendulum]), False
    controller = Node.alone("/controller", ControllerParameters(loads_rate_hz=0.0, rearm=True), tmp_path, zmq.Context())

    def answer(request: bytes) -> bytes:
        nonlocal was_slow
        commands = loop.plant.safety.counters.commands
        if commands >= 10 and not was_slow:
            was_slow = True
            time.sleep(1.0)
        controller.stop.requested = commands >= 20
        reply = service.handle(request, time.perf_counter_ns())
        return zmtp.frame_header(0, len(reply)) + reply

    with (
        PlainServer(answer, socket_folder / "s") as server,
        at_work(pendulum, tmp_path, clock=clock, control_rate_hz=500.0) as (_, loop),
    ):
        controller.parameters = msgspec.structs.replace(controller.parameters, endpoint=server.endpoint)
        try:
            run_controller(controller, NODE.spec)
        finally:
            controller.close()
            controller.context.destroy(linger=0)
        stats, counters = controller.telemetry.latest, loop.plant.safety.counters
    if clock == "lockstep":
        assert (stats["lost"], stats["answered"], loop.unanswered, counters.armed) == (0, stats["sent"], 0, 1)
    else:
        assert stats["lost"] == stats["sent"] - stats["answered"] >= 1
        assert counters.armed > 1


def test_faster_is_so_many_times_the_walls_time(pendulum: Robot, tmp_path: Path) -> None:
    """Counted by the loop's own deadlines: no time is measured here."""
    with at_work(pendulum, tmp_path, clock="faster", speed=20.0, rate_hz=50.0) as (controller, loop):
        assert controller.state(lambda state: state.seq >= 20).stamp >= 0.4
        assert loop.pacer.period_s == pytest.approx(0.001)
        assert controller.next(controller.clock).clock.nanoseconds() % 20_000_000 == 0


def test_the_lateness_of_a_plant_counts_from_the_command_that_armed_it(pendulum: Robot, tmp_path: Path) -> None:
    """Until then other nodes of the launch were starting."""
    with at_work(pendulum, tmp_path, rate_hz=50.0, missed_cycles=20) as (controller, loop):
        loop.lateness.add(1e6)
        loop.slipped += 1000
        controller.state(lambda state: state.seq > 10)
        assert loop.lateness.microseconds()["late_max_us"] == 1e12
        while not loop._commanded:
            controller.answer(controller.state())
        assert loop.lateness.microseconds()["late_max_us"] < 1e12
        assert loop.slipped < 1000
        assert loop.pacer.skipped < 1000
        lateness = loop.lateness
        stopped = controller.state(lambda state: state.mode == "stopped")
        while loop.plant.safety.counters.armed < 2:
            controller.answer(stopped := controller.state(lambda state: state.seq > stopped.seq))
        assert loop.lateness is lateness  # not from the second one


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 1),
        ({"state_rate_hz": 250.0}, 4),
        ({"control_rate_hz": 500.0}, 1),
        ({"clock": "lockstep"}, 1),
        ({"clock": "lockstep", "control_rate_hz": 500.0}, 2),
        ({"clock": "lockstep", "control_rate_hz": 500.0, "state_rate_hz": 1000.0}, 1),
    ],
)
def test_steps_from_state_to_state(changes: dict, steps: int) -> None:
    assert steps_between_states(PlantParameters(robot="-", **changes)) == steps


@pytest.mark.parametrize("name", ["control_rate_hz", "state_rate_hz"])
def test_times_that_there_cannot_be(name: str) -> None:
    """The error names the rate that was given."""
    with pytest.raises(InvalidArgumentError, match=naming(name, "1000 and 300 Hz")) as fault:
        steps_between_states(PlantParameters(robot="-", clock="lockstep", **{name: 300.0}))
    assert fault.value.path == name


@pytest.mark.parametrize("kind", [PlantParameters, ControllerParameters])
def test_no_rate_is_so_high_that_its_period_is_zero(kind: type) -> None:
    """It was an error of a period, which nobody had given."""
    with pytest.raises(InvalidArgumentError, match=naming("'rate_hz'", "1000000", "1e+308")):
        parse_arguments(["robot:=none", "rate_hz:=1e308"], default_name="n").parameters.to(kind)
