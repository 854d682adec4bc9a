"""`dyn bag record`, `play` and `verify`, with their output."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dyn_service.cli.console import say, tell
from dyn_service.engine.robot import Robot
from dyn_service.errors import DeadlineExceededError
from dyn_service.graph.bags import requests
from dyn_service.graph.bags.playing import Player
from dyn_service.graph.bags.reader import BagReader, size_text
from dyn_service.graph.bags.requests import Answer, replay, report, robots_of
from dyn_service.graph.bags.requests import verify as compare_all
from dyn_service.graph.bags.topic_recorder import TopicRecorder
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.graph.middleware.graph import runtime_folders
from dyn_service.graph.middleware.stop import Stop, stopping
from dyn_service.graph.middleware.topics import runtime_dir
from dyn_service.service.client.channels import Channel
from dyn_service.service.client.retries import CHECK_S
from dyn_service.service.protocol.endpoints import check_connectable

_ANSWER_TIMEOUT_S = 60.0


def record_topics(file: Path, topics: list[str], duration_s: float | None) -> int:
    """Records topics until stopped; returns 0."""
    with stopping() as stop, BagWriter(file) as writer:
        recorder = TopicRecorder(writer, topics, runtime_folders, tell)
        tell(f"recording {', '.join(topics)} to {file}; Ctrl-C ends it")
        try:
            recorder.run(_goes_on(stop, duration_s))
            missed_count, malformed = recorder.missed, recorder.malformed
        finally:
            recorder.close()
    _report_counts(writer)
    if missed_count:
        tell(f"missed: {missed_count} published messages were not received in time")
    if malformed:
        tell(f"malformed: {malformed} messages did not match their type")
    return 0


def record_requests(file: Path, server: str, listen: str, robots: list[Path], duration_s: float | None) -> int:
    """Records the requests to a server until stopped; returns 1 if some could not be recorded."""
    fingerprints = requests.fingerprints(server)
    with stopping() as stop, BagWriter(file) as writer:
        requests.describe(writer, fingerprints, robots)
        recorder = requests.RequestRecorder(server, listen, writer, tell)
        # the only line on standard output: scripts read it
        say(f"ready: {recorder.endpoint} for {server}, robots: {', '.join(fingerprints) or 'none'}")
        try:
            recorder.run(_goes_on(stop, duration_s))
        finally:
            recorder.close()
    _report_counts(writer)
    if recorder.dropped:
        tell(f"dropped: {recorder.dropped} messages, because the receiver did not read them in time")
    return 0 if recorder.whole else 1


def play_bag(file: Path, topics: list[str], rate: float, start_s: float, delay_s: float, *, loop: bool) -> None:
    """Plays a bag once, or until stopped."""
    with stopping() as stop, BagReader(file) as bag:
        player = Player(bag, topics, runtime_dir(), rate=rate, start_s=start_s, say=tell)
        going_on = _goes_on(stop, None)
        try:
            player.run(going_on, delay_s)
            while loop and going_on():
                player.run(going_on, 0.0)
        finally:
            player.close()
    say(f"played {player.played} messages, at most {1e3 * player.latest_s:.1f} ms late")


def verify_bag(file: Path, robot_files: list[Path], joints: str | None, server: str | None, tolerance: float) -> int:
    """Repeats recorded requests and prints differing replies; returns 1 if one differs by more than `tolerance`."""
    with BagReader(file) as bag:
        if server is not None:
            with _server_answers(server) as answer:
                verification = compare_all(bag, answer)
        else:
            robots = [Robot.from_file(path, joints=joints) for path in robot_files]
            robots, remarks = robots_of(bag, robots, joints)
            verification = compare_all(bag, replay(robots))
            verification.remarks += remarks
    say("\n".join(report(verification)))
    # equal numbers can differ in bits, as 0 and -0 do: without a tolerance any difference counts
    differs = verification.first is not None and (not tolerance or verification.largest > tolerance)
    return 1 if differs or not verification.compared else 0


@contextlib.contextmanager
def _server_answers(server: str) -> Iterator[Answer]:
    """Yields a function that sends a request to the server and returns its reply."""
    with contextlib.closing(Channel(check_connectable(server))) as channel:

        def answer(request: bytes) -> bytes:
            deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
            is_sent = channel.is_connected(_ANSWER_TIMEOUT_S) and channel.send(request)
            while is_sent and channel.is_ready and time.monotonic() < deadline_s:
                if (reply := channel.receive(CHECK_S)) is not None:
                    return bytes(reply)
            # not sent again: the request may load or unload a robot
            cause = "the connection was lost" if is_sent and not channel.is_ready else f"waited {_ANSWER_TIMEOUT_S:g} s"
            raise DeadlineExceededError(f"server {server!r} did not answer: {cause}")

        yield answer


def _goes_on(stop: Stop, duration_s: float | None) -> Callable[[], bool]:
    ends = None if duration_s is None else time.monotonic() + duration_s
    return lambda: not stop.requested and (ends is None or time.monotonic() < ends)


def _report_counts(writer: BagWriter) -> None:
    counts = ", ".join(f"{count} of {topic}" for topic, count in sorted(writer.counts.items()))
    tell(f"recorded {counts or 'nothing'}: {writer.path}, {size_text(writer.path.stat().st_size)}")
