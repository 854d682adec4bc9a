"""What a call does while nothing comes: asks again, asks if the server lives, gives up. No socket and no clock here.

A call that waits looks about it every `LOOK_S`, and does then what `Tries.look` says:

- After silence it sends its request again, under the same id, so that either reply is the answer: `retries` times at
  most over one connection, each time after a longer, jittered pause. What the server says it is at is not asked again,
  nor what is long: such silence is no sign that a message was lost.
- Where the connection broke or the server was restarted, the reply can come no more: it asks anew as soon as there is a
  server again, and gives up where there is none for `SILENT_S`.
- After `PROBE_S` without a word it asks the server for its health; what says nothing at all for `SILENT_S` is gone,
  whatever the transport believes.

What changes the server is never sent twice: where its reply cannot come any more, the call ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

LOOK_S = 0.05
"""So often a call that waits looks whether there is something to do."""

PROBE_S = 2.0
"""After so long without a word the server is asked for its health, and again as often."""

SILENT_S = 10.0
"""A server that says nothing for so long, or is away so long during a call, is gone."""

LONGEST_PAUSE_S = 2.0
"""Pauses between tries grow no longer than this and what they begin with."""

LONG_BYTES = 16 << 10
"""Longer requests are sent again only where the first one is lost for certain."""

_STOPPED_S = 1.0
"""If so long passed between two looks, it was this process that stood still."""


class Step(Enum):
    """What to do now."""

    WAIT = auto()
    AGAIN = auto()
    """Send the request again."""
    PROBE = auto()
    """Ask the server for its health."""


class Cause(Enum):
    """Why a call cannot be answered, though its time is not up."""

    GONE = auto()
    """The connection broke, and is not back."""
    RESTARTED = auto()
    """Another server is there than the one that was asked."""
    SILENT = auto()
    """Nothing was heard."""


@dataclass(frozen=True)
class Retrying:
    """How often, and after what silence, requests are sent again."""

    retries: int
    after_s: float
    random: Random = field(default_factory=Random)

    def pause_s(self, number: int) -> float:
        """The silence before one more try: `after_s`, and by chance up to 2^(number - 1) times as much again.

        Args:
            number: How manieth it is over this connection, from 1.
        """
        most_s = min(LONGEST_PAUSE_S, self.after_s * 2.0 ** min(number - 1, 30))
        return self.after_s + self.random.uniform(0.0, most_s)


class Tries:
    """The tries of one call.

    Args:
        policy: How often it may be sent again.
        repeatable: Whether it may be at all.
        is_long: Whether it is longer than `LONG_BYTES`.
        begun_s: When it was sent, on the caller's clock.
        epoch: The server's, as it was known then; None: it was not.
    """

    def __init__(self, policy: Retrying, begun_s: float, epoch: int | None, *, repeatable: bool, is_long: bool) -> None:
        self.count = 1
        """So often it was sent."""
        self.told = False
        """Whether the server said that it is at it."""
        self._policy = policy
        self._repeatable = repeatable and policy.retries > 0
        self._is_long = is_long
        self._number = 0
        self._again_s = begun_s + policy.pause_s(1)
        self._heard_s = self._probed_s = self.looked_s = begun_s
        self._gone_s: float | None = None
        self._epoch = epoch

    def look(self, now_s: float, *, reaches: bool, epoch: int | None, heard: bool) -> Step | Cause:
        """What to do.

        Args:
            now_s: The time, on the caller's clock.
            reaches: Whether a server is connected.
            epoch: The server's, as it is known now.
            heard: Whether anything came since the last look.
        """
        if heard or now_s - self.looked_s > _STOPPED_S:
            self._heard_s = now_s
        self.looked_s = now_s
        if not reaches:
            self._gone_s = now_s if self._gone_s is None else self._gone_s
            over = not self._repeatable or now_s - self._gone_s > SILENT_S
            return Cause.GONE if over else Step.WAIT
        restarted = self._epoch is not None and epoch != self._epoch
        self._epoch = epoch
        if restarted or self._gone_s is not None:
            self._gone_s = None
            if not self._repeatable:
                return Cause.RESTARTED
            self._number, self.told, self._heard_s = 0, False, now_s
            return self._again(now_s)
        if now_s - self._heard_s > SILENT_S:
            return Cause.SILENT
        silent = not (self.told or self._is_long) and now_s >= self._again_s
        if silent and self._repeatable and self._number < self._policy.retries:
            self._number += 1
            return self._again(now_s)
        if now_s - max(self._heard_s, self._probed_s) > PROBE_S:
            self._probed_s = now_s
            return Step.PROBE
        return Step.WAIT

    def _again(self, now_s: float) -> Step:
        self._again_s = now_s + self._policy.pause_s(self._number + 1)
        self.count += 1
        return Step.AGAIN
