"""The page of a report: one self-contained file with findings at its top."""

import base64
import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dyn_service.control.plant.safety import ACTIVE, BRAKED, MODES, STOPPED
from dyn_service.control.trajectory import PointToPoint
from dyn_service.graph.launch import report as launch_report
from dyn_service.graph.launch.planner import LaunchPlan, ProcessPlan
from dyn_service.graph.launch.report import Shown, make_page, write_report
from dyn_service.graph.launch.supervisor import Outcome
from dyn_service.graph.middleware.node_kind import NodeKind, Panel, Section
from dyn_service.graph.middleware.telemetry import Facts, Ready, Rows, Stats, TelemetryStore
from dyn_service.graph.nodes.registry import Registry
from dyn_service.graph.report.charts import Card, Chart, Finding, Line, Mark, prefix, spans_of
from dyn_service.graph.report.verdicts import Verdict
from tests.trees import configuration

JOINTS = ["lift", "turn"]
LIMIT = 20.0
"""N m, of the second joint's effort; the first has none."""


def take_plant(store: TelemetryStore, node: str, session: int) -> None:
    """3 s at 1 kHz: braked for 1 s, stopped from 2.0 to 2.1 s, the second effort at its limit from 1.5 to 1.8 s."""
    facts = {"role": "plant", "robot": "crane", "fingerprint": "f00", "joints": JOINTS, "session": session,
             "configuration": configuration(JOINTS, ["prismatic", "revolute"]).to_wire(),
             "effort_limit": [math.inf, LIMIT], "velocity_limit": [math.inf, 3.0],
             "lower": [-0.5, -math.inf], "upper": [0.5, math.inf]}  # fmt: skip
    store.take(Ready(node, session))
    store.take(Facts(node, session, facts))
    t = np.arange(3000) / 1000.0
    mode = np.where(t < 1.0, MODES.index(BRAKED), MODES.index(ACTIVE))
    mode[(t >= 2.0) & (t <= 2.1)] = MODES.index(STOPPED)
    tau = np.where((t >= 1.5) & (t <= 1.8), -LIMIT, 5.0)
    tau[1650] = 0.0  # it chatters: one span all the same
    lift = np.where((t >= 2.5) & (t < 2.6), 0.53, 0.1)
    q, v = np.column_stack([lift, np.zeros_like(t)]), np.zeros((3000, 2))
    table = np.column_stack([t, np.full_like(t, session), mode, q, v, np.ones_like(t), tau])
    columns = ["t", "session", "mode", *(f"{kind}.{name}" for kind in ("q", "v", "tau") for name in JOINTS)]
    store.take(Rows(node, session, "plant", columns, np.ascontiguousarray(table, "<f8").tobytes()))
    counters = {
        "steps": 3000,
        "commands": 1900,
        "active_steps": 1900,
        "saturated.turn": 300,
        "out_of_range.lift": 100,
        "stops": 1,
        "stops_missed": 1,
        "armed": 2,
    }
    refusals = {"refused": 2, "refused_stale": 2, "last_refusal": "a command was refused: it is <old>"}
    store.take(Stats(node, session, {**counters, **refusals}))


def write_page(folder: Path, store: TelemetryStore, outcome: Outcome | None = None) -> tuple[dict, str]:
    plan = LaunchPlan(folder / "crane.launch.yaml", {}, ())
    assert not [line for line in write_report(folder, plan, store, outcome or Outcome("done")) if "failed" in line]
    return json.loads((folder / "report.json").read_text("utf-8")), (folder / "index.html").read_text("utf-8")


def charts_of(page: str) -> list[dict]:
    return json.loads(re.search(r'id="chart-data">(.*?)</script>', page, re.DOTALL)[1])


def times_of(charts: list[dict], chart: dict) -> str:
    """The x of a chart; a number there counts back to the chart that has the same x."""
    return chart["x"] if isinstance(chart["x"], str) else times_of(charts, charts[charts.index(chart) + chart["x"]])


def numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


class Look(HTMLParser):
    """The items below 'what to look at': their class, their words, the spans of their buttons; and all addresses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.items: list[tuple[str | None, list[str], list[tuple[float, float]]]] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.addresses += [str(attributes[key]) for key in ("href", "src") if key in attributes]
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "li":
            self.items.append((attributes.get("class"), [], []))
        if "data-from" in attributes:
            self.items[-1][2].append((float(attributes["data-from"] or "nan"), float(attributes["data-to"] or "nan")))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and "li" in self.open:
            self.items[-1][1].append(data)


def test_it_says_what_to_look_at(tmp_path: Path) -> None:
    store = TelemetryStore()
    take_plant(store, "plant", 9)
    report, page = write_page(
        tmp_path, store, Outcome("plant died", ["plant was restarted 1 times: it <died>"], [], 3.0)
    )
    look = Look(page)
    findings = [(kind, "".join(words), spans) for kind, words, spans in look.items]
    assert findings.pop(1)[:2] == (None, report["outcome"]["cause"])
    assert len(findings) == 6
    assert findings[0][:2] == ("grave", "plant was restarted 1 times: it <died>")
    for (kind, text, spans), (severity, begin, span_text) in zip(
        findings[1:],
        [
            ("grave", "plant: turn: its effort was at its limit, \N{PLUS-MINUS SIGN}20 N m, for 15.8 %", [(1.5, 1.8)]),
            ("grave", "plant: lift: it was beyond its upper limit, 0.5, by 0.03 at most", [(2.5, 2.599)]),
            ("grave", "plant: safe stops: 1 (1 missed), armed 2 times", [(2.0, 2.1)]),
            (
                None,
                "plant: refused commands: 2 (2 for a state too old or never published); the last: a command was "
                "refused: it is <old>",
                [],
            ),
            (None, "plant: commands cut to the effort limit: turn 15.8 % of the time under command", []),
        ],
        strict=True,
    ):
        assert (kind, spans) == (severity, span_text)
        assert text.startswith(begin)


def test_it_says_that_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    _, page = write_page(tmp_path, TelemetryStore())
    assert "Nothing: no fault, no safe stop, no limit reached." in page
    assert Look(page).items == []


def test_it_is_whole_by_itself(tmp_path: Path) -> None:
    """Nothing is fetched: addresses are files of the report, anchors, or data."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "arm.plant.log").write_text("words")
    store = TelemetryStore()
    take_plant(store, "plant", 9)
    _, page = write_page(tmp_path, store)
    places = set(re.findall(r'id="([^"]+)"', page))
    linked = set()
    for address in Look(page).addresses:
        if address.startswith("#"):
            assert address[1:] in places
        elif not address.startswith("data:"):
            assert (tmp_path / address).is_file()
            linked.add(address)
    assert linked == {"report.json", "recording.npz", "logs/arm.plant.log"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", page)


def test_two_pairs_are_both_reported(tmp_path: Path) -> None:
    """Sections of one name are below their nodes' names, and each plant has the reference of its session."""
    store = TelemetryStore()
    for node, session in (("left/plant", 9), ("right/plant", 10)):
        take_plant(store, node, session)
    motion = PointToPoint(np.zeros(2), np.zeros(2), np.array([[1.0, -2.0]]), move_s=1.0, dwell_s=1.0).to_wire()
    for session, joints in ((10, JOINTS), (11, ["of", "another"])):
        reference = {"session": session, "begin_s": 1.0, "joints": joints, "motion": motion}
        store.take(Facts(f"{session}/controller", session, {"reference": reference}))
    report, page = write_page(tmp_path, store)
    assert [report["nodes"][f"{side}/plant"]["tracking"]["samples"] for side in ("left", "right")] == [0, 1899]
    assert "tracking" not in report
    assert "plant" not in report
    assert {node: sorted(sections) for node, sections in report["nodes"].items()} == {
        "left/plant": ["plant", "tracking"],
        "right/plant": ["plant", "tracking"],
    }
    assert report["nodes"]["right/plant"]["plant"]["stops"] == 1
    assert re.findall(r'href="#part-\d+">([^<]+)<', page) == [
        "left/plant: tracking", "right/plant: tracking", "left/plant: plant", "right/plant: plant",
    ]  # fmt: skip


def test_charts_carry_the_numbers(tmp_path: Path) -> None:
    store = TelemetryStore()
    take_plant(store, "plant", 9)
    _, page = write_page(tmp_path, store)
    charts = charts_of(page)
    effort = next(chart for chart in charts if chart["label"] == "effort [N m]")
    x, y = numbers(times_of(charts, effort)), numbers(effort["lines"][0]["y"])
    at_limit = x[y == -LIMIT]
    assert (at_limit.min(), at_limit.max()) == pytest.approx((1.5, 1.8), abs=1e-6)
    assert effort["alarms"] == [[1.5, 1.8]]
    assert not effort["bands"]
    assert [(mark["at"], mark["label"]) for mark in effort["marks"]] == [(-LIMIT, "-limit")]
    assert page.count('data-chart="') == len(charts)
    begin, end = (float(number) for number in re.search(r'data-begin="([^"]+)" data-end="([^"]+)"', page).groups())
    assert (begin, end) == (0.0, 2.999)


def page_of(
    parts: list[Shown], processes: tuple = (), columns: dict | None = None, verdicts: Sequence[Verdict] = ()
) -> str:
    names = [process["name"] for process in processes]
    rows = [{"node": "n", "passed": v.passed, "sentence": v.sentence, "subject": v.subject} for v in verdicts]
    outcome = {"exit_code": 0, "clean": True, "verdict": "clean, 1 bound met", "reason": "done", "faults": [],
               "verdicts": rows, "cause": None, "timing": "", "on_time": None}  # fmt: skip
    robot = {"name": None, "fingerprint": None}
    report = {"outcome": outcome, "launch": {"file": "f", "arguments": {}}, "created": "now", "robot": robot,
              "duration_s": 1.0, "simulated_s": None, "processes": list(processes), "versions": {}}  # fmt: skip
    return make_page("<t>", report, parts, columns or {}, {name: [name] for name in names}, ["report.json"], [])


def test_words_of_others_are_words_only() -> None:
    """Names, notes, contents and labels of another package cannot become parts of the page."""
    bad = '</script><img src="x" onerror="alert(1)">'
    line = Line(bad, np.zeros(2))
    chart = Chart(np.arange(2.0), [line], bad, bad, marks=[Mark(0.0, bad)])
    section = Section(
        {bad: bad, "rows": [{bad: bad}]}, [bad], charts={bad: [Card(bad, [chart], bad)]}, findings=[Finding(bad)]
    )
    process = {
        "name": bad,
        "state": bad,
        "restarts": 0,
        "cpu_s": None,
        "cpu_share": None,
        "causes": [bad],
        "faults": [bad],
        "parameters": {bad: bad},
        "clean": True,
    }
    page = page_of([Shown(bad, bad, section, alone=False)], (process,))
    assert "<img" not in page
    assert page.count("</script>") == 3
    assert charts_of(page)[0]["label"] == bad
    Look(page)


def test_a_page_has_every_recorded_point() -> None:
    """A minute at 1 kHz: zooming in shows each sample, and charts over the same times share them."""
    x = 0.001 * np.arange(60_000.0)
    lines = [np.sin(k + x).astype("<f4") for k in range(3)]
    cards = [Card("c", [Chart(x, [Line("a", line)], "y") for line in lines])]
    page = page_of([Shown("n", "p", Section({}, charts={"h": cards}))])
    charts = charts_of(page)
    for chart, line in zip(charts, lines, strict=True):
        assert np.array_equal(numbers(chart["lines"][0]["y"]), line)
        assert np.array_equal(numbers(times_of(charts, chart)), x.astype("<f4"))
    assert [chart["x"] for chart in charts[1:]] == [-1, -2]
    assert "recorded points" not in page


def test_a_broken_line_stays_at_its_last_time() -> None:
    """The x of a chart never falls, which its search for the nearest point needs."""
    x = np.array([0.0, 1.0, 2.0, 9.0, 10.0])
    page = page_of([Shown("n", "p", Section({}, charts={"h": [Card("c", [Chart(x, [Line("a", x)], "y")])]}))])
    (chart,) = charts_of(page)
    assert numbers(chart["x"]).tolist() == [0.0, 1.0, 2.0, 2.0, 9.0, 10.0]
    assert np.flatnonzero(np.isnan(numbers(chart["lines"][0]["y"]))).tolist() == [3]


def test_a_single_recorded_time_has_a_span() -> None:
    chart = Chart(np.array([0.5]), [Line("a", np.zeros(1))], "y")
    page = page_of([Shown("n", "p", Section({}, charts={"h": [Card("c", [chart])]}))])
    assert 'data-begin="0.5" data-end="1.5"' in page


def test_runs_too_long_for_a_page_keep_their_peaks_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_report, "MAX_VALUES", 6000)
    x = np.arange(200_000.0)
    spike = np.where(x == 123_456.0, 7.0, 0.0)
    gap = np.where((x > 50_000.0) & (x < 60_000.0), np.nan, 1.0)
    lines = [Line("a", spike), Line("b", gap)]
    page = page_of([Shown("n", "p", Section({}, charts={"h": [Card("c", [Chart(x, lines, "y")])]}))])
    (chart,) = charts_of(page)
    times, peak, broken = numbers(chart["x"]), numbers(chart["lines"][0]["y"]), numbers(chart["lines"][1]["y"])
    assert len(times) <= 3000
    assert times[np.argmax(peak)] == 123_456.0
    assert np.all(np.diff(times) >= 0.0)
    is_inside = (times > 50_300.0) & (times < 59_700.0)
    assert is_inside.any()
    assert np.isnan(broken[is_inside]).all()
    assert "show 3000 of 200000 recorded points" in page


def test_a_column_that_fails_costs_only_its_cell(tmp_path: Path) -> None:
    from dyn_service.graph.middleware.node_kind import Column

    def broken(stats):
        raise KeyError("rate")

    fine = Column("speed", lambda stats: f"{stats['speed']:.0f} m/s")
    kind = NodeKind("n", object, lambda node: None, columns=(Column("bad", broken), fine))
    process = ProcessPlan("n", ("n",), "", kind=kind)
    plan = LaunchPlan(tmp_path / "x.yaml", {}, (process,), Registry())
    store = TelemetryStore()
    store.take(Stats("n", 1, {"speed": 12.0}))
    outcome = Outcome()
    outcome.processes = [ended(process)]
    write_report(tmp_path, plan, store, outcome)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "<th>speed</th>" in page
    assert '<td data-label="speed">12 m/s</td>' in page
    assert '<td data-label="bad">?</td>' in page


def ended(plan: ProcessPlan):
    from dyn_service.graph.launch.supervisor import Hooks, ManagedProcess

    ignore = lambda *words: None
    return ManagedProcess(plan, {}, Hooks(ignore, ignore, ignore, ignore))


def test_findings_on_limits_have_spans() -> None:
    t = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.9, 1.0])
    holds = np.array([1, 1, 0, 1, 0, 0, 1], dtype=bool)
    assert spans_of(t, holds) == [(0.0, 0.1), (0.3, 0.3), (1.0, 1.0)]
    assert spans_of(t, holds, join_s=0.21) == [(0.0, 0.3), (1.0, 1.0)]
    assert spans_of(t, ~holds & holds) == []
    assert spans_of(t[:0], holds[:0]) == []


def test_prefixes() -> None:
    assert [prefix(size) for size in (3.0, 2e-3, 2e-6, 1e-12, 1e-17)] == [
        (1.0, ""),
        (1e3, "m"),
        (1e6, "\N{MICRO SIGN}"),
        (1e9, "n"),
        (1.0, ""),  # a rounding error: its chart has a floor, `Chart.least`
    ]


def test_panels_with_findings_and_charts_of_another_package(tmp_path: Path) -> None:
    t = np.linspace(0.0, 1.0, 50)

    def make(node, store):
        card = Card("motor", [Chart(t, [Line("winding", 20.0 + t)], "temperature [deg C]")])
        return Section({"max_c": 21.0}, charts={"Temperature": [card]}, findings=[Finding("motor: hot", [(0.5, 1.0)])])

    kind = NodeKind("n", object, lambda node: None, panels=(Panel("temperature", make),))
    plan = LaunchPlan(tmp_path / "x.launch.yaml", {}, (ProcessPlan("motor", (), "", kind=kind),))
    store = TelemetryStore()
    store.take(Ready("motor", 1))
    assert write_report(tmp_path, plan, store, Outcome("done")) == []
    page = (tmp_path / "index.html").read_text("utf-8")
    assert Look(page).items == [(None, ["motor:", " motor: hot", "0.50 \N{EN DASH} 1.00 s"], [(0.5, 1.0)])]
    assert [line["label"] for line in charts_of(page)[0]["lines"]] == ["winding"]


@pytest.mark.parametrize(
    ("grave", "badge"),
    [
        (True, '<span class="badge warn">clean, 1 bound met, but look<'),
        (False, '<span class="badge good">clean, 1 bound met<'),
    ],
)
def test_a_run_that_was_another_than_was_meant_is_not_green(grave: bool, badge: str) -> None:
    section = Section({}, findings=[Finding("it stopped", grave=grave)])
    assert badge in page_of([Shown("plant", "plant", section)])
