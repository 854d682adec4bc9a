"""Requests that a server refuses, and calls that a client does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgpack

from dyn_service import Client, Robot, Server, connect
from dyn_service.errors import from_wire
from dyn_service.model.order import Order
from dyn_service.service.protocol.keys import make_keys, read_keys, write_keys
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.settings import ServerSettings
from tests.conftest import URDF
from tests.golden.collecting import Case, of_error, raised, rows
from tests.service.client import test_names
from tests.service.server import bad_inputs, test_bounds, test_security

NO_SERVER = "tcp://127.0.0.1:9"


def cases(folder: Path) -> Iterator[Case]:
    yield from invalid()
    yield from too_expensive()
    yield from by_clients(folder)
    yield from by_settings()
    yield from keys(folder)


def answered(service: Service, name: str, payload: bytes) -> Case:
    """Returns the error of a reply, as a client raises it."""
    reply = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
    assert not reply["ok"], name
    return of_error(name, from_wire(reply["error"]))


def invalid() -> Iterator[Case]:
    """Yields one of each kind of the committed bad inputs."""
    service = bad_inputs.served()
    seen = set()
    for one in bad_inputs.committed():
        kind = re.sub(r"\d+|, (first|last)$", "", one.name.partition(": ")[2] or one.name)
        if kind not in seen:
            seen.add(kind)
            yield answered(service, f"a request: {one.name}", one.payload)


def too_expensive() -> Iterator[Case]:
    scara, panda = (Robot.from_urdf(URDF / f"{name}.urdf") for name in ("scara", "panda"))
    service = Service([scara, panda])
    for name, (message, _) in test_bounds.SEEN.items():
        yield answered(service, f"an expensive request: {name}", msgpack.packb(message))
    for name, (limit, message, _) in test_bounds.OVER.items():
        limited = Service([scara], limits=RequestLimits(**{name: limit}), allow_load=True)
        yield answered(limited, f"a request over the limit {name}", msgpack.packb(message))


def by_clients(folder: Path) -> Iterator[Case]:
    pendulum, scara = (Robot.from_urdf(URDF / f"{name}.urdf", root=root) for name, root in ROOTS)
    with Server([pendulum], endpoints=[f"ipc://{folder}/s"], allow_load=False) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, timeout_s=60.0) as client:
            robot = client.robot("pendulum")
            yield raised("a client: another robot", client.robot, "pendulm")
            yield raised("a client: may not load", client.load_robot, URDF / "scara.urdf")
            yield raised("a client: may not unload", client.unload_robot, "pendulum")
            yield raised("a client: no file", client.load_robot, "nowhere.urdf")
            yield raised("a client: two numbers for one joint", robot.gravity_forces, [0.0, 0.0])
            yield raised("a client: an option", robot.gravity_forces, [0.0], passive="yes")
        yield raised("a client: closed", client.health)
        yield raised("connect: no robot named", connect, f"{endpoint}/pendulm", timeout_s=60.0)
    with Client(NO_SERVER, timeout_s=0.05) as client:
        yield raised("a client: no server", client.health)
    yield raised("connect: no server", connect, f"{NO_SERVER}/panda", timeout_s=0.05)
    yield raised("connect: a scheme", connect, "http://127.0.0.1/panda")
    yield raised("connect: no file", connect, folder / "nowhere.urdf")
    for timeout_s in (0, float("nan"), 1e300, "1"):
        yield raised(f"a client: timeout_s {timeout_s!r}", Client, NO_SERVER, timeout_s=timeout_s)
    for address in ("", "127.0.0.1:5755", "http://127.0.0.1", None):
        yield raised(f"a client: endpoint {address!r}", Client, address)
    for name, (wrong, *_) in test_names.WRONG.items():
        yield raised(f"names of joints: {name}", Order, scara.configuration, wrong(list(scara.joint_names)))


ROOTS: tuple[tuple[str, Any], ...] = (("pendulum", "fixed"), ("scara", "floating"))


def by_settings() -> Iterator[Case]:
    given: tuple[dict[str, Any], ...] = (
        {"endpoints": []},
        {"endpoints": ["nowhere"]},
        {"endpoints": ["tcp://127.0.0.1:70000"]},
        {"workers": -1},
        {"keys": "none"},
        {"prepare": ["verfy"]},
    )
    for settings in given:
        yield raised(f"a server: {settings}", ServerSettings, **settings)
    for limits in ({"max_work_s": float("nan")}, {"max_steps": 0}, {"max_nesting": 100_000}):
        yield raised(f"limits: {limits}", RequestLimits, **limits)


def keys(folder: Path) -> Iterator[Case]:
    file = folder / "a.key"
    write_keys(file, make_keys("a"))
    yield raised("a key file: written twice", write_keys, file, make_keys("a"))
    file.chmod(0o644)
    yield raised("a key file: open to others", read_keys, file)
    file.chmod(0o600)
    file.write_text("name")
    yield raised("a key file: no keys", read_keys, file)
    yield raised("a key file: none", read_keys, folder / "none.key")
    for number, (line, says) in enumerate(rows(test_security.test_an_invalid_line_invalidates_the_list)):
        allowed = KeyFolder(folder / f"keys{number}")
        known = test_security.new(allowed, "good")
        with allowed.list_file.open("a") as writing:
            writing.write(line.format(a=make_keys("new").public, b=known.public) + "\n")
        if says != "month":  # Python's own words
            yield raised(f"a list of keys: {line}", allowed.entries)
