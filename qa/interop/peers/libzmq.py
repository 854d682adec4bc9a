"""A peer of the interoperability run in Python, on pyzmq: see qa/interop/__init__.py for its commands."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import zmq


def open_socket(socket_type: int, keys: list[str]) -> zmq.Socket[bytes]:
    """Returns a socket with these keys, and without limits of stored messages."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(socket_type)
    socket.linger = socket.sndhwm = socket.rcvhwm = 0
    if keys:
        socket.curve_publickey, socket.curve_secretkey = keys[0].encode(), keys[1].encode()
        if len(keys) > 2:
            socket.curve_serverkey = keys[2].encode()
        else:
            socket.curve_server = True
    return socket


def end_with_parent() -> None:
    """Ends the process when the parent closes standard input."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def client(endpoint: str, socket_type: str, heartbeat_ms: str, *keys: str) -> None:
    """Sends a file for each line, and writes the reply to another."""
    socket = open_socket(zmq.REQ if socket_type == "REQ" else zmq.DEALER, [*keys])
    if int(heartbeat_ms):
        socket.heartbeat_ivl = int(heartbeat_ms)
        socket.heartbeat_timeout = socket.heartbeat_ttl = 100 * int(heartbeat_ms)
    socket.connect(endpoint)
    print("ready", flush=True)
    for line in sys.stdin:
        request, reply = map(Path, line.split())
        socket.send(request.read_bytes())
        reply.write_bytes(socket.recv())
        print("done", flush=True)
    socket.close()


def echo(endpoint: str, *keys: str) -> None:
    """Returns each message."""
    end_with_parent()
    router = open_socket(zmq.ROUTER, [*keys])
    router.bind(endpoint)
    print("ready", flush=True)
    while True:
        router.send_multipart(router.recv_multipart())


def relay(endpoint: str, server: str, *keys: str) -> None:
    """Passes messages to a server and back."""
    end_with_parent()
    router, dealer = open_socket(zmq.ROUTER, [*keys]), open_socket(zmq.DEALER, [])
    router.bind(endpoint)
    dealer.connect(server)
    print("ready", flush=True)
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(dealer, zmq.POLLIN)
    sender = b""
    while True:
        ready = dict(poller.poll())
        if router in ready:
            sender, message = router.recv_multipart()
            dealer.send(message)
        if dealer in ready:
            router.send_multipart([sender, dealer.recv()])


ROLES: dict[str, Callable[..., None]] = {"client": client, "echo": echo, "relay": relay}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
