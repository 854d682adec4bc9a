"""The reference section of `docs/protocol.md`, written from the table of queries.

python -m dyn_service.protocol.reference docs/protocol.md      # brings the page up to date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from dyn_service.api.queries import QUERIES, Query, Spec
from dyn_service.protocol.administration import ADMINISTRATION, Administration

BEGIN = "<!-- The rest of this page is written by dyn_service.protocol.reference. -->"


def render() -> str:
    """Every query with its inputs, options and outputs, as Markdown."""
    parts = [BEGIN, "", "## Queries on a robot", ""]
    for row in QUERIES.values():
        parts += _query(row)
    parts += ["## Queries about the server, and longer computations", ""]
    for entry in ADMINISTRATION.values():
        parts += _administration(entry)
    return "\n".join(parts).rstrip() + "\n"


def update(page: str) -> str:
    """The page with its reference section brought up to date."""
    head, found, _ = page.partition(BEGIN)
    if not found:
        raise ValueError(f"the page has no line {BEGIN!r}")
    return head + render()


def _query(row: Query) -> list[str]:
    lines = [f"### `{row.name}`", "", row.summary, "", f"Source: {row.equation}.", ""]
    lines += ["| input | shape | unit | |", "|---|---|---|---|"] if row.inputs else ["It takes no inputs."]
    for name, spec in row.inputs.items():
        text = spec.text + ("; may be left out" if name in row.optional else "")
        shape = "map or list of maps" if name == "wrenches" else _shape(spec)
        lines.append(f"| `{name}` | {shape} | {_cell(spec.unit)} | {_cell(text)} |")
    if row.options:
        lines += ["", "| option | values | default |", "|---|---|---|"]
        for option in row.options.values():
            values = ", ".join(f'`"{c}"`' for c in option.choices) if option.choices else option.takes
            default = "nil" if option.default is None else f"`{json.dumps(option.default)}`"
            lines.append(f"| `{option.name}` | {values} | {default} |")
    lines += ["", "| output | shape | unit | |", "|---|---|---|---|"]
    lines += [f"| `{n}` | list of {label.dimension} texts | | {label.text} |" for n, label in row.labels.items()]
    lines += [f"| `{n}` | {_shape(s)} | {_cell(s.unit)} | {_cell(s.text)} |" for n, s in row.outputs.items()]
    return [*lines, ""]


def _administration(entry: Administration) -> list[str]:
    lines = [f"### `{entry.name}`", "", entry.summary, ""]
    if entry.names_robot:
        lines += ["The request's `robot` says which robot is meant.", ""]
    for title, names in (("input", entry.inputs), ("option", entry.options)):
        optional = names.keys() - {name for name in names if name in entry.required or "left out" in names[name]}
        lines += _texts(title, {n: text + "; may be left out" if n in optional else text for n, text in names.items()})
    return lines + _texts("output", entry.outputs)


def _texts(title: str, names: Mapping[str, str]) -> list[str]:
    if not names:
        return []
    return [f"| {title} | |", "|---|---|", *(f"| `{name}` | {_cell(text)} |" for name, text in names.items()), ""]


def _shape(spec: Spec) -> str:
    core = ", ".join(map(str, spec.shape))
    shape = f"(.., {core})" if core else "(..)"
    return f"{shape} or a number" if spec.scalar else shape


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
