"""Requests recorded between client and server, repeated and compared."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from typer.testing import CliRunner

from dyn_service import Client, Robot, Server
from dyn_service.cli.bag import app
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.requests import (
    REPLIES,
    REQUESTS,
    RequestRecorder,
    compare,
    describe,
    fingerprints,
    outputs_compared,
    replay,
    report,
    robots_of,
    timeless,
    verify,
)
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.messages.dyn_service_msgs import ServerReply, ServerRequest
from tests.conftest import URDF

PENDULUM = URDF / "pendulum.urdf"
STATES = 20


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bag of requests over a proxy: torques, accelerations, a batch, two errors, a robot loaded and unloaded."""
    path = tmp_path_factory.mktemp("bag") / "asked.mcap"
    messages: list[str] = []
    with Server([Robot.from_urdf(PENDULUM)], endpoints=["tcp://127.0.0.1:0"], allow_load=True) as server:
        with BagWriter(path) as writer:
            describe(writer, fingerprints(server.endpoints[0]), [PENDULUM])
            recorder = RequestRecorder(server.endpoints[0], "tcp://127.0.0.1:0", writer, messages.append)
            ending = threading.Event()
            thread = threading.Thread(target=recorder.run, args=(lambda: not ending.is_set(),))
            thread.start()
            try:
                ask(recorder.endpoint)
            finally:
                ending.set()
                thread.join()
                recorder.close()
        assert recorder.replies >= recorder.requests > 2 * STATES  # notices of kernels that are made count as replies
        assert recorder.dropped == 0
        assert recorder.whole
    assert messages == []
    return path


def ask_wrongly(endpoint: str) -> None:
    """Sends two invalid requests that the client's own checks would reject."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        for k, query in enumerate(("gravity_force", "gravity_forces")):
            request = {"v": 1, "id": k, "query": query, "robot": "pendulum", "inputs": {"q": [1.0] * 9}}
            socket.send(msgspec.msgpack.encode(request))
            assert socket.poll(240_000)
            assert not msgspec.msgpack.decode(socket.recv())["ok"]


def ask(endpoint: str) -> None:
    ask_wrongly(endpoint)
    rng = np.random.default_rng(3)
    with Client(endpoint, timeout_s=240.0) as client, Client(endpoint, timeout_s=240.0) as other:
        robot = client.robot("pendulum")
        for _ in range(STATES):
            q, v, a = rng.normal(size=(3, robot.nq))
            robot.inverse_dynamics(q, v, a)
            other.robot("pendulum").forward_dynamics(q, v, a)
        robot.mass_matrix(rng.normal(size=(50, robot.nq)))
        heavier = PENDULUM.read_text().replace('name="pendulum"', 'name="other"', 1)
        client.load_robot(heavier).gravity_forces(np.zeros(robot.nq))


def checked(path: Path, robots: list[Robot] | None = None):
    with BagReader(path) as reader:
        robots_in_bag, remarks = robots_of(reader, robots or [])
        verification = verify(reader, replay(robots_in_bag))
    verification.remarks += remarks
    return verification


def test_the_same_version_gives_the_same_bits(bag: Path) -> None:
    verification = checked(bag)
    counts = {name: (result.count, result.same) for name, result in verification.results.items()}
    assert counts["inverse_dynamics"] == counts["forward_dynamics"] == (STATES, STATES)
    assert counts["mass_matrix"] == (1, 1)
    assert counts["gravity_forces"] == (2, 2)  # one refused, one of the robot that was loaded meanwhile
    assert counts["gravity_force"] == (1, 1)
    assert verification.uncompared["loading and unloading, repeated"] == 1
    assert verification.first is None
    assert verification.largest == 0.0
    assert report(verification)[-1] == f"all {verification.compared} replies are the same to the bit"
    assert verification.remarks == []


def altered(bag: Path, target: Path, change) -> Path:
    """Returns a copy of the bag with replies changed by `change(number, frame)`."""
    replies = 0
    with BagReader(bag) as reader, BagWriter(target) as writer:
        writer.note("dyn_service requests", reader.notes["dyn_service requests"])
        for attached in reader.attached:
            writer.attach(attached.name, attached.media_type, attached.data)
        for recorded in reader.messages():
            message = recorded.message
            if isinstance(message, ServerReply):
                message = ServerReply(message.client, change(replies, message.frame))
                replies += 1
            writer.write(recorded.topic, message, recorded.log_time_ns, recorded.publish_time_ns)
    return target


def test_a_changed_bit_in_a_reply_is_found(bag: Path, tmp_path: Path) -> None:
    """One request differs in the last bit of one torque."""
    changed_values = []

    def change(number: int, frame: bytes) -> bytes:
        reply = msgspec.msgpack.decode(frame)
        if changed_values or not (reply.get("ok") and "tau" in reply["outputs"]) or number < 20:
            return frame
        data = bytearray(reply["outputs"]["tau"]["data"])
        data[0] ^= 1
        changed_values.append((reply["id"], np.frombuffer(data)[0]))
        reply["outputs"]["tau"]["data"] = bytes(data)
        return msgspec.msgpack.encode(reply)

    verification = checked(altered(bag, tmp_path / "changed.mcap", change))
    assert {
        name: result.count - result.same for name, result in verification.results.items() if result.count != result.same
    } == {"inverse_dynamics": 1}
    first = verification.first
    assert first is not None
    assert first.difference.place == "tau[0]"
    assert float(first.difference.recorded) == changed_values[0][1]
    assert 0.0 < first.difference.relative < 1e-15
    with BagReader(bag) as reader:
        requests = [recorded.message.frame for recorded in reader.messages([REQUESTS])]
        times = [recorded.log_time_ns for recorded in reader.messages([REQUESTS])]
        assert msgspec.msgpack.decode(requests[first.number])["id"] == changed_values[0][0]
        assert first.time_s == pytest.approx(1e-9 * (times[first.number] - times[0]), abs=1e-9)
    report_lines = report(verification)
    assert report_lines[-1].startswith(f"first difference: request {first.number}, at ")
    assert "tau[0] was " in report_lines[-1]


def test_an_answer_that_was_a_refusal_is_found(bag: Path, tmp_path: Path) -> None:
    def change(number: int, frame: bytes) -> bytes:
        reply = msgspec.msgpack.decode(frame)
        if "a" not in reply.get("outputs", {}):
            return frame
        error = {"code": "FAILED_PRECONDITION", "message": "no"}
        return msgspec.msgpack.encode({"v": 1, "id": reply["id"], "ok": False, "error": error})

    verification = checked(altered(bag, tmp_path / "refused.mcap", change))
    result = verification.results["forward_dynamics"]
    assert (result.count, result.same) == (STATES, 0)
    assert result.first is not None
    assert (result.first.difference.recorded, result.first.difference.repeated) == ("FAILED_PRECONDITION", "an answer")
    assert verification.largest == np.inf


def test_another_robot_is_found_and_said(bag: Path, tmp_path: Path) -> None:
    """A link 1 % heavier: every torque differs by about as much, and the fingerprint is another."""
    text = PENDULUM.read_text()
    file = tmp_path / "pendulum.urdf"
    mass = text.partition('<mass value="')[2].partition('"')[0]
    file.write_text(text.replace(f'<mass value="{mass}"', f'<mass value="{1.01 * float(mass)}"', 1))
    verification = checked(bag, [Robot.from_urdf(file)])
    result = verification.results["inverse_dynamics"]
    assert result.same == 0
    assert result.worst is not None
    assert 1e-4 < result.worst.difference.relative < 0.5  # gravity and inertia may nearly cancel
    assert result.worst.difference.digits == pytest.approx(-np.log10(result.worst.difference.relative))
    assert verification.remarks[0].startswith("robot 'pendulum': the recorded fingerprint is ")


def test_what_cannot_be_compared_is_counted(bag: Path, tmp_path: Path) -> None:
    """Replies of a busy server, requests without a reply, notices, garbage: none is a difference."""
    path = tmp_path / "odd.mcap"
    request = msgspec.msgpack.encode({"v": 1, "id": 1, "query": "gravity_forces", "robot": "pendulum", "inputs": {}})
    busy = {"v": 1, "id": 1, "ok": False, "error": {"code": "RESOURCE_EXHAUSTED", "message": "busy"}}
    notice = {"v": 1, "id": 1, "notice": {"state": "compiling", "text": "", "elapsed_ms": 1.0, "again_ms": 1.0}}
    with BagWriter(path) as writer:
        writer.write(REQUESTS, ServerRequest(1, request), 1)
        writer.write(REQUESTS, ServerRequest(2, request), 2)
        writer.write(REQUESTS, ServerRequest(2, b"\xc1"), 3)
        writer.write(REPLIES, ServerReply(1, b"\xc1"), 4)
        writer.write(REPLIES, ServerReply(1, msgspec.msgpack.encode(notice)), 5)
        writer.write(REPLIES, ServerReply(1, msgspec.msgpack.encode(busy)), 6)
        writer.write(REPLIES, ServerReply(1, msgspec.msgpack.encode(busy)), 7)
    verification = checked(path, [Robot.from_urdf(PENDULUM)])
    assert verification.uncompared == {"error that does not depend on the request": 1, "without a reply in the bag": 1}
    assert verification.compared == 0
    with BagWriter(tmp_path / "none.mcap") as writer:
        writer.write("/a", ServerReply(1, b""), 1)
    with pytest.raises(NotFoundError, match="has no topic '/server/requests'"):
        checked(tmp_path / "none.mcap")


def test_only_what_was_of_its_moment_is_taken_away() -> None:
    request = {"v": 1, "id": 2**63, "query": "x", "inputs": {"q": {"data": b"\x00"}}, "options": {"kp": 0.1}}
    timed_request = request | {"deadline_ms": 3.0, "compile_wait_ms": 4.0, "retry": 1, "model": "f00"}
    assert msgspec.msgpack.decode(timeless(msgspec.msgpack.encode(timed_request))) == request
    assert timeless(b"\xc1") == b"\xc1"
    assert timeless(b"\x01") == b"\x01"


class TestComparing:
    def test_first_and_largest(self) -> None:
        old = {"a": np.array([1.0, 2.0, 4.0]), "b": 1.0}
        new = {"a": np.array([1.0, 2.0 + 4e-10, 4.0 - 4e-6]), "b": 1.0}
        first, largest = outputs_compared(old, new)
        assert (first.place, first.relative) == ("a[1]", pytest.approx(1e-10, rel=1e-5))
        assert (largest.place, largest.relative) == ("a[2]", pytest.approx(1e-6))
        assert largest.digits == pytest.approx(6.0)

    def test_signs_of_zero_and_shapes(self) -> None:
        (zero,) = outputs_compared({"a": np.zeros(2)}, {"a": np.array([0.0, -0.0])})
        assert (zero.place, zero.relative, zero.digits) == ("a[1]", 0.0, np.inf)
        (shape,) = outputs_compared({"a": np.zeros(2)}, {"a": np.zeros(3)})
        assert (shape.recorded, shape.relative) == ("shape (2,)", np.inf)
        (missing,) = outputs_compared({"a": "x"}, {})
        assert (missing.recorded, missing.repeated) == ("'x'", "nothing")
        assert outputs_compared({"a": 1.0}, {"a": 1.0, "new": 2.0}) == []

    def test_replies_that_are_none(self) -> None:
        fine = msgspec.msgpack.encode({"v": 1, "id": 1, "ok": True, "outputs": {}})
        assert compare(fine, b"\xc1")
        fine = msgspec.msgpack.encode({"v": 1, "id": 1, "ok": True, "outputs": {"a": "x"}})
        differences = compare(fine, fine.replace(b"\xa1x", b"\xa1\xff"))  # no UTF-8
        assert differences is not None
        assert [(difference.place, difference.recorded) for difference in differences] == [
            ("reply", "outputs that cannot be read")
        ]


@pytest.mark.parametrize(
    ("server", "listen", "cause"),
    [
        ("tcp://127.0.0.1:5755", "tcp://0.0.0.0:5756", "must be an endpoint of this machine"),
        ("tcp://127.0.0.1:5755", "ipc://@abstract", "must be an endpoint of this machine"),
        ("tcp://127.0.0.1:99999", "tcp://127.0.0.1:0", "must be at most 65535"),
        ("nowhere", "tcp://127.0.0.1:0", "Invalid argument"),
    ],
)
def test_endpoints_that_are_none(tmp_path: Path, server: str, listen: str, cause: str) -> None:
    with BagWriter(tmp_path / "a.mcap") as writer, pytest.raises(InvalidArgumentError, match=cause):
        RequestRecorder(server, listen, writer, print)


def test_a_message_that_has_gone_again_does_not_hold_up_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq drops what a lost connection delivered, also after it has reported it."""
    with BagWriter(tmp_path / "a.mcap") as writer:
        recorder = RequestRecorder("tcp://127.0.0.1:9", "tcp://127.0.0.1:0", writer, print)
        _, back = recorder._connection_of(b"client")
        monkeypatch.setattr(zmq.Poller, "poll", lambda self, timeout: [(recorder._router, 1), (back, 1)])
        turns = iter([True, True, False])
        thread = threading.Thread(target=recorder.run, args=(lambda: next(turns),), daemon=True)
        thread.start()
        thread.join(50.0)
        assert not thread.is_alive()
        recorder.close()


def test_the_recorder_is_bounded_and_continues_when_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more clients than connections and a bag on a full disk, all requests are answered."""
    monkeypatch.setattr("dyn_service.graph.bags.requests.MAX_CLIENTS", 2)
    messages: list[str] = []
    context = zmq.Context()
    context.linger = 0  # before it binds
    server = context.socket(zmq.ROUTER)
    server.bind("tcp://127.0.0.1:0")
    writer = BagWriter(tmp_path / "a.mcap")
    recorder = RequestRecorder(
        server.getsockopt_string(zmq.LAST_ENDPOINT), "tcp://127.0.0.1:0", writer, messages.append
    )
    ending = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(lambda: not ending.is_set(),))
    thread.start()
    try:
        clients = [context.socket(zmq.DEALER) for _ in range(4)]
        for k, client in enumerate(clients):
            client.connect(recorder.endpoint)
            client.send(b"question %d" % k)
            peer, question = server.recv_multipart()
            if k == 1:
                writer.close()  # as after a full disk
            server.send_multipart([peer, question.replace(b"question", b"answer")])
            assert client.poll(240_000), k
            assert client.recv() == b"answer %d" % k
    finally:
        ending.set()
        thread.join()
        assert len(recorder._connections) == len(recorder._clients) == 2
        recorder.close()
        for socket in (server, *clients):
            socket.close(linger=0)
        context.term()
    assert (recorder.requests, recorder.replies, recorder.whole) == (4, 4, False)
    assert len(messages) == 1
    assert messages[0].endswith("is closed; requests go on unrecorded")


def commanded(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", *arguments], catch_exceptions=False, standalone_mode=False)
    return done.return_value, done.stdout


def test_the_command_says_what_differs(bag: Path, tmp_path: Path) -> None:
    status, output = commanded(str(bag))
    assert (status, output.splitlines()[-1][:4]) == (0, "all ")
    heavier = tmp_path / "pendulum.urdf"
    heavier.write_text(PENDULUM.read_text().replace('<mass value="', '<mass value="1', 1))
    status, output = commanded(str(bag), "--robot", str(heavier))
    assert status == 1
    assert output.splitlines()[-1].startswith("first difference: request ")
    assert commanded(str(bag), "--robot", str(heavier), "--within", "1e9")[0] == 0
    with Server([Robot.from_urdf(PENDULUM)], endpoints=["tcp://127.0.0.1:0"], allow_load=True) as server:
        assert commanded(str(bag), "--server", server.endpoints[0])[0] == 0


def test_a_refusal_for_what_is_not_asked_again_is_no_difference(tmp_path: Path) -> None:
    """Without the recorded fingerprint, time limit or robots, such a request has a result."""
    ask = {"v": 1, "id": 1, "query": "gravity_forces", "robot": "pendulum", "inputs": {"q": [0.5]}}
    requests = [ask | {"id": 1, "model": "of another robot"}, ask | {"id": 2, "deadline_ms": -1.0}, ask | {"id": 3}]
    answer = replay([Robot.from_urdf(PENDULUM)])
    with BagWriter(tmp_path / "a.mcap") as writer:
        for k, request in enumerate(map(msgspec.msgpack.encode, requests)):
            reply = answer(request)
            assert reply is not None
            assert msgspec.msgpack.decode(reply)["ok"] == (k == 2)
            writer.write(REQUESTS, ServerRequest(1, request), 1_000 + 2 * k)
            writer.write(REPLIES, ServerReply(1, reply), 1_001 + 2 * k)
    with BagReader(tmp_path / "a.mcap") as reader:
        verification = verify(reader, answer)
    assert (verification.compared, verification.first) == (1, None)
    assert verification.uncompared == {"error for a time limit or another model": 2}


def test_an_engine_with_two_answers_to_a_request_is_reported(bag: Path) -> None:
    with BagReader(bag) as reader:
        robots, _ = robots_of(reader, [])
        ours, call_count = replay(robots), 0

        def turned(request: bytes, offset: float) -> bytes:
            reply = msgspec.msgpack.decode(ours(request) or b"")
            arrays = [x for x in reply.get("outputs", {}).values() if isinstance(x, dict) and "data" in x]
            for output in arrays:
                output["data"] = (np.frombuffer(output["data"]) + offset).tobytes()
            return msgspec.msgpack.encode(reply)

        def unsteady(request: bytes) -> bytes:
            nonlocal call_count
            call_count += 1
            return turned(request, float(call_count))

        shifted = verify(reader, lambda request: turned(request, 1.0))
        assert shifted.first is not None
        assert shifted.remarks == []
        verification = verify(reader, unsteady)
        assert verification.first is not None
        number = verification.first.number
    remark = f"request {number}: asked twice now, it has two answers; a question has one, so report this as a defect"
    assert verification.remarks == [remark]


@pytest.mark.slow
def test_recording_by_the_command(tmp_path: Path) -> None:
    """`dyn bag record --server` prints its endpoint first; Ctrl-C ends the bag."""
    file = tmp_path / "a.mcap"
    with Server([Robot.from_urdf(PENDULUM)], endpoints=["tcp://127.0.0.1:0"]) as server:
        command = [sys.executable, "-m", "dyn_service", "bag", "record", "--server", server.endpoints[0]]
        command += ["--robot", str(PENDULUM), "-o", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            with Client(ready[1], timeout_s=240.0) as client:
                client.robot("pendulum").gravity_forces(np.zeros(1))
            process.send_signal(signal.SIGINT)
            _, output = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "of /server/requests" in output
    status, output = commanded(str(file))
    assert (status, "gravity_forces" in output) == (0, True)
