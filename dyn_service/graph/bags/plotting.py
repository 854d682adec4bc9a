"""Draws signals of a bag: a panel for each field or vector, a line for each joint or component."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.report.charts import envelope
from dyn_service.messages.builtin_interfaces import NANOSECONDS
from dyn_service.support.suggestions import did_you_mean

USUAL = ("position", "velocity", "effort")
"""Fields that are drawn by default if the topic has them."""
USUAL_OF = {
    "sensor_msgs/msg/JointState": USUAL,
    "nav_msgs/msg/Odometry": (
        "pose.pose.position", "pose.pose.orientation", "twist.twist.linear", "twist.twist.angular"
    ),
    "sensor_msgs/msg/MultiDOFJointState": (
        "transforms.translation", "transforms.rotation", "twist.linear", "twist.angular"
    ),
    "geometry_msgs/msg/WrenchStamped": ("wrench.force", "wrench.torque"),
    "sensor_msgs/msg/Imu": ("linear_acceleration", "angular_velocity"),
}  # fmt: skip
"""Fields that are drawn by default, for types about a robot's motion; other types are omitted if there are too many."""
UNITS = {
    "position": "rad | m", "velocity": "rad/s | m/s", "effort": "N m | N", "pose.pose.position": "m",
    "translation": "m", "linear": "m/s", "angular": "rad/s", "force": "N", "torque": "N m",
    "linear_acceleration": "m/s^2", "angular_velocity": "rad/s",
}  # fmt: skip
"""Units by field, or by its last part."""
_PARTS = ("x", "y", "z", "w")
MAX_PANELS = 12
DPI = 100
CLOCKS_DIFFER_S = 1.0
"""Topics whose delays from stamp to arrival differ by more than this are stamps_or_none by different clocks."""
POINTS = 3000
"""Maximum number of points of a line: somewhat more than twice a panel's pixels."""
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


def plot(
    bag: BagReader, topics: Sequence[str], fields: Sequence[str], file: Path, time_base: By = "stamp"
) -> list[str]:
    """Draws the fields of topics over time; returns the names of the panels.

    Args:
        bag: The bag.
        topics: Topics; empty: all with numbers, or, if these are too many and no field is given, those of the types in
            `USUAL_OF`, up to the maximum number of panels.
        fields: `position`, or one joint's, `position[elbow]`; a vector, `wrench.force`, or a part of it; empty: those
            of `USUAL_OF` or `USUAL` that a topic has, else all.
        file: The picture; the suffix `.png`, `.svg` or `.pdf` selects the format.
        time_base: See `signals`. All panels share one time axis: if a topic has no stamps, or stamps of another clock,
            it is the time since the bag's start.

    Raises:
        NotFoundError: A topic or field does not exist, or has no numbers.
        InvalidArgumentError: There are more panels than a picture can have, or the file's suffix is unknown.
        FailedPreconditionError: The file cannot be written.
    """
    panels, signal_names = _all_panels(bag, topics, fields, time_base)
    delays = np.array([lines[0].delay_s for lines in panels.values()])
    # negated, so that NaN, the delay of a topic without stamps, is another clock too
    if time_base == "stamp" and len(panels) > 1 and not np.ptp(delays) <= CLOCKS_DIFFER_S:
        time_base = "log"
        panels, signal_names = _all_panels(bag, topics, fields, time_base)
    for field in fields:
        if field not in signal_names:
            raise NotFoundError(f"no topic has the field {field!r}{did_you_mean(field, signal_names)}")
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
            axes = figure.add_subplot(len(panels), 1, k + 1, sharex=figure.axes[0] if k else None)
            _panel(axes, heading, lines)
        axes.set_xlabel("time [s]" if time_base == "stamp" else "time since the bag's start [s]")
        try:
            figure.savefig(file)
        except OSError as error:
            raise FailedPreconditionError(f"picture {str(file)!r} cannot be written: {error.strerror}") from None
        except ValueError:
            raise InvalidArgumentError(
                f"picture {str(file)!r}: its name must end in .png, .svg or .pdf, found {file.suffix!r}"
            ) from None
    return list(panels)


def _all_panels(
    bag: BagReader, topics: Sequence[str], fields: Sequence[str], time_base: By
) -> tuple[dict[str, list[Signal]], set[str]]:
    panels: dict[str, list[Signal]] = {}
    signal_names: set[str] = set()
    types = {bag_topic.name: bag_topic.type for bag_topic in reversed(bag.topics)}
    for topic in topics or [bag_topic.name for bag_topic in bag.topics if len(bag_topic.times)]:
        topic_signals = signals(bag, topic, time_base)
        has = {signal.panel for signal in topic_signals}
        signal_names |= has | {name for signal in topic_signals for name in (signal.field, signal.name)}
        selected = set(fields or [field for field in USUAL_OF.get(types[topic], USUAL) if field in has])
        for signal in topic_signals:
            if not selected or {signal.field, signal.name, signal.panel} & selected:
                panels.setdefault(f"{topic}  {signal.panel}", []).append(signal)
    if len(panels) > MAX_PANELS and not topics and not fields:
        panels = _of_motions(bag, panels)
    return panels, signal_names


def _of_motions(bag: BagReader, panels: dict[str, list[Signal]]) -> dict[str, list[Signal]]:
    """Returns the panels of topics about motion (`USUAL_OF`), up to the maximum number; all if no such panel exists."""
    motion_panels: dict[str, list[Signal]] = {}
    for kind in USUAL_OF:
        for topic in [bag_topic.name for bag_topic in bag.topics if bag_topic.type == kind]:
            topic_panels = {heading: lines for heading, lines in panels.items() if lines[0].topic == topic}
            if len(motion_panels) + len(topic_panels) <= MAX_PANELS:
                motion_panels |= topic_panels
    return motion_panels or panels


def _panel(axes: Axes, heading: str, lines: Sequence[Signal]) -> None:
    colours = mpl.colormaps["tab10" if len(lines) <= 10 else "turbo"]
    for k, signal in enumerate(lines):
        colour = colours(k) if len(lines) <= 10 else colours(k / (len(lines) - 1))
        # with all peaks: a picture of every 100th point would hide what is looked for
        time, value = envelope(signal.time, signal.value, POINTS)
        axes.plot(time, value, lw=1.2, color=colour, label=signal.label)
    axes.set_title(heading, loc="left")
    panel = lines[0].panel
    unit = UNITS.get(panel) or UNITS.get(panel.rpartition(".")[2])
    axes.set_ylabel(f"[{unit}]" if unit else "")
    axes.margins(x=0.01)
    if len(lines) > 1:
        handles, labels = axes.get_legend_handles_labels()
        rest = len(labels) - _LEGEND_ENTRIES
        if rest > 0:
            labels[_LEGEND_ENTRIES - 1] = f".. {rest + 1} more"
        handles, labels = handles[:_LEGEND_ENTRIES], labels[:_LEGEND_ENTRIES]
        axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)


By = Literal["stamp", "log"]
MAX_SIGNALS = 1000
"""Maximum number of signals of one topic; further ones are ignored."""
_NAMES = ("name", "joint_names")


@dataclass(frozen=True)
class Signal:
    """One number of a topic over time.

    field: `position`. entry: the joint, `elbow`, or empty. time: s from the bag's start for `log`, the messages' stamps
    for `stamp`. value: NaN for messages without the number. delay_s: median difference between arrival (s from the
    bag's start) and stamp; NaN without stamps.
    """

    topic: str
    field: str
    entry: str
    time: NDArray[np.float64]
    value: NDArray[np.float64]
    delay_s: float = math.nan

    @property
    def name(self) -> str:
        """Field and entry: `position[elbow]`."""
        return f"{self.field}[{self.entry}]" if self.entry else self.field

    @property
    def panel(self) -> str:
        """The field, or its vector if it is a component."""
        vector, _, part = self.field.rpartition(".")
        return vector if vector and part in _PARTS else self.field

    @property
    def label(self) -> str:
        """The name of its line in the panel."""
        part = self.field.rpartition(".")[2] if self.panel != self.field else ""
        return f"{self.entry} {part}".strip() or self.field


def signals(bag: BagReader, topic: str, time_base: By = "stamp") -> list[Signal]:
    """Returns the signals of a topic, in the order of its message's fields.

    time_base: `stamp`: time is the messages' stamp, if all have one and any is not zero; `log`: the time of arrival.

    Raises:
        NotFoundError: The topic does not exist.
        InvalidArgumentError: The bag is damaged.
    """
    begin, _ = bag.span_ns
    arrivals_s: list[float] = []
    stamps_or_none: list[float | None] = []
    columns: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for k, recorded in enumerate(bag.messages([topic])):
        arrivals_s.append(1e-9 * (recorded.log_time_ns - begin))
        stamps_or_none.append(stamp_s(recorded.message))
        for field, entry, number in _numbers(recorded.message):
            key = (field, entry)
            if key in columns or len(columns) < MAX_SIGNALS:
                columns.setdefault(key, []).append((k, number))
    stamps = [stamp for stamp in stamps_or_none if stamp is not None]
    complete = len(stamps) == len(arrivals_s) and any(stamps)
    time = np.array(stamps if time_base == "stamp" and complete else arrivals_s)
    delay_s = float(np.median(np.array(arrivals_s) - np.array(stamps))) if complete else math.nan
    topic_signals = []
    for (field, entry), column in columns.items():
        value = np.full(len(arrivals_s), np.nan)
        value[np.array([row for row, _ in column])] = [number for _, number in column]
        topic_signals.append(Signal(topic, field, entry, time, value, delay_s))
    return topic_signals


def stamp_s(message: Any) -> float | None:
    """Returns the message's time in s from `header.stamp`, `stamp` or `clock`; None if it has none of these."""
    header = getattr(message, "header", None)
    for holder, name in ((header, "stamp"), (message, "stamp"), (message, "clock")):
        stamp = getattr(holder, name, None)
        if isinstance(stamp, float):
            return stamp
        sec, nanosec = getattr(stamp, "sec", None), getattr(stamp, "nanosec", None)
        if isinstance(sec, int) and isinstance(nanosec, int):
            return (sec * NANOSECONDS + nanosec) / NANOSECONDS
    return None


def _numbers(message: Any) -> Iterator[tuple[str, str, float]]:
    """Yields (field, entry, value) of every number except those of headers and stamps."""
    lists = (list(getattr(message, attribute)) for attribute in _NAMES if hasattr(message, attribute))
    names: Sequence[str] = next(lists, [])
    for field in _fields(message):
        if field in ("header", "stamp"):
            continue
        yield from _numbers_of(field, getattr(message, field), names)


def _numbers_of(field: str, value: Any, names: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    if isinstance(value, bool | int | float | np.number):
        yield field, "", float(value)
    elif isinstance(value, list | tuple | np.ndarray):
        for k, element in enumerate(value):
            entry = names[k] if len(names) == len(value) else str(k)
            if isinstance(element, int | float | np.number):
                yield field, entry, float(element)
            elif not isinstance(element, str):
                # a transform is named after its child frame
                place = str(getattr(element, "child_frame_id", "") or entry)
                for inner, deeper, number in _numbers_of(field, element, ()):
                    yield f"{field}{inner.removeprefix(field)}", f"{place}{deeper and '.' + deeper}", number
    elif not isinstance(value, str | bytes):
        for inner in _fields(value):
            if inner != "header":
                yield from _numbers_of(f"{field}.{inner}", getattr(value, inner), names)


def _fields(message: Any) -> Sequence[str]:
    if isinstance(message, msgspec.Struct):
        return message.__struct_fields__
    return tuple(getattr(message, "__slots__", ()))
