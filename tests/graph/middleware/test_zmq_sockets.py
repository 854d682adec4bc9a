"""ZeroMQ contexts close within a bound, whatever sockets are open; receiving never blocks."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import zmq

from dyn_service.graph.middleware import zmq_sockets
from dyn_service.graph.middleware.zmq_sockets import Context, close_context, open_context, receive_checked
from tests.conftest import ROOT

WAIT_S = 50.0
"""Far longer than anything here takes."""


def test_open_sockets_are_closed_with_their_context() -> None:
    with open_context() as context:
        socket = context.socket(zmq.PUSH)
        socket.connect("tcp://127.0.0.1:9")
        socket.send(b"to nobody")
    assert socket.closed
    assert context.closed


def test_a_socket_that_cannot_be_closed_does_not_hold_its_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zmq_sockets, "CLOSE_S", 0.1)
    context: Context = zmq.Context()
    unknown = zmq.Context.shadow(context.underlying).socket(zmq.PAIR)  # of the context, which does not know it
    close_context(context)
    assert "did not close within 0.1 s" in caplog.text
    unknown.close()
    for thread in threading.enumerate():
        if thread.name == "dyn-zmq-close":
            thread.join(WAIT_S)
    assert context.closed


def test_an_interrupt_that_leaves_a_socket_open_ends_a_command() -> None:
    """A signal inside pyzmq can leave a socket that the context does not know; closing the context waited for it."""
    code = (
        "from dyn_service.graph.middleware import zmq_sockets\n"
        "zmq_sockets.CLOSE_S = 0.1\n"
        "with zmq_sockets.open_context() as context:\n"
        "    socket = context.socket(1)\n"
        "    context._sockets.discard(socket)\n"
        "    raise KeyboardInterrupt\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_receiving_does_not_wait(scheme: str, ipc_endpoint: str) -> None:
    with open_context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.bind(ipc_endpoint if scheme == "ipc" else "tcp://127.0.0.1:*")
        endpoint = pull.getsockopt_string(zmq.LAST_ENDPOINT)
        with pytest.raises(zmq.Again):
            receive_checked(pull, endpoint)
        push.connect(endpoint)
        push.send(b"message")
        assert pull.poll(1e3 * WAIT_S)
        assert receive_checked(pull, endpoint) == b"message"
