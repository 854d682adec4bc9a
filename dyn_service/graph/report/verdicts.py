"""Verdicts on a run: measured values and their bounds.

A run is clean if its processes ended well and the robot met every bound; it is on time if the timing did: answers,
periods and commands, which also depend on what else the machine does. The page, `report.json`, the last line of a
launch and the status of `dyn launch --check` state the same verdicts; `Check.clean` has the same bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.support.parameters import NotNegative

Subject = Literal["robot", "timing"]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
MOVES = 0.2
"""A reference that spans less than this share of the bound on the error counts as constant."""


class PlantBounds(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Bounds within which a run of the plant is clean; a very large bound disables a check.

    safe_stops: maximum number of safe stops. under_command: minimum share of time under command between the first
    command and a release. error_rad: rad, maximum tracking error of a revolute joint; 3 degrees, a hundred times that
    of the shipped laws. error_m: m, of a prismatic joint. error_share: maximum of that error as a share of the
    reference's range, so that a robot that does not move under a small motion is not clean. late_s: s of the plant's
    time by which 999 of 1000 periods may begin late; at 10 ms it begins to lose time (`max_catch_up_s`). slipped:
    maximum share of time lost that way. at_limits: maximum share of time with a joint's commands clipped, its motor at
    its limit, or its position out of range.
    """

    safe_stops: NotNegative = 0.0
    under_command: Share = 0.99
    error_rad: NotNegative = 0.05
    error_m: NotNegative = 0.005
    error_share: NotNegative = 0.25
    late_s: NotNegative = 0.01
    slipped: NotNegative = 0.01
    at_limits: NotNegative = 0.01

    def errors(self, turns: Any, ways: Array) -> Array:
        """Returns the maximum errors (nv,), rad | m. turns: whether each is an angle; ways: the references' ranges."""
        limit = np.where(turns, self.error_rad, self.error_m)
        return np.where(ways > MOVES * limit, np.minimum(limit, self.error_share * ways), limit)


def share_under_command(active: int, stopped: int) -> float:
    """Returns the share of time under command between the first command and a release, from the numbers of active and
    of safely stopped steps; 0 without either.
    """
    return active / max(1.0, active + stopped)


@dataclass(frozen=True)
class Verdict:
    """A measured value and its bound, in `unit`. value: None if it was not judged, NaN if it could not be computed.

    least: whether the bound is a minimum, else it is a maximum. detail: joint and time; or why it was not judged.
    subject: what the bound is on.
    """

    what: str
    value: float | None
    bound: float
    unit: str = ""
    detail: str = ""
    least: bool = False
    subject: Subject = "robot"

    @property
    def passed(self) -> bool | None:
        """Whether the bound was met; None if it was not judged."""
        if self.value is None or math.isinf(self.bound):
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound

    @property
    def sentence(self) -> str:
        """The value and the bound as a sentence."""
        detail = f" ({self.detail})" if self.detail else ""
        if self.passed is None:
            return f"{self.what} not judged{detail if self.value is None else ' (no bound)'}"
        value = self.value or 0.0
        bound_text = f"allowed at {'least' if self.least else 'most'} {sized(self.bound, self.unit)}"
        size = "is no number" if math.isnan(value) else sized_beside(value, self.unit, self.bound)
        return f"{self.what} {size}{detail}, {bound_text}"


def format_number(x: float) -> str:
    """Returns a number as text: 0.25, 1e-3, 4.1e-3."""
    if x == 0.0 or not math.isfinite(x) or 0.01 <= abs(x) < 1e5:
        return f"{x:.3g}" if abs(x) < 1000.0 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def sized(x: float, unit: str) -> str:
    """Returns a number with its unit as text."""
    return f"{format_number(float(x))} {unit}".rstrip()


def sized_beside(x: float, unit: str, *bounds: float) -> str:
    """Returns a number with its unit, with more digits where it would read as a bound from which it differs."""
    reads_as_bound = format_number(float(x)) in map(format_number, bounds) and float(x) not in bounds
    return f"{float(x)!r} {unit}".rstrip() if reads_as_bound else sized(x, unit)
