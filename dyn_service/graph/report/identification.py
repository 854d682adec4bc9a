"""The page of an identification: errors before and after, efforts of each joint, parameters with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.graph.report import page
from dyn_service.graph.report.charts import Card, Chart, Finding, Line, running_time, spans_of
from dyn_service.identification.inertias import central_moments
from dyn_service.identification.physical_robot import PhysicalIdentification
from dyn_service.model.description import Note
from dyn_service.model.parameters import INERTIAL

POINTS = 1500
"""Points per line of a chart."""

_KINDS = (("masses", "kg"), ("first moments", "kg m"), ("inertias and armatures", "kg m\N{SUPERSCRIPT TWO}"))


def identification_page(result: PhysicalIdentification, recording: str, notes: Sequence[Note]) -> str:
    """Returns the page as HTML. recording: its name. notes: of the recording and of the files written."""
    identification = result.identification
    title = f"Identification of {identification.robot.name}"
    badge = {
        None: page.badge("warn", "not checked"),
        True: page.badge("good", "better than the file"),
        False: page.badge("bad", "no better than the file"),
    }[result.improves]
    delay, delay_error = 1e3 * identification.delay_s, 1e3 * identification.delay_error_s
    comparison = identification.comparison
    facts = page.facts([
        ("form", identification.form),
        ("cut-off", f"{identification.cutoff_hz:.3g} Hz"),
        ("delay of efforts", f"{delay:.3g} \N{PLUS-MINUS SIGN} {delay_error:.2g} ms"),
        ("rows fitted", int(comparison.is_fit.sum())),
        ("rows of the check", int(comparison.is_check.sum())),
        ("rows over which residuals are correlated", identification.correlated_rows),
    ])  # fmt: skip
    warnings = page.findings([(Finding(text), "", "") for text in result.warnings]) if result.warnings else ""
    header = page.header(title, badge, f"recording {recording}", facts, warnings)
    t = running_time(comparison.t)
    parts = [
        page.Part("errors", "Errors of effort, rms, N m or N", _errors(result), "errors"),
        page.Part("efforts", "Efforts", page.cards(_efforts(result, t), POINTS, "cards fill"), "efforts"),
        page.Part("parameters", "Base parameters", _parameters(result), "parameters"),
        page.Part("links", "Links", _links(result), "links"),
        page.Part("joints", "Friction and armature", _joints(result), "joints"),
        page.Part("unknown", "What the recording does not determine", _unknown(result), "unknown"),
        page.Part("notes", "Notes", _notes(notes), "notes"),
    ]
    span = (float(t[0]), float(t[-1])) if len(t) else (0.0, 1.0)
    return page.render(title, header, parts, "identification", span)


def _cells(values: Sequence[Any], digits: int = 3) -> list[page.Content]:
    return [page.cell(f"{value:.{digits}g}" if np.isfinite(value) else "\N{EN DASH}", "number") for value in values]


def _errors(result: PhysicalIdentification) -> page.Content:
    errors = {part: result.errors(part) for part in ("check", "fit")}
    head = ["joint", *(f"{part}: {model}" for part, models in errors.items() for model in models), "noise"]
    columns = [values for models in errors.values() for values in models.values()]
    rows = zip(result.identification.joints, *columns, result.identification.noise, strict=True)
    note = page.soft(
        "Rows of the check were not fitted. The new files lack what robot files have no place for, such as offsets."
    )
    return [page.table([[page.tag("b", joint), *_cells(values)] for joint, *values in rows], head, "nodes"), note]


def _efforts(result: PhysicalIdentification, t: Array) -> list[Card]:
    comparison, physical = result.identification.comparison, result.comparison
    bands = spans_of(t, comparison.is_check)
    cards = []
    for k, joint in enumerate(result.identification.joints):
        usable = comparison.usable[:, k]
        if not usable.any():
            continue
        effort, file, new = (
            np.where(usable, x[:, k], np.nan) for x in (comparison.measurement, comparison.file, physical.fitted)
        )
        efforts = [Line("measured", effort), Line("file", file, "reference"), Line("identified", new, "effort")]
        residuals = [Line("file", effort - file, "reference"), Line("identified", effort - new, "error")]
        charts = [
            Chart(t, efforts, "effort [N m | N]", bands=bands),
            Chart(t, residuals, "residual", bands=bands, height=120),
        ]
        cards.append(Card(joint, charts, "grey: rows of the check"))
    return cards


def _parameters(result: PhysicalIdentification) -> page.Content:
    identification = result.identification
    physical = result.parameters.values[: len(identification.names)]
    columns = (identification.model.file_values, identification.estimate, identification.standard_errors, physical)
    head = ("base parameter", "file", "least squares", "standard error", "physical")
    rows = [
        [page.cell(name, "words"), *_cells(values, 4)]
        for name, *values in zip(identification.names, *columns, strict=True)
    ]
    source = page.picture(lambda title: _figure(title, result, physical), "base parameters")
    image = page.tag("img", kind="picture", alt="base parameters with error bars", src=source)
    return [image, page.fold("table", page.table(rows, head, "nodes"))]


def _figure(title: str, result: PhysicalIdentification, physical: Array) -> Any:
    """Draws file, estimate with two standard errors, and physical value."""
    from matplotlib.figure import Figure

    identification = result.identification
    kinds = np.array([_kind(name) for name in identification.names])
    present = [k for k in range(len(_KINDS)) if (kinds == k).any()]
    figure = Figure(figsize=(13.0, 1.2 + 0.22 * max((kinds == k).sum() for k in present)), layout="constrained")
    figure.suptitle(f"{title}: bars are two standard errors")
    for axes, k in zip(np.atleast_1d(figure.subplots(1, len(present))), present, strict=True):
        rows = np.flatnonzero(kinds == k)
        y = np.arange(len(rows))
        axes.plot(identification.model.file_values[rows], y, "D", color="0.6", label="file")
        errors = 2.0 * identification.standard_errors[rows]
        axes.errorbar(
            identification.estimate[rows], y, xerr=errors, fmt="o", ms=4, color="#1b5e9b", label="least squares"
        )
        axes.plot(physical[rows], y, "x", color="#c2571a", label="physical")
        largest = 1.2 * max(
            np.abs(np.concatenate([identification.model.file_values[rows], physical[rows]])).max(), 1e-6
        )
        axes.set_xscale("symlog", linthresh=0.1 * largest)
        axes.set(xlim=(-largest, largest), xlabel=f"{_KINDS[k][0]}, {_KINDS[k][1]}")
        axes.set_yticks(y, [_short(identification.names[row]) for row in rows], fontsize=7)
        axes.invert_yaxis()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    return figure


def _kind(name: str) -> int:
    number = name.split(" ")[0].rpartition(".")[2]
    return 0 if number == "m" else 1 if number.startswith("h") else 2


def _short(name: str) -> str:
    first, *rest = name.split(" ")
    return f"{first} .." if rest else first


def _links(result: PhysicalIdentification) -> page.Content:
    robot, parameters = result.identification.robot, result.parameters
    count = len(robot.link_names) * len(INERTIAL)
    old_links, new_links = (
        np.reshape(x[:count], (-1, len(INERTIAL))) for x in (robot.dynamic_parameters().theta, parameters.theta)
    )
    rows = []
    for name, file, new, change in zip(robot.link_names, old_links, new_links, parameters.change, strict=True):
        if not change:
            continue
        remarks = ["at the limit of what can exist"] if name in parameters.bounded else []
        remarks += ["impossible in the file"] if name in parameters.repaired else []
        extents = 1e3 * np.sqrt(np.linalg.eigvalsh(central_moments(new)) / new[0])
        rows.append([
            page.tag("b", name), *_cells([file[0], new[0]]), *_vectors([file, new]),
            page.cell(" x ".join(f"{2.0 * x:.0f}" for x in extents), "number"), *_cells([change], 2),
            ", ".join(remarks),
        ])  # fmt: skip
    head = (
        "link", "mass in the file, kg", "mass", "centre in the file, m", "centre", "extents, mm", "change", "remark"
    )  # fmt: skip
    note = "Extents: twice the standard deviations of mass. Change: of the pseudo-inertia, relative to the file's."
    return [page.table(rows, head, "nodes"), page.soft(note)]


def _vectors(parameters: Sequence[Array]) -> list[page.Content]:
    return [page.cell(", ".join(f"{x:.3f}" for x in theta[1:4] / theta[0]), "number") for theta in parameters]


def _joints(result: PhysicalIdentification) -> page.Content:
    robot, identification = result.identification.robot, result.identification
    parameters = robot.dynamic_parameters()
    column = {name: k for k, name in enumerate(parameters.parameters)}
    rows = []
    for joint in identification.joints:
        friction = identification.friction[joint]
        texts = [
            f"{kind} {x:.3g} \N{PLUS-MINUS SIGN} {friction.standard_errors[kind]:.1g}"
            for kind, x in friction.values.items()
        ]
        passive = [[x[column[f"{joint}.{part}"]] for x in (parameters.theta, result.parameters.theta)]
                   for part in ("damping", "friction", "armature")]  # fmt: skip
        rows.append([page.tag("b", joint), page.cell("; ".join(texts) or "none is significant", "words"),
                     *_cells([x for pair in passive for x in pair])])  # fmt: skip
    head = ["joint", "least squares"]
    head += [f"{part}{place}" for part in ("damping", "friction", "armature") for place in (" in the file", "")]
    return page.table(rows, head, "nodes")


def _notes(notes: Sequence[Note]) -> page.Content:
    if not notes:
        return page.tag(
            "p", "None: nothing of the recording was changed, nothing of the robot's file is lost.", kind="nothing"
        )
    rows = [
        [page.tag("b", note.element), page.cell(note.kind, "words"), page.cell(note.text, "words")] for note in notes
    ]
    return page.table(rows, ("of", "kind", "note"), "nodes")


def _unknown(result: PhysicalIdentification) -> page.Content:
    unknown = result.identification.unknown
    if not unknown:
        return page.tag(
            "p", "Nothing: all base parameters are determined better than the noise of efforts.", kind="nothing"
        )
    return page.tag("ul", [page.tag("li", str(direction)) for direction in unknown])
