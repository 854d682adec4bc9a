"""The page of a launch's report, `index.html`: outcome and findings, nodes, and the panels with their charts, pictures
of matplotlib, and the numbers of `report.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from dyn_service.graph.middleware.node_kind import Section
from dyn_service.graph.report import page as html
from dyn_service.graph.report.charts import Finding, Span

MAX_VALUES = 4_000_000
"""Maximum number of values of all lines on a page, 21 MB: a minute of a Panda at 1 kHz. With more, each line is
thinned, and the page says so."""
_SPANS = 8
"""Maximum number of linked spans per finding."""
_LONG = 24
"""Characters."""
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


def make_page(
    title: str,
    report: Mapping[str, Any],
    parts: Sequence[Shown],
    columns: Mapping[str, Mapping[str, str]],
    tails: Mapping[str, Sequence[str]],
    files: Sequence[str],
    failed: Callable[[str, Exception], None],
) -> str:
    """Returns the page.

    columns: By node, its last cells of the live table, by their labels. tails: By node, the last lines of its output,
    for nodes that failed. files: Files next to the page, relative to it. failed: Called with the name of a section and
    the error if a picture cannot be drawn.
    """
    charts: list[str] = []
    # in the order of starting: the plant before its controller; pictures before numbers
    in_order = list(reversed(parts))
    parts = sorted(in_order, key=lambda one: not (one.section.charts or one.section.plots))
    points, thinned, span = _budget(parts, files)
    bodies = [_part(k, one, title, charts, points, failed) for k, one in enumerate(parts)]
    outcome = report["outcome"]
    body = "\n".join(
        [
            _verdicts(outcome),
            _findings([*outcome["faults"], *filter(None, [outcome["busy"]])], parts),
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
    colour, word = {True: "good", False: "bad", None: "warn"}[outcome["clean"]], outcome["verdict"]
    if grave and outcome["clean"]:
        colour, word = "warn", f"{word}, but look"
    several = title != robot["name"] and str(robot["name"]) in title.split(", ")
    about = html.facts(
        [
            ("robots", title) if several else ("robot", robot["name"]),
            ("model", "" if several else (robot["fingerprint"] or "")[:12]),
            ("ran", f"{report['duration_s']:.1f} s"),
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
    return html.header(title, html.badge(colour, word), ended, f"{about}\n{arguments}\n{listed}\n")


def _verdicts(outcome: Mapping[str, Any]) -> str:
    """Returns the table of verdicts: measured values with their bounds, and what was not judged."""
    words = {True: "met", False: "broken", None: "not judged"}
    rows = [
        [
            html.cell(f"<b>{escape(one['node'])}</b>"),
            html.state(words[one["passed"]], good=one["passed"] is not False),
            html.cell(escape(one["sentence"])),
        ]
        for one in outcome["verdicts"]
    ]
    shown = html.table(rows) if rows else "Nothing was judged: no node of this launch has bounds."
    return html.section("verdicts", "Verdicts", shown)


def _findings(faults: Sequence[str], parts: Sequence[Shown]) -> str:
    items = [_finding(Finding(fault, grave=True), "", "") for fault in faults]
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


def _part(
    k: int, shown: Shown, title: str, charts: list[str], points: int, failed: Callable[[str, Exception], None]
) -> str:
    content = shown.section
    body = [f"<h3>{escape(name)}</h3>{html.cards(cards, charts, points)}" for name, cards in content.charts.items()]
    for name, draw in content.plots.items():
        try:
            source = html.picture(draw, title)
        except Exception as error:  # noqa: BLE001  a panel, possibly of another package, must not prevent the report
            failed(shown.title, error)
            body.append(f'<p class="soft">The picture {escape(name)} could not be drawn: {escape(str(error))}</p>')
        else:
            body.append(f'<h3>{escape(name)}</h3><img class="picture" alt="{escape(name)}" src="{source}">')
    body.append(html.more("numbers", html.numbers(content.content), opened=not body))
    return html.part(f"part-{k}", shown.title, content.lines, "".join(body))
