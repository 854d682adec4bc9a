"""Building blocks of a report's page: one self-contained HTML file, whose charts uPlot draws in the browser (assets/,
MIT license).

Arguments named `text`, `title` or `label` are plain text and are escaped; `html` and `body` are HTML.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.graph.report.charts import Card, Chart, Span, envelope, with_gaps

_LARGEST_SVG = 1 << 20
"""Bytes; larger pictures are stored as PNG instead of SVG."""


def document(
    title: str,
    anchors: Iterable[tuple[str, str]],
    header: str,
    body: str,
    charts: Sequence[str],
    span: Span,
    footer: str = "",
) -> str:
    """Returns a self-contained page. anchors: names and texts of the links at its top. charts: those that `cards`
    added. span: start and end of the charts over time, s.
    """
    navigation = "".join(f'<a href="#{where}">{escape(text)}</a>' for where, text in anchors)
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
{header}
<main>
{body}
</main>
<footer>{footer}</footer>
<script type="application/json" id="chart-data">[{",".join(charts)}]</script>
<script>{_asset("uPlot.min.js")}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


WITHOUT_SCRIPTS = '<noscript><p class="nothing">The charts need JavaScript; the numbers do not.</p></noscript>'


def header(title: str, verdict: str, text: str, html: str = "") -> str:
    """Returns the header of a page. verdict: a `badge`."""
    line = f'<div class="status">{verdict}<span>{escape(text)}</span></div>'
    return f'<header id="top"><h1>{escape(title)}</h1>\n{line}\n{html}</header>'


def badge(colour: str, text: str) -> str:
    """Returns a verdict in a colour: `good`, `warn` or `bad`."""
    return f'<span class="badge {colour}">{escape(text)}</span>'


def facts(found: Iterable[tuple[str, Any]]) -> str:
    """Returns names and values in one line, without those that are None or empty."""
    shown = (f"<span>{name} <b>{escape(str(value))}</b></span>" for name, value in found if value not in (None, ""))
    return f'<div class="facts">{"".join(shown)}</div>'


def links(names: Iterable[str]) -> str:
    """Returns links to files next to the page."""
    return ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in names)


def section(name: str, title: str, html: str) -> str:
    """Returns a section with a heading. name: its anchor."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{html}</section>'


def part(name: str, title: str, lines: Iterable[str], html: str, *, verdict: str = "", opened: bool = True) -> str:
    """Returns a part of the page that can be folded. name: its anchor. lines: shown next to its title."""
    notes = verdict + "".join(f'<span class="soft">{escape(line)}</span>' for line in lines)
    summary = f"<summary><h2>{escape(title)}</h2>{notes}</summary>"
    return f'<details class="part" id="{name}"{" open" if opened else ""}>{summary}\n{html}</details>'


def more(title: str, html: str, *, opened: bool = False) -> str:
    """Returns details that are folded by default."""
    return f'<details class="more"{" open" if opened else ""}><summary>{escape(title)}</summary>{html}</details>'


def table(rows: Iterable[Iterable[str]], head: Iterable[str] = (), kind: str = "") -> str:
    """Returns a table. rows: of cells, `cell` or `state`. kind: `nodes`: a narrow screen shows each row as a list."""
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    kind = f' class="{kind}"' if kind else ""
    return f'<div class="wide-table"><table{kind}>{f"<tr>{top}</tr>" if top else ""}{body}</table></div>'


def cell(html: str, kind: str = "", label: str = "") -> str:
    """Returns a cell of a table. label: shown before it on a narrow screen."""
    kind, label = f' class="{kind}"' if kind else "", f' data-label="{escape(label)}"' if label else ""
    return f"<td{kind}{label}>{html}</td>"


def state(text: str, *, good: bool | None) -> str:
    """Returns a cell with a dot: green, red, or for None an empty circle."""
    return cell(escape(text), {True: "state", False: "state bad", None: "state open"}[good])


def numbers(content: Mapping[str, Any]) -> str:
    """Returns a map as tables: one for its plain values, one for each list of maps."""
    flat = dict(_flat(content))
    tables = {name: value for name, value in flat.items() if _is_table(value)}
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{_said(value)}</dd></div>"
        for name, value in flat.items()
        if name not in tables
    )
    said = [f"<dl>{rows}</dl>"] if rows else []
    for name, listed in tables.items():
        keys = list(dict.fromkeys(key for row in listed for key in row))
        rows_of_cells = ([_number(row.get(key), str(key)) for key in keys] for row in listed)
        body = table(rows_of_cells, map(str, keys), "nodes numbers")
        said.append(f"<h4>{escape(name)}</h4>{body}")
    return "".join(said)


def _flat(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_table(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _number(value: Any, label: str) -> str:
    kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return cell(_said(value), kind, label)


def _said(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "\N{EN DASH}"
    return escape(", ".join(map(_word, value)) if isinstance(value, list | tuple) else _word(value))


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def cards(shown: Iterable[Card], charts: list[str], points: int, kind: str = "cards") -> str:
    """Returns cards. Adds their charts, as JSON, to `charts`. points: the maximum number of points per line."""
    made = []
    for card in shown:
        note = f'<span class="note">{escape(card.note)}</span>' if card.note else ""
        made.append(f'<div class="card{" wide" if card.wide else ""}"><h4>{escape(card.title)}{note}</h4>')
        for chart in card.charts:
            last = chart is card.charts[-1]
            made.append(
                f'<div class="chart{" last" if last else ""}" role="img" '
                f'aria-label="{escape(f"{card.title}: {chart.label}")}" '
                f'data-chart="{len(charts)}" style="min-height:{chart.height + 20}px"></div>'
            )
            charts.append(_chart(chart, charts, points, last=last))
        made.append("</div>")
    return f'<div class="{kind}">{"".join(made)}</div>'


def _chart(chart: Chart, charts: Sequence[str], points: int, *, last: bool) -> str:
    """Returns a chart as JSON that is safe in a script. charts: the previous charts of the page."""
    x, values = np.asarray(chart.x, np.float64), np.column_stack([line.values for line in chart.lines])
    if chart.kind != "bars":
        x, values = envelope(x, values, points)
    if chart.kind == "line" and chart.timed:
        x, values = with_gaps(x, values)
        x = np.where(np.isnan(x), np.roll(x, 1), x)  # where a line is broken, the previous time
    times = _packed(x)
    same = next((k for k, other in enumerate(charts) if other.startswith(f'{{"x":"{times}"')), None)
    content = {
        **vars(chart),
        "x": times if same is None else same - len(charts),  # refers to an earlier chart, counted back from this one
        "lines": [
            {"label": line.label, "role": line.role, "y": _packed(values[:, n])} for n, line in enumerate(chart.lines)
        ],
        "marks": [vars(mark) for mark in chart.marks],
        "last": last,
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _packed(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def picture(draw: Callable[[str], Any], title: str) -> str:
    """Returns a matplotlib figure as a data URI: SVG if it is small, else PNG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context({"svg.fonttype": "path", "figure.facecolor": "white"}):
        figure = draw(title)
        FigureCanvasAgg(figure)
        kind, drawn = "svg+xml", io.BytesIO()
        figure.savefig(drawn, format="svg")
        if drawn.tell() > _LARGEST_SVG:
            kind, drawn = "png", io.BytesIO()
            figure.savefig(drawn, format="png", dpi=120)
    return f"data:image/{kind};base64,{base64.b64encode(drawn.getvalue()).decode('ascii')}"
