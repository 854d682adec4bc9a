"""The fixtures: `run`, and a run that a test steers itself: `clock`, `plant`, `controller`, `server`, `robot`.

`run(4.0, faults=[..])` is a whole run of its own, from the start, as often as it is called. The others are of one run
that begins with the test and advances with `clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dyn_service.api.queries import RobotQueries
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.hil.bench import (
    Bench,
    Clock,
    ControllerHandle,
    PlantHandle,
    RobotCache,
    Run,
    merged,
    open_bench,
    robot_of,
    run_for,
)
from dyn_service.hil.faults import Fault
from dyn_service.hil.reporting import Reporting
from dyn_service.hil.setup import Setup

_REPORTING = pytest.StashKey[Reporting]()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the recorder of verdicts for the reports."""
    folder = None if (option := config.getoption("hil_report")) is None else Path(option)
    reporting = config.stash[_REPORTING] = Reporting(folder, is_worker=hasattr(config, "workerinput"))
    config.pluginmanager.register(reporting, "dyn_service.hil.reporting")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows a rejected setup as its error message, without the traceback inside this package."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, DynError):
        places = [entry for entry in call.excinfo.traceback if Path(entry.path) == item.path]
        test_lines = [f"{item.path.name}:{entry.lineno + 1}: {str(entry.statement).strip()}" for entry in places[-1:]]
        report.longrepr = "\n".join([f"{type(call.excinfo.value).__name__}: {call.excinfo.value}", *test_lines])
    return report


@pytest.fixture(scope="session")
def hil_robot_cache() -> RobotCache:
    """The robots of the session, each read once."""
    return RobotCache()


@pytest.fixture
def hil_setup(request: pytest.FixtureRequest) -> Setup:
    """The setup of a test: the project's launch file, merged with the test's marker `hil`."""
    config = request.config
    config.stash[_REPORTING].expect(request.node)
    launch_option = config.getoption("hil_launch")
    launch, folder = launch_option or config.getini("hil_launch"), Path.cwd() if launch_option else config.rootpath
    if not launch_option and config.inipath is not None:
        folder = config.inipath.parent
    setup = Setup(launch, folder=folder)
    # From the outermost marker, so that the nearest has the last word.
    for mark in reversed(list(request.node.iter_markers("hil"))):
        if mark.args:
            name = repr(mark.args[0])
            raise InvalidArgumentError(f"marker hil: found {name}: expected names, such as hil(launch={name})")
        setup = merged(setup, mark.kwargs)
    if not setup.launch:
        form = "expected hil_launch in the pytest section, --hil-launch, or @pytest.mark.hil(launch=..)"
        raise InvalidArgumentError(f"{request.node.name} has no launch file: {form}")
    return setup


@pytest.fixture
def hil_benches(request: pytest.FixtureRequest, hil_setup: Setup, hil_robot_cache: RobotCache) -> Callable[..., Bench]:
    """Returns (faults, seed, plant) -> a bench of the mode given by `--hil`."""
    config = request.config
    mode = config.getoption("hil")

    def make(faults: Sequence[Fault] = (), seed: int = 0, plant: Mapping[str, Any] | None = None) -> Bench:
        endpoints, limit_s = config.getoption("hil_endpoint"), config.getoption("hil_wall_limit")
        setup = merged(hil_setup, {"plant": plant or {}})
        return open_bench(mode, setup, hil_robot_cache, faults, seed, endpoints, limit_s)

    return make


@pytest.fixture
def run(request: pytest.FixtureRequest, hil_benches: Callable[..., Bench]) -> Callable[..., Run]:
    """(seconds, faults=(), seed=None, plant=None) -> a run of its own, of which `check` has the assertions.

    plant: parameters of the plant over those of the launch file and the marker.
    """
    config = request.config
    reporting = config.stash[_REPORTING]

    def go(
        seconds: float, faults: Sequence[Fault] = (), seed: int | None = None, plant: Mapping[str, Any] | None = None
    ) -> Run:
        run_seed = config.getoption("hil_seed") if seed is None else seed
        done = run_for(hil_benches(faults, run_seed, plant), seconds, config.getoption("hil"), run_seed, faults)
        reporting.take(request.node, lambda: done)
        return done

    return go


@pytest.fixture
def hil_bench(request: pytest.FixtureRequest, hil_benches: Callable[..., Bench]) -> Iterator[Bench]:
    """The test's own run, from its start."""
    bench = hil_benches((), request.config.getoption("hil_seed"))
    yield bench
    bench.close()


@pytest.fixture
def clock(hil_bench: Bench, plant: PlantHandle) -> Clock:
    """The clock of the test's own run; its methods advance the run."""
    return Clock(hil_bench)  # of `plant`, whose run is reported


@pytest.fixture
def plant(request: pytest.FixtureRequest, hil_bench: Bench) -> PlantHandle:
    """The plant of the test's own run."""
    handle, config = PlantHandle(hil_bench), request.config
    mode, seed = config.getoption("hil"), config.getoption("hil_seed")
    config.stash[_REPORTING].take(request.node, lambda: handle.run(mode, seed))
    return handle


@pytest.fixture
def controller(hil_bench: Bench) -> ControllerHandle:
    """The controller of the test's own run."""
    return ControllerHandle(hil_bench)


@pytest.fixture
def server(hil_bench: Bench) -> RobotQueries:
    """The robot that the controller queries: in lockstep the one in this process, else the server's."""
    return hil_bench.server


@pytest.fixture
def robot(hil_setup: Setup, hil_robot_cache: RobotCache) -> Robot:
    """The robot of the plant's file, in this process."""
    return robot_of(hil_setup, hil_robot_cache)
