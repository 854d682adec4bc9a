"""Shared by all tests: where our robots are, and a kernel cache that outlives a test but not the test run's user."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.testing
import zmq
from hypothesis import HealthCheck, settings

from dyn_service import Robot, Server
from dyn_service.graph.middleware.node import Node
from dyn_service.support.parameters import NoParameters
from tests import comparing

ROOT = Path(__file__).parent.parent
URDF = ROOT / "urdf"
ROBOTS = sorted(path for path in URDF.glob("*.urdf") if "<constraint " not in path.read_text("utf-8"))
"""Our robots without closed loops."""
LOOPED = sorted({*URDF.glob("*.urdf")} - {*ROBOTS})
"""Our robots with closed loops."""

# Write bytecode to a temporary folder, so that child processes do not recompile.
_BYTECODE = None
if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
    _BYTECODE = tempfile.TemporaryDirectory(prefix="dyn_service-bytecode-")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = _BYTECODE.name

# Typer builds all commands for each call, 80 ms; here they are built once.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)

# The same examples each time: a red run is red again, for anybody. `--hypothesis-profile=default` draws others.
# How long an example takes says nothing: the machine may be busy.
settings.register_profile(
    "the same each time", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("the same each time")


def pytest_collection(session: pytest.Session) -> None:
    """Workers that collect all tests begin at different files, so that each file is compiled by one of them alone."""
    gc.disable()  # collected tests stay: collections took a quarter of the time
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[begin:] + files[:begin]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest finds it again, and says so
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests start, kill and wait for processes, and wide ones compile many robots: these get ten minutes.

    Raises:
        pytest.UsageError: A test of the default suite asks for more than its minute.
    """
    limit_s = float(config.getini("timeout"))
    for item in items:
        timeout, unhurried = item.get_closest_marker("timeout"), any(map(item.get_closest_marker, ("slow", "wide")))
        if timeout is None and unhurried:
            item.add_marker(pytest.mark.timeout(600))
        elif timeout is not None and not unhurried and float(timeout.args[0]) > limit_s:
            raise pytest.UsageError(
                f"{item.nodeid}: its timeout is {timeout.args[0]} s, the default suite allows {limit_s:g} s; "
                "mark it slow or wide, or let it do less"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds robot, state and what `verify` finds there to failures of comparisons: see tests/comparing.py."""
    report = yield
    is_shown = item.config.option.tbstyle != "no"  # mutants are tried without tracebacks, and `verify` takes time
    if report.failed and is_shown and call.excinfo is not None and item.path.parent.name in comparing.EXPLAINED:
        frames = [entry.frame.f_locals for entry in reversed(call.excinfo.traceback)]
        text = comparing.explanation(frames)
        if text is not None:
            report.sections.append(("robot and state", text))
    return report


def pytest_collection_finish() -> None:
    """Collected tests stay to the end, so the collector does not walk through them. It runs less often than by Python's
    default of 700: tracing a kernel allocates millions of objects (13 tests of overlays took a fifth less CPU time).
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure() -> None:
    if _BYTECODE is not None:
        _BYTECODE.cleanup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """What `-n auto` is: one more than processors, for a fifth of the time tests wait."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Workers take long pieces of the list, and later from each other: robots that a module shares are made once."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def pendulum() -> Robot:
    return Robot.from_urdf(URDF / "pendulum.urdf")


@pytest.fixture(scope="session")
def arm() -> Robot:
    """The double pendulum."""
    return Robot.from_urdf(URDF / "double_pendulum.urdf")


@pytest.fixture(scope="session")
def panda() -> Robot:
    """The Panda whose fingers do not mimic each other, so that every row of the table has an answer."""
    return Robot.from_urdf(URDF / "panda.urdf", mimic=False)


@pytest.fixture
def tcp_server(panda: Robot, pendulum: Robot) -> Iterator[Server]:
    with Server([panda, pendulum], endpoints=["tcp://127.0.0.1:0"]) as server:
        yield server


@pytest.fixture(scope="session")
def panda_path() -> Path:
    """The Panda with its fingers: 9 joints that move, of which one follows another."""
    return URDF / "panda.urdf"


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path: that of a Unix socket has at most 104 bytes, and `tmp_path` may be longer."""
    with tempfile.TemporaryDirectory(prefix="dyn-") as path:
        yield Path(path)


@pytest.fixture
def ipc_endpoint(socket_folder: Path) -> str:
    """An endpoint that no other test uses."""
    return f"ipc://{socket_folder}/s"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the nodes of one launch share."""
    run_folder = tmp_path / "run"
    run_folder.mkdir(mode=0o700)
    return run_folder


@pytest.fixture
def node(folder: Path) -> Iterator[Node[NoParameters]]:
    """An active node in this process, for those who look on."""
    context = zmq.Context()
    plant_node = Node.alone("/arm/plant", NoParameters(), folder, context)
    plant_node.state = "active"
    yield plant_node
    plant_node.close()
    context.term()


@pytest.fixture(scope="session")
def cart() -> Robot:
    """The pendulum on a cart: a joint that slides and one that turns. Tests of the whole table share its kernels."""
    return Robot.from_urdf(URDF / "cart_pendulum.urdf")
