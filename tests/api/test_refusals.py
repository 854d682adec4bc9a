"""Class, path and values of errors that no other table of tests checks in full; their wording is free.

A table beside the tests of a module is the better place for a new case: it sees the module's other answers too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Client, Robot, Server, connect
from dyn_service.control.law import per_joint
from dyn_service.control.laws.collision_stop import thresholds
from dyn_service.control.plant.simulated import Actuators
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, PlantParameters, make_plant
from dyn_service.parsing.files import read_file
from dyn_service.service.protocol.keys import make_keys, read_keys, write_keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import KeyFolder, Role
from dyn_service.service.server.settings import ServerSettings
from tests.conftest import URDF
from tests.phrases import in_our_words, unnamed

NO_SERVER = "tcp://127.0.0.1:9"
Case = tuple[Callable[[], Any], type[DynError], str | None, tuple[Any, ...]]


def plant(**parameters: Any) -> Callable[[], Any]:
    robot = URDF / ("double_pendulum.urdf" if "actuators" in parameters else "pendulum.urdf")
    return lambda: make_plant(Robot.from_urdf(robot), PlantParameters(robot="-", **parameters), session=1)


def motors(**numbers: Any) -> Callable[[], Any]:
    valid: dict[str, Any] = {"dt_s": 0.001, "effort_limit": np.full(2, 3.0), "delay_steps": 1, "lag_s": np.zeros(2)}
    return lambda: Actuators(**(valid | numbers))


CALLS: dict[str, Case] = {
    "endpoint is empty": (lambda: Client(""), InvalidArgumentError, "endpoint", ("''",)),
    "endpoint without scheme": (lambda: Client("h:1"), InvalidArgumentError, "endpoint", ("'h:1'",)),
    "endpoint of HTTP": (lambda: Client("http://h"), InvalidArgumentError, "endpoint", ("'http://h'",)),
    "no endpoint": (lambda: Client(None), InvalidArgumentError, "endpoint", ("None",)),  # type: ignore[arg-type]
    "no time": (lambda: Client(NO_SERVER, timeout_s=0), InvalidArgumentError, "timeout_s", ("1e+06", 0)),
    "time NaN": (lambda: Client(NO_SERVER, timeout_s=np.nan), InvalidArgumentError, "timeout_s", ("nan",)),
    "too much time": (lambda: Client(NO_SERVER, timeout_s=1e300), InvalidArgumentError, "timeout_s", ("1e+300",)),
    "target of HTTP": (
        lambda: connect("http://h/panda"),
        InvalidArgumentError,
        "target",
        ("tcp://", "'http://h/panda'"),
    ),
    "no server": (lambda: connect(f"{NO_SERVER}/panda", timeout_s=0.05), UnavailableError, None, (NO_SERVER, "0.05 s")),
    "no endpoints": (lambda: ServerSettings(endpoints=[]), InvalidArgumentError, "endpoints", ("none",)),
    "endpoints": (lambda: ServerSettings(endpoints=["here"]), InvalidArgumentError, "endpoints", ("'here'",)),
    "port": (lambda: ServerSettings(endpoints=["tcp://h:70000"]), InvalidArgumentError, "endpoints", (65535,)),
    "workers": (lambda: ServerSettings(workers=-1), InvalidArgumentError, "workers", (0, 64, -1)),
    "keys": (lambda: ServerSettings(keys="none"), InvalidArgumentError, "keys", ("remote", "required", "'none'")),
    "prepare": (lambda: ServerSettings(prepare=["verfy"]), InvalidArgumentError, "prepare", ("'verfy'", "'verify'")),
    "limit NaN": (lambda: RequestLimits(max_work_s=np.nan), InvalidArgumentError, None, ("max_work_s", "nan")),
    "limit 0": (lambda: RequestLimits(max_steps=0), InvalidArgumentError, None, ("max_steps", 0)),
    "limit of nesting": (lambda: RequestLimits(max_nesting=99), InvalidArgumentError, None, ("max_nesting", 99, 64)),
    "stiffnesses": (lambda: per_joint("stiffness", [1, 2, 3], 2), InvalidArgumentError, "stiffness", (2, 3)),
    "stiffness": (lambda: per_joint("stiffness", [1, -2], 2), InvalidArgumentError, "stiffness", (-2,)),
    "threshold": (
        lambda: thresholds([], 0.1, np.array([10.0, 0.0]), ("a", "b")),
        InvalidArgumentError,
        "threshold",
        (2, "joint 'b'", "threshold_share", 0.1),
    ),
    "thresholds": (
        lambda: thresholds([1.0, 0.0], 0.1, np.array([10.0, 10.0]), ("a", "b")),
        InvalidArgumentError,
        None,
        ("threshold", 2, "[1.0, 0.0]"),
    ),
    "brake_s": (plant(brake_s=0.0), InvalidArgumentError, "brake_s", (0,)),
    "missed_cycles": (plant(missed_cycles=21), InvalidArgumentError, "missed_cycles", (20, 21)),
    "initial_position": (plant(initial_position=[np.nan]), InvalidArgumentError, "initial_position[0]", ("nan",)),
    "substeps": (plant(substeps=1001), InvalidArgumentError, "substeps", (1000, 1001)),
    "control_rate_hz": (plant(control_rate_hz=2e3), InvalidArgumentError, "control_rate_hz", (2000, "rate_hz", 1000)),
    "rate_hz": (plant(rate_hz=0.5), InvalidArgumentError, "rate_hz", (0.5, "1 Hz", 20)),
    "damping_s": (plant(safe_stop="damping", damping_s=0.001), InvalidArgumentError, None, ("damping_s", 0.001, 0.002)),
    "actuators.lag_s": (
        plant(actuators=ActuatorParameters(lag_s=[0.0, np.nan])),
        InvalidArgumentError,
        "actuators.lag_s[1]",
        ("nan",),
    ),
    "actuators.effort_limit": (
        plant(actuators=ActuatorParameters(effort_limit=[1.0])),
        InvalidArgumentError,
        "actuators.effort_limit",
        (1, 2),
    ),
    "delay_steps": (motors(delay_steps=10001), InvalidArgumentError, "actuators.delay_steps", (10001,)),
    "dt_s": (motors(dt_s=0.0), InvalidArgumentError, "dt_s", (0,)),
    "lag_s": (motors(lag_s=0.1), InvalidArgumentError, "actuators.lag_s", ("actuators.lag_s",)),
}


def assert_refused(case: Case) -> None:
    call, kind, path, values = case
    with pytest.raises(DynError) as error:
        call()
    assert type(error.value) is kind
    assert getattr(error.value, "path", None) == path
    assert unnamed(error.value, *values) == []
    assert in_our_words(str(error.value))


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    assert_refused(CALLS[name])


def test_files(tmp_path: Path) -> None:
    file, other = tmp_path / "a.key", tmp_path / "no.key"
    write_keys(file, make_keys("a"))
    missing = tmp_path / "none.urdf"
    assert_refused((lambda: write_keys(file, make_keys("a")), FailedPreconditionError, "keys", (file,)))
    assert_refused((lambda: read_keys(other), NotFoundError, "keys", (other,)))
    file.chmod(0o644)
    assert_refused((lambda: read_keys(file), PermissionDeniedError, "keys", (file, "0644", "chmod 600")))
    file.chmod(0o600)
    file.write_text("name")
    assert_refused((lambda: read_keys(file), InvalidArgumentError, "keys", (file, "dyn keys new")))
    assert_refused((lambda: read_file(missing), NotFoundError, None, (missing,)))
    assert_refused((lambda: read_file(tmp_path), InvalidArgumentError, None, (tmp_path,)))
    assert_refused((lambda: connect(missing), NotFoundError, None, (missing,)))
    assert_refused((lambda: Robot.from_file("pnda"), NotFoundError, None, ("pnda",)))
    folder = KeyFolder(tmp_path / "keys")
    folder.make("good", Role.QUERY)
    with folder.list_file.open("a") as list_file:
        list_file.write("query short new 2026-01-01\n")
    assert_refused((folder.entries, InvalidArgumentError, "keys", (folder.list_file, "'short'")))


def test_requests_of_a_client(tmp_path: Path) -> None:
    pendulum = Robot.from_urdf(URDF / "pendulum.urdf")
    with Server([pendulum], endpoints=[f"ipc://{tmp_path}/s"], allow_load=False) as server:
        (endpoint,) = server.endpoints
        with Client(endpoint, timeout_s=60.0) as client:
            robot = client.robot("pendulum")
            cases: list[Case] = [
                (lambda: client.robot("pendulm"), NotFoundError, "robot", ("'pendulm'", "'pendulum'")),
                (lambda: connect(f"{endpoint}/pendulm"), NotFoundError, "robot", ("'pendulm'", "'pendulum'")),
                (lambda: client.load_robot(URDF / "scara.urdf"), PermissionDeniedError, "query", ("load",)),
                (lambda: client.unload_robot("pendulum"), PermissionDeniedError, "query", ("unload",)),
                (lambda: client.load_robot("nowhere.urdf"), NotFoundError, "inputs.urdf", ("'nowhere.urdf'",)),
                (lambda: robot.gravity_forces([0, 0]), InvalidArgumentError, "inputs.q", ("(2,)", "(..., 1)")),
                (
                    lambda: robot.gravity_forces([0], passive="yes"),  # type: ignore[arg-type]
                    InvalidArgumentError,
                    "options.passive",
                    ("passive", "'yes'"),
                ),
            ]
            for case in cases:
                assert_refused(case)
        assert_refused((client.health, FailedPreconditionError, None, ("closed",)))
