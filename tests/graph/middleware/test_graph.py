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
    made = tmp_path / "r"
    made.mkdir(mode=0o700)
    return made


def entry(name: str = "/arm/plant", **more: object) -> NodeEntry:
    return NodeEntry(name, os.getpid(), graph.new_token(), **more)


def names(of: Graph) -> list[str]:
    return [found.name for found in of.nodes()]


def test_a_node_is_there_until_it_ends_and_says_what_changes(folder: Path) -> None:
    seen, plant = Graph(folder), entry()
    assert seen.nodes() == ()
    held = Registration(folder, plant)
    other = Registration(folder, entry("/arm/controller"))
    assert names(seen) == ["/arm/controller", "/arm/plant"]
    assert seen.nodes()[1] == plant
    states = End("/arm/joint_states", "sensor_msgs/msg/JointState", "ipc:///nowhere")
    more = msgspec.structs.replace(plant, state="active", publishers=(states,))
    held.write(more)
    assert seen.nodes()[1] == more
    held.close()
    assert names(seen) == ["/arm/controller"]
    other.close()
    assert names(seen) == []
    assert list((folder / "graph").iterdir()) == []


def test_a_nodes_file_is_its_owners_alone_and_none_before_it_is_whole(folder: Path) -> None:
    held = Registration(folder, entry())
    assert held.path.stat().st_mode & 0o777 == 0o600
    begun = held.path.with_name(f".{held.path.name}")
    held.path.rename(begun)  # as a writer's that lives, and has been at it for long
    os.utime(begun, (1, 1))
    assert Graph(folder).read() == ()
    assert begun.exists()
    held.close()
    assert Graph(folder).read() == ()
    assert not begun.exists()  # its writer is gone
    held.close()  # once more changes nothing


def test_unchanged_files_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that polls the graph costs one stat; a node's entry is not decoded again when another one changes."""
    seen, reads, decoded = Graph(folder), [], []
    read, decode = Graph.read, graph._read
    monkeypatch.setattr(Graph, "read", lambda self: reads.append(1) or read(self))
    monkeypatch.setattr(graph, "_read", lambda *a: decoded.append(1) or decode(*a))
    held = Registration(folder, entry())
    os.utime(folder / "graph", ns=(0, 1))  # long ago, so that the folder counts as settled
    for _ in range(5):
        assert not reads[1:]
        seen.nodes()
    assert (len(reads), len(decoded)) == (1, 1)
    other = Registration(folder, entry("/b"))
    assert names(seen) == ["/arm/plant", "/b"]
    assert len(decoded) == 2
    assert seen.changed()  # it changed this very moment, and may again within one tick of the clock
    held.close()
    other.close()


def test_a_dead_node_is_not_listed_and_its_files_are_removed(folder: Path) -> None:
    left, kept, away = folder / "js@plant", folder / "shared", folder.parent / "elsewhere"
    with socket.socket(socket.AF_UNIX) as a, socket.socket(socket.AF_UNIX) as b, socket.socket(socket.AF_UNIX) as c:
        for one, path in ((a, left), (b, kept), (c, away)):
            one.bind(str(path))
    plain = folder / "plain"
    plain.write_text("no socket")
    ends = [End("/t", "x/msg/Y", f"ipc://{path}") for path in (left, kept, away, plain, folder / ".." / "elsewhere")]
    dead = Registration(folder, entry("/dead", publishers=tuple(ends[:2]), services=tuple(ends[2:])))
    alive = Registration(folder, entry("/alive", publishers=(ends[1],)))
    dead._release()  # as the system does when a process is killed
    assert names(Graph(folder)) == ["/alive"]
    assert not left.exists()
    assert kept.exists()  # a living node has it
    assert away.exists()  # not in this folder: no business of the graph's
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
    both = [
        Registration(folder, entry("/a/b")),
        Registration(folder, entry("/a.b")),
        Registration(folder, entry("/a/b")),
    ]
    assert names(Graph(folder)) == ["/a.b", "/a/b", "/a/b"]
    for one in both:
        one.close()


def test_names_do_not_leave_the_folder(folder: Path) -> None:
    held = [Registration(folder, entry(name)) for name in ("/../../x", "/a\0b", "/" + "é" * 300, "/..")]
    assert {one.path.parent for one in held} == {folder / "graph"}
    assert len(Graph(folder).nodes()) == 4
    for one in held:
        one.close()


@pytest.mark.timeout(20)  # a fifo that is waited for would hang
def test_other_files_are_ignored(folder: Path) -> None:
    held = Registration(folder, entry("/real"))
    inside, outside = folder / "graph", folder / "secret"
    outside.write_text("{}")
    (inside / "link.node").symlink_to(outside)
    (inside / "again.node").symlink_to(held.path)
    (inside / "dir.node").mkdir()
    os.mkfifo(inside / "fifo.node")
    (inside / "notes.txt").write_text("mine")
    (inside / ".begun.node").write_text("")  # by a process that is about to lock it
    open_to_all = inside / "open.node"
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
        held_file = (inside / f"garbage{k}.node").open("wb+")
        held_file.write(data)
        held_file.flush()
        graph.fcntl.flock(held_file, graph.fcntl.LOCK_EX)
        locked.append(held_file)
    other_version = Registration(folder, entry("/later", v=99))
    assert names(Graph(folder)) == ["/real"]
    assert outside.read_text() == "{}"
    assert len(list(inside.iterdir())) == 1 + 7 + len(garbage) + 1
    for file in locked:
        file.close()
    assert names(Graph(folder)) == ["/real"]  # and now they are dead nodes' files
    assert len(list(inside.iterdir())) == 1 + 7 + 1
    old = 1e9
    os.utime(inside / ".begun.node", (old, old))
    Graph(folder).read()
    assert not (inside / ".begun.node").exists()
    held.close()
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
    held = Registration(folder, entry())
    held.path.unlink()
    (folder / "graph").rmdir()
    with pytest.raises(UnavailableError, match=naming("'/arm/plant'", "No such file")):
        held.write(entry())
    held.close()
    assert Graph(folder).nodes() == ()


def test_launches_are_found_from_another_terminal(folder: Path, tmp_path: Path) -> None:
    elsewhere = {"XDG_RUNTIME_DIR": str(folder)}
    own = folder / f"dyn_service-{os.getuid()}"
    assert runtime_folders(elsewhere) == [own]
    launch, gone, open_one = (tmp_path / name for name in ("dyn-a", "dyn-b", "dyn-c"))
    for path in (launch, gone, open_one):
        path.mkdir(mode=0o700)
    links = [announce_launch(path, elsewhere | {"DYN_RUNTIME_DIR": str(launch)}) for path in (launch, gone, open_one)]
    assert all(link is not None and link.parent == own / "launches" for link in links)
    (own / "launches" / "file").write_text("no link")
    gone.rmdir()
    open_one.chmod(0o777)
    assert runtime_folders(elsewhere) == [own, launch]
    assert not links[1].is_symlink()  # of one that is gone
    assert runtime_folders(elsewhere | {"DYN_RUNTIME_DIR": str(launch)}) == [launch]
    own.chmod(0o777)
    assert announce_launch(launch, elsewhere) is None
    with pytest.raises(PermissionDeniedError):
        runtime_folders(elsewhere)
