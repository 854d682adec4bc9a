"""Shared by all tests: where our robots are, and a kernel cache that outlives a test but not the test run's user."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
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

ROOT = Path(__file__).parent.parent
URDF = ROOT / "urdf"
ROBOTS = sorted(URDF.glob("*.urdf"))

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
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[begin:] + files[:begin]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest finds it again, and says so
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in wall time start, kill and wait for many processes, and wide ones compile many robots."""
    for item in items:
        if item.get_closest_marker("timeout") is None and any(map(item.get_closest_marker, ("slow", "wide"))):
            item.add_marker(pytest.mark.timeout(600))


def pytest_collection_finish() -> None:
    """Collected tests stay to the end, so the collector does not walk through them. It runs less often than by Python's
    default of 700: tracing a kernel allocates millions of objects (13 tests of overlays took a fifth less CPU time).
    """
    gc.collect()
    gc.freeze()
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
def folder(tmp_path: Path) -> Path:
    """What the nodes of one launch share."""
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def node(folder: Path) -> Iterator[Node[NoParameters]]:
    """An active node in this process, for those who look on."""
    context = zmq.Context()
    made = Node.alone("/arm/plant", NoParameters(), folder, context)
    made.state = "active"
    yield made
    made.close()
    context.term()


@pytest.fixture(scope="session")
def cart() -> Robot:
    """The pendulum on a cart: a joint that slides and one that turns. Tests of the whole table share its kernels."""
    return Robot.from_urdf(URDF / "cart_pendulum.urdf")
