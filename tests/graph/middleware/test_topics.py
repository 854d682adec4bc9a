"""Names of topics, the endpoints behind them, and the node's end of the telemetry."""

import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zmq

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError
from dyn_service.graph.middleware.telemetry import Recorder, Rows, Stats, Telemetry, decode, rows_of
from dyn_service.graph.middleware.topics import MAX_IPC_PATH, endpoint, runtime_dir
from tests.phrases import naming

FOLDER = Path("/run/x")


@pytest.mark.parametrize(
    ("topic", "namespace", "remaps", "expected"),
    [
        ("joint_states", "/", {}, "ipc:///run/x/joint_states"),
        ("joint_states", "/lab/arm", {}, "ipc:///run/x/lab.arm.joint_states"),
        ("/joint_states", "/arm", {}, "ipc:///run/x/joint_states"),
        ("joint_states", "/arm", {"joint_states": "/all"}, "ipc:///run/x/all"),
        ("joint_states", "/arm", {"/arm/joint_states": "js"}, "ipc:///run/x/arm.js"),
        ("joint_states", "/arm", {"other": "js"}, "ipc:///run/x/arm.joint_states"),
        ("joint_states", "/", {"joint_states": "tcp://127.0.0.1:7001"}, "tcp://127.0.0.1:7001"),
        ("tcp://127.0.0.1:7001", "/arm", {}, "tcp://127.0.0.1:7001"),
    ],
)
def test_endpoints(topic: str, namespace: str, remaps: dict[str, str], expected: str) -> None:
    assert endpoint(topic, namespace, remaps, FOLDER) == expected


def test_endpoint_faults() -> None:
    with pytest.raises(InvalidArgumentError, match="topic '/' has no name"):
        endpoint("/", "/", {}, FOLDER)
    with pytest.raises(InvalidArgumentError, match="leaves no room for a topic"):
        endpoint("x" * 30, "/", {}, Path("/" + "d" * 95))
    for topic, remaps in (("ipc://@joint_states", {}), ("joint_states", {"joint_states": "ipc://@js"})):
        with pytest.raises(InvalidArgumentError, match="is open to every user of this machine"):
            endpoint(topic, "/", remaps, FOLDER)


def test_names_too_long_for_a_socket_are_shortened_and_stay_apart() -> None:
    folder = Path("/d")  # a name: nothing is made there
    endpoints = [endpoint(f"/lab/{'very/' * 40}long/{last}", "/", {}, folder) for last in ("a", "b", "a")]
    assert endpoints[0] == endpoints[2] != endpoints[1]
    assert all(len(name.removeprefix("ipc://")) == MAX_IPC_PATH for name in endpoints)
    assert endpoint("é" * 60, "/", {}, folder) != endpoint("é" * 61, "/", {}, folder)


def test_a_missing_runtime_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells got by `su`, and containers, name one that is not there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path / "gone")})
    assert folder == tmp_path / f"dyn_service-{os.getuid()}"
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(PermissionDeniedError, match=naming(re.compile(r"file/dyn_service-\d+'"), "Not a directory")):
        runtime_dir({})


def test_runtime_folder_is_the_launchers_or_ones_own(tmp_path: Path) -> None:
    configured = tmp_path / "given"
    with pytest.raises(PermissionDeniedError, match=naming("No such file or directory")):
        runtime_dir({"DYN_RUNTIME_DIR": str(configured)})
    configured.mkdir(mode=0o700)
    assert runtime_dir({"DYN_RUNTIME_DIR": str(configured)}) == configured
    user_folder = runtime_dir({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert user_folder == tmp_path / f"dyn_service-{os.getuid()}"
    assert user_folder.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(configured)
    for folder in (configured, user_folder):
        folder.chmod(0o777)
    for variables in (
        {"XDG_RUNTIME_DIR": str(tmp_path)},
        *({"DYN_RUNTIME_DIR": str(path)} for path in (configured, link)),
    ):
        with pytest.raises(PermissionDeniedError, match="can be written by others: remove it"):
            runtime_dir(variables)


def test_recorder_sends_whole_blocks_in_order() -> None:
    context: zmq.Context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind("inproc://launcher")
    telemetry = Telemetry("plant", context, "inproc://launcher")
    try:
        recorder = Recorder(telemetry, "c", ["t", "x"], block_rows=4, age_s=1e9)
        for k in range(10):
            recorder.row()[:] = (k, -k)
        recorder.flush()
        recorder.flush()
        telemetry.stats({"a": 1, "b": 0.5})
        blocks = []
        for _ in range(3):
            message = decode(pull.recv())
            assert isinstance(message, Rows)
            blocks.append(rows_of(message))
        assert [len(block) for block in blocks] == [4, 4, 2]
        assert np.concatenate(blocks)[:, 0].tolist() == list(range(10))
        last = decode(pull.recv())
        assert isinstance(last, Stats)
        assert (last.node, last.pid, last.values) == ("plant", os.getpid(), {"a": 1, "b": 0.5})
    finally:
        telemetry.close()
        pull.close()
        context.destroy(linger=0)


def test_telemetry_never_waits() -> None:
    context: zmq.Context = zmq.Context()
    unconnected = Telemetry("plant", context, "inproc://nobody-is-there")
    silent = Telemetry("plant", context, None)
    try:
        for _ in range(5000):
            unconnected.stats({"a": 1})
            silent.stats({"a": 1})
        assert unconnected.dropped > 0
        assert silent.dropped == 0
    finally:
        unconnected.close()
        context.destroy(linger=0)
