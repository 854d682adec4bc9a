"""A report's page: elements as data, and `render`, which alone writes HTML: one self-contained file, whose charts uPlot
draws in the browser (assets/, MIT license).

Content is a text, an element, a chart that `packed` returned, or a list of these. `render` escapes all texts, so that
no name from a launch file or another package becomes markup.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.graph.report.charts import Card, Chart, Finding, Span, envelope, resumptions, with_gaps

_LARGEST_SVG = 1 << 20
"""Bytes; larger pictures are stored as PNG instead of SVG."""
_SPANS = 8
"""Maximum number of linked spans per finding."""


Element: TypeAlias = dict[str, Any]
Content: TypeAlias = "str | Mapping[str, Any] | Sequence[Content]"


def tag(name: str, *content: Content, kind: str = "", **attributes: Any) -> Element:
    """Returns an element. kind: its class. attributes: with `_` for `-`; None, False and "" are left out."""
    # a plain map, so that workers of pytest can write it as JSON
    html_attributes = {key.replace("_", "-"): value for key, value in attributes.items()}
    return {"tag": name, "attributes": {"class": kind, **html_attributes}, "content": content}


class Part(NamedTuple):
    """A part of a page. name: its anchor. link: its text in the navigation; empty: it is not listed there. is_open:
    whether a part that can be folded is open; None: it cannot be folded. notes: next to the title of one that can be.
    """

    name: str
    title: str
    content: Content
    link: str = ""
    is_open: bool | None = None
    notes: Content = ""


def render(
    title: str, header: Element, parts: Sequence[Part], link: str, span: Span = (0.0, 1.0), footer: str = ""
) -> str:
    """Returns a page. title: of the window. link: to the top, in the navigation. span: of the charts over time, s."""
    charts: list[Mapping[str, Any]] = []
    body = [_html(header, charts), "<main>"]
    for part in parts:
        charts_before = len(charts)
        html = _html(_part(part), charts)
        # once, before the first part with charts
        if charts and not charts_before:
            body.append('<noscript><p class="nothing">The charts need JavaScript; the numbers do not.</p></noscript>')
        body.append(html)
    links = [
        tag("a", text, href=f"#{name}") for name, text in [("top", link), *((p.name, p.link) for p in parts)] if text
    ]
    # escaped, so that `</script>` in a label does not end the script
    data = json.dumps(charts, separators=(",", ":")).replace("<", "\\u003c")
    content = "\n".join(body)
    return f"""<!DOCTYPE html>
<html lang="en" data-begin="{span[0]!r}" data-end="{span[1]!r}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_asset("uPlot.min.css")}{_asset("page.css")}</style>
</head>
<body>
<nav>{_html(links, charts)}
<span class="push"></span><button id="all-of-it" hidden>whole run</button><button id="theme">light | dark</button></nav>
{content}
</main>
<footer>{escape(footer)}</footer>
<script type="application/json" id="chart-data">{data}</script>
<script>{_asset("uPlot.min.js")}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _html(content: Content, charts: list[Mapping[str, Any]]) -> str:
    """Returns the content as HTML; adds its charts to `charts`, which the page's script draws."""
    if isinstance(content, str):
        return escape(content)
    if not isinstance(content, Mapping):
        return "".join(_html(inner, charts) for inner in content)
    if "tag" not in content:
        return _html(_chart(content, charts), charts)
    attributes = "".join(
        f" {key}" if value is True else f' {key}="{escape(str(value))}"'
        for key, value in content["attributes"].items()
        if value not in (None, False, "")
    )
    name, inner_html = content["tag"], _html(content["content"], charts)
    return f"<{name}{attributes}>" if name == "img" else f"<{name}{attributes}>{inner_html}</{name}>"


def _chart(chart: Mapping[str, Any], charts: list[Mapping[str, Any]]) -> Element:
    # charts over the same times share them: a number refers to an earlier chart, counted back from this one
    same = next((k for k, earlier in enumerate(charts) if earlier["x"] == chart["x"]), None)
    charts.append(chart if same is None else {**chart, "x": same - len(charts)})
    return tag(
        "div", kind="chart last" if chart["last"] else "chart", role="img", aria_label=chart["title"],
        data_chart=str(len(charts) - 1), style=f"min-height:{chart['height'] + 20}px"
    )  # fmt: skip


def _part(part: Part) -> Element:
    title = tag("h2", part.title) if part.title else ""
    if part.is_open is None:
        return tag("section", title, part.content, id=part.name)
    return tag("details", tag("summary", title, part.notes), part.content, kind="part", id=part.name, open=part.is_open)


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def header(title: str, badges: Content, status: str, *content: Content) -> Element:
    """Returns the header of a page."""
    line = tag("div", badges, tag("span", status), kind="status")
    return tag("header", tag("h1", title), line, content, id="top")


def badge(colour: str, text: str) -> Element:
    """Returns a verdict in a colour: `good`, `warn` or `bad`."""
    return tag("span", text, kind=f"badge {colour}")


def facts(values: Iterable[tuple[str, Any]]) -> Element:
    """Returns names and values in one line, without those that are None or empty."""
    spans = [tag("span", f"{name} ", tag("b", str(value))) for name, value in values if value not in (None, "")]
    return tag("div", spans, kind="facts")


def soft(*content: Content) -> Element:
    """Returns a paragraph in a soft colour."""
    return tag("p", content, kind="soft")


def links(names: Iterable[str]) -> Content:
    """Returns links to files next to the page."""
    return comma_separated(tag("a", name, href=name) for name in names)


def comma_separated(parts: Iterable[Content]) -> Content:
    """Returns the parts with commas between them."""
    return [content for part in parts for content in (", ", part)][1:]


def findings(entries: Sequence[tuple[Finding, str, str]]) -> Element:
    """Returns a list of findings, each with its node and the part of the page to which its spans lead."""
    return tag("ul", [_finding(*entry) for entry in entries], kind="look")


def _finding(finding: Finding, node: str, part: str) -> Element:
    buttons: list[Content] = [
        tag("button", _times(begin, end), data_from=repr(begin), data_to=repr(end), data_part=part)
        for begin, end in finding.spans[:_SPANS]
    ]
    rest = len(finding.spans) - _SPANS
    if rest > 0:
        buttons.append(tag("span", f"and {rest} more, until {finding.spans[-1][1]:.2f} s", kind="soft"))
    subject: Content = [tag("span", f"{node}:", kind="of"), " "] if node else ""
    spans = tag("span", buttons, kind="spans") if buttons else ""
    return tag("li", subject, finding.text, spans, kind="grave" if finding.grave else "")


def _times(begin: float, end: float) -> str:
    return f"{begin:.2f} s" if end - begin < 0.01 else f"{begin:.2f} \N{EN DASH} {end:.2f} s"


def fold(title: str, *content: Content, is_open: bool = False) -> Element:
    """Returns details that are folded by default."""
    return tag("details", tag("summary", title), content, kind="more", open=is_open)


def table(rows: Iterable[Iterable[Content]], head: Sequence[str] = (), kind: str = "") -> Element:
    """Returns a table. rows: of contents, or of `cell` and `state`. kind: `nodes`: a narrow screen shows each row as a
    list, in which plain texts have the names of their columns.
    """
    top = tag("tr", [tag("th", name) for name in head]) if head else ""
    body = [tag("tr", list(map(_in_cell, row, chain(head, repeat(""))))) for row in rows]
    return tag("div", tag("table", top, body, kind=kind), kind="wide-table")


def _in_cell(content: Content, column: str) -> Element:
    if isinstance(content, dict) and content["tag"] == "td":
        return content
    return cell(content, label=column if isinstance(content, str) else "")


def cell(content: Content, kind: str = "", label: str = "") -> Element:
    """Returns a cell. kind: `number` (to the right), `words` (may break), `soft`. label: shown on narrow screens."""
    return tag("td", content, kind=kind, data_label=label)


def state(text: str, *, good: bool | None) -> Element:
    """Returns a cell with a dot: green, red, or for None an empty circle."""
    return cell(text, {True: "state", False: "state bad", None: "state open"}[good])


def numbers(content: Mapping[str, Any]) -> list[Content]:
    """Returns a map as tables: one for its plain values, one for each list of maps."""
    flat = dict(_flat(content))
    tables = {name: value for name, value in flat.items() if _is_table(value)}
    pairs = [tag("div", tag("dt", x), tag("dd", _value_text(flat[x]))) for x in flat if x not in tables]
    blocks: list[Content] = [tag("dl", pairs)] if pairs else []
    for name, rows in tables.items():
        keys = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[_number(row.get(key), str(key)) for key in keys] for row in rows]
        blocks += [tag("h4", name), table(cells, [str(key) for key in keys], "nodes numbers")]
    return blocks


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _number(value: Any, column: str) -> Element:
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return cell(_value_text(value), kind, column)


def _value_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "\N{EN DASH}"
    return ", ".join(map(_word, value)) if isinstance(value, list | tuple) else _word(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def cards(entries: Iterable[Card], points: int, kind: str = "cards") -> Element:
    """Returns cards. points: the maximum number of points per line."""
    return tag("div", [_card(card, points) for card in entries], kind=kind)


def _card(card: Card, points: int) -> Element:
    heading = tag("h4", card.title, tag("span", card.note, kind="note") if card.note else "")
    charts = [packed(chart, f"{card.title}: {chart.label}", points) for chart in card.charts]
    for lowest in charts[-1:]:
        lowest["last"] = True  # the axis of time is labelled once
    return tag("div", heading, charts, kind="card wide" if card.wide else "card")


def packed(chart: Chart, title: str, points: int) -> dict[str, Any]:
    """Returns a chart as plain values. title: for readers of a screen."""
    x, values = np.asarray(chart.x, np.float64), np.column_stack([line.values for line in chart.lines])
    broken_at = resumptions(x)  # of all points: fewer are as far apart as missing ones
    if chart.kind != "bars":
        x, values = envelope(x, values, points)
    if chart.kind == "line" and chart.timed:
        x, values = with_gaps(x, values, broken_at)
        x = np.where(np.isnan(x), np.roll(x, 1), x)  # where a line is broken, the previous time
    return {
        **vars(chart),
        "x": _base64(x),
        "lines": [
            {"label": line.label, "role": line.role, "y": _base64(values[:, n])} for n, line in enumerate(chart.lines)
        ],
        "marks": [vars(mark) for mark in chart.marks],
        "title": title,
        "last": False,
    }


def _base64(values: Array) -> str:
    # 5 characters per number, a quarter of its decimal digits; a screen has no more than the 7 digits of 4 bytes
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def picture(draw: Callable[[str], Any], title: str) -> str:
    """Returns a matplotlib figure as a data URI: SVG if it is small, else PNG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # letters as paths: the page must not depend on the reader's fonts
    with mpl.rc_context({"svg.fonttype": "path", "figure.facecolor": "white"}):
        figure = draw(title)
        FigureCanvasAgg(figure)
        kind, image = "svg+xml", io.BytesIO()
        figure.savefig(image, format="svg")
        if image.tell() > _LARGEST_SVG:
            kind, image = "png", io.BytesIO()
            figure.savefig(image, format="png", dpi=120)
    return f"data:image/{kind};base64,{base64.b64encode(image.getvalue()).decode('ascii')}"
