"""The reference section of `docs/protocol.md`, written from the table of queries.

python -m tools.protocol_reference docs/protocol.md      # brings the page up to date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from dyn_service.api.queries import COMPUTATIONS, QUERIES, Computation, Row, Spec
from dyn_service.service.protocol.administration import ADMINISTRATION, Administration

BEGIN = "<!-- The rest of this page is written by tools.protocol_reference. -->"

_WRITTEN = {
    **dict.fromkeys(("wrenches", "contacts"), "map or list of maps"),
    **dict.fromkeys(("payload", "overlay"), "map"),
    "link": "text, or lists of texts as leading axes",
    "directions": "list of texts",
}
"""Inputs that are no arrays, by kind."""


def render() -> str:
    """Every query with its inputs, options and outputs, as Markdown."""
    parts = [BEGIN, "", "## Queries on a robot", ""]
    for row in QUERIES.values():
        parts += _row(row)
    parts += ["## Computations", "", "What takes long: work for the server's worker, simulations in parts.", ""]
    for computation in COMPUTATIONS.values():
        parts += _row(computation)
    parts += ["## Queries about the server", ""]
    for entry in ADMINISTRATION.values():
        parts += _administration(entry)
    return "\n".join(parts).rstrip() + "\n"


def update(page: str) -> str:
    """The page with its reference section brought up to date."""
    head, found, _ = page.partition(BEGIN)
    if not found:
        raise ValueError(f"the page has no line {BEGIN!r}")
    return head + render()


def _row(row: Row) -> list[str]:
    lines = [f"### `{row.name}`", "", row.summary, "", f"Source: {row.equation}.", ""]
    if isinstance(row, Computation) and row.robot:
        lines += ["The request's `robot` says which robot is meant.", ""]
    if isinstance(row, Computation) and row.parts:
        lines += [
            "A request takes a limited number of steps; a longer motion comes in parts, each from the last state of "
            "the one before, with `first_step`.",
            "",
        ]
    lines += ["| input | shape | unit | |", "|---|---|---|---|"] if row.inputs else ["It takes no inputs."]
    for name, spec in row.inputs.items():
        text = spec.text + ("; may be left out" if name in row.optional else "")
        shape = _WRITTEN.get(spec.kind) or _shape(spec)
        lines.append(f"| `{name}` | {shape} | {_cell(spec.unit)} | {_cell(text)} |")
    if row.options:
        lines += ["", "| option | values | default | |", "|---|---|---|---|"]
        for option in row.options.values():
            values = ", ".join(f'`"{c}"`' for c in option.choices) if option.choices else option.takes
            default = "nil" if option.default is None else f"`{json.dumps(option.default)}`"
            lines.append(
                f"| `{option.name}` | {values} | {'required' if option.required else default} | {option.text} |"
            )
    lines += ["", "| output | shape | unit | |", "|---|---|---|---|"]
    lines += [f"| `{n}` | list of {label.dimension} texts | | {label.text} |" for n, label in row.labels.items()]
    outputs = {**row.outputs, **row.between} if isinstance(row, Computation) else row.outputs
    for name, spec in outputs.items():
        called = "by formulation" if spec.kind == "residuals" else f"`{name}`"
        lines.append(f"| {called} | {_shape(spec)} | {_cell(spec.unit)} | {_cell(spec.text)} |")
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
