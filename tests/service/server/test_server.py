"""The server's sockets: framing, order, floods, limits, start and stop."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from dyn_service import Client, InvalidArgumentError, Robot, Server, UnavailableError
from dyn_service.errors import FailedPreconditionError
from dyn_service.service.server.administration.access import KeyFolder
from dyn_service.service.server.app import open_server
from dyn_service.service.server.settings import ServerSettings
from dyn_service.service.server.transport.endpoints import is_local
from tests.conftest import URDF
from tests.phrases import naming, unnamed
from tests.service.conftest import WAIT_MS, Bare, Transport, array, eventually, request
from tests.service.server.raw_peers import gauges


def gated(robot: Robot, query: str) -> tuple[Robot, threading.Event, threading.Event]:
    """Returns a robot whose method blocks: sets `is_begun` when it is called, and waits for `gate`."""
    robot = Robot.from_urdf(URDF / f"{robot.name}.urdf")
    method = getattr(robot, query)
    is_begun, gate = threading.Event(), threading.Event()

    def wait(*args: Any, **kwargs: Any) -> Any:
        is_begun.set()
        assert gate.wait(WAIT_MS / 1e3)
        return method(*args, **kwargs)

    setattr(robot, query, wait)
    return robot, is_begun, gate


def health(number: int) -> dict[str, Any]:
    """Returns a request that never waits for others."""
    return {"v": 1, "id": number, "query": "health"}


def test_dealer_and_req_are_both_served(server: Server, transport: Transport, pendulum: Robot, bare: Any) -> None:
    expected = pendulum.gravity_forces([0.5]).tobytes()
    for kind in (zmq.DEALER, zmq.REQ):
        peer: Bare = bare(server.endpoints[0], kind, transport.keys)
        for number in range(3):
            reply = peer.ask(request(id=number))
            assert (reply["v"], reply["id"], reply["ok"]) == (1, number, True)
            assert reply["outputs"] == {"forces": {"dtype": "<f8", "shape": [1], "data": expected}}
            assert set(reply["timing"]) == {"queue_us", "compute_us"}
            assert all(value >= 0 for value in reply["timing"].values())


def test_dealer_may_send_the_empty_frame_of_a_req(server: Server, transport: Transport, bare: Any) -> None:
    peer: Bare = bare(server.endpoints[0], keys=transport.keys)
    peer.socket.send_multipart([b"", msgpack.packb(request())])
    empty, reply = peer.socket.recv_multipart()
    assert empty == b""
    assert msgpack.unpackb(reply)["ok"]


@pytest.mark.parametrize(
    ("frames", "values"),
    [
        ([b""], ["MessagePack"]),
        ([b"", b""], ["MessagePack"]),
        ([b"a", b"b"], ["2", "message", "frame"]),
        ([b"a", b"b", b"c"], ["3", "message", "frame"]),
        ([b"", b"a", b"b"], ["3", "message", "frame"]),
        ([b""] * 7, ["7"]),
    ],
)
def test_wrong_frames_are_answered(
    server: Server, transport: Transport, bare: Any, frames: list[bytes], values: list[str]
) -> None:
    peer: Bare = bare(server.endpoints[0], keys=transport.keys)
    peer.socket.send_multipart(frames)
    error = msgpack.unpackb(peer.socket.recv_multipart()[-1])
    assert (error["id"], error["ok"]) == (None, False)
    assert error["error"]["code"] == "INVALID_ARGUMENT"
    assert unnamed(error["error"]["message"], *values) == []
    if frames == [b""] or frames[0]:
        assert peer.ask(request())["ok"]


def test_frames_of_one_client_never_reach_another(server: Server, transport: Transport, bare: Any) -> None:
    """Frames after the first are neither messages nor addresses."""
    victim: Bare = bare(server.endpoints[0], keys=transport.keys, routing_id=b"victim")
    assert victim.ask(request())["ok"]
    attacker: Bare = bare(server.endpoints[0], keys=transport.keys)
    attacker.socket.send_multipart([msgpack.packb(request()), b"victim", msgpack.packb(request())])
    assert not attacker.receive()["ok"]
    victim.socket.setsockopt(zmq.RCVTIMEO, 200)
    with pytest.raises(zmq.Again):
        victim.receive()


def test_each_of_two_robots_gets_its_own_answers(
    server: Server, transport: Transport, panda: Robot, pendulum: Robot
) -> None:
    with Client(server.endpoints[0], timeout_s=240.0, **transport.client_options) as client:
        assert client.list_robots() == ["panda", "pendulum"]
        for local in (panda, pendulum):
            q = np.linspace(0.1, 1.0, local.nq)
            for _ in range(2):
                assert client.robot(local.name).gravity_forces(q).tobytes() == local.gravity_forces(q).tobytes()


def test_pipelined_requests_are_all_answered_once(
    server: Server, transport: Transport, pendulum: Robot, bare: Any
) -> None:
    """2000 requests are sent before a reply is read."""
    peer: Bare = bare(server.endpoints[0], keys=transport.keys)
    peer.ask(request())
    states = np.random.default_rng(0).uniform(-3, 3, 2000)
    for number, state in enumerate(states):
        peer.send(request(id=number, inputs={"q": array([state])}))
    replies = {}
    for _ in states:
        reply = peer.receive()
        replies[reply["id"]] = reply["outputs"]["forces"]["data"]
    assert replies == {k: pendulum.gravity_forces([state]).tobytes() for k, state in enumerate(states)}


def test_small_request_overtakes_a_big_batch(pendulum: Robot, bare: Any) -> None:
    """With a gate instead of a clock: the batch is not finished before the small request is."""
    robot, is_begun, gate = gated(pendulum, "mass_matrix")
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        busy, quick = bare(server.endpoints[0]), bare(server.endpoints[0])
        quick.ask(request())
        busy.send(request("mass_matrix", id=1, inputs={"q": array(np.zeros((20_000, 1)))}))
        assert is_begun.wait(WAIT_MS / 1e3)
        for number in range(50):
            assert quick.ask(request(id=number))["ok"]
        busy.send(request(id=2))
        assert busy.receive()["id"] == 2  # the same client's too
        gate.set()
        reply = busy.receive()
        assert (reply["id"], reply["ok"], reply["outputs"]["mass_matrix"]["shape"]) == (1, True, [20_000, 1, 1])


def test_client_that_leaves_is_counted(pendulum: Robot, bare: Any) -> None:
    robot, is_begun, gate = gated(pendulum, "mass_matrix")
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        leaver: Bare = bare(server.endpoints[0])
        leaver.send(request("mass_matrix"))
        assert is_begun.wait(WAIT_MS / 1e3)
        leaver.close()
        quick: Bare = bare(server.endpoints[0])
        assert quick.ask(health(1))["ok"]
        eventually(lambda: gauges(server)["connections"] == 1)  # ZeroMQ closes the connection in the background
        gate.set()
        eventually(lambda: quick.ask({"v": 1, "id": 1, "query": "stats"})["outputs"]["counters"]["dropped_gone"])


def test_a_defect_is_answered(
    pendulum: Robot, bare: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Server([pendulum], endpoints=["tcp://127.0.0.1:0"]) as server:
        peer: Bare = bare(server.endpoints[0])
        with monkeypatch.context() as patch:
            patch.setattr(server.service, "accept", lambda *_, **__: 1 / 0)
            reply = peer.ask(health(1))
        assert (reply["id"], reply["error"]["code"]) == (1, "INTERNAL")
        assert "ZeroDivisionError" in caplog.text
        assert peer.ask(health(2))["id"] == 2


def test_an_error_reply_has_no_traceback(pendulum: Robot, bare: Any, caplog: pytest.LogCaptureFixture) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("secret")

    robot.mass_matrix = fail  # type: ignore[method-assign]
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        peer: Bare = bare(server.endpoints[0])
        error = peer.ask(request("mass_matrix"))["error"]
        assert error == {
            "code": "INTERNAL",
            "type": "InternalError",
            "message": "the server failed to answer mass_matrix; see its log",
        }
        assert peer.ask(request())["ok"]
    (record,) = [r for r in caplog.records if r.name.startswith("dyn_service")]
    assert "secret" in str(record.exc_info)


def test_lack_of_memory_is_no_defect(pendulum: Robot, bare: Any) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    robot.mass_matrix = fail  # type: ignore[method-assign]
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        error = bare(server.endpoints[0]).ask(request("mass_matrix"))["error"]
        assert error["code"] == "RESOURCE_EXHAUSTED"


def test_several_endpoints_at_once(panda: Robot, tmp_path: Path, pendulum: Robot) -> None:
    endpoints = ["tcp://127.0.0.1:0", f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/b", "tcp://127.0.0.1:*"]
    with Server([pendulum], endpoints=endpoints) as server:
        assert len(server.endpoints) == 4
        for endpoint in server.endpoints:
            with Client(endpoint, timeout_s=240.0) as client:
                assert client.robot("pendulum").gravity_forces([0.5]) is not None


def test_socket_file_is_for_its_owner_and_goes_with_the_server(pendulum: Robot, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Server([pendulum], endpoints=[f"ipc://{path}"]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(UnavailableError, match="another server listens there"):
            Server([pendulum], endpoints=[f"ipc://{path}"]).start()
        with Client(f"ipc://{path}", timeout_s=240.0) as client:
            assert client.health()["status"] == "ok"
    assert not path.exists()


def test_a_stale_socket_file_is_replaced(pendulum: Robot, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    assert path.exists()
    with Server([pendulum], endpoints=[f"ipc://{path}"]), Client(f"ipc://{path}", timeout_s=240.0) as client:
        assert client.health()["status"] == "ok"


def test_file_that_is_no_socket_is_left_alone(pendulum: Robot, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(UnavailableError, match="it is a file, not a socket"):
        Server([pendulum], endpoints=[f"ipc://{path}"]).start()
    assert path.read_text() == "keep me"


def test_port_that_is_taken(tcp_server: Server, pendulum: Robot) -> None:
    with pytest.raises(UnavailableError, match="another server listens there") as excinfo:
        Server([pendulum], endpoints=list(tcp_server.endpoints)).start()
    assert excinfo.value.path == "endpoints"


def test_a_taken_port_is_reported_before_robots_are_read(tcp_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    for endpoint, words in (
        (tcp_server.endpoints[0], "another server listens there"),
        (f"ipc://{path}", "not a socket"),
    ):
        with pytest.raises(UnavailableError, match=words):
            open_server(ServerSettings(robots=["nowhere.urdf"], endpoints=[endpoint]), lambda line: None)
    assert path.read_text() == "keep me"


@pytest.mark.parametrize(
    "endpoint", ["", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "udp://1.2.3.4:5", "ipc://", "5755"]
)
def test_malformed_endpoints_are_refused(pendulum: Robot, endpoint: str) -> None:
    with pytest.raises(InvalidArgumentError, match="endpoint must look like") as excinfo:
        Server([pendulum], endpoints=[endpoint]).start()
    assert excinfo.value.path == "endpoints"


def test_no_endpoints(pendulum: Robot) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("endpoints", "at least one")):
        Server([pendulum], endpoints=[])


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:5755", True),
        ("tcp://127.8.8.8:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///tmp/x", True),
        ("tcp://*:5755", False),
        ("tcp://0.0.0.0:5755", False),
        ("tcp://[::]:5755", False),
        ("tcp://eth0:5755", False),
        ("tcp://192.168.1.5:5755", False),
    ],
)
def test_which_endpoints_are_local(pendulum: Robot, endpoint: str, local: bool) -> None:
    assert is_local(endpoint) is local
    assert Server([pendulum], endpoints=[endpoint]).service.allow_load is local
    assert Server([pendulum], endpoints=[endpoint], allow_load=not local).service.allow_load is not local


def test_remote_endpoints_need_keys(pendulum: Robot, tmp_path: Path) -> None:
    server = Server([pendulum], endpoints=["tcp://0.0.0.0:0"], key_folder=KeyFolder(tmp_path))
    with pytest.raises(FailedPreconditionError, match=naming("endpoint", "keys")):
        server.start()
    assert server.endpoints == ()


def test_a_server_starts_once(pendulum: Robot) -> None:
    server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
    assert server.endpoints == ()
    with server, pytest.raises(FailedPreconditionError, match="a server starts once"):
        server.start()
    server.stop()


def test_a_server_stopped_before_its_start_raises(pendulum: Robot) -> None:
    for start in (Server.start, Server.serve_forever, Server.bind, Server.__enter__):
        server = Server([pendulum], endpoints=["tcp://127.0.0.1:0"])
        server.stop()
        server.stop()
        with pytest.raises(FailedPreconditionError, match=naming("stopped")):
            start(server)
        assert server.endpoints == ()


def test_stop_refuses_what_was_not_begun_and_delivers_what_was(pendulum: Robot, bare: Any) -> None:
    robot, is_begun, gate = gated(pendulum, "mass_matrix")
    server = Server([robot], endpoints=["tcp://127.0.0.1:0"])
    server.start()
    peer: Bare = bare(server.endpoints[0])
    for number in (1, 2):
        peer.send(request("mass_matrix", id=number, inputs={"q": array(np.zeros((20_000, 1)))}))
    assert is_begun.wait(WAIT_MS / 1e3)
    assert peer.ask(health(3))["id"] == 3  # so 2 waits
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    refusal = peer.receive()
    assert (refusal["id"], refusal["error"]["code"]) == (2, "UNAVAILABLE")
    assert refusal["error"]["message"] == "the server is shutting down"
    gate.set()
    assert peer.receive()["id"] == 1
    stopper.join(WAIT_MS / 1e3)
    assert not stopper.is_alive()


def test_servers_leave_nothing_open(pendulum: Robot, tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("counts open files in /proc")

    def cycle(number: int) -> None:
        with (
            Server([pendulum], endpoints=["tcp://127.0.0.1:0", f"ipc://{tmp_path}/{number}"]) as server,
            Client(server.endpoints[1], timeout_s=240.0) as client,
        ):
            client.health()

    cycle(0)
    files_before, threads = len(os.listdir(folder)), threading.active_count()
    for number in range(1, 6):
        cycle(number)
    eventually(lambda: len(os.listdir(folder)) <= files_before)  # ZeroMQ closes the client's sockets in the background
    assert threading.active_count() <= threads


def test_stats_count(pendulum: Robot) -> None:
    with (
        Server([pendulum], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        robot = client.robot("pendulum")
        for _ in range(10):
            robot.gravity_forces(np.array([0.5]))
        with pytest.raises(InvalidArgumentError):
            robot.gravity_forces(np.zeros(2))
        stats = client.stats()
        record = stats["requests"]["gravity_forces"]
        assert (record["answered"], record["refused"]) == (10, 1)
        assert 0 < record["p50_us"] <= record["p99_us"] <= record["max_us"] + 1
        assert stats["errors"] == {"INVALID_ARGUMENT": 1}
        assert stats["counters"]["received"] == stats["counters"]["sent"] + 1 == 13
        assert stats["counters"]["received_bytes"] > 0
        assert stats["uptime_s"] > 0
        health = client.health()
        assert (health["status"], health["protocol"], health["robots"]) == ("ok", [1], 1)
