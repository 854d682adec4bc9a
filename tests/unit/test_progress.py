"""The line that announces slow work: on a terminal only, and only while the work goes on."""

from __future__ import annotations

import io
import threading

import pytest

from dyn_service.cli import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_slow_work_is_announced_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    told, written = threading.Event(), list[str]()
    monkeypatch.setattr(progress, "tell", lambda line: (written.append(line), told.set()))
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    monkeypatch.setattr("sys.stderr", _Terminal())
    with progress.announced("reading arm.urdf .."):
        assert told.wait(60.0)
    assert written == ["reading arm.urdf .."]


@pytest.mark.parametrize(("stream", "after"), [(io.StringIO(), 0.0), (_Terminal(), 3600.0)])
def test_nothing_is_announced_elsewhere_or_of_fast_work(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, after: float
) -> None:
    written: list[str] = []
    monkeypatch.setattr(progress, "tell", written.append)
    monkeypatch.setattr(progress, "SLOW_S", after)
    monkeypatch.setattr("sys.stderr", stream)
    before = set(threading.enumerate())
    with progress.announced("reading arm.urdf .."):
        begun = set(threading.enumerate()) - before
    for thread in begun:
        thread.join(60.0)
        assert not thread.is_alive()
    assert bool(begun) == stream.isatty()
    assert written == []
