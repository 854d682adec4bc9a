"""The summary of a bag: topics, types, counts, rates and gaps. No message is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from dyn_service.graph.bags.reader import BagReader, Topic

GAP = 3.0
"""A pause of this many median periods is a gap; one lost message makes two, jitter less."""


@dataclass(frozen=True)
class TopicSummary:
    """A topic. rate_hz: messages per second between the first and the last, NaN for fewer than two. gaps: pauses longer
    than `GAP` usual periods; longest_gap_s and gap_at_s: the longest of all pauses and when it began, s into the bag.
    """

    name: str
    type: str
    count: int
    rate_hz: float
    gaps: int
    longest_gap_s: float
    gap_at_s: float


@dataclass(frozen=True)
class Summary:
    """A bag. begin_ns, duration_s: of all its messages. whole: whether its recorder ended it."""

    path: Path
    size: int
    whole: bool
    begin_ns: int
    duration_s: float
    topics: tuple[TopicSummary, ...]
    attached: tuple[str, ...]

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(topic.count for topic in self.topics)


def summary(bag: BagReader) -> Summary:
    """Returns the summary of a bag."""
    begin, end = bag.span_ns
    return Summary(
        bag.path,
        bag.path.stat().st_size,
        bag.whole,
        begin,
        1e-9 * (end - begin),
        tuple(_of_topic(topic, begin) for topic in bag.topics),
        tuple(each.name for each in bag.attached),
    )


def lines(found: Summary) -> list[str]:
    """Returns the summary as lines of text."""
    began = datetime.fromtimestamp(found.begin_ns * 1e-9, UTC)
    shown = [
        f"{found.path}: {size_text(found.size)}, {found.messages} messages in {found.duration_s:.3f} s",
        f"begins at {found.begin_ns * 1e-9:.9f} s ({began:%Y-%m-%d %H:%M:%S} UTC)",
    ]
    if not found.whole:
        shown.append("not ended: its recorder was killed; what it wrote until then is read")
    if found.attached:
        shown.append(f"files within: {', '.join(found.attached)}")
    rows = [("topic", "type", "messages", "Hz", "gaps", "longest pause")]
    for topic in found.topics:
        rate = "" if np.isnan(topic.rate_hz) else f"{topic.rate_hz:.1f}"
        pause = "" if np.isnan(topic.longest_gap_s) else f"{topic.longest_gap_s:.4f} s at {topic.gap_at_s:.3f} s"
        rows.append((topic.name, topic.type, str(topic.count), rate, str(topic.gaps), pause))
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    for row in rows:
        cells = [
            cell.rjust(width) if k in (2, 3, 4) else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        shown.append("  ".join(cells).rstrip())
    return shown


def size_text(size: int) -> str:
    """Returns a number of bytes as text."""
    for unit, limit in (("B", 1e3), ("kB", 1e6), ("MB", 1e9)):
        if size < limit:
            return f"{size / (limit / 1e3):.3g} {unit}"
    return f"{size / 1e9:.3g} GB"


def _of_topic(topic: Topic, begin_ns: int) -> TopicSummary:
    pauses = np.diff(topic.times)
    if not len(pauses) or topic.times[-1] == topic.times[0]:
        return TopicSummary(topic.name, topic.type, len(topic.times), np.nan, 0, np.nan, np.nan)
    usual, longest = float(np.median(pauses)), int(np.argmax(pauses))
    return TopicSummary(
        topic.name,
        topic.type,
        len(topic.times),
        len(pauses) / (1e-9 * float(topic.times[-1] - topic.times[0])),
        int(np.count_nonzero(pauses > GAP * usual)) if usual else 0,
        1e-9 * float(pauses[longest]),
        1e-9 * float(topic.times[longest] - begin_ns),
    )
