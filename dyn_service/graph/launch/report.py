"""The report of a launch:

    index.html         the page: outcome and findings, nodes, and the panels with their charts, pictures of matplotlib,
                       and the numbers of `report.json`
    report.json        what ran, how it ended, what was measured; see docs/launch.md for every field
    recording.npz      the recordings as arrays, `<node>.<channel>` with `<node>.<channel>.columns`
    logs/              what the processes wrote

Nodes declare their panels: see `graph/middleware/node_kind.py`. All numbers in `report.json` were sent by nodes;
infinities and NaN are null.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import IO, Any

import numpy as np

from dyn_service import __version__
from dyn_service.graph.launch.cpu_time import cause_of_delays
from dyn_service.graph.launch.planner import LaunchPlan
from dyn_service.graph.launch.supervisor import Outcome
from dyn_service.graph.middleware.node_kind import Section
from dyn_service.graph.middleware.telemetry import NodeTelemetry, TelemetryStore
from dyn_service.graph.report import page as html
from dyn_service.graph.report.charts import Finding, Span
from dyn_service.graph.report.verdicts import Verdict

SCHEMA = "dyn_service.launch_report/1"
MAIN_FILE = "report.json"
PAGE = "index.html"
RECORDING = "recording.npz"
_PACKAGES = ("numpy", "pyzmq", "msgpack", "msgspec", "casadi", "llvmlite", "matplotlib", "rich")
_ROBOT = {"name": "robot", "fingerprint": "fingerprint", "joints": "joints"}
"""Keys of the report's `robot`, and their facts."""
TAIL = 20
"""Number of last lines of a failed process, if its output is not on the screen."""
MAX_VALUES = 4_000_000
"""Maximum number of values of all lines on a page, 21 MB: a minute of a Panda at 1 kHz. With more, each line is
thinned, and the page says so.
"""
_SPANS = 8
"""Maximum number of linked spans per finding."""
_LONG = 24
"""Characters of a cell above which it may break into lines."""
_NOTHING = "Nothing: no fault, no safe stop, no limit reached."
_OK_STATES = ("stopped", "done", "ready")


@dataclass(frozen=True)
class Shown:
    """A section of a page. name: of the panel; node: its node; alone: whether no other node has a panel with this
    name.
    """

    node: str
    name: str
    section: Section
    alone: bool = True

    @property
    def title(self) -> str:
        """The title on the page."""
        return self.name if self.alone else f"{self.node}: {self.name}"


def write_report(folder: Path, plan: LaunchPlan, store: TelemetryStore, outcome: Outcome) -> list[str]:
    """Writes the report to the folder; returns a summary of a few lines.

    Each file is written completely or not at all. A file that cannot be written is a fault of the outcome; others are
    written.
    """
    parts, lines = sections_of(plan, store, outcome)

    def main_file() -> list[str]:
        content = json.dumps(finite(report_of(plan, store, outcome, parts)), indent=2, allow_nan=False) + "\n"
        return _keep(folder / MAIN_FILE, lambda file: file.write(content.encode()))

    outcome.faults += main_file()  # first, because it is small and the most important
    known, arrays = len(outcome.faults), _recordings(store, parts)
    if arrays:
        outcome.faults += _keep(folder / RECORDING, lambda file: np.savez(file, **arrays))
    outcome.faults += _write_page(folder, plan, store, outcome, parts, lines)
    if len(outcome.faults) > known:
        main_file()  # again, with the faults of the other files; if that fails, the first one remains
    return lines


def clear_report(folder: Path) -> None:
    """Removes the report of an earlier launch."""
    for path in (folder / PAGE, folder / MAIN_FILE, folder / RECORDING):
        with suppress(OSError):
            path.unlink()


def sections_of(plan: LaunchPlan, store: TelemetryStore, outcome: Outcome) -> tuple[list[Shown], list[str]]:
    """Returns the sections of all nodes' panels and summary lines; adds their verdicts to the outcome.

    Nodes that were started last, the clients of the others, come first.
    """
    made: list[tuple[str, str, Section]] = []
    lines: list[str] = []
    outcome.verdicts = []
    for name, node in reversed(store.nodes.items()):
        kind = plan.kind_of(name, node)
        for panel in () if kind is None else kind.panels:
            try:
                section = panel.make(node, store)
                if section is not None:
                    json.dumps(finite(dict(section.content)))  # raises for values that JSON cannot represent
            except Exception as error:  # noqa: BLE001  a failing panel must not prevent the report
                lines.append(_failed(panel.section, error))
                outcome.verdicts.append((name, Verdict(panel.section, math.nan, 0.0, "", "its panel failed")))
                continue
            if section is not None:
                outcome.verdicts += [(name, verdict) for verdict in section.verdicts]
                made.append((name, panel.section, section))
    count = Counter(panel for _, panel, _ in made)
    parts = [Shown(node, panel, section, alone=count[panel] == 1) for node, panel, section in made]
    for part in parts:
        lines += part.section.lines if part.alone else [f"{part.node}: {line}" for line in part.section.lines]
    return parts, lines


def report_of(plan: LaunchPlan, store: TelemetryStore, outcome: Outcome, parts: Sequence[Shown]) -> dict[str, Any]:
    """Returns the report as a map. Sections with the same name of several nodes are under `nodes`, by node name."""
    nodes: dict[str, dict[str, Any]] = {}
    for part in parts:
        if not part.alone:
            nodes.setdefault(part.node, {})[part.name] = dict(part.section.content)
    source = store.with_fact("joints") or store.with_fact("robot")
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "launch": {"file": plan.file.name, "arguments": dict(plan.arguments)},
        "robot": {name: None if source is None else source.fact(key) for name, key in _ROBOT.items()},
        "duration_s": outcome.running_s,
        "simulated_s": outcome.simulated_s,
        "outcome": {
            "exit_code": outcome.exit_code,
            "clean": outcome.clean,
            "verdict": outcome.verdict,
            "reason": outcome.reason,
            "faults": list(outcome.faults),
            "verdicts": [
                {"node": node, "passed": verdict.passed, "sentence": verdict.sentence, **asdict(verdict)}
                for node, verdict in outcome.verdicts
            ],
            "on_time": outcome.on_time,
            "timing": outcome.timing,
            "cpu": dict(outcome.cpu),
            "cause": cause(plan, outcome),
        },
        "processes": [
            {
                "name": process.plan.name,
                "state": process.state.value,
                "restarts": process.restarts,
                **_cpu(store.nodes.get(process.plan.name)),
                "exits": list(process.exits),
                "causes": list(process.causes),
                "clean": process.clean and process.stopped_well(),
                "parameters": dict(process.plan.parameters),
                "faults": store.nodes[process.plan.name].faults if process.plan.name in store.nodes else [],
            }
            for process in outcome.processes
        ],
        **{part.name: dict(part.section.content) for part in parts if part.alone},
        **({"nodes": nodes} if nodes else {}),
        "versions": versions(),
    }


def cause(plan: LaunchPlan, outcome: Outcome) -> str | None:
    """Returns why a run was late, with advice; None for a run that was not."""
    if outcome.on_time is not False:
        return None
    add = "add clock:=lockstep" if "clock" in plan.arguments else "set the plant's parameter clock: lockstep"
    return f"late: {cause_of_delays(outcome.cpu)}. For a run that does not depend on the machine, {add}"


def _cpu(node: NodeTelemetry | None) -> dict[str, float | None]:
    """Returns the CPU time of a node's runs that did not end by a signal, and the share of one core; None if
    unknown.
    """
    known = [life for life in (node.lives.values() if node is not None else ()) if "cpu_s" in life]
    cpu_s, lived_s = (sum(float(life[name]) for life in known) for name in ("cpu_s", "lived_s"))
    return {"cpu_s": cpu_s, "cpu_share": cpu_s / lived_s} if known else {"cpu_s": None, "cpu_share": None}


def versions() -> dict[str, str]:
    """Returns the versions of Python and libraries."""
    found = {"dyn_service": __version__, "python": platform.python_version(), "system": platform.platform(terse=True)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def finite(value: Any) -> Any:
    """Returns the value with infinities and NaN as None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _recordings(store: TelemetryStore, parts: Sequence[Shown]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    tables: list[tuple[str, str, Sequence[str], Any]] = [
        (name, channel, recording.columns, recording.table)
        for name, node in store.nodes.items()
        for channel, recording in node.recordings.items()
    ]
    tables += [(part.node, channel, *made) for part in parts for channel, made in part.section.tables.items()]
    for name, channel, columns, table in tables:
        key = f"{name}.{channel}".replace("/", ".")
        arrays[key], arrays[f"{key}.columns"] = table, np.array(columns)
    return arrays


def _write_page(
    folder: Path, plan: LaunchPlan, store: TelemetryStore, outcome: Outcome, parts: Sequence[Shown], lines: list[str]
) -> list[str]:
    """Writes the page; returns a line if that fails."""
    report = report_of(plan, store, outcome, parts)
    robots = dict.fromkeys(str(node.fact("robot")) for node in store.nodes.values() if node.fact("robot"))
    title = ", ".join(robots) or plan.file.stem
    columns: dict[str, dict[str, str]] = {}
    for process in plan.processes:
        node = store.nodes.get(process.name)
        kind = plan.kind_of(process.name, node)
        if kind is not None and node is not None:
            columns[process.name] = {
                column.label: column.cell(node.stats, lockstep=store.lockstep) for column in kind.columns
            }
    links = [name for name in (MAIN_FILE, RECORDING) if (folder / name).exists()]
    links += [f"logs/{path.name}" for path in sorted((folder / "logs").glob("*.log"))]
    tails = {p.plan.name: list(p.tail)[-TAIL:] for p in outcome.processes if p.fault is not None and p.tail}

    text = make_page(title, report, parts, columns, tails, links, lines)
    return _keep(folder / PAGE, lambda file: file.write(text.encode()))


def _failed(section: str, error: Exception) -> str:
    return f"panel {section!r} failed: {type(error).__name__}: {error}"


def _keep(path: Path, write: Callable[[IO[bytes]], Any]) -> list[str]:
    """Writes a file to a temporary name and renames it; returns a line if that fails, and leaves nothing behind."""
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # a full disk may be reported only now
        temporary.replace(path)
        return []
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        return [f"{path.name} could not be written: {error.strerror or error}"]


def make_page(
    title: str,
    report: Mapping[str, Any],
    parts: Sequence[Shown],
    columns: Mapping[str, Mapping[str, str]],
    tails: Mapping[str, Sequence[str]],
    files: Sequence[str],
    lines: list[str],
) -> str:
    """Returns the page.

    columns: By node, its last cells of the live table, by their labels. tails: By node, the last lines of its output,
    for nodes that failed. files: Files next to the page, relative to it. lines: Gets a line per failed picture.
    """
    charts: list[str] = []
    # in the order of starting: the plant before its controller; pictures before numbers
    in_order = list(reversed(parts))
    parts = sorted(in_order, key=lambda one: not (one.section.charts or one.section.plots))
    points, thinned, span = _budget(parts, files)
    bodies = [_part(k, one, title, charts, points, lines) for k, one in enumerate(parts)]
    outcome = report["outcome"]
    body = "\n".join(
        [
            _verdicts(outcome),
            _findings(outcome["faults"], [outcome["cause"]] if outcome["cause"] else [], parts),
            thinned,
            _nodes(report["processes"], columns, tails),
            html.WITHOUT_SCRIPTS,
            *bodies,
        ]
    )
    anchors = [("top", title), ("verdicts", "verdicts"), ("look", "what to look at"), ("nodes", "nodes")]
    anchors += [(f"part-{k}", one.title) for k, one in enumerate(parts)]
    grave = any(found.grave for one in parts for found in one.section.findings)
    versions = ", ".join(f"{escape(name)} {escape(str(value))}" for name, value in report["versions"].items())
    header = _header(title, report, files, grave=grave)
    return html.document(f"{title}: {outcome['verdict']}", anchors, header, body, charts, span, versions)


def _budget(parts: Sequence[Shown], files: Sequence[str]) -> tuple[int, str, Span]:
    """Returns the number of points per line, a sentence if lines are thinned, and the span of the charts over time."""
    charts = [
        chart for one in parts for cards in one.section.charts.values() for card in cards for chart in card.charts
    ]
    points, thinned = max((len(chart.x) for chart in charts), default=0), ""
    if sum(len(chart.x) * len(chart.lines) for chart in charts) > MAX_VALUES:
        longest, points = points, MAX_VALUES // sum(len(chart.lines) for chart in charts)
        source = ", ".join(name for name in files if name.endswith(".npz")) or "no file"
        thinned = (
            f'<p class="soft">The charts show {points} of {longest} recorded points of a line, the smallest '
            f"and the largest of each interval. All recorded points are in {escape(source)}.</p>"
        )
    timed = [chart.x for chart in charts if chart.timed and len(chart.x)]
    begin = min((float(np.nanmin(x)) for x in timed), default=0.0)
    end = max((float(np.nanmax(x)) for x in timed), default=1.0)
    return points, thinned, (begin, end if end > begin else begin + 1.0)


def _header(title: str, report: Mapping[str, Any], files: Sequence[str], *, grave: bool) -> str:
    """Returns the header. grave: whether a finding changed the run (safe stops, dropped commands), though all processes
    ended well.
    """
    outcome, launch, robot = report["outcome"], report["launch"], report["robot"]
    simulated_s = report["simulated_s"]
    colour, word = {True: "good", False: "bad", None: "warn"}[outcome["clean"]], outcome["verdict"]
    if grave and outcome["clean"]:
        colour, word = "warn", f"{word}, but look"
    badges = html.badge(colour, word)
    if outcome["timing"]:
        badges += html.badge("good" if outcome["on_time"] else "warn", outcome["timing"])
    several = title != robot["name"] and str(robot["name"]) in title.split(", ")
    about = html.facts(
        [
            ("robots", title) if several else ("robot", robot["name"]),
            ("model", "" if several else (robot["fingerprint"] or "")[:12]),
            ("ran", f"{report['duration_s']:.1f} s"),
            ("simulated", "" if simulated_s is None else f"{simulated_s:g} s in lockstep"),
            ("launch file", launch["file"]),
            ("created", str(report["created"]).replace("T", " ")),
        ]
    )
    given = "".join(
        f'<span class="mono">{escape(name)}:=<b>{escape(str(value))}</b></span>'
        for name, value in launch["arguments"].items()
    )
    arguments = html.more("arguments", f'<div class="facts">{given}</div>') if given else ""
    ended = f"status {outcome['exit_code']}: {outcome['reason'] or 'no reason given'}"
    listed = f'<p class="soft">Files: {html.links(files)}</p>'
    return html.header(title, badges, ended, f"{about}\n{arguments}\n{listed}\n")


def _verdicts(outcome: Mapping[str, Any]) -> str:
    """Returns the table of verdicts: measured values with their bounds, and what was not judged."""
    words = {True: "met", False: "broken", None: "not judged"}
    rows = [
        [
            html.cell(row["subject"], label="bound on"),
            html.cell(f"<b>{escape(row['node'])}</b>"),
            html.state(words[row["passed"]], good=row["passed"]),
            html.cell(escape(row["sentence"])),
        ]
        for row in sorted(outcome["verdicts"], key=lambda verdict: verdict["subject"])
    ]
    if not rows:
        return html.section("verdicts", "Verdicts", "Nothing was judged: no node of this launch has bounds.")
    return html.section("verdicts", "Verdicts", html.table(rows, ("bound on", "node", "", ""), "nodes verdicts"))


def _findings(faults: Sequence[str], notes: Sequence[str], parts: Sequence[Shown]) -> str:
    items = [_finding(Finding(fault, grave=True), "", "") for fault in faults]
    items += [_finding(Finding(note), "", "") for note in notes]
    found = [(one, part, k) for k, part in enumerate(parts) for one in part.section.findings]
    for one, part, k in sorted(found, key=lambda item: not item[0].grave):
        charted = next((n for n, other in enumerate(parts) if other.node == part.node and other.section.charts), k)
        items.append(_finding(one, part.node, f"part-{k if part.section.charts else charted}"))
    shown = f'<ul class="look">{"".join(items)}</ul>' if items else f'<p class="nothing">{_NOTHING}</p>'
    return html.section("look", "What to look at", shown)


def _finding(one: Finding, node: str, part: str) -> str:
    chips = "".join(
        f'<button data-from="{begin!r}" data-to="{end!r}" data-part="{part}">{_span(begin, end)}</button>'
        for begin, end in one.spans[:_SPANS]
    )
    rest = len(one.spans) - _SPANS
    if rest > 0:
        chips += f'<span class="soft">and {rest} more, until {one.spans[-1][1]:.2f} s</span>'
    of = f'<span class="of">{escape(node)}:</span> ' if node else ""
    kind = ' class="grave"' if one.grave else ""
    return f"<li{kind}>{of}{escape(one.text)}{f'<span class=spans>{chips}</span>' if chips else ''}</li>"


def _span(begin: float, end: float) -> str:
    return f"{begin:.2f} s" if end - begin < 0.01 else f"{begin:.2f} \N{EN DASH} {end:.2f} s"


def _nodes(
    processes: Sequence[Mapping[str, Any]], columns: Mapping[str, Mapping[str, str]], tails: Mapping[str, Sequence[str]]
) -> str:
    labels = list(dict.fromkeys(label for cells in columns.values() for label, text in cells.items() if text))
    rows, parameters = [], []
    for process in processes:
        name, share = process["name"], process["cpu_share"]
        cells = [("CPU", "" if share is None else f"{process['cpu_s']:.1f} s, {100.0 * share:.0f} %")]
        cells += [(label, columns.get(name, {}).get(label, "")) for label in labels]
        good = process["state"] in _OK_STATES and process["clean"] and not process["faults"]
        rows.append(
            [
                html.cell(f"<b>{escape(name)}</b>"),
                html.state(process["state"], good=good),
                html.cell(str(process["restarts"]), label="restarts"),
                # on one line unless it is long
                *(html.cell(escape(text), "words" if len(text) > _LONG else "", label) for label, text in cells),
                html.cell(escape("; ".join([*process["causes"], *process["faults"]])), "words soft", "how it ended"),
            ]
        )
        if process["parameters"]:
            parameters.append(f"<h3>{escape(name)}</h3>{html.numbers(process['parameters'])}")
    last = "".join(
        f'<h3>{escape(name)} wrote at its end</h3><pre class="tail">{escape(chr(10).join(lines))}</pre>'
        for name, lines in tails.items()
    )
    head = ("node", "state", "restarts", "CPU", *labels, "how it ended")
    said = html.more("parameters", "".join(parameters)) if parameters else ""
    return html.part("nodes", "Nodes", (), f"{html.table(rows, head, 'nodes')}{last}{said}")


def _part(k: int, shown: Shown, title: str, charts: list[str], points: int, lines: list[str]) -> str:
    content = shown.section
    body = [f"<h3>{escape(name)}</h3>{html.cards(cards, charts, points)}" for name, cards in content.charts.items()]
    for name, draw in content.plots.items():
        try:
            source = html.picture(draw, title)
        except Exception as error:  # noqa: BLE001  a panel, possibly of another package, must not prevent the report
            lines.append(_failed(shown.title, error))
            body.append(f'<p class="soft">The picture {escape(name)} could not be drawn: {escape(str(error))}</p>')
        else:
            body.append(f'<h3>{escape(name)}</h3><img class="picture" alt="{escape(name)}" src="{source}">')
    body.append(html.more("numbers", html.numbers(content.content), opened=not body))
    return html.part(f"part-{k}", shown.title, content.lines, "".join(body))
