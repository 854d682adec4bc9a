"""The test bench, where a plant and its controller run: one interface in lockstep, in real time and on hardware."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dyn_service.api.queries import Wrench
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.graph.launch.runtime import Runtime
from dyn_service.graph.nodes.controllers.controller_kind import only_robot
from dyn_service.hil.checks import Check, Notes
from dyn_service.hil.faults import Fault, Killed, PlantFault, check_faults
from dyn_service.hil.lockstep import Lockstep
from dyn_service.hil.setup import ResolvedSetup, Setup, resolve
from dyn_service.hil.signals import MessageLog, Record
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.service.server.app import open_robots
from dyn_service.support.shipped import find_robot
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.hil.real_time import RealTime

Bench: TypeAlias = "Lockstep | RealTime"
"""A run in progress. It advances only when a test calls `run_until`."""
PARTS = ("launch", "arguments", "plant", "controller")
"""Keys of the marker `hil`."""


class RobotCache:
    """The robots of a session, each read and compiled once for all its tests."""

    def __init__(self) -> None:
        self._robots: dict[Any, list[Robot]] = {}

    def of(self, setup: ResolvedSetup) -> tuple[Robot, Robot]:
        """Returns the robot that the controller queries, and the one in the plant's file."""
        p, settings = setup.plant_parameters(), setup.server_settings()
        file = find_robot(p.robot)

        def plants() -> list[Robot]:
            return [Robot.from_file(file, root=p.root, joints=p.joints or None, mimic=p.mimic, loops=p.loops)]

        [robot] = self._cached(("plant", _stamp(file, p.joints), p.root, p.mimic, p.loops), plants)
        if settings is None:
            return robot, robot
        files = [find_robot(path) for path in settings.robots]
        # with the time of the file, since a test may write a robot's file
        key = ("server", _stamp(*files, *settings.joints), settings.root, settings.mimic, settings.loops)
        models = self._cached(key, lambda: open_robots(settings))
        by_name = {model.name: model for model in models}
        robot_name = setup.controller_parameters().robot or only_robot(list(by_name))
        if robot_name not in by_name:
            raise NotFoundError(f"the server has no robot {robot_name!r}; it has {', '.join(by_name)}")
        model = by_name[robot_name]
        return (robot, robot) if model.fingerprint == robot.fingerprint else (model, robot)

    def _cached(self, key: Any, make: Callable[[], list[Robot]]) -> list[Robot]:
        if key not in self._robots:
            self._robots[key] = make()
        return self._robots[key]


@dataclass(frozen=True)
class Run:
    """A finished run. record: its signals. check: assertions on them. ended: why the run or its controller
    ended by itself. log: its messages. mode, seed, faults: how it was run.
    """

    record: Record
    check: Check
    ended: str
    log: MessageLog
    mode: str
    seed: int
    faults: tuple[Fault, ...]


class Clock:
    """The plant's time."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def now_s(self) -> float:
        """The plant's time, s."""
        return self._bench.now_s

    def run(self, seconds: float) -> None:
        """Runs for some seconds."""
        self.run_until(self._bench.now_s + seconds)

    def run_until(self, t: float) -> None:
        """Runs until the plant's time is t s."""
        if not self._bench.now_s < t < math.inf:
            raise InvalidArgumentError(f"clock: expected a time after now, {self._bench.now_s:g} s, found {t:g} s")
        self._bench.run_until(t)


class PlantHandle:
    """The plant of a test's own run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._notes = Notes()

    @property
    def state(self) -> PlantState:
        """The newest state."""
        return self._bench.state

    @property
    def record(self) -> Record:
        """The record so far."""
        return self._bench.record()

    @property
    def check(self) -> Check:
        """Assertions on the record so far."""
        return Check(self._bench.record(), self._notes)

    def run(self, mode: str, seed: int) -> Run:
        """The run so far, with all that was asserted on it."""
        return Run(self._bench.record(), self.check, self._bench.ended, self._bench.log, mode, seed, ())

    def inject(self, fault: Fault) -> None:
        """Adds a fault between the plant and its controller, active from now on.

        Raises:
            InvalidArgumentError: It does not fit the robot, can act from the start only, or has already ended.
        """
        check_faults([fault])
        if isinstance(fault, PlantFault):
            name = type(fault).__name__
            raise InvalidArgumentError(f"{name} is a parameter of the plant from the start of a run: pass it to `run`")
        now_s, end_s = self._bench.now_s, fault.until_s
        if end_s <= now_s:
            name = type(fault).__name__
            raise InvalidArgumentError(f"{name} must end later than now, {now_s:g} s, found {end_s:g} s")
        self._bench.inject(fault)

    def push(self, link: str, force: Sequence[float], duration_s: float) -> None:
        """Applies a force (3,), N, world axes, at a link's origin for some seconds; in lockstep only.

        Raises:
            UnimplementedError: The plant runs in another process: call its service `push`.
        """
        if not isinstance(self._bench, Lockstep):
            raise UnimplementedError("push: the plant runs in another process; call its service, /plant/push")
        self._bench.push(Wrench(link, force=force), duration_s)


class ControllerHandle:
    """The controller of a test's own run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def ended(self) -> str:
        """Why it ended by itself; empty while it runs."""
        return self._bench.ended

    def kill(self) -> None:
        """Kills the process."""
        self._bench.inject(Killed(from_s=self._bench.now_s))


def open_bench(
    mode: str,
    setup: Setup,
    cache: RobotCache,
    faults: Sequence[Fault],
    seed: int,
    endpoints: Sequence[str] = (),
    wall_limit_s: float | None = None,
) -> Bench:
    """Returns an open bench.

    mode: `lockstep`, `real_time` or `hardware`. endpoints: of a driver's topics, `NAME=ENDPOINT`, for hardware.
    wall_limit_s: wall time in which a run must end; by default 30 s, and ten times the plant's time in addition.

    Raises:
        InvalidArgumentError: The mode, the setup, a fault or an endpoint is invalid, or they do not fit together.
        DynError: The robot cannot be loaded, or a process does not start.
    """
    check_faults(faults)
    plant_topics = _endpoints(mode, endpoints)
    plant_faults = [fault for fault in faults if isinstance(fault, PlantFault)]
    if mode == "lockstep":
        # For the names of sockets that are never opened.
        with tempfile.TemporaryDirectory() as folder:
            resolved_setup = resolve(setup, Path(folder)).with_faults(plant_faults)
            model, robot = cache.of(resolved_setup)
            bench: Bench = Lockstep(resolved_setup, model, robot, faults, seed)
            bench.wall_limit_s = wall_limit_s
            return bench
    from dyn_service.hil.real_time import CONTROLLER, RealTime

    if plant_faults and mode == "hardware":
        name = type(plant_faults[0]).__name__
        raise InvalidArgumentError(f"{name}: only a simulated plant can have it, found --hil=hardware")
    runtime = Runtime()
    try:
        resolved_setup = resolve(setup, runtime.folder).with_overrides({}, CONTROLLER).with_faults(plant_faults)
        _check_mode(mode, resolved_setup, plant_topics)
        bench = RealTime(resolved_setup, cache.of(resolved_setup)[1], runtime, faults, seed, plant_topics)
    # also Ctrl-C, which would leave processes and sockets behind
    except BaseException:
        runtime.close()
        raise
    bench.wall_limit_s = wall_limit_s
    return bench


def _endpoints(mode: str, arguments: Sequence[str]) -> dict[str, str]:
    """The plant's topics where they are elsewhere."""
    topics = dict(argument.partition("=")[::2] for argument in arguments)
    is_valid = {*topics} == {"plant_state", "joint_commands"} and all("://" in x for x in topics.values())
    if topics and (mode != "hardware" or not is_valid):
        form = "with --hil=hardware, plant_state=tcp://.. and joint_commands=tcp://.."
        raise InvalidArgumentError(f"--hil-endpoint: found {', '.join(arguments)}; expected, {form}")
    return topics


def _check_mode(mode: str, setup: ResolvedSetup, endpoints: Mapping[str, str]) -> None:
    p = setup.plant_parameters()
    # A plant in lockstep would wait for messages that a fault delays, which then are not late.
    if mode == "real_time" and p.clock == "lockstep":
        raise InvalidArgumentError(
            "--hil=real_time needs a plant paced by wall time, found clock: lockstep; pass the launch file "
            'arguments={"clock": "real_time"}, or the plant plant={"clock": "real_time"}'
        )
    if mode == "hardware" and not endpoints and not p.driver:
        raise InvalidArgumentError(
            "--hil=hardware needs a robot: a plant with a driver in the launch file, or --hil-endpoint "
            "plant_state=tcp://.. and --hil-endpoint joint_commands=tcp://.."
        )


def robot_of(setup: Setup, cache: RobotCache) -> Robot:
    """The robot of the plant's file."""
    with tempfile.TemporaryDirectory() as folder:
        return cache.of(resolve(setup, Path(folder)))[1]


def run_for(bench: Bench, seconds: float, mode: str, seed: int, faults: Sequence[Fault]) -> Run:
    """Runs a bench for some seconds of the plant's time, closes it, and returns the run.

    Raises:
        InvalidArgumentError: A fault begins after the run.
        DynError: The run failed, or did not end within the wall limit.
    """
    try:
        check_faults(faults, seconds)
        bench.run_until(bench.now_s + seconds)
    finally:
        bench.close()
    record = bench.record()
    return Run(record, Check(record), bench.ended, bench.log, mode, seed, tuple(faults))


def merged(base: Setup, overrides: Mapping[str, Any]) -> Setup:
    """Returns the setup with a test's marker merged in: `launch` replaces the launch file, the others are merged."""
    parameters = dict(overrides)
    for name, value in parameters.items():
        if name in PARTS and name != "launch" and not isinstance(value, Mapping):
            raise InvalidArgumentError(f"marker hil: {name} is {value!r}: expected a map of names and values")
        if name not in PARTS:
            hint = did_you_mean(name, PARTS)
            raise InvalidArgumentError(f"marker hil: unknown part {name!r}: expected {', '.join(PARTS)}{hint}")
    return Setup(
        str(parameters.pop("launch", base.launch)),
        {**base.arguments, **parameters.pop("arguments", {})},
        {**base.plant, **parameters.pop("plant", {})},
        {**base.controller, **parameters.pop("controller", {})},
        base.folder,
    )


def _stamp(*paths: Path | str) -> tuple[tuple[str, float], ...]:
    """Paths and modification times of the files: a modified file is read again."""
    files = [Path(path).resolve() for path in paths if path]
    return tuple((str(file), file.stat().st_mtime if file.exists() else 0.0) for file in files)
