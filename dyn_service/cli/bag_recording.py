"""`dyn bag record`, `play` and `verify`, with their output."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from dyn_service import Robot
from dyn_service.cli.console import say, tell
from dyn_service.errors import DeadlineExceededError, InvalidArgumentError
from dyn_service.graph.bags import requests
from dyn_service.graph.bags.playing import Player
from dyn_service.graph.bags.reader import BagReader, size_text
from dyn_service.graph.bags.recording import TopicRecorder
from dyn_service.graph.bags.requests import WITHIN, Answer, pinocchio, replay, report, robots_of
from dyn_service.graph.bags.requests import verify as compare_all
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.graph import runtime_folders
from dyn_service.graph.middleware.stop import Stop, stopping
from dyn_service.graph.middleware.topics import runtime_dir
from dyn_service.service.protocol.sockets import receive_checked

_ANSWER_TIMEOUT_MS = 60_000


def record_topics(file: Path, topics: list[str], duration_s: float | None) -> int:
    """Records topics until stopped; returns 0."""
    with stopping() as stop, BagWriter(file) as writer:
        recorder = TopicRecorder(writer, topics, runtime_folders, tell)
        tell(f"recording {', '.join(topics)} to {file}; Ctrl-C ends it")
        try:
            recorder.run(_until(stop, duration_s))
            missed, malformed = recorder.missed, recorder.malformed
        finally:
            recorder.close()
    _done(writer)
    if missed:
        tell(f"missed: {missed} published messages were not received in time")
    if malformed:
        tell(f"malformed: {malformed} messages did not match their type")
    return 0


def record_requests(file: Path, server: str, listen: str, robots: list[Path], duration_s: float | None) -> int:
    """Records the requests to a server until stopped; returns 1 if some could not be recorded."""
    known = requests.fingerprints(server)
    with stopping() as stop, BagWriter(file) as writer:
        requests.describe(writer, known, robots)
        recorder = requests.RequestRecorder(server, listen, writer, tell)
        # the only line on standard output: scripts read it
        say(f"ready: {recorder.endpoint} for {server}, robots: {', '.join(known) or 'none'}")
        try:
            recorder.run(_until(stop, duration_s))
        finally:
            recorder.close()
    _done(writer)
    if recorder.dropped:
        tell(f"dropped: {recorder.dropped} messages, because the receiver did not read them in time")
    return 0 if recorder.whole else 1


def play_bag(file: Path, topics: list[str], rate: float, start_s: float, delay_s: float, *, loop: bool) -> None:
    """Plays a bag once, or until stopped."""
    with stopping() as stop, BagReader(file) as bag:
        player = Player(bag, topics, runtime_dir(), rate=rate, start_s=start_s, say=tell)
        going_on = _until(stop, None)
        try:
            player.run(going_on, delay_s)
            while loop and going_on():
                player.run(going_on, 0.0)
        finally:
            player.close()
    say(f"played {player.played} messages, at most {1e3 * player.latest_s:.1f} ms late")


def verify_bag(
    file: Path, robots: list[Path], joints: str | None, server: str | None, engine: str, within: float | None
) -> int:
    """Repeats recorded requests and prints differing replies; returns 1 if one differs by more than `within`."""
    with BagReader(file) as bag:
        if server is not None:
            with _asked(server) as answer:
                found = compare_all(bag, answer)
        else:
            given = [Robot.from_file(each, joints=joints) for each in robots]
            known, remarks = robots_of(bag, given, joints)
            if engine == "pinocchio":
                texts = [each.data.decode("utf-8", "replace") for each in bag.attached]
                texts += [each.read_text("utf-8") for each in robots]
                found = compare_all(bag, pinocchio(known, texts, remarks.append))
                within = WITHIN if within is None else within
            else:
                found = compare_all(bag, replay(known))
            found.remarks += remarks
    say("\n".join(report(found)))
    differs = found.first is not None and (not within or found.largest > within)
    return 1 if differs or not found.compared else 0


@contextlib.contextmanager
def _asked(server: str) -> Iterator[Answer]:
    """Yields a function that sends a request to the server and returns its answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(server)
        except zmq.ZMQError as error:
            raise InvalidArgumentError(f"endpoint {server!r}: {error.strerror}") from None

        def answer(request: bytes) -> bytes:
            socket.send(request)
            if not socket.poll(_ANSWER_TIMEOUT_MS):
                raise DeadlineExceededError(f"server {server!r} did not answer within {_ANSWER_TIMEOUT_MS // 1000} s")
            return receive_checked(socket, server)

        yield answer


def _until(stop: Stop, duration_s: float | None) -> Callable[[], bool]:
    ends = None if duration_s is None else time.monotonic() + duration_s
    return lambda: not stop.requested and (ends is None or time.monotonic() < ends)


def _done(writer: BagWriter) -> None:
    counts = ", ".join(f"{count} of {topic}" for topic, count in sorted(writer.counts.items()))
    tell(f"recorded {counts or 'nothing'}: {writer.path}, {size_text(writer.path.stat().st_size)}")
