"""Builds the peers of other libraries, or states why a library is absent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

PEERS = Path(__file__).parent / "peers"

JEROMQ_PACKAGE = "toree==0.5.0"
"""A package of PyPI that contains JeroMQ 0.4 with its encryption, for machines without Maven's registry."""


OLD_PYZMQ = "pyzmq==17.1.2"
"""Its wheels for Linux on x86-64 contain libzmq 4.2.5."""


class AbsentError(Exception):
    """A toolchain or a package is not available; the message is the reason."""


@dataclass(frozen=True)
class Library:
    """An implementation of ZMTP.

    command: its peer. reconnects: whether its sockets connect again by themselves.
    """

    name: str
    command: tuple[str, ...]
    mechanisms: tuple[str, ...] = ("NULL", "CURVE")
    reconnects: bool = True
    heartbeats: bool = True


def run(*command: str | Path, folder: Path, absent: str = "") -> str:
    """Returns the output of a command.

    absent: pattern of an error that means that a package cannot be fetched here.

    Raises:
        AbsentError: The program does not exist, or its error matches `absent`.
        RuntimeError: It failed.
    """
    if shutil.which(str(command[0])) is None:
        raise AbsentError(f"no {command[0]}")
    # The gate's constraints are for this package's environment; a peer may be a library of another version.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        if absent and re.search(absent, done.stderr + done.stdout):
            raise AbsentError(f"{command[0]} reaches no registry")
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


_UNREACHABLE = "|".join(
    [
        "ENOTFOUND",
        "EAI_AGAIN",
        "ECONNREFUSED",
        "Could not resolve",
        "failed to download",
        "No matching distribution",
        "No module named pip",
        "Connection",
    ]
)


def libzmq(folder: Path) -> Library:
    """pyzmq, in a process of its own."""
    return Library(f"pyzmq (libzmq {zmq.zmq_version()})", (sys.executable, str(PEERS / "libzmq.py")))


def old_libzmq(folder: Path) -> Library:
    """libzmq 4.2, the oldest that is supported, from `OLD_PYZMQ`, whose Python is not needed."""
    kind = ("--only-binary", ":all:", "--python-version", "36", "--abi", "cp36m", "--platform", "manylinux1_x86_64")
    arguments = ("download", "--quiet", "--no-deps", *kind, "--dest", folder)
    run(sys.executable, "-m", "pip", *arguments, OLD_PYZMQ, folder=folder, absent=_UNREACHABLE)
    shutil.unpack_archive(next(folder.glob("pyzmq*.whl")), folder, "zip")
    command = (sys.executable, str(PEERS / "old_libzmq.py"), str(next(folder.rglob("libzmq*.so*"))))
    try:
        version = run(*command, "version", folder=folder).strip()
    except RuntimeError:
        raise AbsentError("its binary does not run on this machine") from None
    return Library(f"libzmq {version}", command)


def npm(folder: Path) -> Library:
    """npm's zeromq, prebuilt."""
    for name in ("peer.mjs", "package.json"):
        shutil.copy(PEERS / name, folder)
    run("npm", "install", "--no-audit", "--no-fund", "--prefer-offline", folder=folder, absent=_UNREACHABLE)
    text = 'import("zeromq").then(z => console.log(require("zeromq/package.json").version, z.version))'
    versions = run("node", "-e", text, folder=folder).split()
    return Library(f"zeromq of npm {versions[0]} (libzmq {versions[1]})", ("node", str(folder / "peer.mjs")))


def jeromq(folder: Path) -> Library:
    """JeroMQ from the archive or folder of classes that the variable DYN_JEROMQ names, else of `JEROMQ_PACKAGE`."""
    run("javac", "-version", folder=folder)
    if classes := os.environ.get("DYN_JEROMQ"):
        library = Path(classes)
    else:
        arguments = ("download", "--quiet", "--no-deps", "--no-build-isolation", "--dest", folder)
        run(sys.executable, "-m", "pip", *arguments, JEROMQ_PACKAGE, folder=folder, absent=_UNREACHABLE)
        archive = next(folder.glob("toree*"))
        shutil.unpack_archive(archive, folder, None if archive.suffix == ".gz" else "zip")
        library = next(folder.rglob("toree-assembly*.jar"))
    path = f"{library}{os.pathsep}{folder}"
    run("javac", "-nowarn", "-cp", path, "-d", folder, PEERS / "Peer.java", folder=folder)
    has_heartbeats = "setHeartbeatIvl" in run("javap", "-cp", path, "org.zeromq.ZMQ$Socket", folder=folder)
    version = "0.5 or later" if has_heartbeats else "0.4"
    command = ("java", "-cp", path, "Peer")
    return Library(f"JeroMQ {version}", command, heartbeats=has_heartbeats)


def zmq_rs(folder: Path) -> Library:
    """zmq.rs, without CURVE, heartbeats and reconnects, which it does not implement."""
    shutil.copytree(PEERS / "rust", folder / "rust", ignore=shutil.ignore_patterns("target"))
    run("cargo", "build", "--quiet", "--release", folder=folder / "rust", absent=_UNREACHABLE)
    version = re.search(r'name = "zeromq"\nversion = "([^"]+)"', (folder / "rust" / "Cargo.lock").read_text())
    assert version is not None
    target = Path(os.environ.get("CARGO_TARGET_DIR", folder / "rust" / "target"))
    return Library(
        f"zmq.rs {version[1]}", (str(target / "release" / "peer"),), ("NULL",), reconnects=False, heartbeats=False
    )


LIBRARIES: dict[str, Callable[[Path], Library]] = {
    "libzmq": libzmq,
    "libzmq-4.2": old_libzmq,
    "npm": npm,
    "jeromq": jeromq,
    "zmq.rs": zmq_rs,
}
"""By the names of the command line; each builds its peer in an empty folder."""
