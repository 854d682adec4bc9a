"""Key files, the folder of keys, `dyn keys`, and which endpoints need keys."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dyn_service import AsyncClient, Client
from dyn_service.cli.main import main
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from dyn_service.graph.middleware import topics
from dyn_service.service.protocol.endpoints import peer_uid
from dyn_service.service.protocol.keys import client_keys, make_keys, read_keys, write_keys
from dyn_service.service.protocol.messages import ADMINISTRATION, Role, required_role
from dyn_service.service.server.administration.access import Caller, KeyFolder, default_folder, local_caller
from dyn_service.service.server.settings import ServerSettings, read_settings
from dyn_service.service.server.transport.endpoints import check_endpoint, listen, needs_keys
from tests.conftest import ROOT
from tests.phrases import naming, unnamed

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


# key files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_secrets_have_mode_0600_with_any_umask(tmp_path: Path, umask: int) -> None:
    keys = make_keys("panda-arm", make_keys("server").public)
    file = tmp_path / "panda-arm.key"
    former_umask = os.umask(umask)
    try:
        write_keys(file, keys)
    finally:
        os.umask(former_umask)
    assert mode(file) == 0o600
    assert read_keys(file) == keys
    assert keys.secret not in repr(keys)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    write_keys(file, make_keys("a"))
    content_before = file.read_bytes()
    with pytest.raises(FailedPreconditionError, match="never overwritten"):
        write_keys(file, make_keys("a"))
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedPreconditionError):
        write_keys(link, make_keys("a"))
    assert file.read_bytes() == content_before
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_secret_that_others_can_access_is_refused_with_the_remedy(tmp_path: Path, loose: int) -> None:
    file = tmp_path / "a.key"
    write_keys(file, make_keys("a"))
    file.chmod(loose)
    with pytest.raises(PermissionDeniedError, match=naming(f"{loose:04o}", f"chmod 600 {file}")):
        read_keys(file)
    file.chmod(0o600)
    read_keys(file)
    file.chmod(0o400)
    read_keys(file)


@AS_ROOT
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    write_keys(file, make_keys("a"))
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(PermissionDeniedError, match=f"belongs to user {NOBODY}, expected 0"):
        read_keys(file)


def test_invalid_key_files_are_refused_without_their_text(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    write_keys(file, make_keys("a"))
    sound = file.read_text()
    secret = read_keys(file).secret
    for spoilt in (
        "",
        "name",
        sound.replace("secret", "sekret"),
        sound.replace("name = 'a'", "name = 7"),
        sound.replace("name = 'a'", "name = '../a'"),
        sound.replace(secret, secret[:-1]),
        sound.replace(secret, make_keys("b").secret),
        sound + "server = 'short'\n",
        sound + "more = 'x'\n",
        sound + f"[{secret}",
        "\x00\xff" * 10,
    ):
        file.write_text(spoilt)
        with pytest.raises(InvalidArgumentError, match=naming("dyn keys new")) as error:
            read_keys(file)
        assert secret[:-1] not in str(error.value)
        assert error.value.__cause__ is None
    with pytest.raises(NotFoundError):
        read_keys(tmp_path / "nothing")
    with pytest.raises(InvalidArgumentError, match="not a regular file"):
        read_keys(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidArgumentError, match="not a regular file"):
        read_keys(tmp_path / "pipe")  # and does not wait for a writer


@pytest.mark.parametrize("name", ["", "a b", "../a", "a/b", "-a", ".a", "a" * 65, "ä", "a\n"])
def test_invalid_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="the name of a key"):
        KeyFolder(tmp_path / "k").make(name, Role.QUERY)
    assert not list((tmp_path / "k").glob("*a*.key"))


# the folder


def test_the_folder_and_what_is_in_it_are_their_owners(tmp_path: Path) -> None:
    former_umask = os.umask(0)
    try:
        folder = KeyFolder(tmp_path / "config" / "keys")
        file = folder.make("panda", Role.QUERY)
    finally:
        os.umask(former_umask)
    assert file == folder.folder / "panda.key"
    assert mode(folder.folder) == 0o700
    assert {path.name: mode(path) for path in folder.folder.iterdir()} == dict.fromkeys(
        [".lock", "allowed", "panda.key", "server.key"], 0o600
    )
    assert client_keys(file).server == folder.server_keys().public
    assert folder.own_keys().server == folder.own_keys().public


def test_a_name_is_unique_until_it_is_revoked(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    first = read_keys(folder.make("panda", Role.QUERY, destination=tmp_path / "1"))  # type: ignore[arg-type]
    with pytest.raises(FailedPreconditionError, match="'panda' is allowed already"):
        folder.make("panda", Role.ADMIN, destination=tmp_path / "2")
    assert not (tmp_path / "2").exists()
    assert folder.revoke("panda").revoked == folder.revoke("panda").revoked
    assert folder.access_list().caller(first.public) is None
    second = read_keys(folder.make("panda", Role.LOAD, destination=tmp_path / "2"))  # type: ignore[arg-type]
    access_list = folder.access_list()
    assert access_list.caller(first.public) is None
    assert access_list.caller(second.public) == Caller("key panda", Role.LOAD)
    with pytest.raises(NotFoundError, match=naming("'pnda'", "'panda'")):
        folder.revoke("pnda")


def test_a_public_key_can_be_registered(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    lab_keys = make_keys("lab")
    assert folder.make("lab", Role.LOAD, public=lab_keys.public) is None
    assert folder.access_list().caller(lab_keys.public) == Caller("key lab", Role.LOAD)
    for public in (lab_keys.public, folder.server_keys().public):
        with pytest.raises(FailedPreconditionError, match="has another name already"):
            folder.make("other", Role.QUERY, public=public)
    with pytest.raises(InvalidArgumentError, match="public must be a public key"):
        folder.make("other", Role.QUERY, public="short")


def test_a_list_that_cannot_be_written_leaves_no_secret_behind(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    folder.make_server()
    folder.list_file.write_text("nonsense\n")
    with pytest.raises(InvalidArgumentError):
        folder.make("panda", Role.QUERY)
    folder.list_file.unlink()
    folder.list_file.mkdir()
    (folder.list_file / "x").touch()
    with pytest.raises((DynError, OSError)):
        folder.make("panda", Role.QUERY)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "allowed", "server.key"]


def test_concurrent_changes_are_all_made(tmp_path: Path) -> None:
    """By threads and another process; a concurrent reader never reads a partial list."""
    folder = KeyFolder(tmp_path)
    folder.make_server()
    access_list = folder.access_list()
    other = subprocess.Popen(
        [sys.executable, "-m", "dyn_service", "keys", "new", "other", "--folder", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    threads = [
        threading.Thread(target=KeyFolder(tmp_path).make, args=(f"k{number}", Role.QUERY)) for number in range(12)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        access_list.check(at_once=True)
        assert access_list.fault is None
    assert other.wait(60) == 0
    assert set(folder.entries()) == {"other", *(f"k{number}" for number in range(12))}


def test_where_keys_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_SERVICE_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "dyn_service" / "keys"
    monkeypatch.setenv("DYN_SERVICE_KEYS", str(tmp_path / "elsewhere"))
    assert KeyFolder().folder == tmp_path / "elsewhere"
    assert KeyFolder(tmp_path).folder == tmp_path


# the command


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def dyn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command `dyn` in this process."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["dyn", *words])
        with pytest.raises(SystemExit) as excinfo:
            main()
        return Done(int(excinfo.value.code or 0), *capsys.readouterr())

    return run


def test_the_command_makes_lists_shows_and_revokes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dyn: Callable[..., Done]
) -> None:
    monkeypatch.setenv("DYN_SERVICE_KEYS", str(tmp_path))

    def keys(*words: str) -> str:
        done = dyn("keys", *words)
        assert done.returncode == 0, done.stderr
        assert "secret" not in done.stdout
        return done.stdout

    folder = KeyFolder(tmp_path)
    assert keys("new", "--server").endswith(f"{folder.server_keys().public}\n")
    assert f"made {tmp_path / 'panda.key'}" in keys("new", "panda")
    keys("new", "lab", "--role", "load", "--output", str(tmp_path / "out.key"))
    assert keys("show") == f"{folder.server_keys().public}\n"
    assert keys("show", "lab") == f"{read_keys(tmp_path / 'out.key').public}\n"
    keys("revoke", "panda")
    rows = json.loads(keys("list", "--json"))
    assert [(row["name"], row["role"], row["revoked"] is None) for row in rows] == [
        ("panda", "query", False),
        ("lab", "load", True),
    ]
    assert [line.split()[:3] for line in keys("list").splitlines()] == [
        ["panda", "query", "revoked"],
        ["lab", "load", "since"],
    ]
    for words, says in (
        (["new"], "--server"),
        (["new", "a", "--server"], "NAME"),
        (["new", "a", "--role", "root"], "--role must be one of query, load, admin, found 'root'"),
        (["new", "lab"], "'lab' is allowed already"),
        (["revoke", "nobody"], "there is no key 'nobody'"),
        (["show", "nobody"], "there is no key 'nobody'"),
    ):
        done = dyn("keys", *words)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert says in done.stderr


def test_errors_of_dyn_keys_name_the_next_step(tmp_path: Path, dyn: Callable[..., Done]) -> None:
    folder = str(tmp_path / "keys")
    output = dyn("keys", "show", "--folder", folder)
    assert (output.returncode, output.stderr.count("\n")) == (1, 1)
    assert "dyn keys new --server makes" in output.stderr
    assert not (tmp_path / "keys").exists()
    for words in (["new", "panda"], ["revoke", "panda"]):
        assert dyn("keys", *words, "--folder", folder).returncode == 0
    second_output = dyn("keys", "new", "panda", "--folder", folder)
    assert second_output.returncode == 1
    assert "panda.key already exists" in second_output.stderr
    assert unnamed(second_output.stderr, "revoked", "--output") == []
    (tmp_path / "keys" / "panda.key").unlink()
    assert dyn("keys", "new", "panda", "--folder", folder).returncode == 0


def test_a_client_command_refuses_a_loose_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dyn: Callable[..., Done]
) -> None:
    file = KeyFolder(tmp_path).make("panda", Role.QUERY)
    assert file is not None
    file.chmod(0o644)
    command = ["call", "health", "--server", "tcp://127.0.0.1:9"]
    by_option = dyn(*command, "--key", str(file))
    monkeypatch.setenv("DYN_SERVICE_KEY", str(file))
    for done in (by_option, dyn(*command)):
        assert done.returncode == 1
        assert "chmod 600" in done.stderr


# roles


def test_every_query_has_its_role() -> None:
    roles = {name: required_role(name) for name in ADMINISTRATION}
    assert {name for name, role in roles.items() if role is Role.LOAD} == {
        "load_robot",
        "overlay_robot",
        "unload_robot",
    }
    assert {name for name, role in roles.items() if role is Role.ADMIN} == {"stats"}
    assert required_role("inverse_dynamics") is required_role("no such query") is Role.QUERY
    assert Role.QUERY < Role.LOAD < Role.ADMIN


@pytest.mark.parametrize("allow_load", [True, False])
def test_local_callers_may_load_with_allow_load(allow_load: bool) -> None:
    caller = local_caller("uid 1000", allow_load=allow_load)
    caller.check("stats")
    caller.check("inverse_dynamics")
    if allow_load:
        caller.check("load_robot")
        return
    with pytest.raises(PermissionDeniedError, match=naming("load", "unload")) as error:
        caller.check("load_robot")
    assert error.value.path == "query"


# endpoints


@pytest.mark.parametrize(
    ("endpoint", "remote", "required"),
    [
        ("tcp://127.0.0.1:5755", False, True),
        ("tcp://localhost:5755", False, True),
        ("tcp://[::1]:5755", False, True),
        ("ipc:///tmp/x", False, True),
        ("tcp://0.0.0.0:5755", True, True),
        ("tcp://*:5755", True, True),
        ("tcp://[::]:5755", True, True),
        ("tcp://10.0.0.1:5755", True, True),
        ("tcp://eth0:5755", True, True),
        ("tcp://127.0.0.1.example.org:5755", True, True),
    ],
)
def test_which_endpoints_ask_for_keys(endpoint: str, remote: bool, required: bool) -> None:
    assert needs_keys(endpoint, "remote") is remote
    assert needs_keys(endpoint, "required") is required


@pytest.mark.parametrize("endpoint", ["ipc://@open", "ipc://@", "ipc://*"])
def test_an_ipc_name_without_a_file_is_refused(endpoint: str) -> None:
    for check in (check_endpoint, lambda endpoint: ServerSettings(endpoints=[endpoint])):
        with pytest.raises(InvalidArgumentError, match="only its owner can connect"):
            check(endpoint)


@pytest.mark.parametrize("port", [65536, 75000, 10**30])
def test_a_port_over_65535_is_refused_by_server_and_client(port: int) -> None:
    """ZeroMQ would reduce 75000 modulo 65536 and listen at 9464."""
    endpoint = f"tcp://127.0.0.1:{port}"
    sides: tuple[Callable[[str], object], ...] = (
        check_endpoint,
        lambda endpoint: ServerSettings(endpoints=[endpoint]),
        Client,
        AsyncClient,
        lambda endpoint: topics.endpoint(endpoint, "/", {}, Path("/tmp")),
    )
    for check in sides:
        with pytest.raises(InvalidArgumentError, match=naming(f"'{endpoint}'", "65535")):
            check(endpoint)
    assert check_endpoint("tcp://127.0.0.1:65535")


def test_a_socket_file_is_created_with_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is created with its mode; setting the mode later would leave a gap."""
    monkeypatch.setattr(os, "chmod", lambda *_: pytest.fail("the mode was set later"))
    former_umask = os.umask(0)
    try:
        listener, endpoint = listen(f"ipc://{tmp_path}/s")
        assert mode(tmp_path / "s") == 0o600
        assert os.umask(0) == 0
        listener.close()
        endpoint.clear()
    finally:
        os.umask(former_umask)
    assert not (tmp_path / "s").exists()


@AS_ROOT
@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not report the user of a connection")
def test_the_user_at_the_other_end_is_known(tmp_path: Path) -> None:
    local_end, remote_end = socket.socketpair()
    with local_end, remote_end:
        assert peer_uid(local_end) == os.geteuid()
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    path = str(tmp_path / "open")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        os.chmod(path, 0o666)
        listening.listen()
        code = f"""
import os, socket
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
connected = socket.socket(socket.AF_UNIX)
connected.connect({path!r})
connected.recv(1)
"""
        child = subprocess.Popen([sys.executable, "-c", code])
        listening.settimeout(60)
        connected, _ = listening.accept()
        with connected:
            assert peer_uid(connected) == NOBODY
        assert child.wait(60) == 0


# settings


def test_a_parameter_file_sets_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    text = "server: {ros__parameters: {keys: required, keys_folder: keys, audit: log/audit.jsonl}}\n"
    file.write_text(text)
    settings = read_settings(file)
    assert settings.keys == "required"
    assert Path(settings.keys_folder) == tmp_path / "keys"
    assert Path(settings.audit) == tmp_path / "log" / "audit.jsonl"
    assert ServerSettings().keys == "remote"
    file.write_text(text.replace("required", "none"))
    with pytest.raises(InvalidArgumentError, match="keys"):
        read_settings(file)
    with pytest.raises(InvalidArgumentError, match=naming("keys", "remote", "required", "'none'")):
        ServerSettings(keys="none")  # type: ignore[arg-type]
