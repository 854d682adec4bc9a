"""What runs against a server: control loops, and others that keep it busy. Each is a process of its own."""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import zmq

from dyn_service import Client
from dyn_service.errors import DynError
from dyn_service.service.protocol.keys import Keys
from dyn_service.support.realtime import Realtime, apply
from tests.conftest import URDF

ROBOT = "panda"
TOGETHER = multiprocessing.get_context("spawn")

OTHERS = ("batches", "simulate", "verify", "loading")
"""Kinds of work that keep the server busy while a control loop runs."""

ORDINARY = Realtime()


@dataclass
class Loop:
    """What a control loop saw. wrong: answers that were not those of this very state. us: its round trips."""

    requests: int
    answers: int
    wrong: int
    errors: dict[str, int]
    us: list[float]

    def quantiles(self) -> dict[str, float]:
        """p50, p99, p99.9 and the longest, in microseconds."""
        return dict(
            zip(("p50", "p99", "p99.9", "max"), np.percentile(self.us, [50, 99, 99.9, 100]).tolist(), strict=True)
        )


def control(
    endpoint: str, keys: Keys | None, rate_hz: float, duration_s: float, seed: int, realtime: Realtime, queue: Any
) -> None:
    """Asks for inverse dynamics at a rate; each answer is held against that of the robot in this process."""
    from dyn_service import Robot

    local = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
    # Several states in turn: a reply that belongs to the previous request would be wrong and not just late.
    states = np.random.default_rng(seed).uniform(-1.0, 1.0, (64, 3, local.nv))
    expected = [local.inverse_dynamics(*state).tobytes() for state in states]
    loop = Loop(0, 0, 0, {}, [])
    with Client(endpoint, timeout_s=5.0, keys=keys) as client:
        robot = client.robot(ROBOT)
        for state in states:
            robot.inverse_dynamics(*state)
        apply(realtime, print, polls=False)
        due_s = time.perf_counter()
        end = due_s + duration_s
        while (start_s := time.perf_counter()) < end:
            k = loop.requests % len(states)
            loop.requests += 1
            try:
                answer = robot.inverse_dynamics(*states[k])
            except DynError as error:
                loop.errors[error.code] = loop.errors.get(error.code, 0) + 1
            else:
                loop.us.append((time.perf_counter() - start_s) * 1e6)
                loop.answers += 1
                loop.wrong += answer.tobytes() != expected[k]
            # One period is caught up at most: a burst after a pause would measure the queue and not the server.
            due_s = max(due_s + 1.0 / rate_hz, time.perf_counter() - 1.0 / rate_hz)
            time.sleep(max(0.0, due_s - time.perf_counter()))
    queue.put(loop)


def echo_server(realtime: Realtime, endpoint: Any) -> None:
    """A bare ROUTER that sends back what comes: what the machine and the transport take by themselves."""
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger = 0  # before it binds
    apply(realtime, print, polls=False)
    endpoint.put(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    while True:
        router.send_multipart(router.recv_multipart(copy=False), copy=False)


def echo(endpoint: str, rate_hz: float, duration_s: float, realtime: Realtime, queue: Any) -> None:
    """Sends as many bytes as a control loop's request at a rate."""
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(endpoint)
    payload, us = bytes(330), []
    apply(realtime, print, polls=False)
    due_s = time.perf_counter()
    end = due_s + duration_s
    while (start_s := time.perf_counter()) < end:
        dealer.send(payload)
        dealer.recv()
        us.append((time.perf_counter() - start_s) * 1e6)
        # As in `control`: the echo is the floor only if it has the same pace.
        due_s = max(due_s + 1.0 / rate_hz, time.perf_counter() - 1.0 / rate_hz)
        time.sleep(max(0.0, due_s - time.perf_counter()))
    queue.put(Loop(len(us), len(us), 0, {}, us))


def scaled_urdf(urdf: str, name: str, factor: float) -> str:
    """The same robot under another name, with masses that are so many times as large."""
    heavier = re.sub(r'<mass value="([0-9.]+)"', lambda m: f'<mass value="{factor * float(m[1])}"', urdf)
    return re.sub(r'<robot name="[^"]*"', f'<robot name="{name}"', heavier, count=1)


def busy(endpoint: str, keys: Keys | None, kind: str, started: Event, stop: Event) -> None:
    """Keeps the server busy with one kind of work, until `stop` is set."""
    rng = (
        np.random.default_rng()
    )  # another one each time: robots that were loaded in an earlier run are compiled already
    with Client(endpoint, timeout_s=60.0, compile_wait_s=600.0, on_wait=lambda _: None, keys=keys) as client:
        robot = client.robot(ROBOT)
        text = (URDF / "ur5e.urdf").read_text()
        rest, count = np.zeros(robot.nv), 0
        while not stop.is_set():
            count += 1
            with suppress(DynError):
                if kind == "batches":
                    q = rng.uniform(-1.0, 1.0, (4096, robot.nv))
                    robot.inverse_dynamics(q, q, q)
                elif kind == "simulate":
                    robot.simulate(rest, rest, dt=1e-4, steps=2000)
                elif kind in ("late", "cancelled"):
                    q = np.full((20_000, robot.nv), 0.1)
                    begin_s = time.monotonic()
                    with suppress(DynError):  # the client also cancels the request
                        robot.with_timeout(0.005 if kind == "late" else 0.01).forward_dynamics(q, q, q)
                    time.sleep(max(0.0, begin_s + 0.1 - time.monotonic()))
                elif kind == "verify":
                    robot.verify(*rng.uniform(-1.0, 1.0, (3, 20, robot.nv)))
                else:  # a robot that nobody has seen: it has to be compiled
                    loaded = client.load_robot(scaled_urdf(text, f"robot{count}", rng.uniform(0.5, 2.0)))
                    loaded.mass_matrix(np.zeros(loaded.nv))
                    client.unload_robot(loaded.name)
            started.set()


@contextmanager
def busy_client(endpoint: str, kind: str | None, keys: Keys | None = None) -> Iterator[None]:
    """Within it, another client keeps the server busy."""
    if kind is None:
        yield
        return
    started, stop = TOGETHER.Event(), TOGETHER.Event()
    other = TOGETHER.Process(target=busy, args=(endpoint, keys, kind, started, stop), daemon=True)
    other.start()
    try:
        started.wait(60.0)
        yield
    finally:
        stop.set()
        other.join(60.0)
        other.kill()
        other.join()


def loops(
    endpoint: str,
    count: int,
    rate_hz: float,
    duration_s: float,
    realtime: Realtime = ORDINARY,
    keys: Keys | None = None,
) -> list[Loop]:
    """What so many control loops see, at once."""
    queue: Any = TOGETHER.Queue()
    processes = [
        TOGETHER.Process(target=control, args=(endpoint, keys, rate_hz, duration_s, seed, realtime, queue), daemon=True)
        for seed in range(count)
    ]
    for process in processes:
        process.start()
    seen = [queue.get(timeout=duration_s + 120.0) for _ in processes]
    for process in processes:
        process.join()
    return seen


@contextmanager
def echoing(realtime: Realtime = ORDINARY) -> Iterator[str]:
    """A bare echo's endpoint."""
    endpoint: Any = TOGETHER.Queue()
    server = TOGETHER.Process(target=echo_server, args=(realtime, endpoint), daemon=True)
    server.start()
    try:
        yield endpoint.get(timeout=60.0)
    finally:
        server.kill()
        server.join()


def echoed(endpoint: str, rate_hz: float, duration_s: float, realtime: Realtime = ORDINARY) -> Loop:
    """What a bare echo takes."""
    queue: Any = TOGETHER.Queue()
    process = TOGETHER.Process(target=echo, args=(endpoint, rate_hz, duration_s, realtime, queue), daemon=True)
    process.start()
    seen: Loop = queue.get(timeout=duration_s + 120.0)
    process.join()
    return seen
