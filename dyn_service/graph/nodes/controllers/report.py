"""A controller's recordings, and its part of a report: the law's signals, requests with round trips, joint loads."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dyn_service.api.queries import Array, ConstraintForces
from dyn_service.control.law import Law
from dyn_service.errors import DeadlineExceededError, ResourceExhaustedError, UnavailableError
from dyn_service.graph.middleware.node_kind import Panel, Section, column, rate
from dyn_service.graph.middleware.telemetry import NodeTelemetry, Recorder, Recording, Telemetry, TelemetryStore
from dyn_service.graph.report.charts import (
    MICRO,
    ROUNDING,
    Card,
    Chart,
    Finding,
    Line,
    Mark,
    Role,
    Span,
    histogram,
    prefix,
    quantiles,
    running_time,
    spans_of,
)
from dyn_service.graph.report.verdicts import Verdict
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.control_msgs import DynamicJointState, InterfaceValue
from dyn_service.messages.std_msgs import Header

_JOIN_S = 0.05
"""Late responses closer together than this are merged into one span."""


def law_section(controller: NodeTelemetry, store: TelemetryStore) -> Section | None:
    """Returns the section of the law, its parameters and signals, or None without a law."""
    name = controller.fact("law")
    if name is None:
        return None
    recording = controller.recording(CHANNEL)
    kinds = [] if recording is None else dict.fromkeys(name.partition(".")[0] for name in recording.columns[1:])
    content, charts = {}, {}
    for kind in kinds:
        assert recording is not None
        t, (entries, values) = running_time(recording.column("t")), recording.group(kind)
        rms, largest = np.sqrt(np.mean(values * values, axis=0)), np.abs(values).max(axis=0)
        rows = zip(entries, rms.tolist(), largest.tolist(), strict=True)
        content[kind] = [{"name": entry, "rms": r, "max": m} for entry, r, m in rows]
        charts[f"{name}: {kind}"] = [
            Card(entry, [Chart(t, [Line(entry, values[:, k])], entry)], f"max {largest[k]:.3g}")
            for k, entry in enumerate(entries)
        ]
    law_content = {"name": name, "parameters": controller.fact("law_parameters") or {}, "signals": content}
    line = f"law: {name}, with {', '.join(content)}" if content else f"law: {name}"
    return Section(law_content, [line], charts=charts)


def requests_section(controller: NodeTelemetry, store: TelemetryStore) -> Section:
    """Returns the section of requests and round trips, with charts."""
    requests = controller.recording("requests")
    content = _request_summary(controller, requests)
    # in lockstep nothing is late
    deadline_s = None if store.lockstep else controller.fact("deadline_s") or 0.0
    verdict = _verdict(content, controller.fact("late_share"), real_time=deadline_s is not None)
    findings = _findings(content, requests, deadline_s, grave=verdict.passed is False)
    charts = {} if requests is None else {"Round trips": _round_trip_cards(requests, deadline_s)}
    return Section(content, _lines(content, deadline_s), charts=charts, findings=findings, verdicts=[verdict])


def loads_section(controller: NodeTelemetry, store: TelemetryStore) -> Section | None:
    """Returns the section of each joint's constraint force and torque, or None without a recording."""
    recording = controller.recording("loads")
    if recording is None:
        return None
    t, (joints, force), (_, torque) = (
        running_time(recording.column("t")), recording.group("force"), recording.group("torque"),
    )  # fmt: skip
    cards, content = [], []
    for k, joint in enumerate(joints):
        charts, peaks = [], []
        kinds: tuple[tuple[Array, Role, str, str], ...] = (
            (force[:, k], "measured", "force", "N"), (torque[:, k], "effort", "torque", "N m"),
        )  # fmt: skip
        for values, role, label, unit in kinds:
            peaks.append(float(values.max()))
            size, small = prefix(peaks[-1])
            axis_label = f"{label} [{small}{unit}]"
            line = Line(label, size * values, role)
            charts.append(Chart(t, [line], axis_label, from_zero=True, least=ROUNDING, height=110))
        content.append({"name": joint, "force_max_n": peaks[0], "torque_max_nm": peaks[1]})
        cards.append(Card(joint, charts, f"max {peaks[0]:.3g} N, {peaks[1]:.3g} N m"))
    return Section({"samples": len(t), "joints": content}, charts={"Load that each joint carries": cards})


def _request_summary(controller: NodeTelemetry, requests: Recording | None) -> dict[str, Any]:
    counters = (
        "sent", "answered", "lost", "deadline_misses", "skipped", "commands", "reference_restarts",
        "telemetry_dropped",
    )  # fmt: skip
    summary: dict[str, Any] = {
        **{name: controller.fact(name) for name in ("endpoint", "rate_hz", "deadline_s")},
        **{name: controller.total(name) for name in counters},
        "measured_rate_hz": controller.stats.get("mean_rate_hz"),
    }
    if requests is not None:
        round_trips_us, kind = requests.column("round_trip_us"), requests.column("kind")
        summary["update_us"] = quantiles(round_trips_us[kind == UPDATE])
        summary["constraint_forces_us"] = quantiles(round_trips_us[kind == LOADS])
        summary["stride"] = requests.stride
    return summary


def _lines(requests: Mapping[str, Any], deadline_s: float | None) -> list[str]:
    late = "" if deadline_s is None else f", {requests['deadline_misses']} later than {1e3 * deadline_s:g} ms"
    lines = [
        f"requests: {requests['sent']} sent, {requests['answered']} answered, {requests['lost']} lost{late}",
    ]
    trips = requests.get("update_us")
    if trips and trips["count"]:
        lines.append(
            f"round trips of updates: p50 {trips['p50']:.0f} us, p99 {trips['p99']:.0f} us, "
            f"p99.9 {trips['p99_9']:.0f} us, max {trips['max']:.0f} us"
        )
    return lines


def _verdict(requests: Mapping[str, Any], share: float | None, *, real_time: bool) -> Verdict:
    """Verdict on the share of late and lost responses; not applicable in lockstep."""
    late, request_count = requests["deadline_misses"] + requests["lost"], requests["sent"]
    why_not = "nothing is late in lockstep" if not real_time else "" if request_count else "nothing was asked"
    bound_percent = math.inf if share is None else 100.0 * share
    percent = None if why_not else 100.0 * late / request_count
    return Verdict("late answers", percent, bound_percent, "%", why_not, subject="timing")


def _findings(
    requests: Mapping[str, Any], recording: Recording | None, deadline_s: float | None, *, grave: bool
) -> list[Finding]:
    findings: list[Finding] = []
    late, request_count = requests["deadline_misses"], max(1, requests["sent"])
    if late and deadline_s is not None:
        text = f"answers later than {1e3 * deadline_s:g} ms: {late}, {100.0 * late / request_count:.1f} % of all"
        spans: list[Span] = []
        if recording is not None:
            # Only updates have a deadline, so the slowest is that of the round trips' line.
            text += f"; the slowest took {1e-3 * requests['update_us']['max']:.1f} ms"
            spans = spans_of(recording.column("t"), recording.column("missed") > 0.0, join_s=_JOIN_S)
        findings.append(Finding(text, spans, grave=grave))
    if requests["lost"]:
        findings.append(Finding(f"requests without an answer: {requests['lost']} of {requests['sent']}", grave=True))
    return findings


def _round_trip_cards(recording: Recording, deadline_s: float | None) -> list[Card]:
    kind, round_trips_us, t = (recording.column(name) for name in ("kind", "round_trip_us", "t"))
    t, round_trips_us = t[kind == UPDATE], round_trips_us[kind == UPDATE]
    if not round_trips_us.size:
        return []
    statistics = quantiles(round_trips_us)
    labels = (("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9"), ("max", "max"))
    marks = [Mark(x := float(statistics[name] or 0.0), f"{label} {x:.0f}", "x", "second") for label, name in labels]
    deadline_mark = [] if not deadline_s else [(1e6 * deadline_s, f"deadline {1e6 * deadline_s:.0f}")]
    middles, count = histogram(round_trips_us)
    label = f"round trip [{MICRO}s]"
    counts, over_time = [Line("requests per bin", count)], [Line(label, round_trips_us)]
    marks += [Mark(position, name, "x") for position, name in deadline_mark]
    bars = Chart(middles, counts, "requests per bin", label, "bars", "xy", marks, height=200, timed=False)
    limits = [Mark(position, name) for position, name in deadline_mark]
    points = Chart(t, over_time, label, "plant time [s]", kind="points", log="y", marks=limits, height=180)
    note = f"{round_trips_us.size} of the law's updates"
    return [Card("Histogram", [bars], note, wide=True), Card("Over time", [points], wide=True)]


PANELS = (Panel("requests", requests_section), Panel("law", law_section), Panel("loads", loads_section))
COLUMNS = (
    rate(),
    column("round trip p50/p99", "{:.0f}/{:.0f} us", "round_trip_p50_us", "round_trip_p99_us"),
    column("missed", "{:.0f}", "deadline_misses", timing=True),
    column("lost", "{:.0f}", "lost"),
    column("error rms/max", "{:.1e}/{:.1e}", "error_rms", "error_max"),
)


TRANSIENT_ERRORS = (DeadlineExceededError, UnavailableError, ResourceExhaustedError)
"""Errors after which the next request may succeed: the loop goes on."""
UPDATE, LOADS = 0, 1
"""Kinds of requests in the recording: an update of the law with all its queries; joint loads."""
REQUEST_COLUMNS = ("t", "kind", "round_trip_us", "missed")

T = TypeVar("T")


class RequestMonitor:
    """Makes requests and counts their outcomes. deadline_s: an update that takes longer is a deadline miss."""

    def __init__(self, deadline_s: float, recorder: Recorder | None) -> None:
        self.sent = self.answered = self.lost = self.deadline_misses = 0
        self.round_trips_us: list[float] = []
        self.updates_us: deque[float] = deque(maxlen=31)
        self._deadline_us = 1e6 * deadline_s
        self._recorder = recorder

    def flush(self) -> None:
        """Sends what was recorded."""
        if self._recorder is not None:
            self._recorder.flush()

    def ask(self, stamp: float, kind: int, question: Callable[[], T]) -> T | None:
        """Calls `question` and returns its result, or None after a transient error."""
        self.sent += 1
        start_ns = time.perf_counter_ns()
        try:
            answer = question()
        # the plant holds its last command, and the next state may be answered again
        except TRANSIENT_ERRORS:
            self.lost += 1
            return None
        took_us = 1e-3 * (time.perf_counter_ns() - start_ns)
        self.answered += 1
        is_missed = kind == UPDATE and took_us > self._deadline_us
        self.deadline_misses += is_missed
        if kind == UPDATE:
            self.round_trips_us.append(took_us)
            self.updates_us.append(took_us)
        if self._recorder is not None:
            self._recorder.row()[:] = (stamp, kind, took_us, is_missed)
        return answer


CHANNEL = "law"


class LawSignals:
    """Records signals of laws, and keeps the latest. names: of the entries of v, for signals of that length."""

    def __init__(self, names: Sequence[str], telemetry: Telemetry | None) -> None:
        self._names, self._telemetry = tuple(names), telemetry
        self._recorder: Recorder | None = None
        self._latest: dict[str, Array] = {}

    def take(self, stamp: float, law: Law) -> None:
        """Records the law's signals of its last update, at the plant time `stamp` s."""
        signals = self._latest = {name: np.asarray(value, dtype=np.float64) for name, value in law.signals().items()}
        if not signals or self._telemetry is None:
            return
        if self._recorder is None:
            titles_by_signal = (self._columns(name, value) for name, value in signals.items())
            columns = [title for titles in titles_by_signal for title in titles]
            self._recorder = Recorder(self._telemetry, CHANNEL, ["t", *columns])
        row = self._recorder.row()
        row[0] = stamp
        row[1:] = np.concatenate([value.ravel() for value in signals.values()])

    def latest(self) -> dict[str, float | int | str]:
        """Returns the largest magnitude of each signal in the last update, as `law.NAME`."""
        return {f"law.{name}": float(np.abs(value).max(initial=0.0)) for name, value in self._latest.items()}

    def message(self, stamp: float) -> DynamicJointState:
        """Returns the last signals as a message: those with one number per joint by joint, others by their names."""
        parts: dict[str, InterfaceValue] = {}
        for name, value in self._latest.items():
            titles = self._columns(name, value)
            for title, entry_value in zip(titles, value.ravel().tolist(), strict=True):
                entry = title.removeprefix(f"{name}.")
                part, key = (entry, name) if entry in self._names else (name, entry)
                interface_value = parts.setdefault(part, InterfaceValue())
                interface_value.interface_names.append(key)
                interface_value.values.append(entry_value)
        return DynamicJointState(Header(Time.from_seconds(stamp)), list(parts), list(parts.values()))

    def flush(self) -> None:
        """Sends what was recorded."""
        if self._recorder is not None:
            self._recorder.flush()

    def _columns(self, name: str, value: Array) -> list[str]:
        if value.ndim == 0:
            return [f"{name}.{name}"]
        entries = self._names if value.size == len(self._names) else range(value.size)
        return [f"{name}.{entry}" for entry in entries]


_LOAD_PARTS = [f"{kind}.{axis}" for kind in ("torque", "force") for axis in "xyz"]


def loads_message(stamp: float, loads: ConstraintForces) -> DynamicJointState:
    """Returns the load on the bearings of each joint at the plant time `stamp` s, N m and N, in the joint's frame on
    its child link.
    """
    values = [InterfaceValue(list(_LOAD_PARTS), row) for row in loads.constraint.tolist()]
    return DynamicJointState(Header(Time.from_seconds(stamp)), list(loads.joints), values)
