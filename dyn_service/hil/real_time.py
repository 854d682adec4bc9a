"""A run of real processes, started, watched and ended by the launcher's own supervisor, with a proxy in between.

The plant is the launch's own, simulated or, by its parameter `driver`, a real robot; or it is elsewhere, where its
topics' endpoints are given. A run begins when all processes have said that they are ready; its times count from then.

**The proxy** between the processes of a plant and its controller logs all messages and injects faults
into them.

The controller listens and speaks to topics of this proxy, the proxy to those of the plant. It is a node in a thread of
the test's process; nothing reaches the controller before `open`, so that a run begins when all are ready.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from dyn_service.api.queries import RobotQueries
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, UnavailableError
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.runtime import Runtime
from dyn_service.graph.launch.supervisor import Listener, Supervisor, exit_text
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.zmq_sockets import open_context
from dyn_service.graph.nodes.controllers.controller_kind import only_robot
from dyn_service.graph.nodes.plant.factory import safety_settings
from dyn_service.graph.nodes.plant.report import Followed
from dyn_service.hil.faults import Channel, Fault, Killed, wall_limit, wall_time_error
from dyn_service.hil.setup import ResolvedSetup
from dyn_service.hil.signals import MessageLog, ReceivedState, Record
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.service.client.sync import Client
from dyn_service.support.arguments import full_name
from dyn_service.support.parameters import NoParameters
from dyn_service.support.threads import join_within

STATES, COMMANDS = "/hil/plant_state", "/hil/joint_commands"
"""The controller's topics."""
_QUEUE = 10_000
_TURN_S = 0.05
_PROXY_CLOSE_S = 10.0
_STOP_S, _KILL_S = 60.0, 30.0
"""Time for a launch to stop in its order, and then for its processes to be killed."""


class Proxy:
    """The proxy of one run.

    folder: where the launch's nodes find each other. topics: full names or endpoints of the plant's `plant_state` and
    `joint_commands`. log: where it writes messages while `writes`; times are from when the run began.
    """

    def __init__(
        self, folder: Path, topics: Mapping[str, str], log: MessageLog, faults: Sequence[Fault], seed: int
    ) -> None:
        self._folder, self._log = folder, log
        self._state_topic, self._command_topic = topics["plant_state"], topics["joint_commands"]
        self._states: Channel[PlantState] = Channel(faults, "states", seed, log.configuration)
        self._commands: Channel[JointCommand] = Channel(faults, "commands", seed, log.configuration)
        self.condition = threading.Condition()
        self.begin_s: float | None = None
        self.state: PlantState | None = None
        self.fault = ""
        self.writes = True
        self._open = self._stops = False
        self._thread = threading.Thread(target=self._run, name="hil", daemon=True)
        self._thread.start()

    @property
    def now_s(self) -> float:
        """The plant's time since the run began."""
        return 0.0 if self.state is None or self.begin_s is None else self.state.stamp - self.begin_s

    def open(self) -> None:
        """Lets the run begin, with the next state."""
        self._open = True

    def inject(self, fault: Fault) -> None:
        """From now on this goes wrong too."""
        with self.condition:
            self._states.add(fault)
            self._commands.add(fault)

    def close(self) -> None:
        """Ends it.

        Raises:
            DeadlineExceededError: Its thread does not end.
        """
        self._stops = True
        join_within(self._thread, _PROXY_CLOSE_S, "the proxy between plant and controller")

    def _run(self) -> None:
        try:
            self._pass_on()
        except DynError as error:
            self.fault = str(error)
        finally:
            with self.condition:
                self.condition.notify_all()

    def _pass_on(self) -> None:
        with open_context() as context:
            node = Node.alone("/hil/proxy", NoParameters(), self._folder, context)
            try:
                node.create_subscription(PlantState, self._state_topic, self._on_state, name=STATES, queue=_QUEUE)
                node.create_subscription(JointCommand, COMMANDS, self._on_command, queue=_QUEUE)
                states = node.create_publisher(PlantState, STATES)
                commands = node.create_publisher(JointCommand, self._command_topic, name=COMMANDS, binds=False)
                while not self._stops:
                    wait_s = min(self._states.next_s, self._commands.next_s) - time.monotonic()
                    node.spin_once(min(max(wait_s, 0.0), _TURN_S))
                    now_s = time.monotonic()
                    with self.condition:
                        states_due, commands_due = self._states.due(now_s), self._commands.due(now_s)
                    for state in states_due:
                        if self.writes:
                            row = max(0, len(self._log.states) - 1)
                            self._log.received.append(ReceivedState(row, self._shifted(state)))
                        states.publish(state)
                    for command in commands_due:
                        commands.publish(command)
            finally:
                node.close()

    def _on_state(self, state: PlantState) -> None:
        with self.condition:
            if self._open and self.begin_s is None:
                self.begin_s = state.stamp
            if self.begin_s is not None and self.writes:
                # As the plant sent it: faults change only what the controller gets.
                self._log.states.append(self._shifted(state))
            if self.begin_s is not None:
                self._states.send(state, time.monotonic(), state.stamp - self.begin_s)
            self.state = state
            self.condition.notify_all()

    def _on_command(self, command: JointCommand) -> None:
        with self.condition:
            if self.writes:
                self._log.commands.append((self.now_s, command))
            self._commands.send(command, time.monotonic(), self.now_s)

    def _shifted(self, state: PlantState) -> PlantState:
        begin_s = self.begin_s or 0.0
        return msgspec.structs.replace(state, stamp=state.stamp - begin_s, since=state.since - begin_s)


CONTROLLER = {"plant_state": STATES, "joint_commands": COMMANDS}
"""Parameters of the controller: it speaks to the proxy."""
_FOR_GOOD_S = 1e6
_OVER = "the run is over"


class RealTime:
    """A run in real time.

    setup: The launch, whose controller has the parameters `CONTROLLER`. runtime: The launch's folder; it is closed with
    the run. endpoints: Of a plant that is elsewhere: `plant_state` and `joint_commands`. Empty: it is the launch's.

    Raises:
        UnavailableError: A process ended before all were ready; it says why.
        DynError: A fault does not fit the robot.
    """

    wall_limit_s: float | None = None

    def __init__(
        self,
        setup: ResolvedSetup,
        robot: Robot,
        runtime: Runtime,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        endpoints: Mapping[str, str] | None = None,
    ) -> None:
        self._setup, self._runtime, self._faults = setup, runtime, list(faults)
        self._exits: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._client: Client | None = None
        p = setup.plant_parameters()
        self.log = MessageLog.of(robot, safety_settings(p, robot.limits), setup.controller_parameters())
        self._killed = [fault for fault in faults if isinstance(fault, Killed)]
        namespace = full_name("/", setup.plant.name).rpartition("/")[0] or "/"
        topic_names = {"plant_state": p.plant_state, "joint_commands": p.joint_commands} | dict(endpoints or {})
        topics = {name: topic if "://" in topic else full_name(namespace, topic) for name, topic in topic_names.items()}
        plan = _plan(setup, self._killed, without_plant=bool(endpoints))
        self._supervisor = Supervisor(plan, runtime, Listener(self._output, self._notice, lambda supervisor: None))
        self._proxy = Proxy(runtime.folder, topics, self.log, faults, seed)
        self._ready, self._is_over = threading.Event(), threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._supervise, name="hil launch", daemon=True)
        self._thread.start()
        try:
            # Without a timeout: the supervisor gives each process `ready_timeout`, and sets this event at its end.
            self._ready.wait()
        except BaseException:
            # Also on Ctrl-C, which would leave all processes behind.
            self.close()
            raise
        if self._is_over.is_set():
            self.close()
            raise UnavailableError(f"the launch ended before all were ready: {self.ended}")
        self._proxy.open()

    @property
    def now_s(self) -> float:
        """The plant's time since the run began."""
        return self._proxy.now_s

    @property
    def ended(self) -> str:
        """Why a node ended by itself, the last one; empty while all run."""
        return self.log.ends[-1].why if self.log.ends else ""

    @property
    def state(self) -> PlantState:
        """The newest state of the plant, with its own times.

        Raises:
            UnavailableError: None has come yet.
        """
        if self._proxy.state is None:
            raise UnavailableError("no state of the plant has come yet")
        return self._proxy.state

    @property
    def server(self) -> RobotQueries:
        """The robot on the launch's server."""
        if self._client is None:
            self._client = Client(self._setup.controller_parameters().endpoint)
        robot_name = self._setup.controller_parameters().robot
        return self._client.robot(robot_name or only_robot(self._client.list_robots()))

    def inject(self, fault: Fault) -> None:
        """Adds a fault, active from now on."""
        self._faults.append(fault)
        if isinstance(fault, Killed):
            self._kill(fault)
            return
        self._proxy.inject(fault)

    def run_until(self, t: float) -> None:
        """Waits until the plant's time is t s, or all has ended.

        Raises:
            DeadlineExceededError: It takes far longer.
            UnavailableError: The proxy cannot do its work.
        """
        limit_s = wall_limit(t - self.now_s, self.wall_limit_s)
        deadline_s = time.monotonic() + limit_s
        proxy, self.log.asked_s = self._proxy, t
        with proxy.condition:
            while proxy.now_s < t and not self._is_over.is_set() and not proxy.fault:
                due = [] if proxy.begin_s is None else [k for k in self._killed if k.active_at(proxy.now_s)]
                for fault in due:
                    self._killed.remove(fault)
                    self._kill(fault)
                if not proxy.condition.wait(0.5) and time.monotonic() > deadline_s:
                    raise wall_time_error(limit_s, proxy.now_s, t)
        if proxy.fault:
            raise UnavailableError(f"the proxy between plant and controller ended: {proxy.fault}")

    def record(self) -> Record:
        """Returns the record so far."""
        begin_s = self._proxy.begin_s or 0.0
        nodes = self._supervisor.store.nodes
        controller = nodes.get(self._setup.controller.name)
        facts = [] if controller is None else controller.facts
        followed = [Followed.of_fact(fact["reference"]) for fact in facts if "reference" in fact]
        self.log.followed = [reference._replace(begin_s=reference.begin_s - begin_s) for reference in followed]
        plant = nodes.get(self._setup.plant.name)
        counters = {} if plant is None else {k: v for k, v in plant.stats.items() if isinstance(v, int)}
        with self._proxy.condition:
            return self.log.record(counters)

    def close(self) -> None:
        """Ends all processes, in the order that the launcher has; what they counted is known then.

        Raises:
            DeadlineExceededError: The launch or the proxy does not end.
        """
        with ExitStack() as stack:
            stack.callback(self._runtime.close)
            stack.callback(self._proxy.close)
            if self._client is not None:
                self._client.close()
            # The shutdown is not part of the test.
            self._proxy.writes = False
            self._request_stop()
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                self._request_stop()
                join_within(self._thread, _KILL_S, "the launch of the run")

    def _request_stop(self) -> None:
        """Stops the launch; the second call kills its processes."""
        # A closed event loop raises: the launch has ended by itself.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._supervisor.request_stop, _OVER)

    def _supervise(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                outcome = runner.run(self._supervisor.run(None))
            if outcome.reason != _OVER and not self.log.ends:
                self._end(outcome.reason)
            for process in outcome.processes:
                if process.forced or (process.plan.name not in self._kills and not process.stopped_well()):
                    how = "did not stop and was killed" if process.forced else process.causes[-1]
                    self._end(f"{process.plan.name} {how}")
        except Exception as error:  # noqa: BLE001  whatever ends the launch ends the run
            self._end(f"{type(error).__name__}: {error}")
        finally:
            self._is_over.set()
            self._ready.set()
            with self._proxy.condition:
                self._proxy.condition.notify_all()

    def _notice(self, line: str) -> None:
        if line.startswith("ready: "):
            self._ready.set()
        elif self._proxy.begin_s is not None:
            self.log.notes.append((self._proxy.now_s, line))
        self._look_for_ends()

    def _output(self, process: ProcessPlan, line: str) -> None:
        if line.startswith("WARNING") and self._proxy.begin_s is not None:
            self.log.notes.append((self._proxy.now_s, f"{process.name}: {line}"))

    def _look_for_ends(self) -> None:
        """Records processes that ended by themselves since the last call, with their last line if it is an error."""
        for process in self._supervisor.processes:
            name = process.plan.name
            for cause in process.causes[self._exits[name] :]:
                self._exits[name] += 1
                if self._exits[name] > self._kills[name]:
                    last = [*process.tail][-1:] if cause == exit_text(1) else []
                    self._end(": ".join([f"{name} {cause}", *last]))

    def _end(self, why: str) -> None:
        self.log.end(self._proxy.now_s, why, self._faults)

    def _kill(self, fault: Killed) -> None:
        plan = self._setup.controller if fault.node == "controller" else self._setup.server
        for process in self._supervisor.processes:
            if plan is not None and process.plan.name == plan.name and process.pid is not None:
                self._kills[plan.name] += 1
                # as a crash: the controller cannot release the plant any more
                os.kill(process.pid, signal.SIGKILL)


def _plan(setup: ResolvedSetup, killed: Sequence[Killed], *, without_plant: bool) -> LaunchPlan:
    """The launch, in which a killed process is restarted at the fault's end, or not at all."""

    def with_restarts(process: ProcessPlan) -> ProcessPlan:
        node_names = {"controller": setup.controller.name, "server": setup.server.name if setup.server else ""}
        for fault in killed:
            if process.name == node_names[fault.node]:
                delay_s = fault.until_s - fault.from_s if math.isfinite(fault.until_s) else _FOR_GOOD_S
                return replace(process, respawn=True, respawn_delay_s=delay_s)
        return process

    left_out = setup.plant.name if without_plant else None
    processes = (with_restarts(process) for process in setup.plan.processes if process.name != left_out)
    return replace(setup.plan, processes=tuple(processes))
