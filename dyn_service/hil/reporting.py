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
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.control.joint_states import MULTI_DOF
from dyn_service.control.plant.safety import ACTIVE
from dyn_service.graph.report import page as html
from dyn_service.graph.report.charts import Card, Chart, Line, Mark, Span, prefix, spans_of
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
        unjudged = [measure.what for run_notes in notes for measure in run_notes.unjudged]
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
                (f"{verdict.subject}: {verdict.what}".removeprefix(": "), verdict.sentence)
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
        files = sorted(self._folder.glob("tests/*.json"))
        results = [json.loads(path.read_text("utf-8")) for path in files]
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
    charts: list[str] = []
    marks = _marks(run)
    verdicts = sorted(run.check.verdicts, key=lambda one: one.passed)
    failed = any(not verdict.passed for verdict in verdicts)
    points = POINTS_OF_FAILED if failed else POINTS
    stopped = spans_of(run.record.t, ~run.record.under(ACTIVE)) if len(run.record.t) else []
    cards = filter(None, (_verdict_card(verdict, marks, stopped) for verdict in verdicts if verdict.signals))
    shown = html.cards(cards, charts, points, "cards fill")
    motion = html.cards(_motion(run.record, marks, stopped), charts, points) if failed else ""
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
        "cards": shown,
        "motion": motion,
        "charts": charts,
        "span": [float(t[0]), float(t[-1])] if len(t) else [0.0, 1.0],
        "recordings": list(recordings),
    }


def session_page(results: Sequence[Mapping[str, Any]]) -> str:
    """The page of all tests, in the order in which they ran."""
    charts: list[str] = []
    spans = [run["span"] for result in results for run in result["runs"]]
    span = (min((one[0] for one in spans), default=0.0), max((one[1] for one in spans), default=1.0))
    parts = [_test(k, result, charts) for k, result in enumerate(results)]
    bad = sum(not _good(result) for result in results)
    passed = sum(result["outcome"] == "passed" for result in results)
    counted = f"{len(results)} tests, {bad} failed, {passed} passed"
    verdict = (
        html.badge("bad", "failed")
        if bad
        else html.badge("good", "passed")
        if passed
        else html.badge("warn", "nothing ran")
    )
    body = "\n".join([_matrix(results), _tests(results), html.WITHOUT_SCRIPTS, *parts])
    anchors = [("top", _TITLE), ("requirements", "requirements"), ("tests", "tests")]
    header = html.header(_TITLE, verdict, counted)
    return html.document(f"hardware in the loop: {counted}", anchors, header, body, charts, span)


def _matrix(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each requirement with its tests and their verdict."""
    names = sorted({name for result in results for name in result["requirements"]}, key=_natural)
    if not names:
        return '<section id="requirements"></section>'
    rows = []
    for name in names:
        about = [(k, result) for k, result in enumerate(results) if name in result["requirements"]]
        good = all(result["outcome"] == "passed" for _, result in about)
        tests = ", ".join(_link(k, result) for k, result in about)
        rows.append(
            [html.cell(f"<b>{escape(name)}</b>"), html.state("met" if good else "not met", good=good), html.cell(tests)]
        )
    return html.section("requirements", "Requirements", html.table(rows, ("requirement", "verdict", "tests")))


def _tests(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for k, result in enumerate(results):
        verdicts = [one for run in result["runs"] for one in run["verdicts"]]
        rows.append(
            [
                html.cell(_link(k, result)),
                html.state(result["outcome"], good=_good(result)),
                html.cell(escape(", ".join(result["requirements"])), label="requirements"),
                html.cell(f"{sum(one['passed'] for one in verdicts)} of {len(verdicts)}", "number", "held"),
                html.cell(f"{result['duration_s']:.2f} s", "number", "took"),
                html.cell(escape(result["message"]), "words", "why"),
            ]
        )
    head = ("test", "outcome", "requirements", "held", "took", "why")
    return html.section("tests", "Tests", html.table(rows, head, "nodes"))


def _test(k: int, result: Mapping[str, Any], charts: list[str]) -> str:
    good = _good(result)
    message = f'<ul class="look"><li class="grave">{escape(result["message"])}</li></ul>' if result["message"] else ""
    runs = "".join(_run(n, run, charts) for n, run in enumerate(result["runs"]))
    verdict = html.badge("good" if good else "bad", result["outcome"])
    return html.part(f"test-{k}", _short(result), [result["test"]], message + runs, verdict=verdict, opened=not good)


def _run(n: int, run: Mapping[str, Any], charts: list[str]) -> str:
    offset = len(charts)
    charts += run["charts"]
    about = html.facts(
        [
            ("robot", run["robot"]),
            ("where", run["mode"]),
            ("seed", run["seed"]),
            ("plant's time", f"{run['seconds']:.3g} s"),
        ]
    )
    causes = "".join(
        f"<div><h4>{title}</h4><ul>{''.join(f'<li>{escape(one)}</li>' for one in entries)}</ul></div>"
        for title, entries in (("Faults injected", run["faults"]), ("Events", run["events"]))
        if entries
    )
    said = html.table(
        [html.state("held" if one["passed"] else "broken", good=one["passed"]), html.cell(escape(one["sentence"]))]
        for one in run["verdicts"]
    )
    recordings = f'<p class="soft">Recording: {html.links(run["recordings"])}</p>' if run["recordings"] else ""
    # the numbers of charts count from 0 in each run
    cards, motion = (
        re.sub(r'data-chart="(\d+)"', lambda found: f'data-chart="{int(found[1]) + offset}"', run[name])
        for name in ("cards", "motion")
    )
    return f"""<h3>Run {n + 1}</h3>{about}
{recordings}
<div class="halves">{causes}<div><h4>Assertions</h4>{said}</div></div>
{cards}{html.more("the motion", motion) if motion else ""}"""


def _verdict_card(verdict: Verdict, marks: Sequence[Mark], stopped: Sequence[Span]) -> Card | None:
    """The signals of an assertion with what is allowed; those beyond it, or the one that came nearest."""
    of_it = [one for one in verdict.signals if len(one.t)]
    if verdict.passed:
        of_it = [one for one in of_it if one.name == verdict.subject][:1] or of_it[:1]
    of_it.sort(key=lambda one: one.name != verdict.subject)
    if not of_it:
        return None
    found = [_chart(one, verdict, marks, stopped) for one in of_it[:_SHOWN]]
    title = f"{verdict.what}: {'held' if verdict.passed else 'broken'}"
    if verdict.shown != verdict.what:
        title += f" (the curve is {verdict.shown})"
    return Card(title, found, f"allowed {verdict.allowed}" if verdict.allowed else "")


def _chart(signal: Signal, verdict: Verdict, marks: Sequence[Mark], stopped: Sequence[Span]) -> Chart:
    """A signal in a unit that suits its size, the limits in the same. Red is outside the limits; grey is without
    command, where a signal that compares with the reference has no value.
    """
    largest = _largest(signal.values)
    factor, letter = prefix(largest) if signal.unit else (1.0, "")
    limits = [limit for limit in (verdict.lower, verdict.upper) if math.isfinite(limit)]
    near = [limit for limit in limits if largest >= _NEAR * abs(limit)]
    spans: list[Span] = []
    if limits:
        outside = ~((signal.values >= verdict.lower) & (signal.values <= verdict.upper))
        for begin, end in stopped:
            outside &= ~(np.isnan(signal.values) & (signal.t >= begin) & (signal.t <= end))
        spans = spans_of(signal.t, outside, join_s=_JOIN_S)
    unit = f"{letter}{signal.unit}"
    drawn = [Mark(factor * limit, sized(factor * limit, unit)) for limit in near]
    name = signal.name or verdict.shown
    label = f"{name} [{unit}]" if signal.unit else name
    line = Line(verdict.shown, factor * signal.values, "error")
    return Chart(signal.t, [line], label, marks=[*drawn, *marks], bands=stopped, alarms=spans)


def _motion(record: Record, marks: Sequence[Mark], stopped: Sequence[Span]) -> list[Card]:
    """Position with the reference, the error and the effort of each joint that has one of each."""
    cards = []
    for error, effort in zip(record.signals("error"), record.signals("effort"), strict=True):
        if error.name not in record.groups["position"].names:
            continue
        position, reference = (record.signal(kind, error.name) for kind in ("position", "reference"))
        lines = [Line("reference", reference.values, "reference"), Line("position", position.values)]
        if "measured" in record.groups:
            measured = record.signal("measured", error.name)
            if not np.array_equal(measured.values, position.values):
                lines.append(Line("as the controller saw it", measured.values, "second"))
        charts = [Chart(record.t, lines, f"position [{position.unit}]", marks=list(marks), bands=stopped)]
        for signal, role in ((error, "error"), (effort, "effort")):
            factor, letter = prefix(_largest(signal.values))
            label = f"{role} [{letter}{signal.unit}]"
            line = Line(role, factor * signal.values, "error" if role == "error" else "effort")
            charts.append(Chart(record.t, [line], label, bands=stopped, height=110))
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
    said = [f"{name}={value!r}" for name, value, default in fields if value != default]
    return f"{type(fault).__name__}({', '.join(said)})"


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _link(k: int, result: Mapping[str, Any]) -> str:
    return f'<a href="#test-{k}">{escape(_short(result))}</a>'


def _short(result: Mapping[str, Any]) -> str:
    return str(result["test"]).rpartition("::")[2]


def _good(result: Mapping[str, Any]) -> bool:
    return result["outcome"] in ("passed", "skipped")


def _natural(name: str) -> list[tuple[int, str]]:
    """REQ-2 before REQ-12."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
