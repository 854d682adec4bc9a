"""Records the outcomes of tests with runs and writes them: JUnit's properties, a page, a recording of each failure.

    DIR/index.html               the page: requirements, tests, their runs
    DIR/tests/NAME.json          the part of one test; with pytest-xdist each worker writes those of its tests
    DIR/recordings/NAME.mcap     messages of a run of a test that failed, for anything that reads bags
    DIR/recordings/NAME.npz      the same run's signals, for `Record.load`

The process that ran a test makes its content as plain values (`run_content`); the page (`session_page`) combines them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.control.joint_states import MULTI_DOF
from dyn_service.control.plant.safety import ACTIVE
from dyn_service.graph.report import page
from dyn_service.graph.report.charts import Card, Chart, Finding, Line, Mark, Role, Span, prefix, scaled, spans_of
from dyn_service.graph.report.verdicts import sized
from dyn_service.hil.bench import Run
from dyn_service.hil.checks import Verdict
from dyn_service.hil.signals import Array, Record, Signal
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
        # files of its own only: the folder may be one that the user chose for more than this
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
        """Fails a test that measured something but asserted nothing: it would pass whatever the run did. Fails a test
        in whose runs a node ended, unless an injected fault or `Check.ends` explains it.
        """
        yield
        notes = [run().check.notes for run in item.stash.get(_RUNS, [])]
        if causes := [why for run_notes in notes for why in run_notes.ended]:
            pytest.fail("; ".join(causes), pytrace=False)
        unjudged = [measure.quantity for run_notes in notes for measure in run_notes.unjudged]
        if unjudged:
            names = ", ".join(dict.fromkeys(unjudged))
            text = "measured, but nothing is asserted of it: expected `below`, `at_most` or the like after it"
            pytest.fail(f"{names}: {text}", pytrace=False)

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
            verdicts = [verdict for run in runs for verdict in run.check.verdicts]
            names = [f"{verdict.subject}: {verdict.what}".removeprefix(": ") for verdict in verdicts]
            item.user_properties += zip(names, [verdict.sentence for verdict in verdicts], strict=True)
        report = yield
        if self._folder is not None and ours and (call.when == "call" or report.outcome != "passed"):
            self._write(item, call, report, requirements, runs)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Writes the page."""
        if self._folder is None or self._is_worker:
            return
        files = sorted(self._folder.glob("tests/*.json"))
        results = [json.loads(path.read_text("utf-8")) for path in files]
        # the order of the tests, which workers of pytest-xdist do not keep
        results.sort(key=lambda result: (result["began"], result["test"]))
        (self._folder / "index.html").write_text(session_page(results), "utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Reports the path of the page."""
        if self._folder is not None and not self._is_worker:
            hint = "" if find_spec("mcap") else "; no recordings as .mcap: they need the extra bags"
            terminalreporter.write_line(f"hil: report in {self._folder / 'index.html'}{hint}")

    def _write(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
        requirements: list[str],
        runs: list[Run],
    ) -> None:
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
            files = keep(run, self._folder / "recordings", f"{name}.{k}", item.nodeid) if outcome == "failed" else []
            content["runs"].append(run_content(run, [f"recordings/{path.name}" for path in files]))
        path = self._folder / "tests" / f"{name}.json"
        # A teardown that fails comes after the test was written: its runs are there, but not its failure.
        if call.when == "teardown" and path.exists():
            content = {**json.loads(path.read_text("utf-8")), "outcome": outcome, "message": content["message"]}
        path.write_text(json.dumps(content), "utf-8")


def file_name(test: str) -> str:
    """A file's name for a test: its own, as far as it goes, and a digest, for no two are the same."""
    # names of tests may be too long for a file, or differ only in characters that a file's name cannot have
    digest = hashlib.sha256(test.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', test.rpartition('::')[2]).strip('-')[:80]}-{digest}"


def _message(call: pytest.CallInfo[None]) -> str:
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
    files = [folder / f"{name}.npz"]
    run.record.save(files[0])
    try:
        from dyn_service.graph.bags.writer import BagWriter
    except ImportError:
        return files
    path = folder / f"{name}.mcap"
    path.unlink(missing_ok=True)
    with BagWriter(path) as bag:
        note = {"test": test, "mode": run.mode, "seed": str(run.seed), "ended": run.ended}
        bag.note("dyn_service.hil", {**note, "faults": json.dumps([repr(fault) for fault in run.faults])})
        messages: list[tuple[float, str, Message]] = [(state.stamp, STATES, state) for state in run.log.states]
        for state in run.log.states:
            ros = zip((JOINTS, SEVERAL, ODOMETRY), run.log.messages.of_state(state), strict=True)
            messages += [(state.stamp, topic, message) for topic, message in ros if message is not None]
        messages += [(t, COMMANDS, command) for t, command in run.log.commands]
        for t, topic, message in sorted(messages, key=lambda entry: entry[0]):
            bag.write(topic, message, Time.from_seconds(t).nanoseconds())
    return [*files, path]


POINTS = 800
"""Points of a line at most in a test that passed: a page has the runs of many tests."""
POINTS_OF_FAILED = 20_000
"""Points of a line at most in a test that failed: 20 s at 1 kHz without a loss."""
_SHOWN = 3
"""Of the signals that one assertion is about, so many are drawn: those that broke it, or came nearest."""
_NEAR = 0.2
"""A limit is drawn where a signal comes to this share of it: else it would flatten the line."""
_JOIN_S = 0.01
"""Spans that are no further apart are one on the page."""
_TITLE = "Hardware in the loop"


def run_content(run: Run, recordings: Sequence[str]) -> dict[str, Any]:
    """Returns the page's content of one run as plain values. recordings: files in the folder of the page."""
    marks = _marks(run)
    verdicts = sorted(run.check.verdicts, key=lambda verdict: verdict.passed)
    failed = any(not verdict.passed for verdict in verdicts)
    points = POINTS_OF_FAILED if failed else POINTS
    stopped = spans_of(run.record.t, ~run.record.under(ACTIVE)) if len(run.record.t) else []
    cards = filter(None, (_verdict_card(verdict, marks, stopped) for verdict in verdicts if verdict.signals))
    motion = page.fold("the motion", page.cards(_motion(run.record, marks, stopped), points)) if failed else ""
    t, changes = run.record.t, [(change.t, f"the plant is {change.words}") for change in run.record.changes[1:]]
    return {
        "mode": run.mode,
        "seed": run.seed,
        "seconds": float(t[-1] - t[0]) if len(t) else 0.0,
        "robot": run.record.title,
        "faults": [_words(fault) for fault in run.faults],
        "ended": run.ended,
        "events": [f"{time:.4g} s: {text}" for time, text in sorted([*changes, *run.record.notes])],
        "verdicts": [{"passed": verdict.passed, "sentence": verdict.sentence} for verdict in verdicts],
        "charts": [page.cards(cards, points, "cards fill"), motion],
        "span": [float(t[0]), float(t[-1])] if len(t) else [0.0, 1.0],
        "recordings": list(recordings),
    }


def session_page(results: Sequence[Mapping[str, Any]]) -> str:
    """The page of all tests, in the order in which they ran."""
    spans = [run["span"] for result in results for run in result["runs"]]
    span = (min((begin for begin, _ in spans), default=0.0), max((end for _, end in spans), default=1.0))
    bad = sum(not _good(result) for result in results)
    n_passed = sum(result["outcome"] == "passed" for result in results)
    summary = f"{len(results)} tests, {bad} failed, {n_passed} passed"
    verdict = ("bad", "failed") if bad else ("good", "passed") if n_passed else ("warn", "nothing ran")
    tests = page.Part("tests", "Tests", _tests(results), "tests")
    parts = [_requirements(results), tests, *(_test(k, result) for k, result in enumerate(results))]
    header = page.header(_TITLE, page.badge(*verdict), summary)
    return page.render(f"hardware in the loop: {summary}", header, parts, _TITLE, span)


def _requirements(results: Sequence[Mapping[str, Any]]) -> page.Part:
    """A row for each requirement with its tests and their verdict."""
    names = sorted({name for result in results for name in result["requirements"]}, key=_natural)
    rows = []
    for name in names:
        tests = [(k, result) for k, result in enumerate(results) if name in result["requirements"]]
        good = all(result["outcome"] == "passed" for _, result in tests)
        verdict = page.state("met" if good else "not met", good=good)
        rows.append([page.tag("b", name), verdict, page.comma_separated(_link(*test) for test in tests)])
    table = page.table(rows, ("requirement", "verdict", "tests")) if rows else ""
    return page.Part("requirements", "Requirements" if rows else "", table, "requirements")


def _tests(results: Sequence[Mapping[str, Any]]) -> page.Element:
    rows: list[list[page.Content]] = []
    for k, result in enumerate(results):
        outcomes = [verdict["passed"] for run in result["runs"] for verdict in run["verdicts"]]
        rows.append(
            [
                _link(k, result),
                page.state(result["outcome"], good=_good(result)),
                ", ".join(result["requirements"]),
                page.cell(f"{sum(outcomes)} of {len(outcomes)}", "number", "held"),
                page.cell(f"{result['duration_s']:.2f} s", "number", "took"),
                page.cell(result["message"], "words", "why"),
            ]
        )
    return page.table(rows, ("test", "outcome", "requirements", "held", "took", "why"), "nodes")


def _test(k: int, result: Mapping[str, Any]) -> page.Part:
    good = _good(result)
    message = page.findings([(Finding(result["message"], grave=True), "", "")]) if result["message"] else ""
    runs = [_run_content(n, run) for n, run in enumerate(result["runs"])]
    notes = [page.badge("good" if good else "bad", result["outcome"]), page.tag("span", result["test"], kind="soft")]
    return page.Part(f"test-{k}", _short(result), [message, runs], is_open=not good, notes=notes)


def _run_content(n: int, run: Mapping[str, Any]) -> page.Content:
    time = f"{run['seconds']:.3g} s"
    facts = page.facts([("robot", run["robot"]), ("where", run["mode"]), ("seed", run["seed"]), ("plant's time", time)])
    causes = [
        page.tag("div", page.tag("h4", title), page.tag("ul", [page.tag("li", text) for text in texts]))
        for title, texts in (("Faults injected", run["faults"]), ("Events", run["events"]))
        if texts
    ]
    verdicts = page.table(
        [page.state("held" if verdict["passed"] else "broken", good=verdict["passed"]), verdict["sentence"]]
        for verdict in run["verdicts"]
    )
    assertions = page.tag("div", page.tag("h4", "Assertions"), verdicts)
    recordings = page.soft("Recording: ", page.links(run["recordings"])) if run["recordings"] else ""
    halves = page.tag("div", causes, assertions, kind="halves")
    return [page.tag("h3", f"Run {n + 1}"), facts, recordings, halves, run["charts"]]


def _verdict_card(verdict: Verdict, marks: Sequence[Mark], stopped: Sequence[Span]) -> Card | None:
    """The signals of an assertion with what is allowed; those beyond it, or the one that came nearest."""
    signals = [signal for signal in verdict.signals if len(signal.t)]
    if verdict.passed:
        signals = [signal for signal in signals if signal.name == verdict.subject][:1] or signals[:1]
    signals.sort(key=lambda signal: signal.name != verdict.subject)
    if not signals:
        return None
    charts = [_chart(signal, verdict, marks, stopped) for signal in signals[:_SHOWN]]
    title = f"{verdict.what}: {'held' if verdict.passed else 'broken'}"
    if verdict.shown != verdict.what:
        title += f" (the curve is {verdict.shown})"
    return Card(title, charts, f"allowed {verdict.allowed}" if verdict.allowed else "")


def _chart(signal: Signal, verdict: Verdict, marks: Sequence[Mark], stopped: Sequence[Span]) -> Chart:
    """A signal in a unit that suits its size, the limits in the same. Red is outside the limits; grey is without
    command, where a signal that compares with the reference has no value.
    """
    largest = _largest(signal.values)
    factor, letter = prefix(largest) if signal.unit else (1.0, "")
    limits = [limit for limit in (verdict.lower, verdict.upper) if math.isfinite(limit)]
    drawn_limits = [limit for limit in limits if largest >= _NEAR * abs(limit)]
    spans: list[Span] = []
    if limits:
        is_outside = ~((signal.values >= verdict.lower) & (signal.values <= verdict.upper))
        for begin, end in stopped:
            is_outside &= ~(np.isnan(signal.values) & (signal.t >= begin) & (signal.t <= end))
        spans = spans_of(signal.t, is_outside, join_s=_JOIN_S)
    unit = f"{letter}{signal.unit}"
    limit_marks = [Mark(factor * limit, sized(factor * limit, unit)) for limit in drawn_limits]
    name = signal.name or verdict.shown
    label = f"{name} [{unit}]" if signal.unit else name
    line = Line(verdict.shown, factor * signal.values, "error")
    return Chart(signal.t, [line], label, marks=[*limit_marks, *marks], bands=stopped, alarms=spans)


def _motion(record: Record, marks: Sequence[Mark], stopped: Sequence[Span]) -> list[Card]:
    """Position with the reference, the error and the effort of each joint that has one of each."""
    cards = []
    for error in record.signals("error"):
        effort = record.signal("effort", error.name)
        if error.name not in record.groups["position"].names:
            continue
        position, reference = (record.signal(kind, error.name) for kind in ("position", "reference"))
        lines = [Line("reference", reference.values, "reference"), Line("position", position.values)]
        if "measured" in record.groups:
            controller_view = record.signal("measured", error.name)
            if not np.array_equal(controller_view.values, position.values):
                lines.append(Line("as the controller saw it", controller_view.values, "second"))
        charts = [Chart(record.t, lines, f"position [{position.unit}]", marks=list(marks), bands=stopped)]
        roles: tuple[tuple[Signal, Role], ...] = ((error, "error"), (effort, "effort"))
        for signal, role in roles:
            values, unit = scaled(signal.values, signal.unit)
            charts.append(Chart(record.t, [Line(role, values, role)], f"{role} [{unit}]", bands=stopped, height=110))
        cards.append(Card(error.name, charts))
    return cards


def _marks(run: Run) -> list[Mark]:
    marks = []
    for fault in run.faults:
        name = type(fault).__name__
        if fault.from_s > 0.0:
            marks.append(Mark(fault.from_s, name, "x"))
        if math.isfinite(fault.until_s):
            marks.append(Mark(fault.until_s, f"end of {name}", "x"))
    return marks


def _words(fault: Any) -> str:
    """A fault as source text, without arguments that have their defaults."""
    fields = [(field.name, getattr(fault, field.name), field.default) for field in dataclasses.fields(fault)]
    arguments = [f"{name}={value!r}" for name, value, default in fields if value != default]
    return f"{type(fault).__name__}({', '.join(arguments)})"


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _link(k: int, result: Mapping[str, Any]) -> page.Element:
    return page.tag("a", _short(result), href=f"#test-{k}")


def _short(result: Mapping[str, Any]) -> str:
    return str(result["test"]).rpartition("::")[2]


def _good(result: Mapping[str, Any]) -> bool:
    return result["outcome"] in ("passed", "skipped")


def _natural(name: str) -> list[tuple[int, str]]:
    """REQ-2 before REQ-12."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
