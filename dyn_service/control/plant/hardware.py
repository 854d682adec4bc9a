"""What drives a robot's motors, as the plant's loop sees it: a driver of real ones, and the simulated robot alike.

    reading = hardware.open()                      # connected; brakes shut, no efforts
    each period of the loop:
        hardware.write(effort, brakes=...)         # acts from now on, until the next write
        reading = hardware.read()                  # what was measured since
    hardware.close()                               # brakes shut, however the loop ended

Efforts are N m | N, one per entry of v, in the order of `configuration`; positions rad | m, velocities rad/s | m/s.
What comes to `write` has passed the safety supervisor: it is finite, within the limits and their rates. With `brakes`
the brakes are to be shut, whatever the efforts. Hardware whose drives take positions or velocities themselves says so
(`TakesSetPoints`), and gets these in place of efforts while they are commanded. Once every period, `1 / rate_hz` of the
plant, both are called; neither may wait longer than a small part of it.

Errors. What passes is no error: where nothing new was measured `read` says so (`fresh`), where the drive has a fault
that it stands (`fault`), and both lead to a safe stop that a controller may end by arming anew. What does not pass is
raised, as an error of this package in one sentence: the loop ends, after `close`. A driver whose computer hangs calls
nothing more: the drive itself has to shut its brakes when writes do not come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from dyn_service.api.queries import Array
from dyn_service.control.command import Interface, SetPoint
from dyn_service.model.configuration import Configuration

Fault = Literal["", "velocity", "driver"]


class Motion(NamedTuple):
    """q (nq,) rad | m, v (nv,) rad/s | m/s."""

    q: Array
    v: Array


@dataclass(frozen=True, eq=False)
class Reading:
    """What a robot measured last.

    q: (nq,) rad | m. v: (nv,) rad/s | m/s. effort: (nv,) N m | N, what acted until then; None where it is not measured:
    it is then taken to be what was written. fresh: whether it was measured since the last `read`. fault: why the drive
    does not follow, empty where it does: `velocity`, a joint is at its velocity limit, or `driver`, anything else.
    truth: of a simulated robot with sensors, where it really is.
    """

    q: Array
    v: Array
    effort: Array | None = None
    fresh: bool = True
    fault: Fault = ""
    truth: Motion | None = None

    @property
    def motion(self) -> Motion:
        """What a recording holds: where it really is, as far as that is known."""
        return Motion(self.q, self.v) if self.truth is None else self.truth


class Hardware(Protocol):
    """One robot."""

    @property
    def configuration(self) -> Configuration:
        """Its joints, in the order of all arrays."""

    @property
    def simulated(self) -> bool:
        """Whether its time passes by its writes alone: after an overrun of k periods it then gets k of them, and what
        is real gets one.
        """

    def open(self) -> Reading:
        """Connects, with the brakes shut and no efforts; the first reading.

        Raises:
            DynError: It cannot be reached, or is not ready.
        """

    def write(self, effort: Array, *, brakes: bool) -> None:
        """Efforts (nv,) that act until the next write, and whether the brakes are shut.

        Raises:
            DynError: What does not pass.
        """

    def read(self) -> Reading:
        """The newest that was measured.

        Raises:
            DynError: What does not pass.
        """

    def close(self) -> None:
        """Shuts the brakes and lets go; raises nothing."""


@runtime_checkable
class TakesSetPoints(Protocol):
    """What hardware has besides whose drives take positions or velocities."""

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """What it may be commanded by; `effort` too where it takes efforts."""

    def write_set_point(self, to: SetPoint, *, brakes: bool) -> None:
        """In place of `write` while positions or velocities are commanded: where the joints are to be, how fast, with
        which efforts beside what the drives make, until the next write. It is within the limits of position and
        velocity and never jumps; limits of effort are the drive's own. In a stop `write` is called.

        Raises:
            DynError: What does not pass.
        """
