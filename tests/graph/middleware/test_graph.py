"""Discovery by files: living nodes, dead nodes, and other files in the folder."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dyn_service.errors import PermissionDeniedError, UnavailableError
from dyn_service.graph.middleware import graph
from dyn_service.graph.middleware.graph import End, Graph, NodeEntry, Registration, announce_launch, runtime_folders
from tests.conftest import ROOT
from tests.phrases import naming


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "r"
    folder.mkdir(mode=0o700)
    return folder


def entry(name: str = "/arm/plant", **fields: object) -> NodeEntry:
    return NodeEntry(name, os.getpid(), graph.new_token(), **fields)


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes()]


def test_a_node_is_there_until_it_ends_and_says_what_changes(folder: Path) -> None:
    seen, plant = Graph(folder), entry()
    assert seen.nodes() == ()
    registration = Registration(folder, plant)
    other = Registration(folder, entry("/arm/controller"))
    assert names(seen) == ["/arm/controller", "/arm/plant"]
    assert seen.nodes()[1] == plant
    states = End("/arm/joint_states", "sensor_msgs/msg/JointState", "ipc:///nowhere")
    changed_entry = msgspec.structs.replace(plant, state="active", publishers=(states,))
    registration.write(changed_entry)
    assert seen.nodes()[1] == changed_entry
    registration.close()
    assert names(seen) == ["/arm/controller"]
    other.close()
    assert names(seen) == []
    assert list((folder / "graph").iterdir()) == []


def test_a_nodes_file_is_its_owners_alone_and_none_before_it_is_whole(folder: Path) -> None:
    registration = Registration(folder, entry())
    assert registration.path.stat().st_mode & 0o777 == 0o600
    temporary = registration.path.with_name(f".{registration.path.name}")
    registration.path.rename(temporary)  # as a writer's that lives, and has been at it for long
    os.utime(temporary, (1, 1))
    assert Graph(folder).read() == ()
    assert temporary.exists()
    registration.close()
    assert Graph(folder).read() == ()
    assert not temporary.exists()  # its writer is gone
    registration.close()  # once more changes nothing


def test_unchanged_files_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that polls the graph costs one stat; a node's entry is not decoded again when another one changes."""
    seen, reads, decoded = Graph(folder), [], []
    read, decode = Graph.read, graph._read
    monkeypatch.setattr(Graph, "read", lambda self: reads.append(1) or read(self))
    monkeypatch.setattr(graph, "_read", lambda *a: decoded.append(1) or decode(*a))
    registration = Registration(folder, entry())
    os.utime(folder / "graph", ns=(0, 1))  # long ago, so that the folder counts as settled
    for _ in range(5):
        assert not reads[1:]
        seen.nodes()
    assert (len(reads), len(decoded)) == (1, 1)
    other = Registration(folder, entry("/b"))
    assert names(seen) == ["/arm/plant", "/b"]
    assert len(decoded) == 2
    assert seen.changed()  # it changed this very moment, and may again within one tick of the clock
    registration.close()
    other.close()


def test_a_dead_node_is_not_listed_and_its_files_are_removed(folder: Path) -> None:
    left_file, shared_file, outside_file = folder / "js@plant", folder / "shared", folder.parent / "elsewhere"
    with socket.socket(socket.AF_UNIX) as a, socket.socket(socket.AF_UNIX) as b, socket.socket(socket.AF_UNIX) as c:
        for node_entry, path in ((a, left_file), (b, shared_file), (c, outside_file)):
            node_entry.bind(str(path))
    plain = folder / "plain"
    plain.write_text("no socket")
    ends = [
        End("/t", "x/msg/Y", f"ipc://{path}")
        for path in (left_file, shared_file, outside_file, plain, folder / ".." / "elsewhere")
    ]
    dead = Registration(folder, entry("/dead", publishers=tuple(ends[:2]), services=tuple(ends[2:])))
    alive = Registration(folder, entry("/alive", publishers=(ends[1],)))
    dead._release()  # as the system does when a process is killed
    assert names(Graph(folder)) == ["/alive"]
    assert not left_file.exists()
    assert shared_file.exists()  # a living node has it
    assert outside_file.exists()  # not in this folder: no business of the graph's
    assert plain.exists()
    assert not dead.path.exists()
    alive.close()


@pytest.mark.slow
def test_a_node_that_was_killed_is_not_there(folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from dyn_service.graph.middleware.graph import *\n"
        "held = Registration(Path(sys.argv[1]), NodeEntry('/k', 1, 'aa'))\n"
        "print('there', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        seen = Graph(folder)
        assert names(seen) == ["/k"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert seen.read() == ()
    assert list((folder / "graph").iterdir()) == []


def test_two_nodes_of_one_name_are_two(folder: Path) -> None:
    registrations = [
        Registration(folder, entry("/a/b")),
        Registration(folder, entry("/a.b")),
        Registration(folder, entry("/a/b")),
    ]
    assert names(Graph(folder)) == ["/a.b", "/a/b", "/a/b"]
    for registration in registrations:
        registration.close()


def test_names_do_not_leave_the_folder(folder: Path) -> None:
    registrations = [Registration(folder, entry(name)) for name in ("/../../x", "/a\0b", "/" + "é" * 300, "/..")]
    assert {registration.path.parent for registration in registrations} == {folder / "graph"}
    assert len(Graph(folder).nodes()) == 4
    for registration in registrations:
        registration.close()


@pytest.mark.timeout(20)  # a fifo that is waited for would hang
def test_other_files_are_ignored(folder: Path) -> None:
    registration = Registration(folder, entry("/real"))
    graph_files, secret = folder / "graph", folder / "secret"
    secret.write_text("{}")
    (graph_files / "link.node").symlink_to(secret)
    (graph_files / "again.node").symlink_to(registration.path)
    (graph_files / "dir.node").mkdir()
    os.mkfifo(graph_files / "fifo.node")
    (graph_files / "notes.txt").write_text("mine")
    (graph_files / ".begun.node").write_text("")  # by a process that is about to lock it
    open_to_all = graph_files / "open.node"
    open_to_all.write_bytes(msgspec.json.encode(entry("/open")))
    open_to_all.chmod(0o666)
    huge = msgspec.json.encode(entry("/huge")) + b" " * (2 << 20)
    garbage = [
        b"",
        b"\xff\xfe",
        b'{"x": ' + b"[" * 100_000,
        b'{"name": 5}',
        b'{"name": "x", "pid": 1, "token": ""}',
        huge,
    ]
    locked = []
    for k, data in enumerate(garbage):
        held_file = (graph_files / f"garbage{k}.node").open("wb+")
        held_file.write(data)
        held_file.flush()
        graph.fcntl.flock(held_file, graph.fcntl.LOCK_EX)
        locked.append(held_file)
    other_version = Registration(folder, entry("/later", v=99))
    assert names(Graph(folder)) == ["/real"]
    assert secret.read_text() == "{}"
    assert len(list(graph_files.iterdir())) == 1 + 7 + len(garbage) + 1
    for file in locked:
        file.close()
    assert names(Graph(folder)) == ["/real"]  # and now they are dead nodes' files
    assert len(list(graph_files.iterdir())) == 1 + 7 + 1
    old = 1e9
    os.utime(graph_files / ".begun.node", (old, old))
    Graph(folder).read()
    assert not (graph_files / ".begun.node").exists()
    registration.close()
    other_version.close()


def test_a_folder_of_another_or_open_to_others_is_refused(folder: Path) -> None:
    Registration(folder, entry()).close()
    (folder / "graph").chmod(0o777)
    with pytest.raises(PermissionDeniedError, match="can be written by others: remove it"):
        Registration(folder, entry())
    (folder / "graph").chmod(0o700)
    with pytest.raises(UnavailableError, match=naming("/no/graph'", "No such file or directory")):
        Registration(folder / "no", entry())


def test_a_launch_that_ends_may_remove_the_folder_first(folder: Path) -> None:
    registration = Registration(folder, entry())
    registration.path.unlink()
    (folder / "graph").rmdir()
    with pytest.raises(UnavailableError, match=naming("'/arm/plant'", "No such file")):
        registration.write(entry())
    registration.close()
    assert Graph(folder).nodes() == ()


def test_launches_are_found_from_another_terminal(folder: Path, tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(folder)}
    user_folder = folder / f"dyn_service-{os.getuid()}"
    assert runtime_folders(environment) == [user_folder]
    launch, ended_launch, open_one = (tmp_path / name for name in ("dyn-a", "dyn-b", "dyn-c"))
    for path in (launch, ended_launch, open_one):
        path.mkdir(mode=0o700)
    links = [
        announce_launch(path, environment | {"DYN_RUNTIME_DIR": str(launch)})
        for path in (launch, ended_launch, open_one)
    ]
    assert all(link is not None and link.parent == user_folder / "launches" for link in links)
    (user_folder / "launches" / "file").write_text("no link")
    ended_launch.rmdir()
    open_one.chmod(0o777)
    assert runtime_folders(environment) == [user_folder, launch]
    assert not links[1].is_symlink()  # of one that is gone
    assert runtime_folders(environment | {"DYN_RUNTIME_DIR": str(launch)}) == [launch]
    user_folder.chmod(0o777)
    assert announce_launch(launch, environment) is None
    with pytest.raises(PermissionDeniedError):
        runtime_folders(environment)
