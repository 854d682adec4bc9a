"""Access to a launch: only its user has it, unless the launch file specifies otherwise."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dyn_service import Client, PermissionDeniedError, UnavailableError
from dyn_service.graph.launch.runtime import Runtime, make_folder
from dyn_service.graph.middleware.topics import MAX_IPC_PATH
from tests.conftest import ROOT, URDF
from tests.graph.launches import Launched, pendulum, wait_for

pytestmark = pytest.mark.slow
"""In wall time, with processes that are killed or wait: `python -m pytest -m slow`."""

NOBODY = 65534
SOCKETS = [
    "@controller", "@plant", "@server", "controller.controller_state@controller", "controller.loads@controller",
    "controller.signals@controller", "diagnostics@controller", "diagnostics@plant", "diagnostics@server", "dynamics",
    "joint_commands@controller", "joint_states@plant", "plant_state@plant",
]  # fmt: skip
"""Names of the topics' sockets, without their numbers; the launcher's socket is not included."""
DROP = f"""
import os
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
"""
"""Once what is needed is imported: Python itself may lie where another user may not look."""
CONNECT = f"""
import socket, sys
{DROP}
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
            print("connected", path)
        except OSError as error:
            print(type(error).__name__, path)
"""
ASK = f"""
import sys
from dyn_service import Client, DynError
Client("ipc:///nowhere").close()
{DROP}
with Client(sys.argv[1], timeout_s=0.5, compile_wait_s=0.0) as client:
    for act in (client.list_robots, lambda: client.load_robot(sys.argv[2]), lambda: client.unload_robot("pendulum")):
        try:
            print("did", act())
        except DynError as error:
            print(type(error).__name__)
"""


def as_nobody(code: str, *arguments: str) -> list[str]:
    """Returns the output of the code run by another user."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def listening_tcp(pid: int) -> list[str]:
    """Addresses, as in /proc, at which the process listens on TCP."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except FileNotFoundError:
            continue
    openings = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                openings.append(fields[1])
    return openings


def test_a_launch_is_its_users_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.launch.yaml"
    file.write_text(pendulum(), "utf-8")
    with Launched(file) as launch:
        endpoint = launch.wait_line("[launch] server answers at ").rpartition(" ")[2]
        folder = Path(endpoint.removeprefix("ipc://")).parent
        socket_paths = lambda: sorted(path for path in folder.iterdir() if stat.S_ISSOCK(path.lstat().st_mode))
        socket_names = lambda: [
            path.name.rpartition(".")[0] or path.name for path in socket_paths() if path.name != ".launcher"
        ]
        wait_for(lambda: socket_names() == SOCKETS, "the sockets are others")
        sockets = socket_paths()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in sockets} == {0o600}
        nodes = launch.nodes()
        assert sorted(nodes) == ["controller", "plant", "server"]
        for pid in (launch.process.pid, *nodes.values()):
            assert listening_tcp(pid) == []
        with Client(endpoint, timeout_s=240.0) as client:  # its own user may ask, and that is all
            assert client.list_robots() == ["pendulum"]
            gravity_forces = client.robot("pendulum").gravity_forces(np.array([0.5]))
            with pytest.raises(PermissionDeniedError):
                client.unload_robot("pendulum")
            with pytest.raises(PermissionDeniedError):
                client.load_robot(URDF / "pendulum.urdf")
            if os.getuid() == 0:
                paths = [str(path) for path in sockets]
                refusals = [f"PermissionError {path}" for path in paths]
                assert as_nobody(CONNECT, *paths) == refusals
                answer = as_nobody(ASK, endpoint, (URDF / "pendulum.urdf").read_text("utf-8"))
                assert answer == ["UnavailableError"] * 3
                folder.chmod(0o711)  # and if the folder were open, the sockets are not
                assert as_nobody(CONNECT, *paths) == refusals
            assert client.robot("pendulum").gravity_forces(np.array([0.5])) == gravity_forces
        assert launch.stop() == 0, launch.text
        wait_for(lambda: not folder.exists(), "the private folder was left behind")


def test_a_launch_file_can_give_access(tmp_path: Path) -> None:
    """A launch file can open a TCP port and allow clients to load robots."""
    file = tmp_path / "open.launch.yaml"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    parameters = f"{{name: endpoints, value: ['{endpoint}']}}, {{name: allow_load, value: true}}"
    file.write_text(f"launch: [{{node: {{pkg: dyn_service, exec: server, param: [{parameters}]}}}}]", "utf-8")
    with Launched(file) as launch:
        assert launch.wait_line("[launch] server answers at ").endswith(endpoint)
        with Client(endpoint, timeout_s=240.0) as client:
            assert client.load_robot(URDF / "pendulum.urdf").name == "pendulum"
        assert launch.stop() == 0, launch.text


def test_the_folder_is_made_where_sockets_fit_and_its_user_is_alone(tmp_path: Path) -> None:
    short_folder = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path
    deep = tmp_path.joinpath(*["deep"] * 20)
    deep.mkdir(parents=True)
    paths = []
    try:
        paths.append(make_folder({"XDG_RUNTIME_DIR": str(short_folder)}))
        assert paths[-1].parent == short_folder
        paths.append(make_folder({"XDG_RUNTIME_DIR": str(short_folder)}, "two arms/left" * 9))
        assert paths[-1].name.startswith("dyn-two-arms-left")
        short_folder.chmod(0o777)
        for variables in ({"XDG_RUNTIME_DIR": str(short_folder)}, {"XDG_RUNTIME_DIR": str(deep), "TMPDIR": str(deep)}):
            paths.append(make_folder(variables))
            assert paths[-1].parent not in (short_folder, deep)
        for folder in paths:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert len(os.fsencode(folder)) + 40 < MAX_IPC_PATH
    finally:
        for folder in (*paths, short_folder):
            folder.rmdir()
    with closing(Runtime("panda")) as runtime:
        assert runtime.folder.name.startswith("dyn-panda-")
        assert runtime.folder.stat().st_uid == os.getuid()
        assert stat.S_IMODE(runtime.folder.stat().st_mode) == 0o700
    assert not runtime.folder.exists()


def test_no_folder_at_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/proc")
    monkeypatch.setattr("dyn_service.graph.launch.runtime._LAST_RESORT", "/proc")
    with pytest.raises(UnavailableError, match=r"sockets: '/proc': "):
        make_folder({"TMPDIR": "/proc"})
