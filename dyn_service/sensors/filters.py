"""Digital filters in second-order sections, a sample of several channels at a time.

y = b0 x + z1,   z1' = b1 x - a1 y + z2,   z2' = b2 x - a2 y        transposed direct form II
"""

from __future__ import annotations

import math

import numpy as np

from dyn_service.api.results import Array
from dyn_service.sensors.settings import Filter


def sections_of(said: Filter, rate_hz: float) -> Array:
    """The filter's sections, (n, 6), b0 b1 b2 1 a1 a2 each."""
    if said.sections is not None:
        given = np.array(said.sections, dtype=np.float64).reshape(-1, 6)
        return given / given[:, 3:4]
    # The bilinear transform of the analog filter, its cutoff where it belongs.
    k = math.tan(math.pi * (said.cutoff_hz or 0.0) / rate_hz)
    if said.order == 1:
        return np.array([[k / (1.0 + k), k / (1.0 + k), 0.0, 1.0, (k - 1.0) / (k + 1.0), 0.0]])
    damped = 1.0 + math.sqrt(2.0) * k + k * k
    b = k * k / damped
    return np.array([[b, 2.0 * b, b, 1.0, 2.0 * (k * k - 1.0) / damped, (damped - 2.0 * math.sqrt(2.0) * k) / damped]])


class Cascade:
    """Sections one after the other; before its first sample it has stood at that for ever."""

    def __init__(self, sections: Array) -> None:
        self._sections: list[tuple[float, ...]] = [tuple(row) for row in sections.tolist()]
        self._state: list[tuple[Array, Array]] | None = None

    def __call__(self, x: Array) -> Array:
        """The output that belongs to the sample x (n,)."""
        if self._state is None:
            self._state = self._settled(x)
        for k, (b0, b1, b2, _, a1, a2) in enumerate(self._sections):
            z1, z2 = self._state[k]
            y = b0 * x + z1
            self._state[k] = (b1 * x - a1 * y + z2, b2 * x - a2 * y)
            x = y
        return x

    def reset(self) -> None:
        """Forgets all samples."""
        self._state = None

    def _settled(self, x: Array) -> list[tuple[Array, Array]]:
        state = []
        for b0, b1, b2, _, a1, a2 in self._sections:
            y = x * ((b0 + b1 + b2) / (1.0 + a1 + a2))
            z2 = b2 * x - a2 * y
            state.append((b1 * x - a1 * y + z2, z2))
            x = y
        return state
