"""A plant and its controller in one process, step by step: bit-identical on each run, as fast as the machine allows.

The loop is `ClosedLoop`; the plant is the one of its node (`make_plant`), the controller the one of its (`Commander`).
Between them are two `Channel`s, into which faults are injected. At each state's time the
controller takes the newest state that has arrived, and the plant the newest command. Without delays a command arrives
one step after its state, as in real time.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence

from dyn_service.api.queries import Wrench
from dyn_service.control.controller import NO_STATE, Commander
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, foreign_line
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.plant.factory import make_plant
from dyn_service.graph.nodes.plant.node import PlantChanges
from dyn_service.graph.nodes.plant.report import Followed, counts
from dyn_service.hil.faults import Channel, Fault, Killed, wall_limit, wall_time_error
from dyn_service.hil.setup import ResolvedSetup
from dyn_service.hil.signals import MessageLog, ReceivedState, Record
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState

SESSION, CONTROLLER = 1, 1
"""Session numbers of the plant and the controller; fixed, since a lockstep run has no other clients."""


class Lockstep:
    """A run in lockstep.

    setup: The plant, with what is wrong in itself, and the controller. model: The robot that the controller asks.
    robot: The one that the plant's file describes.

    Raises:
        DynError: A parameter is out of its range, or a fault does not fit the robot.
    """

    wall_limit_s: float | None = None

    def __init__(
        self, setup: ResolvedSetup, model: Robot, robot: Robot, faults: Sequence[Fault] = (), seed: int = 0
    ) -> None:
        self._setup, self.server, self._robot = setup, model, robot
        p, c = setup.plant_parameters(), setup.controller_parameters()
        self.plant = make_plant(robot, p, SESSION)
        configuration = self.plant.configuration
        self._states: Channel[PlantState] = Channel(faults, "states", seed, configuration)
        self._commands: Channel[JointCommand] = Channel(faults, "commands", seed, configuration)
        self._faults, self._abandoned = list(faults), False
        self._state_timeout_s = c.state_timeout_s
        self.ended = ""
        self._lives = 0
        self._comes_back = False
        self._last_state_s = 0.0
        self._controller: Commander | None = self._start_controller()
        steps_per_state = round(p.rate_hz / p.state_rate_hz) if p.state_rate_hz > 0.0 else 1
        self._loop = ClosedLoop(self.plant, self._answer, steps_per_state)
        self._last: PlantState | None = None
        self._announced: object = None
        self.log = MessageLog.of(robot, self.plant.safety.settings, c)

    @property
    def now_s(self) -> float:
        """The plant's time."""
        return self.plant.time_s

    @property
    def state(self) -> PlantState:
        """The plant's state."""
        return self.plant.state()

    def inject(self, fault: Fault) -> None:
        """Adds a fault, active from now on."""
        self._faults.append(fault)
        self._states.add(fault)
        self._commands.add(fault)

    def push(self, wrench: Wrench, duration_s: float) -> None:
        """As `PlantChanges.push`."""
        PlantChanges(self.plant, self._robot, self._setup.plant_parameters()).push(wrench, duration_s)

    def run_until(self, t: float) -> None:
        """Runs until the plant's time is t s.

        Raises:
            DeadlineExceededError: It takes longer than the wall limit; it says at which line the law is.
        """
        limit_s, begun_s, done = wall_limit(t - self.now_s, self.wall_limit_s), self.now_s, threading.Event()
        failed: list[BaseException] = []

        def go() -> None:
            try:
                self._loop.run(t - begun_s)
            except BaseException as error:  # noqa: BLE001  the test gets it
                failed.append(error)
            done.set()

        self.log.asked_s = t
        # In a thread, because nothing else ends a law that never returns and catches every exception; a daemon, so that
        # such a law cannot keep the process from ending.
        thread = threading.Thread(target=go, name="hil lockstep", daemon=True)
        thread.start()
        try:
            done.wait(limit_s)
        finally:
            # Also after Ctrl-C, which ends the wait.
            self._abandoned = not done.is_set()
        if self._abandoned:
            frame = sys._current_frames().get(thread.ident or 0)
            line = foreign_line(reversed(list(traceback.walk_stack(frame))))
            raise wall_time_error(limit_s, self.now_s, t, f": the law is at {line}" if line else "")
        if failed:
            raise failed[0]

    def record(self) -> Record:
        """Returns the record so far."""
        counters = {name: int(value) for name, value in counts(self.plant).items() if isinstance(value, int)}
        if self._controller is not None:
            following = self._controller.following
            counters |= {"skipped": following.skipped, "reference_restarts": following.restarts}
        return self.log.record(counters)

    def close(self) -> None:
        """Does nothing: a lockstep run has no processes."""

    def _answer(self, state: PlantState) -> JointCommand | None:
        """Returns the newest command that arrived by the time of this state."""
        # The law returned after the test had gone on: it must not change the record any more.
        if self._abandoned:
            raise SystemExit
        self.log.states.append(state)
        self.log.motions.append((self.plant.motion.q, self.plant.motion.v))
        self._states.send(state, state.stamp)
        self._control(state.stamp)
        return self._commands.newest(state.stamp)

    def _control(self, now_s: float) -> None:
        is_killed = self._is_killed("controller", now_s)
        if is_killed and self._controller is not None:
            self._end("controller: it was killed", now_s, says_so=False)
            self._comes_back = True
        elif not is_killed and self._controller is None and self._comes_back:
            self._controller, self._comes_back = self._start_controller(), False
            self._last_state_s, self.ended = now_s, ""
            self.log.notes.append((now_s, "controller: it is started again"))
        state = self._states.newest(now_s)
        if state is not None:
            self.log.received.append(ReceivedState(len(self.log.states) - 1, state))
        controller = self._controller
        if controller is None:
            return
        if state is None:
            if now_s - self._last_state_s > self._state_timeout_s:
                self._end(f"controller: {NO_STATE} {self._state_timeout_s:g} s", now_s)
            return
        self._last_state_s, self._last = now_s, state
        try:
            if not controller.following.due(state):
                return
            command = controller.answer(state, lambda ask: None if self._is_killed("server", now_s) else ask())
        except DynError as error:
            self._end(f"controller: {error}", now_s)
            return
        if command is not None:
            self._send(command, now_s)
        following = controller.following
        motion = following.trajectory
        if following.engaged and motion is not None and self._announced is not motion:
            self._announced = motion
            self.log.followed.append(Followed(state.session, following.begin_s, following.moved.names, motion))

    def _start_controller(self) -> Commander:
        self._lives += 1
        number, restarted = CONTROLLER + self._lives - 1, self._lives > 1
        p = self._setup.controller_parameters()
        return commander(self._setup.kind.spec, p, self.server, number=number, restarted=restarted)

    def _end(self, why: str, now_s: float, *, says_so: bool = True) -> None:
        """The controller ends; one that can releases the plant."""
        controller, self._controller, self.ended = self._controller, None, why
        if says_so:
            self.log.end(now_s, why, self._faults)
        self.log.notes.append((now_s, why))
        release = controller.arming.release(self._last) if controller is not None and says_so else None
        if release is not None:
            self._send(release, now_s)

    def _send(self, command: JointCommand, now_s: float) -> None:
        self.log.commands.append((now_s, command))
        # the plant reads commands before its next step, so that this one arrives a step later at the earliest
        self._commands.send(command, now_s + self.plant.dt_s, now_s)

    def _is_killed(self, node: str, now_s: float) -> bool:
        killed = (fault for fault in self._faults if isinstance(fault, Killed) and fault.node == node)
        return any(fault.active_at(now_s) for fault in killed)
