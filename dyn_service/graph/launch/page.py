"""The page of a launch's report, `index.html`: one self-contained file.

It contains the outcome and the findings, the nodes, and the panels: charts, drawn in the browser by uPlot (assets/, MIT
license), pictures of matplotlib, and the numbers of `report.json`.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.graph.middleware.node_kind import Section
from dyn_service.graph.report.charts import Card, Chart, Finding, envelope, with_gaps

MAX_VALUES = 4_000_000
"""Maximum number of values of all lines on a page, 21 MB: a minute of a Panda at 1 kHz. With more, each line is
thinned, and the page says so."""
_SPANS = 8
"""Maximum number of linked spans per finding."""
_LONG = 24
"""Characters."""
_LARGEST_SVG = 1 << 20
"""Bytes; larger pictures are stored as PNG instead of SVG."""
WITHOUT_SCRIPTS = '<noscript><p class="nothing">The charts need JavaScript; the numbers do not.</p></noscript>'
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
    links: Sequence[str],
    failed: Callable[[str, Exception], None],
) -> str:
    """Returns the page.

    Args:
        title: The title of the run.
        report: The content of report.json.
        parts: The panels.
        columns: By node, its last cells of the live table, by their labels.
        tails: By node, the last lines of its output, for nodes that failed.
        links: Files next to the page, relative to it.
        failed: Called with the name of a section and the error if a picture cannot be drawn.
    """
    charts: list[str] = []
    # in the order of starting: the plant before its controller; pictures before numbers
    in_order = list(reversed(parts))
    parts = sorted(in_order, key=lambda part: not (part.section.charts or part.section.plots))
    budget = _Budget(parts, links)
    bodies = [_part(k, part, title, charts, budget.points, failed) for k, part in enumerate(parts)]
    begin, end = budget.begin, budget.end
    outcome = report["outcome"]
    navigation = f"""<a href="#top">{escape(title)}</a><a href="#verdicts">verdicts</a>
<a href="#look">what to look at</a><a href="#nodes">nodes</a>
{"".join(f'<a href="#part-{k}">{escape(part.title)}</a>' for k, part in enumerate(parts))}"""
    grave = any(found.grave for part in parts for found in part.section.findings)
    body = f"""{_header(title, report, links, grave=grave)}
<main>
{_verdicts(outcome)}
{_findings([*outcome["faults"], *filter(None, [outcome["busy"]])], parts)}
{budget.note}
{_nodes(report["processes"], columns, tails)}
{WITHOUT_SCRIPTS}
{"".join(bodies)}
</main>"""
    heading = f"{title}: {outcome['verdict']}"
    return document(heading, navigation, body, _footer(report), charts, (begin, end))


def document(
    title: str, navigation: str, body: str, footer: str, charts: Sequence[str], span: tuple[float, float]
) -> str:
    """Returns a self-contained page with charts.

    Args:
        title: The title in the browser.
        navigation: HTML of the links at the top.
        body: HTML, with the chart placeholders of `card_html`.
        footer: HTML.
        charts: The charts that `card_html` added.
        span: Start and end of the charts over time, s.
    """
    return f"""<!DOCTYPE html>
<html lang="en" data-begin="{span[0]!r}" data-end="{span[1]!r}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_asset("uPlot.min.css")}{_asset("page.css")}</style>
</head>
<body>
<nav>{navigation}
<span class="push"></span><button id="all-of-it" hidden>whole run</button><button id="theme">light | dark</button></nav>
{body}
<footer>{footer}</footer>
<script type="application/json" id="chart-data">[{",".join(charts)}]</script>
<script>{_asset("uPlot.min.js")}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


class _Budget:
    """The number of points per line, and the span of the charts over time. note: a sentence if lines are thinned."""

    def __init__(self, parts: Sequence[Shown], links: Sequence[str]) -> None:
        charts = [
            chart for part in parts for cards in part.section.charts.values() for card in cards for chart in card.charts
        ]
        longest, lines = max((len(chart.x) for chart in charts), default=0), sum(len(chart.lines) for chart in charts)
        self.points, self.note = longest, ""
        if sum(len(chart.x) * len(chart.lines) for chart in charts) > MAX_VALUES:
            self.points = MAX_VALUES // lines
            source = ", ".join(link for link in links if link.endswith(".npz")) or "no file"
            self.note = (
                f'<p class="soft">The charts show {self.points} of {longest} recorded points of a line, the smallest '
                f"and the largest of each interval. All recorded points are in {escape(source)}.</p>"
            )
        timed = [chart.x for chart in charts if chart.timed and len(chart.x)]
        self.begin = min((float(np.nanmin(x)) for x in timed), default=0.0)
        self.end = max((float(np.nanmax(x)) for x in timed), default=1.0)
        if not self.end > self.begin:
            self.end = self.begin + 1.0


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def _header(title: str, report: Mapping[str, Any], links: Sequence[str], *, grave: bool) -> str:
    """Returns the header. grave: whether a finding changed the run (safe stops, dropped commands), though all processes
    ended well.
    """
    outcome, launch = report["outcome"], report["launch"]
    colour, word = {True: "good", False: "bad", None: "warn"}[outcome["clean"]], outcome["verdict"]
    if grave and outcome["clean"]:
        colour, word = "warn", f"{word}, but look"
    badge = f'<span class="badge {colour}">{word}</span>'
    robot = report["robot"]
    several = title != robot["name"] and str(robot["name"]) in title.split(", ")
    facts = [
        ("robots", title) if several else ("robot", robot["name"]),
        ("model", "" if several else (robot["fingerprint"] or "")[:12]),
        ("ran", f"{report['duration_s']:.1f} s"),
        ("launch file", launch["file"]),
        ("created", str(report["created"]).replace("T", " ")),
    ]
    shown = "".join(f"<span>{name} <b>{escape(str(value))}</b></span>" for name, value in facts if value)
    arguments = "".join(
        f'<span class="mono">{escape(name)}:=<b>{escape(str(value))}</b></span>'
        for name, value in launch["arguments"].items()
    )
    if arguments:
        summary = "<summary>arguments</summary>"
        arguments = f'<details class="more">{summary}<div class="facts">{arguments}</div></details>'
    ended = escape(outcome["reason"] or "no reason given")
    files = ", ".join(f'<a href="{escape(link, quote=True)}">{escape(link)}</a>' for link in links)
    return f"""<header id="top">
<h1>{escape(title)}</h1>
<div class="status">{badge}<span>status {outcome["exit_code"]}: {ended}</span></div>
<div class="facts">{shown}</div>
{arguments}
<p class="soft">Files: {files}</p>
</header>"""


def _verdicts(outcome: Mapping[str, Any]) -> str:
    """Returns the table of verdicts: measured values with their bounds, and what was not judged."""
    words = {True: "met", False: "broken", None: "not judged"}
    rows = "".join(
        f"<tr><td><b>{escape(one['node'])}</b></td>"
        f'<td class="state{" bad" if one["passed"] is False else ""}">{words[one["passed"]]}</td>'
        f"<td>{escape(one['sentence'])}</td></tr>"
        for one in outcome["verdicts"]
    )
    shown = f"<table>{rows}</table>" if rows else "Nothing was judged: no node of this launch has bounds."
    return f'<section id="verdicts"><h2>Verdicts</h2><div class="wide-table">{shown}</div></section>'


def _findings(faults: Sequence[str], parts: Sequence[Shown]) -> str:
    items = [_finding(Finding(fault, grave=True), "", "") for fault in faults]
    found = [(one, part, k) for k, part in enumerate(parts) for one in part.section.findings]
    for one, part, k in sorted(found, key=lambda item: not item[0].grave):
        charted = next((n for n, other in enumerate(parts) if other.node == part.node and other.section.charts), k)
        items.append(_finding(one, part.node, f"part-{k if part.section.charts else charted}"))
    shown = f'<ul class="look">{"".join(items)}</ul>' if items else f'<p class="nothing">{_NOTHING}</p>'
    return f'<section id="look"><h2>What to look at</h2>{shown}</section>'


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
    processes: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Mapping[str, str]],
    tails: Mapping[str, Sequence[str]],
) -> str:
    labels = list(dict.fromkeys(label for cells in columns.values() for label, text in cells.items() if text))
    head = "".join(
        f"<th>{escape(label)}</th>" for label in ("node", "state", "restarts", "CPU", *labels, "how it ended")
    )
    rows, parameters = [], []
    for process in processes:
        name = process["name"]
        cells = columns.get(name, {})
        good = process["state"] in _OK_STATES and process["clean"] and not process["faults"]
        share = process["cpu_share"]
        cpu = "" if share is None else f"{process['cpu_s']:.1f} s, {100.0 * share:.0f} %"
        ended = "; ".join([*process["causes"], *process["faults"]])
        rows.append(
            f"<tr><td><b>{escape(name)}</b></td>"
            f'<td class="state{"" if good else " bad"}">{escape(process["state"])}</td>'
            f'<td data-label="restarts">{process["restarts"]}</td>{_node_cell("CPU", cpu)}'
            + "".join(_node_cell(label, cells.get(label, "")) for label in labels)
            + f'<td class="words soft" data-label="how it ended">{escape(ended)}</td></tr>'
        )
        if process["parameters"]:
            parameters.append(f"<h3>{escape(name)}</h3>{_numbers(process['parameters'])}")
    last = "".join(
        f'<h3>{escape(name)} wrote at its end</h3><pre class="tail">{escape(chr(10).join(lines))}</pre>'
        for name, lines in tails.items()
    )
    more = f'<details class="more"><summary>parameters</summary>{"".join(parameters)}</details>' if parameters else ""
    return f"""<details class="part" id="nodes" open><summary><h2>Nodes</h2></summary>
<div class="wide-table"><table class="nodes"><tr>{head}</tr>{"".join(rows)}</table></div>{last}{more}</details>"""


def _node_cell(label: str, text: str) -> str:
    """Returns a cell, on one line unless it is long. On a narrow screen its label precedes it."""
    words = " class=words" if len(text) > _LONG else ""
    return f'<td{words} data-label="{escape(label, quote=True)}">{escape(text)}</td>'


def _part(
    k: int, part: Shown, title: str, charts: list[str], points: int, failed: Callable[[str, Exception], None]
) -> str:
    section = part.section
    body = []
    for heading, cards in section.charts.items():
        shown = "".join(card_html(card, charts, points) for card in cards)
        body.append(f'<h3>{escape(heading)}</h3><div class="cards">{shown}</div>')
    for name, draw in section.plots.items():
        try:
            source = _picture(draw, title)
        except Exception as error:  # noqa: BLE001  a panel, possibly of another package, must not prevent the report
            failed(part.title, error)
            body.append(f'<p class="soft">The picture {escape(name)} could not be drawn: {escape(str(error))}</p>')
        else:
            body.append(f'<h3>{escape(name)}</h3><img class="picture" alt="{escape(name, quote=True)}" src="{source}">')
    numbers = _numbers(section.content)
    opened = "" if body else " open"
    body.append(f'<details class="more"{opened}><summary>numbers</summary>{numbers}</details>')
    lines = "".join(f'<span class="soft">{escape(line)}</span>' for line in section.lines)
    return f"""<details class="part" id="part-{k}" open><summary><h2>{escape(part.title)}</h2>{lines}</summary>
{"".join(body)}</details>"""


def card_html(card: Card, charts: list[str], points: int) -> str:
    """Returns a card as HTML. Adds its charts, as JSON, to `charts`; `points`: the maximum number of points per
    line.
    """
    places = []
    for n, chart in enumerate(card.charts):
        label = escape(f"{card.title}: {chart.label}", quote=True)
        last = n == len(card.charts) - 1
        places.append(
            f'<div class="chart{" last" if last else ""}" role="img" aria-label="{label}" '
            f'data-chart="{len(charts)}" style="min-height:{chart.height + 20}px"></div>'
        )
        charts.append(_chart(chart, charts, points, last=last))
    wide = " wide" if card.wide else ""
    note = f'<span class="note">{escape(card.note)}</span>' if card.note else ""
    return f'<div class="card{wide}"><h4>{escape(card.title)}{note}</h4>{"".join(places)}</div>'


def _chart(chart: Chart, charts: Sequence[str], points: int, *, last: bool) -> str:
    """Returns a chart as JSON that is safe in a script. charts: the previous charts of the page."""
    x, values = np.asarray(chart.x, np.float64), np.column_stack([line.values for line in chart.lines])
    if chart.kind != "bars":
        x, values = envelope(x, values, points)
    if chart.kind == "line":
        x, values = with_gaps(x, values)
        x = _filled(x)
    times = _packed(x)
    same = next((k for k, other in enumerate(charts) if other.startswith(f'{{"x":"{times}"')), None)
    content = {
        "x": times if same is None else same - len(charts),  # refers to an earlier chart, counted back from this one
        "lines": [
            {"label": line.label, "role": line.role, "y": _packed(values[:, n])} for n, line in enumerate(chart.lines)
        ],
        "label": chart.label,
        "xLabel": chart.x_label,
        "kind": chart.kind,
        "log": chart.log,
        "marks": [{"at": m.at, "label": m.label, "along": m.along, "role": m.role} for m in chart.marks],
        "bands": chart.bands,
        "alarms": chart.alarms,
        "fromZero": chart.from_zero,
        "least": chart.least,
        "height": chart.height,
        "timed": chart.timed,
        "last": last,
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _filled(x: Array) -> Array:
    """Replaces NaN times, where a line is broken, by the previous time."""
    broken = np.flatnonzero(np.isnan(x))
    filled = x.copy()
    filled[broken] = x[broken - 1]
    return filled


def _packed(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def _picture(draw: Callable[[str], Any], title: str) -> str:
    """Returns a matplotlib figure as a data URI: SVG if it is small, else PNG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context({"svg.fonttype": "path", "figure.facecolor": "white"}):
        figure = draw(title)
        FigureCanvasAgg(figure)
        picture = io.BytesIO()
        figure.savefig(picture, format="svg")
        if picture.tell() <= _LARGEST_SVG:
            return _address("image/svg+xml", picture.getvalue())
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
        return _address("image/png", picture.getvalue())


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _numbers(content: Mapping[str, Any]) -> str:
    """Returns a map as tables: one for its plain values, one for each list of maps."""
    plain = {name: value for name, value in _flat(content) if not _is_table(value)}
    tables = {name: value for name, value in _flat(content) if _is_table(value)}
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{_said(value)}</dd></div>" for name, value in plain.items())
    said = [f"<dl>{rows}</dl>"] if rows else []
    for name, table in tables.items():
        keys = list(dict.fromkeys(key for row in table for key in row))
        head = "".join(f"<th>{escape(str(key))}</th>" for key in keys)
        body = "".join(f"<tr>{''.join(_cell(row.get(key)) for key in keys)}</tr>" for row in table)
        said.append(f'<h4>{escape(name)}</h4><div class="wide-table"><table><tr>{head}</tr>{body}</table></div>')
    return "".join(said)


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' if number else ''}>{_said(value)}</td>"


def _said(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "\N{EN DASH}"
    if isinstance(value, list | tuple):
        return escape(", ".join(map(_word, value)))
    return escape(_word(value))


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _footer(report: Mapping[str, Any]) -> str:
    versions: Iterable[tuple[str, Any]] = report["versions"].items()
    return ", ".join(f"{escape(name)} {escape(str(value))}" for name, value in versions)
