"""Verdicts on a run: what was measured, and the bound that it was held against.

A run is clean if its processes ended well and every bound was met. The page, `report.json`, the last line of a launch
and the status of `dyn launch --check` state the same verdicts; `Check.clean` has the same bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from dyn_service.api.queries import Array
from dyn_service.support.parameters import NotNegative

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
MOVES = 0.2
"""A reference that spans less than this share of the bound on the error is one that stands."""


class PlantBounds(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Bounds within which a run of the plant is clean; a very large one bounds nothing.

    safe_stops: how often the plant may stop safely; none, for after a stop the robot no longer does what was asked.
    under_command: the least share of time under command between the first command and a release. error_rad: rad, the
    largest tracking error of a joint that turns; 3 degrees, a hundred times that of the shipped laws. error_m: m, of
    one that slides. error_share: that error's largest share of the way that the reference goes, so that a robot that
    stands still under a small motion is not clean. late_s: s of the plant's time by which 999 of 1000 periods may begin
    late; at 10 ms it begins to lose time (`max_catch_up_s`). slipped: the largest share of time lost so. at_limits: the
    largest share of time in which commands to a joint were cut, its motor was at its limit, or it beyond its own.
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
        """The largest errors allowed (nv,), rad | m. turns: whether each is an angle; ways: how far its reference went,
        rad | m.
        """
        most = np.where(turns, self.error_rad, self.error_m)
        return np.where(ways > MOVES * most, np.minimum(most, self.error_share * ways), most)


def share_under_command(active: int, stopped: int) -> float:
    """The share of time under command, between the first command and a release, of the steps in which a plant was
    active and in which it was stopped safely; 0 where it was neither.
    """
    return active / max(1.0, active + stopped)


@dataclass(frozen=True)
class Verdict:
    """A measured value and its bound, in `unit`. value: None where it was not judged, NaN where it should have been.

    least: whether the bound is the least value allowed, else it is the largest. detail: of which joint, when; or why it
    was not judged.
    """

    what: str
    value: float | None
    bound: float
    unit: str = ""
    detail: str = ""
    least: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether the bound was met; None where that was not judged."""
        if self.value is None or math.isinf(self.bound):
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound

    @property
    def sentence(self) -> str:
        """What was found and what is allowed."""
        detail = f" ({self.detail})" if self.detail else ""
        if self.passed is None:
            return f"{self.what} not judged{detail if self.value is None else ' (no bound)'}"
        allowed = f"allowed at {'least' if self.least else 'most'} {sized(self.bound, self.unit)}"
        found = "is no number" if math.isnan(self.value or 0.0) else sized(self.value or 0.0, self.unit)
        return f"{self.what} {found}{detail}, {allowed}"


def said(x: float) -> str:
    """A number as one writes it: 0.25, 1e-3, 4.1e-3."""
    if x == 0.0 or not math.isfinite(x) or 0.01 <= abs(x) < 1e5:
        return f"{x:.3g}" if abs(x) < 1000.0 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def sized(x: float, unit: str) -> str:
    """A number with its unit."""
    return f"{said(float(x))} {unit}".rstrip()
