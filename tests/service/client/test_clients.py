"""Both clients with servers that are slow, late, stopped, restarted, or that send invalid replies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from dyn_service import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    Robot,
    Server,
    UnavailableError,
    UrdfError,
)
from tests.conftest import URDF
from tests.phrases import naming
from tests.service.client.plain_server import channel_of
from tests.service.conftest import WAIT_MS, Transport, assert_same
from tests.service.server.test_server import gated

Q = np.array([0.5])


class Impostor:
    """A server that answers as `script` specifies, which gets each request and returns the replies."""

    def __init__(self, script: Callable[[dict[str, Any]], list[Any]]) -> None:
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, 20)
        self._socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._script = script
        self.senders: set[bytes] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops answering and frees the endpoint."""
        self._ended = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._ended:
            try:
                sender, payload = self._socket.recv_multipart()
            except zmq.Again:
                continue
            self.senders.add(sender)
            for reply in self._script(msgpack.unpackb(payload)):
                data = reply if isinstance(reply, bytes) else msgpack.packb(reply)
                self._socket.send_multipart([sender, data])


def describe(pendulum: Robot, request: dict[str, Any]) -> dict[str, Any]:
    return {"v": 1, "id": request["id"], "ok": True, "outputs": pendulum.description.to_dict()}


def forces(number: int, value: float) -> dict[str, Any]:
    data = {"dtype": "<f8", "shape": [1], "data": np.array([value]).tobytes()}
    return {"v": 1, "id": number, "ok": True, "outputs": {"forces": data}}


def test_late_and_foreign_replies_are_dropped(pendulum: Robot, connect_to: Any) -> None:
    def script(request: dict[str, Any]) -> list[Any]:
        if request["query"] == "describe_robot":
            return [describe(pendulum, request)]
        number = request["id"]
        noise = [
            forces(number - 1, -1.0),
            forces(number + 1000, -2.0),
            b"noise",
            b"",
            {"v": 2, "id": number, "ok": True, "outputs": {}},
            {"v": 1, "id": None, "ok": False, "error": {"code": "INTERNAL", "message": "not yours"}},
            {"v": 1, "id": "x"},
            [1],
        ]
        answer = forces(number, 5.0)
        answer["outputs"]["from_the_future"] = {"dtype": "<f8", "shape": [0], "data": b""}
        return [*noise, answer | {"more": 1}]

    with Impostor(script) as impostor:
        robot = connect_to(impostor.endpoint).robot("pendulum")
        for _ in range(3):
            assert robot.gravity_forces(Q).tolist() == [5.0]
            assert robot.gravity_forces([0.5]).tolist() == [5.0]


def test_a_reply_after_its_deadline_does_not_answer_the_next_call(pendulum: Robot, connect_to: Any) -> None:
    waiting: list[Any] = []

    def script(request: dict[str, Any]) -> list[Any]:
        if request["query"] == "describe_robot":
            return [describe(pendulum, request)]
        if not waiting:
            waiting.append(forces(request["id"], 1.0))
            return []
        return [waiting[0], forces(request["id"], 2.0)]

    with Impostor(script) as impostor:
        robot = connect_to(impostor.endpoint).robot("pendulum")
        with pytest.raises(DeadlineExceededError, match=naming("gravity_forces", "0.05 s")):
            robot.with_timeout(0.05).gravity_forces(Q)
        assert robot.gravity_forces(Q).tolist() == [2.0]


def test_repeated_answers_are_accepted_once(connect_to: Any) -> None:
    def script(request: dict[str, Any]) -> list[Any]:
        return [{"v": 1, "id": request["id"], "ok": True, "outputs": {"number": request["id"]}}] * 30

    with Impostor(script) as impostor:
        client = connect_to(impostor.endpoint)
        numbers = [client.health()["number"] for _ in range(3)]
        assert [number - numbers[0] for number in numbers] == [0, 1, 2]
        assert 2 * 29 <= client.counters.dropped <= 3 * 29  # those of the last call may have arrived already


class TestEventLoops:
    def test_a_second_loop_is_rejected(self, tcp_server: Server) -> None:
        client = AsyncClient(tcp_server.endpoints[0], timeout_s=240.0)
        assert asyncio.run(client.health())["status"] == "ok"
        for _ in range(2):
            with pytest.raises(FailedPreconditionError, match=naming("event loop")):
                asyncio.run(client.health())
        asyncio.run(client.close())  # the first loop has ended, so no other one can close the client
        asyncio.run(client.close())

    def test_a_running_loop_keeps_its_client(self, tcp_server: Server) -> None:
        async def ask() -> None:
            client = AsyncClient(tcp_server.endpoints[0], timeout_s=240.0)
            await client.health()
            for call in (client.health, client.close):
                with pytest.raises(FailedPreconditionError, match="make one in each loop"):
                    await asyncio.to_thread(lambda call=call: asyncio.run(call()))
            assert (await client.health())["status"] == "ok"
            await client.close()

        asyncio.run(ask())


def test_an_unknown_error_code_is_an_internal_error(pendulum: Robot, connect_to: Any) -> None:
    def script(request: dict[str, Any]) -> list[Any]:
        if request["query"] == "describe_robot":
            return [describe(pendulum, request)]
        error = {"code": "DATA_LOSS", "message": "from the future", "path": "inputs.q"}
        return [{"v": 1, "id": request["id"], "ok": False, "error": error}]

    with Impostor(script) as impostor:
        robot = connect_to(impostor.endpoint).robot("pendulum")
        with pytest.raises(InternalError, match="from the future"):
            robot.gravity_forces(Q)


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        5,
        {"forces": 3},
        {"forces": {"dtype": "<f4", "shape": [1], "data": bytes(4)}},
        {"forces": {"dtype": "<f8", "shape": [2, 2], "data": bytes(8)}},
        {"forces": {"dtype": "<f8", "shape": [1], "data": bytes(7)}},
        {"forces": {"dtype": "<f8", "shape": [2], "data": bytes(8)}},
    ],
    ids=str,
)
def test_an_invalid_answer_is_an_internal_error(pendulum: Robot, connect_to: Any, outputs: Any) -> None:
    def script(request: dict[str, Any]) -> list[Any]:
        if request["query"] == "describe_robot":
            return [describe(pendulum, request)]
        return [{"v": 1, "id": request["id"], "ok": True, "outputs": outputs}]

    with Impostor(script) as impostor:
        robot = connect_to(impostor.endpoint).robot("pendulum")
        for q in (Q, [0.5]):
            with pytest.raises(InternalError, match="reply is invalid"):
                robot.gravity_forces(q)


def test_an_invalid_description_is_an_internal_error(connect_to: Any) -> None:
    with (
        Impostor(lambda r: [{"v": 1, "id": r["id"], "ok": True, "outputs": {"name": "x"}}]) as impostor,
        pytest.raises(InternalError, match="description of the robot is invalid"),
    ):
        connect_to(impostor.endpoint).robot("pendulum")


def test_no_server(connect_to: Any, ipc_endpoint: str) -> None:
    for endpoint in ("tcp://127.0.0.1:9", ipc_endpoint):
        client = connect_to(endpoint, 0.1)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="no server answers at"):
                client.health()


def test_next_call_after_a_restart_works(pendulum: Robot, connect_to: Any, transport: Transport) -> None:
    with Server([pendulum], endpoints=[transport.endpoint], **transport.server_options) as server:
        (endpoint,) = server.endpoints
        robot = connect_to(endpoint, **transport.client_options).robot("pendulum")
        expected = pendulum.gravity_forces(Q)
        assert_same(robot.gravity_forces(Q), expected)
    for _ in range(2):
        with pytest.raises((UnavailableError, DeadlineExceededError)):
            robot.with_timeout(0.1).gravity_forces(Q)
        with Server([pendulum], endpoints=[endpoint], **transport.server_options) as server:
            for _ in range(2):
                assert_same(robot.gravity_forces(Q), expected)
            answer_count = server.service.metrics.to_dict()["requests"]["gravity_forces"]["answered"]
        assert answer_count == 2  # no request from the time without a server


def test_a_restarted_server_with_another_model(pendulum: Robot, connect_to: Any) -> None:
    text = (URDF / "pendulum.urdf").read_text()
    other = Robot.from_urdf(text.replace('mass value="', 'mass value="1'))
    assert other.name == pendulum.name
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"]) as server:
        (endpoint,) = server.endpoints
        client = connect_to(endpoint)
        robot = client.robot("pendulum")
        robot.gravity_forces(Q)
    with Server([other], endpoints=[endpoint]):
        for q in (Q, [0.5]):
            with pytest.raises(FailedPreconditionError) as excinfo:
                robot.gravity_forces(q)
            assert excinfo.value.path == "model"
            assert pendulum.fingerprint in str(excinfo.value)
            assert other.fingerprint in str(excinfo.value)
        assert_same(client.robot("pendulum").gravity_forces(Q), other.gravity_forces(Q))


def test_deadline_while_the_server_works(pendulum: Robot, connect_to: Any) -> None:
    busy, is_begun, gate = gated(pendulum, "mass_matrix")
    with Server([busy], endpoints=["tcp://127.0.0.1:0"]) as server:
        robot = connect_to(server.endpoints[0]).robot("pendulum")
        with pytest.raises(DeadlineExceededError, match=naming("mass_matrix", "tcp://", "0.1 s")):
            robot.with_timeout(0.1).mass_matrix(Q)
        assert is_begun.wait(WAIT_MS / 1e3)
        gate.set()
        assert_same(robot.mass_matrix(Q), pendulum.mass_matrix(Q))


def test_robots_are_loaded_and_unloaded(pendulum: Robot, connect_to: Any, transport: Transport) -> None:
    path = URDF / "double_pendulum.urdf"
    local = Robot.from_urdf(path)
    with Server([pendulum], endpoints=[transport.endpoint], allow_load=True, **transport.server_options) as server:
        client = connect_to(server.endpoints[0], **transport.client_options)
        for source in (path, str(path), path.read_text(), "\ufeff" + path.read_text()):
            robot = client.load_robot(source)
            assert robot.fingerprint == local.fingerprint
        assert client.list_robots() == ["double_pendulum", "pendulum"]
        q = np.array([0.1, 0.2])
        for _ in range(2):
            assert_same(robot.gravity_forces(q), local.gravity_forces(q))
        heavier = path.read_text().replace('mass value="', 'mass value="1')
        with pytest.raises(FailedPreconditionError, match="unload the other first"):
            client.load_robot(heavier)
        client.unload_robot("double_pendulum")
        assert client.list_robots() == ["pendulum"]
        with pytest.raises(NotFoundError, match="there is no robot 'double_pendulum'"):
            robot.gravity_forces(q)
        with pytest.raises(NotFoundError, match="there is no robot 'double_pendulum'"):
            client.unload_robot("double_pendulum")
        with pytest.raises(UrdfError) as excinfo:
            client.load_robot("<robot name='x'><link name='a'/><link name='a'/></robot>")
        with pytest.raises(UrdfError) as expected:
            Robot.from_urdf("<robot name='x'><link name='a'/><link name='a'/></robot>")
        assert excinfo.value.to_wire() == expected.value.to_wire()
        with pytest.raises(NotFoundError, match=r"there is no file 'nowhere.urdf'"):
            client.load_robot("nowhere.urdf")


def test_a_server_that_forbids_loading_loads_no_robots(pendulum: Robot, connect_to: Any, ipc_endpoint: str) -> None:
    with Server([pendulum], endpoints=[ipc_endpoint], allow_load=False):
        client = connect_to(ipc_endpoint)
        for change in (lambda: client.load_robot(URDF / "scara.urdf"), lambda: client.unload_robot("pendulum")):
            with pytest.raises(PermissionDeniedError, match=naming("load", "unload")):
                change()


def test_unknown_robot(server: Server, transport: Transport, connect_to: Any) -> None:
    with pytest.raises(NotFoundError, match=naming("'r2d2'", "panda, pendulum")):
        connect_to(server.endpoints[0], **transport.client_options).robot("r2d2")


def test_closed_client(server: Server, transport: Transport, connect_to: Any) -> None:
    client = connect_to(server.endpoints[0], **transport.client_options)
    robot = client.robot("pendulum")
    client.close()
    for call in (client.health, lambda: robot.gravity_forces(Q), lambda: robot.gravity_forces([0.5])):
        with pytest.raises(FailedPreconditionError, match="the client is closed"):
            call()


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), 1.1e6, 1e300, "1", None])
def test_time_limits_are_checked(connect_to: Any, timeout_s: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("timeout_s", "1e+06")):
        connect_to("tcp://127.0.0.1:9", timeout_s)


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:5755", "http://127.0.0.1", "tcp://", None, 5])
def test_endpoints_are_checked(connect_to: Any, endpoint: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("endpoint", "tcp://127.0.0.1:5755")):
        connect_to(endpoint)


def test_time_limit_can_be_changed(tcp_server: Server) -> None:
    with Client(tcp_server.endpoints[0]) as client:
        assert client.timeout_s == 1.0
        client.timeout_s = 240.0
        robot = client.robot("pendulum")
        for limit in (240.0, 200.0, 240.0):
            client.timeout_s = limit
            robot.gravity_forces(Q)
            robot.with_timeout(limit + 1).gravity_forces(Q)
        with pytest.raises(InvalidArgumentError):
            client.timeout_s = 0.0


def test_a_request_longer_than_a_message_is_not_sent(server: Server, transport: Transport, connect_to: Any) -> None:
    robot = connect_to(server.endpoints[0], **transport.client_options).robot("panda")
    with pytest.raises(Exception, match=naming("67108864")) as excinfo:
        robot.gravity_forces(np.zeros((1_000_000, 9)))
    assert excinfo.value.code == "RESOURCE_EXHAUSTED"
    assert robot.gravity_forces(np.zeros(9)).shape == (9,)


def test_large_batches_are_answered(server: Server, panda: Robot, transport: Transport, connect_to: Any) -> None:
    robot = connect_to(server.endpoints[0], **transport.client_options).robot("panda")
    states = np.random.default_rng(0).uniform(-1, 1, (50_000, 9))
    assert_same(robot.gravity_forces(states), panda.gravity_forces(states))


FORKED = """
import os, sys, threading
import numpy as np
from dyn_service import Client

client = Client({endpoint!r}, timeout_s=240.0)
robot = client.robot("pendulum")
first = robot.gravity_forces(np.array([0.5])).tolist()
{before}
child = os.fork()
{after}
if child == 0:
    client.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert robot.gravity_forces(np.array([0.5])).tolist() == first
client.close()
"""

FORKS = {
    "between two calls": {},
    "while another thread's call waits": {
        # The thread does not exist in the child, and the lock that it holds is never released there.
        "before": "client._lock.acquire()",
        "after": "if child: client._lock.release()",
    },
    "closed at once in the child": {"after": "if child == 0:\n    client.close()\n    os._exit(0)"},
}


def test_forks(tcp_server: Server) -> None:
    """Calls of the child and of the parent are answered, whatever the child does. One process forks in each way."""
    in_both = "for _ in range(20): assert robot.gravity_forces(np.array([0.5])).tolist() == first"
    code = ""
    for how, parts in FORKS.items():
        all_parts = {"before": "", "after": ""} | parts
        all_parts["after"] += f"\n{in_both}"
        code += FORKED.format(endpoint=tcp_server.endpoints[0], **all_parts) + f"\nprint({how!r})\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=URDF.parent)
    assert (done.returncode, done.stdout.splitlines()) == (0, [*FORKS]), done.stderr


def test_waiting_for_another_thread_counts_towards_the_time_limit(pendulum: Robot) -> None:
    busy, is_begun, gate = gated(pendulum, "mass_matrix")
    with (
        Server([busy], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        robot = client.robot("pendulum")
        thread = threading.Thread(target=robot.mass_matrix, args=(Q,))
        thread.start()
        assert is_begun.wait(WAIT_MS / 1e3)
        with pytest.raises(DeadlineExceededError, match=naming("thread", "0.05 s")):
            robot.with_timeout(0.05).gravity_forces(Q)
        gate.set()
        thread.join()


def test_the_client_is_usable_after_a_cancelled_call(server: Server, pendulum: Robot, transport: Transport) -> None:
    async def ask() -> Any:
        async with AsyncClient(server.endpoints[0], timeout_s=240.0, **transport.client_options) as client:
            robot = await client.robot("pendulum")
            task = asyncio.create_task(robot.mass_matrix(Q))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await robot.gravity_forces(Q)

    assert_same(asyncio.run(ask()), pendulum.gravity_forces(Q))


def test_close_ends_the_calls_in_flight(pendulum: Robot) -> None:
    busy, _, gate = gated(pendulum, "mass_matrix")

    async def ask(endpoint: str) -> None:
        client = AsyncClient(endpoint, timeout_s=240.0)
        robot = await client.robot("pendulum")
        task = asyncio.create_task(robot.mass_matrix(Q))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(UnavailableError, match="the client was closed"):
            await task

    with Server([busy], endpoints=["tcp://127.0.0.1:0"]) as server:
        asyncio.run(ask(server.endpoints[0]))
        gate.set()


def test_close_ends_the_call_of_another_thread(pendulum: Robot) -> None:
    """The call notices it at its next check."""
    busy, computes, gate = gated(pendulum, "mass_matrix")
    with Server([busy], endpoints=["tcp://127.0.0.1:0"]) as server:
        client = Client(server.endpoints[0], timeout_s=240.0)
        robot = client.robot("pendulum")
        assert closed_during(client, lambda: robot.mass_matrix(Q), computes.wait) == "the client was closed"
        gate.set()


def test_close_ends_the_wait_for_a_server_of_another_thread() -> None:
    client = Client("tcp://127.0.0.1:9", timeout_s=240.0)
    waits, is_connected = threading.Event(), channel_of(client).is_connected

    def waiting(timeout_s: float) -> bool:
        waits.set()
        return is_connected(timeout_s)

    channel_of(client).is_connected = waiting  # type: ignore[method-assign]
    assert closed_during(client, client.health, waits.wait) == "the client was closed"


def closed_during(client: Client, call: Callable[[], Any], wait: Callable[[float], bool]) -> str:
    """Closes the client during a call of another thread, and returns the text of that call's error."""
    texts: list[str] = []

    def run() -> None:
        with pytest.raises(UnavailableError) as error:
            call()
        texts.append(str(error.value))

    caller = threading.Thread(target=run)
    caller.start()
    assert wait(WAIT_MS / 1e3)
    client.close()
    caller.join(WAIT_MS / 1e3)
    return texts[0]


def test_close_ends_the_wait_for_a_server_in_another_task() -> None:
    async def run() -> None:
        client = AsyncClient("tcp://127.0.0.1:9", timeout_s=240.0)
        task = asyncio.create_task(client.health())
        while channel_of(client) is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # it waits for the server now
        await client.close()
        with pytest.raises(UnavailableError, match="the client was closed"):
            await task

    asyncio.run(run())


def test_names_in_reprs(tcp_server: Server) -> None:
    with Client(tcp_server.endpoints[0], timeout_s=240.0) as client:
        assert repr(client) == f"<Client '{tcp_server.endpoints[0]}'>"
        assert repr(client.robot("panda")) == "<RemoteRobot 'panda': 13 links, 9 movable joints>"
        assert client.robot("panda").client is client
    assert repr(client).endswith(", closed>")
