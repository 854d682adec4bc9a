"""Records the outcomes of tests with runs and writes them: JUnit's properties, a page, a recording of each failure.

    DIR/index.html               the page: requirements, tests, their runs
    DIR/tests/NAME.json          the part of one test; with pytest-xdist each worker writes those of its tests
    DIR/recordings/NAME.mcap     messages of a run of a test that failed, for anything that reads bags
    DIR/recordings/NAME.npz      the same run's signals, for `Record.load`

No engine and no drawing is imported before a test has run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dyn_service.hil.bench import Run


from dyn_service.control.joint_states import MULTI_DOF
from dyn_service.hil.bench import Run
from dyn_service.messages import Message
from dyn_service.messages.builtin_interfaces import Time

_RUNS: pytest.StashKey[list[Callable[[], Run]]] = pytest.StashKey()
REQUIREMENT = "requirement"


class Reporting:
    """A plug-in of pytest. folder: where to write; None writes nothing but JUnit's properties."""

    def __init__(self, folder: Path | None, *, is_worker: bool) -> None:
        self._folder = None if folder is None else folder.absolute()
        self._is_worker = is_worker

    def expect(self, item: pytest.Item) -> None:
        """Registers a test that uses runs, even if it starts none."""
        item.stash.setdefault(_RUNS, [])

    def take(self, item: pytest.Item, run: Callable[[], Run]) -> None:
        """Records a run of a test, to be read when the test is over."""
        item.stash.setdefault(_RUNS, []).append(run)

    def pytest_sessionstart(self) -> None:
        """Removes what an earlier session left, so that it is not mixed with this session's."""
        if self._folder is None or self._is_worker:
            return
        try:
            for name in ("tests", "recordings"):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--hil-report: {str(self._folder)!r} cannot be made: {error.strerror}") from None
        for path in (*self._folder.glob("tests/*.json"), *self._folder.glob("recordings/*.*")):
            path.unlink()
        with suppress(FileNotFoundError):
            (self._folder / "index.html").unlink()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Rejects a requirement marker without names."""
        for item in items:
            for mark in item.iter_markers(REQUIREMENT):
                if not mark.args or mark.kwargs or not all(isinstance(name, str) and name for name in mark.args):
                    raise pytest.UsageError(f'{item.nodeid}: marker requirement: expected names, requirement("REQ-12")')

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Fails a test that measured something but asserted nothing: it would pass whatever the run did."""
        yield
        unjudged = [one.what for run in item.stash.get(_RUNS, []) for one in run().check.notes.unjudged]
        if unjudged:
            pytest.fail(
                f"{', '.join(dict.fromkeys(unjudged))}: measured, but nothing is asserted of it: expected `below`, "
                "`at_most` or the like after it",
                pytrace=False,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Writes the outcome of a test when it is over."""
        requirements = [str(name) for mark in item.iter_markers(REQUIREMENT) for name in mark.args]
        ours = bool(requirements) or _RUNS in item.stash
        runs: list[Run] = []
        if call.when == "call" and ours:
            runs = [run() for run in item.stash.get(_RUNS, [])]
            item.user_properties += [(REQUIREMENT, name) for name in requirements]
            item.user_properties += [
                (_property(verdict.subject, verdict.what), verdict.sentence)
                for run in runs
                for verdict in run.check.verdicts
            ]
        report = yield
        if self._folder is not None and ours and (call.when == "call" or report.outcome != "passed"):
            self._write(item, call, report, requirements, runs)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Writes the page."""
        if self._folder is None or self._is_worker:
            return
        from dyn_service.hil.page import session_page

        files = sorted(self._folder.glob("tests/*.json"))
        results = [json.loads(path.read_text("utf-8")) for path in files]
        results.sort(key=lambda result: (result["began"], result["test"]))
        (self._folder / "index.html").write_text(session_page(results), "utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Reports the path of the page."""
        if self._folder is not None and not self._is_worker:
            terminalreporter.write_line(f"hil: report in {self._folder / 'index.html'}")

    def _write(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
        requirements: list[str],
        runs: list[Run],
    ) -> None:
        from dyn_service.hil.page import run_content

        assert self._folder is not None
        name = file_name(item.nodeid)
        outcome = report.outcome if call.when == "call" else "error"
        content: dict[str, Any] = {
            "test": item.nodeid,
            "outcome": outcome,
            "began": call.start,
            "duration_s": call.duration,
            "requirements": requirements,
            "message": _message(call),
            "runs": [],
        }
        for k, run in enumerate(runs):
            kept = keep(run, self._folder / "recordings", f"{name}.{k}", item.nodeid) if outcome == "failed" else []
            content["runs"].append(run_content(run, [f"recordings/{path.name}" for path in kept]))
        path = self._folder / "tests" / f"{name}.json"
        if call.when == "teardown" and path.exists():  # its runs are there already; that it did not end well is not
            content = {**json.loads(path.read_text("utf-8")), "outcome": outcome, "message": content["message"]}
        path.write_text(json.dumps(content), "utf-8")


def file_name(test: str) -> str:
    """A file's name for a test: its own, as far as it goes, and a digest, for no two are the same."""
    digest = hashlib.sha256(test.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', test.rpartition('::')[2]).strip('-')[:80]}-{digest}"


def _property(subject: str, what: str) -> str:
    return f"{subject}: {what}" if subject else what


def _message(call: pytest.CallInfo[None]) -> str:
    """The failure in one line."""
    if call.excinfo is None:
        return ""
    text = str(call.excinfo.value)
    first = text.splitlines()[0] if text else ""
    if isinstance(call.excinfo.value, AssertionError):
        return first
    return f"{call.excinfo.typename}: {first}" if first else call.excinfo.typename


STATES, COMMANDS, JOINTS = "/plant_state", "/joint_commands", "/joint_states"
SEVERAL, ODOMETRY = f"/{MULTI_DOF}", "/odom"


def keep(run: Run, folder: Path, name: str, test: str) -> list[Path]:
    """Writes `NAME.npz`, and `NAME.mcap` where the library for bags is installed; the files.

    Times in the bag are the plant's.
    """
    kept = [folder / f"{name}.npz"]
    run.record.save(kept[0])
    try:
        from dyn_service.graph.bags.writer import BagWriter
    except ImportError:
        return kept
    path = folder / f"{name}.mcap"
    path.unlink(missing_ok=True)
    with BagWriter(path) as bag:
        said = {"test": test, "mode": run.mode, "seed": str(run.seed), "ended": run.ended}
        bag.note("dyn_service.hil", {**said, "faults": json.dumps([repr(fault) for fault in run.faults])})
        messages: list[tuple[float, str, Message]] = [(state.stamp, STATES, state) for state in run.log.states]
        for state in run.log.states:
            ros = zip((JOINTS, SEVERAL, ODOMETRY), run.log.messages.of_state(state), strict=True)
            messages += [(state.stamp, topic, message) for topic, message in ros if message is not None]
        messages += [(t, COMMANDS, command) for t, command in run.log.commands]
        for t, topic, message in sorted(messages, key=lambda one: one[0]):
            bag.write(topic, message, Time.from_seconds(t).nanoseconds())
    return [*kept, path]
