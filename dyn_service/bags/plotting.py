"""Signals of a bag as a picture: a panel for each field, a line for each joint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dyn_service.bags.reader import BagReader
from dyn_service.bags.signals import By, Signal, signals
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.nodes.series import envelope
from dyn_service.suggestions import did_you_mean

USUAL = ("position", "velocity", "effort")
"""Fields that are drawn where none is named and the topic has them."""
UNITS = {"position": "rad | m", "velocity": "rad/s | m/s", "effort": "N m | N"}
MAX_PANELS = 12
DPI = 100
POINTS = 3000
"""Points of a line at most: what a panel has in pixels, twice, and some."""
STYLE: Any = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
_PANEL_INCHES = 2.6
_LEGEND_ENTRIES = 14


def plot(bag: BagReader, topics: Sequence[str], fields: Sequence[str], file: Path, by: By = "stamp") -> list[str]:
    """Draws the fields of topics over time; the names of the panels.

    Args:
        bag: The bag.
        topics: Topics; none stands for all that have numbers.
        fields: `position`, or one joint's, `position[elbow]`; none stands for those of `USUAL` that a topic
            has, else all.
        file: Where to; its suffix says what it becomes, `.png`, `.svg` or `.pdf`.
        by: See `signals`.

    Raises:
        NotFoundError: There is no such topic or field, or no number in any.
        FailedPreconditionError: The file cannot be written.
    """
    panels: dict[str, list[Signal]] = {}
    known: set[str] = set()
    for topic in topics or [each.name for each in bag.topics if len(each.times)]:
        found = signals(bag, topic, by)
        known |= {signal.field for signal in found} | {signal.name for signal in found}
        wanted = fields or [field for field in USUAL if any(signal.field == field for signal in found)]
        for signal in found:
            if not wanted or signal.field in wanted or signal.name in wanted:
                panels.setdefault(f"{topic}  {signal.field}", []).append(signal)
    for field in fields:
        if field not in known:
            raise NotFoundError(f"no topic has the field {field!r}{did_you_mean(field, known)}")
    if not panels:
        raise NotFoundError(f"bag {str(bag.path)!r} has no numbers to draw")
    if len(panels) > MAX_PANELS:
        raise InvalidArgumentError(
            f"{len(panels)} panels, at most {MAX_PANELS} are drawn: name topics or fields, such as {next(iter(panels))}"
        )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14.0, 0.8 + _PANEL_INCHES * len(panels)), dpi=DPI, layout="constrained")
        figure.suptitle(f"{bag.path.name}", x=0.01, ha="left", fontsize=13.0)
        for k, (heading, lines) in enumerate(panels.items()):
            axes = figure.add_subplot(len(panels), 1, k + 1)
            _panel(axes, heading, lines)
        axes.set_xlabel("time [s]" if by == "stamp" else "time since the bag's begin [s]")
        try:
            figure.savefig(file)
        except OSError as error:
            raise FailedPreconditionError(f"picture {str(file)!r} cannot be written: {error.strerror}") from None
        except ValueError:
            raise InvalidArgumentError(
                f"picture {str(file)!r}: its name must end in .png, .svg or .pdf, found {file.suffix!r}"
            ) from None
    return list(panels)


def _panel(axes: Axes, heading: str, lines: Sequence[Signal]) -> None:
    colours = mpl.colormaps["tab10" if len(lines) <= 10 else "turbo"]
    for k, signal in enumerate(lines):
        colour = colours(k) if len(lines) <= 10 else colours(k / (len(lines) - 1))
        time, value = envelope(signal.time, signal.value, POINTS)
        axes.plot(time, value, lw=1.2, color=colour, label=signal.entry or signal.field)
    axes.set_title(heading, loc="left")
    axes.set_ylabel(f"[{UNITS[lines[0].field]}]" if lines[0].field in UNITS else "")
    axes.margins(x=0.01)
    if len(lines) > 1:
        shown, labels = axes.get_legend_handles_labels()
        rest = len(labels) - _LEGEND_ENTRIES
        if rest > 0:
            labels[_LEGEND_ENTRIES - 1] = f".. {rest + 1} more"
        axes.legend(
            shown[:_LEGEND_ENTRIES],
            labels[:_LEGEND_ENTRIES],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            fontsize=8.5,
        )
