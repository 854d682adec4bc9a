"""Messages between processes: none arrives without its payload, and their use of open files and memory is bounded."""

from __future__ import annotations

import gc
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyn_service.service.server.process import files_allowed
from dyn_service.service.server.workers.pipes import (
    _SHARE_OF_FILES,
    Pipe,
    PipeClosedError,
    allocate,
    allocate_shared,
    descriptor_of,
    map_received,
    pair,
)


class Word(msgspec.Struct):
    """The only message here."""

    text: str = ""


LONG = b"x" * 100_000
MAPPED = "memfd:dyn"


def files() -> int:
    """Number of open memory files. Sockets of earlier tests may close meanwhile: ZeroMQ does so in the background."""
    gc.collect()
    return sum("/memfd:" in os.path.realpath(entry) for entry in os.scandir("/proc/self/fd"))


def maps() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count(MAPPED)


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """At most `count` more files can be opened in this context."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = []
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        try:
            while True:
                descriptors.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for _ in range(count):
            os.close(descriptors.pop())
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe[Word], Pipe[Word]]]:
    server_socket, worker_socket = pair()
    server_end, worker_end = Pipe(server_socket, Word, waits=False), Pipe(worker_socket, Word, waits=True)
    yield server_end, worker_end
    server_end.close()
    worker_end.close()


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 100_000, 5_000_000])
@pytest.mark.parametrize("make", [bytes, bytearray, allocate, allocate_shared])
def test_messages_arrive(pipes: Any, make: Any, size: int) -> None:
    if make is allocate_shared and not size:
        pytest.skip("there is no shared memory of no bytes")
    server_end, worker_end = pipes
    body = bytearray(make(size))
    body[:] = os.urandom(size)
    payload = make(size)
    if make is bytes:
        payload = bytes(body)
    else:
        payload[:] = body
    server_end.send(Word("a"), payload)
    ((word, received_payload),) = [next(worker_end.read())]
    assert (word.text, bytes(received_payload)) == ("a", bytes(body))


def test_a_message_whose_payload_cannot_be_read_ends_the_pipe(pipes: Any) -> None:
    server_end, worker_end = pipes
    worker_end.send(Word(), LONG)
    files_before = files()
    with files_left(0), pytest.raises(PipeClosedError, match=r"100000 bytes .*no open file is left"):
        [*server_end.read()]
    assert files() == files_before


def test_one_open_file_is_enough_to_receive(pipes: Any) -> None:
    server_end, worker_end = pipes
    worker_end.send(Word(), LONG)
    with files_left(1):
        ((_, body),) = [*server_end.read()]
        assert bytes(body) == LONG


def test_received_memory_uses_no_file_and_is_freed(pipes: Any) -> None:
    server_end, worker_end = pipes
    files_before, mapped = files(), maps()
    bodies = []
    for _ in range(50):
        worker_end.send(Word(), LONG)
        bodies += [body for _, body in server_end.read()]
    assert len(bodies) == 50
    assert files() == files_before
    assert maps() > mapped
    assert all(bytes(body) == LONG for body in bodies)
    del bodies
    assert maps() == mapped


def test_sendable_memory_uses_one_open_file(pipes: Any) -> None:
    files_before, mapped = files(), maps()
    buffers = [allocate_shared(100_000) for _ in range(50)]
    assert files() == files_before + 50
    part = buffers[0][10:]
    assert descriptor_of(buffers[0]) is not None
    assert descriptor_of(part) is None  # a part is not the whole
    del buffers, part
    assert (files(), maps()) == (files_before, mapped)


def test_a_failure_to_get_memory_leaves_nothing_open() -> None:
    files_before = files()
    for size in (0, 1 << 50, 1 << 62):  # nothing to map; more than can be mapped; more than a file can have
        with pytest.raises(OSError, match=r"\[Errno"):
            allocate_shared(size)
    with files_left(0), pytest.raises(OSError, match="Too many open files"):
        allocate_shared(100)
    assert files() == files_before


def test_shared_memory_shorter_than_announced_is_refused() -> None:
    """Access beyond its end would kill this process."""
    descriptor = os.memfd_create("short")
    os.ftruncate(descriptor, 10)
    files_before = files()
    with pytest.raises(OSError, match="100000 bytes were announced, found 10"):
        map_received(descriptor, 100_000)
    assert files() == files_before - 1


def test_messages_that_wait_leave_open_files_to_others(pipes: Any) -> None:
    server_end, worker_end = pipes
    files_before = files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 200, hard))
    try:
        max_files = files_allowed()
        assert max_files is not None
        buffers = [allocate(100_000) for _ in range(300)]
        assert files() - files_before <= max_files // _SHARE_OF_FILES
        assert descriptor_of(buffers[0]) is not None
        assert descriptor_of(buffers[-1]) is None
        for buffer in (buffers[0], buffers[-1]):
            buffer[:] = LONG
            server_end.send(Word(), buffer)
            _, body = next(worker_end.read())
            assert bytes(body) == LONG
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    del buffers, buffer
    assert files() == files_before


def test_no_open_file_at_all_is_no_reason_to_refuse_a_message() -> None:
    with files_left(0):
        buffer = allocate(100_000)
    assert len(buffer) == 100_000
    assert descriptor_of(buffer) is None


def test_a_closed_other_end_raises(pipes: Any) -> None:
    server_end, worker_end = pipes
    worker_end.close()
    with pytest.raises(PipeClosedError):
        [*server_end.read()]
    with pytest.raises(PipeClosedError):
        server_end.send(Word())


def test_messages_that_cannot_be_sent_are_queued() -> None:
    server_socket, worker_socket = pair()
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    server_end, worker_end = Pipe(server_socket, Word, waits=False), Pipe(worker_socket, Word, waits=True)
    count = 0
    while not server_end.writing:
        server_end.send(Word(str(count)), LONG)
        count += 1
    messages = worker_end.read()
    for number in range(count):
        server_end.write()
        word, body = next(messages)
        assert (word.text, len(body)) == (str(number), len(LONG))
    assert not server_end.writing
    server_end.close()
    worker_end.close()
