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
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dyn_service import __version__
from dyn_service.graph.launch.cpu_time import cause_of_delays
from dyn_service.graph.launch.planner import LaunchPlan
from dyn_service.graph.launch.supervisor import Outcome
from dyn_service.graph.middleware.node_kind import Section
from dyn_service.graph.middleware.telemetry import NodeTelemetry, TelemetryStore
from dyn_service.graph.report import page
from dyn_service.graph.report.charts import Finding, Span
from dyn_service.graph.report.verdicts import Verdict
from dyn_service.support.files import replacement

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
"""Maximum number of values on a page, 21 MB: a minute of a Panda at 1 kHz. Beyond it lines are thinned."""
_LONG = 24
"""Characters of a cell above which it may break into lines."""
_NOTHING = "Nothing: no fault, no safe stop, no limit reached."
_OK_STATES = ("stopped", "done", "ready")


@dataclass(frozen=True)
class Shown:
    """A section of a page. name: of the panel; node: its node; alone: whether no other node has this panel."""

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

    # first, because it is small and the most important
    outcome.faults += main_file()
    fault_count, arrays = len(outcome.faults), _recordings(store, parts)
    if arrays:
        outcome.faults += _keep(folder / RECORDING, lambda file: np.savez(file, **arrays))
    outcome.faults += _write_page(folder, plan, store, outcome, parts, lines)
    if len(outcome.faults) > fault_count:
        # again, with the faults of the other files; if that fails, the first one remains
        main_file()
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
    sections: list[tuple[str, str, Section]] = []
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
                sections.append((name, panel.section, section))
    count = Counter(panel for _, panel, _ in sections)
    parts = [Shown(node, panel, section, alone=count[panel] == 1) for node, panel, section in sections]
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
    """Returns CPU time and share of one core of a node's runs that did not end by a signal; None if unknown."""
    lives = [life for life in (node.lives.values() if node is not None else ()) if "cpu_s" in life]
    cpu_s, lived_s = (sum(float(life[name]) for life in lives) for name in ("cpu_s", "lived_s"))
    return {"cpu_s": cpu_s, "cpu_share": cpu_s / lived_s} if lives else {"cpu_s": None, "cpu_share": None}


def versions() -> dict[str, str]:
    """Returns the versions of Python and libraries."""
    system = platform.platform(terse=True)
    versions_by_name = {"dyn_service": __version__, "python": platform.python_version(), "system": system}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions_by_name[package] = importlib.metadata.version(package)
    return versions_by_name


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
    tables += [(part.node, channel, *table) for part in parts for channel, table in part.section.tables.items()]
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
            cells = ((x.label, x.cell(node.stats, lockstep=store.lockstep)) for x in kind.columns)
            columns[process.name] = dict(cells)
    links = [name for name in (MAIN_FILE, RECORDING) if (folder / name).exists()]
    links += [f"logs/{path.name}" for path in sorted((folder / "logs").glob("*.log"))]
    tails = {p.plan.name: list(p.tail)[-TAIL:] for p in outcome.processes if p.fault is not None and p.tail}

    text = make_page(title, report, parts, columns, tails, links, lines)
    return _keep(folder / PAGE, lambda file: file.write(text.encode()))


def _failed(section: str, error: Exception) -> str:
    return f"panel {section!r} failed: {type(error).__name__}: {error}"


def _keep(path: Path, write: Callable[[BinaryIO], Any]) -> list[str]:
    """Writes a file as a whole; returns a line if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacement(path) as file:
            write(file)
        return []
    except OSError as error:
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
    # in the order of starting: the plant before its controller; pictures before numbers
    in_order = list(reversed(parts))
    parts = sorted(in_order, key=lambda part: not (part.section.charts or part.section.plots))
    points, thinned, span = _budget(parts, files)
    outcome = report["outcome"]
    return page.render(
        f"{title}: {outcome['verdict']}",
        _header(title, report, files, grave=any(finding.grave for part in parts for finding in part.section.findings)),
        [
            page.Part("verdicts", "Verdicts", _verdicts(outcome), "verdicts"),
            page.Part("look", "What to look at", [_findings(outcome, parts), thinned], "what to look at"),
            page.Part("nodes", "Nodes", _nodes(report["processes"], columns, tails), "nodes", is_open=True),
            *(_part(k, part, title, points, lines) for k, part in enumerate(parts)),
        ],
        title,
        span,
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()),
    )


def _budget(parts: Sequence[Shown], files: Sequence[str]) -> tuple[int, page.Content, Span]:
    """Returns the number of points per line, a sentence if lines are thinned, and the span of the charts over time."""
    cards = [card for part in parts for cards in part.section.charts.values() for card in cards]
    charts = [chart for card in cards for chart in card.charts]
    points = max((len(chart.x) for chart in charts), default=0)
    thinned: page.Content = ""
    if sum(len(chart.x) * len(chart.lines) for chart in charts) > MAX_VALUES:
        longest, points = points, MAX_VALUES // sum(len(chart.lines) for chart in charts)
        source = ", ".join(name for name in files if name.endswith(".npz")) or "no file"
        thinned = page.soft(
            f"The charts show {points} of {longest} recorded points of a line, the smallest "
            f"and the largest of each interval. All recorded points are in {source}."
        )
    times = [chart.x for chart in charts if chart.timed and len(chart.x)]
    begin = min((float(np.nanmin(x)) for x in times), default=0.0)
    end = max((float(np.nanmax(x)) for x in times), default=1.0)
    return points, thinned, (begin, end if end > begin else begin + 1.0)


def _header(title: str, report: Mapping[str, Any], files: Sequence[str], *, grave: bool) -> page.Element:
    """Returns the header. grave: whether a finding changed the run, though all processes ended well."""
    outcome, launch, robot = report["outcome"], report["launch"], report["robot"]
    simulated_s = report["simulated_s"]
    colour, word = {True: "good", False: "bad", None: "warn"}[outcome["clean"]], outcome["verdict"]
    if grave and outcome["clean"]:
        colour, word = "warn", f"{word}, but look"
    badges = [page.badge(colour, word)]
    if outcome["timing"]:
        badges.append(page.badge("good" if outcome["on_time"] else "warn", outcome["timing"]))
    has_several = title != robot["name"] and str(robot["name"]) in title.split(", ")
    facts = page.facts(
        [
            ("robots", title) if has_several else ("robot", robot["name"]),
            ("model", "" if has_several else (robot["fingerprint"] or "")[:12]),
            ("ran", f"{report['duration_s']:.1f} s"),
            ("simulated", "" if simulated_s is None else f"{simulated_s:g} s in lockstep"),
            ("launch file", launch["file"]),
            ("created", str(report["created"]).replace("T", " ")),
        ]
    )
    arguments = [
        page.tag("span", f"{name}:=", page.tag("b", str(value)), kind="mono")
        for name, value in launch["arguments"].items()
    ]
    folded = page.fold("arguments", page.tag("div", arguments, kind="facts")) if arguments else ""
    status = f"status {outcome['exit_code']}: {outcome['reason'] or 'no reason given'}"
    return page.header(title, badges, status, facts, folded, page.soft("Files: ", page.links(files)))


def _verdicts(outcome: Mapping[str, Any]) -> page.Content:
    """Returns the table of verdicts: measured values with their bounds, and what was not judged."""
    words = {True: "met", False: "broken", None: "not judged"}
    rows = [
        [
            row["subject"],
            page.tag("b", row["node"]),
            page.state(words[row["passed"]], good=row["passed"]),
            row["sentence"],
        ]
        for row in sorted(outcome["verdicts"], key=lambda verdict: verdict["subject"])
    ]
    if not rows:
        return "Nothing was judged: no node of this launch has bounds."
    return page.table(rows, ("bound on", "node", "", ""), "nodes verdicts")


def _findings(outcome: Mapping[str, Any], parts: Sequence[Shown]) -> page.Element:
    entries = [(Finding(fault, grave=True), "", "") for fault in outcome["faults"]]
    entries += [(Finding(outcome["cause"]), "", "")] if outcome["cause"] else []
    of_parts = [(finding, part, k) for k, part in enumerate(parts) for finding in part.section.findings]
    for finding, part, k in sorted(of_parts, key=lambda entry: not entry[0].grave):
        charted = next((n for n, peer in enumerate(parts) if peer.node == part.node and peer.section.charts), k)
        entries.append((finding, part.node, f"part-{k if part.section.charts else charted}"))
    return page.findings(entries) if entries else page.tag("p", _NOTHING, kind="nothing")


def _nodes(
    processes: Sequence[Mapping[str, Any]], columns: Mapping[str, Mapping[str, str]], tails: Mapping[str, Sequence[str]]
) -> page.Content:
    labels = list(dict.fromkeys(label for cells in columns.values() for label, text in cells.items() if text))
    rows: list[list[page.Content]] = []
    parameters: list[page.Content] = []
    for process in processes:
        name, share = process["name"], process["cpu_share"]
        cells = [("CPU", "" if share is None else f"{process['cpu_s']:.1f} s, {100.0 * share:.0f} %")]
        cells += [(label, columns.get(name, {}).get(label, "")) for label in labels]
        good = process["state"] in _OK_STATES and process["clean"] and not process["faults"]
        rows.append(
            [
                page.tag("b", name),
                page.state(process["state"], good=good),
                str(process["restarts"]),
                # on one line unless it is long
                *(page.cell(text, "words" if len(text) > _LONG else "", label) for label, text in cells),
                page.cell("; ".join([*process["causes"], *process["faults"]]), "words soft", "how it ended"),
            ]
        )
        if process["parameters"]:
            parameters.append([page.tag("h3", name), page.numbers(process["parameters"])])
    outputs = [
        [page.tag("h3", f"{name} wrote at its end"), page.tag("pre", "\n".join(lines), kind="tail")]
        for name, lines in tails.items()
    ]
    head = ("node", "state", "restarts", "CPU", *labels, "how it ended")
    return [page.table(rows, head, "nodes"), outputs, page.fold("parameters", parameters) if parameters else ""]


def _part(k: int, part: Shown, title: str, points: int, lines: list[str]) -> page.Part:
    section = part.section
    groups = section.charts.items()
    content: list[page.Content] = [[page.tag("h3", name), page.cards(cards, points)] for name, cards in groups]
    for name, draw in section.plots.items():
        try:
            source = page.picture(draw, title)
        except Exception as error:  # noqa: BLE001  a panel, possibly of another package, must not prevent the report
            lines.append(_failed(part.title, error))
            content.append(page.soft(f"The picture {name} could not be drawn: {error}"))
        else:
            content += [page.tag("h3", name), page.tag("img", kind="picture", alt=name, src=source)]
    content.append(page.fold("numbers", page.numbers(section.content), is_open=not content))
    notes = [page.tag("span", line, kind="soft") for line in section.lines]
    return page.Part(f"part-{k}", part.title, content, part.title, is_open=True, notes=notes)
