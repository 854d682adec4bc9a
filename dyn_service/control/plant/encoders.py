"""What a simulated robot measures of itself: its encoders' positions and velocities, and what its other sensors read.

The devices are those of `dyn_service.sensors`; here they are sampled as the robot moves. A joint without an encoder is
measured as it is. Velocities are the encoders' differences, or what is true of them, as of drives with a tachometer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dyn_service.api.queries import Array, Wrench
from dyn_service.model.configuration import Configuration
from dyn_service.sensors import Reading, Sensors

Velocities = Literal["encoders", "measured"]


class Measuring:
    """The sensors of one simulated robot. readings: the newest of each that has come, by name.

    Args:
        sensors: Of the robot that really moves.
        at: Its joints.
        velocities: Where those of joints with encoders are from.
    """

    def __init__(self, sensors: Sensors, at: Configuration, velocities: Velocities = "encoders") -> None:
        self.sensors, self.readings = sensors, dict[str, Reading]()
        places = {
            name: (in_q.start, in_v.start) for name, in_q, in_v in zip(at.names, at.q_slices, at.v_slices, strict=True)
        }
        self._places = {name: places[name] for name in sensors.settings.encoders}
        self._differences = velocities == "encoders"
        self._begun: tuple[Array, Array] | None = None

    @property
    def feels(self) -> bool:
        """Whether any of them is told what pushes: force/torque sensors are."""
        return bool(self.sensors.settings.force_torque)

    @property
    def others(self) -> tuple[str, ...]:
        """The names of those that are no encoders."""
        return (*self.sensors.settings.force_torque, *self.sensors.settings.imus)

    def sample(self, t: float, q: Array, v: Array, a: Array, pushes: Sequence[Wrench] = ()) -> None:
        """Those that are due sample the state q (nq,), v, a (nv,) at t, s, while these wrenches act."""
        if self._begun is None:
            self._begun = q, v
        self.readings = self.sensors.read(t, q, v, a, wrenches=tuple(pushes) or None)

    def measured(self, q: Array, v: Array) -> tuple[Array, Array]:
        """What is measured of q and v; until an encoder's first reading has come, as it was when it was switched on."""
        if self._begun is None or not self._places:
            return q, v
        q, v = q.copy(), v.copy()
        for name, (in_q, in_v) in self._places.items():
            reading = self.readings.get(name)
            position, velocity = (self._begun[0][in_q], 0.0) if reading is None else reading.value
            q[in_q] = position
            if self._differences:
                v[in_v] = velocity
        return q, v
