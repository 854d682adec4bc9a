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


A driver as the plant's loop trusts it: what it gives is held against what it must be, before anything comes of it.

A reading with a number that is none is a fault of the drive: the last sound one stands, the robot stops safely, and a
controller may arm it anew when numbers come again. A reading of another size, or an exception of the driver's own, is a
defect: it ends the loop, in one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY, INTERFACES, Interface, SetPoint
from dyn_service.errors import DynError, FailedPreconditionError, failure
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


T = TypeVar("T")
_FAULTS: tuple[str, ...] = get_args(Fault)
_LOG = logging.getLogger(__name__)


class DriverError(FailedPreconditionError):
    """A driver failed, or gave what is no reading: names what it was asked for and what was found."""


@dataclass
class Driver:
    """The robot behind a driver: `hardware.Hardware`. of: the driver. not_finite: readings that were none."""

    of: Hardware
    not_finite: int = 0
    _last: Reading | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.configuration: Configuration = self.of.configuration
        self.simulated = bool(self.of.simulated)
        self.interfaces: tuple[Interface, ...] = EFFORT_ONLY
        if isinstance(self.of, TakesSetPoints):
            self.interfaces = tuple(kind for kind in INTERFACES if kind in self.of.interfaces)

    def open(self) -> Reading:
        """As `Hardware.open`.

        Raises:
            DriverError: The driver failed, or a number of its first reading is none.
            DynError: What it raises.
        """
        reading = self._sized("open", self._guarded("open", self.of.open))
        if not _finite(reading):
            raise DriverError("the driver's first reading has numbers that are not finite")
        self._last = reading
        return reading

    def write(self, effort: Array, *, brakes: bool) -> None:
        """As `Hardware.write`.

        Raises:
            DriverError: The driver failed.
            DynError: What it raises.
        """
        self._guarded("write", lambda: self.of.write(effort, brakes=brakes))

    def write_set_point(self, to: SetPoint, *, brakes: bool) -> None:
        """As `TakesSetPoints.write_set_point`.

        Raises:
            DriverError: The driver failed, or takes none.
            DynError: What it raises.
        """
        of = self.of
        if not isinstance(of, TakesSetPoints):
            raise DriverError(f"the driver takes efforts alone, found a set point of {to.interface}")
        self._guarded("write_set_point", lambda: of.write_set_point(to, brakes=brakes))

    def read(self) -> Reading:
        """As `Hardware.read`.

        Raises:
            DriverError: The driver failed, or gave a reading of another size.
            DynError: What it raises.
        """
        reading = self._sized("read", self._guarded("read", self.of.read))
        if not _finite(reading):
            self.not_finite += 1
            if self.not_finite == 1:
                _LOG.warning("the driver read numbers that are not finite: the robot stops")
            assert self._last is not None  # `open` comes first
            return replace(self._last, fresh=False, fault=reading.fault or "driver")
        self._last = reading
        return reading

    def close(self) -> None:
        """As `Hardware.close`: it raises nothing, whatever the driver does."""
        try:
            self.of.close()
        except Exception:  # noqa: BLE001  the loop is at its end, and its own reason counts
            _LOG.exception("the driver failed in its close")

    def _guarded(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except DynError:
            raise
        except Exception as error:
            raise DriverError(f"the driver failed in its {what}: {failure(error)}") from error

    def _sized(self, what: str, found: object) -> Reading:
        """The reading, as arrays of the sizes that the joints have."""
        if not isinstance(found, Reading):
            raise DriverError(f"the driver's {what} gave {type(found).__name__}: expected a Reading")
        fault = found.fault or ""
        if fault not in _FAULTS:
            raise DriverError(f"the driver's {what} gave the fault {fault!r}: expected 'velocity' or 'driver'")
        at = self.configuration
        q, v = (_numbers(what, name, getattr(found, name), n) for name, n in (("q", at.nq), ("v", at.nv)))
        effort = None if found.effort is None else _numbers(what, "effort", found.effort, at.nv)
        return replace(found, q=q, v=v, effort=effort, fault=fault)


def _numbers(what: str, name: str, given: object, n: int) -> Array:
    """A copy of them: a driver may go on to write into its own."""
    try:
        values: Array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DriverError(f"the driver's {what} gave no numbers as {name}: expected {n}") from None
    if values.shape != (n,):
        raise DriverError(f"the driver's {what} gave {name} of shape {values.shape}: expected {n} numbers")
    return values


def _finite(reading: Reading) -> bool:
    numbers = [reading.q, reading.v] if reading.effort is None else [reading.q, reading.v, reading.effort]
    return all(bool(np.isfinite(one).all()) for one in numbers)
