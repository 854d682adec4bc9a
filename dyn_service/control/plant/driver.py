"""A driver as the plant's loop trusts it: what it gives is held against what it must be, before anything comes of it.

A reading with a number that is none is a fault of the drive: the last sound one stands, the robot stops safely, and a
controller may arm it anew when numbers come again. A reading of another size, or an exception of the driver's own, is a
defect: it ends the loop, in one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar, get_args

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY, INTERFACES, Interface, SetPoint
from dyn_service.control.plant.hardware import Fault, Hardware, Reading, TakesSetPoints
from dyn_service.errors import DynError, FailedPreconditionError, failure
from dyn_service.model.configuration import Configuration

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
